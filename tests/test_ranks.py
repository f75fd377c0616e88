"""A table dealt to ranks: each row is read by exactly one, and it is the one that the rule names."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import make_stream
from harness.checkpoints import engram_family
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io import native
from pagegram_io.deployed.ranks import SPLITS, RankShare, RankSource, own_rows, shares_of

FAMILY = engram_family()
LAYOUT = FAMILY.layout()
STREAM = make_stream(np.random.default_rng(8).integers(0, 1000, 500), [0, 77])
ROWS = LAYOUT.rows(STREAM)


def rank_of(column: int, row: int, ranks: int, split: str) -> int:
    """The rule, for one row at a time: 4 columns a layer, of which the first four are layer 1's."""
    within = column % 4
    if split == "columns":
        return within % ranks
    if split == "heads":
        starts = [rank * -(-4 // ranks) for rank in range(ranks)]
        return max(rank for rank, start in enumerate(starts) if start <= within)
    tensor = FAMILY.tensors[column // 4]
    return (row - tensor.row_base) // -(-tensor.stored_rows // ranks)


@given(st.integers(1, 9), st.sampled_from(SPLITS))
def test_each_row_is_read_by_the_rank_that_the_rule_names(ranks: int, split: str) -> None:
    found = np.full(ROWS.shape, -1)
    for share in shares_of(FAMILY.tensors, ranks, split):
        own = own_rows(LAYOUT, ROWS, share) != native.NO_ROW
        assert (found[own] == -1).all()
        found[own] = share.rank
    wanted = [[rank_of(c, row, ranks, split) for c, row in enumerate(line)] for line in ROWS.tolist()]
    assert found.tolist() == wanted


@pytest.mark.parametrize("split", SPLITS)
def test_a_source_emits_the_pages_of_its_rank_and_all_ranks_together_the_tables(split: str) -> None:
    whole = LAYOUT.pages(ROWS)
    together = np.full(whole.shape, native.NO_PAGE, np.uint32)
    for share in shares_of(FAMILY.tensors, 3, split):
        source = RankSource(LAYOUT, STREAM, share)
        pages = np.empty((len(STREAM.ids), source.page_columns), np.uint32)
        done = 0
        while count := source.next(pages[done : done + 190]):
            done += count
        assert done == len(STREAM.ids)
        source.rewind()
        assert source.next(pages[:7].copy()) == 7
        together = np.minimum(together, pages)
    assert np.array_equal(together, whole)


def test_more_ranks_than_columns_leave_some_without_work() -> None:
    idle = own_rows(LAYOUT, ROWS, RankShare(6, 8, "heads"))
    assert (idle == native.NO_ROW).all()


@pytest.mark.parametrize(
    "arguments", [(0, 0, "heads"), (4, 4, "rows"), (-1, 4, "rows"), (0, 4097, "rows"), (0, 2, "x")]
)
def test_shares_that_cannot_be_are_refused(arguments: tuple[int, int, str]) -> None:
    with pytest.raises(ValueError, match="rank|split"):
        RankShare(*arguments)

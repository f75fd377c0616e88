"""Plans for ranks: each reads its own rows behind its own cache; together they read the table's; the slowest tells."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_serving as twin
from conftest import make_stream
from harness.checkpoints import engram_family
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan import DRIVE, US, make_demand, make_drive
from test_plan_model import MODEL, STREAM, TABLE, folder
from test_ranks import rank_of

from pagegram_io import deployed, native
from pagegram_io.cli import run
from pagegram_io.demand import demand
from pagegram_io.deployed.model_table import ModelTable
from pagegram_io.deployed.rank_reads import RankServedSource, reads_something
from pagegram_io.deployed.ranks import SPLITS, shares_of
from pagegram_io.interleave import ServedSource, Serving
from pagegram_io.plan import GO, NO_GO, NOT_KNOWN, Goal, judge, slowest

__all__ = ["folder"]
FAMILY = engram_family()
LAYOUT = FAMILY.layout()
ALIGNED = ModelTable(FAMILY, FAMILY.formats[0]).layout(repack=True, aligned=True)  # a column's rows on pages of its own


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 40), min_size=3, max_size=8),
    st.integers(0, 99),
    st.integers(1, 3),
    st.integers(1, 6),
    st.sampled_from(SPLITS),
    st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
)
def test_a_ranks_demand_is_the_twins(
    lengths: list[int], seed: int, batch: int, ranks: int, split: str, sizes: list[int]
) -> None:
    """An OrderedDict over the pages of those rows that the rule gives to the rank."""
    rng = np.random.default_rng(seed)
    stream = make_stream(rng.integers(0, 12, sum(lengths)), np.cumsum([0, *lengths[:-1]]))
    rows = LAYOUT.rows(stream)
    steps = twin.schedule(lengths, None, batch, None)
    owner = np.array([[rank_of(c, row, ranks, split) for c, row in enumerate(line)] for line in rows.tolist()])
    for share in shares_of(FAMILY.tensors, ranks, split):
        pages = LAYOUT.pages(np.where(owner == share.rank, rows, np.uint64(native.NO_ROW)))
        assert reads_something(LAYOUT, share) or (owner != share.rank).all()
        found = demand(LAYOUT, stream, [(1, size) for size in sorted(sizes)], batch, order=[1, 14], share=share)
        for d in found:
            seen = twin.serve(
                steps,
                lambda v, pages=pages: [p for p in pages[v.position].tolist() if p != native.NO_PAGE],  # type: ignore[misc]
                d.cache_pages,
                turns=batch,
            )
            assert (d.misses, d.first_reads, d.steps) == (seen.second, seen.second_compulsory, len(seen.step_reads))
            assert d.full_at_token == seen.full_at


@settings(max_examples=15)
@given(st.integers(0, 99), st.integers(1, 3), st.integers(1, 9), st.sampled_from(SPLITS), st.sampled_from([1, 2]))
def test_all_ranks_together_read_what_the_table_does(seed: int, batch: int, ranks: int, split: str, draft: int) -> None:
    """Row by row in every step, drafted tokens included: a row is read by one rank, and by no other."""
    stream = make_stream(np.random.default_rng(seed).integers(0, 30, 120), [0, 30, 60, 90])
    serving = Serving(batch, draft=draft, seed=seed)
    whole = [block.units for block in ServedSource(LAYOUT, stream, serving, unit="row").blocks()]
    together = [np.full(units.shape, native.NO_PAGE, np.uint32) for units in whole]
    for share in shares_of(FAMILY.tensors, ranks, split):
        source = RankServedSource(LAYOUT, stream, serving, share, unit="row")
        for units, block in zip(together, source.blocks(), strict=True):
            assert ((units == native.NO_PAGE) | (block.units == native.NO_PAGE)).all()
            np.minimum(units, block.units, out=units)
    for units, all_units in zip(together, whole, strict=True):
        assert np.array_equal(units, all_units)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("batch", [1, 4])
def test_reads_of_ranks_without_a_cache_add_up_to_the_tables(split: str, batch: int) -> None:
    """Where a column's rows have pages of their own and are dealt whole; rows that share a page are read by both."""
    stream = make_stream(np.random.default_rng(3).integers(0, 900, 3000), range(0, 3000, 50))
    (whole,) = demand(ALIGNED, stream, [(0, 0)], batch)
    of_ranks = [demand(ALIGNED, stream, [(0, 0)], batch, share=s)[0] for s in shares_of(FAMILY.tensors, 3, split)]
    together = sum(d.misses for d in of_ranks)
    assert together == whole.misses or (split == "rows" and together > whole.misses)
    assert sum(d.layers[-1].mean for d in of_ranks) == pytest.approx(together / whole.misses * whole.layers[-1].mean)
    (share,) = shares_of(FAMILY.tensors, 1, split)
    assert demand(ALIGNED, stream, [(0, 0), (1, 4)], batch, share=share) == demand(
        ALIGNED, stream, [(0, 0), (1, 4)], batch
    )


def test_the_slowest_rank_decides() -> None:
    goal = Goal({None: 900 * US})
    few, many = (judge(make_demand((None, n, n)), DRIVE, goal, 64, rank) for rank, n in ((0, 16), (1, 64)))
    late = judge(make_demand((None, 256, 256)), DRIVE, goal, 64, 2)
    unknown = judge(make_demand((None, 2, 2), steps=1), DRIVE, goal, 64, 3)
    assert [j.verdict for j in (few, many, late, unknown)] == [GO, GO, NO_GO, NOT_KNOWN]
    assert slowest([few, many]) is many and slowest([many, few]) is many
    assert slowest([few, unknown, many]) is unknown  # a step that waits for it is not known either
    assert slowest([few, late, unknown]) is late and slowest([few]) is few
    filling = judge(make_demand((None, 2, 2), full_at_token=None), DRIVE, goal, 64, 3)
    assert filling.verdict == NOT_KNOWN and "unless it holds all that the rank has" in filling.reason
    early = Goal({1: 200 * US, 14: 2_900 * US}, 3_000 * US)  # a rank that waits longer for layer 1 is the slower one
    waits = [judge(make_demand((1, n, n), (14, m, m)), DRIVE, early, 64, n) for n, m in ((64, 65), (16, 80))]
    assert [j.verdict for j in waits] == [NO_GO, NO_GO] and slowest(waits).rank == 64
    alike = make_drive((64, 64, 100, 100))
    more = [judge(make_demand((None, n, n)), alike, goal, 64, n) for n in (3, 9, 5)]
    assert slowest(more).rank == 9


def test_ranks_without_a_row_are_left_out() -> None:
    for split, ranks, reading in (("heads", 3, [True, True, False]), ("columns", 6, [True] * 4 + [False] * 2)):
        assert [reads_something(LAYOUT, share) for share in shares_of(FAMILY.tensors, ranks, split)] == reading
    stored = max(tensor.stored_rows for tensor in FAMILY.tensors)
    shares = shares_of(FAMILY.tensors, stored + 1, "rows")
    assert reads_something(LAYOUT, shares[0]) and not reads_something(LAYOUT, shares[-1])


# ---- the command ---------------------------------------------------------------------------------


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["plan", *TABLE, *STREAM, *words, "--device", "drive.jsonl", "--json"]) == 0, capsys.readouterr()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("split", SPLITS)
def test_plan_of_ranks(folder: Path, capsys: pytest.CaptureFixture[str], split: str) -> None:
    words = ["--cache", "none,16KiB", "--batch", "2,4", "--deadline", "1=100us,14=200us"]
    records = planned(capsys, *words, "--ranks", "3", "--split", split)
    assert {(r["ranks"], r["rank_split"]) for r in records} == {(3, split)}
    for cache, batch in {(r["cache_pages"], r["batch"]) for r in records}:
        here = [r for r in records if (r["cache_pages"], r["batch"]) == (cache, batch)]
        (step,) = [r for r in here if r["rank"] is None and r["layer"] is None]
        of_ranks = {r["rank"]: r for r in here if r["rank"] is not None}
        reading = [0, 1] if split == "heads" else [0, 1, 2]  # four columns of a layer, two a rank: none for the third
        assert sorted(of_ranks) == reading
        slow = of_ranks[step["slowest_rank"]]
        order = [GO, NOT_KNOWN, NO_GO]
        assert order.index(step["verdict"]) == max(order.index(r["verdict"]) for r in of_ranks.values())
        for name in ("verdict", "reads_per_step_mean", "reads_per_step_p99", "arrival_p99_ns", "tokens_per_second_p99"):
            assert step[name] == slow[name], name
        assert step["prefill_tokens_per_second"] == slow["prefill_tokens_per_second"] is None
        assert [r["layer"] for r in here if r["rank"] is None] == [None, 1, 14]
    whole = planned(capsys, *words)
    assert {(r["ranks"], r["rank"], r["slowest_rank"]) for r in whole} == {(None, None, None)}
    assert records[0]["reads_per_step_mean"] < whole[0]["reads_per_step_mean"]


def test_what_is_printed_of_ranks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", *TABLE, *STREAM, "--cache", "none", "--batch", "4", "--goal", "10", "--device", "drive.jsonl"]
    assert run([*words, "--ranks", "3", "--split", "heads"]) == 0
    out = capsys.readouterr().out
    assert "Ranks that share the table by heads: 3, each with the RAM budget and a drive of its own" in out
    assert "slowest rank" in out and "1 of the ranks read nothing" in out and "times the ranks' mean of" in out
    assert "A step waits for the slowest rank" in out and "up to 4 %" in out
    assert run([*words, "--cache", "8KiB", "--ranks", "2", "--split", "rows", "--plot", "p.svg"]) == 0
    assert "2 ranks share the table by rows" in Path("p.svg").read_text()


def test_a_change_is_judged_for_every_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--scales", "read", "--cache", "4KiB", "--batch", "1", "--deadline", "1=40us,14=80us"]
    records = planned(capsys, *words, "--ranks", "2", "--split", "heads")
    step = next(r for r in records if r["rank"] is None and r["cache_pages"] == 1)
    assert (step["verdict"], step["change"]) == (NO_GO, "repack, so that no row straddles or lies apart")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--ranks", "2"], "--ranks N goes with --split"),
        (["--split", "rows"], "--ranks N goes with --split"),
        (["--ranks", "0", "--split", "rows"], "--ranks"),
        (["--ranks", "2", "--split", "order"], "--split"),
    ],
)
def test_ranks_that_cannot_be(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    assert run(["plan", *TABLE, *STREAM, "--goal", "5", *arguments]) == 2
    err = capsys.readouterr().err
    assert word in err and len(err.splitlines()) == 1
    assert run(["plan", "--table", "2M", "--goal", "5", "--ranks", "2", "--split", "rows"]) == 2
    assert "--ranks goes with --model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("calls", "module", "name", "word"),
    [
        (0, "pagegram_io.planner", "demand", r"[\d,]+ of [\d,]+ accesses"),
        (2, "pagegram_io.planner", "demand", r"[\d,]+ of [\d,]+ accesses"),
        (0, "pagegram_io.commands.plan", "_plan_batch", "no batch of 1, 2, 4"),
        (2, "pagegram_io.commands.plan", "_plan_batch", "batch 1, 2 of 1, 2, 4"),
    ],
)
def test_ctrl_c_says_how_far_it_got(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    calls: int,
    module: str,
    name: str,
    word: str,
) -> None:
    """Amid the passes or between two batches, all that was found is let go of, and no file is begun."""
    target = importlib.import_module(module)
    before, found = sorted(Path().iterdir()), getattr(target, name)
    left = [calls]

    def interrupted(*arguments: Any, **more: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return found(*arguments, **more)

    monkeypatch.setattr(target, name, interrupted)
    words = ["plan", "--model", MODEL, *STREAM, "--cache", "16KiB", "--batch", "1,2,4", "--goal", "5"]
    assert run([*words, "--csv", "out.csv", "--plot", "out.svg", "--threads", "1"]) == 130
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(f"pagegram-io: stopped after {word}; nothing was written\n", err)
    assert sorted(Path().iterdir()) == before
    assert MODEL in deployed.FAMILIES

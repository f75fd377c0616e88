"""A table dealt to the ranks of a tensor-parallel server: which of them reads each row, and what each then reads.

Three ways are in use. heads: whole columns, ceil(columns / ranks) neighbours a rank; columns: column c to rank
c mod ranks; rows: ceil(rows / ranks) neighbouring rows of each tensor a rank. Columns are counted inside a layer. Where
rows lie does not change: ranks differ in what they read of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagegram_io import native
from pagegram_io.deployed.family import TableTensor
from pagegram_io.layout import Layout
from pagegram_io.tokens import Stream

SPLITS = ("heads", "rows", "columns")
RANKS_MAX = 4096


@dataclass(frozen=True)
class RankShare:
    """What one rank of several reads of a table; tensors are (first row, stored rows)."""

    rank: int
    ranks: int
    split: str
    tensors: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= RANKS_MAX or not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} of {self.ranks}: there are 1 to {RANKS_MAX} of them, counted from 0")
        if self.split not in SPLITS:
            raise ValueError(f"a table is split by {', '.join(SPLITS)}, not by {self.split!r}")


def shares_of(tensors: Sequence[TableTensor], ranks: int, split: str) -> list[RankShare]:
    """The share of each rank."""
    spans = tuple((tensor.row_base, tensor.stored_rows) for tensor in tensors)
    return [RankShare(rank, ranks, split, spans) for rank in range(ranks)]


def columns_of(layout: Layout, share: RankShare) -> np.ndarray:
    """The columns that a rank reads, bool [columns]; all of them where rows are split."""
    layers = [group.layer for group in layout.groups for _ in group.columns]
    if share.split == "rows":
        return np.ones(len(layers), bool)
    mine = []
    for i, layer in enumerate(layers):
        place, count = layers[:i].count(layer), layers.count(layer)
        rank = place // -(-count // share.ranks) if share.split == "heads" else place % share.ranks
        mine.append(rank == share.rank)
    return np.array(mine)


def own_rows(layout: Layout, rows: np.ndarray, share: RankShare) -> np.ndarray:
    """Rows, uint64 [tokens, columns], without those of other ranks: they become native.NO_ROW."""
    mine = np.broadcast_to(columns_of(layout, share), rows.shape)
    if share.split == "rows":
        mine = np.zeros(rows.shape, bool)
        for base, count in share.tensors:
            part = -(-count // share.ranks)
            first, end = min(share.rank * part, count), min((share.rank + 1) * part, count)
            mine |= (rows >= np.uint64(base + first)) & (rows < np.uint64(base + end))
    return np.where(mine, rows, np.uint64(native.NO_ROW))


class RankSource:
    """The pages that one rank reads, as a restartable source (``trace.PageSource``)."""

    def __init__(self, layout: Layout, stream: Stream, share: RankShare, *, isa: str = "auto") -> None:
        self._layout, self._stream, self._share, self._position = layout, stream, share, 0
        self._rows, self._place = native.Rows(layout, isa=isa), native.Place(layout, isa=isa)
        self.page_count, self.page_columns = layout.page_count, self._place.page_columns
        self.token_count = len(stream.ids)

    def next(self, pages: np.ndarray) -> int:
        end = min(self._position + len(pages), self.token_count)
        count = end - self._position
        if count:
            rows = self._rows.emit(self._stream, self._position, end)
            pages[:count] = self._place.pages(own_rows(self._layout, rows, self._share))
        self._position = end
        return count

    def rewind(self) -> None:
        self._position = 0

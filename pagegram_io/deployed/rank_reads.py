"""What one rank of a tensor-parallel server reads step by step: documents in turn, rows of other ranks left out."""

from __future__ import annotations

import numpy as np

from pagegram_io import native
from pagegram_io.deployed.ranks import RankShare, columns_of, own_rows
from pagegram_io.interleave import ServedSource, Serving
from pagegram_io.layout import Layout
from pagegram_io.tokens import Stream


class RankRows(native.Rows):
    """Token to rows as native.Rows, those of other ranks as native.NO_ROW."""

    def __init__(self, layout: Layout, share: RankShare, *, isa: str = "auto") -> None:
        super().__init__(layout, isa=isa)
        self._layout, self._share = layout, share

    def emit(self, stream: Stream, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Rows of the tokens from begin to end, uint64 [tokens, columns]."""
        return own_rows(self._layout, super().emit(stream, begin, end), self._share)


class RankServedSource(ServedSource):
    """The pages (or rows) that one rank reads of a stream, in the order of a schedule."""

    def __init__(
        self,
        layout: Layout,
        stream: Stream,
        serving: Serving,
        share: RankShare,
        *,
        unit: str = "page",
        isa: str = "auto",
    ) -> None:
        super().__init__(layout, stream, serving, unit=unit, isa=isa)
        self.rows = RankRows(layout, share, isa=isa)


def reads_something(layout: Layout, share: RankShare) -> bool:
    """Has this rank any row? With more ranks than neighbours to deal, the last ones have none."""
    if share.split != "rows":
        return bool(columns_of(layout, share).any())
    return any(share.rank * -(-count // share.ranks) < count for _, count in share.tensors)

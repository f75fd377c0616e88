"""Where rows and signs come from: of a ``Layout``, or of a layout of one's own that is a NumPy function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagegram_io.layout import Layout, Shape, build
from pagegram_io.models.hashing import Hasher
from pagegram_io.models.presets import MEMORIES, Preset
from pagegram_io.native import Rows
from pagegram_io.tokens import Stream


@dataclass(frozen=True)
class OwnRows:
    """A layout that exists only as NumPy functions of a stream.

    rows(stream): integers [tokens, columns], each below row_count, which look back no further than document_starts;
    signs(stream): -1 or +1 [tokens, columns, row_width]; without it nothing is negated. summed: the rows are as wide
    as the model and their sum is e; else a learnt matrix makes e of them side by side.
    """

    name: str
    row_count: int
    row_width: int
    column_count: int
    rows: Callable[[Stream], np.ndarray]
    signs: Callable[[Stream], np.ndarray] | None = None
    order_count: int = 2
    summed: bool = False


def layout_of(
    preset: Preset, memory: str, *, slots: int | None = None, table_params: int | None = None, seed: int = 0
) -> Layout | None:
    """The layout of a memory beside a preset; None for ``none``. ValueError for what does not go together."""
    if memory not in MEMORIES:
        raise ValueError(f"memory {memory!r} is not known; choose {', '.join(MEMORIES)}")
    if slots is not None and memory != "pagegram":
        raise ValueError(f"slots belong to pagegram; memory {memory} has none")
    if memory == "none":
        if table_params is not None:
            raise ValueError("memory none has no table, so no table parameters")
        return None
    shape = Shape(
        orders=preset.orders, heads=preset.heads_per_order, row_width=preset.row_width, dim=preset.dim, seed=seed
    )
    params = preset.table_params if table_params is None else table_params
    return build([memory], params, slots=[preset.slots if slots is None else slots], shape=shape)[0]


class Addressing:
    """Rows and signs of a stream's tokens for one layout, as tensors on one device.

    On a CPU rows come from C; elsewhere from the same hashes in torch, so that nothing waits for a copy.
    """

    def __init__(self, layout: Layout | OwnRows, device: torch.device | str = "cpu") -> None:
        self.layout, self.device = layout, torch.device(device)
        self.row_count, self.row_width, self.column_count = layout.row_count, layout.row_width, layout.column_count
        self._hasher = Hasher(layout, device) if isinstance(layout, Layout) else None
        if isinstance(layout, Layout):
            self.order_count, self.summed = len(layout.orders), layout.name == "flat"
            self._rows = Rows(layout) if self.device.type == "cpu" else None
        else:
            self.order_count, self.summed = layout.order_count, layout.summed

    def rows(self, stream: Stream, begin: int = 0, end: int | None = None) -> Tensor:
        """Rows of the tokens from begin to end, int64 [tokens, columns]."""
        end = len(stream) if end is None else end
        if isinstance(self.layout, OwnRows):
            return torch.from_numpy(_checked_rows(self.layout, stream)[begin:end]).to(self.device)
        if self._rows is not None:
            return torch.from_numpy(self._rows.emit(stream, begin, end).view(np.int64))
        assert self._hasher is not None
        return self._hasher.rows(self._hasher.hashes(stream, begin, end))

    def signs(self, stream: Stream, begin: int = 0, end: int | None = None) -> Tensor:
        """-1 or +1 for each element of those rows, float32 [tokens, columns, width]."""
        end = len(stream) if end is None else end
        if isinstance(self.layout, OwnRows):
            return torch.from_numpy(_checked_signs(self.layout, stream)[begin:end]).to(self.device)
        assert self._hasher is not None
        return self._hasher.signs(self._hasher.hashes(stream, begin, end))


def _checked_rows(layout: OwnRows, stream: Stream) -> np.ndarray:
    rows = np.asarray(layout.rows(stream))
    wanted = (len(stream), layout.column_count)
    if rows.shape != wanted or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"rows of {layout.name} are integers {list(wanted)}, not {rows.dtype} {list(rows.shape)}")
    if int(rows.min()) < 0 or int(rows.max()) >= layout.row_count:
        raise ValueError(f"rows of {layout.name} go from {rows.min()} to {rows.max()} in a table of {layout.row_count}")
    return np.ascontiguousarray(rows, np.int64)


def _checked_signs(layout: OwnRows, stream: Stream) -> np.ndarray:
    wanted = (len(stream), layout.column_count, layout.row_width)
    if layout.signs is None:
        return np.ones(wanted, np.float32)
    signs = np.ascontiguousarray(layout.signs(stream), np.float32)
    if signs.shape != wanted or not (np.abs(signs) == 1).all():
        raise ValueError(f"signs of {layout.name} are -1 or +1 {list(wanted)}, not {list(signs.shape)} or other values")
    return signs

"""Rows of a packed table for evaluation: decoded in RAM, or read from flash as they are asked for."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout
from pagegram_io.native import Place, Rows
from pagegram_io.row_format import decode_rows
from pagegram_io.table import Table
from pagegram_io.table_file import read_header
from pagegram_io.tokens import Stream
from pagegram_io.verification import read_sound_pages


def layout_of_table(path: str | os.PathLike[str]) -> Layout:
    """The layout of a packed table's file. FormatError for a file that holds no trained rows."""
    header = read_header(path)
    if header.content != "trained" or header.layout is None:
        raise FormatError(
            f"{os.fspath(path)}: holds a pattern to measure with, not the rows of a model; pack a checkpoint"
        )
    return header.layout


class PackedRows:
    """A table file read whole into RAM, every page checked; its rows are decoded as they are used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        layout = layout_of_table(path)
        _, self._pages = read_sound_pages(path)
        self._rows, self._place, self.layout = Rows(layout), Place(layout), layout

    def vectors(self, stream: Stream, begin: int, end: int) -> Tensor:
        layout = self.layout
        offsets = self._place.bytes(self._rows.emit(stream, begin, end)).astype(np.int64)
        offsets -= self._place.first_page * layout.page_bytes
        rows = self._pages[offsets.reshape(-1, 1) + np.arange(layout.row_bytes)]
        decoded = decode_rows(layout.row_format, rows, layout.row_width)
        return torch.from_numpy(decoded.reshape(end - begin, layout.column_count, layout.row_width))

    def ahead(self, stream: Stream) -> None:
        """There is nothing to wait for."""


class FlashRows:
    """A table file read a page at a time through the runtime's page cache."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def vectors(self, stream: Stream, begin: int, end: int) -> Tensor:
        starts = stream.document_starts
        low, high = np.searchsorted(starts, np.array([begin, end], np.uint64))
        inside = starts[low:high] - np.uint64(begin)
        return torch.from_numpy(self.table.lookup(stream.ids[begin:end], document_starts=inside))

    def ahead(self, stream: Stream) -> None:
        """Start to read what fits into a quarter of the cache while the model computes; the accesses stay the same."""
        self.table.prefetch(stream.ids, document_starts=stream.document_starts)

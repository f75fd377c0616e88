"""Row numbers that somebody else chose, from a file: of tables keyed by hidden states, which no token stream tells.

Rows are numbered from 0 through one table, of rows of one length, and placed by place.c like any other's.
"""

from __future__ import annotations

import os

import numpy as np

from pagegram_io import native
from pagegram_io.errors import FormatError
from pagegram_io.layout import PAGE_BYTES, Column, Group, Layout, Region
from pagegram_io.trace import BATCH_PLACES, read_array


def read_rows(path: str | os.PathLike[str], *, limit: int | None = None) -> np.ndarray:
    """Row numbers of a .npy file, integers [tokens, columns], memory-mapped; at most ``limit`` tokens.

    2^64 - 1 marks a place that is not used. FormatError, with the path, for anything else; OSErrors.
    """
    name = os.fspath(path)
    if not name.endswith(".npy"):
        raise FormatError(f"{name}: row numbers come in a .npy file, integers [tokens, columns]")
    rows = read_array(name)
    if rows.ndim != 2 or not rows.size or not np.issubdtype(rows.dtype, np.integer):
        raise FormatError(f"{name}: row numbers are integers [tokens, columns], not {rows.dtype} {list(rows.shape)}")
    return rows[:limit]


def check_rows(rows: np.ndarray, table_rows: int | None, *, name: str) -> int:
    """The rows of the table: those given, or as many as the largest number asks for. FormatError for others' rows."""
    largest = -1
    for begin in range(0, len(rows), BATCH_PLACES):
        batch = np.asarray(rows[begin : begin + BATCH_PLACES])
        if int(batch.min()) < 0:
            raise FormatError(f"{name}: row {int(batch.min())} is negative; 2^64 - 1 in uint64 marks unused places")
        used = batch[batch != native.NO_ROW] if batch.dtype == np.uint64 else batch
        largest = max(largest, int(used.max(initial=0)) if used.size else -1)
    if largest < 0:
        raise FormatError(f"{name}: holds only unused places")
    if table_rows is not None and largest >= table_rows:
        raise FormatError(f"{name}: row {largest:,} is not in a table of {table_rows:,} rows")
    return table_rows or largest + 1


def rows_layout(
    name: str,
    table_rows: int,
    row_bytes: int,
    *,
    packed: bool = False,
    base_byte: int = 0,
    page_bytes: int = PAGE_BYTES,
) -> Layout:
    """A table of rows of one length, addressed by their numbers alone. ValueError for what place.c refuses."""
    if base_byte and not packed:
        raise ValueError(f"base byte {base_byte}: only a packed table starts elsewhere than at byte 0")
    per_page = 0 if packed else max(1, page_bytes // row_bytes)
    region = Region(base_byte, table_rows, row_bytes, row_bytes, per_page)
    group = Group((Column(0, 0, table_rows, 0),), (region,), 0, 1, 1)
    layout = Layout(
        name, (group,), table_rows, table_rows, "bytes", row_bytes, row_bytes, 1, 0, (1,), page_bytes=page_bytes
    )
    layout.page_count  # noqa: B018  (C checks the whole layout when the place is made)
    return layout


def pages_of_rows(layout: Layout, rows: np.ndarray) -> np.ndarray:
    """Pages that each token's rows lie on, uint32 [tokens, columns * pages a row]; unused places hold NO_PAGE."""
    place = native.Place(layout)
    tokens, columns = rows.shape
    pages = np.empty((tokens, columns * place.page_columns), np.uint32)
    step = max(1, BATCH_PLACES // columns)
    for begin in range(0, tokens, step):
        batch = np.asarray(rows[begin : begin + step]).astype(np.uint64).reshape(-1, 1)
        pages[begin : begin + step] = place.pages(batch).reshape(-1, pages.shape[1])
    return pages

"""Trained rows -> table file (docs/formats.md, Table files), in batches: neither table is ever in memory whole.

The bytes of row r lie at ``row_byte(header, r)``: where the layout's address says, and nowhere else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pagegram_io.layout import Group, Layout, Region
from pagegram_io.native_reader import aligned_bytes, crc32c_of_pages, seal_pages
from pagegram_io.nf4 import Counts
from pagegram_io.output import new_file, refuse_existing
from pagegram_io.row_format import FORMATS, encode_rows
from pagegram_io.table_file import (
    BATCH_BYTES,
    SYNC_BYTES,
    TableHeader,
    check_space,
    encode_header,
    has_room_for_seals,
    layout_from_json,
    layout_to_json,
)

RowsOf = Callable[[int, int], np.ndarray]  # rows begin to end -> float32 [end - begin, row_width]


@dataclass(frozen=True)
class Packed:
    """What was written, and the rows that their format could not keep as they were."""

    header: TableHeader
    counts: Counts


def with_row_format(layout: Layout, row_format: str) -> Layout:
    """The same rows, hashed alike, stored in another format. ValueError for one that cannot be packed."""
    if row_format not in FORMATS:
        raise ValueError(f"rows are packed as {', '.join(FORMATS)}, not as {row_format}; choose with --row-format")
    return layout_from_json(json.dumps({**json.loads(layout_to_json(layout)), "row_format": row_format}))


def trained_header(layout: Layout, weights_sha256: str | None = None) -> TableHeader:
    """The header of a layout's table file. ValueError for a layout of one's own, or beyond the format's limits."""
    sealed = has_room_for_seals(layout)
    blank = TableHeader(layout, layout.page_bytes, layout.page_count, 0, "trained", None, sealed, None, weights_sha256)
    return replace(blank, data_byte=len(encode_header(blank)))


def first_page_byte(layout: Layout) -> int:
    """The address at which page 0 begins; above 0 only where a packed table starts beyond its first page."""
    first = min(region.base_byte for region in layout.regions)
    return first - first % layout.page_bytes


def row_byte(header: TableHeader, row: int) -> int:
    """Where a row's bytes begin in the file."""
    if header.layout is None:
        raise ValueError("a file without a layout holds no rows")
    return header.data_byte + header.layout.address(row) - first_page_byte(header.layout)


def write_trained_file(
    path: str | os.PathLike[str],
    layout: Layout,
    rows_of: RowsOf,
    *,
    weights_sha256: str | None = None,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Packed:
    """Write a table file of the rows that ``rows_of`` gives, each asked for once, in ascending order.

    ``weights_sha256`` says which model the rows belong to (``checkpoint_table.weights_sha256``).
    ``progress`` is told the bytes of each batch. ValueError names a row that holds a NaN or an infinity. OSError
    (ENOSPC, before anything is written, where the disk is too small); whatever fails or interrupts, no file is left.
    """
    header = trained_header(with_row_format(layout, layout.row_format), weights_sha256)
    encoder = _Encoder(layout, rows_of)
    write_pages(path, header, encoder.image(), force=force, progress=progress)
    return Packed(header, encoder.counts)


def write_pages(
    path: str | os.PathLike[str],
    header: TableHeader,
    chunks: Iterator[np.ndarray],
    *,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write a table file of chunks, uint8, that join to its pages, and give each page its check (see above)."""
    name = os.fspath(path)
    refuse_existing(name, force)
    check_space(name, header.file_bytes)
    checks = np.empty(0 if header.sealed else header.page_count, np.uint32)
    with new_file(name, force=force) as file:
        file.write(encode_header(header))
        unsynced = 0
        for first, memory in _in_pages(chunks, header.page_bytes, header.page_count):
            if header.sealed:
                seal_pages(memory, first, header.page_bytes)
            else:
                crcs = crc32c_of_pages(memory, header.page_bytes)
                checks[first : first + crcs.size] = crcs
            file.write(memory.data)
            unsynced += memory.size
            if unsynced >= SYNC_BYTES:  # progress tells of the disk, and what is there is dropped from memory
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                unsynced = 0
            if progress:
                progress(memory.size)
        file.write(checks.astype("<u4").tobytes())
        file.flush()
        os.fsync(file.fileno())


class _Encoder:
    """The pages' bytes in order, checks left out; counts what was encoded."""

    def __init__(self, layout: Layout, rows_of: RowsOf) -> None:
        self._layout, self._rows_of = layout, rows_of
        self.counts = Counts()

    def image(self) -> Iterator[np.ndarray]:
        """Chunks, uint8, that join to everything from page 0 to the last region's end."""
        byte = first_page_byte(self._layout)
        for group in self._layout.groups:
            (region,) = group.regions  # a layout that can be written has one a group
            yield np.zeros(region.base_byte - byte, np.uint8)
            yield from self._units(group, region)
            byte = region.end_byte(self._layout.page_bytes)

    def _units(self, group: Group, region: Region) -> Iterator[np.ndarray]:
        per_page = max(1, region.units_per_page)
        step = max(1, BATCH_BYTES // (4 * self._layout.row_width * group.unit_rows * per_page)) * per_page
        for first in range(0, region.unit_count, step):
            count = min(step, region.unit_count - first)
            begin = group.row_base + first * group.unit_rows
            rows = self._rows(begin, begin + count * group.unit_rows)
            yield placed_units(rows.reshape(count, region.unit_bytes), region, self._layout.page_bytes)

    def _rows(self, begin: int, end: int) -> np.ndarray:
        values = self._rows_of(begin, end)
        if values.shape != (end - begin, self._layout.row_width) or values.dtype != np.float32:
            raise ValueError(f"rows {begin} to {end} came as {values.dtype} {list(values.shape)}")
        if not (np.isfinite(values.max()) and np.isfinite(values.min())):  # both pass on a NaN
            row = begin + int(np.argmin(np.isfinite(values).all(axis=1)))
            raise ValueError(f"row {row} of the table holds a NaN or an infinity; nothing was written")
        rows, counts = encode_rows(self._layout.row_format, values)
        self.counts += counts
        return rows


def placed_units(units: np.ndarray, region: Region, page_bytes: int) -> np.ndarray:
    """Units, uint8 [count, unit_bytes], as they lie in their pages: uint8 [bytes]."""
    count, unit_bytes = units.shape
    if region.units_per_page == 0:
        return units.reshape(-1)
    per_page = region.units_per_page
    stretch = -(-unit_bytes // page_bytes) * page_bytes  # of per_page units; more than a page only for one unit
    pages = np.zeros((-(-count // per_page), stretch), np.uint8)
    whole = count // per_page
    filled = per_page * unit_bytes
    pages[:whole, :filled] = units[: whole * per_page].reshape(whole, filled)
    rest = units[whole * per_page :].reshape(-1)
    if rest.size:
        pages[whole, : rest.size] = rest
    return pages.reshape(-1)


def _in_pages(chunks: Iterator[np.ndarray], page_bytes: int, page_count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Chunks joined and cut into whole pages: the first page's number and uint8 [pages * page_bytes], zeros at the end.

    The memory is overwritten by the next batch.
    """
    buffer = aligned_bytes(max(1, BATCH_BYTES // page_bytes) * page_bytes)
    filled = first = 0
    for chunk in chunks:
        taken = 0
        while taken < chunk.size:
            count = min(buffer.size - filled, chunk.size - taken)
            buffer[filled : filled + count] = chunk[taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == buffer.size:
                yield first, buffer
                first, filled = first + buffer.size // page_bytes, 0
    if filled:
        end = -(-filled // page_bytes) * page_bytes
        buffer[filled:end] = 0
        yield first, buffer[:end]
        first += end // page_bytes
    assert first == page_count

"""A checkpoint's table -> table file: a row's parts beside one another, on pages of their own, each with its check.

Rows are streamed column by column, a few MiB at a time; what was read is dropped from the page cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pagegram_io.deployed.extents import Extent, require_bytes
from pagegram_io.deployed.placement import Parts, place_repacked, scales_problem
from pagegram_io.deployed.tensors import refuse, tensor_name
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout
from pagegram_io.pack import placed_units, write_pages
from pagegram_io.repacked import Repacked
from pagegram_io.table_file import TableHeader, encode_header, has_room_for_seals

BATCH_BYTES = 8 * 2**20


def repacked_header(layout: Layout) -> TableHeader:
    """The header of the file that holds a layout which ``place_repacked`` made."""
    region = layout.regions[0]
    repacked = Repacked(
        layout.model or layout.name,
        layout.row_format,
        layout.row_bytes,
        layout.row_width,
        region.units_per_page,
        tuple(group.row_count for group in layout.groups),
    )
    sealed = has_room_for_seals(layout)
    pages = repacked.page_count(layout.page_bytes)
    blank = TableHeader(None, layout.page_bytes, pages, 0, "repacked", None, sealed, repacked)
    return replace(blank, data_byte=len(encode_header(blank)))


def write_repacked_file(
    path: str | os.PathLike[str],
    layout: Layout,
    parts: Parts,
    *,
    aligned: bool = True,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> TableHeader:
    """Write a checkpoint's rows, in the order of a layout's groups, as a table file. Returns its header.

    FormatError where a source file ends before its rows do, or where scales are missing without which rows are no
    numbers; OSError (ENOSPC before anything is written). Whatever fails or interrupts, no file is left.
    """
    if parts.scales_missing:
        raise FormatError(f"{parts.checkpoint.path}: {scales_problem(parts)}: rows without them are not repacked")
    require_bytes(parts.extents(scales=True))
    target = place_repacked(layout, parts.part_bytes, aligned=aligned, row_format=parts.row_format)
    header = repacked_header(target)
    source = _Source(parts)
    try:
        write_pages(path, header, _image(target, source), force=force, progress=progress)
    finally:
        source.close()
    return header


def _image(target: Layout, source: _Source) -> Iterator[np.ndarray]:
    """Chunks, uint8, that join to the pages' bytes, checks left out."""
    for group in target.groups:
        region = group.regions[0]
        per_page = max(1, region.units_per_page)
        step = max(1, BATCH_BYTES // (region.unit_bytes * per_page)) * per_page
        for first in range(0, region.unit_count, step):
            count = min(step, region.unit_count - first)
            rows = source.rows(group.row_base + first, group.row_base + first + count)
            yield placed_units(rows, region, target.page_bytes)


class _Source:
    """Runs of rows with all their parts, read from the files in which they lie."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._files: dict[str, int] = {}

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def rows(self, begin: int, end: int) -> np.ndarray:
        """Global rows begin to end of one tensor, uint8 [rows, bytes of all parts]."""
        table = self._parts.table_of(begin)
        base = self._parts.tensors[table].row_base
        out = np.empty((end - begin, sum(self._parts.part_bytes)), np.uint8)
        at = 0
        for part, size in enumerate(self._parts.part_bytes):
            extents = self._parts.extents_of(table, part)
            out[:, at : at + size] = self._part(extents, begin - base, end - base).reshape(-1, size)
            at += size
        return out

    def _part(self, extents: Sequence[Extent], begin: int, end: int) -> np.ndarray:
        chunks = []
        for extent in extents:
            first, last = max(begin, extent.row_begin), min(end, extent.row_begin + extent.row_count)
            if first < last:
                byte = extent.byte + (first - extent.row_begin) * extent.row_bytes
                chunks.append(self._read(extent, byte, (last - first) * extent.row_bytes))
        return np.concatenate(chunks)

    def _read(self, extent: Extent, byte: int, count: int) -> np.ndarray:
        if extent.file not in self._files:
            self._files[extent.file] = os.open(extent.file, os.O_RDONLY | os.O_CLOEXEC)
        descriptor, memory = self._files[extent.file], np.empty(count, np.uint8)
        done = 0
        while done < count:
            try:
                got = os.preadv(descriptor, [memory[done:].data], byte + done)
            except OSError as error:  # errors of reading carry no path of their own
                text = f"tensor {tensor_name(extent.tensor)}: {error.strerror}"
                raise OSError(error.errno, text, extent.file) from None
            if not got:
                raise refuse(extent.file, extent.tensor, "the file ended while it was read")
            done += got
        os.posix_fadvise(descriptor, byte, count, os.POSIX_FADV_DONTNEED)
        return memory

"""A deployed layout placed where its rows really lie: in the extents of a checkpoint, or in a file made for it.

The pages of a layout in real files are numbered densely, file by file: each window is a run of a file's own pages that
hold rows, so a row straddles exactly where it does in its file, and page 17 means the same bytes to everybody
(``Layout.place_in_file``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pagegram_io.deployed.extents import Extent, FoundTable, find_table, names_table
from pagegram_io.deployed.family import SCALES, Family, TableTensor
from pagegram_io.deployed.gguf_keys import check_model_keys
from pagegram_io.deployed.source_files import Checkpoint
from pagegram_io.deployed.tensors import tensor_name
from pagegram_io.errors import FormatError
from pagegram_io.layout import Group, Layout, Region, Segment, Window
from pagegram_io.table_file import TableHeader

SCALES_MISSING = "no tensor known here holds its scales, and nothing is counted for them"


@dataclass(frozen=True)
class Parts:
    """A layout's tables as a checkpoint holds them: each tensor's rows, and what a row is stored as."""

    tensors: tuple[TableTensor, ...]
    found: tuple[FoundTable, ...]
    checkpoint: Checkpoint

    @property
    def row_format(self) -> str:
        return self.found[0].row_format

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of a row in each of its tensors, the weights' first."""
        first = self.found[0]
        return (first.weights[0].row_bytes, *(part[0].row_bytes for part in first.scales))

    @property
    def scales_missing(self) -> bool:
        return any(table.scales_missing for table in self.found)

    def extents(self, *, scales: bool) -> list[Extent]:
        """Every extent of the weights and, if wanted, of the scales."""
        parts = range(len(self.part_bytes) if scales else 1)
        return [e for table in range(len(self.found)) for part in parts for e in self.extents_of(table, part)]

    def extents_of(self, table: int, part: int) -> tuple[Extent, ...]:
        found = self.found[table]
        return found.weights if part == 0 else found.scales[part - 1]

    def table_of(self, row: int) -> int:
        """The tensor that holds a global row."""
        return next(i for i, t in enumerate(self.tensors) if t.row_base <= row < t.row_base + t.stored_rows)


def scales_problem(parts: Parts) -> str | None:
    """A sentence where rows are numbers only with scales, and no tensor holds any: their places are known, no more."""
    first = parts.found[0].weights[0].tensor
    text = f"tensor {tensor_name(first)} is in {parts.row_format}, which needs scales, and {SCALES_MISSING}"
    return text if parts.scales_missing else None


def find_parts(family: Family, checkpoint: Checkpoint) -> Parts:
    """A model's tables in a checkpoint. FormatError names the file and tensor that is not as the model's must be."""
    joined = family.joined
    tensors = (joined,) if joined is not None and names_table(checkpoint, joined) else family.tensors
    found = tuple(find_table(checkpoint, tensor) for tensor in tensors)
    check_model_keys(family, checkpoint)
    parts = Parts(tensors, found, checkpoint)
    for table in found[1:]:
        one = (table.row_format, tuple(part[0].row_bytes for part in (table.weights, *table.scales)))
        if one != (parts.row_format, parts.part_bytes):
            first, other = found[0].weights[0], table.weights[0]
            raise FormatError(
                f"{other.file}: tensor {other.tensor}: rows of {one[0]} of {sum(one[1])} bytes, scales included, and "
                f"those of {first.tensor} are of {parts.row_format} of {sum(parts.part_bytes)}"
            )
    return parts


def place_in_files(layout: Layout, parts: Parts, *, scales: str = "resident") -> Layout:
    """A layout of any placement, placed in the files that hold its rows; scales are read too, or resident."""
    if scales not in SCALES:
        raise ValueError(f"scales are {' or '.join(SCALES)}, not {scales!r}")
    part_bytes = parts.part_bytes if scales == "read" else parts.part_bytes[:1]
    used = range(len(part_bytes))
    windows = windows_of(parts.extents(scales=scales == "read"), parts.checkpoint.files, layout.page_bytes)
    groups = []
    for group in layout.groups:
        table = parts.table_of(group.row_base)
        begin = group.row_base - parts.tensors[table].row_base
        regions = tuple(
            _region(parts.extents_of(table, part), begin, group, windows, layout.page_bytes) for part in used
        )
        groups.append(dataclasses.replace(group, regions=regions))
    several = len(parts.part_bytes) > 1
    resident = sum(parts.part_bytes[1:]) * layout.row_count if scales == "resident" else 0
    assumed = "scales resident" if several and scales == "resident" else None
    placed = dataclasses.replace(
        layout,
        groups=tuple(groups),
        row_format=parts.row_format,
        row_bytes=sum(part_bytes),
        resident_bytes=resident,
        scales=scales if several else None,
        assumed=SCALES_MISSING if parts.scales_missing else assumed,
        windows=windows,
    )
    placed.page_count  # noqa: B018  (C checks the whole layout when the place is made)
    return placed


def place_repacked(layout: Layout, parts: Sequence[int], *, aligned: bool, row_format: str | None = None) -> Layout:
    """A layout in a file of its own: the parts of a row, of so many bytes each, stand together.

    aligned: a row never straddles where it fits in a page, and each column starts on one; otherwise rows simply
    follow one another.
    """
    row_bytes, page_bytes = sum(parts), layout.page_bytes
    groups, byte = [], 0
    for group in layout.groups:
        per_page = max(1, page_bytes // row_bytes) if aligned else 0
        region = Region(byte, group.row_count, row_bytes, row_bytes, per_page)
        byte = region.end_byte(page_bytes)
        groups.append(dataclasses.replace(group, regions=(region,), unit_rows=1))
    name = row_format or layout.row_format
    placed = dataclasses.replace(
        layout,
        groups=tuple(groups),
        row_format=f"{name} repacked",
        row_bytes=row_bytes,
        scales=None,
        assumed=f"{'aligned' if aligned else 'packed'} in a file of its own",
        resident_bytes=0,
        windows=(),
    )
    placed.page_count  # noqa: B018  (C checks the whole layout when the place is made)
    return placed


def place_in_table_file(layout: Layout, file: str, header: TableHeader) -> Layout:
    """A layout in the table file that ``repack`` made of it; the header has been held against the layout."""
    repacked = header.repacked
    assert repacked is not None
    aligned = repacked.units_per_page > 0
    placed = place_repacked(layout, [repacked.row_bytes], aligned=aligned)
    window = Window(0, header.page_count, file, header.data_byte)
    return dataclasses.replace(placed, row_format=repacked.row_format, assumed=None, windows=(window,))


def windows_of(extents: Sequence[Extent], files: Sequence[str], page_bytes: int) -> tuple[Window, ...]:
    """The runs of pages that hold these extents, file by file, each page once."""
    order = {file: i for i, file in enumerate(files)}
    runs: list[list[int]] = []
    names: list[str] = []
    for extent in sorted(extents, key=lambda e: (order.setdefault(e.file, len(order)), e.byte)):
        first, end = extent.byte // page_bytes, -(-extent.end_byte // page_bytes)
        if names and names[-1] == extent.file and first <= runs[-1][1]:
            runs[-1][1] = max(runs[-1][1], end)
        else:
            runs.append([first, end])
            names.append(extent.file)
    windows, page = [], 0
    for file, (first, end) in zip(names, runs, strict=True):
        windows.append(Window(page, end - first, file, first * page_bytes))
        page += end - first
    return tuple(windows)


def _virtual_byte(windows: Sequence[Window], file: str, byte: int, page_bytes: int) -> int:
    for window in windows:
        if window.file == file and window.byte <= byte < window.byte + window.page_count * page_bytes:
            return window.page_begin * page_bytes + byte - window.byte
    raise AssertionError(f"{file} byte {byte} is in no window")


def _region(extents: Sequence[Extent], begin: int, group: Group, windows: Sequence[Window], page_bytes: int) -> Region:
    """The part of a table's extents that a group's rows lie in: rows begin .. begin + row_count of the table."""
    end, row_bytes = begin + group.row_count, extents[0].row_bytes
    segments: list[Segment] = []
    for extent in extents:
        first, last = max(begin, extent.row_begin), min(end, extent.row_begin + extent.row_count)
        if first >= last:
            continue
        byte = extent.byte + (first - extent.row_begin) * row_bytes
        segments.append(Segment(first - begin, _virtual_byte(windows, extent.file, byte, page_bytes)))
    low = min(segment.base_byte for segment in segments)
    return Region(low, group.row_count, row_bytes, row_bytes, 0, tuple(segments) if len(segments) > 1 else ())

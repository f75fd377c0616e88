"""A deployed model's table and the ways in which it can be placed: as its files have it, by assumption, or repacked.

Every command that takes --model places it here, so that a plan's "repack" or "scales resident" is the very layout that
``simulate`` and ``repack`` would make of the same files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pagegram_io.deployed.family import Family, RowFormat, TableTensor
from pagegram_io.deployed.placement import (
    Parts,
    find_parts,
    place_in_files,
    place_in_table_file,
    place_repacked,
    scales_problem,
)
from pagegram_io.deployed.source_files import is_table_file, read_checkpoint
from pagegram_io.errors import FormatError
from pagegram_io.layout import PAGE_BYTES, Layout
from pagegram_io.repacked import Repacked
from pagegram_io.table_file import TableHeader, read_header


@dataclass(frozen=True)
class ModelTable:
    """A model's rows: in the files of a checkpoint (parts), in a repacked table file (header), or in no file known.

    form: how a row is stored where no file says it.
    """

    family: Family
    form: RowFormat
    page_bytes: int = PAGE_BYTES
    parts: Parts | None = None
    file: str | None = None
    header: TableHeader | None = None

    @property
    def tensors(self) -> tuple[TableTensor, ...]:
        """The matrices that hold the rows, as the files have them where they are known."""
        return self.family.tensors if self.parts is None else self.parts.tensors

    def layout(self, *, scales: str = "resident", repack: bool = False, aligned: bool = False) -> Layout:
        """The table placed. repack: a row's parts stand together in a file of their own; aligned: none straddles.

        ValueError where rows that are repacked already are to be repacked, or their scales to be elsewhere, or where
        scales are missing that would stand beside them.
        """
        if self.header is not None and self.file is not None:
            if repack or scales != "resident":
                raise ValueError(f"{self.file}: its rows are repacked already, with their scales beside them")
            return place_in_table_file(self.family.layout(page_bytes=self.page_bytes), self.file, self.header)
        if self.parts is None and not aligned:
            return self.family.layout(
                row_format=self.form.name, scales=scales, repack=repack, page_bytes=self.page_bytes
            )
        if repack and self.parts is not None and self.parts.scales_missing:
            raise ValueError(scales_problem(self.parts))
        whole = self.family.layout(page_bytes=self.page_bytes)
        part_bytes = self.form.part_bytes if self.parts is None else self.parts.part_bytes
        row_format = self.form.name if self.parts is None else self.parts.row_format
        if self.parts is None or repack:
            return place_repacked(whole, part_bytes, aligned=aligned, row_format=row_format)
        return place_in_files(whole, self.parts, scales=scales)

    def repacked(self, now: Layout) -> Layout | None:
        """What ``pagegram-io repack`` would make of it; None where it refuses to, or the layout is as good already."""
        if not now.packed or self.header is not None or (self.parts is not None and self.parts.scales_missing):
            return None
        return self.layout(repack=True, aligned=True)

    def with_resident_scales(self, now: Layout) -> tuple[Layout, int] | None:
        """The table read without its scales, and the bytes of RAM that these take; None where none are read."""
        if now.scales != "read":
            return None
        resident = self.layout(scales="resident")
        return resident, resident.resident_bytes


def model_table(
    family: Family,
    files: str | os.PathLike[str] | None = None,
    *,
    row_format: str | None = None,
    page_bytes: int = PAGE_BYTES,
) -> ModelTable:
    """A model's table in its checkpoint, or in the file that ``repack`` made of it; without files, by assumption.

    FormatError names what in the files is not the model's; ValueError for a row format where the files have theirs.
    """
    form = family.format_of(None if files is not None else row_format)
    if files is None:
        return ModelTable(family, form, page_bytes)
    if row_format is not None:
        raise ValueError(f"row format {row_format!r}: the files say how their rows are stored")
    header = _repacked_header(os.fspath(files))
    if header is None:
        return ModelTable(family, form, page_bytes, find_parts(family, read_checkpoint(files)))
    _check_repacked(family, os.fspath(files), header, page_bytes)
    return ModelTable(family, form, page_bytes, file=os.fspath(files), header=header)


def _repacked_header(path: str) -> TableHeader | None:
    """The header of a table file of repacked rows; None for anything else."""
    if not is_table_file(path):
        return None
    header = read_header(path)
    if header.repacked is None:
        raise FormatError(f"{path}: a table file, but not of rows that repack wrote")
    return header


def _check_repacked(family: Family, path: str, header: TableHeader, page_bytes: int) -> None:
    repacked = header.repacked
    assert isinstance(repacked, Repacked)
    rows = tuple(group.row_count for group in family.layout(page_bytes=page_bytes).groups)
    if repacked.model != family.name or repacked.group_rows != rows or repacked.row_width != family.width:
        raise FormatError(
            f"{path}: repacked rows of {repacked.model}, {sum(repacked.group_rows):,} of {repacked.row_width} values, "
            f"and {family.name} has {sum(rows):,} of {family.width}"
        )
    if header.page_bytes != page_bytes:
        raise FormatError(
            f"{path}: repacked for pages of {header.page_bytes} bytes; give --page-size {header.page_bytes}"
        )

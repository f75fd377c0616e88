"""What a checkpoint holds of a table known here, from its headers alone: for people, and as a flat record."""

from __future__ import annotations

import os
from typing import Any

from pagegram_io.deployed import FAMILIES
from pagegram_io.deployed.extents import Extent, names_table, require_bytes
from pagegram_io.deployed.family import Family
from pagegram_io.deployed.placement import Parts, find_parts, place_in_files, scales_problem
from pagegram_io.deployed.source_files import SAVED_SUFFIX, Checkpoint, read_checkpoint
from pagegram_io.errors import FormatError
from pagegram_io.records import SCHEMA, provenance
from pagegram_io.straddles import expected_reads, straddle_probability

TABLE_FIELDS = (
    "model", "row_format", "row_bytes", "scale_bytes", "rows", "row_width", "extents", "first_byte",
    "alignment_bytes", "table_bytes", "resident_bytes", "straddle_probability", "uncached_reads",
    "uncached_reads_scales_read",
)  # fmt: skip


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record of a checkpoint, of kind "checkpoint"; what belongs to a table is None where none known is there.

    ``problem`` says why a table is not the model's, or what of its bytes is missing. FormatError for files that are
    not what they claim, OSError.
    """
    checkpoint = read_checkpoint(path)
    parts, problem = _known_table(checkpoint)
    missing = [file for file in checkpoint.files if not _there(file)]
    headers = [checkpoint.header(file) for file in checkpoint.files if _there(file)]
    record: dict[str, Any] = {
        "kind": "checkpoint",
        "schema": SCHEMA,
        "version": provenance()["version"],
        "file": os.fsdecode(path),
        "form": headers[0].form if headers else None,
        "files": len(checkpoint.files),
        "files_missing": len(missing),
        "files_truncated": sum(header.truncated for header in headers),
        "tensors": len(checkpoint.places),
        "problem": problem,
    }
    return record | (dict.fromkeys(TABLE_FIELDS) if parts is None else _table_fields(*parts))


def _there(file: str) -> bool:
    return os.path.exists(file) or os.path.exists(file + SAVED_SUFFIX)


def _known_table(checkpoint: Checkpoint) -> tuple[tuple[Family, Parts] | None, str | None]:
    """The first model whose table this is, and what stands in the way of reading it."""
    problem = None
    for family in FAMILIES.values():
        tensors = (*family.tensors, *([] if family.joined is None else [family.joined]))
        if not any(names_table(checkpoint, tensor) for tensor in tensors):
            continue
        try:
            parts = find_parts(family, checkpoint)
        except FormatError as error:
            problem = problem or f"not the table of {family.name}: {error}"
            continue
        try:
            require_bytes(parts.extents(scales=True))
        except FormatError as error:
            return (family, parts), str(error)
        return (family, parts), scales_problem(parts)
    return None, problem or "no table of a model known here; pagegram-io models lists them"


def _table_fields(family: Family, parts: Parts) -> dict[str, Any]:
    extents: list[Extent] = parts.extents(scales=False)
    layout = place_in_files(family.layout(), parts)
    both = place_in_files(family.layout(), parts, scales="read") if len(parts.part_bytes) > 1 else None
    rows = [group.row_count for group in layout.groups]
    straddles = [straddle_probability(group.regions[0], layout.page_bytes) for group in layout.groups]
    alignments = [min(extent.byte & -extent.byte, layout.page_bytes) for extent in extents]
    values = (
        family.name, parts.row_format, parts.part_bytes[0], sum(parts.part_bytes[1:]), layout.row_count, family.width,
        len(parts.extents(scales=True)), extents[0].byte, min(alignments),
        sum(extent.row_count * extent.row_bytes for extent in parts.extents(scales=True)), layout.resident_bytes,
        sum(s * n for s, n in zip(straddles, rows, strict=True)) / sum(rows), expected_reads(layout),
        None if both is None else expected_reads(both),
    )  # fmt: skip
    return dict(zip(TABLE_FIELDS, values, strict=True))

"""What a file is and holds, from its header alone: one flat record a file."""

from __future__ import annotations

import os
from typing import Any

from pagegram_io.records import SCHEMA, provenance
from pagegram_io.straddles import expected_reads, straddle_probability
from pagegram_io.table_file import FORMAT_VERSION, TableHeader, read_header


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record of a file; its ``kind`` says what it is. FormatError, with the path, for a file that is not known."""
    from pagegram_io.deployed.describe import describe
    from pagegram_io.deployed.source_files import is_table_file

    return table_record(path, read_header(path)) if is_table_file(path) else describe(path)


def table_record(path: str | os.PathLike[str], header: TableHeader) -> dict[str, Any]:
    """A table file's record, of kind "table_file"; what belongs to a layout is None where there is none."""
    layout = header.layout
    record: dict[str, Any] = {
        "kind": "table_file",
        "schema": SCHEMA,
        "version": provenance()["version"],
        "file": os.fsdecode(path),
        "format_version": FORMAT_VERSION,
        "content": header.content,
        "content_seed": header.seed,
        "checks": "in each page" if header.sealed else "page_checks",
        "file_bytes": header.file_bytes,
        "data_byte": header.data_byte,
        "page_bytes": header.page_bytes,
        "pages": header.page_count,
        "model": next((of.model for of in (header.repacked, header.model) if of is not None), None),
        "weights_sha256": header.weights_sha256,
    }
    if header.repacked is not None:
        return record | dict.fromkeys(LAYOUT_FIELDS) | _repacked_fields(header)
    if layout is None:
        return record | dict.fromkeys(LAYOUT_FIELDS) | _placed_fields(header)
    region = layout.regions[0]
    rows_bytes = layout.row_count * layout.row_bytes
    values = (
        layout.name, layout.slots, layout.table_params, layout.table_params_actual, layout.row_format,
        layout.row_bytes, layout.row_width, layout.heads, layout.dim, ",".join(map(str, layout.orders)), layout.seed,
        "packed" if layout.packed else "aligned", min(region.base_byte for region in layout.regions),
        layout.row_count, layout.unit_count, layout.groups[0].unit_rows, region.unit_bytes, region.units_per_page,
        1 - rows_bytes / layout.file_bytes, straddle_probability(region, layout.page_bytes), expected_reads(layout),
    )  # fmt: skip
    return record | dict(zip(LAYOUT_FIELDS, values, strict=True))


def _placed_fields(header: TableHeader) -> dict[str, Any]:
    """Of a pattern as large as a deployed table."""
    placed = header.model
    if placed is None:
        return {}
    layout = placed.layout(header.page_bytes)
    if layout is None:
        return {"row_format": placed.row_format, "placement": "files", "scales": placed.scales}
    return {"row_format": layout.row_format, "placement": layout.placement, "scales": layout.scales}


def _repacked_fields(header: TableHeader) -> dict[str, Any]:
    repacked = header.repacked
    assert repacked is not None
    rows = sum(repacked.group_rows)
    return {
        "row_format": repacked.row_format,
        "row_bytes": repacked.row_bytes,
        "row_width": repacked.row_width,
        "rows": rows,
        "units_per_page": repacked.units_per_page,
        "slack_share": 1 - rows * repacked.row_bytes / (header.page_count * header.page_bytes),
    }


LAYOUT_FIELDS = (
    "layout", "slots", "table_params", "table_params_actual", "row_format",
    "row_bytes", "row_width", "heads", "dim", "orders", "seed",
    "placement", "base_byte",
    "rows", "units", "unit_rows", "unit_bytes", "units_per_page",
    "slack_share", "straddle_probability", "uncached_reads",
)  # fmt: skip

"""``pagegram-io layout``: what a table takes up, before any cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.model import model_options, refuse_model_options
from pagegram_io.commands.options import (
    force_option,
    layout_options,
    layouts_of,
    plain_table,
    print_records,
    record_options,
    refuse_outputs,
    shape_of,
    shape_options,
    table_option,
    wide_console,
)

if TYPE_CHECKING:
    from pagegram_io.layout import Layout
    from pagegram_io.records import LayoutRecord

EPILOG = """
Examples:

\b
  pagegram-io layout --table 20B
  pagegram-io layout --table 200M,20B --layout pagegram --slots 1,4,15,60 --packed
  pagegram-io layout --model qwen3.8-flash-next --row-format q4_0
"""


@click.command("layout", epilog=EPILOG)
@table_option("20B")
@model_options
@layout_options
@shape_options
@record_options
@force_option
def command(**values: Any) -> None:
    """What a table takes up: rows, units, pages, bytes, slack, and the reads of an uncached lookup.

    A unit is what is read at once: a row (flat, engram) or a bucket of K x S rows (pagegram).
    """
    from pagegram_io.record_files import write_csv

    refuse_outputs(values["csv_path"], force=values["force"])
    refuse_model_options(values)
    shape = shape_of(values)
    layouts = layouts_of(values, shape)
    records = [layout_record(layout) for layout in layouts]
    if values["csv_path"]:
        write_csv(records, values["csv_path"], force=values["force"])
    if values["as_json"]:
        print_records(records)
    else:
        _print_table(records)


def layout_record(layout: Layout) -> LayoutRecord:
    """The record of a layout."""
    from pagegram_io.layout import about_model
    from pagegram_io.records import LayoutRecord, provenance
    from pagegram_io.straddles import expected_reads, straddle_probability

    region = layout.regions[0]
    rows_bytes = sum(g.row_count * sum(r.row_bytes for r in g.regions) for g in layout.groups)
    return LayoutRecord(
        version=provenance()["version"],
        layout=layout.name,
        slots=layout.slots,
        table_params=layout.table_params,
        table_params_actual=layout.table_params_actual,
        row_format=layout.row_format,
        row_bytes=layout.row_bytes,
        unit_bytes=region.unit_bytes,
        unit_rows=layout.groups[0].unit_rows,
        units_per_page=region.units_per_page,
        rows=layout.row_count,
        units=layout.unit_count,
        pages=layout.page_count,
        file_bytes=layout.file_bytes,
        slack_bytes=layout.file_bytes - rows_bytes,
        slack_share=1 - rows_bytes / layout.file_bytes,
        uncached_reads=expected_reads(layout),
        straddle_probability=straddle_probability(region, layout.page_bytes),
        page_bytes=layout.page_bytes,
        placement=layout.placement,
        base_byte=min(region.base_byte for region in layout.regions),
        heads=layout.heads,
        row_width=layout.row_width,
        dim=layout.dim,
        orders=",".join(map(str, layout.orders)),
        seed=layout.seed,
        **about_model(layout),  # type: ignore[arg-type]
    )


def _print_table(records: list[LayoutRecord]) -> None:
    from pagegram_io.layout import label_of
    from pagegram_io.sizes import format_bytes, format_count

    names = (
        "layout",
        "table",
        "parameters",
        "rows",
        "row bytes",
        "units",
        "unit bytes",
        "units/page",
        "pages",
        "file",
        "slack",
        "straddling",
        "uncached reads",
    )
    table = plain_table(names)
    for r in records:
        table.add_row(
            label_of(r.layout, r.slots),
            format_count(r.table_params),
            f"{r.table_params_actual:,}",
            f"{r.rows:,}",
            str(r.row_bytes),
            f"{r.units:,}",
            f"{r.unit_bytes:,}",
            str(r.units_per_page) if r.units_per_page else "packed",
            f"{r.pages:,}",
            format_bytes(r.file_bytes),
            f"{100 * r.slack_share:.2f} %",
            f"{100 * r.straddle_probability:.4g} %",
            f"{r.uncached_reads:.6g}",
        )
    first = records[0]
    console = wide_console()
    console.print(table)
    console.print(
        f"Rows in {first.row_format}, orders {first.orders}, "
        f"pages of {format_bytes(first.page_bytes)}, {first.placement}."
    )
    if first.placement == "files":
        console.print(f"Placed where the checkpoint's headers say{'; ' if first.assumed else ''}{first.assumed or ''}.")
    elif first.assumed:
        resident = f" ({format_bytes(first.resident_bytes)} of RAM)" if first.resident_bytes else ""
        console.print(f"Assumed, without the checkpoint's headers: {first.assumed}{resident}.")

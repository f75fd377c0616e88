"""``pagegram-io inspect``: what a file is and holds."""

from __future__ import annotations

from typing import Any

import click

from pagegram_io.commands.options import print_records

EPILOG = """
Examples:

\b
  pagegram-io inspect table.safetensors
  pagegram-io inspect --json table.safetensors
  pagegram-io inspect DeepSeek-V4.1-Flash/
"""


@click.command("inspect", epilog=EPILOG)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option("--json", "as_json", is_flag=True, help="Print one record a file as JSON, one a line.")
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """What a FILE holds: its layout, pages, checks and sizes. Only its header is read; `verify` reads it all."""
    from pagegram_io.inspection import inspect

    records = [inspect(path) for path in paths]
    if as_json:
        print_records(records)
        return
    describers = {"table_file": table_lines, "checkpoint": checkpoint_lines}
    for i, record in enumerate(records):
        lines = describers[record["kind"]](record)
        width = max(len(name) for name, _ in lines)
        print("\n" * (i > 0) + click.format_filename(paths[i]))
        for name, text in lines:
            print(f"  {name:<{width}}  {text}")


def table_lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    """A table file's record as a person reads it: names and texts."""
    from pagegram_io.layout import label_of
    from pagegram_io.sizes import format_bytes, format_count

    r = record
    contents = {
        "trained": "rows of a trained model",
        "repacked": f"rows of {r['model']} repacked from a checkpoint",
        "pattern": f"a pattern of seed {r['content_seed']}, made to be measured",
    }
    lines = [
        ("kind", f"table file, version {r['format_version']}"),
        ("content", contents[r["content"]]),
        ("size", f"{r['file_bytes']:,} bytes ({format_bytes(r['file_bytes'])})"),
        ("pages", f"{r['pages']:,} of {format_bytes(r['page_bytes'])}, from byte {r['data_byte']:,}"),
        ("checks", "number and CRC-32C in each page" if r["checks"] == "in each page" else "CRC-32C in page_checks"),
    ]
    if r["weights_sha256"] is not None:
        lines.append(("weights", f"of the model.safetensors of SHA-256 {r['weights_sha256']}"))
    if r["content"] == "repacked":
        placed = f"{r['units_per_page']} a page" if r["units_per_page"] else "one after the other"
        rows = f"{r['rows']:,} of {r['row_width']} values in {r['row_format']}, {r['row_bytes']:,} bytes each"
        return [*lines, ("rows", f"{rows}, {placed}"), ("slack", f"{100 * r['slack_share']:.2f} % of the pages")]
    if r["content"] == "pattern" and r["model"] is not None:
        scales = f", scales {r['scales']}" if r["scales"] else ""
        return [*lines, ("for", f"the table of {r['model']}: rows in {r['row_format']}, {r['placement']}{scales}")]
    if r["layout"] is None:
        return [*lines, ("layout", "none: so many pages")]
    per_page = f"{r['units_per_page']} a page" if r["units_per_page"] else "one after the other"
    table = f"{r['table_params_actual']:,} parameters of {format_count(r['table_params'])} asked for"
    reads = f"{r['uncached_reads']:.6g} a token without a cache"
    return [
        *lines,
        ("layout", f"{label_of(r['layout'], r['slots'])}, {r['placement']}"),
        ("table", table),
        ("rows", f"{r['rows']:,} of {r['row_width']} values in {r['row_format']}, {r['row_bytes']:,} bytes each"),
        ("units", f"{r['units']:,} of {r['unit_rows']:,} rows, {r['unit_bytes']:,} bytes, {per_page}"),
        ("lookup", f"orders {r['orders']}, {r['heads']} head(s), model width {r['dim']}, hash seed {r['seed']}"),
        ("reads", f"{reads}; {100 * r['straddle_probability']:.4g} % of units straddle a page"),
        ("slack", f"{100 * r['slack_share']:.2f} % of the pages"),
    ]


def checkpoint_lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    """A checkpoint's record as a person reads it."""
    from pagegram_io.sizes import format_bytes

    r = record
    short = [f"{r[name]} {what}" for name, what in (("files_missing", "missing"), ("files_truncated", "truncated"))]
    short = [text for text in short if not text.startswith("0 ")]
    files = f"{r['files']} file(s)" + (f", {', '.join(short)}" if short else "")
    lines = [("kind", f"checkpoint, {r['form'] or 'no file of it is here'}"), ("files", files)]
    lines.append(("tensors", f"{r['tensors']:,}"))
    if r["model"] is not None:
        scales = f", and {r['scale_bytes']} bytes of scales in tensors of their own"
        rows = f"{r['rows']:,} of {r['row_width']} values in {r['row_format']}, {r['row_bytes']:,} bytes each"
        reads = f"{r['uncached_reads']:.6g} a token without a cache"
        if r["uncached_reads_scales_read"] is not None:
            resident = format_bytes(r["resident_bytes"])
            reads += f", scales resident ({resident}); {r['uncached_reads_scales_read']:.6g} with scales read"
        lines += [
            ("table", f"of {r['model']}, {format_bytes(r['table_bytes'])} in {r['extents']} extent(s)"),
            ("rows", rows + (scales if r["scale_bytes"] else "")),
            ("place", f"the first at byte {r['first_byte']:,}; extents begin on multiples of {r['alignment_bytes']}"),
            ("reads", f"{reads}; {100 * r['straddle_probability']:.4g} % of rows straddle a page"),
        ]
    return [*lines, ("problem", r["problem"])] if r["problem"] else lines

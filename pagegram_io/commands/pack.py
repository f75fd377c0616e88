"""``pagegram-io pack``: the table of a trained model as a file to be read from flash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import force_option, print_records

if TYPE_CHECKING:
    from pagegram_io.pack import Packed

EPILOG = """
Examples:

\b
  pagegram-io pack checkpoint -o table.safetensors
  pagegram-io pack checkpoint -o table-fp32.safetensors --row-format fp32
"""


@click.command("pack", epilog=EPILOG)
@click.argument("checkpoint", type=click.Path(readable=False))
@click.option(
    "-o",
    "--output",
    "path",
    required=True,
    type=click.Path(readable=False),
    metavar="FILE",
    help="The table file to write. [e.g. table.safetensors]",
)
@click.option(
    "--row-format",
    type=click.Choice(["nf4", "fp32", "fp16"]),
    help="How rows are stored; default: as the model's layout says. [e.g. nf4]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one record as JSON instead of the lines.")
@force_option
def command(checkpoint: str, path: str, row_format: str | None, as_json: bool, force: bool) -> None:
    """Pack the table of the trained model in the folder CHECKPOINT into FILE, page by page as its layout says.

    The table is streamed, and need not fit in memory. A failed or interrupted run leaves nothing behind.
    """
    from pagegram_io.checkpoint_table import read_checkpoint_table, weights_sha256
    from pagegram_io.errors import FormatError
    from pagegram_io.output import refuse_existing, stopped_by_signals
    from pagegram_io.pack import trained_header, with_row_format, write_trained_file
    from pagegram_io.progress import byte_progress
    from pagegram_io.sizes import format_bytes

    refuse_existing(path, force)
    layout, rows = read_checkpoint_table(checkpoint)
    layout = with_row_format(layout, row_format or layout.row_format)
    weights = weights_sha256(checkpoint)
    total, written = trained_header(layout, weights).file_bytes, 0
    with stopped_by_signals(), byte_progress(f"packing {click.format_filename(path)}", total) as advance:

        def report(count: int) -> None:
            nonlocal written
            written += count
            advance(count)

        try:
            packed = write_trained_file(path, layout, rows.read, weights_sha256=weights, force=force, progress=report)
        except KeyboardInterrupt:
            text = f"stopped after {format_bytes(written)} of {format_bytes(total)}; no file is left"
            raise KeyboardInterrupt(text) from None
        except FormatError:
            raise
        except ValueError as error:  # of the checkpoint's values: the layout was judged above
            raise FormatError(f"{click.format_filename(checkpoint)}: {error}") from None
    if as_json:
        print_records([_record(checkpoint, path, packed)])
    else:
        _print_result(path, packed)


def _record(checkpoint: str, path: str, packed: Packed) -> dict[str, Any]:
    from pagegram_io.inspection import table_record
    from pagegram_io.records import provenance

    counts = packed.counts
    return table_record(click.format_filename(path), packed.header) | {
        "kind": "pack",
        "checkpoint": click.format_filename(checkpoint),
        "tiny_rows": counts.tiny,
        "clamped_rows": counts.clamped,
        "zero_rows": counts.zero,
        **provenance(),
    }


def _print_result(path: str, packed: Packed) -> None:
    from pagegram_io.sizes import format_bytes

    header, counts, layout = packed.header, packed.counts, packed.header.layout
    assert layout is not None
    name = click.format_filename(path)
    checks = "each with its number and checksum" if header.sealed else "their checksums after them"
    print(f"{name}: {header.file_bytes:,} bytes ({format_bytes(header.file_bytes)})")
    print(f"{header.page_count:,} pages of {format_bytes(header.page_bytes)}, {checks}")
    print(f"{layout.row_count:,} rows of {layout.label} in {layout.row_format}, of which {counts.zero:,} are all zero")
    if counts.tiny:
        print(f"{counts.tiny:,} rows are smaller than the least scale, 2^-24, and took it")
    if counts.clamped:
        print(f"{counts.clamped:,} rows hold more than 65,504, the most that FP16 does, and were clamped")

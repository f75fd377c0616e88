"""``pagegram-io repack``: a deployed model's table, from its checkpoint, as a table file."""

from __future__ import annotations

import shlex
from typing import Any

import click

from pagegram_io.commands.options import BYTES, PathOption, force_option

EPILOG = """
Examples:

\b
  pagegram-io repack --model deepseek-v4.1-flash DeepSeek-V4.1-Flash/ -o engram.safetensors
  pagegram-io repack --model qwen3.8-flash-next --packed model.safetensors.index.json -o ple.safetensors
  pagegram-io verify engram.safetensors
"""


@click.command("repack", epilog=EPILOG)
@click.argument("source", metavar="SOURCE", type=PathOption)
@click.option("--model", required=True, metavar="NAME", help="Whose table it is. [e.g. deepseek-v4.1-flash]")
@click.option(
    "-o",
    "--output",
    "output",
    type=PathOption,
    required=True,
    metavar="FILE",
    help="The table file to write. [e.g. engram.safetensors]",
)
@click.option("--packed", is_flag=True, help="Rows follow one another and may straddle pages. Default: aligned.")
@click.option(
    "--page-size",
    "page_bytes",
    type=BYTES,
    default="4KiB",
    show_default=True,
    metavar="SIZE",
    help="What the device reads at a time. [e.g. 16KiB]",
)
@force_option
def command(**values: Any) -> None:
    """Write the table of a checkpoint, SOURCE, as a table file: each row's scales beside it, each page with its check.

    SOURCE is a folder, a model.safetensors.index.json, or a .safetensors or .gguf file. Rows are streamed: a few MiB
    of memory do for any table. Rows in the files are already read where they lie by --files; repacking is for good.
    """
    from pagegram_io.deployed import family_of
    from pagegram_io.deployed.placement import find_parts
    from pagegram_io.deployed.repacking import write_repacked_file
    from pagegram_io.deployed.source_files import read_checkpoint
    from pagegram_io.output import refuse_existing, stopped_by_signals
    from pagegram_io.progress import byte_progress
    from pagegram_io.sizes import format_bytes

    family = family_of(values["model"])
    refuse_existing(values["output"], values["force"])
    parts = find_parts(family, read_checkpoint(values["source"]))
    total, done = family.row_count * sum(parts.part_bytes), 0
    with stopped_by_signals(), byte_progress("repacking", total) as advance:

        def report(count: int) -> None:
            nonlocal done
            done += count
            advance(count)

        try:
            header = write_repacked_file(
                values["output"],
                family.layout(page_bytes=values["page_bytes"]),
                parts,
                aligned=not values["packed"],
                force=values["force"],
                progress=report,
            )
        except KeyboardInterrupt:
            text = f"stopped after {format_bytes(done)} of about {format_bytes(total)}; no file is left"
            raise KeyboardInterrupt(text) from None
    repacked, name = header.repacked, click.format_filename(values["output"])
    assert repacked is not None
    click.echo(
        f"{name}: {sum(repacked.group_rows):,} rows of {repacked.row_bytes} bytes on "
        f"{header.page_count:,} pages, {format_bytes(header.file_bytes)}; check it with: "
        f"pagegram-io verify {shlex.quote(name)}",
        err=True,
    )

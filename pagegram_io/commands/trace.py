"""``pagegram-io trace``: the pages, rows or bytes that a token stream touches, for other programs."""

from __future__ import annotations

import os
from typing import Any

import click

from pagegram_io.commands.model import model_layout, model_options, refuse_model_options
from pagegram_io.commands.options import (
    COUNT,
    PathOption,
    force_option,
    given,
    refuse_outputs,
    shape_of,
    shape_options,
    stream_of,
    stream_options,
)

EPILOG = """
Examples:

\b
  pagegram-io trace --layout pagegram --table 20B --limit 1M -o pages.npy
  pagegram-io trace --model deepseek-v4.1-flash --limit 100K -o deepseek.npy
  pagegram-io trace --layout engram --table 20B --limit 3M --format u32 -o engram.u32
  pagegram-io trace --layout flat --table 200M --limit 100K --format fio-iolog --target /dev/nvme0n1 -o reads.iolog
"""


@click.command("trace", epilog=EPILOG)
@click.option(
    "--layout",
    "layout_name",
    type=click.Choice(["flat", "engram", "pagegram"]),
    help="Which layout; needed unless --model is given. [e.g. pagegram]",
)
@model_options
@click.option(
    "--slots",
    type=int,
    default=4,
    show_default=True,
    metavar="S",
    help="Slots a head chooses from, for pagegram. [e.g. 15]",
)
@click.option(
    "--table", type=COUNT, default="20B", show_default=True, metavar="N", help="Table size in parameters. [e.g. 20B]"
)
@click.option(
    "--emit",
    type=click.Choice(["pages", "rows", "bytes"]),
    default="pages",
    show_default=True,
    help="Page ids, global row numbers, or file offsets of rows. [e.g. rows]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["npy", "u32", "csv", "parquet", "fio-iolog"]),
    default="npy",
    show_default=True,
    help="npy: [tokens, columns]; u32: one page after the other; fio-iolog: for fio --read_iolog. [e.g. u32]",
)
@click.option(
    "--target",
    default="table.bin",
    show_default=True,
    metavar="FILE",
    help="The file or device that a fio iolog reads. [e.g. /dev/nvme0n1]",
)
@click.option(
    "-o",
    "--output",
    "output",
    type=PathOption,
    required=True,
    metavar="FILE",
    help="Where to write; FILE.json beside it says what it is. [e.g. pages.npy]",
)
@stream_options
@shape_options
@force_option
def command(**values: Any) -> None:
    """Write the page trace of a token stream under one layout, and beside it a .json that says what it is."""
    from pagegram_io.layout import build
    from pagegram_io.progress import progress
    from pagegram_io.trace import write_trace

    _check_output(values)
    refuse_model_options(values)
    if values["model"] is not None:
        layout = model_layout(values)
    elif values["layout_name"] is None:
        raise click.UsageError("which layout? give --layout, or --model")
    else:
        layout = build([values["layout_name"]], values["table"], slots=[values["slots"]], shape=shape_of(values))[0]
    stream = stream_of(values)
    written = 0
    with progress("writing the trace", len(stream.ids)) as report:

        def count(tokens: int) -> None:
            nonlocal written
            written += tokens
            report(tokens)

        try:
            write_trace(
                layout,
                stream,
                values["output"],
                emit=values["emit"],
                form=values["form"],
                target=values["target"],
                force=values["force"],
                progress=count,
            )
        except KeyboardInterrupt:
            done = f"{written:,} of {len(stream.ids):,} tokens"
            raise KeyboardInterrupt(f"stopped after {done}; nothing was written") from None
    click.echo(f"{values['output']}: {values['emit']} of {written:,} tokens, {layout.label}", err=True)


SUFFIXES = {".npy": "npy", ".u32": "u32", ".csv": "csv", ".parquet": "parquet", ".iolog": "fio-iolog"}


def _check_output(values: dict[str, Any]) -> None:
    """Take the format from the name where none was given; refuse a name of another format, and the stream itself."""
    output = values["output"]
    refuse_outputs(output, f"{output}.json", force=values["force"])
    told = SUFFIXES.get(os.path.splitext(output)[1])
    if told and not given("form"):
        values["form"] = told
    if told and told != values["form"]:
        raise click.UsageError(f"{output} is named as {told}, but --format is {values['form']}")
    for source in filter(None, (values["stream_path"], values["documents"])):
        if os.path.exists(output) and os.path.exists(source) and os.path.samefile(output, source):
            raise click.UsageError(f"{output} is the input itself; write the trace elsewhere")

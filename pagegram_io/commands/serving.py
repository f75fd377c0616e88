"""Options that say how a server takes a stream's documents, and request logs in place of a token stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import BYTES, COUNT, PathOption, given, grouped, option_text, spec_of, stream_of

if TYPE_CHECKING:
    from pagegram_io.interleave import Serving
    from pagegram_io.job import StreamSpec
    from pagegram_io.tokens import Stream

CONCURRENCY = 32
WINDOW = 2048

requests_options = grouped(
    [
        click.option(
            "--requests",
            "requests_path",
            type=PathOption,
            metavar="FILE",
            help="Your own log: a JSON object a line, with prompt and completion, ids or text. [e.g. log.jsonl]",
        ),
        click.option(
            "--tokenizer",
            type=PathOption,
            metavar="FILE",
            help="Turns the texts of --requests into ids: a file, folder or package. [e.g. tokenizer.json]",
        ),
    ]
)

concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(1, 65536),
    metavar="N",
    help=f"Requests served at once, with --requests; default: {CONCURRENCY}. [e.g. 64]",
)

serving_options = grouped(
    [
        click.option(
            "--window",
            type=COUNT,
            metavar="N",
            help="Prefill chunks of N tokens of a document; pages shared in a step are read once. [e.g. 2048]",
        ),
        click.option(
            "--interleave",
            type=click.IntRange(1, 65536),
            metavar="N",
            help="N documents advance in turn, a token (or a --window) each a step. [e.g. 8]",
        ),
        concurrency_option,
        click.option(
            "--draft",
            type=click.IntRange(0, 256),
            metavar="K",
            help="Tokens drafted and rejected at each decode step, read too. [e.g. 3]",
        ),
        click.option(
            "--pollute",
            "pollution_bytes",
            type=BYTES,
            metavar="SIZE",
            help="Half-way, stream a file of SIZE (say, a checkpoint) through the same cache. [e.g. 16GiB]",
        ),
    ]
)


def serving_of(values: dict[str, Any]) -> Serving | None:
    """The schedule asked for; None where the stream runs as it stands."""
    from pagegram_io.interleave import Serving

    log = values["requests_path"] is not None
    if values["concurrency"] is not None and not log:
        raise click.UsageError("--concurrency goes with --requests; documents of a stream take turns by --interleave")
    if log and values["interleave"] is not None:
        raise click.UsageError("--interleave is for token streams; with --requests give --concurrency")
    if not log and values["interleave"] is None and values["window"] is None and values["draft"] is None:
        return None
    if not log and values["window"] and values["draft"]:
        raise click.UsageError("--draft is for tokens that are made, and --window makes all of a stream prefill")
    return Serving(
        interleave=values["concurrency"] or CONCURRENCY if log else values["interleave"] or 1,
        window=values["window"] or (WINDOW if log else None),
        draft=values["draft"] or 0,
        seed=values["seed"],
    )


def stream_or_requests(values: dict[str, Any]) -> tuple[Stream, StreamSpec]:
    """The stream that the options name, be it a log of requests, and how a job names it."""
    if values["requests_path"] is None:
        if values["tokenizer"] is not None:
            raise click.UsageError("--tokenizer goes with --requests")
        stream = stream_of(values)
        return stream, spec_of(values, stream)
    from dataclasses import replace

    from pagegram_io.job import StreamSpec
    from pagegram_io.progress import read_progress
    from pagegram_io.requests import read_requests

    for name in ("stream_path", "dtype", "eod", "documents"):
        if given(name):
            raise click.UsageError(f"{option_text(name)} is of token streams; --requests brings its own documents")
    encode = None
    if values["tokenizer"] is not None:
        encode = _encoder(values["tokenizer"])
    spec = StreamSpec(values["requests_path"], vocabulary=values["vocabulary"], limit=values["limit"], requests=True)
    with read_progress("reading the requests") as report:
        stream = read_requests(
            values["requests_path"],
            encode=encode,
            vocabulary=values["vocabulary"],
            limit=values["limit"],
            progress=report,
        )
    if values.get("model") is not None:
        from pagegram_io.commands.model import check_model_stream

        check_model_stream(values["model"], stream)
    return stream, replace(spec, sha256=stream.sha256)


def _encoder(where: str) -> Any:
    """Text to ids by a tokenizer.json, without tokens that the tokenizer would add."""
    from pagegram_io.deployed.encoding import encode
    from pagegram_io.deployed.tokenizer import open_tokenizer

    tokenizer = open_tokenizer(where)
    return lambda text: next(encode(tokenizer, [text])).tolist()

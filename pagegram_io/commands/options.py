"""Options that commands share, and how their values are read. Sizes are parsed here and nowhere else."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pagegram_io.sizes import parse_bytes, parse_cache, parse_count

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Parsed(click.ParamType):
    """A value read by a function that raises ValueError with a sentence."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN and infinity, which Python reads as numbers, too."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        number = click.FLOAT.convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", parameter, context)
        return super().convert(value, parameter, context)


def _list_of(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(parse(item) for item in text.split(","))


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r} is not a whole number; write for example 4")
    return int(text)


BYTES = Parsed("size", parse_bytes)
COUNT = Parsed("count", parse_count)
COUNTS = Parsed("counts", _list_of(parse_count))
CACHES = Parsed("sizes", _list_of(parse_cache))
WHOLES = Parsed("numbers", _list_of(_whole))
NAMES = Parsed("names", lambda text: tuple(text.split(",")))

# Our own reading and writing says what is wrong with a path; click would say it in other words and exit 2.
PathOption = click.Path(readable=False)


def grouped(options: list[Callable[[Any], Any]]) -> Callable[[Decorated], Decorated]:
    return lambda function: functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


stream_options = grouped(
    [
        click.option(
            "--tokens",
            "stream_path",
            type=PathOption,
            metavar="STREAM",
            help="Tokens: .u16, .u32, .bin, .npy, or one of these .xz or .zst; default: shipped. [e.g. my.u16]",
        ),
        click.option(
            "--dtype",
            type=click.Choice(["uint16", "uint32"]),
            help="Ids in a raw file. [e.g. uint32 for a .bin of 32-bit ids]",
        ),
        click.option(
            "--eod",
            type=click.IntRange(min=0),
            metavar="ID",
            help="The id that ends the document it belongs to. [e.g. 0]",
        ),
        click.option(
            "--documents",
            type=PathOption,
            metavar="FILE",
            help="Where documents start: a 0-based token index a line. [e.g. starts.txt]",
        ),
        click.option("--vocab", "vocabulary", type=COUNT, metavar="N", help="Refuse ids at or above it. [e.g. 65536]"),
        click.option("--limit", type=COUNT, metavar="N", help="Use only the first N tokens. [e.g. 1M]"),
    ]
)

shape_options = grouped(
    [
        click.option(
            "--row-format",
            default="nf4",
            show_default=True,
            metavar="FORMAT",
            help="How rows are stored: nf4, fp8, int8, fp16, bf16, fp32; a --model has its own, listed by "
            "pagegram-io models. [e.g. fp16]",
        ),
        click.option(
            "--packed", is_flag=True, help="Rows follow one another and may straddle pages, instead of aligned."
        ),
        click.option(
            "--base-byte",
            type=click.IntRange(min=0),
            default=0,
            metavar="N",
            help="Where a packed table starts in its file. [e.g. 8192]",
        ),
        click.option(
            "--page-size",
            "page_bytes",
            type=BYTES,
            default="4KiB",
            show_default=True,
            metavar="SIZE",
            help="What the device reads at a time. [e.g. 16KiB]",
        ),
        click.option(
            "--orders",
            type=WHOLES,
            default="2,3",
            show_default=True,
            metavar="LIST",
            help="N-gram orders. [e.g. 2,3,4]",
        ),
        click.option(
            "--heads",
            type=int,
            default=8,
            show_default=True,
            metavar="K",
            help="Rows an order, in engram and pagegram. [e.g. 8]",
        ),
        click.option(
            "--row-width",
            type=int,
            default=64,
            show_default=True,
            metavar="R",
            help="Values a row, in engram and pagegram. [e.g. 64]",
        ),
        click.option(
            "--dim",
            type=int,
            default=384,
            show_default=True,
            metavar="D",
            help="Model width, which is flat's row width. [e.g. 384]",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, 2**64 - 1),
            default=0,
            show_default=True,
            metavar="N",
            help="Seed of the hashes. [e.g. 1]",
        ),
    ]
)

layout_options = grouped(
    [
        click.option(
            "--layout",
            "layouts",
            type=NAMES,
            default="flat,engram,pagegram",
            show_default=True,
            metavar="LIST",
            help="Which layouts. [e.g. engram,pagegram]",
        ),
        click.option(
            "--slots",
            type=WHOLES,
            default="4,15",
            show_default=True,
            metavar="LIST",
            help="Slots S a head chooses from, for pagegram. [e.g. 1,4,15]",
        ),
    ]
)


checkpoint_option = click.option(
    "--checkpoint",
    "checkpoint_path",
    type=PathOption,
    metavar="DIR",
    help="The layout of this trained model, instead of one that options describe; with --tokens. [e.g. run]",
)


def table_option(default: str) -> Callable[[Decorated], Decorated]:
    """--table, a list of sizes in parameters."""
    return click.option(
        "--table",
        "tables",
        type=COUNTS,
        default=default,
        show_default=True,
        metavar="LIST",
        help="Table sizes in parameters. [e.g. 3.2B,10B,20B]",
    )


record_options = grouped(
    [
        click.option(
            "--json", "as_json", is_flag=True, help="Print records as JSON, one a line, instead of the table."
        ),
        click.option(
            "--csv", "csv_path", type=PathOption, metavar="FILE", help="Write the same records as CSV. [e.g. reads.csv]"
        ),
    ]
)

force_option = click.option("--force", is_flag=True, help="Replace output files that exist.")

threads_option = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Layouts simulated at once; default: the CPUs allowed. [e.g. 2]",
)


def given(name: str) -> bool:
    """Was this option of the running command written, rather than left at its default?"""
    return click.get_current_context().get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


def option_text(name: str) -> str:
    """How an option of the running command is written: --layout for the argument ``layouts``."""
    return next(p.opts[0] for p in click.get_current_context().command.params if p.name == name)


def shape_of(values: dict[str, Any]) -> Any:
    """Take the shape options out of a command's arguments."""
    from pagegram_io.layout import Shape

    names = ("row_format", "packed", "base_byte", "page_bytes", "orders", "heads", "row_width", "dim", "seed")
    return Shape(**{name: values[name] for name in names})


LAYOUT_OPTIONS = (
    "layout_name", "layouts", "slots", "table", "tables", "row_format", "packed", "base_byte", "page_bytes", "orders",
    "heads", "row_width", "dim", "seed",
)  # fmt: skip


def checkpoint_layout(values: dict[str, Any]) -> Any:
    """The layout of --checkpoint, whose vocabulary the stream must keep; refuses options that describe another."""
    from pagegram_io.checkpoint_table import read_checkpoint_layout, read_checkpoint_vocabulary

    told = [name for name in LAYOUT_OPTIONS if name in values and given(name)]
    if told:
        raise click.UsageError(f"{option_text(told[0])} describes a layout, and --checkpoint has one already")
    if values["stream_path"] is None:
        raise click.UsageError("--checkpoint needs --tokens: a stream of the model's own vocabulary")
    layout = read_checkpoint_layout(values["checkpoint_path"])
    known = [read_checkpoint_vocabulary(values["checkpoint_path"]), values["vocabulary"]]
    values["vocabulary"] = min((size for size in known if size is not None), default=None)
    return layout


def layouts_of(values: dict[str, Any], shape: Any, *, slots: tuple[int, ...] | None = None) -> list[Any]:
    """The layouts asked for, at each table size."""
    from pagegram_io.layout import build

    slots = slots or values["slots"]
    if values.get("model") is not None:
        from pagegram_io.commands.model import model_layout

        return [model_layout(values)]
    return [layout for size in values["tables"] for layout in build(values["layouts"], size, slots=slots, shape=shape)]


def stream_of(values: dict[str, Any]) -> Any:
    """Take the stream options out of a command's arguments and read the stream."""
    from pagegram_io.progress import read_progress
    from pagegram_io.tokens import read_stream

    if values.get("model") is not None:
        from pagegram_io.commands.model import model_stream_path

        values["stream_path"] = model_stream_path(values)
    names = ("dtype", "eod", "documents", "vocabulary", "limit")
    arguments = {name: values[name] for name in names}
    with read_progress("reading the stream") as report:
        stream = read_stream(values["stream_path"], progress=report, **arguments)
    if values.get("model") is not None:
        from pagegram_io.commands.model import check_model_stream

        check_model_stream(values["model"], stream)
    if values["eod"] is not None and not (stream.ids == values["eod"]).any():
        print(f"note: --eod {values['eod']}: no such id is in {stream.name}, so that no document ends", file=sys.stderr)
    orders = values.get("orders") or (1,)
    if len(stream) < max(orders):
        print(f"note: a stream of {len(stream)} tokens is shorter than the order {max(orders)}", file=sys.stderr)
    return stream


def spec_of(values: dict[str, Any], stream: Any) -> Any:
    """The stream as a job carries it: where it came from, and its digest."""
    from pagegram_io.job import StreamSpec

    names = ("dtype", "eod", "documents", "vocabulary", "limit")
    return StreamSpec(values["stream_path"], **{name: values[name] for name in names}, sha256=stream.sha256)


def refuse_outputs(*paths: str | None, force: bool) -> None:
    """Find out before the work, not after it, that an output cannot be written."""
    from pagegram_io.output import refuse_existing, refuse_folder

    named = [path for path in paths if path is not None]
    if len(set(named)) < len(named):
        raise click.UsageError("two outputs have the same name; give each its own")
    for path in named:
        if not path:
            raise click.UsageError("an output has an empty name; is a shell variable unset?")
        refuse_existing(path, force)
        refuse_folder(os.path.dirname(os.path.realpath(path)))


def print_records(records: list[Any]) -> None:
    """Records as JSON lines on stdout."""
    from pagegram_io.record_files import write_json_lines

    write_json_lines(records, sys.stdout)


def wide_console() -> Any:
    """A console for tables on stdout: a narrow terminal wraps their lines, and no number is cut."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=True, width=240)


def plain_table(names: Sequence[str]) -> Any:
    """A table without rules: the first column to the left, numbers to the right, nothing wrapped."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return table

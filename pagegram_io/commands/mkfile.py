"""``pagegram-io mkfile``: a dense file to read from, the size of a table."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.model import model_options, refuse_model_options, table_of
from pagegram_io.commands.options import BYTES, COUNT, given, option_text, shape_of, shape_options

if TYPE_CHECKING:
    from pagegram_io.layout import Layout
    from pagegram_io.placed_model import PlacedModel
    from pagegram_io.table_file import TableHeader

EPILOG = """
Examples:

\b
  pagegram-io mkfile table.safetensors --table 20B --layout pagegram
  pagegram-io mkfile table.safetensors --table 3.2B --layout engram --packed
  pagegram-io mkfile engram.safetensors --model deepseek-v4.1-flash --repack --aligned
  pagegram-io mkfile bench.safetensors --size 8GiB

One dense file at least as large as the largest layout serves `nvme` for all of them; `nvme --wrap` folds a table
into a smaller one.
"""

# Of a disk that is too small for a table, a file to fold it into takes at most one in so many free bytes.
KEPT_FREE = 2
PART_BYTES_MIN = 2**20


@dataclass(frozen=True)
class Wanted:
    """What fills the file: a layout of ours, or so many pages, which may be for a deployed model's table."""

    table: Layout | int
    model: PlacedModel | None = None


@click.command("mkfile", epilog=EPILOG)
@click.argument("path", type=click.Path(readable=False))
@click.option(
    "--table", "table_params", type=COUNT, metavar="N", help="As large as a table of N parameters. [e.g. 20B]"
)
@click.option("--size", "file_bytes", type=BYTES, metavar="SIZE", help="Or at most so many bytes. [e.g. 8GiB]")
@click.option(
    "--layout",
    type=click.Choice(["flat", "engram", "pagegram"]),
    default="pagegram",
    show_default=True,
    help="Whose table, with --table. [e.g. engram]",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    metavar="S",
    help="Slots a head chooses from, for pagegram. [e.g. 15]",
)
@model_options
@shape_options
def command(path: str, **values: Any) -> None:
    """Make a dense file of incompressible pages at PATH, in the format of a table, to be read by `nvme`.

    Every page holds its number and a checksum. Equal arguments make equal bytes; --seed changes them. An existing
    path is never replaced, and an interrupted or failed run leaves nothing behind.
    """
    from pagegram_io.output import stopped_by_signals
    from pagegram_io.progress import byte_progress
    from pagegram_io.sizes import format_bytes
    from pagegram_io.table_file import pattern_header, refuse_target, write_pattern_file

    if sum(values[name] is not None for name in ("table_params", "model", "file_bytes")) != 1:
        raise click.UsageError("give either --table, such as 20B, or --model, or --size, such as 8GiB")
    refuse_model_options(values)
    wanted = _wanted(values)
    told = {"page_bytes": values["page_bytes"], "seed": values["seed"], "model": wanted.model}
    header = pattern_header(wanted.table, **told)
    refuse_target(path)
    _check_space(path, header, values)
    written = 0
    with stopped_by_signals(), byte_progress(f"writing {click.format_filename(path)}", header.file_bytes) as advance:

        def report(count: int) -> None:
            nonlocal written
            written += count
            advance(count)

        try:
            write_pattern_file(path, wanted.table, **told, progress=report)
        except KeyboardInterrupt:
            text = f"stopped after {format_bytes(written)} of {format_bytes(header.file_bytes)}; no file is left"
            raise KeyboardInterrupt(text) from None
    _print_result(path, header, values)


def _wanted(values: dict[str, Any]) -> Wanted:
    from pagegram_io.table_file import pages_in

    if values["model"] is not None:
        return _of_model(values)
    if values["table_params"] is not None:
        return Wanted(_layout_of(values["table_params"], values))
    _refuse_layout_options()
    return Wanted(pages_in(values["file_bytes"], values["page_bytes"]))


def _of_model(values: dict[str, Any]) -> Wanted:
    """As many pages as the model's table has where it is placed. --seed is the pattern's here: a model has none."""
    from pagegram_io.placed_model import PlacedModel

    table = table_of({name: value for name, value in values.items() if name != "seed"})
    place = {name: values[name] for name in ("scales", "repack", "aligned")}
    layout = table.layout(**place)
    in_files = values["files"] is not None
    row_format = layout.row_format if in_files else table.form.name
    return Wanted(layout.page_count, PlacedModel(values["model"], row_format, **place, files=in_files))


def _check_space(path: str, header: TableHeader, values: dict[str, Any]) -> None:
    """One line where the disk is too small, with what can be done about it."""
    from pagegram_io.table_file import check_space, free_space

    try:
        check_space(path, header.file_bytes)
    except OSError as error:  # in its own words: nothing was tried yet
        text = f"{click.format_filename(path)}: {error.strerror}"
        part_bytes = 1 << (free_space(path) // KEPT_FREE | 1).bit_length() - 1  # the power of two at or below it
        if values["file_bytes"] is None and part_bytes >= PART_BYTES_MIN:
            text += _about_a_part(path, header, values, part_bytes)
        raise click.ClickException(text) from None


def _about_a_part(path: str, header: TableHeader, values: dict[str, Any], part_bytes: int) -> str:
    from pagegram_io.sizes import format_bytes

    size = format_bytes(part_bytes).replace(" ", "")
    make = ["pagegram-io", "mkfile", path, "--size", size]
    make += ["--page-size", str(values["page_bytes"])] if given("page_bytes") else []
    return f", or fold the table into a smaller file: {shlex.join(make)} && {_next(path, header, values, '--wrap')}"


def _layout_of(table_params: int, values: dict[str, Any]) -> Layout:
    from pagegram_io.layout import build

    if values["layout"] != "pagegram" and given("slots"):
        raise click.UsageError(f"--slots belongs to pagegram; a table of layout {values['layout']} has none")
    return build([values["layout"]], table_params, slots=[values["slots"]], shape=shape_of(dict(values)))[0]


def _refuse_layout_options() -> None:
    names = ("layout", "slots", "row_format", "packed", "base_byte", "orders", "heads", "row_width", "dim")
    for name in names:
        if given(name):
            raise click.UsageError(f"{option_text(name)} belongs to --table; a file of some --size has no layout")


def _print_result(path: str, header: TableHeader, values: dict[str, Any]) -> None:
    from pagegram_io.sizes import format_bytes

    where = f"from byte {header.data_byte:,}"
    path = click.format_filename(path)  # a name may hold bytes that no terminal shows
    print(f"{path}: {header.file_bytes:,} bytes ({format_bytes(header.file_bytes)})")
    print(
        f"{header.page_count:,} pages of {format_bytes(header.page_bytes)} {where}, each with its number and checksum"
    )
    if header.model is not None:
        print(f"as many pages as the table of {header.model.model}, {_placed(header.model)}")
        _print_ids(header.model.model)
    print(f"next: {_next(path, header, values)}")


def _print_ids(model: str) -> None:
    """Where no shipped stream is made of ids that the model has, the next command needs another."""
    from pagegram_io.deployed import family_of
    from pagegram_io.tokens import DEFAULT_STREAM_VOCABULARY

    family = family_of(model)
    if family.stream is None and family.vocabulary < DEFAULT_STREAM_VOCABULARY:
        whose = f"add --tokens of its own ({family.tokenizer})"
        print(f"it has {family.vocabulary:,} ids, and the shipped stream more: {whose}")


def _placed(model: PlacedModel) -> str:
    """How a model's rows are taken to lie."""
    from pagegram_io.deployed import family_of

    if model.files:
        return "placed as its checkpoint's headers say"
    if model.repack:
        return f"{model.row_format} rows with their scales beside them, {'aligned' if model.aligned else 'packed'}"
    several = len(family_of(model.model).format_of(model.row_format).part_bytes) > 1
    scales = f"; scales {model.scales}" if several else ""
    return f"{model.row_format} rows, each tensor on a page boundary{scales}"


def _next(path: str, header: TableHeader, values: dict[str, Any], *more: str) -> str:
    """The command that reads the file with the pages that it was made for."""
    from pagegram_io.sizes import format_count, parse_count

    words = ["pagegram-io", "nvme", "--depth", "64"]
    names = ["row_format", "page_bytes", "orders", "heads", "row_width", "dim", "base_byte", "seed"]
    layout = header.layout
    if header.model is not None:
        words += ["--model", header.model.model]
        names = ["row_format", "page_bytes", "scales", "files"]
        words += [f"--{name}" for name in ("repack", "aligned") if values[name]]
    elif layout is None:
        words.append("--uniform")
    else:
        params = format_count(layout.table_params)
        exact = parse_count(params) == layout.table_params
        words += ["--table", params if exact else str(layout.table_params), "--layout", layout.name]
        words += ["--slots", str(layout.slots)] if layout.slots else []
    for name in names:
        if given(name):
            words += [option_text(name), ",".join(map(str, values[name])) if name == "orders" else str(values[name])]
    words += ["--packed"] if values["packed"] else []
    return shlex.join([*words, *more, path])

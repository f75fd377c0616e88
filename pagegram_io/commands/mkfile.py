"""``pagegram-io mkfile``: a dense file to read from, the size of a table."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import BYTES, COUNT, given, option_text, shape_of, shape_options

if TYPE_CHECKING:
    from pagegram_io.layout import Layout
    from pagegram_io.table_file import TableHeader

EPILOG = """
Examples:

\b
  pagegram-io mkfile table.safetensors --table 20B --layout pagegram
  pagegram-io mkfile table.safetensors --table 3.2B --layout engram --packed
  pagegram-io mkfile bench.safetensors --size 8GiB

One dense file at least as large as the largest layout serves `nvme` for all of them.
"""


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
@shape_options
def command(path: str, table_params: int | None, file_bytes: int | None, **values: Any) -> None:
    """Make a dense file of incompressible pages at PATH, in the format of a table, to be read by `nvme`.

    Every page holds its number and a checksum. Equal arguments make equal bytes; --seed changes them. An existing
    path is never replaced, and an interrupted or failed run leaves nothing behind.
    """
    from pagegram_io.output import stopped_by_signals
    from pagegram_io.progress import byte_progress
    from pagegram_io.sizes import format_bytes
    from pagegram_io.table_file import check_space, pages_in, pattern_header, refuse_target, write_pattern_file

    if (table_params is None) == (file_bytes is None):
        raise click.UsageError("give either --table, such as 20B, or --size, such as 8GiB")
    seed, page_bytes = values["seed"], values["page_bytes"]
    table: Layout | int
    if table_params is not None:
        table = _layout_of(table_params, values)
    else:
        assert file_bytes is not None
        _refuse_layout_options()
        table = pages_in(file_bytes, page_bytes)
    header = pattern_header(table, page_bytes=page_bytes, seed=seed)
    refuse_target(path)
    try:
        check_space(path, header.file_bytes)
    except OSError as error:  # in its own words: nothing was tried yet
        raise click.ClickException(f"{path}: {error.strerror}") from None
    written = 0
    with stopped_by_signals(), byte_progress(f"writing {click.format_filename(path)}", header.file_bytes) as advance:

        def report(count: int) -> None:
            nonlocal written
            written += count
            advance(count)

        try:
            write_pattern_file(path, table, page_bytes=page_bytes, seed=seed, progress=report)
        except KeyboardInterrupt:
            text = f"stopped after {format_bytes(written)} of {format_bytes(header.file_bytes)}; no file is left"
            raise KeyboardInterrupt(text) from None
    _print_result(path, header, values)


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
    from pagegram_io.sizes import format_bytes, format_count, parse_count

    where = f"from byte {header.data_byte:,}"
    path = click.format_filename(path)  # a name may hold bytes that no terminal shows
    print(f"{path}: {header.file_bytes:,} bytes ({format_bytes(header.file_bytes)})")
    print(
        f"{header.page_count:,} pages of {format_bytes(header.page_bytes)} {where}, each with its number and checksum"
    )
    words = ["pagegram-io", "nvme", "--depth", "64"]
    layout = header.layout
    if layout is None:
        words.append("--uniform")
    else:
        params = format_count(layout.table_params)
        exact = parse_count(params) == layout.table_params
        words += ["--table", params if exact else str(layout.table_params), "--layout", layout.name]
        words += ["--slots", str(layout.slots)] if layout.slots else []
    for name in ("row_format", "page_bytes", "orders", "heads", "row_width", "dim", "base_byte", "seed"):
        if given(name):
            words += [option_text(name), ",".join(map(str, values[name])) if name == "orders" else str(values[name])]
    words += ["--packed"] if values["packed"] else []
    print("next: " + shlex.join([*words, path]))

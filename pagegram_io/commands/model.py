"""``--model``, wherever ``--table`` is taken: a deployed table in place of our layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import PathOption, given, grouped, option_text

if TYPE_CHECKING:
    from pagegram_io.deployed.model_table import ModelTable
    from pagegram_io.layout import Layout
    from pagegram_io.tokens import Stream

model_option = click.option(
    "--model",
    metavar="NAME",
    help="A deployed table instead of --table; pagegram-io models lists them. [e.g. deepseek-v4.1-flash]",
)

# Where its rows lie; what only --model takes.
placement_options = grouped(
    [
        click.option(
            "--scales",
            type=click.Choice(["resident", "read"]),
            default="resident",
            show_default=True,
            help="With --model: are the scales of rows in RAM, or read from tensors of their own? [e.g. read]",
        ),
        click.option("--repack", is_flag=True, help="With --model: a row and its scales stand together."),
        click.option("--aligned", is_flag=True, help="With --repack: no row straddles; each column starts on a page."),
        click.option(
            "--files",
            type=PathOption,
            metavar="PATH",
            help="With --model: its rows where this checkpoint's headers, or a file of repack, say. [e.g. DeepSeek/]",
        ),
    ]
)
model_options = grouped([model_option, placement_options])
PLACEMENT = ("scales", "repack", "aligned", "files")

RANK_SPLITS = ("heads", "rows", "columns")  # those of deployed/ranks.py, which is not imported for a --help

# What --model brings itself.
OURS = (
    "table", "tables", "layout", "layouts", "layout_name", "slots", "packed", "base_byte", "orders", "heads",
    "row_width", "dim", "seed",
)  # fmt: skip


def model_layout(values: dict[str, Any]) -> Layout:
    """The layout of --model, in its own row format unless --row-format was written."""
    return placed(table_of(values), values)


def placed(table: ModelTable, values: dict[str, Any]) -> Layout:
    """A table of ``table_of``, whose files were read for it, where --scales, --repack and --aligned put its rows."""
    return table.layout(scales=values["scales"], repack=values["repack"], aligned=values["aligned"])


def table_of(values: dict[str, Any]) -> ModelTable:
    """The table of --model, in the files of --files where they are given; the model's orders become the command's."""
    from pagegram_io.deployed import family_of
    from pagegram_io.deployed.model_table import model_table

    family = family_of(values["model"])
    refuse_ours(values)
    values["orders"] = family.orders
    if values["aligned"] and not values["repack"]:
        raise click.UsageError("--aligned goes with --repack: a checkpoint's own rows lie where they lie")
    row_format = values["row_format"] if given("row_format") else None
    if values["files"] is not None and row_format is not None:
        raise click.UsageError("--row-format and --files: the files say how their rows are stored")
    return model_table(family, values["files"], row_format=row_format, page_bytes=values["page_bytes"])


def refuse_ours(values: dict[str, Any]) -> None:
    """With --model, what describes a layout of ours."""
    useless = [name for name in OURS if name in values and given(name)]
    if useless:
        raise click.UsageError(f"{option_text(useless[0])} describes our layouts; --model brings its own")


def refuse_model_options(values: dict[str, Any]) -> None:
    """Without --model, what only it takes."""
    for name in PLACEMENT:
        if values["model"] is None and given(name):
            raise click.UsageError(f"{option_text(name)} goes with --model")


def model_stream_path(values: dict[str, Any]) -> str | None:
    """The stream of --tokens; without it the shipped one in the model's own ids, where there is one."""
    from pagegram_io.deployed import family_of
    from pagegram_io.tokens import shipped_stream_path

    own = family_of(values["model"]).stream
    path: str | None = values["stream_path"]
    return str(shipped_stream_path(own)) if path is None and own is not None else path


def check_model_stream(model: str, stream: Stream) -> None:
    """Refuse ids that the model does not have, before C does, and say where others come from."""
    from pagegram_io.deployed import family_of

    family = family_of(model)
    largest = int(stream.ids.max())
    if largest >= family.vocabulary:
        what = f"{stream.name} has the id {largest}, and {model} has {family.vocabulary:,} ids"
        if stream.prompt_lengths is None:
            cure = f"give --tokens in its own ({family.tokenizer}); pagegram-io tokens makes them from text"
        else:
            cure = f"give requests in its own ({family.tokenizer}), or as text with its --tokenizer"
        raise ValueError(f"{what}: {cure}")

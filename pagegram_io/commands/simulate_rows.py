"""``simulate --rows``: row numbers from a real run, placed in a table of rows of one length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import COUNT, PathOption, given, grouped, option_text

if TYPE_CHECKING:
    from pagegram_io.job import Outcome

rows_options = grouped(
    [
        click.option(
            "--rows",
            "rows_path",
            type=PathOption,
            metavar="FILE",
            help="Row numbers of a run, .npy [tokens, columns], for a table keyed by hidden states. [e.g. rows.npy]",
        ),
        click.option(
            "--row-bytes",
            type=click.IntRange(1, 2**30),
            metavar="N",
            help="With --rows: bytes of a row. [e.g. 512]",
        ),
        click.option(
            "--table-rows",
            type=COUNT,
            metavar="N",
            help="With --rows: rows of the table; default: as many as the file shows. [e.g. 20M]",
        ),
    ]
)

FOREIGN = (
    "tables", "model", "scales", "repack", "aligned", "files", "layouts", "slots", "checkpoint_path", "pages_path",
    "seed", "row_format", "orders", "heads", "row_width", "dim", "stream_path", "dtype", "eod", "documents",
    "vocabulary", "requests_path", "tokenizer", "concurrency", "window", "interleave", "draft", "pollution_bytes",
    "split", "cache_unit", "ranks",
)  # fmt: skip


def refuse_rows_options(values: dict[str, Any]) -> None:
    """Without --rows, what only it takes; with it, what describes other tables."""
    if values["rows_path"] is None:
        for name in ("row_bytes", "table_rows"):
            if given(name):
                raise click.UsageError(f"{option_text(name)} goes with --rows")
        return
    if values["row_bytes"] is None:
        raise click.UsageError("--rows needs --row-bytes: how long a row is, such as 512")
    useless = [name for name in FOREIGN if given(name)]
    if useless:
        raise click.UsageError(f"{option_text(useless[0])} is of tables keyed by tokens; --rows brings row numbers")


def run_rows(values: dict[str, Any]) -> list[Outcome]:
    """Simulate the rows that --rows names, aligned to pages or, with --packed, one after the other."""
    from pagegram_io.progress import progress
    from pagegram_io.rows_file import check_rows, pages_of_rows, read_rows, rows_layout
    from pagegram_io.simulation import curve_outcome, digest

    path = values["rows_path"]
    rows = read_rows(path, limit=values["limit"])
    table_rows = check_rows(rows, values["table_rows"], name=path)
    name = values["name"] or Path(path).stem
    placing = {key: values[key] for key in ("packed", "base_byte", "page_bytes")}
    layout = rows_layout(name, table_rows, values["row_bytes"], **placing)
    about = {
        "row_bytes": layout.row_bytes,
        "placement": layout.placement,
        "base_byte": values["base_byte"],
        "file_bytes": layout.file_bytes,
        "stream": Path(path).name,
        "stream_sha256": digest(rows),
        "documents": 1,
    }
    with progress("simulating", int(rows.size)) as report:
        outcome = curve_outcome(
            pages_of_rows(layout, rows),
            name=name,
            stream=None,
            cache=[cache.text for cache in values["caches"]],
            every_size=bool(values["curve"] or values["plot_path"] or values["curve_npy"]),
            table_params=None,
            page_bytes=layout.page_bytes,
            page_count=layout.page_count,
            about=about,
            warm_tokens=values["warm_tokens"],
            tick=report,
            bytes_used=rows.shape[1] * layout.row_bytes,
        )
    return [outcome]

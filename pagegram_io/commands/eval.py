"""``pagegram-io eval``: held-out loss of a checkpoint, with its table from wherever it lies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import (
    BYTES,
    COUNT,
    PathOption,
    force_option,
    given,
    option_text,
    plain_table,
    print_records,
    record_options,
    refuse_outputs,
    wide_console,
)
from pagegram_io.commands.train import import_torch, stop_requests

if TYPE_CHECKING:
    pass

EPILOG = """
Examples:

\b
  pagegram-io eval run
  pagegram-io eval run --table run.safetensors --in-ram
  pagegram-io eval run --table run.safetensors --cache 64MiB --windows 64
"""


@click.command("eval", epilog=EPILOG)
@click.argument("checkpoint", type=PathOption)
@click.option(
    "--table",
    "table_path",
    type=PathOption,
    metavar="FILE",
    help="Take the rows from this packed table, on flash. [e.g. run.safetensors]",
)
@click.option("--in-ram", is_flag=True, help="Read the packed table into RAM first, instead of page by page.")
@click.option(
    "--cache",
    "cache_bytes",
    type=BYTES,
    default="1GiB",
    show_default=True,
    metavar="SIZE",
    help="Page cache of a table on flash. [e.g. 64MiB]",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    metavar="N",
    help="Reads in flight from flash. [e.g. 16]",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "io_uring", "psync"]),
    default="auto",
    show_default=True,
    help="How flash is read. [e.g. psync]",
)
@click.option("--buffered", is_flag=True, help="Read through the kernel's page cache, where O_DIRECT is not to be had.")
@click.option("--windows", type=COUNT, metavar="N", help="Held-out windows; default: as many as in training. [e.g. 64]")
@click.option(
    "--validation",
    "validation_path",
    type=PathOption,
    metavar="STREAM",
    help="Held-out tokens; default: those of the training run. [e.g. test.u16]",
)
@click.option(
    "--device", default="cpu", show_default=True, metavar="NAME", help="Where to compute: cpu, cuda. [e.g. cuda]"
)
@click.option(
    "--threads", type=click.IntRange(1, 1024), metavar="N", help="CPU threads; default: as torch chooses. [e.g. 2]"
)
@record_options
@force_option
def command(**values: Any) -> None:
    """Held-out loss of the model in CHECKPOINT.

    Its table is the FP32 one of the checkpoint, or, with --table, what `pack` made of it: read from flash through a
    page cache as it is needed, which gives the same loss to the last bit as the packed table in RAM.
    """
    _check(values)
    import_torch()
    refuse_outputs(values["csv_path"], force=values["force"])
    from pagegram_io.models.evaluation_job import EvalJob, run

    names = ("table_path", "in_ram", "cache_bytes", "depth", "engine", "buffered", "windows", "validation_path")
    job = EvalJob(values["checkpoint"], **{name: values[name] for name in (*names, "device", "threads")})
    with stop_requests() as stop, _bar() as progress:

        def report(done: int, total: int) -> None:
            progress(done, total)
            if stop():
                raise KeyboardInterrupt(f"stopped after {done:,} of {total:,} windows")

        records = run(job, report)
    _note(values, records[0])
    if values["csv_path"]:
        from pagegram_io.record_files import write_csv

        write_csv(records, values["csv_path"], force=values["force"])
    if values["as_json"]:
        print_records(records)
    else:
        _print(records[0])


def _check(values: dict[str, Any]) -> None:
    if values["table_path"] is None:
        for name in ("in_ram", "cache_bytes", "depth", "engine", "buffered"):
            if given(name):
                raise click.UsageError(f"{option_text(name)} belongs to a packed table; give --table FILE, too")
    elif values["in_ram"]:
        for name in ("cache_bytes", "depth", "engine", "buffered"):
            if given(name):
                raise click.UsageError(f"{option_text(name)} belongs to a table on flash, not to --in-ram")


def _note(values: dict[str, Any], record: dict[str, Any]) -> None:
    from pagegram_io.table_file import read_header

    path, asked, used = values["table_path"], values["windows"], record["windows"]
    if path is not None and read_header(path).weights_sha256 is None:
        name = click.format_filename(path)
        print(f"note: {name} does not say which checkpoint it was packed from; only layouts agree", file=sys.stderr)
    if asked is not None and used < asked:
        print(f"note: {used:,} windows were used, all that the stream holds, of {asked:,}", file=sys.stderr)


@contextlib.contextmanager
def _bar() -> Iterator[Any]:
    from pagegram_io.progress import progress

    with progress("evaluating", 1) as advance:
        shown = 0.0

        def show(done: int, total: int) -> None:
            nonlocal shown
            advance(done / total - shown)
            shown = done / total

        yield show


def _print(record: dict[str, Any]) -> None:
    from pagegram_io.layout import label_of

    table = plain_table(["memory", "table", "held-out loss", "error", "reads/token"])
    reads = record["reads_per_token"]
    label = label_of(record["memory"], record["slots"])
    shown = "" if reads is None else f"{reads:.4f}"
    table.add_row(label, record["source"], f"{record['loss']:.6f}", f"{record['loss_error']:.6f}", shown)
    wide_console().print(table)

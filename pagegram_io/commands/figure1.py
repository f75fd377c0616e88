"""``pagegram-io figure1``: what tables of equal size are worth to a model, and what they cost to read."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.figure_folder import folder_options, new_folder, picture_paths
from pagegram_io.commands.options import (
    COUNT,
    WHOLES,
    PathOption,
    force_option,
    given,
    option_text,
    plain_table,
    refuse_outputs,
    wide_console,
)

if TYPE_CHECKING:
    from pagegram_io.paired import Arm

SHIPPED = Path(__file__).resolve().parents[1] / "data" / "figure1-mini.jsonl"

EPILOG = """
Examples:

\b
  pagegram-io figure1 -o figures
  pagegram-io figure1 -o figures --train --runs figures/runs
  pagegram-io figure1 -o figures --records mine.jsonl --formats png --force
"""


@click.command("figure1", epilog=EPILOG)
@folder_options
@click.option(
    "--records",
    "records_path",
    type=PathOption,
    metavar="FILE",
    help="Draw from these records (.jsonl or .csv) of train and simulate, not from the shipped ones. [e.g. mine.jsonl]",
)
@click.option("--train", is_flag=True, help="Make the runs that are missing; says first how long that takes.")
@click.option(
    "--runs",
    "runs_path",
    type=click.Path(),
    metavar="DIR",
    help="With --train: folder of runs and checkpoints, 25 MB each; default: runs in -o. [e.g. figures/runs]",
)
@click.option(
    "--jobs",
    "at_once",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="With --train: runs at once, of one thread each; default: the CPUs allowed. [e.g. 2]",
)
@click.option(
    "--seeds",
    type=WHOLES,
    default="0,1,2",
    show_default=True,
    metavar="LIST",
    help="With --train: the seeds of each memory. [e.g. 0,1,2,3,4]",
)
@click.option("--steps", type=COUNT, metavar="N", help="With --train: steps a run, instead of the preset's. [e.g. 100]")
@force_option
def command(**values: Any) -> None:
    """Draw Figure 1 of preset mini: (a) held-out loss against tokens, without memory and with each table; (b) paired
    differences to the flat table, seed by seed; (c) flash reads per token against cache size.

    From the shipped records in seconds, or with --train from runs made here. The records behind it are written beside
    it, to figure1.jsonl, and are enough to draw it again.
    """
    from pagegram_io.figure1 import draw_figure1
    from pagegram_io.output import new_text
    from pagegram_io.paired import read_arms
    from pagegram_io.record_files import to_dict, write_json_lines

    _check(values)
    folder, force = values["folder"], values["force"]
    pictures = picture_paths(folder, "figure1", values["formats"])
    kept = None if values["records_path"] else os.path.join(folder, "figure1.jsonl")
    with new_folder(folder):
        refuse_outputs(kept, *pictures, force=force)
        records = _records(values)
        if kept:
            with new_text(kept, force=force) as file:
                write_json_lines(records, file)
        for picture in pictures:
            draw_figure1(records, picture, force=force)
    rows = [to_dict(record) for record in records]
    _print_table(read_arms(row for row in rows if row["kind"] == "train"))
    for path in filter(None, [kept, *pictures]):
        click.echo(path)


def _check(values: dict[str, Any]) -> None:
    if values["train"] and values["records_path"]:
        raise click.UsageError("--train makes records, and --records takes those that are there; give one of them")
    useless = [name for name in ("runs_path", "at_once", "seeds", "steps") if given(name)]
    if useless and not values["train"]:
        raise click.UsageError(f"{option_text(useless[0])} goes with --train")
    if len(set(values["seeds"])) < len(values["seeds"]):
        raise click.UsageError("--seeds names a seed twice")


def _records(values: dict[str, Any]) -> list[Any]:
    from pagegram_io.record_files import read_records

    if values["train"]:
        return _train(values)
    return read_records(values["records_path"] or SHIPPED)


def _train(values: dict[str, Any]) -> list[Any]:
    """The records of all runs, the missing ones made first, and of the simulations of their tables."""
    from pagegram_io.commands.train import import_torch
    from pagegram_io.workers import default_threads

    import_torch()
    from pagegram_io.models import runs
    from pagegram_io.models.presets import MINI
    from pagegram_io.progress import progress

    folder = values["runs_path"] or os.path.join(values["folder"], "runs")
    os.makedirs(folder, exist_ok=True)
    every = runs.runs_of(MINI, folder, streams=runs.mini_streams(), seeds=values["seeds"], steps=values["steps"])
    runs.read_done(every)  # a record of other settings is refused before hours of work
    missing = [run for run in every if not run.done]
    if missing:
        at_once = min(values["at_once"] or default_threads(), len(missing))
        minutes = runs.estimate_seconds(missing, at_once) / 60
        print(
            f"{len(missing)} of {len(every)} runs are missing: about {minutes:.0f} minutes, {at_once} at a time. "
            f"Ctrl-C keeps what they have in {folder}, and the same command goes on from there.",
            file=sys.stderr,
        )
        with progress("training", sum(run.job.step_count for run in missing)) as report:
            runs.do_runs(missing, at_once, report)
    return [*runs.read_done(every), *runs.simulate_tables(every)]


def _print_table(arms: list[Arm]) -> None:
    """Each arm's loss, and its difference to no memory and to flat with the interval."""
    from pagegram_io.paired import difference

    table = plain_table(["memory", "seeds", "loss", "less none", "less flat"])
    others = [next((arm for arm in arms if arm.key == key), None) for key in (("none", None), ("flat", None))]
    for arm in arms:
        cells = []
        for other in others:
            found = difference(arm, other) if other is not None and other is not arm else None
            half = "" if found is None or found.half_width is None else f" ± {found.half_width:.4f}"
            cells.append("-" if found is None else f"{found.mean:+.4f}{half}")
        table.add_row(arm.label, str(len(arm.runs)), f"{arm.loss:.4f}", *cells)
    wide_console().print(table)
    click.echo("Losses in nats a token; differences are paired by seed, ± is half of a 95 % t-interval.")

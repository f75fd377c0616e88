"""``pagegram-io plan``: will a table on a drive keep up with a model?"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.model import RANK_SPLITS, model_options, placed, refuse_model_options, table_of
from pagegram_io.commands.options import (
    CACHES,
    COUNT,
    WHOLES,
    Parsed,
    PathOption,
    force_option,
    given,
    layout_options,
    layouts_of,
    print_records,
    record_options,
    refuse_outputs,
    shape_of,
    shape_options,
    stream_options,
    table_option,
)
from pagegram_io.commands.serving import CONCURRENCY, concurrency_option, requests_options, stream_or_requests
from pagegram_io.drive_profiles import PROFILES

if TYPE_CHECKING:
    from pagegram_io.deployed.model_table import ModelTable
    from pagegram_io.deployed.ranks import RankShare
    from pagegram_io.drive import AnyDrive
    from pagegram_io.layout import Layout
    from pagegram_io.plan import Goal
    from pagegram_io.planner import Planner
    from pagegram_io.records import PlanRecord

_NAMES = "\n".join(f"  {name:<26} {profile.figures}" for name, profile in PROFILES.items())
EPILOG = f"""
Examples:

\b
  pagegram-io nvme --uniform --decode --batch 16 --json /dev/nvme0n1 > drive.jsonl
  pagegram-io plan --table 20B --device drive.jsonl --deadline 500us
  pagegram-io plan --table 20B --layout engram --device drive.jsonl --batch 1,8,64 --goal 2000 --plot plan.png
  pagegram-io plan --model deepseek-v4.1-flash --device drive.jsonl --compute 12ms --model-layers 40
  pagegram-io plan --model longcat-flash-lite --files LongCat/ --device drive.jsonl --deadline 500us
  pagegram-io plan --requests log.jsonl --concurrency 32 --device drive.jsonl --goal 2000
  pagegram-io plan --model longcat-flash-lite --cache none --profile samsung-990-pro-2tb --deadline 40us
  pagegram-io plan --model deepseek-v4.1-flash --ranks 4 --split heads --device drive.jsonl --goal 500

A step of more reads than any measured is "not known": measure batches as large as the plan asks for.

Profiles: published figures (sources: pagegram_io/drive_profiles.py), which only bound: no go or not known, never go.

\b
{_NAMES}
"""

NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def parse_duration(text: str) -> int:
    """``500us``, ``12ms``: whole ns; ValueError with an example."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|ms|s)", text)
    value = round(float(match[1]) * NANOSECONDS[match[2]]) if match else 0
    if value < 1:
        raise ValueError(f"{text[:40]!r} is not a time above 0; write for example 500us or 12ms")
    return value


def parse_deadlines(text: str) -> dict[int | None, int]:
    """``500us`` for a table of one layer or none, ``1=200us,14=3ms`` by layer; ValueError with an example."""
    deadlines: dict[int | None, int] = {}
    for item in text.split(","):
        layer, equals, duration = item.rpartition("=")
        if equals and not (layer.isascii() and layer.isdigit()):
            raise ValueError(f"{layer[:40]!r} is not a layer; write for example 1=200us,14=3ms")
        key = int(layer) if equals else None
        if key in deadlines:
            raise ValueError(f"{item[:40]!r} is a second deadline of one layer")
        deadlines[key] = parse_duration(duration)
    return deadlines


@click.command("plan", epilog=EPILOG)
@table_option("20B")
@model_options
@layout_options
@click.option(
    "--device",
    "device_paths",
    type=PathOption,
    multiple=True,
    metavar="FILE",
    help="Records of nvme --decode and of throughput; more of them: faster drives to consider. [e.g. drive.jsonl]",
)
@click.option(
    "--profile", "profiles", multiple=True, metavar="NAME",
    help="A drive's published figures in place of records; they can only rule out. [e.g. samsung-pm1743]",
)  # fmt: skip
@click.option(
    "--depth", type=click.IntRange(1, 32768), metavar="N", help="Reads the engine keeps in flight; default: the "
    "most with which steps were measured. [e.g. 64]",
)  # fmt: skip
@click.option(
    "--cache", "caches", type=CACHES, default="1GiB,4GiB", show_default=True, metavar="LIST",
    help="RAM budgets; doublings of the smallest are planned too. [e.g. 1GiB,16GiB,10%]",
)  # fmt: skip
@click.option(
    "--batch", "batches", type=WHOLES, default="1,8,32", show_default=True, metavar="LIST",
    help="Documents decoded side by side. [e.g. 1,8,64]",
)  # fmt: skip
@click.option(
    "--deadline", "deadlines", type=Parsed("times", parse_deadlines), metavar="TIMES",
    help="Compute time before the layer that needs the rows. [e.g. 500us, or 1=200us,14=3ms]",
)  # fmt: skip
@click.option(
    "--compute", "compute_ns", type=Parsed("time", parse_duration), metavar="TIME",
    help="Compute time of a whole step. [e.g. 12ms]",
)  # fmt: skip
@click.option(
    "--model-layers", type=click.IntRange(1, 10_000), metavar="L",
    help="With --compute: layers of the model, equally long, so that layer l starts after l/L of it. [e.g. 40]",
)  # fmt: skip
@click.option(
    "--goal", type=COUNT, metavar="N", help="Tokens a second, of the whole batch, also in a p99 step. [e.g. 2000]"
)
@click.option(
    "--path", "path", type=click.Choice(["page", "row", "mmap"]), default="page", show_default=True,
    help="How rows are served: private page cache, private row cache, kernel page cache. [e.g. mmap]",
)  # fmt: skip
@click.option(
    "--ranks", type=click.IntRange(1, 4096), metavar="N",
    help="With --model: N tensor-parallel ranks share the table by --split, each with this RAM and drive. [e.g. 4]",
)  # fmt: skip
@click.option("--split", type=click.Choice(RANK_SPLITS), help="With --ranks: how they share the table. [e.g. heads]")
@click.option(
    "--window", type=COUNT, default="2048", show_default=True, metavar="N", help="Prefill chunk, in tokens. [e.g. 512]"
)
@click.option(
    "--plot", "plot_path", type=PathOption, metavar="FILE",
    help="Draw tokens a second against RAM: .png, .svg or .pdf. [e.g. plan.png]",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1, 1024), metavar="N",
    help="Batches simulated at once; default: the CPUs allowed. [e.g. 2]",
)  # fmt: skip
@requests_options
@concurrency_option
@stream_options
@shape_options
@record_options
@force_option
def command(**values: Any) -> None:
    """Will a table on a drive keep up? A verdict for each RAM budget and batch: go, no go or not known.

    Reads a step come from the stream, batch by batch, behind an exact LRU; times of a step from decode records of nvme,
    never beyond the largest step measured. The verdict rests on the stream's second half, first accesses included, and
    is "not known" where the cache is not full by mid-stream or over 20 % of its reads are first accesses.
    """
    from pagegram_io.commands.plan_table import print_plan
    from pagegram_io.record_files import write_csv

    refuse_model_options(values)
    refuse_outputs(values["csv_path"], values["plot_path"], force=values["force"])
    if values["plot_path"]:
        from pagegram_io.figures import check_suffix

        check_suffix(values["plot_path"])
        if all(cache.bytes == 0 for cache in values["caches"]):
            raise click.UsageError("--plot draws tokens a second against RAM; give --cache sizes, or leave it out")
    values["batches"] = _batches(values)
    _check_ranks(values)
    model = None if values["model"] is None else table_of(values)
    layout = _layout(values, model)
    goal = _goal(values, layout)
    drives = _drives(values, layout.page_bytes)
    measured = max(drives[0].depths if drives else [], default=None)
    depth = values["depth"] or measured or 64
    if measured is not None and depth > measured:
        print(
            f"note: no step was measured with more than {measured} reads in flight: these rule in, not out",
            file=sys.stderr,
        )
    records, asked, lines = _plan(values, layout, goal, drives, depth, model)
    if values["csv_path"]:
        write_csv(records, values["csv_path"], force=values["force"])
    if values["as_json"]:
        print_records(records)
    else:
        print_plan([record for record in records if record.cache_pages in asked], lines)
    if values["plot_path"]:
        from pagegram_io.plan_figure import can_be_drawn, draw_plan

        drawn = [record for record in records if can_be_drawn(record)]
        if drawn:
            draw_plan(drawn, values["plot_path"], force=values["force"])
        else:
            print("note: no tokens a second are known, so there is nothing to draw", file=sys.stderr)


def _check_ranks(values: dict[str, Any]) -> None:
    """--ranks and --split go together, with --model."""
    if (values["ranks"] is None) != (values["split"] is None):
        raise click.UsageError(f"--ranks N goes with --split {', '.join(RANK_SPLITS)}, and that with it")
    if values["ranks"] is not None and values["model"] is None:
        raise click.UsageError("--ranks goes with --model")


def _batches(values: dict[str, Any]) -> tuple[int, ...]:
    """Documents side by side: of --batch or, with a log, of --concurrency."""
    if values["requests_path"] is None and values["concurrency"] is not None:
        raise click.UsageError("--concurrency goes with --requests; of a token stream give --batch")
    if values["concurrency"] is not None and given("batches"):
        raise click.UsageError("--batch and --concurrency both say how many are served at once; give one of them")
    if values["requests_path"] is not None and not given("batches"):
        return (values["concurrency"] or CONCURRENCY,)
    if not all(1 <= batch <= 65536 for batch in values["batches"]):
        raise click.UsageError("--batch: documents side by side are 1 to 65536")
    return tuple(dict.fromkeys(values["batches"]))


def _layout(values: dict[str, Any], model: ModelTable | None) -> Layout:
    shape = shape_of(values)
    if model is not None:
        return placed(model, values)
    if not given("layouts"):
        values["layouts"] = ("pagegram",)
    slots = values["slots"] if given("slots") else (4,)
    layouts: list[Layout] = layouts_of(values, shape, slots=slots)
    if len(layouts) != 1:
        raise click.UsageError("a plan is of one table: give one --table, one --layout and one of --slots")
    return layouts[0]


def _goal(values: dict[str, Any], layout: Layout) -> Goal:
    from pagegram_io.demand import layers_of
    from pagegram_io.plan import Goal

    deadlines, compute, layers = values["deadlines"], values["compute_ns"], values["model_layers"]
    named = layers_of(layout)
    if deadlines and list(deadlines) == [None] and len(named) == 1:
        deadlines = {named[0]: deadlines[None]}
    if layers is not None:
        if deadlines:
            raise click.UsageError("--model-layers and --deadline both say when rows are needed; give one of them")
        if compute is None:
            raise click.UsageError("--model-layers divides --compute, such as --compute 12ms; give that, too")
        if named == [None]:
            raise click.UsageError("--model-layers: the table names no layers that need it; give --deadline")
        most = max(layer or 0 for layer in named)
        if most >= layers:
            raise click.UsageError(f"--model-layers {layers}: the table is of layer {most}, and layers count from 0")
        deadlines = {layer: compute * (layer or 0) // layers for layer in named}
    goal = Goal(deadlines or {}, compute, values["goal"])
    goal.order(named)
    return goal


def _drives(values: dict[str, Any], page_bytes: int) -> list[AnyDrive]:
    """Those measured, then those known by published figures: the first is planned for, the others are considered."""
    from pagegram_io.drive import read_drive
    from pagegram_io.drive_profiles import profiles_of
    from pagegram_io.record_files import read_records

    drives: list[AnyDrive] = []
    for path in values["device_paths"]:
        drive = read_drive(read_records(path), page_bytes, name=Path(path).name)
        for line in drive.refusals:
            print(f"note: {line}", file=sys.stderr)
        drives.append(drive)
    return [*drives, *profiles_of(values["profiles"], page_bytes)]


def _shares(values: dict[str, Any], model: ModelTable | None) -> list[RankShare]:
    if values["ranks"] is None or model is None:
        return []
    from pagegram_io.deployed.ranks import shares_of

    return shares_of(model.tensors, values["ranks"], values["split"])


def _plan(
    values: dict[str, Any], layout: Layout, goal: Goal, drives: list[AnyDrive], depth: int, model: ModelTable | None
) -> tuple[list[PlanRecord], set[int], list[str]]:
    """Records of every cache and batch, the capacities asked for, and the sentences below the table."""
    from pagegram_io.planner import Planner
    from pagegram_io.workers import Interrupted

    stream, _ = stream_or_requests(values)
    shares = _shares(values, model)
    planner = Planner(
        layout, stream, goal, drives, depth, values["caches"], values["path"], values["window"], model, shares
    )
    for warning in planner.warnings():
        print(f"note: {warning}", file=sys.stderr)
    about = planner.about()
    records: list[PlanRecord] = []
    lines: list[str] = []
    done: list[int] = []
    try:
        planner.make_passes(values["batches"], threads=values["threads"])
        for batch in values["batches"]:
            made, said = _plan_batch(planner, batch, about)
            records += made
            lines += said
            done.append(batch)
    except Interrupted as stopped:
        raise KeyboardInterrupt(f"{stopped}; nothing was written") from None
    except KeyboardInterrupt:
        after = f"batch {', '.join(map(str, done))}" if done else "no batch"
        raise KeyboardInterrupt(
            f"stopped after {after} of {', '.join(map(str, values['batches']))}; nothing was written"
        ) from None
    return records, planner.asked, [*lines, *planner.assumptions()]


def _plan_batch(planner: Planner, batch: int, about: dict[str, Any]) -> tuple[list[PlanRecord], list[str]]:
    """Of one batch: records of the step at each cache, and of each rank; what the batch comes to, in words."""
    from dataclasses import replace

    from pagegram_io import plan

    records, lines, judgements = [], [], []
    for of_ranks in planner.by_rank(batch):
        judgement = plan.slowest(of_ranks)
        judgements.append(judgement)
        capacity = judgement.demand.cache_pages
        asked = capacity in planner.asked
        change = planner.change(judgement) if asked and judgement.verdict == plan.NO_GO else None
        made = plan.records_of(judgement, about | planner.slowest_prefill(capacity))
        records += [replace(record, change=change, slowest_rank=judgement.rank) for record in made]
        if planner.ranks:
            records += planner.rank_records(of_ranks, about)
            if asked:
                lines.append(planner.imbalance(of_ranks))
    return records, [planner.sentence(batch, judgements), *lines]

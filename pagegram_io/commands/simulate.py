"""``pagegram-io simulate``: reads per token, layout by layout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.model import RANK_SPLITS, model_options, refuse_model_options
from pagegram_io.commands.options import (
    CACHES,
    COUNT,
    PathOption,
    checkpoint_layout,
    checkpoint_option,
    force_option,
    layout_options,
    layouts_of,
    option_text,
    print_records,
    record_options,
    refuse_outputs,
    shape_of,
    shape_options,
    stream_options,
    table_option,
    threads_option,
)
from pagegram_io.commands.serving import requests_options, serving_of, serving_options, stream_or_requests
from pagegram_io.commands.simulate_rows import refuse_rows_options, rows_options, run_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagegram_io.job import Outcome
    from pagegram_io.layout import Layout
    from pagegram_io.records import SimulationRecord

EPILOG = """
Examples:

\b
  pagegram-io simulate --table 20B --cache 1GiB
  pagegram-io simulate --table 3.2B,20B --cache 64MiB,1GiB,10%,none --by order
  pagegram-io simulate --model deepseek-v4.1-flash --cache 8GiB --by layer --by order
  pagegram-io simulate --model deepseek-v4.1-flash --files checkpoint/ --ranks 4 --split heads
  pagegram-io simulate --table 20B --curve --json > curve.jsonl
  pagegram-io simulate --table 20B --plot reads.png
  pagegram-io simulate --checkpoint run --tokens mine.u16 --eod 0 --cache 64KiB,none
  pagegram-io simulate --pages mine.npy --cache 256MiB --table 20B
  pagegram-io simulate --rows rows.npy --row-bytes 512 --cache 1GiB
  pagegram-io simulate --table 20B --window 2048
  pagegram-io simulate --requests log.jsonl --concurrency 32 --draft 3 --pollute 16GiB
"""


def _one_split(chosen: Sequence[str]) -> str | None:
    """What --by and --split say; layer and order alone can be said together."""
    split = ",".join(sorted(set(chosen)))
    if "," in split and split != "layer,order":
        raise click.UsageError(f"--by {' and --by '.join(chosen)}: only layer and order go together")
    return split or None


@click.command("simulate", epilog=EPILOG)
@table_option("20B")
@model_options
@click.option(
    "--cache",
    "caches",
    type=CACHES,
    default="1GiB",
    show_default=True,
    metavar="LIST",
    help="Page-cache sizes: bytes, a share of the table, or none. [e.g. 64MiB,1GiB,10%,none]",
)
@layout_options
@checkpoint_option
@click.option(
    "--curve", is_flag=True, help="Every cache size in one pass: a record for each of a log grid, 64 a decade."
)
@click.option(
    "--curve-npy",
    "curve_npy",
    type=PathOption,
    metavar="FILE",
    help="Misses at every size in pages, uint64 .npy; one file a layout if there are several. [e.g. curve.npy]",
)
@click.option(
    "--plot",
    "plot_path",
    type=PathOption,
    metavar="FILE",
    help="Draw reads per token against cache size: .png, .svg or .pdf. [e.g. reads.png]",
)
@click.option(
    "--by",
    "--split",
    "split",
    type=click.Choice(["order", "layer", "column", "heads", "rows", "columns"]),
    multiple=True,
    callback=lambda _, __, chosen: _one_split(chosen),
    help="Reads by n-gram order, layer (of a model; may be given beside order) or column; with --ranks: how they "
    "share a table. [e.g. order]",
)
@click.option(
    "--warm",
    "warm_tokens",
    type=COUNT,
    default=0,
    metavar="N",
    help="Tokens that fill the cache first and are not counted. [e.g. 1000000]",
)
@click.option(
    "--cache-unit",
    type=click.Choice(["page", "row"]),
    default="page",
    show_default=True,
    help="What the cache holds; row: rows in RAM, each miss still reads its page. [e.g. row]",
)
@click.option(
    "--policy", type=click.Choice(["lru"]), default="lru", show_default=True, help="Which page is evicted. [e.g. lru]"
)
@click.option(
    "--pages",
    "pages_path",
    type=PathOption,
    metavar="FILE",
    help="Simulate this page trace (.npy or .u32) instead of our layouts. [e.g. mine.npy]",
)
@rows_options
@click.option("--name", metavar="NAME", help="What to call the layout behind --pages or --rows. [e.g. mine]")
@click.option(
    "--ranks",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="With --model: what each of N tensor-parallel ranks reads, by --split heads, rows or columns. [e.g. 4]",
)
@serving_options
@requests_options
@stream_options
@shape_options
@threads_option
@record_options
@force_option
@click.option(
    "--verbose",
    is_flag=True,
    help="Also print what the simulator itself costs: memory, accesses a second, instructions.",
)
def command(**values: Any) -> None:
    """Flash reads per token of each table layout behind an exact LRU page cache.

    With nothing else said: the shipped multilingual stream (20.6M tokens); flat, engram, and pagegram with 4 and 15
    slots, of 20 billion parameters in NF4; one cold cache of 1 GiB of 4 KiB pages. Reads are page reads that the
    cache does not serve.
    """
    _check_outputs(values)
    refuse_model_options(values)
    refuse_rows_options(values)
    _check_ranks(values)
    layouts: list[Layout] = []
    if values["rows_path"] is not None:
        outcomes = run_rows(values)
    elif values["pages_path"] is not None:
        if values["checkpoint_path"] is not None:
            raise click.UsageError("--pages and --checkpoint both say what is read; give one of them")
        from pagegram_io.commands.simulate_pages import run_pages

        outcomes = run_pages(values)
    else:
        layouts, outcomes = _run_layouts(values)
    _write(values, layouts, outcomes)


def _check_outputs(values: dict[str, Any]) -> None:
    """Find out before the work what could not be written or drawn after it."""
    refuse_outputs(values["csv_path"], values["plot_path"], force=values["force"])
    if values["plot_path"]:
        from pagegram_io.figures import check_suffix

        check_suffix(values["plot_path"])
        if values["split"]:
            raise click.UsageError("--plot draws whole reads; it cannot be used with --by")


def _check_ranks(values: dict[str, Any]) -> None:
    """--ranks and its way of splitting go together, with --model, and print reads."""
    split_ranks = values["split"] in RANK_SPLITS
    if (values["ranks"] is not None) != split_ranks:
        raise click.UsageError(f"--ranks N goes with --split {', '.join(RANK_SPLITS)}, and they with it")
    if not split_ranks:
        return
    if values["model"] is None:
        raise click.UsageError("--ranks goes with --model")
    for name in ("plot_path", "curve_npy"):
        if values[name]:
            raise click.UsageError(f"{option_text(name)} draws a whole table; it cannot be used with --ranks")


def _shares(values: dict[str, Any]) -> list[Any]:
    """The ranks' shares of the table, or None alone for the whole of it."""
    if values["ranks"] is None:
        return [None]
    from pagegram_io.commands.model import table_of
    from pagegram_io.deployed.ranks import shares_of

    return list(shares_of(table_of(values).tensors, values["ranks"], values["split"]))


def _every_size(values: dict[str, Any]) -> bool:
    """Is the whole curve wanted? A row cache is simulated a size at a time, and drawn as points."""
    return bool(values["curve"] or values["curve_npy"] or (values["plot_path"] and values["cache_unit"] == "page"))


def _run_layouts(values: dict[str, Any]) -> tuple[list[Layout], list[Outcome]]:
    from pagegram_io.job import Job, job_accesses, run_jobs
    from pagegram_io.locality import filler_warning
    from pagegram_io.progress import progress

    if values["name"] is not None:
        raise click.UsageError("--name goes with --pages or --rows")
    if values["checkpoint_path"] is not None:
        layouts = [checkpoint_layout(values)]
    else:
        layouts = layouts_of(values, shape_of(values))
    serving = serving_of(values)
    stream, spec = stream_or_requests(values)
    if values["curve_npy"]:
        refuse_outputs(*(_curve_path(values["curve_npy"], x, len(layouts)) for x in layouts), force=values["force"])
    every = _every_size(values)
    jobs = [
        Job(
            spec,
            layout,
            values["caches"],
            curve=every,
            keep_curve=bool(values["curve_npy"]),
            warm_tokens=values["warm_tokens"],
            cache_unit=values["cache_unit"],
            split=values["split"] if values["ranks"] is None else None,
            policy=values["policy"],
            share=share,
            serving=serving,
            pollution_bytes=values["pollution_bytes"] or 0,
        )
        for layout in layouts
        for share in _shares(values)
    ]
    said = filler_warning(stream)
    if said:
        print(f"note: {said}", file=sys.stderr)
    with progress("simulating", sum(job_accesses(job, len(stream.ids)) for job in jobs)) as report:
        return layouts, run_jobs(jobs, stream=stream, threads=values["threads"], report=report)


def _write(values: dict[str, Any], layouts: list[Layout], outcomes: list[Outcome]) -> None:
    from pagegram_io.commands.next_plan import next_lines
    from pagegram_io.commands.simulate_table import label_of, print_table, warnings
    from pagegram_io.record_files import write_csv

    every = [record for outcome in outcomes for record in outcome.records]
    asked = [record for outcome in outcomes for record in outcome.asked_records]
    records = every if values["curve"] else asked
    if values["csv_path"]:
        write_csv(records, values["csv_path"], force=values["force"])
    if values["curve_npy"]:
        _write_curves(values["curve_npy"], outcomes, force=values["force"])
    if values["plot_path"]:
        from pagegram_io.figures import draw_curves

        draw_curves(every, values["plot_path"], force=values["force"])
    if values["as_json"]:
        print_records(records)
    else:
        state = {label_of(outcome.records[0]): outcome.state_bytes for outcome in outcomes}
        print_table(asked, verbose=values["verbose"], state_bytes=state, ours=bool(layouts))
        if values["model"] is not None:
            print(*next_lines(values, layouts[0].column_count), sep="\n")
        if values["curve"] and not (values["csv_path"] or values["plot_path"] or values["curve_npy"]):
            print("note: the curve's records go to --json, --csv, --plot or --curve-npy", file=sys.stderr)
    for line in warnings(asked, layouts):
        print(f"note: {line}", file=sys.stderr)


def _curve_path(path: str, of: Layout | SimulationRecord, count: int) -> str:
    """Where one layout's curve goes: the name given, or one for each of several."""
    if count == 1:
        return path
    name = of.name if hasattr(of, "name") else of.layout
    parts = [name, *([] if of.slots is None else [f"S{of.slots}"]), str(of.table_params)]
    return f"{path.removesuffix('.npy')}.{'-'.join(parts)}.npy"


def _write_curves(path: str, outcomes: list[Outcome], *, force: bool) -> None:
    import numpy as np

    from pagegram_io.output import new_file

    for outcome in outcomes:
        assert outcome.misses_by_size is not None
        with new_file(_curve_path(path, outcome.records[0], len(outcomes)), force=force) as file:
            np.save(file, outcome.misses_by_size)

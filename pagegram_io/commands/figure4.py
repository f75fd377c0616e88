"""``pagegram-io figure4``: reads per token against cache size, for several table sizes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.figure_folder import folder_options, new_folder, picture_paths
from pagegram_io.commands.model import (
    PLACEMENT,
    check_model_stream,
    model_layout,
    model_stream_path,
    placement_options,
    refuse_model_options,
)
from pagegram_io.commands.options import (
    NAMES,
    PathOption,
    force_option,
    given,
    layout_options,
    layouts_of,
    option_text,
    refuse_outputs,
    shape_of,
    shape_options,
    spec_of,
    stream_of,
    stream_options,
    table_option,
    threads_option,
)

if TYPE_CHECKING:
    from pagegram_io.layout import Layout
    from pagegram_io.records import SimulationRecord
    from pagegram_io.tokens import Stream

EPILOG = """
Examples:

\b
  pagegram-io figure4 -o figures
  pagegram-io figure4 -o figures --table 200M --limit 1M --formats png
  pagegram-io figure4 -o figures --records figures/figure4.jsonl --force
  pagegram-io figure4 -o figures --table 20B --device-records device.jsonl
  pagegram-io figure4 -o figures --model deepseek-v4.1-flash --limit 1M
  pagegram-io figure4 -o figures --model qwen3.8-flash-next,longcat-flash-lite --limit 1M
"""

# What a simulation takes, and records have already.
SIMULATED = ("tables", "layouts", "slots", "models", *PLACEMENT, "stream_path", "limit", "seed")


@click.command("figure4", epilog=EPILOG)
@folder_options
@table_option("3.2B,10B,20B")
@click.option(
    "--model",
    "models",
    type=NAMES,
    metavar="LIST",
    help="Deployed tables instead of --table, all on one stream; see pagegram-io models. [e.g. deepseek-v4.1-flash]",
)
@placement_options
@layout_options
@click.option(
    "--records",
    "records_path",
    type=PathOption,
    metavar="FILE",
    help="Draw from these records (.jsonl or .csv) instead of simulating. [e.g. figures/figure4.jsonl]",
)
@click.option(
    "--device-records",
    "device_path",
    type=PathOption,
    metavar="FILE",
    help="Records of device runs, for panel b. [e.g. device.jsonl]",
)
@stream_options
@shape_options
@threads_option
@force_option
def command(**values: Any) -> None:
    """Draw Figure 4: (a) reads per token against page-cache size, exact at every size; (b) lookups per second against
    reads in flight, from device records if there are any.

    The records behind it are written beside it, to figure4.jsonl, and are enough to draw it again. With device records
    there is also Table 6, printed and in table6.csv: reads per token beside what the device delivered, for each table,
    cache and layout. Of deployed tables the figure says what is assumed, and a stream that stands in.
    """
    from pagegram_io.commands.table6 import print_table, write_table
    from pagegram_io.comparison import compare
    from pagegram_io.figures import check_device_records, describe_models, draw_figure4, without_lookups
    from pagegram_io.output import new_text
    from pagegram_io.record_files import read_records, write_json_lines

    folder, force = values["folder"], values["force"]
    if values["records_path"]:
        useless = [name for name in SIMULATED if given(name)]
        if useless:
            raise click.UsageError(f"{option_text(useless[0])} is for a simulation; --records draws what was simulated")
    _check_models(values)
    pictures = picture_paths(folder, "figure4", values["formats"])
    kept = None if values["records_path"] else os.path.join(folder, "figure4.jsonl")
    with new_folder(folder):
        table = os.path.join(folder, "table6.csv") if values["device_path"] else None
        refuse_outputs(kept, table, *pictures, force=force)
        device = read_records(values["device_path"]) if values["device_path"] else []
        if values["device_path"]:
            check_device_records(device)  # before the work
            kept_out = sum(map(without_lookups, device))
            device = [record for record in device if not without_lookups(record)]
            if kept_out:
                text = f"note: {kept_out} of {kept_out + len(device)} device records left out: no lookup completed"
                print(f"{text}; measure these with a longer --runtime", file=sys.stderr)
            compare([], device)
        records: list[Any]
        records = read_records(values["records_path"]) if values["records_path"] else _simulate(values, device)
        if kept:
            with new_text(kept, force=force) as file:
                write_json_lines(records, file)
        lines = compare(records, device)
        for picture in pictures:
            draw_figure4(records, picture, device_records=device, force=force)
        if table:
            write_table(lines, table, force=force)
    for path in filter(None, [kept, table, *pictures]):
        click.echo(path)
    for note in describe_models(records):
        print(f"note: {note}", file=sys.stderr)
    if lines:
        print_table(lines)


def _check_models(values: dict[str, Any]) -> None:
    """Each model once; a checkpoint is one model's."""
    models = values["models"] = tuple(dict.fromkeys(values["models"] or ()))
    refuse_model_options(values | {"model": models or None})
    if values["files"] is not None and len(models) > 1:
        raise click.UsageError(f"--files are the checkpoint of one model, and --model names {len(models)}")


def _simulate(values: dict[str, Any], device: list[dict[str, Any]]) -> list[SimulationRecord]:
    """Every cache size, and exactly those that were measured on a device."""
    from pagegram_io.job import Job, job_accesses, run_jobs
    from pagegram_io.locality import filler_warning
    from pagegram_io.progress import progress
    from pagegram_io.sizes import parse_cache

    measured = {row["cache_bytes"] for row in device if row.get("layout") not in (None, "uniform")}
    caches = tuple(parse_cache(str(cache_bytes) if cache_bytes else "none") for cache_bytes in sorted(measured))
    layouts, stream = _of_models(values) if values["models"] else _of_ours(values)
    _refuse_other_streams(stream, device)
    spec = spec_of(values, stream)
    jobs = [Job(spec, layout, caches, curve=True) for layout in layouts]
    said = filler_warning(stream)
    if said:
        print(f"note: {said}", file=sys.stderr)
    with progress("simulating", sum(job_accesses(job, len(stream.ids)) for job in jobs)) as report:
        outcomes = run_jobs(jobs, stream=stream, threads=values["threads"], report=report)
    return [record for outcome in outcomes for record in outcome.records]


def _refuse_other_streams(stream: Stream, device: list[dict[str, Any]]) -> None:
    """Before the work: reads of one stream beside measurements of another are no comparison."""
    other = next((row for row in device if row.get("stream_sha256") not in (None, stream.sha256)), None)
    if other is not None:
        raise click.UsageError(
            f"the device records are of the stream {other['stream']} with SHA-256 {other['stream_sha256'][:12]}, and "
            f"{stream.name} has {stream.sha256[:12]}; give both the same --tokens and --limit"
        )


def _of_ours(values: dict[str, Any]) -> tuple[list[Layout], Stream]:
    return layouts_of(values, shape_of(values)), stream_of(values)


def _of_models(values: dict[str, Any]) -> tuple[list[Layout], Stream]:
    """The table of each model, and the stream that all of them read; refuses models whose own streams differ."""
    told = [values | {"model": name} for name in values["models"]]
    layouts = [model_layout(of_model) for of_model in told]
    paths = [model_stream_path(of_model) for of_model in told]
    other = next((i for i, path in enumerate(paths) if path != paths[0]), None)
    if other is not None:
        raise click.UsageError(
            f"{told[0]['model']} and {told[other]['model']} have streams of their own, and curves of two streams "
            "cannot be compared: draw each alone, or give --tokens for all"
        )
    values["stream_path"] = paths[0]
    stream = stream_of(values | {"orders": max((layout.orders for layout in layouts), key=max)})
    for name in values["models"]:
        check_model_stream(name, stream)
    return layouts, stream

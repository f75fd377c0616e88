"""``pagegram-io nvme``: what a device delivers under the reads of a table."""

from __future__ import annotations

import contextlib
import errno
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.model import model_options, refuse_model_options
from pagegram_io.commands.nvme_target import inspect_target
from pagegram_io.commands.options import (
    BYTES,
    CACHES,
    COUNT,
    WHOLES,
    Parsed,
    PathOption,
    force_option,
    given,
    layout_options,
    layouts_of,
    option_text,
    print_records,
    refuse_outputs,
    shape_of,
    shape_options,
    stream_of,
    stream_options,
    table_option,
)
from pagegram_io.sizes import parse_bytes

if TYPE_CHECKING:
    from pagegram_io.device import DeviceJob
    from pagegram_io.layout import Layout, Window
    from pagegram_io.tokens import Stream

EPILOG = """
Examples:

\b
  pagegram-io nvme --depth 64 /dev/nvme0n1
  pagegram-io nvme --depth 1,2,4,8,16,32,64,128,256 --repeat 5 --json /dev/nvme0n1 > device.jsonl
  pagegram-io nvme --uniform --runtime 30s table.safetensors
  pagegram-io nvme --decode --batch 8 --cache 1GiB --layout pagegram /dev/nvme0n1
  pagegram-io nvme --uniform --decode --batch 16,64,256 --json /dev/nvme0n1 > drive.jsonl
  pagegram-io nvme --engine nvme --depth 64 /dev/ng0n1
  pagegram-io nvme --model deepseek-v4.1-flash --files DeepSeek-V4.1-Flash/ --cache none,8GiB
"""

PATIENCE_SECONDS = 2.0
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str) -> float:
    """``10s``, ``500ms``, ``2m``; ValueError with an example."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?", text)
    if not match:
        raise ValueError(f"{text!r} is not a time; write for example 10s, 500ms or 2m")
    return float(match[1]) * SECONDS[match[2] or "s"]


def parse_shares(text: str) -> tuple[float, ...]:
    """``50,99,99.9``: percentiles above 0 and below 100."""
    shares = []
    for item in text.split(","):
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", item) or not 0 < float(item) < 100:
            raise ValueError(f"{item!r} is not a percentile; write for example 50,99,99.9")
        shares.append(float(item))
    return tuple(shares)


def _some_time(text: str) -> float:
    if not parse_seconds(text):
        raise ValueError(f"{text!r} is no time to measure in; write for example 10s")
    return parse_seconds(text)


TIME = Parsed("time", parse_seconds)
SOME_TIME = Parsed("time", _some_time)
OFFSET = Parsed("size", lambda text: 0 if text == "0" else parse_bytes(text))


@click.command("nvme", epilog=EPILOG)
@click.argument("target", type=PathOption, required=False)
@click.option(
    "--depth",
    "depths",
    type=WHOLES,
    default="64",
    show_default=True,
    metavar="LIST",
    help="Page reads in flight; a list sweeps. [e.g. 1,4,16,64,256]",
)
@click.option("--uniform", is_flag=True, help="Only uniformly random reads, without a table's layouts.")
@table_option("20B")
@model_options
@layout_options
@click.option(
    "--cache",
    "caches",
    type=CACHES,
    default="none",
    show_default=True,
    metavar="LIST",
    help="Exact LRU in front: only its misses reach the device. [e.g. none,1GiB]",
)
@click.option("--decode", is_flag=True, help="Step by step: all pages of a step together, the next when the last came.")
@click.option(
    "--batch",
    "batches",
    type=WHOLES,
    default="1",
    show_default=True,
    metavar="LIST",
    help="Tokens a step, of as many requests side by side, with --decode; a list sweeps. [e.g. 1,8,64]",
)
@click.option(
    "--runtime", type=SOME_TIME, default="10s", show_default=True, metavar="TIME", help="How long. [e.g. 30s]"
)
@click.option(
    "--ramp", type=TIME, default="1s", show_default=True, metavar="TIME", help="Not counted before. [e.g. 2s]"
)
@click.option(
    "--reads",
    type=COUNT,
    metavar="N",
    help="Stop after N reads (of layouts: N tokens) instead of --runtime, without ramp. [e.g. 100K]",
)
@click.option(
    "--warm",
    "warm_tokens",
    type=COUNT,
    metavar="N",
    help="With --cache: the stream's first N tokens fill it, without reads. [e.g. 5M]",
)
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Whole rounds. [e.g. 5]")
@click.option(
    "--offset", type=OFFSET, metavar="SIZE", help="Where page 0 lies; default: 0, or a table file's data. [e.g. 1GiB]"
)
@click.option("--size", type=BYTES, metavar="SIZE", help="Read only so far from the offset. [e.g. 8GiB]")
@click.option("--wrap", is_flag=True, help="Fold a table that is larger than the target into it.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "io_uring", "psync", "nvme"]),
    default="auto",
    show_default=True,
    help="auto: io_uring, else threads; nvme: passthrough. [e.g. psync]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Threads, each a ring. [e.g. 2]",
)
@click.option("--sqpoll", is_flag=True, help="io_uring: a kernel thread submits.")
@click.option("--iopoll", is_flag=True, help="io_uring: completions are polled for; the device needs poll queues.")
@click.option(
    "--clock",
    type=click.Choice(["batch", "each"]),
    default="batch",
    show_default=True,
    help="A clock reading a batch of completions, or a read. [e.g. each]",
)
@click.option("--verify", is_flag=True, help="Check each page's number and checksum (files of mkfile).")
@click.option("--buffered", is_flag=True, help="Through the kernel's page cache; records and plots say so.")
@click.option("--allow-holes", is_flag=True, help="Insist on a file with holes: CPU cost only, no device.")
@click.option("--allow-zeros", is_flag=True, help="Insist on a device whose pages are zeros.")
@click.option(
    "--max-errors", type=click.IntRange(min=0), default=100, show_default=True, help="Failed reads to bear. [e.g. 0]"
)
@click.option(
    "--percentiles",
    type=Parsed("list", parse_shares),
    default="50,99,99.9",
    show_default=True,
    metavar="LIST",
    help="Latencies in the table and the records. [e.g. 50,99.99]",
)
@click.option("--json", "as_json", is_flag=True, help="Print records as JSON, one a line, instead of the table.")
@click.option("--csv", "csv_path", type=PathOption, metavar="FILE", help="Write the records as CSV. [e.g. device.csv]")
@click.option("--output", type=PathOption, metavar="FILE", help="Write the records as JSON lines. [e.g. device.jsonl]")
@stream_options
@shape_options
@force_option
def command(**values: Any) -> int:
    """Measure TARGET (a block device, an NVMe character device or a file) with page reads at a held depth. Read-only.

    Without a TARGET, --model and --files read the checkpoint's own files, each page where it lies.

    First uniform reads over the target, then the reads of each layout of a 20B table on the shipped stream, where they
    fit. A read's latency is from its preparation to its reaping; lookups a second are tokens whose pages all came.
    """

    refuse_outputs(values["csv_path"], values["output"], force=values["force"])
    _refuse_useless(values)
    slots = values["slots"] if given("slots") else (4,)
    refuse_model_options(values)
    shape = shape_of(values)
    layouts: list[Layout] = []
    windows: tuple[Window, ...] = ()
    if values["target"] is None:
        layouts = [_in_own_files(values)]
        windows, values["target"] = layouts[0].windows, values["files"]
    elif not values["uniform"]:
        layouts = layouts_of(values, shape, slots=slots)
    base, environment, notes = inspect_target(values, windows)
    jobs = make_jobs(values, shape, [] if values["uniform"] else layouts, base, windows)
    stream = stream_of(values) if any(job.layout for job in jobs) else None
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    with stopped_by_ctrl_c() as stop:
        records = measure(values, jobs, stream, environment, stop)
        _write(values, records)
        sys.stdout.flush()
    if stop.is_set():
        print(f"pagegram-io: interrupted after {len(records)} of {len(jobs)} runs", file=sys.stderr)
        return 130
    return 0


def _in_own_files(values: dict[str, Any]) -> Layout:
    """The layout of a checkpoint's table in its own files, all of whose bytes must be here."""
    from pagegram_io.commands.model import placed, table_of
    from pagegram_io.deployed.extents import require_bytes

    table = table_of(values)
    layout = placed(table, values)
    if not layout.windows:
        raise click.UsageError("--repack places rows in a file that is not there yet; name a TARGET in its place")
    parts = table.parts
    require_bytes([] if parts is None else parts.extents(scales=values["scales"] == "read"))
    return layout


def _refuse_useless(values: dict[str, Any]) -> None:
    if values["target"] is None:
        if values["model"] is None or values["files"] is None:
            raise click.UsageError(
                "name a TARGET, a device or a file; or a checkpoint's own files: --model and --files"
            )
        useless = next((name for name in ("offset", "size", "wrap", "verify") if given(name)), None)
        if useless:
            raise click.UsageError(f"{option_text(useless)} is for one TARGET; a checkpoint's pages lie where they lie")
    if values["uniform"]:
        useless = next((name for name in ("layouts", "slots", "caches") if given(name)), None)
        if useless:
            raise click.UsageError(f"{option_text(useless)} is for the reads of a layout; leave out it or --uniform")
    if values["warm_tokens"] and (values["uniform"] or all(cache.bytes == 0 for cache in values["caches"])):
        raise click.UsageError("--warm fills a cache of pages; add --cache, or leave it out")
    if given("batches") and not values["decode"]:
        raise click.UsageError("--batch is for steps; add --decode, or leave it out")
    wrong = next((batch for batch in values["batches"] if not 1 <= batch <= 65536), None)
    if wrong is not None:
        raise click.UsageError(f"--batch {wrong}: tokens a step are 1 to 65536")


@contextlib.contextmanager
def stopped_by_ctrl_c() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets: handled rather than raised, so that what was measured is always printed whole.

    Pressed again seconds later, as when nobody reads what is printed, it is raised after all.
    """
    stop = threading.Event()
    pressed = 0.0

    def handle(*_: object) -> None:
        nonlocal pressed
        pressed = pressed or time.monotonic()
        stop.set()
        if time.monotonic() - pressed > PATIENCE_SECONDS:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)


def make_jobs(
    values: dict[str, Any], shape: Any, layouts: list[Layout], base: int, windows: tuple[Window, ...]
) -> list[DeviceJob]:
    """The runs, in the order they are made: rounds outermost, so that a drifting device spreads over all of them."""
    from pagegram_io.device import DeviceJob, span_pages
    from pagegram_io.policy import cache_sizes

    names = ("buffered", "sqpoll", "iopoll", "verify")
    flags = tuple(name for name in names if values[name]) + (("clock_each",) if values["clock"] == "each" else ())
    first = DeviceJob(
        values["target"],
        engine=values["engine"],
        flags=flags,
        page_bytes=shape.page_bytes,
        base_byte=base,
        span_bytes=values["size"] or 0,
        decode=values["decode"],
        runtime=values["runtime"],
        ramp=values["ramp"],
        limit=values["reads"],
        jobs=values["jobs"],
        max_errors=values["max_errors"],
        seed=shape.seed,
        wrap=values["wrap"],
        percentiles=values["percentiles"],
        windows=windows,
    )
    wrong = next((depth for depth in values["depths"] if not 1 <= depth <= 32768), None)
    if wrong is not None:
        raise click.UsageError(f"--depth {wrong}: reads in flight are 1 to 32768")
    try:
        pages = span_pages(first)
    except PermissionError as error:
        if error.errno != errno.EPERM or values["engine"] != "io_uring":
            raise
        raise OSError(errno.ENOTSUP, error.strerror, error.filename) from None  # asked for by name and not to be had
    kinds = [] if values["uniform"] is False and (given("layouts") or given("model")) else [first]
    for layout in layouts:
        if layout.page_count > pages and not values["wrap"]:
            text = f"{layout.label} of {layout.table_params:,} parameters has {layout.page_count:,} pages, "
            text += f"{values['target']} {pages:,}"
            if given("model"):
                raise click.UsageError(f"{text}; fold it in with --wrap")
            if given("layouts") or given("tables"):
                raise click.UsageError(f"{text}; use a smaller --table, or --wrap")
            print(f"note: {text}; left out (a smaller --table, or --wrap)", file=sys.stderr)
            continue
        for cache_bytes, capacity, _ in cache_sizes(
            values["caches"], layout.page_bytes, layout.page_count, curve=False
        ):
            cached = replace(first, layout=layout, cache_pages=capacity, cache_bytes=cache_bytes)
            kinds.append(replace(cached, warm_tokens=values["warm_tokens"] or 0))
    swept = [(depth, batch) for depth in values["depths"] for batch in values["batches"]]
    return [replace(kind, depth=d, batch=b) for _ in range(values["repeat"]) for d, b in swept for kind in kinds]


def measure(
    values: dict[str, Any],
    jobs: list[DeviceJob],
    stream: Stream | None,
    environment: dict[str, Any],
    stop: threading.Event,
) -> list[dict[str, Any]]:
    """Run the jobs; ``stop`` ends the one that runs, whose partial record is kept, and those after it."""
    from pagegram_io.device import ZERO_SHARE_MAX, probe_zeros, run
    from pagegram_io.progress import progress

    zeros = probe_zeros(jobs[0])
    if zeros > ZERO_SHARE_MAX and not values["allow_zeros"] and not values["allow_holes"]:
        raise click.ClickException(
            f"{values['target']}: {100 * zeros:.0f} % of its pages are all zeros; blocks that were never written "
            "answer without touching flash. Fill it first, or insist with --allow-zeros"
        )
    each = 1.0 if values["reads"] else values["runtime"] + values["ramp"]
    records: list[dict[str, Any]] = []
    with progress("measuring", max(1, round(len(jobs) * each))) as advance:
        for job in jobs:
            if stop.is_set():
                break
            record = run(job, stream=stream, stop=stop, tick=advance, zero_share=zeros, environment=environment)
            if record is not None:
                records.append(record)
    return records


def _write(values: dict[str, Any], records: list[dict[str, Any]]) -> None:
    from pagegram_io.commands.nvme_notes import notes
    from pagegram_io.output import new_text
    from pagegram_io.record_files import write_csv, write_json_lines

    if not records:
        return
    if values["csv_path"]:
        write_csv(records, values["csv_path"], force=values["force"])
    if values["output"]:
        with new_text(values["output"], force=values["force"]) as file:
            write_json_lines(records, file)
    if values["as_json"]:
        print_records(records)
    else:
        from pagegram_io.commands.nvme_table import print_table

        print_table(records, values["percentiles"])
    for record in records:
        errors = {k: v for k, v in record.items() if k.startswith("errors_") and v}
        if errors:
            kinds = ", ".join(f"{count} {name.removeprefix('errors_')}" for name, count in errors.items())
            of_file = f" of {click.format_filename(record['first_error_file'])}" if record["first_error_file"] else ""
            print(
                f"note: {record['layout']} at depth {record['depth']}: failed reads: {kinds}; "
                f"first at byte {record['first_error_byte']:,}{of_file}",
                file=sys.stderr,
            )
    for note in notes(records):
        print(f"note: {note}", file=sys.stderr)

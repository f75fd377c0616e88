"""What does a read cost, and does the depth hold? `pagegram-io nvme` beside fio on one file, in interleaved runs.

Part 1, a sparse file: no device is touched, only what a read costs the CPU. fio as it comes and fio tuned.
Part 2, a dense file: reads a second, latency, and the depth sustained by our clock and by the kernel's.
Part 3, a dense 20B table: PageGram against Engram, without a cache and with 1 GiB of it beside what the simulator
predicts. Device reads must equal the simulated misses to the unit; otherwise the program stops with status 1.

In a round every program runs once on each depth, in an order that turns from round to round; only ratios within a
round mean anything. --fifo puts all of them alike before other programs of a busy machine.

    python bench/reader.py                       # some 25 minutes and 13.4 GB of disk in --folder
    python bench/reader.py --part 1,2 --pairs 9  # more pairs of two parts
    python bench/reader.py --part 3 --dense table.safetensors --fifo
    python bench/reader.py --quick               # whether it works, in a few minutes; no records are kept
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger

from pagegram_io.device import diskstats_since, read_diskstats
from pagegram_io.layout import pagegram
from pagegram_io.simulation import simulate
from pagegram_io.table_file import write_pattern_file
from pagegram_io.tokens import read_stream

TABLE_PARAMS = 20 * 10**9
SPAN_BYTES = 8 * 10**9
CPU_DEPTHS, DEVICE_DEPTHS, TABLE_DEPTH = [1, 4, 16, 64, 256], [1, 4, 16, 64], 64
CACHE = "1GiB"
LAYOUTS = ["engram", "pagegram"]
OURS, EACH, FIO, TUNED = "pagegram-io", "pagegram-io --clock each", "fio", "fio tuned"
Rounds = list[dict[str, dict[str, Any]]]  # a round's records by "program depth"


@dataclass(frozen=True)
class Run:
    """One program to time. `cost` tells its own start-up: the same command with next to nothing to do."""

    name: str
    depth: int
    command: list[str]
    parse: Callable[[str], dict[str, Any]]
    cost: list[str] | None = None


@dataclass(frozen=True)
class Given:
    """What was asked for. Times in seconds."""

    pairs: int
    seconds: float
    fifo: bool
    output: Path | None


# ---- programs ----


def shown(command: list[str]) -> str:
    """A command without the folders of the machine it ran on."""
    return shlex.join(re.sub(r"(^|=)/\S*/", r"\1", word) for word in command)


def ours(file: Path, depth: int, *options: str) -> list[str]:
    program = str(Path(sys.executable).with_name("pagegram-io"))
    return [program, "nvme", str(file), "--json", "--depth", str(depth), *options]


def fio(file: Path, depth: int, *options: str) -> list[str]:
    what = ["--name=bench", f"--filename={file}", "--direct=1", "--bs=4k", "--rw=randread", f"--size={SPAN_BYTES}"]
    return ["fio", "--ioengine=io_uring", *what, f"--iodepth={depth}", "--output-format=json", *options]


def tuned_options(depth: int) -> list[str]:
    """No lookups and pins a read, no clock, no map of what was read, and as many reads a system call as we make."""
    return ["--fixedbufs=1", "--registerfiles=1", "--norandommap=1", "--gtod_reduce=1",
            f"--iodepth_batch_submit={depth}", "--iodepth_batch_complete_min=1",
            f"--iodepth_batch_complete_max={depth}"]  # fmt: skip


def parse_ours(text: str) -> dict[str, Any]:
    return json.loads(text.splitlines()[-1])


def parse_fio(text: str) -> dict[str, Any]:
    job = json.loads(text[text.index("{") :])["jobs"][0]  # notes may come first
    if job["error"]:
        raise SystemExit(f"fio failed with error {job['error']}")
    read = job["read"]
    cpu_share = (job["usr_cpu"] + job["sys_cpu"]) / 100  # its getrusage over the job, ramp left out
    shares = read.get("lat_ns", {}).get("percentile", {})
    return {
        "iops": read["iops"], "reads": read["total_ios"],
        "cpu_ns_per_read": cpu_share * job["job_runtime"] * 1e6 / read["total_ios"],
        "latency_p50_ns": shares.get("50.000000"), "latency_p99_ns": shares.get("99.000000"),
    }  # fmt: skip


def run(command: Sequence[str], given: Given) -> tuple[str, float]:
    """Stdout and the CPU-seconds of a whole process with its children (wait4)."""
    prefix = ["chrt", "--fifo", "10"] if given.fifo else []
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen([*prefix, *command], stdout=out, stderr=complaints)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        complaints.seek(0)
        if process.returncode:
            raise SystemExit(f"{shlex.join(command)}: exit {process.returncode}: {complaints.read().strip()}")
        return out.read(), used.ru_utime + used.ru_stime


# ---- rounds ----

KEPT = ("iops", "reads", "cpu_ns_per_read", "latency_p50_ns", "latency_p99_ns", "depth_sustained", "diskstats_depth",
        "littles_law_ratio", "waits", "limited_by", "layout", "slots", "table_params", "cache_bytes", "tokens",
        "lookups_per_second", "seconds", "engine", "ring_flags", "clock", "allow_holes", "device_model",
        "filesystem", "scheduler")  # fmt: skip


def measure_one(part: int, item: Run, file: Path, given: Given) -> dict[str, Any]:
    """Run one program once; a flat record."""
    before = read_diskstats(str(file))
    text, cpu = run(item.command, given)
    seen = diskstats_since(before, read_diskstats(str(file)), 1.0)
    found = item.parse(text)
    whole = None
    if item.cost:
        start = run(item.cost, given)[1]
        whole = max(0.0, cpu - start) * 1e9 / found["reads"]
    return {
        "kind": "bench_reader", "part": part, "name": item.name, "depth": item.depth,
        "device": "none: a sparse file, CPU cost only" if part == 1 else "dense file",
        **{key: found.get(key) for key in KEPT}, "diskstats_reads_whole": seen["diskstats_reads"],
        # By Little's law, from what the kernel counts between handing a read to the device and its interrupt.
        "kernel_depth": seen["diskstats_depth"] / max(1, seen["diskstats_reads"]) * found["iops"]
        if seen["diskstats_reads"] is not None else None,
        "cpu_ns_per_read_whole": whole, "fifo": given.fifo, "command": shown(item.command),
        **ledger.provenance_of_run(), "fio": FIO_VERSION,
    }  # fmt: skip


def measure(part: int, runs: list[Run], file: Path, given: Given) -> Rounds:
    """All runs once a round, depth by depth, in turning order; each round's records are appended as it ends."""
    rounds: Rounds = []
    for number in range(given.pairs):
        records: list[dict[str, Any]] = []
        for depth in dict.fromkeys(item.depth for item in runs):
            here = [item for item in runs if item.depth == depth]
            shift = number % len(here)  # nobody always follows the same neighbour
            for place, item in enumerate(here[shift:] + here[:shift]):
                records.append(measure_one(part, item, file, given) | {"round": number, "place": place})
                print(f"part {part}, round {number + 1} of {given.pairs}: {line(records[-1])}", file=sys.stderr)
        if given.output:
            ledger.append(records, given.output)
        rounds.append({f"{record['name']} {record['depth']}": record for record in records})
    return rounds


def line(record: dict[str, Any]) -> str:
    latency = f", p50 {record['latency_p50_ns'] / 1000:,.0f} us" if record["latency_p50_ns"] else ""
    return (f"{record['name']:26} depth {record['depth']:3}: {record['iops']:11,.0f} reads/s, "
            f"{record['cpu_ns_per_read']:7,.0f} CPU ns a read{latency}")  # fmt: skip


def values(rounds: Rounds, name: str, depth: int, key: str) -> list[float]:
    return [each[f"{name} {depth}"][key] for each in rounds]


def ratio(rounds: Rounds, over: str, under: str, depth: int, key: str) -> ledger.Spread:
    """Of one key, round by round."""
    pairs = zip(values(rounds, over, depth, key), values(rounds, under, depth, key), strict=True)
    return ledger.spread([a / b for a, b in pairs])


# ---- part 1: what a read costs the CPU ----


def cpu_runs(file: Path, depth: int, seconds: float) -> list[Run]:
    """`--ramp 0` and no ramp_time, so that the CPU of the whole process belongs to the reads that are counted."""
    span = ["--uniform", "--allow-holes", "--size", str(SPAN_BYTES)]
    timed = [f"--runtime={seconds}s", "--ramp=0s"]
    fio_timed = ["--time_based", f"--runtime={round(seconds * 1000)}ms"]

    def of_ours(name: str, *options: str) -> Run:
        return Run(name, depth, ours(file, depth, *span, *timed, *options), parse_ours,
                   ours(file, depth, *span, "--reads=1", *options))  # fmt: skip

    def of_fio(name: str, *options: str) -> Run:
        return Run(name, depth, fio(file, depth, *fio_timed, *options), parse_fio,
                   fio(file, depth, "--number_ios=1", *options))  # fmt: skip

    return [of_ours(OURS), of_fio(FIO), of_ours(EACH, "--clock=each"), of_fio(TUNED, *tuned_options(depth))]


def part_1(file: Path, given: Given) -> list[ledger.Bar]:
    rounds = measure(1, [r for d in CPU_DEPTHS for r in cpu_runs(file, d, given.seconds)], file, given)
    print(
        "\nPart 1: SPARSE FILE: NO DEVICE, CPU COST ONLY. CPU ns a read: ours of the reading thread, fio's of its job"
    )
    print(f"{'':6} " + "".join(f"{name:>34}" for name in (OURS, EACH, FIO, TUNED)))
    for depth in CPU_DEPTHS:
        cells = [f"{ledger.spread(values(rounds, name, depth, 'iops')).median / 1e3:,.0f}K reads/s, "
                 f"{ledger.spread(values(rounds, name, depth, 'cpu_ns_per_read')).median:,.0f} ns"
                 for name in (OURS, EACH, FIO, TUNED)]  # fmt: skip
        print(f"{depth:6} " + "".join(f"{cell:>34}" for cell in cells))
    print("\nwhole processes less their start-up (wait4), and a clock reading each: ratios, without a bar")
    for depth in CPU_DEPTHS:
        shown = [ratio(rounds, OURS, other, depth, "cpu_ns_per_read_whole") for other in (FIO, TUNED)]
        clock = [ratio(rounds, EACH, OURS, depth, key) for key in ("cpu_ns_per_read", "iops")]
        print(f"depth {depth:3}: CPU of fio {shown[0]}, of fio tuned {shown[1]}; "
              f"--clock each: CPU {clock[0]}, reads/s {clock[1]}")  # fmt: skip
    bars = []
    for depth in CPU_DEPTHS:
        for other, least in ((FIO, 2.0), (TUNED, 1.0)):
            speed = ratio(rounds, OURS, other, depth, "iops")
            bars.append(ledger.Bar(f"no device: depth {depth}, times the reads/s of {other}", speed,
                                   least if depth == 64 else 1.0, True))  # fmt: skip
            cost = ratio(rounds, OURS, other, depth, "cpu_ns_per_read")
            bars.append(ledger.Bar(f"no device: depth {depth}, CPU a read beside {other}", cost, 1.0, False))
    return bars


# ---- part 2: a device ----


def part_2(file: Path, given: Given) -> list[ledger.Bar]:
    span, timed = ["--uniform", "--size", str(SPAN_BYTES)], [f"--runtime={given.seconds}s", "--ramp=1s"]
    fio_timed = ["--time_based", f"--runtime={round(given.seconds * 1000)}ms", "--ramp_time=1s",
                 "--lat_percentiles=1", "--clat_percentiles=0"]  # fmt: skip
    runs = []
    for depth in DEVICE_DEPTHS:
        runs.append(Run(OURS, depth, ours(file, depth, *span, *timed), parse_ours))
        runs.append(Run(FIO, depth, fio(file, depth, *fio_timed), parse_fio))
    rounds = measure(2, runs, file, given)
    print(f"\nPart 2: {SPAN_BYTES:,} bytes of a dense file: medians")
    for depth in DEVICE_DEPTHS:
        for name in (OURS, FIO):
            keys = ("iops", "latency_p50_ns", "latency_p99_ns", "cpu_ns_per_read")
            iops, p50, p99, cpu = (ledger.spread(values(rounds, name, depth, key)).median for key in keys)
            print(f"{name:12} depth {depth:3}: {iops:9,.0f} reads/s, p50 {p50 / 1000:8,.1f} us, "
                  f"p99 {p99 / 1000:8,.1f} us, {cpu:7,.0f} CPU ns a read")  # fmt: skip
    bars = []
    for depth in DEVICE_DEPTHS:
        bars.append(
            ledger.Bar(f"depth {depth}, times fio's reads/s", ratio(rounds, OURS, FIO, depth, "iops"), 0.95, True)
        )
        for share in ("p50", "p99"):
            spread = ratio(rounds, OURS, FIO, depth, f"latency_{share}_ns")
            bars.append(ledger.Bar(f"depth {depth}, {share} latency beside fio's", spread, 1.15, False))
    if None not in values(rounds, FIO, 64, "kernel_depth"):
        seen = [ledger.spread(values(rounds, name, 64, "kernel_depth")) for name in (OURS, FIO)]
        print(f"depth 64 between the block layer's start and the interrupt: ours {seen[0]}, fio's {seen[1]}")
        bars.append(
            ledger.Bar(
                "depth 64, kernel's depth, times fio's", ratio(rounds, OURS, FIO, 64, "kernel_depth"), 0.95, True
            )
        )
    for key, who in (("depth_sustained", "our clock"), ("diskstats_depth", "/proc/diskstats")):
        if None not in values(rounds, OURS, 64, key):
            bars.append(
                ledger.Bar(f"depth sustained at 64 by {who}", ledger.spread(values(rounds, OURS, 64, key)), 60, True)
            )
    return bars


# ---- part 3: tables ----


def simulated_reads(tokens: int) -> dict[str, int]:
    stream = read_stream(limit=tokens)
    found = simulate(table=TABLE_PARAMS, cache=CACHE, layouts=LAYOUTS, slots=[4], tokens=stream)
    return {record.layout: record.misses for record in found}


def affordable_tokens(iops: float, given: Given) -> int:
    """Tokens whose Engram reads behind the cache take about 12 times given.seconds, judged by the first 100,000."""
    sample = 100_000
    per_token = simulated_reads(sample)["engram"] / sample
    return max(1, round(iops * 12 * given.seconds / per_token / 10_000)) * 10_000


def part_3(file: Path, given: Given) -> list[ledger.Bar]:
    plain = [Run(layout, TABLE_DEPTH, ours(file, TABLE_DEPTH, "--layout", layout, f"--runtime={5 * given.seconds}s"),
                 parse_ours) for layout in LAYOUTS]  # fmt: skip
    rounds = measure(3, plain, file, given)
    tokens = affordable_tokens(min(values(rounds, "engram", TABLE_DEPTH, "iops")), given)
    options = ["--cache", CACHE, "--reads", str(tokens), "--ramp", "0s"]
    cached = [Run(f"{layout} {CACHE}", TABLE_DEPTH, ours(file, TABLE_DEPTH, "--layout", layout, *options), parse_ours)
              for layout in LAYOUTS]  # fmt: skip
    cached_rounds = measure(3, cached, file, given)
    expected = simulated_reads(tokens)
    for layout in LAYOUTS:
        for count in values(cached_rounds, f"{layout} {CACHE}", TABLE_DEPTH, "reads"):
            if count != expected[layout]:
                raise SystemExit(
                    f"{layout}: {count:,} device reads, {expected[layout]:,} simulated misses: one is wrong"
                )
    print(f"\nPart 3: 20B tables at depth {TABLE_DEPTH}: medians; with cache, every run's reads = the simulated misses")
    for name, where in [(r.name, rounds) for r in plain] + [(r.name, cached_rounds) for r in cached]:
        speed = ledger.spread(values(where, name, TABLE_DEPTH, "lookups_per_second"))
        iops = ledger.spread(values(where, name, TABLE_DEPTH, "iops"))
        print(f"{name:14} lookups/s {speed}, reads/s {iops}")
    prediction = expected["engram"] / expected["pagegram"]
    with_cache = ratio(cached_rounds, f"pagegram {CACHE}", f"engram {CACHE}", TABLE_DEPTH, "lookups_per_second")
    print(f"with {CACHE}, first {tokens:,} tokens: {with_cache} times the lookups/s; simulated: {prediction:.3g} times "
          f"fewer reads ({expected['engram']:,} / {expected['pagegram']:,})")  # fmt: skip
    off = ledger.Spread(*[value / prediction for value in (with_cache.median, with_cache.least, with_cache.most)])
    without = ratio(rounds, "pagegram", "engram", TABLE_DEPTH, "lookups_per_second")
    return [
        ledger.Bar("no cache: PageGram S=4, times Engram's lookups/s", without, 5, True),
        ledger.Bar(f"{CACHE}: the same, beside the simulator's ratio", off, 0.9, True),
        ledger.Bar(f"{CACHE}: the same, beside the simulator's ratio", off, 1.1, False),
    ]


# ---- files ----


def make_sparse(folder: Path) -> Path:
    path = folder / "sparse"
    with open(path, "xb") as file:
        file.truncate(SPAN_BYTES)
    return path


def make_dense(folder: Path) -> Path:
    """The file that `pagegram-io mkfile --table 20B --layout pagegram` makes: the largest of the layouts read here."""
    path = folder / "dense.safetensors"
    print("making a dense file of 13.4 GB", file=sys.stderr)
    write_pattern_file(path, pagegram(TABLE_PARAMS, 4))
    return path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1,2,3", help="which parts; default: 1,2,3 [e.g. 1,2]")
    parser.add_argument("--pairs", type=int, help="rounds; default: 7 [e.g. 9]")
    parser.add_argument(
        "--seconds",
        type=float,
        help="a run of parts 1 and 2 takes so long, of part 3 some 5 to 12 times; default: 2 [e.g. 5]",
    )
    parser.add_argument("--folder", type=Path, default=Path("build"),
                        help="files are made here and removed at the end; default: build [e.g. /mnt/nvme]")  # fmt: skip
    parser.add_argument("--sparse", type=Path, help="use this file for part 1 [e.g. sparse.bin]")
    parser.add_argument("--dense", type=Path, help="use this file for parts 2 and 3 [e.g. table.safetensors]")
    parser.add_argument("--keep", action="store_true", help="leave the files that were made")
    parser.add_argument("--fifo", action="store_true", help="run everything with SCHED_FIFO; needs to be root")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 0.5 s, and no records are kept")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "reader.jsonl",
                        help="records are appended here; default: bench/results/reader.jsonl")  # fmt: skip
    given = parser.parse_args()
    if not set(given.part.split(",")) <= {"1", "2", "3"}:
        parser.error(f"--part {given.part}: write for example 1,2")
    if FIO_VERSION is None:
        parser.error("fio is not installed; run: apt-get install fio")
    return given


def fio_version() -> str | None:
    try:
        return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


FIO_VERSION = fio_version()


def main() -> None:
    asked = arguments()
    given = Given(asked.pairs or (2 if asked.quick else 7), asked.seconds or (0.5 if asked.quick else 2.0),
                  asked.fifo, None if asked.quick else asked.output)  # fmt: skip
    parts = sorted(set(asked.part.split(",")))
    bars: list[ledger.Bar] = []
    asked.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pagegram-io-bench-", dir=asked.folder))
    try:
        dense = asked.dense
        for part in parts:
            if part == "1":
                bars += part_1(asked.sparse or make_sparse(folder), given)
            else:
                dense = dense or make_dense(folder)
                bars += (part_2 if part == "2" else part_3)(dense, given)
    finally:
        if asked.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    print("\nratios of the same round: median (least to most)")
    for bar in bars:
        print(bar.line())
    if given.pairs < 5 or given.seconds < 2:
        print("The bars are meant for 5 rounds or more of 2 s; this run was smaller and settles nothing.")


if __name__ == "__main__":
    main()

"""What do whole commands cost? Wall and CPU time, peak memory, and cost a token as tokens grow.

Runs `pagegram-io simulate --table 20B --cache 1GiB` over the first 1M, 5M and all tokens of the shipped stream,
`pagegram-io figure4`, `pagegram-io --help` and `import pagegram_io`, each as a process of its own, and reads what the
kernel says of it (wait4). The whole stream's miss counts must be the known ones: otherwise it stops with status 1.

    python bench/scaling.py              # 3 rounds, some minutes
    python bench/scaling.py --quick      # whether it works, in seconds
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger

COMMAND = str(Path(sys.executable).parent / "pagegram-io")
TOKENS = 20_625_669
LIMITS: list[str | None] = ["1K", "1M", "5M", None]  # None: all
QUICK_LIMITS: list[str | None] = ["1K", "100K", "200K"]
# The default command on the whole stream, from an independent program.
MISSES = {
    ("flat", None): 17_041_928,
    ("engram", None): 160_342_798,
    ("pagegram", 4): 17_573_643,
    ("pagegram", 15): 17_145_297,
}
UNWANTED = ("torch", "pandas", "matplotlib")
MEGABYTE = 10**6

READ = "import sys, time; from pagegram_io.tokens import read_stream; t = time.perf_counter(); " \
    "s = read_stream(limit=int(sys.argv[1]) or None); s.sha256; print(time.perf_counter() - t)"  # fmt: skip
IMPORT = "import sys, time; t = time.perf_counter(); import pagegram_io; s = time.perf_counter() - t; " \
    "print(s, *sorted({name.partition('.')[0] for name in sys.modules}))"  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A finished process. Its peak counts this process too, up to the moment it became another: some 60 MB."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str

    def record(self) -> dict[str, Any]:
        return {"wall_seconds": self.wall_seconds, "cpu_seconds": self.cpu_seconds, "peak_bytes": self.peak_bytes}


def run(*arguments: str) -> Run:
    """Run to the end; stops the program where the command fails."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(arguments)}: status {process.returncode}: {errors.read().decode()}")
        output.seek(0)
        return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output.read().decode())


def simulate(limit: str | None) -> Run:
    limited = ["--limit", limit] if limit else []
    done = run(COMMAND, "simulate", "--table", "20B", "--cache", "1GiB", "--json", *limited)
    if limit is None:
        records = [json.loads(line) for line in done.output.splitlines()]
        found = {(record["layout"], record["slots"]): record["misses"] for record in records}
        if found != MISSES:
            raise SystemExit(f"the default command counts {found}, and {MISSES} is right")
    return done


def read_seconds(limit: str | None) -> float:
    """Decompressing, checking and digesting the stream, which no thread shares."""
    from pagegram_io.sizes import parse_count

    return float(run(sys.executable, "-c", READ, str(parse_count(limit) if limit else 0)).output)


def count_of(limit: str | None) -> int:
    from pagegram_io.sizes import parse_count

    return parse_count(limit) if limit else TOKENS


class Log:
    """Records as they are made, each written at once: a long run that is stopped keeps what it measured."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def add(self, name: str, fields: dict[str, Any]) -> None:
        if self.path:
            ledger.append([{"kind": "bench_scaling", "name": name, **fields, **ledger.provenance_of_run()}], self.path)


def measure_simulate(limits: list[str | None], rounds: int, log: Log) -> list[ledger.Bar]:
    """Prints a line for each length; the cost a token leaves out reading and what 1,000 tokens cost."""
    runs: dict[str | None, list[Run]] = {limit: [] for limit in limits}
    readings: dict[str | None, list[float]] = {limit: [] for limit in limits}
    for r in range(rounds):
        for limit in limits:
            runs[limit].append(simulate(limit))
            readings[limit].append(read_seconds(limit))
            fields = {"round": r, "tokens": count_of(limit), "read_seconds": readings[limit][-1]}
            log.add("simulate", fields | runs[limit][-1].record())
    print("pagegram-io simulate --table 20B --cache 1GiB")
    print("      tokens   wall s  of it reading    CPU s  CPU/wall  peak MB  CPU us a token")
    start = middle([run.cpu_seconds for run in runs[limits[0]]])
    for limit, done in runs.items():
        wall, cpu = middle([d.wall_seconds for d in done]), middle([d.cpu_seconds for d in done])
        reading, peak = middle(readings[limit]), middle([d.peak_bytes for d in done]) / MEGABYTE
        each = "(start)" if limit == limits[0] else f"{(cpu - reading - start) / count_of(limit) * 1e6:.3f}"
        both = middle([d.cpu_seconds / d.wall_seconds for d in done])
        print(f"{count_of(limit):12,} {wall:8.2f} {reading:14.2f} {cpu:8.2f} {both:9.2f} {peak:8.0f} {each:>15}")
    return resource_bars("simulate", runs[limits[-1]], 400)


def resource_bars(name: str, runs: list[Run], peak_megabytes: float) -> list[ledger.Bar]:
    peaks = ledger.spread([done.peak_bytes / MEGABYTE for done in runs])
    both = ledger.spread([done.cpu_seconds / done.wall_seconds for done in runs])
    return [
        ledger.Bar(f"{name}: peak memory", peaks, peak_megabytes, False, " MB"),
        ledger.Bar(f"{name}: CPU time / wall time, on 2 CPUs", both, 1.2, True),
    ]


def middle(values: list[float]) -> float:
    return ledger.spread(values).median


def measure_figure4(rounds: int, log: Log, *options: str) -> list[ledger.Bar]:
    runs = []
    for r in range(rounds):
        with tempfile.TemporaryDirectory(prefix="pagegram-io-bench-") as folder:
            done = run(COMMAND, "figure4", "-o", folder, *options)
        runs.append(done)
        log.add("figure4", {"round": r, "options": " ".join(options), **done.record()})
    walls, cpus = ledger.spread([d.wall_seconds for d in runs]), ledger.spread([d.cpu_seconds for d in runs])
    print(f"\npagegram-io figure4 {' '.join(options)}\nwall s {walls}\nCPU s  {cpus}")
    return resource_bars("figure4", runs, 1500)


def measure_start(rounds: int, log: Log) -> list[ledger.Bar]:
    """`--help` beside a Python that does nothing, and what importing the package brings in."""
    helps, nothings = [], []
    for r in range(rounds):
        nothings.append(run(sys.executable, "-c", "pass"))
        helps.append(run(COMMAND, "--help"))
        log.add("help", {"round": r, "python_wall_seconds": nothings[-1].wall_seconds, **helps[-1].record()})
    done = run(sys.executable, "-c", IMPORT)
    seconds, *modules = done.output.split()
    found = [name for name in UNWANTED if name in modules]
    log.add("import", {"import_seconds": float(seconds), "modules": " ".join(modules), "unwanted": " ".join(found)})
    print(f"\npython -c pass                     wall s {ledger.spread([d.wall_seconds for d in nothings])}")
    print(f"import pagegram_io: {float(seconds) * 1e3:.1f} ms, {len(modules)} top-level modules: {' '.join(modules)}")
    print(f"of {', '.join(UNWANTED)}: {', '.join(found) or 'none'} imported")
    if found:
        raise SystemExit(f"import pagegram_io imports {', '.join(found)}")
    return [ledger.Bar("pagegram-io --help, wall", ledger.spread([d.wall_seconds for d in helps]), 0.2, False, " s")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each command is run; default: 3 [e.g. 5]")
    parser.add_argument("--quick", action="store_true", help="a few tokens, 1 round, and no records are kept")
    parser.add_argument("--without-figure4", action="store_true", help="leave out figure4, the longest of them")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "scaling.jsonl",
                        help="records are appended here; default: bench/results/scaling.jsonl")  # fmt: skip
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds} is not at least 1")
    if not os.path.exists(COMMAND):
        parser.error(f"{COMMAND} does not exist; install pagegram-io into the Python that runs this")
    log, rounds = Log(None if given.quick else given.output), 1 if given.quick else given.rounds
    bars = measure_start(3 if given.quick else 11, log)
    print()
    bars += measure_simulate(QUICK_LIMITS if given.quick else LIMITS, rounds, log)
    if not given.without_figure4:
        bars += measure_figure4(rounds, log, *(["--limit", "50K", "--table", "200M"] if given.quick else []))
    print()
    for bar in bars:
        print(bar.line())


if __name__ == "__main__":
    main()

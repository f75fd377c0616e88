"""How fast are the simulators? CPU-seconds beside libCacheSim's, on one page trace, interleaved in one run.

The trace is the 20B engram table under the first tokens of the shipped stream: 16 page reads a token. libCacheSim
(PyPI, installed apart, only ever run) replays it from the .u32 file that `pagegram-io trace --format u32` writes, which
lies in the page cache and which it maps into memory; ours takes the same pages from memory, in batches as
`pagegram-io simulate` does. Both times cover making the simulator, feeding it and reading its counts. Every miss
count must be the same, to the unit: otherwise the program stops with status 1. Only ratios of one run mean anything.

    python bench/simulator.py            # 3M tokens, 5 rounds, some five minutes
    python bench/simulator.py --quick    # whether it works, in seconds
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ledger
import numpy as np

from pagegram_io import native, native_caches
from pagegram_io.layout import Layout, engram
from pagegram_io.sizes import parse_count
from pagegram_io.tokens import Stream, read_stream
from pagegram_io.trace import BATCH_PLACES, write_trace

TABLE_PARAMS = 20 * 10**9
CACHE_PAGES = 2**18  # 1 GiB
FOUR_SIZES = [2**16, 2**17, CACHE_PAGES, 2**20]
TOKENS, QUICK_TOKENS = 3_000_000, 200_000
# 2^24 buckets is libCacheSim's default. 2^20 fit a cache of 2^18 objects better and make it faster: it was the
# best or within noise of the best of 2^16 to 2^24, so the bars are held against that.
HASH_POWERS = {"libcachesim": 20, "libcachesim_default": 24}


@dataclass(frozen=True)
class Trace:
    """One page trace in three forms: how it is made, a matrix in memory, and a file."""

    layout: Layout
    stream: Stream
    pages: np.ndarray  # uint32 [tokens, 16]
    file: Path

    def batches(self) -> list[np.ndarray]:
        step = BATCH_PLACES // self.pages.shape[1]
        return [self.pages[i : i + step] for i in range(0, len(self.pages), step)]


@dataclass(frozen=True)
class Measured:
    """Something to time: `work` returns the misses at CACHE_PAGES, or None where it does not simulate."""

    name: str
    work: Callable[[], int | None]
    isa: str | None = None


def make_trace(tokens: int, folder: Path) -> Trace:
    """The trace as `pagegram-io trace --format u32` writes it, read back; the file is in the page cache then."""
    layout, stream, file = engram(TABLE_PARAMS), read_stream(limit=tokens), folder / "engram-20B.u32"
    write_trace(layout, stream, file, form="u32")
    pages = np.fromfile(file, "<u4").astype(np.uint32, copy=False).reshape(len(stream.ids), -1)
    return Trace(layout, stream, pages, file)


def classes_of(trace: Trace) -> np.ndarray:
    return np.zeros(trace.pages.shape[1], np.uint32)


def simulate_fixed(trace: Trace, sizes: list[int]) -> int:
    with native_caches.Lru(trace.layout.page_count, sizes, classes_of(trace)) as lru:
        for batch in trace.batches():
            lru.access(batch)
        return int(lru.counts()[2][sizes.index(CACHE_PAGES), 0])


def simulate_curve(trace: Trace, isa: str) -> int:
    """Misses at every size, of which one is returned."""
    with native_caches.Curve(trace.layout.page_count, classes_of(trace), isa=isa) as curve:
        for batch in trace.batches():
            curve.access(batch)
        accesses, _ = curve.counts()
        hits = curve.histogram()[0]
        misses = accesses[0] - np.cumsum(hits, out=hits)
        return int(misses[CACHE_PAGES])


def emit(trace: Trace, isa: str) -> None:
    buffer = np.empty((BATCH_PLACES // trace.pages.shape[1], trace.pages.shape[1]), np.uint32)
    with native.Source(trace.layout, trace.stream, isa=isa) as source:
        while source.next(buffer):
            pass


def swap_only(trace: Trace) -> None:
    last = np.zeros(trace.layout.page_count, np.uint32)
    for batch in trace.batches():
        native_caches.swap_floor(last, batch)


def libcachesim_reader(trace: Trace) -> Any:
    import libcachesim

    parameters = libcachesim.ReaderInitParam(binary_fmt_str="<I", ignore_obj_size=True)  # each object counts as 1
    parameters.obj_id_field = 1
    return libcachesim.TraceReader(str(trace.file), libcachesim.TraceType.BIN_TRACE, parameters)


def libcachesim_lru(trace: Trace, hash_power: int) -> int:
    import libcachesim

    cache = libcachesim.LRU(CACHE_PAGES, hashpower=hash_power)
    misses = cache.process_trace(libcachesim_reader(trace))[0] * trace.pages.size
    if abs(misses - round(misses)) > 1e-3:
        raise SystemExit(f"libcachesim's miss ratio times {trace.pages.size} accesses is {misses}, not a whole number")
    return round(misses)


def libcachesim_replay(trace: Trace) -> None:
    """Its reading of the trace and its loop alone, into its cache that keeps nothing."""
    from libcachesim import libcachesim_python as binding

    cache = binding.nop_init(binding.CommonCacheParams(cache_size=CACHE_PAGES))
    binding.c_process_trace(cache, libcachesim_reader(trace)._reader, 0, -1)


def everything(trace: Trace) -> list[Measured]:
    isas = [name for name in native.ISAS if 0 < native.ISAS[name] <= native.ISAS[native.isa_best()]]
    return [
        *[Measured(name, partial(libcachesim_lru, trace, power)) for name, power in HASH_POWERS.items()],
        Measured("libcachesim_replay", partial(libcachesim_replay, trace)),
        Measured("fixed", partial(simulate_fixed, trace, [CACHE_PAGES])),
        Measured("four_sizes", partial(simulate_fixed, trace, FOUR_SIZES)),
        *[Measured(f"curve_{isa}", partial(simulate_curve, trace, isa), isa) for isa in reversed(isas)],
        Measured("emission", partial(emit, trace, "auto"), native.isa_best()),
        Measured("emission_portable", partial(emit, trace, "portable"), "portable"),
        Measured("floor", partial(swap_only, trace)),
    ]


def measure(trace: Trace, rounds: int, path: Path | None) -> dict[str, list[float]]:
    """CPU-seconds of each thing in each round; stops where two simulators disagree."""
    things = everything(trace)
    expected = simulate_fixed(trace, [CACHE_PAGES])
    seconds: dict[str, list[float]] = {thing.name: [] for thing in things}
    for r in range(rounds):
        records = []
        shift = r * len(things) // rounds  # nobody always follows the same neighbour
        for place, thing in enumerate(things[shift:] + things[:shift]):
            gc.collect()
            wall, cpu = time.perf_counter(), time.thread_time()
            misses = thing.work()
            cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
            if misses is not None and misses != expected:
                raise SystemExit(f"{thing.name} counts {misses:,} misses, our fixed size {expected:,}: one is wrong")
            seconds[thing.name].append(cpu)
            records.append(record_of(trace, thing, misses) | {"round": r, "place": place, "cpu_seconds": cpu,
                           "wall_seconds": wall, "accesses_per_second": trace.pages.size / cpu})  # fmt: skip
        if path:
            ledger.append(records, path)
        latest = ", ".join(f"{name} {values[-1]:.2f}" for name, values in seconds.items())
        print(f"round {r + 1} of {rounds}, CPU s: {latest}", file=sys.stderr)
    return seconds


def record_of(trace: Trace, thing: Measured, misses: int | None) -> dict[str, Any]:
    return {
        "kind": "bench_simulator", "name": thing.name, "isa": thing.isa, "layout": trace.layout.name,
        "table_params": trace.layout.table_params, "pages": trace.layout.page_count, "stream": trace.stream.name,
        "stream_sha256": trace.stream.sha256, "tokens": len(trace.stream.ids), "accesses": int(trace.pages.size),
        "cache_pages": CACHE_PAGES if misses is not None else None, "misses": misses,
        "hash_power": HASH_POWERS.get(thing.name), **ledger.provenance_of_run(),
    }  # fmt: skip


def bars(seconds: dict[str, list[float]]) -> list[ledger.Bar]:
    def ratio(over: str, under: str) -> ledger.Spread:
        return ledger.spread([a / b for a, b in zip(seconds[over], seconds[under], strict=True)])

    least = {"fixed": 15.0, "curve_avx512": 8.0, "curve_avx2": 3.5, "curve_portable": 3.5}
    return [
        *[
            ledger.Bar(f"{name}, times {theirs}'s speed", ratio(theirs, name), limit, True)
            for name, limit in least.items()
            for theirs in HASH_POWERS
            if name in seconds
        ],
        ledger.Bar("four_sizes, times the cost of fixed", ratio("four_sizes", "fixed"), 2, False),
        ledger.Bar("emission, share of the cost of fixed", ratio("emission", "fixed"), 0.5, False),
        ledger.Bar("emission_portable, share of the cost of fixed", ratio("emission_portable", "fixed"), 0.5, False),
        ledger.Bar("fixed, times the cost of the floor", ratio("fixed", "floor"), 5, False),
    ]  # fmt: skip


def report(seconds: dict[str, list[float]], trace: Trace) -> None:
    print(f"{trace.pages.size:,} accesses, {len(seconds['fixed'])} rounds: median (least to most)\n")
    for name, values in seconds.items():
        rates = ledger.spread([trace.pages.size / value / 1e6 for value in values])
        print(f"{name:52} {ledger.spread(values)} CPU s {rates} M accesses/s")
    print("\nratios within a round, against the bars")
    for bar in bars(seconds):
        print(bar.line())
    replay = [a / b for a, b in zip(seconds["libcachesim_replay"], seconds["libcachesim"], strict=True)]
    share = ledger.spread(replay).median
    print(f"\nlibcachesim's time includes its reader and loop: {share:.0%} of it, judged by its nop cache.")
    if trace.pages.size < TOKENS * 16 or len(seconds["fixed"]) < 5:
        print("The bars are meant for 3M tokens and 5 rounds; this run was smaller and settles nothing.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="how often each thing is timed; default: 5 [e.g. 9]")
    parser.add_argument("--tokens", type=parse_count, help="tokens of the shipped stream; default: 3M [e.g. 500K]")
    parser.add_argument("--quick", action="store_true", help="200K tokens, 2 rounds, and no records are kept")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "simulator.jsonl",
                        help="records are appended here; default: bench/results/simulator.jsonl")  # fmt: skip
    given = parser.parse_args()
    if ledger.version_of("libcachesim") is None:
        parser.error("libcachesim is not installed; run: pip install libcachesim")
    rounds = given.rounds or (2 if given.quick else 5)
    tokens = given.tokens or (QUICK_TOKENS if given.quick else TOKENS)
    if rounds < 1:
        parser.error(f"--rounds {rounds} is not at least 1")
    with tempfile.TemporaryDirectory(prefix="pagegram-io-bench-") as folder:
        trace = make_trace(tokens, Path(folder))
        seconds = measure(trace, rounds, None if given.quick else given.output)
    report(seconds, trace)


if __name__ == "__main__":
    main()

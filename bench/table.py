"""What do vectors from flash cost? `Table` beside the raw reader, np.memmap and a pool of preads, in interleaved runs.

Part 1, warm: a table of 200M parameters whose pages are all in memory. Lookups a second by tokens a call.
Part 2, cold: rows of random tokens from a dense 20B PageGram table. Ours in batches; the reader's pump over as many
random pages, without a table; fancy indexing of np.memmap, as it comes and advised of random access; 64 threads that
pread with O_DIRECT. Before each run of memmap the file is dropped from the page cache, and it is asked (RWF_NOWAIT)
whether it is gone. All of them deliver the same rows, once compared before anything is timed.

In a round everything runs once, in an order that turns from round to round; only ratios within a round mean anything.

    python bench/table.py                                 # some 6 minutes and 13.4 GB of disk in --folder
    python bench/table.py --part 2 --dense table.safetensors --rounds 9
    python bench/table.py --quick                         # whether it works; no records are kept
"""

from __future__ import annotations

import argparse
import errno
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger
import numpy as np

from pagegram_io.layout import Layout, pagegram
from pagegram_io.native_reader import Reader, aligned_bytes, clock_ns
from pagegram_io.pack import write_trained_file
from pagegram_io.table import Table
from pagegram_io.table_file import read_header, write_pattern_file
from pagegram_io.tokens import Stream

DEPTH = 64
COLD_TOKENS, MAPPED_TOKENS, POOL_TOKENS = 4096, 64, 1024  # a call
CACHE_BYTES = 64 << 20  # small beside 13 GB: nearly every access misses
WARM_PARAMS, WARM_CALLS = 200 * 10**6, [1, 64, 4096]
OURS, PUMP, MAPPED, ADVISED, POOL = "table", "reader pump", "np.memmap", "np.memmap, random", "64 preads"
RESIDENT_MOST = 0.02


@dataclass(frozen=True)
class Given:
    """What was asked for. Times in seconds."""

    rounds: int
    seconds: float
    output: Path | None


class Tokens:
    """Rows of random tokens, new ones in every call; made before the clock starts."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self.layout, self._random = layout, np.random.default_rng(seed)

    def rows(self, count: int) -> np.ndarray:
        ids = self._random.integers(0, 65536, count, dtype=np.uint16)
        return self.layout.rows(Stream(ids, np.zeros(1, np.uint64), 65536, "random"))


def rate(call: Callable[[np.ndarray], int], tokens: Tokens, count: int, seconds: float) -> float:
    """Lookups a second: calls of `count` tokens until the time is over."""
    done, spent = 0, 0
    while spent < seconds * 1e9:
        rows = tokens.rows(count)
        begin = clock_ns()
        done += call(rows)
        spent += clock_ns() - begin
    return done / spent * 1e9


# ---- part 1: warm ----


def part_1(folder: Path, given: Given) -> list[dict[str, Any]]:
    layout = pagegram(WARM_PARAMS, 4)
    path = folder / "warm.safetensors"
    random = np.random.default_rng(0)
    write_trained_file(
        path, layout, lambda begin, end: random.standard_normal((end - begin, layout.row_width), dtype=np.float32)
    )
    records = []
    with Table.open(path, 1 << 30) as table:
        tokens = Tokens(layout, 1)
        pool = tokens.rows(400_000)  # touches every page, several times over
        table.bytes_of_rows(pool)
        reads = table.stats().reads
        for number in range(given.rounds):
            for count in WARM_CALLS:
                out = np.empty((count, layout.column_count, layout.row_width), np.float32)
                begin, done, at = time.perf_counter(), 0, 0
                while time.perf_counter() - begin < given.seconds / 2:
                    at = (at + count) % (len(pool) - count)
                    table.lookup_rows(pool[at : at + count], out)
                    done += count
                speed = done / (time.perf_counter() - begin)
                records.append({"kind": "bench_table", "part": 1, "name": OURS, "round": number, "call_tokens": count,
                                "lookups_per_second": speed, **ledger.provenance_of_run()})  # fmt: skip
        if table.stats().reads != reads:
            raise SystemExit("warm lookups read from the device: the pages were not all in memory")
    print("\nPart 1: warm, PageGram S=4 of 200M parameters, all pages in memory")
    for count in WARM_CALLS:
        speeds = [record["lookups_per_second"] for record in records if record["call_tokens"] == count]
        print(f"{count:5} tokens a call: {ledger.spread(speeds)} lookups/s")
    return records


# ---- part 2: cold ----


class Mapped:
    """Rows by fancy indexing of a map of the file."""

    def __init__(self, path: Path, layout: Layout, data_byte: int, advised: bool) -> None:
        self.layout, self.width = layout, np.arange(layout.row_bytes)
        self.map = np.memmap(path, np.uint8, "r", offset=data_byte)
        if advised:
            self.map._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]

    def rows(self, rows: np.ndarray) -> np.ndarray:
        return self.map[byte_of(self.layout, rows)[:, :, None] + self.width]


class Pool:
    """Pages by 64 threads that pread with O_DIRECT, each into memory of its own; then the rows out of them."""

    def __init__(self, path: Path, layout: Layout, data_byte: int) -> None:
        self.layout, self.data_byte, self.width = layout, data_byte, np.arange(layout.row_bytes)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self.threads = ThreadPoolExecutor(DEPTH)
        self.memory = aligned_bytes(2 * POOL_TOKENS * layout.page_bytes)

    def rows(self, rows: np.ndarray) -> np.ndarray:
        page_bytes = self.layout.page_bytes
        at = byte_of(self.layout, rows)
        pages, place = np.unique(at // page_bytes, return_inverse=True)
        views = [self.memory[i * page_bytes : (i + 1) * page_bytes] for i in range(len(pages))]

        def read(part: int) -> None:
            for i in range(part, len(pages), DEPTH):
                os.preadv(self.descriptor, [views[i]], self.data_byte + int(pages[i]) * page_bytes)

        list(self.threads.map(read, range(DEPTH)))
        begins = place.reshape(at.shape) * page_bytes + at % page_bytes
        return self.memory[begins[:, :, None] + self.width]

    def close(self) -> None:
        self.threads.shutdown()
        os.close(self.descriptor)


def byte_of(layout: Layout, rows: np.ndarray) -> np.ndarray:
    """Where rows begin after the header, int64 of the same shape."""
    return layout._place.bytes(rows).astype(np.int64)


def drop_from_memory(path: Path, header_bytes: int, page_count: int) -> float:
    """Drop a file from the page cache; returns which share of 500 random pages is still there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        still = 0
        buffer = bytearray(512)
        for page in np.random.default_rng().integers(0, page_count, 500):
            try:
                still += os.preadv(descriptor, [buffer], header_bytes + int(page) * 4096, os.RWF_NOWAIT) > 0
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    raise
        return still / 500
    finally:
        os.close(descriptor)


def part_2(path: Path, given: Given) -> tuple[list[ledger.Bar], list[dict[str, Any]]]:
    header = read_header(path)
    if header.layout is None or header.layout.name != "pagegram":
        raise SystemExit(f"{path}: no PageGram table; make one with pagegram-io mkfile --table 20B --layout pagegram")
    layout, data_byte = header.layout, header.data_byte
    out = np.empty((COLD_TOKENS, layout.column_count, layout.row_bytes), np.uint8)
    pool = Pool(path, layout, data_byte)
    with Table.open(path, CACHE_BYTES, DEPTH) as table, Reader(
        path, depth=DEPTH, base_byte=data_byte, flags=("verify",)
    ) as reader:  # fmt: skip

        def ours(rows: np.ndarray) -> int:
            table.bytes_of_rows(rows, out)
            return len(rows)

        def pump(rows: np.ndarray) -> int:
            """As many pages as the lookups read, without a table."""
            reader.pump(layout.pages(rows).reshape(-1).astype(np.uint64))
            reader.drain()
            return len(rows)

        def mapped(rows: np.ndarray) -> int:
            return len(view.rows(rows))

        some = Tokens(layout, 99).rows(64)
        view = Mapped(path, layout, data_byte, False)
        expected = table.bytes_of_rows(some)
        if not (np.array_equal(view.rows(some), expected) and np.array_equal(pool.rows(some), expected)):
            raise SystemExit("the programs do not deliver the same rows")
        runs: list[tuple[str, Callable[[np.ndarray], int], int]] = [
            (OURS, ours, COLD_TOKENS),
            (PUMP, pump, COLD_TOKENS),
            (MAPPED, mapped, MAPPED_TOKENS),
            (ADVISED, mapped, MAPPED_TOKENS),
            (POOL, lambda rows: len(pool.rows(rows)), POOL_TOKENS),
        ]
        records: list[dict[str, Any]] = []
        rounds: list[dict[str, float]] = []
        for number in range(given.rounds):
            shift = number % len(runs)
            speeds = {}
            for name, call, count in runs[shift:] + runs[:shift]:
                view = Mapped(path, layout, data_byte, name == ADVISED)
                resident = drop_from_memory(path, data_byte, layout.page_count)
                if resident > RESIDENT_MOST:
                    raise SystemExit(f"{resident:.0%} of the file stayed in the page cache; nothing here would be cold")
                tokens = Tokens(layout, 1000 * number + len(speeds))
                before = table.stats().reads
                speeds[name] = rate(call, tokens, count, given.seconds)
                reads = table.stats().reads - before
                records.append({"kind": "bench_table", "part": 2, "name": name, "round": number, "call_tokens": count,
                                "depth": DEPTH, "engine": table.engine, "direct": table.direct, "resident": resident,
                                "table_reads": reads, "lookups_per_second": speeds[name], "layout": layout.name,
                                "slots": layout.slots, "table_params": layout.table_params,
                                **ledger.provenance_of_run()})  # fmt: skip
                print(f"part 2, round {number + 1} of {given.rounds}: {name:18} {speeds[name]:10,.0f} lookups/s",
                      file=sys.stderr)  # fmt: skip
            rounds.append(speeds)
    pool.close()
    print(f"\nPart 2: cold, {layout.label} of {layout.table_params:,} parameters, depth {DEPTH}")
    for name, _, count in runs:
        print(f"{name:18} {count:5} tokens a call: {ledger.spread([speeds[name] for speeds in rounds])} lookups/s")

    def times(other: str) -> ledger.Spread:
        return ledger.spread([speeds[OURS] / speeds[other] for speeds in rounds])

    return [
        ledger.Bar("cold: batched lookups, times the pump at the same depth", times(PUMP), 0.9, True),
        ledger.Bar("cold: batched lookups, times np.memmap", times(MAPPED), 5, True),
        ledger.Bar("cold: batched lookups, times np.memmap advised", times(ADVISED), 5, True),
        ledger.Bar("cold: batched lookups, times 64 threads of pread", times(POOL), 1, True),
    ], records


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1,2", help="which parts; default: 1,2 [e.g. 2]")
    parser.add_argument("--rounds", type=int, help="default: 7 [e.g. 9]")
    parser.add_argument("--seconds", type=float, help="a run of part 2 takes so long; default: 4 [e.g. 10]")
    parser.add_argument("--folder", type=Path, default=Path("build"),
                        help="files are made here and removed at the end; default: build [e.g. /mnt/nvme]")  # fmt: skip
    parser.add_argument("--dense", type=Path, help="use this file for part 2 [e.g. table.safetensors]")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 0.5 s, and no records are kept")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "table.jsonl",
                        help="records are appended here; default: bench/results/table.jsonl")  # fmt: skip
    given = parser.parse_args()
    if not set(given.part.split(",")) <= {"1", "2"}:
        parser.error(f"--part {given.part}: write for example 1,2")
    return given


def main() -> None:
    asked = arguments()
    given = Given(asked.rounds or (2 if asked.quick else 7), asked.seconds or (0.5 if asked.quick else 4.0),
                  None if asked.quick else asked.output)  # fmt: skip
    asked.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pagegram-io-bench-", dir=asked.folder))
    bars: list[ledger.Bar] = []
    records: list[dict[str, Any]] = []
    try:
        if "1" in asked.part:
            records += part_1(folder, given)
        if "2" in asked.part:
            dense = asked.dense
            if dense is None:
                dense = folder / "dense.safetensors"
                print("making a dense file of 13.4 GB", file=sys.stderr)
                write_pattern_file(dense, pagegram(20 * 10**9, 4))
            bars, cold = part_2(dense, given)
            records += cold
    finally:
        shutil.rmtree(folder)
    if given.output:
        ledger.append(records, given.output)
    print("\nratios of the same round: median (least to most)")
    for bar in bars:
        print(bar.line())
    if given.rounds < 5 or given.seconds < 2:
        print("The bars are meant for 5 rounds or more of 2 s; this run was smaller and settles nothing.")


if __name__ == "__main__":
    main()

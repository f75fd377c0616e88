"""What does it cost to read a token's rows one at a time? Raw rows from the original extents, in interleaved runs.

A table as DeepSeek-V4.1-Flash stores it, cut to the size of a dense file: 48 rows a token of 256 bytes, their scales of
8 bytes in tensors of their own, from a byte that is 8 modulo 64, so that rows straddle pages. The same random tokens
are read with O_DIRECT by `RowsReader`, a token a call (decode) and 64 tokens a call (prefill), and by preads, one row
(its one or two pages) after another, as first attempts do. All deliver the same bytes, compared before anything is
timed.

In a round everything runs once, in an order that turns from round to round; only ratios within a round mean anything.

    python bench/rows.py                                  # some 2 minutes and 4 GiB of disk in --folder
    python bench/rows.py --dense table.safetensors        # a file of mkfile
    python bench/rows.py --quick                          # whether it works; no records are kept
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ledger
import numpy as np

from pagegram_io import native
from pagegram_io.deployed.rows_reader import RowsReader
from pagegram_io.layout import Column, Group, Layout, Region, Window
from pagegram_io.native_reader import aligned_bytes, clock_ns
from pagegram_io.table_file import read_header, write_pattern_file

COLUMNS, ROW_BYTES, SCALE_BYTES, FIRST_BYTE = 48, 256, 8, 72
DEPTH, PAGE_BYTES = 64, 4096
FILE_PAGES, QUICK_PAGES = 1 << 20, 1 << 13
BATCH_TOKENS = 64
ONE, BATCH, PREADS = "rows reader, a token a call", "rows reader, 64 tokens a call", "a pread a row"


def table_in(path: Path) -> Layout:
    """Rows and scales that fill a file of mkfile, read where they lie."""
    header = read_header(path)
    rows = (header.page_count * PAGE_BYTES - FIRST_BYTE) // (COLUMNS * (ROW_BYTES + SCALE_BYTES))
    scales = FIRST_BYTE + COLUMNS * rows * ROW_BYTES
    groups = tuple(
        Group(
            (Column(0, 0, rows, c * rows),),
            (
                Region(FIRST_BYTE + c * rows * ROW_BYTES, rows, ROW_BYTES, ROW_BYTES, 0),
                Region(scales + c * rows * SCALE_BYTES, rows, SCALE_BYTES, SCALE_BYTES, 0),
            ),
            c * rows, 1, 1,
        )
        for c in range(COLUMNS)
    )  # fmt: skip
    params = COLUMNS * rows * ROW_BYTES
    window = Window(0, header.page_count, str(path), header.data_byte)
    return Layout(
        "rows", groups, params, params, "fp8", ROW_BYTES + SCALE_BYTES, ROW_BYTES, 1, 1, (1,), windows=(window,)
    )


class Preads:
    """Each row, and each row's scales, by a pread of its own page or two, after the one before."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.place, self.base = native.Place(layout), layout.windows[0].byte
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self.memory = aligned_bytes(2 * PAGE_BYTES)
        self.sizes = [ROW_BYTES, SCALE_BYTES] * COLUMNS

    def read(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), COLUMNS * (ROW_BYTES + SCALE_BYTES)), np.uint8)
        for line, starts in zip(out, self.place.bytes(rows).tolist(), strict=True):
            at = 0
            for start, size in zip(starts, self.sizes, strict=True):
                page, within = divmod(start, PAGE_BYTES)
                count = -(-(within + size) // PAGE_BYTES) * PAGE_BYTES
                got = os.preadv(self.descriptor, [self.memory[:count].data], self.base + page * PAGE_BYTES)
                if got != count:
                    raise SystemExit(f"a read of {count} bytes brought {got}")
                line[at : at + size] = self.memory[within : within + size]
                at += size
        return out.reshape(len(rows), COLUMNS, ROW_BYTES + SCALE_BYTES)


def random_rows(layout: Layout, tokens: int, random: np.random.Generator) -> np.ndarray:
    """Rows of random tokens, uint64 [tokens, 48]."""
    rows = layout.groups[0].row_count
    bases = np.array([group.row_base for group in layout.groups], np.uint64)
    return bases + random.integers(0, rows, (tokens, COLUMNS), np.uint64)


def token_us(read: Callable[[np.ndarray], np.ndarray], layout: Layout, tokens: int, seconds: float, seed: int) -> float:
    """Microseconds a token: calls of so many tokens until the time is over."""
    random = np.random.default_rng(seed)
    done, spent = 0, 0
    while spent < seconds * 1e9:
        rows = random_rows(layout, tokens, random)
        begin = clock_ns()
        read(rows)
        spent += clock_ns() - begin
        done += tokens
    return spent / done / 1e3


def measure(path: Path, rounds: int, seconds: float) -> list[dict[str, Any]]:
    layout, records = table_in(path), []
    preads = Preads(path, layout)
    with RowsReader(layout, depth=DEPTH) as reader:
        known = random_rows(layout, 16, np.random.default_rng(1))
        if not np.array_equal(reader.read(known), preads.read(known)):
            raise SystemExit("the ways do not deliver the same rows: one is wrong")
        ways = [(ONE, reader.read, 1), (BATCH, reader.read, BATCH_TOKENS), (PREADS, preads.read, 1)]
        for number in range(rounds):
            for name, read, tokens in ways[number % 3 :] + ways[: number % 3]:
                records.append({
                    "kind": "bench_rows", "name": name, "round": number, "call_tokens": tokens, "depth": DEPTH,
                    "rows_per_token": COLUMNS, "engine": reader.engine,
                    "token_us": token_us(read, layout, tokens, seconds, 100 * number + tokens),
                    **ledger.provenance_of_run(),
                })  # fmt: skip
    os.close(preads.descriptor)
    return records


def report(records: list[dict[str, Any]]) -> None:
    times = {name: [r["token_us"] for r in records if r["name"] == name] for name in (ONE, BATCH, PREADS)}
    print("\nms a token: median (least to most); and times as fast as a pread a row in the same round")
    for name, values in times.items():
        ratios = [slow / own for slow, own in zip(times[PREADS], values, strict=True)]
        print(f"{name:30} {ledger.spread([v / 1e3 for v in values])}   {ledger.spread(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dense", type=Path, help="a dense file of mkfile; default: one is made [e.g. table.safetensors]"
    )
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where it is made; default: build [e.g. .]")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is timed; default: 5 [e.g. 9]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each time; default: 4 [e.g. 2]")
    parser.add_argument("--quick", action="store_true", help="2 rounds on 32 MiB, and no records are kept")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "rows.jsonl",
                        help="records are appended here; default: bench/results/rows.jsonl")  # fmt: skip
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds} is not at least 1")
    asked.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pagegram-io-bench-", dir=asked.folder))
    try:
        dense = asked.dense
        if dense is None:
            dense = folder / "dense.safetensors"
            print("making a dense file", file=sys.stderr)
            write_pattern_file(dense, QUICK_PAGES if asked.quick else FILE_PAGES)
        records = measure(dense, 2 if asked.quick else asked.rounds, 0.2 if asked.quick else asked.seconds)
    finally:
        shutil.rmtree(folder)
    if not asked.quick:
        ledger.append(records, asked.output)
    report(records)


if __name__ == "__main__":
    main()

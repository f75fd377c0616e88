"""How fast are four-bit rows decoded and encoded? Beside a copy of the same decoded bytes, interleaved in one run.

Rows of 64 values (PageGram, Engram-style) and of 384 (flat), decoded into 2 MiB, which the CPU's last cache holds, and
into 64 MiB, which it does not. (Less would be nearer to what a lookup decodes, but then a call from Python costs as
much as the work.) The copy is NumPy's, which is the C library's memcpy, from one array of floats to another. Times are
CPU-seconds of one thread; only ratios of one run mean anything. Every way must give the same bits: otherwise the
program stops with status 1.

    python bench/nf4.py            # 5 rounds, some ten seconds
    python bench/nf4.py --quick    # whether it works
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ledger
import numpy as np

from pagegram_io import native, nf4
from pagegram_io.native_nf4 import nf4_decode, nf4_encode

WIDTHS = (64, 384)
OUTPUT_BYTES = {"cache": 2 * 2**20, "memory": 64 * 2**20}
WORK_BYTES, QUICK_WORK_BYTES = 256 * 2**20, 64 * 2**20  # decoded bytes of one measurement


@dataclass(frozen=True)
class Measured:
    """Something to time: `work` handles the array once."""

    name: str
    work: Callable[[], object]
    isa: str | None = None


@dataclass(frozen=True)
class Rows:
    """The same rows decoded and encoded, and room for both."""

    values: np.ndarray  # float32 [rows, width]
    rows: np.ndarray
    values_out: np.ndarray
    rows_out: np.ndarray


def make_rows(width: int, output_bytes: int) -> Rows:
    values = np.random.default_rng(1).standard_normal((output_bytes // (4 * width), width), np.float32)
    rows = nf4.encode(values)
    return Rows(values, rows, np.zeros_like(values), np.zeros_like(rows))


def isas() -> list[str]:
    return [name for name in native.ISAS if 0 < native.ISAS[name] <= native.ISAS[native.isa_best()]]


def everything(r: Rows) -> list[Measured]:
    ways = isas()
    return [
        Measured("copy", partial(np.copyto, r.values_out, r.values)),
        *[Measured(f"decode_{isa}", partial(nf4_decode, r.rows, r.values_out, isa=isa), isa) for isa in ways],
        *[Measured(f"encode_{isa}", partial(nf4_encode, r.values, r.rows_out, isa=isa), isa) for isa in ways],
    ]


def check(r: Rows) -> None:
    decoded = [nf4.decode(r.rows, r.values.shape[1], isa=isa).view(np.uint32) for isa in isas()]
    encoded = [nf4.encode(r.values, isa=isa) for isa in isas()]
    if not all(
        np.array_equal(d, decoded[0]) and np.array_equal(e, r.rows) for d, e in zip(decoded, encoded, strict=True)
    ):
        raise SystemExit("the instruction sets do not agree: one is wrong")


def measure(width: int, place: str, work_bytes: int, rounds: int, path: Path | None) -> dict[str, list[float]]:
    """Decoded GB a CPU-second of each thing in each round."""
    r = make_rows(width, OUTPUT_BYTES[place])
    check(r)
    things = everything(r)
    repeats = max(1, work_bytes // r.values.nbytes)
    rates: dict[str, list[float]] = {thing.name: [] for thing in things}
    for round_ in range(rounds):
        records = []
        shift = round_ % len(things)  # nobody always follows the same neighbour
        for thing in things[shift:] + things[:shift]:
            count = max(1, repeats // (8 if thing.name.startswith("encode") else 1))
            thing.work()
            cpu = time.thread_time()
            for _ in range(count):
                thing.work()
            cpu = time.thread_time() - cpu
            rates[thing.name].append(count * r.values.nbytes / cpu / 1e9)
            records.append({
                "kind": "bench_nf4", "name": thing.name, "isa": thing.isa, "width": width, "place": place,
                "output_bytes": r.values.nbytes, "round": round_, "cpu_seconds": cpu,
                "gigabytes_per_second": rates[thing.name][-1], **ledger.provenance_of_run(),
            })  # fmt: skip
        if path:
            ledger.append(records, path)
    return rates


def bars(rates: dict[str, list[float]]) -> list[ledger.Bar]:
    best = native.isa_best()
    if best == "portable":
        return []
    ratio = [a / b for a, b in zip(rates[f"decode_{best}"], rates["copy"], strict=True)]
    return [ledger.Bar(f"decode_{best}, times the copy's speed", ledger.spread(ratio), 0.8, True)]


def report(width: int, place: str, rates: dict[str, list[float]]) -> None:
    print(
        f"\n{width} values a row, decoded into {OUTPUT_BYTES[place] >> 10:,} KiB ({place}): decoded GB/s, and to copy"
    )
    for name, values in rates.items():
        ratio: Any = ledger.spread([a / b for a, b in zip(values, rates["copy"], strict=True)])
        print(f"  {name:20} {ledger.spread(values)} GB/s   {ratio} times copy")
    for bar in bars(rates):
        print("  " + bar.line())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each thing is timed; default: 5 [e.g. 9]")
    parser.add_argument("--quick", action="store_true", help="2 rounds of little work, and no records are kept")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "nf4.jsonl",
                        help="records are appended here; default: bench/results/nf4.jsonl")  # fmt: skip
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds} is not at least 1")
    for width in WIDTHS:
        for place in OUTPUT_BYTES:
            work_bytes, rounds = (QUICK_WORK_BYTES, 2) if given.quick else (WORK_BYTES, given.rounds)
            print(f"{width} values, {place}", file=sys.stderr)
            report(width, place, measure(width, place, work_bytes, rounds, None if given.quick else given.output))
    if given.quick:
        print("\nThe bar is meant for 5 rounds; this run was smaller and settles nothing.")


if __name__ == "__main__":
    main()

"""How fast do tokens become rows, and rows pages? Rows a CPU-second of each deployed table, on one thread.

The stream is the shipped one in DeepSeek's ids for its own tables, and multilingual-20m for the others, folded into
the vocabulary where that is smaller. Each figure is the best of the rounds, since other work on a machine only slows.

    python bench/emission.py             # 1M tokens, 5 rounds
    python bench/emission.py --quick     # whether it works, in seconds; keeps no records
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ledger
import numpy as np

from pagegram_io import native
from pagegram_io.deployed import FAMILIES, Family
from pagegram_io.layout import Layout, engram
from pagegram_io.sizes import parse_count
from pagegram_io.tokens import Stream, read_stream, shipped_stream_path
from pagegram_io.trace import BATCH_PLACES

BAR_MODEL, BAR_ROWS_PER_SECOND = "deepseek-v4.1-flash", 60e6


def stream_for(family: Family | None, tokens: int) -> Stream:
    if family is None:
        return read_stream(limit=tokens)
    if family.stream:
        return read_stream(shipped_stream_path(family.stream), limit=tokens)
    stream = read_stream(limit=tokens)
    ids = (stream.ids.astype(np.uint32) % np.uint32(family.vocabulary)).astype(np.uint32)
    return Stream(ids, stream.document_starts, family.vocabulary, stream.name)


def emit_rows(layout: Layout, stream: Stream, isa: str) -> None:
    step = max(1, BATCH_PLACES // layout.column_count)
    with native.Rows(layout, isa=isa) as rows:
        for begin in range(0, len(stream), step):
            rows.emit(stream, begin, min(begin + step, len(stream)))


def emit_pages(layout: Layout, stream: Stream, isa: str) -> None:
    with native.Source(layout, stream, isa=isa) as source:
        buffer = np.empty((max(1, BATCH_PLACES // source.page_columns), source.page_columns), np.uint32)
        while source.next(buffer):
            pass


def cpu_seconds(work: Callable[[Layout, Stream, str], None], layout: Layout, stream: Stream, isa: str) -> float:
    began = time.thread_time()
    work(layout, stream, isa)
    return time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=parse_count, help="tokens of each stream; default: 1M [e.g. 500K]")
    parser.add_argument("--rounds", type=int, help="how often each is timed; default: 5 [e.g. 9]")
    parser.add_argument("--quick", action="store_true", help="50K tokens, 2 rounds, and no records are kept")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "emission.jsonl",
                        help="records are appended here; default: bench/results/emission.jsonl")  # fmt: skip
    given = parser.parse_args()
    tokens = given.tokens or (50_000 if given.quick else 1_000_000)
    rounds = given.rounds or (2 if given.quick else 5)
    if rounds < 1:
        parser.error(f"--rounds {rounds} is not at least 1")
    isas = [name for name in native.ISAS if 0 < native.ISAS[name] <= native.ISAS[native.isa_best()]]
    tables = [("engram 20B", None, engram(20 * 10**9)), *((n, f, f.layout()) for n, f in FAMILIES.items())]
    bars, records = [], []
    print(f"{'table':28} {'isa':9} {'rows a token':>12} {'M rows/s':>10} {'M rows/s to pages':>18}")
    for name, family, layout in tables:
        stream = stream_for(family, tokens)
        for isa in isas:
            rows = len(stream) * layout.column_count
            rates = {}
            for what, work in (("rows", emit_rows), ("pages", emit_pages)):
                seconds = [cpu_seconds(work, layout, stream, isa) for _ in range(rounds)]
                rates[what] = [rows / s for s in seconds]
                records.append({"kind": "bench_emission", "name": what, "table": name, "isa": isa, "rows": rows,
                                "stream": stream.name, "stream_sha256": stream.sha256, "tokens": len(stream),
                                "cpu_seconds": seconds, **ledger.provenance_of_run()})  # fmt: skip
            best = {what: max(values) / 1e6 for what, values in rates.items()}
            print(f"{name:28} {isa:9} {layout.column_count:12} {best['rows']:10.0f} {best['pages']:18.0f}")
            if name == BAR_MODEL:
                spread = ledger.spread([rate / 1e6 for rate in rates["rows"]])
                bars.append(ledger.Bar(f"{name}, {isa}, M rows/s a core", spread, BAR_ROWS_PER_SECOND / 1e6, True))
    print()
    for bar in bars:
        print(bar.line())
    if not given.quick:
        ledger.append(records, given.output)


if __name__ == "__main__":
    sys.exit(main())

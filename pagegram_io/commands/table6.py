"""Table 6 for a person, and as CSV: reads per token beside what the device delivered."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from pagegram_io.commands.nvme_table import describe_target, microseconds
from pagegram_io.commands.options import plain_table, wide_console
from pagegram_io.layout import label_of
from pagegram_io.output import new_text
from pagegram_io.sizes import format_bytes, format_count

NAMES = ("table", "cache", "layout", "depth", "reads/token", "on the device", "reads/s", "lookups/s", "p50 us",
         "p99 us", "runs")  # fmt: skip


def print_table(lines: Sequence[Mapping[str, Any]]) -> None:
    """Lines of ``comparison.compare`` on stdout, a device at a time."""
    console = wide_console()
    for target in dict.fromkeys(line["target"] for line in lines):
        here = [line for line in lines if line["target"] == target]
        console.print(f"Table 6, {describe_target(here[0])}; medians of the runs")
        table = plain_table(NAMES)
        for line in here:
            simulated = line["reads_per_token"]
            table.add_row(
                "-" if line["table_params"] is None else format_count(line["table_params"]),
                format_bytes(line["cache_bytes"]) if line["cache_bytes"] else "none",
                label_of(line["layout"], line["slots"]),
                str(line["depth"]),
                "not simulated" if simulated is None else f"{simulated:.3f}",
                f"{line['device_reads_per_token']:.3f}",
                f"{line['iops']:,.0f}",
                f"{line['lookups_per_second']:,.0f}",
                microseconds(line["latency_p50_ns"]),
                microseconds(line["latency_p99_ns"]),
                str(line["repeats"]),
            )
        console.print(table)


def write_table(lines: Sequence[Mapping[str, Any]], path: str, *, force: bool) -> None:
    """The same lines as CSV."""
    with new_text(path, force=force) as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)

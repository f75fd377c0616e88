"""The table that ``nvme`` prints for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from pagegram_io.commands.options import plain_table, wide_console
from pagegram_io.device import latency_key
from pagegram_io.layout import label_of
from pagegram_io.sizes import format_bytes, format_count


def microseconds(value_ns: float) -> str:
    return f"{value_ns / 1000:,.1f}"


def describe_target(record: Mapping[str, Any]) -> str:
    """What was read, by which engine, and whether past the page cache."""
    how = "O_DIRECT" if record["direct"] else "page cache, not the device"
    model = f" ({record['device_model']})" if record["device_model"] else ""
    return (
        f"{click.format_filename(record['target'])}: {record['target_kind']}{model}; engine {record['engine']}; {how}"
    )


def print_table(records: Sequence[dict[str, Any]], percentiles: Sequence[float]) -> None:
    """Records as a table on stdout: what ran on what, then a line a run."""
    first = records[0]
    console = wide_console()
    console.print(f"{describe_target(first)} ({first['engine_reason']})")
    decode = first["mode"] == "decode"
    names = [
        "layout",
        "table",
        "cache",
        "depth",
        *(["batch"] if decode else []),
        "reads/s",
        "MB/s",
        "lookups/s",
        "mean us",
        *(f"p{p:g} us" for p in percentiles),
    ]
    names += [
        *(["steps/s", "step p50 us", "step p99 us"] if decode else []),
        "in flight",
        "CPU ns/read",
        "limited by",
        "failed",
    ]
    table = plain_table(names)
    for r in records:
        failed = sum(value for key, value in r.items() if key.startswith("errors_"))
        cells = [
            label_of(r["layout"], r["slots"]),
            "-" if r["table_params"] is None else format_count(r["table_params"]),
            format_bytes(r["cache_bytes"]) if r["cache_pages"] else "none",
            str(r["depth"]),
            *([str(r["batch"])] if decode else []),
            f"{r['iops']:,.0f}",
            f"{r['bytes_per_second'] / 1e6:,.1f}",
            "-" if r["lookups_per_second"] is None else f"{r['lookups_per_second']:,.0f}",
            microseconds(r["latency_mean_ns"]),
            *(microseconds(r[latency_key(p)]) for p in percentiles),
        ]
        if decode:
            cells += [f"{r['steps_per_second']:,.0f}", microseconds(r["step_p50_ns"]), microseconds(r["step_p99_ns"])]
        cells += [f"{r['depth_sustained']:.1f}", f"{r['cpu_ns_per_read']:,}", r["limited_by"], f"{failed:,}"]
        table.add_row(*cells)
    console.print(table)
    if first["allow_holes"]:
        console.print("Holes were allowed: no device was read; this is the cost of the CPU and the kernel alone.")
    if any(r["interrupted"] for r in records):
        console.print("Interrupted: the last line is what was measured until then.")

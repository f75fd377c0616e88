"""Table 6: reads per token beside what a device delivers, for each table size, cache and layout; from records alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagegram_io.record_files import to_dict
from pagegram_io.records import AnyRecord

# What simulation and device records must agree on before they stand in one line.
SHARED_FIELDS = ("stream_sha256", "seed", "page_bytes", "row_format")

PLACED_BY = "placement (--packed; of a model --scales, --repack, --aligned, --files)"

# A record with one of these is of a part of the lookups, or of the table.
PART_FIELDS = ("order", "column", "layer", "rank")

# What every device record of a layout holds.
MEASURED_FIELDS = (
    "mode", "target", "depth", "cache_bytes", "cache_pages", "reads", "tokens", "iops", "lookups_per_second",
    "latency_p50_ns", "latency_p99_ns",
)  # fmt: skip

# What says on which device, and how, a line was measured.
DEVICE_FIELDS = ("target_kind", "device_model", "engine", "direct", "wrapped")


def compare(records: Iterable[AnyRecord], device_records: Iterable[AnyRecord]) -> list[dict[str, Any]]:
    """A line for each table, cache, layout and depth that was measured, with the simulator's reads per token.

    Rates are medians over repeats. ``reads_per_token`` is None where no simulation has that cache size. Device records
    of uniform reads and of decode mode have no place here. Raises ValueError for records that cannot be compared.
    """
    simulated = [to_dict(r) for r in records]
    measured = [row for row in map(to_dict, device_records) if row.get("layout") not in (None, "uniform")]
    for row in measured:
        missing = next((name for name in MEASURED_FIELDS if row.get(name) is None), None)
        if missing is not None:
            raise ValueError(f"a device record of {row['layout']} has no {missing}: measure it again, with nvme --json")
    measured = [row for row in measured if row["mode"] == "throughput" and row["tokens"]]
    by_cache: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in simulated:
        if row.get("kind") == "simulate" and of_whole_lookups(row):
            by_cache[_layout(row) + (row["cache_pages"],)] = row
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in measured:
        groups.setdefault(_layout(row) + (row["cache_pages"], row["target"], row["depth"]), []).append(row)
    lines = []
    for key, repeats in groups.items():
        *layout, cache_pages, target, depth = key
        twin = by_cache.get((*layout, cache_pages))
        check_placement(repeats)
        if twin is not None:
            _refuse_other_twin(twin, repeats[0])
        lines.append(
            {
                "layout": layout[0],
                "slots": layout[1],
                "table_params": layout[2],
                "cache_bytes": repeats[0]["cache_bytes"],
                "target": target,
                **{name: repeats[0].get(name) for name in DEVICE_FIELDS},
                "depth": depth,
                "repeats": len(repeats),
                "reads_per_token": None if twin is None else twin["reads_per_token"],
                "device_reads_per_token": statistics.median(r["reads"] / r["tokens"] for r in repeats),
                "iops": statistics.median(r["iops"] for r in repeats),
                "lookups_per_second": statistics.median(r["lookups_per_second"] for r in repeats),
                "latency_p50_ns": statistics.median(r["latency_p50_ns"] for r in repeats),
                "latency_p99_ns": statistics.median(r["latency_p99_ns"] for r in repeats),
            }
        )
    return sorted(
        lines,
        key=lambda x: (x["target"], x["table_params"] or 0, x["cache_bytes"], x["depth"], x["layout"], x["slots"] or 0),
    )


def check_placement(rows: Sequence[Mapping[str, Any]]) -> None:
    """ValueError where device records of one layout are of a table placed in several ways."""
    told = [row for row in rows if row.get("table_pages") is not None]
    other = next((row for row in told if row["table_pages"] != told[0]["table_pages"]), None)
    if other is not None:
        raise ValueError(
            f"device records of {told[0]['layout']} with {told[0]['table_pages']:,} and {other['table_pages']:,} pages "
            f"are of tables placed in two ways: give those of one {PLACED_BY}"
        )


def _refuse_other_twin(twin: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """ValueError where the simulation of a layout is not of what was measured of it."""
    for name in SHARED_FIELDS:
        if twin.get(name) != row.get(name):
            cure = ": give both the same --tokens and --limit" if name == "stream_sha256" else ""
            raise ValueError(
                f"{name} is {twin.get(name)!r} in the simulation and {row.get(name)!r} on the device{cure}"
            )
    if row.get("table_pages") not in (None, twin["pages"]):
        raise ValueError(
            f"{row['layout']} has {twin['pages']:,} pages in the simulation and {row['table_pages']:,} on the device: "
            f"its table is placed in two ways; give both the same {PLACED_BY}"
        )


def of_whole_lookups(row: Mapping[str, Any]) -> bool:
    """Is a simulation's record one of every read, not of those of an order, a column, a layer or a rank?"""
    return all(row.get(name) is None for name in PART_FIELDS)


def _layout(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["layout"], row.get("slots"), row.get("table_params")

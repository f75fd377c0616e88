"""Table 6 from records alone."""

from __future__ import annotations

from typing import Any

import pytest

from pagegram_io import simulate
from pagegram_io.comparison import compare
from pagegram_io.record_files import to_dict

SHARED = {"stream_sha256": "ab", "seed": 0, "page_bytes": 4096, "row_format": "nf4"}


def simulated(layout: str, cache_pages: int, reads: float) -> dict[str, Any]:
    record = simulate(table="10M", cache="1MiB", layouts=["flat"], limit=1000)[0]
    return to_dict(record) | SHARED | {"layout": layout, "cache_pages": cache_pages, "reads_per_token": reads}


def device(layout: str, cache_pages: int, lookups: float, **more: Any) -> dict[str, Any]:
    return (
        SHARED
        | {
            "kind": "nvme",
            "schema": 1,
            "layout": layout,
            "slots": None,
            "table_params": 10_000_000,
            "cache_pages": cache_pages,
            "cache_bytes": cache_pages * 4096,
            "target": "/dev/x",
            "depth": 64,
            "mode": "throughput",
            "reads": 500,
            "tokens": 1000,
            "iops": 1000.0,
            "lookups_per_second": lookups,
            "latency_p50_ns": 5,
            "latency_p99_ns": 9,
        }
        | more
    )


def test_lines_join_simulation_and_device() -> None:
    records = [simulated("flat", 256, 0.5), simulated("engram", 256, 8.0)]
    measured = [
        device("flat", 256, 900.0),
        device("flat", 256, 1100.0),
        device("engram", 256, 90.0),
        device("flat", 0, 400.0),
        device("uniform", 0, 1.0),
        device("flat", 256, 1.0, mode="decode"),
    ]
    lines = compare(records, measured)
    assert [(x["layout"], x["cache_bytes"], x["reads_per_token"], x["repeats"]) for x in lines] == [
        ("flat", 0, None, 1),
        ("engram", 256 * 4096, 8.0, 1),
        ("flat", 256 * 4096, 0.5, 2),
    ]
    assert lines[2]["lookups_per_second"] == 1000.0 and lines[2]["device_reads_per_token"] == 0.5


def test_a_part_of_the_lookups_does_not_stand_for_all() -> None:
    parts = [simulated("flat", 256, 0.1) | {name: 1} for name in ("order", "column", "layer", "rank")]
    assert compare([*parts, simulated("flat", 256, 0.5)], [device("flat", 256, 9.0)])[0]["reads_per_token"] == 0.5
    assert compare([simulated("flat", 256, 0.5), *parts], [device("flat", 256, 9.0)])[0]["reads_per_token"] == 0.5


def test_a_device_record_without_its_numbers_is_refused() -> None:
    for name in ("mode", "target", "cache_pages", "iops"):
        with pytest.raises(ValueError, match=f"record of flat has no {name}"):
            compare([], [device("flat", 256, 900.0) | {name: None}])
    assert compare([], [device("flat", 256, 900.0, tokens=0)]) == []


def test_records_of_different_streams_are_refused() -> None:
    with pytest.raises(ValueError, match="stream_sha256"):
        compare([simulated("flat", 256, 0.5)], [device("flat", 256, 900.0, stream_sha256="cd")])


def test_one_table_placed_in_two_ways_is_refused() -> None:
    pages = simulated("flat", 256, 0.5)["pages"]
    assert compare([simulated("flat", 256, 0.5)], [device("flat", 256, 9.0, table_pages=pages)])
    with pytest.raises(ValueError, match=r"the simulation and 9 on the device: its table is placed in two ways"):
        compare([simulated("flat", 256, 0.5)], [device("flat", 256, 9.0, table_pages=9)])
    with pytest.raises(ValueError, match="with 9 and 8 pages are of tables placed in two ways"):
        compare([], [device("flat", 256, 9.0, table_pages=9), device("flat", 256, 9.0, table_pages=8)])
    with pytest.raises(ValueError, match="give both the same --tokens and --limit"):
        compare([simulated("flat", 256, 0.5)], [device("flat", 256, 9.0, stream_sha256="cd")])

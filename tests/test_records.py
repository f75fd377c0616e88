"""Records: what is refused, and that JSON lines, CSV and frames give back what was written."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io.errors import FormatError
from pagegram_io.record_files import read_records, records_to_frame, to_dict, write_csv, write_json_lines
from pagegram_io.records import SCHEMA, CollisionRecord, LayoutRecord, Record, SimulationRecord, provenance

MADE_BY = {"version": "0.1.0", "seed": 0}
RAN_ON = {"seconds": 1.25, "kernel": "6.1.0", "cpu": 'A CPU, "fast" @ 3 GHz', "time": "2026-01-02T03:04:05Z"}
STREAM = {"stream": "shipped.u16.xz", "stream_sha256": "00" * 31 + "1e", "tokens": 20_625_669}
TABLE = {
    "layout": "pagegram", "slots": 4, "table_params": 20_000_000_000, "table_params_actual": 19_999_948_800,
    "heads": 8, "row_width": 64,
}  # fmt: skip


def simulation(**changes: Any) -> SimulationRecord:
    fields: dict[str, Any] = {
        **MADE_BY, **RAN_ON, **STREAM, **TABLE,
        "row_format": "nf4", "row_bytes": 34, "page_bytes": 4096, "pages": 3_255_201, "file_bytes": 13_333_303_296,
        "placement": "aligned", "policy": "lru", "cache_unit": "page", "cache_bytes": 1 << 30, "cache_pages": 1 << 18,
        "documents": 20_123, "warm_tokens": 0, "state": "cold", "accesses": 41_251_338, "misses": 17_573_643,
        "misses_second_half": 8_377_406, "compulsory_misses": 2_992_919, "reads_per_token": 17_573_643 / 20_625_669,
        "reads_per_token_second_half": 0.8123, "reads_per_token_without_compulsory": 0.7069, "hit_rate": 0.574,
        "bytes_read_per_token": 3489.9, "bytes_used_per_token": 463.4, "read_amplification": 7.53,
        "compulsory_share": 0.1703, "cache_full_at_token": 1_234_567, "memory_bytes": 1 << 31, "dim": 384,
        "orders": "2,3", "isa": "avx2", "threads": 2,
    }  # fmt: skip
    return SimulationRecord(**{**fields, **changes})


def collision(**changes: Any) -> CollisionRecord:
    fields: dict[str, Any] = {
        **MADE_BY, **RAN_ON, **STREAM, **TABLE,
        "order": 2, "distinct_ngrams": 10, "sampled_ngrams": 10, "rows": 100, "variance_to_mean": 1.01,
        "foreign_share": 0.25, "pairs": 1_000_000, "other_head_share": 0.8665, "other_head_share_theory": 0.8665,
        "extra_heads": 1.75, "extra_heads_theory": 1.75, "extra_heads_sigma": 0.001, "neighbour_ratio": 0.45,
        "neighbour_ratio_theory": None,
    }  # fmt: skip
    return CollisionRecord(**{**fields, **changes})


def layout_record(**changes: Any) -> LayoutRecord:
    fields: dict[str, Any] = {
        **MADE_BY, **TABLE,
        "row_format": "nf4", "row_bytes": 34, "unit_bytes": 1088, "unit_rows": 32, "units_per_page": 3, "rows": 32 * 9,
        "units": 9, "page_bytes": 4096, "pages": 3, "file_bytes": 12_288, "slack_bytes": 2496, "slack_share": 0.203,
        "uncached_reads": 2.0, "straddle_probability": 0.0, "placement": "aligned", "dim": 384, "orders": "2,3",
    }  # fmt: skip
    return LayoutRecord(**{**fields, **changes})


def save(records: list[Any], path: Path) -> Path:
    if path.suffix == ".csv":
        write_csv(records, path, force=True)
    else:
        with open(path, "w", encoding="utf-8") as stream:
            write_json_lines(records, stream)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".CSV"])
@pytest.mark.parametrize("make", [simulation, collision, layout_record])
def test_files_give_back_equal_values_of_equal_types(tmp_path: Path, suffix: str, make: Any) -> None:
    records = [make(), make(slots=None, layout="engram"), make(seed=2**64 - 1)]
    path = tmp_path / f"records{suffix}"
    if suffix == ".CSV":
        write_csv(records, path)
    else:
        save(records, path)
    rows = read_records(path)
    assert rows == [dataclasses.asdict(record) for record in records]
    for row, record in zip(rows, records, strict=True):
        assert {name: type(value) for name, value in row.items()} == {
            name: type(value) for name, value in dataclasses.asdict(record).items()
        }
        assert list(row) == [field.name for field in dataclasses.fields(record)]


@given(
    rate=st.floats(allow_nan=False, allow_infinity=False),
    count=st.integers(-(2**63), 2**64),
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)
def test_round_trip_of_any_value(tmp_path_factory: pytest.TempPathFactory, rate: float, count: int, text: str) -> None:
    record = simulation(hit_rate=rate, misses=count, cpu=text)
    folder = tmp_path_factory.getbasetemp()
    for name in ("any.jsonl", "any.csv"):
        assert read_records(save([record], folder / name)) == [to_dict(record)]


def test_csv_and_json_have_the_same_keys() -> None:
    table, lines = io.StringIO(), io.StringIO()
    write_csv([simulation()], table)
    write_json_lines([simulation()], lines)
    assert table.getvalue().split("\n")[0].split(",") == list(json.loads(lines.getvalue()))
    assert list(json.loads(lines.getvalue()))[:2] == ["kind", "schema"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, numpy.float32("nan"), "0.5", None, True, 1j])
def test_unfit_numbers_are_refused_before_anything_is_written(tmp_path: Path, bad: Any) -> None:
    record = simulation(hit_rate=bad)
    stream = io.StringIO()
    with pytest.raises(ValueError, match="hit_rate"):
        write_json_lines([record], stream)
    assert stream.getvalue() == ""
    with pytest.raises(ValueError, match="hit_rate"):
        write_csv([record], tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("field", "bad"), [("misses", 3.0), ("misses", True), ("misses", None), ("layout", 3)])
def test_wrong_types_are_refused(field: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=f"record field {field} is"):
        to_dict(simulation(**{field: bad}))


def test_numpy_scalars_become_plain_numbers() -> None:
    row = to_dict(simulation(misses=numpy.uint64(7), seconds=numpy.float32(0.5), hit_rate=1))
    assert (row["misses"], row["seconds"], row["hit_rate"]) == (7, 0.5, 1.0)
    assert (type(row["misses"]), type(row["seconds"]), type(row["hit_rate"])) == (int, float, float)


def test_what_is_not_a_record_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a record"):
        to_dict(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind"):
        to_dict({"layout": "flat"})
    with pytest.raises(ValueError, match="not the kind of a SimulationRecord"):
        to_dict(simulation(kind="layout"))
    with pytest.raises(ValueError, match="schema 2"):
        to_dict(simulation(schema=2))


def test_csv_refuses_mixed_kinds_and_no_records(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'simulate' and 'layout'"):
        write_csv([simulation(), layout_record()], tmp_path / "out.csv")
    with pytest.raises(ValueError, match="no records"):
        write_csv([], tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []


def test_csv_replaces_a_file_only_when_told(tmp_path: Path) -> None:
    path = save([simulation()], tmp_path / "out.csv")
    with pytest.raises(FileExistsError):
        write_csv([simulation(seed=1)], path)
    assert read_records(path)[0]["seed"] == 0
    write_csv([simulation(seed=1)], str(path), force=True)
    assert read_records(path)[0]["seed"] == 1


def test_device_records_pass_through_as_dicts(tmp_path: Path) -> None:
    row = {
        "kind": "nvme", "target": "/dev/nvme0n1", "direct": True, "depth": 64, "layout": "pagegram", "slots": None,
        "stream_sha256": "12e3", "iops": 12.5, "iops_by_second": [1, 2.5],
    }  # fmt: skip
    assert read_records(save([row], tmp_path / "device.jsonl")) == [row]
    assert read_records(save([row], tmp_path / "device.csv")) == [row]
    for bad in ({"nested": {"a": 1}}, {"iops_by_second": [1, math.nan]}, {"iops_by_second": [[1]]}, {"schema": 9}):
        with pytest.raises(ValueError):
            to_dict({**row, **bad})


LINE = json.dumps(to_dict(simulation()))
BAD_LINES = {
    "truncated": LINE[:-20],
    "not an object": "[1, 2]",
    "not JSON": "reads 0.85",
    "NaN": LINE.replace('"hit_rate": 0.574', '"hit_rate": NaN'),
    "infinity": LINE.replace('"hit_rate": 0.574', '"hit_rate": 1e999'),
    "float for an integer": LINE.replace('"misses": 17573643', '"misses": 17573643.0'),
    "text for an integer": LINE.replace('"misses": 17573643', '"misses": "17573643"'),
    "missing field": LINE.replace('"misses": 17573643, ', ""),
    "key twice": LINE.replace('"misses": 17573643', '"misses": 1, "misses": 1'),
    "nested": LINE.replace('"kind"', '"extra": {}, "kind"'),
    "no kind": LINE.replace('"kind"', '"sort"'),
    "unknown schema": LINE.replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}'),
    "true as schema": LINE.replace(f'"schema": {SCHEMA}', '"schema": true'),
    "deep": "[" * 100_000,
    "long integer": LINE.replace("17573643", "1" * 10_000),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_malformed_json_lines_are_named_by_path_and_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{LINE}\n\n{BAD_LINES[name]}\n", encoding="utf-8")
    with pytest.raises(FormatError, match=f"^{re.escape(str(path))}:3: ") as caught:
        read_records(path)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    for name in ("bad.jsonl", "bad.csv"):
        path = save([simulation()], tmp_path / name)
        path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
        with pytest.raises(FormatError, match=rf"{re.escape(str(path))}:\d+: "):
            read_records(path)


def test_malformed_csv_is_named_by_path_and_line(tmp_path: Path) -> None:
    path = save([simulation(cpu="two\nlines"), simulation()], tmp_path / "bad.csv")
    text = path.read_text(encoding="utf-8")
    last = text.rstrip("\n").rpartition("\n")[2]
    head = text[: text.rindex(last)]
    for bad in (last + ",1", last.replace("17573643", "1.5"), last.replace("17573643", ""), last[:-30],
                last.replace("0.574", "nan"), last.replace("simulate,1", "simulate,2"), '"never closed'):  # fmt: skip
        path.write_text(head + bad + "\n", encoding="utf-8")
        with pytest.raises(FormatError, match=f"^{re.escape(str(path))}:4: "):
            read_records(path)
    for bad in ("", "layout,slots\nflat,\n", "kind,kind\nnvme,nvme\n"):
        path.write_text(bad, encoding="utf-8")
        with pytest.raises(FormatError, match=f"^{re.escape(str(path))}:1: "):
            read_records(path)


def test_files_touched_by_a_spreadsheet_still_read(tmp_path: Path) -> None:
    path = save([simulation()], tmp_path / "sheet.csv")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_records(path) == [to_dict(simulation())]


def test_a_path_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_records(tmp_path / "none.jsonl")


def test_frame_keeps_integers_and_none() -> None:
    frame = records_to_frame([simulation(seed=2**64 - 1), to_dict(simulation(slots=None, layout="flat"))])
    assert list(frame.columns) == [field.name for field in dataclasses.fields(SimulationRecord)]
    assert str(frame["misses"].dtype) == "int64"
    assert str(frame["slots"].dtype) == "Int64"
    assert frame["seed"].tolist() == [2**64 - 1, 0]
    assert frame["slots"].isna().tolist() == [False, True]
    assert frame["table_params"].tolist() == [20_000_000_000] * 2
    assert len(records_to_frame([])) == 0
    assert set(records_to_frame([simulation(), layout_record()])["kind"]) == {"simulate", "layout"}


def test_frame_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="needs pandas"):
        records_to_frame([simulation()])


def test_provenance_is_complete_and_cached_but_for_the_time() -> None:
    made = provenance()
    assert set(made) == {"version", "kernel", "cpu", "time"}
    assert all(made.values())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["time"])
    made["cpu"] = "changed by the caller"
    assert provenance()["cpu"] != "changed by the caller"


def test_records_are_frozen() -> None:
    record: Record = simulation()
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.seed = 1  # type: ignore[misc]

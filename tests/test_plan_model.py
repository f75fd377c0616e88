"""Plans of deployed tables: from headers, with placements that can be had, of logs, and by simulate's last line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.checkpoints import engram_family, engram_files

from pagegram_io import deployed
from pagegram_io.cli import run
from pagegram_io.deployed.model_table import model_table

MODEL = "toy-engram"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small whole checkpoint whose model the commands know, a stream of many documents, and a drive."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(deployed.FAMILIES, MODEL, engram_family())
    Path("toy").mkdir()
    engram_files(Path("toy"), "F8_E4M3", 256, scales=True, data_at=8)
    rng = np.random.default_rng(2)
    ids = rng.integers(1, 1000, 6000).astype("<u2")
    ids[29::30] = 0
    ids.tofile("my tokens.u16")
    lines = [{"prompt": rng.integers(1, 1000, 40).tolist(), "completion": rng.integers(1, 1000, 40).tolist()}
             for _ in range(120)]  # fmt: skip
    Path("log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = [
        {"kind": "nvme", "schema": 1, "target": "/dev/x", "direct": True, "mode": "decode", "depth": 64,
         "reads": n * 999, "steps": 999, "reads_per_step": float(n), "step_p50_ns": n * 10_000,
         "step_p99_ns": n * 20_000, "page_bytes": 4096, "engine": "io_uring", "span_bytes": 2**40}
        for n in range(1, 60)
    ]  # fmt: skip
    Path("drive.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return tmp_path


STREAM = ["--tokens", "my tokens.u16", "--eod", "0"]
TABLE = ["--model", MODEL, "--files", "toy"]


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["plan", *words, "--device", "drive.jsonl", "--json"]) == 0, capsys.readouterr()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["simulate", *words, "--json"]) == 0, capsys.readouterr()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("how", [[], ["--scales", "read"], ["--repack"], ["--repack", "--aligned"]])
def test_a_plan_reads_what_simulate_reads(folder: Path, capsys: pytest.CaptureFixture[str], how: list[str]) -> None:
    plan = planned(capsys, *TABLE, *how, *STREAM, "--cache", "16KiB", "--batch", "4", "--goal", "10")
    (record,) = simulated(capsys, *TABLE, *how, *STREAM, "--cache", "16KiB", "--interleave", "4")
    whole = next(r for r in plan if r["cache_pages"] == 4 and r["layer"] is None)
    for name in ("placement", "row_bytes", "pages", "file_bytes", "scales", "resident_bytes", "assumed", "row_format"):
        assert whole[name] == record[name], name
    assert whole["reads_per_token"] == pytest.approx(record["reads_per_token_second_half"])


@pytest.mark.parametrize(("path", "unit"), [("page", "page"), ("row", "row")])
def test_a_plan_of_many_caches_reads_what_simulate_reads(
    folder: Path, capsys: pytest.CaptureFixture[str], path: str, unit: str
) -> None:
    """More sizes than one handle takes, with doublings beside them; none, and more than the table, among them."""
    caches = ",".join(["none", "1GiB", *(f"{4 * n}KiB" for n in range(1, 71))])
    words = [*TABLE, *STREAM, "--cache", caches]
    plan = planned(capsys, *words, "--batch", "4,4", "--goal", "10", "--path", path)
    found = simulated(capsys, *words, "--interleave", "4", "--cache-unit", unit)
    wholes = {r["cache_pages"]: r for r in plan if r["layer"] is None}
    assert len(wholes) == len([r for r in plan if r["layer"] is None]) == 72  # a batch named twice is planned once
    for record in found:
        whole = wholes[record["cache_pages"]]
        assert whole["reads_per_token"] == pytest.approx(record["reads_per_token_second_half"])
        assert whole["cache_full_at_token"] == record["cache_full_at_token"]


def test_too_few_documents_are_known_before_anything_is_simulated(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a pass was made")

    monkeypatch.setattr("pagegram_io.demand.serve", never)
    assert run(["plan", *TABLE, *STREAM, "--batch", "1,4,201", "--goal", "10"]) == 2
    err = capsys.readouterr().err
    assert "200 documents, and a batch of 201" in err and len(err.splitlines()) == 1


def test_the_cheapest_change_is_a_placement_that_can_be_had(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight rows and eight scales a token: together, or with the scales in RAM, they are half the reads or fewer."""
    words = [*STREAM, "--cache", "4KiB", "--batch", "1", "--deadline", "1=80us,14=160us"]
    read = planned(capsys, *TABLE, "--scales", "read", *words)
    assert {r["change"] for r in read if r["cache_pages"] == 1} == {"repack, so that no row straddles or lies apart"}
    aligned = planned(capsys, *TABLE, "--repack", "--aligned", *words)
    assert {(r["verdict"], r["change"]) for r in aligned if r["layer"] is None and r["cache_pages"] == 1} == {
        ("go", None)
    }
    table = model_table(engram_family(), "toy")
    now = table.layout(scales="read")
    assert table.repacked(now) == table.layout(repack=True, aligned=True)
    assert table.repacked(table.layout(repack=True, aligned=True)) is None
    resident = table.with_resident_scales(now)
    assert resident is not None and resident == (table.layout(), 8 * sum(t.rows for t in table.tensors))
    assert table.with_resident_scales(table.layout()) is None


def test_a_table_of_one_layer_has_one_deadline(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(deployed.FAMILIES, MODEL, engram_family(layers=(1,)))
    words = ["--model", MODEL, *STREAM, "--cache", "none", "--batch", "2", "--deadline"]
    bare, named = (planned(capsys, *words, text)[0] for text in ("200us", "1=200us"))
    assert bare["deadline_ns"] == named["deadline_ns"] == 200_000
    assert (bare["verdict"], bare["layer"], bare["reads_per_step_p99"]) == (named["verdict"], 1, 8)


def test_plans_of_a_repacked_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for packed in ([], ["--packed"]):
        assert run(["repack", "--model", MODEL, "toy", "-o", "out.safetensors", "--force", *packed]) == 0
        common = [*STREAM, "--cache", "16KiB,none"]
        found = simulated(capsys, "--model", MODEL, "--files", "out.safetensors", *common)
        made = simulated(capsys, *TABLE, "--repack", *([] if packed else ["--aligned"]), *common)
        assert [r["misses"] for r in found] == [r["misses"] for r in made]
        assert (found[0]["placement"], found[0]["row_bytes"], found[0]["assumed"]) == ("files", 264, None)
        assert found[0]["row_format"] == made[0]["row_format"] == "fp8 repacked"
    for wrong, status, word in (
        (["--scales", "read"], 2, "repacked already"),
        (["--repack"], 2, "repacked already"),
        (["--page-size", "8KiB"], 1, "--page-size 4096"),
    ):
        capsys.readouterr()
        words = ["simulate", "--model", MODEL, "--files", "out.safetensors", *STREAM, "--cache", "none", *wrong]
        assert run(words) == status
        assert word in capsys.readouterr().err
    assert run(["simulate", "--model", "gemma-ple", "--files", "out.safetensors", "--cache", "none"]) == 1
    assert "repacked rows of toy-engram" in capsys.readouterr().err


def test_plans_of_a_log(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps that make tokens are timed; the prompts' chunks pass through the cache and have a rate of their own."""
    log = [*TABLE, "--requests", "log.jsonl", "--cache", "16KiB", "--goal", "10", "--window", "16"]
    plan = planned(capsys, *log, "--concurrency", "4")
    assert {r["batch"] for r in plan} == {4} and plan[0]["stream"] == "log.jsonl"
    whole = next(r for r in plan if r["layer"] is None)
    assert 0 < whole["steps"] <= 120 * 40 / 4 / 2 and whole["reads_per_step_p99"] <= 4 * 9
    assert whole["prefill_window"] == 16 and whole["prefill_reads_per_token"] > 0
    assert {r["batch"] for r in planned(capsys, *log, "--batch", "2,3")} == {2, 3}
    assert run(["plan", *log, "--concurrency", "4"]) == 0
    assert "Steps are those that only make tokens" in capsys.readouterr().out
    for wrong, word in (
        (["--concurrency", "4", "--batch", "4"], "give one of them"),
        (["--concurrency", "400"], "120 documents, and a batch of 400"),
        (["--tokens", "my tokens.u16"], "--tokens is of token streams"),
    ):
        capsys.readouterr()
        assert run(["plan", *log, *wrong]) == 2
        assert word in capsys.readouterr().err
    assert run(["plan", *TABLE, *STREAM, "--goal", "9", "--concurrency", "4"]) == 2
    assert "--concurrency goes with --requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        [*STREAM],
        [*STREAM, "--files", "toy"],
        [*STREAM, "--files", "toy", "--scales", "read", "--limit", "5K"],
        [*STREAM, "--files", "toy", "--repack", "--aligned", "--vocab", "1000"],
        [*STREAM, "--row-format", "bf16", "--page-size", "8KiB", "--interleave", "3"],
        [*STREAM, "--dtype", "uint16", "--window", "64", "--cache-unit", "row"],
        ["--tokens", "my tokens.u16", "--documents", "starts.txt"],
        ["--requests", "log.jsonl", "--concurrency", "5", "--window", "16"],
    ],
)
def test_the_line_that_simulate_ends_with_is_a_plan_of_the_same_thing(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    Path("starts.txt").write_text("".join(f"{i}\n" for i in range(0, 6000, 30)))
    words = ["simulate", "--model", MODEL, *options, "--cache", "32KiB,none"]
    assert run(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("next: pagegram-io plan --model toy-engram --cache 32KiB,none ")
    program, command, *rest = shlex.split(last.removeprefix("next: "))
    assert (program, command) == ("pagegram-io", "plan")
    if "8KiB" in options:  # a drive of the same pages
        Path("drive.jsonl").write_text(
            Path("drive.jsonl").read_text().replace('"page_bytes": 4096', '"page_bytes": 8192')
        )
    plan = planned(capsys, *rest)
    (record, _) = simulated(capsys, *words[1:])
    for name in ("stream_sha256", "tokens", "documents", "placement", "pages", "row_bytes", "row_format", "scales",
                 "page_bytes", "cache_unit", "model"):  # fmt: skip
        assert plan[0][name] == record[name], name
    if record["interleave"] is not None and "--window" not in options:
        assert {r["batch"] for r in plan} == {record["interleave"]}


def test_the_line_is_of_the_same_ranks_and_left_out_of_records(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", *TABLE, *STREAM, "--cache", "16KiB"]
    assert run([*words, "--ranks", "2", "--split", "heads"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("next: pagegram-io plan ") and "--ranks 2 --split heads --goal 100" in last
    plan = planned(capsys, *shlex.split(last)[3:])
    assert {(r["ranks"], r["rank_split"], r["slowest_rank"] is None) for r in plan if r["rank"] is None} == {
        (2, "heads", False)
    }
    assert run([*words, "--by", "layer"]) == 0
    assert "--split" not in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    assert "next:" not in capsys.readouterr().out

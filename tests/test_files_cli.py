"""Checkpoints on the command line: --files, --repack, --ranks, inspect, repack, trace; mistakes are one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.checkpoints import bare_deepseek, engram_family, engram_files
from harness.targets import filesystem_of, takes_direct

from pagegram_io import cli, deployed

MODEL = "deepseek-v4.1-flash"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_deepseek(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, np.ndarray]:
    """A small whole checkpoint whose model the commands know."""
    monkeypatch.setitem(deployed.FAMILIES, "toy-engram", engram_family())
    folder = tmp_path / "toy"
    folder.mkdir()
    return folder, engram_files(folder, "F8_E4M3", 256, scales=True, data_at=None)


def records(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, object]]:
    assert cli.run([*map(str, words), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_headers_alone_place_the_deployed_table(capsys: pytest.CaptureFixture[str], bare: Path) -> None:
    common = ("simulate", "--model", MODEL, "--files", bare, "--limit", 2000, "--cache", "none")
    (resident,) = records(capsys, *common)
    assert (resident["placement"], resident["assumed"], resident["row_bytes"]) == ("files", "scales resident", 256)
    assert resident["resident_bytes"] == 768_022_850 * 8
    assert resident["reads_per_token"] == pytest.approx(48 * 1.0625, rel=0.01)  # rows begin at a byte of 8 modulo 64
    (read,) = records(capsys, *common, "--scales", "read")
    assert read["reads_per_token"] == pytest.approx(48 * 2.0625, rel=0.01)
    (aligned,) = records(capsys, *common, "--repack", "--aligned")
    assert (aligned["reads_per_token"], aligned["row_bytes"], aligned["placement"]) == (48, 264, "aligned")
    (packed,) = records(capsys, *common, "--repack")
    assert packed["reads_per_token"] == pytest.approx(48 * 1.0625, rel=0.01)


@pytest.mark.parametrize("split", ["heads", "rows", "columns"])
def test_ranks_read_what_the_table_reads_together(
    capsys: pytest.CaptureFixture[str], toy: tuple[Path, np.ndarray], tmp_path: Path, split: str
) -> None:
    tokens = tmp_path / "t.u16"
    tokens.write_bytes(np.random.default_rng(1).integers(0, 1000, 700).astype("<u2").tobytes())
    common = ("simulate", "--model", "toy-engram", "--files", toy[0], "--tokens", tokens, "--cache", "none")
    (whole,) = records(capsys, *common)
    shares = records(capsys, *common, "--ranks", 3, "--split", split)
    assert [(r["rank"], r["ranks"], r["rank_split"]) for r in shares] == [(i, 3, split) for i in range(3)]
    assert sum(r["accesses"] for r in shares) == whole["accesses"]  # type: ignore[misc]
    assert (whole["rank"], whole["rank_split"]) == (None, None)
    assert cli.run([*map(str, common), "--ranks", "3", "--split", split]) == 0
    assert "2 of 3" in capsys.readouterr().out


@pytest.fixture
def on_disk(toy: tuple[Path, np.ndarray]) -> Iterator[Path]:
    """The toy checkpoint where O_DIRECT works: pytest's folder, or one under build/ where that is a tmpfs."""
    if takes_direct(toy[0]) and filesystem_of(toy[0]) != "tmpfs":
        yield toy[0]
        return
    beside = Path(__file__).parents[1] / "build" / f"test-own-files-{os.getpid()}"
    shutil.copytree(toy[0], beside)
    yield beside
    shutil.rmtree(beside)


@pytest.mark.parametrize("scales", ["resident", "read"])
def test_nvme_reads_a_checkpoints_own_files(
    capsys: pytest.CaptureFixture[str], on_disk: Path, tmp_path: Path, scales: str
) -> None:
    """Its reads are the simulator's: uncached, and behind a cache, from two files at once."""
    tokens = tmp_path / "t.u16"
    tokens.write_bytes(np.random.default_rng(1).integers(0, 1000, 700).astype("<u2").tobytes())
    common = ("--model", "toy-engram", "--files", on_disk, "--tokens", tokens, "--scales", scales)
    caches = ("--cache", "none,16KiB")
    simulated = records(capsys, "simulate", *common, *caches)
    read = records(capsys, "nvme", *common, *caches, "--reads", 700, "--depth", 5)
    assert [r["reads"] for r in read] == [s["misses"] for s in simulated]
    assert {r["target_kind"] for r in read} == {"files"} and read[0]["target"] == str(on_disk)
    (uniform,) = records(capsys, "nvme", "--uniform", *common, "--reads", 50)
    assert uniform["reads"] == 50 and uniform["span_bytes"] == simulated[0]["pages"] * 4096  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--uniform"], "name a TARGET"),
        (["--model", MODEL], "name a TARGET"),
        (["--model", "toy-engram", "--files", "{toy}", "--offset", "4KiB"], "--offset is for one TARGET"),
        (["--model", "toy-engram", "--files", "{toy}", "--wrap"], "--wrap is for one TARGET"),
        (["--model", "toy-engram", "--files", "{toy}", "--repack"], "not there yet"),
    ],
)
def test_nvme_without_a_target_needs_files(
    capsys: pytest.CaptureFixture[str], toy: tuple[Path, np.ndarray], words: list[str], match: str
) -> None:
    assert cli.run(["nvme", *[word.format(toy=toy[0]) for word in words]]) == 2
    err = capsys.readouterr().err
    assert match in err and len(err.splitlines()) == 1


def test_nvme_on_headers_alone_names_file_and_tensor(capsys: pytest.CaptureFixture[str], bare: Path) -> None:
    assert cli.run(["nvme", "--model", MODEL, "--files", str(bare)]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "engram.embed.weight" in err and "not all here" in err and "safetensors" in err


def test_inspect_says_what_a_checkpoint_holds_and_lacks(
    capsys: pytest.CaptureFixture[str], bare: Path, toy: tuple[Path, np.ndarray]
) -> None:
    (record,) = records(capsys, "inspect", bare)
    assert (record["kind"], record["model"], record["files"], record["files_truncated"]) == ("checkpoint", MODEL, 2, 2)
    assert (record["row_bytes"], record["scale_bytes"], record["extents"]) == (256, 8, 4)
    assert record["uncached_reads"] == pytest.approx(51) and "its bytes are not all here" in str(record["problem"])
    (record,) = records(capsys, "inspect", toy[0])
    assert (record["model"], record["problem"], record["files_truncated"]) == ("toy-engram", None, 0)
    assert cli.run(["inspect", str(bare), str(toy[0] / "a-1.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "6.25 % of rows straddle" in out and "problem" in out
    (record,) = records(capsys, "inspect", toy[0] / "a-2.safetensors")  # of two tables, one
    assert record["model"] is None and "no tensor of this model's table" in str(record["problem"])


def test_repack_writes_a_file_that_verify_and_inspect_know(
    capsys: pytest.CaptureFixture[str], toy: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    command = ["repack", "--model", "toy-engram", str(toy[0]), "-o", str(out)]
    assert cli.run(command) == 0
    assert "rows of 264 bytes" in capsys.readouterr().err
    assert cli.run(["verify", str(out)]) == 0
    assert cli.run(["inspect", str(out)]) == 0
    assert "rows of toy-engram repacked" in capsys.readouterr().out
    assert cli.run(command) == 1
    assert "exists; --force replaces it" in capsys.readouterr().err
    assert cli.run([*command, "--force", "--packed"]) == 0
    assert cli.run(["verify", str(out)]) == 0


def test_traces_of_real_files_name_them(bare: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.iolog"
    assert cli.run(["trace", "--model", MODEL, "--files", str(bare), "--limit", "4", "-o", str(out)]) == 0
    lines = [line.split() for line in out.read_text().splitlines()[1:]]
    files = [str(bare / f"m-{i}.safetensors") for i in range(2)]
    assert [line for line in lines if line[1] != "read"] == [
        [file, what] for file in files for what in ("add", "open")] + [[file, "close"] for file in files]  # fmt: skip
    reads = [(line[0], int(line[2])) for line in lines if line[1] == "read"]
    assert {file for file, _ in reads} == set(files) and all(byte % 4096 == 0 for _, byte in reads)
    about = json.loads((tmp_path / "x.iolog.json").read_text())
    assert about["placement"] == "files" and [w["file"] for w in about["windows"]] == files
    for window in about["windows"]:
        assert all(
            window["byte"] <= byte < window["byte"] + window["page_count"] * 4096
            for file, byte in reads
            if file == window["file"]
        )


@pytest.mark.parametrize(
    ("words", "status", "match"),
    [
        (["simulate", "--files", "x"], 2, "--files goes with --model"),
        (["simulate", "--model", MODEL, "--aligned"], 2, "--aligned goes with --repack"),
        (["simulate", "--model", MODEL, "--ranks", "4"], 2, "--ranks N goes with --split"),
        (["simulate", "--model", MODEL, "--split", "heads"], 2, "--ranks N goes with --split"),
        (["simulate", "--ranks", "4", "--split", "heads"], 2, "--ranks goes with --model"),
        (["simulate", "--model", MODEL, "--files", ".", "--row-format", "q4_k"], 2, "the files say"),
        (["simulate", "--model", MODEL, "--files", "nothing-here"], 1, "no such file"),
        (["repack", "--model", "nobody", "x", "-o", "y"], 2, "model 'nobody' is not known"),
        (["inspect", "nothing-here"], 1, "no such file"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], words: list[str], status: int, match: str) -> None:
    assert cli.run(words) == status
    error = capsys.readouterr().err
    assert match in error and "Traceback" not in error


def test_a_plot_of_ranks_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = str(tmp_path / "x.png")
    assert cli.run(["simulate", "--model", MODEL, "--ranks", "2", "--split", "rows", "--plot", plot]) == 2
    assert "cannot be used with" in capsys.readouterr().err

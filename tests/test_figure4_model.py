"""``figure4 --model`` and Table 6 of deployed tables: the curve is the simulator's, and what is said of it is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from harness.checkpoints import engram_family, engram_files

from pagegram_io import deployed
from pagegram_io.cli import run
from pagegram_io.record_files import read_records
from pagegram_io.tokens import DEEPSEEK_STREAM


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a stream, toy.u16, of two models that the commands know."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(deployed.FAMILIES, "toy-engram", engram_family())
    monkeypatch.setitem(deployed.FAMILIES, "wide-engram", replace(engram_family(width=2048), name="wide-engram"))
    np.random.default_rng(1).integers(0, 1000, 3000).astype("<u2").tofile("toy.u16")
    return tmp_path


TOY = ["--tokens", "toy.u16", "--formats", "svg"]


def by_cache(path: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {(r["layout"], r["cache_pages"]): r for r in read_records(path)}


def text_of(path: str) -> str:
    return " ".join(" ".join(ElementTree.parse(path).getroot().itertext()).split())


@pytest.mark.parametrize(
    "options", [[], ["--scales", "read"], ["--repack", "--aligned"], ["--row-format", "bf16"], ["--files", "."]]
)
def test_every_point_is_what_simulate_says(
    options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engram_files(folder, "F8_E4M3", 256, scales=True, data_at=8)
    model = ["--model", "toy-engram", *options]
    assert run(["figure4", "-o", "out", *model, *TOY]) == 0
    points = by_cache("out/figure4.jsonl")
    assert len(points) > 20
    capsys.readouterr()
    caches = ",".join(str(pages * 4096) for _, pages in points if pages)
    assert run(["simulate", *model, "--tokens", "toy.u16", "--cache", f"none,{caches}", "--json"]) == 0
    wanted = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(wanted) == len(points)
    for record in wanted:
        point = points["toy-engram", record["cache_pages"]]
        for name in ("misses", "compulsory_misses", "pages", "scales", "resident_bytes", "assumed", "placement"):
            assert point[name] == record[name], name


def test_deepseek_is_drawn_on_its_own_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", "deepseek-v4.1-flash"]
    assert run(["figure4", "-o", "out", *model, "--limit", "3K", "--formats", "svg"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["out/figure4.jsonl", "out/figure4.svg"]
    assert err == (
        "note: Assumed, without the checkpoint's headers: each tensor on a page boundary; scales resident "
        "(5.722 GiB of RAM).\n"
    )
    (uncached,) = (r for r in read_records("out/figure4.jsonl") if r["cache_pages"] == 0)
    assert (uncached["stream"], uncached["model"], uncached["misses"]) == (DEEPSEEK_STREAM, model[1], 48 * 3000)
    assert run(["figure4", "-o", "again", "--records", "out/figure4.jsonl", "--formats", "svg"]) == 0
    assert Path("again/figure4.svg").read_bytes() == Path("out/figure4.svg").read_bytes()
    assert capsys.readouterr().err == err


def test_several_models_are_drawn_on_one_stream(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["figure4", "-o", "toys", "--model", "wide-engram,toy-engram,wide-engram", *TOY]) == 0
    assert {name for name, _ in by_cache("toys/figure4.jsonl")} == {"toy-engram", "wide-engram"}
    both = "qwen3.8-flash-next,longcat-flash-lite"  # two models that have no text of their own
    capsys.readouterr()
    assert run(["figure4", "-o", "two", "--model", both, "--limit", "3K", "--formats", "svg"]) == 0
    assert capsys.readouterr().err.startswith("note: longcat-flash-lite, qwen3.8-flash-next: Assumed, without")
    text = text_of("two/figure4.svg")
    for words in ("qwen3.8-flash-next, 51.2B", "longcat-flash-lite, 31.41B", "stands in for", "an estimate"):
        assert words in text, words


def test_table_6_of_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reads a token on the device are those of the simulator, over the whole stream."""
    model = ["--model", "toy-engram", "--tokens", "toy.u16"]
    assert run(["mkfile", "toy.safetensors", "--model", "toy-engram"]) == 0
    capsys.readouterr()
    assert run(["nvme", *model, "--cache", "none,64KiB", "--reads", "3K", "--json", "toy.safetensors"]) == 0
    Path("device.jsonl").write_text(capsys.readouterr().out)
    drawn = ["figure4", "-o", "out", *model, "--formats", "svg", "--device-records", "device.jsonl"]
    assert run(drawn) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "toy-engram" in line]
    assert [line[1] for line in lines] == ["none", "64"] and lines[0][-7:-5] == ["8.000", "8.000"]
    table = Path("out/table6.csv").read_text().splitlines()
    header, behind = table[0].split(","), table[2].split(",")
    reads = {name: float(behind[header.index(name)]) for name in ("reads_per_token", "device_reads_per_token")}
    assert reads["device_reads_per_token"] == reads["reads_per_token"] < 8
    assert "toy-engram, 64 KiB cache" in text_of("out/figure4.svg")
    for other in (["--scales", "read"], ["--repack"]):
        assert run([*drawn, *other, "--force"]) == 2
        assert "on the device" in capsys.readouterr().err
    before = Path("out/figure4.jsonl").read_bytes()
    assert run([*drawn, "--limit", "100", "--force"]) == 2
    assert Path("out/figure4.jsonl").read_bytes() == before  # known before the work, and nothing is replaced
    assert "give both the same --tokens and --limit" in capsys.readouterr().err


def test_a_filler_stream_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.full(5000, 17, "<u2").tofile("filler.u16")
    assert run(["figure4", "-o", "out", "--model", "toy-engram", "--tokens", "filler.u16", "--formats", "svg"]) == 0
    assert "filler stream" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nobody"], "model 'nobody' is not known"),
        (["--model", "gemma-ple,lngram"], "hidden states"),
        (["--model", "gemma-ple", "--table", "20B"], "--table describes our layouts"),
        (["--model", "gemma-ple", "--layout", "flat"], "--layout describes our layouts"),
        (["--model", "gemma-ple", "--slots", "4"], "--slots describes our layouts"),
        (["--model", "gemma-ple", "--row-format", "nf4"], "no row format 'nf4'"),
        (["--model", "gemma-ple", "--aligned"], "--aligned goes with --repack"),
        (["--model", "modded-nanogpt", "--limit", "10K"], "50,304 ids"),
        (["--model", "deepseek-v4.1-flash,qwen3.8-flash-next"], "have streams of their own"),
        (["--model", "toy-engram,wide-engram", "--files", "."], "--files are the checkpoint of one model"),
        (["--files", "."], "--files goes with --model"),
        (["--scales", "read"], "--scales goes with --model"),
        (["--records", "x.jsonl", "--model", "gemma-ple"], "--model is for a simulation"),
        (["--records", "x.jsonl", "--scales", "read"], "--scales is for a simulation"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals(arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["figure4", "-o", "out", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and words in err, err
    assert not Path("out").exists()

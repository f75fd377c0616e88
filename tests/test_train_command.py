"""The commands train and eval: what they print and write, Ctrl-C, and one line for every mistake (C30)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_models_train import STREAM, TINY, VALIDATION

from pagegram_io.cli import run
from pagegram_io.models import presets
from pagegram_io.models.trainer import Trainer
from pagegram_io.record_files import read_records
from pagegram_io.tokens import write_stream


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of two small streams, where mini is tiny and the current folder is empty."""
    monkeypatch.setitem(presets.PRESETS, "mini", dataclasses.replace(TINY, name="mini"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "streams").mkdir()
    write_stream("streams/train.u16", STREAM.ids)
    write_stream("streams/test.u16", VALIDATION.ids)
    return ["--tokens", "streams/train.u16", "--validation", "streams/test.u16"]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int, *words: str) -> None:
    """The command fails with this status and one line that holds the words, and leaves the folder as it was."""
    before = sorted(os.listdir())
    capsys.readouterr()
    assert run(arguments) == status, capsys.readouterr()
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("pagegram-io: ") and err.count("\n") == 1 and "Traceback" not in err, err
    for word in words:
        assert word in err
    assert sorted(os.listdir()) == before


def test_train_then_eval(streams: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *streams, "--out", "run", "--csv", "run.csv", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    assert "pagegram S=4" in out and "held-out loss" in out and "checkpoint: run" in out and err == ""
    trained = read_records("run.csv")[0]
    assert trained["steps"] == [4, 6] and trained["threads"] == 1
    assert run(["eval", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss"] == trained["loss"] and found["stream"] == "test.u16"
    assert run(["eval", "run", "--windows", "2", "--validation", "streams/train.u16", "--csv", "eval.csv"]) == 0
    assert "fp32 in RAM" in capsys.readouterr().out
    assert read_records("eval.csv")[0]["windows"] == 2


def test_json_is_one_record(streams: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *streams, "--memory", "none", "--steps", "60", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["epochs"] == 60 * 64 / 3000 and err == "note: without --out nothing is kept\n"
    assert run(["train", *streams, "--memory", "none", "--steps", "60"]) == 0
    assert "seen 1.28 times over" in capsys.readouterr().err


def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(
    streams: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["train", *streams, "--out", "whole", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    step = Trainer.train_step

    def interrupted(trainer: Trainer, stop: object) -> float:
        if trainer.step == 3:
            signal.raise_signal(signal.SIGINT)
        return step(trainer, stop)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", interrupted)
        assert run(["train", *streams, "--out", "run"]) == 130
    out, err = capsys.readouterr()
    line = "pagegram-io: stopped after 3 of 6 steps; go on with: pagegram-io train --resume run\n"
    assert (out, err) == ("", line)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    refused(["train", "--resume", "run", "--seed", "1"], capsys, 2, "seed 0, and this run has 1")
    refused(["train", "--resume", "run", "--memory", "flat"], capsys, 2, "slots")
    refused(["train", "--resume", "run", "--out", "other"], capsys, 2, "no --out")
    refused(["train", "--resume", "run", "--tokens", "streams/test.u16"], capsys, 2, "changed")
    os.rename("streams/train.u16", "streams/moved.u16")
    refused(["train", "--resume", "run"], capsys, 1, "streams/train.u16", "no such file")
    assert run(["train", "--resume", "run", "--tokens", "streams/moved.u16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == whole["loss"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", interrupted)
        assert run(["train", "--tokens", "streams/moved.u16", *streams[2:]]) == 130
    assert "nothing is kept" in capsys.readouterr().err


def test_mistakes_get_one_line(streams: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status, words in [
        (["--preset", "huge"], 2, ["huge"]),
        (["--preset", "base"], 2, ["--tokens", "no stream ships"]),
        (["--memory", "engrams"], 2, ["engrams"]),
        ([*streams, "--memory", "flat", "--slots", "4"], 2, ["slots belong to pagegram"]),
        ([*streams, "--slots", "0"], 2, ["--slots"]),
        ([*streams, "--table-params", "100"], 2, ["too small"]),
        ([*streams, "--memory", "none", "--gate", "context"], 2, ["--gate belongs to a table"]),
        ([*streams, "--memory", "none", "--table-params", "1M"], 2, ["no table"]),
        ([*streams, "--steps", "0"], 2, ["--steps"]),
        ([*streams, "--table-decay", "1000"], 2, ["table decay"]),
        ([*streams, "--table-decay", "nan"], 2, ["nan is not a finite number"]),
        ([*streams, "--table-decay", "inf"], 2, ["inf is not a finite number"]),
        ([*streams, "--device", "tpu9"], 2, ["tpu9"]),
        ([*streams, "--device", "cuda:99"], 3, ["cuda:99", "no such GPU"]),
        ([*streams, "--out", "streams"], 1, ["streams", "not a checkpoint"]),
        ([*streams, "--out", "none/run"], 1, ["none", "no such file or folder"]),
        ([*streams, "--csv", "none/run.csv"], 1, ["none"]),
        ([*streams, "--checkpoint-every", "2"], 2, ["output folder"]),
        ([*streams[2:], "--tokens", "none.u16"], 1, ["none.u16"]),
        (["--resume", "none"], 1, ["none/config.json"]),
        (["--resume", "streams"], 1, ["streams: not a checkpoint"]),
    ]:
        refused(["train", *arguments], capsys, status, *words)


def test_a_finished_run_and_windows_that_do_not_fit_get_a_note(
    streams: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", *streams, "--out", "run"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["train", "--resume", "run"]) == 0
    assert capsys.readouterr().err == "note: run is complete (step 6 of 6); nothing was trained\n"
    assert run(["eval", "run", "--windows", "1M", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"note: {json.loads(out)['windows']:,} windows were used, all that the stream holds, of 1,000,000\n"


def test_a_table_of_another_checkpoint_is_refused(streams: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for seed in ("0", "1"):
        assert run(["train", *streams, "--steps", "1", "--seed", seed, "--out", f"run{seed}"]) == 0
        assert run(["pack", f"run{seed}", "-o", f"{seed}.safetensors"]) == 0
    digest = hashlib.sha256(Path("run1/model.safetensors").read_bytes()).hexdigest()
    capsys.readouterr()
    assert run(["inspect", "1.safetensors"]) == 0
    assert digest in capsys.readouterr().out
    assert run(["eval", "run1", "--table", "1.safetensors", "--in-ram"]) == 0
    assert capsys.readouterr().err == ""
    words = "0.safetensors was packed from another checkpoint; pack this one again"
    refused(["eval", "run1", "--table", "0.safetensors", "--in-ram"], capsys, 2, words)
    refused(["eval", "run1", "--table", "0.safetensors", "--buffered"], capsys, 2, words)
    os.rename("run0/model.safetensors", "kept")
    assert run(["pack", "run0", "-o", "unnamed.safetensors"]) == 0
    os.rename("kept", "run0/model.safetensors")
    capsys.readouterr()
    assert run(["eval", "run0", "--table", "unnamed.safetensors", "--in-ram"]) == 0
    assert "note: unnamed.safetensors does not say which checkpoint" in capsys.readouterr().err


def test_ids_beyond_the_vocabulary_get_one_line(streams: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    write_stream("wide.u16", STREAM.ids + 1)
    refused(["train", *streams[2:], "--tokens", "wide.u16"], capsys, 1, "wide.u16", "outside the vocabulary of 64")
    write_stream("short.u16", STREAM.ids[:16])
    refused(["train", *streams[2:], "--tokens", "short.u16"], capsys, 2, "short.u16", "16 tokens")


def test_what_eval_refuses(streams: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *streams, "--memory", "none", "--steps", "1", "--out", "plain"]) == 0
    refused(["eval", "plain", "--cache", "1MiB"], capsys, 2, "--cache belongs to a packed table")
    refused(["eval", "plain", "--in-ram"], capsys, 2, "--in-ram")
    refused(["eval", "plain", "--table", "x", "--in-ram", "--cache", "1MiB"], capsys, 2, "not to --in-ram")
    refused(["eval", "plain", "--table", "x"], capsys, 2, "plain has no table")
    refused(["eval", "none"], capsys, 1, "none/config.json")
    refused(["eval", "streams"], capsys, 1, "not a checkpoint")
    refused(["eval", "plain", "--validation", "streams/none.u16"], capsys, 1, "none.u16")
    refused(["eval", "plain", "--device", "cuda:99"], capsys, 3, "no such GPU here; choose --device cpu")
    assert run(["train", *streams, "--steps", "1", "--out", "run"]) == 0
    assert run(["mkfile", "pattern.safetensors", "--size", "64KiB"]) == 0
    refused(["eval", "run", "--table", "pattern.safetensors"], capsys, 1, "pattern to measure with")
    refused(["eval", "run", "--table", "streams/test.u16"], capsys, 1, "not a safetensors file")


def test_without_torch_one_line_says_what_to_install(
    streams: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for arguments in (["train", *streams], ["eval", "run"]):
        refused(arguments, capsys, 1, "torch is not installed: pip install 'pagegram-io[train]'")


def test_help_and_presets_import_no_torch() -> None:
    program = (
        "import sys; from pagegram_io.cli import run; import pagegram_io.models.presets; run(['train', '--help']); "
        "run(['eval', '--help']); assert not {'torch', 'safetensors', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_streams_that_ship_are_the_defaults() -> None:
    from pagegram_io.tokens import read_stream, shipped_path

    mini = presets.MINI
    for name in (mini.train_stream, mini.validation_stream):
        assert name is not None
        stream = read_stream(shipped_path(name), eod=mini.eod, vocabulary=mini.vocabulary, limit=10_000)
        assert len(stream.document_starts) > 1

"""Checkpoints: resumed to the bit, replaced as a whole, refused where they are damaged or another run's."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_models_train import MEMORIES, TINY, VALIDATION, run_tiny, tiny_job, trainer_of

from pagegram_io.errors import FormatError
from pagegram_io.models import checkpoint
from pagegram_io.models.evaluation_job import EvalJob
from pagegram_io.models.evaluation_job import run as run_evaluation
from pagegram_io.models.train import Interrupted, run


def stop_after(parts: int) -> Callable[[], bool]:
    """Says no so many times, then yes: it is asked before each of two parts of a step, and in validations."""
    left = parts

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return stop


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {f"{p.name}:{key}": t for p in folder.glob("*.safetensors") for key, t in load_file(p).items()}


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "none"},
        {"memory": "pagegram"},
        {"memory": "engram", "table_decay": 0.5, "bias_correction": "row"},
        {"memory": "flat", "gate": "context"},
    ],
)
@pytest.mark.parametrize("parts", [0, 5, 9])
def test_resuming_is_bit_identical(options: dict[str, Any], parts: int, tmp_path: Path) -> None:
    """Stopped before the first step, inside a step, or inside a validation, and gone on with."""
    whole = run_tiny(tiny_job(**options, out=str(tmp_path / "whole")))[0]
    out = str(tmp_path / "parts")
    with pytest.raises(Interrupted, match=r"stopped after \d of 6 steps; go on with: pagegram-io train --resume"):
        run_tiny(tiny_job(**options, out=out), stop=stop_after(parts))
    resumed = run_tiny(tiny_job(**options, out=out, resume=True))[0]
    changing = {"time", "seconds", "tokens_per_second"}
    assert {k: v for k, v in resumed.items() if k not in changing} == {
        k: v for k, v in whole.items() if k not in changing
    }
    first, second = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts")
    assert first.keys() == second.keys() and len(first) > 10
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert sorted(os.listdir(tmp_path)) == ["parts", "whole"]


def test_checkpoints_on_the_way_change_nothing(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    often = run_tiny(tiny_job(out=out, checkpoint_every=1, table_decay=0.5))[0]
    assert often["loss"] == run_tiny(tiny_job(table_decay=0.5))[0]["loss"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 1}, "seed 0, and this run has 1"),
        ({"memory": "engram"}, "memory pagegram, and this run has engram"),
        ({"slots": 2}, "slots 4, and this run has 2"),
        ({"steps": 7}, "steps 6, and this run has 7"),
        ({"hash_seed": 1}, "hash seed"),
        ({"preset": dataclasses.replace(TINY, lr=1e-3)}, "preset lr 0.002, and this run has 0.001"),
        ({"table_decay": 0.1}, "table decay"),
        ({"gate": "context"}, "gate scalar"),
        ({"bias_correction": "row"}, "bias correction global"),
    ],
)
def test_resuming_with_other_settings_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    with pytest.raises(Interrupted):
        run_tiny(tiny_job(out=out), stop=stop_after(3))
    with pytest.raises(ValueError, match=words):
        run_tiny(tiny_job(**options, out=out, resume=True))
    with pytest.raises(ValueError, match="stream sha256"):
        run(tiny_job(out=out, resume=True), stream=VALIDATION, validation=VALIDATION)


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for force in (False, True):
        with pytest.raises(FileExistsError, match="not a checkpoint"):
            run_tiny(tiny_job(out=str(out), force=force))
    out.rmdir()
    run_tiny(tiny_job(out=str(out), steps=1))
    with pytest.raises(FileExistsError, match="--force"):
        run_tiny(tiny_job(out=str(out), steps=1))
    run_tiny(tiny_job(out=str(out), steps=1, force=True))
    with pytest.raises(FileNotFoundError):
        run_tiny(tiny_job(out=str(tmp_path / "no/run"), steps=1))


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "run")
    run_tiny(tiny_job(out=out, steps=1))
    before = tensors_of(tmp_path / "run")
    calls = 0

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise checkpoint.SafetensorError("I/O error: No space left on device (os error 28)")
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        run_tiny(tiny_job(out=out, steps=1, seed=1, force=True))
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == out
    after = tensors_of(tmp_path / "run")
    assert all(torch.equal(before[key], after[key]) for key in before) and os.listdir(tmp_path) == ["run"]


def test_a_kill_between_the_renames_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "run")
    run_tiny(tiny_job(out=out, steps=1))
    rename, calls = os.rename, 0

    def killed(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            run_tiny(tiny_job(out=out, steps=1, seed=1, force=True))
    assert not (tmp_path / "run").exists()
    assert checkpoint.read_config(out)["seed"] == 0
    assert os.listdir(tmp_path) == ["run"]


def test_damaged_checkpoints_are_refused_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_tiny(tiny_job(out=str(out), steps=1))

    def refused(name: str, content: bytes, words: str) -> None:
        kept = (out / name).read_bytes()
        (out / name).write_bytes(content)
        with pytest.raises(FormatError, match=words) as caught:
            run_tiny(tiny_job(out=str(out), steps=1, resume=True))
        assert str(out) in str(caught.value) and "\n" not in str(caught.value)
        (out / name).write_bytes(kept)

    config = json.loads((out / "config.json").read_text())
    refused("config.json", b"{", "not JSON")
    refused("config.json", b"[]", "not the configuration")
    refused("config.json", json.dumps(config | {"schema": 2}).encode(), "schema 2")
    refused("config.json", json.dumps({k: v for k, v in config.items() if k != "state"}).encode(), "has no state")
    refused("config.json", json.dumps(config | {"state": {}}).encode(), "its step is None")
    refused("config.json", json.dumps(config | {"state": {"step": 1}}).encode(), "not a whole checkpoint")
    for name in ("model.safetensors", "table.safetensors", "optimizer.safetensors"):
        refused(name, (out / name).read_bytes()[:-9], "cannot be read")
    other = {key: tensor[:-1].contiguous() for key, tensor in load_file(out / "table.safetensors").items()}
    save_file(other, tmp_path / "other")
    refused("table.safetensors", (tmp_path / "other").read_bytes(), "tensor rows is")
    (out / "table.safetensors").unlink()
    with pytest.raises(FormatError, match="no table.safetensors"):
        run_tiny(tiny_job(out=str(out), steps=1, resume=True))
    (out / "config.json").unlink()
    with pytest.raises(FormatError, match="not a checkpoint"):
        checkpoint.read_config(str(out))
    with pytest.raises(FileNotFoundError):
        checkpoint.read_config(str(tmp_path / "none"))


@pytest.mark.parametrize("memory", MEMORIES)
def test_evaluation_of_a_checkpoint_is_that_of_the_run(memory: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    trained = run_tiny(tiny_job(memory=memory, out=out, table_decay=0.1))[0]
    found = run_evaluation(EvalJob(out), validation=VALIDATION)[0]
    assert (found["loss"], found["loss_error"]) == (trained["loss"], trained["loss_error"])
    assert found["kind"] == "eval" and found["step"] == 6 and found["windows"] == 4
    assert found["source"] == ("none" if memory == "none" else "fp32 in RAM")
    fewer = run_evaluation(EvalJob(out, windows=2), validation=VALIDATION)[0]
    assert fewer["windows"] == 2 and fewer["loss"] != found["loss"]


def test_a_checkpoint_says_what_pack_needs(tmp_path: Path) -> None:
    """Its table.safetensors holds the rows as forward would read them, row i the layout's global row i."""
    out = tmp_path / "run"
    run_tiny(tiny_job(out=str(out), table_decay=0.5))
    loaded = checkpoint.load(str(out))
    assert loaded.addressing is not None and loaded.rows is not None
    rows = load_file(out / "table.safetensors")["rows"]
    assert rows.dtype == torch.float32 and torch.equal(rows, loaded.rows)
    assert rows.shape == (loaded.addressing.row_count, 8)
    state = load_file(out / "optimizer.safetensors")
    assert not torch.equal(rows, state["table.weight"])  # some rows wait for decay there
    trainer = trainer_of(table_decay=0.5)
    checkpoint.restore(trainer, str(out))
    assert trainer.table is not None
    every = torch.arange(len(rows))
    assert torch.equal(trainer.table.read(every, 6), rows)


def test_a_damaged_configuration_is_refused_before_anything_is_made_of_it(tmp_path: Path) -> None:
    """Without a limit on what it says, a few digits could ask for any amount of memory, or for steps without end."""
    out = tmp_path / "run"
    run_tiny(tiny_job(out=str(out), steps=2))
    config = json.loads((out / "config.json").read_text())

    def refused(words: str, **changes: Any) -> None:
        (out / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(FormatError, match=words) as caught:
            run_tiny(checkpoint.job_in(checkpoint.read_config(str(out)), str(out)))
        assert str(out) in str(caught.value) and "\n" not in str(caught.value)

    preset, state = config["preset"], config["state"]
    refused("its seed is 'x'", seed="x")
    refused("its step is 3, of 2 steps", state=state | {"step": 3})
    refused("its step is 2, of -3 steps", steps=-3)
    refused("as many numbers each", state=state | {"train_losses": []})
    refused("another type", state=state | {"loss_sum": "x"})
    refused("its preset cannot be read", preset={"name": "tiny"})
    refused("integer modulo by zero", preset=preset | {"heads": 0})
    refused("a model of .* parameters is not in", preset=preset | {"dim": preset["heads"] * 2_000_000})
    refused("its context is", preset=preset | {"context": 2**30})
    refused("its validation_windows is 'many'", preset=preset | {"validation_windows": "many"})
    refused("its layout has others", table_params=config["table_params"] * 1000)
    refused("its stream stream cannot be read .its path is 3", stream=config["stream"] | {"path": 3})


def test_a_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_tiny(tiny_job(out=str(out), steps=1))
    rows = load_file(out / "table.safetensors")["rows"]
    save_file({"rows": torch.full_like(rows, float("nan"))}, out / "table.safetensors")
    with pytest.raises(FormatError, match="run: its loss is nan"):
        run_evaluation(EvalJob(str(out)), validation=VALIDATION)


def test_too_large_a_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("[enforce fail] can't allocate memory: you tried to allocate 8000 bytes.")

    monkeypatch.setattr("pagegram_io.models.trainer.RowRms", refuse)
    with pytest.raises(MemoryError, match="8000 bytes more were asked for.; give a smaller table"):
        run_tiny(tiny_job())

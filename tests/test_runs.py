"""models/runs.py: which runs Figure 1 takes, doing them in processes, and what is there already."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from pagegram_io.errors import FormatError
from pagegram_io.models import runs
from pagegram_io.models.presets import MINI, Preset

TINY = dataclasses.replace(
    MINI, dim=16, layers=2, heads=2, context=16, batch_windows=2, micro_windows=2, steps=6, memory_layers=(0, 1),
    table_params=40_000, validation_windows=4, validate_every=3,
)  # fmt: skip


def tiny_runs(folder: Path, *, seeds: tuple[int, ...] = (0,), preset: Preset = TINY) -> list[runs.Run]:
    train, test = runs.mini_streams()
    streams = (dataclasses.replace(train, limit=20_000), dataclasses.replace(test, limit=5_000))
    return runs.runs_of(preset, str(folder), streams=streams, seeds=seeds)


def test_every_arm_of_every_seed_is_there_once_seed_by_seed(tmp_path):
    found = tiny_runs(tmp_path, seeds=(0, 1, 2))
    assert len({run.name for run in found}) == len(found) == 18
    assert [run.job.seed for run in found] == [0] * 6 + [1] * 6 + [2] * 6
    assert all(run.job.hash_seed == run.job.seed for run in found)
    assert [run.name for run in found[:6]] == [
        f"mini-{arm}-seed0" for arm in ("none", "flat", "engram", "pagegram-s1", "pagegram-s4", "pagegram-s15")
    ]


@pytest.fixture(scope="module")
def done_folder(tmp_path_factory) -> Path:
    """The runs of one seed, done in two processes."""
    folder = tmp_path_factory.mktemp("runs")
    told: list[int] = []
    runs.do_runs(tiny_runs(folder), 2, told.append)
    assert sum(told) <= 6 * TINY.steps
    return folder


def test_records_are_those_of_running_each_job_alone(done_folder, tmp_path):
    from pagegram_io.models import train

    found = tiny_runs(done_folder)
    assert all(run.done for run in found)
    records = runs.read_done(found)
    assert [(record["memory"], record["slots"]) for record in records] == list(runs.ARMS)
    for i in (0, 4):
        [alone] = train.run(dataclasses.replace(found[i].job, out=None, checkpoint_every=None, threads=1))
        assert alone["validation_losses"] == records[i]["validation_losses"]
    assert all((done_folder / run.name / "config.json").is_file() for run in found)


def test_a_stopped_run_goes_on_and_ends_where_an_unbroken_one_does(done_folder, tmp_path):
    [run] = tiny_runs(tmp_path)[4:5]
    from pagegram_io.models import train

    asked = iter(range(1000))
    with pytest.raises(train.Interrupted):
        train.run(run.job, stop=lambda: next(asked) > 3)
    assert not run.done
    runs.do_runs([run], 1, lambda steps: None)
    [resumed] = runs.read_done([run])
    [unbroken] = runs.read_done(tiny_runs(done_folder)[4:5])
    assert resumed["validation_losses"] == unbroken["validation_losses"]


def test_a_record_of_other_settings_is_refused(done_folder, tmp_path):
    shutil.copy(done_folder / "mini-flat-seed0.jsonl", tmp_path)
    with pytest.raises(ValueError, match="has lr 0.002, and this run 0.5; move it away"):
        runs.read_done(tiny_runs(tmp_path, preset=dataclasses.replace(TINY, lr=0.5)))
    record = json.loads((tmp_path / "mini-flat-seed0.jsonl").read_text())
    (tmp_path / "mini-flat-seed0.jsonl").write_text(json.dumps({**record, "seed": 5}) + "\n")
    with pytest.raises(ValueError, match="has seed 5, and this run 0"):
        runs.read_done(tiny_runs(tmp_path))
    for text in ("", json.dumps({"kind": "nvme"}) + "\n", 2 * (json.dumps(record) + "\n")):
        (tmp_path / "mini-flat-seed0.jsonl").write_text(text)
        with pytest.raises(FormatError, match="not the one record of a training run; move it away"):
            runs.read_done(tiny_runs(tmp_path))


def test_an_error_in_a_process_is_raised_and_ends_the_others(tmp_path):
    bad = [dataclasses.replace(run, job=dataclasses.replace(run.job, device="abacus")) for run in tiny_runs(tmp_path)]
    with pytest.raises(ValueError, match="abacus"):
        runs.do_runs(bad, 2, lambda steps: None)
    assert not any(run.done for run in bad)


def test_time_is_estimated_by_steps_and_is_nothing_where_nothing_is_missing(tmp_path):
    found = tiny_runs(tmp_path)
    assert runs.estimate_seconds([], 2) == 0.0
    assert runs.estimate_seconds(found, 2) > 0.0
    assert not list(tmp_path.iterdir())

"""The training runs behind Figure 1: which there are, which are missing, how long they take, and doing them.

In the folder of runs NAME.jsonl is a run's record, once it is done, and NAME/ its checkpoint. So what is done stays
done, and what was stopped goes on from where it was.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import queue
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pagegram_io.errors import FormatError
from pagegram_io.job import Job, StreamSpec, run_jobs
from pagegram_io.layout import Layout
from pagegram_io.models.presets import MINI, Preset
from pagegram_io.models.train_job import TrainJob
from pagegram_io.output import new_text
from pagegram_io.record_files import read_records, write_json_lines
from pagegram_io.records import SimulationRecord
from pagegram_io.sizes import CacheSize
from pagegram_io.tokens import Stream, shipped_path

ARMS: tuple[tuple[str, int | None], ...] = (
    ("none", None), ("flat", None), ("engram", None), ("pagegram", 1), ("pagegram", 4), ("pagegram", 15),
)  # fmt: skip
SEEDS = (0, 1, 2)
PRESET_FIELDS = ("dim", "layers", "vocabulary", "context", "batch_windows", "lr", "validation_windows")
CHECKPOINTS_A_RUN = 5
MEASURED_STEPS = 4
POLL_SECONDS = 0.2

Report = Callable[[int], None]  # told of steps done, of all runs together


@dataclass(frozen=True)
class Run:
    """One run of Figure 1 and where it lies."""

    name: str
    job: TrainJob

    @property
    def record_path(self) -> Path:
        assert self.job.out is not None
        return Path(f"{self.job.out}.jsonl")

    @property
    def done(self) -> bool:
        return self.record_path.is_file()


def mini_streams() -> tuple[StreamSpec, StreamSpec]:
    """The shipped streams of preset mini: to train on, and held out."""
    assert MINI.train_stream is not None and MINI.validation_stream is not None
    paths = (os.fspath(shipped_path(name)) for name in (MINI.train_stream, MINI.validation_stream))
    train, test = (StreamSpec(path, eod=MINI.eod, vocabulary=MINI.vocabulary) for path in paths)
    return train, test


def runs_of(
    preset: Preset,
    folder: str,
    *,
    streams: tuple[StreamSpec, StreamSpec],
    seeds: Sequence[int] = SEEDS,
    steps: int | None = None,
    device: str = "cpu",
) -> list[Run]:
    """All arms for each seed, seed by seed, so that what is done so far can always be compared.

    A seed also seeds the hashes: intervals then speak of other hashes too, not of one draw of collisions.
    """
    count = preset.steps if steps is None else steps
    runs = []
    for seed in seeds:
        for memory, slots in ARMS:
            name = "-".join([preset.name, memory, *([] if slots is None else [f"s{slots}"]), f"seed{seed}"])
            job = TrainJob(
                preset,
                *streams,
                memory=memory,
                slots=slots,
                seed=seed,
                hash_seed=seed,
                steps=steps,
                device=device,
                out=os.path.join(folder, name),
                checkpoint_every=max(count // CHECKPOINTS_A_RUN, 1),
            )
            runs.append(Run(name, job))
    return runs


def read_done(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The records of the runs that are done; ValueError where one is of a run with other settings, or of none."""
    records = []
    for run in runs:
        if run.done:
            found = read_records(run.record_path)
            if [record["kind"] for record in found] != ["train"]:
                raise FormatError(f"{run.record_path}: not the one record of a training run; move it away")
            [record] = found
            job, preset = run.job, run.job.preset
            wanted: dict[str, Any] = {
                "memory": job.memory,
                "slots": job.slots,
                "seed": job.seed,
                "hash_seed": job.hash_seed,
            }
            wanted |= {"tokens": job.step_count * preset.step_tokens, "table_lr_ratio": preset.table_lr_ratio}
            wanted |= {name: getattr(preset, name) for name in PRESET_FIELDS}
            for name, value in wanted.items():
                if record[name] not in (value, None):
                    raise ValueError(f"{run.record_path} has {name} {record[name]}, and this run {value}; move it away")
            records.append(record)
    return records


def estimate_seconds(missing: Sequence[Run], at_once: int) -> float:
    """About how long runs take, by a few steps of the last one; what is there of a stopped run is not taken off."""
    import torch

    from pagegram_io.models.evaluate import evaluate
    from pagegram_io.models.trainer import Trainer

    if not missing:
        return 0.0
    job = missing[-1].job
    threads, preset = torch.get_num_threads(), job.preset
    torch.set_num_threads(1)
    try:
        trainer = Trainer(job, _read(job.stream), _read(job.validation))
        trainer.train_step()  # the first one allocates
        step = statistics.median(_seconds_of(trainer.train_step) for _ in range(MEASURED_STEPS))
        model = Trainer(replace(job, memory="none", slots=None), trainer.stream, trainer.validation).model
        few = preset.micro_windows
        seconds = _seconds_of(lambda: evaluate(model, trainer.validation, windows=few))
    finally:
        torch.set_num_threads(threads)
    points = -(-job.step_count // preset.validate_every)
    a_run = step * job.step_count + seconds * points * preset.validation_windows / few
    return a_run * -(-len(missing) // at_once)


def do_runs(missing: Sequence[Run], at_once: int, report: Report) -> None:
    """Do runs in processes of one thread each, in order; the records are then beside the checkpoints.

    Ctrl-C stops every process after the part of a step that it is in; what they have stays as checkpoints, and the
    KeyboardInterrupt says so.
    """
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    stop, steps = context.Event(), context.Queue()
    with ProcessPoolExecutor(at_once, context, initializer=_begin_worker, initargs=(stop, steps)) as pool:
        waiting: set[Future[None]] = {pool.submit(_do, run) for run in missing}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
                report(_taken(steps))
                for future in done:
                    future.result()
        except BaseException as error:
            stop.set()
            for future in waiting:
                future.cancel()
            if isinstance(error, KeyboardInterrupt):
                text = "stopped; what the runs have is kept, and the same command goes on from there"
                raise KeyboardInterrupt(text) from None
            raise


def _taken(steps: Any) -> int:
    """Steps done since this was last asked."""
    count = 0
    with contextlib.suppress(queue.Empty):
        while True:
            count += steps.get_nowait()
    return count


def simulate_tables(runs: Sequence[Run]) -> list[SimulationRecord]:
    """Reads per token of the tables of the first seed's runs on the held-out stream: exact, at sizes a factor of
    sqrt(2) apart, and without a cache."""
    stream = _read(runs[0].job.validation)
    jobs = []
    for run in runs:
        layout = run.job.layout()
        if run.job.seed == runs[0].job.seed and isinstance(layout, Layout):
            jobs.append(Job(run.job.validation, layout, _cache_sizes(layout)))
    return [record for outcome in run_jobs(jobs, stream=stream) for record in outcome.records]


def _cache_sizes(layout: Layout) -> tuple[CacheSize, ...]:
    pages, half_powers = [0], 0
    while pages[-1] < layout.page_count:
        pages.append(min(round(2 ** (half_powers / 2)), layout.page_count))
        half_powers += 1
    sizes = sorted({count * layout.page_bytes for count in pages})
    return tuple(CacheSize(str(size) if size else "none", size, None) for size in sizes)


# ---- in a process of its own -----------------------------------------------------------------------

_worker: dict[str, Any] = {}


def _begin_worker(stop: Any, steps: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent asks by the event, and waits for the checkpoint
    _worker.update(stop=stop, steps=steps)


@functools.cache
def _read(spec: StreamSpec) -> Stream:
    return spec.read()


def _do(run: Run) -> None:
    from pagegram_io.models import train

    job = run.job
    assert job.out is not None
    stop, steps = _worker["stop"], _worker["steps"]
    if stop.is_set():
        return
    job = replace(job, threads=1, resume=os.path.isdir(job.out))
    with contextlib.suppress(train.Interrupted):
        records = train.run(
            job, lambda tick: steps.put(1), stop=stop.is_set, stream=_read(job.stream), validation=_read(job.validation)
        )
        with new_text(run.record_path, force=True) as file:
            write_json_lines(records, file)


def _seconds_of(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

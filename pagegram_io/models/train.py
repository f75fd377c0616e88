"""Training: a frozen ``TrainJob``, done by ``run``, which depends on nothing else (models.md section 2)."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pagegram_io.layout import Layout
from pagegram_io.models import checkpoint
from pagegram_io.models.train_job import TrainJob
from pagegram_io.models.trainer import Stop, Stopped, Trainer, told_memory
from pagegram_io.models.transformer import parameter_count
from pagegram_io.models.windows import held_out_begins
from pagegram_io.record_files import to_dict
from pagegram_io.records import TrainRecord, provenance
from pagegram_io.tokens import Stream

__all__ = ["Interrupted", "Progress", "Stop", "Tick", "TrainJob", "run"]


@dataclass(frozen=True)
class Tick:
    """How far a run has got."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    validation_loss: float | None


Progress = Callable[[Tick], None]


class Interrupted(KeyboardInterrupt):
    """Somebody asked a run to stop; str(error) says how far it got and how to go on."""


def run(
    job: TrainJob,
    progress: Progress | None = None,
    *,
    stop: Stop | None = None,
    stream: Stream | None = None,
    validation: Stream | None = None,
) -> list[dict[str, Any]]:
    """Do a run; its one record. ``stop`` is asked before every part of a step: true ends the run with Interrupted.

    ``stream`` and ``validation`` spare reading them again.
    """
    if job.out is None and (job.resume or job.checkpoint_every is not None):
        raise ValueError("a run without an output folder has no checkpoints to write or to go on with")
    if job.checkpoint_every is not None and job.checkpoint_every < 1:
        raise ValueError(f"a checkpoint every {job.checkpoint_every} steps; give at least 1")
    if job.out is not None and not job.resume:
        checkpoint.refuse_folder(job.out, force=job.force)
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    stream = stream if stream is not None else job.stream.read()
    validation = validation if validation is not None else job.validation.read()
    with told_memory():
        trainer = Trainer(job, stream, validation)
        if job.out is not None and job.resume:
            checkpoint.restore(trainer, job.out)
        try:
            _steps(trainer, progress, stop)
        except Stopped:
            raise _interrupted(trainer) from None
        if job.out is not None:
            checkpoint.save(trainer, job.out)
    return [to_dict(_record(trainer))]


def _interrupted(trainer: Trainer) -> Interrupted:
    job = trainer.job
    text = f"stopped after {trainer.step:,} of {job.step_count:,} steps"
    if job.out is None:
        return Interrupted(f"{text}; without --out nothing is kept")
    checkpoint.save(trainer, job.out)
    return Interrupted(f"{text}; go on with: pagegram-io train --resume {shlex.quote(job.out)}")


def _steps(trainer: Trainer, progress: Progress | None, stop: Stop | None) -> None:
    """All steps that remain, with validations and checkpoints on the way; both come first where a run resumes."""
    job, series, preset = trainer.job, trainer.series, trainer.job.preset
    first = trainer.step
    while True:
        due = trainer.step % preset.validate_every == 0 or trainer.step == job.step_count
        if due and trainer.step > 0 and trainer.step not in series.steps[-1:]:
            _point(trainer, stop)
        if trainer.step == job.step_count:
            return
        if job.out and job.checkpoint_every and trainer.step > first and trainer.step % job.checkpoint_every == 0:
            checkpoint.save(trainer, job.out)
        began = time.perf_counter()
        loss = trainer.train_step(stop)
        seconds = time.perf_counter() - began
        series.loss_sum += loss
        series.loss_count += 1
        series.seconds += seconds
        series.seconds_all += seconds
        if progress is not None:
            last = series.validation_losses[-1] if series.validation_losses else None
            rate = preset.step_tokens * series.loss_count / series.seconds
            progress(Tick(trainer.step, job.step_count, loss, rate, last))


def _point(trainer: Trainer, stop: Stop | None) -> None:
    """Validate, and add a point to the run's series."""
    series, found = trainer.series, trainer.validate(stop)
    series.validation_losses.append(found.loss)
    series.loss_error = found.loss_error
    series.steps.append(trainer.step)
    series.train_losses.append(series.loss_sum / series.loss_count)
    series.tokens_per_second.append(trainer.job.preset.step_tokens * series.loss_count / series.seconds)
    series.loss_sum, series.loss_count, series.seconds = 0.0, 0, 0.0


def _record(trainer: Trainer) -> TrainRecord:
    job, series, preset = trainer.job, trainer.series, trainer.job.preset
    layout = trainer.addressing.layout if trainer.addressing is not None else None
    tokens = trainer.step * preset.step_tokens
    memory = "none" if layout is None else layout.name
    of_data = layout if isinstance(layout, Layout) else None
    stamp: dict[str, Any] = {**provenance()}
    return TrainRecord(
        preset=preset.name,
        memory=memory,
        slots=of_data.slots if of_data else None,
        table_params=of_data.table_params if of_data else None,
        table_params_actual=0 if layout is None else layout.row_count * layout.row_width,
        row_width=None if layout is None else layout.row_width,
        heads=of_data.heads if of_data else None,
        orders=",".join(map(str, of_data.orders)) if of_data else None,
        dense_params=parameter_count(trainer.model),
        gate=None if layout is None else job.gate,
        seed=job.seed,
        hash_seed=None if layout is None else job.hash_seed,
        bias_correction=None if layout is None else job.bias_correction,
        table_decay=None if layout is None else job.table_decay,
        lr=preset.lr,
        table_lr_ratio=None if layout is None else preset.table_lr_ratio,
        dim=preset.dim,
        layers=preset.layers,
        vocabulary=preset.vocabulary,
        context=preset.context,
        batch_windows=preset.batch_windows,
        stream=trainer.stream.name,
        stream_sha256=trainer.stream.sha256,
        stream_tokens=len(trainer.stream),
        validation_stream=trainer.validation.name,
        validation_sha256=trainer.validation.sha256,
        validation_windows=len(held_out_begins(len(trainer.validation), preset.context, preset.validation_windows)),
        tokens=tokens,
        epochs=tokens / len(trainer.stream),
        steps=series.steps,
        tokens_seen=[step * preset.step_tokens for step in series.steps],
        train_losses=series.train_losses,
        validation_losses=series.validation_losses,
        tokens_per_second=series.tokens_per_second,
        loss=series.validation_losses[-1],
        loss_error=series.loss_error,
        seconds=series.seconds_all,
        device=_device_name(trainer.device),
        threads=torch.get_num_threads(),
        compiled=int(job.compile),
        torch=str(torch.__version__),
        **stamp,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

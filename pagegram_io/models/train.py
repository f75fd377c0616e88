"""Training: a frozen ``TrainJob``, done by ``run``, which depends on nothing else (models.md section 2)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pagegram_io.job import StreamSpec
from pagegram_io.layout import Layout
from pagegram_io.models.addressing import Addressing, OwnRows, layout_of
from pagegram_io.models.evaluate import Evaluation, RamRows, autocast, evaluate
from pagegram_io.models.memory import Memory
from pagegram_io.models.presets import Preset
from pagegram_io.models.rowrms import RowRms
from pagegram_io.models.schedule import Schedule
from pagegram_io.models.transformer import Decoder, parameter_count, token_losses
from pagegram_io.models.windows import batch_begins, gather_windows, held_out_begins, window_stream
from pagegram_io.records import TrainRecord, provenance, to_dict
from pagegram_io.tokens import Stream

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1  # of matrices
GRADIENT_NORM_MAX = 1.0  # of the dense parameters
MEMORY_STREAM = 2**62  # added to the seed: the memory draws apart from the backbone


@dataclass(frozen=True)
class TrainJob:
    """One training run. The streams come by path and digest; ``out`` is the checkpoint's folder, if any."""

    preset: Preset
    stream: StreamSpec
    validation: StreamSpec
    memory: str | Layout | OwnRows = "pagegram"
    slots: int | None = None
    table_params: int | None = None
    gate: str = "scalar"
    seed: int = 0
    hash_seed: int = 0
    steps: int | None = None
    table_decay: float = 0.0
    bias_correction: str = "global"
    device: str = "cpu"
    threads: int | None = None
    compile: bool = False
    out: str | None = None
    checkpoint_every: int | None = None  # steps; None: at the end alone
    resume: bool = False

    @property
    def step_count(self) -> int:
        return self.preset.steps if self.steps is None else self.steps

    def layout(self) -> Layout | OwnRows | None:
        """The layout of the memory; ValueError for options that do not go together."""
        if not isinstance(self.memory, str):
            return self.memory
        return layout_of(
            self.preset, self.memory, slots=self.slots, table_params=self.table_params, seed=self.hash_seed
        )


@dataclass(frozen=True)
class Tick:
    """How far a run has got."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    validation_loss: float | None


Progress = Callable[[Tick], None]
Stop = Callable[[], bool]


class Interrupted(KeyboardInterrupt):
    """Somebody asked a run to stop; str(error) says how far it got and how to go on."""


class _Stopped(Exception):
    """Asked to stop inside a step, of which nothing is kept."""


@dataclass
class Series:
    """What a run measures as it goes: a point for every validation, and the sums since the last one."""

    steps: list[int] = field(default_factory=list)
    train_losses: list[float] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)
    loss_error: float = 0.0  # standard error of the last validation loss
    loss_sum: float = 0.0
    loss_count: int = 0
    seconds: float = 0.0  # since the last point
    seconds_all: float = 0.0


class Trainer:
    """The state of a run: model, optimisers, table, and how far it is."""

    def __init__(self, job: TrainJob, stream: Stream, validation: Stream) -> None:
        preset = job.preset
        self.job, self.stream, self.validation = job, stream, validation
        self.device = torch.device(job.device)
        self.schedule = Schedule(job.step_count)
        for given in (stream, validation):
            _check_stream(given, preset)
        layout = job.layout()
        self.addressing = None if layout is None else Addressing(layout, self.device)
        self.generator = torch.Generator().manual_seed(job.seed)
        memory = self.table = None
        if self.addressing is not None:
            rates = [preset.table_lr_ratio * preset.lr * factor for factor in self.schedule.factors()]
            own = torch.Generator().manual_seed(job.seed + MEMORY_STREAM)
            memory = Memory(preset, self.addressing, own, gate=job.gate)
            self.table = RowRms(
                self.addressing.row_count,
                self.addressing.row_width,
                rates,
                decay=job.table_decay,
                bias_correction=job.bias_correction,
                device=self.device,
            )
        self.model = Decoder(preset, self.generator, memory).to(self.device)
        self.compiled = torch.compile(self.model) if job.compile else self.model
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        others = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=preset.lr, betas=BETAS)
        self.step, self.series = 0, Series()

    def train_step(self, stop: Stop | None = None) -> float:
        """One step; its mean loss. Raises _Stopped, with nothing changed, where ``stop`` says so."""
        preset, step = self.job.preset, self.step
        begins = batch_begins(self.job.seed, step, len(self.stream), preset.context, preset.batch_windows)
        rows, leaf, places = self._read(begins)
        total = 0.0
        for first in range(0, preset.batch_windows, preset.micro_windows):
            if stop is not None and stop():
                self.adamw.zero_grad()
                raise _Stopped
            some = begins[first : first + preset.micro_windows]
            total += self._accumulate(some, leaf, None if places is None else places[first : first + len(some)])
        if not math.isfinite(total):
            raise ValueError(f"the loss is {total} at step {step}: the run has diverged; give a smaller learning rate")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM_MAX)
        for group in self.adamw.param_groups:
            group["lr"] = preset.lr * self.schedule.factor(step)
        self.adamw.step()
        self.adamw.zero_grad()
        if self.table is not None:
            assert rows is not None and leaf is not None and leaf.grad is not None
            self.table.update(rows, leaf.detach(), leaf.grad, step)
        self.step += 1
        return total

    def _read(self, begins: np.ndarray) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The distinct rows of a batch, their weights as a leaf, and for each use, [windows, context, columns], which.

        Autograd sums a row's gradients over its uses in the backward of the embedding, so before they are squared.
        """
        if self.addressing is None or self.table is None:
            return None, None, None
        context = self.job.preset.context
        used = self.addressing.rows(window_stream(self.stream, begins, context))
        rows, places = torch.unique(used, return_inverse=True)
        leaf = self.table.read(rows, self.step).requires_grad_()
        return rows, leaf, places.view(len(begins), context, -1)

    def _accumulate(self, begins: np.ndarray, leaf: Tensor | None, places: Tensor | None) -> float:
        """Add some windows' share of the batch's gradient; their share of its loss."""
        preset = self.job.preset
        ids = torch.from_numpy(gather_windows(self.stream, begins, preset.context + 1).astype(np.int64))
        ids = ids.to(self.device)
        vectors = signs = None
        if self.addressing is not None and leaf is not None and places is not None:
            vectors = F.embedding(places, leaf)
            signs = self.addressing.signs(window_stream(self.stream, begins, preset.context)).view(vectors.shape)
        with autocast(self.device):
            logits = self.compiled(ids[:, :-1], vectors, signs)
        loss = token_losses(logits, ids[:, 1:]).mean() * (len(begins) / preset.batch_windows)
        loss.backward()
        return float(loss.detach())

    def validate(self, windows: int) -> Evaluation:
        source = None
        if self.addressing is not None and self.table is not None:
            source = RamRows(self.addressing, self.table, self.step)
        return evaluate(self.model, self.validation, windows=windows, addressing=self.addressing, source=source)


def _check_stream(stream: Stream, preset: Preset) -> None:
    if stream.vocabulary > preset.vocabulary:
        raise ValueError(
            f"{stream.name} has a vocabulary of {stream.vocabulary} ids, and preset {preset.name} one of "
            f"{preset.vocabulary}; give a stream of that vocabulary, or another preset"
        )
    if len(stream) <= preset.context:
        raise ValueError(
            f"{stream.name} has {len(stream)} tokens, fewer than the {preset.context + 1} of a window of {preset.name}"
        )


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
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    stream = stream if stream is not None else job.stream.read()
    validation = validation if validation is not None else job.validation.read()
    trainer = Trainer(job, stream, validation)
    _steps(trainer, progress, stop)
    return [to_dict(_record(trainer))]


def _steps(trainer: Trainer, progress: Progress | None, stop: Stop | None) -> None:
    """All steps that remain, with validations on the way."""
    job, series, preset = trainer.job, trainer.series, trainer.job.preset
    while trainer.step < job.step_count:
        began = time.perf_counter()
        loss = trainer.train_step(stop)
        seconds = time.perf_counter() - began
        series.loss_sum += loss
        series.loss_count += 1
        series.seconds += seconds
        series.seconds_all += seconds
        validated = trainer.step % preset.validate_every == 0 or trainer.step == job.step_count
        rate = preset.step_tokens * series.loss_count / series.seconds
        if validated:
            _point(trainer, rate)
        if progress is not None:
            last = series.validation_losses[-1] if series.validation_losses else None
            progress(Tick(trainer.step, job.step_count, loss, rate, last))


def _point(trainer: Trainer, rate: float) -> None:
    series, found = trainer.series, trainer.validate(trainer.job.preset.validation_windows)
    series.validation_losses.append(found.loss)
    series.loss_error = found.loss_error
    series.steps.append(trainer.step)
    series.train_losses.append(series.loss_sum / series.loss_count)
    series.tokens_per_second.append(rate)
    series.loss_sum, series.loss_count, series.seconds = 0.0, 0, 0.0


def _record(trainer: Trainer) -> TrainRecord:
    job, series, preset = trainer.job, trainer.series, trainer.job.preset
    layout = trainer.addressing.layout if trainer.addressing is not None else None
    tokens = trainer.step * preset.step_tokens
    memory = "none" if layout is None else layout.name
    of_data = layout if isinstance(layout, Layout) else None
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
        **provenance(),
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

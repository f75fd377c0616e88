"""The state of a training run, and one step of it (models.md section 2)."""

from __future__ import annotations

import contextlib
import errno
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pagegram_io.models.addressing import Addressing
from pagegram_io.models.evaluate import Evaluation, RamRows, autocast, evaluate
from pagegram_io.models.gather import gather
from pagegram_io.models.memory import Memory
from pagegram_io.models.presets import Preset
from pagegram_io.models.rowrms import RowRms
from pagegram_io.models.schedule import Schedule
from pagegram_io.models.train_job import TrainJob
from pagegram_io.models.transformer import Decoder, token_losses
from pagegram_io.models.windows import batch_begins, gather_windows, window_stream
from pagegram_io.tokens import Stream

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1  # of matrices
GRADIENT_NORM_MAX = 1.0  # of the dense parameters
MEMORY_STREAM = 2**62  # added to the seed: the memory draws apart from the backbone

Stop = Callable[[], bool]


class Stopped(Exception):
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
        self.device = device_of(job.device)
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
        """One step; its mean loss. Raises Stopped, with nothing changed, where ``stop`` says so."""
        preset, step = self.job.preset, self.step
        begins = batch_begins(self.job.seed, step, len(self.stream), preset.context, preset.batch_windows)
        rows, leaf, places = self._read(begins)
        total = 0.0
        for first in range(0, preset.batch_windows, preset.micro_windows):
            if stop is not None and stop():
                self.adamw.zero_grad()
                raise Stopped
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

        Autograd sums a row's gradients over its uses in the backward of ``gather``, so before they are squared.
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
            vectors = gather(leaf, places)
            signs = self.addressing.signs(window_stream(self.stream, begins, preset.context)).view(vectors.shape)
        with autocast(self.device):
            logits = self.compiled(ids[:, :-1], vectors, signs)
        loss = token_losses(logits, ids[:, 1:]).mean() * (len(begins) / preset.batch_windows)
        loss.backward()
        return float(loss.detach())

    def validate(self, stop: Stop | None = None) -> Evaluation:
        """Held-out loss as of now; Stopped where ``stop`` says so."""

        def ask(done: int, windows: int) -> None:
            if stop is not None and stop():
                raise Stopped

        source = None
        if self.addressing is not None and self.table is not None:
            source = RamRows(self.addressing, self.table.settled(self.step))
        windows = self.job.preset.validation_windows
        found = evaluate(
            self.model, self.validation, windows=windows, addressing=self.addressing, source=source, progress=ask
        )
        if not math.isfinite(found.loss):  # no record and no checkpoint can hold it
            raise ValueError(f"the held-out loss is {found.loss} after {self.step} steps: the run has diverged")
        return found


def device_of(name: str) -> torch.device:
    """The device of a name such as cpu, cuda or cuda:1. ValueError; OSError ENOTSUP where this machine has none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is not known; write cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; write cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OSError(errno.ENOTSUP, "torch finds no such GPU here; choose --device cpu", name)
    return device


@contextlib.contextmanager
def told_memory() -> Iterator[None]:
    """What torch raises where memory runs out, a RuntimeError of its own, as a MemoryError that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.cuda.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        asked = re.search(r"[0-9][0-9.]* ?(bytes|[KMGT]iB)", str(error))
        more = f" ({asked[0]} more were asked for)" if asked else ""
        raise MemoryError(f"the model and its table do not fit in memory{more}; give a smaller table") from None


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

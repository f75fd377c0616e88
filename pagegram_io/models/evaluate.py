"""Held-out loss over fixed windows, with the table's rows from wherever they are: RAM, a packed file, flash."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pagegram_io.models.addressing import Addressing
from pagegram_io.models.transformer import Decoder, token_losses
from pagegram_io.models.windows import gather_windows, held_out_begins, window_stream
from pagegram_io.tokens import Stream


class RowSource(Protocol):
    """Gives the rows of a stream's tokens from begin to end as stored, signs not applied."""

    def vectors(self, stream: Stream, begin: int, end: int) -> Tensor:
        """float32 [tokens, columns, width]."""

    def ahead(self, stream: Stream) -> None:
        """Told of the stream whose rows are asked for next, whole and before any other: what can be read early is."""


class RamRows:
    """Rows of a tensor, [row_count, width]."""

    def __init__(self, addressing: Addressing, weight: Tensor) -> None:
        self.addressing, self.weight = addressing, weight

    def vectors(self, stream: Stream, begin: int, end: int) -> Tensor:
        return F.embedding(self.addressing.rows(stream, begin, end), self.weight)

    def ahead(self, stream: Stream) -> None:
        """There is nothing to wait for."""


@dataclass(frozen=True)
class Evaluation:
    """Mean loss of each window in nats, FP64 [windows]."""

    window_losses: np.ndarray

    @property
    def loss(self) -> float:
        return float(self.window_losses.mean())

    @property
    def loss_error(self) -> float:
        """Standard error of the loss over windows; 0 of a single one."""
        return _standard_error(self.window_losses)

    def less(self, other: Evaluation) -> tuple[float, float]:
        """This loss less another on the same windows, and its standard error, of the differences window by window.

        What makes a window hard is in both and leaves the difference, whose error is far smaller than either loss's.
        """
        if len(self.window_losses) != len(other.window_losses):
            counts = f"{len(self.window_losses)} and {len(other.window_losses)}"
            raise ValueError(f"losses over {counts} windows are not of the same windows and have no difference")
        differences = self.window_losses - other.window_losses
        return float(differences.mean()), _standard_error(differences)


def _standard_error(values: np.ndarray) -> float:
    """Of the mean of values; 0 of a single one."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU; nothing on a CPU, where it is slower."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def evaluate(
    model: Decoder,
    stream: Stream,
    *,
    windows: int,
    addressing: Addressing | None = None,
    source: RowSource | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """The loss of a model on held-out windows of a stream; ``progress`` is told of windows done and of
    all, and may raise to stop.

    addressing gives the signs, source the rows; both or, for a model without memory, neither.
    """
    preset, device = model.preset, model.cos.device
    context, together = preset.context, preset.micro_windows
    begins = held_out_begins(len(stream), context, windows)
    if not len(begins):
        raise ValueError(f"{stream.name} has {len(stream)} tokens, not the {context + 1} of one held-out window")
    batches = [begins[first : first + together] for first in range(0, len(begins), together)]
    losses: list[np.ndarray] = []
    upcoming = window_stream(stream, batches[0], context)
    for i, some in enumerate(batches):
        ids = torch.from_numpy(gather_windows(stream, some, context + 1).astype(np.int64)).to(device)
        vectors = signs = None
        if source is not None and addressing is not None:
            batch = upcoming
            shape = (len(some), context, addressing.column_count, addressing.row_width)
            vectors = source.vectors(batch, 0, len(batch)).view(shape).to(device)
            if i + 1 < len(batches):
                upcoming = window_stream(stream, batches[i + 1], context)
                source.ahead(upcoming)
            signs = addressing.signs(batch).view(shape)
        with autocast(device):
            logits = model(ids[:, :-1], vectors, signs)
        losses.append(token_losses(logits, ids[:, 1:]).double().mean(dim=1).cpu().numpy())
        if progress is not None:
            progress(i * together + len(some), len(begins))
    return Evaluation(np.concatenate(losses))

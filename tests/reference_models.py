"""Slow and obvious twins of pagegram_io.models. Nothing here uses the code that it checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import reference
import torch


def schedule(steps: int) -> list[float]:
    """lr * min(1, (s + 1) / w, (N - s) / c), in whole numbers until the last division."""
    warm, cool = math.ceil(steps * 5 / 100), steps * 2 // 10
    return [min(1.0, (s + 1) / warm, (steps - s) / cool if cool else 1.0) for s in range(steps)]


def signs(ids: Sequence[int], starts: Sequence[int], seed: int, order: int, head: int, width: int) -> list[list[int]]:
    """-1 where the bit is set, else +1, for each element of one head's row at each position."""
    every = []
    for g in reference.ngram_hashes(ids, starts, order):
        words = reference.sign_words(g, seed, order, head, width)
        every.append([-1 if words[i // 64] >> i % 64 & 1 else 1 for i in range(width)])
    return every


class DenseRms:
    """Row-wise RMS that steps every row every time, in Python's floats: lists of lists, one row a list."""

    def __init__(
        self, row_count: int, width: int, rates: Sequence[float], decay: float, beta2: float, per_row: bool
    ) -> None:
        self.weight = [[0.0] * width for _ in range(row_count)]
        self.v, self.touches = [0.0] * row_count, [0] * row_count
        self.rates, self.decay, self.beta2, self.per_row = rates, decay, beta2, per_row

    def step(self, step: int, gradients: dict[int, list[float]]) -> None:
        """gradients: of the rows used in this step, summed over their uses; all others have zero."""
        rate = self.rates[step]
        for row, weight in enumerate(self.weight):
            gradient = gradients.get(row, [0.0] * len(weight))
            self.touches[row] += row in gradients
            mean_square = sum(g * g for g in gradient) / len(gradient)
            self.v[row] = self.beta2 * self.v[row] + (1 - self.beta2) * mean_square
            for j, g in enumerate(gradient):
                weight[j] *= 1 - self.decay * rate
                if g != 0:
                    count = self.touches[row] if self.per_row else step + 1
                    weight[j] -= rate * g / math.sqrt(self.v[row] / (1 - self.beta2**count))


def update_by_indexing(table: Any, rows: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, step: int) -> None:
    """One step of a RowRms's rows, whose state it changes, in the order of operations that its bits are defined by."""
    powers = table.beta2 ** torch.arange(len(table.rates) + 1, dtype=torch.float64)
    mean_square = gradient.square().mean(dim=1)
    aged = powers[step + 1 - table.last[rows]] * table.v[rows]
    v = (aged + (1 - table.beta2) * mean_square).to(table.v.dtype)
    correction: Any = 1 - table.beta2 ** (step + 1)
    if table.touches is not None:
        table.touches[rows] += 1
        correction = (1 - powers[table.touches[rows]]).to(v.dtype)
    scale = torch.where(v > 0, table.rates[step] / (v / correction).sqrt(), 0)
    kept = weight if table.decay == 0.0 else weight * (1 - table.decay * table.rates[step])
    table.weight[rows] = kept - gradient * scale[:, None]
    table.v[rows], table.last[rows] = v, step + 1

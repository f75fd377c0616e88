"""The learning-rate schedule: up in a twentieth of the steps, level, down to zero in the last fifth."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Factors of the learning rates for ``steps`` steps; the table's rate follows the same as the dense one."""

    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"{self.steps} steps; a run has at least 1")

    def factor(self, step: int) -> float:
        """min(1, (s + 1) / w, (N - s) / c) at step s of N, with w = ceil(N / 20), c = floor(N / 5)."""
        if not 0 <= step < self.steps:
            raise ValueError(f"step {step} is not in 0 to {self.steps - 1}")
        # In whole numbers: 0.05 * 100 is more than 5 in floating point, and ceil would make 6 of it.
        warm, cool = -(-self.steps // 20), self.steps // 5
        down = (self.steps - step) / cool if cool else math.inf
        return min(1.0, (step + 1) / warm, down)

    def factors(self) -> list[float]:
        return [self.factor(step) for step in range(self.steps)]

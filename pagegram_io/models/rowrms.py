"""The table and its optimiser: row-wise RMS that touches only the rows of a step (models.md section 2).

A row keeps one number v, the moving average of its mean squared gradient, and the step at which it was last touched.
What a dense optimiser would have done to it since, one factor beta2 of v and one factor 1 - decay * lr of its weights
for each step, is replayed when it is next touched: by a power, and by a difference of prefix sums of logarithms, both
in FP64. So the values read, the weights and v are those of the dense optimiser, at the cost of the touched rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BETA2 = 0.95
BIAS_CORRECTIONS = ("global", "row")


class RowRms:
    """Rows [row_count, width], all zero at first, outside autograd, and their state.

    rates: the learning rate of every step of the run. bias_correction: v is divided by 1 - beta2^t, where t counts
    the steps of the run (``global``, what a dense optimiser does) or those that touched the row (``row``).
    """

    def __init__(
        self,
        row_count: int,
        width: int,
        rates: Sequence[float],
        *,
        decay: float = 0.0,
        bias_correction: str = "global",
        beta2: float = BETA2,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if bias_correction not in BIAS_CORRECTIONS:
            raise ValueError(f"bias correction {bias_correction!r} is not known; choose {', '.join(BIAS_CORRECTIONS)}")
        if not 0 <= decay * max(rates) < 1:
            raise ValueError(
                f"a table decay of {decay} takes a weight to zero or past it in one step; give a smaller one"
            )
        self.rates, self.decay, self.beta2 = list(rates), decay, beta2
        self.weight = torch.zeros(row_count, width, dtype=dtype, device=device)
        self.v = torch.zeros(row_count, dtype=dtype, device=device)
        self.last = torch.zeros(row_count, dtype=torch.int32, device=device)  # steps done when the row was last touched
        per_row = bias_correction == "row"
        self.touches = torch.zeros(row_count, dtype=torch.int32, device=device) if per_row else None
        logs = torch.tensor([0.0, *(math.log1p(-decay * rate) for rate in rates)], dtype=torch.float64)
        self._log_kept = logs.cumsum(0).to(device)  # [steps + 1]: what decay leaves after so many steps
        self._powers = (beta2 ** torch.arange(len(self.rates) + 1, dtype=torch.float64)).to(device)

    def read(self, rows: Tensor, step: int) -> Tensor:
        """The rows' weights as they are before a step, a new tensor [rows, width]."""
        weight = self.weight.index_select(0, rows)
        if self.decay == 0.0:
            return weight
        kept = (self._log_kept[step] - self._log_kept[self.last[rows]]).exp()
        return (weight.double() * kept[:, None]).to(weight.dtype)

    def update(self, rows: Tensor, weight: Tensor, gradient: Tensor, step: int) -> None:
        """One step for distinct rows: weight as ``read`` gave it, gradient summed over all uses of a row."""
        # index_select and index_copy_ on rows that are distinct: what brackets do, in half the time.
        kept_of_v = self._powers.index_select(0, step + 1 - self.last.index_select(0, rows))
        mean_square = gradient.square().mean(dim=1)
        v = (kept_of_v * self.v.index_select(0, rows) + (1 - self.beta2) * mean_square).to(self.v.dtype)
        if self.touches is None:
            correction: Tensor | float = 1 - self.beta2 ** (step + 1)
        else:
            touches = self.touches[rows] + 1
            self.touches[rows] = touches
            correction = (1 - self._powers[touches]).to(v.dtype)
        rate = self.rates[step]
        # Where v is zero so is the gradient, and the row stays.
        scale = torch.where(v > 0, rate / (v / correction).sqrt(), 0)
        kept = weight if self.decay == 0.0 else weight * (1 - self.decay * rate)
        self.weight.index_copy_(0, rows, kept - gradient * scale[:, None])
        self.v.index_copy_(0, rows, v)
        self.last.index_fill_(0, rows, step + 1)

    def settled(self, step: int) -> Tensor:
        """All weights as ``read`` would give them before a step; the tensor itself where nothing decays."""
        if self.decay == 0.0:
            return self.weight
        kept = (self._log_kept[step] - self._log_kept[self.last]).exp()
        return (self.weight.double() * kept[:, None]).to(self.weight.dtype)

    def state(self) -> dict[str, Tensor]:
        """What resuming needs beside the settled weights; the weights as they lie too where some wait for decay."""
        state = {"v": self.v, "last": self.last}
        if self.touches is not None:
            state["touches"] = self.touches
        if self.decay != 0.0:
            state["weight"] = self.weight
        return state

    def load(self, weight: Tensor, state: dict[str, Tensor]) -> None:
        """Take up a state saved with ``state`` and ``settled``."""
        self.weight.copy_(state.get("weight", weight))
        self.v.copy_(state["v"])
        self.last.copy_(state["last"])
        if self.touches is not None:
            self.touches.copy_(state["touches"])

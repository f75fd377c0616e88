"""The rows of each use out of a step's distinct rows, and back: a row's gradient is the sum over its uses."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def gather(leaf: Tensor, places: Tensor) -> Tensor:
    """leaf[places], [..., width] of a leaf [rows, width]; the gradient's sums are in the order of the uses.

    On a CPU torch's own backward calls BLAS for each use, and narrow rows (mini's have 16 values) then cost twice the
    time; the sums are the same to the last bit. On a GPU index_add_ has no order, so torch's own it is.
    """
    if leaf.device.type != "cpu":
        return F.embedding(places, leaf)
    gathered: Tensor = _Gather.apply(leaf, places)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.leaf_shape = leaf.shape
        return leaf.index_select(0, places.flatten()).view(*places.shape, leaf.shape[-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        sums = gradient.new_zeros(ctx.leaf_shape)
        return sums.index_add_(0, places.flatten(), gradient.reshape(-1, gradient.shape[-1])), None

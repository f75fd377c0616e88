"""Memories: what a table adds to a model, e = f(signs * rows), through gates (models.md section 1).

A memory consumes rows and signs and knows no addresses: those are addressing.py's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pagegram_io.models.addressing import Addressing
from pagegram_io.models.presets import GATES, Preset
from pagegram_io.models.transformer import RmsNorm

GATE_START = 0.5


def orthogonal(out_width: int, in_width: int, gain: float, generator: torch.Generator) -> Tensor:
    """A matrix with W W^T = gain^2 I (W^T W, where it is taller than wide), drawn evenly; in FP64 until the end."""
    tall = out_width > in_width
    shape = (out_width, in_width) if tall else (in_width, out_width)
    q, r = torch.linalg.qr(torch.randn(shape, dtype=torch.float64, generator=generator))
    q = q * r.diagonal().sign()  # without this the draw would lean to some directions
    return (gain * (q if tall else q.T)).float().contiguous()


@dataclass(frozen=True)
class Read:
    """One lookup of every token: e [windows, positions, dim] and, for the context gate, its keys of the same shape."""

    e: Tensor
    key: Tensor | None


class Memory(nn.Module):
    """W_V and the gates. ``read`` makes e once a token; ``add`` puts it into the residual stream before a layer."""

    def __init__(
        self, preset: Preset, addressing: Addressing, generator: torch.Generator, *, gate: str = "scalar"
    ) -> None:
        super().__init__()
        if gate not in GATES:
            raise ValueError(f"gate {gate!r} is not known; choose {', '.join(GATES)}")
        if addressing.summed and addressing.row_width != preset.dim:
            raise ValueError(
                f"rows of {addressing.row_width} values cannot be summed into a model of width {preset.dim}"
            )
        dim, wide = preset.dim, addressing.column_count * addressing.row_width
        self.layers = preset.memory_layers
        gain = math.sqrt(addressing.order_count * dim / wide)
        self.value = None if addressing.summed else nn.Parameter(orthogonal(dim, wide, gain, generator))
        if gate == "scalar":
            self.gates = nn.ParameterList(nn.Parameter(torch.tensor(GATE_START)) for _ in self.layers)
        else:
            self.key = nn.Parameter(orthogonal(dim, wide, gain, generator))
            self.hidden_norms = nn.ModuleList(RmsNorm(dim) for _ in self.layers)
            self.key_norms = nn.ModuleList(RmsNorm(dim) for _ in self.layers)
        self.gate = gate

    def read(self, vectors: Tensor, signs: Tensor) -> Read:
        """e, and the keys, of rows and signs [windows, positions, columns, width]."""
        rows = vectors * signs
        wide = rows.flatten(-2)
        e = rows.sum(dim=-2) if self.value is None else wide @ self.value.T
        return Read(e, wide @ self.key.T if self.gate == "context" else None)

    def alpha(self, x: Tensor, read: Read, layer: int) -> Tensor:
        """The context gate, [windows, positions, 1] between 0 and 1, in FP32."""
        i = self.layers.index(layer)
        product = self.hidden_norms[i](x) * self.key_norms[i](read.key)
        return torch.sigmoid(product.sum(dim=-1, keepdim=True) / math.sqrt(x.shape[-1]))

    def add(self, x: Tensor, read: Read, layer: int) -> Tensor:
        if self.gate == "context":
            return x + self.alpha(x, read, layer) * read.e
        return x + self.gates[self.layers.index(layer)] * read.e

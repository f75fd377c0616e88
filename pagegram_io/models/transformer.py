"""The decoder: pre-norm, causal, RMSNorm, rotary positions, GELU, no biases, untied embeddings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pagegram_io.models.presets import Preset

if TYPE_CHECKING:
    from pagegram_io.models.memory import Memory

ROPE_BASE = 10_000.0
INIT_STD = 0.02


class RmsNorm(nn.Module):
    """x / rms(x), times a learnt weight; in FP32 whatever the input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, eps=1e-6)


def rope_tables(context: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [context, width / 2]; in FP64 first, so that every device gets the same."""
    frequencies = ROPE_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (j, j + width / 2) of x, [..., positions, width]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream x, [windows, positions, dim]."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = RmsNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.attention_out = nn.Linear(dim, dim, bias=False)
        self.mlp_norm = RmsNorm(dim)
        self.mlp_in = nn.Linear(dim, 4 * dim, bias=False)
        self.mlp_out = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        windows, positions, dim = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(windows, positions, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(windows, positions, dim))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))


class Decoder(nn.Module):
    """The decoder of a preset. ``memory`` adds to the residual stream before the blocks it names."""

    cos: Tensor
    sin: Tensor

    def __init__(self, preset: Preset, generator: torch.Generator, memory: Memory | None = None) -> None:
        super().__init__()
        self.preset = preset
        self.embedding = nn.Embedding(preset.vocabulary, preset.dim)
        self.blocks = nn.ModuleList(Block(preset.dim, preset.heads) for _ in range(preset.layers))
        self.norm = RmsNorm(preset.dim)
        self.unembedding = nn.Linear(preset.dim, preset.vocabulary, bias=False)
        cos, sin = rope_tables(preset.context, preset.dim // preset.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise(generator)
        self.memory: Memory | None = memory  # after the draws: the backbone's are the same whatever the memory

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Normal weights; those that add to the residual stream are smaller, so that its variance does not grow."""
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                adds = name.endswith(("attention_out.weight", "mlp_out.weight"))
                scale = 1 / math.sqrt(2 * self.preset.layers) if adds else 1.0
                weight.normal_(0.0, INIT_STD * scale, generator=generator)

    def forward(self, ids: Tensor, vectors: Tensor | None = None, signs: Tensor | None = None) -> Tensor:
        """Logits [windows, positions, vocabulary] of ids [windows, positions].

        vectors [windows, positions, columns, width]: the table's rows as stored; signs: the same shape, -1 or +1.
        """
        positions = ids.shape[1]
        cos, sin = self.cos[:positions], self.sin[:positions]
        x = self.embedding(ids)
        memory = self.memory
        read = None
        if memory is not None:
            assert vectors is not None and signs is not None, "a model with memory takes rows and signs"
            read = memory.read(vectors, signs)
        for layer, block in enumerate(self.blocks):
            if memory is not None and read is not None and layer in memory.layers:
                x = memory.add(x, read, layer)
            x = block(x, cos, sin)
        logits: Tensor = self.unembedding(self.norm(x))
        return logits


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each token in nats, FP32 [windows, positions]."""
    flat = F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1), reduction="none")
    return flat.view(targets.shape)


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())

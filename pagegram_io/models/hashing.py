"""Hash scheme pg1 in torch, on any device: rows and signs of tokens (layouts.md section 1).

Torch has no unsigned 64-bit arithmetic: int64 wraps as uint64 does, a logical shift is a shift and a mask, and u keeps
63 bits so that ``%`` means the same.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pagegram_io import native
from pagegram_io.layout import Layout
from pagegram_io.tokens import Stream


def signed(value: int) -> int:
    """The int64 with the bits of a uint64."""
    return value - 2**64 if value >= 2**63 else value


_GAMMA = signed(0x9E3779B97F4A7C15)
_FIRST_FACTOR = signed(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = signed(0x94D049BB133111EB)


def _shifted(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    """The finaliser, int64 to int64."""
    z = (z ^ _shifted(z, 30)) * _FIRST_FACTOR
    z = (z ^ _shifted(z, 27)) * _SECOND_FACTOR
    return z ^ _shifted(z, 31)


def ngram_hashes(ids: Tensor, starts: Tensor, order_max: int) -> list[Tensor]:
    """g_1 to g_order_max of int64 ids [tokens]; starts: bool [tokens], true where a document starts."""
    at = torch.arange(len(ids), device=ids.device)
    since = at - torch.where(starts, at, 0).cummax(dim=0).values  # tokens of the document before this one
    hashes = [mix(ids + 1)]
    for back in range(1, order_max):
        past = torch.zeros_like(ids)
        past[back:] = ids[: max(len(ids) - back, 0)] + 1
        hashes.append(mix(hashes[-1] ^ torch.where(since >= back, past, 0) * _GAMMA))
    return hashes


def _orders(layout: Layout) -> list[tuple[int, int, int]]:
    """The n-gram orders of each column's bucket, slot and signs: signs follow the longest that the column hashes."""
    orders = []
    for column in (column for group in layout.groups for column in group.columns):
        hashes = layout.hashes[column.bucket_hash], layout.hashes[column.slot_hash]
        if any(part.scheme != "pg1" for part in hashes):
            raise ValueError(f"{layout.label}: models train with hashes of the scheme pg1 alone")
        bucket, slot = (part.order for part in hashes)
        orders.append((bucket, slot, max(bucket, slot) if column.slot_count > 1 else bucket))
    return orders


class Hasher:
    """A layout's columns as tensors on a device."""

    def __init__(self, layout: Layout, device: torch.device | str = "cpu") -> None:
        columns = [column for group in layout.groups for column in group.columns]
        orders = _orders(layout)
        self.width = layout.row_width
        self.device = torch.device(device)
        self.order_max = max(max(of_column) for of_column in orders)

        def tensor(values: list[int]) -> Tensor:
            return torch.tensor([signed(value) for value in values], dtype=torch.int64, device=device)

        self._bucket_order = tensor([bucket - 1 for bucket, _, _ in orders])
        self._slot_order = tensor([slot - 1 for _, slot, _ in orders])
        self._sign_order = tensor([sign - 1 for _, _, sign in orders])
        self._bucket_salt = tensor([c.bucket_salt for c in columns])
        self._slot_salt = tensor([c.slot_salt for c in columns])
        self._modulus = tensor([c.modulus for c in columns])
        self._row_base = tensor([c.row_base for c in columns])
        self._row_stride = tensor([c.row_stride for c in columns])
        self._slot_count = tensor([c.slot_count for c in columns])
        words = range(-(-self.width // 64))
        signs = zip(columns, (sign for _, _, sign in orders), strict=True)
        salts = [native.salt(layout.seed, "sign", order, 64 * c.head + j) for c, order in signs for j in words]
        self._sign_salt = tensor(salts).view(len(columns), len(words))
        self._signs_of_byte = 1.0 - 2.0 * (torch.arange(256)[:, None] >> torch.arange(8) & 1).float().to(device)

    def hashes(self, stream: Stream, begin: int, end: int) -> Tensor:
        """g_n of every order at tokens begin to end, int64 [orders, tokens]."""
        first = max(begin - self.order_max + 1, 0)  # as far as an n-gram can look back
        ids = torch.from_numpy(stream.ids[first:end].astype(np.int64)).to(self.device)
        low, high = np.searchsorted(stream.document_starts, np.array([first, end], np.uint64))
        starts = torch.zeros(end - first, dtype=torch.bool)
        starts[torch.from_numpy((stream.document_starts[low:high] - np.uint64(first)).astype(np.int64))] = True
        return torch.stack(ngram_hashes(ids, starts.to(self.device), self.order_max))[:, begin - first :]

    def rows(self, hashes: Tensor) -> Tensor:
        """Global rows, int64 [tokens, columns]."""
        bucket = hashes[self._bucket_order].movedim(0, -1) ^ self._bucket_salt
        slot = hashes[self._slot_order].movedim(0, -1) ^ self._slot_salt
        bucket = _shifted(mix(bucket), 1) % self._modulus
        slot = _shifted(mix(slot), 1) % self._slot_count
        return self._row_base + bucket * self._row_stride + slot

    def signs(self, hashes: Tensor) -> Tensor:
        """-1.0 or +1.0 for each element of each row, float32 [tokens, columns, width]."""
        mixed = mix(hashes[self._sign_order].movedim(0, -1)[..., None] ^ self._sign_salt)
        # Little-endian: byte b of a word holds bits 8b to 8b + 7. A table of 8 KiB has the signs of each byte: a tenth
        # of the time of shifting bits out one by one, which was the most that a table cost in training.
        used = mixed.contiguous().view(torch.uint8)[..., : -(-self.width // 8)]
        return F.embedding(used.int(), self._signs_of_byte).flatten(-2)[..., : self.width]

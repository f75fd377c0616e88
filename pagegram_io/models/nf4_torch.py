"""Four-bit rows in torch, bit for bit as ``pagegram_io.nf4``; on whatever device the tensors are."""

from __future__ import annotations

import torch

from pagegram_io import nf4
from pagegram_io.layout import row_bytes_of


def encode(values: torch.Tensor) -> torch.Tensor:
    """Rows of values, float32 [n, width], as uint8 [n, width / 2 + 2]. ValueError names a row that is not finite."""
    if values.ndim != 2 or values.dtype != torch.float32:
        raise ValueError(f"rows to encode are float32 [rows, width], not {values.dtype} {list(values.shape)}")
    row_bytes_of("nf4", values.shape[1])
    finite = values.isfinite().all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise ValueError(f"row {row} holds a NaN or an infinity, which NF4 cannot store")
    absmax = values.abs().amax(dim=1)
    scales = absmax.clamp(nf4.SCALE_MIN, nf4.SCALE_MAX).to(torch.float16)
    midpoints = torch.from_numpy(nf4.MIDPOINTS).to(values.device)
    codes = torch.bucketize(values / scales.to(torch.float32)[:, None], midpoints).to(torch.uint8)
    scales = torch.where(absmax == 0, torch.zeros_like(scales), scales)  # every code is that of level 0 there
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return torch.cat([packed, scales.view(torch.uint8).reshape(-1, 2)], dim=1)


def decode(rows: torch.Tensor, width: int) -> torch.Tensor:
    """The values of rows, uint8 [n, width / 2 + 2], as float32 [n, width]."""
    if rows.dtype != torch.uint8 or tuple(rows.shape[1:]) != (row_bytes_of("nf4", width),):
        raise ValueError(f"NF4 rows of {width} values are uint8 [rows, {width // 2 + 2}], not {rows.dtype} "
                         f"{list(rows.shape)}")  # fmt: skip
    packed = rows[:, : width // 2]
    codes = torch.stack([packed & 15, packed >> 4], dim=2).reshape(len(rows), width)
    # A copy even where one row is contiguous as it is: its scale may begin on an odd byte.
    scales = rows[:, width // 2 :].clone(memory_format=torch.contiguous_format).view(torch.float16).to(torch.float32)
    return torch.from_numpy(nf4.LEVELS).to(rows.device)[codes.long()] * scales

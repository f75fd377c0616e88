"""Four-bit rows: sixteen levels and one FP16 scale a row (docs/formats.md, Rows).

``encode`` and ``decode`` run in C; ``encode_numpy`` and ``decode_numpy`` are the same rule in NumPy, bit for bit,
and ``models/nf4_torch.py`` is the same again in torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagegram_io.layout import row_bytes_of
from pagegram_io.native_nf4 import nf4_decode, nf4_encode

# The normal-float levels of QLoRA, each the FP32 number nearest to what is written.
LEVELS = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)
MIDPOINTS = (LEVELS[:-1] + LEVELS[1:]) / np.float32(2)  # in FP32; what lies on one takes the lower level
ZERO_CODE = 7
SCALE_MIN, SCALE_MAX = 2.0**-24, 65504.0


@dataclass(frozen=True)
class Counts:
    """Rows whose scale is not their absmax in FP16 (raised to 2^-24, lowered to 65504), and rows of zeros alone."""

    tiny: int = 0
    clamped: int = 0
    zero: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.tiny + other.tiny, self.clamped + other.clamped, self.zero + other.zero)


def encode(values: np.ndarray, *, isa: str = "auto") -> np.ndarray:
    """Rows of values, float32 [n, width], as uint8 [n, width / 2 + 2]. ValueError names a row that is not finite."""
    return encode_counted(values, isa=isa)[0]


def encode_counted(
    values: np.ndarray, *, out: np.ndarray | None = None, isa: str = "auto"
) -> tuple[np.ndarray, Counts]:
    """As ``encode``, with the rows that were tiny, clamped or zero; into ``out`` (rows may lie apart) if given."""
    values = _matrix(values)
    rows = np.empty((len(values), row_bytes_of("nf4", values.shape[1])), np.uint8) if out is None else out
    return rows, Counts(*nf4_encode(values, rows, isa=isa))


def decode(rows: np.ndarray, width: int, *, isa: str = "auto") -> np.ndarray:
    """The values of rows, uint8 [n, width / 2 + 2], as float32 [n, width]."""
    row_bytes_of("nf4", width)
    values = np.empty((len(rows), width), np.float32)
    nf4_decode(rows, values, isa=isa)
    return values


def encode_numpy(values: np.ndarray) -> np.ndarray:
    """``encode`` in NumPy."""
    values = _matrix(values)
    row_bytes_of("nf4", values.shape[1])
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise ValueError(f"row {int(np.argmin(finite))} holds a NaN or an infinity, which NF4 cannot store")
    absmax = np.abs(values).max(axis=1)
    scales = np.clip(absmax, SCALE_MIN, SCALE_MAX).astype(np.float16)
    codes = np.searchsorted(MIDPOINTS, values / scales.astype(np.float32)[:, None]).astype(np.uint8)
    scales[absmax == 0] = 0  # every code is that of level 0 there
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return np.hstack([packed, scales.astype("<f2").view(np.uint8).reshape(-1, 2)])


def decode_numpy(rows: np.ndarray, width: int) -> np.ndarray:
    """``decode`` in NumPy."""
    packed = rows[:, : width // 2]
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(rows), width)
    scales = np.ascontiguousarray(rows[:, width // 2 :]).view("<f2").astype(np.float32)
    with np.errstate(invalid="ignore"):  # no scale that was encoded is infinite; a damaged one may be
        return LEVELS[codes] * scales


def _matrix(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim != 2 or values.dtype != np.float32:
        raise ValueError(f"rows to encode are float32 [rows, width], not {values.dtype} {list(values.shape)}")
    return values

"""NF4 in plain Python: levels from the normal distribution, rows one value at a time, FP64 rounded where FP32 is."""

from __future__ import annotations

import math
import struct
from statistics import NormalDist

LARGEST, TINIEST = 65504.0, 2.0**-24
# QLoRA's tail probability: the mean of 1 - 1/30 and 1 - 1/32, as it was rounded when the levels were made.
OFFSET = 0.9677083


def fp32(value: float) -> float:
    """The nearest FP32. FP64 quotients and products of two FP32 numbers, so rounded, are those of FP32 itself."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def fp16(value: float) -> float:
    return float(struct.unpack("<e", struct.pack("<e", value))[0])


def levels_in_theory() -> list[float]:
    """Normal quantiles, evenly spaced in probability on each side: 8 above 0 and 7 below; scaled so the last is 1."""
    quantile = NormalDist().inv_cdf

    def side(count: int) -> list[float]:
        return [quantile(OFFSET + (0.5 - OFFSET) * i / count) for i in range(count)]

    values = sorted([*side(8), 0.0, *(-value for value in side(7))])
    return [value / values[-1] for value in values]


def encode_row(values: list[float], levels: list[float]) -> bytes:
    absmax = max(map(abs, values))
    if absmax == 0:
        return bytes([0x77] * (len(values) // 2) + [0, 0])
    scale = fp16(min(max(absmax, TINIEST), LARGEST))
    codes = []
    for value in values:
        x = fp32(value / scale)
        code = 0
        while code < 15 and x > fp32((levels[code] + levels[code + 1]) / 2):
            code += 1
        codes.append(code)
    return bytes(a | b << 4 for a, b in zip(codes[::2], codes[1::2], strict=True)) + struct.pack("<e", scale)


def decode_row(row: bytes, levels: list[float]) -> list[float]:
    scale = struct.unpack("<e", row[-2:])[0]
    codes = [code for byte in row[:-2] for code in (byte & 15, byte >> 4)]
    return [fp32(levels[code] * scale) for code in codes]


def error_bound(absmax: float) -> float:
    """How far a decoded value may be from its own, where the scale was not clamped."""
    return 0.15191 * absmax + max(2.0**-11 * absmax, 2.0**-25)


def is_exact_zero(value: float) -> bool:
    return value == 0 and math.copysign(1, value) == 1

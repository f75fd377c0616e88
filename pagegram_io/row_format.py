"""Rows of a table as bytes, in the formats that trained tables are packed in; docs/formats.md, Rows."""

from __future__ import annotations

import numpy as np

from pagegram_io import nf4
from pagegram_io.layout import row_bytes_of
from pagegram_io.nf4 import Counts

FORMATS = ("nf4", "fp32", "fp16")
FP16_MAX = 65504.0


def encode_rows(row_format: str, values: np.ndarray) -> tuple[np.ndarray, Counts]:
    """Rows of finite values, float32 [n, width], as uint8 [n, row bytes], and what could not be kept as it was.

    FP16 holds no more than 65,504, to which larger magnitudes are clamped; NF4 has its own rules (``nf4.Counts``).
    """
    if row_format == "nf4":
        return nf4.encode_counted(values)
    zero = int(np.count_nonzero(~values.any(axis=1)))
    if row_format == "fp32":
        return _as_bytes(values.astype("<f4")), Counts(zero=zero)
    if row_format == "fp16":
        clamped = int(np.count_nonzero(np.abs(values).max(axis=1) > FP16_MAX))
        return _as_bytes(np.clip(values, -FP16_MAX, FP16_MAX).astype("<f2")), Counts(clamped=clamped, zero=zero)
    raise ValueError(f"rows are packed as {', '.join(FORMATS)}, not as {row_format}")


def decode_rows(row_format: str, rows: np.ndarray, width: int) -> np.ndarray:
    """The values of rows, uint8 [n, row bytes], as float32 [n, width]."""
    if rows.dtype != np.uint8 or rows.shape[1:] != (row_bytes_of(row_format, width),):
        raise ValueError(f"{row_format} rows of {width} values are uint8 [rows, {row_bytes_of(row_format, width)}], "
                         f"not {rows.dtype} {list(rows.shape)}")  # fmt: skip
    if row_format == "nf4":
        return nf4.decode(rows, width)
    if row_format in FORMATS:
        dtype = "<f4" if row_format == "fp32" else "<f2"
        return np.ascontiguousarray(rows).view(dtype).astype(np.float32)
    raise ValueError(f"rows are unpacked from {', '.join(FORMATS)}, not from {row_format}")


def _as_bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)

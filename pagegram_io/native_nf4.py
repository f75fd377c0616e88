"""The border to C for four-bit rows (nf4.c), beside ``native.py`` and by its rules."""

from __future__ import annotations

import numpy as np

from pagegram_io._pgio import ffi, lib
from pagegram_io.native import ISAS, checked, pointer


def nf4_encode(values: np.ndarray, rows: np.ndarray, *, isa: str = "auto") -> tuple[int, int, int]:
    """Encode values, float32 [n, width], into rows, uint8 [n, width / 2 + 2] with any stride between rows.

    Returns how many rows were tiny, clamped and zero. ValueError names a row that is not finite.
    """
    values = np.require(values, np.float32, ["C", "A"])
    counts = ffi.new("pgio_nf4_counts *")
    stride = _stride_of(rows, *values.shape)
    arguments = pointer(values, "float *"), *values.shape, pointer(rows, "uint8_t *"), stride, ISAS[isa], counts
    checked(lib.pgio_nf4_encode, *arguments)
    return int(counts.tiny), int(counts.clamped), int(counts.zero)


def nf4_decode(rows: np.ndarray, values: np.ndarray, *, isa: str = "auto") -> None:
    """Decode rows, uint8 [n, width / 2 + 2] with any stride between rows, into values, float32 [n, width]."""
    if values.dtype != np.float32 or not values.flags.c_contiguous or not values.flags.writeable:
        raise ValueError("values must be contiguous, writeable float32")
    stride = _stride_of(rows, *values.shape)
    arguments = pointer(rows, "uint8_t *"), *values.shape, stride, pointer(values, "float *"), ISAS[isa]
    checked(lib.pgio_nf4_decode, *arguments)


def _stride_of(rows: np.ndarray, count: int, width: int) -> int:
    """Bytes from row to row of a matrix of rows whose own bytes are adjacent."""
    row_bytes = width // 2 + 2
    if rows.dtype != np.uint8 or rows.shape != (count, row_bytes):
        raise ValueError(f"{count} NF4 rows of {width} values are uint8 [{count}, {row_bytes}], not {rows.dtype} "
                         f"{list(rows.shape)}")  # fmt: skip
    if count < 2:
        return row_bytes
    if rows.strides[1] != 1 or rows.strides[0] < row_bytes:
        raise ValueError("the bytes of each row must lie beside one another, and rows after one another")
    return int(rows.strides[0])

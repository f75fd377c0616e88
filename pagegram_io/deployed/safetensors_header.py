"""The header of a safetensors file: eight bytes of length, then JSON. The weights need not be there."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from pagegram_io.deployed.tensors import (
    BYTES_LIMIT,
    FileHeader,
    Tensor,
    check_neighbours,
    refuse,
    regular_size,
)
from pagegram_io.errors import FormatError
from pagegram_io.strict_json import is_whole, parse_json, shown

HEADER_BYTES_MAX = 2**24  # sixty times the largest header seen; JSON of more would only cost memory
DIMENSIONS_MAX = 16

# Bits of an element.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def read_header(path: str | os.PathLike[str], *, of: str | None = None) -> FileHeader:
    """The header of a whole or truncated file, or one saved from the file `of`. FormatError names file and tensor."""
    name = os.fspath(path)
    file_name = of or name
    file_bytes = regular_size(name)
    with open(name, "rb") as file:
        data_byte, fields = _read_json(file, name, file_bytes)
    metadata = fields.pop("__metadata__", {})
    if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
        raise FormatError(f"{name}: not a safetensors file: its __metadata__ is not a JSON object of texts")
    tensors = {key: _tensor(file_name, key, value, data_byte) for key, value in fields.items()}
    end_byte = check_neighbours(file_name, tensors.values(), begin=data_byte, alignment=1)
    if file_bytes > end_byte:
        raise FormatError(f"{name}: it has {file_bytes} bytes, and its tensors end at byte {end_byte}")
    return FileHeader(file_name, "safetensors", file_bytes, data_byte, end_byte, tensors, metadata)


def _read_json(file: BinaryIO, name: str, file_bytes: int) -> tuple[int, dict[str, Any]]:
    length = int.from_bytes(file.read(8), "little")
    if file_bytes < 8 or length < 2:
        raise FormatError(f"{name}: not a safetensors file: it does not begin with the length of a header")
    if length > HEADER_BYTES_MAX:
        raise FormatError(f"{name}: not a safetensors file, or one with a header of {length} bytes; at most "
                          f"{HEADER_BYTES_MAX} are read")  # fmt: skip
    text = file.read(length)
    if len(text) < length:
        raise FormatError(f"{name}: cut short in its header, which needs {8 + length} bytes of the file's {file_bytes}")
    try:
        fields = parse_json(text.decode())
    except ValueError as error:
        raise FormatError(f"{name}: not a safetensors file: its header is not JSON ({_line(error)})") from None
    if type(fields) is not dict or not text.startswith(b"{"):
        raise FormatError(f"{name}: not a safetensors file: its header is not a JSON object")
    return 8 + length, fields


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _tensor(file: str, name: str, fields: Any, data_byte: int) -> Tensor:
    if type(fields) is not dict or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise refuse(file, name, "not described by dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if type(dtype) is not str or dtype not in DTYPE_BITS:
        raise refuse(file, name, f"its dtype {shown(dtype)} is not known here")
    if type(shape) is not list or len(shape) > DIMENSIONS_MAX or not all(is_whole(n, BYTES_LIMIT) for n in shape):
        raise refuse(file, name, f"its shape is {shown(shape)}, not a list of at most {DIMENSIONS_MAX} whole numbers")
    if type(offsets) is not list or len(offsets) != 2 or not all(is_whole(n, BYTES_LIMIT) for n in offsets):
        raise refuse(file, name, f"its data_offsets are {shown(offsets)}, not two whole numbers")
    bits = DTYPE_BITS[dtype]
    for extent in shape:
        bits *= extent
        if bits >= 8 * BYTES_LIMIT:
            raise refuse(file, name, f"its shape {shown(shape)} of {dtype} takes 2^62 bytes or more")
    begin, end = offsets
    if bits % 8 or end - begin != bits // 8:
        raise refuse(file, name, f"{dtype} {shown(shape)} takes {bits / 8:.12g} bytes, and it lies at {shown(offsets)}")
    return Tensor(name, dtype, tuple(shape), file, data_byte + begin, end - begin)

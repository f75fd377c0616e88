"""The header of a GGUF file: keys, and tensors with their types and offsets. The weights need not be there.

Long texts and arrays (a tokenizer's pieces) are passed over: only texts of up to TEXT_KEPT_MAX bytes and arrays of up
to ARRAY_KEPT_MAX numbers are kept.
"""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO

from pagegram_io.deployed.tensors import (
    BYTES_LIMIT,
    NAME_BYTES_MAX,
    FileHeader,
    Tensor,
    check_neighbours,
    refuse,
    regular_size,
    tensor_name,
)
from pagegram_io.errors import FormatError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
COUNT_MAX = 2**17  # of tensors, and of keys
HEADER_BYTES_MAX = 2**26  # four times the largest tokenizer's; reading more would only cost time
ARRAY_KEPT_MAX = 4096
ARRAY_ITEMS_MAX = 2**24
TEXT_KEPT_MAX = 256
ALIGNMENT_KEY, ALIGNMENT = "general.alignment", 32
DIMENSIONS_MAX = 4
READ_BYTES = 2**20

# Types of values: struct's letter for numbers; 8 is a text and 9 an array.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9

# Types of tensors: name, values a block, bytes a block.
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}  # fmt: skip
BLOCKS = {name: (values, size) for name, values, size in TYPES.values()}


class _Cursor:
    """Reads forward through a header that may claim anything: no read is longer than the file or a sane header."""

    def __init__(self, file: BinaryIO, name: str, file_bytes: int) -> None:
        self.file, self.name, self.file_bytes, self.byte = file, name, file_bytes, 0

    def take(self, count: int, what: str) -> bytes:
        self._refuse_past_end(count, what)
        self.byte += count
        return self.file.read(count)

    def skip(self, count: int, what: str) -> None:
        self._refuse_past_end(count, what)
        self.byte += count
        self.file.seek(count, os.SEEK_CUR)

    def _refuse_past_end(self, count: int, what: str) -> None:
        if count > self.file_bytes - self.byte:
            raise FormatError(f"{self.name}: cut short in its header, in {what}, at byte {self.byte}")
        if count > HEADER_BYTES_MAX - self.byte:
            raise FormatError(f"{self.name}: its header is longer than {HEADER_BYTES_MAX} bytes, in {what}")

    def number(self, letter: str, what: str) -> Any:
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter), what))[0]

    def skip_texts(self, count: int, what: str) -> None:
        """Pass over texts, of which there may be millions: by the megabyte, not one by one."""
        memory, at = b"", 0  # bytes that are read already, and how many of them are passed
        for _ in range(count):
            if at + 8 > len(memory):
                memory, at = memory[at:] + self._more(8 - (len(memory) - at), what), 0
            end = at + 8 + int.from_bytes(memory[at : at + 8], "little")
            if end > len(memory):
                self.skip(end - len(memory), what)
                memory, at = b"", 0
            else:
                at = end
        self.file.seek(at - len(memory), os.SEEK_CUR)
        self.byte += at - len(memory)

    def _more(self, needed: int, what: str) -> bytes:
        """At least so many bytes, and as many as are at hand."""
        return self.take(max(needed, min(READ_BYTES, self.file_bytes - self.byte, HEADER_BYTES_MAX - self.byte)), what)

    def text(self, what: str) -> str:
        length = self.number("Q", what)
        if length > NAME_BYTES_MAX:
            raise FormatError(f"{self.name}: {what} is a text of {length} bytes; at most {NAME_BYTES_MAX} are read")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            raise FormatError(f"{self.name}: {what} is not a text in UTF-8") from None


def read_header(path: str | os.PathLike[str], *, of: str | None = None) -> FileHeader:
    """The header of a whole or truncated file, or one saved from the file `of`. FormatError names file and tensor."""
    name = os.fspath(path)
    file_name = of or name
    file_bytes = regular_size(name)
    with open(name, "rb", buffering=READ_BYTES) as file:
        cursor = _Cursor(file, name, file_bytes)
        if cursor.take(4, "its first bytes") != MAGIC:
            raise FormatError(f"{name}: not a GGUF file: it does not begin with {MAGIC.decode()}")
        version = cursor.number("I", "its version")
        if version.to_bytes(4, "big") in (v.to_bytes(4, "little") for v in VERSIONS):
            raise FormatError(f"{name}: a GGUF file of a big-endian machine; this program reads little-endian ones")
        if version not in VERSIONS:
            known = " or ".join(map(str, VERSIONS))
            raise FormatError(f"{name}: a GGUF file of version {version}; this program reads version {known}")
        tensor_count, key_count = cursor.number("Q", "its counts"), cursor.number("Q", "its counts")
        if max(tensor_count, key_count) > COUNT_MAX:
            text = f"{tensor_count} tensors and {key_count} keys; at most {COUNT_MAX} of each are read"
            raise FormatError(f"{name}: {text}")
        metadata = _keys(cursor, key_count)
        found = _tensor_lines(cursor, tensor_count)
        header_end = cursor.byte
    alignment = metadata.get(ALIGNMENT_KEY, ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 2**30 or alignment & (alignment - 1):
        raise FormatError(f"{name}: {ALIGNMENT_KEY} is {alignment!r}, not a power of two from 8")
    data_byte = -(-header_end // alignment) * alignment
    tensors = {key: _tensor(file_name, key, data_byte, *rest) for key, rest in found.items()}
    end_byte = check_neighbours(file_name, tensors.values(), begin=data_byte, alignment=alignment)
    return FileHeader(file_name, "gguf", file_bytes, data_byte, end_byte, tensors, metadata)


def _keys(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for i in range(count):
        key = cursor.text(f"the name of key {i}")
        what = f"key {tensor_name(key)}"
        if key in metadata:
            raise FormatError(f"{cursor.name}: {what} appears twice")
        metadata[key] = _value(cursor, cursor.number("I", what), what)
    return metadata


def _value(cursor: _Cursor, kind: int, what: str) -> Any:
    if kind in _NUMBERS:
        return cursor.number(_NUMBERS[kind], what)
    if kind == _TEXT:  # a chat template may be long
        length = cursor.number("Q", what)
        if length <= TEXT_KEPT_MAX:
            return cursor.take(length, what).decode(errors="replace")
        cursor.skip(length, what)
        return None
    if kind != _ARRAY:
        raise FormatError(f"{cursor.name}: {what} is of type {kind}, which is not known here")
    inner, count = cursor.number("I", what), cursor.number("Q", what)
    if count > ARRAY_ITEMS_MAX:
        raise FormatError(f"{cursor.name}: {what} is an array of {count} items; at most {ARRAY_ITEMS_MAX} are read")
    if inner in _NUMBERS:
        size = struct.calcsize("<" + _NUMBERS[inner])
        if count > ARRAY_KEPT_MAX:
            cursor.skip(count * size, what)
            return None
        return list(struct.unpack(f"<{count}{_NUMBERS[inner]}", cursor.take(count * size, what)))
    if inner != _TEXT:
        raise FormatError(f"{cursor.name}: {what} is an array of type {inner}, which is not known here")
    cursor.skip_texts(count, what)
    return None


def _tensor_lines(cursor: _Cursor, count: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
    """Of each tensor: dimensions as the file has them, fastest first; type; offset."""
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for i in range(count):
        key = cursor.text(f"the name of tensor {i}")
        what = f"tensor {tensor_name(key)}"
        if key in found:
            raise FormatError(f"{cursor.name}: {what} appears twice")
        dimensions = cursor.number("I", what)
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            raise refuse(cursor.name, key, f"it has {dimensions} dimensions, not 1 to {DIMENSIONS_MAX}")
        extents = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, what))
        found[key] = extents, cursor.number("I", what), cursor.number("Q", what)
    return found


def _tensor(file: str, name: str, data_byte: int, extents: tuple[int, ...], kind: int, offset: int) -> Tensor:
    if kind not in TYPES:
        raise refuse(file, name, f"its type {kind} is not known here")
    dtype, block_values, block_bytes = TYPES[kind]
    values = 1
    for extent in extents:
        values *= extent
        if values >= BYTES_LIMIT:
            raise refuse(file, name, f"its shape {list(reversed(extents))} is of 2^62 values or more")
    if extents[0] % block_values:
        raise refuse(file, name, f"rows of {extents[0]} values are no whole blocks of {block_values}, as {dtype} has")
    if offset >= BYTES_LIMIT:
        raise refuse(file, name, f"its offset {offset} is 2^62 or more")
    byte_count = values // block_values * block_bytes
    return Tensor(name, dtype, tuple(reversed(extents)), file, data_byte + offset, byte_count)

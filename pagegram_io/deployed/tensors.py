"""What the header of a checkpoint file says: tensors by name, and where each lies; no weights are needed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pagegram_io.errors import FormatError

BYTES_LIMIT = 2**62  # of a file, a tensor or a product of dimensions
NAME_BYTES_MAX = 2**16


@dataclass(frozen=True)
class Tensor:
    """One tensor: its type, its shape (rows first), and its bytes in its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    byte: int
    byte_count: int

    @property
    def end_byte(self) -> int:
        return self.byte + self.byte_count


@dataclass(frozen=True)
class FileHeader:
    """One file's header; file_bytes is what the disk holds, end_byte where the tensors end."""

    file: str
    form: str
    file_bytes: int
    data_byte: int
    end_byte: int
    tensors: dict[str, Tensor] = field(repr=False)
    metadata: dict[str, Any] = field(repr=False)

    @property
    def truncated(self) -> bool:
        """Does the file end before its tensors do? A plan does without them."""
        return self.file_bytes < self.end_byte


def tensor_name(name: str) -> str:
    """A tensor's name as it can stand in a line."""
    plain = name.isprintable() and name and len(name) <= 200
    return name if plain else repr(name[:60])


def refuse(file: str, name: str | None, text: str) -> FormatError:
    """The one line that names file and tensor."""
    return FormatError(f"{file}: {text}" if name is None else f"{file}: tensor {tensor_name(name)}: {text}")


def regular_size(file: str) -> int:
    """The bytes of a regular file; opening a pipe would wait for its writer. FormatError, OSError."""
    status = os.stat(file)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(f"{file}: not a regular file, so no checkpoint")
    return status.st_size


def check_neighbours(file: str, tensors: Iterable[Tensor], *, begin: int, alignment: int) -> int:
    """The byte after the last tensor; each must begin where the one before it ends, rounded up to the alignment."""
    end, before = begin, "the header"
    for tensor in sorted(tensors, key=lambda t: (t.byte, t.end_byte)):
        wanted = -(-end // alignment) * alignment
        if tensor.byte != wanted:
            fault = "overlaps" if tensor.byte < end else "leaves a gap after"
            where = f"begins at byte {tensor.byte} of the file, where {wanted} is due"
            raise refuse(file, tensor.name, f"{where}: it {fault} {tensor_name(before)}")
        end, before = tensor.end_byte, tensor.name
    return end

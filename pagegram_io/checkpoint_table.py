"""A checkpoint's table, without torch: ``config.json`` says its layout, ``table.safetensors`` holds its rows."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout
from pagegram_io.strict_json import is_whole
from pagegram_io.table_file import layout_from_json
from pagegram_io.tokens import VOCABULARY_MAX

HEADER_BYTES_MAX = 100 * 2**20  # as the safetensors library has it


@dataclass(frozen=True)
class Tensor:
    """Where a float32 tensor lies in a file."""

    path: Path
    shape: tuple[int, ...]
    data_byte: int

    def read(self, begin: int, end: int) -> np.ndarray:
        """Its lines begin to end, float32 [end - begin, ...]. FormatError, with the path, if the file was cut since.

        Read, not mapped: a mapping of a large table would count as memory in use, and a failing disk kills who maps it.
        """
        line = math.prod(self.shape[1:])
        values = np.fromfile(self.path, "<f4", (end - begin) * line, offset=self.data_byte + 4 * begin * line)
        if values.size != (end - begin) * line:
            raise FormatError(f"{self.path}: it ends before line {end}: it was cut while it was read")
        return values.astype(np.float32, copy=False).reshape(end - begin, *self.shape[1:])


def read_checkpoint_table(folder: str | os.PathLike[str]) -> tuple[Layout, Tensor]:
    """A checkpoint's layout, and where its rows lie, float32 [row_count, row_width].

    FormatError, with the path, for anything that is not such a folder, and for a model without a table; OSErrors.
    """
    rows_path = Path(folder) / "table.safetensors"
    layout = read_checkpoint_layout(folder)
    rows = find_tensor(rows_path, "rows")
    if rows.shape != (layout.row_count, layout.row_width):
        raise FormatError(
            f"{rows_path}: its rows are {list(rows.shape)}, and the layout of config.json has "
            f"{layout.row_count} rows of {layout.row_width} values"
        )
    return layout, rows


def read_checkpoint_layout(folder: str | os.PathLike[str]) -> Layout:
    """A checkpoint's layout; errors as above."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not a checkpoint's config: it is not JSON ({error})") from None
    if type(config) is not dict or "layout" not in config:
        raise FormatError(f"{path}: not a checkpoint's config: it says nothing of a layout")
    if config["layout"] is None:
        raise FormatError(f"{path}: this model has no table; train with --memory pagegram")
    if type(config["layout"]) is not str:
        raise FormatError(f"{path}: its layout is not JSON in a text")
    try:
        return layout_from_json(config["layout"])
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None


def read_checkpoint_vocabulary(folder: str | os.PathLike[str]) -> int | None:
    """How many ids the model of a checkpoint knows; None where its config, which has a layout, does not say."""
    preset = json.loads((Path(folder) / "config.json").read_text()).get("preset")
    vocabulary: Any = preset.get("vocabulary") if type(preset) is dict else None
    return vocabulary if is_whole(vocabulary, VOCABULARY_MAX) and vocabulary > 0 else None


def weights_sha256(folder: str | os.PathLike[str]) -> str | None:
    """The digest of a checkpoint's ``model.safetensors``, which tells one model from another; None without it."""
    try:
        with open(Path(folder) / "model.safetensors", "rb") as file:
            digest = hashlib.sha256()
            while part := file.read(2**20):
                digest.update(part)
            return digest.hexdigest()
    except FileNotFoundError:
        return None


def find_tensor(path: Path, name: str) -> Tensor:
    """One float32 tensor of a safetensors file. FormatError, with the path."""
    file_bytes = os.stat(path).st_size
    with open(path, "rb") as file:
        data_byte = 8 + int.from_bytes(file.read(8), "little")
        if not 8 + 2 <= data_byte <= min(file_bytes, 8 + HEADER_BYTES_MAX):
            raise FormatError(f"{path}: not a safetensors file: it does not begin with the length of a header")
        try:
            tensors = json.loads(file.read(data_byte - 8).decode())
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}: not a safetensors file: its header is not JSON ({error})") from None
    if type(tensors) is not dict or type(tensors.get(name)) is not dict:
        raise FormatError(f"{path}: it holds no tensor named {name}")
    shape, begin = _extent_of(path, name, tensors[name], file_bytes - data_byte)
    return Tensor(path, tuple(shape), data_byte + begin)


def _extent_of(path: Path, name: str, tensor: dict[str, Any], data_bytes: int) -> tuple[list[int], int]:
    """A tensor's shape, and where it begins in the data, once both are known to lie in the file."""
    shape, offsets = _wholes(tensor.get("shape")), _wholes(tensor.get("data_offsets"))
    if tensor.get("dtype") != "F32":
        raise FormatError(f"{path}: its tensor {name} is {tensor.get('dtype')!r}, not F32")
    if shape is None or offsets is None or len(offsets) != 2:
        raise FormatError(f"{path}: its tensor {name} is not described by a shape and two offsets")
    if offsets[1] - offsets[0] != 4 * math.prod(shape) or offsets[1] > data_bytes:
        raise FormatError(f"{path}: its tensor {name} does not lie in the file: it was cut, or its header is damaged")
    return shape, offsets[0]


def _wholes(values: Any) -> list[int] | None:
    whole = type(values) is list and all(type(value) is int and value >= 0 for value in values)
    return values if whole else None

"""Where a table's rows lie in a checkpoint: each tensor's shards as extents, in the order of their rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pagegram_io.deployed import gguf_header
from pagegram_io.deployed.family import TableTensor
from pagegram_io.deployed.source_files import Checkpoint
from pagegram_io.deployed.tensors import Tensor, refuse, regular_size
from pagegram_io.errors import FormatError

# Types that store one value after the other; all others pack values in bytes or blocks.
PLAIN = {"F8_E4M3": "fp8", "F8_E5M2": "fp8-e5m2", "BF16": "bf16", "F16": "fp16", "F32": "fp32", "I8": "int8"}
PREFIXES = r"(?:model\.|language_model\.)*"  # that writers put before a model's own names
CONTAINERS = {"U8": 1, "I8": 1, "U32": 4, "I32": 4}
SCALED = ("fp8", "fp8-e5m2", "int8", "8-bit", "int4")  # numbers only once they are multiplied by scales kept elsewhere


@dataclass(frozen=True)
class Extent:
    """Rows row_begin .. row_begin + row_count of a table, one after the other from a byte of a file."""

    file: str
    byte: int
    row_begin: int
    row_count: int
    row_bytes: int
    tensor: str

    @property
    def end_byte(self) -> int:
        return self.byte + self.row_count * self.row_bytes


@dataclass(frozen=True)
class FoundTable:
    """One table's weights and, part by part, its scales; of scales that belong to no row, only the names.

    scales_missing: the rows are numbers only with scales, and no tensor holds any.
    """

    row_format: str
    weights: tuple[Extent, ...]
    scales: tuple[tuple[Extent, ...], ...]
    whole_table_scales: tuple[str, ...] = ()
    scales_missing: bool = False


def find_table(checkpoint: Checkpoint, table: TableTensor) -> FoundTable:
    """The extents of one table. FormatError names file and tensor where they are not what the model's must be."""
    families = _matches(checkpoint, table.weight)
    if not families:
        named = table.weight.replace(r"(?P<shard>\d+)", "N").replace("\\.", ".")
        raise FormatError(f"{checkpoint.path}: no tensor of this model's table, which is named like {named}")
    if len(families) > 1:
        first, second = (names[0] for names in list(families.values())[:2])
        raise refuse(checkpoint.places[second], second, f"the same rows as tensor {first}; which one is meant?")
    tensors = [checkpoint.tensor(name) for name in next(iter(families.values()))]
    row_format = _row_format(tensors[0], table.width)
    weights = _extents(tensors, table.stored_rows, [_row_format(t, table.width) for t in tensors])
    scales, whole = [], []
    for names in _matches(checkpoint, table.scale).values() if table.scale else ():
        parts = [checkpoint.tensor(name) for name in names]
        if all(_values(part) == 1 for part in parts):
            whole += names
        else:
            scales.append(_extents(parts, table.stored_rows, [part.dtype for part in parts]))
    missing = table.scale is not None and row_format in SCALED and not (scales or whole)
    return FoundTable(row_format, weights, tuple(scales), tuple(whole), missing)


def names_table(checkpoint: Checkpoint, table: TableTensor) -> bool:
    """Is any tensor named as one of this table's?"""
    pattern = re.compile(f"{PREFIXES}(?:{table.weight})")
    return any(pattern.fullmatch(name) for name in checkpoint.places)


def _matches(checkpoint: Checkpoint, pattern: str) -> dict[str, list[str]]:
    """Names that match, a list a way of naming them; the shards of each in numeric order, with none left out."""
    compiled = re.compile(f"{PREFIXES}(?:{pattern})")
    found: dict[str, dict[int, str]] = {}
    for name in checkpoint.places:
        match = compiled.fullmatch(name)
        if not match:
            continue
        shard = match.groupdict().get("shard")
        way = name if shard is None else name[: match.start("shard")] + "#" + name[match.end("shard") :]
        numbers = found.setdefault(way, {})
        number = 0 if shard is None else int(shard)
        if number in numbers:
            raise refuse(checkpoint.places[name], name, f"the same shard as tensor {numbers[number]}")
        numbers[number] = name
    for numbers in found.values():
        low = min(numbers)
        missing = next(i for i in range(min(low, 1), max(numbers) + 2) if i not in numbers)
        if low <= 1 and missing == max(numbers) + 1:
            continue
        name = numbers[max(numbers)]
        raise refuse(checkpoint.places[name], name, f"shard {max(numbers)} is there, and shard {missing} is not")
    return {way: [numbers[i] for i in sorted(numbers)] for way, numbers in sorted(found.items())}


def _values(tensor: Tensor) -> int:
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count


def _row_format(tensor: Tensor, width: int) -> str:
    """What a row of weights is stored as; FormatError where its shape cannot be rows of so many values."""
    shape, columns = list(tensor.shape), tensor.shape[1] if len(tensor.shape) == 2 else 0
    if (tensor.dtype in PLAIN or tensor.dtype in gguf_header.BLOCKS) and columns == width:
        return PLAIN.get(tensor.dtype, tensor.dtype.lower())
    if tensor.dtype in CONTAINERS and columns * CONTAINERS[tensor.dtype] in packed_row_bytes(width):
        return packed_row_bytes(width)[columns * CONTAINERS[tensor.dtype]]
    text = f"{tensor.dtype} {shape} is no table of rows of {width} values in a format known here"
    raise refuse(tensor.file, tensor.name, text)


def packed_row_bytes(width: int) -> dict[int, str]:
    """Bytes that a row of this width takes in the formats that are stored as plain bytes: name of one such format."""
    known = {width: "8-bit", width // 2: "int4", width // 2 + 2: "nf4", width + width // 32: "fp8 repacked"}
    in_blocks_of_256_first = sorted(gguf_header.BLOCKS.items(), key=lambda item: -item[1][0])
    for name, (values, size) in in_blocks_of_256_first:
        if values > 1 and width % values == 0:
            known.setdefault(width // values * size, name.lower())
    return known


def _extents(tensors: list[Tensor], stored_rows: int, formats: list[str]) -> tuple[Extent, ...]:
    extents: list[Extent] = []
    row = row_bytes = 0
    for tensor, row_format in zip(tensors, formats, strict=True):
        rows = tensor.shape[0] if tensor.shape else 0
        if rows < 1 or tensor.byte_count % rows or not tensor.byte_count:
            raise refuse(tensor.file, tensor.name, f"its shape {list(tensor.shape)} is of no rows")
        row_bytes = row_bytes or tensor.byte_count // rows
        if row_format != formats[0] or tensor.byte_count != rows * row_bytes:
            text = f"rows of {tensor.byte_count // rows} bytes of {tensor.dtype}, and those of {tensors[0].name} have"
            raise refuse(tensor.file, tensor.name, f"{text} {row_bytes} of {tensors[0].dtype}")
        extents.append(Extent(tensor.file, tensor.byte, row, rows, row_bytes, tensor.name))
        row += rows
    if row != stored_rows:
        last = tensors[-1]
        count = f"{len(tensors)} shards end at" if len(tensors) > 1 else "it has"
        raise refuse(last.file, last.name, f"{count} {row} rows, and this model's table has {stored_rows}")
    return tuple(extents)


def require_bytes(extents: Iterable[Extent]) -> None:
    """FormatError, with file and tensor, where the bytes of an extent are not all there to be read."""
    sizes: dict[str, int] = {}
    for extent in extents:
        if extent.file not in sizes:
            sizes[extent.file] = regular_size(extent.file) if os.path.exists(extent.file) else 0
        if extent.end_byte > sizes[extent.file]:
            text = f"ends at byte {extent.end_byte} and the file at {sizes[extent.file]}: its bytes are not all here"
            raise refuse(extent.file, extent.tensor, text)

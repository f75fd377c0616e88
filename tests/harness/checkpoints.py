"""Synthetic checkpoints for tests: small tables of the deployed kinds, and the files that hold them.

The writers here are slow and their own: nothing is shared with the parsers that read what they write.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pagegram_io.deployed import FAMILIES
from pagegram_io.deployed.family import Address, Family, RowFormat, TableTensor
from pagegram_io.layout import Hash

ITEM_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "F32": 4, "U8": 1, "I8": 1, "U32": 4}


@dataclass
class Blob:
    """A tensor to be written: dtype, shape and its very bytes."""

    dtype: str
    shape: list[int]
    data: bytes


def rows_blob(rows: np.ndarray, dtype: str) -> Blob:
    """Rows of raw bytes, uint8 [rows, row bytes], as a tensor of a type."""
    return Blob(dtype, [len(rows), rows.shape[1] // ITEM_BYTES[dtype]], rows.tobytes())


def write_safetensors(path: Path, tensors: dict[str, Blob], *, data_at: int | None = None, **extra: Any) -> None:
    """A safetensors file; data_at pads the header so that the data begin at a byte that is this modulo 4096."""
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}, **extra}
    at = 0
    for name, blob in tensors.items():
        fields[name] = {"dtype": blob.dtype, "shape": blob.shape, "data_offsets": [at, at + len(blob.data)]}
        at += len(blob.data)
    text = json.dumps(fields).encode()
    if data_at is not None:
        text += b" " * ((data_at - 8 - len(text)) % 4096)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blob.data for blob in tensors.values()))


def write_index(folder: Path, files: dict[str, dict[str, Blob]]) -> Path:
    path = folder / "model.safetensors.index.json"
    mapping = {name: file for file, tensors in files.items() for name in tensors}
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": mapping}))
    return path


def random_rows(rows: int, row_bytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), np.uint8)


# ---- small models of the deployed kinds ----------------------------------------------------------

PRIMES = (101, 103, 107, 109, 113, 127, 131, 137)
ORDERS = (2, 3)
HEADS = 2


def engram_family(width: int = 256, layers: tuple[int, ...] = (1, 14)) -> Family:
    """As DeepSeek's: a tensor of weights and one of scales a layer, 2 orders of 2 heads."""
    primes = iter(PRIMES)
    tensors, addresses, row = [], [], 0
    hashes = []
    for i, layer in enumerate(layers):
        base = row
        for j, order in enumerate(ORDERS):
            hashes.append(Hash(order, "mulxor", tuple(range(3 + 2 * i, 3 + 2 * i + 2 * order, 2)), fill=2))
            for head in range(HEADS):
                prime = next(primes)
                addresses.append(Address(0 + i, i * len(ORDERS) + j, prime, row, order, head, layer=layer))
                row += prime
        weight, scale = (rf"layers\.{layer}\.engram\.embed\.{part}" for part in ("weight", "scale"))
        tensors.append(TableTensor(weight, scale, base, row - base, row - base, width))
    made = tuple(hashes)
    return Family(
        name="toy-engram",
        title="a toy",
        source="tests",
        verified="all of it",
        unverified="none of it",
        vocabulary=1000,
        tokenizer="none",
        width=width,
        tensors=tuple(tensors),
        addresses=tuple(addresses),
        make_hashes=lambda: made,
        formats=(RowFormat("fp8", (width, width // 32)), RowFormat("bf16", (2 * width,))),
    )


def sharded_family(width: int = 160, stored_rows: int | None = None) -> Family:
    """As Qwen's: one table in many shards, some rows never addressed."""
    one = engram_family(width, (1,))
    rows = one.tensors[0].rows
    prefix = r"layers\.1\.ple\.ngram_embedding"
    tensor = TableTensor(
        rf"(?:{prefix}\.shards?[._](?P<shard>\d+)(?:\.weight)?|per_layer_token_embd\.weight)",
        rf"(?:{prefix}\.shards?[._](?P<shard>\d+)|{prefix})\.(?:scales|biases|weight_scale)",
        0,
        rows,
        stored_rows or rows,
        width,
    )
    return replace(one, name="toy-sharded", tensors=(tensor,), formats=(RowFormat("bf16", (2 * width,)),))


def engram_files(folder: Path, dtype: str, row_bytes: int, *, scales: bool, data_at: int | None) -> np.ndarray:
    """A checkpoint of two files and an index, among other tensors; the rows with their scales beside them."""
    family = engram_family()
    files: dict[str, dict[str, Blob]] = {"a-1.safetensors": {}, "a-2.safetensors": {}}
    wanted = []
    for i, (tensor, layer) in enumerate(zip(family.tensors, (1, 14), strict=True)):
        rows, of = random_rows(tensor.rows, row_bytes, i), random_rows(tensor.rows, 8, 10 + i)
        here = files[f"a-{i + 1}.safetensors"]
        here[f"model.layers.{layer}.mlp.weight"] = Blob("F32", [3, 5 + i], bytes(12 * (5 + i)))
        here[f"model.layers.{layer}.engram.embed.weight"] = rows_blob(rows, dtype)
        if scales:
            here[f"model.layers.{layer}.engram.embed.scale"] = rows_blob(of, "F8_E8M0")
        wanted.append(np.concatenate([rows, of], axis=1) if scales else rows)
    for file, tensors in files.items():
        write_safetensors(folder / file, tensors, data_at=data_at)
    write_index(folder, files)
    return np.concatenate(wanted)


def sharded_files(folder: Path, shards: int, style: str, row_bytes: int = 320, dtype: str = "BF16") -> np.ndarray:
    """Shards of equal rows but for the last, dealt to three files in the order of their names as texts."""
    family = sharded_family(stored_rows=437)
    rows = random_rows(437, row_bytes)
    step = -(-437 // shards)
    files: dict[str, dict[str, Blob]] = {f"m-{i}.safetensors": {} for i in range(3)}
    for at, shard in enumerate(sorted(range(shards), key=str)):
        name = "layers.1.ple.ngram_embedding." + style.format(shard)
        files[f"m-{at % 3}.safetensors"][name] = rows_blob(rows[shard * step : (shard + 1) * step], dtype)
    for file, tensors in files.items():
        write_safetensors(folder / file, tensors)
    assert family.tensors[0].stored_rows == len(rows)
    return rows


def bare_deepseek(folder: Path) -> Path:
    """DeepSeek's two tensors of weights and two of scales, 202.8 GB of them, as headers alone. Returns the folder."""
    mapping = {}
    for i, (tensor, layer) in enumerate(zip(FAMILIES["deepseek-v4.1-flash"].tensors, (1, 14), strict=True)):
        fields, at = {}, 0
        for part, dtype, width in (("scale", "F8_E8M0", 8), ("weight", "F8_E4M3", 256)):
            name = f"layers.{layer}.engram.embed.{part}"
            end = at + tensor.rows * width
            fields[name] = {"dtype": dtype, "shape": [tensor.rows, width], "data_offsets": [at, end]}
            mapping[name], at = f"m-{i}.safetensors", end
        text = json.dumps(fields).encode()
        text += b" " * (-len(text) % 8)
        (folder / f"m-{i}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    return folder

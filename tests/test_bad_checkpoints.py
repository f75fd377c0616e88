"""Checkpoints that are not what they claim, or not the model's: one clear line that names the file and the tensor."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from harness.checkpoints import (
    Blob,
    engram_family,
    engram_files,
    random_rows,
    rows_blob,
    sharded_family,
    sharded_files,
    write_safetensors,
)

from pagegram_io.deployed.placement import find_parts
from pagegram_io.deployed.source_files import read_checkpoint, read_header
from pagegram_io.errors import FormatError

GOOD_TENSOR = {"dtype": "U8", "shape": [4, 3], "data_offsets": [0, 12]}


def raw_safetensors(path: Path, fields: object, data: int = 0) -> Path:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"a": GOOD_TENSOR | {"dtype": "F7"}}, "tensor a: its dtype 'F7' is not known"),
        ({"a": GOOD_TENSOR | {"dtype": 8}}, "tensor a: its dtype 8 is not known"),
        ({"a": GOOD_TENSOR | {"shape": [4, -3]}}, "tensor a: its shape is"),
        ({"a": GOOD_TENSOR | {"shape": [4, True]}}, "tensor a: its shape is"),
        ({"a": GOOD_TENSOR | {"shape": [1] * 17}}, "tensor a: its shape is"),
        ({"a": GOOD_TENSOR | {"shape": [2**61, 4]}}, r"tensor a: .*2\^62"),
        ({"a": GOOD_TENSOR | {"data_offsets": [0, 11]}}, "tensor a: U8 .* takes 12 bytes, and it lies at"),
        ({"a": GOOD_TENSOR | {"data_offsets": [12, 0]}}, "tensor a: U8 .* takes 12 bytes"),
        ({"a": GOOD_TENSOR | {"data_offsets": [0.0, 12]}}, "tensor a: its data_offsets"),
        ({"a": GOOD_TENSOR | {"more": 1}}, "tensor a: not described by"),
        ({"a": 3}, "tensor a: not described by"),
        ({"a": GOOD_TENSOR, "b": GOOD_TENSOR | {"data_offsets": [11, 23]}}, "tensor b: .*overlaps a"),
        ({"a": GOOD_TENSOR, "b": GOOD_TENSOR | {"data_offsets": [13, 25]}}, "tensor b: .*leaves a gap after a"),
        ({"a": GOOD_TENSOR | {"data_offsets": [1, 13]}}, "tensor a: .*leaves a gap after the header"),
        ({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, "tensor a: F4 .* takes 1.5 bytes"),
        ({"__metadata__": {"x": 1}}, "__metadata__"),
        ([1], "not a JSON object"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": 1, "a": 2}', "a key appears twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe{}", "not JSON"),
        (b" {}", "not a JSON object"),
    ],
)
def test_safetensors_headers_that_cannot_be_are_refused(tmp_path: Path, fields: object, match: str) -> None:
    path = raw_safetensors(tmp_path / "bad.safetensors", fields, 25)
    with pytest.raises(FormatError, match=match) as caught:
        read_header(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_header_of_a_hundred_megabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    with open(path, "wb") as file:
        file.write((100 * 2**20).to_bytes(8, "little"))
        file.truncate(101 * 2**20)
    with pytest.raises(FormatError, match="header of 104857600 bytes; at most 16777216"):
        read_header(str(path))
    for length, match in ((0, "does not begin with the length"), (2**63, "header of")):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(FormatError, match=match):
            read_header(str(path))
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="does not begin with the length"):
        read_header(str(path))
    with pytest.raises(FormatError, match="ends? at byte"):
        read_header(str(raw_safetensors(path, {"a": GOOD_TENSOR}, 13)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("no table", "x.safetensors: no tensor of this model's table"),
        ("rows", "tensor layers.14.engram.embed.weight: it has 478 rows, and this model's table has"),
        ("width", r"tensor layers.14.engram.embed.weight: F8_E4M3 \[\d+, 255\] is no table of rows of 256 values"),
        ("dtype", "tensor layers.14.engram.embed.weight: U32 .* is no table"),
        ("mixed", "tensor layers.14.engram.embed.weight: rows of bf16 of 512 bytes"),
        ("scale rows", "tensor layers.14.engram.embed.scale: it has 3 rows"),
        ("twice", "tensor model.layers.14.engram.embed.weight: the same rows as tensor layers.14"),
    ],
)
def test_tables_that_are_not_the_models_are_refused(tmp_path: Path, change: str, match: str) -> None:
    family = engram_family()
    first, second = (rows_blob(random_rows(t.rows, 256), "F8_E4M3") for t in family.tensors)
    tensors = {"layers.1.engram.embed.weight": first, "layers.14.engram.embed.weight": second}
    name = "layers.14.engram.embed.weight"
    rows = family.tensors[1].rows
    if change == "no table":
        tensors = {"other": first}
    elif change == "rows":
        tensors[name] = rows_blob(random_rows(478, 256), "F8_E4M3")
    elif change == "width":
        tensors[name] = rows_blob(random_rows(rows, 255), "F8_E4M3")
    elif change == "dtype":
        tensors[name] = rows_blob(random_rows(rows, 1024), "U32")
    elif change == "mixed":
        tensors[name] = rows_blob(random_rows(rows, 512), "BF16")
    elif change == "scale rows":
        tensors["layers.14.engram.embed.scale"] = rows_blob(random_rows(3, 8), "F8_E8M0")
    else:
        tensors["model." + name] = second
    write_safetensors(tmp_path / "x.safetensors", tensors)
    with pytest.raises(FormatError, match=match) as caught:
        find_parts(family, read_checkpoint(tmp_path / "x.safetensors"))
    assert "x.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("drop", "match"), [(5, "shard 11 is there, and shard 5 is not"), (0, "shard 0 is not|11 shards end")]
)
def test_a_missing_shard_is_named(tmp_path: Path, drop: int, match: str) -> None:
    rows = random_rows(420, 320)
    tensors = {
        f"layers.1.ple.ngram_embedding.shard_{i}.weight": rows_blob(rows[35 * i : 35 * i + 35], "BF16")
        for i in range(12)
        if i != drop
    }
    write_safetensors(tmp_path / "x.safetensors", tensors)
    with pytest.raises(FormatError, match=match):
        find_parts(sharded_family(stored_rows=420), read_checkpoint(tmp_path))


def test_the_last_shard_missing_is_a_row_count(tmp_path: Path) -> None:
    sharded_files(tmp_path, 12, "shard_{}.weight")
    with pytest.raises(FormatError, match="12 shards end at 437 rows, and this model's table has 500"):
        find_parts(sharded_family(stored_rows=500), read_checkpoint(tmp_path))


def test_an_index_of_missing_files_names_file_and_tensor_where_they_are_needed(tmp_path: Path) -> None:
    engram_files(tmp_path, "F8_E4M3", 256, scales=True, data_at=None)
    family = engram_family()
    index = tmp_path / "model.safetensors.index.json"
    mapping = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": mapping | {"lm_head.weight": "a-9.safetensors"}}))
    find_parts(family, read_checkpoint(tmp_path))  # no row lies in that file
    index.write_text(json.dumps({"weight_map": mapping | {"model.layers.1.engram.embed.weight": "a-2.safetensors"}}))
    with pytest.raises(FormatError, match="a-2.safetensors: tensor model.layers.1.engram.embed.weight: not in"):
        find_parts(family, read_checkpoint(tmp_path))
    index.write_text(json.dumps({"weight_map": mapping}))
    (tmp_path / "a-2.safetensors").unlink()
    with pytest.raises(FormatError, match="index.json: tensor model.layers.14.*lies in a-2.safetensors, which is miss"):
        find_parts(family, read_checkpoint(index))
    for file in ("../a-1.safetensors", "", "..", 7, "a\nb"):
        index.write_text(json.dumps({"weight_map": {"t": file}}))
        with pytest.raises(FormatError, match="tensor t: its file is"):
            read_checkpoint(tmp_path)
    for text in ("[1]", "{}", '{"weight_map": {}}', "{", '{"weight_map": {"a": "b", "a": "b"}}'):
        index.write_text(text)
        with pytest.raises(FormatError, match="index.json: not"):
            read_checkpoint(tmp_path)


def test_folders_that_could_mean_two_things_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds neither"):
        read_checkpoint(tmp_path)
    write_safetensors(tmp_path / "a.safetensors", {"t": Blob("U8", [1], b"x")})
    write_safetensors(tmp_path / "b.safetensors", {"t": Blob("U8", [1], b"x")})
    with pytest.raises(FormatError, match="b.safetensors: tensor t: in a.safetensors as well"):
        read_checkpoint(tmp_path)
    (tmp_path / "c.gguf").write_bytes(b"GGUF")
    with pytest.raises(FormatError, match="holds a.safetensors and c.gguf"):
        read_checkpoint(tmp_path)
    for name in ("x.index.json", "y.index.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(FormatError, match="holds x.index.json and y.index.json"):
        read_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path / "nothing.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(FormatError, match="not a regular file"):
        read_checkpoint(tmp_path / "pipe.safetensors")


def gguf_bytes(
    *, version: int = 3, tensors: bytes = b"", tensor_count: int = 0, keys: bytes = b"", key_count: int = 0
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + keys + tensors


def gguf_tensor(name: bytes, extents: list[int], kind: int, offset: int) -> bytes:
    line = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(extents))
    return line + struct.pack(f"<{len(extents)}QIQ", *extents, kind, offset)


def gguf_key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


ONE = gguf_tensor(b"a", [32, 2], 8, 0)  # Q8_0, 68 bytes


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"GGML" + bytes(40), "does not begin with the length|header of|not a GGUF"),
        (gguf_bytes(version=1), "of version 1; this program reads version 2 or 3"),
        (gguf_bytes(version=0x03000000), "of a big-endian machine"),
        (gguf_bytes(tensor_count=2**40), "1099511627776 tensors"),
        (gguf_bytes(key_count=2**21), "2097152 keys"),
        (gguf_bytes(tensor_count=1, tensors=gguf_tensor(b"a", [32, 2], 4, 0)), "tensor a: its type 4 is not known"),
        (gguf_bytes(tensor_count=1, tensors=gguf_tensor(b"a", [33, 2], 8, 0)), "tensor a: rows of 33 values are no"),
        (gguf_bytes(tensor_count=1, tensors=gguf_tensor(b"a", [32] * 5, 8, 0)), "tensor a: it has 5 dimensions"),
        (gguf_bytes(tensor_count=1, tensors=gguf_tensor(b"a", [2**60, 2**60], 8, 0)), r"tensor a: .*2\^62"),
        (gguf_bytes(tensor_count=1, tensors=gguf_tensor(b"a", [32], 8, 2**63)), r"tensor a: its offset .*2\^62"),
        (gguf_bytes(tensor_count=1, tensors=gguf_tensor(b"a", [32], 8, 32)), "tensor a: .*leaves a gap"),
        (gguf_bytes(tensor_count=2, tensors=ONE + ONE), "tensor a appears twice"),
        (gguf_bytes(tensor_count=2, tensors=ONE + gguf_tensor(b"b", [32], 8, 64)), "tensor b: .*overlaps a"),
        (gguf_bytes(tensor_count=2, tensors=ONE + gguf_tensor(b"b", [32], 8, 128)), "tensor b: .*leaves a gap after a"),
        (gguf_bytes(key_count=1, keys=gguf_key(b"k", 99, b"")), "key k is of type 99"),
        (gguf_bytes(key_count=1, keys=gguf_key(b"k", 9, struct.pack("<IQ", 9, 1))), "key k is an array of type 9"),
        (gguf_bytes(key_count=1, keys=gguf_key(b"k", 9, struct.pack("<IQ", 0, 2**50))), "key k is an array of 11258"),
        (gguf_bytes(key_count=2, keys=gguf_key(b"k", 0, b"1") * 2), "key k appears twice"),
        (gguf_bytes(key_count=1, keys=struct.pack("<Q", 2**50)), "is a text of 1125899906842624 bytes"),
        (gguf_bytes(key_count=1, keys=gguf_key(b"\xff", 0, b"1")), "is not a text in UTF-8"),
        (gguf_bytes(key_count=1, keys=gguf_key(b"general.alignment", 4, struct.pack("<I", 48))), "is 48, not a power"),
        (
            gguf_bytes(key_count=1, keys=gguf_key(b"k", 8, struct.pack("<Q", 2**40))),
            "cut short in its header, in key",
        ),
        (gguf_bytes(tensor_count=1), "cut short in its header, in the name of tensor 0"),
    ],
)
def test_gguf_headers_that_cannot_be_are_refused(tmp_path: Path, data: bytes, match: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=match) as caught:
        read_header(str(path))
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)

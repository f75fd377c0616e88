"""Arbitrary and damaged headers of checkpoints: refused with one line that names the file, or read; nothing else."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagegram_io.deployed.source_files import read_checkpoint, read_header
from pagegram_io.deployed.tensors import FileHeader
from pagegram_io.errors import FormatError

fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)


@functools.cache
def good_safetensors() -> bytes:
    fields = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F8_E4M3", "shape": [7, 32], "data_offsets": [0, 224]},
        "a.scale": {"dtype": "F8_E8M0", "shape": [7, 1], "data_offsets": [224, 231]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [231, 235]},
        "empty": {"dtype": "BF16", "shape": [0, 9], "data_offsets": [235, 235]},
    }
    text = json.dumps(fields).encode()
    return len(text).to_bytes(8, "little") + text + bytes(235)


@functools.cache
def good_gguf() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "good.gguf"
        writer = gguf.GGUFWriter(path, "toy")
        writer.add_array("some.texts", ["a", "bcd", ""])
        writer.add_array("some.numbers", [1, 2, 3])
        writer.add_float64("some.float", 0.5)
        writer.add_tensor("a.weight", np.zeros((4, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("b.weight", np.zeros((3, 5), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


GOOD = {"a.safetensors": good_safetensors, "a.gguf": good_gguf}


def header_of(folder: Path, name: str, data: bytes) -> FileHeader | None:
    """The header of a file of these bytes, None if it is refused; any other error is a failure."""
    path = folder / name
    path.write_bytes(data)
    try:
        header = read_header(str(path))
    except FormatError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error) and str(error).isprintable()
        return None
    for tensor in header.tensors.values():  # what is not refused makes sense
        assert header.data_byte <= tensor.byte <= tensor.end_byte <= header.end_byte
        assert all(extent >= 0 for extent in tensor.shape)
    return header


@pytest.mark.parametrize("name", GOOD)
def test_good_headers_are_read_whole_or_without_their_data(tmp_path: Path, name: str) -> None:
    data = GOOD[name]()
    whole = header_of(tmp_path, name, data)
    assert whole is not None and not whole.truncated and len(whole.tensors) in (2, 4)
    bare = header_of(tmp_path, name, data[: whole.data_byte])
    assert bare is not None and bare.truncated and bare.tensors == whole.tensors


@pytest.mark.parametrize("name", GOOD)
def test_headers_cut_at_every_byte_are_refused(tmp_path: Path, name: str) -> None:
    data = GOOD[name]()
    whole = header_of(tmp_path, name, data)
    assert whole is not None
    needed = whole.data_byte if name == "a.safetensors" else whole.data_byte - 31  # GGUF pads up to its data
    for end in range(needed - 1 if name == "a.safetensors" else needed):
        assert header_of(tmp_path, name, data[:end]) is None


@pytest.mark.parametrize("name", GOOD)
@fuzz
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes(tmp_path: Path, name: str, data: bytes) -> None:
    header_of(tmp_path, name, data)
    header_of(tmp_path, name, GOOD[name]()[: 4 if name == "a.gguf" else 0] + data)


@pytest.mark.parametrize("name", GOOD)
@fuzz
@given(st.data())
def test_damaged_bytes(tmp_path: Path, name: str, data: st.DataObject) -> None:
    damaged = bytearray(GOOD[name]())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        kind = data.draw(st.sampled_from(["set", "drop", "insert", "huge"]))
        if kind == "set":
            damaged[at] = data.draw(st.integers(0, 255))
        elif kind == "drop":
            del damaged[at : at + data.draw(st.integers(1, 9))]
        elif kind == "insert":
            damaged[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            damaged[at : at + 8] = data.draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little")
        damaged = damaged or bytearray(b"x")
    header_of(tmp_path, name, bytes(damaged))


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@fuzz
@given(name=st.text(max_size=8), value=json_values, key=st.sampled_from(["dtype", "shape", "data_offsets", None]))
def test_json_of_any_value_in_any_place(tmp_path: Path, name: str, value: object, key: str | None) -> None:
    tensor: Any = {"dtype": "U8", "shape": [2, 3], "data_offsets": [0, 6]}
    if key is None:
        tensor = value
    else:
        tensor[key] = value
    text = json.dumps({name: tensor}).encode()
    header_of(tmp_path, "a.safetensors", len(text).to_bytes(8, "little") + text)


@fuzz
@given(value=json_values)
def test_indexes_of_any_value(tmp_path: Path, value: object) -> None:
    path = tmp_path / "m.safetensors.index.json"
    for fields in (value, {"weight_map": value}, {"weight_map": {"t": value}}):
        path.write_text(json.dumps(fields))
        try:
            checkpoint = read_checkpoint(path)
            for name in checkpoint.places:
                checkpoint.tensor(name)
        except FormatError as error:
            assert str(error).startswith(str(path)) and str(error).isprintable()

"""Damaged checkpoints and table files: refused with one line, read whole, or the damaged page named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from pagegram_io import pack, table_file
from pagegram_io.checkpoint_table import find_tensor, read_checkpoint_table
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout, Shape, engram, pagegram
from pagegram_io.verification import verify

SMALL = Shape(orders=(2,), heads=2, row_width=8, dim=8, page_bytes=512)
LAYOUTS = {"sealed": pagegram(3000, 4, SMALL), "page_checks": engram(3000, Shape(heads=2, row_width=8, packed=True))}
ROWS = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
TENSORS = save({"rows": ROWS, "more": np.arange(3)})
fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def found(path: Path, data: bytes) -> np.ndarray | None:
    """The rows of a file of these bytes, None if it is refused; any other error is a failure."""
    path.write_bytes(data)
    try:
        tensor = find_tensor(path, "rows")
    except FormatError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return None
    if math.prod(tensor.shape) == 0:  # it holds nothing, whatever its other extents are
        return np.empty(0, np.float32)
    return tensor.read(0, tensor.shape[0] if tensor.shape else 1)


@fuzz
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_as_tensors(tmp_path: Path, data: bytes) -> None:
    found(tmp_path / "a", data)


@fuzz
@given(cut=st.integers(0, len(TENSORS) - 1), at=st.integers(0, len(TENSORS) - 1), flip=st.integers(0, 255))
def test_cut_and_changed_tensors(tmp_path: Path, cut: int, at: int, flip: int) -> None:
    data = bytearray(TENSORS)
    data[at] ^= flip
    found(tmp_path / "a", bytes(data[:cut]))
    rows = found(tmp_path / "a", bytes(data))
    assert rows is None or rows.size >= 0
    if not flip:
        assert rows is not None and np.array_equal(rows, ROWS)


@fuzz
@given(dtype=st.just("F32") | values, shape=st.just([6, 4]) | values, offsets=st.just([0, 96]) | values)
def test_any_description_of_a_tensor(tmp_path: Path, dtype: object, shape: object, offsets: object) -> None:
    header = json.dumps({"rows": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()
    rows = found(tmp_path / "a", len(header).to_bytes(8, "little") + header + ROWS.tobytes())
    if (dtype, shape, offsets) == ("F32", [6, 4], [0, 96]):
        assert rows is not None and np.array_equal(rows, ROWS)


@fuzz
@given(config=st.binary(max_size=60) | values.map(lambda v: json.dumps(v).encode())
       | values.map(lambda v: json.dumps({"layout": v}).encode()))  # fmt: skip
def test_any_config(tmp_path: Path, config: bytes) -> None:
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "table.safetensors").write_bytes(TENSORS)
    with pytest.raises(FormatError) as refused:
        read_checkpoint_table(tmp_path)
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@fuzz
@given(data=st.data())
def test_a_changed_byte_of_a_table_file(tmp_path: Path, layout: Layout, data: st.DataObject) -> None:
    table = np.ones((layout.row_count, layout.row_width), np.float32)
    path = tmp_path / "a"
    header = pack.write_trained_file(path, layout, lambda begin, end: table[begin:end], force=True).header
    at = data.draw(st.integers(0, header.file_bytes - 1))
    content = bytearray(path.read_bytes())
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    pages_end = header.data_byte + header.page_count * header.page_bytes
    try:
        damaged = [damage.page for damage in verify(path).damaged]
    except FormatError as error:
        assert at < header.data_byte and str(path) in str(error) and "\n" not in str(error)
        return
    if at >= pages_end:
        assert damaged == [(at - pages_end) // 4]
    elif at >= header.data_byte:
        assert damaged == [(at - header.data_byte) // header.page_bytes]
    else:  # the header still makes sense: another layout of the same pages
        assert table_file.read_header(path) == header or damaged == []

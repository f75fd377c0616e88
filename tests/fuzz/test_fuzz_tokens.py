"""Arbitrary and damaged bytes under every suffix: refused with one line, or read whole; never anything else."""

from __future__ import annotations

import io
import lzma
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pagegram_io.errors import FormatError
from pagegram_io.tokens import read_stream

SUFFIXES = [inner + outer for inner in (".u16", ".u32", ".bin", ".npy") for outer in ("", ".xz", ".zst")]
IDS = np.random.default_rng(1).integers(0, 60_000, 200, dtype=np.uint16)
fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def files() -> dict[str, bytes]:
    """A good file of every kind."""
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(IDS)
    array, wide = io.BytesIO(), io.BytesIO()
    np.save(array, IDS)
    np.save(wide, IDS.astype(np.int64))
    plain = {
        "a.u16": IDS.tobytes(),
        "a.u32": IDS.astype(np.uint32).tobytes(),
        "raw.bin": IDS.tobytes(),
        "header.bin": header.tobytes() + IDS.tobytes(),
        "a.npy": array.getvalue(),
        "wide.npy": wide.getvalue(),
    }
    packed = {name + ".xz": lzma.compress(data, preset=0) for name, data in plain.items()}
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    return plain | packed | {name + ".zst": compressor.compress(data) for name, data in plain.items()}


FILES = files()


def read(folder: Path, name: str, data: bytes, **options: int | None) -> np.ndarray | None:
    """The ids of a file of these bytes, None if it is refused; any other error is a failure."""
    path = folder / name
    path.write_bytes(data)
    try:
        return read_stream(path, **options).ids  # type: ignore[arg-type]
    except FormatError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        return None


def test_good_files_are_read(tmp_path: Path) -> None:
    for name, data in FILES.items():
        ids = read(tmp_path, name, data)
        assert ids is not None and np.array_equal(ids, IDS)


@pytest.mark.parametrize("suffix", SUFFIXES)
@fuzz
@given(data=st.binary(max_size=3000), limit=st.none() | st.integers(1, 2000))
def test_arbitrary_bytes(tmp_path: Path, suffix: str, data: bytes, limit: int | None) -> None:
    ids = read(tmp_path, "a" + suffix, data, limit=limit)
    if suffix in (".u16", ".u32"):
        width = int(suffix[2:]) // 8
        good = len(data) > 0 and len(data) % width == 0
        assert (ids is not None) == good
        assert ids is None or len(ids) == min(len(data) // width, limit or len(data))


@pytest.mark.parametrize("packing", [".xz", ".zst"])
@pytest.mark.parametrize("inner", [".u16", ".u32", ".bin", ".npy"])
@fuzz
@given(data=st.binary(max_size=3000))
def test_arbitrary_bytes_compressed(tmp_path: Path, inner: str, packing: str, data: bytes) -> None:
    """A compressed file is read just as what it decompresses to."""
    packed = lzma.compress(data, preset=0) if packing == ".xz" else zstandard.compress(data)
    plain = read(tmp_path, "a" + inner, data)
    ids = read(tmp_path, "a" + inner + packing, packed)
    assert (ids is None) == (plain is None)
    assert ids is None or np.array_equal(ids, plain)


@fuzz
@given(
    descr=st.sampled_from(["'<u2'", "'<i8'", "'|O'", "'<f4'", "[('a', '<u2')]", "'<u2, <u2'", "None"])
    | st.text(max_size=8),
    order=st.sampled_from(["False", "True", "0", "None"]),
    shape=st.sampled_from(["(2,)", "(1, 2)", "()", "(-2,)", "2", "(2.0,)", "('2',)"]) | st.text(max_size=8),
    tail=st.text(max_size=8),
    data=st.binary(max_size=64),
)
def test_npy_headers(tmp_path: Path, descr: str, order: str, shape: str, tail: str, data: bytes) -> None:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}{tail}".encode()
    read(tmp_path, "a.npy", b"\x93NUMPY\2\0" + len(text).to_bytes(4, "little") + text + data)


@fuzz
@given(words=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 8), max_size=8), data=st.binary(max_size=64))
def test_llmc_headers(tmp_path: Path, words: list[int], data: bytes) -> None:
    header = np.zeros(256, "<i4")
    header[0] = 20240520
    header[1 : 1 + len(words)] = words
    ids = read(tmp_path, "a.bin", header.tobytes() + data)
    assert ids is None or (len(ids) == words[1] == len(data) // 2 and words[0] == 1)


@pytest.mark.parametrize("name", FILES)
@fuzz
@given(cut=st.integers(0, 10_000), limit=st.none() | st.integers(1, 250))
def test_truncated_files(tmp_path: Path, name: str, cut: int, limit: int | None) -> None:
    whole = FILES[name]
    assume(cut < len(whole))
    ids = read(tmp_path, name, whole[:cut], limit=limit)
    if ids is None:
        return
    assert np.array_equal(ids, IDS[: len(ids)]) or name == "header.bin" and cut < 4
    if name in ("a.u16", "raw.bin", "a.u32"):  # these alone cannot tell that their end is missing
        assert len(ids) == min(cut // (4 if name == "a.u32" else 2), limit or cut)
    elif name == "header.bin" and cut < 4:
        assert len(ids) == 1  # two bytes: what is left shows no header
    else:
        assert limit is not None and len(ids) == limit  # read before the cut was reached


@pytest.mark.parametrize("name", FILES)
@fuzz
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_changed_byte(tmp_path: Path, name: str, at: int, flip: int) -> None:
    data = bytearray(FILES[name])
    assume(at < len(data))
    data[at] ^= flip
    ids = read(tmp_path, name, bytes(data))
    if ids is None:
        return
    if name == "header.bin" and at < 4:
        assert len(ids) == len(IDS) + 512  # without its magic number the file is one of ids alone
        return
    assert len(ids) == len(IDS)
    if name.endswith((".xz", ".zst")):
        assert np.array_equal(ids, IDS)  # a bit that means nothing


@pytest.mark.parametrize("name", FILES)
@fuzz
@given(extra=st.binary(min_size=1, max_size=64))
def test_bytes_after_the_end(tmp_path: Path, name: str, extra: bytes) -> None:
    ids = read(tmp_path, name, FILES[name] + extra)
    if name in ("a.u16", "raw.bin", "a.u32"):
        assert (ids is None) == bool(len(extra) % (4 if name == "a.u32" else 2))
    elif name.endswith(".xz") and not extra.strip(b"\0") and len(extra) % 4 == 0:
        assert ids is not None and np.array_equal(ids, IDS)  # padding
    else:
        assert ids is None


@fuzz
@given(text=st.binary(max_size=64) | st.lists(st.integers(0, 20)).map(lambda n: "\n".join(map(str, n)).encode()))
def test_documents_files(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.u16").write_bytes(IDS.tobytes())
    documents = tmp_path / "starts.txt"
    documents.write_bytes(text)
    try:
        starts = read_stream(tmp_path / "a.u16", documents=documents).document_starts
    except FormatError as error:
        assert str(documents) in str(error) and str(error).isprintable()
    else:
        assert starts.tolist() == [int(line) for line in text.split()]

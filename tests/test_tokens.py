"""Token streams: every format read, every broken file refused with one line (C18), nothing read that is not needed."""

from __future__ import annotations

import errno
import hashlib
import io
import lzma
import os
import pickle
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pagegram_io import tokens
from pagegram_io.errors import FormatError
from pagegram_io.input import InputFile
from pagegram_io.tokens import DEFAULT_STREAM, Stream, default_stream_path, read_stream, write_stream

SHIPPED_TOKENS = 20_625_669
SHIPPED_DOCUMENTS = 21_448
SHIPPED_SHA256 = "c15e0eaaa7b1571f3a5a35a0cb164f2bc102896faebabb955aa681c2fc3123c8"

tmp_path_is_shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)


def raw(ids: np.ndarray) -> bytes:
    return ids.astype(ids.dtype.newbyteorder("<")).tobytes()


def llmc(ids: np.ndarray, magic: int | None = None, version: int | None = None, count: int | None = None) -> bytes:
    narrow = ids.dtype.itemsize == 2
    words = np.zeros(256, "<i4")
    words[0] = magic if magic is not None else (20240520 if narrow else 20240801)
    words[1] = version if version is not None else (1 if narrow else 7)
    words[2] = len(ids) if count is None else count
    return words.tobytes() + raw(ids)


def npy(ids: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, ids, allow_pickle=False)
    return file.getvalue()


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)  # its small dictionary makes it ten times as fast on short data


PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".xz": xz, ".zst": zst}
U16_FORMS = {"a.u16": raw, "raw.bin": raw, "header.bin": llmc, "a.npy": npy}
U32_FORMS = {"a.u32": raw, "header.bin": llmc, "a.npy": npy}


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def refused(path: Path, match: str, kind: type[Exception] = FormatError, **options: object) -> None:
    """Reading is refused with one line that has the path and the words."""
    with pytest.raises(kind, match=match) as caught:
        read_stream(path, **options)  # type: ignore[arg-type]
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def ids_of(bits: int, size: int = 100) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 2**bits, size, dtype=np.uint16 if bits == 16 else np.uint32)


# ---- the shipped stream


def test_the_shipped_stream() -> None:
    calls: list[tuple[int, int]] = []
    stream = read_stream(progress=lambda done, total: calls.append((done, total)))
    assert stream.name == DEFAULT_STREAM == "multilingual-20m"
    assert len(stream) == SHIPPED_TOKENS
    assert len(stream.document_starts) == SHIPPED_DOCUMENTS
    assert stream.sha256 == SHIPPED_SHA256
    assert stream.vocabulary == 65_536
    assert stream.ids.dtype == np.uint16 and stream.ids.flags.c_contiguous
    ends = np.flatnonzero(stream.ids == 0)
    assert len(ends) == SHIPPED_DOCUMENTS and ends[-1] == SHIPPED_TOKENS - 1
    assert np.array_equal(stream.document_starts[1:], ends[:-1] + 1)
    size = default_stream_path().stat().st_size
    assert calls[-1] == (size, size)
    assert len(calls) > 20 and calls == sorted(calls)


def test_the_shipped_stream_by_its_path_and_with_a_limit(tmp_path: Path) -> None:
    relative = os.path.relpath(default_stream_path())
    link = tmp_path / "link.u16.xz"
    link.symlink_to(default_stream_path())
    first = read_stream(limit=5000)
    for path in (default_stream_path(), relative, link):
        stream = read_stream(path, limit=5000)
        assert stream.name == DEFAULT_STREAM
        assert stream.sha256 == first.sha256
        assert np.array_equal(stream.document_starts, first.document_starts)
    assert len(first.document_starts) > 1
    copy = put(tmp_path, default_stream_path().name, default_stream_path().read_bytes())
    assert len(read_stream(copy, limit=5000).document_starts) == 1  # another file: nothing is known of it
    one = put(tmp_path, "documents.txt", b"0\n17\n")
    assert read_stream(limit=5000, documents=one).document_starts.tolist() == [0, 17]


def test_a_missing_shipped_stream_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "__file__", str(tmp_path / "pagegram_io" / "tokens.py"))
    with pytest.raises(FileNotFoundError, match="name a token stream of your own"):
        read_stream()
    (tmp_path / "traces").mkdir()
    beside = put(tmp_path / "traces", f"{DEFAULT_STREAM}.u16.xz", lzma.compress(b"\1\0"))
    assert default_stream_path() == beside
    (tmp_path / "pagegram_io" / "traces").mkdir(parents=True)
    inside = put(tmp_path / "pagegram_io" / "traces", f"{DEFAULT_STREAM}.u16.xz", lzma.compress(b"\2\0"))
    assert default_stream_path() == inside
    assert read_stream().ids.tolist() == [2]


# ---- formats


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("name", U16_FORMS)
@tmp_path_is_shared
@given(ids=hnp.arrays(np.uint16, st.integers(1, 600)), limit=st.none() | st.integers(1, 700))
def test_16_bit_formats(tmp_path: Path, packing: str, name: str, ids: np.ndarray, limit: int | None) -> None:
    path = put(tmp_path, name + packing, PACKERS[packing](U16_FORMS[name](ids)))
    stream = read_stream(path, limit=limit)
    assert stream.ids.dtype == np.uint16
    assert np.array_equal(stream.ids, ids[:limit])
    assert stream.sha256 == hashlib.sha256(raw(ids[:limit])).hexdigest()
    assert (stream.name, stream.vocabulary, stream.document_starts.tolist()) == (path.name, 65_536, [0])


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("name", U32_FORMS)
@tmp_path_is_shared
@given(ids=hnp.arrays(np.uint32, st.integers(1, 600)), limit=st.none() | st.integers(1, 700))
def test_32_bit_formats(tmp_path: Path, packing: str, name: str, ids: np.ndarray, limit: int | None) -> None:
    path = put(tmp_path, name + packing, PACKERS[packing](U32_FORMS[name](ids)))
    stream = read_stream(path, limit=limit)
    assert stream.ids.dtype == np.uint32
    assert np.array_equal(stream.ids, ids[:limit])
    assert stream.sha256 == hashlib.sha256(raw(ids[:limit])).hexdigest()
    assert stream.vocabulary == 2**32


def test_streams_of_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "BATCH_IDS", 7)
    ids = ids_of(16, 1000)
    for packing, pack in PACKERS.items():
        for name, form in U16_FORMS.items():
            path = put(tmp_path, name + packing, pack(form(ids)))
            for limit in (None, 1, 6, 7, 8, 999, 1000, 1001):
                stream = read_stream(path, limit=limit, eod=int(ids[6]))
                assert np.array_equal(stream.ids, ids[:limit]), (path, limit)
                starts = [0, *(np.flatnonzero(stream.ids[:-1] == ids[6]) + 1)]
                assert stream.document_starts.tolist() == starts
        path = put(tmp_path, "a.npy" + packing, pack(npy(ids.astype(np.int64))))
        assert np.array_equal(read_stream(path).ids, ids)


def test_dtype_says_what_a_file_without_a_header_holds(tmp_path: Path) -> None:
    ids = ids_of(32)
    path = put(tmp_path, "a.bin", raw(ids))
    assert np.array_equal(read_stream(path, dtype="uint32").ids, ids)
    assert np.array_equal(read_stream(path, dtype="uint16").ids, ids.view(np.uint16))
    refused(put(tmp_path, "a.u16", raw(ids)), "name says uint16, but the dtype asked for is uint32", dtype="uint32")
    refused(put(tmp_path, "a.u32", raw(ids)), "name says uint32", dtype="uint16")
    header = put(tmp_path, "header.bin", llmc(ids))
    assert np.array_equal(read_stream(header, dtype="uint32").ids, ids)
    refused(header, "header says uint32, but the dtype asked for is uint16", dtype="uint16")
    array = put(tmp_path, "a.npy", npy(ids_of(16)))
    assert len(read_stream(array, dtype="uint16")) == 100
    refused(array, "header says uint16", dtype="uint32")
    with pytest.raises(ValueError, match="int64"):
        read_stream(path, dtype="int64")


@pytest.mark.parametrize("suffix", [".U16", ".BIN.XZ", ".npy.Zst"])
def test_suffixes_in_capitals(tmp_path: Path, suffix: str) -> None:
    ids = ids_of(16)
    data = npy(ids) if "npy" in suffix else raw(ids)
    packing = suffix[4:].lower()
    assert np.array_equal(read_stream(put(tmp_path, "a" + suffix, PACKERS[packing](data))).ids, ids)


@pytest.mark.parametrize("name", ["a", "a.txt", "a.xz", "a.u16.gz", ".u16", "a.u16.xz.zst", "u16", "a.zst"])
def test_an_unknown_suffix_lists_those_known(tmp_path: Path, name: str) -> None:
    refused(put(tmp_path, name, b"\0\0"), r"\.u16, \.u32, \.bin, \.npy.*\.xz or \.zst")


# ---- .npy


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "<u2", ">u2", "<u4", ">u4", "<i4", ">i4", "<i8", "<u8", ">i8"])
def test_npy_integers(tmp_path: Path, dtype: str) -> None:
    ids = np.array([0, 1, 127], dtype)
    stream = read_stream(put(tmp_path, "a.npy", npy(ids)))
    assert stream.ids.tolist() == [0, 1, 127]
    assert stream.ids.dtype == (np.uint16 if ids.dtype.itemsize <= 2 else np.uint32)
    assert stream.ids.dtype.isnative


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.array([0, -1]), "id -1 at position 1 is negative"),
        (np.array([0, -1], np.int8), "id -1 at position 1 is negative"),
        (np.array([0, 5, 2**32]), "id 4294967296 at position 2 is outside the vocabulary of 4,294,967,296"),
        (np.array([2**64 - 1], np.uint64), "at position 0 is outside"),
        (np.zeros((2, 2), np.uint16), r"<u2' \(2, 2\), not one-dimensional"),
        (np.uint16(3), r"\(\), not one-dimensional"),
        (np.zeros(3), "<f8' .*, not one-dimensional integers"),
        (np.zeros(3, bool), r"\|b1"),
        (np.zeros(3, "S2"), r"\|S2"),
        (np.zeros(3, "M8[s]"), "M8"),
        (np.zeros(3, [("a", "u2")]), r"\[\('a', '<u2'\)\]"),
        (np.zeros(0, np.uint16), "is empty"),
    ],
)
def test_npy_of_other_kinds(tmp_path: Path, array: np.ndarray, match: str) -> None:
    refused(put(tmp_path, "a.npy", npy(array)), match)


def test_npy_never_unpickles(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([print, 1], object), allow_pickle=True)
    refused(put(tmp_path, "a.npy", file.getvalue()), r"\|O")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path: Path, version: tuple[int, int]) -> None:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.lib.format.write_array(file, ids_of(16), version=version)
    assert np.array_equal(read_stream(put(tmp_path, "a.npy", file.getvalue())).ids, ids_of(16))


def with_npy_header(text: str, data: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + data


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{",
        "0",
        "()",
        "{}",
        "'descr'",
        "{'descr': '<u2', 'fortran_order': False}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1,), 'x': 0}",
        "{'descr': '<u2', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': 1}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1.0,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999999,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}",
        "{'descr': '<u3', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 'u2,u2', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '(2,)u2', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 7, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '\\d', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': print(), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1,)}\0",
        "(" * 9000,
        "-" * 9000 + "1",
        "{[]: 1}",
    ],
)
def test_npy_headers_that_are_wrong(tmp_path: Path, header: str) -> None:
    for packing, pack in PACKERS.items():
        refused(put(tmp_path, "a.npy" + packing, pack(with_npy_header(header))), "npy|ids")


def test_npy_start(tmp_path: Path) -> None:
    good = npy(ids_of(16))
    refused(put(tmp_path, "a.npy", b"\0" + good[1:]), "not a .npy file")
    refused(put(tmp_path, "a.npy", good[:6] + b"\4" + good[7:]), "version 4")
    refused(put(tmp_path, "a.npy", good[:6] + b"\2" + good[7:8] + b"\xff\xff\xff\x7f"), "2,147,483,647 bytes")
    refused(put(tmp_path, "a.npy", good + b"\0\0"), "100 ids, but the file holds 101")
    refused(put(tmp_path, "a.npy", good + b"\0"), "not a whole number of 2-byte ids")


# ---- llm.c


def test_llmc_headers_that_are_wrong(tmp_path: Path) -> None:
    ids, wide = ids_of(16), ids_of(32)
    for packing, pack in PACKERS.items():
        name = "a.bin" + packing
        refused(put(tmp_path, name, pack(llmc(ids, version=2))), "20240520 is of version 2, but only 1 is known")
        refused(put(tmp_path, name, pack(llmc(wide, version=1))), "20240801 is of version 1, but only 7 is known")
        refused(put(tmp_path, name, pack(llmc(ids, magic=20240522))), "evaluation set of llm.c, not of tokens")
        refused(put(tmp_path, name, pack(llmc(ids, count=-1))), "negative count")
        refused(put(tmp_path, name, pack(llmc(ids, count=99))), "99 ids, but")
        refused(put(tmp_path, name, pack(llmc(ids, count=101))), "101 ids, but")
        refused(put(tmp_path, name, pack(llmc(ids, count=0))), "0 ids, but")
        refused(put(tmp_path, name, pack(llmc(ids[:0]))), "is empty")
        refused(put(tmp_path, name, pack(llmc(ids)[:1023])), "1,024 bytes is cut off at 1023")
        refused(put(tmp_path, name, pack(llmc(ids)[:4])), "cut off at 4")
        refused(put(tmp_path, name, pack(llmc(ids)[:-1])), "not a whole number")
        reserved = bytearray(llmc(ids))
        reserved[1000] = 1
        refused(put(tmp_path, name, pack(bytes(reserved))), "is not zero after the count")
    # A limit does not make a file whole, where its size alone says that it is not.
    refused(put(tmp_path, "a.bin", llmc(ids, count=101)), "101 ids, but the file holds 100", limit=5)
    refused(put(tmp_path, "a.bin.xz", lzma.compress(llmc(ids, count=99))), "goes on", limit=99)
    assert len(read_stream(put(tmp_path, "a.bin.xz", lzma.compress(llmc(ids, count=99))), limit=98)) == 98


def test_short_files_without_a_header(tmp_path: Path) -> None:
    assert read_stream(put(tmp_path, "a.bin", b"\1\0")).ids.tolist() == [1]
    refused(put(tmp_path, "a.bin", b"\1"), "1 bytes are not a whole number")
    refused(put(tmp_path, "a.bin", llmc(ids_of(16))[:3]), "3 bytes are not a whole number")


# ---- broken and missing files


@pytest.mark.parametrize("suffix", [".u16", ".u32", ".bin"])
def test_empty_and_odd_files(tmp_path: Path, suffix: str) -> None:
    for packing, pack in PACKERS.items():
        refused(put(tmp_path, "a" + suffix + packing, pack(b"")), "is empty")
        refused(put(tmp_path, "a" + suffix + packing, pack(b"\0" * 1001)), "1,001 bytes are not a whole number of")
        if packing:
            refused(put(tmp_path, "a" + suffix + packing, b""), "the file is empty")
    refused(put(tmp_path, "a.u32", b"\0" * 1002), "1,002 bytes are not a whole number of 4-byte ids", limit=1)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "folder.u16").mkdir()
    (tmp_path / "folder").mkdir()
    for kind, path in (
        (FileNotFoundError, tmp_path / "missing.u16"),
        (FileNotFoundError, tmp_path / "missing"),
        (FileNotFoundError, tmp_path / "missing.npy.xz"),
        (IsADirectoryError, tmp_path / "folder.u16"),
        (IsADirectoryError, tmp_path / "folder"),
        (NotADirectoryError, put(tmp_path, "file.u16", b"\0\0") / "a.u16"),
        (OSError, tmp_path / ("x" * 300 + ".u16")),
    ):
        with pytest.raises(kind) as caught:
            read_stream(path)
        assert caught.value.filename == str(path)
        assert caught.value.errno and caught.value.strerror
    good = put(tmp_path, "good.u16", b"\0\0")
    with pytest.raises(FileNotFoundError) as caught:
        read_stream(good, documents=tmp_path / "missing.txt")
    assert caught.value.filename == str(tmp_path / "missing.txt")


def test_an_error_while_reading_has_the_path() -> None:
    path = "/proc/self/mem"  # reads at address 0 fail with EIO
    with InputFile(path) as file, pytest.raises(OSError) as caught:
        file.read(10)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, path)


@pytest.mark.parametrize("packing", [".xz", ".zst"])
def test_compressed_files_of_several_streams(tmp_path: Path, packing: str) -> None:
    ids, pack = ids_of(16), PACKERS[packing]
    two = pack(raw(ids)[:33]) + pack(raw(ids)[33:])
    path = put(tmp_path, "a.u16" + packing, two)
    assert np.array_equal(read_stream(path).ids, ids)
    refused(put(tmp_path, "a.u16" + packing, two + b"\1"), "other data follow")
    refused(put(tmp_path, "a.u16" + packing, two + two[:3]), "other data follow")
    refused(put(tmp_path, "a.u16" + packing, two[:-1]), "cut off")
    refused(put(tmp_path, "a.u16" + packing, raw(ids)), "does not begin as")
    empty_first = put(tmp_path, "a.u16" + packing, pack(b"") + two)
    assert np.array_equal(read_stream(empty_first).ids, ids)


def test_xz_padding_and_zstd_frames_of_metadata(tmp_path: Path) -> None:
    ids = ids_of(16)
    packed = lzma.compress(raw(ids)[:30]), lzma.compress(raw(ids)[30:])
    for padding in (b"\0" * 4, b"\0" * 65_536, b"\0" * 200_004):
        assert np.array_equal(read_stream(put(tmp_path, "a.u16.xz", padding.join((*packed, b"")))).ids, ids)
    refused(put(tmp_path, "a.u16.xz", packed[0] + b"\0" * 5), "other data follow")
    refused(put(tmp_path, "a.u16.xz", b"\0" * 4 + packed[0]), "does not begin as")
    refused(put(tmp_path, "a.u16.xz", lzma.compress(raw(ids), lzma.FORMAT_ALONE)), "does not begin as")
    skippable = b"\x5e\x2a\x4d\x18\3\0\0\0abc"
    path = put(tmp_path, "a.u16.zst", skippable + zst(raw(ids)[:30]) + skippable + zst(raw(ids)[30:]) + skippable)
    assert np.array_equal(read_stream(path).ids, ids)
    refused(put(tmp_path, "a.u16.zst", zst(raw(ids)) + skippable[:-1]), "cut off")


def test_zstd_that_unpacks_to_far_more_than_it_is(tmp_path: Path) -> None:
    path = put(tmp_path, "a.u16.zst", zst(bytes(100 << 20)))
    tracemalloc.start()
    try:
        assert len(read_stream(path, limit=1000)) == 1000
        assert tracemalloc.get_traced_memory()[1] < 130 << 20
    finally:
        tracemalloc.stop()
    assert len(read_stream(path)) == 50 << 20


def test_without_the_zstandard_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a.u16.zst", zst(b"\0\0"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(OSError, match="pip install zstandard") as caught:
        read_stream(path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTSUP, str(path))


# ---- limits


@pytest.mark.parametrize("name", ["a.u16.xz", "a.u16.zst", "a.npy.xz", "header.bin.zst", "raw.bin.xz"])
def test_a_limit_reads_no_more_of_a_compressed_file_than_it_needs(tmp_path: Path, name: str) -> None:
    ids = ids_of(16, 1_000_000)  # random: 2 MB, compressed too
    form = next(form for known, form in U16_FORMS.items() if name.startswith(known))
    packed = PACKERS[name[name.rindex(".") :]](form(ids))
    whole = put(tmp_path, name, packed)
    for limit in (1, 1000, 100_000, 500_000):
        taken: list[int] = []
        stream = read_stream(whole, limit=limit, progress=lambda done, total, taken=taken: taken.append(done))
        assert np.array_equal(stream.ids, ids[:limit])
        # xz reads 64 KiB at a time, a block of zstd is 128 KiB
        assert taken[-1] <= 2 * limit + 1024 + (200 << 10)
        (tmp_path / "cut").mkdir(exist_ok=True)
        cut = put(tmp_path / "cut", name, packed[: taken[-1]])
        assert np.array_equal(read_stream(cut, limit=limit).ids, ids[:limit])
        refused(cut, "cut off")


def test_a_limit_reads_only_the_start_of_other_files(tmp_path: Path) -> None:
    ids = ids_of(16, 1_000_000)
    for name, form in U16_FORMS.items():
        path = put(tmp_path, name, form(ids))
        taken: list[int] = []
        read_stream(path, limit=1000, progress=lambda done, total, taken=taken: taken.append(done))
        assert taken == [2000 + len(form(ids)) - 2_000_000]


@pytest.mark.parametrize("limit", [0, -1])
def test_limits_below_one(tmp_path: Path, limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit {limit} is not at least 1"):
        read_stream(put(tmp_path, "a.u16", b"\0\0"), limit=limit)


def test_memory_is_that_of_the_stream(tmp_path: Path) -> None:
    ids = np.tile(np.arange(50_000, dtype=np.uint16), 160)  # 16 MB
    small_dictionary = lzma.compress(raw(ids), preset=0)
    for name, data in (("a.u16", raw(ids)), ("a.u16.xz", small_dictionary), ("a.npy", npy(ids.astype(np.int64)))):
        path = put(tmp_path, name, data)
        del data
        tracemalloc.start()
        try:
            stream = read_stream(path, eod=7)
            current, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert stream.ids.flags.owndata and len(stream) == len(ids)
        assert current < stream.ids.nbytes + (1 << 20)
        assert peak < 1.125 * stream.ids.nbytes + (8 << 20)


def test_a_pipe(tmp_path: Path) -> None:
    ids = ids_of(16, 200_000)
    for name, data in (("p.u16", raw(ids)), ("p.npy", npy(ids)), ("p.u16.xz", lzma.compress(raw(ids), preset=0))):
        pipe = tmp_path / name
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(data,))
        writer.start()
        stream = read_stream(pipe)
        writer.join()
        assert np.array_equal(stream.ids, ids)


# ---- vocabulary and documents


def test_the_vocabulary(tmp_path: Path) -> None:
    path = put(tmp_path, "a.u16", raw(np.array([3, 9, 10, 9], np.uint16)))
    assert read_stream(path, vocabulary=11).vocabulary == 11
    assert read_stream(path, vocabulary=10, limit=2).ids.tolist() == [3, 9]
    refused(path, "id 10 at position 2 is outside the vocabulary of 10 ids", vocabulary=10)
    assert read_stream(path, vocabulary=2**32).vocabulary == 2**32
    for vocabulary in (0, -1, 2**32 + 1):
        with pytest.raises(ValueError, match=f"vocabulary of {vocabulary} ids"):
            read_stream(path, vocabulary=vocabulary)
    wide = put(tmp_path, "a.u32", raw(np.array([0, 2**32 - 1], np.uint32)))
    assert len(read_stream(wide)) == 2
    refused(wide, "id 4294967295 at position 1", vocabulary=2**32 - 1)
    refused(put(tmp_path, "b.npy", npy(np.array([0, 70_000]))), "id 70000 at position 1", vocabulary=65_536)


def test_positions_of_bad_ids_count_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "BATCH_IDS", 8)
    ids = np.zeros(100, np.int32)
    ids[77] = -5
    refused(put(tmp_path, "a.npy", npy(ids)), "id -5 at position 77 is negative")


def test_the_end_of_document_id(tmp_path: Path) -> None:
    path = put(tmp_path, "a.u16", raw(np.array([5, 0, 0, 7, 8, 0], np.uint16)))
    assert read_stream(path).document_starts.tolist() == [0]
    stream = read_stream(path, eod=0)
    assert stream.document_starts.tolist() == [0, 2, 3]  # the last id starts nothing
    assert stream.document_starts.dtype == np.uint64
    assert read_stream(path, eod=8).document_starts.tolist() == [0, 5]
    assert read_stream(path, eod=9).document_starts.tolist() == [0]
    assert read_stream(path, eod=0, limit=2).document_starts.tolist() == [0]
    for eod, vocabulary in ((65_536, None), (-1, None), (10, 10)):
        with pytest.raises(ValueError, match=f"end-of-document id {eod} is outside the vocabulary"):
            read_stream(path, eod=eod, vocabulary=vocabulary)
    with pytest.raises(ValueError, match="give one of them"):
        read_stream(path, eod=0, documents=path)


@tmp_path_is_shared
@given(ids=hnp.arrays(np.uint16, st.integers(1, 60), elements=st.integers(0, 3)), limit=st.none() | st.integers(1, 70))
def test_documents_by_id_are_those_of_a_slow_reading(tmp_path: Path, ids: np.ndarray, limit: int | None) -> None:
    used = ids[:limit].tolist()
    starts = [0] + [at + 1 for at in range(len(used) - 1) if used[at] == 2]
    stream = read_stream(put(tmp_path, "a.u16", raw(ids)), eod=2, limit=limit)
    assert stream.document_starts.tolist() == starts
    by_file = put(tmp_path, "starts.txt", "".join(f"{start}\n" for start in starts).encode())
    assert read_stream(tmp_path / "a.u16", documents=by_file, limit=limit).document_starts.tolist() == starts


@pytest.mark.parametrize("text", [b"0", b"0\n4\n9", b"0\n4\n9\n", b"0\r\n4\r\n9\r\n", b"0\n4\n9\n\n\n"])
def test_documents_by_a_file(tmp_path: Path, text: bytes) -> None:
    path, documents = put(tmp_path, "a.u16", bytes(20)), put(tmp_path, "starts.txt", text)
    assert read_stream(path, documents=documents).document_starts.tolist() == [0, 4, 9][: 1 if text == b"0" else 3]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "line 1 "),
        (b"\n0\n", "line 1 "),
        (b"1\n2\n", "the first document starts at 1, but it must start at 0"),
        (b"0\n4\n4\n", r"line 3 \(4\) is not above the line before \(4\)"),
        (b"0\n4\n3\n", "line 3"),
        (b"0\n0\n", "line 2"),
        (b"0\n10\n", r"line 2 \(10\) is past the end of a stream of 10 ids"),
        (b"0\n99999999999999999999\n", "past the end"),
        (b"0\n999999999999999999999\n", "line 2 .* is not the 0-based start"),
        (b"0\n-1\n", "line 2 "),
        (b"0\n1.5\n", "line 2 "),
        (b"0\n0x4\n", "line 2 "),
        (b"0\n1_0\n", "line 2 "),
        ("0\n٣\n".encode(), "line 2 "),
        (b"0\n\n4\n", "line 2 "),
        (b"0 4\n", "line 1 "),
        (b"\xff\xfe0\n", "line 1 "),
        (b"0\n\x1b[31m\n", "line 2 "),
    ],
)
def test_documents_files_that_are_wrong(tmp_path: Path, text: bytes, match: str) -> None:
    path, documents = put(tmp_path, "a.u16", bytes(20)), put(tmp_path, "starts.txt", text)
    with pytest.raises(FormatError, match=match) as caught:
        read_stream(path, documents=documents)
    assert str(documents) in str(caught.value)
    assert str(caught.value).isprintable()


def test_documents_and_a_limit(tmp_path: Path) -> None:
    path = put(tmp_path, "a.u16", bytes(20))
    documents = put(tmp_path, "starts.txt", b"0\n4\n7\n1000\n")
    for limit, starts in ((4, [0]), (5, [0, 4]), (7, [0, 4]), (8, [0, 4, 7]), (10, [0, 4, 7])):
        assert read_stream(path, documents=documents, limit=limit).document_starts.tolist() == starts
    with pytest.raises(FormatError, match="past the end"):
        read_stream(path, documents=documents, limit=11)  # the whole stream was read, so its end is known
    put(tmp_path, "starts.txt", b"0\n4\n7\n6\n")
    with pytest.raises(FormatError, match="line 4"):
        read_stream(path, documents=documents, limit=5)


# ---- Stream


def test_streams_pickle(tmp_path: Path) -> None:
    stream = read_stream(put(tmp_path, "a.u16", raw(ids_of(16))), eod=int(ids_of(16)[3]))
    for _ in range(2):  # without and with the digest
        copy = pickle.loads(pickle.dumps(stream))
        assert np.array_equal(copy.ids, stream.ids) and np.array_equal(copy.document_starts, stream.document_starts)
        assert (copy.vocabulary, copy.name, copy.sha256) == (stream.vocabulary, stream.name, stream.sha256)


def test_a_stream_does_not_change(tmp_path: Path) -> None:
    stream = read_stream(put(tmp_path, "a.u16", raw(ids_of(16))))
    with pytest.raises(ValueError):
        stream.ids[0] = 1
    with pytest.raises(AttributeError):
        stream.name = "b"  # type: ignore[misc]


def test_the_digest_is_computed_once() -> None:
    stream = Stream(np.arange(4, dtype=np.uint16), np.zeros(1, np.uint64), 65_536, "mine")
    assert stream.sha256 is stream.sha256
    assert stream.sha256 == hashlib.sha256(b"\0\0\1\0\2\0\3\0").hexdigest()
    wide = Stream(np.arange(4, dtype=np.uint32), np.zeros(1, np.uint64), 4, "mine")
    assert wide.sha256 == hashlib.sha256(raw(wide.ids)).hexdigest() != stream.sha256


@pytest.mark.parametrize(
    ("ids", "starts", "vocabulary", "match"),
    [
        (np.zeros(0, np.uint16), [0], 10, "ids is"),
        (np.zeros(4, np.int64), [0], 10, "ids is"),
        (np.zeros((2, 2), np.uint16), [0], 10, "ids is"),
        (np.zeros(8, np.uint16)[::2], [0], 10, "ids is"),
        (np.zeros(8, ">u2"), [0], 10, "ids is"),
        (np.zeros(8, np.uint16), [], 10, "document_starts is"),
        (np.zeros(8, np.uint16), [1], 10, "document_starts does not ascend"),
        (np.zeros(8, np.uint16), [0, 0], 10, "document_starts does not ascend"),
        (np.zeros(8, np.uint16), [0, 5, 4], 10, "document_starts does not ascend"),
        (np.zeros(8, np.uint16), [0, 8], 10, "document_starts does not ascend"),
        (np.full(8, 10, np.uint16), [0], 10, "id 10 at position 0"),
        (np.zeros(8, np.uint16), [0], 0, "vocabulary"),
    ],
)
def test_streams_that_are_wrong(ids: np.ndarray, starts: list[int], vocabulary: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Stream(ids, np.array(starts, np.uint64), vocabulary, "mine")
    with pytest.raises(ValueError, match="document_starts is"):
        Stream(np.zeros(8, np.uint16), np.zeros(1, np.int64), 10, "mine")


# ---- writing


@pytest.mark.parametrize("suffix", [".u16", ".u32", ".npy", ".u16.xz", ".u32.xz", ".npy.xz"])
@tmp_path_is_shared
@given(ids=hnp.arrays(np.uint16, st.integers(1, 300)), kind=st.sampled_from([np.uint16, np.uint32, np.int64, ">u4"]))
def test_what_is_written_is_read(tmp_path: Path, suffix: str, ids: np.ndarray, kind: type) -> None:
    path = tmp_path / f"a{suffix}"
    write_stream(path, ids.astype(kind), force=True)
    stream = read_stream(path)
    assert np.array_equal(stream.ids, ids)
    narrow = suffix.startswith(".u16") or (suffix.startswith(".npy") and kind is np.uint16)
    assert stream.ids.dtype == (np.uint16 if narrow else np.uint32)
    assert os.listdir(tmp_path) == [path.name]


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    write_stream(tmp_path / "a.npy", ids_of(32))
    assert np.array_equal(np.load(tmp_path / "a.npy"), ids_of(32))
    assert np.load(tmp_path / "a.npy", mmap_mode="r").dtype == np.uint32


@pytest.mark.parametrize(
    ("name", "ids", "match"),
    [
        ("a.u16", np.array([65_536]), "id 65536 at position 0 is outside"),
        ("a.u16", np.array([1, -1]), "id -1 at position 1 is negative"),
        ("a.u32", np.array([2**32]), "outside"),
        ("a.npy", np.array([2**32]), "outside"),
        ("a.npy", np.array([0.5]), "float64"),
        ("a.npy", np.zeros((1, 1), int), r"\(1, 1\)"),
        ("a.u16", np.array([], np.uint16), "non-empty"),
        ("a.bin", np.array([1]), "are written as"),
        ("a.u16.zst", np.array([1]), "are written as"),
        ("a.xz", np.array([1]), "are written as"),
    ],
)
def test_what_is_not_written(tmp_path: Path, name: str, ids: np.ndarray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        write_stream(tmp_path / name, ids)
    assert not os.listdir(tmp_path)


def test_existing_files_are_kept(tmp_path: Path) -> None:
    path = put(tmp_path, "a.u16", b"old!")
    with pytest.raises(FileExistsError, match="--force"):
        write_stream(path, ids_of(16))
    assert path.read_bytes() == b"old!"
    write_stream(path, ids_of(16), force=True)
    assert path.read_bytes() == raw(ids_of(16))


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(lzma.LZMAFile, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_stream(tmp_path / "a.u16.xz", ids_of(16))
    assert not os.listdir(tmp_path)

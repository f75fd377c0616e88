"""Page traces: arrays from anywhere as a source, every format written and read back, broken files refused (C18)."""

from __future__ import annotations

import csv
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from conftest import make_stream, small_layouts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pagegram_io
from pagegram_io import native, native_caches
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout, Shape, pagegram
from pagegram_io.tokens import Stream
from pagegram_io.trace import EMITS, FORMATS, ArraySource, LayoutSource, read_pages, write_trace

NO = native.NO_PAGE


def drain(source: Any, step: int = 10**6) -> np.ndarray:
    """All pages of a source, uint32 [tokens, columns]."""
    parts = []
    while True:
        pages = np.empty((step, source.page_columns), np.uint32)
        count = source.next(pages)
        if not count:
            return np.concatenate(parts) if parts else np.empty((0, source.page_columns), np.uint32)
        parts.append(pages[:count])


def text_like(count: int = 700) -> Stream:
    ids = np.minimum(np.random.default_rng(1).geometric(0.1, count) - 1, 50)
    return make_stream(ids, [0, 9, 400] if count > 400 else [0])


# ---- ArraySource ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", ">i2", "<i4", "<u4", ">u4", "<i8", "<u8", ">u8"])
def test_arrays_of_every_integer_type(dtype: str) -> None:
    pages = np.random.default_rng(2).integers(0, 100, (50, 3))
    source = ArraySource(pages.astype(dtype))
    assert (source.page_count, source.table_page_count) == (pages.max() + 1, pages.max() + 1)
    assert (source.token_count, source.page_columns) == (50, 3)
    assert np.array_equal(drain(source), pages)


@given(
    hnp.arrays(np.uint64, hnp.array_shapes(min_dims=1, max_dims=2, max_side=30), elements=st.integers(0, 2**64 - 1)),
    st.booleans(),
    st.integers(1, 40),
)
def test_sparse_ids_are_renumbered_in_their_order_and_unused_places_stay(
    pages: np.ndarray, dense: bool, step: int
) -> None:
    if dense:
        pages = pages % np.uint64(50)
    pages = np.where(pages % np.uint64(7) == 0, np.uint64(NO if pages.size % 2 else native.NO_ROW), pages)
    unused = (pages == NO) | (pages == native.NO_ROW)
    if unused.all():
        with pytest.raises(ValueError, match="only unused"):
            ArraySource(pages)
        return
    source = ArraySource(pages)
    found = drain(source, step)
    matrix, holes = (a[:, None] if a.ndim == 1 else a for a in (pages, unused))
    assert found.shape == matrix.shape
    assert np.array_equal(found == NO, holes)
    _, ranks = np.unique(matrix[~holes], return_inverse=True)
    kept = found[~holes]
    assert kept.max() < source.page_count
    assert np.array_equal(np.unique(kept, return_inverse=True)[1], ranks)  # the same page, the same id; in order
    assert source.table_page_count == int(matrix[~holes].max()) + 1
    source.rewind()
    assert np.array_equal(drain(source, 7), found)


def test_renumbering_changes_no_hit_or_miss() -> None:
    pages = np.random.default_rng(3).integers(0, 40, (500, 2)).astype(np.uint64)
    sparse = pages * np.uint64(10**17) + np.uint64(5)
    wanted = reference.lru(pages.tolist(), 10)
    source = ArraySource(sparse)
    assert source.page_count == 40
    with native_caches.Lru(source.page_count, [10], np.zeros(2, np.uint32)) as lru:
        lru.access(drain(source))
        assert lru.counts()[2].tolist() == [wanted.misses]


def test_a_memory_mapped_array_is_read_in_batches(tmp_path: Path) -> None:
    pages = np.random.default_rng(4).integers(0, 1000, (200_000, 2)).astype(np.uint32)
    np.save(tmp_path / "pages.npy", pages)
    mapped, about = read_pages(tmp_path / "pages.npy")
    assert isinstance(mapped, np.memmap)
    assert about == {}
    assert np.array_equal(drain(ArraySource(mapped), 5000), pages)
    assert np.array_equal(drain(ArraySource(np.asfortranarray(pages))), pages)
    assert np.array_equal(drain(ArraySource(pages[::-3])), pages[::-3])


@pytest.mark.parametrize(
    ("pages", "match"),
    [
        (np.zeros((2, 2)), "integers"),
        (np.zeros((2, 2), bool), "integers"),
        (np.zeros((2, 2, 2), int), "integers"),
        (np.array(5), "integers"),
        (np.array(["a"]), "integers"),
        (np.zeros((0, 2), int), "empty"),
        (np.zeros((2, 0), int), "empty"),
        (np.array([[1, -1]]), "-1 is negative"),
        (np.array([[1, -1]], np.int8), "-1 is negative"),
        (np.array([[NO, NO]], np.uint32), "only unused"),
        (np.array([native.NO_ROW], np.uint64), "only unused"),
    ],
    ids=str,
)
def test_arrays_that_are_no_pages_are_refused(pages: np.ndarray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ArraySource(pages)


def test_pages_outside_the_stated_table_are_refused() -> None:
    with pytest.raises(ValueError, match="page 9 is not in a table of 9"):
        ArraySource(np.arange(10), page_count=9)
    source = ArraySource(np.arange(10), page_count=12)
    assert (source.page_count, source.table_page_count) == (10, 12)


# ---- formats -------------------------------------------------------------------------------------


def wanted_trace(layout: Layout, stream: Stream, emit: str) -> np.ndarray:
    rows = layout.rows(stream)
    if emit == "rows":
        return rows
    if emit == "pages":
        return layout.pages(rows)
    with native.Place(layout) as place:
        return place.bytes(rows)


def read_npy(path: Path, emit: str) -> np.ndarray:
    found = np.load(path, mmap_mode="r")
    assert found.dtype == ("<u4" if emit == "pages" else "<u8")
    assert found.flags.c_contiguous
    return found


def read_csv(path: Path, emit: str) -> np.ndarray:
    with open(path, newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["token", *(f"column_{c}" for c in range(len(header) - 1))]
    assert [int(line[0]) for line in lines] == list(range(len(lines)))
    return np.array([[int(v) if v else NO for v in line[1:]] for line in lines], np.uint64)


def read_parquet(path: Path, emit: str) -> np.ndarray:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    assert table.column_names == [f"column_{c}" for c in range(table.num_columns)]
    assert {str(column.type) for column in table.columns} == {"uint32" if emit == "pages" else "uint64"}
    return np.array([[NO if v is None else v for v in column.to_pylist()] for column in table.columns], np.uint64).T


def read_iolog(path: Path, page_bytes: int) -> list[int]:
    """File offsets of the reads, as fio would replay them."""
    version, add, opened, *reads, closed = path.read_text().splitlines()
    assert version == "fio version 2 iolog"
    assert (add, opened, closed) == ("table.bin add", "table.bin open", "table.bin close")
    words = [line.split() for line in reads]
    assert all(w[:2] == ["table.bin", "read"] and int(w[3]) == page_bytes for w in words)
    return [int(w[2]) for w in words]


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
@pytest.mark.parametrize("emit", EMITS)
def test_every_format_reads_back_equal(
    layout: Layout, emit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagegram_io.trace.BATCH_PLACES", 1000)  # several batches
    stream = text_like()
    wanted = wanted_trace(layout, stream, emit)
    for form in FORMATS:
        path = tmp_path / f"trace.{form}"
        if emit != "pages" and form in ("u32", "fio-iolog"):
            with pytest.raises(ValueError, match="page"):
                write_trace(layout, stream, path, emit=emit, form=form)
            continue
        told: list[int] = []
        assert write_trace(layout, stream, path, emit=emit, form=form, progress=told.append) == len(stream)
        assert sum(told) == len(stream)
        used = wanted[wanted != NO] if emit == "pages" else wanted
        if form == "u32":
            assert np.array_equal(np.fromfile(path, "<u4"), used)
        elif form == "fio-iolog":
            first = min(r.base_byte for r in layout.regions) // layout.page_bytes
            assert read_iolog(path, layout.page_bytes) == [(first + int(p)) * layout.page_bytes for p in used]
        else:
            found = {"npy": read_npy, "csv": read_csv, "parquet": read_parquet}[form](path, emit)
            assert np.array_equal(found, wanted)
        check_description(Path(f"{path}.json"), layout, stream, emit, form, wanted)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def check_description(path: Path, layout: Layout, stream: Stream, emit: str, form: str, wanted: np.ndarray) -> None:
    about = json.loads(path.read_text())
    used = int((wanted != NO).sum()) if emit == "pages" else wanted.size
    expected = {
        "kind": "trace", "schema": 1, "emit": emit, "format": form, "layout": layout.name, "slots": layout.slots,
        "seed": layout.seed, "pages": layout.page_count, "page_bytes": layout.page_bytes,
        "file_bytes": layout.file_bytes,
        "stream": "test", "stream_sha256": stream.sha256, "tokens": len(stream), "documents": 3,
        "columns": wanted.shape[1], "unused": NO if emit == "pages" else None, "accesses": used,
        "orders": ",".join(map(str, layout.orders)), "version": pagegram_io.__version__,
    }  # fmt: skip
    assert {key: about[key] for key in expected} == expected


def test_an_iolog_reads_the_bytes_where_the_rows_are(tmp_path: Path) -> None:
    """A regression: of a packed table that starts at a byte beyond the first page, the iolog once read other pages."""
    layout = pagegram(
        12000, 4, Shape(heads=3, row_width=8, dim=16, page_bytes=512, packed=True, base_byte=5 * 512 + 100)
    )
    stream = text_like(50)
    with native.Place(layout) as place:
        offsets = place.bytes(layout.rows(stream))
        assert place.first_page == 5
    write_trace(layout, stream, tmp_path / "log", form="fio-iolog")
    reads = read_iolog(tmp_path / "log", 512)
    assert {int(o) // 512 * 512 for o in offsets.ravel()} <= set(reads)
    assert min(reads) >= 5 * 512


def test_a_written_trace_simulates_as_its_layout_does(tmp_path: Path) -> None:
    stream, layout = text_like(), small_layouts()[7]
    direct = pagegram_io.curve(
        layout.pages(layout.rows(stream)), cache="1KiB", page_bytes=512, page_count=layout.page_count
    )
    for form in ("npy", "u32"):
        path = tmp_path / f"trace.{form}"
        write_trace(layout, stream, path, form=form)
        pages, about = read_pages(path)
        assert about["pages"] == layout.page_count
        found = pagegram_io.curve(pages, cache="1KiB", page_bytes=about["page_bytes"], page_count=about["pages"])
        assert [(r.cache_pages, r.misses, r.compulsory_misses) for r in found] == [
            (r.cache_pages, r.misses, r.compulsory_misses) for r in direct
        ]


def test_a_layouts_source_starts_again() -> None:
    layout, stream = small_layouts()[2], text_like()
    source = LayoutSource(layout, stream)
    assert (source.page_count, source.token_count) == (layout.page_count, len(stream))
    first = drain(source, 33)
    assert drain(source).size == 0
    source.rewind()
    assert np.array_equal(drain(source, 50), first)
    assert np.array_equal(first, layout.pages(layout.rows(stream)))


def test_existing_files_stay_unless_forced(tmp_path: Path) -> None:
    layout, stream = small_layouts()[0], text_like()
    for name in ("trace.npy", "trace.npy.json"):
        (tmp_path / name).write_bytes(b"mine")
        with pytest.raises(FileExistsError):
            write_trace(layout, stream, tmp_path / "trace.npy")
        assert [p.name for p in tmp_path.iterdir()] == [name]
        assert (tmp_path / name).read_bytes() == b"mine"
        write_trace(layout, stream, tmp_path / "trace.npy", force=True)
        assert np.load(tmp_path / "trace.npy").shape == (700, 2)
        for path in tmp_path.iterdir():
            path.unlink()


@pytest.mark.parametrize("form", FORMATS)
def test_an_interrupt_leaves_nothing(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagegram_io.trace.BATCH_PLACES", 100)

    def stop(tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(small_layouts()[0], text_like(), tmp_path / "trace", form=form, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_unknown_emits_and_formats_are_refused(tmp_path: Path) -> None:
    for arguments in ({"emit": "tokens"}, {"form": "xlsx"}):
        with pytest.raises(ValueError, match="one of"):
            write_trace(small_layouts()[0], text_like(), tmp_path / "trace", **arguments)
    assert list(tmp_path.iterdir()) == []


# ---- C18: broken files ---------------------------------------------------------------------------


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def archived() -> bytes:
    file = io.BytesIO()
    np.savez(file, pages=np.arange(3))
    return file.getvalue()


BROKEN: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "empty u32": ("t.u32", lambda: b"", "whole number"),
    "truncated u32": ("t.u32", lambda: b"\1\0\0\0\2\0", "6 bytes are not a whole number"),
    "empty npy": ("t.npy", lambda: b"", "empty"),
    "truncated npy": ("t.npy", lambda: saved(np.arange(1000))[:-1], "not a whole"),
    "npy cut in its header": ("t.npy", lambda: saved(np.arange(1000))[:50], "not a whole"),
    "npy cut in its magic": ("t.npy", lambda: b"\x93NUM", "not a whole"),
    "an unclosed header": ("t.npy", lambda: saved(np.arange(9)).replace(b"(9,)", b"(9, "), "not a whole"),
    "a header of bytes": ("t.npy", lambda: saved(np.arange(9)).replace(b" 'shape'", b"b'shape'"), "not a whole"),
    "a type that is none": ("t.npy", lambda: saved(np.arange(9)).replace(b"<i8", b"<,8"), "not a whole"),
    "not npy": ("t.npy", lambda: b"token,column_0\n0,5\n", "not a whole"),
    "pickled objects": ("t.npy", lambda: saved(np.array([{}], object), allow_pickle=True), "not a whole"),
    "a pickle": ("t.npy", lambda: pickle.dumps([1]), "not a whole"),
    "an archive": ("t.npy", archived, "archive"),
    "another suffix": ("t.csv", lambda: b"token\n", "is a .npy or a .u32"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_c18_broken_page_traces_are_refused_with_one_line(name: str, tmp_path: Path) -> None:
    file, content, match = BROKEN[name]
    (tmp_path / file).write_bytes(content())
    with pytest.raises(FormatError, match=match) as caught:
        read_pages(tmp_path / file)
    assert str(tmp_path / file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_c18_folders_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as folder:
        read_pages(tmp_path)
    assert folder.value.filename == str(tmp_path)
    for name in ("none.npy", "none.u32"):
        with pytest.raises(FileNotFoundError) as missing:
            read_pages(tmp_path / name)
        assert missing.value.filename == str(tmp_path / name)


def test_c18_a_trace_cut_between_two_pages_is_refused_by_what_stands_beside_it(tmp_path: Path) -> None:
    layout, stream = small_layouts()[7], text_like()
    for form in ("npy", "u32"):
        path = tmp_path / f"trace.{form}"
        write_trace(layout, stream, path, form=form)
        read_pages(path)
        content = path.read_bytes()
        if form == "u32":
            for other in (content[:-4], content + content[:4]):
                path.write_bytes(other)
                with pytest.raises(FormatError, match="beside it says"):
                    read_pages(path)
        else:
            np.save(path, np.load(path)[:-1])
            with pytest.raises(FormatError, match="beside it says"):
                read_pages(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("\udcff", "not JSON"),
        ("[]", "not the description"),
        ('{"kind": "simulate", "schema": 1, "emit": "pages"}', "not the description"),
        ('{"kind": "trace", "schema": 2, "emit": "pages"}', "not the description"),
        ('{"kind": "trace", "schema": 1, "emit": "rows"}', "holds rows"),
        ('{"kind": "trace", "schema": 1}', "holds None"),
        ('{"kind": "trace", "schema": 1, "emit": "pages", "pages": "9"}', "pages is '9'"),
        ('{"kind": "trace", "schema": 1, "emit": "pages", "pages": null}', "pages is None"),
        ('{"kind": "trace", "schema": 1, "emit": "pages", "page_bytes": 0}', "page_bytes is 0"),
        ('{"kind": "trace", "schema": 1, "emit": "pages", "tokens": 1.5}', "tokens is 1.5"),
        ('{"kind": "trace", "schema": 1, "emit": "pages", "tokens": 5, "columns": 2}', "beside it says"),
    ],
)
def test_c18_a_wrong_description_is_refused_with_one_line(text: str, match: str, tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.arange(10))
    (tmp_path / "t.npy.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError, match=match) as caught:
        read_pages(tmp_path / "t.npy")
    assert "\n" not in str(caught.value)


GOOD_NPY = saved(np.arange(12, dtype=np.uint32).reshape(4, 3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    st.lists(
        st.tuples(st.integers(0, 127), st.sampled_from(b"0123456789,()[]'{}: <>|uifOTFalse\n\0\xff")),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, len(GOOD_NPY)),
    st.booleans(),
)
@pytest.mark.filterwarnings("ignore")  # NumPy warns of old types and headers; what counts is what is raised
def test_c18_a_damaged_npy_raises_nothing_but_format_errors(
    tmp_path: Path, changes: list[tuple[int, int]], end: int, cut: bool
) -> None:
    content = bytearray(GOOD_NPY)
    for at, byte in changes:
        content[at] = byte
    (tmp_path / "t.npy").write_bytes(content[:end] if cut else content)
    try:
        pages, _ = read_pages(tmp_path / "t.npy")
        ArraySource(pages)
    except ValueError:  # FormatError is one
        pass

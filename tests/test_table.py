"""Tables on flash: every row is what was packed, reads are the simulated misses, and damage is named, whoever asks."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import reference_table
from conftest import ISAS, make_stream, small_layouts
from harness.mounts import faulty_file
from harness.targets import filesystem_of, open_descriptors, takes_direct, thread_count
from hypothesis import given, settings
from hypothesis import strategies as st

from pagegram_io import native, native_caches
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout, Shape, engram, flat, pagegram
from pagegram_io.native_reader import crc32c, seal_pages
from pagegram_io.native_table import Client, TableFile
from pagegram_io.pack import write_trained_file
from pagegram_io.record_files import to_dict
from pagegram_io.row_format import decode_rows, encode_rows
from pagegram_io.table import Table
from pagegram_io.table_file import encode_header, read_header, write_pattern_file

ENGINES = ("io_uring", "psync")


@dataclass(frozen=True)
class Packed:
    """A table file and, for every row of it, what it decodes to."""

    path: Path
    layout: Layout
    values: np.ndarray

    @property
    def page_columns(self) -> int:
        return len(self.layout.group_of_page_column())

    def open(self, pages: int, **options: object) -> Table:
        return Table.open(self.path, cache_bytes=pages * self.layout.page_bytes, depth=8, **options)  # type: ignore[arg-type]

    def rows(self, tokens: int, seed: int = 0, below: int = 300) -> np.ndarray:
        ids = np.minimum(np.random.default_rng(seed).geometric(0.03, tokens), below - 1)
        return self.layout.rows(make_stream(ids, [0] if tokens < 20 else [0, 7, 19]))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder where O_DIRECT works: pytest's own, or one under build/ where that is a tmpfs."""
    own = tmp_path_factory.mktemp("table")
    if takes_direct(own) and filesystem_of(own) != "tmpfs":
        yield own
        return
    beside = Path(__file__).parents[1] / "build" / f"test-table-{os.getpid()}"
    beside.mkdir(parents=True)
    try:
        assert takes_direct(beside), f"no O_DIRECT on {filesystem_of(own)} or {filesystem_of(beside)}"
        yield beside
    finally:
        shutil.rmtree(beside)


def pack(path: Path, layout: Layout) -> Packed:
    values = np.random.default_rng(1).standard_normal((layout.row_count, layout.row_width)).astype(np.float32)
    values[::7] = 0
    write_trained_file(path, layout, lambda begin, end: values[begin:end])
    stored = encode_rows(layout.row_format, values)[0]
    return Packed(path, layout, decode_rows(layout.row_format, stored, layout.row_width))


def layouts() -> list[Layout]:
    """Every kind of placement; pages of 512 bytes, and of 4,096 with a bucket longer than one (S=60: 8 reads)."""
    fp32 = Shape(heads=3, row_width=8, dim=16, page_bytes=512, row_format="fp32")
    packed = Shape(heads=4, row_width=64, dim=64, packed=True)
    return [
        *small_layouts(),
        pagegram(30_000, 4, fp32),
        flat(300_000, packed),
        engram(300_000, packed),
        pagegram(600_000, 15, packed),
        pagegram(1_000_000, 60),
    ]


@pytest.fixture(scope="session")
def tables(folder: Path) -> list[Packed]:
    return [pack(folder / f"table-{i}", layout) for i, layout in enumerate(layouts())]


@pytest.fixture(scope="session")
def sealed(folder: Path) -> Packed:
    """PageGram S=4 in NF4, 4,096-byte pages that hold their own checks; two a token."""
    return pack(folder / "sealed", pagegram(2_000_000, 4, Shape(heads=4, row_width=16)))


def simulated(table: Packed, rows: np.ndarray, pages: int) -> int:
    with native_caches.Lru(table.layout.page_count, [pages], np.zeros(table.page_columns, np.uint32)) as lru:
        lru.access(table.layout.pages(rows))
        return int(lru.counts()[2].sum())


# ---- C19: what is on flash is what was packed ----


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_comes_back_through_the_device_path(tables: list[Packed], engine: str) -> None:
    for table in tables:
        columns = table.layout.column_count
        groups = [g for g in table.layout.groups for _ in g.columns]
        # Each row once, in some column of its group; a PageGram token's rows share a bucket, whose unit this walks.
        wanted = []
        for first in range(max(g.row_count for g in table.layout.groups)):
            wanted.append([g.row_base + min(first, g.row_count - 1) for g in groups])
        rows = np.array(wanted, np.uint64)
        assert rows.shape[1] == columns and set(np.unique(rows)) == set(range(table.layout.row_count))
        with table.open(2 * table.page_columns, engine=engine) as opened:
            assert opened.engine == engine and opened.direct
            got = opened.lookup_rows(rows)
            assert got.dtype == np.float32
            assert np.array_equal(got.view(np.uint32), table.values[rows].view(np.uint32)), table.layout.label


def test_every_instruction_set_gives_the_same_bits(sealed: Packed, isa: str) -> None:
    rows = sealed.rows(500)
    with sealed.open(64, isa=isa) as table:
        assert np.array_equal(table.lookup_rows(rows), sealed.values[rows])
    assert isa in ISAS


def test_tokens_are_looked_up_as_the_layout_hashes_them(sealed: Packed) -> None:
    ids = np.random.default_rng(3).integers(0, 500, 400)
    starts = np.array([0, 100, 101])
    expected = sealed.values[sealed.layout.rows(make_stream(ids, starts))]
    with sealed.open(50) as table:
        for tokens in (ids, ids.astype(np.uint16), ids.astype(np.int32), ids.tolist()):
            assert np.array_equal(table.lookup(tokens, starts), expected)
        assert np.array_equal(table.lookup(make_stream(ids, starts)), expected)
        assert not np.array_equal(table.lookup(ids), expected)  # one document
        assert table.lookup(np.empty(0, np.int64)).shape == (0, 8, 16)
        with native.History(500) as history, native.Rows(sealed.layout) as rows:
            history.append(ids[:100])
            assert np.array_equal(table.lookup_rows(history.rows(rows)), expected[:100])


def test_bf16_rows_are_decoded(folder: Path) -> None:
    """Nothing packs them yet, so the pages are made here."""
    layout = flat(4_000, Shape(dim=20, row_format="bf16"))
    bits = np.random.default_rng(2).integers(0, 2**15, (layout.row_count, 20), dtype=np.uint16)
    pages = np.zeros((layout.page_count, 4096), np.uint8)
    for row in range(layout.row_count):
        at = layout.address(row)
        pages.reshape(-1)[at : at + 40] = bits[row].view(np.uint8)
    path = folder / "bf16"
    write_pages(path, layout, pages)
    rows = np.stack([np.arange(100), layout.groups[1].row_base + np.arange(100)], axis=1)
    with Table.open(path) as table:
        got = table.lookup_rows(rows)
    assert np.array_equal(got.view(np.uint32), bits[rows].astype(np.uint32) << 16)


def write_pages(path: Path, layout: Layout, pages: np.ndarray) -> None:
    from pagegram_io.pack import trained_header

    header = trained_header(layout)
    if header.sealed:
        seal_pages(pages.reshape(-1), 0, layout.page_bytes)
    checks = b"" if header.sealed else b"".join(crc32c(page).to_bytes(4, "little") for page in pages)
    path.write_bytes(encode_header(header) + pages.tobytes() + checks)


# ---- C32: reads are the simulated misses ----


@settings(max_examples=40)
@given(data=st.data())
def test_reads_are_the_simulators_and_the_twins(tables: list[Packed], data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(tables))
    least = table.page_columns
    pages = data.draw(st.integers(least, max(least, table.layout.page_count + 2)))
    rows = table.rows(data.draw(st.integers(1, 60)), data.draw(st.integers(0, 5)), data.draw(st.sampled_from([4, 300])))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    twin = reference_table.Table(table.path, pages)
    expected = twin.lookup(rows)
    with table.open(pages) as opened:
        parts = [opened.lookup_rows(part) for part in np.split(rows, cuts)]
        stats = opened.stats()
    assert np.array_equal(np.concatenate(parts), expected)
    assert stats.reads == twin.reads == simulated(table, rows, pages)
    assert (stats.accesses, stats.hits, stats.evictions) == (twin.accesses, twin.accesses - twin.reads, twin.evictions)
    assert stats.lookups == len(rows) and stats.bytes_read == stats.reads * table.layout.page_bytes
    assert stats.resident_pages == len(twin.cache) and stats.errors == 0


@pytest.mark.parametrize("share", [0.01, 0.2, 2.0])
def test_long_streams_are_read_as_simulated_with_any_cache(tables: list[Packed], share: float) -> None:
    for table in tables:
        pages = max(table.page_columns, int(table.layout.page_count * share))
        rows = table.rows(20_000, below=5000)
        with table.open(pages, buffered=True) as opened:  # the device path has its own tests; this one is long
            opened.lookup_rows(rows[:1])
            opened.bytes_of_rows(rows[1:12_345])
            assert np.array_equal(opened.lookup_rows(rows[12_345:]), table.values[rows[12_345:]])
            assert opened.stats().reads == simulated(table, rows, pages), table.layout.label


def test_the_cache_renumbers_as_the_simulator_does(sealed: Packed) -> None:
    """1.6 million accesses use up the 4 * 60 + 2^20 positions of a cache that names its victims."""
    rows = sealed.rows(800_000, below=200)
    with sealed.open(60, buffered=True) as table:
        stored = table.bytes_of_rows(rows)
        assert table.stats().accesses == 1_600_000
        assert table.stats().reads == simulated(sealed, rows, 60)
    assert np.array_equal(decode_rows("nf4", stored[-500:].reshape(-1, 10), 16), sealed.values[rows[-500:].ravel()])


# ---- prefetch ----


@settings(max_examples=40)
@given(data=st.data())
def test_prefetched_tokens_are_accessed_once(tables: list[Packed], data: st.DataObject) -> None:
    """Any mixture of prefetches, lookups in other orders, and drops reads what the accesses alone would."""
    table = data.draw(st.sampled_from(tables))
    pages = data.draw(st.integers(table.page_columns, 4 * table.page_columns + 20))
    order: list[np.ndarray] = []  # the accesses that were made
    pending: list[tuple[np.ndarray, int]] = []
    with table.open(pages) as opened:
        for step in range(data.draw(st.integers(1, 10))):
            if pending and data.draw(st.booleans()):
                rows, done = pending.pop(data.draw(st.integers(0, len(pending) - 1)))
                order.append(rows[done:])
            else:
                rows = table.rows(data.draw(st.integers(1, 30)), seed=step)
                action = data.draw(st.sampled_from(["look", "ahead", "drop"]))
                if action != "look":
                    prefetch = opened.prefetch_rows(rows)
                    order.append(rows[: prefetch.token_count])
                    if action == "drop":
                        prefetch.close()
                    else:
                        pending.append((rows, prefetch.token_count))
                    continue
                order.append(rows)
            assert np.array_equal(opened.lookup_rows(rows), table.values[rows])
        accessed = np.concatenate(order)
        if len(accessed):
            assert opened.stats().reads == simulated(table, accessed, pages)
        assert opened.stats().accesses == sum(
            int((table.layout.pages(o) != native.NO_PAGE).sum()) for o in order if len(o)
        )


def test_a_prefetch_pins_until_it_is_looked_up_dropped_or_the_table_closed(sealed: Packed) -> None:
    ids = np.arange(20)
    with sealed.open(200) as table:  # prefetches may pin 50 places, and a token takes two
        first = table.prefetch(ids)
        assert first.token_count == 20
        again = table.prefetch(ids)  # accesses a second time, and matches the second lookup
        assert again.token_count == 5
        assert table.prefetch(ids + 1).token_count == 0
        assert table.stats().accesses == 50
        table.lookup(ids)
        assert (first.closed, again.closed) == (True, False) and table.stats().accesses == 50
        table.rows(ids)
        assert again.closed and table.stats().accesses == 80
        kept = table.prefetch(ids)
        assert kept.token_count == 20
        kept.close()
        table.lookup(ids)
        assert table.stats().accesses == 160
        left = table.prefetch(ids)
    with pytest.raises(ValueError, match="closed"):
        table.prefetch(ids)
    del left, first, again, kept
    gc.collect()


def test_a_prefetch_is_read_by_the_tables_own_thread(sealed: Packed) -> None:
    """So another thread that needs its pages is served, whatever its maker does meanwhile."""
    ids = np.arange(50)
    with sealed.open(1000) as table:
        before = thread_count()
        table.prefetch(ids)
        assert thread_count() > before
        got: list[np.ndarray] = []
        other = threading.Thread(target=lambda: got.append(table.lookup_rows(sealed.rows(50, seed=9))))
        other.start()
        other.join(30)
        assert np.array_equal(got[0], sealed.values[sealed.rows(50, seed=9)])


# ---- out ----


def test_out_may_be_strided_but_not_of_another_kind(tables: list[Packed]) -> None:
    table = tables[-2]
    rows, width = table.rows(100), table.layout.row_width
    shape = (100, table.layout.column_count)
    expected = table.values[rows]
    twin = reference_table.Table(table.path, table.layout.page_count)
    with table.open(table.layout.page_count) as opened:
        wide = np.full((200, shape[1] * 2, width + 3), 7, np.float32)
        view = wide[::-2, ::2, 1 : width + 1]
        assert opened.lookup_rows(rows, view) is view
        assert np.array_equal(view, expected)
        view[:] = 7
        assert (wide == 7).all()  # nothing beside it was touched
        swapped = np.empty((shape[1], 100, width), np.float32).transpose(1, 0, 2)
        assert np.array_equal(opened.lookup_rows(rows, swapped), expected)
        stored = np.zeros((100, shape[1], table.layout.row_bytes + 5), np.uint8)
        assert np.array_equal(opened.bytes_of_rows(rows, stored[:, :, 5:]), twin.row_bytes(rows))
        assert (stored[:, :, :5] == 0).all()
        read_only = np.empty((*shape, width), np.float32)
        read_only.flags.writeable = False
        odd = np.zeros(100 * shape[1] * width * 4 + 1, np.uint8)[1:].view(np.float32).reshape(*shape, width)
        for wrong in (np.empty((*shape, width), np.float64), np.empty((99, shape[1], width), np.float32), read_only,
                      np.empty((*shape, 2 * width), np.float32)[:, :, ::2], odd):  # fmt: skip
            with pytest.raises(ValueError, match="out is|multiples of 4 bytes"):
                opened.lookup_rows(rows, wrong)


# ---- damage ----


@pytest.fixture
def copies(folder: Path) -> Iterator[Callable[[Packed], Packed]]:
    made: list[Path] = []

    def copy(table: Packed) -> Packed:
        path = folder / f"copy-{len(made)}"
        shutil.copy(table.path, path)
        made.append(path)
        return Packed(path, table.layout, table.values)

    yield copy
    for path in made:
        path.unlink(missing_ok=True)


def page_at(table: Packed, page: int) -> int:
    return read_header(table.path).data_byte + page * table.layout.page_bytes


def overwrite(path: Path, at: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        assert os.pwrite(descriptor, data, at) == len(data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rows_on(table: Packed, page: int) -> np.ndarray:
    """A token whose pages are all of group 0's unit on that page, and page 0 of the other groups."""
    rows = table.rows(3000)
    [found] = np.nonzero((table.layout.pages(rows) == page).any(axis=1))
    return rows[found[:1]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("which", [0, 4, 8, 12, 17])
def test_a_flipped_bit_fails_the_call_by_page_and_file_and_is_read_again(
    tables: list[Packed], copies: Callable[[Packed], Packed], engine: str, which: int
) -> None:
    table = copies(tables[which])
    page = int(table.layout.pages(table.rows(30))[7, 0])
    bad, begin = rows_on(table, page), page_at(table, page)
    before = table.path.read_bytes()[begin : begin + 512]
    overwrite(table.path, begin + 3, bytes([before[3] ^ 16]))
    with table.open(table.layout.page_count, engine=engine) as opened:
        for attempt in range(1, 3):
            with pytest.raises(FormatError, match=rf"^{table.path}: page {page} is damaged: its bytes do not match"):
                opened.lookup_rows(bad)
            assert opened.stats().errors_corrupt == attempt
        opened.prefetch_rows(bad)
        with pytest.raises(FormatError, match=rf"page {page} is damaged"):
            opened.bytes_of_rows(bad)
        assert opened.stats().lookups == 0
        overwrite(table.path, begin + 3, before[3:4])
        assert np.array_equal(opened.lookup_rows(bad), table.values[bad])
        assert opened.stats().errors == opened.stats().errors_corrupt == 3


def test_swapped_pages_are_named(sealed: Packed, tables: list[Packed], copies: Callable[[Packed], Packed]) -> None:
    for original, text in ((sealed, "page 5 holds page 9: misplaced"), (tables[5], "page 5 is damaged")):
        table = copies(original)
        content, size = table.path.read_bytes(), table.layout.page_bytes
        five, nine = page_at(table, 5), page_at(table, 9)
        overwrite(table.path, five, content[nine : nine + size])
        overwrite(table.path, nine, content[five : five + size])
        with table.open(64) as opened, pytest.raises(FormatError, match=text):
            opened.lookup_rows(rows_on(table, 5))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_is_cut_while_it_is_open_is_named(
    sealed: Packed, copies: Callable[[Packed], Packed], engine: str
) -> None:
    table = copies(sealed)
    rows = table.rows(200)
    with table.open(10, engine=engine) as opened:
        last = int(table.layout.pages(rows)[:, 1].max())
        os.truncate(table.path, page_at(table, last) + 100)
        with pytest.raises(OSError, match=f"page {last} cannot be read whole: the file has become shorter") as caught:
            opened.lookup_rows(rows_on(table, last))
        assert caught.value.errno == errno.EIO and caught.value.filename == str(table.path)
        assert opened.stats().errors_short == 1
        good = rows[(table.layout.pages(rows) < last).all(axis=1)]
        assert np.array_equal(opened.lookup_rows(good), table.values[good])


def test_a_file_that_is_replaced_stays_the_one_that_was_opened(
    sealed: Packed, copies: Callable[[Packed], Packed]
) -> None:
    table = copies(sealed)
    rows = table.rows(300)
    with table.open(20) as opened:
        opened.lookup_rows(rows[:10])
        write_pattern_file(table.path.with_suffix(".new"), table.layout)
        os.replace(table.path.with_suffix(".new"), table.path)
        got: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: got.append(opened.lookup_rows(rows)))  # opens a reader of its own
        thread.start()
        thread.join()
        assert np.array_equal(got[0], table.values[rows])
    with table.open(20) as pattern:
        assert pattern.rows(np.arange(5)).shape == (5, 8, 10)
        with pytest.raises(ValueError, match="a pattern made to be measured, no trained rows"):
            pattern.lookup(np.arange(5))


@pytest.mark.fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_device_that_fails_is_named_and_one_that_dawdles_is_asked_once(
    sealed: Packed, tmp_path: Path, engine: str
) -> None:
    layout = sealed.layout
    rows = sealed.rows(3000)
    pages = layout.pages(rows)
    bad, slow = (int(page) for page in np.unique(pages[:, 0])[:2])
    faults = {bad: {"fail": "EIO"}, slow: {"delay_s": 0.5}}
    good = rows[(pages[:, 0] == slow)][:1]
    with faulty_file(tmp_path, faults, pages=layout.page_count) as mount:  # sealed pages without a header
        descriptor = os.open(mount.file, os.O_RDONLY)
        file = TableFile(
            str(mount.file), descriptor, layout, data_byte=0, page_checks=None, cache_bytes=1 << 20, depth=8,
            engine=engine, flags=(), isa="auto",
        )  # fmt: skip
        os.close(descriptor)
        out = np.empty((4, 1, 8, 10), np.uint8)
        with Client(file) as client, pytest.raises(OSError, match=f"page {bad} cannot be read: Input/output") as caught:
            client.lookup(rows[pages[:, 0] == bad][:1], out[0])
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(mount.file))

        def look(into: np.ndarray) -> None:
            with Client(file) as own:
                own.lookup(good, into)

        threads = [threading.Thread(target=look, args=(part,)) for part in out]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mount.counts()[slow] == 1 and (out == out[0]).all()
        assert (file.stats().errors_eio, file.stats().errors) == (1, 1)
        file.close()


# ---- refusals (C18) ----


def test_what_is_no_table_for_lookups_is_refused_in_one_line(
    folder: Path, sealed: Packed, copies: Callable[[Packed], Packed]
) -> None:
    cut = copies(sealed)
    os.truncate(cut.path, cut.path.stat().st_size - 1)
    other = copies(sealed)
    overwrite(other.path, 0, other.path.read_bytes()[:300].replace(b'_version": "1"', b'_version": "9"'))
    pattern, fp8 = folder / "pattern", folder / "fp8"
    write_pattern_file(pattern, 10)
    write_pattern_file(fp8, flat(100_000, Shape(row_format="fp8")))
    refused: list[tuple[Path, dict[str, object], type, str]] = [
        (cut.path, {}, FormatError, "it was cut or grew"),
        (other.path, {}, FormatError, "version '9'; this program reads version 1"),
        (pattern, {}, ValueError, "a pattern of pages without a layout"),
        (fp8, {}, ValueError, "rows of fp8 are not decoded here; tables of nf4, fp16, bf16, fp32 are"),
        (folder / "none", {}, FileNotFoundError, "No such file"),
        (folder, {}, FormatError, "not a regular file"),
        (sealed.path, {"cache_bytes": 4096}, ValueError, "holds 1 pages, fewer than the 2 that one lookup can touch"),
        (sealed.path, {"cache_bytes": -1}, ValueError, "negative"),
        (sealed.path, {"depth": 0}, ValueError, "depth 0"),
        (sealed.path, {"engine": "magic"}, ValueError, "engine 'magic' is not known"),
        (sealed.path, {"engine": "nvme"}, ValueError, "NVMe character device"),
        (sealed.path, {"isa": "mmx"}, ValueError, "instruction set 'mmx'"),
        (sealed.path, {"vocabulary": 0}, ValueError, "a vocabulary of 0 ids"),
    ]
    gc.collect()
    before = open_descriptors()
    for path, options, kind, text in refused:
        with pytest.raises(kind, match=text) as caught:
            Table.open(path, **options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    gc.collect()
    assert open_descriptors() == before


def test_wrong_tokens_and_rows_are_refused_before_any_access(sealed: Packed) -> None:
    with sealed.open(50, vocabulary=100) as table:
        for tokens, text in (
            (np.array([5, 100]), "token id 100 is not in 0 to 99"),
            (np.array([5, 100], np.uint16), "100"),
            (np.array([-1]), "token id -1"),
            (np.array([1.0]), "integer ids"),
            (np.array([[1]]), "integer ids"),
        ):
            with pytest.raises(ValueError, match=text):
                table.lookup(tokens)
            with pytest.raises(ValueError, match=text):
                table.prefetch(tokens)
        with pytest.raises(ValueError, match="document_starts"):
            table.lookup(np.arange(5), np.array([0, 7]))
        with pytest.raises(ValueError, match="give no document_starts"):
            table.lookup(make_stream([1, 2]), np.array([0]))
        for rows, text in (
            (np.zeros((2, 3), np.uint64), r"rows are \[tokens, 8\]"),
            (np.full((1, 8), sealed.layout.row_count), "is not in group 0"),
            (np.full((1, 8), -1), "negative"),
        ):
            with pytest.raises(ValueError, match=text):
                table.lookup_rows(rows)
            with pytest.raises(ValueError, match=text):
                table.prefetch_rows(rows)
        assert table.stats().accesses == 0


# ---- threads, forks, ends ----


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pages", [8, 40, 5000])
def test_threads_share_one_cache(tables: list[Packed], engine: str, pages: int) -> None:
    for table in (tables[2], tables[11], tables[-2]):
        pages = max(pages, table.page_columns)
        faults: list[BaseException] = []
        with table.open(pages, engine=engine) as opened:

            def work(seed: int, table: Packed = table, opened: Table = opened, faults: list = faults) -> None:
                try:
                    for turn in range(12):
                        rows = table.rows(1 + (seed * 7 + turn * 13) % 90, seed=seed * 100 + turn)
                        if turn % 3 == seed % 3:
                            opened.prefetch_rows(rows)
                        ahead = opened.prefetch_rows(rows[:3]) if turn % 4 == 0 else None
                        assert np.array_equal(opened.lookup_rows(rows), table.values[rows])
                        if ahead is not None:
                            ahead.close()
                except BaseException as error:
                    faults.append(error)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not faults, faults[0]
            stats = opened.stats()
            assert stats.accesses == stats.hits + stats.reads and stats.errors == 0
            assert stats.resident_pages == stats.reads - stats.evictions <= stats.capacity_pages
            if pages >= table.layout.page_count:
                assert stats.reads == stats.resident_pages  # a page in flight is waited for, not read again


def test_threads_and_tables_leave_no_reader_behind(sealed: Packed) -> None:
    gc.collect()
    before = (open_descriptors(), thread_count())
    for engine in ENGINES:
        with sealed.open(100, engine=engine) as table:
            for turn in range(3):
                threads = [
                    threading.Thread(target=table.lookup_rows, args=(sealed.rows(40, seed=10 * turn + i),))
                    for i in range(4)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            table.prefetch_rows(sealed.rows(20, seed=77))
        del table, threads, thread
        gc.collect()
    assert (open_descriptors(), thread_count()) == before


def test_a_table_may_be_closed_while_other_threads_use_it(sealed: Packed) -> None:
    rows = sealed.rows(3000, below=3000)
    for _ in range(5):
        table = sealed.open(4)
        outcomes: list[object] = []

        def work(table: Table = table, outcomes: list[object] = outcomes) -> None:
            try:
                while True:
                    assert np.array_equal(table.lookup_rows(rows[:200]), sealed.values[rows[:200]])
            except ValueError as error:
                outcomes.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        table.prefetch_rows(rows[:5])
        table.close()
        table.close()
        for thread in threads:
            thread.join(60)
        assert outcomes == [f"{sealed.path}: this table was closed"] * 3


def test_a_fork_refuses_and_harms_nothing(sealed: Packed) -> None:
    rows = sealed.rows(100)
    with sealed.open(10) as table:
        table.prefetch_rows(rows[:1])
        table.lookup_rows(rows)
        program = f"""
import os, sys
import numpy as np
from pagegram_io.table import Table
table = Table.open({str(sealed.path)!r}, cache_bytes=1 << 20)
table.prefetch(np.arange(5))
table.lookup(np.arange(100))
child = os.fork()
if child == 0:
    try:
        table.lookup(np.arange(5))
    except ValueError as error:
        print(error, flush=True)
    table.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(table.lookup(np.arange(100)).shape)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            "a table belongs to the process that opened it; open it again after a fork", "(100, 8, 16)"
        ]  # fmt: skip


def test_killed_in_the_middle_it_leaves_nothing_to_repair(sealed: Packed) -> None:
    before = (sealed.path.read_bytes(), sorted(sealed.path.parent.iterdir()))
    program = f"""
import numpy as np
from pagegram_io.table import Table
table = Table.open({str(sealed.path)!r}, cache_bytes=1 << 15)
print("reading", flush=True)
while True:
    table.lookup(np.arange(5000))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "reading\n"
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert (sealed.path.read_bytes(), sorted(sealed.path.parent.iterdir())) == before


# ---- what it tells ----


def test_stats_and_record_say_what_was_done(sealed: Packed) -> None:
    with Table.open(sealed.path, 100 * 4096, 16, "psync", buffered=True) as table:
        table.lookup(np.arange(30))
        stats, record = table.stats(), table.record()
        assert pickle.loads(pickle.dumps(stats)) == stats
        with pytest.raises(AttributeError):
            stats.reads = 3  # type: ignore[misc]
        assert (stats.lookups, stats.prefetches, stats.capacity_pages) == (30, 0, 100)
        assert stats.waiting_ns > 0
        assert to_dict(record) == record
        told = {"kind": "table", "target": "sealed", "layout": "pagegram", "slots": 4, "engine": "psync",
                "direct": False, "depth": 16, "cache_bytes": 409_600, "lookups": 30, "reads": stats.reads,
                "reads_per_token": stats.reads / 30, "row_format": "nf4", "content": "trained"}  # fmt: skip
        assert told.items() <= record.items()
        assert {"version", "kernel", "cpu", "time", "errors_corrupt", "evictions", "waiting_ns"} <= set(record)
    with pytest.raises(ValueError, match="this table was closed"):
        table.stats()

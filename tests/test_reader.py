"""The device reader on real files: what it reads is what is there, and what it counts is what happened."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.targets import (
    filesystem_of,
    open_descriptors,
    plain_pages,
    resident_bytes,
    takes_direct,
    thread_count,
    write_dense,
)

from pagegram_io.native_reader import (
    STATUS_CORRUPT,
    Reader,
    aligned_bytes,
    clock_ns,
    crc32c,
    histogram_lows,
    seal_pages,
    verify_pages,
)

# A shared disk stalls at times for longer than any bound that would still catch a fault; a fault fails every time.
pytestmark = pytest.mark.flaky(reruns=2, reruns_delay=2)

PAGES = 16384  # 64 MiB
ENGINES = ("io_uring", "psync")
SECOND_NS = 10**9


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder where O_DIRECT works: pytest's own, or one under build/ where that is a tmpfs."""
    own = tmp_path_factory.mktemp("reader")
    if takes_direct(own) and filesystem_of(own) != "tmpfs":
        yield own
        return
    beside = Path(__file__).parents[1] / "build" / f"test-reader-{os.getpid()}"
    beside.mkdir(parents=True)
    try:
        if not takes_direct(beside):
            pytest.skip(f"no O_DIRECT on {filesystem_of(own)} or {filesystem_of(beside)}")
        yield beside
    finally:
        shutil.rmtree(beside)


@pytest.fixture(scope="session")
def dense(folder: Path) -> Path:
    return write_dense(folder / "dense", pages=PAGES)


def some_pages(count: int, *, below: int = PAGES, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, count, dtype=np.uint64)


def read_all(reader: Reader, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    memory = aligned_bytes(len(pages) * reader.page_bytes)
    status = reader.read(pages, memory)
    return status, memory.reshape(len(pages), reader.page_bytes)


# ---- bytes ----


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("depth", [1, 2, 3, 8, 33, 64])
@pytest.mark.parametrize("page_bytes", [512, 4096, 16384])
def test_bytes_equal_pread(dense: Path, engine: str, depth: int, page_bytes: int) -> None:
    pages = some_pages(200, below=PAGES * 4096 // page_bytes, seed=depth)
    with Reader(dense, engine=engine, depth=depth, page_bytes=page_bytes) as reader:
        info = reader.info()
        assert (info.engine, info.direct, info.why) == (engine, True, "asked for")
        assert info.page_count == PAGES * 4096 // page_bytes and info.target_bytes == PAGES * 4096
        status, data = read_all(reader, pages)
        assert (status == page_bytes).all()
        assert np.array_equal(data, plain_pages(dense, pages, page_bytes=page_bytes))
        stats = reader.stats()
    assert (stats.reads, stats.bytes, stats.errors, stats.retries) == (200, 200 * page_bytes, 0, 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("flags", [("buffered",), ("no_fixed",), ("clock_each",), ("buffered", "no_fixed", "verify")])
def test_flags_change_no_byte(dense: Path, engine: str, flags: tuple[str, ...]) -> None:
    pages = some_pages(300)
    with Reader(dense, engine=engine, depth=16, flags=flags) as reader:
        info = reader.info()
        assert info.direct == ("buffered" not in flags)
        assert info.fixed_file == info.fixed_buffers == (engine == "io_uring" and "no_fixed" not in flags)
        status, data = read_all(reader, pages)
    assert (status == 4096).all() and np.array_equal(data, plain_pages(dense, pages))


def test_sqpoll_reads_the_same(dense: Path) -> None:
    pages = some_pages(1000)
    with Reader(dense, engine="io_uring", depth=32, flags=("sqpoll",)) as reader:
        assert "SQPOLL" in reader.info().ring_flags
        status, data = read_all(reader, pages)
        assert reader.pump(pages) == 1000 and reader.drain() == 0
        reader.cancel()
    assert (status == 4096).all() and np.array_equal(data, plain_pages(dense, pages))


def test_polled_completions_read_the_same_or_say_that_they_cannot(dense: Path) -> None:
    """Support shows only in the first completion: all reads are good, or all say EOPNOTSUPP; none hangs."""
    pages = some_pages(64)
    with Reader(dense, engine="io_uring", depth=8, flags=("iopoll",)) as reader:
        assert "IOPOLL" in reader.info().ring_flags
        status, data = read_all(reader, pages)
        if (status == -errno.EOPNOTSUPP).all():
            stats = reader.stats()
            assert (stats.reads, stats.errors_other, stats.first_error_status) == (0, 64, -errno.EOPNOTSUPP)
            return
        assert (status == 4096).all() and np.array_equal(data, plain_pages(dense, pages))
        memory = aligned_bytes(8 * 4096).reshape(8, 4096)  # nothing interrupts, so poll has to ask the device
        assert reader.submit(pages[:8], memory, np.arange(8)) == 8
        ended, until = [], time.monotonic() + 10
        while len(ended) < 8 and time.monotonic() < until:
            ended += reader.poll()
        assert sorted(ended) == [(tag, 4096) for tag in range(8)]


@pytest.mark.parametrize("engine", ENGINES)
def test_base_and_span(dense: Path, engine: str) -> None:
    options = {"engine": engine, "depth": 4, "base_byte": 5 * 4096, "span_bytes": 100 * 4096}
    with Reader(dense, **options) as reader:
        assert reader.info().page_count == 100
        pages = np.array([0, 99, 50])
        status, data = read_all(reader, pages)
        assert (status == 4096).all() and np.array_equal(data, plain_pages(dense, pages, base_byte=5 * 4096))
        with pytest.raises(ValueError, match="page 100 is not in a target of 100 pages"):
            read_all(reader, np.array([0, 100]))
        assert reader.in_flight == 0 and reader.stats().reads == 3
    with Reader(dense, **{**options, "span_bytes": 10_000}) as reader:  # no page reaches beyond the span
        assert reader.info().page_count == 2
    with Reader(dense, engine=engine, base_byte=5 * 4096) as reader:
        assert reader.info().page_count == PAGES - 5
    for bad in ({"base_byte": 100}, {"base_byte": PAGES * 4096}, {"span_bytes": PAGES * 4096}, {"span_bytes": 4095}):
        with pytest.raises(ValueError, match=str(dense)):
            Reader(dense, **{**options, **bad})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tail_bytes", [1, 511, 512, 4095])
def test_tail_page_of_an_odd_size(folder: Path, engine: str, tail_bytes: int) -> None:
    path = write_dense(folder / f"odd-{engine}-{tail_bytes}", pages=9, tail_bytes=tail_bytes)
    for flags in ((), ("buffered",)):
        with Reader(path, engine=engine, depth=3, flags=flags) as reader:
            assert reader.info().page_count == 10
            memory = aligned_bytes(12 * 4096)
            memory[:] = 0xEE
            status = reader.read(np.array([9, 0, 9, 8]), memory[: 4 * 4096])
            assert status.tolist() == [tail_bytes, 4096, tail_bytes, 4096]
            wanted = plain_pages(path, np.array([9, 0, 9, 8]))
            assert np.array_equal(memory[: 4 * 4096].reshape(4, 4096), wanted)  # zeros after the tail
            assert (memory[4 * 4096 :] == 0xEE).all()
            stats = reader.stats()
            assert (stats.retries, stats.errors, stats.bytes) == (0, 0, 2 * (4096 + tail_bytes))


@pytest.mark.parametrize("engine", ENGINES)
def test_registered_memory(dense: Path, engine: str) -> None:
    """A caller's region, reads inside it, outside it and half in it."""
    region = aligned_bytes(64 * 4096)
    whole = region[: 63 * 4096 + 2048]  # its last page is registered only in part
    with Reader(dense, engine=engine, depth=16, memory=whole) as reader:
        assert reader.info().fixed_buffers == (engine == "io_uring")
        pages = some_pages(64)
        assert (reader.read(pages, region) == 4096).all()
        assert np.array_equal(region.reshape(64, 4096), plain_pages(dense, pages))
        status, data = read_all(reader, pages[:20])
        assert (status == 4096).all() and np.array_equal(data, plain_pages(dense, pages[:20]))
    small = aligned_bytes(2 * 4096)
    with Reader(dense, engine=engine, depth=8, memory=small) as reader:
        with pytest.raises(ValueError, match="fewer than the 8 pages of the depth"):
            reader.pump(pages)  # it would write past the end
        assert (reader.read(pages[:2], small) == 4096).all()
    with pytest.raises(ValueError, match="multiple of 4096"):
        Reader(dense, engine=engine, memory=region[512:])
    with pytest.raises(ValueError, match="uint8"):
        Reader(dense, engine=engine, memory=np.zeros(4096))


def test_two_engines_and_another_library_agree(dense: Path) -> None:
    """The same pages through PyPI liburing's own ring, byte for byte."""
    if "avx512f" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("PyPI liburing executes AVX-512 and this CPU has no avx512f")
    pytest.importorskip("liburing", reason="PyPI liburing is not installed")
    pages = some_pages(256, seed=11)
    other = read_with_liburing(dense, pages)
    for engine in ENGINES:
        with Reader(dense, engine=engine, depth=64) as reader:
            status, data = read_all(reader, pages)
        assert (status == 4096).all() and np.array_equal(data, other)
    assert np.array_equal(other, plain_pages(dense, pages))


def read_with_liburing(path: Path, pages: np.ndarray) -> np.ndarray:
    import liburing

    # It reads into bytearrays alone and O_DIRECT takes only some of them, so enough are made to choose from.
    made = [bytearray(4096) for _ in range(2000)]
    buffers = [one for one in made if ctypes.addressof(ctypes.c_char.from_buffer(one)) % 512 == 0][:8]
    assert len(buffers) == 8
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    ring, cqe = liburing.Ring(), liburing.Cqe()
    liburing.io_uring_queue_init(8, ring)
    out = np.empty((len(pages), 4096), np.uint8)
    try:
        for first in range(0, len(pages), 8):
            batch = pages[first : first + 8]
            for page, buffer in zip(batch, buffers, strict=True):
                sqe = liburing.io_uring_get_sqe(ring)
                liburing.io_uring_prep_read(sqe, descriptor, buffer, int(page) * 4096)
                sqe.user_data = int(page) + 1
            liburing.io_uring_submit(ring)
            for _ in batch:
                liburing.io_uring_wait_cqe(ring, cqe)
                assert cqe[0].res == 4096
                liburing.io_uring_cq_advance(ring, 1)
            out[first : first + 8] = np.stack([np.frombuffer(buffer, np.uint8) for buffer in buffers])
    finally:
        liburing.io_uring_queue_exit(ring)
        os.close(descriptor)
    return out


# ---- pages that say which they are ----


@pytest.mark.parametrize("engine", ENGINES)
def test_verify_tells_damage_from_none(folder: Path, engine: str) -> None:
    path = write_dense(folder / f"damaged-{engine}", pages=64)
    data = np.fromfile(path, np.uint8).reshape(64, 4096)
    data[7, 1234] ^= 0x10  # a flipped bit
    data[[20, 21]] = data[[21, 20]]  # two sound pages in each other's place
    data[33] = 0  # never written
    data[40, 2048:] = data[41, 2048:]  # torn
    data[50, 4095] ^= 1  # the checksum itself
    data.tofile(path)
    bad = [7, 20, 21, 33, 40, 50]
    assert np.flatnonzero(~verify_pages(data.reshape(-1), 0, 4096)).tolist() == bad
    with Reader(path, engine=engine, depth=8, flags=("verify",)) as reader:
        status, _ = read_all(reader, np.arange(64))
        stats = reader.stats()
    assert np.flatnonzero(status == STATUS_CORRUPT).tolist() == bad
    assert (np.delete(status, bad) == 4096).all()
    assert (stats.reads, stats.errors_corrupt, stats.errors, stats.retries) == (58, 6, 6, 0)
    assert stats.first_error_byte // 4096 in bad and stats.first_error_status == STATUS_CORRUPT
    with Reader(path, engine=engine, depth=8) as reader:  # not asked for: bytes as they are
        status, read = read_all(reader, np.arange(64))
    assert (status == 4096).all() and np.array_equal(read, data)


def test_seals() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43  # RFC 3720, B.4
    memory = aligned_bytes(4 * 4096)
    seal_pages(memory, 2**32 + 5, 4096)
    assert verify_pages(memory, 5, 4096).all()  # the low 32 bits of the number are kept
    assert not verify_pages(memory, 6, 4096).any()
    page = memory[:4096]
    assert int.from_bytes(page[4088:4092].tobytes(), "little") == 5
    assert int.from_bytes(page[4092:].tobytes(), "little") == crc32c(page[:4092])


# ---- submit, poll, cancel ----


@pytest.mark.parametrize("engine", ENGINES)
def test_submit_and_poll_by_eventfd(dense: Path, engine: str) -> None:
    depth, count = 16, 400
    pages = some_pages(count)
    memory = aligned_bytes(count * 4096).reshape(count, 4096)
    with Reader(dense, engine=engine, depth=depth) as reader:
        waiting = select.poll()
        waiting.register(reader.eventfd(), select.POLLIN)
        assert reader.poll() == [] and waiting.poll(0) == []
        started, statuses = 0, {}
        while len(statuses) < count:
            if started < count:
                tags = np.arange(started, count, dtype=np.uint64) + 10**15
                taken = reader.submit(pages[started:], memory[started:], tags)
                assert 0 <= taken <= depth
                started += taken
                assert reader.in_flight <= depth
            assert waiting.poll(10_000), "the eventfd never became readable"
            for tag, status in reader.poll(5):  # fewer than there may be: the rest signals again
                assert tag not in statuses
                statuses[tag] = status
        assert reader.in_flight == 0 and reader.poll() == []
        assert reader.stats().reads == count
    assert statuses == {10**15 + i: 4096 for i in range(count)}
    assert np.array_equal(memory, plain_pages(dense, pages))


@pytest.mark.parametrize("engine", ENGINES)
def test_submit_takes_no_more_than_depth_until_polled(dense: Path, engine: str) -> None:
    memory = aligned_bytes(16 * 4096).reshape(16, 4096)
    with Reader(dense, engine=engine, depth=8) as reader:
        assert reader.submit(np.arange(16), memory, np.arange(16)) == 8
        until = time.monotonic() + 10
        while reader.in_flight and time.monotonic() < until:
            assert reader.submit(np.arange(16), memory, np.arange(16)) == 0
        assert reader.submit(np.arange(16), memory, np.arange(16)) == 0  # ended, but nobody has been told
        with pytest.raises(OSError) as blocked:
            reader.read(np.arange(1), memory[0])
        assert blocked.value.errno == errno.EBUSY
        assert len(reader.poll(3)) == 3
        assert reader.submit(np.arange(16), memory, np.arange(16)) == 3
        ended: list[tuple[int, int]] = []
        while len(ended) < 8 and time.monotonic() < until:
            ended += reader.poll()
        assert len(ended) == 8 and all(status == 4096 for _, status in ended)
        status, _ = read_all(reader, np.arange(20))  # and the blocking face works again
        assert (status == 4096).all()


def test_submit_refuses_what_would_write_elsewhere(dense: Path) -> None:
    memory = aligned_bytes(4 * 4096).reshape(4, 4096)
    tags = np.arange(4)
    with Reader(dense, depth=4) as reader:
        with pytest.raises(ValueError, match="is not in a target"):
            reader.submit(np.array([0, 1, 2, PAGES]), memory, tags)
        for place, tag in ((memory[:3], tags), (memory, tags[:3]), (memory.astype(np.uint16), tags), (memory[0], tags)):
            with pytest.raises(ValueError, match="as many tags and memory"):
                reader.submit(np.arange(4), place, tag)
        with pytest.raises(ValueError, match="contiguous"):
            reader.submit(np.arange(4), np.asfortranarray(memory), tags)
        with pytest.raises(ValueError, match="starts on a multiple of 4096"):
            reader.submit(np.arange(1), aligned_bytes(8192)[512 : 512 + 4096].reshape(1, 4096), tags[:1])
        with pytest.raises(ValueError, match="tags"):
            reader.submit(np.arange(1), memory[:1], np.array([2**64 - 1], np.uint64))
        with pytest.raises(ValueError, match="8 pages need memory|pages need memory of"):
            reader.read(np.arange(8), memory.reshape(-1))
        with pytest.raises(ValueError, match="a step ends at 5"):
            reader.steps(np.arange(4), np.array([2, 5]))
        assert reader.in_flight == 0 and reader.stats().reads == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_cancel_ends_everything_soon(dense: Path, engine: str) -> None:
    memory = aligned_bytes(64 * 4096).reshape(64, 4096)
    with Reader(dense, engine=engine, depth=64) as reader:
        for _ in range(20):
            assert reader.submit(some_pages(64), memory, np.arange(64)) == 64
            reader.cancel()
            reader.cancel()
            ended: dict[int, int] = {}
            until = time.monotonic() + 10
            while len(ended) < 64 and time.monotonic() < until:
                ended.update(reader.poll())
            assert sorted(ended) == list(range(64))
            assert set(ended.values()) <= {4096, -errno.ECANCELED, -errno.EINTR}
            assert reader.in_flight == 0
        status, data = read_all(reader, some_pages(100))
        assert (status == 4096).all() and np.array_equal(data, plain_pages(dense, some_pages(100)))


@pytest.mark.parametrize("engine", ENGINES)
def test_another_thread_is_refused(dense: Path, engine: str) -> None:
    """And leaves nothing behind: what it asked for is never read."""
    caught: list[OSError] = []
    memory = aligned_bytes(4 * 4096).reshape(4, 4096)
    with Reader(dense, engine=engine, depth=4) as reader:
        calls = [
            lambda: reader.read(np.arange(4), memory.reshape(-1)),
            lambda: reader.submit(np.arange(4), memory, np.arange(4)),
            lambda: reader.pump(np.arange(4)),
            lambda: reader.steps(np.arange(4), np.array([4])),
            reader.poll,
            reader.cancel,
            reader.drain,
        ]

        def elsewhere() -> None:
            for call in calls:
                try:
                    call()
                except OSError as error:
                    caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert [error.errno for error in caught] == [errno.EEXIST] * len(calls)
        assert "belongs to the thread that opened it" in str(caught[0])
        assert reader.in_flight == 0 and reader.stats().reads == 0 and not memory.any()
        status, _ = read_all(reader, np.arange(9))
        assert (status == 4096).all()


# ---- measuring ----


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("depth", [1, 16, 64])
def test_depth_is_sustained_and_agrees_with_littles_law(dense: Path, engine: str, depth: int) -> None:
    """C20, C21: reads in flight, by the clock, and as IOPS x mean latency.

    Threads hold less than they were given where there are far more of them than CPUs: they wait for one between reads.
    """
    least = (0.93 if engine == "io_uring" else 0.75) * depth
    pages = some_pages(200_000)
    with Reader(dense, engine=engine, depth=depth) as reader:
        reader.pump(pages[:1000])
        for _ in range(3):  # a busy machine may keep this thread from refilling for once
            reader.reset()
            began = clock_ns()
            started = reader.pump(pages, deadline_ns=began + SECOND_NS)
            stats, elapsed = reader.stats(), clock_ns() - began
            sustained = stats.depth_ns / elapsed
            if sustained >= least:
                break
        by_law = stats.reads / elapsed * (stats.latency_sum_ns / stats.reads)
        assert started > depth and stats.errors == 0
        assert least <= sustained <= depth * 1.001, (sustained, started)
        # At its ends a window cuts up to depth reads of one latency each out of the sum.
        ends = depth * stats.latency_max_ns / elapsed
        assert by_law == pytest.approx(sustained, rel=0.05, abs=ends)
        assert reader.drain() == 0 and reader.in_flight == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_and_histogram_add_up(dense: Path, engine: str) -> None:
    pages = some_pages(5000)
    with Reader(dense, engine=engine, depth=32) as reader:
        began = clock_ns()
        assert reader.pump(pages) == 5000
        assert reader.in_flight <= 32
        assert reader.drain() == 0
        elapsed = clock_ns() - began
        stats, counts, lows = reader.stats(), reader.histogram(), histogram_lows()
        assert (stats.reads, stats.bytes, stats.errors) == (5000, 5000 * 4096, 0)
        assert (stats.first_error_byte, stats.first_error_status) == (2**64 - 1, 0)
        assert int(counts.sum()) == 5000
        used = np.flatnonzero(counts)
        assert lows[used[0]] <= stats.latency_min_ns < lows[used[0] + 1]
        assert lows[used[-1]] <= stats.latency_max_ns < lows[used[-1] + 1]
        low = int((counts * lows).sum())
        assert low <= stats.latency_sum_ns <= low * (1 + 1 / 64) + 5000
        # Little's law is exact once nothing is in flight: both sides are the same reads in flight over time.
        assert stats.depth_ns == pytest.approx(stats.latency_sum_ns, rel=0.02)
        assert 0 < stats.depth_ns <= 32 * elapsed and stats.waits > 0
        reader.reset()
        stats = reader.stats()
        assert (stats.reads, stats.latency_sum_ns, stats.latency_min_ns, stats.depth_ns) == (0, 0, 2**64 - 1, 0)
        assert not reader.histogram().any()


@pytest.mark.parametrize("engine", ENGINES)
def test_pump_keeps_to_its_deadline(dense: Path, engine: str) -> None:
    pages = np.tile(some_pages(100_000), 20)
    with Reader(dense, engine=engine, depth=8) as reader:
        assert reader.pump(pages, deadline_ns=clock_ns()) == 0
        total = 0
        for _ in range(3):
            began = clock_ns()
            started = reader.pump(pages[total:], deadline_ns=began + SECOND_NS // 5)
            assert 0.2 <= (clock_ns() - began) / SECOND_NS < 0.5
            assert 0 < started < len(pages)
            total += started
            assert reader.in_flight <= 8  # left for the next pump
        assert reader.drain(deadline_ns=clock_ns() + 10 * SECOND_NS) == 0
        assert reader.stats().reads == total


@pytest.mark.parametrize("engine", ENGINES)
def test_steps(dense: Path, engine: str) -> None:
    """Steps of every size, none and more than the depth among them; each ends before the next begins."""
    sizes = np.array([1, 0, 4, 8, 9, 40, 2] * 10)
    ends = np.cumsum(sizes)
    pages = some_pages(int(ends[-1]))
    with Reader(dense, engine=engine, depth=8) as reader:
        began = clock_ns()
        times = reader.steps(pages, ends)
        elapsed = clock_ns() - began
        stats = reader.stats()
        assert len(times) == len(sizes) and reader.in_flight == 0
        assert (stats.reads, stats.errors) == (len(pages), 0)
        assert int(times.sum()) <= elapsed
        assert (times[sizes > 0] >= stats.latency_min_ns).all()
        assert times[sizes == 40].mean() > times[sizes == 1].mean()
        assert len(reader.steps(pages, ends, deadline_ns=clock_ns())) == 0
        with pytest.raises(ValueError, match="go backwards"):
            reader.steps(pages, np.array([5, 3]))


# ---- opening and closing ----


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_left_behind(dense: Path, engine: str) -> None:
    memory = aligned_bytes(32 * 4096).reshape(32, 4096)

    def once(ending: int) -> None:
        reader = Reader(dense, engine=engine, depth=32)
        if ending == 0:
            reader.pump(some_pages(64))  # closed with reads in flight
        elif ending == 1:
            reader.submit(some_pages(32), memory, np.arange(32))
        elif ending == 2:
            reader.read(some_pages(8), memory.reshape(-1))
        reader.close()
        reader.close()
        with pytest.raises(ValueError, match="was closed"):
            reader.poll()

    for i in range(20):
        once(i % 4)
    descriptors, resident, threads = open_descriptors(), resident_bytes(), thread_count()
    for i in range(200):
        once(i % 4)
    assert open_descriptors() == descriptors
    assert thread_count() <= threads
    assert resident_bytes() - resident < 8 << 20


def test_a_failed_open_leaves_nothing(folder: Path, dense: Path) -> None:
    descriptors = open_descriptors()
    (folder / "empty").write_bytes(b"")
    (folder / "small").write_bytes(bytes(100))
    os.mkfifo(folder / "pipe")
    cases = [
        (folder / "missing", {}, FileNotFoundError, "No such file"),
        (folder, {}, IsADirectoryError, "is a folder"),
        (folder / "pipe", {}, ValueError, "is neither a file nor a block device"),
        (Path("/dev/null"), {}, ValueError, "not an NVMe namespace"),
        (Path("/dev/null"), {"engine": "psync"}, ValueError, "is read with engine nvme"),
        (dense, {"engine": "nvme"}, ValueError, "character device such as /dev/ng0n1"),
        (folder / "empty", {}, ValueError, "holds 0 bytes"),
        (folder / "small", {}, ValueError, "holds 100 bytes, less than one page"),
        (dense, {"depth": 0}, ValueError, "depth 0 is not in 1 to 32768"),
        (dense, {"depth": 32769}, ValueError, "depth 32769"),
        (dense, {"page_bytes": 1000}, ValueError, "power of two"),
        (dense, {"engine": "psync", "depth": 5000}, ValueError, "at most 4096"),
        (dense, {"flags": ("iopoll", "buffered")}, ValueError, "cannot be buffered"),
    ]
    for path, options, kind, text in cases:
        with pytest.raises(kind) as caught:
            Reader(path, **options)
        assert text in str(caught.value) and str(path) in str(caught.value), caught.value
        assert "\n" not in str(caught.value)
    assert open_descriptors() == descriptors


@pytest.mark.parametrize("engine", ENGINES)
def test_every_descriptor_is_read_only(dense: Path, engine: str) -> None:
    """C20, by the kernel's own record of how the target is open."""
    for flags in ((), ("buffered",)):
        before = set(open_descriptors())
        with Reader(dense, engine=engine, depth=4, flags=flags) as reader:
            reader.pump(some_pages(100))
            ours = [fd for fd, name in open_descriptors().items() if fd not in before and name == str(dense)]
            assert len(ours) == 1
            info = Path(f"/proc/self/fdinfo/{ours[0]}").read_text()
            mode = int(next(line.split()[1] for line in info.splitlines() if line.startswith("flags:")), 8)
            assert mode & os.O_ACCMODE == os.O_RDONLY and mode & os.O_CLOEXEC
            assert bool(mode & os.O_DIRECT) == (not flags) == reader.info().direct


@pytest.mark.slow
def test_strace_sees_no_open_for_writing(dense: Path, tmp_path: Path) -> None:
    """C20, by strace: the target is opened O_RDONLY, and nothing at all is opened for writing."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    program = (
        "import sys, numpy as np\n"
        "from pagegram_io.native_reader import Reader\n"
        "for engine in ('io_uring', 'psync'):\n"
        "    with Reader(sys.argv[1], engine=engine, depth=4) as r:\n"
        "        r.pump(np.arange(200, dtype=np.uint64)); r.drain()\n"
    )
    log = tmp_path / "strace"
    command = ["strace", "-f", "-q", "-e", "trace=open,openat,openat2,creat", "-o", str(log)]
    ran = subprocess.run(
        [*command, sys.executable, "-B", "-c", program, str(dense)], capture_output=True, text=True, timeout=120
    )
    if ran.returncode and "PTRACE" in ran.stderr + (log.read_text() if log.exists() else ""):
        pytest.skip("strace may not trace here")
    assert ran.returncode == 0, ran.stderr
    lines = log.read_text().splitlines()
    targets = [line for line in lines if f'"{dense}"' in line]
    assert len(targets) == 2 and all("O_RDONLY" in line and "O_DIRECT" in line for line in targets)
    writing = [line for line in lines if "O_WRONLY" in line or "O_RDWR" in line or "O_CREAT" in line]
    assert writing == []


@pytest.mark.slow
def test_waiting_does_not_spin_for_ever(dense: Path) -> None:
    """The kernel can leave the flag that says "more to reap" standing when there is no more: seen where processors
    are scarce and steps end often, so more processes than processors read small steps here, each to a deadline."""
    program = (
        "import sys, numpy as np\n"
        "from pagegram_io.native_reader import Reader, clock_ns\n"
        f"pages = np.random.default_rng(1).integers(0, {PAGES}, 400_000, dtype=np.uint64)\n"
        "until = clock_ns() + 12 * 10**9\n"
        "with Reader(sys.argv[1], engine='io_uring', depth=16) as reader:\n"
        "    while clock_ns() < until:\n"
        "        reader.steps(pages[:4000], np.arange(16, 4001, 16), deadline_ns=clock_ns() + 5 * 10**7)\n"
    )
    count = 2 * (os.cpu_count() or 1)
    running = [subprocess.Popen([sys.executable, "-c", program, str(dense)]) for _ in range(count)]
    try:
        assert [process.wait(90) for process in running] == [0] * count
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.parametrize("engine", ENGINES)
def test_tmpfs(engine: str) -> None:
    """Kernels differ in whether tmpfs takes O_DIRECT; where it does not, the sentence says what to do."""
    folder = Path("/dev/shm")
    if filesystem_of(folder) != "tmpfs":
        pytest.skip("/dev/shm is not a tmpfs")
    path = folder / f"pagegram-test-{os.getpid()}"
    try:
        write_dense(path, pages=64)
        wanted = plain_pages(path, np.arange(64))
        with Reader(path, engine=engine, depth=8, flags=("buffered",)) as reader:
            assert not reader.info().direct
            status, data = read_all(reader, np.arange(64))
        assert (status == 4096).all() and np.array_equal(data, wanted)
        if takes_direct(folder):
            with Reader(path, engine=engine, depth=8) as reader:
                assert reader.info().direct
                status, data = read_all(reader, np.arange(64))
            assert (status == 4096).all() and np.array_equal(data, wanted)
        else:
            with pytest.raises(ValueError, match="no O_DIRECT; --buffered"):
                Reader(path, engine=engine)
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("depth", [4096, 32768])
def test_great_depths(dense: Path, depth: int) -> None:
    pages = some_pages(2 * depth)
    with Reader(dense, engine="io_uring", depth=depth) as reader:
        assert reader.pump(pages) == 2 * depth and reader.drain() == 0
        assert reader.stats().reads == 2 * depth and reader.stats().errors == 0

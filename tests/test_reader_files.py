"""One reader over windows of several files: their bytes, their short ends, and which file is to blame."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from harness.targets import filesystem_of, takes_direct, write_dense

from pagegram_io.commands.nvme_target import inspect_target
from pagegram_io.device import DeviceJob, Tally, make_record
from pagegram_io.layout import Window
from pagegram_io.native_reader import STATUS_SHORT, Reader, aligned_bytes

pytestmark = pytest.mark.flaky(reruns=2, reruns_delay=2)

PAGE = 4096
FILE_PAGES = (7, 1, 64)
TAIL_BYTES = 100  # of the last file's last page
# Out of order, with gaps in the files between them, and the last one to the very end of its file.
RUNS = ((2, 10, 20), (0, 3, 4), (1, 0, 1), (2, 0, 3), (0, 0, 1), (2, 60, 5))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[Path]]:
    folder = tmp_path
    if not takes_direct(folder) or filesystem_of(folder) == "tmpfs":
        folder = Path(__file__).parents[1] / "build" / f"test-files-{os.getpid()}"
        folder.mkdir(parents=True)
    try:
        yield [
            write_dense(folder / f"shard{i}", pages=pages, tail_bytes=TAIL_BYTES if i == 2 else 0)
            for i, pages in enumerate(FILE_PAGES)
        ]
    finally:
        if folder != tmp_path:
            shutil.rmtree(folder)


def windows_of(files: list[Path]) -> tuple[Window, ...]:
    windows, page = [], 0
    for file, first, count in RUNS:
        windows.append(Window(page, count, str(files[file]), first * PAGE))
        page += count
    return tuple(windows)


def expected(files: list[Path]) -> np.ndarray:
    """Every page in the windows' order, zeros after a file's end."""
    pages = []
    for file, first, count in RUNS:
        data = files[file].read_bytes()[first * PAGE : (first + count) * PAGE]
        pages.append(np.frombuffer(data.ljust(count * PAGE, b"\0"), np.uint8).reshape(count, PAGE))
    return np.concatenate(pages)


@pytest.mark.parametrize("engine", ["io_uring", "psync"])
@pytest.mark.parametrize("flags", [(), ("buffered",), ("no_fixed",)])
@pytest.mark.parametrize("depth", [1, 5, 64])
def test_pages_of_several_files(files: list[Path], engine: str, flags: tuple[str, ...], depth: int) -> None:
    wanted = expected(files)
    pages = np.random.default_rng(depth).permutation(np.repeat(np.arange(len(wanted)), 3))
    with Reader("shards", depth=depth, engine=engine, flags=flags, windows=windows_of(files)) as reader:
        info = reader.info()
        assert (info.page_count, info.direct) == (len(wanted), "buffered" not in flags)
        assert info.target_bytes == sum(file.stat().st_size for file in files)
        memory = aligned_bytes(len(pages) * PAGE)
        status = reader.read(pages, memory)
        assert np.array_equal(memory.reshape(-1, PAGE), wanted[pages])
        assert status.tolist() == [TAIL_BYTES if page == len(wanted) - 1 else PAGE for page in pages]
        reader.reset()
        assert reader.pump(pages) == len(pages) and reader.drain() == 0
        assert len(reader.steps(pages, np.array([4, len(pages)]))) == 2
        stats = reader.stats()
        assert (stats.reads, stats.errors, stats.retries) == (2 * len(pages), 0, 0)
        with pytest.raises(ValueError, match=f"page {len(wanted)}"):
            reader.read(np.array([len(wanted)]), memory)


@pytest.mark.parametrize("engine", ["io_uring", "psync"])
def test_the_file_that_fails_is_named(files: list[Path], engine: str) -> None:
    windows = windows_of(files)
    with Reader("shards", depth=4, engine=engine, windows=windows) as reader:
        os.truncate(files[0], 4 * PAGE)  # after it was opened: the second window's last pages are gone
        pages = np.arange(sum(window.page_count for window in windows))
        status = reader.read(pages, aligned_bytes(len(pages) * PAGE))
        bad = np.flatnonzero(status < 0)
        assert bad.tolist() == [21, 22, 23] and set(status[bad]) == {STATUS_SHORT}
        stats = reader.stats()
        assert reader.files[stats.first_error_file] == str(files[0])
        assert stats.first_error_byte in (4 * PAGE, 5 * PAGE, 6 * PAGE)


def test_windows_that_cannot_be(files: list[Path], tmp_path: Path) -> None:
    good = windows_of(files)

    def refused(kind: type[Exception], match: str, *windows: Window, **more: object) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(kind, match=match):
            Reader("shards", windows=windows, **more)  # type: ignore[arg-type]
        assert len(os.listdir("/proc/self/fd")) == before

    name = str(files[0])
    refused(ValueError, f"{name}: ends at byte 28672, before 5 pages from byte 12288", Window(0, 5, name, 3 * PAGE))
    refused(ValueError, f"{name}: ends", Window(0, 1, name, 7 * PAGE))
    refused(ValueError, f"{name}: ends", Window(0, 2**60, name, 0))
    refused(ValueError, "window 0 begins at byte 100", Window(0, 1, name, 100))
    refused(ValueError, "window 1 does not follow", good[0], Window(21, 1, name, 0))
    refused(ValueError, "window 0 does not follow", Window(0, 0, name, 0))
    refused(ValueError, "no offset and no span", *good, base_byte=PAGE)
    missing = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError) as error:
        Reader("shards", windows=(*good, Window(34, 1, missing, 0)))
    assert error.value.filename == missing and error.value.strerror == "No such file or directory"
    deep = tmp_path / ("\u00e9" * 120) / ("\u00e9" * 120) / "missing"  # more than an error's text holds
    with pytest.raises(FileNotFoundError) as far:
        Reader("shards", windows=(*good, Window(34, 1, str(deep), 0)))
    assert far.value.filename == str(deep) and far.value.strerror == "No such file or directory"
    with pytest.raises(IsADirectoryError) as folder:
        Reader("shards", windows=(Window(0, 1, str(tmp_path), 0),))
    assert folder.value.filename == str(tmp_path)


def test_more_files_than_may_be_open(files: list[Path]) -> None:
    """One line that says which limit it is, and nothing is left open."""
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    windows = []
    for i in range(64):
        os.link(files[1], link := files[1].with_name(f"link{i}"))
        windows.append(Window(i, 1, str(link), 0))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 32, hard))
        with pytest.raises(OSError, match="too many open files.*ulimit -n") as error:
            Reader("shards", windows=windows)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert error.value.errno == errno.EMFILE and str(error.value.filename).startswith(str(files[1].with_name("link")))
    assert len(os.listdir("/proc/self/fd")) == before
    with Reader("shards", windows=windows) as reader:
        assert reader.read(np.arange(64), aligned_bytes(64 * PAGE)).tolist() == [PAGE] * 64


def test_a_record_tells_the_first_error_whole(files: list[Path]) -> None:
    """Of several threads' first failures one is told: its file, byte and status, not a mixture of them."""
    job = DeviceJob("shards", windows=windows_of(files), jobs=2, limit=8)
    with job.open(4) as reader:
        info, stats, histogram = reader.info(), reader.stats(), reader.histogram()
    named = [str(file) for file in (files[2], files[0], files[1])]  # as the windows have them
    failures = [(2, 0, -errno.EIO), (1, 8 * PAGE, STATUS_SHORT)]
    tallies = [
        Tally(
            stats=replace(
                stats, first_error_file=file, first_error_byte=byte, first_error_status=status, errors_other=1
            ),
            histogram=histogram,
            seconds=1.0,
            info=info,
        )
        for file, byte, status in failures
    ]
    record = make_record(job, tallies, 0, info.page_count, None)
    told = record["first_error_file"], record["first_error_byte"], record["first_error_status"]
    assert told == (named[1], 8 * PAGE, STATUS_SHORT)
    whole = make_record(replace(job, windows=()), tallies[:1], 0, info.page_count, None)
    assert (whole["first_error_file"], whole["first_error_byte"]) == (None, 0)
    good = make_record(job, [replace(tallies[0], stats=stats)], 0, info.page_count, None)
    assert good["first_error_file"] is None and good["first_error_byte"] is None


def test_each_file_has_a_device_behind_it(files: list[Path]) -> None:
    """Not the first one alone; and files of two file systems are said to be."""
    memory = Path("/dev/shm")
    beside = shutil.copy(files[1], memory / f"pagegram-test-{os.getpid()}")
    try:
        windows = (Window(0, 1, str(files[1]), 0), Window(1, 1, str(beside), 0))
        values = {"offset": None, "page_bytes": PAGE, "allow_holes": False, "model": "toy", "buffered": False}
        with pytest.raises(click.ClickException, match="lies in memory"):
            inspect_target(values, windows)
        _, about, notes = inspect_target(values | {"buffered": True}, windows)
        assert about["model"] == "toy" and any("2 file systems" in note for note in notes)
        _, _, notes = inspect_target(values, windows[:1])
        assert not any("file systems" in note for note in notes)
    finally:
        os.unlink(beside)


def test_holes_between_windows_are_not_read(files: list[Path]) -> None:
    with open(files[0], "r+b") as file:
        file.truncate(64 * PAGE)  # a hole from page 7 on
        file.seek(64 * PAGE)
        file.write(bytes(PAGE))
    name = str(files[0])
    values = {"offset": None, "page_bytes": PAGE, "allow_holes": False, "model": "toy", "buffered": False}
    inspect_target(values, (Window(0, 7, name, 0), Window(7, 1, name, 64 * PAGE)))
    with pytest.raises(click.ClickException, match="is a hole"):
        inspect_target(values, (Window(0, 7, name, 0), Window(7, 2, name, 63 * PAGE)))

"""The device reader when things go wrong: faults by FUSE, no io_uring, no memory to lock, blocks of 4096."""

from __future__ import annotations

import errno
import json
import os
import pwd
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.mounts import HARNESS, faulty_file, loop_device
from harness.targets import open_descriptors, plain_pages, resident_bytes, takes_direct, thread_count, write_dense

from pagegram_io.native_reader import STATUS_SHORT, Reader, aligned_bytes, clock_ns, fill_pages

# A shared disk stalls at times for longer than any bound that would still catch a fault; a fault fails every time.
pytestmark = pytest.mark.flaky(reruns=2, reruns_delay=2)


ENGINES = ("io_uring", "psync")
SECOND_NS = 10**9
PAGES = 256


def good_pages(count: int, *, seed: int = 1) -> np.ndarray:
    """What the FUSE file holds: uint8 [count, 4096]."""
    memory = aligned_bytes(count * 4096)
    fill_pages(memory, 0, 4096, seed)
    return memory.reshape(count, 4096)


def read_all(reader: Reader, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    memory = aligned_bytes(len(pages) * 4096)
    return reader.read(pages, memory), memory.reshape(len(pages), 4096)


# ---- FUSE ----


@pytest.mark.fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_each_fault_is_counted_by_its_kind(tmp_path: Path, engine: str) -> None:
    faults: dict[int, dict[str, Any]] = {
        3: {"fail": "EIO"},
        9: {"fail": "ENODATA"},
        14: {"fail": "ETIMEDOUT"},
        20: {"short_bytes": 1000},
        21: {"short_bytes": 0},
        22: {"short_bytes": 512, "times": 1},  # whole when read again
        30: {"fail": "EAGAIN", "times": 5},
        31: {"fail": "EINTR", "times": 5},
        32: {"fail": "EINTR"},  # for ever: given up after a bounded number of tries
        40: {"delay_s": 0.05},
        50: {"fail": "EIO", "times": 1},  # an EIO is not asked for again
    }
    wanted = np.full(64, 4096)
    for page, status in ((3, -errno.EIO), (9, -errno.ENODATA), (14, -errno.ETIMEDOUT), (50, -errno.EIO)):
        wanted[page] = status
    wanted[[20, 21]] = STATUS_SHORT
    wanted[32] = -errno.EINTR
    with faulty_file(tmp_path, faults, pages=64) as mount:
        with Reader(mount.file, engine=engine, depth=8, flags=("verify",)) as reader:
            status, data = read_all(reader, np.arange(64))
            stats = reader.stats()
        tries = mount.counts()
    assert status.tolist() == wanted.tolist()
    sound = wanted == 4096
    assert np.array_equal(data[sound], good_pages(64)[sound])
    kinds = (stats.errors_eio, stats.errors_enodata, stats.errors_short, stats.errors_corrupt, stats.errors_other)
    assert kinds == (2, 1, 2, 0, 2)
    assert (stats.reads, stats.bytes) == (int(sound.sum()), int(sound.sum()) * 4096)
    assert stats.first_error_byte % 4096 == 0 and not sound[stats.first_error_byte // 4096]
    assert stats.first_error_status == wanted[stats.first_error_byte // 4096]
    expected = {page: 1 for page in range(64)} | {20: 2, 21: 2, 22: 2, 30: 6, 31: 6}
    bounded = tries.pop(32)
    assert 2 <= bounded <= 64 and tries == {k: v for k, v in expected.items() if k != 32}
    in_kernel = 5 if stats.retries == 3 + 5 + bounded - 1 else 0  # io_uring deals with EAGAIN of a file by itself
    assert stats.retries == 3 + 10 - in_kernel + bounded - 1 and (in_kernel == 0 or engine == "io_uring")


@pytest.mark.fuse
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_ten_thousand_reads_with_faults(tmp_path: Path, engine: str) -> None:
    """1 % EIO and 1 % short pages: exact counts by kind, no wrong byte, nothing hung, nothing left."""
    count, depth = 10_000, 32
    generator = np.random.default_rng(3)
    bad = generator.permutation(1000)[:20]
    failing, short = set(bad[:10].tolist()), set(bad[10:].tolist())
    faults: dict[int, dict[str, Any]] = {page: {"fail": "EIO"} for page in failing}
    faults |= {page: {"short_bytes": 100 + page} for page in short}
    pages = generator.integers(0, 1000, count, dtype=np.uint64)
    eio, shorts = np.isin(pages, list(failing)), np.isin(pages, list(short))
    good = good_pages(1000)
    with faulty_file(tmp_path, faults, pages=1000) as mount:
        descriptors, threads = open_descriptors(), thread_count()
        with Reader(mount.file, engine=engine, depth=depth, flags=("verify",)) as reader:
            status, data = read_all(reader, pages)
            assert np.array_equal(status == -errno.EIO, eio) and np.array_equal(status == STATUS_SHORT, shorts)
            fine = ~(eio | shorts)
            assert (status[fine] == 4096).all() and np.array_equal(data[fine], good[pages[fine].astype(int)])
            stats = reader.stats()
            assert (stats.errors_eio, stats.errors_short) == (int(eio.sum()), int(shorts.sum()))
            assert (stats.errors, stats.retries) == (int((~fine).sum()), int(shorts.sum()))
            assert stats.reads == int(fine.sum()) and stats.reads + stats.errors == count
            # The measuring face counts the same, and stops where it is told to.
            reader.reset()
            assert reader.pump(pages, max_errors=10_000) == count and reader.drain() == 0
            again = reader.stats()
            assert (again.reads, again.errors_eio, again.errors_short) == (
                stats.reads,
                stats.errors_eio,
                stats.errors_short,
            )
            assert int(reader.histogram().sum()) == stats.reads
            reader.reset()
            started = reader.pump(pages, max_errors=20)
            reader.drain()
            stopped = reader.stats()
            assert started < count and 21 <= stopped.errors <= 21 + depth
            assert stopped.reads + stopped.errors == started
        assert open_descriptors() == descriptors and thread_count() == threads


@pytest.mark.fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_slow_page_holds_up_no_other(tmp_path: Path, engine: str) -> None:
    delay_s = 1.5
    memory = aligned_bytes(8 * 4096).reshape(8, 4096)
    with (
        faulty_file(tmp_path, {5: {"delay_s": delay_s}}, pages=PAGES) as mount,
        Reader(mount.file, engine=engine, depth=8) as reader,
    ):
        waiting = select.poll()
        waiting.register(reader.eventfd(), select.POLLIN)
        read_all(reader, np.array([0, 1]))
        began = time.monotonic()
        assert reader.submit(np.array([5]), memory[:1], np.array([10**6])) == 1
        others = 0
        while others < 100:
            if reader.in_flight < 8:
                room = 8 - reader.in_flight
                reader.submit(np.arange(10, 10 + room), memory[8 - room :], np.arange(room))
            waiting.poll(1000)
            ended = reader.poll()
            assert all(tag != 10**6 and status == 4096 for tag, status in ended)
            others += len(ended)
        assert time.monotonic() - began < delay_s
        ended = []
        while reader.in_flight:
            assert waiting.poll(10_000)
            ended += reader.poll()
        assert (10**6, 4096) in ended and time.monotonic() - began >= delay_s
        assert np.array_equal(memory[0], good_pages(8)[5])


@pytest.mark.fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_drain_gives_up_at_its_deadline_and_close_waits(tmp_path: Path, engine: str) -> None:
    with faulty_file(tmp_path, {5: {"delay_s": 1.0}}, pages=PAGES) as mount:
        reader = Reader(mount.file, engine=engine, depth=4)
        began = clock_ns()
        assert reader.pump(np.array([5, 1, 2, 3]), deadline_ns=began + SECOND_NS // 10) == 4
        assert reader.drain(deadline_ns=clock_ns() + SECOND_NS // 10) == 1
        assert clock_ns() - began < 0.6 * SECOND_NS
        assert reader.stats().reads == 3
        reader.close()
        assert clock_ns() - began >= 0.9 * SECOND_NS


@pytest.mark.fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_drain_gives_up_however_long_its_caller_took(tmp_path: Path, engine: str) -> None:
    """The timer that pump left in the ring has fired by the time drain waits for three reads, and ends no wait."""
    with (
        faulty_file(tmp_path, {page: {"delay_s": 1.5} for page in (5, 6, 7)}, pages=PAGES) as mount,
        Reader(mount.file, engine=engine, depth=4) as reader,
    ):
        assert reader.pump(np.array([1, 2, 3, 4] * 3)) == 12
        assert reader.drain() == 0
        assert reader.pump(np.array([5, 6, 7])) == 3
        time.sleep(0.1)
        assert reader.drain(deadline_ns=clock_ns() + SECOND_NS // 10) == 3
        assert reader.drain() == 0


@pytest.mark.fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_cancel_of_reads_that_are_stuck(tmp_path: Path, engine: str) -> None:
    """Every outcome comes, once; what was cancelled is not read again."""
    faults: dict[int, dict[str, Any]] = {page: {"delay_s": 0.3} for page in range(8)}
    memory = aligned_bytes(8 * 4096).reshape(8, 4096)
    with (
        faulty_file(tmp_path, faults, pages=PAGES) as mount,
        Reader(mount.file, engine=engine, depth=8, flags=("verify",)) as reader,
    ):
        assert reader.submit(np.arange(8), memory, np.arange(8)) == 8
        reader.cancel()
        ended: list[tuple[int, int]] = []
        until = time.monotonic() + 10
        while len(ended) < 8 and time.monotonic() < until:
            ended += reader.poll()
            time.sleep(0.01)
        assert sorted(tag for tag, _ in ended) == list(range(8)) and reader.in_flight == 0
        for tag, status in ended:
            assert status in (4096, -errno.ECANCELED, -errno.EINTR)
            assert status != 4096 or np.array_equal(memory[tag], good_pages(8)[tag])
        assert reader.stats().retries == 0
        status, data = read_all(reader, np.arange(8, 16))
        assert (status == 4096).all() and np.array_equal(data, good_pages(16)[8:])


@pytest.mark.fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_truncation_while_reading(tmp_path: Path, engine: str) -> None:
    """Once the content ends early, pages after the end are short, not zeros and not old bytes."""
    with (
        faulty_file(tmp_path, {}, pages=PAGES, tail_bytes=100) as mount,
        Reader(mount.file, engine=engine, depth=16, flags=("verify",)) as reader,
    ):
        assert reader.info().page_count == PAGES + 1
        status, data = read_all(reader, np.arange(PAGES))
        assert (status == 4096).all() and np.array_equal(data, good_pages(PAGES))
        mount.truncate_to(100 * 4096 + 50)
        reader.reset()
        status, data = read_all(reader, np.arange(PAGES + 1))
        assert (status[:100] == 4096).all() and (status[100:] == STATUS_SHORT).all()
        assert np.array_equal(data[:100], good_pages(100))
        assert reader.stats().errors_short == PAGES + 1 - 100


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("flags", [(), ("buffered",)])
def test_truncation_of_a_real_file(tmp_path: Path, engine: str, flags: tuple[str, ...]) -> None:
    if not flags and not takes_direct(tmp_path):
        pytest.skip("no O_DIRECT where temporary files go")
    path = write_dense(tmp_path / "file", pages=64)
    with Reader(path, engine=engine, depth=8, flags=flags) as reader:
        status, _ = read_all(reader, np.arange(64))
        assert (status == 4096).all()
        os.truncate(path, 10 * 4096 + 700)
        status, data = read_all(reader, np.arange(64))
        assert (status[:10] == 4096).all() and (status[10:] == STATUS_SHORT).all()
        assert np.array_equal(data[:10], plain_pages(path, np.arange(10)))
        with open(path, "ab") as file:  # growth is not seen: the size is the one at opening
            file.truncate(80 * 4096)
        with pytest.raises(ValueError, match="is not in a target of 64 pages"):
            read_all(reader, np.array([64]))


@pytest.mark.fuse
def test_faults_over_and_over_leave_nothing(tmp_path: Path) -> None:
    faults: dict[int, dict[str, Any]] = {1: {"fail": "EIO"}, 2: {"short_bytes": 5}, 3: {"delay_s": 0.01}}
    with faulty_file(tmp_path, faults, pages=16) as mount:

        def once(engine: str) -> None:
            with Reader(mount.file, engine=engine, depth=8) as reader:
                reader.pump(np.arange(16))

        for engine in ENGINES * 3:
            once(engine)
        descriptors, threads, resident = open_descriptors(), thread_count(), resident_bytes()
        for engine in ENGINES * 25:
            once(engine)
        assert open_descriptors() == descriptors and thread_count() == threads
        assert resident_bytes() - resident < 4 << 20


# ---- without io_uring ----

REPORT = """
import json, sys
import numpy as np
from pagegram_io.native_reader import Reader, aligned_bytes, crc32c
out = {}
for engine in sys.argv[2].split(","):
    try:
        with Reader(sys.argv[1], engine=engine, depth=int(sys.argv[3]), flags=tuple(sys.argv[4:])) as reader:
            memory = aligned_bytes(64 * 4096)
            status = reader.read(np.arange(64), memory)
            info = reader.info()
            out[engine] = {"engine": info.engine, "why": info.why, "fixed_buffers": info.fixed_buffers,
                           "good": int((status == 4096).sum()), "crc": crc32c(memory)}
    except Exception as error:
        out[engine] = {"kind": type(error).__name__, "errno": getattr(error, "errno", None), "text": str(error)}
print(json.dumps(out))
"""


@pytest.fixture(scope="session")
def deny_io_uring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The launcher under which io_uring's system calls fail."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("seccomp") / "deny_io_uring"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-o", program, HARNESS / "deny_io_uring.c"], check=True)
    return program


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    if not takes_direct(folder):
        pytest.skip("no O_DIRECT where temporary files go")
    return write_dense(folder / "small", pages=64)


def report(command: list[Any]) -> dict[str, Any]:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    ("code", "kind", "sentence"),
    [
        (errno.EPERM, "PermissionError", "io_uring is forbidden here: by seccomp, as in many containers, or by"),
        (errno.ENOSYS, "OSError", "this kernel has no io_uring"),
    ],
)
def test_seccomp(deny_io_uring: Path, small: Path, code: int, kind: str, sentence: str) -> None:
    out = report([deny_io_uring, code, sys.executable, "-c", REPORT, small, "io_uring,auto,psync", 8])
    assert (out["io_uring"]["kind"], out["io_uring"]["errno"]) == (kind, code)
    text = out["io_uring"]["text"]
    assert sentence in text and "--engine psync" in text and str(small) in text and "\n" not in text
    assert (out["auto"]["engine"], out["auto"]["good"]) == ("psync", 64)
    assert sentence in out["auto"]["why"]
    assert (out["psync"]["engine"], out["psync"]["why"], out["psync"]["good"]) == ("psync", "asked for", 64)
    # The command: not supported here is exit 3, where it was asked for by name.
    program = "from pagegram_io.cli import main; main()"
    command = [deny_io_uring, str(code), sys.executable, "-c", program, "nvme", small, "--uniform", "--reads", "100"]
    for engine, status, words in (("io_uring", 3, sentence), ("auto", 0, "")):
        ran = subprocess.run([*command, "--engine", engine], capture_output=True, text=True, timeout=60)
        assert ran.returncode == status and words in ran.stderr and ran.stderr.count("\n") == (status > 0), ran.stderr
        assert status or "engine psync" in ran.stdout
    # Polled completions are asked for by name: no other engine stands in for them.
    polled = report([deny_io_uring, code, sys.executable, "-c", REPORT, small, "auto", 8, "iopoll"])
    assert polled["auto"]["errno"] == code


@pytest.mark.root
@pytest.mark.parametrize("limit_bytes", [0, 64 << 10])
def test_memlock_limit_of_an_ordinary_user(small: Path, limit_bytes: int) -> None:
    """io_uring reads without registered buffers and says so, or gives way with a sentence on the limit."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    nobody = pwd.getpwnam("nobody")
    depth = 64  # 256 KiB of buffers

    # This Python may lie where nobody may not look, so it becomes nobody only once everything is imported; the
    # file comes as an open descriptor for the same reason.
    become_nobody = f"""
import ctypes, os, resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit_bytes}, {limit_bytes}))
os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid})
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, or /proc/self would stay root's
"""
    program = REPORT.replace("out = {}", become_nobody + "out = {}", 1)
    descriptor = os.open(small, os.O_RDONLY)
    try:
        words = [sys.executable, "-c", program, f"/proc/self/fd/{descriptor}", "io_uring,auto,psync", str(depth)]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60, pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    assert ran.returncode == 0, ran.stderr
    out = json.loads(ran.stdout)
    ring = out["io_uring"]
    sentence = f"RLIMIT_MEMLOCK is {limit_bytes >> 10} KiB"
    if "kind" in ring:  # kernels before 5.12 count the ring itself
        assert ring["errno"] == errno.ENOMEM and sentence in ring["text"]
        assert out["auto"]["engine"] == "psync" and sentence in out["auto"]["why"]
    else:
        assert not ring["fixed_buffers"] and f"without registered buffers: {sentence}" in ring["why"]
        assert "256 KiB are needed" in ring["why"] and ring["good"] == 64
        assert out["auto"]["engine"] == "io_uring" and out["auto"]["crc"] == ring["crc"]
    assert out["psync"]["good"] == 64 and out["psync"]["crc"] == out["auto"]["crc"]


# ---- blocks of 4096 ----


@pytest.mark.root
@pytest.mark.parametrize("engine", ENGINES)
def test_a_4kn_device(tmp_path: Path, engine: str) -> None:
    path = write_dense(tmp_path / "backing", pages=512)
    with loop_device(path, block_bytes=4096) as device:
        pages = np.random.default_rng(2).integers(0, 512, 600)
        with Reader(device, engine=engine, depth=32, flags=("verify",)) as reader:
            info = reader.info()
            assert info.direct and info.page_count == 512 and info.target_bytes == 512 * 4096
            status, data = read_all(reader, pages)
            assert (status == 4096).all() and np.array_equal(data, plain_pages(path, pages))
        with pytest.raises(ValueError, match="its blocks of 4096 bytes are larger than a page of 512") as caught:
            Reader(device, engine=engine, page_bytes=512)
        assert str(device) in str(caught.value)
        with Reader(device, engine=engine, page_bytes=512, flags=("buffered",)) as reader:  # the cache does not mind
            memory = aligned_bytes(512)
            assert reader.read(np.array([9]), memory).tolist() == [512]

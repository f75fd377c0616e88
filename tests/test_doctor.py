"""``pagegram-io doctor``: reads the machine, and only reads it."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagegram_io import cli, doctor, native_reader, table_file


def run(capsys: pytest.CaptureFixture[str], *arguments: str | os.PathLike[str]) -> tuple[int, str, str]:
    status = cli.run(["doctor", *map(os.fspath, arguments)])
    return status, *capsys.readouterr()


def record_of(capsys: pytest.CaptureFixture[str], *arguments: str | os.PathLike[str]) -> dict[str, Any]:
    status, out, err = run(capsys, "--json", *arguments)
    assert status == 0 and err == "" and out.count("\n") == 1
    record: dict[str, Any] = json.loads(out)
    return record


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    path = tmp_path / "dense"
    table_file.write_pattern_file(path, 300)
    return path


# Holes


def test_a_dense_file_has_no_holes(dense: Path) -> None:
    assert doctor.holes_in(dense, 0, dense.stat().st_size) is None
    assert doctor.holes_in(dense, 0, 2**62) is None  # past its end is no hole
    assert doctor.holes_in(dense, 2**40, 2**41) is None


def test_holes_are_found_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open(path, "wb") as file:
        file.write(bytes(8192))
        file.truncate(2**20)
        file.seek(2**19)
        file.write(b"x" * 8192)
    assert doctor.holes_in(path, 0, 2**20) == 8192
    assert doctor.holes_in(path, 0, 8192) is None
    assert doctor.holes_in(path, 2**19, 2**19 + 8192) is None
    assert doctor.holes_in(path, 2**19, 2**20) == 2**19 + 8192
    assert doctor.holes_in(path, 65536, 2**20) == 65536


def test_blocks_that_are_allocated_but_unwritten_are_holes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2**20)
        file.write(b"x" * 8192)
    assert doctor.holes_in(path, 0, 2**20) == 8192
    assert doctor.holes_in(path, 0, 8192) is None
    with open(path, "rb") as file:  # by FIEMAP alone, and without it
        assert doctor._unwritten(file.fileno(), 0, 2**20) in (8192, 2**20)


def test_many_extents(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with open(path, "wb") as file:
        for i in range(600):  # more than one batch of FIEMAP's answers
            file.seek(i * 8192)
            file.write(b"x" * 4096)
    assert doctor.holes_in(path, 0, 2**30) == 4096
    with open(path, "r+b") as file:
        for i in range(599):
            file.seek(i * 8192 + 4096)
            file.write(b"y" * 4096)
    assert doctor.holes_in(path, 0, 2**30) is None


def test_an_odd_tail_is_no_hole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 8191)
    assert doctor.holes_in(tmp_path / "a", 0, 2**30) is None
    (tmp_path / "b").write_bytes(b"")
    assert doctor.holes_in(tmp_path / "b", 0, 2**30) is None


def test_only_files_have_holes(tmp_path: Path) -> None:
    assert doctor.holes_in("/dev/null", 0, 2**30) is None
    with pytest.raises(FileNotFoundError):
        doctor.holes_in(tmp_path / "none", 0, 1)


# File systems and devices


def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Lets doctor see another /proc/self/mountinfo."""
    (tmp_path / "mountinfo").write_text(text)
    real_open = open

    def opened(name: Any, *arguments: Any, **keywords: Any) -> Any:
        return real_open(tmp_path / "mountinfo" if name == "/proc/self/mountinfo" else name, *arguments, **keywords)

    monkeypatch.setattr(doctor, "open", opened, raising=False)


def test_the_deepest_and_last_mount_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts(
        tmp_path,
        monkeypatch,
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "2 1 0:5 / /data\\040x rw - overlay overlay rw\n"
        "3 1 0:6 / /srv rw - tmpfs tmpfs rw\n"
        "4 1 0:7 / /srv rw shared:3 master:1 - xfs /dev/sdb rw\n"
        "5 1 0:8 / /srvx rw - btrfs /dev/sdc rw\n",
    )
    for path, filesystem, source in (
        ("/etc", "ext4", "/dev/sda1"),
        ("/data x/a", "overlay", "overlay"),
        ("/data", "ext4", "/dev/sda1"),
        ("/srv/a/b", "xfs", "/dev/sdb"),
        ("/srvx", "btrfs", "/dev/sdc"),
    ):
        mount = doctor.mount_of(path)
        assert mount is not None and (mount.filesystem, mount.source) == (filesystem, source)


def test_the_file_system_is_what_findmnt_says(tmp_path: Path) -> None:
    program = shutil.which("findmnt")
    assert program is not None
    told = subprocess.run([program, "-no", "FSTYPE", "-T", tmp_path], capture_output=True, text=True, check=True)
    assert doctor.filesystem_of(tmp_path) == told.stdout.split("\n")[0].strip()
    assert doctor.filesystem_of("/proc/self/status") == "proc"
    assert doctor.filesystem_of("/dev/null") is None


def test_the_device_of_a_file_is_its_file_systems(tmp_path: Path) -> None:
    device = doctor.block_device_of(tmp_path)
    if device is None:  # overlay, tmpfs: then nothing in /sys may claim its number
        number = tmp_path.stat().st_dev
        assert not os.path.exists(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
        return
    assert device.name in Path("/proc/diskstats").read_text().split()
    assert device.logical_block_bytes in (512, 4096) and device.physical_block_bytes >= device.logical_block_bytes
    assert "[" not in device.scheduler
    assert os.path.exists(f"/sys/block/{device.disk}")


def test_what_is_no_disk(tmp_path: Path) -> None:
    assert doctor.block_device_of("/dev/null") is None
    assert doctor.block_device_of("/proc/self/status") is None
    assert doctor.is_in_use(tmp_path) is False and doctor.is_in_use("/dev/null") is False
    for name in ("block_device_of", "is_in_use", "filesystem_of"):
        with pytest.raises(FileNotFoundError):
            getattr(doctor, name)(tmp_path / "none")


def test_in_use_means_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.stat, "S_ISBLK", lambda mode: True)
    for number, expected in ((errno.EBUSY, True), (errno.EACCES, False), (errno.ENXIO, False)):

        def refuse(path: Any, flags: int, number: int = number) -> int:
            assert flags == os.O_RDONLY | os.O_EXCL
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(doctor.os, "open", refuse)
        assert doctor.is_in_use("/dev/null") is expected


def test_choices_of_sys() -> None:
    assert doctor.chosen("[none] mq-deadline") == "none"
    assert doctor.chosen("none [mq-deadline] kyber") == "mq-deadline"
    assert doctor.chosen("none") == ""
    assert doctor.first_line("/nowhere") is None and doctor.first_number("/proc/version") is None


# io_uring


def test_operations_are_those_of_liburing() -> None:
    """An independent probe, where PyPI's liburing is installed; without it, at least no operation out of range."""
    try:
        operations = doctor.uring_operations()
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.ENOSYS)
        return
    assert operations <= set(range(256)) and {1, 2} <= operations  # READV and WRITEV are as old as io_uring
    named = doctor.liburing_operations()
    if named is not None:
        assert {name for name, number in doctor.OPERATIONS.items() if number in operations} == named & set(
            doctor.OPERATIONS
        )


def test_a_liburing_that_dies_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "liburing").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for body, expected in (
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", None),
        ("raise ImportError", None),
        ("def probe(): return None", None),
        ("def probe(): return {'IORING_OP_READ': True, 'IORING_OP_NOP128': False}", {"READ"}),
    ):
        (tmp_path / "liburing" / "__init__.py").write_text(body)
        assert doctor.liburing_operations() == expected


# O_DIRECT


def test_direct_reads(dense: Path) -> None:
    fault = doctor.direct_read_fault(dense)
    alignment = doctor.direct_alignment(dense)
    if fault is None:
        assert alignment is None or all(512 <= bytes_ <= 4096 or bytes_ < 512 for bytes_ in alignment)
    else:
        assert fault.errno == errno.EINVAL
    missing = doctor.direct_read_fault(dense.parent / "none")
    assert missing is not None and missing.errno == errno.ENOENT
    assert doctor.direct_alignment(dense.parent / "none") is None


# The command


def test_lines(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, dense)
    assert status == 0 and err == ""
    lines = out.splitlines()
    assert all(re.match(r"(ok|missing|-) +\S|  +cure: \S", line) for line in lines)
    assert all(lines[i - 1].startswith(("missing", "-")) for i, line in enumerate(lines) if line.startswith(" "))
    for name in ("kernel", "io_uring", "locked memory", "open files", "target", "device", "O_DIRECT", "holes"):
        assert any(re.match(rf"\S+ +{name} ", line) for line in lines), name


def test_a_record(dense: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from pagegram_io.record_files import read_records

    record = record_of(capsys, dense)
    assert (record["kind"], record["schema"], record["target"]) == ("doctor", 1, str(dense))
    assert record["target_kind"] == "file" and record["target_bytes"] == dense.stat().st_size
    assert record["first_hole_byte"] is None and record["table_content"] == "pattern"
    assert record["filesystem"] == doctor.filesystem_of(dense)
    assert record["memlock_bytes"] in (None, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    (tmp_path / "doctor.jsonl").write_text(json.dumps(record) + "\n")
    assert read_records(tmp_path / "doctor.jsonl") == [record]
    assert not any(isinstance(value, (list, dict)) for value in record.values())
    assert "target_kind" not in record_of(capsys)


def test_holes_and_folders_and_other_things(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(tmp_path / "hole", "wb") as file:
        file.truncate(2**20)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert record_of(capsys, tmp_path / "hole")["first_hole_byte"] == 0
    _, out, _ = run(capsys, tmp_path / "hole")
    assert re.search(r"missing +holes +from byte 0.*\n +cure: .*mkfile", out)
    assert "size" in record_of(capsys, tmp_path / "empty")["missing"]
    assert record_of(capsys, tmp_path / "folder")["direct"] is None
    (tmp_path / "folder" / "a").write_bytes(bytes(4096))
    direct = record_of(capsys, tmp_path / "folder" / "a")["direct"]
    assert record_of(capsys, tmp_path / "folder")["direct"] is direct
    for path in (tmp_path / "pipe", "/dev/null"):  # neither is opened: a pipe would wait for its writer
        record = record_of(capsys, path)
        assert "target" in record["missing"] and record["readable"] is None


def test_a_file_of_proc_has_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, Path("/proc/cpuinfo"))
    assert (status, err) == (0, "")
    assert re.search(r"missing +size +none: the kernel makes /proc/cpuinfo .*\n +cure: name a file on a disk", out)


def test_a_path_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, tmp_path / "none")
    assert (status, out) == (1, "") and err.count("\n") == 1 and "no such file" in err


@pytest.mark.parametrize(
    ("number", "disabled", "cure"),
    [
        (errno.EPERM, 2, "sudo sysctl kernel.io_uring_disabled=0"),
        (errno.EPERM, 0, "seccomp"),
        (errno.ENOSYS, None, "Linux 5.6"),
        (errno.ENOMEM, 0, "--engine psync"),
    ],
)
def test_cures_of_io_uring(
    number: int, disabled: int | None, cure: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise OSError(number, "no ring", "x")

    monkeypatch.setattr(native_reader, "Reader", refuse)
    monkeypatch.setattr(doctor, "first_number", lambda path: disabled)
    record = record_of(capsys)
    assert record["io_uring"] is False and record["io_uring_error"] == "no ring" and "io_uring" in record["missing"]
    _, out, _ = run(capsys)
    assert re.search(rf"missing +io_uring +no ring\n +cure: .*{re.escape(cure)}", out)


@pytest.mark.parametrize(
    ("mount", "words"), [("overlay", "image layers"), ("tmpfs", "no device behind it"), ("rootfs", "no device")]
)
def test_file_systems_that_do_not_do(
    mount: str, words: str, dense: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "filesystem_of", lambda path: mount)
    _, out, _ = run(capsys, dense)
    assert re.search(rf"missing +file system .*{words}.*\n +cure: ", out)


@pytest.mark.parametrize(
    ("number", "cure"), [(errno.EACCES, "change its mode"), (errno.EPERM, "device cgroup"), (errno.ENXIO, "dmesg")]
)
def test_no_permission(
    number: int, cure: str, dense: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pagegram_io.commands import doctor as command

    monkeypatch.setattr(command, "_open_fault", lambda path: OSError(number, os.strerror(number)))
    _, out, _ = run(capsys, dense)
    assert re.search(rf"missing +permission .*\n +cure: .*{cure}", out)
    assert not re.search(r"O_DIRECT", out)


def test_limits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "may_lock_memory", lambda: False)
    for limit, mark in ((0, "missing"), (65536, "missing"), (2**20, "-"), (2**22, "ok"), (-1, "ok")):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit) if which else (9, 9))
        _, out, _ = run(capsys)
        assert re.search(
            rf"^{mark} +locked memory +.*depth 64 needs 256 KiB, depth 1024 needs 4 MiB", out, re.MULTILINE
        )


def test_nothing_is_opened_for_writing(dense: Path, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    log = tmp_path / "log"
    calls = "trace=open,openat,openat2,creat,truncate,ftruncate,unlink,unlinkat,rename,renameat,renameat2"
    command = [strace, "-f", "-o", log, "-e", calls, sys.executable, "-B", "-m", "pagegram_io.cli", "doctor", dense]
    ran = subprocess.run(command, capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    lines = log.read_text().splitlines()
    assert any(str(dense) in line for line in lines)
    writing = [line for line in lines if re.search(r"O_WRONLY|O_RDWR|O_CREAT|creat\(|truncate\(|unlink|rename", line)]
    # The ring is tried on memory (a memfd, by its number), nothing with a name is made, changed or removed.
    assert [line for line in writing if not re.search(r'ftruncate\(\d+, |"/dev/(null|tty)"', line)] == []

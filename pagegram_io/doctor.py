"""What this machine is and can do, read from the kernel: nothing here opens anything for writing."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import importlib.util
import json
import mmap
import os
import platform
import re
import stat
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "rootfs", "devtmpfs")

StrPath = str | os.PathLike[str]

# <linux/fs.h>, <linux/fiemap.h>
_FS_IOC_FIEMAP = 0xC020660B
_FIEMAP_HEADER = struct.Struct("=QQIIII")  # start, length, flags, mapped extents, room for extents, reserved
_FIEMAP_EXTENT = struct.Struct("=QQQ16xI12x")  # logical, physical, length, flags
_FIEMAP_FLAG_SYNC, _FIEMAP_EXTENT_LAST, _FIEMAP_EXTENT_UNWRITTEN = 0x1, 0x1, 0x800
_FIEMAP_BATCH = 256

_LINE_BYTES_MAX = 65536

# <asm-generic/unistd.h> and <linux/io_uring.h>; these two calls have the same numbers on every machine but Alpha
_SYS_IO_URING_SETUP, _SYS_IO_URING_REGISTER = 425, 427
_IORING_REGISTER_PROBE, _IO_URING_OP_SUPPORTED = 8, 1
_PROBE_HEADER, _PROBE_OPERATION, _PROBE_ROOM = struct.Struct("=BB14x"), struct.Struct("=BxH4x"), 256
OPERATIONS = {"READ_FIXED": 4, "ASYNC_CANCEL": 14, "READ": 22, "URING_CMD": 46}  # those the reader uses

_AT_FDCWD, _STATX_DIOALIGN = -100, 0x2000
_CAP_IPC_LOCK = 14


def kernel() -> str:
    """The kernel's release, such as 6.1.0-18-amd64."""
    return platform.release()


def first_line(path: StrPath) -> str | None:
    """The first line of a file of /proc or /sys, stripped; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.readline(_LINE_BYTES_MAX).decode(errors="replace").strip()
    except OSError:
        return None


def first_number(path: StrPath) -> int | None:
    """The whole number that a file of /proc or /sys begins with; None where there is none."""
    match = re.match(r"-?[0-9]+", first_line(path) or "")
    return int(match[0]) if match else None


def chosen(text: str) -> str:
    """The one in brackets of a choice as /sys shows it: none of "[none] mq-deadline"; "" where none is marked."""
    match = re.search(r"\[(.+?)\]", text)
    return match[1] if match else ""


@dataclass(frozen=True)
class Mount:
    """The mount that a path lies in: /proc/self/mountinfo's words."""

    folder: str
    filesystem: str
    source: str


def mount_of(path: StrPath) -> Mount | None:
    """The mount that holds a path: of those above it, the deepest, and of these the last mounted."""
    real = os.path.realpath(path)
    found: Mount | None = None
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as lines:
        for raw in lines:
            fields, _, rest = os.fsdecode(raw).partition(" - ")
            words, (filesystem, source, *_options) = fields.split(), (*rest.split(), "", "")
            folder = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4])
            above = real == folder or real.startswith(folder.rstrip("/") + "/")
            if above and (found is None or len(folder) >= len(found.folder)):
                found = Mount(folder, filesystem, source)
    return found


def filesystem_of(path: StrPath) -> str | None:
    """Type of the file system that holds a file or folder (ext4, overlay); None for a device node."""
    mode = os.stat(path).st_mode
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        return None
    mount = mount_of(path)
    return mount.filesystem if mount else None


@dataclass(frozen=True)
class BlockDevice:
    """A block device as /sys describes it; name is as in /proc/diskstats, disk the whole disk of a partition."""

    name: str
    model: str
    logical_block_bytes: int
    scheduler: str
    rotational: bool
    poll_queues: int | None
    disk: str
    physical_block_bytes: int
    io_poll: bool
    nr_requests: int | None = None


def block_device_of(path: StrPath) -> BlockDevice | None:
    """The device a block node, an NVMe character node, or a file's file system is; None where there is none."""
    name = _block_name(path)
    if name is None:
        return None
    folder = Path(os.path.realpath(f"/sys/class/block/{name}"))
    disk = folder.parent if (folder / "partition").exists() else folder
    driver = os.path.basename(os.path.realpath(disk / "device/driver")) if (disk / "device/driver").exists() else ""
    scheduler = first_line(disk / "queue/scheduler") or ""
    return BlockDevice(
        name=name,
        model=_model(disk, driver),
        logical_block_bytes=first_number(disk / "queue/logical_block_size") or 512,
        scheduler=chosen(scheduler) or scheduler,
        rotational=first_number(disk / "queue/rotational") == 1,
        poll_queues=first_number(f"/sys/module/{_module(disk.name, driver)}/parameters/poll_queues"),
        disk=disk.name,
        physical_block_bytes=first_number(disk / "queue/physical_block_size") or 512,
        io_poll=first_number(disk / "queue/io_poll") == 1,
        nr_requests=first_number(disk / "queue/nr_requests"),
    )


def disks() -> list[BlockDevice]:
    """The whole disks of this machine that have a node in /dev: no partitions, no loop devices, no memory disks."""
    names = sorted(os.path.basename(os.path.dirname(folder)) for folder in glob.glob("/sys/block/*/device"))
    found = [block_device_of(f"/dev/{name}") for name in names if os.path.exists(f"/dev/{name}")]
    return [device for device in found if device is not None]


def _block_name(path: StrPath) -> str | None:
    status = os.stat(path)
    if stat.S_ISCHR(status.st_mode):
        generic = re.fullmatch(r"ng([0-9]+n[0-9]+)", os.path.basename(os.path.realpath(path)))
        name = f"nvme{generic[1]}" if generic else None
        return name if name and os.path.exists(f"/sys/class/block/{name}") else None
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    if os.major(number) == 0 and not stat.S_ISBLK(status.st_mode):
        # Btrfs and ZFS give files a device number that no disk has; the mount names one.
        mount = mount_of(path)
        try:
            number = os.stat(mount.source).st_rdev if mount and mount.source.startswith("/dev/") else 0
        except OSError:
            return None
    link = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
    return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else None


def _module(disk: str, driver: str) -> str:
    return "nvme" if disk.startswith("nvme") else driver or re.sub(r"[0-9]+$", "", disk)


def _model(disk: Path, driver: str) -> str:
    """The maker's words, or what stands behind a virtual device."""
    backing = first_line(disk / "loop/backing_file")
    if backing:
        return f"loop device of {backing}"
    mapped = first_line(disk / "dm/name")
    return first_line(disk / "device/model") or (f"device mapper {mapped}" if mapped else driver)


def holes_in(path: StrPath, begin: int, end: int) -> int | None:
    """First byte of a file in [begin, end) that is a hole or allocated but unwritten; None if all of it is written.

    Reads of such bytes never touch the device. Only regular files have them; bytes past the file's end do not count.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        end = min(end, os.fstat(descriptor).st_size)
        if begin >= end:
            return None
        hole = min(_seek_hole(descriptor, begin, end), _unwritten(descriptor, begin, end))
    finally:
        os.close(descriptor)
    return hole if hole < end else None


def _seek_hole(descriptor: int, begin: int, end: int) -> int:
    """The first hole from begin on, or end; a file system that knows no holes says the file's end."""
    try:
        return os.lseek(descriptor, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENXIO, errno.EOPNOTSUPP):
            return end
        raise


def _unwritten(descriptor: int, begin: int, end: int) -> int:
    """The first byte in no extent or in an unwritten one, or end; end also where the file system has no FIEMAP."""
    at = begin
    while at < end:
        room = bytearray(_FIEMAP_HEADER.size + _FIEMAP_BATCH * _FIEMAP_EXTENT.size)
        _FIEMAP_HEADER.pack_into(room, 0, at, end - at, _FIEMAP_FLAG_SYNC, 0, _FIEMAP_BATCH, 0)
        try:
            fcntl.ioctl(descriptor, _FS_IOC_FIEMAP, room)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL):
                return end
            raise
        count = _FIEMAP_HEADER.unpack_from(room)[3]
        for i in range(count):
            logical, _, length, flags = _FIEMAP_EXTENT.unpack_from(room, _FIEMAP_HEADER.size + i * _FIEMAP_EXTENT.size)
            if logical > at or flags & _FIEMAP_EXTENT_UNWRITTEN:
                return max(at, min(logical, end))
            at = logical + length
            if flags & _FIEMAP_EXTENT_LAST:
                return min(at, end)
        if count == 0:
            return at
    return end


def is_in_use(path: StrPath) -> bool:
    """Whether a block device is mounted or held by something else: O_EXCL says EBUSY.

    False for anything else, a device that cannot be opened among them: the open that matters says why.
    """
    if not stat.S_ISBLK(os.stat(path).st_mode):
        return False
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def direct_read_fault(path: StrPath) -> OSError | None:
    """Why a page of a file or block device cannot be read with O_DIRECT; None if it can. Opens it for reading only."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, 4096) as page:  # memory on a page boundary
                os.preadv(descriptor, [page], 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        return OSError(error.errno, error.strerror, os.fspath(path))
    return None


def direct_alignment(path: StrPath) -> tuple[int, int] | None:
    """Bytes that O_DIRECT wants memory and offsets to be multiples of, as statx says (Linux 6.1); else None."""
    room = ctypes.create_string_buffer(256)
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN, room):
        return None
    mask, memory_bytes, offset_bytes = (struct.unpack_from("=I", room, at)[0] for at in (0, 152, 156))
    return (memory_bytes, offset_bytes) if mask & _STATX_DIOALIGN and offset_bytes else None


def uring_operations() -> frozenset[int]:
    """The io_uring operations that the kernel says it supports, by number. OSError: EPERM forbidden, ENOSYS too old."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    descriptor = call(_SYS_IO_URING_SETUP, 2, ctypes.create_string_buffer(120))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        room = ctypes.create_string_buffer(_PROBE_HEADER.size + _PROBE_ROOM * _PROBE_OPERATION.size)
        if call(_SYS_IO_URING_REGISTER, descriptor, _IORING_REGISTER_PROBE, room, _PROBE_ROOM) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)
    count = _PROBE_HEADER.unpack_from(room)[1]
    operations = [
        _PROBE_OPERATION.unpack_from(room, _PROBE_HEADER.size + i * _PROBE_OPERATION.size) for i in range(count)
    ]
    return frozenset(number for number, flags in operations if flags & _IO_URING_OP_SUPPORTED)


def liburing_operations() -> frozenset[str] | None:
    """The same by name (READ, ...), as PyPI ``liburing`` sees them; None where it is not installed or does not run.

    In a process of its own: it executes AVX-512 without asking, and dies of it on other CPUs.
    """
    if importlib.util.find_spec("liburing") is None:
        return None
    program = "import json, liburing; print(json.dumps([name for name, there in liburing.probe().items() if there]))"
    try:
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=20, cwd="/", check=True)
        return frozenset(str(name).removeprefix("IORING_OP_") for name in json.loads(ran.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None


def may_lock_memory() -> bool:
    """Whether this process is exempt from RLIMIT_MEMLOCK (CAP_IPC_LOCK)."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False

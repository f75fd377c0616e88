"""Files to read in tests, the plain way to read them, and what a process holds open."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pagegram_io.native_reader import aligned_bytes, fill_pages


def filesystem_of(path: Path) -> str:
    """The type of the file system that holds path, by the longest mount point above it."""
    best, kind = "", ""
    for line in Path("/proc/mounts").read_text().splitlines():
        mount, type_name = line.split()[1:3]
        mount = mount.encode().decode("unicode_escape")
        inside = mount == "/" or str(path) == mount or str(path).startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, type_name
    return kind


def takes_direct(folder: Path) -> bool:
    """Can a file in folder be opened with O_DIRECT?"""
    probe = folder / "probe"
    probe.write_bytes(bytes(4096))
    try:
        os.close(os.open(probe, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    finally:
        probe.unlink()
    return True


def write_dense(path: Path, *, pages: int, page_bytes: int = 4096, seed: int = 1, tail_bytes: int = 0) -> Path:
    """A file of sealed pages without holes, on the device when this returns, and tail_bytes of 0x5A after them."""
    batch = max(1, (4 << 20) // page_bytes)
    memory = aligned_bytes(batch * page_bytes)
    with open(path, "wb") as file:
        for first in range(0, pages, batch):
            part = memory[: min(batch, pages - first) * page_bytes]
            fill_pages(part, first, page_bytes, seed)
            file.write(part)
        file.write(b"\x5a" * tail_bytes)
        file.flush()
        os.fsync(file.fileno())
    return path


def plain_pages(path: Path, pages: np.ndarray, *, page_bytes: int = 4096, base_byte: int = 0) -> np.ndarray:
    """The same pages by pread through the page cache, zeros after the end: uint8 [n, page_bytes]."""
    out = np.zeros((len(pages), page_bytes), np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for i, page in enumerate(pages):
            data = os.pread(descriptor, page_bytes, base_byte + int(page) * page_bytes)
            out[i, : len(data)] = np.frombuffer(data, np.uint8)
    finally:
        os.close(descriptor)
    return out


def open_descriptors() -> dict[int, str]:
    """What this process has open, by number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own
            continue
    return found


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))

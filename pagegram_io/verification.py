"""Is every page of a table file what was written? Read as lookups read it, past the page cache where that can be."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pagegram_io import native_reader
from pagegram_io.errors import FormatError
from pagegram_io.native_reader import Reader, ReaderInfo, aligned_bytes, crc32c_of_pages, verify_pages
from pagegram_io.table_file import BATCH_BYTES, SEAL_BYTES, TableHeader, read_header


@dataclass(frozen=True)
class Damage:
    """A page that is not what was written, and what is wrong with it."""

    page: int
    what: str


@dataclass(frozen=True)
class Verification:
    """A table file's pages, all read and compared; the damaged ones ascending. ``why``: how they were read."""

    header: TableHeader
    damaged: tuple[Damage, ...]
    engine: str
    direct: bool
    why: str
    seconds: float


def verify(
    path: str | os.PathLike[str],
    *,
    depth: int = 64,
    engine: str = "auto",
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Read every page, and name the damaged. ``progress`` is told the bytes of each batch.

    FormatError, with the path, for what is not a whole table file of this version; OSError where it cannot be read
    at all: a page that fails alone is damage.
    """
    name, started = os.fspath(path), time.monotonic()
    header = read_header(name)
    checks = _read_checks(name, header)
    damaged: list[Damage] = []
    with _open(name, header, depth, engine) as reader, open(name, "rb") as file:
        info = reader.info()
        step = max(1, BATCH_BYTES // header.page_bytes)
        memory = aligned_bytes(step * header.page_bytes)
        for first in range(0, header.page_count, step):
            pages = np.arange(first, min(first + step, header.page_count), dtype=np.uint64)
            batch = memory[: pages.size * header.page_bytes]
            status = reader.read(pages, batch)
            damaged += _damage_in(header, checks, first, status, batch)
            if not info.direct:  # or the whole file would stay in the page cache
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if progress:
                progress(batch.size)
    return Verification(header, tuple(damaged), info.engine, info.direct, _how(info), time.monotonic() - started)


def read_sound_pages(path: str | os.PathLike[str]) -> tuple[TableHeader, np.ndarray]:
    """A table file's pages in memory, uint8 [pages * page_bytes], all checked.

    FormatError, with the path, for what is not a whole table file, and for a page that is not what was written.
    """
    name = os.fspath(path)
    header = read_header(name)
    checks = _read_checks(name, header)
    memory = np.empty(header.page_count * header.page_bytes, np.uint8)
    step = max(1, BATCH_BYTES // header.page_bytes)
    with open(name, "rb") as file:
        file.seek(header.data_byte)
        for first in range(0, header.page_count, step):
            batch = memory[first * header.page_bytes : (first + step) * header.page_bytes]
            if file.readinto(batch.data) < batch.size:
                raise FormatError(f"{name}: it was cut while it was read")
            sound = verify_pages(batch, first, header.page_bytes) if header.sealed else True
            status = np.where(sound, np.zeros(batch.size // header.page_bytes, int), native_reader.STATUS_CORRUPT)
            for damage in _damage_in(header, checks, first, status, batch):
                raise FormatError(f"{name}: page {damage.page} {damage.what}; pagegram-io verify names all of them")
    return header, memory


def _open(name: str, header: TableHeader, depth: int, engine: str) -> Reader:
    """With O_DIRECT, or through the page cache where the file system has none or the device's blocks are larger."""
    verifying = ("verify",) if header.sealed else ()
    span = header.page_count * header.page_bytes

    def opened(flags: tuple[str, ...]) -> Reader:
        return Reader(name, depth=depth, engine=engine, page_bytes=header.page_bytes, base_byte=header.data_byte,
                      span_bytes=span, flags=flags)  # fmt: skip

    try:
        reader = opened(verifying)
    except ValueError:
        return opened((*verifying, "buffered"))
    probe = reader.read(np.zeros(1, np.uint64), aligned_bytes(header.page_bytes))
    if int(probe[0]) != -errno.EINVAL:
        reader.reset()
        return reader
    reader.close()
    return opened((*verifying, "buffered"))


def _how(info: ReaderInfo) -> str:
    return f"{info.engine}, " + ("O_DIRECT" if info.direct else "through the page cache: no O_DIRECT here")


def _read_checks(name: str, header: TableHeader) -> np.ndarray | None:
    if header.checks_byte is None:
        return None
    return np.fromfile(name, "<u4", header.page_count, offset=header.checks_byte)


def _damage_in(
    header: TableHeader, checks: np.ndarray | None, first: int, status: np.ndarray, memory: np.ndarray
) -> Iterator[Damage]:
    """The damaged pages of one batch: reads that failed, and bytes that are not those that were written."""
    pages = memory.reshape(-1, header.page_bytes)
    if checks is None:
        wrong = status < 0
    else:
        wrong = (status < 0) | (crc32c_of_pages(memory, header.page_bytes) != checks[first : first + len(pages)])
    for i in np.flatnonzero(wrong).tolist():
        if status[i] < 0 and status[i] != native_reader.STATUS_CORRUPT:
            what = _failure(int(status[i]))
        elif not pages[i].any():
            what = "holds only zeros"
        elif checks is None:
            what = _wrong_seal(pages[i])
        else:
            what = _wrong_check(pages[i], checks)
        yield Damage(first + i, what)


def _failure(status: int) -> str:
    if status == native_reader.STATUS_SHORT:
        return "cannot be read: fewer bytes came than there are"
    return f"cannot be read: {os.strerror(-status)}"


def _wrong_seal(page: np.ndarray) -> str:
    """A page whose own check fails, or that says it is another."""
    number = int.from_bytes(page[-SEAL_BYTES:-4].tobytes(), "little")
    if native_reader.crc32c(page[:-4]) == int.from_bytes(page[-4:].tobytes(), "little"):
        return f"holds page {number}"
    return "does not fit its checksum (torn or rotten)"


def _wrong_check(page: np.ndarray, checks: np.ndarray) -> str:
    others = np.flatnonzero(checks == native_reader.crc32c(page))
    if others.size:
        return f"holds page {int(others[0])}"
    return "does not fit its entry in page_checks (torn or rotten)"

"""The border to C for the device reader (reader.c), beside ``native.py`` and by its rules."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pagegram_io._pgio import ffi, lib
from pagegram_io.native import Handle, checked, pointer, uint64_array

if TYPE_CHECKING:
    from pagegram_io.layout import Window

ENGINES = {"auto": 0, "io_uring": 1, "psync": 2, "nvme": 3}
FLAGS = {"buffered": 1, "sqpoll": 2, "iopoll": 4, "clock_each": 8, "no_fixed": 16, "verify": 32}
RING_FLAGS = {
    0: "IOPOLL",
    1: "SQPOLL",
    3: "CQSIZE",
    4: "CLAMP",
    8: "COOP_TASKRUN",
    9: "TASKRUN_FLAG",
    10: "SQE128",
    11: "CQE32",
    12: "SINGLE_ISSUER",
    13: "DEFER_TASKRUN",
    16: "NO_SQARRAY",
}
STATUS_SHORT, STATUS_CORRUPT, STATUS_NVME = lib.PGIO_STATUS_SHORT, lib.PGIO_STATUS_CORRUPT, lib.PGIO_STATUS_NVME
NEVER = 2**64 - 1
ALIGNMENT = 4096


def aligned_bytes(count: int) -> np.ndarray:
    """Zeroed memory that O_DIRECT takes: uint8 [count], starting on a multiple of 4096."""
    memory = np.zeros(count + ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % ALIGNMENT
    return memory[skip : skip + count]


def clock_ns() -> int:
    """CLOCK_MONOTONIC in ns, the clock of deadlines."""
    return int(lib.pgio_clock_ns())


def histogram_lows() -> np.ndarray:
    """The least value of each latency bucket in ns, uint64 [buckets]."""
    return np.array([lib.pgio_histogram_low(i) for i in range(lib.PGIO_HISTOGRAM_BUCKETS)], np.uint64)


def fill_pages(memory: np.ndarray, first_page: int, page_bytes: int, seed: int) -> None:
    """Fill memory, uint8 [pages * page_bytes], with incompressible pages that know their number and checksum."""
    lib.pgio_pages_fill(pointer(memory, "void *"), first_page, memory.size // page_bytes, page_bytes, seed)


def seal_pages(memory: np.ndarray, first_page: int, page_bytes: int) -> None:
    """Write each page's number and CRC-32C into its last eight bytes."""
    lib.pgio_pages_seal(pointer(memory, "void *"), first_page, memory.size // page_bytes, page_bytes)


def verify_pages(memory: np.ndarray, first_page: int, page_bytes: int) -> np.ndarray:
    """Which pages hold their own number and checksum, bool [pages]."""
    sound = np.empty(memory.size // page_bytes, np.uint8)
    lib.pgio_pages_verify(pointer(memory, "void *"), first_page, sound.size, page_bytes, pointer(sound, "uint8_t *"))
    return sound.astype(bool)


def crc32c(data: bytes | np.ndarray) -> int:
    """CRC-32C of some bytes."""
    array = np.frombuffer(data, np.uint8)
    return int(lib.pgio_crc32c(pointer(array, "void *"), array.size))


def crc32c_of_pages(memory: np.ndarray, page_bytes: int) -> np.ndarray:
    """CRC-32C of each page in memory, uint8 [pages * page_bytes]: uint32 [pages]."""
    crcs = np.empty(memory.size // page_bytes, np.uint32)
    lib.pgio_pages_crc32c(pointer(memory, "void *"), crcs.size, page_bytes, pointer(crcs, "uint32_t *"))
    return crcs


@dataclass(frozen=True)
class ReaderInfo:
    """What a reader really runs on; ring_flags are the names of the setup flags in use."""

    target_bytes: int
    page_count: int
    engine: str
    direct: bool
    ring_flags: tuple[str, ...]
    fixed_buffers: bool
    fixed_file: bool
    lba_bytes: int
    why: str


@dataclass(frozen=True)
class ReaderStats:
    """Counts since the last reset; latencies in ns from preparing a read to reaping it; see pgio.h."""

    reads: int
    bytes: int
    retries: int
    errors_eio: int
    errors_enodata: int
    errors_short: int
    errors_corrupt: int
    errors_other: int
    first_error_byte: int
    first_error_file: int
    first_error_status: int
    latency_sum_ns: int
    latency_min_ns: int
    latency_max_ns: int
    depth_ns: int
    waits: int

    @property
    def errors(self) -> int:
        return self.errors_eio + self.errors_enodata + self.errors_short + self.errors_corrupt + self.errors_other


def _bytes_of(memory: np.ndarray) -> np.ndarray:
    if memory.dtype != np.uint8 or not memory.flags.c_contiguous or not memory.flags.writeable:
        raise ValueError("memory for reads must be contiguous, writeable uint8")
    return memory


class Reader(Handle):
    """Pages of a file or device into memory, up to ``depth`` in flight. Belongs to the thread that opens it.

    With ``windows`` (layout.Window, one after the other from page 0 on) pages are those of several files, read as one
    target, and ``path`` is only what all of them are called in errors that are of no one file.
    Raises OSError with the path (EPERM: io_uring forbidden; ENOSYS, ENOTSUP: not here; ENOMEM: may not lock enough
    memory), ValueError for bad options.
    """

    _free = lib.pgio_reader_close

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        depth: int = 64,
        engine: str = "auto",
        page_bytes: int = 4096,
        base_byte: int = 0,
        span_bytes: int = 0,
        flags: tuple[str, ...] = (),
        memory: np.ndarray | None = None,
        windows: Sequence[Window] = (),
    ) -> None:
        super().__init__()
        self._memory = memory  # the kernel reads into it for as long as the reader lives
        self.page_bytes = page_bytes
        options = {
            "page_bytes": page_bytes,
            "base_byte": base_byte,
            "span_bytes": span_bytes,
            "memory": ffi.NULL if memory is None else pointer(_bytes_of(memory), "void *"),
            "memory_bytes": 0 if memory is None else memory.size,
            "engine": ENGINES[engine],
            "depth": depth,
            "flags": sum(FLAGS[name] for name in flags),
        }
        name = os.fspath(path)
        self.files = list(dict.fromkeys(window.file for window in windows)) or [name]
        try:
            self._open(windows, ffi.new("pgio_reader_options *", options))
        except OSError as error:
            text, whose = self._blamed(error.strerror or "")
            raise OSError(error.errno, text, whose or name) from None
        except MemoryError as error:  # most often a limit on locked memory, which its sentence explains
            text, whose = self._blamed(str(error))
            raise OSError(errno.ENOMEM, text, whose or name) from None
        except ValueError as error:
            text, whose = self._blamed(str(error))
            whose = whose if windows else name
            raise ValueError(f"{whose}: {text}" if whose else text) from None

    def _blamed(self, text: str) -> tuple[str, str | None]:
        """What C says of several files, and which of them it is of: it begins so where it is of one."""
        found = re.fullmatch(r"file (\d+): (.*)", text)
        return (found[2], self.files[int(found[1])]) if found else (text, None)

    def _open(self, windows: Sequence[Window], options: Any) -> None:
        paths = [ffi.new("char[]", os.fsencode(file)) for file in self.files]
        if not windows:
            self._make("pgio_reader", lib.pgio_reader_open, paths[0], options)
            return
        number = {file: i for i, file in enumerate(self.files)}
        named = ffi.new("pgio_window[]", [(w.page_begin, w.page_count, w.byte, number[w.file], 0) for w in windows])
        arguments = ffi.new("char *[]", paths), len(paths), named, len(windows), options
        self._make("pgio_reader", lib.pgio_reader_open_files, *arguments)

    def info(self) -> ReaderInfo:
        """The engine that runs, why, and how."""
        info = ffi.new("pgio_reader_info *")
        lib.pgio_reader_info_get(self._live(), info)
        engine = next(name for name, value in ENGINES.items() if value == info.engine)
        flags = tuple(name for bit, name in RING_FLAGS.items() if info.ring_flags >> bit & 1)
        return ReaderInfo(
            int(info.target_bytes),
            int(info.page_count),
            engine,
            bool(info.direct),
            flags,
            bool(info.fixed_buffers),
            bool(info.fixed_file),
            int(info.lba_bytes),
            ffi.string(info.why).decode(),
        )

    def stats(self) -> ReaderStats:
        """Counts since the last reset."""
        stats = ffi.new("pgio_reader_stats *")
        lib.pgio_reader_stats_get(self._live(), stats)
        return ReaderStats(*(int(getattr(stats, name)) for name in ReaderStats.__dataclass_fields__))

    def reset(self) -> None:
        """Start counting anew."""
        lib.pgio_reader_stats_reset(self._live())

    def histogram(self) -> np.ndarray:
        """Latencies by bucket since the last reset, uint64 [buckets]."""
        counts = np.empty(lib.PGIO_HISTOGRAM_BUCKETS, np.uint64)
        lib.pgio_reader_histogram(self._live(), pointer(counts, "uint64_t *"))
        return counts

    def read(self, pages: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Read pages, integers [n], into memory, uint8 of n pages, 4096-aligned.

        Returns status, int32 [n]: the bytes read, or negative as in pgio.h.
        """
        wanted = uint64_array(pages)
        if _bytes_of(memory).size < wanted.size * self.page_bytes:
            raise ValueError(f"{wanted.size} pages need memory of {wanted.size * self.page_bytes} bytes")
        status = np.empty(wanted.size, np.int32)
        arguments = pointer(wanted, "uint64_t *"), wanted.size, pointer(memory, "void *"), pointer(status, "int32_t *")
        checked(lib.pgio_reader_read, self._live(), *arguments)
        return status

    def submit(self, pages: np.ndarray, memory: np.ndarray, tags: np.ndarray) -> int:
        """Start reads into memory, uint8 [n, page_bytes], without waiting. Returns how many there was room for.

        The memory must live until their outcomes are polled, or the reader is closed.
        """
        wanted, tagged = uint64_array(pages), uint64_array(tags)
        if memory.dtype != np.uint8 or memory.shape != (wanted.size, self.page_bytes) or tagged.shape != wanted.shape:
            raise ValueError(f"{wanted.size} reads need as many tags and memory of uint8 [reads, {self.page_bytes}]")
        if not memory.flags.writeable or memory.strides[1] != 1:
            raise ValueError("memory for reads must be writeable, each page contiguous")
        step = memory.strides[0]
        places = (np.uint64(memory.ctypes.data) + np.arange(wanted.size, dtype=np.uint64) * np.uint64(step)).astype(
            np.uint64
        )
        arguments = pointer(wanted, "uint64_t *"), pointer(places, "void *const *"), pointer(tagged, "uint64_t *")
        return checked(lib.pgio_reader_submit, self._live(), *arguments, wanted.size)

    def poll(self, count: int = 4096) -> list[tuple[int, int]]:
        """(tag, status) of reads that ended, at most count, without waiting."""
        outcomes = ffi.new("pgio_completion[]", count)
        ended = checked(lib.pgio_reader_poll, self._live(), outcomes, count)
        return [(int(outcomes[i].tag), int(outcomes[i].status)) for i in range(ended)]

    def cancel(self) -> None:
        """Ask everything in flight to end soon; outcomes still come."""
        checked(lib.pgio_reader_cancel, self._live())

    def eventfd(self) -> int:
        """A descriptor that is readable when there are outcomes to poll."""
        return int(lib.pgio_reader_eventfd(self._live()))

    @property
    def in_flight(self) -> int:
        return int(lib.pgio_reader_in_flight(self._live()))

    def pump(self, pages: np.ndarray, *, deadline_ns: int = NEVER, max_errors: int = NEVER) -> int:
        """Keep depth reads in flight over pages, integers [n]; data is dropped. Returns how many were started."""
        wanted = uint64_array(pages)
        arguments = pointer(wanted, "uint64_t *"), wanted.size, deadline_ns, max_errors
        return checked(lib.pgio_reader_pump, self._live(), *arguments)

    def drain(self, *, deadline_ns: int = NEVER) -> int:
        """Wait for what is in flight; returns how many still are at the deadline."""
        return checked(lib.pgio_reader_drain, self._live(), deadline_ns)

    def steps(
        self, pages: np.ndarray, ends: np.ndarray, *, deadline_ns: int = NEVER, max_errors: int = NEVER
    ) -> np.ndarray:
        """Read the pages of each step together, one step after the other. Returns the steps' times in ns, uint64."""
        wanted, stops = uint64_array(pages), uint64_array(ends)
        if stops.size and int(stops.max()) > wanted.size:
            raise ValueError(f"a step ends at {int(stops.max())}, after the {wanted.size} pages")
        times = np.empty(stops.size, np.uint64)
        pointers = pointer(wanted, "uint64_t *"), pointer(stops, "uint64_t *")
        done = checked(
            lib.pgio_reader_steps,
            self._live(),
            *pointers,
            stops.size,
            deadline_ns,
            max_errors,
            pointer(times, "uint64_t *"),
        )
        return times[:done]

"""The border to C for tables on flash (table.c), beside ``native.py`` and by its rules.

The C table goes with the last of its clients and prefetches, so handles may be dropped in any order, and a call that
is under way in another thread ends as it would have.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pagegram_io._pgio import ffi, lib
from pagegram_io.errors import FormatError
from pagegram_io.native import ISAS, Handle, checked, layout_groups, pointer
from pagegram_io.native_reader import ENGINES, FLAGS

if TYPE_CHECKING:
    from pagegram_io.layout import Layout

ROW_FORMATS = {
    "nf4": lib.PGIO_ROW_NF4,
    "fp16": lib.PGIO_ROW_FP16,
    "bf16": lib.PGIO_ROW_BF16,
    "fp32": lib.PGIO_ROW_FP32,
}


@dataclass(frozen=True)
class TableStats:
    """Counts since the table was opened; see pgio.h. accesses = hits + reads, and reads = the simulator's misses."""

    lookups: int
    prefetches: int
    accesses: int
    hits: int
    reads: int
    bytes_read: int
    evictions: int
    waiting_ns: int
    errors_eio: int
    errors_enodata: int
    errors_short: int
    errors_corrupt: int
    errors_other: int
    resident_pages: int
    capacity_pages: int

    @property
    def errors(self) -> int:
        return self.errors_eio + self.errors_enodata + self.errors_short + self.errors_corrupt + self.errors_other


def _named(path: str, call: Any, *arguments: Any) -> int:
    """Call C; what went wrong with the file is said with its path. A page with wrong bytes is a FormatError."""
    try:
        return checked(call, *arguments)
    except OSError as error:
        if error.errno == errno.EBADMSG:
            raise FormatError(f"{path}: {error.strerror}") from None
        raise OSError(error.errno, error.strerror, path) from None


class _Dropped(Handle):
    """A handle that is freed with its last reference, so that closing it does not disturb a call of another thread."""

    def close(self) -> None:
        self._handle = None

    @property
    def closed(self) -> bool:
        return self._handle is None


class TableFile(_Dropped):
    """An open table file and its page cache, shared by the clients of many threads."""

    _free = lib.pgio_table_close

    def __init__(
        self,
        path: str,
        descriptor: int,
        layout: Layout,
        *,
        data_byte: int,
        page_checks: np.ndarray | None,
        cache_bytes: int,
        depth: int,
        engine: str,
        flags: tuple[str, ...],
        isa: str,
    ) -> None:
        super().__init__()
        self.path = path
        if engine not in ENGINES:
            raise ValueError(f"engine {engine!r} is not known; choose one of {', '.join(ENGINES)}")
        if isa not in ISAS:
            raise ValueError(f"instruction set {isa!r} is not known; choose one of {', '.join(ISAS)}")
        groups, regions, _segments = layout_groups(layout)
        options = {
            "data_byte": data_byte,
            "page_count": layout.page_count,
            "page_bytes": layout.page_bytes,
            "cache_bytes": cache_bytes,
            "page_checks": ffi.NULL if page_checks is None else pointer(page_checks, "uint32_t *"),
            "row_format": ROW_FORMATS[layout.row_format],
            "row_width": layout.row_width,
            "depth": depth,
            "engine": ENGINES[engine],
            "flags": sum(FLAGS[name] for name in flags),
            "isa": ISAS[isa],
        }
        try:
            given = ffi.new("pgio_table_options *", options)
        except OverflowError as overflow:
            raise ValueError(f"a number is negative or too large for the C core ({overflow})") from None
        name = f"/proc/self/fd/{descriptor}".encode()
        try:
            self._make("pgio_table", lib.pgio_table_open, name, given, groups, len(groups), regions, len(regions))
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def stats(self) -> TableStats:
        stats = ffi.new("pgio_table_stats *")
        lib.pgio_table_stats_get(self._live(), stats)
        return TableStats(*(int(getattr(stats, name)) for name in TableStats.__dataclass_fields__))


def _output(out: np.ndarray) -> Any:
    """out: [tokens, columns, n], float32 for values or uint8 for stored bytes, its last axis contiguous."""
    form = lib.PGIO_FORM_BYTES if out.dtype == np.uint8 else lib.PGIO_FORM_VALUES
    strides = {"token_stride_bytes": out.strides[0], "column_stride_bytes": out.strides[1]}
    return ffi.new("pgio_table_output *", {"memory": pointer(out, "void *"), "form": form, **strides})


class Client(_Dropped):
    """One thread's part of a table: its reader and its scratch memory."""

    _free = lib.pgio_table_client_close

    def __init__(self, file: TableFile) -> None:
        super().__init__()
        self._path = file.path
        self._make("pgio_table_client", lib.pgio_table_client_open, file._live())

    def info(self) -> tuple[str, bool, bool, str]:
        """Engine, whether O_DIRECT is on, whether buffers are registered, and why it is so. Opens the reader."""
        info = ffi.new("pgio_reader_info *")
        try:
            _named(self._path, lib.pgio_table_client_info, self._live(), info)
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from None
        except MemoryError as error:  # most often a limit on locked memory, which its sentence explains
            raise OSError(errno.ENOMEM, str(error), self._path) from None
        engine = next(name for name, value in ENGINES.items() if value == info.engine)
        return engine, bool(info.direct), bool(info.fixed_buffers), ffi.string(info.why).decode()

    def lookup(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Rows, contiguous uint64 [tokens, columns], into out. OSError and FormatError name the page and the file."""
        arguments = pointer(rows, "uint64_t *"), len(rows), _output(out)
        _named(self._path, lib.pgio_table_lookup, self._live(), *arguments)


class Prefetch(_Dropped):
    """Pages of some rows, accessed ahead and pinned; ``token_count`` is how many tokens there was room for."""

    _free = lib.pgio_prefetch_drop

    def __init__(self, client: Client, rows: np.ndarray) -> None:
        super().__init__()
        self._path = client._path
        out = ffi.new("pgio_prefetch **")
        arguments = client._live(), pointer(rows, "uint64_t *"), len(rows)
        self.token_count = _named(self._path, lib.pgio_table_prefetch, out, *arguments)
        self._handle = ffi.gc(out[0], self._free)

    def lookup(self, client: Client, out: np.ndarray) -> None:
        """The rows of its tokens into out [token_count, columns, n]."""
        _named(self._path, lib.pgio_prefetch_lookup, self._live(), client._live(), _output(out))

"""A trained table on flash: tokens in, vectors out, with an exact LRU of its pages in memory (docs/method.md).

>>> with Table.open("table.safetensors", cache_bytes=1 << 30) as table:
...     table.prefetch(ids)              # the addresses depend on ids alone: reading starts now
...     vectors = table.lookup(ids)      # float32 [tokens, columns, width]
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from types import TracebackType
from typing import Any

import numpy as np

from pagegram_io import native
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout
from pagegram_io.native_table import ROW_FORMATS, Client, Prefetch, TableFile, TableStats
from pagegram_io.record_files import to_dict
from pagegram_io.records import SCHEMA, provenance
from pagegram_io.table_file import TableHeader, read_header
from pagegram_io.tokens import VOCABULARY_MAX, Stream

BATCH_ACCESSES = 8192  # a call to C makes about so many: Ctrl-C is obeyed between two


class Table:
    """A table file behind a page cache. Made by ``Table.open``; may be shared by threads, not by a fork.

    Reads are exactly the misses of ``pagegram_io.simulate`` on the same tokens. Every page that is read is checked;
    one that is not what was written fails the call (FormatError, or OSError where it could not be read at all) and is
    read again when it is next needed. Calls under way in other threads when it is closed end as they would have.
    """

    def __init__(
        self, path: str, header: TableHeader, layout: Layout, file: TableFile, options: dict[str, Any]
    ) -> None:
        self.path, self.header, self.layout = path, header, layout
        self.cache_bytes: int = options["cache_bytes"]
        self.depth: int = options["depth"]
        self._vocabulary: int = options["vocabulary"]
        self._file: TableFile | None = file
        self._rows = native.Rows(layout)  # read-only in C, so threads may share it
        self._clients = threading.local()  # one a thread, gone with it
        self._columns = layout.column_count
        self._step = max(1, BATCH_ACCESSES // len(layout.group_of_page_column()))
        self._prefetches: dict[bytes, deque[Prefetch]] = {}  # by the rows they were made for, oldest first
        self._lock = threading.Lock()
        self.engine, self.direct, self.fixed_buffers, self.why = self._client().info()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        cache_bytes: int = 1 << 30,
        depth: int = 64,
        engine: str = "auto",
        *,
        buffered: bool = False,
        vocabulary: int | None = None,
        isa: str = "auto",
    ) -> Table:
        """Open a table file for reading. Holds cache_bytes // page_bytes pages in memory.

        engine: auto, io_uring or psync; depth: reads in flight, of each thread; buffered: through the kernel's page
        cache, where O_DIRECT is not to be had; vocabulary: ids at or above it are refused. Raises FormatError for what
        is not a whole table file, ValueError for the options and for row formats that are not decoded here, OSError.
        """
        name = os.fspath(path)
        if vocabulary is not None and not 1 <= vocabulary <= VOCABULARY_MAX:
            raise ValueError(f"a vocabulary of {vocabulary} ids is not between 1 and 2^32")
        # One descriptor for checks and pages: a file that is replaced meanwhile must not be mixed with its heir.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            header = read_header(name)
            if not os.path.samestat(os.fstat(descriptor), os.stat(name)):
                raise OSError(errno.ESTALE, "was replaced while it was opened; try again", name)
            layout = header.layout
            if layout is None:
                raise ValueError(f"{name}: a pattern of pages without a layout; there are no rows to look up")
            if layout.row_format not in ROW_FORMATS:
                known = ", ".join(ROW_FORMATS)
                raise ValueError(f"{name}: rows of {layout.row_format} are not decoded here; tables of {known} are")
            checks = _page_checks(name, descriptor, header)
            file = TableFile(
                name, descriptor, layout, data_byte=header.data_byte, page_checks=checks,
                cache_bytes=cache_bytes, depth=depth, engine=engine, flags=("buffered",) if buffered else (), isa=isa,
            )  # fmt: skip
        finally:
            os.close(descriptor)
        options = {"cache_bytes": cache_bytes, "depth": depth, "vocabulary": vocabulary or VOCABULARY_MAX}
        return cls(name, header, layout, file, options)

    # ---- looking up ----

    def lookup(
        self,
        tokens: Stream | np.ndarray,
        document_starts: np.ndarray | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Rows as stored, without signs, float32 [tokens, columns, width]; into ``out`` where given, strided as it is.

        tokens: a Stream, or integer ids [tokens] with the positions at which documents start (default: one document).
        """
        return self.lookup_rows(self._rows_of(tokens, document_starts), out)

    def rows(
        self,
        tokens: Stream | np.ndarray,
        document_starts: np.ndarray | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Rows as bytes of the file, uint8 [tokens, columns, row_bytes], not decoded; joined where they straddle."""
        return self.bytes_of_rows(self._rows_of(tokens, document_starts), out)

    def lookup_rows(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """``lookup`` of row numbers, integers [tokens, columns], for instance of ``History.rows``."""
        if self.header.content != "trained":
            raise ValueError(
                f"{self.path}: holds a pattern made to be measured, no trained rows; rows() reads its bytes"
            )
        return self._give(rows, out, np.float32, self.layout.row_width)

    def bytes_of_rows(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """``rows`` of row numbers, integers [tokens, columns]."""
        return self._give(rows, out, np.uint8, self.layout.row_bytes)

    def _give(self, rows: np.ndarray, out: np.ndarray | None, dtype: type, width: int) -> np.ndarray:
        wanted = self._checked_rows(rows)
        shape = (*wanted.shape, width)
        if out is None:
            out = np.empty(shape, dtype)
        elif out.dtype != dtype or out.shape != shape or not out.flags.writeable or out.strides[2] != out.itemsize:
            raise ValueError(
                f"out is {out.dtype} {list(out.shape)}, and must be writeable {np.dtype(dtype)} {list(shape)}, "
                "its last axis contiguous"
            )
        client, done = self._client(), 0
        prefetch = self._matching(wanted)
        if prefetch is not None:
            with prefetch:
                done = prefetch.token_count
                prefetch.lookup(client, out[:done])
        for begin in range(done, len(wanted), self._step):
            client.lookup(wanted[begin : begin + self._step], out[begin : begin + self._step])
        return out

    # ---- ahead of time ----

    def prefetch(self, tokens: Stream | np.ndarray, document_starts: np.ndarray | None = None) -> Prefetch:
        """Make the accesses of some tokens now, start to read their pages, and pin these until they are looked up.

        The next ``lookup`` (or ``rows``) of the same tokens is then no second access. A prefetch that no lookup follows
        keeps its pages pinned until ``close()`` of what is returned, or of the table. Prefetches pin no more than a
        quarter of the cache; ``token_count`` tells how many tokens there was room for, and the lookup does the rest.
        """
        return self.prefetch_rows(self._rows_of(tokens, document_starts))

    def prefetch_rows(self, rows: np.ndarray) -> Prefetch:
        """``prefetch`` of row numbers, integers [tokens, columns]."""
        wanted = self._checked_rows(rows)
        prefetch = Prefetch(self._client(), wanted)
        if prefetch.token_count:
            with self._lock:
                self._prefetches.setdefault(wanted.tobytes(), deque()).append(prefetch)
        return prefetch

    def _matching(self, rows: np.ndarray) -> Prefetch | None:
        """The oldest prefetch of these rows that was not dropped; it is the caller's now."""
        if not self._prefetches:
            return None
        key = rows.tobytes()
        with self._lock:
            waiting = self._prefetches.get(key, deque())
            while waiting:
                prefetch = waiting.popleft()
                if not waiting:
                    del self._prefetches[key]
                if not prefetch.closed:
                    return prefetch
        return None

    # ---- what it is and did ----

    def stats(self) -> TableStats:
        """Counts since it was opened."""
        return self._open_file().stats()

    def record(self) -> dict[str, Any]:
        """A flat record of kind "table": what was read from what, and how."""
        layout, stats = self.layout, self.stats()
        return to_dict({
            "kind": "table", "schema": SCHEMA, "target": os.path.basename(self.path), "content": self.header.content,
            "layout": layout.name, "slots": layout.slots, "table_params": layout.table_params,
            "table_params_actual": layout.table_params_actual, "row_format": layout.row_format,
            "row_bytes": layout.row_bytes, "page_bytes": layout.page_bytes, "pages": layout.page_count,
            "cache_bytes": self.cache_bytes, "depth": self.depth, "engine": self.engine, "direct": self.direct,
            "fixed_buffers": self.fixed_buffers,
            **{name: getattr(stats, name) for name in TableStats.__dataclass_fields__},
            "reads_per_token": stats.reads / stats.lookups if stats.lookups else None, **provenance(),
        })  # fmt: skip

    def close(self) -> None:
        """Drop what was prefetched and free the memory; calls under way in other threads keep it until they end."""
        with self._lock:
            self._prefetches = {}
            self._file = None  # a call that is under way still holds it
        self._clients = threading.local()

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_file(self) -> TableFile:
        file = self._file
        if file is None:
            raise ValueError(f"{self.path}: this table was closed")
        return file

    def _client(self) -> Client:
        """This thread's client, made by its first call."""
        file = self._open_file()
        client: Client | None = getattr(self._clients, "client", None)
        if client is None:
            client = self._clients.client = Client(file)
        return client

    # ---- arguments ----

    def _rows_of(self, tokens: Stream | np.ndarray, document_starts: np.ndarray | None) -> np.ndarray:
        if not isinstance(tokens, Stream):
            if np.size(tokens) == 0:
                return np.empty((0, self._columns), np.uint64)
            tokens = _stream(tokens, document_starts, self._vocabulary)
        elif document_starts is not None:
            raise ValueError("a Stream says itself where its documents start; give no document_starts")
        return self._rows.emit(tokens)

    def _checked_rows(self, rows: np.ndarray) -> np.ndarray:
        wanted = native.uint64_array(rows)
        if wanted.ndim != 2 or wanted.shape[1] != self._columns:
            raise ValueError(f"rows are [tokens, {self._columns}] for this table, not {list(wanted.shape)}")
        return wanted


def _page_checks(name: str, descriptor: int, header: TableHeader) -> np.ndarray | None:
    """``page_checks`` of a file, uint32 [pages]; None where its pages are sealed."""
    if header.checks_byte is None:
        return None
    data = bytearray()
    while len(data) < 4 * header.page_count:
        part = os.pread(descriptor, min(4 * header.page_count - len(data), 1 << 26), header.checks_byte + len(data))
        if not part:
            raise FormatError(f"{name}: it ends before its page_checks do: it was cut while it was opened")
        data += part
    return np.frombuffer(data, "<u4").astype(np.uint32)


def _stream(tokens: Any, document_starts: Any, vocabulary: int) -> Stream:
    ids = np.asarray(tokens)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"tokens are integer ids [tokens], not {ids.dtype} {list(ids.shape)}")
    if ids.dtype not in (np.uint16, np.uint32):
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= vocabulary:
            raise ValueError(f"token id {low if low < 0 else high} is not in 0 to {vocabulary - 1}")
        ids = ids.astype(np.uint32)
    starts = np.zeros(1, np.uint64) if document_starts is None else native.uint64_array(document_starts)
    return Stream(np.ascontiguousarray(ids), starts, vocabulary, "tokens")

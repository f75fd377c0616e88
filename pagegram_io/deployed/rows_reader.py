"""Raw rows of a placed table from the very files of a checkpoint, so that an engine need not repack it to try it.

The pages that a batch of tokens needs are read once each, up to ``depth`` at a time over all files together; a row
that straddles pages, or whose scales lie in a tensor of their own, is joined on its way into the caller's memory. A
rank of several (``ranks.own_rows``) reads its own rows alone.
"""

from __future__ import annotations

import errno
import os

import numpy as np

from pagegram_io import native
from pagegram_io.deployed.extents import require_bytes
from pagegram_io.deployed.placement import Parts
from pagegram_io.deployed.tensors import regular_size, tensor_name
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout
from pagegram_io.native_reader import STATUS_CORRUPT, STATUS_SHORT, Reader, aligned_bytes

BATCH_PAGES = 4096  # read at a time: 16 MiB of pages of 4 KiB


class RowsReader:
    """Rows of a layout with windows. Belongs to the thread that makes it; a context manager.

    ``row_bytes`` is what a row takes in all its parts together, the weights' first. A file that ends before its rows do
    is refused at once (FormatError); with ``parts`` errors name the tensor, too. OSError where a file cannot be read,
    ValueError for a layout that is in no file.
    """

    def __init__(
        self,
        layout: Layout,
        parts: Parts | None = None,
        *,
        depth: int = 64,
        engine: str = "auto",
        buffered: bool = False,
    ) -> None:
        if not layout.windows:
            raise ValueError(f"{layout.label} is placed by assumption, in no file that could be read; give --files")
        self._extents = [] if parts is None else parts.extents(scales=layout.scales == "read")
        require_bytes(self._extents)
        require_ends(layout)
        self._layout, self._place = layout, native.Place(layout)
        self._parts = [len(group.regions) for group in layout.groups for _ in group.columns]
        self._part_bytes = [r.row_bytes for g in layout.groups for _ in g.columns for r in g.regions]
        self._first_rows = np.array([g.row_base for g in layout.groups for _ in g.columns], np.uint64)
        self.column_count, self.row_bytes = layout.column_count, layout.row_bytes
        flags = ("buffered",) if buffered else ()
        try:
            self._reader = Reader(
                f"the files of {layout.label}",
                depth=depth,
                engine=engine,
                page_bytes=layout.page_bytes,
                flags=flags,
                windows=layout.windows,
            )
        except BaseException:
            self._place.close()
            raise

    def close(self) -> None:
        self._reader.close()
        self._place.close()

    def __enter__(self) -> RowsReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def engine(self) -> str:
        """The engine that reads the files."""
        return self._reader.info().engine

    def read(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Global rows, integers [tokens, columns], into out, uint8 [tokens, columns, row_bytes] with any strides.

        Where rows hold native.NO_ROW nothing is read, and out stays as it is: zeros, if none is given.
        """
        rows = np.asarray(rows)
        if rows.shape[1:] != (self.column_count,):
            raise ValueError(f"rows are [tokens, {self.column_count}] for this layout, not {list(rows.shape)}")
        shape = (len(rows), self.column_count, self.row_bytes)
        if out is None:
            out = np.zeros(shape, np.uint8)
        if out.dtype != np.uint8 or out.shape != shape or not out.flags.writeable:
            raise ValueError(f"rows go to writeable uint8 {list(shape)}, not to {out.dtype} {list(out.shape)}")
        step = max(1, BATCH_PAGES // self._place.page_columns)
        for begin in range(0, len(rows), step):
            self._read_batch(rows[begin : begin + step], out[begin : begin + step])
        return out

    def _read_batch(self, rows: np.ndarray, out: np.ndarray) -> None:
        page_bytes = self._layout.page_bytes
        mine = rows != np.uint64(native.NO_ROW) if rows.dtype == np.uint64 else np.ones(rows.shape, bool)
        every_row = bool(mine.all())
        # A row of another rank is looked up as any of its column's, and then left out.
        starts = self._place.bytes(rows if every_row else np.where(mine, rows, self._first_rows)).astype(np.int64)
        sizes = np.array(self._part_bytes, np.int64)
        first, last = starts // page_bytes, (starts + sizes - 1) // page_bytes
        span = int((last - first).max(initial=0)) + 1
        every = first[..., None] + np.arange(span)
        needed = every <= last[..., None]
        if not every_row:
            needed &= np.repeat(mine, self._parts, axis=1)[..., None]
        pages = np.unique(every[needed])
        if not pages.size:
            return
        memory = self._read_pages(pages)
        # Of a row's pages none is left out, so they stand side by side in memory too.
        begins = np.searchsorted(pages, first) * page_bytes + starts % page_bytes
        at = 0
        for column, parts in enumerate(self._parts):
            filled = 0
            tokens = slice(None) if every_row else mine[:, column]
            for part in range(at, at + parts):
                size = self._part_bytes[part]
                out[tokens, column, filled : filled + size] = memory[begins[tokens, part, None] + np.arange(size)]
                filled += size
            at += parts

    def _read_pages(self, pages: np.ndarray) -> np.ndarray:
        memory = aligned_bytes(len(pages) * self._layout.page_bytes)
        status = self._reader.read(pages, memory)
        bad = np.flatnonzero(status < 0)
        if bad.size:
            file, byte = self._layout.place_in_file(int(pages[bad[0]]) * self._layout.page_bytes)
            raise self._read_error(file, byte, int(status[bad[0]]))
        return memory

    def _read_error(self, file: str, byte: int, status: int) -> OSError:
        end = byte + self._layout.page_bytes
        held = [e.tensor for e in self._extents if e.file == file and e.byte < end and e.end_byte > byte]
        where = f"tensor {tensor_name(held[0])}: " if held else ""
        known = {STATUS_SHORT: "the file ended early", STATUS_CORRUPT: "its checksum is wrong"}
        text = known.get(status) or os.strerror(-status)
        return OSError(errno.EIO if status in known else -status, f"{where}reading at byte {byte}: {text}", file)


def require_ends(layout: Layout) -> None:
    """FormatError where a file of a placed layout ends before its rows do."""
    ends: dict[str, int] = {}
    for region in layout.regions:
        aligned = [region.end_byte(layout.page_bytes)] if region.units_per_page else []
        for end in aligned or [base + units * region.unit_bytes for base, units in region.runs()]:
            file, last = layout.place_in_file(end - 1)
            ends[file] = max(ends.get(file, 0), last + 1)
    for file, end in ends.items():
        size = regular_size(file)
        if size < end:
            raise FormatError(f"{file}: its rows end at byte {end} and the file at {size}: they are not all here")

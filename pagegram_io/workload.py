"""Which reads a measured run makes: uniform ones, or those that a stream's lookups cause behind a cache."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pagegram_io import native, native_caches
from pagegram_io.tokens import Stream

if TYPE_CHECKING:
    from pagegram_io.device import DeviceJob
    from pagegram_io.layout import Layout

BATCH_READS = 1 << 14


@dataclass
class Work:
    """Reads to make: device pages, uint64 [n]; lookup i (decode: step i) is done with read ends[i] - 1, uint64."""

    pages: np.ndarray
    ends: np.ndarray
    tokens: int  # a lookup is a token; a step is a batch of them


class Uniform:
    """Random pages of the span, without end."""

    loops = 0

    def __init__(self, job: DeviceJob, page_count: int) -> None:
        self._random = np.random.default_rng([job.seed, 0x9E37])
        self._page_count = page_count
        self._step = job.batch if job.decode else 1
        self._reads = max(1, BATCH_READS // self._step) * self._step

    def next(self) -> Work | None:
        pages = self._random.integers(self._page_count, size=self._reads, dtype=np.uint64)
        ends = np.arange(self._step, self._reads + 1, self._step, dtype=np.uint64)
        return Work(pages, ends, self._reads)


class Replay:
    """The pages of a stream's tokens under a layout, behind an exact LRU if there is a cache; over and over.

    In decode mode, ``batch`` parts of the stream advance side by side, as a server's requests do.
    """

    def __init__(self, job: DeviceJob, layout: Layout, stream: Stream, page_count: int) -> None:
        self._job, self._page_count = job, page_count
        self._parts = [native.Source(layout, part) for part in _parts(stream, job.batch if job.decode else 1)]
        self._columns = self._parts[0].page_columns
        self._tokens = max(1, BATCH_READS // self._columns // len(self._parts))
        classes = np.zeros(self._columns, np.uint32)
        self._lru = native_caches.Lru(layout.page_count, [job.cache_pages], classes) if job.cache_pages else None
        self.loops = 0
        if self._lru is not None and job.warm_tokens:
            self._warm(self._lru, len(stream.ids))

    def _warm(self, lru: native_caches.Lru, stream_tokens: int) -> None:
        """Fill the cache with the stream's first tokens, as the simulator's warm-up does."""
        left = self._job.warm_tokens // len(self._parts)
        if left >= stream_tokens // len(self._parts):
            raise ValueError(f"a warm-up of {self._job.warm_tokens} tokens leaves none of a stream of {stream_tokens}")
        while left:
            pages = self._emit(min(left, self._tokens))
            lru.access(np.ascontiguousarray(pages.reshape(-1, self._columns)))
            left -= len(pages)

    def _emit(self, tokens: int) -> np.ndarray:
        """Pages of the next tokens, uint32 [steps, parts, columns]; the parts are equally long."""
        buffers = []
        for part in self._parts:
            buffer = np.empty((tokens, self._columns), np.uint32)
            buffers.append(buffer[: part.next(buffer)])
        return np.stack(buffers, axis=1)

    def next(self) -> Work | None:
        pages = self._emit(self._tokens)
        if not len(pages):
            self.loops += 1
            for part in self._parts:
                part.rewind()
            pages = self._emit(self._tokens)
        steps, parts, _ = pages.shape
        lines = np.ascontiguousarray(pages.reshape(steps * parts, self._columns))
        wanted = lines != native.NO_PAGE
        if self._lru is not None:
            verdicts = np.empty(lines.shape, np.uint8)
            self._lru.access(lines, missed=verdicts)
            wanted = verdicts > 0
        reads = lines[wanted].astype(np.uint64)
        if self._job.wrap:
            reads %= np.uint64(self._page_count)
        ends = np.cumsum(wanted.sum(axis=1), dtype=np.uint64)
        return Work(reads, np.ascontiguousarray(ends[parts - 1 :: parts]), steps * parts)


def _parts(stream: Stream, count: int) -> list[Stream]:
    """The stream cut into equally long parts; each starts a document of its own."""
    if count == 1:
        return [stream]
    length = len(stream.ids) // count
    if not length:
        raise ValueError(f"a batch of {count} requests needs a stream of at least as many tokens")
    parts = []
    for begin in range(0, count * length, length):
        starts = stream.document_starts.astype(np.int64)
        inside = starts[(starts > begin) & (starts < begin + length)] - begin
        inside = np.concatenate([[0], inside]).astype(np.uint64)
        parts.append(Stream(stream.ids[begin : begin + length], inside, stream.vocabulary, stream.name))
    return parts


class Feeder:
    """Deals work to the readers' threads, in order, and says when a limit is reached."""

    def __init__(self, source: Uniform | Replay, limit: int | None) -> None:
        self.source, self._left = source, limit
        self._lock = threading.Lock()

    def next(self) -> Work | None:
        with self._lock:
            if self._left == 0:
                return None
            work = self.source.next()
            if work is None or self._left is None:
                return work
            if work.tokens > self._left:
                work = _cut(work, self._left)
            self._left -= work.tokens
            return work


def _cut(work: Work, tokens: int) -> Work:
    """The first ``tokens`` of some work (whole steps of it)."""
    per_end = work.tokens // len(work.ends)
    count = max(1, tokens // per_end)
    ends = work.ends[:count]
    return Work(work.pages[: int(ends[-1])], ends, tokens if count == 1 else count * per_end)

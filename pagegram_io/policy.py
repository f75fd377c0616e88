"""Policies: pages in, counts out. Exact LRU at given sizes, at every size, and over rows instead of pages.

Each policy has one face (``access`` a batch, ``counts``, ``full_at``), and ``drive`` pushes a restartable page
source through it, so that another policy or another source fits without touching the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pagegram_io import native, native_caches
from pagegram_io.layout import Layout
from pagegram_io.sizes import CacheSize
from pagegram_io.tokens import Stream
from pagegram_io.trace import BATCH_PLACES, PageSource

SIZES_A_DECADE = 64
NOT_FULL = 2**64 - 1

Tick = Callable[[int], None]  # told of accesses done; may raise to stop the work


@dataclass(frozen=True)
class Counts:
    """Totals at one moment: accesses, compulsory [classes]; misses [sizes, classes]."""

    accesses: np.ndarray
    compulsory: np.ndarray
    misses: np.ndarray

    def since(self, earlier: Counts) -> Counts:
        return Counts(
            self.accesses - earlier.accesses, self.compulsory - earlier.compulsory, self.misses - earlier.misses
        )


@dataclass(frozen=True)
class Result:
    """What a pass over a source found, as integers; sizes are in pages (rows where the cache holds rows)."""

    sizes: list[int]
    total: Counts
    second_half: Counts
    full_at_token: list[int | None]
    tokens: int
    seconds: float
    state_bytes: int  # the simulator's own memory


def size_grid(page_count: int) -> list[int]:
    """0, then SIZES_A_DECADE cache sizes in pages a decade, up to the whole table."""
    steps = int(np.ceil(np.log10(max(page_count, 2)) * SIZES_A_DECADE)) + 1
    grid = {min(round(10 ** (i / SIZES_A_DECADE)), page_count) for i in range(steps)}
    return [0, *sorted(grid | {page_count})]


class Policy:
    """A policy behind one face: access a batch, and the counts so far."""

    def access(self, pages: np.ndarray) -> None:
        raise NotImplementedError

    def counts(self) -> Counts:
        raise NotImplementedError

    def full_at(self) -> list[int | None]:
        raise NotImplementedError

    def state_bytes(self) -> int:
        raise NotImplementedError


class LruPolicy(Policy):
    def __init__(self, page_count: int, sizes: list[int], classes: np.ndarray) -> None:
        # A handle takes so many sizes at once; more of them share the pass.
        step = native_caches.MAX_CAPACITIES
        self._parts = [native_caches.Lru(page_count, sizes[i : i + step], classes) for i in range(0, len(sizes), step)]

    def access(self, pages: np.ndarray) -> None:
        for part in self._parts:
            part.access(pages)

    def counts(self) -> Counts:
        parts = [part.counts() for part in self._parts]
        return Counts(parts[0][0], parts[0][1], np.concatenate([p[2] for p in parts]))

    def full_at(self) -> list[int | None]:
        full = np.concatenate([part.counts()[3] for part in self._parts])
        return [None if token == NOT_FULL else int(token) for token in full]

    def state_bytes(self) -> int:
        return sum(part.state_bytes for part in self._parts)


class CurvePolicy(Policy):
    def __init__(self, page_count: int, sizes: list[int], classes: np.ndarray, isa: str) -> None:
        self._curve = native_caches.Curve(page_count, classes, isa=isa)
        self._sizes = sizes

    def access(self, pages: np.ndarray) -> None:
        self._curve.access(pages)

    def all_misses(self) -> np.ndarray:
        """Misses at every size from 0 to the whole table, uint64 [page_count + 1, classes]."""
        accesses, _ = self._curve.counts()
        hits = self._curve.histogram()
        np.cumsum(hits, axis=1, out=hits)
        return (accesses[:, None] - hits).T

    def counts(self) -> Counts:
        accesses, compulsory = self._curve.counts()
        every = self.all_misses()
        at = [min(size, len(every) - 1) for size in self._sizes]
        return Counts(accesses, compulsory, every[at])

    def full_at(self) -> list[int | None]:
        first = self._curve.first_tokens()
        return [0 if s == 0 else int(first[s - 1]) if s <= len(first) else None for s in self._sizes]

    def state_bytes(self) -> int:
        return self._curve.state_bytes


class RowCachePolicy(Policy):
    """The same LRU over rows; a token reads each page that holds a row it missed. One size a pass."""

    def __init__(self, layout: Layout, size: int, classes: np.ndarray) -> None:
        if layout.row_count >= native.NO_PAGE:
            raise ValueError(
                f"a row cache tells at most 4,294,967,294 rows apart, and this table has {layout.row_count:,}"
            )
        columns = np.zeros(layout.column_count, np.uint32)
        self._lru = native_caches.Lru(layout.row_count, [size], columns)
        self._place = native.Place(layout)
        self._classes, self._class_count = classes, int(classes.max()) + 1
        zero = np.zeros(self._class_count, np.uint64)
        self._accesses, self._compulsory, self._misses = zero, zero.copy(), zero.copy()

    def _pages_by_class(self, rows: np.ndarray) -> np.ndarray:
        used = (self._place.pages(rows) != native.NO_PAGE).sum(axis=0)
        return np.bincount(self._classes, weights=used, minlength=self._class_count).astype(np.uint64)

    def access(self, rows: np.ndarray) -> None:
        verdicts = np.empty(rows.shape, np.uint8)
        self._lru.access(rows.astype(np.uint32), missed=verdicts)
        self._accesses = self._accesses + self._pages_by_class(rows)
        self._misses = self._misses + self._pages_by_class(np.where(verdicts > 0, rows, np.uint64(native.NO_ROW)))
        first = np.where(verdicts >= native_caches.FIRST_ACCESS, rows, np.uint64(native.NO_ROW))
        self._compulsory = self._compulsory + self._pages_by_class(first)

    def counts(self) -> Counts:
        return Counts(self._accesses, self._compulsory, self._misses[None, :])

    def full_at(self) -> list[int | None]:
        token = int(self._lru.counts()[3][0])
        return [None if token == NOT_FULL else token]

    def state_bytes(self) -> int:
        return self._lru.state_bytes


class RowSource:
    """Rows of a stream in the form of a page source, for the row cache."""

    def __init__(self, layout: Layout, stream: Stream) -> None:
        self._rows, self._stream, self._position = native.Rows(layout), stream, 0
        self.page_count, self.page_columns, self.token_count = layout.row_count, layout.column_count, len(stream.ids)

    def next(self, rows: np.ndarray) -> int:
        end = min(self._position + len(rows), self.token_count)
        count = end - self._position
        if count:
            rows[:count] = self._rows.emit(self._stream, self._position, end)
        self._position = end
        return count

    def rewind(self) -> None:
        self._position = 0


def pollution_lines(page_count: int, pages: int, columns: int) -> np.ndarray:
    """Pages that no table has, each once, as the lines of a page matrix; the policy must know of page_count + pages.

    A sequential stream longer than the largest cache does to it what one of its length does.
    """
    lines = np.full(-(-pages // columns) * columns, native.NO_PAGE, np.uint32)
    if page_count + pages >= native.NO_PAGE:
        raise ValueError(
            f"{pages:,} pages of another file beside {page_count:,} of the table are too many to tell apart"
        )
    lines[:pages] = np.arange(page_count, page_count + pages, dtype=np.uint32)
    return lines.reshape(-1, columns)


def drive(
    source: PageSource,
    work: Policy,
    sizes: list[int],
    *,
    warm_tokens: int,
    dtype: type,
    tick: Tick | None,
    pollution_pages: int = 0,
) -> Result:
    """Push the whole source through a policy, noting the counts where counting starts, half-way and at the end.

    pollution_pages of another file are read once through the same cache where the second half begins, uncounted.
    """
    if warm_tokens < 0:
        raise ValueError(f"--warm {warm_tokens} is negative; it is the number of tokens that fill the cache uncounted")
    if warm_tokens >= source.token_count:
        raise ValueError(f"--warm {warm_tokens} leaves nothing to count: the stream has {source.token_count} tokens")
    started = time.perf_counter()
    counted = source.token_count - warm_tokens
    stops = [warm_tokens, warm_tokens + counted // 2, source.token_count]
    buffer: np.ndarray = np.empty((max(1, BATCH_PLACES // source.page_columns), source.page_columns), dtype)
    marks: list[Counts] = []
    foreign = None
    done = 0
    for stop in stops:
        while done < stop:
            count = source.next(buffer[: min(len(buffer), stop - done)])
            if not count:
                raise ValueError(f"the page source ended after {done} of {source.token_count} tokens")
            work.access(buffer[:count])
            done += count
            if tick:
                tick(count * source.page_columns)
        marks.append(work.counts())
        if pollution_pages and len(marks) == 2:
            lines = pollution_lines(source.page_count, pollution_pages, source.page_columns)
            work.access(lines)
            foreign = work.counts().since(marks[1]), len(lines)
    total, second_half, full_at = marks[2].since(marks[0]), marks[2].since(marks[1]), work.full_at()
    if foreign:
        total, second_half = total.since(foreign[0]), second_half.since(foreign[0])
        full_at = [at if at is None or at < stops[1] else max(stops[1], at - foreign[1]) for at in full_at]
    return Result(
        sizes=sizes,
        total=total,
        second_half=second_half,
        full_at_token=full_at,
        tokens=counted,
        seconds=time.perf_counter() - started,
        state_bytes=work.state_bytes(),
    )


def index_bytes(page_count: int) -> int:
    """RAM that the LRU's own index takes for a table of this many pages (csrc/positions.c)."""
    words = min(page_count * 4 + 2**20, 2**32 - 1024) // 512 * 8
    return page_count * 4 + words * 12


def cache_sizes(
    caches: Sequence[CacheSize], unit_bytes: int, unit_count: int, *, curve: bool
) -> list[tuple[int, int, bool]]:
    """(bytes, capacity, asked for?) of the caches asked for and, for a curve, of the grid.

    Raises ValueError for a cache under one unit.
    """
    sizes = []
    for cache in caches:
        capacity = cache.pages(unit_count, unit_bytes)
        if capacity == 0 and cache.text != "none":
            raise ValueError(
                f"a cache of {cache.text} holds not even one unit of {unit_bytes} bytes; give more, or none"
            )
        sizes.append((cache.bytes if cache.bytes is not None else capacity * unit_bytes, capacity, True))
    if curve:
        known = {capacity for _, capacity, _ in sizes}
        sizes += [
            (capacity * unit_bytes, capacity, False) for capacity in size_grid(unit_count) if capacity not in known
        ]
        sizes.sort(key=lambda size: size[1])
    if not sizes:
        raise ValueError("no cache size was given; --cache takes a list such as 64MiB,1GiB,none")
    return sizes

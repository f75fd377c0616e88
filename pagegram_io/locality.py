"""What a served stream shows step by step: pages of a step, reuse from one step to the next, cold starts, reads a step.

``serve`` pushes a schedule (interleave.py) through exact LRU caches and counts by the verdict on each access, where
policy.drive needs totals alone. All counts are integers, and exact.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagegram_io import native
from pagegram_io.interleave import Block, ServedSource, Steps, step_begins
from pagegram_io.native_caches import FIRST_ACCESS, MAX_CAPACITIES, Lru, count_verdicts, merge_steps
from pagegram_io.policy import NOT_FULL, Counts, Result, Tick, pollution_lines
from pagegram_io.tokens import Stream

COLD_TOKENS = 64  # of a document: until its own text has been read, its n-grams are others'
PROBE_TOKENS = 1 << 17
PROBE_ORDER = 3
FILLER_SHARE = 0.05  # of a text's trigrams, a third and more are distinct in so many tokens


def distinct_share(stream: Stream) -> float:
    """Distinct trigrams in the stream's first 131,072 tokens, as a share of them: near 0 for a filler stream."""
    hashes = native.hash_ngrams(stream, PROBE_ORDER, 0, min(len(stream), PROBE_TOKENS))
    hashes.sort()
    return (1 + int(np.count_nonzero(hashes[1:] != hashes[:-1]))) / len(hashes)


def filler_warning(stream: Stream) -> str | None:
    """A sentence where a stream repeats itself as no text does: its reads flatter every cache."""
    share = distinct_share(stream)
    if len(stream) < 1000 or share >= FILLER_SHARE:
        return None
    return (
        f"{stream.name}: only {100 * share:.2g} % of its trigrams are distinct (of a text, a third or more): a filler "
        "stream reads the same rows again and again, and flatters the cache; use real text"
    )


def _grown(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Counts by value, with more values counted."""
    more = np.bincount(values, minlength=len(counts))
    more[: len(counts)] += counts
    return more


def quantile(counts: np.ndarray, share: float) -> int:
    """The least value that at least a share of what was counted does not exceed; 0 for nothing."""
    total = int(counts.sum())
    if not total:
        return 0
    return int(np.searchsorted(np.cumsum(counts), max(1, -(-total * round(share * 10**9) // 10**9))))


def mean(counts: np.ndarray) -> float:
    total = int(counts.sum())
    return int((counts * np.arange(len(counts))).sum()) / total if total else 0.0


class StepShape:
    """Pages of each step before any cache, and how many of them the step before touched too."""

    def __init__(self, page_count: int, classes: np.ndarray) -> None:
        self._page_bits = np.uint64(max(page_count - 1, 1).bit_length())
        self._classes, self._class_count = classes, int(classes.max()) + 1
        self._before = np.empty(0, np.uint64)  # pages of the step before the block's first
        self.steps = 0
        self.pages_by_step = np.zeros(1, np.int64)  # steps by distinct pages
        self.touched = 0  # places before merging
        self.reused = np.zeros(self._class_count, np.int64)
        self.followers = np.zeros(self._class_count, np.int64)  # pages of steps that have a step before

    def add(self, block: Block) -> None:
        begins = step_begins(block.steps.steps)
        used = block.units != native.NO_PAGE
        per_step = np.add.reduceat(np.count_nonzero(used, axis=1), begins)
        self.pages_by_step = _grown(self.pages_by_step, per_step)
        self.touched += block.touched
        places = np.flatnonzero(used.ravel())
        pages = block.units.ravel()[places].astype(np.uint64)
        step = np.repeat(np.arange(1, len(begins) + 1, dtype=np.uint64), per_step)
        earlier = np.concatenate([self._before, (step << self._page_bits) | pages])  # the step before has number 0
        earlier.sort()
        wanted = ((step - np.uint64(1)) << self._page_bits) | pages
        at = np.minimum(np.searchsorted(earlier, wanted), max(len(earlier) - 1, 0))
        found = earlier[at] == wanted if len(earlier) else np.zeros(0, bool)
        classes = self._classes[places % block.units.shape[1]]
        follows = step > np.uint64(1 if self.steps == 0 else 0)
        self.reused += np.bincount(classes[found], minlength=self._class_count)
        self.followers += np.bincount(classes[follows], minlength=self._class_count)
        self.steps += len(begins)
        self._before = np.sort(pages[step == np.uint64(len(begins))])


def shape_of(source: ServedSource, classes: np.ndarray) -> StepShape:
    """An empty shape for a source; classes are of the layout's page columns."""
    if source.unit == "row":  # a group's rows are of the class of its pages
        groups, first = np.unique(source.layout.group_of_page_column(), return_index=True)
        classes = np.repeat(classes[first], [len(source.layout.groups[g].columns) for g in groups])
    return StepShape(source.page_count, np.tile(classes.astype(np.int64), 1 + source.serving.draft))


class Tally:
    """What caches of several sizes read, by class; tokens from ``warm`` on count, those from ``half`` on are the second
    half. Sizes go from the smallest to the largest. ``by_step``: whether steps are counted by their reads, too."""

    def __init__(self, warm: int, half: int, class_count: int, size_count: int, *, by_step: bool) -> None:
        self.warm, self.half = warm, half
        shape = class_count, size_count
        self.sums = {name: np.zeros(shape, np.int64) for name in ("misses", "later_misses", "cold", "decode")}
        names = "accesses", "compulsory", "later_accesses", "later_compulsory"
        self.shared = {name: np.zeros(class_count, np.int64) for name in names}  # the same for every size
        self.cold_tokens = self.decode_tokens = 0
        # Full later steps (of a log: of decode alone), by reads of classes 0..c, and then of class c alone:
        # [2 * class * size, reads].
        self.step_reads = np.zeros((2 * class_count * size_count, 1), np.uint32) if by_step else None

    def add(
        self, steps: Steps, full: np.ndarray, begin: int, used: np.ndarray, first: np.ndarray, reads: np.ndarray
    ) -> None:
        """A block that starts at token ``begin`` of the schedule: used pages and first accesses [tokens, classes], and
        reads [tokens, classes, sizes]; full: of each step, whether it counts in the distribution of reads a step."""
        lines = len(reads)
        for prefix, start in (("", self.warm), ("later_", self.half)):
            since = max(start - begin, 0)
            self.shared[prefix + "accesses"] += _total(used[since:])
            self.shared[prefix + "compulsory"] += _total(first[since:])
            self.sums[prefix + "misses"] += _total(reads[since:])
        counted = np.arange(begin, begin + lines) >= self.warm
        cold, decode = (steps.depths < COLD_TOKENS) & counted, steps.decode & counted
        self.sums["cold"] += _total(reads[cold])
        self.sums["decode"] += _total(reads if decode.all() else reads[decode])
        self.cold_tokens += int(np.count_nonzero(cold))
        self.decode_tokens += int(np.count_nonzero(decode))
        if self.step_reads is not None:
            begins = step_begins(steps.steps)
            per_step = reads if len(begins) == lines else np.add.reduceat(reads, begins, axis=0)
            own = per_step[full & (begins + begin >= self.half)].astype(np.int64)
            self._add_steps(self.step_reads, np.concatenate([np.cumsum(own, axis=1), own], axis=1))

    def _add_steps(self, known: np.ndarray, reads: np.ndarray) -> None:
        """Steps by their reads, of each class (twice: see above) and size at once: [steps, 2 * classes, sizes]."""
        cells, width = known.shape
        needed = int(reads.max(initial=0)) + 1
        if needed > width:  # doubled, since a table of it all may be large and steps many
            width = max(needed, 2 * width)
            known = np.concatenate([known, np.zeros((cells, width - known.shape[1]), known.dtype)], axis=1)
        np.add.at(known.reshape(-1), (reads.reshape(len(reads), cells) + width * np.arange(cells)).ravel(), 1)
        self.step_reads = known

    def served(self, k: int, size: int, full_at: int | None, tokens: int, seconds: float, state_bytes: int) -> Served:
        """The k-th size alone."""

        def counts(prefix: str) -> Counts:
            shared = [self.shared[prefix + name].astype(np.uint64) for name in ("accesses", "compulsory")]
            return Counts(shared[0], shared[1], self.sums[prefix + "misses"][None, :, k].astype(np.uint64))

        return Served(
            Result([size], counts(""), counts("later_"), [full_at], tokens, seconds, state_bytes),
            {name: of_class[:, k] for name, of_class in self.sums.items()},
            None if self.step_reads is None else self.step_reads.reshape(2, *self.sums["misses"].shape, -1)[:, :, k],
            self.cold_tokens,
            self.decode_tokens,
        )


def _total(counts: np.ndarray) -> np.ndarray:
    return counts.sum(axis=0, dtype=np.int64)


@dataclass(frozen=True)
class Served:
    """One cache size behind a schedule: totals; sums by class; and, where asked for, steps by their reads: of classes
    0..c together, and of each alone."""

    result: Result
    sums: dict[str, np.ndarray]
    step_reads: np.ndarray | None  # [2, class, reads]
    cold_tokens: int
    decode_tokens: int

    def facts(self, c: int) -> dict[str, Any]:
        """Of one class, for its record: reads per token where documents begin, and where tokens are made."""
        counted = self.result.tokens
        misses, cold, decode = (int(self.sums[name][c]) for name in ("misses", "cold", "decode"))

        def rate(reads: int, tokens: int) -> float | None:
            return reads / tokens if tokens else None

        return {
            "cold_tokens": self.cold_tokens,
            "cold_reads_per_token": rate(cold, self.cold_tokens),
            "settled_reads_per_token": rate(misses - cold, counted - self.cold_tokens),
            "decode_tokens": self.decode_tokens,
            "decode_reads_per_token": rate(decode, self.decode_tokens),
            "prefill_reads_per_token": rate(misses - decode, counted - self.decode_tokens),
        }


def shape_facts(shape: StepShape, c: int) -> dict[str, Any]:
    """Of the steps themselves, for a record: pages a step (of all classes), merged places, reuse of one class."""
    pages = shape.pages_by_step
    followers = int(shape.followers[c])
    return {
        "steps": shape.steps,
        "pages_per_step_p50": quantile(pages, 0.5),
        "pages_per_step_p99": quantile(pages, 0.99),
        "pages_per_step_max": len(pages) - 1,
        "pages_before_merging": shape.touched,
        "adjacent_reuse": int(shape.reused[c]) / followers if followers else None,
    }


class _Caches:
    """Exact LRU caches of any number of sizes, ascending, which share a pass; in as many handles as that takes."""

    def __init__(self, unit_count: int, sizes: list[int], columns: int) -> None:
        one_class = np.zeros(columns, np.uint32)
        self._parts = [sizes[i : i + MAX_CAPACITIES] for i in range(0, len(sizes), MAX_CAPACITIES)]
        self._handles = [Lru(unit_count, part, one_class) for part in self._parts]

    def access(self, block: Block, cut: int, pollution: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """Of the sizes of each handle: verdicts on a block, and how many sizes; pollution comes before line ``cut``."""
        lines = len(block.units)
        for part, handle in zip(self._parts, self._handles, strict=True):
            missed = np.empty(block.units.shape, np.uint8)
            handle.access(block.units[:cut], missed=missed[:cut])
            if cut < lines:
                handle.access(pollution)
                handle.access(block.units[cut:], missed=missed[cut:])
            yield missed, len(part)

    def full_at_lines(self) -> list[int]:
        return [int(line) for handle in self._handles for line in handle.counts()[3]]

    @property
    def state_bytes(self) -> int:
        return sum(handle.state_bytes for handle in self._handles)


def serve(
    source: ServedSource,
    capacities: Sequence[int],
    classes: np.ndarray,
    *,
    warm_tokens: int = 0,
    pollution_pages: int = 0,
    shape: StepShape | None = None,
    by_step: bool = False,
    tick: Tick | None = None,
) -> list[Served]:
    """Push a whole schedule through caches of all capacities (in the source's units) in one pass, all cold.

    classes: of each page column of the layout. pollution_pages are read through each cache once, in order, where the
    second half begins; they are not counted. shape, where given, is told of each block. by_step: count steps by their
    reads. Raises ValueError as policy.drive does.
    """
    tokens = source.token_count
    if not 0 <= warm_tokens < tokens:
        raise ValueError(f"--warm {warm_tokens} leaves nothing to count: the stream has {tokens} tokens")
    started = time.perf_counter()
    half = warm_tokens + (tokens - warm_tokens) // 2
    classes = np.tile(classes, 1 + source.serving.draft).astype(np.uint32)
    sizes = sorted(set(capacities))
    pollution = pollution_lines(source.page_count, min(pollution_pages, sizes[-1]), source.page_columns)
    held = source.page_count + int(np.count_nonzero(pollution != native.NO_PAGE))
    caches = _Caches(held, sizes, source.page_columns)
    tally = Tally(warm_tokens, half, int(classes.max()) + 1, len(sizes), by_step=by_step)
    count = _page_reads if source.unit == "page" else functools.partial(_row_reads, source)
    done = 0
    for block in source.blocks():
        if shape is not None:
            shape.add(block)
        lines = len(block.units)
        cut = half - done if len(pollution) and 0 <= half - done < lines else lines
        counts = [count(block, missed, classes, some) for missed, some in caches.access(block, cut, pollution)]
        used, first, _ = counts[0]  # the same for every size
        reads = np.concatenate([of_part[2] for of_part in counts], axis=2)
        tally.add(block.steps, _full_steps(source, block), done, used, first, reads)
        done += lines
        if tick:
            tick(block.units.size)
    seconds = time.perf_counter() - started
    full_at = [_full_at(line, half, len(pollution)) for line in caches.full_at_lines()]
    return [
        tally.served(k, capacity, full_at[k], tokens - warm_tokens, seconds, caches.state_bytes)
        for capacity in capacities
        for k in (sizes.index(capacity),)
    ]


def _full_steps(source: ServedSource, block: Block) -> np.ndarray:
    """Of each step, whether all documents in turn take part and, of a log, no prompt is read beside."""
    begins = step_begins(block.steps.steps)
    full = documents_in_steps(block.steps, begins) == source.serving.interleave
    if source.stream.prompt_lengths is not None:
        full &= np.logical_and.reduceat(block.steps.decode, begins)
    return full


def _full_at(line: int, half: int, pollution: int) -> int | None:
    """The token that filled a cache, by the line that did: pollution's lines are no tokens."""
    if line == NOT_FULL:
        return None
    return line if line < half else max(half, line - pollution)


def documents_in_steps(steps: Steps, begins: np.ndarray) -> np.ndarray:
    """How many documents take part in each step."""
    entered = np.ones(len(steps.positions), np.int64)
    entered[1:] = (np.diff(steps.positions) != 1) | (np.diff(steps.steps) != 0) | (steps.depths[1:] == 0)
    return np.add.reduceat(entered, begins)


def _page_reads(
    block: Block, missed: np.ndarray, classes: np.ndarray, size_count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return count_verdicts(block.units, missed, classes, size_count)


def _row_reads(
    source: ServedSource, block: Block, missed: np.ndarray, classes: np.ndarray, size_count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of caches of rows, as count_verdicts: pages touched, and those read since rows on them were missed."""
    page_columns = source.place.page_columns * (1 + source.serving.draft)
    members = [np.flatnonzero(classes == c) for c in range(int(classes.max()) + 1)]

    def pages_of(chosen: np.ndarray) -> np.ndarray:
        rows = np.where(chosen, block.units.astype(np.uint64), np.uint64(native.NO_ROW))
        pages = source.place.pages(rows.reshape(-1, source.rows.column_count)).reshape(-1, page_columns)
        merge_steps(pages, block.steps.steps)
        used = pages != native.NO_PAGE
        return np.stack([np.count_nonzero(used[:, columns], axis=1) for columns in members], axis=1)

    smaller = missed & (FIRST_ACCESS - 1)  # sizes that miss
    reads = [pages_of(smaller > k) for k in range(size_count)]
    return (
        pages_of(block.units != native.NO_PAGE),
        pages_of(missed >= FIRST_ACCESS),
        np.stack(reads, axis=2),
    )

"""What a served stream shows step by step: pages of a step, reuse from one step to the next, cold starts, reads a step.

``serve`` pushes a schedule (interleave.py) through exact LRU caches and counts by the verdict on each access, where
policy.drive needs totals alone. All counts are integers, and exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagegram_io import native
from pagegram_io.interleave import Block, ServedSource, Steps, repeated_in_step, step_begins
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
    return int(np.searchsorted(np.cumsum(counts), max(1, -(-total * round(share * 1000) // 1000))))


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
        self.touched += int(block.touched.sum())
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


@dataclass
class Tally:
    """What one cache size read, by class; tokens from ``warm`` on count, those from ``half`` on are the second half."""

    warm: int
    half: int
    classes: np.ndarray  # of each column of a page matrix, drafts' columns included

    def __post_init__(self) -> None:
        count = int(self.classes.max()) + 1
        self.columns = [np.flatnonzero(self.classes == c) for c in range(count)]
        names = ("accesses", "misses", "compulsory", "later_accesses", "later_misses", "later_compulsory", "cold",
                 "decode")  # fmt: skip
        self.sums = {name: np.zeros(count, np.int64) for name in names}
        self.cold_tokens = self.decode_tokens = 0
        self.step_reads = [
            np.zeros(1, np.int64) for _ in range(count)
        ]  # full later steps (of a log: of decode alone), by reads of classes 0..c

    def _sum(self, mask: np.ndarray) -> np.ndarray:
        return np.bincount(self.classes, weights=np.count_nonzero(mask, axis=0), minlength=len(self.columns)).astype(
            np.int64
        )

    def add(
        self, steps: Steps, full: np.ndarray, begin: int, used: np.ndarray, reads: np.ndarray, first: np.ndarray
    ) -> None:
        """A block that starts at token `begin` of the schedule. Masks [tokens, columns]: pages used, read, and those
        read for the first time ever; full: of each step, whether it counts in the distribution of reads a step."""
        lines = np.arange(begin, begin + len(reads))
        for prefix, chosen in (("", lines >= self.warm), ("later_", lines >= self.half)):
            if chosen.any():
                for name, mask in (("accesses", used), ("misses", reads), ("compulsory", first)):
                    self.sums[prefix + name] += self._sum(mask if chosen.all() else mask[chosen])
        by_line = np.stack([np.count_nonzero(reads[:, columns], axis=1) for columns in self.columns], axis=1)
        cold, decode = (steps.depths < COLD_TOKENS) & (lines >= self.warm), steps.decode & (lines >= self.warm)
        self.sums["cold"] += by_line[cold].sum(axis=0)
        self.sums["decode"] += by_line[decode].sum(axis=0)
        self.cold_tokens += int(np.count_nonzero(cold))
        self.decode_tokens += int(np.count_nonzero(decode))
        begins = step_begins(steps.steps)
        counted = full & (begins + begin >= self.half)
        per_step = np.cumsum(np.add.reduceat(by_line, begins, axis=0), axis=1)[counted]
        for c in range(len(self.columns)):
            self.step_reads[c] = _grown(self.step_reads[c], per_step[:, c])

    def result(self, size: int, full_at: int | None, tokens: int, seconds: float, state_bytes: int) -> Result:
        def counts(prefix: str) -> Counts:
            made = [self.sums[prefix + name].astype(np.uint64) for name in ("accesses", "compulsory", "misses")]
            return Counts(made[0], made[1], made[2][None, :])

        return Result([size], counts(""), counts("later_"), [full_at], tokens, seconds, state_bytes)


@dataclass(frozen=True)
class Served:
    """One cache size behind a schedule: totals, and its tally."""

    result: Result
    tally: Tally

    def facts(self, c: int) -> dict[str, Any]:
        """Of one class, for its record: reads per token where documents begin, and where tokens are made."""
        tally, counted = self.tally, self.result.tokens
        misses = int(tally.sums["misses"][c])

        def rate(reads: int, tokens: int) -> float | None:
            return reads / tokens if tokens else None

        cold, decode = int(tally.sums["cold"][c]), int(tally.sums["decode"][c])
        return {
            "cold_tokens": tally.cold_tokens,
            "cold_reads_per_token": rate(cold, tally.cold_tokens),
            "settled_reads_per_token": rate(misses - cold, counted - tally.cold_tokens),
            "decode_tokens": tally.decode_tokens,
            "decode_reads_per_token": rate(decode, tally.decode_tokens),
            "prefill_reads_per_token": rate(misses - decode, counted - tally.decode_tokens),
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


def serve(
    source: ServedSource,
    capacities: Sequence[int],
    classes: np.ndarray,
    *,
    warm_tokens: int = 0,
    pollution_pages: int = 0,
    shape: StepShape | None = None,
    tick: Tick | None = None,
) -> list[Served]:
    """Push a whole schedule through a cache of each capacity (in the source's units), all cold.

    classes: of each page column of the layout. pollution_pages are read through each cache once, in order, where the
    second half begins; they are not counted. shape, where given, is told of each block. Raises ValueError as
    policy.drive does.
    """
    tokens = source.token_count
    if not 0 <= warm_tokens < tokens:
        raise ValueError(f"--warm {warm_tokens} leaves nothing to count: the stream has {tokens} tokens")
    started = time.perf_counter()
    half = warm_tokens + (tokens - warm_tokens) // 2
    repeated = np.tile(classes, 1 + source.serving.draft).astype(np.int64)
    reads_of = _row_reads(source) if source.unit == "row" else None
    pollution = pollution_lines(source.page_count, min(pollution_pages, max(capacities)), source.page_columns)
    held = source.page_count + int(np.count_nonzero(pollution != native.NO_PAGE))
    columns = np.zeros(source.page_columns, np.uint32)
    caches = [native.Lru(held, [capacity], columns) for capacity in capacities]
    tallies = [Tally(warm_tokens, half, repeated) for _ in capacities]
    done = 0
    for block in source.blocks():
        if shape is not None:
            shape.add(block)
        begins, lines = step_begins(block.steps.steps), len(block.units)
        full = documents_in_steps(block.steps, begins) == source.serving.interleave
        if source.stream.prompt_lengths is not None:  # of a log, steps that read no prompt beside
            full &= np.logical_and.reduceat(block.steps.decode, begins)
        cut = half - done if len(pollution) and 0 <= half - done < lines else lines
        for cache, tally in zip(caches, tallies, strict=True):
            missed = np.empty(block.units.shape, np.uint8)
            cache.access(block.units[:cut], missed=missed[:cut])
            if cut < lines:
                cache.access(pollution)
                cache.access(block.units[cut:], missed=missed[cut:])
            if reads_of is None:
                tally.add(block.steps, full, done, block.units != native.NO_PAGE, missed > 0, missed == 2)
            else:
                tally.add(block.steps, full, done, *reads_of(block, missed))
        done += lines
        if tick:
            tick(block.units.size)
    seconds = time.perf_counter() - started
    served = []
    for capacity, cache, tally in zip(capacities, caches, tallies, strict=True):
        full_at = _full_at(int(cache.counts()[3][0]), half, len(pollution))
        result = tally.result(capacity, full_at, tokens - warm_tokens, seconds, cache.state_bytes)
        served.append(Served(result, tally))
    return served


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


def _row_reads(source: ServedSource) -> Callable[[Block, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For a cache of rows: which pages a step touches, and which it reads since rows on them were missed."""
    page_columns = source.place.page_columns * (1 + source.serving.draft)

    def pages_of(rows: np.ndarray, steps: np.ndarray) -> np.ndarray:
        pages = source.place.pages(rows.reshape(-1, source.rows.column_count)).reshape(-1, page_columns)
        pages[repeated_in_step(pages, steps, source.layout.page_count)] = native.NO_PAGE
        return pages != native.NO_PAGE

    def reads(block: Block, missed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = np.where(block.units == native.NO_PAGE, np.uint64(native.NO_ROW), block.units.astype(np.uint64))
        steps = block.steps.steps
        return (
            pages_of(rows, steps),
            pages_of(np.where(missed > 0, rows, np.uint64(native.NO_ROW)), steps),
            pages_of(np.where(missed == 2, rows, np.uint64(native.NO_ROW)), steps),
        )

    return reads

"""Plans: will a table on this drive keep up? Demand (demand.py) against drive (drive.py), as records and sentences.

Pure: nothing here reads a file or simulates. A verdict is "go", "no go" or "not known"; it rests on second-half reads,
first accesses included, and on step times that were measured, never on an extrapolation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagegram_io.demand import Demand, LayerReads
from pagegram_io.drive import STEPS_MIN, Drive
from pagegram_io.records import PlanRecord
from pagegram_io.sizes import format_bytes

GO, NO_GO, NOT_KNOWN = "go", "no go", "not known"
FIRST_SHARE_MAX = 0.2  # of the reads; above it they say more about the stream's length than about the cache
PATHS = {
    "page": "private page cache (exact LRU)",
    "row": "private row cache (exact LRU of rows; each miss reads its page)",
    "mmap": "kernel page cache through mmap (approximated by an exact LRU: no readahead, no other files)",
}


@dataclass(frozen=True)
class Goal:
    """What must hold in 99 steps of 100. Times in ns.

    deadlines: by layer (None where a table belongs to none), the compute time before the layer that needs the rows;
    empty where only tokens a second are asked for. compute: of a whole step, where it is known.
    """

    deadlines: Mapping[int | None, int]
    compute_ns: int | None = None
    tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        if not self.deadlines and self.tokens_per_second is None:
            raise ValueError("a plan needs a goal: give --deadline, --compute with --model-layers, or --goal tokens/s")

    def order(self, layers: Sequence[int | None]) -> list[int | None]:
        """The layers as they need their rows. ValueError where deadlines and layers do not match."""
        if not self.deadlines:
            return list(layers)
        unknown = [layer for layer in self.deadlines if layer not in layers]
        if unknown and list(layers) == [None]:
            raise ValueError("this table belongs to no layer; give one deadline, as --deadline 1ms")
        if unknown or len(self.deadlines) < len(layers):
            named = ", ".join(f"{'any' if layer is None else layer}" for layer in layers)
            raise ValueError(f"the table's layers are {named}; give each its deadline, as --deadline 1=200us,14=3ms")
        return sorted(layers, key=lambda layer: (self.deadlines[layer], layer or 0))


@dataclass(frozen=True)
class LayerTime:
    """When a layer's rows have all arrived, counted from the start of the step; None where it was not measured."""

    layer: int | None
    reads_mean: float
    reads_p50: int
    reads_p99: int
    p50_ns: int | None
    p99_ns: int | None
    deadline_ns: int | None
    least_ns: int = 0  # what steps of fewer reads took at p99, where so many were not measured

    @property
    def late(self) -> bool:
        return self.deadline_ns is not None and max(self.p99_ns or 0, self.least_ns) > self.deadline_ns


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason, and the numbers that it rests on."""

    verdict: str
    reason: str
    demand: Demand
    layers: tuple[LayerTime, ...]
    tokens_per_second_p50: float | None
    tokens_per_second_p99: float | None

    @property
    def last(self) -> LayerTime:
        return self.layers[-1]


def judge(demand: Demand, drive: Drive | None, goal: Goal, depth: int) -> Judgement:
    """What a drive at a depth makes of a demand. Without a drive nothing is known."""
    times = tuple(_layer_time(layer, drive, goal, depth) for layer in demand.layers)
    p50 = tokens_per_second(demand.batch, [(t.p50_ns, t.deadline_ns) for t in times], goal.compute_ns)
    p99 = tokens_per_second(demand.batch, [(t.p99_ns, t.deadline_ns) for t in times], goal.compute_ns)
    why = unknown_reads(demand)
    if why:
        return Judgement(NOT_KNOWN, why, demand, times, p50, p99)
    if drive is None:
        return Judgement(NOT_KNOWN, "there is no device record", demand, times, p50, p99)
    late = next((t for t in times if t.late), None)
    if late is not None and late.deadline_ns is not None:
        when = f"after {_time(late.p99_ns)}" if late.p99_ns is not None else f"no sooner than {_time(late.least_ns)}"
        why = f"{_layer(late)} come {when} (p99), and are needed after {_time(late.deadline_ns)}"
        return Judgement(NO_GO, why, demand, times, p50, p99)
    for t in times:
        if t.p99_ns is None:
            verdict, why = _beyond(t, drive, depth)
            return Judgement(verdict, why, demand, times, p50, p99)
    if goal.tokens_per_second is not None and p99 is not None and p99 < goal.tokens_per_second:
        why = f"{p99:,.0f} tokens/s (p99) are below the goal of {goal.tokens_per_second:,.0f}"
        return Judgement(NO_GO, why, demand, times, p50, p99)
    return Judgement(GO, _met(times, p99, goal), demand, times, p50, p99)


def unknown_reads(demand: Demand) -> str | None:
    """Why the reads of a demand are not those of a server that has run for long; None where they are."""
    if demand.whole:
        return "the cache holds the whole table: once that is in RAM no read is left, and this plan says nothing"
    if demand.full_at_token is None:
        return f"the cache of {format_bytes(demand.cache_bytes)} never filled; give more tokens"
    if demand.full_at_token > demand.half_token:
        return f"the cache filled at token {demand.full_at_token:,}, after mid-stream; give more tokens"
    if demand.cache_pages and demand.first_share > FIRST_SHARE_MAX:  # without a cache every access is a read
        return f"{100 * demand.first_share:.0f} % of the reads are first accesses; give more tokens"
    if demand.steps < STEPS_MIN:
        return f"the second half holds {demand.steps} full steps of {demand.batch}; give more documents"
    return None


def _layer_time(reads: LayerReads, drive: Drive | None, goal: Goal, depth: int) -> LayerTime:
    p50 = drive.step_ns(reads.p50, depth) if drive else None
    p99 = drive.step_ns(reads.p99, depth) if drive else None
    return LayerTime(
        layer=reads.layer,
        reads_mean=reads.mean,
        reads_p50=reads.p50,
        reads_p99=reads.p99,
        p50_ns=p50[0] if p50 else None,
        p99_ns=p99[1] if p99 else None,
        deadline_ns=goal.deadlines.get(reads.layer),
        least_ns=drive.at_least_ns(reads.p99, depth) if drive and p99 is None else 0,
    )


def _beyond(time: LayerTime, drive: Drive, depth: int) -> tuple[str, str]:
    largest = drive.largest_step(depth)
    if not largest:
        return NOT_KNOWN, (
            f"no decode record at a depth of at most {depth}; measure: pagegram-io nvme --uniform --decode "
            f"--batch {time.reads_p99} --depth {depth} {drive.target}"
        )
    return NOT_KNOWN, (
        f"{time.reads_p99} reads a step (p99) are beyond the largest step measured, {largest:,.0f}; measure: "
        f"pagegram-io nvme --uniform --decode --batch {time.reads_p99} --depth {depth} {drive.target}"
    )


def tokens_per_second(
    batch: int, times: Sequence[tuple[int | None, int | None]], compute_ns: int | None
) -> float | None:
    """Of (arrival, deadline) by layer: compute and the longest wait for rows; without compute, the reads alone.

    None where an arrival is not known, or where a step takes no time at all.
    """
    arrivals = [arrival for arrival, _ in times if arrival is not None]
    if len(arrivals) < len(times):
        return None
    if compute_ns is None:
        step = max(arrivals)
    else:
        waits = [a - (d if d is not None else compute_ns) for a, (_, d) in zip(arrivals, times, strict=True)]
        step = compute_ns + max(0, *waits)
    return batch * 1e9 / step if step else None


def _met(times: Sequence[LayerTime], rate: float | None, goal: Goal) -> str:
    parts = [
        f"{_layer(t)} come after {_time(t.p99_ns or 0)} (p99), in time for {_time(t.deadline_ns)}"
        for t in times
        if t.deadline_ns is not None
    ]
    if goal.tokens_per_second is not None:
        shown = "unbounded" if rate is None else f"{rate:,.0f}"
        parts.append(f"{shown} tokens/s (p99), at least the goal of {goal.tokens_per_second:,.0f}")
    return "; ".join(parts)


def _layer(time: LayerTime) -> str:
    reads = f"its {time.reads_p99} reads (p99)"
    return f"layer {time.layer}'s rows, {reads}," if time.layer is not None else f"the rows, {reads},"


def _time(value_ns: int) -> str:
    """A time for a person: 210 us, 3.2 ms."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value_ns >= size:
            return f"{value_ns / size:.3g} {unit}"
    return f"{value_ns} ns"


@dataclass(frozen=True)
class Change:
    """Something to do, and what it would come to; judged only when asked, cheapest first."""

    text: str
    judge: Callable[[], Judgement | None]


def cheapest_change(changes: Iterable[Change]) -> str | None:
    """The first change that turns the verdict into "go"; None where none does."""
    for change in changes:
        judgement = change.judge()
        if judgement is not None and judgement.verdict == GO:
            return change.text
    return None


def drive_needed(judgement: Judgement) -> str:
    """What a faster drive would have to do, in numbers to look for."""
    wanted = [f"{t.reads_p99} reads at once within {_time(t.deadline_ns)}" for t in judgement.layers if t.deadline_ns]
    return f"a drive whose p99 step is {' and '.join(wanted)}" if wanted else "a faster drive"


def smallest_cache(judgements: Iterable[Judgement]) -> int | None:
    """The smallest cache, in bytes, whose verdict is "go"; None where none is."""
    return min((j.demand.cache_bytes for j in judgements if j.verdict == GO), default=None)


def assumptions(
    goal: Goal, drive: Drive | None, *, path: str, depth: int, file_bytes: int, placed: str, log: bool = False
) -> list[str]:
    """Everything that a verdict takes for granted, a sentence each; log: the stream is one of requests."""
    lines = [
        f"Serving path: {PATHS[path]}.",
        "Reads are of the stream's second half, first accesses included; your text decides, so plan on your own.",
        "All rows of a step are known when it starts, and are asked for together, those needed first before others.",
        "A step's p99 time is the p99 of measured steps of at least its p99 reads: at most 2 % of steps are slower.",
        f"Placement: {placed}.",
    ]
    if log:
        lines.append("Steps are those that only make tokens; prompts pass through the same cache, and are not timed.")
    if drive is not None:
        lines.append(
            f"The drive is otherwise idle, and the engine keeps up to {depth} reads in flight ({drive.engine})."
        )
        if drive.span_bytes < file_bytes:
            lines.append(
                f"The drive was measured over {format_bytes(drive.span_bytes)}, less than the table's "
                f"{format_bytes(file_bytes)}: a full drive can be slower."
            )
    if goal.compute_ns is not None or goal.deadlines:
        lines.append("Compute times are as given, the same at every batch.")
    if goal.compute_ns is None:
        lines.append("Without --compute, tokens/s are what the reads alone allow.")
    return lines


def records_of(judgement: Judgement, about: Mapping[str, Any]) -> list[PlanRecord]:
    """A record of the whole step and, where the table has several layers, one for each; about: what they share."""
    demand, last = judgement.demand, judgement.last
    shared: dict[str, Any] = {
        "cache_bytes": demand.cache_bytes,
        "cache_pages": demand.cache_pages,
        "batch": demand.batch,
        "steps": demand.steps,
        "reads_per_token": demand.reads_per_token,
        "first_share": demand.first_share,
        "cache_full_at_token": demand.full_at_token,
    }
    whole: dict[str, Any] = {
        "tokens_per_second_p50": judgement.tokens_per_second_p50,
        "tokens_per_second_p99": judgement.tokens_per_second_p99,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
    }
    several = len(judgement.layers) > 1
    records = [PlanRecord(**about, **shared, **whole, **_times(last), layer=None if several else last.layer)]
    for time in judgement.layers if several else ():
        part: dict[str, Any] = {"verdict": _layer_verdict(time, demand), "reason": judgement.reason}
        records.append(PlanRecord(**about, **shared, **part, **_times(time), layer=time.layer))
    return records


def _layer_verdict(time: LayerTime, demand: Demand) -> str:
    if unknown_reads(demand) or (time.p99_ns is None and not time.late):
        return NOT_KNOWN
    return NO_GO if time.late else GO


def _times(time: LayerTime) -> dict[str, Any]:
    return {
        "reads_per_step_mean": time.reads_mean,
        "reads_per_step_p50": time.reads_p50,
        "reads_per_step_p99": time.reads_p99,
        "arrival_p50_ns": time.p50_ns,
        "arrival_p99_ns": time.p99_ns,
        "deadline_ns": time.deadline_ns,
    }

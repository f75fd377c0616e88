"""Plans: will a table on this drive keep up? Demand (demand.py) against drive (drive.py), as records and sentences.

Pure: nothing here reads a file or simulates. A verdict is "go", "no go" or "not known"; it rests on second-half reads,
first accesses included, and on step times that were measured, never on an extrapolation. Published figures of a drive
bound its times from below: they can say "no go", and never "go".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagegram_io.demand import Demand
from pagegram_io.drive import STEPS_MIN, AnyDrive, Drive
from pagegram_io.plan_times import LayerTime, Rates, layer_times, rates_of
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
    """What must hold at p99 reads and p99 times. Times in ns.

    deadlines: by layer (None where a table belongs to none), the compute time before the layer that needs the rows;
    empty where only tokens a second are asked for. compute: of a whole step, where it is known.
    """

    deadlines: Mapping[int | None, int]
    compute_ns: int | None = None
    tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        if not self.deadlines and self.tokens_per_second is None:
            raise ValueError("a plan needs a goal: give --deadline, --compute with --model-layers, or --goal tokens/s")
        last = max(self.deadlines.values(), default=0)
        if self.compute_ns is not None and last > self.compute_ns:
            raise ValueError(
                f"a deadline of {_time(last)} is after the end of a step of {_time(self.compute_ns)}; deadlines are "
                "compute time before the layer that needs the rows, and at most --compute"
            )

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
class Judgement:
    """A verdict with its reason, and the numbers that it rests on.

    not_ruled_out: not known, but only because the drive's figures are published ones, which allow it. rank: whose reads
    these are, where a table is dealt to several. asked: how the rows of several layers are asked for.
    """

    verdict: str
    reason: str
    demand: Demand
    layers: tuple[LayerTime, ...]
    rates: Rates
    asked: str | None = None
    not_ruled_out: bool = False
    rank: int | None = None

    @property
    def last(self) -> LayerTime:
        return self.layers[-1]


def judge(
    demand: Demand,
    drive: AnyDrive | None,
    goal: Goal,
    depth: int,
    rank: int | None = None,
    *,
    page_bytes: int = 4096,
    one_by_one: bool = False,
) -> Judgement:
    """What a drive at a depth makes of a demand. Without a drive nothing is known.

    page_bytes and one_by_one (a read at a time, as page faults are): of the measurement that a reason asks for.
    """
    times, asked = layer_times(demand, drive, [goal.deadlines.get(reads.layer) for reads in demand.layers], depth)
    rates = Rates() if drive is None else rates_of(demand.batch, times, goal.compute_ns)
    verdict, reason, not_ruled_out = NOT_KNOWN, unknown_reads(demand, rank), False
    if compute_alone(demand.batch, goal):
        verdict, reason = NO_GO, compute_alone(demand.batch, goal)
    elif reason is None and drive is None:
        reason = "there is no device record; make one with pagegram-io nvme --decode, and give --device"
    elif reason is None and drive is not None:
        one_by_one = one_by_one or (isinstance(drive, Drive) and drive.one_by_one)
        how = measure_command([1] if one_by_one else _sizes(times), depth, drive, page_bytes)
        ruled_out = _too_late(times, drive) or _too_slow(rates, drive, goal)
        if ruled_out:
            verdict, reason = NO_GO, ruled_out
        elif drive.published:  # never "go", even where a step has no reads at p99
            reason, not_ruled_out = _only_published(times[-1], drive, how), True
        else:
            open_question = _unmeasured(times, drive, depth, how) or _rate_open(rates, goal, how)
            verdict, reason = (NOT_KNOWN, open_question) if open_question else (GO, _met(times, rates.p99, goal, asked))
    assert reason is not None
    return Judgement(verdict, reason, demand, times, rates, asked, not_ruled_out, rank)


def compute_alone(batch: int, goal: Goal) -> str | None:
    """Why no drive and no cache would do; None where they might."""
    least_ns = goal.compute_ns or max(goal.deadlines.values(), default=0)
    most = batch * 1e9 / least_ns if least_ns else None
    if most is None or goal.tokens_per_second is None or most >= goal.tokens_per_second:
        return None
    whose = "compute alone" if goal.compute_ns else "compute before the last layer that needs rows alone"
    return (
        f"{whose}, {_time(least_ns)} a step, allows {most:,.0f} tokens/s at batch {batch}, below the goal of "
        f"{goal.tokens_per_second:,.0f}"
    )


def slowest(judgements: Sequence[Judgement]) -> Judgement:
    """Of the ranks of one step, the one that it waits for: by verdict, tokens a second, arrival, and reads."""

    def key(judgement: Judgement) -> tuple[int, float, int, int, float]:
        severity = (GO, NOT_KNOWN, NO_GO).index(judgement.verdict)
        last, rates = judgement.last, judgement.rates
        rate = rates.p99 or rates.p99_most or float("inf")
        return severity, -rate, max(last.p99_ns or 0, last.p99_least_ns), last.reads_p99, last.reads_mean

    return max(judgements, key=key)


def unknown_reads(demand: Demand, rank: int | None = None) -> str | None:
    """Why the reads of a demand are not those of a server that has run for long; None where they are."""
    if demand.whole:
        return "the cache holds the whole table: once that is in RAM no read is left, and this plan says nothing"
    if demand.full_at_token is None:
        unless = "" if rank is None else ", unless it holds all that the rank has"
        return f"the cache of {format_bytes(demand.cache_bytes)} never filled; give more tokens{unless}"
    if demand.full_at_token > demand.half_token:
        return f"the cache filled at token {demand.full_at_token:,}, after mid-stream; give more tokens"
    if demand.cache_pages and demand.first_share > FIRST_SHARE_MAX:  # without a cache every access is a read
        return f"{100 * demand.first_share:.0f} % of the reads are first accesses; give more tokens"
    if demand.steps < STEPS_MIN:
        return f"the second half holds {demand.steps} full steps of {demand.batch}; give more documents"
    return None


def _too_late(times: Sequence[LayerTime], drive: AnyDrive) -> str | None:
    late = next((t for t in times if t.late), None)
    if late is None:
        return None
    return _late(late, _by(drive))


def _late(time: LayerTime, by: str = "") -> str:
    sure = time.p99_ns == time.p99_least_ns
    when = f"after {_time(time.p99_least_ns)}" if sure else f"no sooner than {_time(time.p99_least_ns)}"
    return f"{_layer(time)} come {when} (p99{by}), and are needed after {_time(time.deadline_ns or 0)}"


def _too_slow(rates: Rates, drive: AnyDrive, goal: Goal) -> str | None:
    known = rates.p99_bound
    if goal.tokens_per_second is None or known is None or known >= goal.tokens_per_second:
        return None
    shown = f"{known:,.0f}" if rates.p99_most is None else f"at most {known:,.0f}"
    return f"{shown} tokens/s (p99{_by(drive)}) are below the goal of {goal.tokens_per_second:,.0f}"


def _unmeasured(times: Sequence[LayerTime], drive: AnyDrive, depth: int, how: str) -> str | None:
    """Why it is not known whether a layer's rows come in time: steps of so many reads were not measured."""
    open_time = next((t for t in times if not t.in_time), None)
    if open_time is None:
        return None
    alone = isinstance(drive, Drive) and drive.one_by_one
    if alone and open_time.p99_least_ns:
        return f"{_open(open_time)}, one page fault after the other; plan for --path page, or measure your own engine"
    largest = drive.largest_step(depth)
    if alone or not largest:
        lacking = "of single reads, as page faults are" if alone else f"at a depth of at most {depth}"
        return f"no decode record {lacking}; {how}"
    if open_time.p99_ns is None:
        most = times[-1].reads_p99  # one layer's may be few: it waits for all, or for one whose are too many
        return f"{most} reads a step (p99) are beyond the largest step measured, {largest:,.0f}; {how}"
    return f"{_open(open_time)}; {how}"


def _open(time: LayerTime) -> str:
    when = f"no sooner than {_time(time.p99_least_ns)} (p99)" if time.p99_least_ns else "at a time that is not known"
    if time.p99_ns is not None:
        when = f"between {_time(time.p99_least_ns)} and {_time(time.p99_ns)} (p99), as far as steps were measured"
    needed = "" if time.deadline_ns is None else f", and are needed after {_time(time.deadline_ns)}"
    return f"{_layer(time)} come {when}{needed}"


def _rate_open(rates: Rates, goal: Goal, how: str) -> str | None:
    """Why it is not known whether the goal of tokens a second is met, though rows come in time."""
    if goal.tokens_per_second is None or (rates.p99 is not None and rates.p99 >= goal.tokens_per_second):
        return None
    if rates.p99_bound is None:  # a step without a read takes no time: no goal is too high
        return None
    most = f"{rates.p99_bound:,.0f}"
    if rates.p99 is None:
        return f"at most {most} tokens/s (p99), by the compute before the last layer that needs rows; give --compute"
    if goal.compute_ns is not None and not goal.deadlines:
        return (
            f"{rates.p99:,.0f} tokens/s (p99) where rows are needed as a step starts, {most} where only at its end; "
            "give --deadline or --model-layers"
        )
    return f"between {rates.p99:,.0f} and {most} tokens/s (p99), as far as steps were measured; {how}"


def _sizes(times: Sequence[LayerTime]) -> list[int]:
    """The steps that this plan wants measured: each layer's own, and that of all reads."""
    return sorted({max(reads, 1) for t in times for reads in (t.own_p99, times[-1].reads_p99)})


def _by(drive: AnyDrive) -> str:
    return f", by published figures of {drive.name}" if drive.published else ""


def _only_published(time: LayerTime, drive: AnyDrive, how: str) -> str:
    least = f" ({_layer(time)} come no sooner than {_time(time.p99_least_ns)})" if time.p99_least_ns else ""
    return f"published figures of {drive.name} do not rule it out{least}, and say no more; {how}"


def measure_command(sizes: Sequence[int], depth: int, drive: AnyDrive, page_bytes: int = 4096) -> str:
    """To measure, by the command whose records say how long steps of so many reads take."""
    batches = ",".join(map(str, sizes))
    page = "" if page_bytes == 4096 else f" --page-size {page_bytes}"
    where = drive.where if isinstance(drive, Drive) else "DEVICE"
    return f"measure (pagegram-io nvme --uniform --decode --batch {batches} --depth {depth}{page} --json {where})"


def _met(times: Sequence[LayerTime], rate: float | None, goal: Goal, asked: str | None) -> str:
    parts = [_in_time(t) for t in times if t.deadline_ns is not None]
    if goal.tokens_per_second is not None:
        shown = "unbounded" if rate is None else f"{rate:,.0f}"
        alone = " by the reads alone" if goal.compute_ns is None else ""
        parts.append(f"{shown} tokens/s (p99){alone}, at least the goal of {goal.tokens_per_second:,.0f}")
    return "; ".join(parts) + (f" (layers' rows asked for {asked})" if asked else "")


def _in_time(time: LayerTime) -> str:
    within = "" if time.deadline_ns is None else f", in time for {_time(time.deadline_ns)}"
    return f"{_layer(time)} come after {_time(time.p99_ns or 0)} (p99){within}"


def _layer(time: LayerTime) -> str:
    whose = f"layer {time.layer}'s rows" if time.layer is not None else "the rows"
    return f"{whose}, {time.reads_p99} reads into the step (p99),"


def _time(value_ns: int) -> str:
    """A time for a person: 210 us, 3.2 ms."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value_ns >= size:
            return f"{value_ns / size:.3g} {unit}"
    return f"{value_ns} ns"


def drive_needed(judgement: Judgement, goal: Goal) -> str:
    """What a faster drive would have to do, in numbers to look for: layer after layer, each before it is needed."""
    within = [t.deadline_ns for t in judgement.layers]
    if goal.tokens_per_second is not None and not any(t.late for t in judgement.layers):
        step = int(judgement.demand.batch * 1e9 / goal.tokens_per_second)
        wait = None if goal.compute_ns is None else step - goal.compute_ns
        within = [step if wait is None else wait + (t.deadline_ns or goal.compute_ns or 0) for t in judgement.layers]
    wanted: list[str] = []
    before = 0
    for t, time in zip(judgement.layers, within, strict=True):
        if time is not None and t.own_p99:
            more = f"{t.own_p99} reads at once within {_time(max(time - before, 1))}"
            wanted.append(f"then {more}" if wanted else more)
            before = max(before, time)
    return f"a drive whose p99 step is {' and '.join(wanted)}"


def smallest_cache(judgements: Iterable[Judgement]) -> int | None:
    """The smallest cache, in bytes, whose verdict is "go"; None where none is."""
    return min((j.demand.cache_bytes for j in judgements if j.verdict == GO), default=None)


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
        "tokens_per_second_p50": judgement.rates.p50,
        "tokens_per_second_p99": judgement.rates.p99,
        "tokens_per_second_p50_most": judgement.rates.p50_most,
        "tokens_per_second_p99_most": judgement.rates.p99_most,
        "layers_asked": judgement.asked,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
    }
    several = len(judgement.layers) > 1
    records = [PlanRecord(**about, **shared, **whole, **_times(last), layer=None if several else last.layer)]
    for time in judgement.layers if several else ():
        verdict, reason = _of_layer(time, judgement)
        part: dict[str, Any] = {"verdict": verdict, "reason": reason}
        records.append(PlanRecord(**about, **shared, **part, **_times(time), layer=time.layer))
    return records


def _of_layer(time: LayerTime, judgement: Judgement) -> tuple[str, str]:
    """Verdict and reason of one layer's deadline, where only that is asked."""
    unknown = unknown_reads(judgement.demand, judgement.rank)
    if unknown:
        return NOT_KNOWN, unknown
    if time.late:
        return NO_GO, _late(time)
    return (GO, _in_time(time)) if time.in_time else (NOT_KNOWN, _open(time))


def _times(time: LayerTime) -> dict[str, Any]:
    return {
        "reads_per_step_mean": time.reads_mean,
        "reads_per_step_p50": time.reads_p50,
        "reads_per_step_p99": time.reads_p99,
        "arrival_p50_ns": time.p50_ns,
        "arrival_p99_ns": time.p99_ns,
        "arrival_p50_least_ns": time.p50_least_ns or None,
        "arrival_p99_least_ns": time.p99_least_ns or None,
        "deadline_ns": time.deadline_ns,
    }

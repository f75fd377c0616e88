"""When the rows of a step arrive on a drive, from both sides: measured steps of at least, and of at most, their reads.

Rows of several layers are asked for all at once, so that each arrives with the last, or one layer after the other; a
plan takes what serves its deadlines better. No engine has a layer's rows sooner than a step of all the reads up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pagegram_io.demand import Demand, LayerReads
from pagegram_io.drive import AnyDrive

AT_ONCE, IN_TURN = "all at once", "one layer after the other"
Times = tuple[int | None, int | None]  # p50 and p99, ns; None beyond the largest step measured


@dataclass(frozen=True)
class LayerTime:
    """When a layer's rows have all arrived, counted from the start of the step.

    p50_ns, p99_ns: at the latest, None where so many reads were not measured; the least: no sooner (0: not known).
    own_p99: its own reads, where reads_p99 are those of layers needed before it, too.
    """

    layer: int | None
    reads_mean: float
    reads_p50: int
    reads_p99: int
    own_p99: int
    p50_ns: int | None
    p99_ns: int | None
    deadline_ns: int | None
    p50_least_ns: int = 0
    p99_least_ns: int = 0

    @property
    def late(self) -> bool:
        return self.deadline_ns is not None and self.p99_least_ns > self.deadline_ns

    @property
    def in_time(self) -> bool:
        """Surely so; where neither this nor late, steps of so many reads have to be measured."""
        return self.p99_ns is not None and (self.deadline_ns is None or self.p99_ns <= self.deadline_ns)


@dataclass(frozen=True)
class Rates:
    """Tokens a second, and the most that they can be where that is more: for want of a measured step, or of compute
    times. None: not known, and no bound is."""

    p50: float | None = None
    p99: float | None = None
    p50_most: float | None = None
    p99_most: float | None = None

    @property
    def p99_bound(self) -> float | None:
        """What is not exceeded (p99), if anything is known."""
        return self.p99 if self.p99_most is None else self.p99_most


def layer_times(
    demand: Demand, drive: AnyDrive | None, deadlines: Sequence[int | None], depth: int
) -> tuple[tuple[LayerTime, ...], str | None]:
    """Of each layer, as they are needed; and how its rows are asked for, where there are several layers."""
    several = len(demand.layers) > 1
    at_once = _at_once(demand.layers, drive, depth)
    ways = {AT_ONCE: at_once, IN_TURN: _in_turn(demand.layers, drive, depth)} if several else {"": at_once}
    found = {
        way: tuple(
            _layer_time(reads, latest, drive, deadline, depth)
            for reads, latest, deadline in zip(demand.layers, arrivals, deadlines, strict=True)
        )
        for way, arrivals in ways.items()
    }

    def merit(way: str) -> tuple[int, bool, float]:
        times = found[way]
        last = times[-1].p99_ns
        return -sum(t.in_time for t in times), last is None, last or 0

    best = min(found, key=merit)
    return found[best], best or None


def _at_once(layers: Sequence[LayerReads], drive: AnyDrive | None, depth: int) -> list[Times]:
    last = layers[-1]
    return [_step(drive, last.p50, last.p99, depth)] * len(layers)


def _in_turn(layers: Sequence[LayerReads], drive: AnyDrive | None, depth: int) -> list[Times]:
    def after(a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else a + b

    steps = [_step(drive, layer.own_p50, layer.own_p99, depth) for layer in layers]
    return list(accumulate(steps, lambda before, step: (after(before[0], step[0]), after(before[1], step[1]))))


def _step(drive: AnyDrive | None, reads_p50: int, reads_p99: int, depth: int) -> Times:
    p50 = drive.step_ns(reads_p50, depth) if drive else None
    p99 = drive.step_ns(reads_p99, depth) if drive else None
    return p50[0] if p50 else None, p99[1] if p99 else None


def _layer_time(
    reads: LayerReads, latest: Times, drive: AnyDrive | None, deadline: int | None, depth: int
) -> LayerTime:
    least = (
        drive.at_least_ns(reads.p50, depth)[0] if drive else 0,
        drive.at_least_ns(reads.p99, depth)[1] if drive else 0,
    )
    # Records scatter: a small step that took longer than a large one is no bound of it.
    p50_least, p99_least = (few if many is None else min(few, many) for few, many in zip(least, latest, strict=True))
    return LayerTime(
        reads.layer, reads.mean, reads.p50, reads.p99, reads.own_p99, *latest, deadline, p50_least, p99_least
    )


def rates_of(batch: int, times: Sequence[LayerTime], compute_ns: int | None) -> Rates:
    """Tokens a second of a batch whose rows arrive so."""
    deadlines = [t.deadline_ns for t in times]
    found: dict[str, float | None] = {}
    for name in ("p50", "p99"):
        latest, least = ([getattr(t, f"{name}{bound}_ns") for t in times] for bound in ("", "_least"))
        known = tokens_per_second(batch, latest, deadlines, compute_ns)
        most = tokens_per_second(batch, least, deadlines, compute_ns, most=True)
        found[name] = known
        found[f"{name}_most"] = most if most and (known is None or most > known) else None
    return Rates(**found)


def tokens_per_second(
    batch: int,
    arrivals: Sequence[int | None],
    deadlines: Sequence[int | None],
    compute_ns: int | None,
    *,
    most: bool = False,
) -> float | None:
    """Of arrivals and deadlines by layer: compute and the longest wait for rows; with neither, the reads alone.

    Rows without a deadline are needed as the step starts; for the most that can be, only at its end. A deadline without
    the compute of the whole step leaves what comes after it open: not known, and at most what the deadline allows. None
    where an arrival is not known, or where a step takes no time at all.
    """
    known = [arrival for arrival in arrivals if arrival is not None]
    if len(known) < len(arrivals):
        return None
    last = max((d for d in deadlines if d is not None), default=0)
    if compute_ns is None and last and not most:
        return None
    if compute_ns is None and not last:
        step = max(known)
    else:
        compute = last if compute_ns is None else compute_ns
        needed = [(compute if most else 0) if d is None else d for d in deadlines]
        step = compute + max(0, *(a - n for a, n in zip(known, needed, strict=True)))
    return batch * 1e9 / step if step else None

"""A drive as a plan knows it: from device records, each of which must have measured the device.

Drives of which only published figures are known are in drive_profiles.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from pagegram_io.drive_profiles import Profile

STEPS_MIN = 100  # below it there is no 99th percentile


@dataclass(frozen=True)
class StepTime:
    """What one decode record measured: time of steps of so many reads each, issued together.

    varied: so many on average, as of a layout whose rows may straddle pages. Of repeats p50_ns and p99_ns are the
    slowest, and the least the fastest; mean_ns is of the fastest, too.
    """

    reads_per_step: float
    depth: int
    p50_ns: int
    p99_ns: int
    varied: bool = False
    p50_least_ns: int | None = None  # None: as p50_ns
    p99_least_ns: int | None = None
    mean_ns: float | None = None

    @property
    def least(self) -> tuple[int, int]:
        p50, p99 = self.p50_least_ns, self.p99_least_ns
        return self.p50_ns if p50 is None else p50, self.p99_ns if p99 is None else p99


@dataclass(frozen=True)
class Rate:
    """What one throughput record measured: reads a second at a held depth."""

    depth: int
    iops: float


@dataclass(frozen=True)
class Drive:
    """What a file of device records says of its target; refusals: a sentence for each record that was left out."""

    target: str
    name: str
    engine: str
    span_bytes: int
    steps: tuple[StepTime, ...]
    rates: tuple[Rate, ...]
    refusals: tuple[str, ...] = ()
    one_by_one: bool = False  # a read at a time, as page faults through mmap are
    model: str | None = None  # whose own files were read, where target is their folder

    published: ClassVar[bool] = False

    @property
    def where(self) -> str:
        """What was measured, as words of a command."""
        target = shlex.quote(self.target)
        return target if self.model is None else f"--model {shlex.quote(self.model)} --files {target}"

    @property
    def depths(self) -> list[int]:
        """Depths at which steps were measured; where none was, those of rates."""
        return sorted({step.depth for step in self.steps} or {rate.depth for rate in self.rates})

    def largest_step(self, depth: int) -> float:
        """Reads of the largest step measured at a depth of at most ``depth``; 0 where none was."""
        return max((s.reads_per_step for s in self.steps if s.depth <= depth), default=0.0)

    def step_ns(self, reads: float, depth: int) -> tuple[int, int] | None:
        """(p50, p99) that a step of so many reads takes at most; None beyond the largest measured.

        That of the next larger size measured, or of a smaller one that took longer: more reads take no less, and
        records that say so contradict one another. Of a size at several depths, the fastest. Reads one by one have no
        such bound: how slow their sum can be, no percentile of one of them tells.
        """
        if reads <= 0:
            return 0, 0
        by_size: dict[float, list[StepTime]] = {}
        for step in self.steps:
            if step.depth <= depth:
                by_size.setdefault(step.reads_per_step, []).append(step)
        enough = min((size for size in by_size if size >= reads), default=None)
        if enough is None or self.one_by_one:
            return None
        smaller = [steps for size, steps in by_size.items() if size <= enough]
        return max(min(s.p50_ns for s in of) for of in smaller), max(min(s.p99_ns for s in of) for of in smaller)

    def at_least_ns(self, reads: float, depth: int) -> tuple[int, int]:
        """(p50, p99) that a step of so many reads takes at least: what the largest measured of no more reads took, or a
        larger one that took less.

        A step measured with fewer reads in flight bounds nothing: at this depth it might have been faster. Nor do steps
        of varied numbers of reads: the slow ones are those of more reads than their mean. Of reads one by one, so many
        times the mean of one, or its median if that is less.
        """
        if self.one_by_one:
            alone = [s for s in self.steps if s.reads_per_step == 1]
            each = min((min(s.least[0], s.mean_ns or s.least[0]) for s in alone), default=0)
            return (int(reads * each),) * 2
        able = [s for s in self.steps if not s.varied and s.depth >= min(depth, s.reads_per_step)]
        # More reads in flight than the engine keeps take less time yet: they count where nothing nearer was measured.
        near = [s for s in able if s.depth == depth or s.reads_per_step <= depth]
        sizes = {s.reads_per_step for s in near}
        able = near + [s for s in able if s.reads_per_step not in sizes]
        below = max((s.reads_per_step for s in able if s.reads_per_step <= reads), default=None)
        if below is None:
            return 0, 0
        upward = [s.least for s in able if s.reads_per_step >= below]
        return min(p50 for p50, _ in upward), min(p99 for _, p99 in upward)

    def iops(self, depth: int) -> float | None:
        """The most reads a second measured at a depth of at most ``depth``; of reads one by one, at a depth of 1."""
        depth = 1 if self.one_by_one else depth
        return max((rate.iops for rate in self.rates if rate.depth <= depth), default=None)


AnyDrive: TypeAlias = "Drive | Profile"


def refusal(row: Mapping[str, Any], page_bytes: int) -> str | None:
    """Why a device record says nothing of a drive's reads; None where it does."""
    errors = {k: v for k, v in row.items() if k.startswith("errors_") and v}
    if row.get("kind") != "nvme":
        return f"it is of kind {row.get('kind')!r}, not a device record; make them with pagegram-io nvme --json"
    if not row.get("direct"):
        return "its reads went through the kernel's page cache, not to the device; leave out --buffered"
    if errors:
        return "reads failed (" + ", ".join(f"{v} {k.removeprefix('errors_')}" for k, v in errors.items()) + ")"
    if row.get("allow_holes"):
        return "holes were read, which never reach the device"
    if (row.get("zero_page_fraction") or 0) > 0.01:
        return f"{100 * row['zero_page_fraction']:.0f} % of its pages are zeros, which may never reach flash"
    if row.get("interrupted"):
        return "it was interrupted"
    if row.get("page_bytes") != page_bytes:
        return f"it read pages of {row.get('page_bytes')} bytes, and the table has pages of {page_bytes}"
    if row.get("mode") not in ("throughput", "decode"):
        return f"it is of mode {row.get('mode')!r}, neither throughput nor decode"
    if row["mode"] == "decode" and row.get("cache_pages"):
        return "its steps have different numbers of reads, those that its cache missed; measure without --cache"
    if row["mode"] == "decode" and (row.get("jobs") or 1) > 1:
        return f"its {row['jobs']} jobs made steps side by side, each slower for the others; measure with one"
    if row["mode"] == "decode" and (row.get("steps") or 0) < STEPS_MIN:
        return f"it holds {row.get('steps') or 0} steps, of which no 99th percentile can be told; measure longer"
    wanted = ("target", "depth", "reads", *(("step_p50_ns", "step_p99_ns") if row["mode"] == "decode" else ("iops",)))
    missing = [name for name in wanted if not row.get(name)]
    if missing:
        return f"it has no {missing[0]}"
    odd = [name for name in wanted[1:] if not isinstance(row[name], (int, float)) or not 0 < row[name] < 1e18]
    if odd:
        return f"its {odd[0]} is {row[odd[0]]!r}"
    if row["mode"] == "decode" and row["step_p50_ns"] > row["step_p99_ns"]:
        return f"its median step, {row['step_p50_ns']} ns, is slower than its p99, {row['step_p99_ns']} ns"
    return None


def read_drive(rows: Sequence[Mapping[str, Any]], page_bytes: int, *, name: str = "") -> Drive:
    """The drive that records of one target describe: of repeats the slowest, for a go, and the fastest, for a no go.

    ValueError for records of two targets, and where no record is left.
    """
    kept: list[Mapping[str, Any]] = []
    refusals = []
    for number, row in enumerate(rows, 1):
        why = refusal(row, page_bytes)
        if why:
            refusals.append(f"{name or 'device records'}: record {number} was left out: {why}")
        else:
            kept.append(row)
    if not kept:
        raise ValueError(refusals[0] if refusals else f"{name or 'the file'}: holds no device records")
    targets = {row["target"] for row in kept}
    if len(targets) > 1:
        raise ValueError(f"{name}: holds records of {' and '.join(sorted(targets)[:2])}; give a file for each drive")
    found: dict[tuple[int, float], StepTime] = {}
    for row in kept:
        if row["mode"] == "decode":
            step = _step_of(row)
            key = (step.depth, round(step.reads_per_step, 2))  # repeats differ by the step that ended them
            found[key] = _of_repeats(found.get(key, step), step)
    rates = [Rate(row["depth"], float(row["iops"])) for row in kept if row["mode"] == "throughput"]
    first = kept[0]
    return Drive(
        target=first["target"],
        name=first.get("device_model") or first["target"],
        engine=", ".join(dict.fromkeys(str(row.get("engine")) for row in kept)),
        span_bytes=max(int(row.get("span_bytes") or 0) for row in kept),
        steps=tuple(found[key] for key in sorted(found)),
        rates=tuple(rates),
        refusals=tuple(refusals),
        model=first.get("model") if first.get("target_kind") == "files" else None,
    )


def _step_of(row: Mapping[str, Any]) -> StepTime:
    reads = row.get("reads_per_step") or row["reads"] / row["steps"]
    p50, p99, mean = row["step_p50_ns"], row["step_p99_ns"], row.get("step_mean_ns")
    varied = row.get("layout") not in (None, "uniform")
    return StepTime(float(reads), row["depth"], p50, p99, varied, p50, p99, float(mean) if mean else None)


def _of_repeats(a: StepTime, b: StepTime) -> StepTime:
    means = [mean for mean in (a.mean_ns, b.mean_ns) if mean is not None]
    return StepTime(
        min(a.reads_per_step, b.reads_per_step),
        a.depth,
        max(a.p50_ns, b.p50_ns),
        max(a.p99_ns, b.p99_ns),
        a.varied or b.varied,
        min(a.least[0], b.least[0]),
        min(a.least[1], b.least[1]),
        min(means, default=None),
    )

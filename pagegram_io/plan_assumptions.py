"""What a plan takes for granted: a sentence each, printed below every verdict."""

from __future__ import annotations

from dataclasses import dataclass

from pagegram_io.drive import AnyDrive, Drive
from pagegram_io.drive_profiles import Profile
from pagegram_io.plan import PATHS, Goal
from pagegram_io.sizes import format_bytes


@dataclass(frozen=True)
class Circumstances:
    """Of a plan, what its assumptions depend on.

    log: the stream is one of requests; stand_in: a stream in another model's ids; ranks: how many share the table.
    """

    path: str
    depth: int
    file_bytes: int
    placed: str
    log: bool = False
    stand_in: str | None = None
    resident_bytes: int | None = None
    ranks: int = 1
    layers: int = 1


def assumptions(goal: Goal, drive: AnyDrive | None, of: Circumstances) -> list[str]:
    """Everything that a verdict takes for granted, a sentence each."""
    return [
        f"Serving path: {PATHS[of.path]}.",
        *_of_reads(of),
        *_of_ranks(of),
        *_of_drive(drive, of),
        *_of_compute(goal),
    ]


def _of_reads(of: Circumstances) -> list[str]:
    unit = "rows" if of.path == "row" else "pages"
    whole = f", as are {format_bytes(of.resident_bytes)} of resident scales" if of.resident_bytes else ""
    beside = f"{whole} (all ranks')" if whole and of.ranks > 1 else whole
    lines = [
        "Reads are of the stream's second half, first accesses included; your text decides, so plan on your own.",
        "All rows of a step are known when it starts.",
        f"Placement: {of.placed}.",
        f"The RAM budget is of {unit} alone; the cache's index is beside it{beside}.",
    ]
    if of.layers > 1:
        lines.append(
            "Layers' rows are asked for all at once, so that each waits for all, or one layer after the other, "
            "whichever serves better; in turn, arrivals add up, and each layer may be slow in 2 % of steps of its own."
        )
    if of.stand_in:
        lines.append(f"{of.stand_in} stands in for the model's own ids: reads are an estimate.")
    if of.log:
        lines.append("Steps are those that only make tokens; prompts pass through the same cache, and are not timed.")
    return lines


def _of_ranks(of: Circumstances) -> list[str]:
    if of.ranks == 1:
        return []
    return [
        f"Each of the {of.ranks} ranks has the RAM budget and a drive of this kind to itself ({of.ranks} times both in "
        "all), and reads its own rows alone.",
        "A step waits for the slowest rank: p99 reads are those that no rank exceeds in 99 steps of 100. Drives are "
        f"slow one by one, each in 1 % of steps, so that of all steps up to {min(100, 1 + of.ranks)} % may be slower.",
    ]


def _of_drive(drive: AnyDrive | None, of: Circumstances) -> list[str]:
    if isinstance(drive, Profile):
        return [
            f"Drive: published figures alone ({drive.figures}), from {drive.source}. Drives can beat what their makers "
            f"say by some percent, so {drive.most_iops:,} reads/s are allowed for.",
            "Times are lower bounds (>=) and rates upper ones (<=), so no verdict is go: a step takes no less than its "
            "reads do at that rate.",
            "Prefill tokens/s are what that rate allows, compute not counted.",
        ]
    lines = [
        "A step comes, at the latest, after the p99 time of a measured step of at least its p99 reads (at most 2 % of "
        "steps are slower), and no sooner than one of no more reads; between the two it is not known.",
    ]
    if isinstance(drive, Drive) and drive.one_by_one:
        lines = [
            "A thread takes one page fault after the other, so that a step takes as many single reads, no less than "
            "their mean (or median) times. How slow it can be, their percentiles do not tell: no verdict is go."
        ]
    elif isinstance(drive, Drive):
        lines.append(
            f"The drive is otherwise idle, and the engine keeps up to {of.depth} reads in flight ({drive.engine})."
        )
    if isinstance(drive, Drive):
        if drive.span_bytes < of.file_bytes:
            lines.append(
                f"The drive was measured over {format_bytes(drive.span_bytes)}, less than the table's "
                f"{format_bytes(of.file_bytes)}: a full drive can be slower."
            )
        lines.append("Prefill tokens/s are what the measured rate of reads allows, compute not counted.")
    return lines


def _of_compute(goal: Goal) -> list[str]:
    lines = ["Time to hash, to look rows up and to copy them to where they are used is not counted."]
    if goal.compute_ns is not None or goal.deadlines:
        lines.append("Compute times are as given, the same at every batch.")
    if goal.compute_ns is not None and not goal.deadlines:
        lines.append(
            "Without --deadline, a go counts on no read being hidden behind compute, a no go on all of them being so."
        )
    if goal.compute_ns is None and not goal.deadlines:
        lines.append("Without --compute, tokens/s are what the reads alone allow.")
    elif goal.compute_ns is None:
        lines.append("Without --compute, tokens/s are at most (<=) what the last deadline allows.")
    lines.append("Tokens/s (p99) are those of a slow step; over many steps, throughput is nearer to p50's.")
    return lines

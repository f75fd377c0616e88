"""Plans: go, no go or not known; monotone in RAM; a deadline a layer; never beyond what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_serving as twin
from conftest import make_stream, small_layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from pagegram_io import native
from pagegram_io.cli import run
from pagegram_io.commands.plan import parse_deadlines, parse_duration
from pagegram_io.demand import Demand, LayerReads, demand, layers_of, repacked, with_resident_scales
from pagegram_io.drive import Drive, Rate, StepTime, read_drive, refusal
from pagegram_io.layout import Layout, Region
from pagegram_io.plan import (
    GO,
    NO_GO,
    NOT_KNOWN,
    Goal,
    drive_needed,
    judge,
    records_of,
    smallest_cache,
)
from pagegram_io.plan_assumptions import Circumstances, assumptions
from pagegram_io.plan_figure import draw_plan
from pagegram_io.plan_times import tokens_per_second
from pagegram_io.tokens import Stream

LAYOUTS = small_layouts()
US, MS = 1_000, 1_000_000


def make_demand(*reads: tuple[int | None, int, int], **more: Any) -> Demand:
    """A demand of layers (layer, p50, p99 of all reads up to it) that is known well, unless told otherwise."""
    before = [(0, 0), *((p50, p99) for _, p50, p99 in reads)]
    layers = tuple(
        LayerReads(layer, float(p50), p50, p99, p50 - less50, p99 - less99)
        for (layer, p50, p99), (less50, less99) in zip(reads, before, strict=False)
    )
    return replace(Demand(1, 4096 * 9, 9, layers, 500, 1000, 3000, 30, 1000, 700), **more)


def make_drive(*steps: tuple[float, int, int, int], iops: float = 1e5) -> Drive:
    """Steps (reads, depth, p50 in us, p99 in us)."""
    times = tuple(StepTime(reads, depth, p50 * US, p99 * US) for reads, depth, p50, p99 in steps)
    return Drive("/dev/x", "x", "io_uring", 2**40, times, (Rate(64, iops),))


DRIVE = make_drive((1, 64, 80, 120), (16, 64, 150, 400), (64, 64, 500, 900), (256, 64, 1900, 3000), (64, 256, 300, 500))


# ---- the verdict ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p99", "deadline_us", "verdict", "word"),
    [
        (2, 400, GO, "in time"),
        (2, 399, NOT_KNOWN, "between 120 us and 400 us"),  # 1 and 16 were measured, and 2 are in between
        (2, 120, NOT_KNOWN, "--batch 2 "),
        (2, 119, NO_GO, "no sooner than 120 us"),
        (16, 400, GO, "400 us"),
        (16, 399, NO_GO, "after 400 us"),
        (17, 900, GO, "900 us"),
        (17, 899, NOT_KNOWN, "899 us"),
        (17, 399, NO_GO, "no sooner than 400 us"),
        (256, 3000, GO, "3 ms"),
        (257, 3000, NOT_KNOWN, "--batch 257"),  # beyond the largest measured
        (257, 2999, NO_GO, "no sooner than 3 ms"),  # 256 are late already
        (0, 1, GO, "0 ns"),
    ],
)
def test_deadlines(p99: int, deadline_us: int, verdict: str, word: str) -> None:
    judgement = judge(make_demand((None, p99 // 2, p99)), DRIVE, Goal({None: deadline_us * US}), 64)
    assert judgement.verdict == verdict and word in judgement.reason
    if p99 > 256:
        assert judgement.last.p99_ns is None and judgement.rates.p99 is None


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"full_at_token": None}, "never filled"),
        ({"full_at_token": 1001}, "after mid-stream"),
        ({"first_reads": 601}, "first accesses"),
        ({"steps": 99}, "99 full steps"),
        ({"whole": True}, "whole table"),
        ({"whole": True, "full_at_token": None}, "whole table"),
    ],
)
def test_what_is_not_known_is_never_go_nor_no_go(more: dict[str, Any], word: str) -> None:
    for deadline in (1, 10**12):
        judgement = judge(make_demand((None, 2, 4), **more), DRIVE, Goal({None: deadline}), 64)
        assert judgement.verdict == NOT_KNOWN and word in judgement.reason
        assert {record.verdict for record in records_of(judgement, about())} == {NOT_KNOWN}


def test_the_bounds_of_what_is_known() -> None:
    known = make_demand((None, 2, 4), full_at_token=1000, first_reads=600, steps=100)  # exactly at each bound
    assert judge(known, DRIVE, Goal({None: MS}), 64).verdict == GO
    assert judge(make_demand((None, 2, 4), misses=0, first_reads=0), DRIVE, Goal({None: MS}), 64).verdict == GO
    bare = make_demand((None, 2, 4), cache_pages=0, full_at_token=0, first_reads=2000)  # no cache: nothing to fill
    assert judge(bare, DRIVE, Goal({None: MS}), 64).verdict == GO


def test_without_a_drive_or_decode_records_nothing_is_known() -> None:
    goal = Goal({None: 10**12})
    assert judge(make_demand((None, 2, 4)), None, goal, 64).verdict == NOT_KNOWN
    judgement = judge(make_demand((None, 2, 4)), make_drive(), goal, 64)
    assert judgement.verdict == NOT_KNOWN and "no decode record" in judgement.reason
    assert judge(make_demand((None, 2, 4)), DRIVE, goal, 32).verdict == NOT_KNOWN  # none at so small a depth


def test_page_faults_come_one_after_the_other() -> None:
    """48 reads are 48 single ones: no sooner than 48 medians of 80 us; how slow, percentiles of one do not tell."""
    faults = replace(DRIVE, one_by_one=True)
    reads = make_demand((None, 40, 48))
    for deadline_us, verdict, word in (
        (10**6, NOT_KNOWN, "--path page"),
        (3840, NOT_KNOWN, ""),
        (3839, NO_GO, "3.84 ms"),
    ):
        judgement = judge(reads, faults, Goal({None: deadline_us * US}), 64)
        assert judgement.verdict == verdict and word in judgement.reason
    quick = replace(faults, steps=(StepTime(1, 1, 60_000, 90_000, mean_ns=31_000.0),))  # a mean below the median
    assert quick.at_least_ns(64, 64) == (64 * 31_000, 64 * 31_000)
    nothing = judge(reads, replace(make_drive((16, 64, 9, 9)), one_by_one=True), Goal({None: MS}), 64)
    assert nothing.verdict == NOT_KNOWN and "--batch 1 " in nothing.reason
    assert judge(make_demand((None, 0, 0)), faults, Goal({None: 1}), 64).verdict == GO  # of no reads there is no fault
    of = Circumstances(path="mmap", depth=64, file_bytes=1, placed="rows aligned")
    assert "one page fault after the other" in " ".join(assumptions(Goal({None: 1}), faults, of))


def test_records_that_contradict_one_another_leave_it_open() -> None:
    """More reads take no less: where they did, no verdict rests on either; nor on one of two repeats."""
    odd = make_drive((8, 64, 1000, 3000), (64, 64, 100, 150))
    assert (odd.step_ns(8, 64), odd.at_least_ns(8, 64)) == ((1000 * US, 3000 * US), (100 * US, 150 * US))
    assert judge(make_demand((None, 8, 8)), odd, Goal({None: 500 * US}), 64).verdict == NOT_KNOWN
    repeats = [decode(step_p99_ns=n) for n in (200, 200, 200, 9000)]
    drive = read_drive(repeats, 4096)
    assert (drive.step_ns(16, 64), drive.at_least_ns(16, 64)) == ((100, 9000), (100, 200))


def test_layers_have_deadlines_of_their_own() -> None:
    """Layer 1's 16 reads, then layer 14's 48: all 64 at once after 900 us, or 16 after 400 and 48 after 900 more."""
    reads = make_demand((1, 8, 16), (14, 30, 64))
    at_once = judge(reads, DRIVE, Goal({1: 900 * US, 14: 900 * US}), 64)
    assert (at_once.verdict, at_once.asked, at_once.last.p99_ns) == (GO, "all at once", 900 * US)
    in_turn = judge(reads, DRIVE, Goal({1: 400 * US, 14: 1300 * US}), 64)
    assert (in_turn.verdict, in_turn.asked) == (GO, "one layer after the other") and in_turn.asked in in_turn.reason
    assert [(t.p50_ns, t.p99_ns) for t in in_turn.layers] == [(150 * US, 400 * US), (650 * US, 1300 * US)]
    for deadlines in ({1: 400, 14: 1299}, {1: 899, 14: 900}):  # an engine that reads by need might do it
        judgement = judge(reads, DRIVE, Goal({layer: us * US for layer, us in deadlines.items()}), 64)
        assert judgement.verdict == NOT_KNOWN and "--batch 16,48,64 " in judgement.reason
    early = judge(reads, DRIVE, Goal({1: 399 * US, 14: 10 * MS}), 64)
    assert early.verdict == NO_GO and "layer 1's rows" in early.reason
    late = judge(reads, DRIVE, Goal({1: 400 * US, 14: 499 * US}), 64)  # 500 us: 64 reads with more in flight
    assert late.verdict == NO_GO and "layer 14's rows" in late.reason
    assert [(r.layer, r.verdict) for r in records_of(late, about())] == [(None, NO_GO), (1, GO), (14, NO_GO)]
    assert [r.deadline_ns for r in records_of(late, about())] == [499 * US, 400 * US, 499 * US]


def test_goals_name_each_layer() -> None:
    assert Goal({14: 5, 1: 9}).order([1, 14]) == [14, 1]  # by need, not by number
    assert Goal({}, tokens_per_second=5.0).order([1, 14]) == [1, 14]
    for deadlines in ({1: 5}, {None: 5}, {1: 5, 14: 5, 15: 5}):
        with pytest.raises(ValueError, match="layers are 1, 14"):
            Goal(deadlines).order([1, 14])
    with pytest.raises(ValueError, match="needs a goal"):
        Goal({})


def test_tokens_a_second() -> None:
    assert tokens_per_second(8, [2 * MS], [None], None) == 4000
    assert tokens_per_second(8, [2 * MS], [1 * MS], 4 * MS) == 1600  # a millisecond of waiting
    assert tokens_per_second(8, [1 * MS], [1 * MS], 4 * MS) == 2000
    assert tokens_per_second(8, [1 * MS, 9 * MS], [2 * MS, 3 * MS], 4 * MS) == 800
    assert tokens_per_second(8, [6 * MS], [None], 4 * MS) == 800  # needed as a step starts: nothing hides its reads
    assert tokens_per_second(8, [6 * MS], [None], 4 * MS, most=True) == 8000 / 6  # only at its end
    assert tokens_per_second(8, [None], [1], 4 * MS) is None and tokens_per_second(8, [0], [None], None) is None
    assert tokens_per_second(8, [1 * MS], [4 * MS], None) is None  # what comes after the rows is not known
    assert tokens_per_second(8, [1 * MS], [4 * MS], None, most=True) == 2000
    assert tokens_per_second(8, [1 * MS, 8 * MS], [2 * MS, 4 * MS], None, most=True) == 1000
    reads = make_demand((None, 8, 16), batch=4)
    assert judge(reads, DRIVE, Goal({}, None, 10_000), 64).verdict == GO  # 4 tokens in 400 us
    judgement = judge(reads, DRIVE, Goal({}, None, 10_001), 64)
    assert judgement.verdict == NO_GO and "10,000 tokens/s" in judgement.reason


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from([8, 64]), st.integers(1, 99), st.integers(1, 99)), max_size=9
    ),
    st.lists(st.integers(0, 60), min_size=2, max_size=9),
    st.integers(1, 100),
)
def test_more_reads_are_never_faster_and_never_extrapolated(
    steps: list[tuple[int, int, int, int]], reads: list[int], deadline: int
) -> None:
    drive = make_drive(*steps)
    rank = {GO: 0, NOT_KNOWN: 1, NO_GO: 1}
    times, verdicts = [], []
    for count in sorted(reads):
        found = drive.step_ns(count, 64)
        larger = [s for s in steps if s[0] >= count]
        assert (found is None) == (count > 0 and not larger)
        times.append(float("inf") if found is None else found[1])
        judgement = judge(make_demand((None, count, count)), drive, Goal({None: deadline * US}), 64)
        verdicts.append(rank[judgement.verdict])
        assert (judgement.verdict == GO) == (times[-1] <= deadline * US)
    assert times == sorted(times) and verdicts == sorted(verdicts)


def test_what_a_drive_would_need_and_the_smallest_cache() -> None:
    good = judge(make_demand((None, 2, 4)), DRIVE, Goal({None: MS}), 64)
    bad = judge(make_demand((None, 2, 4)), DRIVE, Goal({None: 1}), 64)
    unknown = judge(make_demand((None, 2, 4), steps=1), DRIVE, Goal({None: MS}), 64)
    assert "4 reads at once within 1 ns" in drive_needed(bad, Goal({None: 1}))
    for goal, within in (
        (Goal({}, None, 5000), "200 us"),
        (Goal({}, 100 * US, 5000), "200 us"),  # rows are needed at the end of a step: 100 us, and as many of waiting
        (Goal({None: 80 * US}, 100 * US, 5000), "180 us"),
    ):
        step = make_drive((16, 64, 1000, 1000)) if goal.deadlines == {} else make_drive((16, 64, 80, 80))
        assert f"4 reads at once within {within}" in drive_needed(
            judge(make_demand((None, 2, 4)), step, goal, 64), goal
        )
    assert smallest_cache([bad, good]) == good.demand.cache_bytes and smallest_cache([bad, unknown]) is None


def test_compute_alone_can_be_too_slow() -> None:
    """Then no drive and no cache would help, and that is known whatever else is not."""
    goal = Goal({}, 10 * MS, 101)
    for drive, more in ((DRIVE, {}), (None, {}), (DRIVE, {"full_at_token": None})):
        judgement = judge(make_demand((None, 2, 4), **more), drive, goal, 64)
        assert judgement.verdict == NO_GO and "compute alone, 10 ms a step, allows 100 tokens/s" in judgement.reason
    assert judge(make_demand((None, 2, 4)), DRIVE, Goal({None: MS}, 10 * MS, 100), 64).verdict == GO
    assert judge(make_demand((None, 2, 4), batch=2), DRIVE, goal, 64).verdict == GO
    before = Goal({1: MS, 14: 20 * MS}, None, 51)  # a step is at least as long as the compute before its last rows
    judgement = judge(make_demand((1, 2, 4), (14, 4, 8)), DRIVE, before, 64)
    assert judgement.verdict == NO_GO and "that needs rows alone, 20 ms a step, allows 50 tokens/s" in judgement.reason
    judgement = judge(make_demand((1, 2, 4), (14, 4, 8)), DRIVE, Goal({1: MS, 14: 20 * MS}, None, 50), 64)
    assert judgement.verdict == NOT_KNOWN and "at most 50 tokens/s" in judgement.reason  # and what comes after them?
    assert "give --compute" in judgement.reason and judgement.rates.p99 is None
    enough = judge(make_demand((1, 2, 4), (14, 4, 8)), DRIVE, Goal({1: MS, 14: 20 * MS}, 20 * MS, 50), 64)
    assert enough.verdict == GO
    with pytest.raises(ValueError, match="after the end of a step of 10 ms"):
        Goal({1: 11 * MS}, 10 * MS)
    Goal({1: 10 * MS}, 10 * MS)


def test_without_deadlines_reads_may_be_hidden_behind_all_of_the_compute_or_none() -> None:
    """16 reads come after 400 us, a step computes for 1 ms: 714 steps a second where they come first, 1,000 at most."""
    reads = make_demand((1, 2, 4), (14, 8, 16))
    assert judge(reads, DRIVE, Goal({}, MS, 714), 64).verdict == GO
    for goal in (715, 1000):
        between = judge(reads, DRIVE, Goal({}, MS, goal), 64)
        assert between.verdict == NOT_KNOWN and "714 tokens/s (p99)" in between.reason
        assert "1,000 where only at its end; give --deadline or --model-layers" in between.reason
        record = records_of(between, about())[0]
        assert (round(record.tokens_per_second_p99 or 0), record.tokens_per_second_p99_most) == (714, 1000)
    slow = judge(reads, DRIVE, Goal({}, 200 * US, 2501), 64)  # not even where all 200 us hide half of the 400
    assert slow.verdict == NO_GO and "at most 2,500 tokens/s" in slow.reason
    assert judge(reads, DRIVE, Goal({1: 600 * US, 14: 600 * US}, MS, 1000), 64).verdict == GO
    for goal, said in ((Goal({}, MS, 1), True), (Goal({None: 1}, MS, 1), False), (Goal({}, None, 1), False)):
        lines = assumptions(goal, DRIVE, Circumstances("page", 64, 1, "rows aligned"))
        assert any("hidden behind compute" in line for line in lines) == said


def test_a_step_with_fewer_reads_in_flight_bounds_none_with_more() -> None:
    """As of a sweep over depths; records differ by the step that ended them."""
    swept = make_drive((255.99, 1, 20_000, 30_000), (255.97, 64, 1900, 3000), (15.5, 16, 90, 200))
    assert swept.at_least_ns(300, 64) == (1900 * US, 3000 * US)
    assert judge(make_demand((None, 300, 300)), swept, Goal({None: 20 * MS}), 64).verdict == NOT_KNOWN
    assert swept.at_least_ns(300, 128) == (90 * US, 200 * US)  # all of its reads at once: more depth changes nothing
    assert swept.at_least_ns(300, 1) == (20_000 * US, 30_000 * US)
    assert make_drive((4, 2, 5, 9)).at_least_ns(300, 3) == (0, 0)


def test_what_is_beyond_the_largest_step_can_miss_the_goal_too() -> None:
    """257 reads take no less than 256 do: 3 ms, so at most 333 steps a second."""
    reads = make_demand((None, 257, 257))
    judgement = judge(reads, DRIVE, Goal({}, None, 334), 64)
    assert judgement.verdict == NO_GO and "at most 333 tokens/s" in judgement.reason
    assert (judgement.rates.p99, round(judgement.rates.p99_most or 0)) == (None, 333)
    assert judge(reads, DRIVE, Goal({}, None, 333), 64).verdict == NOT_KNOWN
    record = records_of(judgement, about())[0]
    assert (record.arrival_p99_ns, record.arrival_p99_least_ns) == (None, 3 * MS)
    assert (record.arrival_p50_least_ns, record.tokens_per_second_p50_most) == (1900 * US, 1e9 / (1900 * US))


def test_assumptions_name_the_path_and_the_span() -> None:
    goal = Goal({None: 1})
    of = Circumstances(path="mmap", depth=64, file_bytes=2**41, placed="rows aligned", resident_bytes=2**30)
    text = " ".join(assumptions(goal, DRIVE, of))
    assert "approximated" in text and "1 TiB" in text and "rows aligned" in text and "last deadline" in text
    assert "reads alone" in " ".join(assumptions(Goal({}, None, 5), DRIVE, of)) and "one layer after" not in text
    assert "one layer after the other" in " ".join(assumptions(goal, DRIVE, replace(of, layers=2)))
    assert "1 GiB of resident scales" in text and "ranks" not in text and "not counted" in text
    alone = Circumstances(path="page", depth=64, file_bytes=1, placed="rows aligned", stand_in="other", log=True)
    text = " ".join(assumptions(goal, None, alone))
    assert "approximated" not in text and "other stands in" in text and "only make tokens" in text


# ---- the drive -----------------------------------------------------------------------------------


def decode(**more: Any) -> dict[str, Any]:
    return {
        "kind": "nvme", "schema": 1, "target": "/dev/x", "direct": True, "mode": "decode", "depth": 64, "reads": 3200,
        "steps": 200, "reads_per_step": 16.0, "step_p50_ns": 100, "step_p99_ns": 300, "page_bytes": 4096,
        "errors_eio": 0, "engine": "io_uring", "span_bytes": 2**30,
    } | more  # fmt: skip


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"kind": "simulate"}, "simulate"),
        ({"direct": False}, "page cache"),
        ({"errors_eio": 2}, "2 eio"),
        ({"allow_holes": True}, "holes"),
        ({"zero_page_fraction": 0.5}, "50 %"),
        ({"interrupted": True}, "interrupted"),
        ({"page_bytes": 512}, "512"),
        ({"mode": "other"}, "other"),
        ({"steps": 99}, "99 steps"),
        ({"steps": None}, "0 steps"),
        ({"cache_pages": 9}, "different numbers of reads"),
        ({"jobs": 4}, "4 jobs"),
        ({"step_p99_ns": None}, "step_p99_ns"),
        ({"reads": 0}, "no reads"),
        ({"step_p99_ns": -5}, "step_p99_ns is -5"),
        ({"step_p50_ns": float("inf")}, "step_p50_ns is inf"),
        ({"depth": "64"}, "depth is '64'"),
        ({"mode": "throughput"}, "no iops"),
    ],
)
def test_records_that_say_nothing_of_a_drive(more: dict[str, Any], word: str) -> None:
    why = refusal(decode(**more), 4096)
    assert why is not None and word in why and "\n" not in why
    drive = read_drive([decode(), decode(**more)], 4096, name="d.jsonl")
    assert len(drive.steps) == 1 and len(drive.refusals) == 1 and "record 2" in drive.refusals[0]
    with pytest.raises(ValueError, match="record 1 was left out"):
        read_drive([decode(**more)], 4096, name="d.jsonl")


def test_drives_from_records() -> None:
    rows = [
        decode(),
        decode(step_p99_ns=500, step_p50_ns=90),  # a repeat: the slowest counts
        decode(reads_per_step=None, steps=100),  # 32 a step, told by reads and steps
        decode(mode="throughput", iops=5000.0),
        decode(mode="throughput", iops=9000.0, depth=256),
    ]
    drive = read_drive(rows, 4096)
    assert [(s.reads_per_step, s.p99_ns, s.least[1]) for s in drive.steps] == [(16.0, 500, 300), (32.0, 300, 300)]
    assert (drive.iops(64), drive.iops(256), drive.iops(1)) == (5000.0, 9000.0, None)
    assert read_drive([decode(), decode(engine="threads")], 4096).engine == "io_uring, threads"
    assert drive.depths == [64] and drive.largest_step(64) == 32 and drive.largest_step(8) == 0
    assert drive.step_ns(10, 64) == (100, 500)  # though 32 reads took 300
    varied = read_drive([decode(layout="uniform"), decode(layout="pagegram", depth=8)], 4096)
    assert varied.step_ns(16, 8) == (100, 300)  # steps of 16 reads on average: fewer take no longer than its slow ones
    assert varied.at_least_ns(16, 8) == (100, 300)
    assert replace(varied, steps=varied.steps[:1]).at_least_ns(16, 8) == (0, 0)
    with pytest.raises(ValueError, match="a file for each drive"):
        read_drive([decode(), decode(target="/dev/y")], 4096)
    with pytest.raises(ValueError, match="no device records"):
        read_drive([], 4096)


# ---- the demand ----------------------------------------------------------------------------------


def with_layers(layout: Layout) -> Layout:
    """The first half of the groups in layer 14, the rest in layer 1."""
    half = len(layout.groups) // 2
    groups = tuple(replace(group, layer=14 if i < half else 1) for i, group in enumerate(layout.groups))
    return replace(layout, groups=groups)


def reads_by_step(
    steps: list[list[twin.Visit]],
    matrix: np.ndarray,
    layers: list[int],
    some: list[int],
    size: int,
    batch: int,
    half: int,
) -> list[int]:
    """Reads of some layers in each full step of the second half, the slow way: one LRU for the pages of all layers."""
    cache: list[int] = []
    counts, token = [], 0
    for step in steps:
        seen: set[int] = set()
        reads, first_token = 0, token
        for visit in step:
            for layer, page in zip(layers, matrix[visit.position].tolist(), strict=True):
                if page == native.NO_PAGE or page in seen:
                    continue
                seen.add(page)
                if page in cache:
                    cache.remove(page)
                else:
                    reads += layer in some
                cache = [*cache, page][-size:] if size else []
            token += 1
        if len(step) == batch and first_token >= half:
            counts.append(reads)
    return counts


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 40), min_size=3, max_size=8),
    st.integers(0, 99),
    st.integers(1, 3),
    st.sampled_from(LAYOUTS[:6]),
    st.lists(st.integers(0, 50), min_size=2, max_size=3, unique=True),
)
def test_demand_is_the_twins(lengths: list[int], seed: int, batch: int, layout: Layout, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *lengths[:-1]])
    stream = make_stream(rng.integers(0, 12, sum(lengths)), starts)
    layered = with_layers(layout)
    found = demand(layered, stream, [(1, size) for size in sorted(sizes)], batch, order=[1, 14])
    matrix = layout.pages(layout.rows(stream))
    steps = twin.schedule(lengths, None, batch, None)
    for d in found:
        seen = twin.serve(
            steps,
            lambda v: [page for page in matrix[v.position].tolist() if page != native.NO_PAGE],
            d.cache_pages,
            turns=batch,
        )
        assert (d.misses, d.first_reads, d.steps) == (seen.second, seen.second_compulsory, len(seen.step_reads))
        assert d.full_at_token == seen.full_at and d.whole == (d.cache_pages >= layout.page_count)
        assert [layer.layer for layer in d.layers] == [1, 14]
        layers = layered.layer_of_page_column().tolist()
        for layer, some in zip(d.layers, ([1], [1, 14]), strict=True):
            of_steps = sorted(reads_by_step(steps, matrix, layers, some, d.cache_pages, batch, len(stream) // 2))
            if of_steps:
                assert layer.mean == pytest.approx(np.mean(of_steps))
                assert layer.p50 == of_steps[-(-len(of_steps) // 2) - 1]
                assert layer.p99 == of_steps[-(-len(of_steps) * 99 // 100) - 1]
            else:
                assert (layer.mean, layer.p50, layer.p99) == (0, 0, 0)
        assert sorted(seen.step_reads) == of_steps
    for small, large in zip(found, found[1:], strict=False):  # an LRU of more pages holds all of one of fewer
        assert all(a.p99 >= b.p99 and a.p50 >= b.p50 for a, b in zip(small.layers, large.layers, strict=True))


def test_a_batch_needs_as_many_documents() -> None:
    with pytest.raises(ValueError, match="2 documents, and a batch of 3"):
        demand(LAYOUTS[0], make_stream([1, 2, 3, 4], [0, 2]), [(1, 1)], 3)


def test_layers_of_a_layout() -> None:
    assert layers_of(LAYOUTS[0]) == [None] and layers_of(with_layers(LAYOUTS[1])) == [1, 14]


def test_the_same_table_placed_better() -> None:
    aligned, packed = LAYOUTS[1], LAYOUTS[4]  # engram, 512-byte pages
    assert repacked(aligned) is None and with_resident_scales(aligned) is None
    better = repacked(packed)
    assert better is not None and not better.packed and better.row_count == packed.row_count
    stream = Stream(np.arange(900, dtype=np.uint16) % 60, np.zeros(1, np.uint64), 60, "x")
    rows = packed.rows(stream)
    assert (better.rows(stream) == rows).all()
    used = [int((layout.pages(rows) != native.NO_PAGE).sum()) for layout in (better, packed)]
    assert used[0] == rows.size < used[1]
    byte, groups = packed.groups[-1].regions[0].end_byte(512), []
    for group in packed.groups:  # scales of two bytes a row in regions of their own
        scales = Region(byte, group.regions[0].unit_count, 2, 2, 0)
        byte = scales.end_byte(512)
        groups.append(replace(group, regions=(group.regions[0], scales)))
    apart = replace(packed, groups=tuple(groups))
    found = with_resident_scales(apart)
    assert found is not None and found[0].groups == packed.groups and found[1] == 2 * packed.row_count
    together = repacked(apart)
    assert together is not None and together.groups[0].regions[0].row_bytes == packed.row_bytes + 2
    assert int((together.pages(rows) != native.NO_PAGE).sum()) == rows.size


# ---- records, figure, command --------------------------------------------------------------------


def about() -> dict[str, Any]:
    return {
        "version": "1", "layout": "flat", "slots": None, "table_params": 1, "row_format": "nf4", "row_bytes": 1,
        "placement": "aligned", "page_bytes": 4096, "pages": 1, "file_bytes": 4096, "stream": "s",
        "stream_sha256": "ab", "tokens": 1, "documents": 1, "document_tokens_p50": 1, "document_tokens_max": 1,
        "path": "private", "cache_unit": "page", "target": None, "device": None, "engine": None, "depth": None,
        "largest_step_measured": None, "compute_ns": None, "goal_tokens_per_second": None, "seed": 0, "kernel": "k",
        "cpu": "c", "time": "t",
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        decode(reads_per_step=float(n), reads=n * 200, step_p50_ns=n * 10 * US, step_p99_ns=n * 20 * US)
        for n in (1, 4, 16, 64)
    ]
    rows.append(decode(mode="throughput", iops=50_000.0))
    Path("drive.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fast = [row | {"target": "/dev/fast", "step_p99_ns": 2000, "step_p50_ns": 1000} for row in rows[:4]]
    Path("fast.jsonl").write_text("".join(json.dumps(row) + "\n" for row in fast))
    return tmp_path


QUICK = ["plan", "--table", "2M", "--limit", "60K", "--cache", "128KiB", "--device", "drive.jsonl"]


def planned(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run([*QUICK, *arguments, "--json"]) == 0, capsys.readouterr()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_plan_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = planned(["--deadline", "200us", "--compute", "5ms", "--batch", "1,8"], capsys)
    assert {r["batch"] for r in records} == {1, 8} and {r["kind"] for r in records} == {"plan"}
    for batch in (1, 8):
        mine = sorted((r for r in records if r["batch"] == batch), key=lambda r: r["cache_bytes"])
        assert len(mine) >= 3
        p99 = [r["reads_per_step_p99"] for r in mine]
        assert p99 == sorted(p99, reverse=True)
        times = [r["arrival_p99_ns"] for r in mine]
        assert times == sorted(times, reverse=True)
    one = next(r for r in records if r["batch"] == 1 and r["cache_bytes"] == 128 * 1024)
    assert (one["verdict"], one["reads_per_step_p99"], one["arrival_p99_ns"]) == (GO, 2, 80 * US)
    assert one["prefill_tokens_per_second"] == pytest.approx(50_000 / one["prefill_reads_per_token"])
    eight = next(r for r in records if r["batch"] == 8 and r["cache_bytes"] == 128 * 1024)
    assert eight["verdict"] == NO_GO and "a drive whose p99 step is" in eight["change"]
    assert run([*QUICK, "--deadline", "200us", "--batch", "8", "--device", "fast.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "Cheapest change: the drive /dev/fast." in out and "Serving path: private page cache" in out
    assert run([*QUICK, "--goal", "5", "--batch", "64", "--path", "mmap", "--plot", "p.svg"]) == 0
    out, err = capsys.readouterr()
    assert "nothing to draw" in err and "page cache, and a measurement" in err and not Path("p.svg").exists()
    assert "approximated" in out and "not known" in out


def test_a_depth_that_no_step_was_measured_at_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--goal", "5", "--batch", "1", "--depth", "10000"]) == 0
    out, err = capsys.readouterr()
    assert "no step was measured with more than 64 reads in flight" in err and "depth 10000" in out


def test_plan_figure_from_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--deadline", "200us", "--batch", "1,8", "--goal", "9000"]
    assert run([*QUICK, *arguments, "--plot", "p.svg", "--csv", "p.csv"]) == 0
    capsys.readouterr()
    records = planned(arguments, capsys)
    draw_plan(records, "again.svg")
    assert Path("p.svg").read_bytes() == Path("again.svg").read_bytes() and "batch 8" in Path("p.svg").read_text()
    with pytest.raises(ValueError, match="no plan"):
        draw_plan([], "x.svg")
    with pytest.raises(ValueError, match="different target"):
        draw_plan([records[0], records[1] | {"target": "/dev/y"}], "x.svg")
    with pytest.raises(ValueError, match="different row_format"):
        draw_plan([records[0], records[1] | {"row_format": "fp32"}], "x.svg")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_plan([r | {"tokens_per_second_p99": None, "tokens_per_second_p99_most": None} for r in records], "x.svg")
    with pytest.raises(FileExistsError):
        draw_plan(records, "p.svg")


def test_plan_of_rows_and_of_more_depth(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = planned(["--deadline", "1ms", "--batch", "8"], capsys)[0]
    rows = planned(["--deadline", "1ms", "--batch", "8", "--path", "row"], capsys)[0]
    assert rows["cache_unit"] == "row" and "row cache" in rows["path"] and "page cache" in pages["path"]
    steps = [(16, 16, 60, 90), *((16, n, 900, 1000) for n in (60, 64)), *((256, n, 80, 150) for n in (60, 64))]
    with open("deep.jsonl", "w") as file:
        for depth, reads, p50, p99 in steps:
            step = decode(depth=depth, reads_per_step=float(reads), step_p50_ns=p50 * US, step_p99_ns=p99 * US)
            file.write(json.dumps(step) + "\n")
    plan = ["plan", "--table", "2M", "--limit", "300K", "--cache", "none", "--batch", "32", "--deadline", "200us"]
    for depth, verdict, change in (("16", NO_GO, "a depth of 256"), ("256", GO, None)):
        assert run([*plan, "--device", "deep.jsonl", "--depth", depth, "--json"]) == 0
        record = json.loads(capsys.readouterr().out.splitlines()[0])
        assert (record["verdict"], record["change"], record["reads_per_step_p99"]) == (verdict, change, 62)


def test_repacking_is_the_cheapest_change(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of 768 bytes straddle pages in a packed table: a step of 2 reads becomes one of up to 4."""
    with open("drive.jsonl", "a") as file:
        file.write(json.dumps(decode(reads_per_step=2.0, step_p50_ns=20 * US, step_p99_ns=40 * US)) + "\n")
    arguments = ["--layout", "flat", "--row-format", "fp16", "--batch", "1", "--deadline", "50us"]
    packed = planned([*arguments, "--packed"], capsys)[0]
    assert (packed["verdict"], packed["reads_per_step_p99"] > 2) == (NO_GO, True)
    assert packed["change"] == "repack, so that no row straddles or lies apart"
    assert planned(arguments, capsys)[0]["verdict"] == GO


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--deadline"),
        (["--deadline", "0us"], "0us"),
        (["--deadline", "5"], "500us"),
        (["--deadline", "1=5us,1=6us"], "second deadline"),
        (["--deadline", "x=5us"], "not a layer"),
        (["--deadline", "1=5us"], "belongs to no layer"),
        (["--deadline", "5us", "--model-layers", "4"], "--model-layers"),
        (["--compute", "5us", "--model-layers", "4"], "names no layers"),
        (["--goal", "0"], "--goal"),
        (["--goal", "5", "--batch", "0"], "--batch"),
        (["--goal", "5", "--batch", "60000"], "documents"),
        (["--goal", "5", "--layout", "flat,engram"], "one table"),
        (["--goal", "5", "--table", "1M,2M"], "one table"),
        (["--goal", "5", "--cache", "1"], "not even one"),
        (["--goal", "5", "--path", "kernel"], "--path"),
        (["--goal", "5", "--scales", "read"], "--model"),
        (["--goal", "5", "--page-size", "8KiB"], "8192"),
        (["--goal", "5", "--plot", "p.txt"], "p.txt"),
        (["--goal", "5", "--tokens", "one.u16"], "--eod"),
    ],
)
def test_plans_that_cannot_be_made(
    arguments: list[str], word: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.arange(5000, dtype="<u2").tofile("one.u16")
    assert run([*QUICK, *arguments]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert out == "" and len(lines) == 1 and word in lines[0] and "Traceback" not in err


def test_device_files_that_are_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--table", "2M", "--goal", "5", "--device", "none.jsonl"]) == 1
    assert "no such file" in capsys.readouterr().err
    Path("bad.jsonl").write_text("{\n")
    assert run(["plan", "--table", "2M", "--goal", "5", "--device", "bad.jsonl"]) == 1
    assert "bad.jsonl:1" in capsys.readouterr().err
    Path("buffered.jsonl").write_text(json.dumps(decode(direct=False)) + "\n")
    assert run(["plan", "--table", "2M", "--goal", "5", "--device", "buffered.jsonl"]) == 2
    assert "page cache" in capsys.readouterr().err
    with open("drive.jsonl", "a") as file:
        file.write(json.dumps(decode(errors_eio=3)) + "\n")
    assert run([*QUICK, "--deadline", "1ms", "--batch", "1"]) == 0
    assert "record 6 was left out" in capsys.readouterr().err


def test_durations_and_deadlines() -> None:
    assert [parse_duration(text) for text in ("500us", "1.5ms", "2s", "7ns")] == [500 * US, 1_500_000, 2 * 10**9, 7]
    assert parse_deadlines("5us") == {None: 5 * US}
    assert parse_deadlines("1=200us,14=3ms") == {1: 200 * US, 14: 3 * MS}
    for text in ("", "5", "us", "-5us", "5 us", "1=", "=5us", "1=5us,", "1e3us", "9999999999us"):
        with pytest.raises(ValueError, match="write for example"):
            parse_deadlines(text)

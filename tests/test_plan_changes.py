"""Changes: the cheapest one, or pair of them, as brute force over all pairs finds it; judged lazily."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_plan import DRIVE, US, make_drive

from pagegram_io.changes import KINDS, PARTS, Change, Setting, candidates, cheapest, text_of
from pagegram_io.drive_profiles import Profile
from pagegram_io.layout import Shape, engram
from pagegram_io.plan import GO, NO_GO, NOT_KNOWN, Goal, Judgement
from pagegram_io.planner import Planner
from pagegram_io.sizes import parse_cache
from pagegram_io.tokens import Stream

START = Setting(1, 1)
VALUES = {
    "depth": [2, 3, 4], "repack": ["repacked"], "scales": ["resident"], "ram": [2, 4, 8], "drive": [1, 2],
}  # fmt: skip


def every_change() -> list[Change]:
    return [Change(kind, f"{kind} {value}", value) for kind in KINDS for value in VALUES[kind]]


def brute(changes: list[Change], good: set[Setting]) -> list[tuple[Change, ...]]:
    """All single changes and all pairs that are good, by their cost: how many, the dearest kind, the other, order."""
    found = []
    for number, some in enumerate([*itertools.combinations(changes, 1), *itertools.combinations(changes, 2)]):
        parts = [PARTS[change.kind] for change in some]
        made = START
        for change in some:
            made = change.made(made)
        if len(set(parts)) == len(parts) and made in good:
            dearest_first = sorted(some, key=lambda c: -KINDS.index(c.kind))
            cost = [
                len(some),
                *(KINDS.index(c.kind) for c in dearest_first),
                *(changes.index(c) for c in dearest_first),
            ]
            found.append((cost, number, some))
    return [some for _, _, some in sorted(found, key=lambda item: item[:2])]


@given(st.lists(st.sampled_from(every_change()), unique=True), st.integers(0, 2**32), st.floats(0, 0.3))
def test_the_cheapest_is_what_brute_force_over_all_pairs_finds(changes: list[Change], seed: int, share: float) -> None:
    changes = sorted(changes, key=lambda c: (KINDS.index(c.kind), str(c.value)))
    rng = np.random.default_rng(seed)
    settings = {Setting(*v) for v in itertools.product(
        [1, *VALUES["depth"]], [1, *VALUES["ram"]], ["", "repacked", "resident"], [0, *VALUES["drive"]]
    )} - {START}  # fmt: skip
    good = {setting for setting in sorted(settings, key=repr) if rng.random() < share}
    asked: list[Setting] = []
    found = cheapest(changes, START, lambda s: (asked.append(s), s in good)[1])  # type: ignore[func-returns-value]
    wanted = brute(changes, good)
    assert (found is None) == (not wanted)
    assert len(asked) == len(set(asked))  # none is judged twice
    if found is not None:
        assert set(found[0]) == set(wanted[0]) and found[1] in good
        assert asked[-1] == found[1] and not set(asked[:-1]) & good  # and none after the first that is enough


def test_singles_come_before_pairs_and_the_dearer_kind_decides() -> None:
    texts = [text_of(some) for some in candidates(every_change())]
    assert texts[:5] == ["depth 2", "depth 3", "depth 4", "repack repacked", "scales resident"]
    pairs = texts[len(every_change()) :]
    assert pairs[0] == "depth 2 and repack repacked" and "repack repacked and scales resident" not in pairs
    assert pairs.index("repack repacked and ram 8") < pairs.index("scales resident and ram 2")
    assert (
        pairs.index("depth 2 and ram 8") < pairs.index("repack repacked and ram 2") < pairs.index("ram 8 and drive 1")
    )


# ---- in a plan -----------------------------------------------------------------------------------


def planner_of(deadline_us: int, *drives: object) -> Planner:
    """A packed table whose rows straddle, read by four documents in turn."""
    rng = np.random.default_rng(1)
    ids = rng.zipf(1.3, 40_000).astype(np.uint64) % 3000
    stream = Stream(ids.astype(np.uint16), np.arange(0, 40_000, 200, dtype=np.uint64), 3000, "made")
    layout = engram(1_000_000, Shape(row_format="fp16", packed=True, row_width=96, heads=2))
    caches = [parse_cache("40KiB")]
    return Planner(layout, stream, Goal({None: deadline_us * US}), drives, 64, caches, "page", 2048)  # type: ignore[arg-type]


STEPS = [(n, 64, 10 * n, 20 * n) for n in range(1, 60)] + [(n, 256, 8 * n, 16 * n) for n in range(1, 60)]


def test_a_plan_finds_a_pair_where_no_single_change_will_do() -> None:
    drive = make_drive(*STEPS)
    seen = set()
    for deadline in range(20, 400, 20):
        planner = planner_of(deadline, drive)
        bad = next(j for j in planner.judgements(4) if j.demand.cache_pages == 10)
        if bad.verdict != NO_GO:
            continue
        start = Setting(64, 10)
        sizes = [capacity for _, capacity in planner._sizes]
        good = [
            (depth, placement, size)
            for depth, placement, size in itertools.product([64, 256], ["", "repacked"], sizes)
            if size >= 10
            and (depth != 64) + (placement != "") + (size != 10) <= 2
            and planner.judge(4, Setting(depth, size, placement)).verdict == GO
        ]
        change = planner.change(bad)
        assert ("no drive given here is" in change) == (not good)
        count = change.count(" and ") + 1
        if good:
            fewest = min((d != 64) + (p != "") + (s != start.cache_pages) for d, p, s in good)
            assert count == fewest
        seen.add(count if good else 0)
    assert seen == {0, 1, 2}


def test_published_figures_make_a_change_a_perhaps() -> None:
    fast = Profile("fast", "its maker", 10**9)
    slow = Profile("slow", "its maker", 1000)
    bad = planner_of(20, DRIVE, slow).judgements(4)[0]
    assert bad.verdict == NO_GO and "no drive given here is" in planner_of(20, DRIVE, slow).change(bad)
    assert planner_of(20, DRIVE, fast).change(bad).startswith("perhaps the drive fast: published figures of fast")
    planner = planner_of(20, slow, fast)
    bad = planner.judgements(4)[0]
    assert bad.verdict == NO_GO and "perhaps the drive fast" in planner.change(bad)
    measured = make_drive((64, 64, 1, 2))
    assert planner_of(20, slow, measured).change(bad) == "the drive x"


def test_larger_caches_that_are_not_known_are_said_to_be() -> None:
    """A cache that never filled says nothing, and the sentence of the batch must not promise it."""
    planner = planner_of(20, DRIVE)

    def judgement(size: int, verdict: str) -> Judgement:
        found = planner.judgements(4)[0]
        return replace(found, verdict=verdict, demand=replace(found.demand, cache_bytes=size, cache_pages=size))

    sizes = [judgement(1 << 20, NO_GO), judgement(1 << 21, GO), judgement(1 << 22, NOT_KNOWN)]
    start = "Batch 4: go from a cache of 2 MiB on, of the sizes tried"
    assert planner.sentence(4, sizes) == f"{start} (except 1 larger: not known)."
    assert planner.sentence(4, [*sizes, sizes[-1]]) == f"{start} (except 2 larger: not known)."
    assert planner.sentence(4, sizes[:2]) == f"{start}."
    assert planner.sentence(4, [judgement(0, GO)]) == "Batch 4: go without any cache, and a cache only spares reads."

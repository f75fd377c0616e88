"""Exact LRU at every size in one pass (curve.c): = a list of stack distances = LRU at any size (C16), on each ISA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from conftest import ISAS
from hypothesis import given
from hypothesis import strategies as st
from test_lru import CAPACITIES, NO, matrices, simulate

from pagegram_io.layout import Shape, engram, pagegram
from pagegram_io.native_caches import Curve, Lru, swap_floor


def measure(
    pages: np.ndarray, page_count: int, classes: np.ndarray, isa: str, *, step: int = 10**9
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """accesses [classes], compulsory [classes], histogram [classes, page_count + 1], first tokens."""
    with Curve(page_count, classes, isa=isa) as curve:
        made = sum(curve.access(pages[begin : begin + step]) for begin in range(0, len(pages), step))
        accesses, compulsory = curve.counts()
        histogram, first = curve.histogram(), curve.first_tokens().copy()
    assert made == accesses.sum() == (pages != NO).sum()
    return accesses, compulsory, histogram, first


def misses_at(accesses: np.ndarray, histogram: np.ndarray, capacity: int) -> np.ndarray:
    """Misses [classes] of a cache of `capacity` pages."""
    return accesses - histogram[:, : capacity + 1].sum(axis=1)


# ---- C16: curve = list of distances = LRU --------------------------------------------------------


@given(matrices())
def test_c16_the_histogram_equals_a_list_of_stack_distances(matrix: tuple[np.ndarray, int, np.ndarray]) -> None:
    pages, page_count, classes = matrix
    used = list(reference.accesses(pages.tolist()))
    distances = reference.stack_distances(page for _, _, page in used)
    wanted = np.zeros((int(classes.max()) + 1, page_count + 1), np.uint64)
    for (_, column, _), distance in zip(used, distances, strict=True):
        wanted[classes[column], distance] += distance > 0
    for isa in ISAS:
        accesses, compulsory, histogram, first = measure(pages, page_count, classes, isa)
        assert np.array_equal(histogram, wanted), isa
        assert histogram[:, 0].sum() == 0
        assert np.array_equal(histogram.sum(axis=1) + compulsory, accesses)
        assert first.tolist() == reference.first_tokens(pages.tolist())


@given(matrices())
def test_c16_every_size_equals_the_fixed_size_simulator(matrix: tuple[np.ndarray, int, np.ndarray]) -> None:
    pages, page_count, classes = matrix
    (accesses, compulsory, misses, full), _ = simulate(pages, page_count, CAPACITIES, classes)
    for isa in ISAS:
        found, cold, histogram, first = measure(pages, page_count, classes, isa)
        assert np.array_equal(found, accesses)
        assert np.array_equal(cold, compulsory)
        for k, capacity in enumerate(CAPACITIES):
            assert np.array_equal(misses_at(found, histogram, min(capacity, page_count)), misses[k])
            if 1 <= capacity <= len(first):
                assert first[capacity - 1] == full[k]


@given(matrices(), st.lists(st.integers(1, 70), min_size=1, max_size=4))
def test_c17_counts_do_not_depend_on_the_cut(matrix: tuple[np.ndarray, int, np.ndarray], steps: list[int]) -> None:
    pages, page_count, classes = matrix
    whole = measure(pages, page_count, classes, "portable")
    for isa in ISAS:
        for step in steps:
            for a, b in zip(whole, measure(pages, page_count, classes, isa, step=step), strict=True):
                assert np.array_equal(a, b)


@pytest.mark.parametrize("tokens", [0, 1, 2])
def test_c16_no_access_one_and_two(tokens: int, isa: str) -> None:
    one = np.zeros(1, np.uint32)
    same = np.zeros((tokens, 1), np.uint32)
    accesses, compulsory, histogram, first = measure(same, 3, one, isa)
    assert (accesses[0], compulsory[0]) == (tokens, min(tokens, 1))
    assert histogram.tolist() == [[0, max(tokens - 1, 0), 0, 0]]
    assert first.tolist() == [0][:tokens]
    other = np.arange(tokens, dtype=np.uint32)[:, None]
    accesses, compulsory, histogram, first = measure(other, 3, one, isa)
    assert (accesses[0], compulsory[0], histogram.sum()) == (tokens, tokens, 0)
    assert first.tolist() == list(range(tokens))


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129, 511, 512, 513, 16_383, 16_384, 16_385, 40_000])
def test_c16_lengths_around_the_batches_of_the_core(length: int, isa: str) -> None:
    """Dense, with unused places, and in single tokens after a first batch: a batch need not begin on a bitmap word."""
    rng = np.random.default_rng(length)
    pages = np.minimum(rng.geometric(0.05, length) - 1, 99).astype(np.uint32)
    distances = np.bincount(reference.stack_distances(pages.tolist()), minlength=101)
    for columns in (1, 2):
        matrix = pages[:, None] if columns == 1 else np.stack([pages, np.full(length, NO, np.uint32)], axis=1)
        for step in (10**9, 1000):
            _, compulsory, histogram, _ = measure(matrix, 100, np.zeros(columns, np.uint32), isa, step=step)
            assert compulsory[0] == distances[0]
            assert histogram[0, 1:].tolist() == distances[1:].tolist()


@pytest.mark.parametrize("columns", [3, 7, 16])
def test_c16_blocks_of_the_core(columns: int, isa: str) -> None:
    """More places than a block of the core (16,384) holds, in lines that do not divide it; first ones throughout."""
    rng = np.random.default_rng(columns)
    pages = rng.geometric(0.01, (60_000 // columns, columns)).astype(np.uint32) % np.uint32(400)
    pages[:, 0] = 400 + np.arange(len(pages)) // 5  # a new page every five tokens
    pages[rng.random(pages.shape) < 0.2] = NO
    classes = (np.arange(columns) % 2).astype(np.uint32)
    page_count = int(pages[pages != NO].max()) + 1
    accesses, compulsory, histogram, first = measure(pages, page_count, classes, isa)
    assert first.tolist() == reference.first_tokens(pages.tolist())
    for capacity in (20, 300):
        twin = reference.lru(pages.tolist(), capacity, classes.tolist())
        assert misses_at(accesses, histogram, capacity).tolist() == twin.misses
        assert compulsory.tolist() == twin.compulsory


@pytest.mark.parametrize("layout", ["engram", "pagegram packed"])
def test_c16_two_hundred_sizes_of_a_real_trace(layout: str, isa: str, shipped: Any) -> None:
    made = engram(200_000_000) if layout == "engram" else pagegram(200_000_000, 4, Shape(packed=True))
    pages = made.pages(made.rows(shipped(60_000)))
    classes = (made.order_of_page_column() - 2).astype(np.uint32)
    accesses, compulsory, histogram, first = measure(pages, made.page_count, classes, isa, step=777)
    capacities = np.random.default_rng(1).integers(0, made.page_count + 1, 200).tolist()
    for begin in range(0, 200, 64):
        part = capacities[begin : begin + 64]
        (made_accesses, cold, misses, full), _ = simulate(pages, made.page_count, part, classes)
        assert np.array_equal(made_accesses, accesses)
        assert np.array_equal(cold, compulsory)
        for k, capacity in enumerate(part):
            assert np.array_equal(misses_at(accesses, histogram, capacity), misses[k]), capacity
            if 1 <= capacity <= len(first):
                assert first[capacity - 1] == full[k]


# ---- positions are renumbered --------------------------------------------------------------------


@pytest.mark.parametrize("holes", [False, True])
def test_c16_renumbering_equals_the_unbounded_form(long_trace: Any, isa: str, holes: bool) -> None:
    pages, counts = long_trace
    matrix = np.stack([pages, np.full(len(pages), NO, np.uint32)], axis=1) if holes else pages[:, None]
    classes = np.zeros(matrix.shape[1], np.uint32)
    _, compulsory, histogram, _ = measure(matrix, 40, classes, isa, step=300_000)
    assert compulsory[0] == counts[0]
    assert histogram[0].tolist() == [0, *counts[1:41]]


def test_c16_renumbering_with_many_live_pages_equals_the_fixed_size_simulator(isa: str) -> None:
    """Every page live at each renumbering, distances over every level of the counters, classes, and any cut."""
    rng = np.random.default_rng(8)
    page_count = 300_000
    rounds = [rng.permutation(page_count) for _ in range(10)]
    near = [rng.geometric(1e-4, 300_000) % page_count for _ in range(2)]
    pages = np.concatenate([*rounds[:4], *near, *rounds[4:]]).astype(np.uint32).reshape(-1, 2)
    classes = np.array([0, 1], np.uint32)
    accesses, compulsory, histogram, first = measure(pages, page_count, classes, isa, step=333_333)
    capacities = [1, 100, 5000, 65_536, 150_000, 290_000, 299_999, 300_000]
    (_, cold, misses, full), _ = simulate(pages, page_count, capacities, classes)
    assert np.array_equal(cold, compulsory)
    assert np.array_equal(histogram.sum(axis=1) + compulsory, accesses)
    for k, capacity in enumerate(capacities):
        assert np.array_equal(misses_at(accesses, histogram, capacity), misses[k])
        assert first[capacity - 1] == full[k]


def test_c16_positions_beyond_the_largest_counter_of_the_tree(isa: str) -> None:
    """A table of 5 million pages has 21 million positions: more than two of the tree's top counters of 2^23."""
    page_count = 5_000_000
    rng = np.random.default_rng(10)
    pages = np.concatenate([np.arange(page_count), np.arange(page_count)[::-1], rng.permutation(page_count)])
    pages = np.concatenate([pages, rng.permutation(page_count)]).astype(np.uint32)[:, None]
    classes = np.zeros(1, np.uint32)
    accesses, compulsory, histogram, _ = measure(pages, page_count, classes, isa)
    assert compulsory[0] == page_count
    # The second pass runs backwards: its distances are 1, 2, 3, ... once each.
    capacities = [1, 1000, 2**20, 3_000_000, 4_999_999]
    (_, _, misses, _), _ = simulate(pages, page_count, capacities, classes)
    for k, capacity in enumerate(capacities):
        assert misses_at(accesses, histogram, capacity)[0] == misses[k, 0]
    assert histogram.min() >= 0
    assert histogram[0, 1:].min() >= 1


@pytest.mark.slow
@pytest.mark.parametrize("wide", ISAS[1:] or ISAS)
def test_c16_more_than_sixteen_top_counters(wide: str) -> None:
    """146 million accesses before positions run out, as a table of 36 million pages has them: some pages throughout are
    accessed once, and once again at the end. AVX2 adds the top counters by eight, AVX-512 by sixteen."""
    page_count, hot = 36_500_000, np.arange(500)
    classes = np.zeros(1, np.uint32)
    capacities = [400, 500, 564, 1000, 30_000, 60_000, 90_000, 94_000]
    fresh = np.random.default_rng(11).permutation(page_count - 500)[: 1465 * 64] + 500
    with (
        Curve(page_count, classes, isa=wide) as curve,
        Lru(page_count, capacities, classes) as lru,
    ):
        batch = np.empty((100_000, 1), np.uint32)
        batch[:, 0] = np.resize(hot, 100_000)
        for i in range(1465):
            batch[:64, 0] = fresh[64 * i : 64 * i + 64]
            curve.access(batch)
            lru.access(batch)
        again = np.random.default_rng(12).permutation(fresh).astype(np.uint32)[:, None]
        curve.access(again)
        lru.access(again)
        accesses, compulsory = curve.counts()
        histogram = curve.histogram()
        made, cold, misses, _ = lru.counts()
    assert accesses[0] == made[0] == 146_500_000 + len(fresh)
    assert compulsory[0] == cold[0] == len(fresh) + 500
    assert histogram.sum() + compulsory[0] == accesses[0]
    for k, capacity in enumerate(capacities):
        assert misses_at(accesses, histogram, capacity)[0] == misses[k, 0], capacity
    assert histogram[0, 600:].sum() >= len(fresh) - 64  # those at the end: spread over every distance there is


def test_counts_may_be_taken_on_the_way(isa: str) -> None:
    rng = np.random.default_rng(12)
    pages = rng.integers(0, 50, (1000, 2)).astype(np.uint32)
    with Curve(50, np.zeros(2, np.uint32), isa=isa) as curve:
        for end in range(100, 1001, 100):
            curve.access(pages[end - 100 : end])
            distances = np.bincount(reference.stack_distances(pages[:end].ravel().tolist()), minlength=51)
            assert curve.histogram()[0, 1:].tolist() == distances[1:].tolist()
            assert curve.histogram()[0, 1:].tolist() == distances[1:].tolist()
            assert curve.counts()[1][0] == distances[0]


# ---- refusals ------------------------------------------------------------------------------------


def test_pages_outside_the_table_are_refused_and_change_nothing(isa: str) -> None:
    with Curve(10, np.zeros(2, np.uint32), isa=isa) as curve:
        curve.access(np.array([[1, 2], [1, 3]], np.uint32))
        before = curve.histogram()
        for page in (10, 2**31, 2**32 - 2):
            with pytest.raises(ValueError, match=f"page {page} is not in a table of 10"):
                curve.access(np.array([[1, 2], [NO, page]], np.uint32))
        assert np.array_equal(curve.histogram(), before)
        assert curve.first_tokens().tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="closed"):
        curve.histogram()


def test_wrong_arrays_and_curves_that_cannot_be_are_refused() -> None:
    with Curve(10, np.zeros(2, np.uint32)) as curve:
        for pages in (np.zeros((3, 2), np.int32), np.zeros(2, np.uint32), np.zeros((3, 3), np.uint32)):
            with pytest.raises(ValueError, match="pages are uint32"):
                curve.access(pages)
    for page_count, classes in ((0, [0]), (2**32 - 1, [0]), (-1, [0]), (10, []), (10, [1]), (10, [0] * 4097)):
        with pytest.raises(ValueError):
            Curve(page_count, np.array(classes, np.uint32))
    with pytest.raises(ValueError, match="not known"):
        Curve(10, np.zeros(1, np.uint32), isa="neon")


def test_state_bytes_grow_with_pages_positions_and_classes() -> None:
    """What each page and each 64 positions cost (docs/method.md), and no more."""
    with (
        Curve(10**6, np.zeros(2, np.uint32)) as one,
        Curve(10**6, np.array([0, 1], np.uint32)) as two,
    ):
        assert two.state_bytes - one.state_bytes == (10**6 + 1) * 12 + 16  # a histogram more, and two counts
        positions = (4 * 10**6 + 2**20) // 512 * 512
        per_page = 4 + 8 + 12  # last, first token, histogram
        per_position = 12 / 64 + 2 / 64 + 2 / 512 + 2 / 2**14 + 4 / 2**19 + 4 / 2**23
        assert abs(one.state_bytes - per_page * 10**6 - per_position * positions) < 300_000


def test_swap_floor_is_a_swap() -> None:
    pages = np.array([3, 3, 1, 3], np.uint32)
    last = np.zeros(5, np.uint32)
    assert swap_floor(last, pages) == 0 + 0 + 0 + 1
    assert last.tolist() == [0, 2, 0, 3, 0]

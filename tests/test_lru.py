"""Exact LRU at fixed sizes (lru.c): = OrderedDict = libcachesim (C16), whatever the cut (C17), renumbered or not."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io import native, native_caches
from pagegram_io.layout import Shape, engram, flat, pagegram
from pagegram_io.trace import write_trace

NO = native.NO_PAGE
NOT_FULL = 2**64 - 1
CAPACITIES = [0, 1, 2, 3, 5, 8, 13, 40, 10**6]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, int, np.ndarray]:
    """Dense inputs: few pages, many accesses, unused places, several classes. Returns pages, page count, classes."""
    columns = draw(st.integers(1, 6))
    tokens = draw(st.integers(0, 200))
    page_count = draw(st.sampled_from([1, 2, 3, 5, 12, 40]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):  # skewed, so that there are hits at every distance
        pages = np.minimum(rng.geometric(draw(st.sampled_from([0.05, 0.3])), (tokens, columns)) - 1, page_count - 1)
    else:
        pages = rng.integers(0, page_count, (tokens, columns))
    pages = pages.astype(np.uint32)
    pages[rng.random((tokens, columns)) < draw(st.sampled_from([0, 0, 0.1, 0.9, 1]))] = NO
    classes = np.array(draw(st.lists(st.integers(0, 2), min_size=columns, max_size=columns)), np.uint32)
    classes = np.unique(classes, return_inverse=True)[1].astype(np.uint32)
    return pages, page_count, classes


def simulate(
    pages: np.ndarray,
    page_count: int,
    capacities: list[int],
    classes: np.ndarray,
    *,
    step: int = 10**9,
    missed: bool = False,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Counts and, if asked for, the verdicts of a pass in batches of `step` tokens."""
    verdicts = np.full(pages.shape, 9, np.uint8)
    with native_caches.Lru(page_count, capacities, classes) as lru:
        accesses = 0
        for begin in range(0, len(pages), step):
            into = verdicts[begin : begin + step] if missed else None
            accesses += lru.access(pages[begin : begin + step], missed=into)
        counts = list(lru.counts())
    assert accesses == counts[0].sum() == (pages != NO).sum()
    return counts, verdicts


# ---- C16: LRU = OrderedDict ----------------------------------------------------------------------


@given(matrices())
def test_c16_every_size_equals_an_ordered_dict(matrix: tuple[np.ndarray, int, np.ndarray]) -> None:
    pages, page_count, classes = matrix
    (accesses, compulsory, misses, full), _ = simulate(pages, page_count, CAPACITIES, classes)
    count = int(classes.max()) + 1
    for k, capacity in enumerate(CAPACITIES):
        twin = reference.lru(pages.tolist(), capacity, classes.tolist())
        wanted = twin.misses if len(pages) else [0] * count
        assert misses[k].tolist() == wanted
        assert accesses.tolist() == twin.accesses
        assert compulsory.tolist() == twin.compulsory
        assert full[k] == (NOT_FULL if twin.full_at_token is None else twin.full_at_token)


@given(matrices(), st.sampled_from(CAPACITIES), st.sampled_from([1, 7, 10**9]))
def test_c16_each_verdict_equals_an_ordered_dict(
    matrix: tuple[np.ndarray, int, np.ndarray], capacity: int, step: int
) -> None:
    """How many of the sizes miss, in whatever order they are given, and 128 more for a first access ever."""
    pages, page_count, classes = matrix
    sizes = [capacity, 4, 0, capacity]
    _, verdicts = simulate(pages, page_count, sizes, classes, missed=True, step=step)
    twins = [np.array(reference.lru(pages.tolist(), size, classes.tolist()).verdicts, int) for size in sizes]
    assert verdicts.tolist() == (sum(twin & 127 for twin in twins) + (twins[0] & 128)).tolist()


@given(matrices())
def test_c16_misses_never_grow_with_size_and_end_at_the_compulsory_ones(
    matrix: tuple[np.ndarray, int, np.ndarray],
) -> None:
    pages, page_count, classes = matrix
    capacities = [*range(page_count + 3), 10**9]
    (accesses, compulsory, misses, _), _ = simulate(pages, page_count, capacities, classes)
    assert misses[0].tolist() == accesses.tolist()
    assert (np.diff(misses.astype(np.int64), axis=0) <= 0).all()
    footprint = len(np.unique(pages[pages != NO]))
    for k, capacity in enumerate(capacities):
        if capacity >= footprint:
            assert misses[k].tolist() == compulsory.tolist()
    assert compulsory.sum() == footprint


@given(matrices(), st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_c17_counts_do_not_depend_on_the_cut(matrix: tuple[np.ndarray, int, np.ndarray], steps: list[int]) -> None:
    pages, page_count, classes = matrix
    whole, verdicts = simulate(pages, page_count, CAPACITIES, classes, missed=True)
    for step in steps:
        parts, verdicts_of_parts = simulate(pages, page_count, CAPACITIES, classes, missed=True, step=step)
        plain, _ = simulate(pages, page_count, CAPACITIES, classes, step=step)
        for a, b, c in zip(whole, parts, plain, strict=True):
            assert np.array_equal(a, b)
            assert np.array_equal(a, c)
        assert np.array_equal(verdicts, verdicts_of_parts)


@pytest.mark.parametrize("tokens", [0, 1, 2])
@pytest.mark.parametrize("capacity", [0, 1, 2, 3])
def test_c16_no_access_one_and_two(tokens: int, capacity: int) -> None:
    one = np.zeros(1, np.uint32)
    for pages in ([[0]] * tokens, [[i] for i in range(tokens)]):
        matrix = np.array(pages, np.uint32).reshape(-1, 1)
        (accesses, compulsory, misses, full), _ = simulate(matrix, 2, [capacity], one)
        twin = reference.lru(matrix.tolist(), capacity)
        assert (accesses[0], compulsory[0], misses[0, 0]) == (tokens, twin.compulsory[0], twin.misses[0])
        assert full[0] == (NOT_FULL if twin.full_at_token is None else twin.full_at_token)


def test_c16_sixty_four_sizes_in_one_pass_equal_one_at_a_time() -> None:
    rng = np.random.default_rng(2)
    pages = rng.geometric(0.003, (20_000, 3)).astype(np.uint32) % np.uint32(3000)
    classes = np.array([0, 1, 0], np.uint32)
    capacities = [0, *rng.permutation(np.arange(1, 3000))[:63].tolist()]
    (_, _, misses, full), _ = simulate(pages, 3000, capacities, classes)
    for k in range(0, 64, 7):
        (_, _, alone, full_alone), _ = simulate(pages, 3000, [capacities[k]], classes)
        assert np.array_equal(alone[0], misses[k])
        assert full_alone[0] == full[k]
    twin = reference.lru(pages.tolist(), capacities[5], [0, 1, 0])
    assert misses[5].tolist() == twin.misses


def test_c16_blocks_of_the_core() -> None:
    """More places than one block of the core (16,384) holds, in rows that do not divide it, with unused places."""
    rng = np.random.default_rng(3)
    for columns in (1, 3, 7, 16):
        pages = rng.geometric(0.01, (60_000 // columns, columns)).astype(np.uint32)
        page_count = int(pages.max()) + 1
        holed = pages.copy()
        holed[rng.random(pages.shape) < 0.3] = NO
        for matrix in (pages, holed):
            classes = (np.arange(columns) % 2).astype(np.uint32)
            twin = reference.lru(matrix.tolist(), 50, classes.tolist())
            (_, compulsory, misses, full), verdicts = simulate(matrix, page_count, [50], classes, missed=True)
            assert misses[0].tolist() == twin.misses
            assert compulsory.tolist() == twin.compulsory
            assert full[0] == twin.full_at_token
            assert verdicts.tolist() == twin.verdicts
            (_, _, misses, full), _ = simulate(matrix, page_count, [50], np.zeros(columns, np.uint32))
            assert misses[0, 0] == sum(twin.misses)
            assert full[0] == twin.full_at_token


# ---- positions are renumbered --------------------------------------------------------------------


def misses_by_distance(counts: list[int], capacity: int) -> int:
    return counts[0] + sum(counts[capacity + 1 :])


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("holes", [False, True])
def test_c16_renumbering_equals_the_unbounded_form(
    long_trace: tuple[np.ndarray, list[int]], columns: int, holes: bool
) -> None:
    flat_pages, counts = long_trace
    pages = flat_pages.reshape(-1, columns)
    if holes:  # unused places between change nothing, but take the general path
        pages = np.concatenate([pages, np.full((len(pages), 1), NO, np.uint32)], axis=1)
    classes = np.zeros(pages.shape[1], np.uint32)
    capacities = [0, 1, 2, 5, 17, 39, 40, 100]
    (accesses, compulsory, misses, _), _ = simulate(pages, 40, capacities, classes, step=300_000)
    assert accesses[0] == len(flat_pages)
    assert compulsory[0] == counts[0]
    assert misses[:, 0].tolist() == [misses_by_distance(counts, capacity) for capacity in capacities]


def test_c16_renumbering_keeps_verdicts_and_classes(long_trace: tuple[np.ndarray, list[int]]) -> None:
    """Of 2.4 million accesses, each verdict: positions are used up twice."""
    pages = long_trace[0][:2_400_000].reshape(-1, 2)
    distances = np.array(reference.stack_distances(pages.ravel().tolist())).reshape(-1, 2)
    for capacity in (1, 9):
        counts, verdicts = simulate(pages, 40, [capacity, 3], np.array([0, 1], np.uint32), missed=True, step=777_777)
        first = distances == 0
        wanted = (first | (distances > capacity)).astype(int) + (first | (distances > 3))
        assert np.array_equal(verdicts, wanted + 128 * first)
        assert counts[2][0].tolist() == (first | (distances > capacity)).sum(axis=0).tolist()
        assert counts[1].tolist() == first.sum(axis=0).tolist()
        assert counts[2][1].tolist() == ((distances == 0) | (distances > 3)).sum(axis=0).tolist()


def test_c16_renumbering_with_as_many_live_pages_as_there_can_be() -> None:
    """Every page live when positions are renumbered: rounds over 20,000 pages in different orders."""
    rng = np.random.default_rng(8)
    pages = np.concatenate([rng.permutation(20_000) for _ in range(60)]).astype(np.uint32)[:, None]
    (_, compulsory, misses, full), _ = simulate(pages, 20_000, [15_000, 20_000], np.zeros(1, np.uint32), step=500_000)
    twin = reference.lru(pages.tolist(), 15_000)
    assert misses[:, 0].tolist() == [twin.misses[0], 20_000]
    assert compulsory[0] == 20_000
    assert full.tolist() == [14_999, 19_999]


# ---- C16: LRU = libcachesim ----------------------------------------------------------------------


def libcachesim_misses(path: Path, capacity: int) -> tuple[int, int]:
    """Requests and misses that libcachesim's LRU finds in a file of little-endian 32-bit ids."""
    import libcachesim

    form = libcachesim.ReaderInitParam(binary_fmt_str="<I", ignore_obj_size=True)
    form.obj_id_field = 1
    reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.BIN_TRACE, form)
    requests = reader.get_num_of_req()
    miss_ratio, _ = libcachesim.LRU(capacity).process_trace(reader)
    return requests, round(miss_ratio * requests)


TRACES = ["flat", "engram", "pagegram S=4", "pagegram S=15", "packed pagegram", "zipf", "loop", "uniform"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="libcachesim has wheels for x86-64 alone")
@pytest.mark.parametrize("name", TRACES)
def test_c16_misses_equal_libcachesim(name: str, tmp_path: Path, shipped: Any) -> None:
    """Page traces of the shipped stream as `trace --format u32` writes them, and synthetic ones."""
    path = tmp_path / "pages.u32"
    rng = np.random.default_rng(9)
    if name in ("zipf", "loop", "uniform"):
        pages = {
            "zipf": (rng.zipf(1.1, 300_000) % 50_000),
            "loop": np.tile(np.arange(3000), 60),
            "uniform": rng.integers(0, 4000, 200_000),
        }[name].astype("<u4")
        pages.tofile(path)
    else:
        params = 200_000_000
        layout = {
            "flat": flat(params),
            "engram": engram(params),
            "pagegram S=4": pagegram(params, 4),
            "pagegram S=15": pagegram(params, 15),
            "packed pagegram": pagegram(params, 4, Shape(packed=True, base_byte=999)),
        }[name]
        write_trace(layout, shipped(30_000), path, form="u32")
        pages = np.fromfile(path, "<u4")
    page_count = int(pages.max()) + 1
    capacities = [1, 10, 300, 2999, 3000, page_count // 3, page_count]
    (accesses, _, misses, _), _ = simulate(pages[:, None], page_count, capacities, np.zeros(1, np.uint32))
    for k, capacity in enumerate(capacities):
        assert libcachesim_misses(path, capacity) == (int(accesses[0]), int(misses[k, 0])), capacity


# ---- refusals ------------------------------------------------------------------------------------


def test_pages_outside_the_table_are_refused_and_change_nothing() -> None:
    classes = np.zeros(2, np.uint32)
    with native_caches.Lru(10, [3], classes) as lru:
        lru.access(np.array([[1, 2], [1, 3]], np.uint32))
        before = [array.copy() for array in lru.counts()]
        for page in (10, 11, 2**31, 2**32 - 2):
            for missed in (None, np.full((2, 2), 7, np.uint8)):
                with pytest.raises(ValueError, match=f"page {page} is not in a table of 10"):
                    lru.access(np.array([[1, 2], [NO, page]], np.uint32), missed=missed)
                assert missed is None or (missed == 7).all()
        assert all(np.array_equal(a, b) for a, b in zip(before, lru.counts(), strict=True))
        lru.access(np.array([[1, 9]], np.uint32))
        assert lru.counts()[2].tolist() == [[4]]


def test_wrong_arrays_are_refused() -> None:
    with native_caches.Lru(10, [3], np.zeros(2, np.uint32)) as lru:
        for pages in (np.zeros((3, 2), np.int32), np.zeros(2, np.uint32), np.zeros((3, 3), np.uint32)):
            with pytest.raises(ValueError, match="pages are uint32"):
                lru.access(pages)
        good = np.zeros((3, 2), np.uint32)
        for missed in (np.zeros((3, 2), np.int8), np.zeros((2, 2), np.uint8), np.zeros((3, 4), np.uint8)[:, ::2]):
            with pytest.raises(ValueError, match="missed must be"):
                lru.access(good, missed=missed)
        assert lru.access(np.asfortranarray(good)) == 6
        assert lru.access(np.empty((0, 2), np.uint32)) == 0
    with pytest.raises(ValueError, match="closed"):
        lru.counts()


@pytest.mark.parametrize(
    ("page_count", "capacities", "classes"),
    [
        (0, [1], [0]),
        (2**32 - 1, [1], [0]),
        (2**63, [1], [0]),
        (-1, [1], [0]),
        (10, [], [0]),
        (10, [1] * 65, [0]),
        (10, [-1], [0]),
        (10, [1.5], [0]),
        (10, [1], []),
        (10, [1], [1]),
        (10, [1], [0, 2]),
        (10, [1], [0] * 4097),
    ],
)
def test_simulators_that_cannot_be_are_refused(page_count: int, capacities: list[Any], classes: list[int]) -> None:
    with pytest.raises(ValueError):
        native_caches.Lru(page_count, capacities, np.array(classes, np.uint32))


def test_state_bytes_are_the_documented_formula() -> None:
    """4 bytes a page and 12 bytes for each 64 of min(4 * pages + 2^20, 2^32 - 1024) positions, and what is fixed."""
    sizes = {}
    for pages in (1, 1000, 10**6, 50 * 10**6):
        with native_caches.Lru(pages, [1], np.zeros(1, np.uint32)) as lru:
            positions = min(4 * pages + 2**20, 2**32 - 1024) // 512 * 512
            sizes[pages] = lru.state_bytes - (4 * pages + positions // 64 * 12)
    assert len(set(sizes.values())) == 1
    assert 0 < sizes[1] < 2**20

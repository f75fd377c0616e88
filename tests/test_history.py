"""The history of a sequence as a value (history.c): any edits give the rows of hashing it whole (C6, C17)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import reference
from conftest import make_stream
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from pagegram_io import native
from pagegram_io.layout import Shape, flat, pagegram

VOCABULARY = 50_000
ORDERS = (1, 2, 3)
LAYOUT = pagegram(40_000_000, 4, Shape(orders=ORDERS, heads=2, row_width=8, seed=3))


def rows_of_windows(windows: np.ndarray) -> np.ndarray:
    """Rows of many positions from what each sees: x + 1 of itself and of the two before it, 0 where there is none."""

    def mix(z: np.ndarray) -> np.ndarray:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(reference.FIRST_FACTOR)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(reference.SECOND_FACTOR)
        return z ^ (z >> np.uint64(31))

    def u(g: np.ndarray, role: int, order: int, index: int) -> np.ndarray:
        return mix(g ^ np.uint64(reference.salt(LAYOUT.seed, role, order, index))) >> np.uint64(1)

    columns, g = [], mix(windows[:, 0])
    for i, group in enumerate(LAYOUT.groups):
        if i:
            g = mix(g ^ (windows[:, i] * np.uint64(reference.GAMMA)))
        order, modulus = group.order, group.columns[0].modulus
        bucket = u(g, reference.BUCKET, order, 0) % np.uint64(modulus)
        for k in range(2):
            slot = u(g, reference.ROW, order, k) % np.uint64(4)
            columns.append(np.uint64(group.row_base) + (bucket * np.uint64(2) + np.uint64(k)) * np.uint64(4) + slot)
    return np.stack(columns, axis=1)


def window(ids: list[int], t: int) -> tuple[int, int, int]:
    return (ids[t] + 1, ids[t - 1] + 1 if t >= 1 else 0, ids[t - 2] + 1 if t >= 2 else 0)


def test_a_hundred_thousand_edits_equal_hashing_the_whole_history() -> None:
    """Appends, rewinds and forks of several sequences; the newest rows after each, and whole sequences on the way."""
    rng = random.Random(1)
    rows = native.Rows(LAYOUT)
    live: list[tuple[native.History, list[int]]] = [(native.History(VOCABULARY), [])]
    windows: list[tuple[int, int, int]] = []
    found: list[np.ndarray] = []
    for step in range(100_000):
        i = rng.randrange(len(live))
        history, ids = live[i]
        kind = rng.random()
        if kind < 0.55 or not ids:
            new = [
                rng.randrange(VOCABULARY) if rng.random() < 0.5 else rng.randrange(3) for _ in range(rng.randrange(5))
            ]
            assert history.append(new) == len(ids) + len(new)
            ids += new
        elif kind < 0.9:  # a server rejects a few drafted tokens, and now and then starts again
            keep = max(0, len(ids) - rng.randrange(6)) if rng.random() < 0.99 else rng.randrange(len(ids))
            assert history.rewind(keep) == keep
            del ids[keep:]
        elif len(live) < 8:
            live.append((history.fork(), list(ids)))
        else:
            live.pop(i)[0].close()
            continue
        if len(history) != len(ids):
            pytest.fail(f"length after step {step}")
        begin = max(0, len(ids) - 3)
        found.append(history.rows(rows, begin))
        windows += [window(ids, t) for t in range(begin, len(ids))]
        if step % 5000 == 0 and ids:
            assert np.array_equal(history.rows(rows), rows.emit(make_stream(ids, vocabulary=VOCABULARY)))
    assert len(windows) > 200_000
    assert np.array_equal(np.concatenate(found), rows_of_windows(np.array(windows, np.uint64)))
    for history, ids in live:
        assert len(history) == len(ids)
        if ids:
            assert np.array_equal(history.rows(rows), rows.emit(make_stream(ids, vocabulary=VOCABULARY)))


def test_the_vectorised_twin_equals_plain_python() -> None:
    rng = random.Random(2)
    ids = [rng.randrange(VOCABULARY) for _ in range(200)]
    table = reference.pagegram(40_000_000, 4, orders=ORDERS, heads=2, row_width=8, seed=3)
    windows = np.array([window(ids, t) for t in range(200)], np.uint64)
    assert rows_of_windows(windows).tolist() == reference.rows(table, ids, [0])


class Histories(RuleBasedStateMachine):
    """Hypothesis finds its own edits, over orders up to the longest that there is."""

    layout = flat(20_000, Shape(orders=(1, 2, 8), dim=4))
    sequences: Bundle[tuple[native.History, list[int]]] = Bundle("sequences")

    @initialize(target=sequences)
    def first(self) -> tuple[native.History, list[int]]:
        return native.History(10), []

    @rule(sequence=sequences, ids=st.lists(st.integers(0, 9), max_size=90))
    def append(self, sequence: tuple[native.History, list[int]], ids: list[int]) -> None:
        sequence[0].append(ids)
        sequence[1].extend(ids)
        self.check(sequence)

    @rule(sequence=sequences, share=st.floats(0, 1))
    def rewind(self, sequence: tuple[native.History, list[int]], share: float) -> None:
        keep = int(len(sequence[1]) * share)
        sequence[0].rewind(keep)
        del sequence[1][keep:]
        self.check(sequence)

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: tuple[native.History, list[int]]) -> tuple[native.History, list[int]]:
        return sequence[0].fork(), list(sequence[1])

    @rule(
        sequence=sequences, ids=st.lists(st.integers(0, 9), max_size=5), bad=st.sampled_from([-1, 10, 2**32, -(2**63)])
    )
    def refuse(self, sequence: tuple[native.History, list[int]], ids: list[int], bad: int) -> None:
        with pytest.raises(ValueError, match=str(bad)):
            sequence[0].append([*ids, bad, 3])
        self.check(sequence)

    def check(self, sequence: tuple[native.History, list[int]]) -> None:
        history, ids = sequence
        assert len(history) == len(ids)
        with native.Rows(self.layout) as rows:
            found = history.rows(rows)
            if ids:
                assert np.array_equal(found, rows.emit(make_stream(ids)))
            else:
                assert found.shape == (0, 3)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    "bad",
    [
        [-1], [100], [5, -1, 5], [5, 100], [2**32], [2**32 + 5], [-(2**32)], [2**63 - 1],
        np.array([2**64 - 1], np.uint64), np.array([2**63 + 5], np.uint64), [2**70], [1.0], [1.5], [True], ["1"],
    ],
    ids=str,
)  # fmt: skip
def test_ids_outside_the_vocabulary_are_refused_and_change_nothing(bad: Any) -> None:
    history = native.History(100)
    history.append([1, 2, 3])
    with native.Rows(flat(20_000, Shape(dim=4))) as rows:
        before = history.rows(rows)
        with pytest.raises(ValueError):
            history.append(bad)
        assert len(history) == 3
        assert np.array_equal(history.rows(rows), before)
    assert history.append(np.array([99], np.uint16)) == 4
    assert history.append([]) == 4


@pytest.mark.parametrize("vocabulary", [0, -1, 2**32 + 1, 2**64])
def test_vocabularies_that_cannot_be_are_refused(vocabulary: int) -> None:
    with pytest.raises(ValueError):
        native.History(vocabulary)


def test_the_whole_range_of_32_bit_ids() -> None:
    history = native.History(2**32)
    history.append([2**32 - 1, 0, 65536])
    with native.Rows(flat(20_000, Shape(dim=4))) as rows:
        stream = make_stream([2**32 - 1, 0, 65536], vocabulary=2**32, dtype=np.uint32)
        assert np.array_equal(history.rows(rows), rows.emit(stream))
    with pytest.raises(ValueError, match="4294967296"):
        history.append([2**32])


def test_rewinds_and_ranges_that_do_not_fit_are_refused() -> None:
    history = native.History(10)
    history.append([1, 2, 3])
    for length in (4, -1, 2**64):
        with pytest.raises(ValueError):
            history.rewind(length)
    assert len(history) == 3
    with native.Rows(flat(20_000, Shape(dim=4))) as rows:
        for begin, end in ((0, 4), (2, 1), (4, 4), (-1, 2)):
            with pytest.raises(ValueError):
                history.rows(rows, begin, end)
        assert history.rows(rows, 3).shape == (0, 2)
    assert history.rewind(0) == 0
    history.close()
    history.close()
    with pytest.raises(ValueError, match="closed"):
        history.append([1])


def test_a_fork_outlives_what_it_was_forked_from() -> None:
    history = native.History(10)
    history.append([1, 2, 3] * 100)
    fork = history.fork()
    history.append([4])
    history.close()
    fork.append([5])
    with native.Rows(flat(20_000, Shape(dim=4))) as rows:
        assert np.array_equal(fork.rows(rows), rows.emit(make_stream([1, 2, 3] * 100 + [5])))
    empty = native.History(10).fork()
    assert len(empty) == 0
    assert empty.append([7]) == 1

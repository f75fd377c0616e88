"""What the hash must show on real text (C10 to C14), by the package and again by hand; controls are rejected."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
import reference
from conftest import make_stream

from pagegram_io import collisions, native
from pagegram_io.collisions import Ngrams
from pagegram_io.layout import Layout, Shape, engram, flat, pagegram

TOKENS = 3_000_000
PARAMS = 200_000_000
SLOTS = [1, 4, 8, 15, 60]
HEADS = 8


@functools.cache
def layout_of(slots: int | None) -> Layout:
    return engram(PARAMS) if slots is None else pagegram(PARAMS, slots)


@pytest.fixture(scope="module")
def ngrams(shipped: Any) -> dict[int, Ngrams]:
    """The distinct bigrams and trigrams of the first 3 million shipped tokens: some 0.8 and 1.6 million."""
    return {order: collisions.distinct_ngrams(shipped(TOKENS), order) for order in (2, 3)}


def sample(layout: Layout, order: int, hashes: np.ndarray, pairs: int = 1_300_000) -> np.ndarray:
    """As many of the n-grams as give about that many pairs that share head 0."""
    group = next(g for g in layout.groups if g.order == order)
    head_rows = group.row_count / (HEADS if layout.slots else 1)
    return hashes[: math.ceil(math.sqrt(2 * pairs * head_rows))]


def rejects(rows: np.ndarray, slots: int) -> tuple[bool, float, float]:
    """The test of C10: is mean or share further than 4 sigma from theory, over at least a million pairs?"""
    pairs, extra, sigma, any_other = collisions.pair_statistics(rows)
    assert pairs >= 1_000_000
    p = 1 / slots
    extra_theory, any_theory = (HEADS - 1) * p, 1 - (1 - p) ** (HEADS - 1)
    extra_sigma = math.sqrt((HEADS - 1) * p * (1 - p) / pairs)
    any_sigma = math.sqrt(any_theory * (1 - any_theory) / pairs)
    bad = abs(extra - extra_theory) > 4 * extra_sigma or abs(any_other - any_theory) > 4 * any_sigma
    if not bad and slots > 1:
        assert sigma == pytest.approx(extra_sigma, rel=0.02)
    return bad, extra, any_other


# ---- C10: heads shared beside head 0 -------------------------------------------------------------


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("slots", SLOTS)
def test_c10_extra_heads_and_any_other_within_4_sigma(slots: int, order: int, ngrams: dict[int, Ngrams]) -> None:
    layout = layout_of(slots)
    rows = collisions.rows_of(layout, order, sample(layout, order, ngrams[order].hashes))
    bad, extra, any_other = rejects(rows, slots)
    assert not bad, (extra, any_other)
    if slots == 1:
        assert (extra, any_other) == (7.0, 1.0)


def bucket_and_slots(layout: Layout, order: int, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bucket [n] and head slots [n, heads] of rows in an order's region."""
    rows = collisions.rows_of(layout, order, hashes)
    slots = np.uint64(layout.slots or 1)
    return rows[:, 0] // np.uint64(HEADS * (layout.slots or 1)), rows % slots


def rows_from(bucket: np.ndarray, slots: np.ndarray, slot_count: int) -> np.ndarray:
    heads = np.arange(HEADS, dtype=np.uint64)
    return (bucket[:, None] * np.uint64(HEADS) + heads) * np.uint64(slot_count) + slots.astype(np.uint64)


@pytest.mark.parametrize("slots", [4, 8, 15, 60])
def test_c10_rejects_one_slot_hash_for_all_heads(slots: int, ngrams: dict[int, Ngrams]) -> None:
    """7.0 extra heads at every S: whoever shares head 0 shares all of them."""
    layout = layout_of(slots)
    hashes = sample(layout, 2, ngrams[2].hashes)
    bucket, own = bucket_and_slots(layout, 2, hashes)
    bad, extra, any_other = rejects(rows_from(bucket, np.repeat(own[:, :1], HEADS, axis=1), slots), slots)
    assert bad
    assert (extra, any_other) == (7.0, 1.0)
    bad, _, _ = rejects(rows_from(bucket, own, slots), slots)  # the same by hand, of the real slots
    assert not bad


def multiply_xor_rows(shipped: Any, slots: int) -> np.ndarray:
    """Bigrams with slot = ((a_k * x_t) XOR (b_k * x_{t-1})) mod S and odd a_k, b_k, in the buckets of pg1."""
    stream = shipped(TOKENS)
    pairs = np.unique(stream.ids[1:].astype(np.uint64) << np.uint64(16) | stream.ids[:-1])
    pairs = np.random.default_rng(1).permutation(pairs)
    now, before = pairs >> np.uint64(16), pairs & np.uint64(65535)
    g1 = native.hash_finish(now + np.uint64(1), 0)
    g2 = native.hash_finish(g1 ^ ((before + np.uint64(1)) * np.uint64(reference.GAMMA)), 0)
    layout = layout_of(slots)
    keep = len(sample(layout, 2, g2, 1_100_000))
    bucket, _ = bucket_and_slots(layout, 2, g2[:keep])
    # Random multipliers, as many of each pair of remainders by 4, which are what counts at S=4.
    random = np.random.default_rng(2).integers(0, 2**62, (2, HEADS), np.uint64) * np.uint64(4)
    a = random[0] + np.array([1, 1, 1, 1, 3, 3, 3, 3], np.uint64)
    b = random[1] + np.array([1, 3, 1, 3, 1, 3, 1, 3], np.uint64)
    mixed = (now[:keep, None] * a) ^ (before[:keep, None] * b)
    return rows_from(bucket, mixed % np.uint64(slots), slots)


@pytest.mark.parametrize(("slots", "wanted"), [(4, 5.0), (8, None)])
def test_c10_rejects_a_multiply_xor_hash_a_head(slots: int, wanted: float | None, shipped: Any) -> None:
    """5.00 extra heads at S=4 where theory says 1.75: three of seven share always (multipliers of the same remainders
    by 4, or both opposite), the others half the time."""
    bad, extra, _ = rejects(multiply_xor_rows(shipped, slots), slots)
    assert bad
    assert extra > 1.5 * (HEADS - 1) / slots
    if wanted is not None:
        assert extra == pytest.approx(wanted, abs=0.05)


def test_c10_engram_shares_almost_nothing_else(ngrams: dict[int, Ngrams]) -> None:
    """3.6e-5 extra heads at 200M, within 4 sigma of a Poisson count; theory() says the same."""
    layout = layout_of(None)
    for order in (2, 3):
        rows = collisions.rows_of(layout, order, sample(layout, order, ngrams[order].hashes))
        pairs, extra, _, any_other = collisions.pair_statistics(rows)
        assert pairs >= 1_000_000
        wanted, share, ratio = collisions.theory(layout, order)
        assert wanted == pytest.approx(3.6e-5, rel=0.01)
        assert share == pytest.approx(wanted, rel=1e-3)
        assert ratio == 1
        assert abs(extra - wanted) < 4 * math.sqrt(wanted / pairs)
        assert abs(any_other - share) < 4 * math.sqrt(share / pairs)


def test_c10_theory_is_that_of_the_table() -> None:
    table = {1: (7, 1, 0.125), 4: (1.75, 0.8665, 0.4499), 8: (0.875, 0.6073, 0.6564),
             15: (0.4667, 0.3830, 0.7953), 60: (0.1167, 0.1110, 0.9436)}  # fmt: skip
    for slots, wanted in table.items():
        assert collisions.theory(layout_of(slots), 2) == pytest.approx(wanted, abs=5e-5)


# ---- by hand: pairs and rows ---------------------------------------------------------------------


def test_pairs_and_statistics_equal_counting_by_hand() -> None:
    rng = np.random.default_rng(6)
    rows = rng.integers(0, 4, (60, 3)).astype(np.uint64)
    pairs = [(a, b) for a in range(60) for b in range(a + 1, 60) if rows[a, 0] == rows[b, 0]]
    found = [p for a, b in collisions.pairs_sharing(rows[:, 0]) for p in zip(a.tolist(), b.tolist(), strict=True)]
    assert sorted(tuple(sorted(p)) for p in found) == pairs
    shared = np.array([(rows[a, 1:] == rows[b, 1:]).sum() for a, b in pairs])
    count, extra, sigma, any_other = collisions.pair_statistics(rows)
    assert (count, extra) == (len(pairs), pytest.approx(shared.mean()))
    assert sigma == pytest.approx(shared.std() / math.sqrt(len(pairs)))
    assert any_other == pytest.approx((shared > 0).mean())
    near = sum((rows[a] == rows[b]).any() for a in range(60) for b in range(a + 1, 60))
    assert collisions.neighbour_pairs(rows, 1) == near
    assert collisions.pair_statistics(rows[:1]) == (0, 0.0, 0.0, 0.0)
    assert list(collisions.pairs_sharing(np.empty(0, np.uint64))) == []
    # Of a bucketed layout, rows of heads never meet: as many neighbours as pairs in one bucket that share a head.
    bucketed = rows_from(rng.integers(0, 5, 60).astype(np.uint64), rng.integers(0, 4, (60, HEADS)), 4)
    near = sum((bucketed[a] == bucketed[b]).any() for a in range(60) for b in range(a + 1, 60))
    assert collisions.neighbour_pairs(bucketed, HEADS * 4) == near


@pytest.mark.parametrize("slots", [None, 1, 4, 15])
def test_rows_of_hashes_equal_the_rows_of_their_tokens(slots: int | None, shipped: Any) -> None:
    layout, stream = layout_of(slots), shipped(20_000)
    rows = layout.rows(stream)
    column = 0
    for order in (2, 3):
        groups = [g for g in layout.groups if g.order == order]
        width = sum(len(g.columns) for g in groups)
        found = collisions.rows_of(layout, order, native.hash_ngrams(stream, order))
        assert np.array_equal(found + np.uint64(groups[0].row_base), rows[:, column : column + width])
        column += width


def test_distinct_ngrams_equal_a_set_of_tuples(shipped: Any) -> None:
    stream = shipped(20_000)
    ids, starts = stream.ids.tolist(), set(stream.document_starts.tolist())
    for order in (1, 2, 3):
        counts: dict[tuple[int | None, ...], int] = {}
        start = 0
        for t in range(len(ids)):
            start = t if t in starts else start
            ngram = tuple(ids[t - back] if t - back >= start else None for back in range(order))
            counts[ngram] = counts.get(ngram, 0) + 1
        found = collisions.distinct_ngrams(stream, order)
        assert len(found.hashes) == len(counts)
        assert sorted(found.counts.tolist()) == sorted(counts.values())
        assert found.counts.sum() == 20_000


# ---- C11, C12, C13: neighbours, loads, foreign share ---------------------------------------------


@pytest.mark.parametrize("slots", [None, *SLOTS])
def test_c11_distinct_neighbours_relative_to_engram(slots: int | None, ngrams: dict[int, Ngrams]) -> None:
    layout = layout_of(slots)
    for order in (2, 3):
        hashes = sample(layout, order, ngrams[order].hashes, 4_000_000 // max(slots or 1, 10))
        found = collisions.neighbour_pairs(collisions.rows_of(layout, order, hashes), layout.groups[0].unit_rows)
        group = next(g for g in layout.groups if g.order == order)
        head_rows = group.row_count / HEADS if slots else group.row_count
        engram_pairs = HEADS * len(hashes) * (len(hashes) - 1) / 2 / head_rows
        wanted = 1 if slots is None else slots * (1 - (1 - 1 / slots) ** HEADS) / HEADS
        # Engram's heads have fewer rows than the first has (at most 0.1 % here).
        assert abs(found / engram_pairs - wanted) < 4 * wanted / math.sqrt(found) + (0.001 if slots is None else 0)


@functools.cache
def loads(slots: int | None, order: int, stream: Any) -> tuple[float, float]:
    """Variance-to-mean and foreign share, of all n-grams of the stream."""
    return collisions.load_statistics(layout_of(slots), collisions.distinct_ngrams(stream, order))


@pytest.mark.parametrize("slots", [None, *SLOTS])
def test_c12_variance_to_mean_of_distinct_ngrams_a_row(slots: int | None, shipped: Any) -> None:
    for order in (2, 3):
        ratio, _ = loads(slots, order, shipped(1_000_000))
        assert abs(ratio - 1) <= 0.02, order


def test_c12_and_c13_of_a_small_table_equal_counting_by_hand(shipped: Any) -> None:
    stream = shipped(3000)
    for layout in (engram(30_000, Shape(heads=3, row_width=8)), pagegram(60_000, 4, Shape(heads=3, row_width=8)),
                   flat(30_000, Shape(dim=8))):  # fmt: skip
        for order in (2, 3):
            found = collisions.load_statistics(layout, collisions.distinct_ngrams(stream, order))
            ratios, shares = [], []
            for k in range(layout.heads):
                columns = [c for g in layout.groups if g.order == order for c in g.columns]
                first = [c for g in layout.groups for c in g.columns].index(columns[k])
                head = layout.rows(stream)[:, first].tolist()
                by_row: dict[int, dict[int, int]] = {}
                for row, g in zip(head, native.hash_ngrams(stream, order).tolist(), strict=True):
                    by_row.setdefault(row, {})[g] = by_row.setdefault(row, {}).get(g, 0) + 1
                row_count = columns[k].modulus * columns[k].slot_count
                loads = np.array([len(v) for v in by_row.values()] + [0] * (row_count - len(by_row)))
                ratios.append(loads.var() / loads.mean())
                others = [
                    own * (sum(by.values()) - own) / sum(by.values()) for by in by_row.values() for own in by.values()
                ]
                shares.append(sum(others) / len(stream))
            assert found == pytest.approx((np.mean(ratios), np.mean(shares)))


def test_c13_foreign_share_is_equal_for_engram_and_pagegram(shipped: Any) -> None:
    for order in (2, 3):
        _, wanted = loads(None, order, shipped(1_000_000))
        assert 0.05 < wanted < 0.95
        for slots in SLOTS:
            _, found = loads(slots, order, shipped(1_000_000))
            assert abs(found - wanted) <= 0.005, (order, slots)


# ---- C14: signs ----------------------------------------------------------------------------------


def sign_bits(hashes: np.ndarray, order: int, head: int) -> np.ndarray:
    """[n, 64] of a head's sign word: True is -1."""
    words = native.hash_finish(hashes, native.salt(0, "sign", order, 64 * head))
    return np.unpackbits(words.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").astype(bool)


@pytest.mark.parametrize("order", [2, 3])
def test_c14_signs_are_balanced_and_independent_of_one_another(order: int, ngrams: dict[int, Ngrams]) -> None:
    """Every bit within 4 sigma of even; every two bits, of a head and of two heads, as often equal as not."""
    hashes = ngrams[order].hashes[:100_000]
    bits = [sign_bits(hashes, order, head) for head in range(HEADS)]
    bound = 4 * 0.5 * math.sqrt(len(hashes))
    for head in range(HEADS):
        assert np.abs(bits[head].sum(axis=0) - len(hashes) / 2).max() < bound, head
    signs = [np.where(b, np.float32(-1), np.float32(1)) for b in bits[:3]]
    for a in range(3):
        for b in range(a, 3):
            products = (signs[a].T @ signs[b]).astype(np.float64)
            if a == b:
                np.fill_diagonal(products, 0)
            # 4,096 products, each of standard deviation sqrt(n): 5 sigma leaves one in 400 such matrices.
            assert np.abs(products).max() < 5 * math.sqrt(len(hashes))


@pytest.mark.parametrize("slots", [None, 4, 15])
def test_c14_signs_are_independent_of_rows(slots: int | None, ngrams: dict[int, Ngrams]) -> None:
    """Two n-grams that share a row agree in half their signs; neither slot nor bucket says anything of a sign."""
    layout = layout_of(slots)
    for order in (2, 3):
        hashes = sample(layout, order, ngrams[order].hashes, 250_000)
        rows = collisions.rows_of(layout, order, hashes)
        for head in (0, 5):
            words = native.hash_finish(hashes, native.salt(0, "sign", order, 64 * head))
            differing = pairs = 0
            for a, b in collisions.pairs_sharing(rows[:, head]):
                differing += int(np.bitwise_count(words[a] ^ words[b]).sum())
                pairs += len(a)
            assert pairs > 200_000
            assert abs(differing - 32 * pairs) < 4 * 4 * math.sqrt(pairs)  # 64 bits a pair, each of variance 1/4
            bits = sign_bits(hashes, order, head)
            unit = rows[:, head] // np.uint64(layout.groups[0].unit_rows)
            for of in (unit % np.uint64(16), rows[:, head] % np.uint64(slots or 15)):
                counts = np.bincount(of.astype(np.int64))
                for value in range(len(counts)):
                    z = (bits[of == value].sum(axis=0) - counts[value] / 2) / (0.5 * math.sqrt(counts[value]))
                    assert np.abs(z).max() < 5.2  # 64 bits of up to 16 values, a few times


# ---- the record ----------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [None, 4])
def test_the_record_says_what_was_measured(slots: int | None, ngrams: dict[int, Ngrams], shipped: Any) -> None:
    layout = layout_of(slots)
    record = collisions.measure(layout, ngrams[2], shipped(TOKENS))
    assert record.pairs >= 1_000_000
    assert record.distinct_ngrams == len(ngrams[2].hashes)
    assert record.variance_to_mean == pytest.approx(1, abs=0.02)
    assert record.extra_heads is not None and record.extra_heads_sigma is not None
    assert record.extra_heads_theory is not None and record.neighbour_ratio is not None
    sigma = max(record.extra_heads_sigma, math.sqrt(record.extra_heads_theory / record.pairs))
    assert abs(record.extra_heads - record.extra_heads_theory) < 4 * sigma
    assert record.neighbour_ratio == pytest.approx(record.neighbour_ratio_theory, rel=0.01)
    assert (record.order, record.heads, record.seed, record.layout, record.slots) == (2, 8, 0, layout.name, slots)


def test_equal_arguments_give_equal_records(shipped: Any) -> None:
    stream = shipped(30_000)
    for layout in (engram(2_000_000), pagegram(2_000_000, 4)):
        pair = [collisions.measure(layout, collisions.distinct_ngrams(stream, 3), stream) for _ in range(2)]
        assert pair[0].pairs > 100
        made_here = {"seconds": 0.0, "time": ""}
        assert dataclasses.replace(pair[0], **made_here) == dataclasses.replace(pair[1], **made_here)


def test_a_table_of_one_head_has_no_other_head() -> None:
    stream = make_stream(np.random.default_rng(1).integers(0, 300, 5000))
    for layout in (flat(300_000), pagegram(300_000, 4, Shape(heads=1)), engram(300_000, Shape(heads=1))):
        record = collisions.measure(layout, collisions.distinct_ngrams(stream, 2), stream)
        assert (record.pairs, record.extra_heads, record.neighbour_ratio) == (0, None, None)
        assert record.variance_to_mean is not None

"""Which n-grams share rows: the statistics of the paper's Table 3, from the real n-grams of a stream.

Loads are over all distinct n-grams of an order. Pairs are counted on a random subset of them, so large that
about PAIRS_WANTED pairs share head 0: a subset changes how many pairs there are, not what a pair shares.
Theory: S slots a head make two n-grams of one bucket that share head 0 share each other head with 1/S.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagegram_io import native
from pagegram_io.layout import Layout
from pagegram_io.records import CollisionRecord, provenance
from pagegram_io.tokens import Stream

PAIRS_WANTED = 1_500_000
NEIGHBOURS_WANTED = 4_000_000


@dataclass(frozen=True)
class Ngrams:
    """The distinct n-grams of one order: hashes uint64 [n] in random order, and how often each occurs, int64 [n]."""

    order: int
    hashes: np.ndarray
    counts: np.ndarray


def distinct_ngrams(stream: Stream, order: int, *, seed: int = 0) -> Ngrams:
    """The distinct n-grams of a stream. Told apart by their 64-bit hash, which two in ten million share with 3e-6."""
    hashes, counts = np.unique(native.hash_ngrams(stream, order), return_counts=True)
    shuffled = np.random.default_rng([seed, order]).permutation(len(hashes))
    return Ngrams(order, hashes[shuffled], counts[shuffled])


def rows_of(layout: Layout, order: int, hashes: np.ndarray) -> np.ndarray:
    """Row of each n-gram for each head of an order, numbered inside the order, uint64 [n, heads].

    The same rule as csrc/rows.c, on hashes instead of tokens.
    """
    columns = [c for g in layout.groups if g.order == order for c in g.columns]
    first = min(g.row_base for g in layout.groups if g.order == order)
    rows = np.empty((len(hashes), len(columns)), np.uint64)
    for k, c in enumerate(columns):
        bucket = (native.hash_finish(hashes, c.bucket_salt) >> np.uint64(1)) % np.uint64(c.modulus)
        rows[:, k] = np.uint64(c.row_base - first) + bucket * np.uint64(c.row_stride)
        if c.slot_count > 1:
            rows[:, k] += (native.hash_finish(hashes, c.slot_salt) >> np.uint64(1)) % np.uint64(c.slot_count)
    return rows


def pairs_sharing(keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs with equal keys, as batches of two index arrays into keys."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    alive = np.arange(len(keys) - 1) if len(keys) > 1 else np.empty(0, np.int64)
    distance = 1
    while len(alive):
        alive = alive[alive + distance < len(keys)]
        alive = alive[ordered[alive] == ordered[alive + distance]]
        if len(alive):
            yield order[alive], order[alive + distance]
        distance += 1


def pair_statistics(rows: np.ndarray) -> tuple[int, float, float, float]:
    """Over pairs of n-grams that share head 0: their number; mean other heads shared, its error; share with any."""
    pairs = extra = squares = any_other = 0
    for a, b in pairs_sharing(rows[:, 0]):
        shared = (rows[a, 1:] == rows[b, 1:]).sum(axis=1)
        pairs += len(a)
        extra += int(shared.sum())
        squares += int((shared * shared).sum())
        any_other += int((shared > 0).sum())
    if not pairs:
        return 0, 0.0, 0.0, 0.0
    mean = extra / pairs
    return pairs, mean, math.sqrt(max(squares / pairs - mean * mean, 0.0) / pairs), any_other / pairs


def neighbour_pairs(rows: np.ndarray, unit_rows: int) -> int:
    """Pairs of n-grams that share a row of at least one head; in a bucketed layout all of them share the bucket."""
    heads = rows.shape[1]
    if unit_rows > 1:
        return sum(
            int((rows[a] == rows[b]).any(axis=1).sum()) for a, b in pairs_sharing(rows[:, 0] // np.uint64(unit_rows))
        )
    # Heads have rows of their own here; a pair that shares two heads is counted at the first of them.
    total = 0
    for k in range(heads):
        for a, b in pairs_sharing(rows[:, k]):
            total += int((~(rows[a, :k] == rows[b, :k]).any(axis=1)).sum())
    return total


def load_statistics(layout: Layout, ngrams: Ngrams) -> tuple[float, float]:
    """Variance-to-mean of distinct n-grams a row; and foreign share: of the hits on a lookup's row, those by others.

    Both are averages over heads; the foreign share also over lookups.
    """
    columns = [(g, c) for g in layout.groups if g.order == ngrams.order for c in g.columns]
    rows = rows_of(layout, ngrams.order, ngrams.hashes)
    first = min(g.row_base for g, _ in columns)
    ratios, foreign = [], []
    lookups = ngrams.counts.sum()
    for k, (_, column) in enumerate(columns):
        # Numbered among the head's own rows: its slots in each bucket, one bucket after the other.
        bucket, slot = np.divmod(rows[:, k].astype(np.int64) - (column.row_base - first), column.row_stride)
        own = bucket * column.slot_count + slot
        row_count = column.modulus * column.slot_count
        if row_count > 4 * len(own):  # most rows are empty: count only those that are not
            used, own = np.unique(own, return_inverse=True)
            loads = np.bincount(own, minlength=len(used))
        else:
            loads = np.bincount(own, minlength=row_count)
        mean = len(own) / row_count
        ratios.append(float((loads.astype(np.float64) ** 2).sum() / row_count - mean * mean) / mean)
        hits = np.bincount(own, weights=ngrams.counts)
        foreign.append(float((ngrams.counts * (1 - ngrams.counts / hits[own])).sum() / lookups))
    return float(np.mean(ratios)), float(np.mean(foreign))


def theory(layout: Layout, order: int, ngram_count: int) -> tuple[float, float, float]:
    """Mean other heads shared, share of pairs with any, and distinct neighbours relative to engram (layouts.md)."""
    heads = layout.heads
    if layout.slots is not None:
        s = layout.slots
        return (heads - 1) / s, 1 - (1 - 1 / s) ** (heads - 1), s * (1 - (1 - 1 / s) ** heads) / heads
    primes = [g.columns[0].modulus for g in layout.groups if g.order == order]
    extra = sum(1 / p for p in primes[1:])
    return extra, 1 - math.prod(1 - 1 / p for p in primes[1:]), 1.0


def _sample_size(wanted: int, row_count: float, available: int) -> int:
    """n-grams whose pairs in row_count equal places number about ``wanted``: n(n-1)/2 / row_count."""
    return min(available, math.ceil(math.sqrt(2 * wanted * row_count)) + 1)


def measure(layout: Layout, ngrams: Ngrams, stream: Stream) -> CollisionRecord:
    """One line of Table 3: a layout, an order."""
    started = time.perf_counter()
    order, heads = ngrams.order, layout.heads
    group = next(g for g in layout.groups if g.order == order)
    column = group.columns[0]
    available = len(ngrams.hashes)
    variance_to_mean, foreign_share = load_statistics(layout, ngrams)
    fields: dict[str, Any] = dict.fromkeys(
        (
            "other_head_share",
            "other_head_share_theory",
            "extra_heads",
            "extra_heads_theory",
            "extra_heads_sigma",
            "neighbour_ratio",
            "neighbour_ratio_theory",
        )
    )
    stamp: dict[str, Any] = dict(provenance())
    pairs, sampled = 0, 0
    if heads > 1:
        head_rows = group.row_count / heads if layout.slots is not None else group.row_count
        sampled = _sample_size(PAIRS_WANTED, head_rows, available)
        rows = rows_of(layout, order, ngrams.hashes[:sampled])
        pairs, extra, sigma, any_other = pair_statistics(rows)
        extra_theory, any_theory, neighbour_theory = theory(layout, order, available)
        # Neighbours are sought among n-grams of one bucket, or of one row of some head.
        places, wanted = (
            (column.modulus, NEIGHBOURS_WANTED) if layout.slots else (head_rows, NEIGHBOURS_WANTED // heads)
        )
        near = _sample_size(wanted, places, available)
        found = neighbour_pairs(rows_of(layout, order, ngrams.hashes[:near]), group.unit_rows)
        # An engram table of as many rows a head would have near * (near - 1) / 2 pairs in each head's rows.
        engram_pairs = heads * near * (near - 1) / 2 / head_rows
        fields |= {
            "other_head_share": any_other if pairs else None,
            "other_head_share_theory": any_theory,
            "extra_heads": extra if pairs else None,
            "extra_heads_theory": extra_theory,
            "extra_heads_sigma": sigma if pairs else None,
            "neighbour_ratio": found / engram_pairs if engram_pairs else None,
            "neighbour_ratio_theory": neighbour_theory,
        }
    return CollisionRecord(
        **stamp,
        **fields,
        layout=layout.name,
        slots=layout.slots,
        table_params=layout.table_params,
        table_params_actual=layout.table_params_actual,
        order=order,
        heads=heads,
        row_width=layout.row_width,
        stream=stream.name,
        stream_sha256=stream.sha256,
        tokens=len(stream.ids),
        distinct_ngrams=available,
        sampled_ngrams=sampled,
        rows=sum(g.row_count for g in layout.groups if g.order == order),
        variance_to_mean=variance_to_mean,
        foreign_share=foreign_share,
        pairs=pairs,
        seed=layout.seed,
        seconds=time.perf_counter() - started,
    )

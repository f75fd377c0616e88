"""Which n-grams share rows: the statistics of the paper's Table 3, from the real n-grams of a stream.

Loads are over all distinct n-grams of an order. Pairs are counted on a random subset of them, so large that
about PAIRS_WANTED pairs share head 0: a subset changes how many pairs there are, not what a pair shares.
Theory: S slots a head make two n-grams of one bucket that share head 0 share each other head with 1/S; heads with
tables of their own share another with 1 over its rows. Of a deployed table, n-grams are what its hash sees
(deployed/ngrams.py), rows are those that C makes, and each layer is a table of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pagegram_io import native
from pagegram_io.hashes import Hash
from pagegram_io.layout import Group, Layout
from pagegram_io.records import CollisionRecord, provenance
from pagegram_io.tokens import Stream

PAIRS_WANTED = 1_500_000
NEIGHBOURS_WANTED = 4_000_000
UNIFORM_SCHEMES = ("pg1", "mulxor")  # theory holds for them: poly and token are sums and ids, not hashes


@dataclass(frozen=True)
class Ngrams:
    """The distinct n-grams of one order: hashes uint64 [n] in random order, and how often each occurs, int64 [n].

    Of a deployed table also where each occurs first, int64 [n].
    """

    order: int
    hashes: np.ndarray
    counts: np.ndarray
    positions: np.ndarray | None = None


def distinct_ngrams(stream: Stream, order: int, *, seed: int = 0) -> Ngrams:
    """The distinct n-grams of a stream. Told apart by their 64-bit hash, which two in ten million share with 3e-6."""
    hashes, counts = np.unique(native.hash_ngrams(stream, order), return_counts=True)
    shuffled = np.random.default_rng([seed, order]).permutation(len(hashes))
    return Ngrams(order, hashes[shuffled], counts[shuffled])


def distinct_seen(stream: Stream, rule: Hash, *, seed: int = 0) -> Ngrams:
    """The distinct n-grams of a stream as a deployed table's hash sees them."""
    from pagegram_io.deployed.ngrams import ngram_keys

    keys, positions, counts = np.unique(ngram_keys(rule, stream), return_index=True, return_counts=True)
    shuffled = np.random.default_rng([seed, rule.order]).permutation(len(keys))
    return Ngrams(rule.order, keys[shuffled], counts[shuffled], positions[shuffled])


def parts_of(layout: Layout) -> list[tuple[int, int | None]]:
    """The orders of a layout, each once a layer: what is measured apart."""
    return sorted({(g.order, g.layer) for g in layout.groups}, key=lambda part: (part[0], part[1] or 0))


def rule_of(layout: Layout, order: int) -> Hash:
    """What an order's n-grams see, without the multipliers, in which layers differ. ValueError if columns disagree."""
    of_order = [c for g in layout.groups if g.order == order for c in g.columns]
    rules = {replace(layout.hashes[c.bucket_hash], multipliers=()) for c in of_order}
    if len(rules) > 1:
        raise ValueError(f"{layout.label}: its columns of order {order} see different n-grams")
    return rules.pop()


def _groups_of(layout: Layout, order: int, layer: int | None) -> list[Group]:
    return [g for g in layout.groups if g.order == order and (layer is None or g.layer == layer)]


def _rows(layout: Layout, groups: list[Group], ngrams: Ngrams, stream: Stream) -> np.ndarray:
    """Row of each n-gram for each head, numbered from the groups' first, uint64 [n, heads]."""
    if ngrams.positions is None:
        if layout.model is not None:
            raise ValueError(f"{layout.label} sees n-grams by a rule of its own: give those of distinct_seen")
        return rows_of(layout, ngrams.order, ngrams.hashes)
    from pagegram_io.deployed.ngrams import rows_at

    return rows_at(layout, groups, stream, ngrams.positions) - np.uint64(min(g.row_base for g in groups))


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
    groups = _groups_of(layout, ngrams.order, None)
    return _loads(layout, groups, rows_of(layout, ngrams.order, ngrams.hashes), ngrams.counts)


def _loads(layout: Layout, groups: list[Group], rows: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    first = min(g.row_base for g in groups)
    ratios, foreign = [], []
    lookups = counts.sum()
    for k, column in enumerate(c for g in groups for c in g.columns):
        # Numbered among the head's own rows: its slots in each bucket, one bucket after the other.
        bucket, slot = np.divmod(rows[:, k].astype(np.int64) - (column.row_base - first), column.row_stride)
        own = bucket * column.slot_count + slot
        row_count = (column.modulus + layout.hashes[column.bucket_hash].whole) * column.slot_count
        if row_count > 4 * len(own):  # most rows are empty: count only those that are not
            used, own = np.unique(own, return_inverse=True)
            loads = np.bincount(own, minlength=len(used))
        else:
            loads = np.bincount(own, minlength=row_count)
        mean = len(own) / row_count
        ratios.append(float((loads.astype(np.float64) ** 2).sum() / row_count - mean * mean) / mean)
        hits = np.bincount(own, weights=counts)
        foreign.append(float((counts * (1 - counts / hits[own])).sum() / lookups))
    return float(np.mean(ratios)), float(np.mean(foreign))


def theory(layout: Layout, order: int, layer: int | None = None) -> tuple[float, float, float] | None:
    """Mean other heads shared, share of pairs with any, and distinct neighbours relative to engram (layouts.md).

    None where there is none: for rows that no hash chooses.
    """
    columns = [c for g in _groups_of(layout, order, layer) for c in g.columns]
    if not _hashed(layout, order):
        return None
    if layout.slots is not None:
        s, heads = layout.slots, layout.heads
        return (heads - 1) / s, 1 - (1 - 1 / s) ** (heads - 1), s * (1 - (1 - 1 / s) ** heads) / heads
    moduli = [c.modulus for c in columns]
    return sum(1 / m for m in moduli[1:]), 1 - math.prod(1 - 1 / m for m in moduli[1:]), 1.0


def _hashed(layout: Layout, order: int) -> bool:
    return all(
        layout.hashes[c.bucket_hash].scheme in UNIFORM_SCHEMES
        for g in _groups_of(layout, order, None)
        for c in g.columns
    )


def _sample_size(wanted: int, row_count: float, available: int) -> int:
    """n-grams whose pairs in row_count equal places number about ``wanted``: n(n-1)/2 / row_count."""
    return min(available, math.ceil(math.sqrt(2 * wanted * row_count)) + 1)


PAIR_FIELDS = (
    "other_head_share", "other_head_share_theory", "extra_heads", "extra_heads_theory", "extra_heads_sigma",
    "neighbour_ratio", "neighbour_ratio_theory",
)  # fmt: skip


def _pair_fields(layout: Layout, groups: list[Group], rows: np.ndarray) -> dict[str, Any]:
    """What pairs of n-grams share, of a random subset of rows [n, heads]; only of tables of several heads."""
    columns = [c for g in groups for c in g.columns]
    if len(columns) < 2:
        return {**dict.fromkeys(PAIR_FIELDS), "pairs": 0, "sampled_ngrams": 0}
    available, head_rows = len(rows), columns[0].modulus * columns[0].slot_count
    sampled = _sample_size(PAIRS_WANTED, head_rows, available)
    pairs, extra, sigma, any_other = pair_statistics(rows[:sampled])
    expected = theory(layout, groups[0].order, groups[0].layer) or (None, None, None)
    # Neighbours are sought among n-grams of one bucket, or of one row of some head.
    bucketed = layout.slots is not None
    places = columns[0].modulus if bucketed else head_rows
    near = _sample_size(NEIGHBOURS_WANTED // (1 if bucketed else len(columns)), places, available)
    found = neighbour_pairs(rows[:near], groups[0].unit_rows)
    # An engram table of as many rows a head would have near * (near - 1) / 2 pairs in each head's rows.
    engram_pairs = near * (near - 1) / 2 * sum(1 / (c.modulus * c.slot_count) for c in columns)
    return {
        "other_head_share": any_other if pairs else None,
        "other_head_share_theory": expected[1],
        "extra_heads": extra if pairs else None,
        "extra_heads_theory": expected[0],
        "extra_heads_sigma": sigma if pairs else None,
        "neighbour_ratio": found / engram_pairs if engram_pairs else None,
        "neighbour_ratio_theory": expected[2],
        "pairs": pairs,
        "sampled_ngrams": sampled,
    }


def measure(layout: Layout, ngrams: Ngrams, stream: Stream, layer: int | None = None) -> CollisionRecord:
    """One line of Table 3: a layout, an order; of a deployed table that has layers, one of them."""
    started = time.perf_counter()
    stamp: dict[str, Any] = dict(provenance())
    groups = _groups_of(layout, ngrams.order, layer)
    rows = _rows(layout, groups, ngrams, stream)
    variance_to_mean, foreign_share = _loads(layout, groups, rows, ngrams.counts)
    return CollisionRecord(
        **stamp,
        **_pair_fields(layout, groups, rows),
        layout=layout.name,
        slots=layout.slots,
        table_params=layout.table_params,
        table_params_actual=layout.table_params_actual,
        order=ngrams.order,
        layer=layer,
        model=layout.model,
        tokenizer_stand_in=_stand_in(layout, stream),
        heads=sum(len(g.columns) for g in groups),
        row_width=layout.row_width,
        stream=stream.name,
        stream_sha256=stream.sha256,
        tokens=len(stream.ids),
        distinct_ngrams=len(rows),
        rows=sum(g.row_count for g in groups),
        variance_to_mean=variance_to_mean,
        variance_to_mean_theory=1.0 if _hashed(layout, ngrams.order) else None,
        foreign_share=foreign_share,
        seed=layout.seed,
        seconds=time.perf_counter() - started,
    )


def _stand_in(layout: Layout, stream: Stream) -> str | None:
    if layout.model is None:
        return None
    from pagegram_io.deployed import stand_in

    return stand_in(layout.model, stream.name)

"""What an n-gram is to a deployed table: the values that its hash sees, after classes and the rule of the history.

Two n-grams that the table cannot tell apart are one here: ids of one class, and a look-back that is missing and one to
the id, or of the class, that stands for it. Twin of ``pgio_history_values`` in csrc/hash.c, on a whole stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pagegram_io import native
from pagegram_io.hashes import Hash
from pagegram_io.layout import Group, Layout
from pagegram_io.tokens import Stream

GAMMA = np.uint64(0x9E3779B97F4A7C15)
BATCH_TOKENS = 1 << 18


def seen_lengths(rule: Hash, stream: Stream) -> np.ndarray:
    """How many tokens the n-grams of each position can see, its own included: 0 where it has no text, int64 [n]."""
    ids, count = stream.ids, len(stream.ids)
    begins = np.zeros(count + 1, bool)  # at a document's start, and after what cuts
    begins[stream.document_starts] = True
    no_text = np.zeros(count, bool) if rule.classes is None else rule.classes.values[ids] == native.NO_TEXT
    begins[1:] |= no_text
    if rule.end_id is not None:
        begins[1:] |= ids == rule.end_id
    at = np.arange(count)
    last = np.maximum.accumulate(np.where(begins[:count], at, 0))
    return np.where(no_text, 0, at - last + 1)


def ngram_keys(rule: Hash, stream: Stream) -> np.ndarray:
    """A 64-bit hash of the values that a rule's n-gram sees at each position, uint64 [n]: equal where they are."""
    if rule.scheme == "pg1":
        return native.hash_ngrams(stream, rule.order)
    values = (stream.ids if rule.classes is None else rule.classes.values[stream.ids]).astype(np.uint64)
    lengths = seen_lengths(rule, stream)
    keys = np.zeros(len(values), np.uint64)
    for back in range(rule.order):
        seen = np.full(len(values), rule.fill, np.uint64)
        there = np.flatnonzero(lengths > back)
        seen[there] = values[there - back]
        keys = native.hash_finish(keys ^ (seen + np.uint64(1)) * GAMMA, 0)
    if rule.whole:
        keys[lengths < rule.order] = 0  # one row for all that miss a token
    return keys


def rows_at(layout: Layout, groups: Sequence[Group], stream: Stream, positions: np.ndarray) -> np.ndarray:
    """Global rows that some groups of a layout read at positions of a stream, uint64 [positions, columns]."""
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    with native.Rows(replace(layout, groups=tuple(groups))) as emitter:
        rows = np.empty((len(positions), emitter.column_count), np.uint64)
        for begin in range(0, len(stream.ids), BATCH_TOKENS):
            end = min(begin + BATCH_TOKENS, len(stream.ids))
            first, last = np.searchsorted(ordered, (begin, end))
            if first < last:
                rows[order[first:last]] = emitter.emit(stream, begin, end)[ordered[first:last] - begin]
    return rows

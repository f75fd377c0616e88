"""Slow and obvious twins of the deployed tables' addresses, in plain Python integers, straight from what is published.

Nothing here uses the package. Each `*_rows` gives the rows of every token, numbered over the whole table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from reference import is_prime

NO_TEXT = 2**32 - 1


@cache
def primes_after(limit: int, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        limit += 1
        if is_prime(limit):
            found.append(limit)
    return found


def spans(starts: Sequence[int], count: int) -> list[tuple[int, int]]:
    return list(zip(starts, [*starts[1:], count], strict=True))


# ---- any hash ------------------------------------------------------------------------------------


def seen_values(
    ids: Sequence[int], start: int, t: int, order: int, *, fill: int, end_id: int | None, classes: Sequence[int] | None
) -> tuple[list[int], bool]:
    """Values of the look-backs 0 to order - 1 of the token at t, and whether none is missing."""
    values, missing = [], False
    for back in range(order):
        q = t - back
        if q < start or (back > 0 and ids[q] == end_id) or (classes is not None and classes[ids[q]] == NO_TEXT):
            missing = True
        values.append(fill if missing else ids[q] if classes is None else classes[ids[q]])
    return values, not missing


def any_row(rule: Any, column: Any, ids: Sequence[int], start: int, t: int) -> int:
    """The row of a column under a hash of mulxor, poly or token, both as the package's dataclasses describe them."""
    classes = None if rule.classes is None else rule.classes.values.tolist()
    values, whole = seen_values(ids, start, t, rule.order, fill=rule.fill, end_id=rule.end_id, classes=classes)
    if rule.whole and not whole:
        bucket = column.modulus
    elif rule.scheme == "mulxor":
        mixed = 0
        for value, multiplier in zip(values, rule.multipliers, strict=True):
            mixed ^= value * multiplier
        bucket = mixed % column.modulus
    elif rule.scheme == "poly":
        bucket = sum(v * m for v, m in zip(values, column.multipliers, strict=True)) % column.modulus
    else:
        bucket = values[0]
    return int(column.row_base + bucket * column.row_stride)


# ---- DeepSeek-V4.1-Flash, and the demo ----------------------------------------------------------------

DEEPSEEK_MULTIPLIERS = [
    [76632096046245, 4839876093313, 35959672319349, 73987337458391],
    [67716810739261, 51510806800915, 30921347202721, 82619226485591],
]
DEMO_MULTIPLIERS = [
    [76632096046245, 4839876093313, 35959672319349],
    [28919099099511, 56020370062535, 53929037264533],
]


def engram_rows(
    class_ids: Sequence[int], starts: Sequence[int], multipliers: Sequence[Sequence[int]], primes_from: int
) -> list[list[int]]:
    orders = len(multipliers[0]) - 1
    primes = primes_after(primes_from, len(multipliers) * orders * 8)
    lines = []
    for start, end in spans(starts, len(class_ids)):
        for p in range(start, end):
            line, base, column = [], 0, 0
            for of_layer in multipliers:
                r, blocked = 0, False
                for s, multiplier in enumerate(of_layer):
                    blocked = blocked or p - s < start or class_ids[p - s] == NO_TEXT
                    r ^= (2 if blocked else class_ids[p - s]) * multiplier
                    if s >= 1:
                        for _ in range(8):
                            line.append(base + r % primes[column])
                            base += primes[column]
                            column += 1
            lines.append(line)
    return lines


def deepseek_rows(class_ids: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    return engram_rows(class_ids, starts, DEEPSEEK_MULTIPLIERS, 15_999_999)


def demo_rows(class_ids: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    return engram_rows(class_ids, starts, DEMO_MULTIPLIERS, 646_399)


# ---- Qwen3.8-Flash-Next -------------------------------------------------------------------------------


def qwen_rows(ids: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    primes = primes_after(19_999_999, 16)
    end = 248_044
    lines = []
    for start, stop in spans(starts, len(ids)):
        for p in range(start, stop):
            first = max([start, *(q + 1 for q in range(max(start, p - 2), p) if ids[q] == end)])
            t = [ids[p - s] if p - s >= first else end for s in range(3)]
            mix2 = t[0] * 23703573157769 ^ t[1] * 20109073645365
            mix3 = mix2 ^ t[2] * 8052911324071
            line, base = [], 0
            for head, prime in enumerate(primes):
                line.append(base + (mix2 if head < 8 else mix3) % prime)
                base += prime
            lines.append(line)
    return lines


# ---- LongCat-Flash-Lite -------------------------------------------------------------------------------


def longcat_rows(ids: Sequence[int], starts: Sequence[int], *, stop: bool = True) -> list[list[int]]:
    lines = []
    sizes = [10_223_616 + 2 * i + 1 for i in range(12)]
    powers = [[131_072**d % size for d in range(4)] for size in sizes]
    for start, end in spans(starts, len(ids)):
        for p in range(start, end):
            t = [ids[p]]
            for d in range(1, 4):
                q = p - d
                gone = q < start or (stop and any(ids[k] == 2 for k in range(q, p)))
                t.append(0 if gone else ids[q])
            line, base = [], 0
            for i, size in enumerate(sizes):
                n = i // 4 + 2
                line.append(base + sum(t[d] * powers[i][d] % size for d in range(n)) % size)
                base += size
            lines.append(line)
    return lines


# ---- over-encoding ------------------------------------------------------------------------------------


def over_encoding_rows(ids: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    lines = []
    for start, end in spans(starts, len(ids)):
        for p in range(start, end):
            line, base, i = [], 0, 0
            gram = ids[p]
            for n in (2, 3):
                gram += (ids[p - n + 1] if p - n + 1 >= start else 0) * 100_278 ** (n - 1)
                for _ in range(4):
                    line.append(base + gram % (12_800_000 + 2 * i))
                    base += 12_800_000 + 2 * i
                    i += 1
            lines.append(line)
    return lines


# ---- controls -----------------------------------------------------------------------------------------


def int32(value: int) -> int:
    value &= 2**32 - 1
    return value - 2**32 if value >= 2**31 else value


def nanogpt_rows(ids: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    first = set(starts)
    return [
        [251_519 if t in first else (int32(36313 * ids[t]) ^ int32(27191 * ids[t - 1])) % 251_519]
        for t in range(len(ids))
    ]


def gemma_rows(ids: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    return [[token] for token in ids]

"""Slow and obvious twins of the C core, in plain Python integers. Nothing here uses the code that it checks.

Pages and rows are lists of Python integers; NO_PAGE and NO_ROW mean what they mean in csrc/pgio.h.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
BUCKET, ROW, SIGN = 1, 2, 3
NO_PAGE = 2**32 - 1
NO_ROW = 2**64 - 1


# ---- hashes (layouts.md section 1) ---------------------------------------------------------------


def mix(z: int) -> int:
    z ^= z >> 30
    z = z * FIRST_FACTOR & MASK
    z ^= z >> 27
    z = z * SECOND_FACTOR & MASK
    return z ^ z >> 31


def unshift(z: int, bits: int) -> int:
    """The x with x ^ (x >> bits) == z: each round gets `bits` more bits right, from the top."""
    x = z
    for _ in range(64 // bits + 1):
        x = z ^ x >> bits
    return x


def unmix(z: int) -> int:
    """The inverse of mix, with which a test can choose the hash that it wants."""
    z = unshift(z, 31) * pow(SECOND_FACTOR, -1, 2**64) & MASK
    z = unshift(z, 27) * pow(FIRST_FACTOR, -1, 2**64) & MASK
    return unshift(z, 30)


def salt(seed: int, role: int, order: int, index: int) -> int:
    return mix((seed * GAMMA + (role << 32) + (order << 16) + index + 1) & MASK)


def u(g: int, salt_value: int) -> int:
    return mix(g ^ salt_value) >> 1


def sign_words(g: int, seed: int, order: int, head: int, width: int) -> list[int]:
    return [mix(g ^ salt(seed, SIGN, order, 64 * head + j)) for j in range(-(-width // 64))]


def ngram_hash(ids: Sequence[int], start: int, t: int, order: int) -> int:
    """g_order at t in a document that starts at start."""
    g = mix(ids[t] + 1)
    for back in range(1, order):
        past = ids[t - back] + 1 if t - back >= start else 0
        g = mix(g ^ past * GAMMA & MASK)
    return g


def ngram_hashes(ids: Sequence[int], starts: Sequence[int], order: int) -> list[int]:
    """g_order at every position."""
    ends = [*starts[1:], len(ids)]
    return [ngram_hash(ids, s, t, order) for s, e in zip(starts, ends, strict=True) for t in range(s, e)]


# ---- dimensions and rows -------------------------------------------------------------------------


def is_prime(n: int) -> bool:
    if n < 2:
        return False
    divisor = 2
    while divisor * divisor <= n:
        if n % divisor == 0:
            return False
        divisor += 1
    return True


def primes_at_most(limit: int, count: int) -> list[int]:
    """The largest `count` primes <= limit, descending."""
    found: list[int] = []
    while len(found) < count:
        if limit < 2:
            raise ValueError("not that many primes")
        if is_prime(limit):
            found.append(limit)
        limit -= 1
    return found


@dataclass(frozen=True)
class Table:
    """A layout of layouts.md section 1: moduli are rows an order (flat), a head (engram), or buckets (pagegram)."""

    name: str
    moduli: list[int]
    orders: Sequence[int] = (2, 3)
    heads: int = 8
    slots: int = 1
    seed: int = 0

    def row_count(self) -> int:
        return sum(self.moduli) * (self.heads * self.slots if self.name == "pagegram" else 1)


def flat(params: int, *, orders: Sequence[int] = (2, 3), dim: int = 384, seed: int = 0) -> Table:
    return Table("flat", [params // (len(orders) * dim)] * len(orders), orders, 1, 1, seed)


def engram(params: int, *, orders: Sequence[int] = (2, 3), heads: int = 8, row_width: int = 64, seed: int = 0) -> Table:
    count = len(orders) * heads
    return Table("engram", primes_at_most(params // (count * row_width), count), orders, heads, 1, seed)


def pagegram(
    params: int, slots: int, *, orders: Sequence[int] = (2, 3), heads: int = 8, row_width: int = 64, seed: int = 0
) -> Table:
    limit = params // (len(orders) * heads * slots * row_width)
    return Table("pagegram", primes_at_most(limit, len(orders)), orders, heads, slots, seed)


def local_rows(table: Table, hashes: dict[int, int]) -> list[int]:
    """Rows of one token inside the order's or the head's own region, from its n-gram hashes by order."""
    rows = []
    moduli = iter(table.moduli)
    for n in table.orders:
        g = hashes[n]
        if table.name == "flat":
            rows.append(u(g, salt(table.seed, ROW, n, 0)) % next(moduli))
        elif table.name == "engram":
            rows += [u(g, salt(table.seed, ROW, n, k)) % next(moduli) for k in range(table.heads)]
        else:
            bucket = u(g, salt(table.seed, BUCKET, n, 0)) % next(moduli)
            for k in range(table.heads):
                slot = u(g, salt(table.seed, ROW, n, k)) % table.slots
                rows.append((bucket * table.heads + k) * table.slots + slot)
    return rows


def row_bases(table: Table) -> list[int]:
    """First global row of the region that each row of local_rows is in: regions follow one another."""
    if table.name == "pagegram":
        sizes, repeats = [p * table.heads * table.slots for p in table.moduli], table.heads
    else:
        sizes, repeats = table.moduli, 1
    bases, base = [], 0
    for size in sizes:
        bases += [base] * repeats
        base += size
    return bases


def rows(table: Table, ids: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """Global rows of every token."""
    bases = row_bases(table)
    by_order = {n: ngram_hashes(ids, starts, n) for n in table.orders}
    return [
        [
            base + row
            for base, row in zip(bases, local_rows(table, {n: by_order[n][t] for n in table.orders}), strict=True)
        ]
        for t in range(len(ids))
    ]


# ---- rows to bytes and pages (layouts.md section 2) ------------------------------------------------


def unit_byte(region: Any, unit: int, page_bytes: int) -> int:
    """Where a unit starts. Walks by segments, by pages when aligned, by bytes when packed."""
    if region.segments:
        segment = [s for s in region.segments if s.first_unit <= unit][-1]
        return segment.base_byte + (unit - segment.first_unit) * region.unit_bytes
    if region.units_per_page == 0:
        return region.base_byte + unit * region.unit_bytes
    if region.unit_bytes > page_bytes:
        pages_a_unit = -(-region.unit_bytes // page_bytes)
        return region.base_byte + unit * pages_a_unit * page_bytes
    return (
        region.base_byte + unit // region.units_per_page * page_bytes + unit % region.units_per_page * region.unit_bytes
    )


def region_bytes(region: Any, page_bytes: int) -> tuple[int, int]:
    """First byte, and the byte after the last (after its page when aligned)."""
    if region.segments:
        starts = [unit_byte(region, unit, page_bytes) for unit in range(region.unit_count)]
        return min(starts), max(starts) + region.unit_bytes
    end = unit_byte(region, region.unit_count - 1, page_bytes) + region.unit_bytes
    if region.units_per_page:
        end = -(-end // page_bytes) * page_bytes
    return region.base_byte, end


def touched_bytes(group: Any, region: Any, row: int, page_bytes: int) -> tuple[int, int]:
    """First and last byte that reading a row touches: its whole unit where that fits in a page, else the row."""
    unit, within = divmod(row - group.row_base, group.unit_rows)
    start = unit_byte(region, unit, page_bytes)
    if region.unit_bytes <= page_bytes:
        return start, start + region.unit_bytes - 1
    start += within * region.row_bytes
    return start, start + region.row_bytes - 1


def first_page(groups: Sequence[Any], page_bytes: int) -> int:
    return min(region_bytes(region, page_bytes)[0] for group in groups for region in group.regions) // page_bytes


def page_count(groups: Sequence[Any], page_bytes: int) -> int:
    ends = [region_bytes(region, page_bytes)[1] for group in groups for region in group.regions]
    return (max(ends) - 1) // page_bytes - first_page(groups, page_bytes) + 1


def token_pages(groups: Sequence[Any], token_rows: Sequence[int], page_bytes: int) -> list[list[int]]:
    """Pages of one token, a list a group: ascending, each once."""
    zero = first_page(groups, page_bytes)
    lists, at = [], 0
    for group in groups:
        pages: set[int] = set()
        for row in token_rows[at : at + len(group.columns)]:
            if row == NO_ROW:
                continue
            for region in group.regions:
                first, last = touched_bytes(group, region, row, page_bytes)
                pages.update(range(first // page_bytes - zero, last // page_bytes - zero + 1))
        at += len(group.columns)
        lists.append(sorted(pages))
    return lists


def row_offsets(groups: Sequence[Any], token_rows: Sequence[int], page_bytes: int) -> list[int]:
    """File offset of each row in each region of its group."""
    offsets, at = [], 0
    for group in groups:
        for row in token_rows[at : at + len(group.columns)]:
            unit, within = divmod(row - group.row_base, group.unit_rows)
            for region in group.regions:
                offsets.append(unit_byte(region, unit, page_bytes) + within * region.row_bytes)
        at += len(group.columns)
    return offsets


# ---- caches ----------------------------------------------------------------------------------------


def accesses(matrix: Iterable[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """(token, column, page) of every used place, in order."""
    for token, line in enumerate(matrix):
        for column, page in enumerate(line):
            if page != NO_PAGE:
                yield token, column, page


@dataclass(frozen=True)
class LruCounts:
    """Of one cache: by class; verdicts [token][column] as pgio_lru_access gives them."""

    accesses: list[int]
    misses: list[int]
    misses_second_half: list[int]
    compulsory: list[int]
    full_at_token: int | None
    verdicts: list[list[int]]


def lru(
    matrix: Sequence[Sequence[int]],
    capacity: int,
    classes: Sequence[int] | None = None,
    *,
    second_half: int | None = None,
) -> LruCounts:
    """An LRU cache of `capacity` pages as an OrderedDict; the second half starts at token len // 2, or where told."""
    columns = len(matrix[0]) if len(matrix) else 1
    classes = [0] * columns if classes is None else classes
    count = max(classes) + 1
    half = len(matrix) // 2 if second_half is None else second_half
    made, misses, second, compulsory = [0] * count, [0] * count, [0] * count, [0] * count
    verdicts = [[0] * columns for _ in matrix]
    cache: OrderedDict[int, None] = OrderedDict()
    seen: set[int] = set()
    full = 0 if capacity == 0 else None
    for token, column, page in accesses(matrix):
        c = classes[column]
        made[c] += 1
        if page in cache:
            cache.move_to_end(page)
            continue
        misses[c] += 1
        second[c] += token >= half
        verdicts[token][column] = 1 if page in seen else 129
        compulsory[c] += page not in seen
        seen.add(page)
        if capacity:
            if len(cache) == capacity:
                cache.popitem(last=False)
            cache[page] = None
            if full is None and len(cache) == capacity:
                full = token
    return LruCounts(made, misses, second, compulsory, full, verdicts)


def stack_distances(trace: Iterable[int]) -> list[int]:
    """Of each access: distinct pages since the last access to its page, itself included; 0 for a first access."""
    stack: list[int] = []
    distances = []
    for page in trace:
        try:
            at = stack.index(page)
        except ValueError:
            distances.append(0)
        else:
            distances.append(at + 1)
            del stack[at]
        stack.insert(0, page)
    return distances


def first_tokens(matrix: Sequence[Sequence[int]]) -> list[int]:
    """The token that first touched the 1st, 2nd, ... distinct page."""
    seen: set[int] = set()
    tokens = []
    for token, _, page in accesses(matrix):
        if page not in seen:
            seen.add(page)
            tokens.append(token)
    return tokens

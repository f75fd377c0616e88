"""How often reads cross page boundaries, and the pages a token then touches with no cache: exact averages.

Over uniformly chosen rows, as hashes choose them; straddles of a real stream are counted, not computed.
"""

from __future__ import annotations

import math

import numpy as np

from pagegram_io.layout import Group, Layout, Region


def _phases(region: Region, page_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Where units can start in their page, and how likely each is; int64, float64 [phases]."""
    if region.units_per_page:
        starts = np.arange(region.units_per_page) * region.unit_bytes
        return starts, np.full(len(starts), 1 / len(starts))
    step = math.gcd(region.unit_bytes, page_bytes)
    units: dict[int, int] = {}  # inside one run each phase is as likely as the others, but for its last lap
    for base, count in region.runs():
        units[base % step] = units.get(base % step, 0) + count
    starts = np.concatenate([np.arange(first, page_bytes, step) for first in units])
    shares = [np.full(page_bytes // step, n * step / page_bytes / region.unit_count) for n in units.values()]
    return starts, np.concatenate(shares)


def straddle_probability(region: Region, page_bytes: int) -> float:
    """Share of reads that cross a page boundary: of units, or of rows where a unit is longer than a page."""
    starts, shares = _phases(region, page_bytes)
    if region.unit_bytes <= page_bytes:
        return float(shares @ (starts + region.unit_bytes > page_bytes))
    rows = np.arange(region.unit_bytes // region.row_bytes) * region.row_bytes
    within = (starts[:, None] + rows[None, :]) % page_bytes
    return float(shares @ np.mean(within + region.row_bytes > page_bytes, axis=1))


def expected_reads(layout: Layout) -> float:
    """Pages a token touches with no cache, on average over uniformly chosen rows."""
    total = 0.0
    for group in layout.groups:
        for region in group.regions:
            if region.unit_bytes <= layout.page_bytes:
                total += 1 + straddle_probability(region, layout.page_bytes)
            else:
                total += _expected_pages_by_row(group, region, layout.page_bytes)
    return total


def _expected_pages_by_row(group: Group, region: Region, page_bytes: int) -> float:
    """A page of the unit is touched unless every head's row misses it; heads choose independently."""
    total = 0.0
    for start, share in zip(*_phases(region, page_bytes), strict=True):
        page_count = -(-(int(start) + region.unit_bytes) // page_bytes)
        untouched = np.ones(page_count)
        for column in group.columns:
            first_row = column.row_base - group.row_base
            first = start + (first_row + np.arange(column.slot_count)) * region.row_bytes
            first_page, last_page = first // page_bytes, (first + region.row_bytes - 1) // page_bytes
            pages = np.arange(page_count)[:, None]
            untouched *= 1 - np.mean((pages >= first_page) & (pages <= last_page), axis=1)
        total += float(share * np.sum(1 - untouched))
    return total

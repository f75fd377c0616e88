"""Drives known by published figures alone, each with its source beside it: what no drive of that name can beat.

A published figure is no measurement of yours: it holds no percentiles of steps. So a profile only bounds: a step takes
no less than its reads do at the highest rate of the drive. Published is what its maker says it reaches ("up to"), which
is no bound yet: a reviewer measured 6 % more (584,800 reads/s of an Optane P4800X, promised 550,000:
www.anandtech.com/show/11209), so a quarter is added before anything is ruled out. Rates "over" or "at least" so much,
or at one depth that is not the drive's highest, are left out, and so is latency: below a "typical" one, or a median on
a reviewer's machine, another machine may well get. A plan that rests on a profile says "no go" or "not known", never
"go".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

PAGE_BYTES = 4096  # of every figure below; larger pages take no less time, smaller ones might
MARGIN = 1.25  # by how much a drive may beat its maker's figure


@dataclass(frozen=True)
class Profile:
    """The highest published rate of random reads of 4 KiB, in reads a second; source: who said so, where."""

    name: str
    source: str
    published_iops: int

    published: ClassVar[bool] = True
    target: ClassVar[None] = None
    engine: ClassVar[None] = None
    refusals: ClassVar[tuple[str, ...]] = ()

    @property
    def depths(self) -> list[int]:
        return []

    def largest_step(self, depth: int) -> float:
        return 0.0

    def step_ns(self, reads: float, depth: int) -> None:
        """No step was measured."""

    @property
    def most_iops(self) -> int:
        """A rate that the drive surely does not exceed."""
        return math.ceil(self.published_iops * MARGIN)

    def at_least_ns(self, reads: float, depth: int) -> tuple[int, int]:
        """(p50, p99) that a step of so many reads takes at least, at any depth."""
        whole = int(max(reads, 0) * 1e9 / self.most_iops)
        return whole, whole

    def iops(self, depth: int) -> None:
        """No rate was measured; ``most_iops`` is a bound."""

    @property
    def figures(self) -> str:
        """What is published, in a phrase."""
        return f"up to {self.published_iops:,} reads/s"


# Left out for want of a figure that surely bounds: the Samsung PM9A3 (900,000 as announced; what its later data sheets
# say was not found), the Micron 7500 ("over" 1,000,000), the Intel P3700 ("at least" 450,000).
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "micron-9100-max-2.4tb",
            "its maker, quoted by Tom's Hardware, Micron 9100 Max NVMe 2.4TB SSD Review, page 4, "
            "www.tomshardware.com/reviews/micron-9100-max-nvme-2.4tb-ssd,4576-4.html",
            750_000,
        ),
        Profile(
            "micron-9400",
            "its maker, quoted by ComputerBase (January 2023), "
            "www.computerbase.de/2023-01/micron-9400-ssd-alle-modelle-lesen-und-schreiben-mit-7-gb-s",
            1_600_000,
        ),
        Profile(
            "micron-9550-max",
            "its maker, quoted by StorageReview, Micron 9550 MAX Review, specifications, "
            "www.storagereview.com/review/micron-9550-max-review-balanced-performance-for-ai-db-and-analytics",
            3_300_000,
        ),
        Profile(
            "micron-9650",
            "its maker, quoted by Tom's Hardware (July 2025), Micron's industry-first PCI 6.0 SSD promises sequential "
            "reads up to 28,000 MB/s",
            5_500_000,
        ),
        Profile(
            "samsung-990-pro-2tb",
            "its maker, quoted by The Verge (August 2022) and by shops, for the MZ-V9P2T0BW at "
            "www.digitec.ch/en/s1/product/samsung-990-pro-2000-gb-m2-7450-mbs-2000-gb-m2-ssd-35511542",
            1_400_000,
        ),
        Profile(
            "samsung-pm1743",
            "its maker, quoted by ComputerBase (December 2021), "
            "www.computerbase.de/2021-12/samsung-pm1743-pcie-5.0-ssd-mit-13-gb-s-und-2.5-mio.-iops-fuer-server",
            2_500_000,
        ),
    )
}


def profiles_of(names: Sequence[str], page_bytes: int) -> list[Profile]:
    """The profiles of these names, each once. ValueError for a name that is none, or pages below 4 KiB."""
    for name in names:
        if name not in PROFILES:
            raise ValueError(f"no drive profile is named {name[:40]!r}; there are {', '.join(PROFILES)}")
    if names and page_bytes < PAGE_BYTES:
        raise ValueError(
            f"published figures are of reads of {PAGE_BYTES} bytes, and bound none of {page_bytes}; measure by --device"
        )
    return [PROFILES[name] for name in dict.fromkeys(names)]

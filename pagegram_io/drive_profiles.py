"""Drives known by published figures alone, each with its source beside it: what no drive of that name can beat.

A published figure is no measurement of yours: it holds no percentiles of steps. So a profile only bounds. A step takes
no less than one read does alone (its published latency at depth 1), and no less than its reads take at the highest rate
published for the drive: by its maker as "up to", never as "over" or "at least", and never a rate at one depth that is
not the drive's highest. Where no such figure is published, it is left out. A plan that rests on a profile says "no go"
or "not known", never "go".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

PAGE_BYTES = 4096  # of every figure below; larger pages take no less time, smaller ones might


@dataclass(frozen=True)
class Profile:
    """Published figures of random reads of 4 KiB; None where none is published that bounds.

    latency_p50_ns, latency_p99_ns: of a read alone (depth 1); most_iops: the highest rate. source: who said so, where.
    """

    name: str
    source: str
    latency_p50_ns: int | None = None
    latency_p99_ns: int | None = None
    most_iops: int | None = None

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

    def at_least_ns(self, reads: float, depth: int) -> tuple[int, int]:
        """(p50, p99) that a step of so many reads takes at least, at any depth."""
        if reads <= 0:
            return 0, 0
        whole = int(reads * 1e9 / self.most_iops) if self.most_iops else 0
        alone = self.latency_p50_ns or 0
        return max(alone, whole), max(alone, self.latency_p99_ns or 0, whole)

    def iops(self, depth: int) -> None:
        """No rate was measured; ``most_iops`` is a bound."""

    @property
    def figures(self) -> str:
        """What is published, in a phrase."""
        alone = self.latency_p50_ns and f"{self.latency_p50_ns / 1000:g} us a read alone"
        slow = self.latency_p99_ns and f"{self.latency_p99_ns / 1000:g} us its 99th percentile"
        rate = self.most_iops and f"at most {self.most_iops:,} reads/s"
        return ", ".join(part for part in (alone, slow, rate) if part)


ANANDTECH = (
    "AnandTech, The Intel Optane SSD DC P4800X Review (2017), Checking Intel's Numbers, queue depth 1, "
    "www.anandtech.com/show/11209/intel-optane-ssd-dc-p4800x-review-a-deep-dive-into-3d-xpoint-enterprise-performance/4"
)

# The rates on AnandTech's page are of depth 16, and not the drives' highest: the P4800X beat its maker's 550,000 there,
# and the P3700 is rated for "at least" 450,000. Left out for want of a figure that surely bounds: the Samsung PM9A3
# (900,000 as announced; what its later data sheets say was not found) and the Micron 7500 ("over" 1,000,000).
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("intel-optane-p4800x-375gb", ANANDTECH, 9_000, 10_000),
        Profile("intel-p3700-800gb", ANANDTECH, 76_000, 96_000),
        Profile(
            "micron-9100-max-2.4tb",
            f"{ANANDTECH}; rate: its maker, quoted by Tom's Hardware, Micron 9100 Max NVMe 2.4TB SSD Review, page 4, "
            "www.tomshardware.com/reviews/micron-9100-max-nvme-2.4tb-ssd,4576-4.html",
            104_000,
            117_000,
            750_000,
        ),
        Profile(
            "micron-9400",
            "its maker, quoted by ComputerBase (January 2023), "
            "www.computerbase.de/2023-01/micron-9400-ssd-alle-modelle-lesen-und-schreiben-mit-7-gb-s",
            most_iops=1_600_000,
        ),
        Profile(
            "micron-9550-max",
            "its maker (typical read latency), quoted by StorageReview, Micron 9550 MAX Review, specifications, "
            "www.storagereview.com/review/micron-9550-max-review-balanced-performance-for-ai-db-and-analytics",
            latency_p50_ns=60_000,
            most_iops=3_300_000,
        ),
        Profile(
            "micron-9650",
            "its maker, quoted by Tom's Hardware (July 2025), Micron's industry-first PCI 6.0 SSD promises sequential "
            "reads up to 28,000 MB/s",
            most_iops=5_500_000,
        ),
        Profile(
            "samsung-990-pro-2tb",
            "its maker, quoted by The Verge (August 2022) and by shops, for the MZ-V9P2T0BW at "
            "www.digitec.ch/en/s1/product/samsung-990-pro-2000-gb-m2-7450-mbs-2000-gb-m2-ssd-35511542",
            most_iops=1_400_000,
        ),
        Profile(
            "samsung-pm1743",
            "its maker, quoted by ComputerBase (December 2021), "
            "www.computerbase.de/2021-12/samsung-pm1743-pcie-5.0-ssd-mit-13-gb-s-und-2.5-mio.-iops-fuer-server",
            most_iops=2_500_000,
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

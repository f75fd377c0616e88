"""Where measurements go: flat records with what made them, and ratios as median, least and most of the rounds."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pagegram_io.record_files import to_dict
from pagegram_io.records import SCHEMA, provenance

RESULTS = Path(__file__).resolve().parent / "results"


def provenance_of_run() -> dict[str, Any]:
    """Kernel, CPU, versions and settings that a time depends on; one call a record, for its time and load."""
    return {
        **provenance(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "libcachesim": version_of("libcachesim"),
        "core_sha256": core_sha256(),
        "cpus": len(os.sched_getaffinity(0)),
        "huge_pages": chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load": round(os.getloadavg()[0], 2),
    }


@functools.cache
def core_sha256() -> str | None:
    """Digest of the compiled C core: a version number stays the same while the core is being worked on."""
    found = importlib.util.find_spec("pagegram_io._pgio")
    if found is None or found.origin is None:
        return None
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def version_of(package: str) -> str | None:
    """The version of an installed package, None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def chosen(path: str) -> str | None:
    """The bracketed word of a kernel setting such as "always [madvise] never"; None where there is no such file."""
    try:
        words = Path(path).read_text().split()
    except OSError:
        return None
    return next((word[1:-1] for word in words if word.startswith("[")), None)


def append(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Append records to a JSON-lines file, each checked first."""
    lines = [json.dumps(to_dict({"schema": SCHEMA, **record}), allow_nan=False) + "\n" for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(lines)


@dataclass(frozen=True)
class Spread:
    """Median, least and most of the rounds."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:8.3g} ({self.least:.3g} to {self.most:.3g})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Bar:
    """What a measure must reach: at least or less than a limit."""

    text: str
    value: Spread
    limit: float
    at_least: bool
    unit: str = ""

    def line(self) -> str:
        """A line of the table: what, how much, the bar, and whether median and every round are on its right side."""
        met = self.value.median >= self.limit if self.at_least else self.value.median < self.limit
        worst = self.value.least if self.at_least else self.value.most
        always = worst >= self.limit if self.at_least else worst < self.limit
        verdict = ("met" if always else "met by the median, not by every round") if met else "MISSED"
        sign = ">=" if self.at_least else "<"
        return f"{self.text:52} {str(self.value) + self.unit:30} {sign} {self.limit:g}{self.unit:5} {verdict}"

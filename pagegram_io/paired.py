"""Differences between training runs that share a seed, with their interval: from records alone.

Runs of one seed see the same batches and begin with the same backbone, so most of what chance does to a loss is in both
of them and leaves their difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagegram_io.layout import label_of
from pagegram_io.record_files import to_dict
from pagegram_io.records import AnyRecord

ArmKey = tuple[str, int | None]  # memory, slots

# Runs that differ in one of these cannot be compared; of the second kind, only where both have a value.
SHARED_FIELDS = (
    "preset", "dim", "layers", "vocabulary", "context", "batch_windows", "lr", "tokens", "stream_sha256",
    "validation_sha256", "validation_windows", "device",
)  # fmt: skip
SHARED_WHERE_STATED = ("gate", "bias_correction", "table_decay", "table_lr_ratio", "table_params", "orders")
ORDER = ("none", "flat", "engram", "pagegram")
# Student's t at 97.5 % for 1, 2, ... degrees of freedom; from 30 on it is within 4 % of the normal's 1.96.
T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452,
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """The runs of one memory, by seed."""

    key: ArmKey
    runs: Mapping[int, Mapping[str, Any]]

    @property
    def label(self) -> str:
        return label_of(*self.key)

    @property
    def loss(self) -> float:
        return math.fsum(run["loss"] for run in self.runs.values()) / len(self.runs)


@dataclass(frozen=True)
class Difference:
    """Loss of one arm less that of another, seed by seed; half_width of the 95 % interval, None of a single seed."""

    key: ArmKey
    by_seed: Mapping[int, float]
    mean: float
    half_width: float | None


def arm_order(key: ArmKey) -> tuple[Any, ...]:
    """Sort key: ours in the order of the tables, then others by name."""
    memory, slots = key
    return (ORDER.index(memory) if memory in ORDER else len(ORDER), memory, slots or 0)


def read_arms(records: Iterable[AnyRecord]) -> list[Arm]:
    """The arms of records of kind "train"; ValueError where runs cannot be compared, or two of a kind disagree."""
    rows = [to_dict(record) for record in records]
    if not rows:
        raise ValueError("there are no records of training runs: give records of 'pagegram-io train --json'")
    other = next((row["kind"] for row in rows if row["kind"] != "train"), None)
    if other is not None:
        raise ValueError(f"a record of kind {other!r} is no training run: only 'train' can be compared here")
    for name in (*SHARED_FIELDS, *SHARED_WHERE_STATED):
        values = [row[name] for row in rows if name in SHARED_FIELDS or row[name] is not None]
        differing = [value for value in values if value != values[0]]
        if differing:
            raise ValueError(f"runs with {name} {values[0]!r} and {differing[0]!r} cannot be compared")
    arms: dict[ArmKey, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        runs = arms.setdefault((row["memory"], row["slots"]), {})
        twin = runs.setdefault(row["seed"], row)
        if twin["loss"] != row["loss"]:
            label = label_of(row["memory"], row["slots"])
            raise ValueError(
                f"two runs of {label} with seed {row['seed']} have losses {twin['loss']} and {row['loss']}"
            )
    return [Arm(key, dict(sorted(arms[key].items()))) for key in sorted(arms, key=arm_order)]


def difference(arm: Arm, other: Arm) -> Difference | None:
    """Of the seeds that both have; None if there are none."""
    seeds = [seed for seed in arm.runs if seed in other.runs]
    if not seeds:
        return None
    by_seed = {seed: arm.runs[seed]["loss"] - other.runs[seed]["loss"] for seed in seeds}
    mean, half_width = interval(list(by_seed.values()))
    return Difference(arm.key, by_seed, mean, half_width)


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and half the width of its 95 % t-interval, which a single value has not."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, None
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    quantile = T_975[count - 2] if count - 2 < len(T_975) else T_975[-1]
    return mean, quantile * error

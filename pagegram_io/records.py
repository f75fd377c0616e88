"""Result records: the fields of each kind. record_files.py checks, writes and reads them.

A record is flat (no nested values) and carries what made it, so that a table, a CSV file or a figure can be made
from records alone.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class SimulationRecord:
    """One layout under one cache; `order`, `column` and `layer` are None unless the reads were split by them.

    Of a deployed table, `model` and the fields after it; `tokenizer_stand_in` names a stream in another model's ids.
    """

    kind: str = "simulate"
    schema: int = SCHEMA
    version: str
    layout: str
    slots: int | None
    table_params: int | None
    table_params_actual: int | None
    row_format: str | None
    row_bytes: int | None
    page_bytes: int
    pages: int
    file_bytes: int
    placement: str | None
    base_byte: int = 0
    policy: str
    cache_unit: str
    cache_bytes: int
    cache_pages: int
    stream: str
    stream_sha256: str
    tokens: int
    documents: int
    document_tokens_p50: int | None = None
    document_tokens_max: int | None = None
    prompt_tokens: int | None = None
    interleave: int | None = None  # from here to draft: a schedule of steps; None where the stream runs as it stands
    window: int | None = None
    draft: int | None = None
    pollution_bytes: int = 0
    warm_tokens: int
    state: str
    order: int | None = None
    column: int | None = None
    layer: int | None = None
    model: str | None = None
    scales: str | None = None
    resident_bytes: int | None = None
    assumed: str | None = None
    tokenizer_stand_in: str | None = None
    rank: int | None = None
    ranks: int | None = None
    rank_split: str | None = None
    accesses: int
    misses: int
    misses_second_half: int
    compulsory_misses: int
    reads_per_token: float
    reads_per_token_second_half: float
    reads_per_token_without_compulsory: float
    hit_rate: float
    bytes_read_per_token: float
    bytes_used_per_token: float | None
    read_amplification: float | None
    compulsory_share: float
    cache_full_at_token: int | None
    memory_bytes: int
    steps: int | None = None
    pages_per_step_p50: int | None = None
    pages_per_step_p99: int | None = None
    pages_per_step_max: int | None = None
    pages_before_merging: int | None = None
    adjacent_reuse: float | None = None
    cold_tokens: int | None = None
    cold_reads_per_token: float | None = None
    settled_reads_per_token: float | None = None
    decode_tokens: int | None = None
    decode_reads_per_token: float | None = None
    prefill_reads_per_token: float | None = None
    seed: int | None
    heads: int | None
    row_width: int | None
    dim: int | None
    orders: str | None
    isa: str
    threads: int
    seconds: float
    kernel: str
    cpu: str
    time: str


@dataclass(frozen=True, kw_only=True)
class CollisionRecord:
    """Which n-grams share rows, for one order of one layout; None where a statistic has no meaning (one head)."""

    kind: str = "collisions"
    schema: int = SCHEMA
    version: str
    layout: str
    slots: int | None
    table_params: int
    table_params_actual: int
    order: int
    layer: int | None = None  # of a deployed table, each a table of its own; then n-grams are what its hash sees
    model: str | None = None
    tokenizer_stand_in: str | None = None
    heads: int
    row_width: int
    stream: str
    stream_sha256: str
    tokens: int
    distinct_ngrams: int
    sampled_ngrams: int
    rows: int
    variance_to_mean: float | None
    variance_to_mean_theory: float | None = None
    foreign_share: float | None
    pairs: int
    other_head_share: float | None
    other_head_share_theory: float | None
    extra_heads: float | None
    extra_heads_theory: float | None
    extra_heads_sigma: float | None
    neighbour_ratio: float | None
    neighbour_ratio_theory: float | None
    seed: int
    seconds: float
    kernel: str
    cpu: str
    time: str


@dataclass(frozen=True, kw_only=True)
class LayoutRecord:
    """What one layout takes up, before any cache: sizes, slack and the reads of an uncached lookup."""

    kind: str = "layout"
    schema: int = SCHEMA
    version: str
    layout: str
    slots: int | None
    table_params: int
    table_params_actual: int
    row_format: str
    row_bytes: int
    unit_bytes: int
    unit_rows: int
    units_per_page: int
    rows: int
    units: int
    page_bytes: int
    pages: int
    file_bytes: int
    slack_bytes: int
    slack_share: float
    uncached_reads: float
    straddle_probability: float
    placement: str
    base_byte: int = 0
    heads: int
    row_width: int
    dim: int
    orders: str
    seed: int
    model: str | None = None
    scales: str | None = None
    resident_bytes: int | None = None
    assumed: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainRecord:
    """One training run; lists hold a point for each validation. Losses are in nats; None where there is no table."""

    kind: str = "train"
    schema: int = SCHEMA
    version: str
    preset: str
    memory: str
    slots: int | None
    table_params: int | None
    table_params_actual: int
    row_width: int | None
    heads: int | None
    orders: str | None
    dense_params: int
    gate: str | None
    seed: int
    hash_seed: int | None
    bias_correction: str | None
    table_decay: float | None
    lr: float
    table_lr_ratio: float | None
    dim: int
    layers: int
    vocabulary: int
    context: int
    batch_windows: int
    stream: str
    stream_sha256: str
    stream_tokens: int
    validation_stream: str
    validation_sha256: str
    validation_windows: int
    tokens: int
    epochs: float
    steps: list[int]
    tokens_seen: list[int]
    train_losses: list[float]
    validation_losses: list[float]
    tokens_per_second: list[float]
    loss: float
    loss_error: float
    seconds: float
    device: str
    threads: int
    compiled: int
    torch: str
    kernel: str
    cpu: str
    time: str


@dataclass(frozen=True, kw_only=True)
class EvalRecord:
    """Held-out loss of one checkpoint with its table from one source; loss_error is its standard error over windows."""

    kind: str = "eval"
    schema: int = SCHEMA
    version: str
    preset: str
    memory: str
    slots: int | None
    table_params_actual: int
    seed: int
    step: int
    source: str
    cache_bytes: int | None
    engine: str | None
    reads_per_token: float | None
    stream: str
    stream_sha256: str
    windows: int
    context: int
    tokens: int
    loss: float
    loss_error: float
    seconds: float
    device: str
    threads: int
    torch: str
    kernel: str
    cpu: str
    time: str


@dataclass(frozen=True, kw_only=True)
class PlanRecord:
    """What a drive makes of a table behind one cache at one batch; of one layer's rows where `layer` says so.

    Of a drive profile, `profile` and its published rate: times are then bounds (`_least`, `_most`), as they are
    where steps of so many reads were not measured. Of ranks: a record of the step, which waits for `slowest_rank`, and
    one for each `rank`; the cache is each rank's own.
    """

    kind: str = "plan"
    schema: int = SCHEMA
    version: str
    layout: str
    slots: int | None
    table_params: int | None
    row_format: str | None
    row_bytes: int | None
    placement: str | None
    page_bytes: int
    pages: int
    file_bytes: int
    stream: str
    stream_sha256: str
    tokens: int
    documents: int
    document_tokens_p50: int
    document_tokens_max: int
    path: str
    cache_unit: str
    cache_bytes: int
    cache_pages: int
    batch: int
    layer: int | None = None
    rank: int | None = None
    ranks: int | None = None
    rank_split: str | None = None
    slowest_rank: int | None = None
    steps: int
    reads_per_step_mean: float
    reads_per_step_p50: int
    reads_per_step_p99: int
    reads_per_token: float
    first_share: float
    cache_full_at_token: int | None
    target: str | None
    device: str | None
    engine: str | None
    depth: int | None
    profile: str | None = None
    profile_source: str | None = None
    published_iops: int | None = None
    largest_step_measured: float | None
    arrival_p50_ns: int | None
    arrival_p99_ns: int | None
    arrival_p50_least_ns: int | None = None
    arrival_p99_least_ns: int | None = None
    deadline_ns: int | None
    layers_asked: str | None = None
    compute_ns: int | None
    goal_tokens_per_second: float | None
    tokens_per_second_p50: float | None = None
    tokens_per_second_p99: float | None = None
    tokens_per_second_p50_most: float | None = None
    tokens_per_second_p99_most: float | None = None
    prefill_window: int | None = None
    prefill_reads_per_token: float | None = None
    prefill_tokens_per_second: float | None = None
    prefill_tokens_per_second_most: float | None = None
    verdict: str
    reason: str
    change: str | None = None
    model: str | None = None
    scales: str | None = None
    resident_bytes: int | None = None
    assumed: str | None = None
    tokenizer_stand_in: str | None = None
    seed: int | None
    kernel: str
    cpu: str
    time: str


Record = SimulationRecord | CollisionRecord | LayoutRecord | TrainRecord | EvalRecord | PlanRecord
AnyRecord = Record | Mapping[str, Any]

CLASSES: dict[str, type] = {
    "simulate": SimulationRecord,
    "collisions": CollisionRecord,
    "layout": LayoutRecord,
    "train": TrainRecord,
    "eval": EvalRecord,
    "plan": PlanRecord,
}


@functools.cache
def _machine() -> dict[str, str]:
    cpu = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        pass  # not Linux, or /proc is not mounted: the fallbacks below still say something
    try:
        version = importlib.metadata.version("pagegram-io")
    except importlib.metadata.PackageNotFoundError:
        version = "0+unknown"
    return {
        "version": version,
        "kernel": platform.release(),
        "cpu": cpu or platform.processor() or platform.machine(),
    }


def provenance() -> dict[str, str]:
    """Return version, kernel, cpu and time (ISO 8601, UTC) as every record carries them."""
    return {**_machine(), "time": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}

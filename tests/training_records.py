"""Records of training runs of a plausible shape, for tests."""

from __future__ import annotations

import random
from typing import Any

from pagegram_io.records import TrainRecord

ARMS: dict[tuple[str, int | None], float] = {  # final loss
    ("none", None): 4.60, ("flat", None): 4.30, ("engram", None): 4.27, ("pagegram", 1): 4.28, ("pagegram", 4): 4.265,
    ("pagegram", 15): 4.262,
}  # fmt: skip


def train_record(memory: str, slots: int | None, seed: int, **changes: Any) -> TrainRecord:
    """Losses fall to the arm's own, a little apart by seed."""
    noise = random.Random(f"{memory} {slots} {seed}").gauss(0, 0.004) + 0.03 * seed
    final = ARMS.get((memory, slots), 4.3) + noise
    tokens = [200_000 * (i + 1) for i in range(8)]
    losses = [final + 2.0 * (1 - (i + 1) / 8) ** 2 for i in range(8)]
    table = memory != "none"
    fields: dict[str, Any] = {
        "version": "0.1.0", "preset": "mini", "memory": memory, "slots": slots,
        "table_params": 4_000_000 if table else None, "table_params_actual": 4_000_000 if table else 0,
        "row_width": {"none": None, "flat": 96}.get(memory, 16), "heads": {"none": None, "flat": 1}.get(memory, 8),
        "orders": "2,3" if table else None,
        "dense_params": 725_664, "gate": "scalar" if table else None,
        "seed": seed, "hash_seed": seed if table else None,
        "bias_correction": "global" if table else None, "table_decay": 0.0 if table else None, "lr": 2e-3,
        "table_lr_ratio": 10.0 if table else None, "dim": 96, "layers": 3, "vocabulary": 2048, "context": 256,
        "batch_windows": 8, "stream": "mini-train.u16.xz", "stream_sha256": "ab" * 32, "stream_tokens": 10_001_324,
        "validation_stream": "mini-test.u16.xz", "validation_sha256": "cd" * 32, "validation_windows": 256,
        "tokens": 1_600_000, "epochs": 0.16, "steps": [t // 2048 for t in tokens], "tokens_seen": tokens,
        "train_losses": losses, "validation_losses": losses, "tokens_per_second": [9000.0] * 8, "loss": losses[-1],
        "loss_error": 0.03, "seconds": 180.0, "device": "cpu", "threads": 1, "compiled": 0, "torch": "2.13.0",
        "kernel": "6.1.0", "cpu": "cpu", "time": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    return TrainRecord(**{**fields, **changes})


def all_arms(*seeds: int) -> list[TrainRecord]:
    return [train_record(*arm, seed) for seed in seeds for arm in ARMS]

"""What does a table cost in training? CPU-seconds a step with each memory beside none, in alternation in one process.

Steps of a preset, on the stream that ships for it, with one thread: memory none, flat, engram and pagegram, each a run
of its own from its start. They make one step each in turn, in an order that turns from step to step; a round is several
such turns, and its time the median step's. Times are the process's CPU-seconds, so that other work on a shared core
counts only for what it does to the caches and the clock; only ratios of one round mean anything. The first losses must
be equal to the last bit (a table starts at zero): otherwise the program stops with status 1.

    python bench/training.py            # 9 rounds of 8 steps, about a minute of CPU
    python bench/training.py --quick    # whether it works; no records are kept
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger
import torch

from pagegram_io.models.presets import MINI, Preset
from pagegram_io.models.runs import mini_streams
from pagegram_io.models.train_job import TrainJob
from pagegram_io.models.trainer import Trainer

ARMS = (("none", None), ("flat", None), ("engram", None), ("pagegram", 4))
BAR = 0.90  # of the tokens a second without memory
WARM_STEPS = 2


@dataclass(frozen=True)
class Arm:
    """A run that is timed. Its first loss is that of step 0."""

    name: str
    trainer: Trainer
    first_loss: float


def make_arms(preset: Preset) -> list[Arm]:
    """The runs, each a few steps old, so that what is allocated once is not timed."""
    train, held_out = mini_streams()
    stream, validation = train.read(), held_out.read()
    arms = []
    for memory, slots in ARMS:
        trainer = Trainer(TrainJob(preset, train, held_out, memory=memory, slots=slots), stream, validation)
        losses = [trainer.train_step() for _ in range(WARM_STEPS)]
        arms.append(Arm(memory if slots is None else f"{memory} S={slots}", trainer, losses[0]))
    if len({arm.first_loss for arm in arms}) > 1:
        raise SystemExit(f"the first losses differ: {', '.join(f'{a.name} {a.first_loss!r}' for a in arms)}")
    return arms


def measure(arms: list[Arm], rounds: int, steps: int, path: Path | None) -> dict[str, list[float]]:
    """CPU-seconds of the median step of each run in each round."""
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for round_ in range(rounds):
        taken: dict[str, list[float]] = {arm.name: [] for arm in arms}
        first = arms[0].trainer.step
        for turn in range(steps):
            shift = (round_ + turn) % len(arms)  # nobody always comes first
            for arm in arms[shift:] + arms[:shift]:
                began = time.process_time()
                arm.trainer.train_step()
                taken[arm.name].append(time.process_time() - began)
        records = [record_of(arm, taken[arm.name], round_, first) for arm in arms]
        for arm in arms:
            seconds[arm.name].append(statistics.median(taken[arm.name]))
        if path:
            ledger.append(records, path)
        print(f"round {round_ + 1} of {rounds}", file=sys.stderr)
    return seconds


def record_of(arm: Arm, taken: list[float], round_: int, first_step: int) -> dict[str, Any]:
    trainer, median = arm.trainer, statistics.median(taken)
    tokens = trainer.job.preset.step_tokens
    return {
        "kind": "bench_training", "name": arm.name, "memory": trainer.job.memory, "slots": trainer.job.slots,
        "preset": trainer.job.preset.name, "stream": trainer.stream.name, "stream_sha256": trainer.stream.sha256,
        "round": round_, "first_step": first_step, "steps": len(taken), "step_tokens": tokens,
        "step_cpu_seconds": taken, "cpu_seconds": sum(taken), "tokens_per_cpu_second": tokens / median,
        "threads": torch.get_num_threads(), "torch": str(torch.__version__), **ledger.provenance_of_run(),
    }  # fmt: skip


def report(seconds: dict[str, list[float]], tokens: int) -> None:
    none = seconds["none"]
    print(f"{'memory':14} {'CPU ms a step':28} {'tokens a CPU-second':30} times none's tokens a second")
    ratios = {}
    for name, values in seconds.items():
        ratios[name] = ledger.spread([a / b for a, b in zip(none, values, strict=True)])
        rates = ledger.spread([tokens / value for value in values])
        print(f"{name:14} {ledger.spread([1e3 * v for v in values])!s:28} {rates!s:30} {ratios[name]}")
    print()
    print(ledger.Bar("pagegram S=4, tokens/s times none's", ratios["pagegram S=4"], BAR, True).line())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="how often each is timed; default: 9 [e.g. 15]")
    parser.add_argument("--steps", type=int, default=8, help="steps of each in a round; default: 8 [e.g. 16]")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 1 step, and no records are kept")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "training.jsonl",
                        help="records are appended here; default: bench/results/training.jsonl")  # fmt: skip
    given = parser.parse_args()
    rounds, steps = (2, 1) if given.quick else (given.rounds, given.steps)
    if rounds < 1 or steps < 1:
        parser.error("--rounds and --steps are at least 1")
    if WARM_STEPS + rounds * steps > MINI.steps:
        parser.error(f"{rounds} rounds of {steps} steps are more than the {MINI.steps} of a run; give fewer")
    torch.set_num_threads(1)
    report(measure(make_arms(MINI), rounds, steps, None if given.quick else given.output), MINI.step_tokens)
    if given.quick:
        print("The bar is meant for 9 rounds; this run was smaller and settles nothing.")


if __name__ == "__main__":
    main()

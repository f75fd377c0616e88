"""``pagegram-io train``: one model, with a memory or without."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import (
    COUNT,
    FiniteRange,
    PathOption,
    force_option,
    given,
    option_text,
    plain_table,
    print_records,
    record_options,
    refuse_outputs,
    wide_console,
)
from pagegram_io.models.presets import GATES, MEMORIES, PRESETS

if TYPE_CHECKING:
    from pagegram_io.models.train import Tick, TrainJob

EPILOG = """
Examples:

\b
  pagegram-io train --memory pagegram --out run
  pagegram-io train --memory none --steps 100 --json
  pagegram-io train --preset base --tokens train.u16 --memory engram --device cuda --out run
  pagegram-io train --resume run

Ctrl-C writes a checkpoint first; --resume goes on to the same numbers as if nothing had happened.
"""


@click.command("train", epilog=EPILOG)
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), default="mini", show_default=True, help="Model size. [e.g. base]"
)
@click.option(
    "--memory",
    type=click.Choice(MEMORIES),
    default="pagegram",
    show_default=True,
    help="The table's layout, or none. [e.g. engram]",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="S",
    help="Slots a head chooses from, for pagegram; default 4. [e.g. 15]",
)
@click.option(
    "--table-params", type=COUNT, metavar="N", help="Parameters of the table; default: the preset's. [e.g. 200M]"
)
@click.option(
    "--gate",
    type=click.Choice(GATES),
    default="scalar",
    show_default=True,
    help="What scales the memory: a learnt number a layer, or the context. [e.g. context]",
)
@click.option(
    "--tokens",
    "stream_path",
    type=PathOption,
    metavar="STREAM",
    help="Training tokens; default for mini: shipped. [e.g. train.u16]",
)
@click.option(
    "--validation",
    "validation_path",
    type=PathOption,
    metavar="STREAM",
    help="Held-out tokens; default: shipped. [e.g. test.u16]",
)
@click.option(
    "--eod",
    type=click.IntRange(min=0),
    metavar="ID",
    help="The id that ends a document, in both streams; default 0. [e.g. 50256]",
)
@click.option("--steps", type=COUNT, metavar="N", help="Steps to train; default: the preset's. [e.g. 1000]")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**62 - 1),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of weights and windows. [e.g. 1]",
)
@click.option(
    "--hash-seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of the table's hashes. [e.g. 1]",
)
@click.option(
    "--bias-correction",
    type=click.Choice(["global", "row"]),
    default="global",
    show_default=True,
    help="What the table's optimiser counts: steps of the run, or touches of the row. [e.g. row]",
)
@click.option(
    "--table-decay",
    type=FiniteRange(min=0),
    default=0.0,
    show_default=True,
    metavar="X",
    help="Weight decay of the table. [e.g. 0.01]",
)
@click.option(
    "--device", default="cpu", show_default=True, metavar="NAME", help="Where to compute: cpu, cuda. [e.g. cuda:1]"
)
@click.option(
    "--threads", type=click.IntRange(1, 1024), metavar="N", help="CPU threads; default: as torch chooses. [e.g. 2]"
)
@click.option("--compile", is_flag=True, help="Let torch.compile translate the model first.")
@click.option(
    "--out", type=PathOption, metavar="DIR", help="Where to write the checkpoint; without it none is kept. [e.g. run]"
)
@click.option(
    "--checkpoint-every", type=COUNT, metavar="N", help="Write it every N steps, not only at the end. [e.g. 100]"
)
@click.option("--resume", type=PathOption, metavar="DIR", help="Go on with the run of this checkpoint. [e.g. run]")
@record_options
@force_option
def command(**values: Any) -> None:
    """Train a small language model and tell its held-out loss.

    With nothing else said: the mini model beside a PageGram table, on the tokens that ship, in minutes on a CPU. The
    same seed gives the same backbone and the same windows whatever the memory, so that losses can be compared.
    """
    import_torch()
    refuse_outputs(values["csv_path"], force=values["force"])
    from pagegram_io.models.train import run

    job = _resumed_job(values) if values["resume"] else _new_job(values)
    complete = _is_complete(job)
    with stop_requests() as stop, _bar(job) as progress:
        records = run(job, progress, stop=stop)
    if complete:
        name, steps = click.format_filename(job.out or ""), f"step {job.step_count:,} of {job.step_count:,}"
        print(f"note: {name} is complete ({steps}); nothing was trained", file=sys.stderr)
    if values["csv_path"]:
        from pagegram_io.record_files import write_csv

        write_csv(records, values["csv_path"], force=values["force"])
    if values["as_json"]:
        print_records(records)
    else:
        _print(records[0], job)


def _is_complete(job: TrainJob) -> bool:
    """Whether a job goes on with a run that has done all its steps."""
    from pagegram_io.models.checkpoint import read_config

    return job.out is not None and job.resume and bool(read_config(job.out)["state"]["step"] == job.step_count)


def import_torch() -> None:
    """One line where the extra is not installed."""
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise click.ClickException(f"{error.name} is not installed: pip install 'pagegram-io[train]'") from None


def _spec(path: str | None, shipped: str | None, option: str, preset: Any, eod: int | None) -> Any:
    from pagegram_io.job import StreamSpec
    from pagegram_io.tokens import shipped_path

    if path is None:
        if shipped is None:
            raise click.UsageError(
                f"no stream ships for preset {preset.name}; give {option} a stream of its vocabulary"
            )
        path = str(shipped_path(shipped))
    return StreamSpec(path, eod=preset.eod if eod is None else eod, vocabulary=preset.vocabulary)


def _new_job(values: dict[str, Any]) -> TrainJob:
    from pagegram_io.models.presets import preset_of
    from pagegram_io.models.train import TrainJob

    preset = preset_of(values["preset"])
    if values["memory"] == "none":
        for name in ("gate", "bias_correction", "table_decay", "hash_seed"):
            if given(name):
                raise click.UsageError(f"{option_text(name)} belongs to a table; --memory none has none")
    same = ("memory", "slots", "table_params", "gate", "seed", "hash_seed", "steps", "bias_correction", "table_decay")
    other = ("device", "threads", "compile", "out", "checkpoint_every", "force")
    return TrainJob(
        preset,
        _spec(values["stream_path"], preset.train_stream, "--tokens", preset, values["eod"]),
        _spec(values["validation_path"], preset.validation_stream, "--validation", preset, values["eod"]),
        **{name: values[name] for name in (*same, *other)},
    )


def _resumed_job(values: dict[str, Any]) -> TrainJob:
    """The job of the checkpoint; what else was given must agree with it, which ``run`` checks."""
    from pagegram_io.models.checkpoint import job_in, read_config
    from pagegram_io.models.presets import preset_of

    if values["out"] is not None:
        raise click.UsageError("--resume writes to the checkpoint it goes on with; give no --out")
    path = values["resume"]
    job = job_in(read_config(path), path)
    names = ("memory", "slots", "table_params", "gate", "seed", "hash_seed", "steps", "bias_correction", "table_decay")
    changes = {name: values[name] for name in names if given(name)}
    changes |= {name: values[name] for name in ("device", "threads", "compile", "checkpoint_every")}
    if given("preset"):
        changes["preset"] = preset_of(values["preset"])
    for name, field in (("stream_path", "stream"), ("validation_path", "validation")):
        if given(name):
            changes[field] = dataclasses.replace(getattr(job, field), path=values[name])
    return dataclasses.replace(job, **changes)


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """A question whether Ctrl-C or SIGTERM came: work ends at its next whole part. A second Ctrl-C ends it at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in numbers]
    try:
        yield lambda: asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _bar(job: TrainJob) -> Iterator[Callable[[Tick], None]]:
    from pagegram_io.progress import noted_progress

    with noted_progress(f"training {job.preset.name}", job.step_count) as advance:
        last = 0

        def show(tick: Tick) -> None:
            nonlocal last
            if job.out is None and last == 0:  # with the first step: what is refused before it gets one line
                print("note: without --out nothing is kept", file=sys.stderr)
            validation = "" if tick.validation_loss is None else f", held out {tick.validation_loss:.4f}"
            note = f"{tick.tokens_per_second:,.0f} tokens/s, loss {tick.loss:.4f}{validation}"
            advance(tick.step - last, note)
            last = tick.step

        yield show


def _print(record: dict[str, Any], job: TrainJob) -> None:
    from pagegram_io.layout import label_of

    table = plain_table(["memory", "tokens", "training loss", "held-out loss", "tokens/s"])
    names = ("tokens_seen", "train_losses", "validation_losses", "tokens_per_second")
    for tokens, train, held_out, rate in zip(*(record[name] for name in names), strict=True):
        label = label_of(record["memory"], record["slots"])
        table.add_row(label, f"{tokens:,}", f"{train:.4f}", f"{held_out:.4f}", f"{rate:,.0f}")
    wide_console().print(table)
    windows = record["validation_windows"]
    print(f"held-out loss {record['loss']:.4f} ± {record['loss_error']:.4f} nats over {windows} windows")
    print(f"{record['dense_params']:,} dense and {record['table_params_actual']:,} table parameters")
    if record["epochs"] > 1:
        print(f"note: the training stream was seen {record['epochs']:.2f} times over", file=sys.stderr)
    if job.out is not None:
        print(f"checkpoint: {click.format_filename(job.out)}")

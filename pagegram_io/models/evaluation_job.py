"""An evaluation as a value: a checkpoint, a stream, and where the table's rows come from; done by ``run``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pagegram_io.checkpoint_table import weights_sha256
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout
from pagegram_io.models.addressing import OwnRows
from pagegram_io.models.checkpoint import Loaded, load, validation_in
from pagegram_io.models.evaluate import Evaluation, RamRows, RowSource, evaluate
from pagegram_io.models.row_sources import FlashRows, PackedRows, layout_of_table
from pagegram_io.models.trainer import device_of, told_memory
from pagegram_io.record_files import to_dict
from pagegram_io.records import EvalRecord, provenance
from pagegram_io.table import Table
from pagegram_io.table_file import read_header
from pagegram_io.tokens import Stream


@dataclass(frozen=True)
class EvalJob:
    """A checkpoint's held-out loss; table_path: a packed table, on flash unless in_ram. ``own`` as in training."""

    checkpoint: str
    table_path: str | None = None
    in_ram: bool = False
    cache_bytes: int = 1 << 30
    depth: int = 64
    engine: str = "auto"
    buffered: bool = False
    windows: int | None = None
    validation_path: str | None = None
    device: str = "cpu"
    threads: int | None = None
    own: Layout | OwnRows | None = None


def run(
    job: EvalJob, progress: Callable[[int, int], None] | None = None, *, validation: Stream | None = None
) -> list[dict[str, Any]]:
    """Do an evaluation; its one record. ``progress`` is told of windows done and of all; it may raise to stop."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    with told_memory():
        return [to_dict(_evaluated(job, progress, validation))]


def _evaluated(job: EvalJob, progress: Callable[[int, int], None] | None, validation: Stream | None) -> EvalRecord:
    loaded = load(job.checkpoint, device=str(device_of(job.device)), own=job.own, with_rows=job.table_path is None)
    windows = loaded.model.preset.validation_windows if job.windows is None else job.windows
    _check_table(job, loaded)
    stream = validation if validation is not None else _stream(job, loaded)
    began = time.perf_counter()
    with _source(job, loaded) as (name, source):
        found = evaluate(
            loaded.model,
            stream,
            windows=windows,
            addressing=loaded.addressing,
            source=source,
            progress=progress,
        )
        table = source.table if isinstance(source, FlashRows) else None
        read = {} if table is None else table.record()
    if not math.isfinite(found.loss):
        raise FormatError(f"{job.checkpoint}: its loss is {found.loss}: its weights or rows hold a NaN or an infinity")
    return _record(job, loaded, stream, found, name, read, time.perf_counter() - began)


def _stream(job: EvalJob, loaded: Loaded) -> Stream:
    spec = validation_in(loaded.config, job.checkpoint)
    if job.validation_path is not None:
        spec = dataclasses.replace(spec, path=job.validation_path, sha256=None)
    return spec.read()


def _check_table(job: EvalJob, loaded: Loaded) -> None:
    if job.table_path is None:
        return
    if loaded.addressing is None:
        raise ValueError(f"{job.checkpoint} has no table, so there is nothing to read from {job.table_path}")
    layout, trained = layout_of_table(job.table_path), loaded.addressing.layout
    if not isinstance(trained, Layout) or _hashing(layout) != _hashing(trained):
        theirs, ours = layout.label, loaded.config["memory"]
        raise ValueError(
            f"{job.table_path} has another layout ({theirs}) than {job.checkpoint} ({ours}); pack that one"
        )
    told = read_header(job.table_path).weights_sha256
    if told is not None and told != weights_sha256(job.checkpoint):
        raise ValueError(f"{job.table_path} was packed from another checkpoint; pack this one again")


def _hashing(layout: Layout) -> object:
    """What two tables of the same rows share, in whatever format these are stored."""
    return layout.row_width, layout.row_count, layout.seed, [group.columns for group in layout.groups]


@contextlib.contextmanager
def _source(job: EvalJob, loaded: Loaded) -> Iterator[tuple[str, RowSource | None]]:
    """What to call the table's place, and its rows."""
    if loaded.addressing is None:
        yield "none", None
    elif job.table_path is None:
        assert loaded.rows is not None
        yield "fp32 in RAM", RamRows(loaded.addressing, loaded.rows)
    elif job.in_ram:
        packed = PackedRows(job.table_path)
        yield f"{packed.layout.row_format} in RAM", packed
    else:
        with Table.open(
            job.table_path, cache_bytes=job.cache_bytes, depth=job.depth, engine=job.engine, buffered=job.buffered
        ) as table:
            yield f"{table.layout.row_format} on flash", FlashRows(table)


def _record(
    job: EvalJob, loaded: Loaded, stream: Stream, found: Evaluation, source: str, read: dict[str, Any], seconds: float
) -> EvalRecord:
    config, preset, windows = loaded.config, loaded.model.preset, len(found.window_losses)
    layout = loaded.addressing.layout if loaded.addressing is not None else None
    stamp: dict[str, Any] = {**provenance()}
    return EvalRecord(
        preset=preset.name,
        memory=config["memory"],
        slots=config["slots"],
        table_params_actual=0 if layout is None else layout.row_count * layout.row_width,
        seed=config["seed"],
        step=config["state"]["step"],
        source=source,
        cache_bytes=read.get("cache_bytes"),
        engine=read.get("engine"),
        reads_per_token=read.get("reads_per_token"),
        stream=stream.name,
        stream_sha256=stream.sha256,
        windows=windows,
        context=preset.context,
        tokens=windows * preset.context,
        loss=found.loss,
        loss_error=found.loss_error,
        seconds=seconds,
        device=job.device,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        **stamp,
    )

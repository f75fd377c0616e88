"""Work as a value: a frozen, picklable ``Job``, done by ``run``, which depends on nothing else.

``run_jobs`` does several over one stream on threads (C releases the GIL); a cluster can do the same with ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pagegram_io import native
from pagegram_io.interleave import ServedSource, Serving
from pagegram_io.layout import Layout, about_model
from pagegram_io.locality import Served, StepShape, serve, shape_facts, shape_of
from pagegram_io.policy import (
    CurvePolicy,
    LruPolicy,
    Policy,
    Result,
    RowCachePolicy,
    RowSource,
    Tick,
    cache_sizes,
    drive,
    index_bytes,
)
from pagegram_io.records import SimulationRecord, provenance
from pagegram_io.requests import read_requests
from pagegram_io.sizes import CacheSize
from pagegram_io.tokens import Stream, read_stream
from pagegram_io.trace import LayoutSource, PageSource
from pagegram_io.workers import default_threads, on_threads

if TYPE_CHECKING:
    from pagegram_io.deployed.ranks import RankShare

POLICIES = ("lru",)
SPLITS = ("order", "layer", "layer,order", "column")
CACHE_UNITS = ("page", "row")


@dataclass(frozen=True)
class StreamSpec:
    """Where a stream comes from and, once read, what it must be: jobs carry this rather than the tokens.

    A stream that exists in memory alone has no path and cannot be read again elsewhere: give it to ``run``. Nor can
    one that a tokenizer made of texts. requests: the path is a log of requests, not of tokens.
    """

    path: str | None = None
    dtype: str | None = None
    eod: int | None = None
    documents: str | None = None
    vocabulary: int | None = None
    limit: int | None = None
    sha256: str | None = None
    requests: bool = False

    def read(self) -> Stream:
        """The stream; ValueError when its digest is not the one the job was made for."""
        if self.requests and self.path is not None:
            stream = read_requests(self.path, vocabulary=self.vocabulary, limit=self.limit)
        else:
            stream = read_stream(
                self.path,
                dtype=self.dtype,
                eod=self.eod,
                documents=self.documents,
                vocabulary=self.vocabulary,
                limit=self.limit,
            )
        if self.sha256 is not None and stream.sha256 != self.sha256:
            name = self.path or "the shipped stream"
            raise ValueError(f"{name} changed: its sha256 is {stream.sha256}, not {self.sha256}")
        return stream


@dataclass(frozen=True)
class Job:
    """One layout over one stream, at some cache sizes or at all of them (``curve``)."""

    stream: StreamSpec
    layout: Layout
    caches: tuple[CacheSize, ...] = ()
    curve: bool = False
    warm_tokens: int = 0
    cache_unit: str = "page"
    split: str | None = None
    policy: str = "lru"
    isa: str = "auto"
    threads: int = 1
    keep_curve: bool = False  # hand out misses at every size, not only at the grid's
    share: RankShare | None = None  # one rank's part of a table that several share
    serving: Serving | None = None  # documents in turn, step by step; None: the stream as it stands
    pollution_bytes: int = 0  # of another file, read through the same cache once, half-way


def _names_of_groups(layout: Layout, split: str | None) -> list[dict[str, int]]:
    """The record keys that name the class of each group's reads."""
    if split is None:
        return [{} for _ in layout.groups]
    if "layer" in split and any(g.layer is None for g in layout.groups):
        raise ValueError(f"{layout.label} belongs to no layer; split its reads by order or column")
    if split == "column":
        layers = [{} if g.layer is None else {"layer": g.layer} for g in layout.groups]
        return [{"order": g.order, "column": i, **layers[i]} for i, g in enumerate(layout.groups)]
    fields = split.split(",")
    return [
        {name: value for name, value in (("layer", g.layer or 0), ("order", g.order)) if name in fields}
        for g in layout.groups
    ]


def _classes(layout: Layout, split: str | None) -> tuple[np.ndarray, list[dict[str, int]]]:
    """A class for each page column, and the record keys that name each class."""
    of_group = _names_of_groups(layout, split)
    names = _distinct(of_group)
    class_of_group = np.array([names.index(name) for name in of_group], np.uint32)
    return class_of_group[layout.group_of_page_column()], names


def _distinct(of_group: list[dict[str, int]]) -> list[dict[str, int]]:
    """Each name once: of columns in their order, which is the layout's; of others sorted."""
    names = [name for i, name in enumerate(of_group) if name not in of_group[:i]]
    return names if "column" in names[0] else sorted(names, key=lambda name: tuple(name.values()))


@dataclass(frozen=True)
class Outcome:
    """What a job found: records of the sizes asked for and of a curve's grid; misses at every size, uint64."""

    records: list[SimulationRecord]
    asked: frozenset[int]  # capacities asked for
    state_bytes: int = 0  # what the simulator itself took
    misses_by_size: np.ndarray | None = None

    @property
    def asked_records(self) -> list[SimulationRecord]:
        """The records of the sizes asked for, without those of the grid."""
        return [record for record in self.records if record.cache_pages in self.asked]


def run(job: Job, *, stream: Stream | None = None, tick: Tick | None = None) -> list[SimulationRecord]:
    """Do a job. ``stream`` spares reading it again; ``tick`` is told of accesses done and may raise to stop."""
    return run_outcome(job, stream=stream, tick=tick).records


def run_outcome(job: Job, *, stream: Stream | None = None, tick: Tick | None = None) -> Outcome:
    """As ``run``, with the whole curve beside the records."""
    _check(job)
    stream = stream if stream is not None else job.stream.read()
    layout, sizes = job.layout, _sizes(job)
    classes, class_names = _classes(layout, job.split)
    capacities = [capacity for _, capacity, _ in sizes]
    every, served, shape = None, None, None
    if job.serving is not None and not job.curve:
        source = ServedSource(layout, stream, job.serving, unit=job.cache_unit, isa=job.isa)
        shape = shape_of(source, classes)
        pollution = _pollution_pages(job, capacities)
        served = serve(
            source, capacities, classes, warm_tokens=job.warm_tokens, pollution_pages=pollution, shape=shape, tick=tick
        )
        results = [one.result for one in served]
    elif job.cache_unit == "row":
        results = _drive_rows(job, stream, capacities, classes, tick)
    else:
        result, work = _drive_pages(job, stream, capacities, classes, tick)
        results = [result]
        every = work.all_misses().sum(axis=1) if isinstance(work, CurvePolicy) and job.keep_curve else None
    about = (
        about_layout(layout)
        | about_stream(stream, layout.model)
        | about_run(job.policy, job.cache_unit, job.isa, job.threads)
        | about_share(job.share)
        | about_serving(job.serving)
        | {"pollution_bytes": job.pollution_bytes}
    )
    used = _bytes_used(layout, job.split) if job.share is None else None
    unit_bytes = layout.page_bytes if job.cache_unit == "page" else layout.row_bytes
    unit_count = layout.page_count if job.cache_unit == "page" else layout.row_count
    held = [min(capacity, unit_count) for capacity in capacities]
    memory = [count * unit_bytes + index_bytes(unit_count) if count else 0 for count in held]
    cells = Cells(class_names, used, [size for size, _, _ in sizes], memory, job.warm_tokens)
    asked = frozenset(capacities[i] for i in range(len(sizes)) if sizes[i][2])
    records = make_records(results, cells, about)
    if served is not None and shape is not None:
        records = _with_facts(records, served, shape, len(class_names))
    return Outcome(records, asked, max(r.state_bytes for r in results), every)


def _check(job: Job) -> None:
    if job.policy not in POLICIES:
        raise ValueError(f"policy {job.policy!r} is not known; choose {', '.join(POLICIES)}")
    if job.cache_unit not in CACHE_UNITS:
        raise ValueError(f"cache unit {job.cache_unit!r} is not known; choose {' or '.join(CACHE_UNITS)}")
    if job.split is not None and job.split not in SPLITS:
        raise ValueError(f"reads are split by {', '.join(SPLITS)}, not by {job.split!r}")
    if job.pollution_bytes and job.cache_unit == "row":
        raise ValueError("another file passes through a cache of pages, not through one of rows")
    if job.share is not None and job.cache_unit == "row":
        raise ValueError("ranks are simulated with a cache of pages; leave --cache-unit row out")
    if job.share is not None and job.serving is not None:
        raise ValueError("ranks are simulated on the stream as it stands, not on documents in turn")


def _pollution_pages(job: Job, capacities: list[int]) -> int:
    """Pages of the other file; what is longer than the cache does no more to it."""
    return min(-(-job.pollution_bytes // job.layout.page_bytes), max(capacities))


def _drive_rows(
    job: Job, stream: Stream, capacities: list[int], classes: np.ndarray, tick: Tick | None
) -> list[Result]:
    layout = job.layout
    return [
        drive(
            RowSource(layout, stream),
            RowCachePolicy(layout, capacity, classes),
            [capacity],
            warm_tokens=job.warm_tokens,
            dtype=np.uint64,
            tick=tick,
        )
        for capacity in capacities
    ]


def _drive_pages(
    job: Job, stream: Stream, capacities: list[int], classes: np.ndarray, tick: Tick | None
) -> tuple[Result, Policy]:
    layout, pollution = job.layout, _pollution_pages(job, capacities)
    source: PageSource = LayoutSource(layout, stream, isa=job.isa)
    if job.serving is not None:
        source = ServedSource(layout, stream, job.serving, isa=job.isa)
        classes = np.tile(classes, 1 + job.serving.draft)
    elif job.share is not None:
        from pagegram_io.deployed.ranks import RankSource

        source = RankSource(layout, stream, job.share, isa=job.isa)
    work = _policy(job, layout.page_count + pollution, capacities, classes)
    result = drive(
        source,
        work,
        capacities,
        warm_tokens=job.warm_tokens,
        dtype=np.uint32,
        tick=tick,
        pollution_pages=pollution,
    )
    return result, work


def _with_facts(
    records: list[SimulationRecord], served: list[Served], shape: StepShape, class_count: int
) -> list[SimulationRecord]:
    """What steps and documents show, beside the totals: records go by size, then by class."""
    facts = [one.facts(c) | shape_facts(shape, c) for one in served for c in range(class_count)]
    return [replace(record, **more) for record, more in zip(records, facts, strict=True)]


def _policy(job: Job, page_count: int, capacities: list[int], classes: np.ndarray) -> Policy:
    if job.curve:
        return CurvePolicy(page_count, capacities, classes, job.isa)
    return LruPolicy(page_count, capacities, classes)


def _sizes(job: Job) -> list[tuple[int, int, bool]]:
    """(bytes, capacity in units, asked for?) of each cache: those asked for, and the grid of a curve."""
    layout, rows = job.layout, job.cache_unit == "row"
    unit_bytes, unit_count = (layout.row_bytes, layout.row_count) if rows else (layout.page_bytes, layout.page_count)
    if rows and job.curve:
        raise ValueError("a row cache is simulated one size at a time; give --cache sizes instead of --curve")
    return cache_sizes(job.caches, unit_bytes, unit_count, curve=job.curve)


def _bytes_used(layout: Layout, split: str | None) -> list[int]:
    """Bytes of rows that a lookup needs, for each class."""
    of_group = _names_of_groups(layout, split)
    by_group = [len(g.columns) * sum(r.row_bytes for r in g.regions) for g in layout.groups]
    return [sum(b for b, name in zip(by_group, of_group, strict=True) if name == n) for n in _distinct(of_group)]


def about_layout(layout: Layout) -> dict[str, Any]:
    return {
        "layout": layout.name,
        "slots": layout.slots,
        "table_params": layout.table_params,
        "table_params_actual": layout.table_params_actual,
        "row_format": layout.row_format,
        "row_bytes": layout.row_bytes,
        "page_bytes": layout.page_bytes,
        "base_byte": min(region.base_byte for region in layout.regions),
        "pages": layout.page_count,
        "file_bytes": layout.file_bytes,
        "placement": layout.placement,
        "seed": layout.seed,
        "heads": layout.heads,
        "row_width": layout.row_width,
        "dim": layout.dim,
        "orders": ",".join(map(str, layout.orders)),
        **about_model(layout),
    }


def about_share(share: RankShare | None) -> dict[str, Any]:
    return {} if share is None else {"rank": share.rank, "ranks": share.ranks, "rank_split": share.split}


def about_stream(stream: Stream, model: str | None = None) -> dict[str, Any]:
    """What a record says of its stream; with a model, also whether the stream stands in for one in that model's ids."""
    lengths = stream.document_lengths
    about = {
        "stream": stream.name,
        "stream_sha256": stream.sha256,
        "documents": len(lengths),
        "document_tokens_p50": int(np.sort(lengths)[(len(lengths) - 1) // 2]),
        "document_tokens_max": int(lengths.max()),
        "prompt_tokens": None if stream.prompt_lengths is None else int(stream.prompt_lengths.sum()),
    }
    if model is None:
        return about
    from pagegram_io.deployed import stand_in

    return about | {"tokenizer_stand_in": stand_in(model, stream.name)}


def about_serving(serving: Serving | None) -> dict[str, Any]:
    if serving is None:
        return {}
    return {"interleave": serving.interleave, "window": serving.window, "draft": serving.draft}


def about_run(policy: str, cache_unit: str, isa: str, threads: int) -> dict[str, Any]:
    used = native.isa_best() if isa == "auto" else isa
    return {"policy": policy, "cache_unit": cache_unit, "isa": used, "threads": threads}


@dataclass(frozen=True)
class Cells:
    """What names the cells of a result: classes, and the caches in the order of the results' sizes."""

    class_names: list[dict[str, int]]
    bytes_used: list[int] | None
    cache_bytes: list[int]
    memory_bytes: list[int]
    warm_tokens: int


def make_records(results: list[Result], cells: Cells, about: dict[str, Any]) -> list[SimulationRecord]:
    """A record for each cache size and class; sums over classes are left to readers, so that splits stay exact."""
    records, stamp = [], provenance()
    flat = [(result, k) for result in results for k in range(len(result.sizes))]
    for (result, k), cache_bytes, memory_bytes in zip(flat, cells.cache_bytes, cells.memory_bytes, strict=True):
        for c, names in enumerate(cells.class_names):
            accesses, compulsory = int(result.total.accesses[c]), int(result.total.compulsory[c])
            misses, second = int(result.total.misses[k][c]), int(result.second_half.misses[k][c])
            read = misses * about["page_bytes"] / result.tokens
            used = cells.bytes_used[c] if cells.bytes_used else None
            fields = {
                "cache_bytes": cache_bytes,
                "cache_pages": result.sizes[k],
                "memory_bytes": memory_bytes,
                "tokens": result.tokens,
                "warm_tokens": cells.warm_tokens,
                "state": "warm" if cells.warm_tokens else "cold",
                "accesses": accesses,
                "misses": misses,
                "misses_second_half": second,
                "compulsory_misses": compulsory,
                "reads_per_token": misses / result.tokens,
                "reads_per_token_second_half": second / (result.tokens - result.tokens // 2),
                "reads_per_token_without_compulsory": (misses - compulsory) / result.tokens,
                "hit_rate": 1 - misses / accesses if accesses else 0.0,
                "bytes_read_per_token": read,
                "bytes_used_per_token": used,
                "read_amplification": read / used if used else None,
                "compulsory_share": compulsory / misses if misses else 0.0,
                "cache_full_at_token": result.full_at_token[k],
                "seconds": result.seconds,
            }
            records.append(SimulationRecord(**(about | stamp | names | fields)))
    return records


def job_accesses(job: Job, tokens: int) -> int:
    """Places that a job's progress counts up to."""
    if job.cache_unit == "row":
        return job.layout.column_count * tokens * (len(job.caches) if job.serving is None else 1)
    return len(job.layout.group_of_page_column()) * tokens * (1 if job.serving is None else 1 + job.serving.draft)


def run_jobs(
    jobs: Sequence[Job], *, stream: Stream, threads: int | None = None, report: Tick | None = None
) -> list[Outcome]:
    """Do jobs over one stream on threads, the longest first; outcomes in the jobs' order.

    Raises the first job's exception, or Interrupted (a KeyboardInterrupt) within a batch of Ctrl-C.
    """
    workers = threads or default_threads()

    def task(job: Job) -> Callable[[Tick], Outcome]:
        return lambda tick: run_outcome(replace(job, threads=workers), stream=stream, tick=tick)

    costs = [job_accesses(job, len(stream.ids)) for job in jobs]
    return on_threads([task(job) for job in jobs], costs, threads=workers, report=report)

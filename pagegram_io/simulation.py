"""Stream x layouts x caches -> records: the notebook's face of the simulator."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pagegram_io.deployed import family_of
from pagegram_io.job import Cells, Job, Outcome, StreamSpec, about_run, about_stream, make_records, run_jobs
from pagegram_io.layout import LAYOUT_NAMES, Shape, build
from pagegram_io.policy import CurvePolicy, LruPolicy, Policy, Tick, cache_sizes, drive, index_bytes
from pagegram_io.records import SimulationRecord
from pagegram_io.sizes import parse_cache, parse_count
from pagegram_io.tokens import Stream, read_stream, shipped_stream_path
from pagegram_io.trace import BATCH_PLACES, ArraySource


def simulate(
    *,
    table: str | int | Sequence[str | int] = "20B",
    cache: str | Sequence[str] = "1GiB",
    layouts: Sequence[str] = LAYOUT_NAMES,
    slots: Sequence[int] = (4, 15),
    shape: Shape | None = None,
    model: str | Sequence[str] = (),
    tokens: str | Stream | None = None,
    limit: int | None = None,
    curve: bool = False,
    warm_tokens: int = 0,
    cache_unit: str = "page",
    by: str | None = None,
    threads: int | None = None,
) -> list[SimulationRecord]:
    """Reads per token of each layout at each cache size, as the ``simulate`` command prints them.

    ``tokens`` is a Stream, a file, or None for the shipped stream. With ``curve`` there is a record for each size of
    a logarithmic grid as well. ``model`` names deployed tables, which are simulated instead of ours; without tokens,
    on the shipped stream in the first one's ids if there is one. Raises ValueError, FormatError or OSError with one
    sentence.
    """
    tables = [table] if isinstance(table, (str, int)) else list(table)
    caches = tuple(parse_cache(c) for c in (cache.split(",") if isinstance(cache, str) else cache))
    families = [family_of(name) for name in ([model] if isinstance(model, str) else model)]
    if tokens is None and families and families[0].stream:
        tokens = str(shipped_stream_path(families[0].stream))
    stream = tokens if isinstance(tokens, Stream) else read_stream(tokens, limit=limit)
    spec = StreamSpec(None if isinstance(tokens, Stream) else tokens, limit=limit, sha256=stream.sha256)
    made = [family.layout() for family in families] or [
        layout
        for size in tables
        for layout in build(layouts, parse_count(size) if isinstance(size, str) else size, slots=slots, shape=shape)
    ]
    jobs = [
        Job(spec, layout, caches, curve=curve, warm_tokens=warm_tokens, cache_unit=cache_unit, split=by)
        for layout in made
    ]
    return [record for outcome in run_jobs(jobs, stream=stream, threads=threads) for record in outcome.records]


def curve(
    pages: np.ndarray,
    *,
    name: str = "pages",
    stream: Stream | None = None,
    cache: str | Sequence[str] = (),
    every_size: bool = True,
    table_params: int | None = None,
    page_bytes: int = 4096,
    page_count: int | None = None,
    about: Mapping[str, Any] | None = None,
    warm_tokens: int = 0,
    tick: Tick | None = None,
) -> list[SimulationRecord]:
    """The miss curve of any array of pages, integers [tokens, columns] (unused places 0xFFFFFFFF) or [accesses].

    Give the ``stream`` that the pages were made from and ``table_params``, and the records can be drawn beside ours;
    ``about`` sets further record fields (seed, row_format, ...). ``page_count`` is the size of the whole table, by
    default what the pages show. Raises ValueError for a wrong dtype, shape or size.
    """
    return curve_outcome(
        pages,
        name=name,
        stream=stream,
        cache=cache,
        every_size=every_size,
        table_params=table_params,
        page_bytes=page_bytes,
        page_count=page_count,
        about=about,
        warm_tokens=warm_tokens,
        tick=tick,
    ).records


def curve_outcome(
    pages: np.ndarray,
    *,
    name: str,
    stream: Stream | None,
    cache: str | Sequence[str],
    every_size: bool,
    table_params: int | None,
    page_bytes: int,
    page_count: int | None,
    about: Mapping[str, Any] | None,
    warm_tokens: int,
    tick: Tick | None,
    bytes_used: int | None = None,
) -> Outcome:
    """As ``curve``, with misses at every size beside the records."""
    source = ArraySource(pages, page_count=page_count)
    if stream is not None and len(stream.ids) != source.token_count:
        raise ValueError(f"the pages are of {source.token_count} tokens, the stream of {len(stream.ids)}")
    texts = cache.split(",") if isinstance(cache, str) else cache
    table_pages = source.table_page_count
    sizes = cache_sizes([parse_cache(c) for c in texts], page_bytes, table_pages, curve=every_size)
    capacities = [capacity for _, capacity, _ in sizes]
    classes = np.zeros(source.page_columns, np.uint32)
    work: Policy = (
        CurvePolicy(source.page_count, capacities, classes, "auto")
        if every_size
        else LruPolicy(source.page_count, capacities, classes)
    )
    result = drive(source, work, capacities, warm_tokens=warm_tokens, dtype=np.uint32, tick=tick)
    fields: dict[str, Any] = {
        "layout": name,
        "slots": None,
        "table_params": table_params,
        "table_params_actual": table_params,
        "row_format": None,
        "row_bytes": None,
        "page_bytes": page_bytes,
        "pages": table_pages,
        "file_bytes": table_pages * page_bytes,
        "placement": None,
        "seed": None,
        "heads": None,
        "row_width": None,
        "dim": None,
        "orders": None,
    }
    fields |= about_run("lru", "page", "auto", 1) | dict(about or {})
    if stream is not None:
        fields |= about_stream(stream)
    elif "stream_sha256" not in fields:
        fields |= {"stream": name, "stream_sha256": digest(pages), "documents": 1}
    held = [min(capacity, table_pages) for capacity in capacities]
    memory = [count * page_bytes + index_bytes(table_pages) if count else 0 for count in held]
    cells = Cells([{}], [bytes_used] if bytes_used else None, [size for size, _, _ in sizes], memory, warm_tokens)
    every = work.all_misses().sum(axis=1) if isinstance(work, CurvePolicy) else None
    asked = frozenset(capacity for _, capacity, wanted in sizes if wanted)
    return Outcome(make_records([result], cells, fields), asked, result.state_bytes, every)


def digest(pages: np.ndarray) -> str:
    """SHA-256 of the array's bytes, a batch at a time: it may be memory-mapped and large."""
    digest = hashlib.sha256()
    for begin in range(0, len(pages), BATCH_PLACES):
        digest.update(np.ascontiguousarray(pages[begin : begin + BATCH_PLACES]).tobytes())
    return digest.hexdigest()

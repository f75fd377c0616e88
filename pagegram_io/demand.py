"""What a table demands of a drive: reads a decode step, by layer, batch and cache; and the same table placed better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pagegram_io.interleave import ServedSource, Serving
from pagegram_io.layout import Group, Layout, Region
from pagegram_io.locality import mean, quantile, serve
from pagegram_io.policy import Tick
from pagegram_io.tokens import Stream

if TYPE_CHECKING:
    from pagegram_io.deployed.ranks import RankShare


@dataclass(frozen=True)
class LayerReads:
    """Reads of one step up to and including a layer's, in the order in which layers need them, and the layer's own;
    second half only."""

    layer: int | None
    mean: float
    p50: int
    p99: int
    own_p50: int
    own_p99: int


@dataclass(frozen=True)
class Demand:
    """A layout behind one cache at one batch. layers end with the last one needed, whose reads are all of them.

    misses and first_reads are of the second half, compulsory reads included; full_at_token None: never full.
    """

    batch: int
    cache_bytes: int
    cache_pages: int
    layers: tuple[LayerReads, ...]
    steps: int
    tokens: int
    misses: int
    first_reads: int
    half_token: int
    full_at_token: int | None
    whole: bool = False  # the cache holds the whole table

    @property
    def reads_per_token(self) -> float:
        return self.misses / self.tokens

    @property
    def first_share(self) -> float:
        return self.first_reads / self.misses if self.misses else 0.0


def layers_of(layout: Layout) -> list[int | None]:
    """Layers of the model that the table's groups belong to, ascending; [None] where it names none."""
    found = sorted({group.layer for group in layout.groups if group.layer is not None})
    return [*found] or [None]


def check_documents(stream: Stream, batch: int) -> None:
    """ValueError where the stream has fewer documents than a batch."""
    if len(stream.document_starts) < batch:
        raise ValueError(
            f"{stream.name} has {len(stream.document_starts):,} documents, and a batch of {batch} needs as many; "
            "say where they end by --eod or --documents, or give a smaller --batch"
        )


def demand(
    layout: Layout,
    stream: Stream,
    caches: Sequence[tuple[int, int]],
    batch: int,
    *,
    order: Sequence[int | None] | None = None,
    window: int | None = None,
    unit: str = "page",
    share: RankShare | None = None,
    slow_share: float = 0.01,
    tick: Tick | None = None,
) -> list[Demand]:
    """The demand at each (bytes, capacity in units) of caches. order: layers as they are needed, the first first.

    ``batch`` documents advance in turn, each by a token a step. Of a log the prompts are read in chunks of ``window``
    beside, and reads a step are of steps that only make tokens. share: only what one rank reads, behind caches of its
    own; slow_share: of steps, those that may have more reads than the "p99" ones, a hundredth where there is one reader
    and less where several are waited for. ValueError where the stream has fewer documents than the batch.
    """
    check_documents(stream, batch)
    order = list(order or layers_of(layout))
    of_column = layout.layer_of_page_column().tolist()
    classes = np.array([order.index(None if layer < 0 else layer) for layer in of_column], np.uint32)
    serving = Serving(batch, window if stream.prompt_lengths is not None else None)
    source = _source(layout, stream, serving, unit, share)
    served = serve(source, [capacity for _, capacity in caches], classes, by_step=True, tick=tick)
    demands = []
    for (cache_bytes, capacity), one in zip(caches, served, strict=True):
        assert one.step_reads is not None
        counts, own = one.step_reads
        layers = [
            LayerReads(
                layer, mean(counts[c]), *(quantile(of[c], q) for of in (counts, own) for q in (0.5, 1 - slow_share))
            )
            for c, layer in enumerate(order)
        ]
        demands.append(
            Demand(
                batch=batch,
                cache_bytes=cache_bytes,
                cache_pages=capacity,
                layers=tuple(layers),
                steps=int(counts[-1].sum()),
                tokens=len(stream) - len(stream) // 2,
                misses=int(one.result.second_half.misses.sum()),
                first_reads=int(one.result.second_half.compulsory.sum()),
                half_token=len(stream) // 2,
                full_at_token=one.result.full_at_token[0],
                whole=capacity >= source.page_count,
            )
        )
    return demands


def _source(layout: Layout, stream: Stream, serving: Serving, unit: str, share: RankShare | None) -> ServedSource:
    if share is None:
        return ServedSource(layout, stream, serving, unit=unit)
    from pagegram_io.deployed.rank_reads import RankServedSource

    return RankServedSource(layout, stream, serving, share, unit=unit)


def prefill_reads(
    layout: Layout,
    stream: Stream,
    capacities: Sequence[int],
    window: int,
    *,
    unit: str = "page",
    share: RankShare | None = None,
    tick: Tick | None = None,
) -> list[float | None]:
    """Reads of a token that is given, in chunks of ``window``, behind a cache of each capacity; second half only.

    One document after the other. None where the second half holds no such tokens.
    """
    source = _source(layout, stream, Serving(1, window), unit, share)
    classes = np.zeros(len(layout.group_of_page_column()), np.uint32)
    served = serve(source, capacities, classes, warm_tokens=len(stream) // 2, tick=tick)
    return [one.facts(0)["prefill_reads_per_token"] for one in served]


def repacked(layout: Layout) -> Layout | None:
    """The same rows with no straddle and one region a group: what a rewrite of the file can give. None: it is so."""
    if not layout.packed and all(len(group.regions) == 1 for group in layout.groups):
        return None
    groups, byte = [], 0
    for group in layout.groups:
        row_bytes = sum(region.row_bytes for region in group.regions)
        unit_bytes = row_bytes * group.unit_rows
        region = Region(
            byte, group.regions[0].unit_count, unit_bytes, row_bytes, max(1, layout.page_bytes // unit_bytes)
        )
        byte = region.end_byte(layout.page_bytes)
        groups.append(replace(group, regions=(region,)))
    return replace(layout, groups=tuple(groups), row_bytes=groups[0].regions[0].row_bytes)


def with_resident_scales(layout: Layout) -> tuple[Layout, int] | None:
    """The layout without its groups' smaller regions, and the bytes of RAM that these take; None: it has none."""
    if all(len(group.regions) == 1 for group in layout.groups):
        return None
    groups: list[Group] = []
    held = 0
    for group in layout.groups:
        largest = max(group.regions, key=lambda region: region.row_bytes)
        held += sum(r.unit_count * r.unit_bytes for r in group.regions if r is not largest)
        groups.append(replace(group, regions=(largest,)))
    return replace(layout, groups=tuple(groups)), held

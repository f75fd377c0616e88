"""What a plan has to find out, each once: demands by placement and batch, prefill, and changes where it is no go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pagegram_io import plan
from pagegram_io.demand import Demand, demand, layers_of, prefill_reads, repacked, with_resident_scales
from pagegram_io.drive import Drive
from pagegram_io.job import about_layout, about_stream
from pagegram_io.layout import Layout
from pagegram_io.locality import filler_warning
from pagegram_io.plan import Change, Goal, Judgement
from pagegram_io.policy import cache_sizes
from pagegram_io.records import provenance
from pagegram_io.sizes import CacheSize, format_bytes
from pagegram_io.tokens import Stream

if TYPE_CHECKING:
    from pagegram_io.deployed.model_table import ModelTable

ABOUT_LAYOUT = ("layout", "slots", "table_params", "row_format", "row_bytes", "placement", "page_bytes", "pages",
                "file_bytes", "seed", "model", "scales", "resident_bytes", "assumed")  # fmt: skip
ABOUT_STREAM = ("stream", "stream_sha256", "documents", "document_tokens_p50", "document_tokens_max",
                "tokenizer_stand_in")  # fmt: skip


class Planner:
    """A table, a stream and drives (the first is the one planned for), asked about batch by batch."""

    def __init__(
        self,
        layout: Layout,
        stream: Stream,
        goal: Goal,
        drives: Sequence[Drive],
        depth: int,
        caches: Sequence[CacheSize],
        path: str,
        window: int,
        model: ModelTable | None = None,
    ) -> None:
        self.layout, self.stream, self.goal, self.depth = layout, stream, goal, depth
        self.drive = drives[0] if drives else None
        self.rivals = list(drives[1:])
        self.path, self.window, self.model = path, window, model
        self.unit = "row" if path == "row" else "page"
        self._sizes = self._grid(caches)
        self._demands: dict[tuple[str, int], list[Demand]] = {}
        self._prefill: dict[int, float | None] = {}
        self._tick: Any = None

    def _grid(self, caches: Sequence[CacheSize]) -> list[tuple[int, int]]:
        """(bytes, capacity) of the budgets, and of doublings of the smallest up to the table's size."""
        rows = self.unit == "row"
        unit_bytes = self.layout.row_bytes if rows else self.layout.page_bytes
        count = self.layout.row_count if rows else self.layout.page_count
        given = cache_sizes(caches, unit_bytes, count, curve=False)
        self.asked = {capacity for _, capacity, _ in given}
        sizes = {capacity: size for size, capacity, _ in given}
        capacity = min((c for c in sizes if c), default=count)
        while capacity < count:
            sizes.setdefault(capacity, capacity * unit_bytes)
            capacity *= 2
        return [(sizes[capacity], capacity) for capacity in sorted(sizes)]

    @contextlib.contextmanager
    def progress(self, batches: int) -> Iterator[None]:
        """A bar over the passes that are certain to be made; changes come on top."""
        from pagegram_io.progress import progress

        with progress("planning", len(self.stream) * (batches + 1)) as advance:
            columns = len(self.layout.group_of_page_column())
            self._tick = lambda places: advance(places / columns)
            try:
                yield
            finally:
                self._tick = None

    def warnings(self) -> list[str]:
        """What would flatter a measurement of this plan: a filler stream, a table that the kernel keeps in RAM."""
        lines = [line for line in (filler_warning(self.stream),) if line]
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if self.path == "mmap" and self.layout.file_bytes <= memory:
            lines.append(
                f"the table of {format_bytes(self.layout.file_bytes)} fits in this machine's {format_bytes(memory)} of "
                "RAM: once read, the kernel serves it from its page cache, and a measurement here is not of a drive"
            )
        return lines

    def demands(self, batch: int, placement: str = "", layout: Layout | None = None) -> list[Demand]:
        """At each size of the grid, once for each placement."""
        key = (placement, batch)
        if key not in self._demands:
            order = self.goal.order(layers_of(self.layout))
            self._demands[key] = demand(
                layout or self.layout,
                self.stream,
                self._sizes,
                batch,
                order=order,
                window=self.window,
                unit=self.unit,
                tick=self._tick,
            )
        return self._demands[key]

    def judgements(self, batch: int) -> list[Judgement]:
        return [plan.judge(d, self.drive, self.goal, self.depth) for d in self.demands(batch)]

    def prefill(self, capacity: int) -> dict[str, Any]:
        """Reads of a token in prefill behind a cache, and the tokens a second that the drive's rate allows."""
        if not self._prefill:
            sizes = [size for _, size in self._sizes]
            found = prefill_reads(self.layout, self.stream, sizes, self.window, unit=self.unit, tick=self._tick)
            self._prefill = dict(zip(sizes, found, strict=True))
        reads = self._prefill[capacity]
        rate = self.drive.iops(self.depth) if self.drive else None
        return {
            "prefill_window": self.window,
            "prefill_reads_per_token": reads,
            "prefill_tokens_per_second": rate / reads if rate and reads else None,
        }

    def change(self, judgement: Judgement) -> str:
        """The cheapest change that would turn a "no go" into a "go"; a faster drive, in numbers, if no other does."""
        found = plan.cheapest_change(self._changes(judgement))
        return found or f"{plan.drive_needed(judgement)} (no drive given here is)"

    def _changes(self, judgement: Judgement) -> Iterator[Change]:
        """Cheapest first: a setting, a rewrite of the file, RAM for scales, RAM for pages, a drive."""
        wanted = judgement.demand
        drive = self.drive
        assert drive is not None  # without one no verdict is "no go"
        for depth in (d for d in drive.depths if d > self.depth):
            yield Change(f"a depth of {depth}", lambda d=depth: plan.judge(wanted, drive, self.goal, d))  # type: ignore[misc]

        def placed(name: str, layout: Layout) -> Judgement:
            found = next(d for d in self.demands(wanted.batch, name, layout) if d.cache_pages == wanted.cache_pages)
            return plan.judge(found, drive, self.goal, self.depth)

        packed, resident = self._placements()
        if packed is not None:
            yield Change("repack, so that no row straddles or lies apart", lambda: placed("repacked", packed))
        if resident is not None:
            text = f"scales resident, in {format_bytes(resident[1])} of RAM"
            yield Change(text, lambda: placed("resident", resident[0]))
        for larger in self.demands(wanted.batch):
            if larger.cache_pages > wanted.cache_pages:
                text = f"{format_bytes(larger.cache_bytes)} of cache"
                yield Change(text, lambda d=larger: plan.judge(d, drive, self.goal, self.depth))  # type: ignore[misc]
        for rival in self.rivals:
            text = f"the drive {rival.name}"
            yield Change(text, lambda r=rival: plan.judge(wanted, r, self.goal, self.depth))  # type: ignore[misc]

    def _placements(self) -> tuple[Layout | None, tuple[Layout, int] | None]:
        """The table repacked, and with its scales in RAM: of a model, as ``repack`` and --scales resident place it."""
        if self.model is None:
            return repacked(self.layout), with_resident_scales(self.layout)
        return self.model.repacked(self.layout), self.model.with_resident_scales(self.layout)

    def sentence(self, batch: int, judgements: Sequence[Judgement]) -> str:
        """From which cache on the goal is met at this batch."""
        least = plan.smallest_cache(judgements)
        if least is not None:
            start = f"from a cache of {format_bytes(least)} on, of the sizes tried" if least else "without any cache"
            return f"Batch {batch}: go {start}."
        sizes = [format_bytes(j.demand.cache_bytes) if j.demand.cache_pages else "none" for j in judgements]
        tried = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        known = [j for j in judgements if j.verdict == plan.NO_GO]
        if not known:
            return f"Batch {batch}: not known at any size tried, {tried}."
        return f"Batch {batch}: no size tried, {tried}, is known to be enough."

    def assumptions(self) -> list[str]:
        layout = self.layout
        own = "rows packed from the file's first byte" if layout.packed else "rows aligned to pages"
        in_files = ["rows where the files have them"] if layout.windows else []
        placed = "; ".join([*in_files, *([layout.assumed] if layout.assumed else [])]) or own
        return plan.assumptions(
            self.goal,
            self.drive,
            path=self.path,
            depth=self.depth,
            file_bytes=layout.file_bytes,
            placed=placed,
            log=self.stream.prompt_lengths is not None,
        )

    def about(self) -> dict[str, Any]:
        """What all records of the plan share."""
        layout = about_layout(self.layout)
        stream = about_stream(self.stream, self.layout.model)
        drive = self.drive
        return {
            **provenance(),
            **{name: layout[name] for name in ABOUT_LAYOUT if name in layout},
            **{name: stream[name] for name in ABOUT_STREAM if name in stream},
            "tokens": len(self.stream),
            "path": plan.PATHS[self.path],
            "cache_unit": self.unit,
            "target": drive.target if drive else None,
            "device": drive.name if drive else None,
            "engine": drive.engine if drive else None,
            "depth": self.depth if drive else None,
            "largest_step_measured": drive.largest_step(self.depth) if drive else None,
            "compute_ns": self.goal.compute_ns,
            "goal_tokens_per_second": self.goal.tokens_per_second,
        }

"""What a plan has to find out, each once: demands by placement, batch and rank, prefill, and changes for a no go."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pagegram_io import changes, plan
from pagegram_io.changes import Change, Setting
from pagegram_io.demand import (
    Demand,
    check_documents,
    demand,
    layers_of,
    prefill_reads,
    repacked,
    with_resident_scales,
)
from pagegram_io.drive import AnyDrive, Drive
from pagegram_io.drive_profiles import Profile
from pagegram_io.job import about_layout, about_stream
from pagegram_io.layout import Layout
from pagegram_io.locality import filler_warning
from pagegram_io.plan import Goal, Judgement
from pagegram_io.plan_assumptions import Circumstances, assumptions
from pagegram_io.policy import Tick, cache_sizes
from pagegram_io.records import PlanRecord, provenance
from pagegram_io.sizes import CacheSize, format_bytes
from pagegram_io.tokens import Stream
from pagegram_io.workers import on_threads

if TYPE_CHECKING:
    from pagegram_io.deployed.model_table import ModelTable
    from pagegram_io.deployed.ranks import RankShare

ABOUT_LAYOUT = ("layout", "slots", "table_params", "row_format", "row_bytes", "placement", "page_bytes", "pages",
                "file_bytes", "seed", "model", "scales", "resident_bytes", "assumed")  # fmt: skip
ABOUT_STREAM = ("stream", "stream_sha256", "documents", "document_tokens_p50", "document_tokens_max",
                "tokenizer_stand_in")  # fmt: skip


class Planner:
    """A table, a stream and drives (the first is the one planned for), asked about batch by batch.

    shares: of the ranks that the table is dealt to, each with a cache and a drive of its own; none: one server reads
    all of it.
    """

    def __init__(
        self,
        layout: Layout,
        stream: Stream,
        goal: Goal,
        drives: Sequence[AnyDrive],
        depth: int,
        caches: Sequence[CacheSize],
        path: str,
        window: int,
        model: ModelTable | None = None,
        shares: Sequence[RankShare] = (),
    ) -> None:
        self.layout, self.stream, self.goal, self.depth = layout, stream, goal, depth
        self.drives = [
            replace(drive, one_by_one=True) if path == "mmap" and isinstance(drive, Drive) else drive
            for drive in drives
        ]
        self.drive = self.drives[0] if drives else None
        self.path, self.window, self.model = path, window, model
        self.unit = "row" if path == "row" else "page"
        self.ranks = len(shares)
        self.shares: list[RankShare | None] = [*self._reading(shares)] or [None]
        self._sizes = self._grid(caches)
        self._demands: dict[tuple[str, int, int | None], list[Demand]] = {}
        self._prefill: dict[int | None, dict[int, float | None]] = {}
        self._threads: int | None = None

    def _reading(self, shares: Sequence[RankShare]) -> list[RankShare]:
        """The ranks that have any row to read."""
        if not shares:
            return []
        from pagegram_io.deployed.rank_reads import reads_something

        return [share for share in shares if reads_something(self.layout, share)]

    def _grid(self, caches: Sequence[CacheSize]) -> list[tuple[int, int]]:
        """(bytes, capacity) of the budgets, and of doublings of the smallest up to the size of a rank's share."""
        rows = self.unit == "row"
        unit_bytes = self.layout.row_bytes if rows else self.layout.page_bytes
        count = self.layout.row_count if rows else self.layout.page_count
        given = cache_sizes(caches, unit_bytes, count, curve=False)
        self.asked = {capacity for _, capacity, _ in given}
        sizes = {capacity: size for size, capacity, _ in given}
        capacity = min((c for c in sizes if c), default=count)
        while capacity < count // max(self.ranks, 1):  # a rank's share is held whole by that much
            sizes.setdefault(capacity, capacity * unit_bytes)
            capacity *= 2
        return [(sizes[capacity], capacity) for capacity in sorted(sizes)]

    def make_passes(self, batches: Sequence[int], *, threads: int | None = None) -> None:
        """The passes that any plan of these batches needs; those that changes need come later.

        Ctrl-C raises KeyboardInterrupt, which says how far they came. ValueError, before any of them, where the stream
        has too few documents for a batch.
        """
        for batch in batches:
            check_documents(self.stream, batch)
        self._threads = threads
        tasks: list[Callable[[Tick], object]] = []
        for share in self.shares:
            tasks.append(functools.partial(self._make_prefill, share))
            tasks += [functools.partial(self.demands, batch, "", share) for batch in batches]
        self._on_threads("planning", tasks, self.layout)

    def _on_threads(self, title: str, tasks: Sequence[Callable[[Tick], object]], layout: Layout) -> None:
        """Passes of a layout, with a bar."""
        from pagegram_io.progress import progress

        columns = layout.column_count if self.unit == "row" else len(layout.group_of_page_column())
        accesses = len(self.stream) * columns
        with progress(title, accesses * len(tasks)) as advance:
            on_threads(tasks, [accesses] * len(tasks), threads=self._threads, report=advance)

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

    def demands(
        self, batch: int, placement: str = "", share: RankShare | None = None, tick: Tick | None = None
    ) -> list[Demand]:
        """At each size of the grid, once for each placement and rank."""
        key = (placement, batch, _rank(share))
        if key not in self._demands:
            self._demands[key] = demand(
                self._placements[placement][0] if placement else self.layout,
                self.stream,
                self._sizes,
                batch,
                order=self.goal.order(layers_of(self.layout)),
                window=self.window,
                unit=self.unit,
                share=share,
                slow_share=0.01 / max(self.ranks, 1),  # so that in 99 steps of 100 no rank reads more
                tick=tick,
            )
        return self._demands[key]

    def by_rank(self, batch: int) -> list[list[Judgement]]:
        """At each size of the grid, a judgement for each rank that reads anything (or one, of the whole table)."""
        of_ranks = [
            [self._judge(d, self.drive, self.depth, share) for d in self.demands(batch, share=share)]
            for share in self.shares
        ]
        return [list(judgements) for judgements in zip(*of_ranks, strict=True)]

    def _judge(self, found: Demand, drive: AnyDrive | None, depth: int, share: RankShare | None) -> Judgement:
        return plan.judge(
            found,
            drive,
            self.goal,
            depth,
            _rank(share),
            page_bytes=self.layout.page_bytes,
            one_by_one=self.path == "mmap",
        )

    def judgements(self, batch: int) -> list[Judgement]:
        """At each size of the grid, of the rank that a step waits for."""
        return [plan.slowest(of_ranks) for of_ranks in self.by_rank(batch)]

    def prefill(self, capacity: int, share: RankShare | None = None) -> dict[str, Any]:
        """Reads of a token in prefill behind a cache, and the tokens a second that the drive's rate allows."""
        if _rank(share) not in self._prefill:
            self._make_prefill(share)
        reads = self._prefill[_rank(share)][capacity]
        rate = self.drive.iops(self.depth) if self.drive else None
        most = self.drive.most_iops if isinstance(self.drive, Profile) else None
        return {
            "prefill_window": self.window,
            "prefill_reads_per_token": reads,
            "prefill_tokens_per_second": rate / reads if rate and reads else None,
            "prefill_tokens_per_second_most": most / reads if most and reads else None,
        }

    def _make_prefill(self, share: RankShare | None, tick: Tick | None = None) -> None:
        sizes = [size for _, size in self._sizes]
        found = prefill_reads(self.layout, self.stream, sizes, self.window, unit=self.unit, share=share, tick=tick)
        self._prefill[_rank(share)] = dict(zip(sizes, found, strict=True))

    def slowest_prefill(self, capacity: int) -> dict[str, Any]:
        """As ``prefill``, of the rank that reads most."""
        return max(
            (self.prefill(capacity, share) for share in self.shares), key=lambda p: p["prefill_reads_per_token"] or 0
        )

    def rank_records(self, of_ranks: Sequence[Judgement], about: dict[str, Any]) -> list[PlanRecord]:
        """A record for each rank, of its whole step."""
        shares = {_rank(share): share for share in self.shares}
        return [
            replace(plan.records_of(j, about | self.prefill(j.demand.cache_pages, shares[j.rank]))[0], rank=j.rank)
            for j in of_ranks
        ]

    def judge(self, batch: int, setting: Setting) -> Judgement:
        """What would become of a step, were the setting so; of the rank that it waits for."""
        if setting.placement and (setting.placement, batch, _rank(self.shares[-1])) not in self._demands:
            layout, _ = self._placements[setting.placement]
            tasks = [functools.partial(self.demands, batch, setting.placement, share) for share in self.shares]
            self._on_threads("planning a change", tasks, layout)
        judgements = []
        for share in self.shares:
            demands = self.demands(batch, setting.placement, share)
            found = next(d for d in demands if d.cache_pages == setting.cache_pages)
            judgements.append(self._judge(found, self.drives[setting.drive], setting.depth, share))
        return plan.slowest(judgements)

    def change(self, judgement: Judgement) -> str:
        """The cheapest change, or pair of changes, that would turn a "no go" into a "go"; else what a drive would need.

        Where only published figures stand in the way of a "go", that is said: they rule nothing in.
        """
        batch = judgement.demand.batch
        if plan.compute_alone(batch, self.goal):
            return "less compute a step, or a larger batch (no cache and no drive helps)"
        start = Setting(self.depth, judgement.demand.cache_pages)
        all_changes = self._changes(start, batch)
        found = changes.cheapest(all_changes, start, lambda s: self.judge(batch, s).verdict == plan.GO)
        if found:
            return changes.text_of(found[0])
        found = changes.cheapest(all_changes, start, lambda s: self.judge(batch, s).not_ruled_out)
        if found:
            some, setting = found
            named = self.drives[setting.drive].name
            return (
                f"perhaps {changes.text_of(some)}: published figures of {named} allow it; measure before you rely on it"
            )
        return f"{plan.drive_needed(judgement, self.goal)} (no drive given here is)"

    def _changes(self, start: Setting, batch: int) -> list[Change]:
        """All that could be changed; of a kind, the smaller step first."""
        depths = sorted({d for drive in self.drives for d in drive.depths if d > start.depth})
        found = [Change("depth", f"a depth of {depth}", depth) for depth in depths]
        for name, (_, text) in self._placements.items():
            found.append(Change("repack" if name == "repacked" else "scales", text, name))
        for size, capacity in self._sizes:
            if capacity > start.cache_pages:
                found.append(Change("ram", f"{format_bytes(size)} of cache", capacity))
        for place, rival in enumerate(self.drives[1:], 1):
            found.append(Change("drive", f"the drive {rival.name}", place))
        return found

    @functools.cached_property
    def _placements(self) -> dict[str, tuple[Layout, str]]:
        """The table repacked, and with its scales in RAM, and how to say so: where it is not so already.

        Of a model as ``repack`` and --scales resident place it.
        """
        if self.model is None:
            packed, resident = repacked(self.layout), with_resident_scales(self.layout)
        else:
            packed, resident = self.model.repacked(self.layout), self.model.with_resident_scales(self.layout)
        found = {}
        if packed is not None:
            found["repacked"] = (packed, "repack, so that no row straddles or lies apart")
        if resident is not None:
            found["resident"] = (resident[0], f"scales resident, in {format_bytes(resident[1])} of RAM")
        return found

    def sentence(self, batch: int, judgements: Sequence[Judgement]) -> str:
        """From which cache on the goal is met at this batch."""
        least = plan.smallest_cache(judgements)
        if least == 0:
            return f"Batch {batch}: go without any cache, and a cache only spares reads."
        if least is not None:
            beyond = [j for j in judgements if j.demand.cache_bytes > least and j.verdict != plan.GO]
            others = " or ".join(sorted({j.verdict for j in beyond}))
            but = f" (except {len(beyond)} larger: {others})" if beyond else ""
            return f"Batch {batch}: go from a cache of {format_bytes(least)} on, of the sizes tried{but}."
        sizes = [format_bytes(j.demand.cache_bytes) if j.demand.cache_pages else "no cache" for j in judgements]
        tried = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        verdicts = {j.verdict for j in judgements}
        if len(verdicts) == 1:
            return f"Batch {batch}: {verdicts.pop()} at any size tried ({tried})."
        count = sum(j.verdict == plan.NO_GO for j in judgements)
        return f"Batch {batch}: no go at {count} of {len(sizes)} sizes tried ({tried}), not known at the others."

    def imbalance(self, of_ranks: Sequence[Judgement]) -> str:
        """Of the ranks at one size, which a step waits for, and how far it is above the mean."""
        worst = plan.slowest(of_ranks)
        mean = sum(j.last.reads_mean for j in of_ranks) / self.ranks
        cache = format_bytes(worst.demand.cache_bytes) if worst.demand.cache_pages else "No cache"
        above = f"{worst.last.reads_mean / mean:.2f} times the ranks' mean of {mean:.2f}" if mean else "as others"
        idle = self.ranks - len(of_ranks)
        unread = f"; {idle} of the ranks read nothing" if idle else ""
        return (
            f"{cache}, batch {worst.demand.batch}: rank {worst.rank} of {self.ranks} (from 0) is the slowest, with "
            f"{worst.last.reads_mean:.2f} reads a step, {above}{unread}."
        )

    def assumptions(self) -> list[str]:
        layout = self.layout
        own = "rows packed from the file's first byte" if layout.packed else "rows aligned to pages"
        in_files = ["rows where the files have them"] if layout.windows else []
        placed = "; ".join([*in_files, *([layout.assumed] if layout.assumed else [])]) or own
        about = about_layout(layout) | about_stream(self.stream, layout.model)
        return assumptions(
            self.goal,
            self.drive,
            Circumstances(
                path=self.path,
                depth=self.depth,
                file_bytes=layout.file_bytes,
                placed=placed,
                log=self.stream.prompt_lengths is not None,
                stand_in=about.get("tokenizer_stand_in"),
                resident_bytes=about.get("resident_bytes"),
                ranks=max(self.ranks, 1),
                layers=len(layers_of(layout)),
            ),
        )

    def about(self) -> dict[str, Any]:
        """What all records of the plan share."""
        layout = about_layout(self.layout)
        stream = about_stream(self.stream, self.layout.model)
        drive = self.drive
        measured = drive is not None and not drive.published
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
            "depth": self.depth if measured else None,
            "largest_step_measured": drive.largest_step(self.depth) if isinstance(drive, Drive) else None,
            "compute_ns": self.goal.compute_ns,
            "goal_tokens_per_second": self.goal.tokens_per_second,
            **about_profile(drive),
            **about_ranks(self.shares),
        }


def about_profile(drive: AnyDrive | None) -> dict[str, Any]:
    """The published rate of a record, and who published it."""
    if not isinstance(drive, Profile):
        return {}
    return {"profile": drive.name, "profile_source": drive.source, "published_iops": drive.published_iops}


def about_ranks(shares: Sequence[RankShare | None]) -> dict[str, Any]:
    share = shares[0]
    return {} if share is None else {"ranks": share.ranks, "rank_split": share.split}


def _rank(share: RankShare | None) -> int | None:
    return None if share is None else share.rank

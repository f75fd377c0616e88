"""Schedules: in which order a server's batch looks documents up, and the pages of that order, step by step.

Pages depend on a document alone, so that the stream's pages gathered in the order of a schedule are exactly those of
the batch. A step is what is read together: a chunk of a prompt (prefill), or a token (decode), of each document in
turn; pages that several tokens of a step touch are read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from pagegram_io import native, native_caches
from pagegram_io.layout import Layout
from pagegram_io.tokens import Stream
from pagegram_io.trace import BATCH_PLACES

INTERLEAVE_MAX = 65_536
STEP_PLACES_MAX = 1 << 28  # a step is merged in memory: 1 GiB of pages
DRAFT_SALT = 0xD4AF  # keeps drafted ids apart from every other use of the seed


@dataclass(frozen=True)
class Serving:
    """How a server takes documents: `interleave` of them in turn, the next in line where one ends.

    window: tokens of a prefill chunk. Without prompt lengths in the stream, a window makes whole documents prefill, and
    without a window they are decode. draft: tokens drafted and rejected at each decode step; their ids are drawn from
    the stream by `seed`.
    """

    interleave: int = 1
    window: int | None = None
    draft: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.interleave <= INTERLEAVE_MAX:
            raise ValueError(f"{self.interleave} documents in turn; 1 to {INTERLEAVE_MAX:,} can be")
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window of {self.window} tokens; it has at least 1, such as 2048")
        if self.draft < 0:
            raise ValueError(f"{self.draft} drafted tokens; 0 or more can be, such as 3")


@dataclass(frozen=True)
class Steps:
    """Tokens in the order of a schedule, whole steps of it; each array has a value a token.

    positions: in the stream; steps: counted from 0, ascending; depths: in its document; decode: made, not given.
    """

    positions: np.ndarray
    steps: np.ndarray
    depths: np.ndarray
    decode: np.ndarray


def schedule(stream: Stream, serving: Serving, *, lines: int = 1 << 14) -> Iterator[Steps]:
    """The whole stream's tokens, step by step, about ``lines`` tokens at a time; single steps can be longer.

    Between two events (a prompt read, a document ended) all documents in turn advance evenly: a run of steps is one
    array.
    """
    starts = stream.document_starts.astype(np.int64)
    ends = starts + stream.document_lengths.astype(np.int64)
    if stream.prompt_lengths is not None:
        prompt_ends = starts + stream.prompt_lengths.astype(np.int64)
    else:
        prompt_ends = starts if serving.window is None else ends
    window = serving.window or len(stream)  # a prompt without a window is one chunk
    waiting = min(serving.interleave, len(starts))
    document = np.arange(waiting)
    at = starts[document]
    step = 0
    while document.size:
        prompt_left = prompt_ends[document] - at
        prefill = prompt_left > 0
        width = np.where(prefill, np.minimum(prompt_left, window), 1)
        rounds = np.where(prefill, prompt_left // width, ends[document] - at)
        total = int(width.sum())
        count = min(int(rounds.min()), max(1, lines // total))
        within = np.arange(total) - np.repeat(np.cumsum(width) - width, width)
        first, stride = np.repeat(at, width) + within, np.repeat(width, width)
        positions = (first + np.arange(count)[:, None] * stride).ravel()
        yield Steps(
            positions,
            np.repeat(np.arange(step, step + count), total),
            positions - np.tile(np.repeat(starts[document], width), count),
            np.tile(np.repeat(~prefill, width), count),
        )
        at, step = at + count * width, step + count
        ended = at == ends[document]
        if ended.any():
            arrived = min(int(ended.sum()), len(starts) - waiting)
            document[np.flatnonzero(ended)[:arrived]] = np.arange(waiting, waiting + arrived)
            at[np.flatnonzero(ended)[:arrived]] = starts[waiting : waiting + arrived]
            waiting += arrived
            kept = np.ones(len(document), bool)
            kept[np.flatnonzero(ended)[arrived:]] = False
            document, at = document[kept], at[kept]


def blocks(steps: Iterator[Steps], lines: int) -> Iterator[Steps]:
    """The same tokens in blocks of whole steps: as many as make ``lines`` tokens, but at least one."""
    pending: list[Steps] = []
    held = 0
    for part in steps:
        if held and held + len(part.positions) > lines:
            yield _joined(pending)
            pending, held = [], 0
        pending.append(part)
        held += len(part.positions)
    if pending:
        yield _joined(pending)


def _joined(parts: list[Steps]) -> Steps:
    if len(parts) == 1:
        return parts[0]
    return Steps(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Steps)))


@dataclass(frozen=True)
class Block:
    """Whole steps of a schedule: units (pages or rows) uint32 [tokens, columns], those read once a step elsewhere.

    A token's line holds its own pages, then those of the tokens drafted after it. touched: used places before merging.
    """

    steps: Steps
    units: np.ndarray
    touched: int


class ServedSource:
    """The pages (or rows) of a stream in the order of a schedule, a token a line; also a trace.PageSource."""

    def __init__(
        self, layout: Layout, stream: Stream, serving: Serving, *, unit: str = "page", isa: str = "auto"
    ) -> None:
        self.layout, self.stream, self.serving, self.unit = layout, stream, serving, unit
        self.rows, self.place = native.Rows(layout, isa=isa), native.Place(layout, isa=isa)
        if unit == "row" and layout.row_count >= native.NO_PAGE:
            raise ValueError(
                f"a row cache tells at most 4,294,967,294 rows apart, and this table has {layout.row_count:,}"
            )
        columns = self.place.page_columns if unit == "page" else self.rows.column_count
        self.page_count = layout.page_count if unit == "page" else layout.row_count
        self.page_columns, self.token_count = columns * (1 + serving.draft), len(stream)
        step = serving.interleave * min(serving.window or 1, len(stream)) * self.page_columns
        if step > STEP_PLACES_MAX:
            raise ValueError(
                f"a step of {step:,} page reads is above {STEP_PLACES_MAX:,}; interleave fewer documents, or a "
                "shorter window"
            )
        self._lookback = max(layout.orders) - 1
        self._blocks = self.blocks()
        self._left = np.empty((0, self.page_columns), np.uint32)

    def blocks(self) -> Iterator[Block]:
        """All steps, from the first."""
        lines = max(1, BATCH_PLACES // self.page_columns)
        for steps in blocks(schedule(self.stream, self.serving, lines=lines), lines):
            units = self._units(self._gathered(steps.positions))
            if self.serving.draft:
                drafted = np.full((len(units), self.page_columns - units.shape[1]), native.NO_PAGE, np.uint32)
                if steps.decode.any():
                    made = self._units(self._drafted_rows(steps, steps.decode))
                    drafted[steps.decode] = made.reshape(-1, drafted.shape[1])
                units = np.concatenate([units, drafted], axis=1)
            touched = int(np.count_nonzero(units != native.NO_PAGE))
            native_caches.merge_steps(units, steps.steps)
            yield Block(steps, units, touched)

    def _units(self, rows: np.ndarray) -> np.ndarray:
        return self.place.pages(rows) if self.unit == "page" else rows.astype(np.uint32)

    def _gathered(self, positions: np.ndarray) -> np.ndarray:
        """Rows at any positions, uint64 [positions, columns]: emitted run by run, in the stream's order."""
        order = np.argsort(positions, kind="stable")
        ascending = positions[order]
        cuts = np.flatnonzero(np.diff(ascending) != 1) + 1
        begins, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(ascending)]
        rows = np.empty((len(positions), self.rows.column_count), np.uint64)
        for begin, end in zip(begins, ends, strict=True):
            first = int(ascending[begin])
            rows[order[begin:end]] = self.rows.emit(self.stream, first, first + end - begin)
        return rows

    def _drafted_rows(self, steps: Steps, chosen: np.ndarray) -> np.ndarray:
        """Rows of the tokens drafted after each chosen token, uint64 [chosen * draft, columns].

        Each draft becomes a short document: what its n-grams see of the true tokens, then the drafted ones.
        """
        stream, draft = self.stream, self.serving.draft
        positions, depths = steps.positions[chosen], steps.depths[chosen]
        seen = np.minimum(depths, self._lookback - 1) + 1 if self._lookback else np.zeros(len(positions), np.int64)
        back = np.arange(self._lookback, 0, -1)[None, :]  # look-backs from the first drafted token
        context = positions[:, None] + 1 - back
        kept = np.concatenate([back <= seen[:, None], np.ones((len(positions), draft), bool)], axis=1)
        ids = np.concatenate([stream.ids[np.maximum(context, 0)], self.drafts(positions)], axis=1)
        lengths = kept.sum(axis=1)
        starts = np.cumsum(lengths) - lengths
        drafts = Stream(ids[kept], starts.astype(np.uint64), stream.vocabulary, stream.name)
        rows = self.rows.emit(drafts)
        last = (starts + lengths)[:, None] - np.arange(draft, 0, -1)[None, :]
        return rows[last.ravel()]

    def drafts(self, positions: np.ndarray) -> np.ndarray:
        """Ids drafted after the tokens at ``positions``, [positions, draft]: drawn from the stream's own tokens.

        The first differs from the token that really follows, since all of them are rejected.
        """
        ids, draft = self.stream.ids, self.serving.draft
        places = positions.astype(np.uint64)[:, None] * np.uint64(draft) + np.arange(draft, dtype=np.uint64)
        salt = native.salt(self.serving.seed, "row", 0, DRAFT_SALT)
        drawn = native.hash_finish(places.ravel(), salt) % np.uint64(len(ids))
        drafted = ids[drawn.astype(np.int64)].reshape(places.shape)
        following = ids[np.minimum(positions + 1, len(ids) - 1)]
        right = drafted[:, 0] == following
        drafted[right, 0] = (drafted[right, 0].astype(np.int64) + 1) % self.stream.vocabulary
        return drafted

    def next(self, pages: np.ndarray) -> int:
        """As a PageSource: fills pages, uint32 [tokens, page_columns], and says how many tokens; 0 at the end."""
        filled = 0
        while filled < len(pages):
            if not len(self._left):
                block = next(self._blocks, None)
                if block is None:
                    break
                self._left = block.units
            taken = min(len(pages) - filled, len(self._left))
            pages[filled : filled + taken] = self._left[:taken]
            self._left = self._left[taken:]
            filled += taken
        return filled

    def rewind(self) -> None:
        self._blocks, self._left = self.blocks(), np.empty((0, self.page_columns), np.uint32)


def step_begins(steps: np.ndarray) -> np.ndarray:
    """Where each step begins in an ascending array of step numbers, int64."""
    return np.concatenate([[0], np.flatnonzero(np.diff(steps)) + 1])

"""The slow and obvious twin of schedules and of what they read: slots as a list, steps as lists, an OrderedDict."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import reference

COLD = 64


@dataclass(frozen=True)
class Visit:
    """One token of a step."""

    position: int
    depth: int
    decode: bool


def schedule(
    lengths: Sequence[int], prompts: Sequence[int] | None, turns: int, window: int | None
) -> list[list[Visit]]:
    """Steps, each a list of visits: every document in turn takes a chunk of its prompt, or one token."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    if prompts is None:
        prompts = [0] * len(lengths) if window is None else list(lengths)
    waiting = list(range(len(lengths)))
    slots = [[waiting.pop(0), 0] for _ in range(min(turns, len(lengths)))]  # document, tokens done
    steps = []
    while slots:
        step = []
        for slot in slots:
            document, done = slot
            left = prompts[document] - done
            width = min(left, window or left) if left > 0 else 1
            step += [Visit(starts[document] + done + i, done + i, left <= 0) for i in range(width)]
            slot[1] += width
        kept = []
        for slot in slots:
            if slot[1] < lengths[slot[0]]:
                kept.append(slot)
            elif waiting:
                kept.append([waiting.pop(0), 0])
        slots = kept
        steps.append(step)
    return steps


def drafts(position: int, count: int, ids: Sequence[int], seed: int, vocabulary: int) -> list[int]:
    salt = reference.salt(seed, reference.ROW, 0, 0xD4AF)
    drawn = [ids[reference.mix((position * count + k) ^ salt) % len(ids)] for k in range(count)]
    if count and drawn[0] == ids[min(position + 1, len(ids) - 1)]:
        drawn[0] = (drawn[0] + 1) % vocabulary
    return drawn


@dataclass
class Seen:
    """What one cache saw, in all and in the second half; reads a step of full steps that begin in the second half."""

    accesses: int = 0
    misses: int = 0
    second: int = 0
    compulsory: int = 0
    second_compulsory: int = 0
    cold: int = 0
    decode: int = 0
    full_at: int | None = None
    step_reads: list[int] = field(default_factory=list)
    pages_by_step: list[int] = field(default_factory=list)
    reused: int = 0
    followers: int = 0
    touched: int = 0


def serve(
    steps: Sequence[Sequence[Visit]],
    pages_of: Callable[[Visit], list[int]],
    capacity: int,
    *,
    turns: int,
    warm: int = 0,
    pollution: int = 0,
    log: bool = False,
) -> Seen:
    """An LRU over the distinct pages of each step; pollution's pages pass through it before the second half.

    log: of reads a step, those of steps that only make tokens.
    """
    seen, cache, known = Seen(), OrderedDict[object, None](), set[object]()
    total = sum(len(step) for step in steps)
    half = warm + (total - warm) // 2
    token, before = 0, None

    def access(page: object) -> bool:
        if page in cache:
            cache.move_to_end(page)
            return False
        if capacity:
            if len(cache) == capacity:
                cache.popitem(last=False)
            cache[page] = None
        return True

    for step in steps:
        first_token, reads, pages = token, 0, set[int]()
        for visit in step:
            if token == half:
                for i in range(pollution):
                    access(("other", i))
                    if seen.full_at is None and capacity and len(cache) == capacity:
                        seen.full_at = token
            for page in pages_of(visit):
                seen.touched += 1
                if page in pages:
                    continue
                pages.add(page)
                missed = access(page)
                new = page not in known
                known.add(page)
                reads += missed
                if token >= warm:
                    seen.accesses += 1
                    seen.misses += missed
                    seen.compulsory += missed and new
                    seen.cold += missed and visit.depth < COLD
                    seen.decode += missed and visit.decode
                if token >= half:
                    seen.second += missed
                    seen.second_compulsory += missed and new
                if seen.full_at is None and len(cache) == capacity:
                    seen.full_at = token
            token += 1
        documents = len({visit.position - visit.depth for visit in step})
        if documents == turns and first_token >= half and (not log or all(visit.decode for visit in step)):
            seen.step_reads.append(reads)
        seen.pages_by_step.append(len(pages))
        if before is not None:
            seen.followers += len(pages)
            seen.reused += len(pages & before)
        before = pages
    return seen

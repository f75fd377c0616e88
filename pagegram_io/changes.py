"""What could be changed where a plan is no go: one thing, or two of different kinds, the cheapest first.

Pure: a change says which part of a setting it sets; who judges a setting is the caller's. Candidates are judged lazily,
since some need a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

# By what they cost: a setting of the engine, a rewrite of the file, RAM for scales, RAM for pages, another drive.
KINDS = ("depth", "repack", "scales", "ram", "drive")
PARTS = {"depth": "depth", "repack": "placement", "scales": "placement", "ram": "cache_pages", "drive": "drive"}


@dataclass(frozen=True)
class Setting:
    """What a verdict is of; placement is empty for the table as it lies, drive a place in the list of those given."""

    depth: int
    cache_pages: int
    placement: str = ""
    drive: int = 0


@dataclass(frozen=True)
class Change:
    """Something to do, and what it makes of the part of the setting that its kind names."""

    kind: str
    text: str
    value: Any

    def made(self, setting: Setting) -> Setting:
        return replace(setting, **{PARTS[self.kind]: self.value})


def candidates(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    """Each change alone, then pairs that set different parts; by the dearer kind of a pair, then by the other.

    Of one kind, changes go in the order in which they were given, those of the dearer kind in the outer loop.
    """
    of_kind = {kind: [change for change in changes if change.kind == kind] for kind in KINDS}
    for kind in KINDS:
        yield from ((change,) for change in of_kind[kind])
    for place, dearer in enumerate(KINDS):
        for cheaper in KINDS[:place]:
            if PARTS[cheaper] != PARTS[dearer]:
                yield from ((a, b) for b in of_kind[dearer] for a in of_kind[cheaper])


def cheapest(
    changes: Iterable[Change], start: Setting, enough: Callable[[Setting], bool]
) -> tuple[tuple[Change, ...], Setting] | None:
    """The first candidate whose setting is enough, and that setting; None where none is."""
    for some in candidates(list(changes)):
        setting = start
        for change in some:
            setting = change.made(setting)
        if enough(setting):
            return some, setting
    return None


def text_of(some: Sequence[Change]) -> str:
    """What to do, in words."""
    return " and ".join(change.text for change in some)

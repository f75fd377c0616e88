"""What ``nvme`` says beneath its table: a depth that was not held, too few lookups or steps, an unsteady disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pagegram_io.drive import STEPS_MIN

Row = Mapping[str, Any]

HELD_SHARE, HELD_SECONDS = 0.9, 1.0
UNSTEADY_RATIO = 3


def notes(records: Sequence[Row]) -> list[str]:
    """At most one note of each kind: of the first record that it is for, and how many more there are."""
    whole = [row for row in records if not row["interrupted"]]
    found = []
    for note in (_depth_note, _lookups_note, _steps_note, _unsteady_note):
        texts = _texts(note, whole)
        more = f" (and {len(texts) - 1} more of these runs)" if len(texts) > 1 else ""
        found += [texts[0] + more] if texts else []
    return found


def _texts(note: Callable[[Row], str], rows: Sequence[Row]) -> list[str]:
    return [text for text in map(note, rows) if text]


def _depth_note(row: Row) -> str:
    if row["mode"] != "throughput" or row["seconds"] < HELD_SECONDS:
        return ""
    if row["depth_sustained"] >= HELD_SHARE * row["depth"]:
        return ""
    limit = row.get("nr_requests")
    if limit is not None and limit < row["depth"]:
        why = f"the kernel's queue takes nr_requests={limit} of this device (/sys/block/*/queue/nr_requests), "
        why += "the rest wait to be submitted"
    elif row["limited_by"] == "cpu":
        why = "a thread's CPU was the limit; try --jobs"
    else:
        why = "they ended as fast as they were submitted, or the kernel or the device takes no more at once"
    return f"{_name(row)}: {row['depth_sustained']:,.0f} reads were in flight on average; {why}"


def _lookups_note(row: Row) -> str:
    if row["layout"] == "uniform" or row["tokens"]:
        return ""
    return f"{_name(row)}: no lookup was completed; give a longer --runtime"


def _steps_note(row: Row) -> str:
    if row["mode"] != "decode" or row["steps"] >= STEPS_MIN or (row["layout"] != "uniform" and not row["tokens"]):
        return ""
    text = f"{_name(row)}: {row['steps']} steps, and plan wants {STEPS_MIN} of a record"
    return f"{text}; give a longer --runtime, or more --reads"


def _unsteady_note(row: Row) -> str:
    seconds = row["iops_by_second"]
    if len(seconds) < 2 or row["limited_by"] == "cpu" or max(seconds) <= UNSTEADY_RATIO * min(seconds):
        return ""
    text = f"{_name(row)}: the disk was unsteady, from {min(seconds):,} to {max(seconds):,} reads in a second"
    return f"{text}; repeat it (--repeat 5), with nothing else on the disk"


def _name(row: Row) -> str:
    return f"depth {row['depth']}, {row['layout']}"

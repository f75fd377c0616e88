"""The plan's figure: tokens a second against RAM, a curve a batch, from records alone."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagegram_io import styles
from pagegram_io.figures import CAPTION_CHARACTERS, check_suffix
from pagegram_io.layout import label_of
from pagegram_io.record_files import to_dict
from pagegram_io.records import AnyRecord
from pagegram_io.sizes import format_bytes, format_count
from pagegram_io.styles import AXIS_IN, DASHES, FONT_PT, HEADING_IN, INK, LEFT_IN, LINE_IN, OTHER_COLOURS, WIDTH_IN

BODY_IN = 3.0
RIGHT_IN = 1.2
COLOURS = ("#0072B2", "#D55E00", "#009E73", *OTHER_COLOURS)
SHARED_FIELDS = ("layout", "slots", "table_params", "model", "row_format", "placement", "scales", "seed",
                 "stream_sha256", "tokens", "path", "target", "profile", "depth", "compute_ns",
                 "goal_tokens_per_second", "page_bytes", "ranks", "rank_split")  # fmt: skip


def draw_plan(records: Iterable[AnyRecord], path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Tokens a second (p99) by cache size; filled: go, crossed: no go, hollow: not known.

    ValueError for no records, records of two plans, a plan whose tokens a second are not known anywhere, or a suffix
    other than .png, .svg and .pdf; FileExistsError where the path exists, unless force.
    """
    target = check_suffix(path)
    rows = [to_dict(record) for record in records]
    if not rows or any(row["kind"] != "plan" for row in rows):
        raise ValueError("there is no plan to draw: give records of 'pagegram-io plan --json'")
    for name in SHARED_FIELDS:
        values = {row.get(name) for row in rows}
        if len(values) > 1:
            raise ValueError(f"plans with different {name} cannot be compared in one figure")
    curves: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if can_be_drawn(row):
            curves.setdefault(row["batch"], []).append(row)
    if not curves:
        raise ValueError("no tokens a second are known, so there is nothing to draw; give --device with decode records")
    caption = textwrap.wrap(_describe(rows), CAPTION_CHARACTERS, break_on_hyphens=False)
    with styles.own_style():
        figure = styles.new_figure(HEADING_IN + BODY_IN + AXIS_IN + LINE_IN * len(caption) + 0.1)
        height_in = figure.get_figheight()
        place = (LEFT_IN / WIDTH_IN, 1 - (HEADING_IN + BODY_IN) / height_in)
        axes = figure.add_axes((*place, (WIDTH_IN - LEFT_IN - RIGHT_IN) / WIDTH_IN, BODY_IN / height_in))
        _draw(axes, curves, rows[0]["goal_tokens_per_second"])
        styles.put_text(
            figure, 0.12, HEADING_IN - 0.15, "Tokens per second, by RAM for the cache", size=FONT_PT + 1, weight="bold"
        )
        for index, line in enumerate(caption):
            styles.put_text(figure, 0.12, HEADING_IN + BODY_IN + AXIS_IN + LINE_IN * (index + 0.5), line)
        styles.save_figure(figure, target, force=force)


def _draw(axes: Any, curves: Mapping[int, Sequence[Mapping[str, Any]]], goal: float | None) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.grid(True)
    for index, batch in enumerate(sorted(curves)):
        points = sorted(curves[batch], key=lambda row: row["cache_bytes"])
        x, y = [p["cache_bytes"] for p in points], [_rate(p) for p in points]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(x, y, color=colour, linewidth=1.2, linestyle=DASHES[index % len(DASHES)])
        for p in points:
            marker = {"marker": "x" if p["verdict"] == "no go" else "o", "markersize": 4.2}
            face = colour if p["verdict"] == "go" else "white"
            axes.plot([p["cache_bytes"]], [_rate(p)], color=colour, markerfacecolor=face, **marker)
        axes.annotate(
            f"batch {batch}", (x[-1], y[-1]), xytext=(8, 0), textcoords="offset points", va="center", color=colour,
            annotation_clip=False,
        )  # fmt: skip
    if goal is not None:
        axes.axhline(goal, color=INK, linewidth=0.6, linestyle=(0, (2, 2)), zorder=1.5)
    sizes = sorted({row["cache_bytes"] for rows in curves.values() for row in rows})
    ticks = [2**power for power in range(sizes[0].bit_length() - 1, (sizes[-1] - 1).bit_length() + 1)]
    low, high = axes.get_ylim()
    values = [d * 10.0**e for e in range(-3, 12) for d in (1, 2, 5) if low <= d * 10.0**e <= high]
    for axis, marks, labels in (
        (axes.xaxis, ticks, [format_bytes(tick) for tick in ticks]),
        (axes.yaxis, values, [format_count(round(v)) if v >= 1 else f"{v:g}" for v in values]),
    ):
        axis.set_minor_locator(NullLocator())
        axis.set_major_locator(FixedLocator(marks))
        axis.set_major_formatter(FixedFormatter(labels))
    axes.set_xlabel("RAM for the cache")
    axes.set_ylabel("tokens per second, of a p99 step")


def can_be_drawn(record: AnyRecord) -> bool:
    """Is it of a whole step behind some cache, with tokens a second that are known?"""
    row = to_dict(record)
    return bool(row["cache_bytes"]) and row.get("rank") is None and _rate(row) is not None


def _rate(row: Mapping[str, Any]) -> float | None:
    """Tokens a second (p99) or, with deadlines and no compute, the most that they can be."""
    rate: float | None = row["tokens_per_second_p99"]
    only_most = row["compute_ns"] is None and row["deadline_ns"] is not None and row.get("profile") is None
    return row.get("tokens_per_second_p99_most") if rate is None and only_most else rate


def _describe(rows: Sequence[Mapping[str, Any]]) -> str:
    row = rows[0]
    goal = "" if row["goal_tokens_per_second"] is None else " Dashed: the goal."
    bound = any(r["tokens_per_second_p99"] is None and _rate(r) is not None for r in rows)
    alone = "at most, by the last deadline" if bound else "reads alone"
    compute = alone if row["compute_ns"] is None else f"compute {row['compute_ns'] / 1e6:g} ms a step and waits"
    ranks = ""
    if row.get("ranks"):
        ranks = f" {row['ranks']} ranks share the table by {row['rank_split']}; RAM is each rank's, the slowest tells."
    return (
        f"{row['model'] or label_of(row['layout'], row['slots'])}, {format_bytes(row['file_bytes'])}; stream "
        f"{row['stream']} (SHA-256 {row['stream_sha256'][:12]}…), {row['tokens']:,} tokens in {row['documents']:,} "
        f"documents, second half. {row['path']}; drive {row['device']}, depth {row['depth']}; {compute}. "
        f"Filled: go; crosses: no go; hollow: not known.{goal}{ranks}"
    )

"""Panels of the figures: axes, curves, labels. Takes prepared curves (figures.py), knows nothing of records."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagegram_io.sizes import format_bytes, format_count
from pagegram_io.styles import AXIS_IN, FONT_PT, INK, LEFT_IN, LINE_IN, WIDTH_IN, CurveKey, Styles, put_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL_GAP_PT = 22.0  # between the last end of a curve and the column of labels
BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}  # behind text that lies on curves
ABOVE_ONE = 2.0  # reads a token; a panel whose curves all stay above needs little room below 1
MANY_POINTS = 24  # from here on a curve is a curve, not a few measured points


@dataclass(frozen=True)
class Curve:
    """Reads per token by cache bytes, ascending; `uncached` is the "none" stop, where it was simulated."""

    key: CurveKey
    uncached: float | None
    x: tuple[float, ...]
    y: tuple[float, ...]
    faint_from: int  # index of the first point that says more about the stream's length than about the cache


@dataclass(frozen=True)
class DeviceCurve:
    """Lookups per second by depth, ascending: the median of the repeats, their range, and what limited them."""

    key: CurveKey
    depth: tuple[int, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    cpu_limited: tuple[bool, ...]


def draw_reads_panel(
    figure: Figure,
    curves: Sequence[Curve],
    styles: Styles,
    *,
    top_in: float,
    body_in: float,
    heading: str,
    cache_label: str,
    caption: Sequence[str],
    marked_bytes: Sequence[int] = (),
) -> None:
    """Reads per token (linear below 1, log above) against cache bytes (log, with a "none" stop)."""
    axes = new_axes(figure, top_in, body_in, label_width_in(figure, [curve.key for curve in curves], styles))
    start, stop = _set_cache_axis(axes, curves, marked_bytes)
    reads = [y for curve in curves for y in (*curve.y, *([] if curve.uncached is None else [curve.uncached]))]
    _set_reads_axis(axes, min(reads), max(reads))
    for curve in curves:
        _draw_curve(axes, curve, styles.line(curve.key), start, stop)
    for mark in marked_bytes:
        axes.axvline(mark, color=INK, linewidth=0.6, linestyle=(0, (2, 2)), zorder=1.5)
        axes.annotate(
            format_bytes(mark), (mark, 0), xycoords=axes.get_xaxis_transform(), xytext=(-3, 4),
            textcoords="offset points", rotation=90, ha="right", va="bottom", bbox=BOX,
        )  # fmt: skip
    ends = [(c.key, c.x[-1], c.y[-1]) if c.x else (c.key, stop, c.uncached or 0.0) for c in curves]
    label_curves(axes, ends, styles)
    axes.set_xlabel(cache_label)
    axes.set_ylabel("reads per token (linear below 1, log above)")
    frame_panel(figure, top_in, body_in, heading, caption, key_in=styles.key_in)
    if len(styles.sizes) > 1:
        _draw_size_key(figure, styles, top_in)


def draw_device_panel(
    figure: Figure,
    curves: Sequence[DeviceCurve],
    styles: Styles,
    *,
    top_in: float,
    body_in: float,
    heading: str,
    caption: Sequence[str],
) -> None:
    """Lookups per second (log) against outstanding page reads (log)."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes = new_axes(figure, top_in, body_in, label_width_in(figure, [curve.key for curve in curves], styles))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    depths = sorted({depth for curve in curves for depth in curve.depth})
    low, high = min(min(c.low) for c in curves) / 1.3, max(max(c.high) for c in curves) * 1.3
    axes.set_xlim(depths[0] / 1.2, depths[-1] * 1.2)
    axes.set_ylim(low, high)
    digits = (1, 2, 5) if high / low < 200 else (1,)
    ticks = [d * 10.0**e for e in range(-9, 13) for d in digits if low <= d * 10.0**e <= high]
    shown = [2**power for power in range(depths[-1].bit_length()) if 2**power >= depths[0]] or depths
    for axis, values in ((axes.xaxis, shown), (axes.yaxis, ticks)):
        axis.set_minor_locator(NullLocator())
        axis.set_major_locator(FixedLocator(values))
        axis.set_major_formatter(FixedFormatter([format_count(int(v)) if v >= 1 else f"{v:g}" for v in values]))
    axes.grid(True)
    for curve in curves:
        colour = styles.colour(curve.key)
        axes.plot(curve.depth, curve.median, **styles.line(curve.key))
        axes.vlines(curve.depth, curve.low, curve.high, color=colour, linewidth=0.8)
        for depth, rate, hollow in zip(curve.depth, curve.median, curve.cpu_limited, strict=True):
            face = "white" if hollow else colour
            axes.plot([depth], [rate], marker="o", markersize=3.4, color=colour, markerfacecolor=face)
    label_curves(axes, [(curve.key, curve.depth[-1], curve.median[-1]) for curve in curves], styles)
    axes.set_xlabel("depth (page reads in flight)")
    axes.set_ylabel("lookups per second")
    frame_panel(figure, top_in, body_in, heading, caption)


def draw_note_panel(
    figure: Figure, *, top_in: float, body_in: float, heading: str, note: str, commands: Sequence[str]
) -> None:
    """A frame with a sentence and commands, where a panel has no data."""
    axes = new_axes(figure, top_in, body_in, 0.12)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color="#B5B5B5")
    left_in = LEFT_IN + 0.14
    put_text(figure, left_in, top_in + 0.24, note)
    for index, command in enumerate(commands):
        place_in = top_in + 0.24 + 0.2 * (index + 1)
        put_text(figure, left_in, place_in, command, family="DejaVu Sans Mono", color="#000000")
    frame_panel(figure, top_in, body_in, heading, [])


def new_axes(figure: Figure, top_in: float, body_in: float, right_in: float, left_in: float = LEFT_IN) -> Axes:
    height_in = figure.get_figheight()
    left, bottom = left_in / WIDTH_IN, 1 - (top_in + body_in) / height_in
    return figure.add_axes((left, bottom, (WIDTH_IN - left_in - right_in) / WIDTH_IN, body_in / height_in))


def frame_panel(
    figure: Figure, top_in: float, body_in: float, heading: str, caption: Sequence[str], *, key_in: float = 0.0
) -> None:
    put_text(figure, 0.12, top_in - 0.15 - key_in, heading, size=FONT_PT + 1, weight="bold")
    for index, line in enumerate(caption):
        put_text(figure, 0.12, top_in + body_in + AXIS_IN + LINE_IN * (index + 0.5), line)


def _draw_size_key(figure: Figure, styles: Styles, top_in: float) -> None:
    """Say above the panel, where no curve can be, which dashes mean which table size."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=INK, label=styles.variant_name(size), **styles.dashes(size)) for size in styles.sizes
    ]
    place = (1 - 0.05 / WIDTH_IN, 1 - (top_in - 0.08) / figure.get_figheight())
    figure.legend(
        handles=handles[::-1], loc="lower right", bbox_to_anchor=place, ncols=len(handles), frameon=False,
        handlelength=2.6, columnspacing=1.4, borderpad=0, borderaxespad=0, labelcolor=INK,
    )  # fmt: skip


def _set_cache_axis(axes: Axes, curves: Sequence[Curve], marked_bytes: Sequence[int]) -> tuple[float, float]:
    """Scale x and set its ticks in binary bytes; return where the scale starts and where the "none" stop lies."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    sizes = [int(size) for curve in curves for size in curve.x] + list(marked_bytes) or [1 << 20]
    first, last = min(sizes).bit_length() - 1, (max(sizes) - 1).bit_length()
    if last >= 26:  # a curve begins at one page, but nobody has so small a cache beside so large a table
        first = max(first, 20)
    while last - first < 4:
        first, last = first - 1, last + 1
    has_stop = any(curve.uncached is not None for curve in curves)
    span = last - first
    start, stop = 2.0**first, 2.0 ** (first - 0.1 * span)
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0 ** (first - (0.14 if has_stop else 0.02) * span), 2.0 ** (last + 0.02 * span))
    step = 1 if span < 9 else 2 * -(-span // 18)
    ticks = [2.0**power for power in range(max(first, 0), last + 1) if power % step == 0]
    labels = [format_bytes(int(tick)) for tick in ticks]
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator([stop, *ticks] if has_stop else ticks))
    axes.xaxis.set_major_formatter(FixedFormatter(["none", *labels] if has_stop else labels))
    axes.grid(True)
    if has_stop:
        _break_axis(axes, first - 0.05 * span, 0.005 * span)
    return start, stop


def _break_axis(axes: Axes, middle_log2: float, half_log2: float) -> None:
    """Cut the x axis by two strokes: what lies left of them is no point of the scale."""
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    left, right = 2.0 ** (middle_log2 - half_log2), 2.0 ** (middle_log2 + half_log2)
    axes.plot([left, right], [0, 0], color="white", linewidth=2, zorder=5, solid_capstyle="butt", **place)
    axes.plot(
        [left, right], [0, 0], linestyle="none", marker=[(-0.4, -1), (0.4, 1)], markersize=7, markeredgewidth=0.6,
        color=INK, zorder=6, **place,
    )  # fmt: skip


def _set_reads_axis(axes: Axes, least: float, most: float) -> None:
    """The part below 1 is small where no curve comes there."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    high = max(1.05, 1.12 * most)
    axes.set_yscale("symlog", base=2, linthresh=1.0, linscale=2.5 if least < ABOVE_ONE else 0.6)
    axes.set_ylim(0, high)
    above = itertools.takewhile(lambda value: value <= high, (2.0**power for power in range(1, 64)))
    below = [0.2, 0.4, 0.6, 0.8] if least < ABOVE_ONE else []
    ticks = [0.0, *below, 1.0, *above]
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axes.axhline(1.0, color="#B5B5B5", linewidth=0.6, zorder=0.9)


def _draw_curve(axes: Axes, curve: Curve, line: Mapping[str, Any], start: float, stop: float) -> None:
    shown = [index for index, size in enumerate(curve.x) if size >= start]
    marker: dict[str, Any] = {"marker": "o", "markersize": 3.4} if len(curve.x) < MANY_POINTS else {}
    strong = [index for index in shown if index <= curve.faint_from]
    faint = [index for index in shown if index >= curve.faint_from]
    for part, alpha in ((strong, 1.0), (faint, 0.4)):
        axes.plot([curve.x[i] for i in part], [curve.y[i] for i in part], alpha=alpha, **line, **marker)
    dot: dict[str, Any] = {"color": line["color"], "marker": "o", "linestyle": "none", "clip_on": False}
    if shown:
        axes.plot(curve.x[-1:], curve.y[-1:], markersize=3.4, **dot)
    if curve.uncached is not None:
        axes.plot([stop], [curve.uncached], markersize=4.2, markerfacecolor="white", zorder=3, **dot)
        if shown:
            bridge = ([stop, curve.x[shown[0]]], [curve.uncached, curve.y[shown[0]]])
            axes.plot(*bridge, color=line["color"], linewidth=0.6, linestyle=(0, (1, 2)))


def label_width_in(figure: Figure, keys: Iterable[CurveKey], styles: Styles) -> float:
    """The room that the labels right of a panel need."""
    width_px = 0.0
    for name in {styles.name(key) for key in keys}:
        text = figure.text(0, 0, name)
        width_px = max(width_px, text.get_window_extent().width)
        text.remove()
    return min(width_px / figure.dpi + 0.36, 0.5 * WIDTH_IN)


@dataclass(frozen=True)
class _Label:
    text: str
    colour: str
    ends: tuple[tuple[float, float], ...]  # of its curves, in points from the lower left corner of the axes


def label_curves(axes: Axes, ends: Sequence[tuple[CurveKey, float, float]], styles: Styles) -> None:
    """Name each curve at its end: the largest table of a layout in full, others by their size alone.

    Curves of one size that end together share a label. Labels stand in a column right of the last end, apart from
    those of curves that end further left.
    """
    scale = 72 / axes.figure.dpi
    named: dict[tuple[str, int | None], CurveKey] = {}
    for key, _, _ in sorted(ends, key=lambda end: end[0][2] or 0):
        named[key[0], key[1]] = key
    labels: list[_Label] = []
    groups: list[tuple[CurveKey, list[tuple[float, float]], set[str]]] = []
    for key, x, y in ends:
        x_pt, y_pt = (float(value) * scale for value in axes.transData.transform((x, y)) - axes.bbox.p0)
        if named[key[0], key[1]] == key:
            labels.append(_Label(styles.name(key), styles.colour(key), ((x_pt, y_pt),)))
            continue
        for other, places, colours in groups:
            if other[2] == key[2] and any(abs(x_pt - a) < 48 and abs(y_pt - b) < 20 for a, b in places):
                places.append((x_pt, y_pt))
                colours.add(styles.colour(key))
                break
        else:
            groups.append((key, [(x_pt, y_pt)], {styles.colour(key)}))
    last_pt = max([x for label in labels for x, _ in label.ends] + [x for _, places, _ in groups for x, _ in places])
    inner: list[_Label] = []
    for key, places, colours in groups:
        at_right = key[2] is None or max(places)[0] > last_pt - 12
        text = styles.name(key) if key[2] is None or (at_right and len(places) == 1) else styles.variant_name(key[2])
        label = _Label(text, colours.pop() if len(colours) == 1 else INK, tuple(places))
        (labels if at_right else inner).append(label)
    _label_right(axes, labels, last_pt + LABEL_GAP_PT, axes.bbox.height * scale)
    _label_inside(axes, inner)


def _label_right(axes: Axes, labels: Sequence[_Label], left_pt: float, height_pt: float) -> None:
    """In a column at left_pt, each tied to the highest of its curves' ends."""
    ends = sorted((max(label.ends, key=lambda end: end[1])[::-1], index) for index, label in enumerate(labels))
    places = spread([y_pt for (y_pt, _), _ in ends], gap=FONT_PT * 1.35, low=4, high=height_pt)
    for ((y_pt, x_pt), index), place_pt in zip(ends, places, strict=True):
        colour = labels[index].colour
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)}
        axes.annotate(
            labels[index].text, xy=(x_pt, y_pt), xycoords="axes points", xytext=(left_pt, place_pt),
            textcoords="axes points", va="center", color=colour, annotation_clip=False, arrowprops=line,
        )  # fmt: skip


def _label_inside(axes: Axes, labels: Sequence[_Label]) -> None:
    """Left of the curves' ends and a little lower, where falling curves leave room; up where two would overlap."""
    taken: list[tuple[float, float]] = []
    for label in sorted(labels, key=lambda label: min(y for _, y in label.ends)):
        x_pt = min(label.ends)[0] - 5
        y_pt = max(min(y for _, y in label.ends) - 4, 5.5)
        for other_x, other_y in sorted(taken, key=lambda place: place[1]):
            if abs(other_x - x_pt) < 30 and abs(other_y - y_pt) < FONT_PT * 1.3:
                y_pt = other_y + FONT_PT * 1.3
        taken.append((x_pt, y_pt))
        axes.annotate(
            label.text, xy=(x_pt, y_pt), xycoords="axes points", color=label.colour, ha="right", va="center", zorder=4,
            bbox=BOX,
        )  # fmt: skip


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Places at least `gap` apart, in the order of `wanted` (ascending) and as near to it as can be, from `low` on.

    Neighbours that are too close become one block around their mean. More labels than fit run past `high`.
    """
    blocks: list[tuple[float, int]] = []  # mean of the wanted places less their offsets in the block, members
    for place in wanted:
        mean, count = place, 1
        while blocks and blocks[-1][0] + gap * blocks[-1][1] > mean:
            before, members = blocks.pop()
            mean = (before * members + (mean - gap * members) * count) / (members + count)
            count += members
        blocks.append((mean, count))
    places = [start + gap * index for start, count in blocks for index in range(count)]
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], high - gap * (len(places) - 1 - index))
    for index in range(len(places)):
        places[index] = max(places[index], low + gap * index)
    return places

"""Panels of Figure 1 that show losses. Takes prepared curves (figure1.py), knows nothing of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagegram_io.panels import frame_panel, label_curves, label_width_in, new_axes
from pagegram_io.sizes import format_count
from pagegram_io.styles import FONT_PT, INK, CurveKey, Styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

NAMES_IN = 1.12  # left of the differences, for the names of the arms
NUMBERS_IN = 1.5  # right of them, for the numbers
OFF_SCALE = 3.0  # a mean further out than this many times all the others is told by an arrow, and they keep their scale


@dataclass(frozen=True)
class LossCurve:
    """Held-out loss by tokens seen, ascending: mean over the seeds, and their range."""

    key: CurveKey
    tokens: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Gap:
    """A difference in loss: by seed, their mean, and half the width of its interval (None of a single seed)."""

    key: CurveKey
    values: tuple[float, ...]
    mean: float
    half_width: float | None


def draw_loss_panel(
    figure: Figure,
    curves: Sequence[LossCurve],
    styles: Styles,
    *,
    top_in: float,
    body_in: float,
    heading: str,
    caption: Sequence[str],
) -> None:
    """Loss against tokens: lines are means over seeds, bands their range."""
    axes = new_axes(figure, top_in, body_in, label_width_in(figure, [curve.key for curve in curves], styles))
    for curve in curves:
        axes.plot(curve.tokens, curve.mean, marker="o", markersize=2.6, **styles.line(curve.key))
        axes.fill_between(curve.tokens, curve.low, curve.high, color=styles.colour(curve.key), alpha=0.15, linewidth=0)
    last = max(curve.tokens[-1] for curve in curves)
    axes.set_xlim(0, last * 1.01)
    axes.grid(True)
    _set_ticks(axes.xaxis, lambda tokens: format_count(int(tokens)))
    _set_ticks(axes.yaxis, "{:g}".format)
    label_curves(axes, [(curve.key, curve.tokens[-1], curve.mean[-1]) for curve in curves], styles)
    axes.set_xlabel("tokens trained on")
    axes.set_ylabel("held-out loss (nats a token)")
    frame_panel(figure, top_in, body_in, heading, caption)


def draw_gaps_panel(
    figure: Figure,
    gaps: Sequence[Gap],
    styles: Styles,
    *,
    top_in: float,
    body_in: float,
    heading: str,
    axis_label: str,
    caption: Sequence[str],
) -> None:
    """One line an arm: a hollow dot a seed, a bar for the interval, the numbers to the right."""
    axes = new_axes(figure, top_in, body_in, NUMBERS_IN, NAMES_IN)
    low, high = _scale_of(gaps)
    axes.set_xlim(low, high)
    axes.set_ylim(len(gaps) - 0.5, -0.5)
    axes.axvline(0.0, color=INK, linewidth=0.8, zorder=0.9)
    axes.grid(True, axis="x")
    _set_ticks(axes.xaxis, lambda value: minus(f"{value:g}"))
    axes.set_yticks(range(len(gaps)), [styles.name(gap.key) for gap in gaps])
    axes.tick_params(axis="y", length=0)
    for line, (gap, label) in enumerate(zip(gaps, axes.get_yticklabels(), strict=True)):
        colour = styles.colour(gap.key)
        label.set_color(colour)
        if low <= gap.mean <= high:
            _draw_gap(axes, gap, line, colour)
        else:
            edge, direction = (high, -1) if gap.mean > high else (low, 1)
            arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.0}
            start = (edge + direction * 0.06 * (high - low), line)
            axes.annotate("", xy=(edge, line), xytext=start, arrowprops=arrow)
        axes.annotate(
            number_of(gap), xy=(1.0, line), xycoords=axes.get_yaxis_transform(), xytext=(6, 0),
            textcoords="offset points", va="center", color=colour, fontsize=FONT_PT, annotation_clip=False,
        )  # fmt: skip
    axes.set_xlabel(axis_label)
    frame_panel(figure, top_in, body_in, heading, caption)


def _set_ticks(axis: Axis, name: Callable[[float], str]) -> None:
    """Round values inside the limits alone, each with its name."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

    low, high = sorted(axis.get_view_interval())
    ticks = [float(value) for value in MaxNLocator(8).tick_values(low, high) if low <= value <= high]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([name(round(tick, 12)) for tick in ticks]))


def _draw_gap(axes: Axes, gap: Gap, line: int, colour: str) -> None:
    if gap.half_width is not None:
        axes.plot([gap.mean - gap.half_width, gap.mean + gap.half_width], [line, line], color=colour, linewidth=1.4)
    axes.plot(gap.values, [line] * len(gap.values), "o", markersize=3.6, color=colour, markerfacecolor="white")
    axes.plot([gap.mean], [line], "|", markersize=11, markeredgewidth=1.8, color=colour)


def minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def number_of(gap: Gap) -> str:
    """A difference in writing, with a minus sign that is one."""
    text = minus(f"{gap.mean:+.4f}")
    return text if gap.half_width is None else f"{text} ± {gap.half_width:.4f}"


def _scale_of(gaps: Sequence[Gap]) -> tuple[float, float]:
    """From where to where the axis goes: all gaps, but for those so far out that the others could not be told apart."""
    reach = {gap.key: max(abs(value) for value in (gap.mean, *_ends(gap))) for gap in gaps}
    near = sorted(reach.values())
    widest = near[-1]
    if len(near) > 1 and near[-1] > OFF_SCALE * near[-2]:
        widest = near[-2]
    shown = [value for gap in gaps if abs(gap.mean) <= widest for value in (*gap.values, *_ends(gap))] + [0.0]
    margin = 0.08 * (max(shown) - min(shown)) or 0.01
    return min(shown) - margin, max(shown) + margin


def _ends(gap: Gap) -> tuple[float, float]:
    return gap.mean - (gap.half_width or 0.0), gap.mean + (gap.half_width or 0.0)

"""Figure 1 from records alone: (a) loss against tokens, (b) paired differences to flat, (c) reads against cache.

Nothing is computed here that a record does not hold, but for means, differences and their intervals; records that
cannot be compared are refused, never mixed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagegram_io import loss_panels, panels, styles
from pagegram_io.figures import READS_BODY_IN, check_suffix, describe_reads, draw_reads, read_curves, wrap
from pagegram_io.loss_panels import Gap, LossCurve
from pagegram_io.paired import Arm, difference, read_arms
from pagegram_io.record_files import to_dict
from pagegram_io.records import AnyRecord
from pagegram_io.sizes import format_count
from pagegram_io.styles import AXIS_IN, HEADING_IN, LINE_IN, CurveKey, Styles

LOSS_BODY_IN = 2.7
GAP_LINE_IN = 0.27  # a line of panel b
GAPS_IN = 0.5  # between panels
NOTE_BODY_IN = 0.55
READS_COMMANDS = ("pagegram-io figure1 -o figures --train",)


def draw_figure1(
    records: Iterable[AnyRecord], path: str | os.PathLike[str], *, force: bool = False, title: str | None = None
) -> None:
    """Draw the three panels from records of kinds "train" and "simulate"; without the latter (c) says how to get them.

    ValueError for no runs, records that cannot be compared or a suffix other than .png, .svg and .pdf;
    FileExistsError where the path exists, unless force.
    """
    target = check_suffix(path)
    rows = [to_dict(record) for record in records]
    simulated = [row for row in rows if row["kind"] == "simulate"]
    arms = read_arms(row for row in rows if row["kind"] != "simulate")
    loss_curves, gaps = [read_loss_curve(arm) for arm in arms], read_gaps(arms)
    looks = Styles([_key(arm) for arm in arms])
    captions = [wrap(_describe_runs(arms)), wrap(_describe_gaps(arms, gaps))]
    bodies = [LOSS_BODY_IN, GAP_LINE_IN * max(len(gaps), 2)]
    read_rows, reads = read_curves(simulated) if simulated else ([], [])
    captions.append(wrap(describe_reads(read_rows, reads)) if simulated else [])
    bodies.append(READS_BODY_IN if simulated else NOTE_BODY_IN)
    tops = _tops(HEADING_IN + (0.3 if title else 0.0), bodies, captions)
    with styles.own_style():
        figure = styles.new_figure(tops.pop())
        if title:
            styles.put_text(figure, 0.12, 0.22, title, size=styles.FONT_PT + 2, weight="bold")
        loss_panels.draw_loss_panel(
            figure, loss_curves, looks, top_in=tops[0], body_in=bodies[0], heading="(a)  Held-out loss, by tokens",
            caption=captions[0],
        )  # fmt: skip
        _draw_gaps(figure, gaps, looks, tops[1], bodies[1], captions[1])
        if simulated:
            look = Styles([curve.key for curve in reads])
            draw_reads(figure, read_rows, reads, look, tops[2], captions[2], "(c)  ", ())
        else:
            panels.draw_note_panel(
                figure, top_in=tops[2], body_in=bodies[2], heading="(c)  Flash reads per token, by size of the cache",
                note="There are no records of simulations. To make them:", commands=READS_COMMANDS,
            )  # fmt: skip
        styles.save_figure(figure, target, force=force)


def _tops(first_in: float, bodies: Sequence[float], captions: Sequence[Sequence[str]]) -> list[float]:
    """Where each panel begins, and then how high the figure is."""
    tops = [first_in]
    for body_in, caption in zip(bodies, captions, strict=True):
        tops.append(tops[-1] + body_in + AXIS_IN + LINE_IN * len(caption) + GAPS_IN)
    tops[-1] -= GAPS_IN - 0.1
    return tops


def _draw_gaps(
    figure: Any, gaps: Sequence[Gap], looks: Styles, top_in: float, body_in: float, caption: Sequence[str]
) -> None:
    heading = "(b)  Loss less that of the flat table, seed by seed"
    if gaps:
        loss_panels.draw_gaps_panel(
            figure, gaps, looks, top_in=top_in, body_in=body_in, heading=heading, caption=caption,
            axis_label="difference in held-out loss (nats a token); left of 0: better than flat",
        )  # fmt: skip
    else:
        panels.draw_note_panel(
            figure, top_in=top_in, body_in=body_in, heading=heading, commands=(),
            note="There is no run with the flat table that shares a seed with another run.",
        )  # fmt: skip


def _key(arm: Arm) -> CurveKey:
    return (*arm.key, None)


def read_loss_curve(arm: Arm) -> LossCurve:
    """Mean and range over the seeds; ValueError where two runs were validated at other tokens."""
    runs = list(arm.runs.values())
    tokens = runs[0]["tokens_seen"]
    for run in runs:
        if run["tokens_seen"] != tokens or len(run["validation_losses"]) != len(tokens):
            raise ValueError(
                f"runs of {arm.label} were validated after other numbers of tokens: draw those of one kind"
            )
    if not tokens:
        raise ValueError(f"a run of {arm.label} has no validation: there is nothing to draw")
    points = list(zip(*(run["validation_losses"] for run in runs), strict=True))
    return LossCurve(
        _key(arm),
        tuple(tokens),
        tuple(math.fsum(losses) / len(losses) for losses in points),
        tuple(min(losses) for losses in points),
        tuple(max(losses) for losses in points),
    )


def read_gaps(arms: Sequence[Arm]) -> list[Gap]:
    """Each arm's difference to flat: the tables first, then the model without one; none where flat did not run."""
    flat = next((arm for arm in arms if arm.key == ("flat", None)), None)
    gaps = []
    for arm in sorted(arms, key=lambda arm: arm.key[0] == "none"):
        found = difference(arm, flat) if flat is not None and arm is not flat else None
        if found is not None:
            gaps.append(Gap(_key(arm), tuple(found.by_seed.values()), found.mean, found.half_width))
    return gaps


def _describe_runs(arms: Sequence[Arm]) -> str:
    """Say all that a reader needs to compare the panel with another one."""
    runs: list[Mapping[str, Any]] = [run for arm in arms for run in arm.runs.values()]
    run = runs[0]
    params = next((r["table_params"] for r in runs if r["table_params"] is not None), None)
    tables = "" if params is None else f" and tables of {format_count(params)} more"
    dense = min(r["dense_params"] for r in runs)
    seeds = sorted({r["seed"] for r in runs})
    counts = {len(arm.runs) for arm in arms}
    text = (
        f"Preset {run['preset']}: {dense:,} parameters{tables}, trained on {run['tokens']:,} tokens of "
        f"{run['stream']} (SHA-256 {run['stream_sha256'][:12]}…, {run['stream_tokens']:,} tokens). Loss on "
        f"{run['validation_windows']:,} fixed windows of {run['context']} tokens of {run['validation_stream']}. "
    )
    if counts == {1} and len(seeds) == 1:
        return f"{text}Seed {seeds[0]}."
    return f"{text}Lines are means over seeds {', '.join(map(str, seeds))}, bands their range."


def _describe_gaps(arms: Sequence[Arm], gaps: Sequence[Gap]) -> str:
    if not gaps:
        return ""
    most = max(len(gap.values) for gap in gaps)
    if most == 1:
        return "One seed: nothing says how much of a difference is chance."
    return (
        f"Runs of a seed share their batches and their first backbone. Hollow: a seed; bar: 95 % t-interval of the "
        f"mean over {most} seeds, as are the numbers. An arrow: beyond the scale."
    )

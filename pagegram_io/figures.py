"""Figures from records alone: reads per token against cache size, lookups per second against reads in flight.

Nothing is computed here that a record does not hold, and records that cannot be compared are refused, never mixed.
This file turns records into curves and captions; panels.py draws them.
"""

from __future__ import annotations

import itertools
import os
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pagegram_io import panels, styles
from pagegram_io.assumptions import assumption_sentences
from pagegram_io.comparison import check_placement, of_whole_lookups
from pagegram_io.layout import LAYOUT_NAMES
from pagegram_io.panels import Curve, DeviceCurve
from pagegram_io.record_files import to_dict
from pagegram_io.records import AnyRecord
from pagegram_io.sizes import format_bytes, format_count
from pagegram_io.styles import AXIS_IN, HEADING_IN, LINE_IN, CurveKey, Styles

SUFFIXES = (".png", ".svg", ".pdf")
DEVICE_COMMANDS = (
    "pagegram-io nvme --depth 1,2,4,8,16,32,64,128,256 --json DEVICE > device.jsonl",
    "pagegram-io figure4 --device-records device.jsonl",
)
FIRST_READS_SHARE = 0.2  # of the reads; above it a result says more about the stream's length than about the cache
READS_BODY_IN = 3.4
DEVICE_BODY_IN = 2.1
NOTE_BODY_IN = 0.78
CAPTION_CHARACTERS = 108
COMMAND_CHARACTERS = 89
COMMAND_IN = 0.2  # a line of a command; NOTE_BODY_IN has room for two

SHARED_FIELDS = (
    "stream_sha256", "tokens", "documents", "warm_tokens", "state", "seed", "page_bytes", "row_format", "placement",
    "base_byte", "policy", "cache_unit", "interleave", "window", "draft", "pollution_bytes",
)  # fmt: skip
UNSTATED_FIELDS = ("seed", "row_format", "placement")  # a page array of one's own has none of these
STORED_FIELDS = ("row_format", "placement", "base_byte")  # a deployed table has its own
CURVE_FIELDS = (
    "table_params_actual", "row_bytes", "pages", "file_bytes", "heads", "row_width", "dim", "orders", "model", "scales",
    "resident_bytes", "assumed", "tokenizer_stand_in", *STORED_FIELDS,
)  # fmt: skip
DEVICE_SHARED_FIELDS = (
    "target", "engine", "direct", "mode", "jobs", "stream_sha256", "seed", "page_bytes", "row_format",
)  # fmt: skip


def draw_figure4(
    records: Iterable[AnyRecord],
    path: str | os.PathLike[str],
    *,
    device_records: Iterable[AnyRecord] = (),
    force: bool = False,
    title: str | None = None,
) -> None:
    """Draw (a) reads per token against cache size and, below it, (b) lookups per second against depth.

    `records` are of kind "simulate", `device_records` of kind "nvme"; without these, (b) says how to measure it.
    ValueError for no records, records that cannot be compared or a suffix other than .png, .svg and .pdf;
    FileExistsError where the path exists, unless force.
    """
    target = check_suffix(path)
    rows, curves = read_curves(records)
    device_rows, device_curves = _read_device_curves(device_records)
    caption = wrap(describe_reads(rows, curves))
    device_caption = wrap(_describe_device(device_rows, device_curves)) if device_rows else []
    looks = Styles([curve.key for curve in curves])
    by_cache = bool(device_rows) and _device_variant(device_rows) == "cache_bytes"
    device_looks = Styles([curve.key for curve in device_curves], _cache_name if by_cache else format_count)
    top_in = HEADING_IN + looks.key_in + (0.3 if title else 0.0)
    device_top_in = top_in + READS_BODY_IN + AXIS_IN + LINE_IN * len(caption) + 0.5
    if device_rows:
        height_in = device_top_in + DEVICE_BODY_IN + AXIS_IN + LINE_IN * len(device_caption) + 0.1
    else:
        commands = device_commands(rows)
        note_body_in = NOTE_BODY_IN + COMMAND_IN * (len(commands) - len(DEVICE_COMMANDS))
        height_in = device_top_in + note_body_in + 0.1
    heading = "(b)  Lookups per second, by reads in flight"
    with styles.own_style():
        figure = styles.new_figure(height_in)
        if title:
            styles.put_text(figure, 0.12, 0.22, title, size=styles.FONT_PT + 2, weight="bold")
        draw_reads(figure, rows, curves, looks, top_in, caption, "(a)  ", ())
        if device_rows:
            heading += "" if device_rows[0].get("direct") else ": page cache, not the device"
            panels.draw_device_panel(
                figure, device_curves, device_looks, top_in=device_top_in, body_in=DEVICE_BODY_IN, heading=heading,
                caption=device_caption,
            )  # fmt: skip
        else:
            panels.draw_note_panel(
                figure, top_in=device_top_in, body_in=note_body_in, heading=heading,
                note="Not measured: there are no device records. To measure, and to draw what was measured:",
                commands=commands,
            )  # fmt: skip
        styles.save_figure(figure, target, force=force)


def device_commands(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """What measures the tables that were simulated, and draws them again, in lines that fit."""
    models = list(dict.fromkeys(row["model"] for row in rows if row.get("model") is not None))
    if not models:
        return DEVICE_COMMANDS
    one = models[0] if len(models) == 1 else "NAME"
    measure, draw = DEVICE_COMMANDS
    measure = measure.replace(" nvme ", f" nvme --model {one} ")
    every = ",".join(models)
    every = every if len(every) < COMMAND_CHARACTERS - 4 else "NAME,NAME"  # with its indent and backslash
    draw = draw.replace(" figure4 ", f" figure4 --model {every} ")
    return (*_command_lines(measure), *_command_lines(draw))


def _command_lines(command: str) -> list[str]:
    """A command in lines that fit the panel, each but the last with a backslash, so that it can be pasted."""
    if len(command) <= COMMAND_CHARACTERS:
        return [command]
    whole = command.replace(" > ", " >\xa0")  # a file's name stays with its arrow
    lines = textwrap.wrap(
        whole, COMMAND_CHARACTERS - 2, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\xa0", " ") + " \\" * (line is not lines[-1]) for line in lines]


def draw_curves(
    records: Iterable[AnyRecord],
    path: str | os.PathLike[str],
    *,
    marked_bytes: Sequence[int] = (),
    force: bool = False,
) -> None:
    """Draw reads per token against cache size alone; `marked_bytes` are cache sizes to mark by a vertical line.

    Errors as for `draw_figure4`.
    """
    target = check_suffix(path)
    rows, curves = read_curves(records)
    caption = wrap(describe_reads(rows, curves))
    looks = Styles([curve.key for curve in curves])
    top_in = HEADING_IN + looks.key_in
    with styles.own_style():
        height_in = top_in + READS_BODY_IN + AXIS_IN + LINE_IN * len(caption) + 0.1
        figure = styles.new_figure(height_in)
        draw_reads(figure, rows, curves, looks, top_in, caption, "", marked_bytes)
        styles.save_figure(figure, target, force=force)


def check_device_records(records: Iterable[AnyRecord]) -> None:
    """ValueError for device records that no panel can show, none among them: before the hours of a simulation."""
    if not _read_device_curves(records)[0]:
        raise ValueError("there are no device records: make some with 'pagegram-io nvme --json'")


def without_lookups(record: AnyRecord) -> bool:
    """Is a device record one of a layout of which no lookup was completed? Such are left out."""
    row = to_dict(record)
    return row.get("layout") not in (None, "uniform") and 0 in (row.get("tokens"), row.get("lookups_per_second"))


def draw_reads(
    figure: Any,
    rows: Sequence[Mapping[str, Any]],
    curves: Sequence[Curve],
    looks: Styles,
    top_in: float,
    caption: Sequence[str],
    letter: str,
    marked_bytes: Sequence[int],
) -> None:
    unit = rows[0]["cache_unit"]
    panels.draw_reads_panel(
        figure, curves, looks, top_in=top_in, body_in=READS_BODY_IN, caption=caption, marked_bytes=marked_bytes,
        heading=f"{letter}Flash reads per token, by size of the {unit} cache", cache_label=f"{unit} cache size",
    )  # fmt: skip


def check_suffix(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{str(path)!r} is not the name of a figure: it must end in {', '.join(SUFFIXES)}")
    return target


def read_curves(records: Iterable[AnyRecord]) -> tuple[list[dict[str, Any]], list[Curve]]:
    rows = [to_dict(record) for record in records]
    if not rows:
        raise ValueError("there are no records to draw: give records of 'pagegram-io simulate --json'")
    _refuse_kind(rows, "simulate")
    rows = [row for row in rows if of_whole_lookups(row)]
    if not rows:
        raise ValueError("every record is of an order, column, layer or rank: a figure needs records of whole lookups")
    deployed = [row for row in rows if row.get("model") is not None]
    _refuse_mix(rows, [name for name in SHARED_FIELDS if len(deployed) < len(rows) or name not in STORED_FIELDS])
    _refuse_other_counts(deployed, [row for row in rows if row.get("model") is None])
    groups: dict[CurveKey, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["layout"], row["slots"], row["table_params"]), []).append(row)
    return rows, [_read_curve(key, groups[key]) for key in sorted(groups, key=styles.curve_order)]


def _refuse_other_counts(deployed: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> None:
    """A deployed table beside layouts of ours is a comparison only at equal parameters: it has no other size."""
    named = [sorted({(row["layout"], row["table_params"]) for row in rows}, key=str) for rows in (deployed, ours)]
    for (model, of_model), (name, of_ours) in itertools.product(*named):
        if None not in (of_model, of_ours) and of_model != of_ours:
            raise ValueError(
                f"{model} has {of_model:,} parameters and {name} {of_ours:,}: a deployed table and our layouts are "
                "compared at equal parameters only; draw each alone"
            )


def _read_curve(key: CurveKey, rows: Sequence[Mapping[str, Any]]) -> Curve:
    _refuse_mix(rows, CURVE_FIELDS)
    points: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        if row["cache_unit"] == "page":
            table_bytes, cache_bytes = row["pages"] * row["page_bytes"], row["cache_pages"] * row["page_bytes"]
        else:
            table_bytes, cache_bytes = row["file_bytes"], row["cache_bytes"] if row["cache_pages"] else 0
        # A cache larger than the table does what a cache of the table's size does.
        point = points.setdefault(min(cache_bytes, table_bytes), row)
        _refuse_mix([point, row], ("misses", "compulsory_misses"))
    uncached = points.pop(0)["reads_per_token"] if 0 in points else None
    sizes = sorted(points)
    shares = [points[size]["compulsory_share"] for size in sizes]
    faint_from = next((index for index, share in enumerate(shares) if share > FIRST_READS_SHARE), len(sizes))
    return Curve(key, uncached, tuple(sizes), tuple(points[size]["reads_per_token"] for size in sizes), faint_from)


def _read_device_curves(records: Iterable[AnyRecord]) -> tuple[list[dict[str, Any]], list[DeviceCurve]]:
    rows = [to_dict(record) for record in records]
    if not rows:
        return [], []
    _refuse_kind(rows, "nvme")
    rows = [row for row in rows if row.get("layout") not in (None, "uniform")]  # uniform reads are no lookups
    if not rows:
        raise ValueError("the device records hold uniform reads only: run 'pagegram-io nvme' without --uniform")
    rows = [row for row in rows if not without_lookups(row)]
    if not rows:
        raise ValueError("no device record has a lookup (lookups_per_second is 0): measure with a longer --runtime")
    deployed = all(row["layout"] not in LAYOUT_NAMES for row in rows)
    _refuse_mix(rows, [name for name in DEVICE_SHARED_FIELDS if not deployed or name not in STORED_FIELDS])
    if rows[0].get("mode", "throughput") != "throughput":
        raise ValueError(f"device records of mode {rows[0]['mode']!r} have no place here: it takes 'throughput' only")
    variant = _device_variant(rows)
    groups: dict[CurveKey, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        depth, rate = row.get("depth"), row.get("lookups_per_second")
        if type(depth) is not int or depth < 1 or not isinstance(rate, (int, float)) or rate <= 0:
            raise ValueError(f"a device record has depth {depth!r}, lookups_per_second {rate!r}: both must be above 0")
        key = (row["layout"], row.get("slots"), row.get(variant))
        groups.setdefault(key, {}).setdefault(depth, []).append(row)
    return rows, [_read_device_curve(key, groups[key]) for key in sorted(groups, key=styles.curve_order)]


def _device_variant(rows: Sequence[Mapping[str, Any]]) -> str:
    """What tells the curves of one layout apart: the caches in front, if there are several, or the table sizes."""
    several_caches = len({row.get("cache_bytes") for row in rows}) > 1
    if several_caches and len({row.get("table_params") for row in rows}) > 1:
        raise ValueError(
            "device records of several tables behind several caches: draw one table, or one cache, at a time"
        )
    return "cache_bytes" if several_caches else "table_params"


def _cache_name(cache_bytes: int) -> str:
    return f"{format_bytes(cache_bytes)} cache" if cache_bytes else "no cache"


def _read_device_curve(key: CurveKey, by_depth: Mapping[int, Sequence[Mapping[str, Any]]]) -> DeviceCurve:
    every = [row for rows in by_depth.values() for row in rows]
    _refuse_mix(every, ("row_format",))
    check_placement(every)
    depths = sorted(by_depth)
    rates = [[float(row["lookups_per_second"]) for row in by_depth[depth]] for depth in depths]
    return DeviceCurve(
        key=key,
        depth=tuple(depths),
        median=tuple(statistics.median(repeats) for repeats in rates),
        low=tuple(min(repeats) for repeats in rates),
        high=tuple(max(repeats) for repeats in rates),
        cpu_limited=tuple(any(row.get("limited_by") == "cpu" for row in by_depth[depth]) for depth in depths),
    )


def _refuse_kind(rows: Sequence[Mapping[str, Any]], kind: str) -> None:
    other = next((row["kind"] for row in rows if row["kind"] != kind), None)
    if other is not None:
        raise ValueError(f"a record of kind {other!r} cannot be drawn here: this panel takes {kind!r} records only")


def _refuse_mix(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> None:
    for name in names:
        values = [row.get(name) for row in rows]
        if name in UNSTATED_FIELDS:
            values = [value for value in values if value is not None]
        others = [value for value in values if value != values[0]]
        if others:
            raise ValueError(f"records with {name} {values[0]!r} and {others[0]!r} cannot be compared in one figure")


def describe_reads(rows: Sequence[Mapping[str, Any]], curves: Sequence[Curve]) -> str:
    """Say all that a reader needs to compare the panel with another one."""
    row = rows[0]
    start = "cold" if row["state"] == "cold" else f"warmed by {row['warm_tokens']:,} tokens that are not counted"
    sizes = {curve.key[2] for curve in curves if curve.key[2] is not None}
    parts = [f"tables of {format_count(sizes.pop())} parameters"] if len(sizes) == 1 else []
    parts += _describe_storage(rows)
    text = (
        f"Stream {_file_name(row['stream'])} (SHA-256 {row['stream_sha256'][:12]}…), {row['tokens']:,} tokens in "
        f"{row['documents']:,} documents. {row['policy'].upper()} cache of {row['cache_unit']}s, {start}; "
        f"{', '.join(parts)}."
    )
    text += "".join(f" {sentences}" for sentences in describe_models(rows))
    if any(curve.x for curve in curves):
        text += " No curve goes beyond the size of its table."
    if any(curve.faint_from < len(curve.x) for curve in curves):
        text += f" Faint: more than {FIRST_READS_SHARE:.0%} of the reads are first reads of a page."
    return text


def describe_models(records: Iterable[AnyRecord]) -> list[str]:
    """What each deployed table takes for granted, with its name and its rows where others are there too."""
    rows = [to_dict(record) for record in records]
    models = {row["layout"]: row for row in rows if row.get("model") is not None}
    several, stored = len({row["layout"] for row in rows}) > 1, _several_storages(rows)
    named: dict[str, list[str]] = {}
    for name, row in sorted(models.items()):
        rows_are = f"{row['row_format'].upper()} rows, {row['placement']}. " if stored else ""
        named.setdefault(rows_are + assumption_sentences(row), []).append(name)
    return [(f"{', '.join(names)}: " if several else "") + text for text, names in named.items()]


def _several_storages(rows: Sequence[Mapping[str, Any]]) -> bool:
    return len({tuple(row[name] for name in STORED_FIELDS) for row in rows if row.get("model") is not None}) > 1


def _describe_storage(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How rows are stored, where all that have rows store them alike; a seed is of our hashes."""
    if _several_storages(rows):
        return [f"pages of {rows[0]['page_bytes']:,} bytes"]
    stated = {name: next((r[name] for r in rows if r[name] is not None), None) for name in UNSTATED_FIELDS}
    pages = f"pages of {rows[0]['page_bytes']:,} bytes"
    ours = any(row.get("model") is None for row in rows)
    return [
        *([f"{stated['row_format'].upper()} rows"] if stated["row_format"] else []),
        f"{stated['placement']} in {pages}" if stated["placement"] else pages,
        *([f"seed {stated['seed']}"] if stated["seed"] is not None and ours else []),
    ]


def _describe_device(rows: Sequence[Mapping[str, Any]], curves: Sequence[DeviceCurve]) -> str:
    row = rows[0]
    caches = {row.get("cache_bytes") for row in rows}
    model = f" on {row['device_model']}" if row.get("device_model") else ""
    parts = [f"{_file_name(str(row.get('target', 'not stated')))}{model}", f"engine {row.get('engine', 'not stated')}"]
    parts += ["O_DIRECT" if row.get("direct") else "without O_DIRECT, so that reads may come from the page cache"]
    if len(caches) == 1:
        cache_bytes = caches.pop()
        parts += [f"{format_bytes(cache_bytes)} of pages cached in front" if cache_bytes else "no cache in front"]
    warmed = {row.get("warm_tokens", 0) for row in rows if row.get("cache_bytes")}
    parts += [f"caches filled by {max(warmed):,} tokens first"] if any(warmed) else []
    sizes = {row["table_params"] for row in rows if row.get("table_params") is not None}
    parts += [f"tables of {format_count(sizes.pop())} parameters"] if len(sizes) == 1 else []
    text = f"Target {'; '.join(parts)}."
    if any(row.get("wrapped") and row["table_pages"] * row["page_bytes"] > row["span_bytes"] for row in rows):
        text += f" Tables that are larger are folded into the target's {format_bytes(row['span_bytes'])}."
    if len(rows) > sum(len(curve.depth) for curve in curves):
        text += " Points are medians of repeats, bars their range."
    if any(limited for curve in curves for limited in curve.cpu_limited):
        text += " Hollow: limited by the CPU, not by the device."
    return text


def _file_name(path: str) -> str:
    return path if path.startswith("/dev/") else path.rstrip("/").rpartition("/")[2]


def wrap(text: str) -> list[str]:
    return textwrap.wrap(text, width=CAPTION_CHARACTERS, break_on_hyphens=False)

"""``pagegram-io collisions``: which n-grams share rows, theory beside measurement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.model import model_option, refuse_ours
from pagegram_io.commands.options import (
    NAMES,
    WHOLES,
    force_option,
    given,
    layouts_of,
    option_text,
    plain_table,
    print_records,
    record_options,
    refuse_outputs,
    shape_of,
    shape_options,
    stream_of,
    stream_options,
    table_option,
    wide_console,
)

if TYPE_CHECKING:
    from pagegram_io.collisions import Ngrams
    from pagegram_io.layout import Layout
    from pagegram_io.records import CollisionRecord
    from pagegram_io.tokens import Stream

EPILOG = """
Examples:

\b
  pagegram-io collisions
  pagegram-io collisions --table 20B --slots 4,15 --limit 5M --json
  pagegram-io collisions --model deepseek-v4.1-flash --limit 1M
"""


@click.command("collisions", epilog=EPILOG)
@table_option("200M")
@model_option
@click.option(
    "--layout",
    "layouts",
    type=NAMES,
    default="flat,engram,pagegram",
    show_default=True,
    metavar="LIST",
    help="Which layouts. [e.g. engram,pagegram]",
)
@click.option(
    "--slots",
    type=WHOLES,
    default="1,4,8,15,60",
    show_default=True,
    metavar="LIST",
    help="Slots S a head chooses from, for pagegram. [e.g. 4,15]",
)
@stream_options
@shape_options
@record_options
@force_option
def command(**values: Any) -> None:
    """Which n-grams share rows, from the real n-grams of a stream (the paper's Table 3), theory beside measurement.

    Extra heads: of two n-grams that share a row of head 0, how many other heads they share too. Of a deployed table
    n-grams are what its hash sees (ids of one class are one), and each layer is measured apart.
    """
    from pagegram_io.progress import progress
    from pagegram_io.record_files import write_csv

    refuse_outputs(values["csv_path"], force=values["force"])
    layouts = [_model_layout(values)] if values["model"] is not None else layouts_of(values, shape_of(values))
    stream = stream_of(values)
    lines = _lines(layouts)
    records: list[CollisionRecord] = []
    with progress("measuring collisions", len(lines)) as advance:
        try:
            for record in _measure(lines, stream):
                records.append(record)
                advance(1)
        except KeyboardInterrupt:
            done = f"{len(records)} of {len(lines)} lines"
            raise KeyboardInterrupt(f"stopped after {done}; nothing was written") from None
    if values["csv_path"]:
        write_csv(records, values["csv_path"], force=values["force"])
    if values["as_json"]:
        print_records(records)
    else:
        _print_table(records)


def _model_layout(values: dict[str, Any]) -> Layout:
    """The table of --model, wherever its rows lie: which n-grams share one does not depend on that."""
    from pagegram_io.deployed import family_of

    family = family_of(values["model"])
    refuse_ours(values)
    useless = next((name for name in ("row_format", "page_bytes") if given(name)), None)
    if useless:
        raise click.UsageError(f"{option_text(useless)}: how a model's rows are stored does not change who shares them")
    values["orders"] = family.orders
    return family.layout()


def _lines(layouts: list[Layout]) -> list[tuple[int, int | None, Layout]]:
    """Order, layer and layout of each line, orders first: n-grams are gathered once an order."""
    from pagegram_io.collisions import parts_of

    lines = [(order, layer, layout) for layout in layouts for order, layer in parts_of(layout)]
    return sorted(lines, key=lambda line: line[0])


def _measure(lines: list[tuple[int, int | None, Layout]], stream: Stream) -> Iterator[CollisionRecord]:
    from pagegram_io.collisions import measure

    order_now, ngrams = 0, None
    for order, layer, layout in lines:
        if ngrams is None or order != order_now:
            order_now, ngrams = order, _ngrams(layout, order, stream)
        yield measure(layout, ngrams, stream, layer)


def _ngrams(layout: Layout, order: int, stream: Stream) -> Ngrams:
    from pagegram_io.collisions import distinct_ngrams, distinct_seen, rule_of

    if layout.model is None:
        return distinct_ngrams(stream, order)
    return distinct_seen(stream, rule_of(layout, order))


def _beside(measured: float | None, expected: float | None) -> str:
    """``measured / theory``, with digits that suit the size of either; a dash for what there is not."""
    if measured is None:
        return "-"
    return f"{measured:.4g} / {_theory(expected)}"


def _theory(expected: float | None) -> str:
    return "-" if expected is None else f"{expected:.4g}"


COLUMNS = (
    "layout", "table", "order", "layer", "n-grams", "var/mean: seen / theory", "foreign share", "pairs",
    "other head: seen / theory", "extra heads: seen / theory", "neighbours: seen / theory",
)  # fmt: skip


def _cells(r: CollisionRecord) -> list[str]:
    from pagegram_io.layout import label_of
    from pagegram_io.sizes import format_count

    return [
        label_of(r.layout, r.slots),
        format_count(r.table_params),
        str(r.order),
        "-" if r.layer is None else str(r.layer),
        f"{r.distinct_ngrams:,}",
        f"{r.variance_to_mean:.4f} / {_theory(r.variance_to_mean_theory)}",
        f"{100 * (r.foreign_share or 0):.2f} %",
        f"{r.pairs:,}" if r.pairs else "-",
        _beside(r.other_head_share, r.other_head_share_theory),
        _beside(r.extra_heads, r.extra_heads_theory),
        _beside(r.neighbour_ratio, r.neighbour_ratio_theory),
    ]


def _print_table(records: list[CollisionRecord]) -> None:
    layers = any(r.layer is not None for r in records)
    shown = [i for i, name in enumerate(COLUMNS) if layers or name != "layer"]
    table = plain_table([COLUMNS[i] for i in shown])
    for r in records:
        cells = _cells(r)
        table.add_row(*(cells[i] for i in shown))
    first = records[0]
    console = wide_console()
    console.print(f"{first.stream}: {first.tokens:,} tokens" + (f"; seed {first.seed}" if first.model is None else ""))
    console.print(table)
    console.print(
        "Foreign share: of all hits on a lookup's row, those by other n-grams. "
        "Neighbours: n-grams that share a row, relative to engram."
    )
    if first.model is not None:
        console.print(_about_model(records))


def _about_model(records: list[CollisionRecord]) -> str:
    """What stands behind the numbers of a deployed table."""
    from pagegram_io.deployed import family_of

    first = records[0]
    text = "N-grams are what the table's hash sees"
    if any(rule.classes is not None for rule in family_of(first.layout).make_hashes()):
        text += ": ids of one class are one"
    if any(r.variance_to_mean_theory is None for r in records):
        text += ". There is no theory for it: its rows are sums or ids, not hashes"
    if first.tokenizer_stand_in:
        text += f". {first.tokenizer_stand_in} stands in for the model's own ids: an estimate"
    return f"{text}."

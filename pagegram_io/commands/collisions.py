"""``pagegram-io collisions``: which n-grams share rows, theory beside measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import (
    NAMES,
    WHOLES,
    force_option,
    layouts_of,
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
    from pagegram_io.records import CollisionRecord

EPILOG = """
Examples:

\b
  pagegram-io collisions
  pagegram-io collisions --table 20B --slots 4,15 --limit 5M --json
"""


@click.command("collisions", epilog=EPILOG)
@table_option("200M")
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

    Extra heads: of two n-grams that share a row of head 0, how many other heads they share too.
    """
    from pagegram_io.collisions import distinct_ngrams, measure
    from pagegram_io.progress import progress
    from pagegram_io.record_files import write_csv

    refuse_outputs(values["csv_path"], force=values["force"])
    shape = shape_of(values)
    layouts = layouts_of(values, shape)
    stream = stream_of(values)
    records: list[CollisionRecord] = []
    with progress("measuring collisions", len(layouts) * len(shape.orders)) as advance:
        try:
            for order in shape.orders:
                ngrams = distinct_ngrams(stream, order)
                for layout in layouts:
                    records.append(measure(layout, ngrams, stream))
                    advance(1)
        except KeyboardInterrupt:
            done = f"{len(records)} of {len(layouts) * len(shape.orders)} lines"
            raise KeyboardInterrupt(f"stopped after {done}; nothing was written") from None
    if values["csv_path"]:
        write_csv(records, values["csv_path"], force=values["force"])
    if values["as_json"]:
        print_records(records)
    else:
        _print_table(records)


def _beside(measured: float | None, expected: float | None) -> str:
    """``measured / theory``, with digits that suit the size of either."""
    if measured is None or expected is None:
        return "-"
    return f"{measured:.4g} / {expected:.4g}"


def _print_table(records: list[CollisionRecord]) -> None:
    from pagegram_io.layout import label_of
    from pagegram_io.sizes import format_count

    names = (
        "layout",
        "table",
        "order",
        "n-grams",
        "var/mean",
        "foreign share",
        "pairs",
        "other head: seen / theory",
        "extra heads: seen / theory",
        "neighbours: seen / theory",
    )
    table = plain_table(names)
    for r in records:
        table.add_row(
            label_of(r.layout, r.slots),
            format_count(r.table_params),
            str(r.order),
            f"{r.distinct_ngrams:,}",
            f"{r.variance_to_mean:.4f}",
            f"{100 * (r.foreign_share or 0):.2f} %",
            f"{r.pairs:,}" if r.pairs else "-",
            _beside(r.other_head_share, r.other_head_share_theory),
            _beside(r.extra_heads, r.extra_heads_theory),
            _beside(r.neighbour_ratio, r.neighbour_ratio_theory),
        )
    first = records[0]
    console = wide_console()
    console.print(f"{first.stream}: {first.tokens:,} tokens; seed {first.seed}")
    console.print(table)
    console.print(
        "Foreign share: of all hits on a lookup's row, those by other n-grams. "
        "Neighbours: n-grams that share a row, relative to engram."
    )

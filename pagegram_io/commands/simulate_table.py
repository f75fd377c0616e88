"""The table that ``simulate`` prints for a person, and the sentences that say what its numbers are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagegram_io.sizes import format_bytes, format_count

if TYPE_CHECKING:
    from pagegram_io.layout import Layout
    from pagegram_io.records import SimulationRecord

PAPER_READS = {"pagegram": 0.99, "engram": 9.18}  # reads a token at 20B and 1 GiB, on the paper's own text


def _label(record: SimulationRecord) -> str:
    return record.layout if record.slots is None else f"{record.layout} S={record.slots}"


def _cache(record: SimulationRecord) -> str:
    return format_bytes(record.cache_bytes) if record.cache_pages else "none"


def _engram_reads(records: Sequence[SimulationRecord]) -> dict[tuple[object, ...], float]:
    return {_setting(r): r.reads_per_token for r in records if r.layout == "engram"}


def _setting(record: SimulationRecord) -> tuple[object, ...]:
    """Records that differ in layout alone share this."""
    return record.table_params, record.cache_bytes, record.order, record.column


def _cells(record: SimulationRecord, engram: dict[tuple[object, ...], float]) -> list[str]:
    rival = engram.get(_setting(record))
    fewer = (
        ""
        if rival is None or record.layout == "engram" or not record.reads_per_token
        else f"{rival / record.reads_per_token:.2f}x"
    )
    return [
        _label(record),
        "-" if record.order is None else str(record.order),
        "-" if record.column is None else str(record.column),
        "-" if record.table_params is None else format_count(record.table_params),
        format_bytes(record.file_bytes),
        _cache(record),
        f"{record.reads_per_token:.4f}",
        f"{record.reads_per_token_without_compulsory:.4f}",
        f"{record.reads_per_token_second_half:.4f}",
        f"{100 * record.hit_rate:.2f} %",
        f"{record.bytes_read_per_token:,.0f}",
        "-" if record.read_amplification is None else f"{record.read_amplification:.1f}x",
        fewer,
    ]


COLUMNS = (
    "layout",
    "order",
    "column",
    "table",
    "file",
    "cache",
    "reads/token",
    "less first reads",
    "second half",
    "hit rate",
    "bytes/token",
    "amplification",
    "fewer than engram",
)


def print_table(records: Sequence[SimulationRecord], *, verbose: bool) -> None:
    """The records as a table on stdout, with what they are and are not below."""
    import sys

    from rich.console import Console
    from rich.table import Table

    engram = _engram_reads(records)
    lines = [_cells(record, engram) for record in records]
    used = [i for i in range(len(COLUMNS)) if any(line[i] not in ("", "-") for line in lines)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in used:
        table.add_column(COLUMNS[i], justify="left" if i == 0 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(line[i] for i in used))
    # Where nobody looks at a terminal, lines are as long as they are.
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 240)
    first = records[0]
    unit = (
        f"{format_bytes(first.page_bytes)} pages" if first.cache_unit == "page" else "rows (each miss reads its page)"
    )
    state = "cold" if first.state == "cold" else f"warmed by {first.warm_tokens:,} tokens"
    console.print(
        f"{first.stream}: {first.tokens:,} tokens in {first.documents:,} documents; "
        f"{first.policy.upper()} cache of {unit}, {state}; "
        f"rows in {first.row_format}, {first.placement}, seed {first.seed}",
        highlight=False,
    )
    console.print(table)
    for sentence in caveats(records):
        console.print(sentence, highlight=False)
    if verbose:
        for record in records:
            rate = record.accesses / record.seconds / 1e6 if record.seconds else 0.0
            console.print(
                f"{_label(record)} at {_cache(record)}: "
                f"cache and index would take {format_bytes(record.memory_bytes)} of RAM; "
                f"simulated in {record.seconds:.2f} s ({rate:.0f}M accesses/s, {record.isa}, {record.threads} threads)",
                highlight=False,
            )


def caveats(records: Sequence[SimulationRecord]) -> list[str]:
    """Two lines that say what the numbers are not; nothing for a trace that is not ours."""
    names = {record.layout for record in records}
    if not names & {"flat", "engram", "pagegram"}:
        return []
    paper = " and ".join(f"{reads} for {name}" for name, reads in PAPER_READS.items())
    lines = [
        "Not the paper's numbers: stream and hash are ours "
        f"(the paper, on its own text, 20B behind 1 GiB: {paper} reads a token)."
    ]
    sizes = {_label(r): r.file_bytes for r in records}
    lines.append(
        "Flat reads no more than pagegram: the case against flat is loss, not reads."
        + (
            " Files differ in size at equal parameters: pagegram S=4 leaves 20 % of each page empty."
            if "pagegram S=4" in sizes
            else ""
        )
    )
    return lines


def warnings(records: Sequence[SimulationRecord], layouts: Sequence[Layout]) -> list[str]:
    """What weakens a result: a cache still filling, first accesses, costs that a name does not tell."""
    from pagegram_io.layout import expected_reads

    lines = []
    for layout in layouts:
        reads = expected_reads(layout)
        if any(region.unit_bytes > layout.page_bytes for region in layout.regions):
            lines.append(
                f"{layout.label}: a bucket of {format_bytes(layout.regions[0].unit_bytes)} is longer than a page; "
                f"an uncached token costs {reads:.3g} reads, not {len(layout.groups)}"
            )
    said = set()
    for r in records:
        key = (_label(r), r.table_params, r.cache_pages)
        if key in said or r.cache_pages == 0:
            continue
        said.add(key)
        where = f"{_label(r)} at {_cache(r)}"
        middle = r.warm_tokens + r.tokens // 2
        if r.cache_unit == "page" and r.cache_pages >= r.pages:
            lines.append(
                f"{where}: the cache holds the whole table ({format_bytes(r.file_bytes)}); every read is a first access"
            )
        elif r.cache_full_at_token is None:
            lines.append(f"{where}: the cache never filled, so these are mostly first accesses; give more tokens")
        elif r.cache_full_at_token > middle:
            lines.append(
                f"{where}: the cache filled at token {r.cache_full_at_token:,}, after mid-stream; give more tokens"
            )
        total = [x for x in records if (_label(x), x.table_params, x.cache_pages) == key]
        misses, first = sum(x.misses for x in total), sum(x.compulsory_misses for x in total)
        if misses and first > 0.2 * misses and r.cache_pages < r.pages:
            lines.append(
                f"{where}: {100 * first / misses:.0f} % of the reads are first accesses; give more tokens, or --warm"
            )
    return lines

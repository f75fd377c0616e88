"""The table that ``plan`` prints for a person, and the sentences below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagegram_io.commands.options import plain_table, wide_console
from pagegram_io.layout import label_of
from pagegram_io.sizes import format_bytes

if TYPE_CHECKING:
    from pagegram_io.records import PlanRecord

COLUMNS = ("cache", "batch", "layer", "reads/step", "p50", "p99", "arrive p50 us", "p99 us", "deadline us",
           "tokens/s p50", "p99", "prefill tokens/s", "verdict")  # fmt: skip


def _number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value / scale:,.0f}" if value >= 10 * scale else f"{value / scale:.3g}"


def _bounded(value: float | None, bound: float | None, sign: str, scale: float = 1.0) -> str:
    """A number, or what it is at least or at most."""
    return f"{sign} {_number(bound, scale)}" if value is None and bound is not None else _number(value, scale)


def _cells(record: PlanRecord, whole: bool) -> list[str]:
    reads = f"{record.reads_per_step_mean:.2f}", str(record.reads_per_step_p50), str(record.reads_per_step_p99)
    timed = record.steps > 0
    prefill = record.prefill_tokens_per_second, record.prefill_tokens_per_second_most
    return [
        format_bytes(record.cache_bytes) if record.cache_pages else "none",
        str(record.batch),
        "all" if record.layer is None else str(record.layer),
        *([] if record.ranks is None else [str(record.slowest_rank)]),
        *(reads if timed else "---"),
        _bounded(record.arrival_p50_ns, record.arrival_p50_least_ns, ">=", 1e3) if timed else "-",
        _bounded(record.arrival_p99_ns, record.arrival_p99_least_ns, ">=", 1e3) if timed else "-",
        _number(record.deadline_ns, 1e3),
        _bounded(record.tokens_per_second_p50, record.tokens_per_second_p50_most, "<="),
        _bounded(record.tokens_per_second_p99, record.tokens_per_second_p99_most, "<="),
        _bounded(*prefill, "<=") if whole else "-",
        record.verdict,
    ]


def _drive(record: PlanRecord) -> str:
    """Which drive, and what is known of it."""
    if record.profile is not None:
        return f"{record.profile}, by published figures alone"
    return "no drive (give --device)" if record.target is None else f"{record.device}, depth {record.depth}"


def print_plan(records: Sequence[PlanRecord], lines: Sequence[str]) -> None:
    """Records of the budgets asked for, then why, then what would help, then what was taken for granted."""
    first = records[0]
    console = wide_console()
    console.print(
        f"{label_of(first.layout, first.slots)}: {format_bytes(first.file_bytes)}, rows in {first.row_format}, "
        f"{first.placement}; {first.stream}: {first.tokens:,} tokens in {first.documents:,} documents (half of at most "
        f"{first.document_tokens_p50:,} tokens, the longest {first.document_tokens_max:,})",
        highlight=False,
    )
    console.print(f"Drive: {_drive(first)}. Serving path: {first.path}.", highlight=False)
    if first.ranks is not None:
        console.print(
            f"Ranks that share the table by {first.rank_split}: {first.ranks}, each with the RAM budget and a drive of "
            "its own; numbers are those of the slowest.",
            highlight=False,
        )
    steps = [record for record in records if record.rank is None]
    layered = any(record.layer is not None for record in steps) and any(record.layer is None for record in steps)
    table = plain_table([*COLUMNS[:3], *([] if first.ranks is None else ["slowest rank"]), *COLUMNS[3:]])
    for record in steps:
        table.add_row(*_cells(record, not layered or record.layer is None))
    console.print(table)
    for record in steps:
        if layered and record.layer is not None:
            continue
        where = f"{format_bytes(record.cache_bytes) if record.cache_pages else 'No cache'}, batch {record.batch}"
        slowest = "" if record.slowest_rank is None else f", rank {record.slowest_rank}"
        change = f" Cheapest change: {record.change}." if record.change else ""
        console.print(f"{where}{slowest}: {record.verdict}: {record.reason}.{change}", highlight=False)
    for line in lines:
        console.print(line, highlight=False)

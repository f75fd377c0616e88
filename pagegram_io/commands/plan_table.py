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


def _cells(record: PlanRecord, whole: bool) -> list[str]:
    reads = f"{record.reads_per_step_mean:.2f}", str(record.reads_per_step_p50), str(record.reads_per_step_p99)
    return [
        format_bytes(record.cache_bytes) if record.cache_pages else "none",
        str(record.batch),
        "all" if record.layer is None else str(record.layer),
        *(reads if record.steps else "---"),
        _number(record.arrival_p50_ns if record.steps else None, 1e3),
        _number(record.arrival_p99_ns if record.steps else None, 1e3),
        _number(record.deadline_ns, 1e3),
        _number(record.tokens_per_second_p50),
        _number(record.tokens_per_second_p99),
        _number(record.prefill_tokens_per_second) if whole else "-",
        record.verdict,
    ]


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
    where = "no drive (give --device)" if first.target is None else f"{first.device}, depth {first.depth}"
    console.print(f"Drive: {where}. Serving path: {first.path}.", highlight=False)
    wholes = [record for record in records if record.tokens_per_second_p99 is not None or record.layer is None]
    table = plain_table(COLUMNS)
    layered = any(record.layer is not None for record in records) and any(record.layer is None for record in records)
    for record in records:
        table.add_row(*_cells(record, record in wholes))
    console.print(table)
    for record in records:
        if layered and record.layer is not None:
            continue
        where = f"{format_bytes(record.cache_bytes) if record.cache_pages else 'No cache'}, batch {record.batch}"
        change = f" Cheapest change: {record.change}." if record.change else ""
        console.print(f"{where}: {record.verdict}: {record.reason}.{change}", highlight=False)
    for line in lines:
        console.print(line, highlight=False)

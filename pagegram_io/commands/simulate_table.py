"""The table that ``simulate`` prints for a person, and the sentences that say what its numbers are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pagegram_io.assumptions import assumption_sentences
from pagegram_io.commands.options import plain_table, wide_console
from pagegram_io.figures import FIRST_READS_SHARE
from pagegram_io.layout import label_of as layout_label
from pagegram_io.locality import COLD_TOKENS
from pagegram_io.sizes import format_bytes, format_count
from pagegram_io.tokens import DEFAULT_STREAM

if TYPE_CHECKING:
    from pagegram_io.layout import Layout
    from pagegram_io.records import SimulationRecord

PAPER_READS = {"pagegram": 0.99, "engram": 9.18}  # reads a token at 20B and 1 GiB, on the paper's own text


def label_of(record: SimulationRecord) -> str:
    return layout_label(record.layout, record.slots)


def _cache(record: SimulationRecord) -> str:
    return format_bytes(record.cache_bytes) if record.cache_pages else "none"


def _engram_reads(records: Sequence[SimulationRecord]) -> dict[tuple[object, ...], float]:
    return {_setting(r): r.reads_per_token for r in records if r.layout == "engram"}


def _setting(record: SimulationRecord) -> tuple[object, ...]:
    """Records that differ in layout alone share this. Columns of two layouts are different things."""
    column = None if record.column is None else (record.layout, record.slots, record.column)
    return record.table_params, record.cache_bytes, record.order, record.layer, column


def _cells(record: SimulationRecord, engram: dict[tuple[object, ...], float]) -> list[str]:
    rival = engram.get(_setting(record))
    fewer = (
        ""
        if rival is None or record.layout == "engram" or not record.reads_per_token
        else f"{rival / record.reads_per_token:.2f}x"
    )
    return [
        label_of(record),
        "-" if record.rank is None else f"{record.rank} of {record.ranks}",
        "-" if record.layer is None else str(record.layer),
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
    "rank",
    "layer",
    "order",
    "column",
    "table",
    "file",
    "cache",
    "reads/token",
    "less compulsory",
    "second half",
    "hit rate",
    "bytes/token",
    "amplification",
    "fewer than engram",
)


def print_table(
    records: Sequence[SimulationRecord], *, verbose: bool, state_bytes: Mapping[str, int], ours: bool = True
) -> None:
    """The records as a table on stdout, with what they are and are not below; state_bytes by layout label."""
    engram = _engram_reads(records)
    lines = [_cells(record, engram) for record in records]
    used = [i for i in range(len(COLUMNS)) if any(line[i] not in ("", "-") for line in lines)]
    table = plain_table([COLUMNS[i] for i in used])
    for line in lines:
        table.add_row(*(line[i] for i in used))
    console = wide_console()
    first = records[0]
    unit = (
        f"{format_bytes(first.page_bytes)} pages" if first.cache_unit == "page" else "rows (each miss reads its page)"
    )
    state = "cold" if first.state == "cold" else f"warmed by {first.warm_tokens:,} tokens"
    rows = "" if first.row_format is None else f"; rows in {first.row_format}, {first.placement}"
    rows += f", seed {first.seed}" if rows and first.model is None else ""
    console.print(
        f"{first.stream}: {first.tokens:,} tokens in {first.documents:,} documents{_lengths(first)}; "
        f"{first.policy.upper()} cache of {unit}, {state}{rows}",
        highlight=False,
    )
    console.print(table)
    for sentence in _steps(records):
        console.print(sentence, highlight=False)
    if first.model is not None:
        console.print(assumption_sentences(vars(first)), highlight=False)
    for sentence in caveats(records) if ours else []:
        console.print(sentence, highlight=False)
    if verbose:
        for record in records:
            rate = record.accesses / record.seconds / 1e6 if record.seconds else 0.0
            console.print(
                f"{label_of(record)} at {_cache(record)}: "
                f"cache and index would take {format_bytes(record.memory_bytes)} of RAM, "
                f"simulating it took {format_bytes(state_bytes.get(label_of(record), 0))}; "
                f"simulated in {record.seconds:.2f} s ({rate:.0f}M accesses/s, {record.isa}, {record.threads} threads)",
                highlight=False,
            )


def _lengths(record: SimulationRecord) -> str:
    """How long documents are, and who takes them in turn, where the stream does not run as it stands."""
    if record.interleave is None:
        return ""
    text = f" (half of at most {record.document_tokens_p50:,} tokens, the longest {record.document_tokens_max:,})"
    return f"{text}, {record.interleave:,} in turn"


def _part(record: SimulationRecord, sizes: int) -> str:
    """Whose reads a record has, in words: the layout, its size where there are several, and what part of it."""
    size = f" of {format_count(record.table_params)}" if sizes > 1 and record.table_params is not None else ""
    parts = [
        *([] if record.rank is None else [f"rank {record.rank} of {record.ranks}"]),
        *([] if record.layer is None else [f"layer {record.layer}"]),
        *([] if record.order is None else [f"order {record.order}"]),
    ]
    return ", ".join([label_of(record) + size, *parts])


def _steps(records: Sequence[SimulationRecord]) -> list[str]:
    """What the steps of a schedule show: a line a layout or part of it, then one a cache."""
    lines, said = [], set()
    sizes = len({r.table_params for r in records})
    for r in records:
        where = _part(r, sizes)
        if r.interleave is None or r.steps is None or r.column is not None:
            continue
        if where not in said:
            said.add(where)
            whole = "" if r.layer is None and r.order is None else " of all parts"
            own = "" if not whole else " of its own"
            lines.append(
                f"{where}: {r.steps:,} steps, distinct pages a step{whole} {r.pages_per_step_p50:,} (p99 "
                f"{r.pages_per_step_p99:,}, most {r.pages_per_step_max:,}); "
                f"{100 * (r.adjacent_reuse or 0):.2f} %{own} were touched by the step before"
            )
        kinds = {
            f"in a document's first {COLD_TOKENS} tokens": r.cold_reads_per_token,
            "after them": r.settled_reads_per_token,
            "in prefill": r.prefill_reads_per_token,
            "in decode": r.decode_reads_per_token,
        }
        shares = ", ".join(f"{value:.4f} {name}" for name, value in kinds.items() if value is not None)
        lines.append(f"{where} at {_cache(r)}: reads a token {shares}")
    if any(r.pollution_bytes for r in records):
        size = format_bytes(records[0].pollution_bytes)
        lines.append(f"Half-way, {size} of another file passed through the same cache; its own reads are not counted.")
    if any(r.draft for r in records):
        lines.append(
            f"{records[0].draft} tokens drafted and rejected a decode step, drawn from the stream's own tokens; "
            "a draft model's are likelier, and read less."
        )
    return lines


def caveats(records: Sequence[SimulationRecord]) -> list[str]:
    """What the numbers are not, each sentence only where it is true; nothing for a trace that is not ours."""
    names = {record.layout for record in records}
    if not names & {"flat", "engram", "pagegram"}:
        return []
    paper = " and ".join(f"{reads} for {name}" for name, reads in PAPER_READS.items())
    whose = (
        "stream and hash are ours" if records[0].stream == DEFAULT_STREAM else "the stream is yours and the hash ours"
    )
    lines = [f"Not the paper's numbers: {whose} (the paper, on its own text, 20B behind 1 GiB: {paper} reads a token)."]
    second = []
    flat = {_setting(r): r.misses for r in records if r.layout == "flat"}
    rivals = [(flat[_setting(r)], r.misses) for r in records if r.layout == "pagegram" and _setting(r) in flat]
    if rivals and all(ours <= theirs for ours, theirs in rivals):
        second.append("Flat reads no more than pagegram: the case against flat is loss, not reads.")
    empty = {label_of(r): _slack(r) for r in records if _slack(r) >= 0.05}
    if empty and len(names) > 1:
        shares = ", ".join(f"{label} leaves {100 * share:.0f} % of each page empty" for label, share in empty.items())
        second.append(f"Files differ in size at equal parameters: {shares}.")
    return [*lines, *([" ".join(second)] if second else [])]


def _slack(record: SimulationRecord) -> float:
    """Share of the file that holds no rows."""
    if not record.table_params_actual or not record.row_width or not record.row_bytes:
        return 0.0
    return 1 - record.table_params_actual // record.row_width * record.row_bytes / record.file_bytes


def warnings(records: Sequence[SimulationRecord], layouts: Sequence[Layout]) -> list[str]:
    """What weakens a result: a cache still filling, first accesses, costs that a name does not tell."""
    from pagegram_io.straddles import expected_reads

    lines = []
    for layout in layouts:
        reads = expected_reads(layout)
        if any(region.unit_bytes > layout.page_bytes for region in layout.regions):
            unit = "bucket" if layout.groups[0].unit_rows > 1 else "row"
            lines.append(
                f"{layout.label}: a {unit} of {format_bytes(layout.regions[0].unit_bytes)} is longer than a page; "
                f"an uncached token costs {reads:.3g} reads, not {len(layout.groups)}"
            )
        if layout.scales == "read":
            lines.append(
                f"{layout.label}: scales lie in tensors of their own, so an uncached token costs {reads:.3g} reads, "
                f"not {len(layout.groups)}; keep them resident, or repack"
            )
    lines += _too_few_documents(records)
    said = set()
    repeating: list[str] = []
    sizes = len({r.table_params for r in records})
    for r in records:
        key = (label_of(r), r.rank, r.table_params, r.cache_pages)
        if key in said or r.cache_pages == 0:
            continue
        said.add(key)
        where = f"{_part(replace(r, layer=None, order=None), sizes)} at {_cache(r)}"
        middle = r.warm_tokens + r.tokens // 2
        whole = r.cache_unit == "page" and r.cache_pages >= r.pages
        total = [x for x in records if (label_of(x), x.rank, x.table_params, x.cache_pages) == key]
        misses, first = sum(x.misses for x in total), sum(x.compulsory_misses for x in total)
        every = "; every read is compulsory" if misses == first else ""  # not where another file passes through
        if whole:
            lines.append(f"{where}: the cache holds the whole table ({format_bytes(r.file_bytes)}){every}")
        elif r.cache_full_at_token is None:
            lines.append(f"{where}: the cache never filled{every}; give more tokens")
        elif r.cache_full_at_token > middle:
            lines.append(
                f"{where}: the cache filled at token {r.cache_full_at_token:,}, after mid-stream; give more tokens"
            )
        if is_filler(total) and label_of(r) not in repeating:
            repeating.append(label_of(r))
        filled = r.cache_full_at_token is not None
        if misses and first > FIRST_READS_SHARE * misses and filled and not whole:
            lines.append(
                f"{where}: {100 * first / misses:.0f} % of the reads are compulsory; give more tokens, or --warm"
            )
    if repeating:
        lines.append(
            f"{', '.join(repeating)}: nearly every access repeats a page; text does not. A stream of one token or a "
            "filler flatters every cache; use real text"
        )
    return lines


def _too_few_documents(records: Sequence[SimulationRecord]) -> list[str]:
    """Where documents in turn run out, steps at a stream's end hold fewer, and reads a token are of smaller batches."""
    first = records[0]
    if not first.interleave or first.interleave == 1 or first.window or not first.steps:
        return []
    share = (first.tokens + first.warm_tokens) / first.steps / first.interleave
    if share >= IN_TURN_SHARE:
        return []
    return [
        f"{first.interleave} documents in turn: a step holds {share * first.interleave:.1f} on average, since long "
        "ones are left alone at the end; give more tokens (plan counts full steps only)"
    ]


IN_TURN_SHARE = 0.9
FILLER_SHARE = (
    0.01  # of accesses to distinct pages; the shipped text keeps above a tenth of them for millions of tokens
)
FILLER_TOKENS = 1000


def is_filler(cell: Sequence[SimulationRecord]) -> bool:
    """Do the records of one cache look like a stream of a few tokens over and over, in a table with room for more?

    Tables of single tokens repeat their rows on any text, and a warmed cache has had its first accesses already.
    """
    first = cell[0]
    accesses, distinct = sum(r.accesses for r in cell), sum(r.compulsory_misses for r in cell)
    roomy = first.cache_unit == "page" and 2 * distinct < first.pages
    ngrams = first.orders is not None and max(map(int, first.orders.split(","))) > 1
    return (
        ngrams
        and roomy
        and not first.warm_tokens
        and first.tokens >= FILLER_TOKENS
        and distinct < FILLER_SHARE * accesses
    )

"""``pagegram-io verify``: is every page of a table file what was written?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import print_records

if TYPE_CHECKING:
    from pagegram_io.verification import Damage, Verification

EPILOG = """
Examples:

\b
  pagegram-io verify table.safetensors
  pagegram-io verify --json table.safetensors
"""


@click.command("verify", epilog=EPILOG)
@click.argument("path", metavar="FILE", type=click.Path(readable=False))
@click.option(
    "--depth",
    type=click.IntRange(1, 32768),
    default=64,
    show_default=True,
    metavar="N",
    help="Reads kept in flight. [e.g. 128]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a record of the file, then one a damaged page, as JSON.")
def command(path: str, depth: int, as_json: bool) -> int:
    """Read every page of the table file FILE and compare its checksum and number; name each damaged page.

    Pages are read as lookups read them, with O_DIRECT where the file system has it. Exit status: 0 if every page is
    sound, 1 if not.
    """
    from pagegram_io.progress import byte_progress
    from pagegram_io.sizes import format_bytes
    from pagegram_io.table_file import read_header
    from pagegram_io.verification import verify

    header = read_header(path)
    total, done = header.page_count * header.page_bytes, 0
    with byte_progress(f"verifying {click.format_filename(path)}", total) as advance:

        def report(count: int) -> None:
            nonlocal done
            done += count
            advance(count)

        try:
            found = verify(path, depth=depth, progress=report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped after {format_bytes(done)} of {format_bytes(total)}") from None
    if not found.direct:
        print(f"note: {found.why}", file=sys.stderr)
    if as_json:
        print_records(_records(path, found))
    else:
        _print_result(path, found)
    return 1 if found.damaged else 0


def _records(path: str, found: Verification) -> list[dict[str, Any]]:
    from pagegram_io.inspection import table_record
    from pagegram_io.records import SCHEMA, provenance

    header = found.header
    name = click.format_filename(path)
    whole = table_record(name, header) | {
        "kind": "verification",
        "damaged_pages": len(found.damaged),
        "engine": found.engine,
        "direct": found.direct,
        "seconds": found.seconds,
        **provenance(),
    }
    pages = [
        {"kind": "damaged_page", "schema": SCHEMA, "file": name, "page": damage.page,
         "byte": header.data_byte + damage.page * header.page_bytes, "what": damage.what}
        for damage in found.damaged
    ]  # fmt: skip
    return [whole, *pages]


def _print_result(path: str, found: Verification) -> None:
    """Neighbours with the same damage share a line; every damaged page is named."""
    from pagegram_io.sizes import format_bytes

    header, count = found.header, len(found.damaged)
    name = click.format_filename(path)
    rate = format_bytes(int(header.page_count * header.page_bytes / max(found.seconds, 1e-9)))
    how = f"{found.seconds:.1f} s, {rate}/s, {found.why}"
    if not count:
        print(f"{name}: all {header.page_count:,} pages are sound ({how})")
        return
    print(f"{name}: {count:,} of {header.page_count:,} pages {'are' if count > 1 else 'is'} damaged ({how})")
    for run in _runs(found.damaged):
        first, last, what = run[0].page, run[-1].page, run[0].what
        byte = header.data_byte + first * header.page_bytes
        pages = f"page {first}" if first == last else f"pages {first} to {last}: each"
        print(f"  {pages} {what} (from byte {byte:,})")


def _runs(damaged: tuple[Damage, ...]) -> list[list[Damage]]:
    runs: list[list[Damage]] = []
    for damage in damaged:
        if runs and runs[-1][-1].page + 1 == damage.page and runs[-1][-1].what == damage.what:
            runs[-1].append(damage)
        else:
            runs.append([damage])
    return runs

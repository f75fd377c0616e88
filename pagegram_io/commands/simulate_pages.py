"""``simulate --pages``: a page trace from anywhere, in place of our layouts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import given, option_text

if TYPE_CHECKING:
    from pagegram_io.job import Outcome

# What the .json beside a trace says that a record also says.
INHERITED = (
    "slots",
    "table_params_actual",
    "row_format",
    "row_bytes",
    "placement",
    "base_byte",
    "seed",
    "heads",
    "row_width",
    "dim",
    "orders",
    "stream",
    "stream_sha256",
    "documents",
    "model",
    "scales",
    "resident_bytes",
    "assumed",
    "tokenizer_stand_in",
)
SERVED = ("window", "interleave", "concurrency", "draft", "pollution_bytes", "requests_path", "tokenizer")
OURS = (
    "model",
    "scales",
    "repack",
    "layouts",
    "slots",
    "seed",
    "row_format",
    "packed",
    "base_byte",
    "orders",
    "heads",
    "row_width",
    "dim",
    "page_bytes",
)


def run_pages(values: dict[str, Any]) -> list[Outcome]:
    """Simulate the trace that --pages names; what stands beside it in .json names its layout and stream."""
    from pagegram_io.progress import progress
    from pagegram_io.simulation import curve_outcome
    from pagegram_io.trace import read_pages

    if values["split"] or values["cache_unit"] != "page" or values["stream_path"]:
        raise click.UsageError("--pages holds pages alone; it cannot be used with --by, --cache-unit row or --tokens")
    served = [name for name in SERVED if values[name] is not None]
    if served:
        raise click.UsageError(f"{option_text(served[0])} needs the tokens' documents; a trace of pages has lost them")
    pages, about = read_pages(values["pages_path"])
    useless = [name for name in OURS if given(name) and (about or name != "page_bytes")]
    if useless:
        raise click.UsageError(f"{option_text(useless[0])} describes our layouts; --pages brings its own")
    if values["limit"] and about and values["limit"] < about.get("tokens", 0):
        raise click.UsageError("--limit would cut a trace whose .json describes all of it; make one with trace --limit")
    pages = pages[: values["limit"]] if values["limit"] else pages
    if values["pages_path"].endswith(".u32"):
        pages = _with_tokens(pages, about)
    fields = {name: about[name] for name in INHERITED if name in about}
    if given("tables") and len(values["tables"]) != 1:
        raise click.UsageError("--pages is one table; give one --table size, or none")
    table_params = values["tables"][0] if given("tables") else about.get("table_params")
    with progress("simulating", int(pages.size)) as report:
        outcome = curve_outcome(
            pages,
            name=values["name"] or about.get("layout") or Path(values["pages_path"]).stem,
            stream=None,
            cache=[cache.text for cache in values["caches"]],
            every_size=bool(values["curve"] or values["plot_path"] or values["curve_npy"]),
            table_params=table_params,
            page_bytes=about.get("page_bytes", values["page_bytes"]),
            page_count=about.get("pages"),
            about=fields,
            warm_tokens=values["warm_tokens"],
            tick=report,
            bytes_used=about.get("bytes_used_per_token"),
        )
    return [outcome]


def _with_tokens(pages: Any, about: dict[str, Any]) -> Any:
    """A .u32 trace has lost where its tokens begin; the .json beside it gives them back where none was squeezed."""
    if not about:
        print("note: a .u32 file alone has no tokens: each access counts as one", file=sys.stderr)
        return pages
    tokens, columns = about.get("tokens", 0), about.get("columns", 0)
    if tokens * columns != pages.size:
        raise click.UsageError(
            "this .u32 trace had unused places, so where its tokens begin is lost; make it with --format npy"
        )
    return pages.reshape(tokens, columns)

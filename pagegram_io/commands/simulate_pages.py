"""``simulate --pages``: a page trace from anywhere, in place of our layouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pagegram_io.job import Outcome

# What the .json beside a trace says that a record also says.
INHERITED = (
    "slots",
    "table_params_actual",
    "row_format",
    "row_bytes",
    "placement",
    "seed",
    "heads",
    "row_width",
    "dim",
    "stream",
    "stream_sha256",
    "documents",
)


def run_pages(values: dict[str, Any]) -> list[Outcome]:
    """Simulate the trace that --pages names; what stands beside it in .json names its layout and stream."""
    from pagegram_io.progress import progress
    from pagegram_io.simulation import curve_outcome
    from pagegram_io.trace import read_pages

    if values["split"] or values["cache_unit"] != "page" or values["stream_path"]:
        raise click.UsageError("--pages holds pages alone; it cannot be used with --by, --cache-unit row or --tokens")
    pages, about = read_pages(values["pages_path"])
    if values["limit"]:
        pages = pages[: values["limit"]]
    fields = {name: about[name] for name in INHERITED if name in about}
    if "orders" in about:
        fields["orders"] = ",".join(map(str, about["orders"]))
    asked_table = click.get_current_context().get_parameter_source("tables") == click.core.ParameterSource.COMMANDLINE
    if asked_table and len(values["tables"]) != 1:
        raise click.UsageError("--pages is one table; give one --table size, or none")
    table_params = values["tables"][0] if asked_table else about.get("table_params")
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

"""How many flash reads does a token cost? Page addresses and page-cache simulation of n-gram tables.

>>> import pagegram_io
>>> records = pagegram_io.simulate(table="200M", cache="16MiB", limit=100_000)
>>> pagegram_io.records_to_frame(records)[["layout", "reads_per_token"]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagegram_io.deployed import family_of
    from pagegram_io.errors import FormatError
    from pagegram_io.hashes import Hash
    from pagegram_io.job import Job, StreamSpec, run, run_jobs
    from pagegram_io.layout import Column, Group, Layout, Region, Shape, engram, flat, pagegram
    from pagegram_io.record_files import records_to_frame
    from pagegram_io.simulation import curve, simulate
    from pagegram_io.table import Table
    from pagegram_io.tokens import Stream, read_stream

_HOMES = {
    "deployed": ("family_of",),
    "errors": ("FormatError",),
    "hashes": ("Hash",),
    "job": ("Job", "StreamSpec", "run", "run_jobs"),
    "layout": ("Column", "Group", "Layout", "Region", "Shape", "engram", "flat", "pagegram"),
    "record_files": ("records_to_frame",),
    "simulation": ("curve", "simulate"),
    "table": ("Table",),
    "tokens": ("Stream", "read_stream"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Column",
    "FormatError",
    "Group",
    "Hash",
    "Job",
    "Layout",
    "Region",
    "Shape",
    "Stream",
    "StreamSpec",
    "Table",
    "curve",
    "engram",
    "family_of",
    "flat",
    "pagegram",
    "read_stream",
    "records_to_frame",
    "run",
    "run_jobs",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import pagegram_io`` and ``--help`` stay quick."""
    if name == "__version__":
        import importlib.metadata

        return importlib.metadata.version("pagegram-io")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

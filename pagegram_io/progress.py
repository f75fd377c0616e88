"""A progress bar with an ETA on stderr, for work longer than two seconds, only where a person watches."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

QUIET_SECONDS = 2.0


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[float], None]]:
    """Gives a function to be told of steps done; calls must not overlap. Shows nothing off a terminal."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(description, total=total)
    started, shown = time.monotonic(), False

    def advance(steps: float) -> None:
        nonlocal shown
        bar.advance(task, steps)
        if not shown and time.monotonic() - started > QUIET_SECONDS:
            shown = True
            bar.start()

    try:
        yield advance
    finally:
        if shown:
            bar.stop()


@contextlib.contextmanager
def byte_progress(description: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """As ``progress``, for bytes: with their rate."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(escape(description), total=total_bytes)
        yield lambda count: bar.advance(task, count)

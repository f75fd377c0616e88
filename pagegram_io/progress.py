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
    with noted_progress(description, total) as advance:
        yield advance


@contextlib.contextmanager
def noted_progress(description: str, total: int) -> Iterator[Callable[..., None]]:
    """As ``progress``; the function takes a note to show as well: advance(1, "loss 4.2")."""
    if not sys.stderr.isatty():
        yield lambda steps, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(description, total=total, note="")
    started, shown = time.monotonic(), False

    def advance(steps: float, note: str = "") -> None:
        nonlocal shown
        bar.update(task, advance=steps, note=note)
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


@contextlib.contextmanager
def read_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for a reader that tells the bytes read so far and the bytes of its file."""
    with progress(title, 1) as advance:
        done = 0.0

        def report(read_bytes: int, total_bytes: int) -> None:
            nonlocal done
            share = read_bytes / max(total_bytes, 1)
            advance(share - done)
            done = share

        yield report

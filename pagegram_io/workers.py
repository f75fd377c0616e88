"""Work on threads (C releases the GIL): the longest first, one progress for all, a stop within a batch of Ctrl-C."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from pagegram_io.policy import Tick

Made = TypeVar("Made")


class Interrupted(KeyboardInterrupt):
    """Somebody asked running work to stop; ``done`` and ``total`` are accesses."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__(f"stopped after {done:,} of {total:,} accesses")
        self.done, self.total = done, total


def default_threads() -> int:
    """CPUs that this process may use, not those of the host."""
    return len(os.sched_getaffinity(0))


class _Progress:
    """Counts accesses over all threads; raises in each of them once somebody asked to stop."""

    def __init__(self, total: int, report: Tick | None) -> None:
        self.done, self.total, self.report = 0, total, report
        self.lock, self.stopped = threading.Lock(), threading.Event()

    def tick(self, accesses: int) -> None:
        if self.stopped.is_set():
            raise Interrupted(self.done, self.total)
        with self.lock:
            self.done += accesses
            if self.report:
                self.report(accesses)


def on_threads(
    tasks: Sequence[Callable[[Tick], Made]],
    costs: Sequence[int],
    *,
    threads: int | None = None,
    report: Tick | None = None,
) -> list[Made]:
    """What each task returns, in the tasks' order. A task is given a function to be told of accesses done.

    costs: of each task, in accesses. Raises the first task's exception, or Interrupted (a KeyboardInterrupt).
    """
    progress = _Progress(sum(costs), report)
    with ThreadPoolExecutor(max_workers=threads or default_threads()) as pool:
        futures: dict[int, Future[Made]] = {}
        try:
            for i in sorted(range(len(tasks)), key=lambda i: -costs[i]):
                futures[i] = pool.submit(tasks[i], progress.tick)
            waiting = set(futures.values())
            while waiting:
                done, waiting = wait(waiting, timeout=0.1, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
        except BaseException as error:
            progress.stopped.set()
            for future in futures.values():
                future.cancel()
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(progress.done, progress.total) from None
            raise
        return [futures[i].result() for i in range(len(tasks))]

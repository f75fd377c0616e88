"""What several test modules share: the shipped stream, the instruction sets of this CPU, small layouts."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable

import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, settings

from pagegram_io import native
from pagegram_io.layout import Layout, Shape, engram, flat, pagegram
from pagegram_io.tokens import Stream, read_stream

# A loaded machine draws examples slowly; that is no failure of what is tested.
settings.register_profile("pagegram-io", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pagegram-io")

# Tests interrupt what they start. Under nohup, or in the background of a script, those signals are ignored, and all
# that is started would ignore them too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Only those that this CPU has: nothing is skipped, so that no skip is ever expected.
ISAS = ["portable", "avx2", "avx512"][: ["portable", "avx2", "avx512"].index(native.isa_best()) + 1]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", ISAS)


@functools.cache
def _shipped(limit: int | None) -> Stream:
    return read_stream(limit=limit)


@pytest.fixture(scope="session")
def shipped() -> Callable[[int | None], Stream]:
    """The shipped stream, or its first `limit` tokens; read once a session."""
    return _shipped


@pytest.fixture(scope="session")
def long_trace() -> tuple[np.ndarray, list[int]]:
    """5 million accesses to 40 pages, which use up the 4 * 40 + 2^20 positions four times; counts by stack distance."""
    rng = np.random.default_rng(7)
    pages = np.minimum(rng.geometric(0.15, 5_000_000) - 1, 39).astype(np.uint32)
    pages[1_000_000:2_000_000] += rng.integers(0, 2, 1_000_000, np.uint32)  # the mixture changes on the way
    pages = np.minimum(pages, 39)
    counts = np.zeros(42, np.int64)
    counts += np.bincount(reference.stack_distances(pages.tolist()), minlength=42)
    return pages, counts.tolist()


def make_stream(ids: object, starts: object = (0,), vocabulary: int = 65536, dtype: type = np.uint16) -> Stream:
    return Stream(np.array(ids, dtype), np.array(starts, np.uint64), vocabulary, "test")


def small_layouts() -> list[Layout]:
    """Tables of a few hundred rows that show every kind of placement."""
    shape = Shape(heads=3, row_width=8, dim=16, page_bytes=512)
    packed = Shape(heads=3, row_width=8, dim=16, page_bytes=512, packed=True)
    based = Shape(heads=3, row_width=8, dim=16, page_bytes=512, packed=True, base_byte=1237)
    wide = Shape(heads=3, row_width=64, dim=16, page_bytes=512)
    wide_packed = Shape(heads=3, row_width=64, dim=16, page_bytes=512, packed=True, base_byte=7)
    four = Shape(orders=(1, 2, 3, 5), heads=2, row_width=16, dim=24, page_bytes=512, row_format="fp16", seed=9)
    layouts = []
    for s in (shape, packed, based, four):
        layouts += [flat(6000, s), engram(9000, s), pagegram(12000, 4, s)]
    # A bucket longer than a page, read row by row.
    layouts += [pagegram(60000, 9, wide), pagegram(60000, 9, wide_packed), pagegram(30000, 7, four)]
    return layouts


_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI a test that does not run is a failure: only those that need a GPU may be skipped."""
    unexpected = [line for line in _skipped if "GPU" not in line]
    if os.environ.get("CI") and unexpected:
        print("\nskipped, but CI should run it:", *unexpected, sep="\n  ")
        session.exitstatus = 1

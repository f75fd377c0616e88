"""The border to C for caches (lru.c, curve.c, steps.c), beside ``native.py`` and by its rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagegram_io._pgio import ffi, lib
from pagegram_io.native import Handle, checked, isa_code, pointer, uint64_array

MAX_CAPACITIES = lib.PGIO_MAX_CAPACITIES
FIRST_ACCESS = lib.PGIO_FIRST_ACCESS


def _classes(class_of_column: np.ndarray) -> tuple[np.ndarray, int]:
    classes = np.ascontiguousarray(class_of_column, dtype=np.uint32)
    return classes, int(classes.max()) + 1


def _pages_of(pages: np.ndarray, columns: int) -> np.ndarray:
    if pages.dtype != np.uint32 or pages.ndim != 2 or pages.shape[1] != columns:
        raise ValueError(f"pages are uint32 [tokens, {columns}], not {pages.dtype} {list(pages.shape)}")
    return np.ascontiguousarray(pages)


class Lru(Handle):
    """Exact LRU at several cache sizes in one pass (lru.c). Capacities are in pages; all caches start cold."""

    _free = lib.pgio_lru_free

    def __init__(self, page_count: int, capacities: Sequence[int], class_of_column: np.ndarray) -> None:
        super().__init__()
        sizes = uint64_array(list(capacities))
        self._classes, self.class_count = _classes(class_of_column)
        self.columns, self.capacity_count = len(self._classes), len(sizes)
        self._make(
            "pgio_lru",
            lib.pgio_lru_new,
            page_count,
            pointer(sizes, "uint64_t *"),
            len(sizes),
            pointer(self._classes, "uint32_t *"),
            self.columns,
            self.class_count,
        )

    def access(self, pages: np.ndarray, *, missed: np.ndarray | None = None) -> int:
        """Access pages, uint32 [tokens, columns], in order. Returns the accesses made.

        ``missed`` (uint8, same shape) receives verdicts: how many of the sizes miss, which are the smallest so many,
        with FIRST_ACCESS added where the page was never accessed before; 0 in unused places.
        """
        pages = _pages_of(pages, self.columns)
        if missed is not None and (
            missed.dtype != np.uint8 or missed.shape != pages.shape or not missed.flags.c_contiguous
        ):
            raise ValueError("missed must be contiguous uint8 of the same shape as pages")
        verdicts = ffi.NULL if missed is None else pointer(missed, "uint8_t *")
        return checked(lib.pgio_lru_access, self._live(), pointer(pages, "uint32_t *"), len(pages), verdicts)

    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """accesses, compulsory [classes]; misses [sizes, classes]; full_at_token [sizes], 2^64-1 while not full."""
        accesses, compulsory = np.empty(self.class_count, np.uint64), np.empty(self.class_count, np.uint64)
        misses = np.empty((self.capacity_count, self.class_count), np.uint64)
        full = np.empty(self.capacity_count, np.uint64)
        lib.pgio_lru_counts(self._live(), *(pointer(a, "uint64_t *") for a in (accesses, compulsory, misses, full)))
        return accesses, compulsory, misses, full

    @property
    def state_bytes(self) -> int:
        """Memory of the simulator itself (docs/method.md has the formula)."""
        return int(lib.pgio_lru_state_bytes(self._live()))


def merge_steps(pages: np.ndarray, steps: np.ndarray) -> int:
    """Blank in place what an earlier place of the same step holds; returns the places left in use (steps.c).

    pages: contiguous uint32 [tokens, columns], NO_PAGE where unused; steps: of each token, ascending integers.
    """
    if pages.dtype != np.uint32 or pages.ndim != 2 or not pages.flags.c_contiguous or len(steps) != len(pages):
        raise ValueError("pages must be contiguous uint32 [tokens, columns], with a step for each token")
    if not len(steps):
        return 0
    numbers = np.asarray(steps, np.int64) - (int(steps[0]) - 1)
    if numbers[-1] >= 1 << 32:
        raise ValueError(f"{numbers[-1]:,} steps at once; fewer than 2^32 can be")
    longest = int(np.diff(np.flatnonzero(np.diff(numbers, prepend=0, append=numbers[-1] + 1))).max())
    seen = np.zeros(1 << (2 * longest * pages.shape[1]).bit_length(), np.uint64)
    numbers = numbers.astype(np.uint32)
    return checked(
        lib.pgio_steps_merge,
        pointer(pages, "uint32_t *"),
        pointer(numbers, "uint32_t *"),
        len(pages),
        pages.shape[1],
        pointer(seen, "uint64_t *"),
        len(seen),
    )


def count_verdicts(
    pages: np.ndarray, missed: np.ndarray, class_of_column: np.ndarray, size_count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Verdicts of Lru.access by token: accesses and first accesses, uint32 [tokens, classes], and misses, uint32
    [tokens, classes, sizes], sizes from the smallest to the largest (steps.c)."""
    classes, class_count = _classes(class_of_column)
    pages = _pages_of(pages, len(classes))
    if missed.dtype != np.uint8 or missed.shape != pages.shape or not missed.flags.c_contiguous:
        raise ValueError("missed must be contiguous uint8 of the same shape as pages")
    made = np.empty((2, len(pages), class_count), np.uint32)
    misses = np.empty((len(pages), class_count, size_count), np.uint32)
    checked(
        lib.pgio_steps_count,
        pointer(pages, "uint32_t *"),
        pointer(missed, "uint8_t *"),
        len(pages),
        pointer(classes, "uint32_t *"),
        len(classes),
        class_count,
        size_count,
        *(pointer(a, "uint32_t *") for a in (made[0], made[1], misses)),
    )
    return made[0], made[1], misses


class Curve(Handle):
    """Exact LRU at every cache size in one pass (curve.c)."""

    _free = lib.pgio_curve_free

    def __init__(self, page_count: int, class_of_column: np.ndarray, *, isa: str = "auto") -> None:
        super().__init__()
        self._classes, self.class_count = _classes(class_of_column)
        self.columns, self.page_count = len(self._classes), page_count
        self._make(
            "pgio_curve",
            lib.pgio_curve_new,
            page_count,
            pointer(self._classes, "uint32_t *"),
            self.columns,
            self.class_count,
            isa_code(isa),
        )

    def access(self, pages: np.ndarray) -> int:
        """Access pages, uint32 [tokens, columns], in order. Returns the accesses made."""
        pages = _pages_of(pages, self.columns)
        return checked(lib.pgio_curve_access, self._live(), pointer(pages, "uint32_t *"), len(pages))

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """accesses [classes] and compulsory [classes], uint64."""
        accesses, compulsory = np.empty(self.class_count, np.uint64), np.empty(self.class_count, np.uint64)
        pointers = pointer(accesses, "uint64_t *"), pointer(compulsory, "uint64_t *")
        lib.pgio_curve_counts(self._live(), *pointers, ffi.NULL)
        return accesses, compulsory

    def histogram(self) -> np.ndarray:
        """Accesses by stack distance d, uint64 [classes, page_count + 1]; they hit caches of at least d pages."""
        accesses, compulsory = np.empty(self.class_count, np.uint64), np.empty(self.class_count, np.uint64)
        histogram = np.empty((self.class_count, self.page_count + 1), np.uint64)
        lib.pgio_curve_counts(self._live(), *(pointer(a, "uint64_t *") for a in (accesses, compulsory, histogram)))
        return histogram

    def first_tokens(self) -> np.ndarray:
        """The token that first touched the 1st, 2nd, ... distinct page, uint64 [distinct pages]."""
        tokens = np.empty(self.page_count, np.uint64)
        return tokens[: lib.pgio_curve_first_tokens(self._live(), pointer(tokens, "uint64_t *"))]

    @property
    def state_bytes(self) -> int:
        """Memory of the simulator itself (docs/method.md has the formula)."""
        return int(lib.pgio_curve_state_bytes(self._live()))


def swap_floor(last: np.ndarray, pages: np.ndarray) -> int:
    """The least that any such simulator must do: swap last[page] for every access. Returns a checksum."""
    if last.dtype != np.uint32 or pages.dtype != np.uint32 or not pages.flags.c_contiguous:
        raise ValueError("last and pages are contiguous uint32")
    if pages.size and int(pages.max()) >= last.size:
        raise ValueError(f"page {int(pages.max())} is not in a table of {last.size} pages")
    return int(lib.pgio_swap_floor(pointer(last, "uint32_t *"), pointer(pages, "uint32_t *"), pages.size))

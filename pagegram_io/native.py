"""The border to C: with the other ``native_*.py``, the only modules that touch ``_pgio``.

Arrays are made contiguous once, every output is allocated here, a negative return becomes an exception
with C's own sentence, and each handle is a context manager. The GIL is released during calls, so a handle
belongs to one thread at a time. Work is cut into batches by the callers, for progress and Ctrl-C.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from pagegram_io._pgio import ffi, lib

if TYPE_CHECKING:
    from pagegram_io.layout import Layout
    from pagegram_io.tokens import Stream

NO_PAGE = lib.PGIO_NO_PAGE
NO_ROW = 2**64 - 1
NO_TEXT = lib.PGIO_NO_TEXT
MAX_ORDER = lib.PGIO_MAX_ORDER
ISAS = {"auto": 0, "portable": 1, "avx2": 2, "avx512": 3}
SCHEMES = {
    "pg1": lib.PGIO_SCHEME_PG1,
    "mulxor": lib.PGIO_SCHEME_MULXOR,
    "poly": lib.PGIO_SCHEME_POLY,
    "token": lib.PGIO_SCHEME_TOKEN,
}
ROLES = {"bucket": 1, "row": 2, "sign": 3}


def isa_best() -> str:
    """The widest instructions that this CPU has and the C core uses: portable, avx2 or avx512."""
    best = lib.pgio_isa_best()
    return next(name for name, value in ISAS.items() if value == best)


def _raise(status: int, error: Any) -> None:
    text = ffi.string(error.text).decode(errors="replace")
    if -status == errno.ENOMEM:
        raise MemoryError(text)
    if -status in (errno.EINVAL, errno.ERANGE, errno.EOVERFLOW):
        raise ValueError(text)
    raise OSError(-status, text or os.strerror(-status))


def checked(call: Any, *arguments: Any) -> int:
    """Call C with an error text at the end; returns its count or raises."""
    error = ffi.new("pgio_error *")
    try:
        status = call(*arguments, error)
    except OverflowError as overflow:
        raise ValueError(f"a number is negative or too large for the C core ({overflow})") from None
    if status < 0:
        _raise(status, error)
    return int(status)


def _structs(ctype: str, values: Any) -> Any:
    """C structs from dicts; ValueError for a field that its C type cannot hold."""
    try:
        return ffi.new(ctype, values)
    except OverflowError as overflow:
        raise ValueError(f"a field of the layout is negative or too large for the C core ({overflow})") from None
    except IndexError:
        raise ValueError(f"a hash has more multipliers than an n-gram of {MAX_ORDER} tokens takes") from None


def isa_code(name: str) -> int:
    if name not in ISAS:
        raise ValueError(f"instruction set {name!r} is not known; choose one of {', '.join(ISAS)}")
    return ISAS[name]


def pointer(array: np.ndarray, ctype: str) -> Any:
    return ffi.cast(ctype, array.ctypes.data)


def uint64_array(values: Any) -> np.ndarray:
    array = np.ascontiguousarray(values)
    if array.dtype != np.uint64:
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"integers are needed, not {array.dtype}")
        if array.size and int(array.min()) < 0:
            raise ValueError(f"{int(array.min())} is negative")
        array = array.astype(np.uint64)
    return array


class Handle:
    """A C object: made by ``_make``, freed once, usable in a ``with`` statement."""

    _free: Any = None

    def __init__(self) -> None:
        self._handle: Any = None

    def _make(self, ctype: str, new: Any, *arguments: Any) -> None:
        out = ffi.new(f"{ctype} **")
        checked(new, out, *arguments)
        self._handle = ffi.gc(out[0], self._free)

    def _live(self) -> Any:
        if self._handle is None:
            raise ValueError(f"this {type(self).__name__} was closed")
        return self._handle

    def close(self) -> None:
        """Free the C memory now; using the object afterwards raises ValueError."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def mix(value: int) -> int:
    """The finaliser of scheme pg1 (layouts.md): 64-bit integer to 64-bit integer."""
    return int(lib.pgio_mix(value))


def salt(seed: int, role: str, order: int, index: int) -> int:
    """The salt of one hash; role is ``bucket``, ``row`` or ``sign``."""
    return int(lib.pgio_salt(seed, ROLES[role], order, index))


class _Tokens:
    """A C view of a stream; keeps the arrays behind it alive."""

    def __init__(self, stream: Stream) -> None:
        self.ids = np.ascontiguousarray(stream.ids)
        if self.ids.dtype not in (np.uint16, np.uint32):
            raise ValueError(f"token ids are uint16 or uint32, not {self.ids.dtype}")
        self.starts = uint64_array(stream.document_starts)
        self.view = ffi.new(
            "pgio_tokens *",
            {
                "ids": pointer(self.ids, "void *"),
                "count": len(self.ids),
                "document_starts": pointer(self.starts, "uint64_t *"),
                "document_count": len(self.starts),
                "vocabulary": stream.vocabulary,
                "id_bytes": self.ids.dtype.itemsize,
            },
        )


def hash_ngrams(stream: Stream, order: int, begin: int = 0, end: int | None = None) -> np.ndarray:
    """g_order of scheme pg1 at each position, uint64 [end - begin]."""
    tokens = _Tokens(stream)
    end = len(tokens.ids) if end is None else end
    hashes = np.empty(max(end - begin, 0), np.uint64)
    checked(lib.pgio_hash_ngrams, tokens.view, begin, end, order, pointer(hashes, "uint64_t *"))
    return hashes


def hash_finish(hashes: np.ndarray, salt_value: int) -> np.ndarray:
    """mix(hash ^ salt) for each hash, uint64; ``>> 1`` gives u of layouts.md, unshifted the word of signs."""
    hashes = uint64_array(hashes)
    out = np.empty_like(hashes)
    lib.pgio_hash_finish(pointer(hashes, "uint64_t *"), hashes.size, salt_value, pointer(out, "uint64_t *"))
    return out


class _Columns:
    """The hashes and columns of a layout as C structs; keeps the class maps behind them alive."""

    def __init__(self, layout: Layout) -> None:
        hashes = []
        self.kept: list[np.ndarray] = []
        for h in layout.hashes:
            if h.scheme not in SCHEMES:
                raise ValueError(f"hash scheme {h.scheme!r} is not known; choose one of {', '.join(SCHEMES)}")
            if h.classes is not None:
                self.kept.append(h.classes.values)
            hashes.append(
                {
                    "multipliers": list(h.multipliers),
                    "classes": ffi.NULL if h.classes is None else pointer(h.classes.values, "uint32_t *"),
                    "vocabulary": h.vocabulary,
                    "fill": h.fill,
                    "end_id": lib.PGIO_NO_ID if h.end_id is None else h.end_id,
                    "scheme": SCHEMES[h.scheme],
                    "order": h.order,
                    "whole": h.whole,
                }
            )
        columns = [
            {
                "multipliers": list(c.multipliers),
                "bucket_salt": c.bucket_salt,
                "slot_salt": c.slot_salt,
                "modulus": c.modulus,
                "row_base": c.row_base,
                "row_stride": c.row_stride,
                "slot_count": c.slot_count,
                "bucket_hash": c.bucket_hash,
                "slot_hash": c.slot_hash,
            }
            for g in layout.groups
            for c in g.columns
        ]
        self.hashes, self.columns = _structs("pgio_hash[]", hashes), _structs("pgio_column[]", columns)
        self.arguments = self.hashes, len(self.hashes), self.columns, len(self.columns)


def layout_groups(layout: Layout) -> tuple[Any, Any, Any]:
    """A layout's groups and regions as C takes them, and what must live until C has copied them."""
    groups = [
        {
            "row_base": g.row_base,
            "unit_rows": g.unit_rows,
            "column_count": len(g.columns),
            "region_count": len(g.regions),
        }
        for g in layout.groups
    ]
    segments = [
        _structs("pgio_segment[]", [{"first_unit": s.first_unit, "base_byte": s.base_byte} for s in r.segments])
        for r in layout.regions
    ]
    regions = [
        {
            "base_byte": r.base_byte,
            "unit_count": r.unit_count,
            "unit_bytes": r.unit_bytes,
            "row_bytes": r.row_bytes,
            "units_per_page": r.units_per_page,
            "segment_count": len(r.segments),
            "segments": of_region if r.segments else ffi.NULL,
        }
        for r, of_region in zip(layout.regions, segments, strict=True)
    ]
    return _structs("pgio_group[]", groups), _structs("pgio_region[]", regions), segments


class Rows(Handle):
    """Token to rows for the columns of a layout (rows.c)."""

    _free = lib.pgio_rows_free

    def __init__(self, layout: Layout, *, isa: str = "auto") -> None:
        super().__init__()
        columns = _Columns(layout)
        self.column_count = len(columns.columns)
        self._make("pgio_rows", lib.pgio_rows_new, *columns.arguments, isa_code(isa))

    def emit(self, stream: Stream, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Rows of the tokens from begin to end, uint64 [tokens, columns]."""
        tokens = _Tokens(stream)
        end = len(tokens.ids) if end is None else end
        rows = np.empty((max(end - begin, 0), self.column_count), np.uint64)
        checked(lib.pgio_rows_emit, self._live(), tokens.view, begin, end, pointer(rows, "uint64_t *"))
        return rows


class History(Handle):
    """The tokens of one sequence: append, rewind, fork; the rows of any part of it (history.c)."""

    _free = lib.pgio_history_free

    def __init__(self, vocabulary: int, *, _fork: History | None = None) -> None:
        super().__init__()
        if _fork is None:
            self._make("pgio_history", lib.pgio_history_new, vocabulary)
        else:
            self._make("pgio_history", lib.pgio_history_fork, _fork._live())
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return int(lib.pgio_history_length(self._live()))

    def append(self, ids: Sequence[int] | np.ndarray) -> int:
        """Append ids (all or none); returns the new length. ValueError names an id outside the vocabulary."""
        given = np.asarray(ids)
        if given.size and not np.issubdtype(given.dtype, np.integer):  # a float would lose its fraction without a word
            raise ValueError(f"token ids are integers, not {given.dtype}")
        if given.dtype == np.uint64 and given.size and int(given.max()) >= 2**63:
            raise ValueError(f"token id {int(given.max())} is not in 0 to {self.vocabulary - 1}")
        array = np.ascontiguousarray(given, dtype=np.int64)
        return checked(lib.pgio_history_append, self._live(), pointer(array, "int64_t *"), array.size)

    def rewind(self, length: int) -> int:
        """Forget everything at and after position ``length``."""
        return checked(lib.pgio_history_rewind, self._live(), length)

    def fork(self) -> History:
        """An independent copy."""
        return History(self.vocabulary, _fork=self)

    def rows(self, rows: Rows, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Rows of positions begin to end, uint64 [positions, columns]."""
        end = len(self) if end is None else end
        out = np.empty((max(end - begin, 0), rows.column_count), np.uint64)
        checked(lib.pgio_history_rows, self._live(), rows._live(), begin, end, pointer(out, "uint64_t *"))
        return out


class Place(Handle):
    """Rows to pages and bytes for the groups of a layout (place.c)."""

    _free = lib.pgio_place_free

    def __init__(self, layout: Layout, *, isa: str = "auto") -> None:
        super().__init__()
        groups, regions, _segments = layout_groups(layout)
        self._make(
            "pgio_place",
            lib.pgio_place_new,
            groups,
            len(groups),
            regions,
            len(regions),
            layout.page_bytes,
            isa_code(isa),
        )
        self.column_count = sum(len(g.columns) for g in layout.groups)
        self.page_count = int(lib.pgio_place_page_count(self._handle))
        self.first_page = int(lib.pgio_place_first_page(self._handle))
        self.page_columns = int(lib.pgio_place_page_columns(self._handle))
        self.byte_columns = int(lib.pgio_place_byte_columns(self._handle))

    def group_of_column(self) -> np.ndarray:
        """The group that each column of a page matrix belongs to, uint32 [page_columns]."""
        groups = np.empty(self.page_columns, np.uint32)
        lib.pgio_place_column_groups(self._live(), pointer(groups, "uint32_t *"))
        return groups

    def _matrix(self, rows: np.ndarray) -> np.ndarray:
        rows = uint64_array(rows)
        if rows.ndim != 2 or rows.shape[1] != self.column_count:
            raise ValueError(f"rows are [tokens, {self.column_count}] for this layout, not {list(rows.shape)}")
        return rows

    def pages(self, rows: np.ndarray) -> np.ndarray:
        """Pages that each token touches, uint32 [tokens, page_columns]; unused places hold NO_PAGE."""
        rows = self._matrix(rows)
        pages = np.empty((len(rows), self.page_columns), np.uint32)
        arguments = pointer(rows, "uint64_t *"), len(rows), pointer(pages, "uint32_t *")
        checked(lib.pgio_place_pages, self._live(), *arguments)
        return pages

    def bytes(self, rows: np.ndarray) -> np.ndarray:
        """File offset of each row in each region of its group, uint64 [tokens, byte_columns]."""
        rows = self._matrix(rows)
        offsets = np.empty((len(rows), self.byte_columns), np.uint64)
        arguments = pointer(rows, "uint64_t *"), len(rows), pointer(offsets, "uint64_t *")
        checked(lib.pgio_place_bytes, self._live(), *arguments)
        return offsets


class Source(Handle):
    """A restartable stream of pages: a layout over a token stream (source.c)."""

    _free = lib.pgio_source_free

    def __init__(self, layout: Layout, stream: Stream, *, isa: str = "auto") -> None:
        super().__init__()
        self._tokens = _Tokens(stream)
        columns = _Columns(layout)
        groups, regions, _segments = layout_groups(layout)
        self._make(
            "pgio_source",
            lib.pgio_source_new,
            *columns.arguments,
            groups,
            len(groups),
            regions,
            len(regions),
            layout.page_bytes,
            self._tokens.view,
            isa_code(isa),
        )
        self.page_columns = int(lib.pgio_source_page_columns(self._handle))

    def next(self, pages: np.ndarray) -> int:
        """Fill pages, uint32 [tokens, page_columns], from its start; returns the tokens written, 0 at the end."""
        if pages.dtype != np.uint32 or not pages.flags.c_contiguous or pages.shape[1:] != (self.page_columns,):
            raise ValueError(f"pages must be contiguous uint32 [tokens, {self.page_columns}]")
        return checked(lib.pgio_source_next, self._live(), len(pages), pointer(pages, "uint32_t *"))

    def rewind(self) -> None:
        """Start again from the first token."""
        lib.pgio_source_rewind(self._live())

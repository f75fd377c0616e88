"""Stream x layout -> page trace: the sources that feed the simulator, and the files that other programs replay."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from pagegram_io import native
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout, about_model
from pagegram_io.output import new_file, new_path
from pagegram_io.records import SCHEMA, provenance
from pagegram_io.tokens import Stream

BATCH_PLACES = 1 << 16  # pages handed over at a time: 256 KiB, which stay in the second-level cache
FORMATS = ("npy", "u32", "csv", "parquet", "fio-iolog")
EMITS = ("pages", "rows", "bytes")


# What the .json beside a trace may say of its layout and stream, and as what.
_TEXT, _COUNT, _TEXT_OR_NONE, _COUNT_OR_NONE = (str,), (int,), (str, type(None)), (int, type(None))
DESCRIBED: dict[str, tuple[type, ...]] = {
    "layout": _TEXT,
    "slots": _COUNT_OR_NONE,
    "table_params": _COUNT_OR_NONE,
    "table_params_actual": _COUNT_OR_NONE,
    "row_format": _TEXT,
    "row_bytes": _COUNT,
    "row_width": _COUNT,
    "heads": _COUNT,
    "dim": _COUNT,
    "orders": _TEXT,
    "placement": _TEXT,
    "base_byte": _COUNT,
    "seed": _COUNT,
    "bytes_used_per_token": _COUNT,
    "stream": _TEXT,
    "stream_sha256": _TEXT,
    "documents": _COUNT,
    "model": _TEXT_OR_NONE,
    "scales": _TEXT_OR_NONE,
    "resident_bytes": _COUNT_OR_NONE,
    "assumed": _TEXT_OR_NONE,
    "tokenizer_stand_in": _TEXT_OR_NONE,
}


class PageSource(Protocol):
    """A restartable stream of pages: ``next`` fills a matrix and says how many tokens it wrote, 0 at the end."""

    page_count: int
    page_columns: int
    token_count: int

    def next(self, pages: np.ndarray) -> int: ...

    def rewind(self) -> None: ...


class LayoutSource:
    """The pages of a stream's tokens under a layout, made in C as they are asked for."""

    def __init__(self, layout: Layout, stream: Stream, *, isa: str = "auto") -> None:
        self._source = native.Source(layout, stream, isa=isa)
        self.page_count, self.page_columns, self.token_count = (
            layout.page_count,
            self._source.page_columns,
            len(stream.ids),
        )

    def next(self, pages: np.ndarray) -> int:
        return self._source.next(pages)

    def rewind(self) -> None:
        self._source.rewind()


def unused_places(pages: np.ndarray) -> np.ndarray:
    """Where a matrix of pages holds no page: 0xFFFFFFFF or, in 64 bits, 2^64 - 1; bool, of the same shape."""
    unused: np.ndarray = pages == native.NO_PAGE
    return unused | (pages == native.NO_ROW) if pages.dtype == np.uint64 else unused


class ArraySource:
    """Pages that somebody else made: an integer array [tokens, columns] or [accesses]; memory-mapped ones stay on disk.

    Ids far apart are renumbered densely, which changes no hit or miss. Unused places hold 0xFFFFFFFF. ValueError for
    another dtype or shape, for negative ids, and for an array without accesses.
    """

    def __init__(self, pages: np.ndarray, *, page_count: int | None = None) -> None:
        if pages.ndim not in (1, 2) or not np.issubdtype(pages.dtype, np.integer):
            raise ValueError(f"pages are integers [tokens, columns], not {pages.dtype} {list(pages.shape)}")
        self._pages = pages[:, None] if pages.ndim == 1 else pages
        if not self._pages.size:
            raise ValueError("the array of pages is empty")
        self.token_count, self.page_columns = self._pages.shape
        self._position = 0
        high, used = -1, 0
        for batch in self._batches():
            kept = batch[~unused_places(batch)]
            used += kept.size
            if kept.size:
                if int(kept.min()) < 0:
                    raise ValueError(f"page {int(kept.min())} is negative")
                high = max(high, int(kept.max()))
        if not used:
            raise ValueError("the array of pages holds only unused places (4294967295)")
        if page_count is not None and high >= page_count:
            raise ValueError(f"page {high} is not in a table of {page_count} pages")
        self._ids: np.ndarray | None = None
        if high >= max(4 * used, 1 << 20) or high >= native.NO_PAGE:
            self._ids = np.unique(np.concatenate([np.unique(b[~unused_places(b)]) for b in self._batches()]))
        self.page_count = len(self._ids) if self._ids is not None else high + 1
        self.table_page_count = page_count or high + 1

    def _batches(self) -> Iterator[np.ndarray]:
        step = max(1, BATCH_PLACES // self.page_columns)
        for begin in range(0, self.token_count, step):
            yield np.asarray(self._pages[begin : begin + step])

    def next(self, pages: np.ndarray) -> int:
        taken = np.asarray(self._pages[self._position : self._position + len(pages)])
        unused = unused_places(taken)
        dense = taken if self._ids is None else np.searchsorted(self._ids, taken)
        pages[: len(taken)] = np.where(unused, native.NO_PAGE, dense)
        self._position += len(taken)
        return len(taken)

    def rewind(self) -> None:
        self._position = 0


def read_array(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of a .npy file, memory-mapped. FormatError, with the path, for anything else; OSErrors."""
    file = Path(path)
    if file.stat().st_size == 0:
        raise FormatError(f"{file}: the file is empty")
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged header makes NumPy's parser raise nearly anything
        raise FormatError(f"{file}: not a whole .npy file of numbers") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise FormatError(f"{file}: not a .npy file but an archive of several")
    return array


def read_pages(path: str | os.PathLike[str]) -> tuple[np.ndarray, dict[str, Any]]:
    """A page trace (.npy, memory-mapped, or .u32) and what the .json beside it says of it ({} without one)."""
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(21, "is a folder, not a page trace", str(file))
    if file.suffix == ".u32":
        size = file.stat().st_size
        if not size or size % 4:
            raise FormatError(
                f"{file}: {size} bytes are not a whole number of 32-bit pages; the trace is empty or cut short"
            )
        pages: np.ndarray = np.memmap(file, "<u4", mode="r")
    elif file.suffix == ".npy":
        pages = read_array(file)
    else:
        raise FormatError(f"{file}: a page trace is a .npy or a .u32 file")
    beside = Path(f"{file}.json")
    if not beside.exists():
        return pages, {}
    try:
        about = json.loads(beside.read_text())
    except ValueError as error:
        raise FormatError(f"{beside}: not JSON ({error})") from None
    if not isinstance(about, dict) or about.get("kind") != "trace" or about.get("schema") != SCHEMA:
        raise FormatError(f"{beside}: not the description of a trace of schema {SCHEMA}")
    if about.get("emit") != "pages":
        raise FormatError(f"{file}: holds {about.get('emit')}, not pages; make it with --emit pages")
    for name in ("pages", "page_bytes", "tokens", "columns", "accesses"):
        if type(about.get(name, 1)) is not int or about.get(name, 1) < 1:
            raise FormatError(f"{beside}: {name} is {about[name]!r}, not a positive whole number")
    for name, kinds in DESCRIBED.items():
        if name in about and type(about[name]) not in kinds:
            raise FormatError(f"{beside}: {name} is {about[name]!r}, which it cannot be")
    _check_length(file, pages, about)
    return pages, about


def _check_length(file: Path, pages: np.ndarray, about: dict[str, Any]) -> None:
    """A trace cut short between two pages is a whole file all the same; what stands beside it knows better."""
    if file.suffix == ".u32" and pages.size != about.get("accesses", pages.size):
        raise FormatError(f"{file}: holds {pages.size} accesses, and the .json beside it says {about['accesses']}")
    if file.suffix == ".npy" and "tokens" in about and pages.shape != (about["tokens"], about.get("columns")):
        wanted = [about["tokens"], about.get("columns")]
        raise FormatError(f"{file}: holds {list(pages.shape)} pages, and the .json beside it says {wanted}")


def emit_batches(layout: Layout, stream: Stream, emit: str) -> Iterator[np.ndarray]:
    """The trace of a stream, a batch of tokens at a time [tokens, columns]: pages uint32, rows and bytes uint64."""
    if emit == "pages":
        source = native.Source(layout, stream)
        buffer = np.empty((max(1, BATCH_PLACES // source.page_columns), source.page_columns), np.uint32)
        while count := source.next(buffer):
            yield buffer[:count]
        return
    with native.Rows(layout) as rows, native.Place(layout) as place:
        step = max(1, BATCH_PLACES // rows.column_count)
        for begin in range(0, len(stream.ids), step):
            batch = rows.emit(stream, begin, min(begin + step, len(stream.ids)))
            yield batch if emit == "rows" else place.bytes(batch)


def describe(layout: Layout, stream: Stream, *, emit: str, form: str, columns: int) -> dict[str, Any]:
    """What stands in the .json beside a trace: enough to make it again."""
    from pagegram_io.deployed import stand_in

    return {
        "kind": "trace",
        "schema": SCHEMA,
        "version": provenance()["version"],
        "emit": emit,
        "format": form,
        "layout": layout.name,
        "slots": layout.slots,
        "table_params": layout.table_params,
        "table_params_actual": layout.table_params_actual,
        "row_format": layout.row_format,
        "row_bytes": layout.row_bytes,
        "row_width": layout.row_width,
        "heads": layout.heads,
        "dim": layout.dim,
        "orders": ",".join(map(str, layout.orders)),
        "placement": layout.placement,
        "base_byte": min(region.base_byte for region in layout.regions),
        "page_bytes": layout.page_bytes,
        "pages": layout.page_count,
        "rows": layout.row_count,
        "file_bytes": layout.file_bytes,
        "seed": layout.seed,
        "bytes_used_per_token": layout.bytes_used_per_token,
        "stream": stream.name,
        "stream_sha256": stream.sha256,
        "tokens": len(stream.ids),
        "documents": len(stream.document_starts),
        **about_model(layout),
        **({} if layout.model is None else {"tokenizer_stand_in": stand_in(layout.model, stream.name)}),
        "columns": columns,
        "unused": native.NO_PAGE if emit == "pages" else None,
        # Of a table in real files: page i of window w lies in w.file at w.byte + (i - w.page_begin) * page_bytes.
        **({"windows": [dataclasses.asdict(window) for window in layout.windows]} if layout.windows else {}),
    }


def write_trace(
    layout: Layout,
    stream: Stream,
    path: str | os.PathLike[str],
    *,
    emit: str = "pages",
    form: str = "npy",
    target: str = "table.bin",
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write a trace in one of FORMATS (docs/formats.md) and, beside it, PATH.json. Returns the tokens written.

    ``target`` is the file that a fio iolog names. Raises ValueError for a combination that cannot be written, OSError.
    """
    if emit not in EMITS or form not in FORMATS:
        raise ValueError(f"a trace emits one of {', '.join(EMITS)} as one of {', '.join(FORMATS)}")
    if form == "fio-iolog" and emit != "pages":
        raise ValueError("a fio iolog reads whole pages; use --emit pages with --format fio-iolog")
    if form == "u32" and emit != "pages":
        raise ValueError(f"a u32 trace holds 32-bit page ids and cannot hold {emit}; use --format npy")
    with native.Rows(layout) as rows, native.Place(layout) as place:
        columns = {"pages": place.page_columns, "rows": rows.column_count, "bytes": place.byte_columns}[emit]
    about = describe(layout, stream, emit=emit, form=form, columns=columns)
    tokens = accesses = 0

    def batches() -> Iterator[np.ndarray]:
        nonlocal tokens, accesses
        for batch in emit_batches(layout, stream, emit):
            yield batch
            tokens += len(batch)
            accesses += int(np.count_nonzero(batch != native.NO_PAGE)) if emit == "pages" else batch.size
            if progress:
                progress(len(batch))

    beside = f"{os.fspath(path)}.json"
    with new_file(beside, force=force) as description:
        if form == "parquet":
            with new_path(path, force=force) as temporary:
                _write_parquet(batches(), temporary, columns)
        else:
            with new_file(path, force=force) as file:
                _write(
                    form, file, batches(), columns=columns, token_count=len(stream.ids), layout=layout, target=target
                )
        description.write((json.dumps(about | {"accesses": accesses}, indent=1) + "\n").encode())
    return tokens


def _write(
    form: str,
    file: IO[bytes],
    batches: Iterator[np.ndarray],
    *,
    columns: int,
    token_count: int,
    layout: Layout,
    target: str,
) -> None:
    if form == "npy":
        first = True
        for batch in batches:
            if first:
                header = {
                    "descr": batch.dtype.newbyteorder("<").str,
                    "fortran_order": False,
                    "shape": (token_count, columns),
                }
                np.lib.format.write_array_header_1_0(file, header)
                first = False
            file.write(batch.astype(batch.dtype.newbyteorder("<"), copy=False).tobytes())
    elif form == "u32":
        for batch in batches:
            file.write(batch[batch != native.NO_PAGE].astype("<u4", copy=False).tobytes())
    elif form == "csv":
        file.write(("token," + ",".join(f"column_{c}" for c in range(columns)) + "\n").encode())
        token = 0
        for batch in batches:
            unused = native.NO_PAGE if batch.dtype == np.uint32 else -1
            lines = (
                f"{token + i}," + ",".join("" if v == unused else str(v) for v in line)
                for i, line in enumerate(batch.tolist())
            )
            file.write(("\n".join(lines) + "\n").encode())
            token += len(batch)
    else:
        names = list(dict.fromkeys(window.file for window in layout.windows)) or [target]
        file.write("".join(["fio version 2 iolog\n", *(f"{name} add\n{name} open\n" for name in names)]).encode())
        size = layout.page_bytes
        first_page = min(region.base_byte for region in layout.regions) // size  # where page id 0 lies in the file
        for batch in batches:
            used = batch[batch != native.NO_PAGE].tolist()
            places = [(target, (first_page + page) * size) for page in used]
            if layout.windows:
                places = [layout.place_in_file(page * size) for page in used]
            file.write("".join(f"{name} read {byte} {size}\n" for name, byte in places).encode())
        file.write("".join(f"{name} close\n" for name in names).encode())


def _write_parquet(batches: Iterator[np.ndarray], path: Path, columns: int) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("a parquet trace needs pyarrow; run: pip install 'pagegram-io[parquet]'") from None
    writer = None
    try:
        for batch in batches:
            pages = batch.dtype == np.uint32  # rows and bytes have no unused places
            arrays = {
                f"column_{c}": arrow.array(batch[:, c], mask=unused_places(batch[:, c]) if pages else None)
                for c in range(columns)
            }
            table = arrow.table(arrays)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer:
            writer.close()

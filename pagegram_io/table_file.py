"""The table file: a safetensors file whose pages lie on page boundaries (docs/formats.md, Table files).

The header says what fills the pages: ``pattern``, seeded and incompressible, made to be measured, or ``trained``
rows. Either way a page tells by itself, or ``page_checks`` tells of it, whether a read brought the right bytes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from pagegram_io import native
from pagegram_io.errors import FormatError
from pagegram_io.layout import LAYOUT_NAMES, Layout, Shape, build
from pagegram_io.native_reader import aligned_bytes, fill_pages
from pagegram_io.output import new_path, refuse_folder
from pagegram_io.placed_model import PlacedModel, placed_model_from_json
from pagegram_io.repacked import Repacked, repacked_from_json
from pagegram_io.sizes import SIZE_LIMIT, format_bytes
from pagegram_io.strict_json import is_whole, parse_json, shown

FORMAT_VERSION = "1"
CONTENTS = ("pattern", "trained", "repacked")
HEADER_BYTES_MAX = 2**20  # the eight bytes of its length included
BLOCK_BYTES = 4096  # what O_DIRECT takes everywhere
PAGE_BYTES_MAX = HEADER_BYTES_MAX  # the header fills whole pages
SEAL_BYTES = 8  # page number and CRC-32C at the end of a page

BATCH_BYTES = 8 * 2**20
SYNC_BYTES = 32 * 2**20  # written out this often: progress tells of the disk, not of memory, and Ctrl-C is soon obeyed

# The largest of each that a layout's JSON may hold: a damaged header must not keep us counting primes for hours.
_LAYOUT_LIMITS = {
    "table_params": SIZE_LIMIT - 1,
    "heads": 256,
    "slots": 2**20,
    "row_width": 2**20,
    "dim": 2**20,
    "page_bytes": PAGE_BYTES_MAX,
    "base_byte": SIZE_LIMIT - 1,
    "seed": 2**64 - 1,
}


@dataclass(frozen=True)
class TableHeader:
    """What a table file says of itself. Page i lies at data_byte + i * page_bytes; sealed: each holds its own check."""

    layout: Layout | None
    page_bytes: int
    page_count: int
    data_byte: int
    content: str
    seed: int | None
    sealed: bool
    repacked: Repacked | None = None
    weights_sha256: str | None = None  # of the model.safetensors whose table was packed
    model: PlacedModel | None = None  # the deployed table that a pattern is as large as

    @property
    def checks_byte(self) -> int | None:
        """Where ``page_checks`` begins, uint32 [page_count]; None where pages are sealed."""
        return None if self.sealed else self.data_byte + self.page_count * self.page_bytes

    @property
    def file_bytes(self) -> int:
        return self.data_byte + self.page_count * (self.page_bytes + (0 if self.sealed else 4))


def has_room_for_seals(layout: Layout) -> bool:
    """Whether every page of a layout ends with eight bytes or more that no row uses."""
    return all(_seals_fit(region.units_per_page, region.unit_bytes, layout.page_bytes) for region in layout.regions)


def _seals_fit(units_per_page: int, unit_bytes: int, page_bytes: int) -> bool:
    return units_per_page > 0 and page_bytes - units_per_page * unit_bytes >= SEAL_BYTES


def layout_to_json(layout: Layout) -> str:
    """What rebuilds a layout, as JSON. ValueError for one that ``layout.build`` does not make, or beyond the limits."""
    fields: dict[str, Any] = {
        "name": layout.name,
        "slots": layout.slots,
        "table_params": layout.table_params,
        "orders": list(layout.orders),
        "heads": layout.heads,
        "row_width": layout.row_width,
        "dim": layout.dim,
        "row_format": layout.row_format,
        "page_bytes": layout.page_bytes,
        "packed": layout.packed,
        "base_byte": layout.regions[0].base_byte,
        "seed": layout.seed,
    }
    text = json.dumps(fields)
    if layout.name not in LAYOUT_NAMES or layout_from_json(text) != layout:
        raise ValueError(f"a table file holds a layout named {', '.join(LAYOUT_NAMES)}, not {layout.label} of your own")
    return text


def layout_from_json(text: str) -> Layout:
    """The layout that ``layout_to_json`` wrote. ValueError says what is wrong with the text."""
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise ValueError(f"the layout is not JSON ({error})") from None
    names = {"name", "orders", "row_format", "packed", *_LAYOUT_LIMITS}
    if type(fields) is not dict or set(fields) != names:
        raise ValueError(f"the layout is not an object of {', '.join(sorted(names))}")
    for name, limit in _LAYOUT_LIMITS.items():
        if not (is_whole(fields[name], limit) or (name == "slots" and fields[name] is None)):
            raise ValueError(f"the layout's {name} is {shown(fields[name])}, not a whole number up to {limit}")
    orders = fields["orders"]
    if type(orders) is not list or not all(is_whole(order, native.MAX_ORDER) for order in orders):
        raise ValueError(f"the layout's orders are {shown(orders)}, not a list of numbers up to {native.MAX_ORDER}")
    name, row_format, packed, slots = (fields.pop(key) for key in ("name", "row_format", "packed", "slots"))
    if name not in LAYOUT_NAMES or type(row_format) is not str or type(packed) is not bool:
        raise ValueError(
            f"the layout is {shown(name)} of {shown(row_format)} rows, packed {shown(packed)}, which is not known"
        )
    if (slots is None) == (name == "pagegram"):
        raise ValueError(f"the layout is {name} with {shown(slots)} slots; pagegram alone has slots")
    params = fields.pop("table_params")
    shape = Shape(**{**fields, "orders": tuple(orders)}, row_format=row_format, packed=packed)
    return build([name], params, slots=[1 if slots is None else slots], shape=shape)[0]


def encode_header(header: TableHeader) -> bytes:
    """The file's bytes before its first page: length, JSON, spaces. ``header.data_byte`` is not used: it follows."""
    page_bytes, page_count = header.page_bytes, header.page_count
    metadata = {"format_version": FORMAT_VERSION, "content": header.content}
    if header.seed is not None:
        metadata["seed"] = str(header.seed)
    if header.layout is not None:
        metadata["layout"] = layout_to_json(header.layout)
    if header.model is not None:
        metadata["model"] = header.model.to_json()
    if header.repacked is not None:
        metadata["repacked"] = header.repacked.to_json()
    if header.weights_sha256 is not None:
        metadata["weights_sha256"] = header.weights_sha256
    end = page_count * page_bytes
    fields: dict[str, Any] = {
        "__metadata__": metadata,
        "pages": {"dtype": "U8", "shape": [page_count, page_bytes], "data_offsets": [0, end]},
    }
    if not header.sealed:
        fields["page_checks"] = {"dtype": "U32", "shape": [page_count], "data_offsets": [end, end + 4 * page_count]}
    text = json.dumps(fields).encode()
    text += b" " * (-(len(text) + 8) % max(page_bytes, BLOCK_BYTES))
    return len(text).to_bytes(8, "little") + text


def read_header(path: str | os.PathLike[str]) -> TableHeader:
    """The header of a table file. FormatError, with the path, for anything that is not a whole one; OSErrors."""
    name = os.fspath(path)
    if not stat.S_ISREG(os.stat(name).st_mode):  # opening a pipe would wait for its writer
        raise FormatError(f"{name}: not a regular file, so not a table file")
    with open(name, "rb") as file:
        try:
            return _read_header(file)
        except ValueError as error:
            raise FormatError(f"{name}: {error}") from None


def _read_header(file: BinaryIO) -> TableHeader:
    file_bytes = os.fstat(file.fileno()).st_size
    data_byte = 8 + int.from_bytes(file.read(8), "little")
    if not 8 + 2 <= data_byte <= file_bytes:
        raise ValueError("not a safetensors file: it does not begin with the length of a header")
    if data_byte > HEADER_BYTES_MAX:
        raise ValueError(f"its header of {data_byte} bytes is longer than a table file's, at most {HEADER_BYTES_MAX}")
    text = file.read(data_byte - 8)
    try:
        fields = parse_json(text.decode())
    except ValueError as error:
        raise ValueError(f"not a safetensors file: its header is not JSON ({error})") from None
    if type(fields) is not dict or not text.startswith(b"{"):
        raise ValueError("not a safetensors file: its header is not a JSON object")
    metadata = fields.pop("__metadata__", {})
    if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
        raise ValueError("not a safetensors file: its metadata is not a JSON object of texts")
    version = metadata.get("format_version")
    if version is None or "pages" not in fields:
        raise ValueError("a safetensors file, but not a table file: it has no pages or no format_version")
    if version != FORMAT_VERSION:
        raise ValueError(f"a table file of version {shown(version)}; this program reads version {FORMAT_VERSION}")
    header = _from_tensors(fields, metadata, data_byte)
    if header.file_bytes != file_bytes:
        raise ValueError(f"it has {file_bytes} bytes and its header speaks of {header.file_bytes}: it was cut or grew")
    return header


def _from_tensors(fields: dict[str, Any], metadata: dict[str, str], data_byte: int) -> TableHeader:
    """The header that tensors and metadata make, all but the file's size checked."""
    extra = sorted(set(fields) - {"pages", "page_checks"})
    if extra:
        raise ValueError(f"a table file holds pages and page_checks, no tensor {shown(extra[0])}")
    page_count, page_bytes = _shape_of(fields["pages"], "pages", "U8", 2)
    if not 512 <= page_bytes <= PAGE_BYTES_MAX or page_bytes & (page_bytes - 1):
        raise ValueError(f"its pages have {page_bytes} bytes, not a power of two from 512 to {PAGE_BYTES_MAX}")
    end = page_count * page_bytes
    _check_offsets(fields["pages"], "pages", 0, end)
    if data_byte % max(page_bytes, BLOCK_BYTES):
        raise ValueError(f"its pages begin at byte {data_byte}, which is not a page boundary")
    sealed = "page_checks" not in fields
    if not sealed:
        if _shape_of(fields["page_checks"], "page_checks", "U32", 1) != [page_count]:
            raise ValueError(f"its page_checks are not one for each of {page_count} pages")
        _check_offsets(fields["page_checks"], "page_checks", end, end + 4 * page_count)
    content, seed_text = metadata.get("content"), metadata.get("seed")
    if content not in CONTENTS:
        raise ValueError(f"its content is {shown(content)}, which is not {' or '.join(CONTENTS)}")
    seed = int(seed_text) if seed_text and re.fullmatch(r"[0-9]{1,20}", seed_text) else None
    if (seed is None) != (seed_text is None) or (seed or 0) >= 2**64:
        raise ValueError(f"its seed is {shown(seed_text)}, not a whole number below 2^64")
    layout = layout_from_json(metadata["layout"]) if "layout" in metadata else None
    if layout is not None and (layout.page_bytes, layout.page_count) != (page_bytes, page_count):
        raise ValueError(
            f"its layout takes {layout.page_count} pages of {layout.page_bytes} bytes, "
            f"and it holds {page_count} of {page_bytes}"
        )
    if content == "pattern" and (seed is None or not sealed):
        raise ValueError("a pattern has a seed, and pages with their checks inside")
    if content == "trained" and (layout is None or sealed != has_room_for_seals(layout)):
        raise ValueError("trained rows have a layout, and page_checks exactly where its pages have no room for checks")
    repacked = repacked_from_json(metadata["repacked"], page_bytes) if "repacked" in metadata else None
    if (content == "repacked") != (repacked is not None) or (repacked is not None and layout is not None):
        raise ValueError("repacked rows say in `repacked` what they are, and have no layout of ours")
    if repacked is not None and repacked.page_count(page_bytes) != page_count:
        wanted = repacked.page_count(page_bytes)
        raise ValueError(f"its repacked rows take {wanted} pages, and it holds {page_count}")
    if repacked is not None and sealed != _seals_fit(repacked.units_per_page, repacked.row_bytes, page_bytes):
        raise ValueError("repacked rows have page_checks exactly where their pages have no room for checks")
    weights = metadata.get("weights_sha256")
    if weights is not None and not re.fullmatch(r"[0-9a-f]{64}", weights):
        raise ValueError(f"its weights_sha256 is {shown(weights)}, not 64 hexadecimal digits")
    if "model" in metadata and (content != "pattern" or layout is not None):
        raise ValueError("a pattern alone is for a model's table, and then it has no layout of ours")
    model = placed_model_from_json(metadata["model"], page_bytes, page_count) if "model" in metadata else None
    return TableHeader(layout, page_bytes, page_count, data_byte, content, seed, sealed, repacked, weights, model)


def _shape_of(tensor: Any, name: str, dtype: str, dimensions: int) -> list[int]:
    if type(tensor) is not dict or set(tensor) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its tensor {name} is not described by dtype, shape and data_offsets")
    shape = tensor["shape"]
    whole = type(shape) is list and all(is_whole(extent, SIZE_LIMIT) and extent > 0 for extent in shape)
    if tensor["dtype"] != dtype or not whole or len(shape) != dimensions:
        raise ValueError(
            f"its tensor {name} is {shown(tensor['dtype'])} {shown(shape)}, not {dtype} of {dimensions} dimension(s)"
        )
    return list(shape)


def _check_offsets(tensor: dict[str, Any], name: str, begin: int, end: int) -> None:
    offsets = tensor["data_offsets"]
    if type(offsets) is not list or offsets != [begin, end] or not all(type(offset) is int for offset in offsets):
        raise ValueError(f"its tensor {name} lies at {shown(offsets)}, not at [{begin}, {end}]")


def pattern_header(
    table: Layout | int, *, page_bytes: int = BLOCK_BYTES, seed: int = 0, model: PlacedModel | None = None
) -> TableHeader:
    """The header of a pattern for a layout (whose page_bytes count), or of so many pages, as a model's. ValueError."""
    layout = table if isinstance(table, Layout) else None
    page_count = table.page_count if isinstance(table, Layout) else table
    page_bytes = layout.page_bytes if layout else page_bytes
    if not 512 <= page_bytes <= PAGE_BYTES_MAX or page_bytes & (page_bytes - 1):
        raise ValueError(f"a page of {page_bytes} bytes: a table file has a power of two from 512 to {PAGE_BYTES_MAX}")
    if not 1 <= page_count <= SIZE_LIMIT // page_bytes:
        raise ValueError(f"{page_count} pages of {page_bytes} bytes: a table file has at least 1, and below 2^62 bytes")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed {seed} is not in 0 to 2^64-1")
    blank = TableHeader(layout, page_bytes, page_count, 0, "pattern", seed, sealed=True, model=model)
    return replace(blank, data_byte=len(encode_header(blank)))


def pages_in(file_bytes: int, page_bytes: int) -> int:
    """Whole pages that a table file of at most file_bytes holds beside its header. ValueError if there is none."""
    pages = (file_bytes - max(page_bytes, BLOCK_BYTES)) // page_bytes
    if pages < 1:
        raise ValueError(f"{format_bytes(file_bytes)} is too small for a header and one page of {page_bytes} bytes")
    return pages


def write_pattern_file(
    path: str | os.PathLike[str],
    table: Layout | int,
    *,
    page_bytes: int = BLOCK_BYTES,
    seed: int = 0,
    model: PlacedModel | None = None,
    progress: Callable[[int], None] | None = None,
) -> TableHeader:
    """Write a dense file of seeded, incompressible, sealed pages: a layout's, or so many. Never replaces anything.

    ``progress`` is told the bytes of each batch. The same arguments make the same bytes. OSError (ENOSPC, before
    anything is written, where the disk is too small); whatever fails or interrupts, no file is left.
    """
    header = pattern_header(table, page_bytes=page_bytes, seed=seed, model=model)
    name = os.fspath(path)
    refuse_target(name)
    check_space(name, header.file_bytes)
    try:
        with new_path(name) as temporary, open(temporary, "r+b", buffering=0) as file:
            _write_all(file.fileno(), np.frombuffer(encode_header(header), np.uint8))
            _write_pages(file.fileno(), header, seed, progress or (lambda count: None))
            os.fsync(file.fileno())
    except FileExistsError:  # it came into being meanwhile
        refuse_target(name)
        raise
    return header


def refuse_target(name: str) -> None:
    """OSError unless a new regular file can be made under this name."""
    if not name:
        raise FileNotFoundError(errno.ENOENT, "the name of a file is empty; is a shell variable unset?", name)
    if name.endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    try:
        mode = os.lstat(name).st_mode
    except FileNotFoundError:
        refuse_folder(os.path.dirname(os.path.realpath(name)))
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(mode):
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file; name a new file on the disk", name)
    raise FileExistsError(errno.EEXIST, "exists, and nothing is ever replaced; choose another name or remove it", name)


def check_space(name: str, file_bytes: int) -> None:
    """OSError ENOSPC, with both numbers, where the disk of a new file has not that much free."""
    free_bytes = free_space(name)
    if free_bytes < file_bytes:
        text = f"needs {format_bytes(file_bytes)} and the disk has {format_bytes(free_bytes)} free; choose another disk"
        raise OSError(errno.ENOSPC, text, name)


def free_space(name: str) -> int:
    """Bytes that the disk of a new file has free."""
    status = os.statvfs(os.path.dirname(os.path.realpath(name)))
    return status.f_bavail * status.f_frsize


def _write_pages(descriptor: int, header: TableHeader, seed: int, progress: Callable[[int], None]) -> None:
    """One thread fills the next batch while this one writes; what is on the disk is dropped from memory."""
    page_bytes, step = header.page_bytes, max(1, BATCH_BYTES // header.page_bytes)
    buffers = [aligned_bytes(step * page_bytes) for _ in range(2)]

    def fill(first: int) -> np.ndarray:
        memory = buffers[first // step % 2][: min(step, header.page_count - first) * page_bytes]
        fill_pages(memory, first, page_bytes, seed)
        return memory

    synced = written = 0
    with ThreadPoolExecutor(1) as filler:
        filling = filler.submit(fill, 0)
        for first in range(0, header.page_count, step):
            memory = filling.result()
            if first + step < header.page_count:
                filling = filler.submit(fill, first + step)
            _write_all(descriptor, memory)
            written += memory.size
            if written - synced >= SYNC_BYTES:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                synced = written
            progress(memory.size)


def _write_all(descriptor: int, memory: np.ndarray) -> None:
    view = memory.data
    while view:
        view = view[os.write(descriptor, view) :]

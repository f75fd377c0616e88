"""Token streams: the ids, where the documents start, and every file format that they come in.

A stream is one array of ids and the positions at which its documents start. Formats go by suffix: `.u16` and `.u32`
(ids alone, little-endian), `.bin` (the same, or with the header of llm.c and modded-nanogpt), `.npy`; and `.xz` or
`.zst` of these. Files are read from the front, in batches straight into the array, and no further than `limit`.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import lzma
import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pagegram_io.errors import FormatError
from pagegram_io.input import COMPRESSIONS, InputFile
from pagegram_io.output import new_file

DEFAULT_STREAM = "multilingual-20m"
DEFAULT_STREAM_EOD = 0
DEFAULT_STREAM_VOCABULARY = 65_536
DEEPSEEK_STREAM = "multilingual-deepseek-5m"
VOCABULARY_MAX = 2**32
SUFFIXES = (".u16", ".u32", ".bin", ".npy")
WRITTEN_SUFFIXES = (".u16", ".u32", ".npy")
BATCH_IDS = 1 << 19  # of 2 bytes: 1 MiB, a few milliseconds between two looks at Ctrl-C

LLMC_HEADER_BYTES = 1024  # 256 int32: magic, version, count, zeros
LLMC_STREAMS: dict[int, tuple[int, np.dtype]] = {  # magic: version, ids
    20240520: (1, np.dtype("<u2")),  # GPT-2
    20240801: (7, np.dtype("<u4")),  # Llama 3
}
LLMC_OTHERS = {20240326: "model weights", 20240328: "a tokenizer", 20240522: "an evaluation set"}
NPY_MAGIC = b"\x93NUMPY"
NPY_INTEGERS = re.compile(r"[<>|=]?[iu][1248]")
NPY_HEADER_BYTES_MAX = 10_000  # NumPy's own limit for a header it would have to evaluate


@dataclass(frozen=True, eq=False)
class Stream:
    """A token stream, picklable. Raises ValueError where the arrays are not of the kind below.

    ids: (n,) uint16 or uint32, n > 0, each below `vocabulary`; document_starts: (documents,) uint64, ascending from 0,
    below n; name: of the file, or of the shipped stream. prompt_lengths: (documents,) uint64, how many of a document's
    first tokens are its prompt, where that is known (requests.py).
    """

    ids: np.ndarray
    document_starts: np.ndarray
    vocabulary: int
    name: str
    prompt_lengths: np.ndarray | None = None

    def __post_init__(self) -> None:
        ids, starts = self.ids, self.document_starts
        if ids.ndim != 1 or ids.dtype not in (np.uint16, np.uint32) or not ids.flags.c_contiguous or not ids.size:
            raise ValueError(f"ids is {ids.dtype} {ids.shape}, not a non-empty contiguous array of uint16 or uint32")
        if starts.ndim != 1 or starts.dtype != np.uint64 or not starts.flags.c_contiguous or not starts.size:
            raise ValueError(
                f"document_starts is {starts.dtype} {starts.shape}, not a non-empty contiguous array of uint64"
            )
        if starts[0] != 0 or starts[-1] >= ids.size or (starts[1:] <= starts[:-1]).any():
            raise ValueError(f"document_starts does not ascend strictly from 0 and stay below the {ids.size:,} ids")
        prompts = self.prompt_lengths
        if prompts is not None and (
            prompts.dtype != np.uint64 or prompts.shape != starts.shape or (prompts > self.document_lengths).any()
        ):
            raise ValueError(f"prompt_lengths is {prompts.dtype} {prompts.shape}, not uint64 within each document")
        _check_vocabulary(self.vocabulary)
        fault = _outside(ids, 0, self.vocabulary)
        if fault:
            raise ValueError(fault)

    def __len__(self) -> int:
        return self.ids.size

    @cached_property
    def document_lengths(self) -> np.ndarray:
        """Tokens of each document, (documents,) uint64."""
        return np.diff(self.document_starts, append=np.uint64(self.ids.size))

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal digest of the ids as little-endian bytes of their stored width, 2 or 4."""
        return hashlib.sha256(self.ids.astype(self.ids.dtype.newbyteorder("<"), copy=False).data).hexdigest()


@dataclass(frozen=True)
class Form:
    """How a file holds its ids: type on disk, type in memory, how many (None: up to the end)."""

    stored: np.dtype
    ids: np.dtype
    count: int | None


@dataclass(frozen=True)
class ShippedStream:
    """A stream that comes with the package: its file, the id that ends a document, how many ids there are."""

    file: str
    eod: int
    vocabulary: int


SHIPPED = {
    DEFAULT_STREAM: ShippedStream(f"{DEFAULT_STREAM}.u16.xz", DEFAULT_STREAM_EOD, DEFAULT_STREAM_VOCABULARY),
    DEEPSEEK_STREAM: ShippedStream(f"{DEEPSEEK_STREAM}.u32.xz", 1, 129_280),  # the same text in DeepSeek's ids
}


def shipped_stream_path(name: str) -> Path:
    """A shipped stream's file (see `shipped_path`)."""
    return shipped_path(SHIPPED[name].file)


def shipped_path(name: str) -> Path:
    """A file that ships in traces/: in the package, or beside it in a source checkout; FileNotFoundError."""
    package = Path(__file__).resolve().parent
    places = [folder / "traces" / name for folder in (package, package.parent)]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"the shipped token stream is not installed: neither {places[0]} nor {places[1]} exists; "
        "reinstall the package, or name a token stream of your own"
    )


def default_stream_path() -> Path:
    """The file of the stream that is used where none is named (see `shipped_stream_path`)."""
    return shipped_stream_path(DEFAULT_STREAM)


def read_stream(
    path: str | os.PathLike[str] | None = None,
    *,
    dtype: str | None = None,
    eod: int | None = None,
    documents: str | os.PathLike[str] | None = None,
    vocabulary: int | None = None,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Stream:
    """Read a token stream, the shipped one if `path` is None; its ids are read-only.

    dtype: "uint16" or "uint32", of `.bin` files without a header (default: uint16); others say it themselves.
    eod: the id that ends the document it belongs to (default: 0 for the shipped stream, else one document);
    documents: instead, a text file with one 0-based start a line. vocabulary: ids there are (default: 65,536 for
    16-bit ids, 2^32 for 32-bit ids). limit: read no more ids than this, nor more of the file than they need.
    progress: called with the bytes read so far and the bytes of the file. `.npy` integers wider than 16 bits become
    uint32. Raises FormatError, OSError with the path, and ValueError for the arguments.
    """
    shipped = DEFAULT_STREAM if path is None else _shipped_name(path)
    source = os.fspath(default_stream_path() if path is None else path)
    if dtype not in (None, "uint16", "uint32"):
        raise ValueError(f"dtype {dtype!r} is neither 'uint16' nor 'uint32'")
    if eod is not None and documents is not None:
        raise ValueError("eod and documents both say where documents start; give one of them")
    if limit is not None and operator.index(limit) < 1:
        raise ValueError(f"limit {limit} is not at least 1")
    if vocabulary is not None:
        _check_vocabulary(vocabulary)
    if shipped:
        vocabulary = SHIPPED[shipped].vocabulary if vocabulary is None else vocabulary
        eod = SHIPPED[shipped].eod if eod is None and documents is None else eod
    compression = next((suffix for suffix in COMPRESSIONS if source.lower().endswith(suffix)), "")
    with InputFile(source, compression) as file:
        form = _form(file, dtype)
        if vocabulary is None:
            vocabulary = 2 ** (8 * form.ids.itemsize)
        if eod is not None and not 0 <= operator.index(eod) < vocabulary:
            raise ValueError(f"the end-of-document id {eod} is outside the vocabulary of {vocabulary:,} ids")
        ids = _read_ids(file, form, limit, vocabulary, progress)
    ids.flags.writeable = False  # the digest is computed once
    whole = limit is None or ids.size < limit
    starts = _starts_after(ids, eod) if documents is None else _read_starts(os.fspath(documents), ids.size, whole)
    return Stream(ids, starts, vocabulary, shipped or os.path.basename(source))


def write_stream(path: str | os.PathLike[str], ids: np.ndarray, *, force: bool = False) -> None:
    """Write ids, any integers that fit, as `.u16`, `.u32` or `.npy`, or `.xz` of these.

    `.npy` holds uint16 for integers of at most 16 bits, else uint32. Raises ValueError for the ids or the suffix,
    FileExistsError without `force`, OSError with the path; a failure leaves nothing behind.
    """
    target = os.fspath(path)
    suffix, compressed = written_form(target)
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not ids.size:
        raise ValueError(f"{target}: {ids.dtype} {ids.shape} is not a non-empty one-dimensional array of integers")
    narrow = suffix == ".u16" or (suffix == ".npy" and ids.dtype.itemsize <= 2)
    stored = np.dtype("<u2" if narrow else "<u4")
    fault = _outside(ids, 0, 2 ** (8 * stored.itemsize))
    if fault:
        raise ValueError(f"{target}: {fault}")
    with (
        new_file(target, force=force) as file,
        lzma.LZMAFile(file, "wb") if compressed else contextlib.nullcontext(file) as out,
    ):
        if suffix == ".npy":
            header = {"descr": stored.str, "fortran_order": False, "shape": ids.shape}
            np.lib.format.write_array_header_1_0(out, header)
        for first in range(0, ids.size, BATCH_IDS):
            out.write(np.ascontiguousarray(ids[first : first + BATCH_IDS], dtype=stored).data)


def written_form(target: str) -> tuple[str, bool]:
    """The suffix of a stream to be written, and whether it is compressed. ValueError for what is not written."""
    compressed = target.lower().endswith(".xz")
    suffix = os.path.splitext(target[: -len(".xz")] if compressed else target)[1].lower()
    if suffix not in WRITTEN_SUFFIXES:
        raise ValueError(f"{target}: token streams are written as {', '.join(WRITTEN_SUFFIXES)}, or .xz of these")
    return suffix, compressed


def _shipped_name(path: str | os.PathLike[str]) -> str | None:
    """The name of the shipped stream that this file is, if it is one."""
    for name in SHIPPED:
        try:
            if os.path.realpath(path) == os.path.realpath(shipped_stream_path(name)):
                return name
        except FileNotFoundError:
            continue
    return None


def _check_vocabulary(vocabulary: int) -> None:
    if not 1 <= operator.index(vocabulary) <= VOCABULARY_MAX:
        raise ValueError(f"a vocabulary of {vocabulary} ids is not between 1 and 2^32")


def _outside(ids: np.ndarray, first: int, vocabulary: int) -> str | None:
    """What is wrong with the ids, of which the first stands at position `first`; None if all are in the vocabulary."""
    if ids.dtype.kind == "i" and ids.min() < 0:
        at = int(np.argmax(ids < 0))
        return f"the id {ids[at]} at position {first + at} is negative"
    if ids.dtype.itemsize == 2 and vocabulary >= 2**16:
        return None
    if int(ids.max()) < vocabulary:
        return None
    at = int(np.argmax(ids >= vocabulary))
    return f"the id {ids[at]} at position {first + at} is outside the vocabulary of {vocabulary:,} ids"


def _form(file: InputFile, dtype: str | None) -> Form:
    """The form of an opened file, by its suffix and header, which is taken from it; FormatError."""
    stem = file.path[: len(file.path) - len(file.compression)]
    suffix = os.path.splitext(stem)[1].lower()
    if suffix not in SUFFIXES:
        raise FormatError(
            f"{file.path}: not a known kind of token stream; the name must end in {', '.join(SUFFIXES)}, "
            f"or one of these and {' or '.join(COMPRESSIONS)}"
        )
    header_bytes = 0
    if suffix == ".npy":
        form, header_bytes = _npy_form(file)
    else:
        llmc = _llmc_form(file) if suffix == ".bin" else None
        if llmc is None:
            named = {".u16": "uint16", ".u32": "uint32"}.get(suffix)
            stored = np.dtype(named or dtype or "uint16").newbyteorder("<")
            form = Form(stored, stored.newbyteorder("="), None)
        else:
            form, header_bytes = llmc, LLMC_HEADER_BYTES
    if dtype is not None and form.stored != np.dtype(dtype):
        says = "name" if suffix in (".u16", ".u32") else "header"
        raise FormatError(f"{file.path}: the {says} says {form.stored.name}, but the dtype asked for is {dtype}")
    if file.compression or file.file_bytes is None:
        return form
    return _checked_size(file.path, form, file.file_bytes - header_bytes)


def _checked_size(path: str, form: Form, data_bytes: int) -> Form:
    """The form with the count that a file of ids of `data_bytes` bytes has; FormatError if its header says another."""
    count, odd_bytes = divmod(data_bytes, form.stored.itemsize)
    if odd_bytes:
        raise FormatError(_odd_text(path, data_bytes, form.stored))
    if form.count is not None and form.count != count:
        raise FormatError(f"{path}: the header says {form.count:,} ids, but the file holds {count:,}")
    return Form(form.stored, form.ids, count)


def _odd_text(path: str, data_bytes: int, stored: np.dtype) -> str:
    return (
        f"{path}: {data_bytes:,} bytes are not a whole number of {stored.itemsize}-byte ids; "
        "the file is cut off or of another type"
    )


def _llmc_form(file: InputFile) -> Form | None:
    """The form of a `.bin` with llm.c's header, which is taken from the file; None, and nothing taken, without one."""
    start = file.read(4)
    magic = int.from_bytes(start, "little") if len(start) == 4 else 0
    if magic in LLMC_OTHERS:
        raise FormatError(f"{file.path}: the header {magic} is that of {LLMC_OTHERS[magic]} of llm.c, not of tokens")
    if magic not in LLMC_STREAMS:
        file.put_back(start)
        return None
    header = np.frombuffer(start + file.read(LLMC_HEADER_BYTES - 4), np.uint8)
    if header.size < LLMC_HEADER_BYTES:
        raise FormatError(f"{file.path}: the header of {LLMC_HEADER_BYTES:,} bytes is cut off at {header.size}")
    words = header.view("<i4")
    version, stored = LLMC_STREAMS[magic]
    if words[1] != version:
        raise FormatError(f"{file.path}: the header {magic} is of version {words[1]}, but only {version} is known")
    if words[2] < 0 or words[3:].any():
        raise FormatError(f"{file.path}: the header {magic} has a negative count, or is not zero after the count")
    return Form(stored, stored.newbyteorder("="), int(words[2]))


def _npy_form(file: InputFile) -> tuple[Form, int]:
    """The form of a `.npy` file and the bytes of its header, which is taken from it. Nothing in it is ever run."""
    start = file.read(8)
    if len(start) < 8 or not start.startswith(NPY_MAGIC):
        raise FormatError(f"{file.path}: not a .npy file (it does not begin with NumPy's magic)")
    if start[6] not in (1, 2, 3):
        raise FormatError(f"{file.path}: version {start[6]} of .npy is unknown; versions 1 to 3 are known")
    length = file.read(2 if start[6] == 1 else 4)
    text_bytes = int.from_bytes(length, "little")
    if text_bytes > NPY_HEADER_BYTES_MAX:
        raise FormatError(f"{file.path}: a .npy header of {text_bytes:,} bytes is longer than {NPY_HEADER_BYTES_MAX:,}")
    text = file.read(text_bytes)
    if len(text) < text_bytes or not text:
        raise FormatError(f"{file.path}: the .npy header is cut off")
    try:
        if b"\\" in text:  # in no integer type, and Python warns of those it does not know
            raise ValueError
        header = ast.literal_eval(text.decode("latin-1" if start[6] < 3 else "utf-8").strip())
        kind, fortran_order, shape = header["descr"], header["fortran_order"], header["shape"]
        good = isinstance(shape, tuple) and all(type(length) is int and length >= 0 for length in shape)
        if len(header) != 3 or type(fortran_order) is not bool or not good:
            raise ValueError
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise FormatError(f"{file.path}: the .npy header cannot be read") from None
    if not isinstance(kind, str) or not NPY_INTEGERS.fullmatch(kind) or len(shape) != 1:
        raise FormatError(f"{file.path}: the array is {kind!r:.60} {shape!r:.60}, not one-dimensional integers")
    stored = np.dtype(kind)
    form = Form(stored, np.dtype(np.uint16 if stored.itemsize <= 2 else np.uint32), shape[0])
    return form, len(start) + len(length) + len(text)


def _read_ids(
    file: InputFile, form: Form, limit: int | None, vocabulary: int, progress: Callable[[int, int], None] | None
) -> np.ndarray:
    """The ids of a file of which the header has been taken, at most `limit`; FormatError where they do not fit."""
    wanted = min((count for count in (form.count, limit) if count is not None), default=None)
    # A count that the size on disk confirms is allocated at once; any other is only believed as the ids come.
    confirmed = not file.compression and file.file_bytes is not None
    ids = np.empty(wanted if confirmed and wanted is not None else 0, form.ids)
    done = 0
    while wanted is None or done < wanted:
        ask = BATCH_IDS if wanted is None else min(BATCH_IDS, wanted - done)
        if done + ask > ids.size:
            # An eighth more each time, in place where the system can (mremap): never two copies of the stream.
            ids.resize(max(done + ask, ids.size + ids.size // 8), refcheck=False)
        got = _read_batch(file, form, ids[done : done + ask], done, vocabulary)
        done += got
        if progress is not None and file.file_bytes is not None:
            progress(file.taken_bytes, file.file_bytes)
        if got < ask:
            break
    if form.count is not None and wanted is not None and done < wanted:
        raise FormatError(f"{file.path}: there should be {form.count:,} ids, but the file ends after {done:,}")
    if (limit is None or form.count == done) and file.read(1):
        raise FormatError(f"{file.path}: there should be {done:,} ids, but the file goes on after them")
    if done == 0:
        raise FormatError(f"{file.path}: the stream is empty")
    ids.resize(done, refcheck=False)
    return ids


def _read_batch(file: InputFile, form: Form, out: np.ndarray, first: int, vocabulary: int) -> int:
    """Read ids into `out`, the first at position `first`; their number is less than out's only at the end."""
    batch = out if form.stored == form.ids else np.empty(out.size, form.stored)
    got, odd_bytes = divmod(file.fill(batch.view(np.uint8).data), form.stored.itemsize)
    if odd_bytes:
        raise FormatError(_odd_text(file.path, (first + got) * form.stored.itemsize + odd_bytes, form.stored))
    fault = _outside(batch[:got], first, vocabulary) if got else None
    if fault:
        raise FormatError(f"{file.path}: {fault}")
    if batch is not out:
        out[:got] = batch[:got]
    return got


def _starts_after(ids: np.ndarray, eod: int | None) -> np.ndarray:
    """Where documents start if `eod` ends them: (documents,) uint64."""
    starts = [np.zeros(1, np.uint64)]
    if eod is not None:
        last = ids.size - 1  # what follows the last id starts nothing
        for first in range(0, last, BATCH_IDS):  # in batches: a mask of the whole would be half as large as the ids
            ends = np.flatnonzero(ids[first : min(first + BATCH_IDS, last)] == eod)
            starts.append((ends + (first + 1)).astype(np.uint64))
    return np.concatenate(starts)


def _read_starts(path: str, id_count: int, whole: bool) -> np.ndarray:
    """Where documents start, by a text file: (documents,) uint64; those past a stream cut by a limit are dropped."""
    with InputFile(path) as file:
        text = bytearray()
        while piece := file.read(1 << 20):
            text += piece
    starts: list[int] = []
    previous = -1
    for number, line in enumerate(bytes(text).rstrip().split(b"\n"), 1):
        digits = line.strip()
        if not digits.isdigit() or len(digits) > 20:
            shown = digits[:20].decode("ascii", "backslashreplace")
            raise FormatError(f"{path}: line {number} ({shown!r}) is not the 0-based start of a document")
        start = int(digits)
        if number == 1 and start != 0:
            raise FormatError(f"{path}: the first document starts at {start}, but it must start at 0")
        if start <= previous:
            raise FormatError(f"{path}: line {number} ({start}) is not above the line before ({previous})")
        if whole and start >= id_count:
            raise FormatError(f"{path}: line {number} ({start}) is past the end of a stream of {id_count:,} ids")
        previous = start
        if start < id_count:
            starts.append(start)
    return np.array(starts, np.uint64)

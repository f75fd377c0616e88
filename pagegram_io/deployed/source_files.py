"""A checkpoint as it lies on a disk: one file, a folder, an index of many; whole, truncated, or headers alone.

Only headers are read, and only those of files whose tensors are asked for. ``NAME.header`` beside or instead of NAME
holds its first bytes (safetensors: 8 and the JSON), as somebody saved them without the weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagegram_io.deployed import gguf_header, safetensors_header
from pagegram_io.deployed.tensors import FileHeader, Tensor, refuse, regular_size, tensor_name
from pagegram_io.errors import FormatError
from pagegram_io.strict_json import parse_json, shown

INDEX_SUFFIX, SAVED_SUFFIX = ".index.json", ".header"
INDEX_BYTES_MAX = 2**25  # twice the largest seen; JSON of more would only cost memory
CLAIM_BYTES = 2**20  # our own headers are not longer
FORMS = (".safetensors", ".gguf")


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and the file that holds each; headers are read when a tensor is first asked for."""

    path: str
    places: dict[str, str] = field(repr=False)
    index: str | None = None
    _headers: dict[str, FileHeader] = field(default_factory=dict, repr=False, compare=False)

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(self.places.values()))

    def header(self, file: str) -> FileHeader:
        """The header of one of the files. FormatError, OSError."""
        if file not in self._headers:
            self._headers[file] = read_header(file)
        return self._headers[file]

    def tensor(self, name: str) -> Tensor:
        """A tensor by name. FormatError where the index names a file that is missing, or that lacks the tensor."""
        file = self.places[name]
        if not os.path.exists(file) and not os.path.exists(file + SAVED_SUFFIX):
            raise refuse(self.index or self.path, name, f"lies in {os.path.basename(file)}, which is missing")
        tensors = self.header(file).tensors
        if name not in tensors:
            raise refuse(file, name, f"not in this file, where {self.index} says it is")
        return tensors[name]

    @property
    def headers(self) -> list[FileHeader]:
        """Those that were read so far: of a GGUF file all its parts', with an index those of tensors asked for."""
        return list(self._headers.values())

    def metadata(self) -> dict[str, Any]:
        """Keys of all headers that were read."""
        return {key: value for header in self.headers for key, value in header.metadata.items()}


def read_header(file: str) -> FileHeader:
    """The header of one file of either format, told by its first bytes; of its saved header if the file is missing."""
    saved = file + SAVED_SUFFIX
    source = saved if not os.path.exists(file) and os.path.exists(saved) else file
    if os.path.islink(source) and not os.path.exists(source):
        raise FormatError(f"{source}: a link to a file that is missing")
    regular_size(source)
    of = source.removesuffix(SAVED_SUFFIX)
    with open(source, "rb") as opened:
        gguf = opened.read(4) == gguf_header.MAGIC or of.endswith(".gguf")
    return gguf_header.read_header(source, of=of) if gguf else safetensors_header.read_header(source, of=of)


def is_table_file(path: str | os.PathLike[str]) -> bool:
    """Does a file claim to be one of our own, by the keys of its header? It may be damaged in any way."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        begin = file.read(CLAIM_BYTES)
    return b'"format_version"' in begin and b'"pages"' in begin


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """A checkpoint by its folder, its index, or one of its files. FormatError names the file; OSErrors."""
    name = os.fspath(path)
    if os.path.isdir(name):
        return _folder(name)
    if name.endswith(INDEX_SUFFIX):
        return _index(name)
    name = name.removesuffix(SAVED_SUFFIX) if not os.path.exists(name.removesuffix(SAVED_SUFFIX)) else name
    header = read_header(name)
    if header.metadata.get("split.count", 1) != 1:
        return _split(name, header)
    return _gather(name, [name])


def _folder(name: str) -> Checkpoint:
    # By their names alone: what turns out to be no file is refused by name, not passed over.
    found = sorted({file.removesuffix(SAVED_SUFFIX) for file in os.listdir(name)})
    odd = next((f for f in found if f.endswith((INDEX_SUFFIX, *FORMS)) and not f.isprintable()), None)
    if odd is not None:
        raise FormatError(f"{name}: holds a file of the name {shown(odd)}, which cannot be printed")
    indexes = [file for file in found if file.endswith(INDEX_SUFFIX)]
    if len(indexes) > 1:
        raise FormatError(f"{name}: holds {indexes[0]} and {indexes[1]}; name the one you mean")
    if indexes:
        return _index(os.path.join(name, indexes[0]))
    kinds = [[file for file in found if file.endswith(suffix)] for suffix in FORMS]
    if all(kinds):
        raise FormatError(f"{name}: holds {kinds[0][0]} and {kinds[1][0]}; name the one you mean")
    files = kinds[0] or kinds[1]
    if not files:
        raise FormatError(f"{name}: holds neither .safetensors nor .gguf files, nor headers saved from them")
    return _gather(name, [os.path.join(name, file) for file in files])


def _gather(path: str, files: list[str]) -> Checkpoint:
    places: dict[str, str] = {}
    checkpoint = Checkpoint(path, places)
    for file in files:
        for tensor in checkpoint.header(file).tensors:
            if tensor in places:
                raise refuse(file, tensor, f"in {os.path.basename(places[tensor])} as well")
            places[tensor] = file
    return checkpoint


def _split(name: str, header: FileHeader) -> Checkpoint:
    """All parts of a GGUF file that was split: NAME-00001-of-00003.gguf and so on, those that are there."""
    count, stem = header.metadata["split.count"], Path(name).name.removesuffix(SAVED_SUFFIX)
    tail = f"-of-{count:05d}.gguf" if type(count) is int and 0 < count < 100_000 else None
    number = stem.removesuffix(tail)[-6:] if tail and stem.endswith(tail) else ""
    if not (number.startswith("-") and number[1:].isdigit()):
        raise FormatError(f"{name}: one of {shown(count)} parts of a split file, whose name does not say which")
    before = stem[: -len(number + (tail or ""))]
    parts = [str(Path(name).with_name(f"{before}-{i:05d}{tail}")) for i in range(1, count + 1)]
    for part in parts:
        if not os.path.exists(part) and not os.path.exists(part + SAVED_SUFFIX):
            raise FormatError(f"{part}: missing; {os.path.basename(name)} is one of {count} parts")
    return _gather(name, parts)


def _index(name: str) -> Checkpoint:
    if regular_size(name) > INDEX_BYTES_MAX:
        raise FormatError(f"{name}: an index of more than {INDEX_BYTES_MAX} bytes")
    try:
        fields = parse_json(Path(name).read_bytes().decode())
    except ValueError as error:
        raise FormatError(f"{name}: not JSON ({' '.join(str(error).split())})") from None
    mapping = fields.get("weight_map") if type(fields) is dict else None
    if type(mapping) is not dict or not mapping:
        raise FormatError(f"{name}: not the index of a checkpoint: it has no weight_map")
    folder, places = os.path.dirname(name), {}
    for tensor, file in mapping.items():
        if type(file) is not str or file != os.path.basename(file) or file in ("", ".", "..") or not file.isprintable():
            raise refuse(name, tensor, f"its file is {shown(file)}, not the name of one beside the index")
        places[tensor] = os.path.join(folder, file)
    return Checkpoint(name, places, name)


def check_keys(checkpoint: Checkpoint, wanted: dict[str, Any], *, same: Callable[[Any, Any], bool]) -> None:
    """FormatError where a GGUF file lacks one of the model's keys, or says something else than the model does."""
    found = checkpoint.metadata()
    file = next((header.file for header in checkpoint.headers if header.metadata), checkpoint.path)
    for key, value in wanted.items():
        if key not in found:
            raise FormatError(f"{file}: no key {tensor_name(key)}, which says how this model's table is addressed")
        if not same(found[key], value):
            raise FormatError(f"{file}: key {tensor_name(key)} is {shown(found[key])}, and this model's {shown(value)}")

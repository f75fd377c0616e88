"""Checkpoints made field by field, whole or with one field spoilt: whole ones are read exactly, others refused by name.

Random bytes rarely get past a header's first words. Here everything but one field is right, so that each check of the
parsers is reached; the last test counts that they are.
"""

from __future__ import annotations

import collections
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from harness.checkpoints import engram_family
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagegram_io.deployed.gguf_header import TYPES
from pagegram_io.deployed.placement import find_parts, place_in_files
from pagegram_io.deployed.safetensors_header import DTYPE_BITS
from pagegram_io.deployed.source_files import read_checkpoint, read_header
from pagegram_io.deployed.tensors import FileHeader
from pagegram_io.errors import FormatError

fuzz = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=200)

INTERESTING = [0, 1, 2, 3, 7, 8, 9, 255, 2**15, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
WHOLE, SPOILT = "whole", "spoilt"


def outcome(path: Path) -> FileHeader | str:
    """The header, or the line that refuses the file: one line, printable, the file's name first."""
    try:
        return read_header(str(path))
    except FormatError as error:
        text = str(error)
        assert text.startswith(f"{path}: ") and text.isprintable()
        return re.sub(r"tensor ('.*?'|\S*): |key ('.*?'|\S*)|\d+|'.*?'|\[.*?\]", "#", text[len(str(path)) + 2 :])


# ---- safetensors -----------------------------------------------------------------------------------

Lines = dict[str, dict[str, Any]]


@st.composite
def safetensors_lines(draw: st.DrawFn) -> Lines:
    """Tensors one after the other, told in any order."""
    lines, at = {}, 0
    for name in draw(st.lists(NAMES.filter(lambda n: n != "__metadata__"), min_size=1, max_size=4, unique=True)):
        dtype = draw(st.sampled_from([d for d, bits in DTYPE_BITS.items() if bits % 8 == 0]))
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        size = DTYPE_BITS[dtype] // 8
        for extent in shape:
            size *= extent
        lines[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return {name: lines[name] for name in draw(st.permutations(list(lines)))}


def spoil_line(draw: Any, lines: Lines) -> None:
    """Change one thing of one tensor."""
    line = lines[draw(st.sampled_from(list(lines)))]
    what = draw(st.sampled_from(["dtype", "begin", "end", "both", "shape", "dimension", "type", "drop", "more"]))
    by = draw(st.sampled_from([-9, -1, 1, 8, 2**31, 2**62, 2**64]))
    if what == "dtype":
        line["dtype"] = draw(st.sampled_from(["F4", "F6_E2M3", "f32", "", "F32", "U8", "F8_E8M0"]))
    elif what in ("begin", "end", "both"):
        for i in (0, 1):
            line["data_offsets"][i] += by * (what == "both" or i == (what == "end"))
    elif what == "shape":
        line["shape"] = [*line["shape"], abs(by)]
    elif what == "dimension" and line["shape"]:
        line["shape"][-1] += by
    elif what == "type":
        line[draw(st.sampled_from(list(line)))] = draw(st.sampled_from([None, True, 1.0, "1", [], {}, [1], [None]]))
    elif what == "drop":
        line.pop(draw(st.sampled_from(list(line))))
    else:
        line["stride"] = [1]


def sound(lines: Lines) -> bool:
    """The rules, written once more: known types, sizes that fit shapes, tensors without gaps from byte 0."""
    spans = []
    for line in lines.values():
        if set(line) != {"dtype", "shape", "data_offsets"} or line["dtype"] not in list(DTYPE_BITS):
            return False
        for numbers in (line["shape"], line["data_offsets"]):
            if type(numbers) is not list or not all(type(n) is int and 0 <= n <= 2**62 for n in numbers):
                return False
        if len(line["data_offsets"]) != 2:
            return False
        bits = DTYPE_BITS[line["dtype"]]
        for extent in line["shape"]:
            bits *= extent
        begin, end = line["data_offsets"]
        if bits != 8 * (end - begin):
            return False
        spans.append((begin, end))
    spans.sort()
    return [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]


def run_safetensors(folder: Path, counts: collections.Counter[str]) -> None:
    @fuzz
    @given(st.data(), safetensors_lines(), st.booleans())
    def one(data: st.DataObject, lines: Lines, spoil: bool) -> None:
        if spoil:
            spoil_line(data.draw, lines)
        text = json.dumps(lines).encode() + b" " * data.draw(st.integers(0, 9))
        path = folder / "a.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text)
        found = outcome(path)
        assert isinstance(found, FileHeader) == sound(lines), (found, lines)
        counts[found if isinstance(found, str) else WHOLE] += 1
        if isinstance(found, FileHeader):
            assert found.data_byte == 8 + len(text) and set(found.tensors) == set(lines)
            for name, line in lines.items():
                tensor = found.tensors[name]
                assert (tensor.dtype, list(tensor.shape)) == (line["dtype"], line["shape"])
                assert [tensor.byte - found.data_byte, tensor.end_byte - found.data_byte] == line["data_offsets"]

    one()


# ---- GGUF ------------------------------------------------------------------------------------------

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
Fields = list[tuple[str, Any]]  # struct's letter and a number; "s" and bytes


def text_fields(text: bytes) -> Fields:
    return [("Q", len(text)), ("s", text)]


@st.composite
def gguf_values(draw: st.DrawFn) -> Fields:
    kind = draw(st.sampled_from([*NUMBERS, 8, 9]))
    if kind in NUMBERS:
        return [("I", kind), (NUMBERS[kind], draw(st.integers(0, 1)))]
    if kind == 8:
        return [("I", 8), *text_fields(draw(NAMES).encode() * draw(st.sampled_from([1, 1, 300])))]
    inner, count = draw(st.sampled_from([*NUMBERS, 8])), draw(st.integers(0, 5))
    items = [text_fields(draw(NAMES).encode()) if inner == 8 else [(NUMBERS[inner], 1)] for _ in range(count)]
    return [("I", 9), ("I", inner), ("Q", count), *(field for item in items for field in item)]


@st.composite
def gguf_fields(draw: st.DrawFn) -> tuple[Fields, dict[str, tuple[str, list[int], int]]]:
    """A header as fields, and of each tensor its type, shape and offset."""
    keys = draw(st.lists(NAMES.filter(lambda n: n != "general.alignment"), max_size=4, unique=True))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    alignment = draw(st.sampled_from([None, 8, 64]))
    fields: Fields = [("s", b"GGUF"), ("I", draw(st.sampled_from([2, 3])))]
    fields += [("Q", len(names)), ("Q", len(keys) + (alignment is not None))]
    for key in keys:
        fields += [*text_fields(key.encode()), *draw(gguf_values())]
    if alignment is not None:
        fields += [*text_fields(b"general.alignment"), ("I", 4), ("I", alignment)]
    wanted, at = {}, 0
    for name in names:
        kind = draw(st.sampled_from(list(TYPES)))
        dtype, values, size = TYPES[kind]
        extents = [values * draw(st.integers(0, 3)), *draw(st.lists(st.integers(0, 3), max_size=3))]
        fields += [
            *text_fields(name.encode()),
            ("I", len(extents)),
            *(("Q", n) for n in extents),
            ("I", kind),
            ("Q", at),
        ]
        wanted[name] = dtype, extents[::-1], at
        count = size * (extents[0] // values)
        for extent in extents[1:]:
            count *= extent
        at = -(-(at + count) // (alignment or 32)) * (alignment or 32)
    return fields, wanted


def packed(fields: Fields) -> bytes:
    return b"".join(value if letter == "s" else struct.pack("<" + letter, value) for letter, value in fields)


def run_gguf(folder: Path, counts: collections.Counter[str]) -> None:
    @fuzz
    @given(st.data(), gguf_fields(), st.sampled_from([False, True, True]))
    def one(data: st.DataObject, made: Any, spoil: bool) -> None:
        fields, wanted = made
        if spoil:
            at = data.draw(st.sampled_from([i for i, (letter, _) in enumerate(fields) if letter in "IQ"]))
            letter, value = fields[at]
            limit = 2 ** (32 if letter == "I" else 64)
            other = data.draw(st.sampled_from([v for v in (*INTERESTING, value + 1, value - 1) if 0 <= v < limit]))
            fields[at] = letter, other
        path = folder / "a.gguf"
        path.write_bytes(packed(fields))
        found = outcome(path)
        counts[found if isinstance(found, str) else WHOLE if not spoil else SPOILT] += 1
        if not spoil:
            assert isinstance(found, FileHeader), found
            tensors = found.tensors.values()
            assert {t.name: (t.dtype, list(t.shape), t.byte - found.data_byte) for t in tensors} == wanted
        elif isinstance(found, FileHeader):
            assert all(found.data_byte <= t.byte <= t.end_byte <= found.end_byte for t in found.tensors.values())

    one()


# ---- a model's table among them --------------------------------------------------------------------


def run_tables(folder: Path, counts: collections.Counter[str]) -> None:
    """Files and an index of a small model, one thing spoilt: placed where the files say, or refused by name."""
    family = engram_family()
    index = folder / "model.safetensors.index.json"

    @fuzz
    @given(st.data(), st.booleans())
    def one(data: st.DataObject, spoil: bool) -> None:
        starts: list[int] = []
        files, mapping, prefix = [], {}, data.draw(st.sampled_from(["", "model.", "model.language_model."]))
        for i, (table, layer) in enumerate(zip(family.tensors, (1, 14), strict=True)):
            lines: Lines = {}
            at = data.draw(st.integers(0, 300))
            starts.append(at)
            lines["other"] = {"dtype": "U8", "shape": [at], "data_offsets": [0, at]}
            for part, dtype, size in (("weight", "F8_E4M3", 256), ("scale", "F8_E8M0", 8)):
                name = f"{prefix}layers.{layer}.engram.embed.{part}"
                end = at + table.rows * size
                lines[name] = {"dtype": dtype, "shape": [table.rows, size], "data_offsets": [at, end]}
                mapping[name], at = f"m-{i}.safetensors", end
            files.append(lines)
        if spoil:
            what = data.draw(st.sampled_from(["line", "name", "file", "map"]))
            lines = data.draw(st.sampled_from(files))
            name = data.draw(st.sampled_from([name for name in lines if name != "other"]))
            if what == "line":
                spoil_line(data.draw, lines)
            elif what == "name":
                lines["model." + name] = lines.pop(name)
            elif what == "file":
                others = [*(f"m-{i}.safetensors" for i in range(3)), "x"]
                mapping[name] = data.draw(st.sampled_from(others))
            else:
                del mapping[name]
        begins = []
        for i, lines in enumerate(files):
            text = json.dumps(lines).encode()
            begins.append(8 + len(text) + starts[i])
            (folder / f"m-{i}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
        index.write_text(json.dumps({"weight_map": mapping}))
        try:
            parts = find_parts(family, read_checkpoint(index))
        except FormatError as error:
            assert str(error).startswith(str(folder)) and str(error).isprintable()
            counts[re.sub(r".*json: |.*safetensors: |tensor \S*: |\d+", "#", str(error))] += 1
            return
        counts[WHOLE if not spoil else SPOILT] += 1
        layout = place_in_files(family.layout(), parts, scales="read" if len(parts.part_bytes) > 1 else "resident")
        for group in layout.groups:
            for row in (group.row_base, group.row_base + group.row_count - 1):
                file, byte = layout.place_in_file(layout.address(row))
                which = row >= family.tensors[1].row_base
                assert file == str(folder / f"m-{int(which)}.safetensors")
                assert byte == begins[which] + 256 * (row - family.tensors[which].row_base)

    one()


@pytest.mark.parametrize(
    ("run", "reasons"), [(run_safetensors, 4), (run_gguf, 6), (run_tables, 5)], ids=["safetensors", "gguf", "tables"]
)
def test_whole_and_spoilt_headers_reach_every_check(tmp_path: Path, run: Any, reasons: int) -> None:
    counts: collections.Counter[str] = collections.Counter()
    run(tmp_path, counts)
    refusals = {text: n for text, n in counts.items() if text not in (WHOLE, SPOILT)}
    assert counts[WHOLE] >= 20 and sum(refusals.values()) >= 20, counts
    assert len(refusals) >= reasons, counts

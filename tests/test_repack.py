"""Repacked tables: every row of a checkpoint, its scales beside it, at the layout's address, in pages with checks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from harness.checkpoints import engram_family, engram_files, sharded_family, sharded_files

from pagegram_io.deployed.family import Family
from pagegram_io.deployed.placement import find_parts, place_repacked
from pagegram_io.deployed.repacking import write_repacked_file
from pagegram_io.deployed.source_files import read_checkpoint
from pagegram_io.errors import FormatError
from pagegram_io.inspection import inspect
from pagegram_io.table_file import TableHeader, encode_header, read_header
from pagegram_io.verification import verify


def repack(family: Family, folder: Path, *, aligned: bool, page_bytes: int = 4096) -> tuple[TableHeader, Path]:
    parts = find_parts(family, read_checkpoint(folder))
    path = folder / "out.safetensors.table"
    layout = family.layout(page_bytes=page_bytes)
    return write_repacked_file(path, layout, parts, aligned=aligned), path


def check_rows(family: Family, header: TableHeader, path: Path, wanted: np.ndarray, *, aligned: bool) -> None:
    layout = place_repacked(family.layout(page_bytes=header.page_bytes), [wanted.shape[1]], aligned=aligned)
    data = path.read_bytes()
    assert layout.page_count == header.page_count and len(data) == header.file_bytes
    for row in range(len(wanted)):
        at = header.data_byte + layout.address(row)
        assert data[at : at + wanted.shape[1]] == wanted[row].tobytes(), row


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("page_bytes", [512, 4096])
def test_every_row_is_at_its_address_with_its_scales_and_every_page_has_its_check(
    tmp_path: Path, aligned: bool, page_bytes: int
) -> None:
    wanted = engram_files(tmp_path, "F8_E4M3", 256, scales=True, data_at=None)
    family = engram_family()
    header, path = repack(family, tmp_path, aligned=aligned, page_bytes=page_bytes)
    assert header == read_header(path)
    assert header.sealed == aligned and header.repacked is not None and header.repacked.row_format == "fp8 repacked"
    check_rows(family, header, path, wanted, aligned=aligned)
    assert verify(path).damaged == ()
    record = inspect(path)
    assert (record["content"], record["model"], record["row_bytes"], record["rows"]) == (
        "repacked", "toy-engram", 264, len(wanted))  # fmt: skip
    with open(path, "r+b") as file:  # a page that goes bad is named
        file.seek(header.data_byte + 3 * page_bytes + 5)
        file.write(b"\x55\xaa\x55")
    assert [damage.page for damage in verify(path).damaged] == [3]


def test_rows_longer_than_a_page_and_rows_from_many_shards(tmp_path: Path) -> None:
    family = sharded_family(stored_rows=437)
    wanted = sharded_files(tmp_path, 12, "shard_{}.weight", 320)
    for aligned in (True, False):
        header, path = repack(family, tmp_path, aligned=aligned, page_bytes=512)
        check_rows(family, header, path, wanted, aligned=aligned)
        path.unlink()
    long = dataclasses.replace(family, width=900, tensors=(dataclasses.replace(family.tensors[0], width=900),))
    folder = tmp_path / "long"
    folder.mkdir()
    wanted = sharded_files(folder, 5, "shard_{}.weight", 1800)
    header, path = repack(long, folder, aligned=True, page_bytes=512)
    check_rows(long, header, path, wanted, aligned=True)
    assert verify(path).damaged == ()


def test_a_truncated_source_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    engram_files(tmp_path, "F8_E4M3", 256, scales=True, data_at=None)
    source = tmp_path / "a-2.safetensors"
    source.write_bytes(source.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"a-2.safetensors: tensor model.layers.14.engram.embed.scale: ends at byte"):
        repack(engram_family(), tmp_path, aligned=True)
    source.unlink()
    with pytest.raises(FormatError, match="a-2.safetensors, which is missing"):
        repack(engram_family(), tmp_path, aligned=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-1.safetensors", "model.safetensors.index.json"]


def test_an_output_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    engram_files(tmp_path, "F8_E4M3", 256, scales=True, data_at=None)
    repack(engram_family(), tmp_path, aligned=True)
    with pytest.raises(FileExistsError):
        repack(engram_family(), tmp_path, aligned=True)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"row_bytes": 0}, "row_bytes is 0"),
        ({"row_bytes": True}, "row_bytes is True"),
        ({"row_width": 2**21}, "row_width"),
        ({"units_per_page": 14}, "do not fit its rows"),
        ({"group_rows": []}, "group_rows"),
        ({"group_rows": [1, -1]}, "group_rows"),
        ({"group_rows": [1] * 5000}, "group_rows"),
        ({"group_rows": [10**6]}, "take .* pages"),
        ({"model": ""}, "model is ''"),
        ({"model": "a\nb"}, "not a short text"),
        ({"units_per_page": 0}, "take .* pages"),
        ({"more": 1}, "not an object of"),
    ],
)
def test_headers_of_repacked_tables_that_cannot_be_are_refused(
    tmp_path: Path, change: dict[str, object], match: str
) -> None:
    engram_files(tmp_path, "F8_E4M3", 256, scales=True, data_at=None)
    header, path = repack(engram_family(), tmp_path, aligned=True)
    data = path.read_bytes()
    assert header.repacked is not None
    fields = json.loads(data[8 : header.data_byte])
    inner = json.loads(fields["__metadata__"]["repacked"]) | change
    fields["__metadata__"]["repacked"] = json.dumps(inner)
    text = json.dumps(fields).encode()
    text += b" " * (-(len(text) + 8) % 4096)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[header.data_byte :])
    with pytest.raises(FormatError, match=match):
        read_header(path)
    assert encode_header(header) == data[: header.data_byte]

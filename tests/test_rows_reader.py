"""Raw rows from the very files, with O_DIRECT where the disk takes it: byte for byte, of every way they are stored."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from conftest import make_stream
from harness.checkpoints import (
    engram_family,
    engram_files,
    random_rows,
    rows_blob,
    sharded_family,
    sharded_files,
    write_safetensors,
)
from harness.targets import filesystem_of, takes_direct
from test_source_files import write_gguf

from pagegram_io import native
from pagegram_io.deployed import FAMILIES
from pagegram_io.deployed.describe import describe
from pagegram_io.deployed.extents import names_table
from pagegram_io.deployed.family import Family, TableTensor
from pagegram_io.deployed.gguf_header import BLOCKS
from pagegram_io.deployed.model_table import model_table
from pagegram_io.deployed.placement import find_parts
from pagegram_io.deployed.ranks import SPLITS, own_rows, shares_of
from pagegram_io.deployed.repacking import write_repacked_file
from pagegram_io.deployed.rows_reader import RowsReader
from pagegram_io.deployed.source_files import Checkpoint, read_checkpoint
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder where O_DIRECT works: pytest's own, or one under build/ where that is a tmpfs."""
    if takes_direct(tmp_path) and filesystem_of(tmp_path) != "tmpfs":
        yield tmp_path
        return
    beside = ROOT / "build" / f"test-rows-{os.getpid()}"
    beside.mkdir(parents=True)
    try:
        if not takes_direct(beside):
            pytest.skip(f"no O_DIRECT on {filesystem_of(tmp_path)} or {filesystem_of(beside)}")
        yield beside
    finally:
        shutil.rmtree(beside)


def some_rows(layout: Layout) -> np.ndarray:
    return layout.rows(make_stream(np.random.default_rng(3).integers(0, 1000, 300), [0, 100]))


def check_direct(layout: Layout, wanted: np.ndarray, engine: str = "auto") -> None:
    rows = some_rows(layout)
    with RowsReader(layout, depth=7, engine=engine) as reader:
        assert np.array_equal(reader.read(rows), wanted[rows.astype(np.int64)])
        for token in range(9):  # as decode reads: a token a call
            assert np.array_equal(reader.read(rows[token : token + 1])[0], wanted[rows[token].astype(np.int64)])


@pytest.mark.parametrize("engine", ["io_uring", "psync"])
@pytest.mark.parametrize("data_at", [0, 8])
def test_rows_and_scales_of_two_files(folder: Path, engine: str, data_at: int) -> None:
    wanted = engram_files(folder, "F8_E4M3", 256, scales=True, data_at=data_at)
    table = model_table(engram_family(), folder)
    check_direct(table.layout(scales="read"), wanted, engine)
    check_direct(table.layout(), wanted[:, :256], engine)


@pytest.mark.parametrize("page_bytes", [512, 1024, 16_384, 65_536, 1 << 20])
def test_pages_of_other_sizes(folder: Path, page_bytes: int) -> None:
    """Shorter than what memory is aligned to, and longer than the files."""
    wanted = engram_files(folder, "F8_E4M3", 256, scales=True, data_at=8)
    table = model_table(engram_family(), folder, page_bytes=page_bytes)
    layout = table.layout(scales="read")
    rows = some_rows(layout)
    with RowsReader(layout, table.parts, buffered=True) as reader:
        assert np.array_equal(reader.read(rows), wanted[rows.astype(np.int64)])


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_each_rank_reads_its_own_rows_and_no_others(folder: Path, split: str, ranks: int) -> None:
    """Rows of other ranks are left out: nothing is read for them, and the caller's memory stays as it is."""
    wanted = engram_files(folder, "F8_E4M3", 256, scales=True, data_at=8)
    table = model_table(engram_family(), folder)
    layout = table.layout(scales="read")
    rows = some_rows(layout)[:100]  # in one batch, so that each page is read once
    whole = wanted[rows.astype(np.int64)]
    together = np.full(whole.shape, 7, np.uint8)
    for share in shares_of(table.tensors, ranks, split):
        own = own_rows(layout, rows, share)
        mine = own != np.uint64(native.NO_ROW)
        with RowsReader(layout, table.parts, depth=7) as reader:
            alone = reader.read(own)
            read_pages = reader._reader.stats().reads
            reader.read(own, together)
        assert np.array_equal(alone, np.where(mine[..., None], whole, 0))
        needed = layout.pages(own)
        assert read_pages == len(np.unique(needed[needed != native.NO_PAGE]))
    assert np.array_equal(together, whole)


@pytest.mark.parametrize("engine", ["io_uring", "psync"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q2_K", "BF16"])
def test_rows_of_a_gguf_file(folder: Path, engine: str, kind: str) -> None:
    family = sharded_family(256)
    values, size = BLOCKS[kind]
    wanted = random_rows(family.row_count, 256 // values * size)
    write_gguf(folder / "x.gguf", wanted, gguf.GGMLQuantizationType[kind])
    table = model_table(family, folder / "x.gguf")
    check_direct(table.layout(), wanted, engine)
    write_repacked_file(folder / "out.table", family.layout(), find_parts(family, read_checkpoint(folder / "x.gguf")))
    check_direct(model_table(family, folder / "out.table").layout(), wanted, engine)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.zeros((3, 7), np.uint64), r"rows are \[tokens, 8\] for this layout, not \[3, 7\]"),
        (np.zeros(8, np.uint64), r"rows are \[tokens, 8\]"),
        (np.zeros((3, 8)), "integers are needed, not float64"),
        (np.full((3, 8), -1), "-1 is negative"),
        (np.full((3, 8), 10**6), "row 1000000 is not in group 0"),
    ],
)
def test_rows_that_cannot_be_are_refused(folder: Path, rows: np.ndarray, said: str) -> None:
    engram_files(folder, "F8_E4M3", 256, scales=False, data_at=8)
    layout = model_table(engram_family(), folder).layout()
    with RowsReader(layout, buffered=True) as reader:
        with pytest.raises(ValueError, match=said):
            reader.read(rows)
        good = some_rows(layout)[:3]
        for out in (np.zeros((3, 8, 255), np.uint8), np.zeros((3, 8, 256), np.int8), np.zeros((2, 8, 256), np.uint8)):
            with pytest.raises(ValueError, match="rows go to writeable uint8"):
                reader.read(good, out)
        out = np.zeros((3, 8, 256), np.uint8)
        out.flags.writeable = False
        with pytest.raises(ValueError, match="rows go to writeable uint8"):
            reader.read(good, out)


def test_rows_of_many_shards(folder: Path) -> None:
    wanted = sharded_files(folder, 12, "shard_{}.weight")
    check_direct(model_table(sharded_family(stored_rows=437), folder).layout(), wanted)


@pytest.mark.parametrize("aligned", [True, False])
def test_rows_of_a_repacked_file(folder: Path, aligned: bool) -> None:
    wanted = engram_files(folder, "F8_E4M3", 256, scales=True, data_at=8)
    family = engram_family()
    path = folder / "out.table"
    write_repacked_file(path, family.layout(), find_parts(family, read_checkpoint(folder)), aligned=aligned)
    layout = model_table(family, path).layout()
    check_direct(layout, wanted)
    pages = layout.pages(some_rows(layout))
    assert (int((pages != native.NO_PAGE).sum()) == 300 * 8) == aligned  # none straddles
    other = replace(family, name="other")
    with pytest.raises(FormatError, match="repacked rows of toy-engram"):
        model_table(other, path)


def joined_family() -> Family:
    """As LongCat's: a tensor a column, or all of them in one."""
    family = engram_family(32, (1,))
    tensors, addresses, row = [], [], 0
    for i, address in enumerate(family.addresses):
        tensors.append(TableTensor(rf"embedders\.{i}\.weight", None, row, address.modulus, address.modulus, 32))
        addresses.append(replace(address, tensor=i))
        row += address.modulus
    joined = TableTensor(r".*oe_embeder\.weight", None, 0, row, row, 32)
    return replace(family, tensors=tuple(tensors), addresses=tuple(addresses), joined=joined)


def test_tables_joined_in_one_tensor_hold_the_same_rows(folder: Path) -> None:
    family = joined_family()
    wanted = random_rows(family.row_count, 64)
    apart, joined = folder / "apart", folder / "joined"
    apart.mkdir(), joined.mkdir()
    blobs = {
        f"model.embedders.{i}.weight": rows_blob(wanted[t.row_base : t.row_base + t.rows], "BF16")
        for i, t in enumerate(family.tensors)
    }
    write_safetensors(apart / "a.safetensors", blobs)
    write_safetensors(joined / "a.safetensors", {"model.oe_embeder.weight": rows_blob(wanted, "BF16")}, data_at=8)
    for path, tensors in ((apart, family.tensors), (joined, (family.joined,))):
        table = model_table(family, path)
        assert table.tensors == tensors
        check_direct(table.layout(), wanted)
        out = path / "out.table"
        write_repacked_file(out, family.layout(), find_parts(family, read_checkpoint(path)))
        check_direct(model_table(family, out).layout(), wanted)
    short = folder / "short"
    short.mkdir()
    write_safetensors(short / "a.safetensors", {"model.oe_embeder.weight": rows_blob(wanted[1:], "BF16")})
    with pytest.raises(FormatError, match=f"it has {len(wanted) - 1} rows"):
        model_table(family, short)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("model.ngram_embeddings.embedders.7.weight", "apart"),
        ("model.oe_embed_tokens.7.weight", "apart"),
        ("model.ngram_embeddings.oe_embeder.weight", "joined"),
        ("model.ngram_embedding.oe_embedder.weight", "joined"),
        ("ngram_embeddings.embedders.weight", "joined"),
        ("model.embed_tokens.weight", None),
        ("model.ngram_embeddings.post_projs.7.weight", None),
    ],
)
def test_names_of_longcats_tables(name: str, known: str | None) -> None:
    family = FAMILIES["longcat-flash-lite"]
    assert family.joined is not None and family.joined.stored_rows == family.row_count == 122_683_536
    checkpoint = Checkpoint("x", {name: "x"})
    assert names_table(checkpoint, family.joined) == (known == "joined")
    assert names_table(checkpoint, family.tensors[7]) == (known == "apart")


def test_a_joined_table_is_described_from_its_header(tmp_path: Path) -> None:
    family = FAMILIES["longcat-flash-lite"]
    fields = (
        f'{{"model.oe_embeder.weight":{{"dtype":"BF16","shape":[122683536,256],"data_offsets":[0,{122683536 * 512}]}}}}'
    )
    (tmp_path / "a.safetensors").write_bytes(len(fields).to_bytes(8, "little") + fields.encode())
    record = describe(tmp_path)
    assert (record["model"], record["rows"], record["extents"]) == (family.name, 122_683_536, 1)
    layout = model_table(family, tmp_path).layout()
    assert (layout.placement, layout.row_bytes, len(layout.groups)) == ("files", 512, 12)
    first = layout.place_in_file(layout.address(0))[1]
    assert first == 8 + len(fields)
    last = layout.place_in_file(layout.address(family.row_count - 1))[1]
    assert last == first + (family.row_count - 1) * 512


def test_tables_of_over_encoding_are_described_from_their_header(tmp_path: Path) -> None:
    family = FAMILIES["over-encoding"]
    fields, at = {}, 0
    for i, tensor in enumerate(family.tensors):
        end = at + tensor.rows * 512
        name = f"model.oe_embedders.{i}.weight"
        fields[name] = {"dtype": "BF16", "shape": [tensor.rows, 256], "data_offsets": [at, end]}
        at = end
    text = json.dumps(fields).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    record = describe(tmp_path)
    assert (record["model"], record["rows"], record["extents"]) == (family.name, 102_400_056, 8)
    layout = model_table(family, tmp_path).layout()
    assert layout.place_in_file(layout.address(family.row_count - 1))[1] == 8 + len(text) + at - 512


@pytest.mark.slow
def test_the_bench_of_rows_runs(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "rows.py"), "--quick", "--folder", str(folder)],
        capture_output=True, text=True, check=False, cwd=ROOT / "bench",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "a pread a row" in done.stdout and not list(folder.iterdir())

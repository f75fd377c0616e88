"""Files of a checkpoint that are no plain files, cannot be read, or change while they are read: one line, at once."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from harness.checkpoints import (
    engram_family,
    engram_files,
    random_rows,
    rows_blob,
    sharded_family,
    write_safetensors,
)
from test_bad_checkpoints import gguf_bytes, gguf_key, gguf_tensor, raw_safetensors
from test_source_files import placed_without_bytes, write_gguf, write_qwen_gguf

from pagegram_io import cli, deployed
from pagegram_io.deployed import FAMILIES, gguf_header, repacking
from pagegram_io.deployed.family import Family
from pagegram_io.deployed.gguf_keys import MODEL_KEYS
from pagegram_io.deployed.model_table import model_table
from pagegram_io.deployed.placement import find_parts
from pagegram_io.deployed.repacking import write_repacked_file
from pagegram_io.deployed.rows_reader import RowsReader
from pagegram_io.deployed.source_files import INDEX_BYTES_MAX, read_checkpoint, read_header
from pagegram_io.errors import FormatError
from pagegram_io.table_file import write_pattern_file

MODEL = "toy-engram"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small whole checkpoint whose model the commands know."""
    monkeypatch.setitem(deployed.FAMILIES, MODEL, engram_family())
    folder = tmp_path / "toy"
    folder.mkdir()
    engram_files(folder, "F8_E4M3", 256, scales=True, data_at=8)
    return folder


def refused(capsys: pytest.CaptureFixture[str], words: list[object], *said: str) -> None:
    assert cli.run([*map(str, words)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    for text in said:
        assert text in err, err


# ---- what is no plain file -------------------------------------------------------------------------


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_dangling(path: Path) -> None:
    path.symlink_to("gone")


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "a-2.safetensors: not a regular file"),
        (os.mkdir, "a-2.safetensors: not a regular file"),
        (make_loop, "a-2.safetensors: a link to a file that is missing"),
        (make_dangling, "a-2.safetensors: a link to a file that is missing"),
    ],
    ids=["pipe", "folder", "loop of links", "link to nothing"],
)
def test_a_shard_that_is_no_file(
    toy: Path, indexed: bool, make: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is neither waited for nor passed over, in every command that takes a checkpoint."""
    shard = toy / "a-2.safetensors"
    shard.unlink()
    make(shard)  # type: ignore[operator]
    if not indexed:
        (toy / "model.safetensors.index.json").unlink()
    elif "missing" in said:
        said = "a-2.safetensors, which is missing"
    for words in (
        ["layout", "--model", MODEL, "--files", toy],
        ["simulate", "--model", MODEL, "--files", toy, "--limit", "9"],
        ["plan", "--model", MODEL, "--files", toy, "--limit", "9"],
        ["repack", "--model", MODEL, toy, "-o", toy.parent / "out.safetensors"],
    ):
        refused(capsys, words, said)
    assert not (toy.parent / "out.safetensors").exists()


def test_rows_whose_scales_are_missing(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their places are known and can be read; that no scales are counted is said, and they are not repacked."""
    engram_files(toy, "F8_E4M3", 256, scales=False, data_at=8)
    ids = toy.parent / "ids.u16"
    (np.arange(3000) % 1000).astype("<u2").tofile(ids)
    of = ["--model", MODEL, "--files", str(toy), "--tokens", str(ids)]
    said = "no tensor known here holds its scales, and nothing is counted for them"
    for scales in ("resident", "read"):
        assert cli.run(["simulate", *of, "--scales", scales]) == 0
        assert f"Placed where the checkpoint's headers say; {said}." in capsys.readouterr().out
    assert cli.run(["inspect", str(toy)]) == 0
    out = capsys.readouterr().out
    assert f"problem  tensor model.layers.1.engram.embed.weight is in fp8, which needs scales, and {said}" in out
    assert cli.run(["plan", *of, "--goal", "1", "--batch", "1"]) == 0
    assert "nothing is counted for them" in capsys.readouterr().out.replace("\n", " ")
    out = toy.parent / "out.safetensors"
    refused(
        capsys,
        ["repack", "--model", MODEL, toy, "-o", out],
        f"{toy}/model.safetensors.index.json: tensor model.l",
        said,
    )
    assert not out.exists()
    assert cli.run(["simulate", *of, "--repack"]) == 2
    assert said in capsys.readouterr().err


def test_an_index_that_is_no_file(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    os.mkfifo(index)
    for path in (index, tmp_path):
        with pytest.raises(FormatError, match="index.json: not a regular file"):
            read_checkpoint(path)


def test_other_things_in_the_folder_do_not_matter(toy: Path) -> None:
    make_loop(toy / "notes.txt")
    os.mkfifo(toy / "pipe")
    (toy / "sub").mkdir()
    (toy / "odd\x1b[31m\n.txt").touch()
    find_parts(engram_family(), read_checkpoint(toy))


def test_names_that_cannot_be_printed_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (b"a\x1b[31m\nb.safetensors", b"a\xff.safetensors"):
        path = os.path.join(os.fsencode(tmp_path), name)
        Path(os.fsdecode(path)).write_bytes(b"x")
        refused(capsys, ["inspect", tmp_path], "holds a file of the name 'a\\", "cannot be printed")
        os.unlink(path)
    bad = {"a\x1b[31m\nb\u202e": {"dtype": "F7", "shape": [], "data_offsets": [0, 1]}}
    refused(
        capsys, ["inspect", raw_safetensors(tmp_path / "x.safetensors", bad)], "tensor 'a\\x1b[31m\\nb\\u202e': its"
    )
    bad = {"\ud800": {"dtype": "F7", "shape": [], "data_offsets": [0, 1]}}
    refused(capsys, ["inspect", raw_safetensors(tmp_path / "x.safetensors", bad)], "tensor '\\ud800': its dtype 'F7'")
    twice = b'{"a": 1, "b": 2, "b": 3}'
    refused(capsys, ["inspect", raw_safetensors(tmp_path / "x.safetensors", twice)], "a key appears twice: 'b'")


def test_what_may_not_be_read_is_named(toy: Path) -> None:
    """Folders, indexes and shards of mode 000; root gives up its right to read them all the same."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    for path in (toy / "a-1.safetensors", toy / "model.safetensors.index.json", toy):
        path.chmod(0)
        words = [sys.executable, "-m", "pagegram_io.cli", "inspect", str(toy)]
        done = subprocess.run([*drop, *words], capture_output=True, text=True, check=False)
        path.chmod(0o755)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"pagegram-io: {path}: permission denied; check its owner and mode\n"


# ---- what inspect says of a broken file ------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it does not begin with the length of a header"),
        ((2**63).to_bytes(8, "little") + b"{}", "a header of 9223372036854775808 bytes; at most 16777216 are read"),
        ((10**8).to_bytes(8, "little") + b"{}", "a header of 100000000 bytes; at most"),
        ((1000).to_bytes(8, "little") + b"{}", "cut short in its header, which needs 1008 bytes of the file's 10"),
        (b"\x02" + bytes(7) + b"{}" + b"more", "it has 14 bytes, and its tensors end at byte 10"),
        (b"GG", "it does not begin with the length of a header"),
    ],
)
def test_inspect_says_what_is_wrong_with_a_checkpoint(
    tmp_path: Path, data: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    refused(capsys, ["inspect", path], f"{path}: ", said)


def test_a_table_file_that_is_cut_is_no_checkpoint(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = toy.parent / "out.safetensors"
    assert cli.run(["repack", "--model", MODEL, str(toy), "-o", str(table)]) == 0
    table.write_bytes(table.read_bytes()[:-1])
    capsys.readouterr()
    for words in (["inspect", table], ["verify", table], ["layout", "--model", MODEL, "--files", table]):
        refused(capsys, words, "out.safetensors: it has ", "it was cut or grew")
    other = toy.parent / "pattern.safetensors"
    write_pattern_file(other, 16)
    refused(capsys, ["layout", "--model", MODEL, "--files", other], "a table file, but not of rows that repack wrote")


# ---- GGUF ------------------------------------------------------------------------------------------


def test_a_gguf_file_without_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(key_count=1, keys=gguf_key(b"k", 0, b"1")))
    for name in ("deepseek-v4.1-flash", "qwen3.8-flash-next"):
        words = ["layout", "--model", name, "--files", tmp_path / "x.gguf"]
        refused(capsys, words, "x.gguf: no tensor of this model's table")
    assert cli.run(["inspect", str(tmp_path / "x.gguf")]) == 0


def test_a_name_of_gguf_is_read_as_gguf(tmp_path: Path) -> None:
    for data in (b"", b"GGU", b"\x08" + bytes(20)):
        (tmp_path / "x.gguf").write_bytes(data)
        with pytest.raises(FormatError, match="cut short in its header, in its first bytes|not a GGUF file"):
            read_header(str(tmp_path / "x.gguf"))


@pytest.mark.parametrize(("letter", "kind"), [("d", 12), ("f", 6), ("i", 5), ("q", 11), ("Q", 10), ("?", 7)], ids=str)
def test_keys_of_whole_numbers_alone_are_the_models(tmp_path: Path, letter: str, kind: int) -> None:
    family = FAMILIES["qwen3.8-flash-next"]
    keys = b""
    for name, value in MODEL_KEYS[family.name](family).items():
        if isinstance(value, int):
            keys += gguf_key(name.encode(), 4, struct.pack("<I", value))
            continue
        numbers = struct.pack(f"<{len(value)}{letter}", *(v if letter not in "if?" else v % 2**20 for v in value))
        keys += gguf_key(name.encode(), 9, struct.pack("<IQ", kind, len(value)) + numbers)
    line = gguf_tensor(b"per_layer_token_embd.weight", [160, 320_001_536], 2, 0)
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(key_count=4, keys=keys, tensor_count=1, tensors=line))
    checkpoint = read_checkpoint(tmp_path / "x.gguf")
    if letter in "qQ":
        find_parts(family, checkpoint)
        return
    with pytest.raises(FormatError, match=r"x.gguf: key qwen4exp.ple.layer_multipliers is \[.*this model's \("):
        find_parts(family, checkpoint)


def test_a_key_that_is_a_text_is_shown(tmp_path: Path) -> None:
    family = FAMILIES["qwen3.8-flash-next"]
    keys = {name: 7 for name in MODEL_KEYS[family.name](family)}
    write_qwen_gguf(tmp_path / "x.gguf", keys)
    data = (tmp_path / "x.gguf").read_bytes()
    name = b"qwen4exp.ple.layer_multipliers"
    at = data.index(name) + len(name)
    text = struct.pack("<IQ", 8, 3) + b"a\x1b\n"
    (tmp_path / "x.gguf").write_bytes(data[:at] + text + data[at + 8 :])
    with pytest.raises(FormatError, match=r"key qwen4exp.ple.layer_multipliers is 'a\\x1b\\n', and this model's"):
        find_parts(family, read_checkpoint(tmp_path / "x.gguf"))


def test_headers_that_would_take_long_are_refused(tmp_path: Path) -> None:
    """Sparse files cost nothing to make: millions of texts, or texts of 64 KiB by the thousand."""
    path = tmp_path / "x.gguf"
    for kind, count in ((8, 2**24), (10, 2**24)):
        path.write_bytes(gguf_bytes(key_count=1, keys=gguf_key(b"k", 9, struct.pack("<IQ", kind, count))))
        os.truncate(path, 2**28)
        with pytest.raises(FormatError, match="x.gguf: its header is longer than 67108864 bytes, in key k"):
            read_header(str(path))
    path.write_bytes(gguf_bytes(key_count=1, keys=gguf_key(b"k", 8, struct.pack("<Q", 2**27))))
    os.truncate(path, 2**28)
    with pytest.raises(FormatError, match="longer than 67108864 bytes, in key k"):
        read_header(str(path))
    index = tmp_path / "model.safetensors.index.json"
    index.touch()
    os.truncate(index, INDEX_BYTES_MAX + 1)
    with pytest.raises(FormatError, match=f"an index of more than {INDEX_BYTES_MAX} bytes"):
        read_checkpoint(index)


@pytest.mark.parametrize("step", [16, 61, 4096])
def test_texts_are_passed_over_whatever_their_lengths(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many texts a step, texts that end with it, and texts longer than it."""
    monkeypatch.setattr(gguf_header, "READ_BYTES", step)
    rng = np.random.default_rng(step)
    texts = ["x" * int(n) for n in (*rng.integers(0, 30, 300), 0, 0, step, step - 8, step - 16, 3 * step, 100_000, 0)]
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "toy")
    writer.add_array("a.texts", texts)
    writer.add_uint32("a.number", 77)
    writer.add_array("b.texts", texts[::-1])
    writer.add_tensor("t", np.zeros((3, 7), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(str(tmp_path / "x.gguf"))
    assert header.metadata["a.number"] == 77 and header.metadata["general.architecture"] == "toy"
    assert header.tensors["t"].byte == gguf.GGUFReader(tmp_path / "x.gguf").tensors[0].data_offset


def test_a_gguf_header_alone_is_enough_to_plan(tmp_path: Path) -> None:
    family = sharded_family(256)
    rows = random_rows(family.row_count, 272)
    write_gguf(tmp_path / "x.gguf", rows, gguf.GGMLQuantizationType.Q8_0)
    whole = placed_without_bytes(family, tmp_path / "x.gguf")
    data = (tmp_path / "x.gguf").read_bytes()
    (tmp_path / "x.gguf").unlink()
    (tmp_path / "cut.gguf").write_bytes(data[: read_length(data)])
    (tmp_path / "x.gguf.header").write_bytes(data[: read_length(data)])
    for path in ("cut.gguf", "x.gguf", "x.gguf.header"):
        assert placed_without_bytes(family, tmp_path / path).groups == whole.groups
    (tmp_path / "cut.gguf").unlink()
    found = read_checkpoint(tmp_path)
    assert found.files == [str(tmp_path / "x.gguf")] and found.header(found.files[0]).truncated


def read_length(data: bytes) -> int:
    """Where the data of a GGUF file begin: the least length at which its header is read."""
    return data.index(b"last.weight") + len("last.weight") + 4 + 2 * 8 + 4 + 8


def test_a_tables_shard_alone_is_enough_whatever_else_the_index_names(tmp_path: Path) -> None:
    """Of 128 files somebody fetched those that hold the table; the first of the index is not among them."""
    family = FAMILIES["qwen3.8-flash-next"]
    prefix = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"
    mapping = {"lm_head.weight": "m-0.safetensors"}
    for i in range(128):
        mapping[f"{prefix}.shard_{i}.weight"] = f"m-{1 + i // 64}.safetensors"
    for file in ("m-1.safetensors", "m-2.safetensors"):
        names = [name for name, where in mapping.items() if where == file]
        size = 2_500_012 * 320
        fields = {
            name: {"dtype": "BF16", "shape": [2_500_012, 160], "data_offsets": [i * size, i * size + size]}
            for i, name in enumerate(names)
        }
        raw_safetensors(tmp_path / file, fields)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    layout = model_table(family, tmp_path).layout()
    assert (layout.row_bytes, layout.row_count, len(layout.windows)) == (320, 320_001_536, 2)


# ---- files that change while they are read ---------------------------------------------------------


def row_of_the_last_tensor(family: Family) -> np.ndarray:
    layout = family.layout()
    return np.array([[group.row_base + group.row_count - 1 for group in layout.groups]], np.uint64)


@pytest.mark.parametrize("cut", [1, 300, 5000, 100_000])
def test_a_file_cut_before_or_after_it_is_opened(toy: Path, cut: int) -> None:
    family, shard = engram_family(), toy / "a-2.safetensors"
    table = model_table(family, toy)
    layout, rows = table.layout(), row_of_the_last_tensor(family)
    scales = 8 * family.tensors[1].rows
    with RowsReader(layout, table.parts, buffered=True) as reader:
        reader.read(rows)
        os.truncate(shard, shard.stat().st_size - scales - cut)
        with pytest.raises(OSError, match=r"tensor model.layers.14.engram.embed.weight: reading at .* ended early"):
            reader.read(rows)
    with pytest.raises(FormatError, match=r"a-2.safetensors: tensor model.layers.14.engram.embed.weight: ends at byte"):
        RowsReader(layout, table.parts, buffered=True)
    with pytest.raises(FormatError, match=r"a-2.safetensors: its rows end at byte \d+ and the file at"):
        RowsReader(layout, buffered=True)
    shard.unlink()
    with pytest.raises(FileNotFoundError):
        RowsReader(layout, buffered=True)


def test_a_file_cut_while_it_is_repacked(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = toy.parent / "out.safetensors"
    monkeypatch.setattr(repacking, "require_bytes", lambda extents: os.truncate(toy / "a-2.safetensors", 2000))
    words = ["repack", "--model", MODEL, toy, "-o", out]
    refused(capsys, words, "a-2.safetensors: tensor model.layers.14.engram.embed.weight: the file ended while it was")
    assert [p.name for p in toy.parent.iterdir()] == ["toy"]


def test_a_disk_that_fails_while_it_is_repacked(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    words = ["repack", "--model", MODEL, toy, "-o", toy.parent / "out.safetensors"]
    refused(capsys, words, "a-1.safetensors: tensor model.layers.1.engram.embed.weight: Input/output error")


def test_a_header_that_changed_is_read_again_with_the_next_command(toy: Path) -> None:
    """A table that grew: its file no longer ends where its tensors do."""
    with open(toy / "a-2.safetensors", "ab") as file:
        file.write(b"x")
    with pytest.raises(FormatError, match=r"a-2.safetensors: it has \d+ bytes, and its tensors end at byte \d+"):
        find_parts(engram_family(), read_checkpoint(toy))


def test_a_shard_of_less_than_a_page_is_repacked(tmp_path: Path) -> None:
    family = sharded_family(stored_rows=437)
    rows = random_rows(437, 320)
    names = [f"layers.1.ple.ngram_embedding.shard_{i}.weight" for i in range(3)]
    for i, (begin, end) in enumerate(((0, 215), (215, 430), (430, 437))):
        write_safetensors(tmp_path / f"m-{i}.safetensors", {names[i]: rows_blob(rows[begin:end], "BF16")})
    header = write_repacked_file(
        tmp_path / "out.table", family.layout(), find_parts(family, read_checkpoint(tmp_path)), aligned=False
    )
    data = (tmp_path / "out.table").read_bytes()[header.data_byte :]
    assert data[: rows.size] == rows.tobytes()

"""Rows in real files: the very bytes at the addresses, for every row format, in safetensors and GGUF files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from conftest import make_stream
from harness.checkpoints import (
    Blob,
    engram_family,
    engram_files,
    random_rows,
    rows_blob,
    sharded_family,
    sharded_files,
    write_safetensors,
)

from pagegram_io.deployed import FAMILIES
from pagegram_io.deployed.extents import find_table, require_bytes
from pagegram_io.deployed.family import Family
from pagegram_io.deployed.gguf_header import BLOCKS
from pagegram_io.deployed.gguf_keys import MODEL_KEYS
from pagegram_io.deployed.placement import SCALES_MISSING, find_parts, place_in_files, place_repacked
from pagegram_io.deployed.rows_reader import RowsReader
from pagegram_io.deployed.source_files import read_checkpoint
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout, Region
from pagegram_io.straddles import straddle_probability

ENGRAM_TYPES = {"fp8": ("F8_E4M3", 256), "8-bit": ("U8", 256), "fp8 repacked": ("U8", 264), "bf16": ("BF16", 512)}
ENGRAM_TYPES |= {"q2_k": ("U8", 84), "q3_k": ("U8", 110), "q4_k": ("U8", 144), "q8_0": ("U8", 272)}


def stored_rows(layout: Layout, row: int) -> bytes:
    """A row read back from its files, the slow way: one byte address of each of its regions at a time."""
    group = next(g for g in layout.groups if g.row_base <= row < g.row_base + g.row_count)
    found = b""
    for region in group.regions:
        local = row - group.row_base
        base, first = region.base_byte, 0
        for segment in region.segments:
            if segment.first_unit <= local:
                base, first = segment.base_byte, segment.first_unit
        file, byte = layout.place_in_file(base + (local - first) * region.row_bytes)
        with open(file, "rb") as opened:
            opened.seek(byte)
            found += opened.read(region.row_bytes)
    return found


def check_every_row(layout: Layout, wanted: np.ndarray) -> None:
    """Every row by its address, and through the reader, with pages that are the files' own."""
    for row in range(len(wanted)):
        assert stored_rows(layout, row) == wanted[row].tobytes(), row
    assert layout.windows[0].page_begin == 0
    assert layout.windows[-1].page_begin + layout.windows[-1].page_count == layout.page_count
    stream = make_stream(np.random.default_rng(3).integers(0, 1000, 400), [0, 100])
    rows = layout.rows(stream)
    with RowsReader(layout, buffered=True) as reader:
        out = np.zeros((len(rows), layout.column_count, layout.row_bytes + 5), np.uint8)
        reader.read(rows, out[..., 2 : 2 + layout.row_bytes])
        assert np.array_equal(out[..., 2 : 2 + layout.row_bytes], wanted[rows.astype(np.int64)])
        assert not out[..., :2].any() and not out[..., -3:].any()


def placed(family: Family, path: Path, *, scales: str = "resident") -> Layout:
    parts = find_parts(family, read_checkpoint(path))
    require_bytes(parts.extents(scales=scales == "read"))
    return place_in_files(family.layout(), parts, scales=scales)


@pytest.mark.parametrize("name", ENGRAM_TYPES)
@pytest.mark.parametrize("data_at", [None, 0, 8])
def test_rows_of_every_format_lie_where_the_layout_says(tmp_path: Path, name: str, data_at: int | None) -> None:
    dtype, row_bytes = ENGRAM_TYPES[name]
    wanted = engram_files(tmp_path, dtype, row_bytes, scales=False, data_at=data_at)
    layout = placed(engram_family(), tmp_path)
    assumed = SCALES_MISSING if name in ("fp8", "8-bit") else None
    assert (layout.row_format, layout.row_bytes, layout.scales, layout.assumed) == (name, row_bytes, None, assumed)
    check_every_row(layout, wanted)


def test_scales_in_tensors_of_their_own_are_read_or_resident(tmp_path: Path) -> None:
    wanted = engram_files(tmp_path, "F8_E4M3", 256, scales=True, data_at=None)
    both = placed(engram_family(), tmp_path, scales="read")
    assert (both.row_bytes, both.scales, both.assumed) == (264, "read", None)
    check_every_row(both, wanted)
    weights = placed(engram_family(), tmp_path)
    assert (weights.row_bytes, weights.scales, weights.assumed) == (256, "resident", "scales resident")
    check_every_row(weights, wanted[:, :256])
    stream = make_stream(np.random.default_rng(3).integers(0, 1000, 400))
    of_both, of_weights = (int((x.pages(x.rows(stream)) != 2**32 - 1).sum()) for x in (both, weights))
    assert of_both > of_weights + 0.9 * 400 * 8 / 2


@pytest.mark.parametrize("style", ["shard_{}.weight", "shards.{}.weight", "shards.{}", "shard_{:03d}.weight"])
@pytest.mark.parametrize("shards", [1, 2, 12, 128])
def test_shards_are_sorted_as_numbers_whatever_their_names(tmp_path: Path, style: str, shards: int) -> None:
    shards = len(range(0, 437, -(-437 // shards)))  # as many as have rows
    wanted = sharded_files(tmp_path, shards, style)
    layout = placed(sharded_family(stored_rows=437), tmp_path)  # without an index
    check_every_row(layout, wanted)


def test_four_bit_groups_in_three_tensors_and_a_scale_for_the_whole_table(tmp_path: Path) -> None:
    family = sharded_family()
    rows, scales, biases = (random_rows(family.tensors[0].rows, size, size) for size in (80, 10, 10))
    prefix = "language_model.model.layers.1.ple.ngram_embedding.shards.0"
    tensors = {f"{prefix}.weight": rows_blob(rows, "U32"), f"{prefix}.scales": rows_blob(scales, "BF16")}
    write_safetensors(tmp_path / "x.safetensors", tensors | {f"{prefix}.biases": rows_blob(biases, "BF16")})
    layout = placed(family, tmp_path, scales="read")
    assert (layout.row_format, layout.row_bytes) == ("int4", 100)
    check_every_row(layout, np.concatenate([rows, biases, scales], axis=1))  # in the order of their names
    (tmp_path / "x.safetensors").unlink()
    tensors = {"layers.1.ple.ngram_embedding.shard_0.weight": rows_blob(random_rows(len(rows), 160), "F8_E4M3")}
    tensors["layers.1.ple.ngram_embedding.weight_scale"] = Blob("F32", [1], bytes(4))
    write_safetensors(tmp_path / "y.safetensors", tensors)
    whole = placed(family, tmp_path, scales="read")
    assert (whole.row_format, whole.row_bytes, whole.scales) == ("fp8", 160, None)


# ---- GGUF ----------------------------------------------------------------------------------------


def write_gguf(path: Path, rows: np.ndarray, kind: gguf.GGMLQuantizationType, *, alignment: int = 32) -> None:
    writer = gguf.GGUFWriter(path, "toy")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""] * 50)
    writer.add_array("toy.floats", [0.5, 1.5])
    writer.add_bool("toy.flag", True)
    writer.add_tensor("first.weight", np.zeros((3, 7), np.float32))
    item = {"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8)
    raw = None if kind.name in ("F32", "F16") else kind
    writer.add_tensor("per_layer_token_embd.weight", rows.view(item), raw_dtype=raw)
    writer.add_tensor("last.weight", np.zeros((5, 3), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K"])
@pytest.mark.parametrize("alignment", [32, 4096])
def test_rows_of_gguf_files_lie_where_the_layout_says(tmp_path: Path, name: str, alignment: int) -> None:
    family = sharded_family(256)
    values, size = BLOCKS[name]
    rows = random_rows(family.tensors[0].rows, 256 // values * size)
    write_gguf(tmp_path / "toy.gguf", rows, gguf.GGMLQuantizationType[name], alignment=alignment)
    layout = placed(family, tmp_path / "toy.gguf")
    names = {"F32": "fp32", "F16": "fp16"}
    assert (layout.row_format, layout.row_bytes) == (names.get(name, name.lower()), rows.shape[1])
    check_every_row(layout, rows)
    reader = gguf.GGUFReader(tmp_path / "toy.gguf")  # an implementation that is not ours agrees
    tensor = next(t for t in reader.tensors if t.name == "per_layer_token_embd.weight")
    assert layout.place_in_file(layout.address(0))[1] == tensor.data_offset


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    for name, (values, size) in BLOCKS.items():
        if name in gguf.GGMLQuantizationType.__members__:
            assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (values, size), name


def test_a_split_gguf_file_is_found_by_any_of_its_parts(tmp_path: Path) -> None:
    family = engram_family()
    wanted = []
    for i, (tensor, layer) in enumerate(zip(family.tensors, (1, 14), strict=True)):
        rows = random_rows(tensor.rows, 272, i)
        writer = gguf.GGUFWriter(tmp_path / f"toy-0000{i + 1}-of-00002.gguf", "toy")
        writer.add_uint16("split.count", 2)
        writer.add_uint16("split.no", i)
        name = f"layers.{layer}.engram.embed.weight"
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        wanted.append(rows)
    for part in ("toy-00001-of-00002.gguf", "toy-00002-of-00002.gguf"):
        check_every_row(placed(family, tmp_path / part), np.concatenate(wanted))
    (tmp_path / "toy-00002-of-00002.gguf").unlink()
    with pytest.raises(FormatError, match="00002-of-00002.gguf: missing"):
        read_checkpoint(tmp_path / "toy-00001-of-00002.gguf")


def write_qwen_gguf(path: Path, keys: dict[str, object]) -> None:
    """The header of Qwen's whole table, without its bytes: 28.8 GB that no plan needs."""
    writer = gguf.GGUFWriter(path, "qwen4exp")
    for key, value in keys.items():
        if isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            kinds = gguf.GGUFValueType
            writer.add_key_value(key, list(value), kinds.ARRAY, sub_type=kinds.UINT64)  # type: ignore[call-overload]
    shape, kind = [320_001_536, 90], np.dtype(np.uint8)
    writer.add_tensor_info("per_layer_token_embd.weight", shape, kind, 320_001_536 * 90, gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def test_a_gguf_file_must_have_the_models_keys_and_say_what_the_model_says(tmp_path: Path) -> None:
    family = FAMILIES["qwen3.8-flash-next"]
    keys = MODEL_KEYS[family.name](family)
    write_qwen_gguf(tmp_path / "good.gguf", keys)
    parts = find_parts(family, read_checkpoint(tmp_path / "good.gguf"))
    layout = place_in_files(family.layout(), parts)
    assert (layout.row_format, layout.row_bytes, layout.row_count) == ("q4_0", 90, 320_001_536)
    assert layout.page_count in (320_001_536 * 90 // 4096, 320_001_536 * 90 // 4096 + 1, 320_001_536 * 90 // 4096 + 2)
    assert straddle_probability(layout.regions[0], 4096) == pytest.approx(0.0215, abs=5e-4)
    with pytest.raises(FormatError, match=r"good.gguf: tensor per_layer_token_embd.weight: ends at byte"):
        require_bytes(parts.extents(scales=False))
    for key in keys:
        write_qwen_gguf(tmp_path / "lacks.gguf", {k: v for k, v in keys.items() if k != key})
        with pytest.raises(FormatError, match=rf"lacks.gguf: no key {key}"):
            find_parts(family, read_checkpoint(tmp_path / "lacks.gguf"))
        other = 7 if isinstance(keys[key], int) else [1, *list(keys[key])[1:]]
        write_qwen_gguf(tmp_path / "other.gguf", keys | {key: other})
        with pytest.raises(FormatError, match=rf"other.gguf: key {key} is"):
            find_parts(family, read_checkpoint(tmp_path / "other.gguf"))


# ---- headers alone -------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", ["truncated", "header"])
def test_a_plan_needs_headers_alone(tmp_path: Path, saved: str) -> None:
    whole, bare = tmp_path / "whole", tmp_path / "bare"
    whole.mkdir(), bare.mkdir()
    engram_files(whole, "F8_E4M3", 256, scales=True, data_at=None)
    for file in whole.iterdir():
        data = file.read_bytes()
        if file.suffix == ".json":
            (bare / file.name).write_bytes(data)
            continue
        end = 8 + int.from_bytes(data[:8], "little")
        (bare / (file.name + (".header" if saved == "header" else ""))).write_bytes(data[:end])
    full, plan = (placed_without_bytes(engram_family(), folder) for folder in (whole, bare))
    assert full.groups == plan.groups
    parts = find_parts(engram_family(), read_checkpoint(bare))
    with pytest.raises(FormatError, match=r"a-1.safetensors: tensor model.layers.1.engram.embed.weight: ends at byte"):
        RowsReader(plan, parts)
    if saved == "header":
        (bare / "model.safetensors.index.json").unlink()
        assert placed_without_bytes(engram_family(), bare).groups == full.groups


def placed_without_bytes(family: Family, path: Path) -> Layout:
    return place_in_files(family.layout(), find_parts(family, read_checkpoint(path)), scales="read")


# ---- straddles -----------------------------------------------------------------------------------

# Of rows of so many bytes: the share that straddles from offset 0, and from offset 8 modulo 64 (deployed.md section 6).
STRADDLES = {160: (3.125, 3.90625), 256: (0, 6.25), 320: (6.25, 7.8125), 512: (0, 12.5), 2560: (50, 62.5)}


@pytest.mark.parametrize("row_bytes", STRADDLES)
def test_the_percentages_of_rows_that_straddle(tmp_path: Path, row_bytes: int) -> None:
    for at, percent in zip((0, 8 + 64 * 3), STRADDLES[row_bytes], strict=True):
        region = Region(at, 10**6, row_bytes, row_bytes, 0)
        assert 100 * straddle_probability(region, 4096) == pytest.approx(percent)
        crossing = sum((at + i * row_bytes) % 4096 + row_bytes > 4096 for i in range(4096))
        assert 100 * crossing / 4096 == pytest.approx(percent)
    for odd, share in ((264, 6.25), (90, 2.15)):
        assert 100 * straddle_probability(Region(0, 10**6, odd, odd, 0), 4096) == pytest.approx(share, abs=0.01)


def test_repacked_rows_carry_their_scales_beside_them(tmp_path: Path) -> None:
    engram_files(tmp_path, "F8_E4M3", 256, scales=True, data_at=None)
    family = engram_family()
    parts = find_parts(family, read_checkpoint(tmp_path))
    aligned = place_repacked(family.layout(), parts.part_bytes, aligned=True, row_format=parts.row_format)
    packed = place_repacked(family.layout(), parts.part_bytes, aligned=False, row_format=parts.row_format)
    assert (aligned.row_bytes, packed.row_bytes, aligned.row_format) == (264, 264, "fp8 repacked")
    assert [region.units_per_page for region in aligned.regions] == [15] * 8
    assert all(straddle_probability(region, 4096) == 0 for region in aligned.regions)
    assert packed.file_bytes == packed.row_count * 264
    assert find_table(parts.checkpoint, family.tensors[0]).weights[0].row_count == family.tensors[0].rows

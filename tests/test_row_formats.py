"""Every row format of the deployed tables: the very bytes at each row's address, out of safetensors and GGUF files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from harness.checkpoints import Blob, random_rows, rows_blob, sharded_family, write_safetensors
from test_source_files import check_every_row, placed, write_gguf

from pagegram_io.deployed.gguf_header import BLOCKS
from pagegram_io.errors import FormatError

NAME = "per_layer_token_embd.weight"

# Of the deployed tables: values a row, bytes a row, a safetensors type that holds it, what it is then called.
FORMATS = {
    "deepseek fp8": (256, 256, "F8_E4M3", "fp8"),
    "deepseek packed": (256, 264, "U8", "fp8 repacked"),
    "deepseek q2_k": (256, 84, "U8", "q2_k"),
    "deepseek q3_k": (256, 110, "U8", "q3_k"),
    "deepseek q4_k": (256, 144, "U8", "q4_k"),
    "deepseek q8_0": (256, 272, "U8", "q8_0"),
    "qwen bf16": (160, 320, "BF16", "bf16"),
    "qwen fp8": (160, 160, "F8_E4M3", "fp8"),
    "qwen q4_0 or iq4_nl": (160, 90, "U8", "q4_0"),
    "qwen q8_0": (160, 170, "U8", "q8_0"),
    "longcat bf16": (256, 512, "BF16", "bf16"),
    "nanogpt bf16": (768, 1536, "BF16", "bf16"),
    "gemma q5_k": (10_752, 7392, "U8", "q5_k"),
    "gemma bf16": (10_752, 21_504, "BF16", "bf16"),
}
# The same through GGUF, which has no FP8: values, type, bytes a row.
GGUF_FORMATS = {
    "deepseek packed": (264, "I8", 264),
    "deepseek q2_k": (256, "Q2_K", 84),
    "deepseek q3_k": (256, "Q3_K", 110),
    "deepseek q4_k": (256, "Q4_K", 144),
    "deepseek q8_0": (256, "Q8_0", 272),
    "qwen bf16": (160, "BF16", 320),
    "qwen q4_0": (160, "Q4_0", 90),
    "qwen iq4_nl": (160, "IQ4_NL", 90),
    "qwen q8_0": (160, "Q8_0", 170),
    "longcat bf16": (256, "BF16", 512),
    "gemma q5_k": (10_752, "Q5_K", 7392),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("data_at", [0, 8])
def test_rows_of_safetensors_files(tmp_path: Path, name: str, data_at: int) -> None:
    width, row_bytes, dtype, called = FORMATS[name]
    family = sharded_family(width)
    rows = random_rows(family.row_count, row_bytes)
    tensors = {"before": Blob("U8", [3 * 64], bytes(3 * 64)), NAME: rows_blob(rows, dtype)}
    write_safetensors(tmp_path / "x.safetensors", tensors, data_at=data_at)
    layout = placed(family, tmp_path)
    assert (layout.row_format, layout.row_bytes, layout.windows[0].file) == (
        called, row_bytes, str(tmp_path / "x.safetensors"))  # fmt: skip
    assert layout.place_in_file(layout.address(0))[1] % 4096 == data_at + 3 * 64
    check_every_row(layout, rows)


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_rows_of_gguf_files(tmp_path: Path, name: str) -> None:
    columns, dtype, row_bytes = GGUF_FORMATS[name]
    family = sharded_family(256 if dtype == "I8" else columns)
    rows = random_rows(family.row_count, row_bytes)
    write_gguf(tmp_path / "x.gguf", rows, gguf.GGMLQuantizationType[dtype])
    layout = placed(family, tmp_path)
    assert (layout.row_format, layout.row_bytes) == ("fp8 repacked" if dtype == "I8" else dtype.lower(), row_bytes)
    check_every_row(layout, rows)


def test_the_formats_here_are_all_that_the_families_name() -> None:
    """No format of `pagegram-io models` is unread: each one's bytes a row are among those above, or are scaled."""
    from pagegram_io.deployed import FAMILIES

    read = {(width, row_bytes) for width, row_bytes, _, _ in FORMATS.values()}
    others = {(256, 256): "fp8", (64, 128): "bf16", (64, 256): "fp32", (160, 80): "int4"}  # tests/test_source_files.py
    for family in FAMILIES.values():
        for form in family.formats:
            assert {(family.width, form.part_bytes[0])} & (read | set(others)), (family.name, form)
    assert BLOCKS["Q5_K"][1] * 10_752 // BLOCKS["Q5_K"][0] == 7392


@pytest.mark.parametrize("name", ["weight_scale", "shards.0.weight_scale"])
def test_one_scale_for_the_whole_table_takes_no_bytes_of_a_row(tmp_path: Path, name: str) -> None:
    family = sharded_family()
    prefix = "layers.1.ple.ngram_embedding"
    rows = random_rows(family.row_count, 160)
    for shape in ([1], [], [1, 1]):
        tensors = {f"{prefix}.{name}": Blob("F32", shape, bytes(4)), f"{prefix}.shards.0": rows_blob(rows, "F8_E4M3")}
        write_safetensors(tmp_path / "x.safetensors", tensors)
        for scales in ("read", "resident"):
            layout = placed(family, tmp_path, scales=scales)
            assert (layout.row_format, layout.row_bytes, layout.scales) == ("fp8", 160, None)
            check_every_row(layout, rows)


def test_four_bit_groups_resident_read_and_in_shards(tmp_path: Path) -> None:
    """80 bytes of codes, 10 of scales and 10 of offsets in tensors of their own, each in shards of several files."""
    family = sharded_family(stored_rows=437)
    codes, scales, biases = (random_rows(437, size, size) for size in (80, 10, 10))
    prefix = "layers.1.ple.ngram_embedding"
    for i, (begin, end) in enumerate(((0, 150), (150, 300), (300, 437))):
        tensors = {
            f"{prefix}.shard_{i}.scales": rows_blob(scales[begin:end], "BF16"),
            f"{prefix}.shard_{i}.weight": rows_blob(codes[begin:end], "U32"),
            f"{prefix}.shard_{i}.biases": rows_blob(biases[begin:end], "BF16"),
        }
        write_safetensors(tmp_path / f"m-{2 - i}.safetensors", tensors)
    read = placed(family, tmp_path, scales="read")
    assert (read.row_format, read.row_bytes, read.scales) == ("int4", 100, "read")
    check_every_row(read, np.concatenate([codes, biases, scales], axis=1))
    resident = placed(family, tmp_path)
    assert (resident.row_bytes, resident.resident_bytes) == (80, 20 * 437)
    check_every_row(resident, codes)


@pytest.mark.parametrize("shape", [[101, 0], [0, 160], [101], [101, 2, 80], []])
def test_shapes_that_hold_no_rows_are_refused(tmp_path: Path, shape: list[int]) -> None:
    family = replace(sharded_family(), name="toy")
    data = bytes(int(np.prod(shape)) if shape else 1)
    write_safetensors(tmp_path / "x.safetensors", {NAME: Blob("U8", shape, data)})
    with pytest.raises(FormatError, match=f"x.safetensors: tensor {NAME}: .* (is no table of rows|is of no rows)"):
        placed(family, tmp_path)

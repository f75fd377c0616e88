"""``pagegram-io pack``: every row of every layout lies at its address and decodes to itself; mistakes leave nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_layouts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from pagegram_io import cli, nf4, pack, table_file
from pagegram_io.checkpoint_table import read_checkpoint_table
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout, Shape, engram, flat, pagegram
from pagegram_io.native_reader import Reader, aligned_bytes, crc32c_of_pages, verify_pages
from pagegram_io.row_format import FORMATS, decode_rows, encode_rows

SMALL = pagegram(200_000, 4)
LAYOUTS = [
    *small_layouts(),
    SMALL,
    flat(300_000),
    engram(300_000),
    pagegram(400_000, 15),
    pagegram(400_000, 60),  # a bucket longer than a page
    engram(300_000, Shape(packed=True)),
    pagegram(400_000, 60, Shape(packed=True, base_byte=123_457)),  # page 0 lies beyond the first page
    flat(300_000, Shape(row_format="fp32", page_bytes=1024)),  # a row longer than a page
    engram(300_000, Shape(row_format="fp16", orders=(1, 2, 4), heads=3)),
]


def ids(layout: Layout) -> str:
    return f"{layout.label} {layout.row_format} {'packed' if layout.packed else 'aligned'} {layout.page_bytes}"


def table_of(layout: Layout, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((layout.row_count, layout.row_width)) * 2.0 ** rng.uniform(
        -20, 5, (layout.row_count, 1)
    )
    values[rng.random(layout.row_count) < 0.1] = 0
    return values.astype(np.float32)


def in_memory(layout: Layout, table: np.ndarray) -> np.ndarray:
    return decode_rows(layout.row_format, encode_rows(layout.row_format, table)[0], layout.row_width)


def write(path: Path, layout: Layout, table: np.ndarray, **options: Any) -> pack.Packed:
    return pack.write_trained_file(path, layout, lambda begin, end: table[begin:end], **options)


def pages_by_the_device_path(path: Path, header: table_file.TableHeader) -> np.ndarray:
    flags = ("buffered", "verify") if header.sealed else ("buffered",)
    span = header.page_count * header.page_bytes
    memory = aligned_bytes(span)
    with Reader(path, page_bytes=header.page_bytes, base_byte=header.data_byte, span_bytes=span, flags=flags) as reader:
        assert (reader.read(np.arange(header.page_count), memory) == header.page_bytes).all()
    return memory


@pytest.mark.parametrize("layout", LAYOUTS, ids=ids)
def test_every_row_lies_at_its_address_and_decodes_to_itself(layout: Layout, tmp_path: Path) -> None:
    table = table_of(layout)
    packed = write(tmp_path / "a", layout, table)
    header = table_file.read_header(tmp_path / "a")
    assert header == packed.header and (header.layout, header.content, header.seed) == (layout, "trained", None)
    assert packed.counts.zero == np.count_nonzero(~table.any(axis=1))
    pages = pages_by_the_device_path(tmp_path / "a", header)
    content = np.frombuffer((tmp_path / "a").read_bytes(), np.uint8)
    assert np.array_equal(content[header.data_byte :][: pages.size], pages)
    starts = np.array([pack.row_byte(header, row) for row in range(layout.row_count)])
    rows = content[starts[:, None] + np.arange(layout.row_bytes)]
    assert np.array_equal(
        decode_rows(layout.row_format, rows, layout.row_width).view(np.uint32), in_memory(layout, table).view(np.uint32)
    )
    if header.sealed:
        assert verify_pages(pages, 0, header.page_bytes).all()
    else:
        checks = content[header.data_byte + pages.size :].copy().view("<u4")
        assert np.array_equal(checks, crc32c_of_pages(pages, header.page_bytes))
    rest = np.ones(pages.size, bool)  # what no row uses is zero, but for the seals
    rest[(starts[:, None] + np.arange(layout.row_bytes) - header.data_byte).reshape(-1)] = False
    if header.sealed:
        rest.reshape(-1, header.page_bytes)[:, -8:] = False
    assert not pages[rest].any()


@pytest.mark.parametrize("layout", LAYOUTS[::3], ids=ids)
def test_batches_change_no_byte(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(layout)
    write(tmp_path / "a", layout, table)
    for name, batch_bytes in (("b", 1), ("c", 3 * layout.page_bytes + 1), ("d", 40_000)):
        monkeypatch.setattr(pack, "BATCH_BYTES", batch_bytes)
        monkeypatch.setattr(pack, "SYNC_BYTES", 10 * layout.page_bytes)
        told: list[int] = []
        asked: list[tuple[int, int]] = []

        def rows_of(begin: int, end: int, asked: list[tuple[int, int]] = asked) -> np.ndarray:
            asked.append((begin, end))
            return table[begin:end]

        pack.write_trained_file(tmp_path / name, layout, rows_of, progress=told.append)
        assert (tmp_path / name).read_bytes() == (tmp_path / "a").read_bytes()
        assert sum(told) == layout.page_count * layout.page_bytes
        assert asked[0][0] == 0 and asked[-1][1] == layout.row_count
        assert all(end == begin for (_, end), (begin, _) in zip(asked, asked[1:], strict=False))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from([flat, engram, lambda params, shape: pagegram(params, 5, shape)]),
    params=st.integers(20_000, 60_000),  # nine heads of 64 values need nine primes of rows, up to 23
    shape=st.builds(
        Shape,
        orders=st.sampled_from([(1,), (2, 3), (1, 3, 4)]),
        heads=st.integers(1, 3),
        row_width=st.sampled_from([2, 6, 24, 64]),
        dim=st.sampled_from([8, 30]),
        row_format=st.sampled_from(FORMATS),
        page_bytes=st.sampled_from([512, 1024, 4096]),
        packed=st.just(True),
        base_byte=st.integers(0, 5000),
    ),
    aligned=st.booleans(),
)
def test_any_layout(
    layout: Callable[[int, Shape], Layout], params: int, shape: Shape, aligned: bool, tmp_path: Path
) -> None:
    shape = dataclasses.replace(shape, packed=False, base_byte=0) if aligned else shape
    test_every_row_lies_at_its_address_and_decodes_to_itself(layout(params, shape), tmp_path)
    (tmp_path / "a").unlink()


def test_the_official_reader_opens_it(tmp_path: Path) -> None:
    layout = pagegram(400_000, 60)
    write(tmp_path / "a", layout, table_of(layout))
    with safe_open(tmp_path / "a", "numpy") as file:
        assert sorted(file.keys()) == ["page_checks", "pages"]
        assert file.metadata()["content"] == "trained" and "seed" not in file.metadata()
        pages, checks = file.get_tensor("pages"), file.get_tensor("page_checks")
    assert np.array_equal(crc32c_of_pages(pages.reshape(-1), 4096), checks)


def test_the_digest_of_the_weights_comes_back(tmp_path: Path) -> None:
    digest = "0123456789abcdef" * 4
    packed = write(tmp_path / "a", SMALL, table_of(SMALL), weights_sha256=digest)
    assert table_file.read_header(tmp_path / "a") == packed.header and packed.header.weights_sha256 == digest
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes().replace(digest.encode(), b"X" * 64))
    with pytest.raises(FormatError, match="weights_sha256 is .*, not 64 hexadecimal digits"):
        table_file.read_header(tmp_path / "a")


def test_fp16_and_fp32_rows() -> None:
    values = np.array([[1.5, -2, 0, 3e-8], [70000, -1e30, 65504, 1], [0, -0.0, 0, 0]], np.float32)
    rows, counts = encode_rows("fp32", values)
    assert np.array_equal(decode_rows("fp32", rows, 4).view(np.uint32), values.view(np.uint32))
    assert counts == nf4.Counts(zero=1)
    rows, counts = encode_rows("fp16", values)
    assert counts == nf4.Counts(clamped=1, zero=1)
    assert decode_rows("fp16", rows, 4)[1].tolist() == [65504, -65504, 65504, 1]
    for call in (lambda: encode_rows("int8", values), lambda: decode_rows("int8", np.zeros((1, 6), np.uint8), 4)):
        with pytest.raises(ValueError, match="nf4, fp32, fp16"):
            call()
    with pytest.raises(ValueError, match=r"uint8 \[rows, 8\]"):
        decode_rows("fp16", np.zeros((1, 6), np.uint8), 4)


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    table = table_of(SMALL)
    table[1234, 7] = np.nan
    with pytest.raises(ValueError, match="row 1234 of the table holds a NaN or an infinity"):
        write(tmp_path / "a", SMALL, table)
    table[1234, 7] = np.inf
    with pytest.raises(ValueError, match="row 1234"):
        write(tmp_path / "a", SMALL, table)
    with pytest.raises(ValueError, match="of your own"):
        write(tmp_path / "a", dataclasses.replace(SMALL, name="mine"), table)
    with pytest.raises(ValueError, match="not as int8"):
        write(tmp_path / "a", pagegram(200_000, 4, Shape(row_format="int8")), table)
    with pytest.raises(ValueError, match="came as float64"):
        write(tmp_path / "a", SMALL, table.astype(np.float64))
    huge = pagegram(10**9, 4, Shape(page_bytes=2**21))
    with pytest.raises(ValueError, match="page_bytes is 2097152"):
        write(tmp_path / "a", huge, table)
    with pytest.raises(OSError, match="free; choose another disk"):
        write(tmp_path / "a", pagegram(10**15, 4, Shape(page_bytes=2**20)), table)
    assert os.listdir(tmp_path) == []


# ---- the command ----


def make_checkpoint(folder: Path, layout: Layout | None = SMALL, table: np.ndarray | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    text = None if layout is None else table_file.layout_to_json(layout)
    (folder / "config.json").write_text(json.dumps({"layout": text, "steps": 3}))
    if layout is not None:
        rows = table_of(layout) if table is None else table
        save_file({"other": np.zeros(3, np.int8), "rows": rows}, folder / "table.safetensors")
    return folder


def run(*arguments: str | os.PathLike[str]) -> int:
    return cli.run(["pack", *map(os.fspath, arguments)])


@pytest.mark.parametrize("row_format", [None, "nf4", "fp32", "fp16"])
def test_a_checkpoint(row_format: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = make_checkpoint(tmp_path / "model"), tmp_path / "a b.safetensors"
    option = [] if row_format is None else ["--row-format", row_format]
    assert run(folder, "-o", path, *option) == 0
    out, err = capsys.readouterr()
    header = table_file.read_header(path)
    assert header.layout == pagegram(200_000, 4, Shape(row_format=row_format or "nf4"))
    assert err == "" and f"{path}: {path.stat().st_size:,} bytes" in out
    assert f"{SMALL.row_count:,} rows of pagegram S=4 in {row_format or 'nf4'}" in out
    write(tmp_path / "again", header.layout, table_of(SMALL))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a b.safetensors", "again", "model"]


def test_counts_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = np.ones((SMALL.row_count, SMALL.row_width), np.float32)
    table[:5] = 0
    table[5:7] = 1e-9
    table[7] = 1e6
    folder = make_checkpoint(tmp_path / "model", table=table)
    assert run(folder, "-o", tmp_path / "a") == 0
    out = capsys.readouterr().out
    assert "of which 5 are all zero" in out and "2 rows are smaller" in out and "1 rows hold more" in out
    assert run(folder, "-o", tmp_path / "a") == 1
    assert "exists; --force replaces it" in capsys.readouterr().err
    assert run(folder, "-o", tmp_path / "a", "--json", "--force") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["kind"], record["zero_rows"], record["tiny_rows"], record["clamped_rows"]) == ("pack", 5, 2, 1)
    assert (record["rows"], record["pages"], record["layout"]) == (SMALL.row_count, SMALL.page_count, "pagegram")


def test_a_model_without_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(make_checkpoint(tmp_path / "model", None), "-o", tmp_path / "a") == 1
    _, err = capsys.readouterr()
    assert "this model has no table" in err and err.count("\n") == 1


def test_bad_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, rows = Path("config.json"), Path("table.safetensors")
    good = make_checkpoint(tmp_path / "good")
    whole = (good / rows).read_bytes()
    cut = table_of(SMALL)[:-1]
    spoilt = table_of(SMALL)
    spoilt[77, 1] = -np.inf
    cases: list[tuple[Callable[[Path], Any], int, str]] = [
        (lambda f: (f / config).unlink(), 1, "no such file"),
        (lambda f: (f / rows).unlink(), 1, "no such file"),
        (lambda f: (f / config).write_text("{"), 1, "it is not JSON"),
        (lambda f: (f / config).write_bytes(b"\xff\xfe"), 1, "it is not JSON"),
        (lambda f: (f / config).write_text("[]"), 1, "says nothing of a layout"),
        (lambda f: (f / config).write_text('{"layout": 3}'), 1, "not JSON in a text"),
        (lambda f: (f / config).write_text('{"layout": "{}"}'), 1, "not an object of"),
        (lambda f: (f / rows).write_bytes(b""), 1, "not a safetensors file"),
        (lambda f: (f / rows).write_bytes(b"\xff" * 100), 1, "not a safetensors file"),
        (lambda f: (f / rows).write_bytes((9).to_bytes(8, "little") + b"[1, 2, 3]" + whole), 1, "no tensor named rows"),
        (lambda f: (f / rows).write_bytes((9).to_bytes(8, "little") + b"not JSON!"), 1, "its header is not JSON"),
        (lambda f: (f / rows).write_bytes(whole[:-4]), 1, "it was cut"),
        (lambda f: save_file({"row": cut}, f / rows), 1, "no tensor named rows"),
        (lambda f: save_file({"rows": cut}, f / rows), 1, "its rows are [2879, 64]"),
        (lambda f: save_file({"rows": cut.astype(np.float16)}, f / rows), 1, "'F16', not F32"),
        (lambda f: save_file({"rows": spoilt}, f / rows), 1, "model15: row 77 of the table holds a NaN or an infinity"),
    ]
    for i, (spoil, status, words) in enumerate(cases):
        folder = make_checkpoint(tmp_path / f"model{i}")
        spoil(folder)
        assert run(folder, "-o", tmp_path / "a") == status, words
        _, err = capsys.readouterr()
        assert words in err and err.count("\n") == 1, err
        assert not (tmp_path / "a").exists()


def test_damaged_descriptions_of_the_rows(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    good = {"dtype": "F32", "shape": [SMALL.row_count, 64], "data_offsets": [0, SMALL.row_count * 256]}
    for change in ({"shape": None}, {"shape": [-1, 64]}, {"data_offsets": [0]}, {"data_offsets": [0, 2**70]},
                   {"data_offsets": [4, 0]}, {"shape": [True, 64]}, {"dtype": None}):  # fmt: skip
        text = json.dumps({"rows": good | change}).encode()
        (folder / "table.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + bytes(SMALL.row_count * 256)
        )
        with pytest.raises(FormatError, match="tensor rows"):
            read_checkpoint_table(folder)


def test_rows_are_read_where_they_lie(tmp_path: Path) -> None:
    layout, rows = read_checkpoint_table(make_checkpoint(tmp_path / "model"))
    assert layout == SMALL and rows.shape == (SMALL.row_count, 64)
    assert np.array_equal(rows.read(0, SMALL.row_count), table_of(SMALL))
    assert np.array_equal(rows.read(17, 23), table_of(SMALL)[17:23]) and rows.read(5, 5).shape == (0, 64)
    os.truncate(rows.path, rows.data_byte + 256 * 20)
    assert rows.read(0, 20).shape == (20, 64)
    with pytest.raises(FormatError, match="cut while it was read"):
        rows.read(17, 21)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    layout = flat(10**9, Shape(row_format="fp32"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"layout": table_file.layout_to_json(layout)}))
    size = 4 * layout.row_count * layout.row_width
    shape = [layout.row_count, layout.row_width]
    text = json.dumps({"rows": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "table.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)  # a hole: zeros that take no room
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "pagegram_io.cli", "pack", str(folder), "-o", str(tmp_path / "out" / "a")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(e.stat().st_size > 2**23 for e in (tmp_path / "out").iterdir()):
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == b"" and b"no file is left" in err and b"Traceback" not in err
    assert os.listdir(tmp_path / "out") == []

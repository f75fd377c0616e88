"""Row numbers from a file: placed as a twin places them, simulated, and everything that cannot be is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from pagegram_io import native
from pagegram_io.cli import run
from pagegram_io.rows_file import pages_of_rows, rows_layout


def twin_pages(row: int, row_bytes: int, page_bytes: int, *, packed: bool, base: int) -> list[int]:
    """The pages of a row, the slow way, counted from the first page that the table touches."""
    if packed:
        first = base + row * row_bytes
    elif row_bytes <= page_bytes:
        page, within = divmod(row, page_bytes // row_bytes)
        first = page * page_bytes + within * row_bytes
    else:
        first = row * -(-row_bytes // page_bytes) * page_bytes
    pages = range(first // page_bytes, (first + row_bytes - 1) // page_bytes + 1)
    return [page - base // page_bytes for page in pages]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    assert run([*map(str, words), "--json"]) == 0, capsys.readouterr()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=3), min_size=1, max_size=30),
    st.sampled_from([7, 160, 264, 512, 600, 1300]),
    st.booleans(),
    st.integers(0, 1500),
)
def test_rows_lie_on_the_twins_pages(numbers: list[list[int]], row_bytes: int, packed: bool, base: int) -> None:
    base = base if packed else 0
    layout = rows_layout("x", 61, row_bytes, packed=packed, base_byte=base, page_bytes=512)
    pages = pages_of_rows(layout, np.array(numbers))
    for line, wanted in zip(pages, numbers, strict=True):
        used = [page for page in line.tolist() if page != native.NO_PAGE]
        twin = [p for row in wanted for p in twin_pages(row, row_bytes, 512, packed=packed, base=base)]
        assert used == twin
    last = twin_pages(60, row_bytes, 512, packed=packed, base=base)[-1]
    assert layout.page_count == last + 1


@pytest.mark.parametrize(("options", "packed", "base"), [([], False, 0), (["--packed", "--base-byte", 72], True, 72)])
def test_simulate_rows(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[object], packed: bool, base: int
) -> None:
    rows = np.minimum(np.random.default_rng(4).geometric(0.02, (500, 4)) - 1, 499).astype(np.uint64)
    rows[::7, 3] = native.NO_ROW
    np.save("rows.npy", rows)
    common = ("simulate", "--rows", "rows.npy", "--row-bytes", 264, "--table-rows", 500, "--cache", "32KiB,none")
    small, none = records(capsys, *common, *options)
    trace = [
        page
        for line in rows.tolist()
        for row in line
        if row != native.NO_ROW
        for page in twin_pages(row, 264, 4096, packed=packed, base=base)
    ]
    assert none["misses"] == none["accesses"] == len(trace)
    assert small["misses"] == sum(distance > 8 or distance == 0 for distance in reference.stack_distances(trace))
    assert small["layout"] == "rows" and small["stream"] == "rows.npy" and small["tokens"] == 500
    assert (small["row_bytes"], small["placement"]) == (264, "packed" if packed else "aligned")
    assert small["bytes_used_per_token"] == 4 * 264
    (fewer,) = records(capsys, *common[:-1], "32KiB", *options, "--limit", 100, "--name", "lngram")
    assert (fewer["tokens"], fewer["layout"]) == (100, "lngram")
    assert run([*map(str, common), "--curve-npy", "curve.npy"]) == 0
    assert "rows" in capsys.readouterr().out and np.load("curve.npy")[-1] < len(trace)


def test_rows_of_a_table_of_one_column_are_its_layouts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma's rows are token ids: from tokens and from a file of rows the reads are the same."""
    common = ("--cache", "64KiB", "--limit", 3000)
    (wanted,) = records(capsys, "simulate", "--model", "gemma-ple", *common)
    assert run(["trace", "--model", "gemma-ple", "--limit", "3000", "--emit", "rows", "-o", "rows.npy"]) == 0
    geometry = ("--row-bytes", 7392, "--table-rows", 262_144, "--packed")
    (found,) = records(capsys, "simulate", "--rows", "rows.npy", *geometry, *common)
    for name in ("misses", "accesses", "compulsory_misses", "pages", "bytes_used_per_token", "cache_full_at_token"):
        assert found[name] == wanted[name], name


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["--rows", "good.npy"], 2, "--rows needs --row-bytes"),
        (["--row-bytes", "8"], 2, "--row-bytes goes with --rows"),
        (["--table-rows", "8"], 2, "--table-rows goes with --rows"),
        (["--rows", "good.npy", "--row-bytes", "0"], 2, "--row-bytes"),
        (["--rows", "good.npy", "--row-bytes", "8", "--table", "20B"], 2, "--table"),
        (["--rows", "good.npy", "--row-bytes", "8", "--model", "gemma-ple"], 2, "--model"),
        (["--rows", "good.npy", "--row-bytes", "8", "--window", "9"], 2, "--window"),
        (["--rows", "good.npy", "--row-bytes", "8", "--by", "order"], 2, "--by"),
        (["--rows", "good.npy", "--row-bytes", "8", "--pages", "good.npy"], 2, "--pages"),
        (["--rows", "good.npy", "--row-bytes", "8", "--base-byte", "9"], 2, "only a packed table"),
        (["--rows", "good.npy", "--row-bytes", "8", "--table-rows", "5"], 1, "row 5 is not in a table of 5 rows"),
        (["--rows", "floats.npy", "--row-bytes", "8"], 1, "integers [tokens, columns]"),
        (["--rows", "line.npy", "--row-bytes", "8"], 1, "[tokens, columns]"),
        (["--rows", "negative.npy", "--row-bytes", "8"], 1, "row -1 is negative"),
        (["--rows", "unused.npy", "--row-bytes", "8"], 1, "only unused places"),
        (["--rows", "empty.npy", "--row-bytes", "8"], 1, "the file is empty"),
        (["--rows", "text.npy", "--row-bytes", "8"], 1, "not a whole .npy file"),
        (["--rows", "rows.u32", "--row-bytes", "8"], 1, ".npy file"),
        (["--rows", "none.npy", "--row-bytes", "8"], 1, "no such file"),
        (["--name", "mine"], 2, "--rows"),
    ],
)
def test_rows_that_cannot_be(
    arguments: list[str], status: int, word: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("good.npy", np.arange(6).reshape(2, 3))
    np.save("floats.npy", np.ones((2, 3)))
    np.save("line.npy", np.arange(6))
    np.save("negative.npy", np.array([[1, -1]]))
    np.save("unused.npy", np.full((2, 2), native.NO_ROW, np.uint64))
    Path("empty.npy").write_bytes(b"")
    Path("text.npy").write_text("rows")
    assert run(["simulate", *arguments, "--cache", "none"]) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and word in err

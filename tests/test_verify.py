"""``pagegram-io verify`` and ``inspect``: every damage is found, and named by page (C18)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagegram_io import cli, pack, table_file, verification
from pagegram_io.inspection import inspect
from pagegram_io.layout import Layout, Shape, engram, flat, pagegram
from pagegram_io.native_reader import STATUS_SHORT
from pagegram_io.verification import Damage, verify

LAYOUTS = {
    "sealed": pagegram(300_000, 4),
    "with page_checks": pagegram(400_000, 60),
    "packed": engram(300_000, Shape(packed=True)),
    "small pages": pagegram(100_000, 4, Shape(heads=2, row_width=32, page_bytes=512)),
}


def write(path: Path, layout: Layout) -> table_file.TableHeader:
    table = np.random.default_rng(1).standard_normal((layout.row_count, layout.row_width)).astype(np.float32)
    return pack.write_trained_file(path, layout, lambda begin, end: table[begin:end]).header


@pytest.fixture(scope="module", params=list(LAYOUTS))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "whole.safetensors"
    write(path, LAYOUTS[request.param])
    return path


def run(*arguments: str | os.PathLike[str]) -> int:
    return cli.run([*map(os.fspath, arguments)])


class Copy:
    """A copy of a table file to be damaged, page by page."""

    def __init__(self, whole: Path, path: Path) -> None:
        self.header, self.path = table_file.read_header(whole), path
        path.write_bytes(whole.read_bytes())

    def read(self, page: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.byte(page))
            return file.read(self.header.page_bytes)

    def write(self, page: int, content: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.seek(self.byte(page))
            file.write(content)

    def byte(self, page: int) -> int:
        return self.header.data_byte + page * self.header.page_bytes


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Copy:
    return Copy(whole, tmp_path / "copy.safetensors")


def words(header: table_file.TableHeader) -> str:
    return f"does not fit its {'checksum' if header.sealed else 'entry in page_checks'} (torn or rotten)"


def test_a_sound_file(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[int] = []
    found = verify(whole, progress=told.append)
    assert found.damaged == () and found.header == table_file.read_header(whole)
    assert sum(told) == found.header.page_count * found.header.page_bytes
    assert run("verify", whole) == 0
    assert f"{whole}: all {found.header.page_count:,} pages are sound" in capsys.readouterr().out


def test_a_flipped_bit(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    page = bytearray(copy.read(7))
    page[100] ^= 4
    copy.write(7, bytes(page))
    assert verify(copy.path).damaged == (Damage(7, words(copy.header)),)
    assert run("verify", copy.path) == 1
    out = capsys.readouterr().out
    assert f"1 of {copy.header.page_count:,} pages is damaged" in out
    assert f"page 7 {words(copy.header)} (from byte {copy.byte(7):,})" in out


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_is_found_in_its_page(data: st.DataObject, copy: Copy) -> None:
    page = data.draw(st.integers(0, copy.header.page_count - 1))
    sound = copy.read(page)
    spoilt = bytearray(sound)
    spoilt[data.draw(st.integers(0, len(sound) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    copy.write(page, bytes(spoilt))
    assert [damage.page for damage in verify(copy.path).damaged] == [page]
    copy.write(page, sound)


def test_swapped_pages(copy: Copy) -> None:
    third, fifth = copy.read(3), copy.read(5)
    copy.write(3, fifth)
    copy.write(5, third)
    assert verify(copy.path).damaged == (Damage(3, "holds page 5"), Damage(5, "holds page 3"))


def test_a_torn_page(copy: Copy) -> None:
    """The second half is of an older write."""
    page = copy.read(4)
    copy.write(4, page[: len(page) // 2] + bytes(len(page) // 2))
    assert verify(copy.path).damaged == (Damage(4, words(copy.header)),)


def test_lost_pages_share_a_line(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    for page in (0, 1, 2, 8, copy.header.page_count - 1):
        copy.write(page, bytes(copy.header.page_bytes))
    assert run("verify", copy.path) == 1
    out = capsys.readouterr().out
    assert "pages 0 to 2: each holds only zeros" in out and "page 8 holds only zeros" in out
    assert f"page {copy.header.page_count - 1} holds only zeros" in out


def test_records(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    copy.write(2, bytes(copy.header.page_bytes))
    assert run("verify", "--json", copy.path) == 1
    whole, page = map(json.loads, capsys.readouterr().out.splitlines())
    assert (whole["kind"], whole["damaged_pages"], whole["pages"]) == ("verification", 1, copy.header.page_count)
    assert page == {"kind": "damaged_page", "schema": 1, "file": str(copy.path), "page": 2, "byte": copy.byte(2),
                    "what": "holds only zeros"}  # fmt: skip


def test_a_spoilt_entry_of_page_checks(tmp_path: Path) -> None:
    header = write(tmp_path / "a", LAYOUTS["packed"])
    assert header.checks_byte is not None
    with open(tmp_path / "a", "r+b") as file:
        file.seek(header.checks_byte + 4 * 6)
        file.write(b"oops")
    assert verify(tmp_path / "a").damaged == (Damage(6, words(header)),)


def test_truncated_and_wrong_version(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    content = copy.path.read_bytes()
    at = content.index(b'"format_version": "1"')
    cases = [
        (content[:-1], "it was cut or grew"),
        (content[: copy.byte(3)], "it was cut or grew"),
        (content + b"x", "it was cut or grew"),
        (content[:20], ("not a safetensors file", "cut short in its header")),
        (b"", "not a safetensors file"),
        (content[:at] + b'"format_version": "2"' + content[at + 21 :], "of version '2'; this program reads version 1"),
    ]
    for spoilt, words in cases:
        copy.path.write_bytes(spoilt)
        for name in ("verify", "inspect"):
            assert run(name, copy.path) == 1
            _, err = capsys.readouterr()
            said = words if isinstance(words, str) else words[name == "inspect"]
            assert said in err and str(copy.path) in err and err.count("\n") == 1


def test_a_pattern_of_mkfile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table_file.write_pattern_file(tmp_path / "a", 300, seed=5)
    assert run("verify", tmp_path / "a") == 0
    assert run("inspect", tmp_path / "a") == 0
    out = capsys.readouterr().out
    assert "pattern of seed 5" in out and "none: so many pages" in out
    assert inspect(tmp_path / "a")["layout"] is None


def test_several_batches_and_engines(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.write(11, copy.read(12))
    monkeypatch.setattr(verification, "BATCH_BYTES", 3 * copy.header.page_bytes)
    for engine in ("auto", "psync"):
        found = verify(copy.path, engine=engine, depth=2)
        assert found.damaged == (Damage(11, "holds page 12"),)
        assert ("O_DIRECT" in found.why) and found.direct == ("no O_DIRECT" not in found.why)


def test_what_a_failed_read_is_called() -> None:
    header = table_file.pattern_header(4)
    memory, status = np.zeros(4 * 4096, np.uint8), np.array([4096, -5, STATUS_SHORT, -61], np.int32)
    checks = np.zeros(14, np.uint32)
    found = list(verification._damage_in(header, checks, 10, status, memory))
    assert [damage.page for damage in found] == [10, 11, 12, 13]
    assert found[0].what == "holds only zeros"
    assert found[1].what == "cannot be read: Input/output error"
    assert "fewer bytes" in found[2].what and found[3].what == "cannot be read: No data available"


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), flat(300_000)], ids=lambda layout: layout.label)
def test_inspect_says_what_a_file_holds(layout: Layout, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = write(tmp_path / "a", layout)
    assert run("inspect", tmp_path / "a") == 0
    out = capsys.readouterr().out
    for text in (layout.label, "rows of a trained model", f"{layout.row_count:,} of {layout.row_width} values in nf4",
                 "in each page" if header.sealed else "in page_checks", f"{header.file_bytes:,} bytes"):  # fmt: skip
        assert text in out
    assert run("inspect", "--json", tmp_path / "a", tmp_path / "a") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records == [inspect(tmp_path / "a")] * 2
    assert (records[0]["kind"], records[0]["pages"], records[0]["rows"]) == (
        "table_file", layout.page_count, layout.row_count,
    )  # fmt: skip


def test_paths_they_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("verify", "inspect"):
        folder = "not a regular file" if name == "verify" else "holds neither .safetensors nor .gguf"
        for path, words in ((tmp_path / "none", "no such file"), (tmp_path / "pipe", "not a regular file"),
                            (tmp_path, folder)):  # fmt: skip
            assert run(name, path) == 1
            _, err = capsys.readouterr()
            assert words in err and err.count("\n") == 1

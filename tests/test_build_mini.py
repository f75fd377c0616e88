"""traces/: the mini streams are the ones that their page describes, and build_mini.py makes such streams as it says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pagegram_io.tokens import read_stream, write_stream

TRACES = Path(__file__).resolve().parents[1] / "traces"


def load_build_mini() -> ModuleType:
    specification = importlib.util.spec_from_file_location("traces_build_mini", TRACES / "build_mini.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TRACES)  # as when it is run as a program
        specification.loader.exec_module(module)
    return module


build_mini = load_build_mini()


@pytest.mark.parametrize("name", ["mini-train", "mini-test"])
def test_the_shipped_streams_are_the_ones_that_are_described(name):
    page = (TRACES / "SOURCES.md").read_text(encoding="utf-8").split("\n## The mini streams\n")[1]
    lines = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:4]]
        for line in page.split("\n")
        if line.count("|") == 4
    }
    column = 0 if name == "mini-train" else 1
    stream = read_stream(TRACES / f"{name}.u16.xz", eod=0, vocabulary=2_048)
    assert lines["tokens"][column] == f"{len(stream):,}"
    assert lines["documents, each ended by id 0"][column] == f"{len(stream.document_starts):,}"
    assert lines["sha256 (uncompressed)"][column] == f"`{stream.sha256}`"
    assert stream.ids[-1] == 0
    assert not np.any((stream.ids[:-1] == 0) & (stream.ids[1:] == 0)), "an empty document"


def test_the_test_side_is_the_start_of_the_ascii_documents_of_the_shipped_stream():
    tokenizers = pytest.importorskip("tokenizers")
    world, _ = build_mini.load_libraries()
    tokenizer = tokenizers.Tokenizer.from_file(str(TRACES / "mini-tokenizer.json"))
    assert tokenizer.get_vocab_size() == 2_048
    texts = build_mini.texts_of(read_stream(limit=200_000), world, 100_000)
    mini = read_stream(TRACES / "mini-test.u16.xz", limit=10_000)
    made, _ = build_mini.stream_of(texts, tokenizer, 10_000, "--test-tokens")
    assert (made[:10_000] == mini.ids).all()
    assert tokenizer.decode(made.tolist(), skip_special_tokens=True).startswith(texts[0])


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """A training and a test stream of the World vocabulary, cut from the shipped one."""
    ids = read_stream(limit=120_000).ids
    for name, part in (("train.u16", ids[:80_000]), ("test.u16", ids[80_000:])):
        write_stream(tmp_path / name, part)
    return tmp_path / "train.u16", tmp_path / "test.u16"


def run(sides: tuple[Path, Path], output: Path, *more: str) -> int:
    output.mkdir(exist_ok=True)
    options = ["--train", str(sides[0]), "--test", str(sides[1]), "--output", str(output), "--vocabulary", "512"]
    return build_mini.main([*options, "--train-tokens", "20000", "--test-tokens", "5000", *more])


def test_equal_streams_give_equal_bytes_and_ids_of_the_vocabulary(sides, tmp_path, capsys):
    for output in ("one", "two"):
        assert run(sides, tmp_path / output) == 0
    for name in build_mini.NAMES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    train = read_stream(tmp_path / "one" / "mini-train.u16.xz", eod=0, vocabulary=512)
    assert len(train) >= 20_000 and train.ids[-1] == 0
    said = capsys.readouterr().err
    assert re.search(rf"mini-train.u16.xz: {len(train):,} tokens in {len(train.document_starts):,} documents", said)
    assert train.sha256 in said


@pytest.mark.parametrize(
    ("more", "told", "status"),
    [
        (("--train-tokens", "90000000"), "--train-tokens: 90,000,000 asked, but the stream gives", 2),
        (("--vocabulary", "60000"), "--vocabulary: the text gives", 1),
        (("--vocabulary", "100"), "--vocabulary: 100 is not between 512 and 65,536", 2),
        (("--test", "absent.u16"), "absent.u16", 1),
        (("--vocabulary", "many"), "'many' is not a whole number", 2),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(sides, tmp_path, capsys, more, told, status):
    assert run(sides, tmp_path / "out", *more) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("build_mini.py:")]
    assert len(lines) == 1 and told in lines[0]
    assert not list((tmp_path / "out").iterdir())


def test_existing_files_stay_without_force(sides, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mini-test.u16.xz").write_bytes(b"mine")
    assert run(sides, tmp_path / "out") == 1
    assert "mini-test.u16.xz" in capsys.readouterr().err
    assert (tmp_path / "out" / "mini-test.u16.xz").read_bytes() == b"mine"
    assert run(sides, tmp_path / "out", "--force") == 0

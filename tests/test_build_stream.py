"""traces/: the shipped stream is the one its page describes, and build.py makes streams as it says."""

from __future__ import annotations

import collections
import gzip
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import lzma
import re
import struct
import sys
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

TRACES = Path(__file__).resolve().parents[1] / "traces"
STREAM = TRACES / "multilingual-20m.u16.xz"
STREAM_SHA256 = "c15e0eaaa7b1571f3a5a35a0cb164f2bc102896faebabb955aa681c2fc3123c8"
STREAM_TOKENS = 20_625_669
STREAM_DOCUMENTS = 21_448


def load_build() -> ModuleType:
    specification = importlib.util.spec_from_file_location("traces_build", TRACES / "build.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TRACES)  # as when it is run as a program
        specification.loader.exec_module(module)
    return module


build = load_build()
readers = sys.modules["readers"]
packages = sys.modules["packages"]


# ---- what is shipped ---------------------------------------------------------------------------


def test_the_shipped_stream_is_the_one_that_is_described():
    data = lzma.decompress(STREAM.read_bytes())
    tokens = np.frombuffer(data, "<u2")
    assert hashlib.sha256(data).hexdigest() == STREAM_SHA256
    assert len(tokens) == STREAM_TOKENS
    assert np.count_nonzero(tokens == 0) == STREAM_DOCUMENTS
    assert tokens[-1] == 0
    assert not np.any((tokens[:-1] == 0) & (tokens[1:] == 0)), "an empty document"


def table_rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading of SOURCES.md, without its two header lines."""
    page = (TRACES / "SOURCES.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_source_is_named_with_its_domain_tokens_and_licence():
    rows = table_rows("By source")
    domains = collections.Counter()
    for source, domain, tokens, licences in rows:
        assert re.fullmatch(r"(deb|apt|npm|pypi):[\w.+-]+", source)
        assert len(licences) >= 3, f"{source} has no licence"
        domains[domain] += int(tokens.replace(",", ""))
    assert len({row[0] for row in rows}) == len(rows) == 293
    assert domains.total() == STREAM_TOKENS
    by_domain = {row[0]: int(row[3].replace(",", "")) for row in table_rows("By domain")}
    assert by_domain == {**domains, "all": STREAM_TOKENS}


def test_the_page_states_the_digest_and_the_list_of_build_is_sound():
    page = (TRACES / "SOURCES.md").read_text(encoding="utf-8")
    assert STREAM_SHA256 in page
    sources = packages.read_sources(build.SOURCE_LIST)
    assert len({source.name for source in sources}) == len(sources) <= 60
    for source in sources:
        assert source.kind in ("deb", "npm", "pypi")
        assert source.language in ("en", "zh", "de", "ja", "ru", "code", "math", "path")
        assert source.reader in readers.READERS
        assert 0 < source.share <= 1
        assert re.compile(source.files)
        assert source.licence
    languages = {source.language for source in sources}
    assert languages >= {"en", "zh", "de", "ja", "ru", "code", "math"}


# ---- readers -----------------------------------------------------------------------------------


def test_read_html_keeps_text_and_leaves_out_menus_and_scripts():
    page = b"""<html><head><title>t</title></head><body><nav><div>menu</div></nav>
      <div class="toc x"><div>contents</div></div><h1>Title&nbsp;1</h1><p>a\n <b>bold</b>
      word<br>next &amp; last</p><pre>x = 1\n  y</pre><script>no()</script><ul><li>one<li>two</ul></body></html>"""
    [text] = readers.read_html(page)
    lines = [line for line in text.split("\n") if line.strip()]
    assert lines == ["Title 1", "a bold word", "next & last", "x = 1", "  y", "one", "two"]


def test_read_man_reads_both_dialects():
    page = "\n".join(
        [
            '.\\" a comment',
            '.TH LS 1 "January"',
            ".SH NAME",
            "ls \\- list \\fBdirectory\\fP contents",
            ".de XX",
            "ignored",
            "..",
            ".PP",
            "See",
            ".BR cat (1)",
            "and \\(lqmore\\(rq.",
            ".nf",
            "  code  line",
            ".fi",
            ".TP",
            "\\fB\\-a\\fR",
            "all",
        ]
    )
    [text] = readers.read_man(page.encode())
    assert text == "LS(1)\nNAME\nls - list directory contents\n\nSee cat(1) and “more”.\n\n  code  line\n-a all\n"
    [mdoc] = readers.read_man(b".Dd today\n.Sh NAME\n.Nm true\n.Nd do nothing\n.Pp\n.Op Fl a Ar file .\n")
    assert mdoc == "NAME\ntrue do nothing\n\n-a file.\n"


def test_read_man_joins_wide_lines_without_a_space():
    [text] = readers.read_man("転換と\n複写\n.br\nab\ncd".encode())
    assert text == "転換と複写\n\nab cd\n"


def catalogue(pairs: list[tuple[str, str]], order: str = "<") -> bytes:
    """A gettext catalogue (.mo) of the pairs."""
    start = 28 + 16 * len(pairs)
    texts, tables = b"", [b"", b""]
    for column in (0, 1):
        for pair in pairs:
            text = pair[column].encode()
            tables[column] += struct.pack(order + "2I", len(text), start + len(texts))
            texts += text + b"\0"
    header = struct.pack(order + "7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return header + tables[0] + tables[1] + texts


@pytest.mark.parametrize("order", ["<", ">"])
def test_read_mo_gives_translations_alone(order):
    pairs = [
        ("", "Language: de"),
        ("File", "Datei"),
        ("OK", "OK"),
        ("menu\4Edit", "Ändern"),
        ("%d a\0%d as", "%d\0%ds"),
    ]
    assert readers.read_mo(catalogue(pairs, order)) == ["Datei\nÄndern\n%d"]
    many = [(f"m{n}", f"N{n}") for n in range(readers.MESSAGES_PER_DOCUMENT + 1)]
    assert len(readers.read_mo(catalogue(many, order))) == 2


def test_a_broken_catalogue_is_an_error_that_is_passed_over():
    with pytest.raises(struct.error):
        readers.read_mo(b"\xde\x12\x04\x95")


def test_read_sections_cuts_between_entries_and_drops_made_up_phonetics():
    entry = "Haus /hˈaʊs/ <n>\n house and/or home\n" + " more\n" * 200
    sections = readers.read_sections((entry * 20).encode())
    assert len(sections) > 1
    assert all(section.startswith("Haus <n>\n house and/or home") for section in sections)
    assert "\n".join(sections) == (entry * 20).replace(" /hˈaʊs/", "")


def test_read_metamath_keeps_labels_and_drops_packed_proofs():
    [text] = readers.read_metamath(b"a1i $p |- ph $=\n  ( wi ax-1 ax-mp ) ABACDE\n FG $.\n")
    assert text == "a1i $p |- ph $=\n  ( wi ax-1 ax-mp ) $.\n"


def test_read_json_keeps_strings_that_are_text():
    records = [{"id": "a-1", "title": "靜夜思", "lines": ["床前明月光"]}, {"id": "b-2", "n": 3, "text": "two words"}]
    assert readers.read_json(json.dumps(records).encode()) == ["靜夜思\n床前明月光\n\ntwo words"]
    assert readers.read_json(b'{"x": {"text": "a b"}}') == ["a b"]


def test_languages_are_read_from_paths_and_told_apart():
    paths = {
        "./html/de-DE/a.html": "de",
        "./locale/zh_CN/LC_MESSAGES/x.mo": "zh",
        "./a/ch01.ja.html": "ja",
        "./fr/x.mo": None,
        "./deal/x": None,
    }
    assert {path: readers.language_of_path(path) for path in paths} == paths
    assert readers.is_written_in("ru", "Это русский текст")
    assert not readers.is_written_in("ru", "This page was not translated")
    assert not readers.is_written_in("de", "This is the page that is not translated")
    assert readers.is_written_in("de", "Das ist die Seite und sie ist nicht leer")


# ---- documents ---------------------------------------------------------------------------------


def test_cut_keeps_every_line_and_the_limit(monkeypatch):
    monkeypatch.setattr(build, "DOCUMENT_CHARACTERS_MAX", 200)
    lines = [f"line {number:04d} of a long text" for number in range(100)]
    pieces = build.cut("\n".join(lines))
    assert all(len(piece) <= 200 for piece in pieces)
    assert "\n".join(pieces).split("\n") == lines
    assert build.cut("too short") == []


def test_lines_of_many_pages_are_taken_out():
    pages = [f"Menu\npage {number}\n\nFooter" for number in range(50)]
    assert build.without_repeated_lines(pages) == [f"page {number}\n" for number in range(50)]


def test_repeated_documents_and_data_blobs_are_left_out():
    tokenizer = SimpleNamespace(encode=lambda text: [ord(character) for character in text])
    source = source_of("a")
    texts = ["some words", "some  words\n", "x" * 1000, "other words"]
    lines = [json.dumps({"file": "f", "language": "en", "text": text}) for text in texts]
    documents = build.tokenize(source, lines, tokenizer, set())
    assert [len(document.tokens) for document in documents] == [11, 12]
    assert all(document.tokens[-1] == 0 for document in documents)


def source_of(name: str, **changes):
    values = dict(
        kind="npm",
        package=f"{name}@1.0",
        language="en",
        domain="docs",
        reader="text",
        share=1.0,
        files=r"\.txt$",
        licence="MIT",
    )
    return packages.Source(**{**values, **changes})


def documents_of(name: str, files: int, each: int):
    generator = np.random.default_rng(len(name))
    return [
        build.Document(
            name,
            "docs",
            "en",
            f"file{number}",
            f"{name}-{number}-{part}",
            np.ones(generator.integers(5, 80), np.uint16),
        )
        for number in range(files)
        for part in range(each)
    ]


def test_the_split_keeps_files_whole_and_the_share_of_each_source():
    documents = documents_of("a", 200, 5) + documents_of("bb", 300, 3)
    chosen = build.choose_test_files(documents, 0.25, "seed")
    for name in ("a", "bb"):
        own = [document for document in documents if document.source == name]
        total = sum(len(document.tokens) for document in own)
        taken = sum(len(document.tokens) for document in own if (name, document.file) in chosen)
        assert 0.23 < taken / total < 0.27
    # The choice is one of files, whatever the order of documents; another seed chooses others.
    assert build.choose_test_files(documents[::-1], 0.25, "seed") == chosen
    assert build.choose_test_files(documents, 0.25, "other") != chosen
    assert build.choose_test_files(documents, 1.0, "seed") == {(d.source, d.file) for d in documents}


def test_the_order_interleaves_sources_and_depends_on_the_seed_alone():
    documents = documents_of("a", 100, 1) + documents_of("bb", 100, 1)
    order = [document.digest for document in build.in_order(documents, "seed")]
    assert order == [document.digest for document in build.in_order(documents[::-1], "seed")]
    assert order != [document.digest for document in build.in_order(documents, "other")]
    assert 30 < sum(digest.startswith("a") for digest in order[:100]) < 70


# ---- the command, on small packages that are already fetched -----------------------------------


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two small npm packages under ROOT/packages, a list of them, and a tokenizer of bytes."""
    for name in ("alpha", "beta"):
        folder = tmp_path / "root" / "packages" / "npm" / name
        folder.mkdir(parents=True)
        with tarfile.open(folder / f"{name}-1.0.tgz", "w:gz") as archive:
            for number in range(40):
                # Digests as words: repeated ones would make the file a blob of data, which is left out.
                text = "\n".join(hashlib.sha256(f"{name}{number}{line}".encode()).hexdigest() for line in range(5))
                data = gzip.compress(text.encode()) if number % 2 else text.encode()
                member = tarfile.TarInfo(f"package/{number}.txt" + (".gz" if number % 2 else ""))
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    listed = "".join(f"npm\t{name}@1.0\ten\tdocs\ttext\t1\t\\.txt$\tMIT\n" for name in ("alpha", "beta"))
    (tmp_path / "sources.tsv").write_text(f"# comment\n{listed}")
    tokenizer = SimpleNamespace(encode=lambda text: list(text.encode()))
    monkeypatch.setattr(build, "SOURCE_LIST", tmp_path / "sources.tsv")
    monkeypatch.setattr(build, "load_tokenizer", lambda: tokenizer)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    return build.main(["--root", str(folder / "root"), *arguments])


def documents_in(path: Path) -> list[bytes]:
    data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    tokens = np.frombuffer(data, "<u2")
    assert tokens[-1] == 0
    ends = np.flatnonzero(tokens == 0)
    return [part[part != 0].astype(np.uint8).tobytes() for part in np.split(tokens, ends + 1)[:-1]]


def test_a_run_writes_both_sides_and_a_report(small, capsys):
    test, train = small / "test.u16.xz", small / "train.u16"
    assert run(small, "--output", str(test), "--train-output", str(train), "--test-tokens", "10_000") == 0
    report = json.loads((small / "test.json").read_text())
    sides = {"test": documents_in(test), "train": documents_in(train)}
    assert sorted(sides["test"] + sides["train"]) == sorted(set(sides["test"] + sides["train"]))
    assert len(sides["test"]) + len(sides["train"]) == 80
    assert abs(report["test"]["tokens"] - 10_000) < 1_000
    assert report["test"]["documents"] == len(sides["test"])
    assert report["test"]["tokens_by_source"].keys() == {"alpha", "beta"}
    assert report["test"]["sha256"] == hashlib.sha256(lzma.decompress(test.read_bytes())).hexdigest()
    assert report["train"]["sha256"] == hashlib.sha256(train.read_bytes()).hexdigest()
    assert report["sources"]["alpha"]["version"] == "1.0"
    assert report["sources"]["alpha"]["licence"] == "MIT"
    assert not list(small.rglob("*.part"))
    assert "[2/2] beta" in capsys.readouterr().err


def test_equal_runs_give_equal_bytes_and_another_seed_others(small):
    names = ["first.u16", "again.u16", "other.u16"]
    for name, seed in zip(names, ["s", "s", "t"], strict=True):
        assert run(small, "--output", str(small / name), "--test-tokens", "9000", "--seed", seed) == 0
    first, again, other = [(small / name).read_bytes() for name in names]
    assert first == again != other
    assert (small / "first.json").read_bytes() == (small / "again.json").read_bytes()


def test_what_was_extracted_is_used_again(small, monkeypatch):
    assert run(small, "--output", str(small / "a.u16"), "--test-tokens", "9000") == 0
    monkeypatch.setattr(build, "package_files", lambda *_: pytest.fail("read a package again"))
    assert run(small, "--output", str(small / "b.u16"), "--test-tokens", "9000") == 0
    assert (small / "a.u16").read_bytes() == (small / "b.u16").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        ([], 2, "required: --output"),
        (["--output", "{}/x.bin"], 2, "ends with .u16 or .u16.xz"),
        (["--output", "{}/none/x.u16"], 2, "there is no folder"),
        (["--output", "{}/old.u16"], 2, "exists; --force overwrites it"),
        (["--output", "{}/x.u16", "--train-output", "{}/x.u16"], 2, "must differ"),
        (["--output", "{}/x.u16", "--test-tokens", "many"], 2, "not a whole number"),
        (["--output", "{}/x.u16", "--test-tokens", "0"], 2, "not a whole number"),
        (["--output", "{}/x.u16", "--test-tokens", "99999999"], 2, "in all"),
        (["--output", "{}/x.u16", "--limit-sources", "gamma"], 2, "'gamma' is not a name in"),
        (["--output", "{}/x.u16", "--seed", "s" * 65], 2, "1 to 64"),
        (["--output", "{}/x.u16", "--tokens", "9"], 2, "unrecognized arguments"),
    ],
)
def test_mistakes_get_one_line(small, capsys, arguments, status, line):
    (small / "old.u16").write_bytes(b"old")
    assert run(small, *[argument.format(small) for argument in arguments]) == status
    last = capsys.readouterr().err.strip().split("\n")[-1]
    assert last.startswith("build.py: ") and line in last
    assert (small / "old.u16").read_bytes() == b"old"
    assert not (small / "x.u16").exists() and not list(small.rglob("*.part"))


def test_force_overwrites(small):
    (small / "old.u16").write_bytes(b"old")
    assert run(small, "--output", str(small / "old.u16"), "--test-tokens", "9000", "--force") == 0
    assert (small / "old.u16").stat().st_size > 10_000


def test_an_interrupt_leaves_no_half_written_file(small, monkeypatch, capsys):
    def interrupted(path, *_):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "write_stream", interrupted)
    assert run(small, "--output", str(small / "x.u16"), "--test-tokens", "9000") == 130
    assert "goes on from here" in capsys.readouterr().err
    assert not list(small.glob("x.*"))


def test_a_damaged_package_and_a_missing_client_get_one_line(small, monkeypatch, capsys):
    package = small / "root" / "packages" / "npm" / "alpha" / "alpha-1.0.tgz"
    package.write_bytes(package.read_bytes()[:500])
    assert run(small, "--output", str(small / "x.u16")) == 1
    assert "is damaged" in capsys.readouterr().err
    package.unlink()
    package.parent.rmdir()
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    assert run(small, "--output", str(small / "x.u16")) == 3
    assert "npm is not on this machine" in capsys.readouterr().err


def test_a_package_that_cannot_be_fetched_leaves_nothing(tmp_path, monkeypatch):
    failed = SimpleNamespace(returncode=1, stderr="warning: w\nE: Unable to locate package nix\n", stdout="")
    monkeypatch.setattr(packages.shutil, "which", lambda name: name)
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: failed)
    source = source_of("nix", kind="deb", package="nix")
    with pytest.raises(packages.Refusal, match="nix was not fetched: E: Unable to locate.*apt-get update"):
        packages.fetch(source, tmp_path)
    assert not list((tmp_path / "packages" / "deb").iterdir())


def test_a_missing_tokenizer_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyrwkv_tokenizer", None)
    with pytest.raises(packages.Refusal, match="pip install pyrwkv-tokenizer"):
        build.load_tokenizer()


@pytest.mark.parametrize(
    ("kind", "name", "file", "version"),
    [
        ("deb", "dict-wn", "dict-wn_1%3a3.0-37_all.deb", "1:3.0-37"),
        ("npm", "three", "three-0.170.0.tgz", "0.170.0"),
        ("pypi", "chitchat-dataset", "chitchat_dataset-0.9.0-py3-none-any.whl", "0.9.0"),
    ],
)
def test_versions_come_from_file_names(kind, name, file, version):
    assert packages.package_version(source_of(name, kind=kind, package=name), Path(file)) == version

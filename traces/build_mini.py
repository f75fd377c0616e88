#!/usr/bin/env python3
"""Make the streams that the `mini` models train on and are tested on, from streams of the shipped kind.

An output layer of 65,536 ids would eat the budget of a model that trains in minutes on two cores, so these models
have a vocabulary of 2,048 pieces of their own:

  decode    both streams, document by document, from the RWKV World vocabulary back into text
  choose    the documents whose text is at least 95 % ASCII: English, code, mathematics, some German. So small a
            vocabulary would cut other scripts into single bytes
  cut       the first documents of each stream, until they have the tokens that are wanted
  train     a byte-level byte-pair vocabulary, on the training side alone
  write     mini-train.u16.xz, mini-test.u16.xz, each document ended by id 0, and mini-tokenizer.json

The same streams give the same bytes. traces/build.py makes a training stream, with --train-output.
Needs pagegram-io itself, and: pip install pyrwkv-tokenizer tokenizers

Example: python traces/build_mini.py --train train.u16.xz --output build/mini
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from program import Parser, Refusal, make_parser, say, status_of, token_count

from pagegram_io.output import new_file, refuse_existing
from pagegram_io.tokens import Stream, read_stream, write_stream

END_OF_DOCUMENT = "<|end of document|>"  # id 0: the trainer numbers what it is told to keep before all else
ASCII_SHARE_MIN = 0.95  # of a document's UTF-8 bytes
VOCABULARY = 2_048
TRAIN_TOKENS = 10_000_000
TEST_TOKENS = 1_000_000
BYTES_A_TOKEN = 4  # more than so small a vocabulary gets, so that enough is decoded
BATCH_DOCUMENTS = 500
NAMES = ("mini-train.u16.xz", "mini-test.u16.xz", "mini-tokenizer.json")


def options() -> Parser:
    parser = make_parser(__doc__)
    option = parser.add_argument
    option("--train", required=True, metavar="FILE", help="training stream (--train train.u16.xz)")
    option("--test", metavar="FILE", help="test stream, default the shipped one (--test test.u16.xz)")
    option("--output", type=Path, required=True, metavar="DIR", help="folder of the three files (--output build/mini)")
    option("--vocabulary", type=token_count, default=VOCABULARY, metavar="N", help="default 2,048 (--vocabulary 4096)")
    option(
        "--train-tokens",
        type=token_count,
        default=TRAIN_TOKENS,
        metavar="N",
        help="at least so many tokens of training stream, default 10,000,000 (--train-tokens 2000000)",
    )
    option(
        "--test-tokens",
        type=token_count,
        default=TEST_TOKENS,
        metavar="N",
        help="the same for the test stream, default 1,000,000 (--test-tokens 300000)",
    )
    option("--force", action="store_true", help="overwrite existing output (--force)")
    return parser


def load_libraries() -> tuple[Any, Any]:
    """The World tokenizer, and the package that trains vocabularies."""
    try:
        import tokenizers
        from pyrwkv_tokenizer import RWKVTokenizer
    except ImportError as error:
        raise Refusal(f"{error}: pip install pyrwkv-tokenizer tokenizers") from None
    return RWKVTokenizer(), tokenizers


def is_ascii_enough(text: str) -> bool:
    data = np.frombuffer(text.encode(), np.uint8)
    return bool(data.size) and np.count_nonzero(data < 128) >= ASCII_SHARE_MIN * data.size


def texts_of(stream: Stream, world: Any, bytes_wanted: int) -> list[str]:
    """The first documents that are ASCII enough, whole, until they hold `bytes_wanted` or the stream ends."""
    texts, taken = [], 0
    ends = np.flatnonzero(stream.ids == 0)  # a last document without its end was cut, and is left out
    for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        text = world.decode(stream.ids[start:end].tolist())
        if not is_ascii_enough(text):
            continue
        if END_OF_DOCUMENT in text:
            raise Refusal(f"the document at token {start} contains {END_OF_DOCUMENT}, which here ends documents")
        texts.append(text)
        taken += len(text.encode())
        if taken >= bytes_wanted:
            break
    return texts


def train_vocabulary(tokenizers: Any, texts: Sequence[str], size: int) -> Any:
    """A byte-level byte-pair vocabulary of `size` pieces: every text has an encoding, and decodes to itself."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != size or tokenizer.token_to_id(END_OF_DOCUMENT) != 0:
        raise Refusal(f"--vocabulary: the text gives {tokenizer.get_vocab_size():,} pieces, not the {size:,} asked for")
    return tokenizer


def encoded(texts: Sequence[str], tokenizer: Any) -> Iterator[np.ndarray]:
    """The ids of each document, with its end: (n,) uint16."""
    for first in range(0, len(texts), BATCH_DOCUMENTS):
        for encoding in tokenizer.encode_batch_fast(texts[first : first + BATCH_DOCUMENTS]):
            yield np.array([*encoding.ids, 0], np.uint16)


def stream_of(texts: Sequence[str], tokenizer: Any, tokens_wanted: int, option: str) -> tuple[np.ndarray, int]:
    """The ids of the first documents that have `tokens_wanted` of them, and how many documents these are."""
    pieces, taken = [], 0
    for ids in encoded(texts, tokenizer):
        pieces.append(ids)
        taken += ids.size
        if taken >= tokens_wanted:
            return np.concatenate(pieces), len(pieces)
    raise Refusal(f"{option}: {tokens_wanted:,} asked, but the stream gives {taken:,}", 2)


def build(arguments: argparse.Namespace) -> None:
    """Do what the command asks."""
    if not 512 <= arguments.vocabulary <= 65_536:
        raise Refusal(f"--vocabulary: {arguments.vocabulary:,} is not between 512 and 65,536", 2)
    if not arguments.output.is_dir():
        raise Refusal(f"--output: there is no folder {arguments.output}", 2)
    targets = [arguments.output / name for name in NAMES]
    for target in targets:
        refuse_existing(str(target), arguments.force)
    world, tokenizers = load_libraries()
    say("decoding")
    wanted = (arguments.train_tokens, arguments.test_tokens)
    streams = [read_stream(arguments.train, eod=0, vocabulary=65_536), read_stream(arguments.test, eod=0)]
    texts = [texts_of(stream, world, BYTES_A_TOKEN * count) for stream, count in zip(streams, wanted, strict=True)]
    say(f"training {arguments.vocabulary:,} pieces on {len(texts[0]):,} documents")
    tokenizer = train_vocabulary(tokenizers, texts[0], arguments.vocabulary)
    made = [stream_of(texts[0], tokenizer, wanted[0], "--train-tokens")]
    made.append(stream_of(texts[1], tokenizer, wanted[1], "--test-tokens"))
    for target, side, (ids, documents) in zip(targets[:2], texts, made, strict=True):
        write_stream(target, ids, force=arguments.force)
        digest = Stream(ids, np.zeros(1, np.uint64), 65_536, target.name).sha256
        say(f"{target.name}: {ids.size:,} tokens in {documents:,} documents, sha256 {digest}")
        say(f"    {sum(len(text.encode()) for text in side[:documents]) / ids.size:.2f} bytes of text a token")
    with new_file(targets[2], force=arguments.force) as file:
        file.write((tokenizer.to_str() + "\n").encode())


def main(argv: Sequence[str] | None = None) -> int:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return status_of("build_mini.py", lambda: build(options().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())

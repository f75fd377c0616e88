"""Texts into ids, whatever their lengths: a tokenizer takes a hundred times the memory of a text, so long ones are cut.

Pieces overlap. Where the tokens of two neighbours agree, on both sides of a place far from both cuts, they are joined
there; what is cut off a piece's end is seen whole by its neighbour. Where a tokenizer splits a text into words first,
pieces are joined between two words, and words must agree as tokens do: in a run of digits that are tokens of their own,
groups of three may begin elsewhere although all tokens are the same. Where it splits no words, the tokens that agree
must be of many kinds: pairs of one letter in a long run of it may begin elsewhere. Neighbours that agree nowhere (a
word longer than the overlap) are made one piece. So the ids are those of the text as a whole, with any tokenizer that
reads locally.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pagegram_io.errors import FormatError

if TYPE_CHECKING:
    import tokenizers

PIECE_CHARACTERS = 1 << 17  # a few tenths of a second for a slow tokenizer: Ctrl-C is answered between batches
OVERLAP_CHARACTERS = 1 << 12  # on each side of where two pieces meet
JOINED_CHARACTERS_MAX = 1 << 22  # of neighbours that agree nowhere
AGREEING_TOKENS = 16  # on each side of the place where two pieces are joined


@dataclass(frozen=True)
class Piece:
    """A part of a text and its tokens: ids, the characters of the whole text where each begins and ends, and whether
    it begins a word."""

    begin: int
    text: str
    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    words: np.ndarray

    def after(self, token: int) -> Piece:
        """What is left when the tokens before this one are given out; the text stays, to be encoded again."""
        return Piece(self.begin, self.text, *(array[token:] for array in self.arrays))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.ids, self.starts, self.ends, self.words


def encode(
    tokenizer: tokenizers.Tokenizer, texts: Iterable[Iterable[str]], *, end_id: int | None = None
) -> Iterator[np.ndarray]:
    """The ids of each text, uint32, without tokens that the tokenizer would add, and ended by `end_id` if given.

    A text is a str, or parts that join to it, of which no more is held than is at work. ValueError for a tokenizer that
    cannot encode a text, FormatError for a text that can be cut nowhere.
    """
    end = np.array([] if end_id is None else [end_id], np.uint32)
    cores = os.cpu_count() or 1
    batch: list[str] = []

    def short() -> Iterator[np.ndarray]:
        for piece in _encoded(tokenizer, [(0, text) for text in batch]):
            yield np.concatenate([piece.ids, end])
        batch.clear()

    for text in texts:
        pieces = overlapping([text] if isinstance(text, str) else text)
        first = next(pieces)
        second = next(pieces, None)
        if second is None:
            batch.append(first[1])
            if sum(map(len, batch)) >= cores * PIECE_CHARACTERS:
                yield from short()
            continue
        yield from short()
        encoded = _in_batches(tokenizer, itertools.chain([first, second], pieces), cores)
        yield np.concatenate([*_joined(tokenizer, encoded), end])
    yield from short()


def overlapping(text: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Pieces of a text given in parts, and the character at which each begins; one of nothing for an empty text."""
    held, begin, meet = "", 0, PIECE_CHARACTERS
    for part in (p[at : at + PIECE_CHARACTERS] for p in text for at in range(0, len(p), PIECE_CHARACTERS)):
        held += part
        while begin + len(held) > meet + OVERLAP_CHARACTERS:
            yield begin, held[: meet + OVERLAP_CHARACTERS - begin]
            keep = meet - OVERLAP_CHARACTERS
            held, begin, meet = held[keep - begin :], keep, meet + PIECE_CHARACTERS
    yield begin, held


def _in_batches(tokenizer: tokenizers.Tokenizer, pieces: Iterator[tuple[int, str]], count: int) -> Iterator[Piece]:
    while some := list(itertools.islice(pieces, count)):
        yield from _encoded(tokenizer, some)


def _encoded(tokenizer: tokenizers.Tokenizer, pieces: list[tuple[int, str]]) -> Iterator[Piece]:
    if not pieces:
        return
    try:
        encodings = tokenizer.encode_batch([text for _, text in pieces], add_special_tokens=False)
    except Exception as error:  # whatever its model raises, a missing unknown token for one
        if any("\ud800" <= character <= "\udfff" for _, text in pieces for character in text):
            raise ValueError("a text holds half of a surrogate pair, which is no character") from None
        raise ValueError(f"the tokenizer cannot encode a text: {' '.join(str(error).split())[:200]}") from None
    for (begin, text), encoding in zip(pieces, encodings, strict=True):
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2) + begin
        # A space put before a word that is then trimmed away "begins" after the word does; both begin where it did.
        starts = np.minimum.accumulate(offsets[::-1, 0])[::-1]
        numbers = [-1 if number is None else number for number in encoding.word_ids]
        words = np.diff(np.array(numbers, np.int64), prepend=-2) != 0
        yield Piece(begin, text, np.array(encoding.ids, np.uint32), starts, offsets[:, 1], words)


def splits_words(tokenizer: tokenizers.Tokenizer) -> bool:
    """Does it split a text at its spaces before it makes tokens? Many that SentencePiece trained do not.

    Some of them would split at spaces, and have a normalizer that leaves none; some split at digits alone.
    """
    normal, before = tokenizer.normalizer, tokenizer.pre_tokenizer
    sample = "one two" if normal is None else normal.normalize_str("one two")
    return before is not None and len(before.pre_tokenize_str(sample)) > 1


def _joined(tokenizer: tokenizers.Tokenizer, pieces: Iterator[Piece]) -> Iterator[np.ndarray]:
    """The ids of one text, run by run."""
    worded = splits_words(tokenizer)
    held = next(pieces)
    for piece in pieces:
        found = agreement(held, piece, worded)
        if found is None:
            held = _one_piece(tokenizer, held, itertools.chain([piece], pieces))
            continue
        token, other = found
        yield held.ids[:token]
        held = piece.after(other)
    yield held.ids


def _one_piece(tokenizer: tokenizers.Tokenizer, held: Piece, pieces: Iterator[Piece]) -> Piece:
    """A piece and about as much of the text after it, encoded as one: doubling, so that the work stays linear."""
    first = int(held.starts[0]) if held.ids.size else held.begin
    text = held.text
    for piece in itertools.islice(pieces, max(1, len(text) // PIECE_CHARACTERS)):
        text = text[: piece.begin - held.begin] + piece.text
    if len(text) > JOINED_CHARACTERS_MAX:
        raise FormatError(
            f"a text has no place where it can surely be cut from its character {held.begin:,} on, in "
            f"{JOINED_CHARACTERS_MAX:,}; make two texts of it"
        )
    (whole,) = _encoded(tokenizer, [(held.begin, text)])
    return whole.after(int(np.searchsorted(whole.starts, first)))


def agreement(left: Piece, right: Piece, worded: bool) -> tuple[int, int] | None:
    """The first tokens, of each, after the place where two pieces are joined; None where they agree nowhere."""
    middle = right.begin + OVERLAP_CHARACTERS
    low, high = middle - OVERLAP_CHARACTERS // 2, middle + OVERLAP_CHARACTERS // 2
    for other in range(*np.searchsorted(right.starts, [low, high]).tolist()):
        token = int(np.searchsorted(left.starts, right.starts[other]))
        if min(token, other) < AGREEING_TOKENS or right.starts[other - 1] == right.starts[other]:
            continue  # a character of several tokens is not cut
        if worded and not right.words[other]:
            continue
        kinds = 1 if worded else AGREEING_TOKENS // 2
        if all(_same(left, right, token, other, by, kinds) for by in (-AGREEING_TOKENS, AGREEING_TOKENS)):
            return token, other
    return None


def _same(left: Piece, right: Piece, token: int, other: int, by: int, kinds: int) -> bool:
    """Are so many tokens before (after) these the same, in the same places, and of at least so many kinds?"""
    a, b = (slice(min(at, at + by), max(at, at + by)) for at in (token, other))
    return len(set(left.ids[a].tolist())) >= kinds and all(
        len(x[a]) == abs(by) and np.array_equal(x[a], y[b]) for x, y in zip(left.arrays, right.arrays, strict=True)
    )

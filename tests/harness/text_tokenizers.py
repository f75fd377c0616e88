"""Tokenizers of every style that models come with, trained on a few words: what splits, normalizes and adds."""

from __future__ import annotations

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

WORDS = [
    "the",
    "cat,",
    "sat",
    "on:",
    "3.14159",
    "2718281828",
    "mats\n\n",
    "of",
    "été",
    "naïve",
    "北京",
    "🙂🙃",
    "tokens",
    "--",
    "##",
    "a\tbb",
    "",
    "ccc",
    "",
    "",
    "dddd",
]


def corpus(count: int = 4000, seed: int = 1) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(WORDS[int(i)] for i in rng.integers(0, len(WORDS), count))


def bpe() -> Tokenizer:
    """Bytes, a regular expression that groups digits by three from the left, tokens added at the start."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+|[^\s\p{N}]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([corpus()], trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return tokenizer


def word_piece() -> Tokenizer:
    """Words of more than 20 characters are unknown; case and accents go."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator([corpus()], trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """As SentencePiece writes them: a mark for each space, and one before the text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([corpus()], trainer)
    return tokenizer


def gemma_like() -> Tokenizer:
    """Would split at spaces, but its normalizer leaves none; bytes for unknown letters; line ends are tokens."""
    bytes_of = [f"<0x{i:02X}>" for i in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<bos>", *bytes_of], show_progress=False)
    tokenizer.train_from_iterator([corpus()], trainer)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_tokens([AddedToken("\n" * i, normalized=False) for i in range(2, 8)])
    return tokenizer


def llama_like() -> Tokenizer:
    """No words at all, a mark before the text, and special tokens that may stand inside it."""
    tokenizer = gemma_like()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.pre_tokenizer = None
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("</s>", rstrip=True)])
    return tokenizer


def digits_from_the_right() -> Tokenizer:
    """Groups of three digits that end where their run does, however far away, and all else by GPT-2's rule."""
    tokenizer = bpe()
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(True)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def changed_lengths() -> Tokenizer:
    """Decomposes, drops accents, lowers, squeezes spaces and strips both ends; each digit a word."""
    tokenizer = word_piece()
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(True)]
    )
    return tokenizer


def digits_split_alone() -> Tokenizer:
    """Splits at digits and nowhere else, so that a word may be a page of text."""
    tokenizer = gemma_like()
    tokenizer.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    return tokenizer


def metaspace_first() -> Tokenizer:
    tokenizer = unigram()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


TOKENIZERS = {"BPE": bpe(), "WordPiece": word_piece(), "Unigram": unigram()}
FURTHER = {
    make.__name__: make()
    for make in (gemma_like, llama_like, digits_from_the_right, changed_lengths, digits_split_alone, metaspace_first)
}

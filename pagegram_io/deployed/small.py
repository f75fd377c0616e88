"""Small and unhashed tables, as controls: modded-nanogpt's bigrams, and a per-layer embedding of single tokens."""

from __future__ import annotations

from pagegram_io.deployed.family import Address, Family, RowFormat, TableTensor
from pagegram_io.hashes import Hash

NANOGPT_VOCABULARY = 50_304
NANOGPT_MULTIPLIERS = (36313, 27191)  # of the token and of the one before it
NANOGPT_MODULUS = 251_519


def _nanogpt_hashes() -> tuple[Hash, ...]:
    # 36313 * 50303 is below 2^31: the model's 32-bit products never wrap, so 64-bit ones are the same.
    return (Hash(2, "mulxor", NANOGPT_MULTIPLIERS, vocabulary=NANOGPT_VOCABULARY, whole=True),)


MODDED_NANOGPT = Family(
    name="modded-nanogpt",
    title="modded-nanogpt, bigram embedding",
    source="the speed-run's public training code",
    verified="rows against the written rule, in 32-bit arithmetic",
    unverified="the width of a row (768 values); documents start with the row of position 0, as sequences do",
    vocabulary=NANOGPT_VOCABULARY,
    tokenizer="GPT-2's",
    width=768,
    tensors=(TableTensor(r".*bigram_embed\.weight", None, 0, NANOGPT_MODULUS + 1, NANOGPT_MODULUS + 1, 768),),
    addresses=(Address(0, 0, NANOGPT_MODULUS, 0, 2, 0, rows=NANOGPT_MODULUS + 1),),
    make_hashes=_nanogpt_hashes,
    formats=(RowFormat("bf16", (1536,)),),
)

GEMMA_VOCABULARY = 262_144


def _gemma_hashes() -> tuple[Hash, ...]:
    return (Hash(1, "token", vocabulary=GEMMA_VOCABULARY),)


GEMMA_PLE = Family(
    name="gemma-ple",
    title="Gemma-type per-layer embedding, a row a token id",
    source="the public model cards and GGUF files: 262,144 rows of 10,752 values",
    verified="row = token id; 7,392 bytes a row at Q5_K, two or three pages",
    unverified="where the tensor lies in a checkpoint's files",
    vocabulary=GEMMA_VOCABULARY,
    tokenizer="Gemma's own, which is behind a licence",
    width=10_752,
    tensors=(
        TableTensor(
            r".*(?:per_layer_token_embd|embed_tokens_per_layer)\.weight",
            None,
            0,
            GEMMA_VOCABULARY,
            GEMMA_VOCABULARY,
            10_752,
        ),
    ),
    addresses=(Address(0, 0, GEMMA_VOCABULARY, 0, 1, 0),),
    make_hashes=_gemma_hashes,
    formats=(RowFormat("q5_k", (7392,)), RowFormat("bf16", (21504,))),
)

"""Qwen3.8-Flash-Next: one table of n-gram embeddings, addressed by raw ids.

mix2 = t_0 * m_0 xor t_1 * m_1 for the heads of order 2, and xor t_2 * m_2 for those of order 3; the row of each head
is that mod a prime of its own. Only tokens after the last end of sequence before the position are seen; a missing one
counts as the end-of-sequence id, never as 0.
"""

from __future__ import annotations

from pagegram_io.deployed.family import Address, Family, RowFormat, TableTensor, primes_above
from pagegram_io.hashes import Hash

VOCABULARY = 248_320
END_ID = 248_044
MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)  # of look-back 0, 1, 2
ORDERS, HEADS = (2, 3), 8
PRIMES_ABOVE = 19_999_999
STORED_ROWS = 320_001_536  # 128 shards of 2,500,012; the last 90 are never addressed


def _hashes() -> tuple[Hash, ...]:
    return tuple(Hash(n, "mulxor", MULTIPLIERS[:n], fill=END_ID, end_id=END_ID, vocabulary=VOCABULARY) for n in ORDERS)


def _addresses() -> tuple[Address, ...]:
    addresses, row = [], 0
    for column, prime in enumerate(primes_above(PRIMES_ABOVE, len(ORDERS) * HEADS)):
        which, head = divmod(column, HEADS)
        addresses.append(Address(0, which, prime, row, ORDERS[which], head, layer=1))
        row += prime
    return tuple(addresses)


_ADDRESSES = _addresses()
_ROWS = sum(a.modulus for a in _ADDRESSES)

FLASH_NEXT = Family(
    name="qwen3.8-flash-next",
    title="Qwen3.8-Flash-Next, n-gram embedding of layer 1",
    source="the public checkpoint's tensor names and shapes, the keys of its GGUF file, and its reference code",
    verified="primes and the row count; the 16 rows of one token at a sequence's start",
    unverified="where the 128 shards lie in the files (here: one tensor, as in GGUF); rows inside a sequence",
    vocabulary=VOCABULARY,
    tokenizer="Qwen3.8's own, which is not in a package index",
    width=160,
    tensors=(
        TableTensor(
            r"(?:model\.language_model\.layers\.1\.ple\.ple_embedding\.ngram_embedding\.shards?[._](?P<shard>\d+)"
            r"(?:\.weight)?|per_layer_token_embd\.weight)",
            None,
            0,
            _ROWS,
            STORED_ROWS,
            160,
        ),
    ),
    addresses=_ADDRESSES,
    make_hashes=_hashes,
    formats=(
        RowFormat("bf16", (320,)),
        RowFormat("fp8", (160,)),  # one scale for the whole table
        RowFormat("q8_0", (170,)),
        RowFormat("q4_0", (90,)),
        RowFormat("iq4_nl", (90,)),
        RowFormat("int4", (80, 10, 10)),  # groups of 32: codes, scales and offsets in tensors of their own
    ),
    end_id=END_ID,
)

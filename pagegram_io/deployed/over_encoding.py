"""Over-encoding: a base-V polynomial of the last n ids modulo the size of each table, split in k slices an order.

The row in table i is (t_0 + t_1 * V + ... + t_{n-1} * V^{n-1}) mod (m + 2i), for the orders 2 to n and, in each, k
tables of slices, counted through all orders. A look-back before the document adds 0; end of sequence does not cut.
The table of single ids is the model's own embedding and stays with it. LongCat's table is of this kind, too.
"""

from __future__ import annotations

from pagegram_io.deployed.family import Address, Family, RowFormat, TableTensor
from pagegram_io.hashes import Hash


def over_encoding_tables(
    vocabulary: int, orders: tuple[int, ...], slices: int, first_rows: int, width: int, name: str
) -> tuple[tuple[TableTensor, ...], tuple[Address, ...]]:
    """A tensor a slice of each order, of two rows more than the one before it; name is a pattern with {i} in it."""
    tensors, addresses, row = [], [], 0
    for i in range(len(orders) * slices):
        which, k = divmod(i, slices)
        rows = first_rows + 2 * i
        powers = tuple(pow(vocabulary, d, rows) for d in range(orders[which]))
        tensors.append(TableTensor(name.format(i=i), None, row, rows, rows, width))
        addresses.append(Address(i, which, rows, row, orders[which], k, multipliers=powers))
        row += rows
    return tuple(tensors), tuple(addresses)


def over_encoding_hashes(vocabulary: int, orders: tuple[int, ...], end_id: int | None = None) -> tuple[Hash, ...]:
    """A hash an order; the powers of V stand in the addresses, which have each a modulus of their own."""
    return tuple(Hash(n, "poly", fill=0, end_id=end_id, vocabulary=vocabulary) for n in orders)


# "Over-Tokenized Transformer: Vocabulary is Generally Worth Scaling", arXiv 2501.16975v2: n = 3 and m = 1.28e7 (section
# 4), V of OLMo2 (section 4.1), k = 4 at a model width of 2,048 (figure 10), m + 2i rows and slices of width / (k(n-1))
# values (algorithm 1 of appendix A). 12.8 M rows of 2,048 values are the 26.3 B of its table 1, with the single ids.
VOCABULARY = 100_278
ORDERS, SLICES = (2, 3), 4
TABLE_ROWS = 12_800_000
MODEL_WIDTH = 2048
WIDTH = MODEL_WIDTH // (len(ORDERS) * SLICES)

_TENSORS, _ADDRESSES = over_encoding_tables(
    VOCABULARY, ORDERS, SLICES, TABLE_ROWS, WIDTH, r"(?:.*\.)?oe_embedders\.{i}\.weight"
)

OE_12_8M = Family(
    name="over-encoding",
    title="over-encoding as OE-12.8M of the Over-Tokenized Transformer, on OLMo2",
    source="arXiv 2501.16975v2: n = 3, m = 12.8 million, 4 slices an order, m + 2i rows by its appendix A; V of OLMo2",
    verified="rows against the written rule, in whole numbers; 26.2 billion values, with single ids the paper's 26.3",
    unverified="not verified: no weights are public; chosen here: m of 12,800,000 exactly, k = 4 and a width of 2,048 "
    "as of OLMoE-7B, BF16, tensor names as in its pseudocode, look-backs that end with the document",
    vocabulary=VOCABULARY,
    tokenizer="OLMo2's",
    width=WIDTH,
    tensors=_TENSORS,
    addresses=_ADDRESSES,
    make_hashes=lambda: over_encoding_hashes(VOCABULARY, ORDERS),
    formats=(RowFormat("bf16", (2 * WIDTH,)), RowFormat("fp8", (WIDTH,)), RowFormat("q8_0", (WIDTH // 32 * 34,))),
)

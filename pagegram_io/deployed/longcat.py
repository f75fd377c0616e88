"""LongCat-Flash-Lite: over-encoding, a base-V polynomial of the last n ids modulo the size of each table.

The row in table i is the sum over d < n of t_d * (V^d mod M_i), mod M_i, with M_i = 10,223,616 + 2i + 1. A look-back
before the document, to the end of sequence, or beyond one, adds 0. One public port does not stop at the end of
sequence; ``longcat-flash-lite-no-stop`` is that.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pagegram_io.deployed.family import Family, RowFormat, TableTensor
from pagegram_io.deployed.over_encoding import over_encoding_hashes, over_encoding_tables

VOCABULARY = 131_072
END_ID = 2
ORDERS, SPLITS = (2, 3, 4), 4
TABLE_ROWS = 10_223_616
WIDTH = 256

_NAME = r"(?:.*ngram_embeddings?\.embedders|oe_embed_tokens)\.{i}\.weight"
_TENSORS, _ADDRESSES = over_encoding_tables(VOCABULARY, ORDERS, SPLITS, TABLE_ROWS + 1, WIDTH, _NAME)
_ROWS = sum(tensor.rows for tensor in _TENSORS)
# SGLang joins the twelve tables, in their order, under a name that it spells so; other spellings are taken too.
_JOINED = TableTensor(r".*(?:oe_embedd?er|ngram_embeddings?\.embedders?)\.weight", None, 0, _ROWS, _ROWS, WIDTH)

FLASH_LITE = Family(
    name="longcat-flash-lite",
    title="LongCat-Flash-Lite, n-gram embedding",
    source="the public configuration and reference code",
    verified="rows of one five-token history, against a computation from the written rule; the row count, 122,683,536",
    unverified="rows of the model itself; tensor names; where its tables lie in the checkpoint's files",
    vocabulary=VOCABULARY,
    tokenizer="LongCat's own, which is not in a package index",
    width=WIDTH,
    tensors=_TENSORS,
    addresses=_ADDRESSES,
    make_hashes=partial(over_encoding_hashes, VOCABULARY, ORDERS, END_ID),
    formats=(RowFormat("bf16", (512,)),),
    end_id=END_ID,
    joined=_JOINED,
)
FLASH_LITE_NO_STOP = replace(
    FLASH_LITE,
    name="longcat-flash-lite-no-stop",
    title="LongCat-Flash-Lite as a port that reads past the end of sequence",
    source="one public port's code",
    make_hashes=partial(over_encoding_hashes, VOCABULARY, ORDERS),
    end_id=None,
)

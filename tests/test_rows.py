"""Tokens to rows: C = plain Python = torch (C6), in range and inside documents (C2), whatever the cut (C17)."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from conftest import ISAS, make_stream, small_layouts
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io import native
from pagegram_io.layout import Column, Group, Layout, Region, Shape, engram, flat, pagegram
from pagegram_io.tokens import Stream

GOLDEN_TOKENS = [0, 1, 65535, 42, 42, 42, 7, 9707, 123, 456]
GOLDEN_STARTS = [0, 6]
GOLDEN_SALTS = {
    ("bucket", 2, 0): 0xC67EB766350FECFD,
    ("row", 3, 7): 0x2F5E0DCA5202EDA6,
    ("sign", 2, 0): 0x231DD55EED6B1FD2,
}
GOLDEN_HASHES = {  # position: g2, g3
    0: (0x7AB40E090F363A7D, 0x71CAC37448049CE4),
    5: (0x775189DF6D72CE2D, 0x0B707A4DFB8008B7),
    6: (0x0A02D5BA6AC3611A, 0x0E9FC45590E8F62A),
    9: (0xB85620FF2865E78B, 0xC02BDA74A0A16268),
}
GOLDEN_ROWS = {  # of 200M parameters, rows in their order's or head's region, tokens 0 and 6
    "pagegram": (
        "323904 323908 323912 323919 323921 323926 323928 323932 "
        "1345219 1345223 1345225 1345229 1345232 1345239 1345243 1345245",
        "862690 862692 862698 862703 862704 862708 862712 862716 "
        "1470144 1470150 1470153 1470156 1470160 1470165 1470170 1470175",
    ),
    "engram": (
        "77635 184117 41639 7121 166506 44555 112245 178638 137654 188895 93729 95399 135288 23254 164846 84028",
        "58228 30303 4681 170133 30734 69896 9122 65008 178286 98722 94305 70488 140563 128080 20504 18059",
    ),
    "flat": ("248272 176207", "173874 116764"),
}


# ---- golden values (layouts.md) ------------------------------------------------------------------


def test_c6_golden_salts_and_hashes() -> None:
    for (role, order, index), value in GOLDEN_SALTS.items():
        assert native.salt(0, role, order, index) == value
        assert reference.salt(0, native.ROLES[role], order, index) == value
    stream = make_stream(GOLDEN_TOKENS, GOLDEN_STARTS)
    for i, order in enumerate((2, 3)):
        hashes = native.hash_ngrams(stream, order)
        twins = reference.ngram_hashes(GOLDEN_TOKENS, GOLDEN_STARTS, order)
        for t, values in GOLDEN_HASHES.items():
            assert int(hashes[t]) == values[i] == twins[t]


@pytest.mark.parametrize("name", GOLDEN_ROWS)
def test_c6_golden_rows(name: str, isa: str) -> None:
    params = 200_000_000
    layout = {"pagegram": pagegram(params, 4), "engram": engram(params), "flat": flat(params)}[name]
    bases = [group.row_base for group in layout.groups for _ in group.columns]
    with native.Rows(layout, isa=isa) as rows:
        found = rows.emit(make_stream(GOLDEN_TOKENS, GOLDEN_STARTS)) - np.array(bases, np.uint64)
    for t, text in zip((0, 6), GOLDEN_ROWS[name], strict=True):
        assert found[t].tolist() == [int(row) for row in text.split()]


def test_c6_golden_digests(isa: str, shipped: Any) -> None:
    """tests/golden/rows.json was made by the plain Python reference (tests/golden/make_rows.py)."""
    golden = json.loads((Path(__file__).parent / "golden" / "rows.json").read_text())
    stream = shipped(golden["tokens"])
    assert stream.sha256 == golden["stream_sha256"]
    layouts = {
        "flat 200M": flat(200_000_000),
        "engram 3.2B": engram(3_200_000_000),
        "pagegram 20B S=4": pagegram(20_000_000_000, 4),
        "pagegram 20B S=15 seed 7": pagegram(20_000_000_000, 15, Shape(seed=7)),
        "pagegram 200M S=60 orders 1,2,3,4 heads 3": pagegram(200_000_000, 60, Shape(orders=(1, 2, 3, 4), heads=3)),
    }
    assert layouts.keys() == golden["rows"].keys()
    for name, layout in layouts.items():
        with native.Rows(layout, isa=isa) as rows:
            found = rows.emit(stream)
        assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest() == golden["rows"][name], name


# ---- C = plain Python = torch --------------------------------------------------------------------


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def torch_shift(z: Any, bits: int) -> Any:
    """A logical shift in signed 64-bit integers, as layouts.md section 1 says."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def torch_mix(z: Any) -> Any:
    z = (z ^ torch_shift(z, 30)) * signed(reference.FIRST_FACTOR)
    z = (z ^ torch_shift(z, 27)) * signed(reference.SECOND_FACTOR)
    return z ^ torch_shift(z, 31)


def torch_hashes(ids: Any, document_of: Any, order: int) -> Any:
    g = torch_mix(ids + 1)
    for back in range(1, order):
        past = torch.zeros_like(ids)
        past[back:] = torch.where(document_of[back:] == document_of[:-back], ids[:-back] + 1, 0)
        g = torch_mix(g ^ (past * signed(reference.GAMMA)))
    return g


def torch_u(g: Any, salt: int) -> Any:
    return torch_shift(torch_mix(g ^ signed(salt)), 1)


def torch_rows(table: reference.Table, stream: Stream) -> np.ndarray:
    ids = torch.from_numpy(stream.ids.astype(np.int64))
    positions = torch.arange(len(ids))
    document_of = torch.searchsorted(torch.from_numpy(stream.document_starts.astype(np.int64)), positions, right=True)
    columns, moduli, base = [], iter(table.moduli), 0
    for n in table.orders:
        g = torch_hashes(ids, document_of, n)
        if table.name == "pagegram":
            modulus = next(moduli)
            bucket = torch_u(g, reference.salt(table.seed, reference.BUCKET, n, 0)) % modulus
            for k in range(table.heads):
                slot = torch_u(g, reference.salt(table.seed, reference.ROW, n, k)) % table.slots
                columns.append(base + (bucket * table.heads + k) * table.slots + slot)
            base += modulus * table.heads * table.slots
            continue
        for k in range(table.heads):
            modulus = next(moduli)
            columns.append(base + torch_u(g, reference.salt(table.seed, reference.ROW, n, k)) % modulus)
            base += modulus
    return torch.stack(columns, dim=1).numpy().astype(np.uint64)


@st.composite
def streams(draw: st.DrawFn, max_tokens: int = 150) -> Stream:
    """Short streams: few different ids or the whole range, documents of any length, 16 or 32 bits."""
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    vocabulary = draw(st.sampled_from([1, 3, 2**16, 2**16 if dtype == np.uint16 else 2**32]))
    count = draw(st.integers(1, max_tokens))
    ids = draw(st.lists(st.integers(0, vocabulary - 1), min_size=count, max_size=count))
    starts = draw(st.sets(st.integers(1, count - 1), max_size=12)) if count > 1 else set()
    return make_stream(ids, [0, *sorted(starts)], vocabulary, dtype)


@st.composite
def tables(draw: st.DrawFn) -> tuple[reference.Table, Layout]:
    """A table by the reference's rules, and the same by the package's."""
    orders = tuple(sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=4))))
    seed = draw(st.one_of(st.sampled_from([0, 1, 2**64 - 1]), st.integers(0, 2**64 - 1)))
    heads, slots = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    shape = Shape(orders=orders, heads=heads, row_width=4, dim=6, seed=seed)
    scale = draw(st.integers(20, 5000))
    name = draw(st.sampled_from(["flat", "engram", "pagegram"]))
    if name == "flat":
        params = len(orders) * 6 * scale
        return reference.flat(params, orders=orders, dim=6, seed=seed), flat(params, shape)
    if name == "engram":
        params = len(orders) * heads * 4 * (scale + 200)
        return reference.engram(params, orders=orders, heads=heads, row_width=4, seed=seed), engram(params, shape)
    params = len(orders) * heads * slots * 4 * scale
    twin = reference.pagegram(params, slots, orders=orders, heads=heads, row_width=4, seed=seed)
    return twin, pagegram(params, slots, shape)


@given(tables(), streams())
def test_c6_rows_by_c_equal_python_and_torch(pair: tuple[reference.Table, Layout], stream: Stream) -> None:
    table, layout = pair
    wanted = reference.rows(table, stream.ids.tolist(), stream.document_starts.tolist())
    assert torch_rows(table, stream).tolist() == wanted
    assert layout.row_count == table.row_count()
    for isa in ISAS:
        with native.Rows(layout, isa=isa) as rows:
            assert rows.emit(stream).tolist() == wanted, isa


@given(streams(), st.integers(1, 8), st.integers(0, 2**64 - 1))
def test_c6_hashes_and_sign_words_equal_python(stream: Stream, order: int, seed: int) -> None:
    hashes = native.hash_ngrams(stream, order)
    assert hashes.tolist() == reference.ngram_hashes(stream.ids.tolist(), stream.document_starts.tolist(), order)
    for head, width in ((0, 384), (5, 64), (2, 40)):
        words = [
            native.hash_finish(hashes, native.salt(seed, "sign", order, 64 * head + j)) for j in range(-(-width // 64))
        ]
        twins = [reference.sign_words(int(g), seed, order, head, width) for g in hashes]
        assert np.array(words).T.tolist() == twins


@given(st.integers(0, 2**64 - 1))
def test_c6_mix_equals_python_and_its_inverse_undoes_it(value: int) -> None:
    assert native.mix(value) == reference.mix(value)
    assert reference.unmix(native.mix(value)) == value


def test_c6_long_documents_and_blocks_of_the_core(isa: str) -> None:
    """Documents of one token, and starts around the blocks of 64 and 256 positions that the core hashes at once."""
    random.seed(3)
    starts = [0, 1, 2, 3, 62, 63, 64, 65, 66, 127, 128, 129, 255, 256, 257, 300, 301, 511, 512, 513, 1000]
    ids = [random.randrange(5) for _ in range(1300)]
    table = reference.pagegram(3_000_000, 5, orders=(1, 2, 4, 8), heads=3, row_width=8)
    layout = pagegram(3_000_000, 5, Shape(orders=(1, 2, 4, 8), heads=3, row_width=8))
    with native.Rows(layout, isa=isa) as rows:
        assert rows.emit(make_stream(ids, starts)).tolist() == reference.rows(table, ids, starts)


# ---- exact remainders ----------------------------------------------------------------------------

ADVERSARIAL_MODULI = sorted(
    {
        *range(1, 12),
        *(2**e + d for e in (8, 16, 19, 20, 21, 31, 32, 33, 43, 50, 51, 52, 53, 61) for d in (-3, -1, 0, 1, 3)),
        (2**31 - 1) * 3,
        19_531_231,
        10**15 + 37,
        2**62 - 1,
    }
)


def adversarial_values(modulus: int, rng: random.Random, limit: int) -> list[int]:
    """Values below limit whose quotient or remainder is easiest to get wrong: multiples and their neighbours."""
    top = (limit - 1) // modulus
    quotients = [0, 1, 2, top // 2, top - 1, top, *(rng.randrange(top + 1) for _ in range(8))]
    quotients += [2**e for e in range(0, top.bit_length(), 7)]
    near = {q * modulus + d for q in quotients for d in (-1, 0, 1, modulus - 1)}
    return sorted(v for v in near | {0, 1, limit - 1, limit // 2} if 0 <= v < limit)


def single(columns: list[Column]) -> Layout:
    """A layout for rows alone: each column is a group with more than enough rows."""
    region = Region(0, 1, 1, 1, 0)
    groups = tuple(Group((column,), (region,), 0, 1, 1) for column in columns)
    return Layout("test", groups, 1, 1, "nf4", 1, 1, 1, 1, (1,))


def emit_wanted(modulus_of_column: list[int], values: list[int], isa: str, *, slots: bool) -> list[int]:
    """Remainders of chosen 63-bit values: mix is a bijection, so a salt can be chosen for any hash wanted."""
    g = reference.ngram_hash([17], 0, 0, 1)
    salts = [reference.unmix(2 * value + (value & 1)) ^ g for value in values]
    columns = []
    for modulus, salt in zip(modulus_of_column, salts, strict=True):
        if slots:
            columns.append(Column(0, 0, 1, 0, slot_salt=salt, slot_count=modulus))
        else:
            columns.append(Column(0, salt, modulus, 0))
    with native.Rows(single(columns), isa=isa) as rows:
        return rows.emit(make_stream([17]))[0].tolist()


def test_c6_bucket_remainders_are_exact_for_adversarial_moduli(isa: str) -> None:
    rng = random.Random(5)
    pairs = [(m, v) for m in ADVERSARIAL_MODULI for v in adversarial_values(m, rng, 2**63)]
    assert len(pairs) > 2000
    # Columns of one handle choose the wide path together: moduli it can take, and then each of all sizes.
    for group in ([p for p in pairs if p[0] < 2**51], [p for p in pairs if p[0] >= 2**51], pairs):
        for begin in range(0, len(group), 4000):
            moduli, values = map(list, zip(*group[begin : begin + 4000], strict=True))
            found = emit_wanted(moduli, values, isa, slots=False)
            assert found == [v % m for v, m in zip(values, moduli, strict=True)]


def test_c6_slot_remainders_are_exact_for_adversarial_slot_counts(isa: str) -> None:
    rng = random.Random(6)
    counts = [*range(1, 70), *(2**e + d for e in range(7, 21) for d in (-1, 0, 1)), 2**31 - 1, 2**32 - 1]
    pairs = [(m, v) for m in counts for v in adversarial_values(m, rng, 2**63)]
    for begin in range(0, len(pairs), 4000):
        moduli, values = map(list, zip(*pairs[begin : begin + 4000], strict=True))
        found = emit_wanted(moduli, values, isa, slots=True)
        assert found == [v % m for v, m in zip(values, moduli, strict=True)]


@given(st.lists(st.tuples(st.integers(1, 2**62 - 1), st.integers(0, 2**63 - 1)), min_size=1, max_size=40))
def test_c6_bucket_remainders_are_exact_for_any_moduli(pairs: list[tuple[int, int]]) -> None:
    moduli, values = map(list, zip(*pairs, strict=True))
    for isa in ISAS:
        assert emit_wanted(moduli, values, isa, slots=False) == [v % m for v, m in zip(values, moduli, strict=True)]


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=20
    ),
    streams(40),
)
def test_c6_any_columns_equal_python(shapes: list[tuple[int, int, int, int]], stream: Stream) -> None:
    """Columns whose slot is of another order than their bucket, with and without a choice of slot, in any mixture."""
    columns = []
    for i, (modulus, slots, bucket_hash, slot_hash) in enumerate(shapes):
        columns.append(Column(bucket_hash, 77 * i, modulus, 1000 * i, 50 + i, slot_hash, 99 * i, slots))
    ids, starts = stream.ids.tolist(), stream.document_starts.tolist()
    g = {n: reference.ngram_hashes(ids, starts, n) for n in range(1, 9)}
    wanted = [
        [
            c.row_base
            + reference.u(g[c.bucket_hash + 1][t], c.bucket_salt) % c.modulus * c.row_stride
            + reference.u(g[c.slot_hash + 1][t], c.slot_salt) % c.slot_count
            for c in columns
        ]
        for t in range(len(ids))
    ]
    for isa in ISAS:
        with native.Rows(single(columns), isa=isa) as rows:
            assert rows.emit(stream).tolist() == wanted


# ---- where the stream is cut, and where documents end --------------------------------------------


@given(tables(), streams(400), st.data())
def test_c17_rows_do_not_depend_on_the_cut(
    pair: tuple[reference.Table, Layout], stream: Stream, data: st.DataObject
) -> None:
    layout = pair[1]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    for isa in ISAS:
        with native.Rows(layout, isa=isa) as rows:
            whole = rows.emit(stream)
            edges = [0, *sorted(cuts), len(stream)]
            parts = [rows.emit(stream, a, b) for a, b in zip(edges, edges[1:], strict=False)]
            assert np.array_equal(np.concatenate(parts), whole)
            begin = data.draw(st.integers(0, len(stream)))  # and in no particular order
            assert np.array_equal(rows.emit(stream, begin), whole[begin:])


@given(tables(), streams(400), st.data())
def test_c17_pages_do_not_depend_on_the_cut(
    pair: tuple[reference.Table, Layout], stream: Stream, data: st.DataObject
) -> None:
    layout = pair[1]
    wanted = layout.pages(layout.rows(stream))
    for isa in ISAS:
        with native.Source(layout, stream, isa=isa) as source:
            for _ in range(2):
                parts = []
                while True:
                    pages = np.full((data.draw(st.integers(1, 300)), source.page_columns), 0xABCD, np.uint32)
                    count = source.next(pages)
                    if not count:
                        break
                    assert (pages[count:] == 0xABCD).all()
                    parts.append(pages[:count])
                assert np.array_equal(np.concatenate(parts), wanted)
                assert source.next(np.empty((1, source.page_columns), np.uint32)) == 0
                source.rewind()


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_c2_every_row_is_in_its_columns_own_place(layout: Layout, shipped: Any) -> None:
    rows = layout.rows(shipped(20_000))
    column = 0
    for group in layout.groups:
        for c in group.columns:
            found = rows[:, column].astype(np.int64)
            assert found.min() >= group.row_base
            assert found.max() < group.row_base + group.row_count
            within = (found - c.row_base) % c.row_stride
            assert within.min() >= 0
            assert within.max() < c.slot_count
            column += 1


@pytest.mark.parametrize("slots", [1, 2, 4, 8, 15])
def test_c2_all_rows_of_an_order_lie_in_one_page(slots: int, shipped: Any) -> None:
    layout = pagegram(200_000_000, slots)
    rows = layout.rows(shipped(20_000))
    with native.Place(layout) as place:
        offsets = place.bytes(rows) // np.uint64(layout.page_bytes)
        last = (place.bytes(rows) + np.uint64(layout.row_bytes - 1)) // np.uint64(layout.page_bytes)
        pages = place.pages(rows)
    assert np.array_equal(offsets, last)
    for i in range(2):
        heads = offsets[:, 8 * i : 8 * i + 8]
        assert (heads == heads[:, :1]).all()
        assert np.array_equal(heads[:, 0], pages[:, i])


@given(tables(), streams(80), st.data())
def test_c2_no_ngram_reaches_across_a_document_nor_ahead(
    pair: tuple[reference.Table, Layout], stream: Stream, data: st.DataObject
) -> None:
    """C2, C29: a token changes only rows of its own document, from its own position to its longest n-gram."""
    layout = pair[1]
    at = data.draw(st.integers(0, len(stream) - 1))
    ids = stream.ids.copy()
    ids[at] = data.draw(st.integers(0, stream.vocabulary - 1))
    before, after = layout.rows(stream), layout.rows(replace(stream, ids=ids))
    ends = [*stream.document_starts.tolist()[1:], len(stream)]
    last = min(at + max(layout.orders) - 1, next(end for end in ends if end > at) - 1)
    same = (before == after).all(axis=1)
    assert same[:at].all()
    assert same[last + 1 :].all()


def test_c2_a_document_gives_the_same_rows_wherever_it_stands() -> None:
    ids = [5, 9, 9, 1, 5, 9, 9, 1, 7]
    layout = pagegram(3_000_000, 4, Shape(orders=(1, 2, 3, 8), heads=2, row_width=8))
    alone = layout.rows(make_stream(ids))
    among = layout.rows(make_stream([1, 2, 3, *ids, *ids], [0, 3, 3 + len(ids)]))
    assert np.array_equal(among[3 : 3 + len(ids)], alone)
    assert np.array_equal(among[3 + len(ids) :], alone)


# ---- refusals ------------------------------------------------------------------------------------


def test_streams_and_ranges_that_do_not_fit_are_refused() -> None:
    stream = make_stream(range(10))
    with native.Rows(flat(200_000_000)) as rows:
        for begin, end in ((0, 11), (5, 3), (11, 11), (-1, 3), (0, 2**64)):
            with pytest.raises(ValueError):
                rows.emit(stream, begin, end)
        assert rows.emit(stream, 10, 10).shape == (0, 2)
    with pytest.raises(ValueError, match="closed"):
        rows.emit(stream)
    for order in (0, 9, -1):
        with pytest.raises(ValueError):
            native.hash_ngrams(stream, order)
    with pytest.raises(ValueError, match="not known|one of"):
        native.Rows(flat(200_000_000), isa="sse2")


def test_ids_at_the_vocabulary_are_refused_by_the_core_itself() -> None:
    """Stream checks its ids, but C is used without it too; a look-back is checked with what looks back."""
    stream = make_stream([1, 99, 3, 3, 3, 3, 3, 3, 3, 3, 3], vocabulary=100)
    object.__setattr__(stream, "vocabulary", 99)
    with native.Rows(flat(200_000_000)) as rows:
        with pytest.raises(ValueError, match="99"):
            rows.emit(stream)
        with pytest.raises(ValueError, match="99"):
            rows.emit(stream, 3, 4)
        with pytest.raises(ValueError, match="99"):
            rows.emit(stream, 8, 9)
        assert len(rows.emit(stream, 9, 11)) == 2
    with pytest.raises(ValueError, match="99"):
        native.Source(flat(200_000_000), stream)


@pytest.mark.parametrize(
    "column",
    [
        Column(-1, 0, 5, 0),
        Column(8, 0, 5, 0),
        Column(0, 0, 5, 0, slot_hash=8),
        Column(0, 0, 5, 0, slot_hash=-1),
        Column(0, 0, 0, 0),
        Column(0, 0, 2**62, 0),
        Column(0, 0, 5, 0, slot_count=0),
        Column(0, 0, 2**61, 0, row_stride=3),
        Column(0, 0, 5, -1),
        Column(0, 0, 5, 2**64),
        Column(0, 0, 2, 2**62 - 1),
        Column(0, 0, 2**40, 0, row_stride=2**40),
    ],
)
def test_columns_that_cannot_be_are_refused(column: Column) -> None:
    with pytest.raises(ValueError, match="column 0|too large for the C core"):
        native.Rows(single([column]))


def test_no_columns_and_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        native.Rows(single([]))
    with pytest.raises(ValueError, match="columns"):
        native.Rows(single([Column(0, 0, 5, 0)] * 4097))
    with native.Rows(single([Column(0, 0, 5, 0)] * 4096)) as rows:
        assert rows.emit(make_stream([1, 2])).shape == (2, 4096)

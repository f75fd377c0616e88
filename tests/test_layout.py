"""Dimensions, bytes and expected reads of the three layouts (C1, C7, C8, C9), against layouts.md and plain Python."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
import reference
from conftest import make_stream, small_layouts
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io import layout as layouts
from pagegram_io import native, straddles
from pagegram_io.layout import Column, Group, Layout, Region, Shape, build, engram, flat, pagegram

SIZES = {"200M": 200_000_000, "3.2B": 3_200_000_000, "10B": 10_000_000_000, "20B": 20_000_000_000}
DIMENSIONS = {  # layouts.md: flat rows, first and last engram prime, pagegram buckets of S=4 and S=15
    "200M": (520_832, (195_311, 195_131), (48_823, 48_821), (13_009, 13_007)),
    "3.2B": (8_333_332, (3_124_999, 3_124_729), (781_247, 781_243), (208_333, 208_319)),
    "10B": (26_041_666, (9_765_619, 9_765_377), (2_441_401, 2_441_389), (651_029, 651_019)),
    "20B": (52_083_332, (19_531_231, 19_530_983), (4_882_811, 4_882_789), (1_302_079, 1_302_061)),
}


def moduli(layout: Layout) -> list[int]:
    """Rows of flat's orders and engram's heads; buckets of pagegram's orders."""
    return [group.columns[0].modulus for group in layout.groups]


# ---- C7: dimensions ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", DIMENSIONS)
def test_c7_dimensions_are_those_of_the_table(size: str) -> None:
    """The rows of flat are those of both orders together."""
    params = SIZES[size]
    flat_rows, engram_primes, four, fifteen = DIMENSIONS[size]
    assert moduli(flat(params)) == [params // 768] * 2
    assert sum(moduli(flat(params))) == flat_rows
    primes = moduli(engram(params))
    assert (primes[0], primes[-1]) == engram_primes
    assert len(primes) == 16
    assert primes == sorted(set(primes), reverse=True)
    assert primes == reference.engram(params).moduli
    assert tuple(moduli(pagegram(params, 4))) == four
    assert tuple(moduli(pagegram(params, 15))) == fifteen


@given(st.integers(2, 40_000), st.integers(1, 20))
def test_c7_primes_equal_trial_division(limit: int, count: int) -> None:
    try:
        wanted = reference.primes_at_most(limit, count)
    except ValueError:
        with pytest.raises(ValueError, match="primes"):
            layouts.primes_below(limit, count)
    else:
        assert layouts.primes_below(limit, count) == wanted


def test_c7_primality_of_every_small_number_and_of_strong_pseudoprimes() -> None:
    assert [n for n in range(-3, 5000) if layouts.is_prime(n)] == [n for n in range(5000) if reference.is_prime(n)]
    # Composites that pass Miller-Rabin for the first one to nine prime bases; Carmichael numbers; squares of primes.
    for n in (2047, 1_373_653, 25_326_001, 3_215_031_751, 2_152_302_898_747, 3_474_749_660_383, 341_550_071_728_321,
              3_825_123_056_546_413_051, 561, 41041, 825_265, 1_000_003**2, (2**31 - 1) ** 2):  # fmt: skip
        assert not layouts.is_prime(n), n
    for n in (2**31 - 1, 2**61 - 1, 10**18 + 9, 18_446_744_073_709_551_557):
        assert layouts.is_prime(n), n


@given(st.data())
def test_c7_dimensions_equal_the_rules_for_any_shape(data: st.DataObject) -> None:
    orders = tuple(sorted(data.draw(st.sets(st.integers(1, 8), min_size=1, max_size=3))))
    heads, slots, width = (
        data.draw(st.integers(1, 10)),
        data.draw(st.integers(1, 70)),
        data.draw(st.integers(1, 40)) * 2,
    )
    params = data.draw(st.integers(10_000_000, 2_000_000_000))
    shape = Shape(orders=orders, heads=heads, row_width=width, dim=6 * width)
    assert moduli(flat(params, shape)) == reference.flat(params, orders=orders, dim=6 * width).moduli
    assert moduli(engram(params, shape)) == reference.engram(params, orders=orders, heads=heads, row_width=width).moduli
    twin = reference.pagegram(params, slots, orders=orders, heads=heads, row_width=width)
    assert moduli(pagegram(params, slots, shape)) == twin.moduli


def test_c7_the_larger_bucket_prime_is_for_bigrams_and_heads_descend() -> None:
    layout = engram(SIZES["200M"], Shape(orders=(2, 4), heads=3))
    assert [(g.order, g.columns[0].head) for g in layout.groups] == [(2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2)]
    assert moduli(layout) == sorted(moduli(layout), reverse=True)
    two = pagegram(SIZES["200M"], 4)
    assert [g.order for g in two.groups] == [2, 3]
    assert moduli(two)[0] > moduli(two)[1]


# ---- C1: equal parameters ------------------------------------------------------------------------


@pytest.mark.parametrize("params", SIZES.values(), ids=SIZES)
def test_c1_parameters_within_a_thousandth_of_the_target_and_of_one_another(params: int) -> None:
    made = [flat(params), engram(params)] + [pagegram(params, s) for s in (1, 4, 8, 15, 60)]
    actual = [layout.table_params_actual for layout in made]
    for layout, count in zip(made, actual, strict=True):
        assert abs(count - params) <= params / 1000, layout.label
    assert max(actual) - min(actual) <= params / 1000


@pytest.mark.parametrize("params", [50_000_000, 200_000_000, 500_000_000])
def test_c1_elsewhere_the_difference_is_reported(params: int) -> None:
    """Prime gaps make it more than a thousandth for some slots, such as 0.73 % at 200M and S=49: the count says so."""
    for layout in [flat(params), engram(params)] + [pagegram(params, s) for s in range(1, 61)]:
        assert layout.table_params == params
        assert layout.table_params_actual == layout.row_count * layout.row_width
        assert layout.row_width == (384 if layout.name == "flat" else 64)
        assert 0 <= params - layout.table_params_actual < params / 20
    assert pagegram(200_000_000, 49).table_params_actual == 198_546_432


# ---- C8: bytes -----------------------------------------------------------------------------------


def test_c8_row_and_bucket_bytes() -> None:
    assert layouts.row_bytes_of("nf4", 64) == 34
    assert layouts.row_bytes_of("nf4", 384) == 194
    assert [layouts.row_bytes_of(f, 64) for f in ("fp8", "int8", "fp16", "bf16", "fp32")] == [66, 66, 128, 128, 256]
    four, fifteen = pagegram(SIZES["20B"], 4).groups[0].regions[0], pagegram(SIZES["20B"], 15).groups[0].regions[0]
    assert (fifteen.unit_bytes, fifteen.units_per_page) == (4080, 1)
    assert (four.unit_bytes, four.units_per_page, four.units_per_page * four.unit_bytes) == (1088, 3, 3264)


@pytest.mark.parametrize(
    ("layout", "unit_bytes", "per_page", "pages", "gib", "held"),
    [
        (flat(SIZES["20B"]), 194, 21, 2_480_160, 9.461, 10.57),
        (engram(SIZES["20B"]), 34, 120, 2_604_154, 9.934, 10.07),
        (pagegram(SIZES["20B"], 4), 1088, 3, 3_255_201, 12.418, 8.05),
        (pagegram(SIZES["20B"], 15), 4080, 1, 2_604_140, 9.934, 10.07),
    ],
    ids=lambda x: getattr(x, "label", None),
)
def test_c8_files_are_those_of_the_table(
    layout: Layout, unit_bytes: int, per_page: int, pages: int, gib: float, held: float
) -> None:
    assert {(r.unit_bytes, r.units_per_page) for r in layout.regions} == {(unit_bytes, per_page)}
    assert layout.page_count == pages
    assert layout.file_bytes == pages * 4096
    assert round(layout.file_bytes / 2**30, 3) == gib
    assert round(100 * 2**30 / layout.file_bytes, 2) == held


def test_c8_a_bucket_of_sixty_slots_costs_eight_reads_not_two(shipped: Any) -> None:
    layout = pagegram(SIZES["200M"], 60)
    region = layout.groups[0].regions[0]
    assert (region.unit_bytes, region.units_per_page) == (16_320, 1)
    pages = layout.pages(layout.rows(shipped(20_000)))
    assert pages.shape == (20_000, 8)
    assert ((pages != native.NO_PAGE).sum(axis=1) == 8).all()
    assert straddles.expected_reads(layout) == pytest.approx(8)


# ---- C9: uncached reads --------------------------------------------------------------------------


@pytest.mark.parametrize("params", [SIZES["200M"], SIZES["20B"]])
def test_c9_uncached_reads_are_exactly_2_16_and_2(params: int, shipped: Any) -> None:
    for layout, reads in ((flat(params), 2), (engram(params), 16), (pagegram(params, 4), 2), (pagegram(params, 15), 2)):
        pages = layout.pages(layout.rows(shipped(20_000)))
        assert ((pages != native.NO_PAGE).sum(axis=1) == reads).all()
        assert pages.shape[1] == reads
        assert straddles.expected_reads(layout) == reads


@pytest.mark.parametrize(("unit_bytes", "share"), [(34, 0.0078125), (194, 0.046875), (1088, 0.25)])
def test_c9_the_straddle_formula_of_packed_units(unit_bytes: int, share: float) -> None:
    region = Region(0, 10**6, unit_bytes, unit_bytes, 0)
    assert (unit_bytes - math.gcd(unit_bytes, 4096)) / 4096 == share
    assert straddles.straddle_probability(region, 4096) == pytest.approx(share)
    starts = np.arange(4096) * unit_bytes  # all phases, each as often
    assert np.mean(starts // 4096 != (starts + unit_bytes - 1) // 4096) == pytest.approx(share)


@pytest.mark.parametrize("base_byte", [0, 1, 17, 4096 * 3 + 100])
@pytest.mark.parametrize("name", ["flat", "engram", "pagegram S=4", "pagegram S=15"])
def test_c9_packed_reads_meet_the_formula_within_sampling_error(name: str, base_byte: int) -> None:
    """Uniform tokens, so that units are uniform; text repeats its n-grams, and with them their straddles."""
    shape = Shape(packed=True, base_byte=base_byte)
    made = {layout.label: layout for layout in build(("flat", "engram", "pagegram"), SIZES["200M"], shape=shape)}
    layout = made[name]
    stream = make_stream(np.random.default_rng(base_byte).integers(0, 65536, 60_000))
    pages = layout.pages(layout.rows(stream))
    columns = layout.group_of_page_column()
    for g, group in enumerate(layout.groups):
        reads = (pages[:, columns == g] != native.NO_PAGE).sum(axis=1)
        assert set(np.unique(reads)) == {1, 2}
        p = straddles.straddle_probability(group.regions[0], 4096)
        assert abs(reads.mean() - 1 - p) <= 4 * math.sqrt(p * (1 - p) / len(reads))
    touched = (pages != native.NO_PAGE).sum(axis=1)
    assert abs(touched.mean() - straddles.expected_reads(layout)) <= 4 * touched.std() / math.sqrt(len(touched))


@pytest.mark.parametrize("slots", [16, 30, 60, 100])
@pytest.mark.parametrize("packed", [False, True])
def test_c9_expected_reads_of_long_buckets_equal_the_reads_counted(slots: int, packed: bool) -> None:
    """Uniform tokens, so that buckets and slots are uniform: what is expected is what is counted."""
    layout = pagegram(SIZES["200M"], slots, Shape(packed=packed, base_byte=1000 if packed else 0))
    rng = np.random.default_rng(slots)
    stream = make_stream(rng.integers(0, 65536, 60_000))
    touched = (layout.pages(layout.rows(stream)) != native.NO_PAGE).sum(axis=1)
    assert abs(touched.mean() - straddles.expected_reads(layout)) <= 4 * touched.std() / math.sqrt(len(touched)) + 1e-9
    assert touched.mean() > 2


# ---- layouts as data -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_page_counts_and_file_sizes_equal_plain_python(layout: Layout) -> None:
    assert layout.page_count == reference.page_count(layout.groups, layout.page_bytes)
    ends = [reference.region_bytes(region, layout.page_bytes) for region in layout.regions]
    assert layout.file_bytes == max(end for _, end in ends) - min(start for start, _ in ends)
    assert layout.row_count == sum(g.row_count for g in layout.groups)
    bases = np.cumsum([0] + [g.row_count for g in layout.groups])
    assert [g.row_base for g in layout.groups] == bases[:-1].tolist()
    orders = layout.order_of_page_column()
    assert [layout.groups[g].order for g in layout.group_of_page_column()] == orders.tolist()


def test_bigram_and_trigram_pages_are_never_the_same_when_aligned(shipped: Any) -> None:
    for layout in (flat(SIZES["200M"]), engram(SIZES["200M"]), pagegram(SIZES["200M"], 4)):
        pages = layout.pages(layout.rows(shipped(20_000)))
        orders = layout.order_of_page_column()
        assert pages[:, orders == 2].max() < pages[:, orders == 3].min()


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_layouts_pickle_without_their_handles(layout: Layout) -> None:
    layout.page_count  # noqa: B018 (makes the handle)
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert again.page_count == layout.page_count
    assert dataclasses.replace(layout, name="other").page_count == layout.page_count
    assert hash(again) == hash(layout)


def test_bytes_used_per_token_and_labels() -> None:
    assert flat(SIZES["20B"]).bytes_used_per_token == 2 * 194
    assert engram(SIZES["20B"]).bytes_used_per_token == 16 * 34
    assert pagegram(SIZES["20B"], 4).bytes_used_per_token == 16 * 34
    assert [x.label for x in build(("engram", "pagegram", "flat"), SIZES["200M"])] == [
        "engram", "pagegram S=4", "pagegram S=15", "flat",
    ]  # fmt: skip
    assert flat(SIZES["20B"], Shape(packed=True)).packed
    assert not flat(SIZES["20B"]).packed


def test_one_page_a_token_is_a_layout_too(shipped: Any) -> None:
    """layouts.md section 2: bucket by the bigram, slot by the trigram, made of data alone."""
    heads, slots, buckets = 8, 15, 13_009
    columns = tuple(
        Column(
            1,
            native.salt(0, "bucket", 2, 0),
            buckets,
            k * slots,
            heads * slots,
            2,
            native.salt(0, "row", 3, k),
            slots,
            k,
        )
        for k in range(heads)
    )
    region = Region(0, buckets, 4080, 34, 1)
    group = Group(columns, (region,), 0, heads * slots, 2)
    layout = Layout("one page", (group,), 1, 1, "nf4", 34, 64, heads, 384, (2, 3), slots)
    stream = shipped(3000)
    rows, pages = layout.rows(stream), layout.pages(layout.rows(stream))
    assert pages.shape == (3000, 1)
    ids, starts = stream.ids.tolist(), stream.document_starts.tolist()
    g2, g3 = reference.ngram_hashes(ids, starts, 2), reference.ngram_hashes(ids, starts, 3)
    for t in range(3000):
        bucket = reference.u(g2[t], reference.salt(0, reference.BUCKET, 2, 0)) % buckets
        slot = [reference.u(g3[t], reference.salt(0, reference.ROW, 3, k)) % slots for k in range(heads)]
        assert rows[t].tolist() == [(bucket * heads + k) * slots + slot[k] for k in range(heads)]
        assert pages[t, 0] == bucket


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"orders": ()}, {"orders": (3, 2)}, {"orders": (2, 2)}, {"orders": (0, 1)}, {"orders": (2, 9)},
        {"heads": 0}, {"row_width": 0}, {"dim": 0}, {"heads": -1},
        {"page_bytes": 256}, {"page_bytes": 4095}, {"page_bytes": 2**31}, {"page_bytes": 0},
        {"base_byte": 1}, {"base_byte": -1, "packed": True}, {"seed": -1}, {"seed": 2**64},
    ],
    ids=str,
)  # fmt: skip
def test_shapes_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Shape(**fields)


def test_tables_that_cannot_be_are_refused() -> None:
    for make in (flat, engram, lambda n: pagegram(n, 4), lambda n: pagegram(n, 4, Shape(orders=(2,)))):
        for params in (0, 1, 60):
            with pytest.raises(ValueError, match="too small"):
                make(params)
    for slots in (0, -1):
        with pytest.raises(ValueError, match="slots"):
            pagegram(SIZES["200M"], slots)
    with pytest.raises(ValueError, match="not known"):
        build(("flat", "cuckoo"), SIZES["200M"])
    with pytest.raises(ValueError, match="not known"):
        flat(SIZES["200M"], Shape(row_format="q4"))
    with pytest.raises(ValueError, match="even width"):
        engram(SIZES["200M"], Shape(row_width=63))
    with pytest.raises(ValueError, match="below|at least"):
        layouts.row_bytes_of("fp16", 0)
    with pytest.raises(ValueError, match="4294967294"):
        flat(10**14)
    with pytest.raises(ValueError):
        engram(10**9, Shape(heads=2100))

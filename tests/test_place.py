"""Rows to bytes and pages (place.c) as a general tool, against plain Python: any groups, regions and units.

The same twin serves layouts of ours and layouts that no program of ours builds: weights and scales in regions of
their own, odd base bytes, units longer than a page, absent rows.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import reference
from conftest import ISAS, make_stream, small_layouts
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io import native
from pagegram_io.layout import Column, Group, Layout, Region

NO_ROW = np.uint64(native.NO_ROW)


def layout_of(groups: tuple[Group, ...], page_bytes: int = 512, name: str = "test") -> Layout:
    return Layout(name, groups, 1, 1, "nf4", 1, 1, 1, 1, (1,), page_bytes=page_bytes)


def group_of(
    regions: tuple[Region, ...], *, row_base: int = 0, unit_rows: int = 1, columns: int = 1, modulus: int = 1
) -> Group:
    lines = tuple(Column(0, 0, modulus, row_base, unit_rows) for _ in range(columns))
    return Group(lines, regions, row_base, unit_rows, 1)


@st.composite
def group_lists(draw: st.DrawFn, page_bytes: int = 512) -> tuple[Group, ...]:
    """One to five groups of one to three regions: packed and aligned, of units shorter and longer than a page."""
    groups, byte, row = [], draw(st.integers(0, 3)) * page_bytes, draw(st.sampled_from([0, 0, 7, 10**12]))
    for _ in range(draw(st.integers(1, 5))):
        units = draw(st.integers(1, 60))
        unit_rows = draw(st.sampled_from([1, 1, 2, 3, 8, 12]))
        regions = []
        for _ in range(draw(st.integers(1, 3))):
            row_bytes = draw(st.sampled_from([1, 2, 3, 10, 34, 64, 100, 256, 512, 513, 1500]))
            slack = draw(st.sampled_from([0, 0, 0, 1, 30]))
            unit_bytes = unit_rows * row_bytes + slack
            if draw(st.booleans()):  # packed, from any byte
                byte += draw(st.integers(0, 2 * page_bytes))
                region = Region(byte, units, unit_bytes, row_bytes, 0)
            else:
                byte = -(-byte // page_bytes) * page_bytes
                most = max(1, page_bytes // unit_bytes)
                region = Region(byte, units, unit_bytes, row_bytes, draw(st.integers(1, most)))
            byte = region.end_byte(page_bytes)
            regions.append(region)
        groups.append(
            group_of(tuple(regions), row_base=row, unit_rows=unit_rows, columns=draw(st.integers(1, 5)), modulus=units)
        )
        row += units * unit_rows + draw(st.sampled_from([0, 0, 100]))
    if draw(st.booleans()):  # groups need not stand in the order of their bytes or rows
        groups.reverse()
    return tuple(groups)


@st.composite
def rows_of(draw: st.DrawFn, groups: tuple[Group, ...], absent: bool) -> list[list[int]]:
    """Rows of up to 30 tokens: those of one group lie in one unit; some are absent."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    lines = []
    for _ in range(draw(st.integers(0, 30))):
        line = []
        for group in groups:
            unit = rng.choice([0, group.regions[0].unit_count - 1, rng.randrange(group.regions[0].unit_count)])
            for _ in group.columns:
                row = group.row_base + unit * group.unit_rows + rng.randrange(group.unit_rows)
                line.append(reference.NO_ROW if absent and rng.random() < 0.2 else row)
        lines.append(line)
    return lines


def check_pages(groups: tuple[Group, ...], lines: list[list[int]], page_bytes: int) -> None:
    columns = sum(len(group.columns) for group in groups)
    rows = np.array(lines, np.uint64).reshape(-1, columns)
    for isa in ISAS:
        with native.Place(layout_of(groups, page_bytes), isa=isa) as place:
            assert place.first_page == reference.first_page(groups, page_bytes)
            assert place.page_count == reference.page_count(groups, page_bytes)
            group_of_column = place.group_of_column()
            pages = place.pages(rows)
            assert pages.shape == (len(lines), place.page_columns)
            for line, found in zip(lines, pages, strict=True):
                for g, wanted in enumerate(reference.token_pages(groups, line, page_bytes)):
                    places = found[group_of_column == g].tolist()
                    assert places == wanted + [native.NO_PAGE] * (len(places) - len(wanted))


@given(st.data(), st.sampled_from([512, 1024]))
def test_pages_and_bytes_equal_plain_python(data: st.DataObject, page_bytes: int) -> None:
    groups = data.draw(group_lists(page_bytes))
    check_pages(groups, data.draw(rows_of(groups, True)), page_bytes)
    lines = data.draw(rows_of(groups, False))
    check_pages(groups, lines, page_bytes)
    columns = sum(len(group.columns) for group in groups)
    with native.Place(layout_of(groups, page_bytes)) as place:
        offsets = place.bytes(np.array(lines, np.uint64).reshape(-1, columns))
        assert place.byte_columns == sum(len(g.columns) * len(g.regions) for g in groups)
    assert offsets.tolist() == [reference.row_offsets(groups, line, page_bytes) for line in lines]


@st.composite
def simple_groups(draw: st.DrawFn) -> tuple[Group, ...]:
    """One column and one aligned region of short units a group: the path of flat, engram and reduced PageGram."""
    groups, byte, row = [], 0, draw(st.sampled_from([0, 3, 2**40]))
    for _ in range(draw(st.integers(1, 20))):
        unit_rows, units = draw(st.integers(1, 9)), draw(st.integers(1, 500))
        region = Region(byte, units, unit_rows * 20, 20, draw(st.integers(1, 512 // (unit_rows * 20))))
        groups.append(group_of((region,), row_base=row, unit_rows=unit_rows))
        byte, row = region.end_byte(512), row + units * unit_rows
    return tuple(groups)


@given(st.data())
def test_pages_of_simple_groups_equal_plain_python(data: st.DataObject) -> None:
    groups = data.draw(simple_groups())
    check_pages(groups, data.draw(rows_of(groups, False)), 512)
    check_pages(groups, data.draw(rows_of(groups, True)), 512)


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_address_equals_place_bytes_for_every_row(layout: Layout) -> None:
    """The invariant's first half: one rule of addresses, in Python and in C, for every row of a table."""
    columns = [group for group in layout.groups for _ in group.columns]
    with native.Place(layout) as place:
        column = 0
        for group in layout.groups:
            rows = np.tile(np.array([c.row_base for c in columns], np.uint64), (group.row_count, 1))
            for _ in group.columns:
                rows[:, column] = np.arange(group.row_base, group.row_base + group.row_count)
                offsets = place.bytes(rows)[:, column].tolist()
                assert offsets == [layout.address(int(row)) for row in rows[:, column]]
                rows[:, column] = columns[column].row_base
                column += 1
    for row in (-1, layout.row_count, 2**64):
        with pytest.raises(ValueError, match="not in this table"):
            layout.address(row)


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_rows_of_a_table_never_overlap_nor_leave_it(layout: Layout) -> None:
    starts = np.array([layout.address(row) for row in range(layout.row_count)])
    order = np.sort(starts)
    assert (np.diff(order) >= layout.row_bytes).all()
    first = min(region.base_byte for region in layout.regions)
    assert order[0] == first
    assert order[-1] + layout.row_bytes <= first + layout.file_bytes
    edges = sorted((r.base_byte, r.end_byte(layout.page_bytes)) for r in layout.regions)
    assert [(r.base_byte, r.end_byte(layout.page_bytes)) for r in layout.regions] == edges  # in the order of groups
    for (_, end), (start, _) in zip(edges, edges[1:], strict=False):
        assert end == start  # packed regions abut; aligned ones end and start on pages


def test_quotients_are_exact_for_adversarial_divisors() -> None:
    """Units by rows, pages by units: multiples and their neighbours, up to the largest row and page there can be."""
    rng = random.Random(11)
    page_bytes = 2**30
    for unit_rows in (
        1,
        2,
        3,
        7,
        8 * 60,
        2**10 - 1,
        2**20 - 1,
        2**20,
        2**20 + 1,
        10**9 + 7,
        2**30,
        2**32 + 15,
        2**39 + 1,
    ):
        for per_page in (0, 1, 2, 3, 120, 2**20 - 1, 2**30):
            whole = unit_rows <= page_bytes
            if per_page > 1 and (not whole or per_page > page_bytes // unit_rows):
                continue
            # As many units as fit under 2^48 units, 2^32 - 1 pages and 2^62 bytes.
            unit_pages = 1 if whole else -(-unit_rows // page_bytes)
            by_pages = (2**32 - 4) // unit_pages * max(per_page, 1) if per_page else (2**61) // unit_rows
            units = min(2**48 - 1, by_pages, 2**61 // unit_rows)
            region = Region(0, units, unit_rows, 1, per_page)
            group = group_of((region,), unit_rows=unit_rows)
            top = units * unit_rows - 1
            rows = {0, 1, top, top - 1, top // 2}
            for _ in range(30):
                at = rng.randrange(units) * unit_rows
                rows |= {at - 1, at, at + 1, at + unit_rows - 1}
                step = unit_rows * max(per_page, 1)
                at = rng.randrange(top // step + 1) * step
                rows |= {at - 1, at, at + 1}
            lines = [[row] for row in sorted(rows) if 0 <= row <= top]
            check_pages((group,), lines, page_bytes)
            with native.Place(layout_of((group,), page_bytes)) as place:
                offsets = place.bytes(np.array(lines, np.uint64))
            assert offsets.tolist() == [reference.row_offsets((group,), line, page_bytes) for line in lines]


@pytest.mark.parametrize("per_page", [3, 120, 1000, 2**20 - 1, 2**30])
def test_quotients_of_simple_groups_are_exact_around_the_wide_limit(per_page: int, isa: str) -> None:
    """Rows below 2^51 divide in doubles, those above in integers: both exactly, on either side of the limit."""
    rng = random.Random(per_page)
    for units in (2**32 - 7, min(2**48 - 1, (2**32 - 2) * per_page)):
        for unit_rows in (1, 2**30 // per_page):
            region = Region(0, units, unit_rows, 1, per_page)
            group = group_of((region,), unit_rows=unit_rows)
            step, top = per_page * unit_rows, units * unit_rows - 1
            at = [rng.randrange(top // step) * step for _ in range(300)] + [top // step * step]
            rows = sorted({r for a in at for r in (a - 1, a, a + 1, a + step - 1) if 0 <= r <= top} | {0, top})
            with native.Place(layout_of((group,), 2**30), isa=isa) as place:
                found = place.pages(np.array(rows, np.uint64)[:, None])
            assert found[:, 0].tolist() == [row // step for row in rows]


def test_quotients_of_simple_groups_are_exact_for_every_small_divisor(isa: str) -> None:
    """In doubles 49 * (1 / 49) is below 1, and so for one divisor in seven: multiples of each, and their neighbours."""
    for first in range(1, 1000, 100):
        divisors = range(first, first + 100)
        groups, row, page = [], 0, 0
        for divisor in divisors:
            region = Region(page * 2**20, 1000 * divisor, 1, 1, divisor)
            groups.append(group_of((region,), row_base=row))
            row, page = row + 1000 * divisor, page + 1000
        lines = []
        for multiple in (1, 2, 3, 5, 7, 49, 500, 999):
            for offset in (-1, 0, 1 if first > 1 else 0):
                lines.append([g.row_base + multiple * d + offset for g, d in zip(groups, divisors, strict=True)])
        with native.Place(layout_of(tuple(groups), 2**20), isa=isa) as place:
            pages = place.pages(np.array(lines, np.uint64)).tolist()
        wanted = [
            [
                1000 * i + (row - group.row_base) // d
                for i, (row, group, d) in enumerate(zip(line, groups, divisors, strict=True))
            ]
            for line in lines
        ]
        assert pages == wanted


# ---- what a token touches ------------------------------------------------------------------------


def test_weights_and_scales_in_regions_of_their_own() -> None:
    """A group of two regions: a lookup touches a page of each, once, in ascending order."""
    weights, scales = Region(4096, 100, 8 * 32, 32, 16), Region(0, 100, 8 * 2, 2, 256)
    layout = layout_of((group_of((weights, scales), unit_rows=8, columns=3),), 4096)
    with native.Place(layout) as place:
        assert (place.page_columns, place.byte_columns, place.page_count) == (2, 6, 8)
        pages = place.pages(np.array([[0, 3, 7], [799, 792, 794], [8 * 16, 8 * 16 + 1, 8 * 16]], np.uint64))
        assert pages.tolist() == [[0, 1], [0, 7], [0, 2]]
        offsets = place.bytes(np.array([[0, 3, 7]], np.uint64))
        assert offsets.tolist() == [[4096, 0, 4096 + 96, 6, 4096 + 224, 14]]


def test_pages_are_merged_inside_a_group_only() -> None:
    """Two groups that share a page each access it: packed regions abut in the middle of one."""
    groups = group_of((Region(0, 10, 34, 34, 0),)), group_of((Region(340, 10, 34, 34, 0),), row_base=10)
    with native.Place(layout_of(groups)) as place:
        assert place.group_of_column().tolist() == [0, 0, 1, 1]
        pages = place.pages(np.array([[0, 10], [9, 15], [3, 19]], np.uint64))
    none = native.NO_PAGE
    assert pages.tolist() == [[0, none, 0, none], [0, none, 0, 1], [0, none, 1, none]]


def test_a_straddling_unit_is_two_accesses_and_a_long_units_rows_are_read_one_by_one() -> None:
    none = native.NO_PAGE
    packed = layout_of((group_of((Region(500, 20, 34, 34, 0),)),))
    with native.Place(packed) as place:
        assert place.pages(np.array([[0], [1]], np.uint64)).tolist() == [[0, 1], [1, none]]
    # 12 rows of 100 bytes on 3 pages: row 5 is at bytes 500 to 599, over the first boundary.
    long_unit = layout_of((group_of((Region(0, 4, 1200, 100, 1),), unit_rows=12, columns=2),))
    with native.Place(long_unit) as place:
        assert place.page_columns == 3
        pages = place.pages(np.array([[0, 1], [5, 4], [11, 0], [5, 11], [12, 12 + 11]], np.uint64))
    assert pages.tolist() == [[0, none, none], [0, 1, none], [0, 2, none], [0, 1, 2], [3, 5, none]]


def test_page_ids_are_dense_from_the_first_region() -> None:
    groups = group_of((Region(7 * 512 + 3, 10, 34, 34, 0),)), group_of((Region(3 * 512, 4, 512, 512, 1),), row_base=10)
    with native.Place(layout_of(groups)) as place:
        assert (place.first_page, place.page_count) == (3, 5)
        pages = place.pages(np.array([[0, 10]], np.uint64))
    assert pages.tolist() == [[4, native.NO_PAGE, 0]]


def test_absent_rows_touch_nothing_and_have_no_address() -> None:
    layout = small_layouts()[0]
    with native.Place(layout) as place:
        assert (place.pages(np.full((3, 2), NO_ROW)) == native.NO_PAGE).all()
        mixed = np.array([[5, native.NO_ROW], [native.NO_ROW, 300], [4, 299]], np.uint64)
        pages = place.pages(mixed)
        assert pages.tolist() == [[0, native.NO_PAGE], [native.NO_PAGE, 6], [0, 6]]
        with pytest.raises(ValueError, match=str(native.NO_ROW)):
            place.bytes(mixed)
        assert place.pages(np.empty((0, 2), np.uint64)).shape == (0, 2)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_rows_outside_their_group_are_refused_by_name(layout: Layout, isa: str) -> None:
    columns = [group for group in layout.groups for _ in group.columns]
    good = np.array([[group.row_base for group in columns]] * 20, np.uint64)
    with native.Place(layout, isa=isa) as place:
        for column, group in enumerate(columns):
            for row in (group.row_base - 1, group.row_base + group.row_count, 2**63, 2**64 - 2):
                if not 0 <= row < 2**64:
                    continue
                rows = good.copy()
                rows[13, column] = row
                for call in (place.pages, place.bytes):
                    with pytest.raises(ValueError, match=rf"row {row} is not in group"):
                        call(rows)
        place.pages(good)


def test_rows_of_a_group_in_two_units_are_refused() -> None:
    layout = next(x for x in small_layouts() if x.slots and not x.packed)
    unit_rows, heads = layout.groups[0].unit_rows, layout.heads
    rows = np.array([[g.row_base for g in layout.groups for _ in range(heads)]] * 3, np.uint64)
    rows[1, 1] = unit_rows
    with native.Place(layout) as place, pytest.raises(ValueError, match="group 0.*units 0 and 1"):
        place.pages(rows)


def test_wrong_arrays_are_refused() -> None:
    with native.Place(small_layouts()[0]) as place:
        for rows in (np.zeros((3, 3), np.uint64), np.zeros(2, np.uint64), np.zeros((3, 2)), np.array([[0, -1]])):
            with pytest.raises(ValueError):
                place.pages(rows)
            with pytest.raises(ValueError):
                place.bytes(rows)
        assert place.pages(np.array([[5, 300]], np.int32)).tolist() == [[0, 6]]
    with pytest.raises(ValueError, match="closed"):
        place.pages(np.zeros((1, 2), np.uint64))


def simple(*regions: Region, unit_rows: int = 1, columns: int = 1, row_base: int = 0) -> tuple[Group, ...]:
    return (group_of(tuple(regions), unit_rows=unit_rows, columns=columns, row_base=row_base),)


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ((), "groups"),
        (simple(), "regions"),
        (simple(Region(0, 0, 10, 10, 0)), "region 0"),
        (simple(Region(0, 5, 0, 0, 0)), "region 0"),
        (simple(Region(0, 5, 10, 0, 0)), "region 0"),
        (simple(Region(0, 2**48, 1, 1, 0)), "region 0"),
        (simple(Region(0, 1, 2**40, 1, 1)), "region 0"),
        (simple(Region(0, 5, 10, 11, 0)), "do not fit"),
        (simple(Region(0, 5, 10, 6, 0), unit_rows=2), "do not fit"),
        (simple(Region(0, 5, 10, 2**63, 0), unit_rows=2), "do not fit"),
        (simple(Region(100, 5, 10, 10, 3)), "not on a page"),
        (simple(Region(0, 5, 10, 10, 52)), "do not fit"),
        (simple(Region(0, 5, 513, 10, 2)), "do not fit"),
        (simple(Region(0, 5, 10, 10, 3), unit_rows=0), "0 rows a unit"),
        (simple(Region(0, 5, 10, 10, 3), columns=0), "0 columns"),
        (simple(Region(0, 5, 10, 10, 3), Region(512, 6, 10, 10, 3)), "different numbers of units"),
        (simple(Region(2**62 - 100, 5, 100, 100, 0)), "2\\^62"),
        (simple(Region(2**63, 5, 100, 100, 0)), "2\\^62"),
        (simple(Region(0, 5, 10, 10, 3), row_base=2**62), "rows reach"),
        (simple(Region(0, 2**47, 2**15, 1, 0), unit_rows=2**15), "2\\^62|pages"),
        (simple(Region(0, 2**32 - 1, 512, 512, 1)), "4294967294"),
        (simple(Region(0, 2**40, 34, 34, 0)), "4294967294"),
        (simple(Region(0, 2, 512 * 5000, 512 * 5000, 1)), "touch"),
        (simple(Region(0, 2, 10, 1, 1), columns=4097), "group 0"),
        (simple(Region(0, 2, 10, 1, 1)) * 4097, "groups"),
        (simple(*[Region(512 * i, 2, 10, 1, 1) for i in range(3)], columns=2000), "more than 4096"),
        (simple(Region(-1, 2, 10, 1, 1)), "too large for the C core"),
    ],
)
def test_places_that_cannot_be_are_refused(groups: tuple[Group, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        native.Place(layout_of(groups))


@pytest.mark.parametrize("page_bytes", [0, 1, 256, 511, 513, 4095, 2**31, 2**62])
def test_pages_of_odd_sizes_are_refused(page_bytes: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        native.Place(layout_of(simple(Region(0, 5, 10, 10, 3)), page_bytes))


def test_the_largest_table_has_two_to_the_32_less_two_pages(isa: str) -> None:
    region = Region(0, 2**32 - 2, 512, 512, 1)
    with native.Place(layout_of(simple(region)), isa=isa) as place:
        assert place.page_count == 2**32 - 2
        pages = place.pages(np.array([[0], [2**32 - 3]], np.uint64))
    assert pages.ravel().tolist() == [0, 2**32 - 3]


# ---- source.c: rows and places behind one stream -------------------------------------------------


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_a_source_emits_the_pages_of_the_rows(layout: Layout, isa: str) -> None:
    rng = np.random.default_rng(4)
    stream = make_stream(rng.integers(0, 50, 3000), [0, 1, 700, 2999])
    wanted = layout.pages(layout.rows(stream))
    with native.Source(layout, stream, isa=isa) as source:
        pages = np.empty((3000, source.page_columns), np.uint32)
        assert source.next(pages) == 3000
    assert np.array_equal(pages, wanted)
    assert (wanted != native.NO_PAGE).any(axis=1).all()


def own(
    unit_rows: int, *, bucket_order: int = 2, slot_order: int = 3, slots: int = 4, heads: int = 2, shift: int = 0
) -> Layout:
    """Buckets of heads * slots rows in units of any number of rows."""
    modulus, stride = 101, heads * slots
    columns = tuple(
        Column(bucket_order - 1, 11, modulus, shift + k * slots, stride, slot_order - 1, 1000 + k, slots, k)
        for k in range(heads)
    )
    units = -(-(modulus * stride + shift) // unit_rows)
    region = Region(0, units, unit_rows * 34, 34, max(1, 512 // (unit_rows * 34)))
    name = f"{heads} heads, {slots} slots, {unit_rows} rows a unit, shift {shift}"
    return layout_of((Group(columns, (region,), 0, unit_rows, bucket_order),), name=name)


@pytest.mark.parametrize(
    "layout",
    [
        own(8),  # a bucket is a unit: one column tells all
        own(1, heads=1),  # a slot is a unit: the slot decides the page
        own(2, heads=1),
        own(4, heads=1),
        own(3, heads=1),
        own(8, heads=1, slots=4),  # two buckets a unit
        own(8, heads=1, slots=8, shift=4),  # a bucket lies over two units
        own(16, heads=1, slots=1),
    ],
    ids=lambda x: x.name,
)
def test_a_source_emits_the_pages_of_the_rows_of_ones_own_layout(layout: Layout, isa: str) -> None:
    """A regression: the source once left out slots and columns that did decide the page, and said nothing."""
    stream = make_stream(np.random.default_rng(5).integers(0, 50, 2000))
    with native.Source(layout, stream, isa=isa) as source:
        pages = np.empty((2000, source.page_columns), np.uint32)
        source.next(pages)
    assert np.array_equal(pages, layout.pages(layout.rows(stream)))
    groups = layout.groups
    for line, row in zip(pages[:200], layout.rows(stream)[:200], strict=True):
        wanted = reference.token_pages(groups, row.tolist(), layout.page_bytes)[0]
        assert line.tolist() == wanted + [native.NO_PAGE] * (len(line) - len(wanted))


def two_buckets() -> Layout:
    """A group whose second column has a bucket of its own."""
    group = own(8).groups[0]
    second = dataclasses.replace(group.columns[1], bucket_salt=12)
    return layout_of((dataclasses.replace(group, columns=(group.columns[0], second)),), name="two buckets")


@pytest.mark.parametrize("layout", [own(1), own(4), own(3), own(3, slots=1), two_buckets()], ids=lambda x: x.name)
def test_a_source_refuses_a_group_whose_columns_read_several_units(layout: Layout) -> None:
    stream = make_stream(np.random.default_rng(5).integers(0, 50, 2000))
    with pytest.raises(ValueError, match="columns of a group read one unit"):
        layout.pages(layout.rows(stream))
    with native.Source(layout, stream) as source, pytest.raises(ValueError, match="columns of a group read one unit"):
        source.next(np.empty((2000, source.page_columns), np.uint32))


def test_a_source_refuses_what_its_parts_refuse() -> None:
    stream = make_stream([1, 2, 3])
    good = own(8)
    group = good.groups[0]
    bad_column = Column(1, 11, 101, 4, 8, 99, 1001, 4, 1)
    for groups in (
        (),
        (Group((), group.regions, 0, 8, 2),),
        (Group(group.columns, (), 0, 8, 2),),
        (Group((group.columns[0], bad_column), group.regions, 0, 8, 2),),  # even where that column is not computed
        (Group(group.columns, group.regions, 0, 0, 2),),
    ):
        with pytest.raises(ValueError):
            native.Source(layout_of(groups), stream)
    with native.Source(good, stream) as source:
        for pages in (
            np.empty((3, 2), np.uint32),
            np.empty(3, np.uint32),
            np.empty((3, 1), np.int32),
            np.empty((6, 1), np.uint32)[::2],
        ):
            with pytest.raises(ValueError, match="pages must be"):
                source.next(pages)
    with pytest.raises(ValueError, match="closed"):
        source.rewind()

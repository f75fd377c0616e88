"""C30: the grammar of sizes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io.sizes import (
    BYTE_UNITS,
    COUNT_UNITS,
    SIZE_LIMIT,
    format_bytes,
    format_count,
    parse_bytes,
    parse_cache,
    parse_count,
)

PARSERS = [parse_bytes, parse_count, parse_cache]
NEVER = [
    "",
    " ",
    "-1",
    "+1",
    "0",
    "00",
    "0.0",
    "1e30",
    "1e3",
    "NaN",
    "inf",
    "10%%",
    "%",
    "-10%",
    "1 GiB",
    " 1",
    "1 ",
    "1\n",
    "1gib",
    "20b",
    "1kb",
    "1kB",
    "1KIB",
    "1Gi",
    "1G ",
    "GiB",
    "B",
    "0x10",
    "1_000",
    "1,000",
    "１",
    "٣GiB",
    "1.",
    ".5GiB",
    "1..5GiB",
    "1.5.0GiB",
    "1.5",
    "½",
    "1GiB1",
    "1GiBGiB",
    "9" * 41,
    "9" * 100_000,
    "1\0",
    "--force",
]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("512", 512),
        ("512B", 512),
        ("4KiB", 4096),
        ("4KB", 4000),
        ("4MiB", 4 << 20),
        ("1GiB", 1 << 30),
        ("1GB", 10**9),
        ("1.5GiB", 3 << 29),
        ("0.5KiB", 512),
        ("1TiB", 1 << 40),
        ("1TB", 10**12),
        ("9.461GB", 9_461_000_000),
        ("4611686018427387903", 2**62 - 1),
    ],
)
def test_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count
    assert parse_cache(text).bytes == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("1000", 1000),
        ("4K", 4000),
        ("200M", 200_000_000),
        ("3.2B", 3_200_000_000),
        ("20B", 20_000_000_000),
        ("1T", 10**12),
        ("0.000000001B", 1),
        ("2.0", 2),
        ("4.100000001B", 4_100_000_001),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", NEVER)
def test_refused_by_all(parse, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    message = str(caught.value)
    assert repr(text[:40])[:-1] in message  # the value
    assert "write " in message  # what to write instead
    assert "\n" not in message and len(message) < 250


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bytes, "20M"),
        (parse_bytes, "10%"),
        (parse_bytes, "none"),
        (parse_bytes, "1.0000000001GiB"),
        (parse_bytes, "4611686018427387904"),
        (parse_bytes, "4194304TiB"),
        (parse_count, "1GiB"),
        (parse_count, "10%"),
        (parse_count, "none"),
        (parse_count, "1.2345K"),
        (parse_count, "5000000T"),
        (parse_cache, "20M"),
        (parse_cache, "None"),
        (parse_cache, "none "),
        (parse_cache, "0%"),
        (parse_cache, "100.1%"),
        (parse_cache, "10 %"),
        (parse_cache, "10%GiB"),
    ],
)
def test_refused_by_one(parse, text: str) -> None:
    with pytest.raises(ValueError, match="write "):
        parse(text)


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (parse_count, "20b", "20B"),
        (parse_count, "200m", "200M"),
        (parse_bytes, "1gib", "1GiB"),
        (parse_cache, "1 MiB", "1MiB"),
    ],
)
def test_a_unit_in_the_wrong_case_is_named(parse, text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"write {meant}$"):
        parse(text)


def test_cache_pages() -> None:
    assert parse_cache("1GiB").pages(10, 4096) == 262_144
    assert parse_cache("4095").pages(10, 4096) == 0
    assert parse_cache("4096").pages(10, 4096) == 1
    assert parse_cache("none").pages(10, 4096) == 0
    assert parse_cache("100%").pages(2_480_160, 4096) == 2_480_160
    assert parse_cache("10%").pages(2_480_160, 4096) == 248_016
    assert parse_cache("0.1%").percent == Fraction(1, 10)
    assert parse_cache("0.1%").pages(999, 4096) == 0
    assert parse_cache("0.1%").pages(1000, 4096) == 1  # exact: 0.1 in binary would give 1000.0000000000000055…
    assert parse_cache("29%").pages(100, 4096) == 29  # 0.29 * 100 is 28.999… in floats


@given(pages=st.integers(0, 2**32), hundredths=st.integers(1, 10_000), page_bytes=st.integers(1, 1 << 20))
def test_a_percentage_is_floored(pages: int, hundredths: int, page_bytes: int) -> None:
    text = f"{hundredths // 100}.{hundredths % 100:02}%"
    assert parse_cache(text).pages(pages, page_bytes) == pages * hundredths // 10_000


@given(st.integers(1, SIZE_LIMIT - 1), st.sampled_from(sorted(BYTE_UNITS)))
def test_bytes_are_exact(count: int, unit: str) -> None:
    text = f"{count}{unit}"
    if count * BYTE_UNITS[unit] < SIZE_LIMIT:
        assert parse_bytes(text) == count * BYTE_UNITS[unit]
    else:
        with pytest.raises(ValueError, match="2\\^62"):
            parse_bytes(text)


@given(st.integers(1, 10**18), st.sampled_from(sorted(COUNT_UNITS)), st.integers(0, 12))
def test_counts_are_exact(digits: int, unit: str, decimals: int) -> None:
    text = str(digits).zfill(decimals + 1)
    text = (f"{text[:-decimals]}.{text[-decimals:]}" if decimals else text) + unit
    value = Fraction(digits * COUNT_UNITS[unit], 10**decimals)
    if value.denominator == 1 and 1 <= value < SIZE_LIMIT:
        assert parse_count(text) == value
    else:
        with pytest.raises(ValueError):
            parse_count(text)


@given(st.text(max_size=50))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    for parse in PARSERS:
        try:
            parsed = parse(text)
        except ValueError as error:
            assert "write " in str(error)
            assert "\n" not in str(error)
        else:
            assert text.isascii() and (text[0].isdigit() or text == "none"), parsed


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1025, "1.001 KiB"),
        (1 << 30, "1 GiB"),
        (3 << 29, "1.5 GiB"),
        (2_480_160 * 4096, "9.461 GiB"),
        (3_255_201 * 4096, "12.42 GiB"),
        ((1 << 20) - 1, "1 MiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (1050, "1.05K"),
        (200_000_000, "200M"),
        (3_200_000_000, "3.2B"),
        (20_000_000_000, "20B"),
        (19_999_999_999, "20B"),
        (999_999, "1M"),
        (20_625_669, "20.63M"),
        (10**16, "10000T"),
    ],
)
def test_format_count(count: int, text: str) -> None:
    assert format_count(count) == text


@given(st.integers(1, SIZE_LIMIT - 1))
def test_formatted_sizes_are_read_back_to_four_digits(count: int) -> None:
    assert abs(parse_count(format_count(count)) - count) * 1000 <= count
    size = Fraction(format_bytes(count).split()[0]) * BYTE_UNITS[format_bytes(count).split()[1]]
    assert abs(size - count) * 1000 <= count


def test_negative_numbers_are_not_formatted() -> None:
    with pytest.raises(ValueError):
        format_bytes(-1)

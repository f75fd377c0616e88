"""The one grammar of sizes: bytes (1GiB), counts (20B) and caches (1GiB, 10%, none)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

BINARY_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
BYTE_UNITS = {**BINARY_UNITS, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
COUNT_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
SIZE_LIMIT = 2**62  # the sum of two still fits a signed 64-bit number
TEXT_CHARACTERS_MAX = 40

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)(.*)", re.DOTALL)  # [0-9]: no other script's digits

BYTES_EXAMPLE = "write for example 512, 4KiB, 1.5GiB or 1GB"
COUNT_EXAMPLE = "write for example 1000, 200M, 3.2B or 20B"
CACHE_EXAMPLE = "write for example 1GiB, 64MiB, 10% or none"


@dataclass(frozen=True)
class CacheSize:
    """A cache as it was asked for: `bytes`, or `percent` of a table (the other is None); none is 0 bytes."""

    text: str
    bytes: int | None
    percent: Fraction | None

    def pages(self, page_count: int, page_bytes: int) -> int:
        """Whole pages that this cache holds, beside a table of `page_count` pages of `page_bytes` bytes."""
        if self.percent is not None:
            return page_count * self.percent.numerator // (100 * self.percent.denominator)
        assert self.bytes is not None
        return self.bytes // page_bytes


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 512, 4KiB or 1.5GB; ValueError if it is not a whole number in [1, 2^62)."""
    return _whole(text, {"": 1, **BYTE_UNITS}, "size in bytes", BYTES_EXAMPLE)


def parse_count(text: str) -> int:
    """The number that a count such as 1000, 3.2B or 200M means; ValueError if not whole and in [1, 2^62)."""
    return _whole(text, COUNT_UNITS, "count", COUNT_EXAMPLE)


def parse_cache(text: str) -> CacheSize:
    """A cache size: bytes as in `parse_bytes`, a percentage of the table in (0, 100], or none."""
    if text == "none":
        return CacheSize(text, 0, None)
    if not text.endswith("%"):
        return CacheSize(text, _whole(text, {"": 1, **BYTE_UNITS}, "cache size", CACHE_EXAMPLE), None)
    number = _number(text, {"%": 1}, "percentage", CACHE_EXAMPLE)
    if not 0 < number <= 100:
        raise ValueError(f"{_shown(text)} is not above 0% and at most 100% of the table; {CACHE_EXAMPLE}")
    return CacheSize(text, None, number)


def format_bytes(count: int) -> str:
    """A number of bytes for a person, to four digits in binary units: 1 GiB, 9.461 GiB, 512 B."""
    number, unit = _scaled(count, BINARY_UNITS, 1024)
    return f"{number} {unit}"


def format_count(count: int) -> str:
    """A number for a person, to four digits: 20B, 3.2B, 20.63M, 999."""
    return "".join(_scaled(count, COUNT_UNITS, 1000))


def _whole(text: str, units: Mapping[str, int], noun: str, example: str) -> int:
    number = _number(text, units, noun, example)
    if number.denominator != 1:
        raise ValueError(f"{_shown(text)} does not make a whole number; {example}")
    if number < 1:
        raise ValueError(f"{_shown(text)} is not above 0; {example}")
    if number >= SIZE_LIMIT:
        raise ValueError(f"{_shown(text)} is not below 2^62; {example}")
    return int(number)


def _number(text: str, units: Mapping[str, int], noun: str, example: str) -> Fraction:
    """The exact value of a decimal number and a unit; ValueError says which of the two is wrong."""
    if len(text) > TEXT_CHARACTERS_MAX:  # also keeps the exact arithmetic small
        raise ValueError(f"{_shown(text)} is longer than {TEXT_CHARACTERS_MAX} characters; {example}")
    match = _NUMBER.fullmatch(text)
    if match is None:
        fault = "is empty" if not text else f"is not a {noun}: it does not start with a digit"
        raise ValueError(f"{_shown(text)} {fault}; {example}")
    digits, unit = match.groups()
    if unit not in units:
        known = ", ".join(name for name in units if name)
        meant = [name for name in units if name and name.lower() == unit.strip().lower()]
        if meant:
            example = f"write {digits}{meant[0]}"
        raise ValueError(f"{_shown(text)} is not a {noun}: {_shown(unit)} is not among the units {known}; {example}")
    return Fraction(digits) * units[unit]


def _scaled(count: int, units: Mapping[str, int], step: int) -> tuple[str, str]:
    """`count` in the largest unit that leaves at least 1, to four digits, halves rounded up."""
    if count < 0:
        raise ValueError(f"{count} is negative; sizes and counts are 0 or more")
    for name in sorted(units, key=units.__getitem__):
        size = units[name]
        scale = 10 ** max(0, 4 - len(str(count // size)))
        rounded = (2 * count * scale + size) // (2 * size)  # in integers: no float makes 19.99B of 20B
        if rounded < step * scale:
            break
    whole, part = divmod(rounded, scale)
    decimals = str(part).zfill(len(str(scale)) - 1).rstrip("0") if part else ""
    return f"{whole}.{decimals}" if decimals else str(whole), name


def _shown(text: str) -> str:
    return repr(text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "...")

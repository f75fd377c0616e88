"""JSON from files that others made: no doubled keys, no NaN, no bottomless nesting."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse_json(text: str) -> Any:
    """What a JSON text holds; ValueError where it says one thing twice, or what JSON has no word for."""
    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def shown(value: Any) -> str:
    """A value from a file, printable on one line and short enough to stand in it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def is_whole(value: Any, limit: int) -> bool:
    """A whole number of 0 to limit, and not a bool."""
    return type(value) is int and 0 <= value <= limit


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError where it says one key twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = sorted(key for key, _ in pairs)
        twice = next(key for key, after in zip(keys, keys[1:], strict=False) if key == after)
        raise ValueError(f"a key appears twice: {shown(twice)}")
    return fields


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")

"""What a deployed table's result takes for granted, in sentences: where its rows lie, and whose text was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagegram_io.sizes import format_bytes


def assumption_sentences(record: Mapping[str, Any]) -> str:
    """Of a record with a model: the placement, what is kept in RAM beside the cache, and a stream that stands in."""
    resident = f" ({format_bytes(record['resident_bytes'])} of RAM)" if record["resident_bytes"] else ""
    if record["placement"] == "files":
        text = "Placed where the checkpoint's headers say" + (f"; {record['assumed']}" if record["assumed"] else "")
    else:
        text = f"Assumed, without the checkpoint's headers: {record['assumed']}"
    text += f"{resident}."
    if record["tokenizer_stand_in"]:
        text += f" {record['tokenizer_stand_in']} stands in for the model's own ids: an estimate."
    return text

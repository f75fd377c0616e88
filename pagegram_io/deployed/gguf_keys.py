"""What the keys of a GGUF file say of a model's table; they must say what the model's layout says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagegram_io.deployed.family import Family
from pagegram_io.deployed.source_files import Checkpoint, check_keys


def _qwen(family: Family) -> dict[str, Any]:
    longest = max(family.make_hashes(), key=lambda h: len(h.multipliers))
    return {
        "qwen4exp.ple.layer_multipliers": longest.multipliers,
        "qwen4exp.ple.head_offsets": tuple(address.row_base for address in family.addresses),
        "qwen4exp.ple.head_vocab_sizes": tuple(address.modulus for address in family.addresses),
        "qwen4exp.ple.eos_token_id": family.end_id,
    }


# A model's keys and the values that they must have, by the family's name.
MODEL_KEYS: dict[str, Callable[[Family], dict[str, Any]]] = {"qwen3.8-flash-next": _qwen}


def _same(found: Any, wanted: Any) -> bool:
    """Whole numbers alone are. Offsets are also written with the end of the last head's rows after them."""
    if isinstance(wanted, tuple):
        whole = isinstance(found, list) and all(type(value) is int for value in found)
        return whole and len(found) >= len(wanted) and tuple(found[: len(wanted)]) == wanted
    return type(found) is int and found == wanted


def check_model_keys(family: Family, checkpoint: Checkpoint) -> None:
    """FormatError where a GGUF file lacks a key of this model, or holds another value; other files have no keys.

    The headers of the files that hold the table must have been read.
    """
    wanted = MODEL_KEYS.get(family.name)
    if wanted is not None and any(header.form == "gguf" for header in checkpoint.headers):
        check_keys(checkpoint, wanted(family), same=_same)

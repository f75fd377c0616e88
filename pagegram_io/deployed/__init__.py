"""Tables in the wild: one file a family, with its constants and where they come from."""

from __future__ import annotations

from pagegram_io.deployed import deepseek, longcat, over_encoding, qwen, small
from pagegram_io.deployed.family import Family, RowFormat, TableTensor
from pagegram_io.tokens import SHIPPED

FAMILIES = {
    family.name: family
    for family in (
        deepseek.V41_FLASH,
        qwen.FLASH_NEXT,
        longcat.FLASH_LITE,
        longcat.FLASH_LITE_NO_STOP,
        deepseek.DEMO,
        small.MODDED_NANOGPT,
        small.GEMMA_PLE,
        over_encoding.OE_12_8M,
    )
}

# Tables whose rows are chosen by hidden states: no token stream can tell which.
NOT_FROM_TOKENS = {
    "lngram": "Lngram chooses rows by hidden states",
    "product-keys": "product-key memories choose rows by hidden states",
}


def family_of(name: str) -> Family:
    """A family by its model's name; ValueError says which there are, or why this one cannot be addressed by tokens."""
    if name in NOT_FROM_TOKENS:
        raise ValueError(
            f"{NOT_FROM_TOKENS[name]}, which a token stream does not hold; record the row numbers of a real run and "
            "give them to: pagegram-io simulate --rows FILE.npy --row-bytes N"
        )
    if name not in FAMILIES:
        raise ValueError(f"model {name!r} is not known; choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def stand_in(model: str | None, stream: str) -> str | None:
    """The shipped stream's name where it stands in for text in a model's own ids; None for any stream of a user's."""
    if model not in FAMILIES or stream not in SHIPPED or FAMILIES[model].stream == stream:
        return None
    return stream


__all__ = ["FAMILIES", "NOT_FROM_TOKENS", "Family", "RowFormat", "TableTensor", "family_of", "stand_in"]

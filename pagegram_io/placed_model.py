"""What a table file of a pattern says of the deployed table that it is as large as: the model, and how it is placed.

The words are those of ``--model`` and its options, so that the command that reads the file can be made from its header.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagegram_io.strict_json import parse_json, shown

if TYPE_CHECKING:
    from pagegram_io.layout import Layout

TEXTS, FLAGS = ("model", "row_format", "scales"), ("repack", "aligned", "files")
TEXT_CHARACTERS_MAX = 100


@dataclass(frozen=True)
class PlacedModel:
    """A model's table and its placement. files: as the headers of a checkpoint say, which are not in the pattern."""

    model: str
    row_format: str
    scales: str
    repack: bool = False
    aligned: bool = False
    files: bool = False

    def layout(self, page_bytes: int) -> Layout | None:
        """The table placed by assumption; None where a checkpoint places it. ValueError for what is not known."""
        from pagegram_io.deployed import family_of
        from pagegram_io.deployed.family import SCALES
        from pagegram_io.deployed.model_table import model_table

        family = family_of(self.model)
        if self.scales not in SCALES:
            raise ValueError(f"scales are {' or '.join(SCALES)}, not {shown(self.scales)}")
        if self.files:
            return None
        table = model_table(family, row_format=self.row_format, page_bytes=page_bytes)
        return table.layout(scales=self.scales, repack=self.repack, aligned=self.aligned)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def placed_model_from_json(text: str, page_bytes: int, page_count: int) -> PlacedModel:
    """What ``to_json`` wrote, of a file of so many pages. ValueError says what is wrong with the text."""
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise ValueError(f"its model is not JSON ({error})") from None
    if type(fields) is not dict or set(fields) != {*TEXTS, *FLAGS}:
        raise ValueError(f"its model is not an object of {', '.join(sorted((*TEXTS, *FLAGS)))}")
    _check_types(fields)
    placed = PlacedModel(**fields)
    if placed.aligned and not placed.repack:
        raise ValueError("its model's rows are aligned and not repacked, which no placement is")
    layout = placed.layout(page_bytes)
    if layout is not None and layout.page_count != page_count:
        raise ValueError(
            f"the table of {placed.model} takes {layout.page_count} pages of {page_bytes} bytes, and it holds "
            f"{page_count}"
        )
    return placed


def _check_types(fields: dict[str, Any]) -> None:
    for name in TEXTS:
        value = fields[name]
        if type(value) is not str or not 0 < len(value) <= TEXT_CHARACTERS_MAX or not value.isprintable():
            raise ValueError(f"its model's {name} is {shown(value)}, not a short text")
    for name in FLAGS:
        if type(fields[name]) is not bool:
            raise ValueError(f"its model's {name} is {shown(fields[name])}, which is neither true nor false")

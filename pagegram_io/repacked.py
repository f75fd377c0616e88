"""What a table file says of rows repacked from a checkpoint: whose they are, and how they lie in its pages."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from pagegram_io.strict_json import is_whole, parse_json, shown

GROUPS_MAX = 4096
_LIMITS = {"row_bytes": 2**30, "row_width": 2**20, "units_per_page": 2**20}


@dataclass(frozen=True)
class Repacked:
    """Rows of a deployed model's table, column by column; units_per_page 0: one after the other through all columns."""

    model: str
    row_format: str
    row_bytes: int
    row_width: int
    units_per_page: int
    group_rows: tuple[int, ...]

    def page_count(self, page_bytes: int) -> int:
        """Pages that the rows take; aligned, each column starts on one."""
        if self.units_per_page == 0:
            return -(-sum(self.group_rows) * self.row_bytes // page_bytes)
        row_pages = -(-self.row_bytes // page_bytes)
        return sum(-(-rows // self.units_per_page) * row_pages for rows in self.group_rows)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def repacked_from_json(text: str, page_bytes: int) -> Repacked:
    """What ``to_json`` wrote. ValueError says what is wrong with the text."""
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise ValueError(f"what was repacked is not JSON ({error})") from None
    names = {field.name for field in dataclasses.fields(Repacked)}
    if type(fields) is not dict or set(fields) != names:
        raise ValueError(f"what was repacked is not an object of {', '.join(sorted(names))}")
    for name in ("model", "row_format"):
        if type(fields[name]) is not str or not 0 < len(fields[name]) <= 100 or not fields[name].isprintable():
            raise ValueError(f"the repacked table's {name} is {shown(fields[name])}, not a short text")
    for name, limit in _LIMITS.items():
        if not is_whole(fields[name], limit) or (name != "units_per_page" and fields[name] < 1):
            raise ValueError(f"the repacked table's {name} is {shown(fields[name])}, not a whole number up to {limit}")
    rows = fields["group_rows"]
    if type(rows) is not list or not 0 < len(rows) <= GROUPS_MAX or not all(is_whole(n, 2**48) and n > 0 for n in rows):
        raise ValueError(f"the repacked table's group_rows are {shown(rows)}, not a list of numbers of rows")
    if fields["units_per_page"] not in (0, max(1, page_bytes // fields["row_bytes"])):
        raise ValueError(
            f"the repacked table's units_per_page are {fields['units_per_page']}, which do not fit its rows"
        )
    return Repacked(**{**fields, "group_rows": tuple(rows)})

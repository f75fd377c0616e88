"""Records as files: checked, written as JSON lines or CSV, and read back; or as a data frame.

JSON lines and CSV hold the same keys. Integers stay integers; NaN and infinities are refused, because JSON has
neither and a figure would drop them without a word.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import math
import operator
import os
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pagegram_io.errors import FormatError
from pagegram_io.output import new_file
from pagegram_io.records import CLASSES, SCHEMA, AnyRecord
from pagegram_io.strict_json import unique_keys

if TYPE_CHECKING:
    import pandas

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class _Field:
    type: type  # int, float or str
    nullable: bool
    required: bool
    default: Any
    listed: bool = False  # a list of that type: a time series


@functools.cache
def _fields(record_class: type) -> dict[str, _Field]:
    hints = typing.get_type_hints(record_class)
    fields = {}
    for item in dataclasses.fields(record_class):
        hint = hints[item.name]
        nullable = isinstance(hint, types.UnionType)
        listed = typing.get_origin(hint) is list
        base = typing.get_args(hint)[0] if nullable or listed else hint
        required = item.default is dataclasses.MISSING
        fields[item.name] = _Field(base, nullable, required, None if required else item.default, listed)
    return fields


@functools.cache
def _fields_of_any_kind() -> dict[str, _Field]:
    fields: dict[str, _Field] = {}
    for record_class in CLASSES.values():
        for name, item in _fields(record_class).items():
            fields.setdefault(name, dataclasses.replace(item, nullable=True))
    return fields


def to_dict(record: AnyRecord) -> dict[str, Any]:
    """Return a record as a flat dict of int, float, str and None; ValueError where a value is not fit to write.

    NumPy scalars become plain numbers. A dict is checked in the same way; kinds not defined here (nvme) may also
    hold booleans and lists of numbers.
    """
    if isinstance(record, Mapping):
        return _check_mapping(record)
    if type(record) not in CLASSES.values():
        raise ValueError(f"a {type(record).__name__} is not a record: give a record or a dict with a kind")
    record_class: Any = type(record)
    values = {name: getattr(record, name) for name in _fields(record_class)}
    if CLASSES.get(values["kind"]) is not type(record):
        raise ValueError(f"record field kind is {values['kind']!r}, which is not the kind of a {type(record).__name__}")
    return _check_mapping(values)


def write_json_lines(records: Iterable[AnyRecord], stream: TextIO) -> None:
    """Write one JSON object a line to a text stream, each checked (ValueError) before any of it is written."""
    for record in records:
        # ASCII escapes: a stream's name may hold bytes that the terminal's encoding cannot show.
        stream.write(json.dumps(to_dict(record), allow_nan=False) + "\n")


def write_csv(records: Iterable[AnyRecord], target: str | os.PathLike[str] | TextIO, *, force: bool = False) -> None:
    """Write records of one kind as CSV under one header; None is an empty cell.

    ValueError for mixed kinds, no records or unfit values; FileExistsError where the path exists, unless force.
    """
    rows = [to_dict(record) for record in records]
    if not rows:
        raise ValueError("there are no records to write: a CSV file needs at least one for its header")
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    if len(kinds) > 1:
        raise ValueError(f"a CSV file holds records of one kind, not {kinds[0]!r} and {kinds[1]!r}: write two files")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not isinstance(target, (str, os.PathLike)):
        _write_csv_rows(rows, columns, target)
        return
    with new_file(Path(target), force=force) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        _write_csv_rows(rows, columns, text)
        text.detach()  # flushes, and leaves closing and renaming to new_file


def _write_csv_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], stream: TextIO) -> None:
    stream.write(",".join(_to_cell(name) for name in columns) + "\n")
    for row in rows:
        stream.write(",".join(_to_cell(row.get(name)) for name in columns) + "\n")


def _to_cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    # csv.writer leaves a lone carriage return unquoted where lines end in "\n", and csv.reader then ends the row at it.
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


def read_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read records from a .csv file or, under any other suffix, JSON lines.

    FormatError names path:line for anything that is not a record of a schema known here. Kinds of other commands
    (nvme) pass through with whatever flat fields they have.
    """
    source = Path(path)
    rows = _read_csv(source) if source.suffix.lower() == ".csv" else _read_json_lines(source)
    records = []
    for line, row in rows:
        try:
            records.append(_check_mapping(row))
        except ValueError as error:
            raise FormatError(f"{source}:{line}: {error}") from None
    return records


def records_to_frame(records: Iterable[AnyRecord]) -> pandas.DataFrame:
    """Return records (dataclasses or dicts) as a pandas DataFrame; integer columns with gaps stay integers."""
    try:
        import pandas
    except ImportError:
        raise ImportError("records_to_frame needs pandas, which is not installed: pip install pandas") from None
    rows = [to_dict(record) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        present = [value for value in values if value is not None]
        if present and all(type(value) is int for value in present):
            if min(present) >= -(2**63) and max(present) < 2**64:
                unsigned = max(present) >= 2**63  # a seed may use all 64 bits
                nullable = "UInt64" if unsigned else "Int64"
                dtype: Any = nullable if len(present) < len(values) else nullable.lower()
            else:
                dtype = object
            columns[name] = pandas.Series(values, dtype=dtype)
        else:
            columns[name] = pandas.Series(values)
    return pandas.DataFrame(columns)


def _check_mapping(row: Mapping[str, Any]) -> dict[str, Any]:
    kind = row.get("kind")
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"a record needs a kind such as 'simulate', not {kind!r}")
    record_class = CLASSES.get(kind)
    if record_class is not None or "schema" in row:
        schema = row.get("schema")
        if isinstance(schema, bool) or schema != SCHEMA:
            raise ValueError(f"a {kind} record of schema {schema!r} is not known here: this version reads {SCHEMA}")
    if record_class is None:
        return {_check_name(name): _check_free(name, value) for name, value in row.items()}
    fields = _fields(record_class)
    missing = next((name for name, item in fields.items() if item.required and name not in row), None)
    if missing is not None:
        raise ValueError(f"the {kind} record has no {missing}")
    checked = {name: _check_value(name, row.get(name, item.default), item) for name, item in fields.items()}
    extra = {_check_name(name): _check_free(name, row[name]) for name in row if name not in fields}
    return checked | extra


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"a record has fields with names, not {name!r}")
    return name


def _check_value(name: str, value: Any, item: _Field) -> Any:
    if item.listed:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"record field {name} is {value!r}: it must be a list")
        single = dataclasses.replace(item, listed=False)
        return [_check_value(name, entry, single) for entry in value]
    wanted = {int: "an integer", float: "a number", str: "a text"}[item.type]
    refusal = f"record field {name} is {value!r}: it must be {wanted}{' or nothing' if item.nullable else ''}"
    if value is None:
        if item.nullable:
            return None
        raise ValueError(refusal)
    if item.type is str:
        if isinstance(value, str):
            return str(value)
        raise ValueError(refusal)
    if isinstance(value, (bool, str)):
        raise ValueError(refusal)
    try:
        if item.type is int:
            return operator.index(value)
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(refusal) from None
    if not math.isfinite(number):
        raise ValueError(f"record field {name} is {number}: a record holds finite numbers only")
    return number


def _check_free(name: str, value: Any) -> Any:
    """Check a field that no class here defines."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (list, tuple)):
        if any(item is None or isinstance(item, (bool, str, list, tuple)) for item in value):
            raise ValueError(f"record field {name} is a list of something else than numbers")
        return [_check_free(name, item) for item in value]
    try:
        return operator.index(value)
    except TypeError:
        return _check_value(name, value, _Field(float, False, True, None))


def _read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, "rb") as file:
        for line, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                row = json.loads(
                    raw.decode("utf-8-sig"), object_pairs_hook=unique_keys, parse_constant=_refuse_constant
                )
            except UnicodeDecodeError:
                raise FormatError(f"{path}:{line}: the line is not UTF-8 text") from None
            except (ValueError, RecursionError) as error:
                raise FormatError(f"{path}:{line}: the line is not a JSON record: {error}") from None
            if not isinstance(row, dict):
                raise FormatError(f"{path}:{line}: the line is JSON but not an object, so it is no record")
            yield line, row


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number that a record can hold")


def _read_csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        line = 1
        header: list[str] | None = None
        try:
            for cells in reader:
                if header is None:
                    header = cells
                    if "kind" not in header or len(set(header)) < len(header):
                        raise FormatError(f"{path}:1: the first line is not a header of distinct names with a kind")
                elif len(cells) != len(header) and cells:
                    raise FormatError(f"{path}:{line}: {len(cells)} cells under a header of {len(header)} columns")
                elif cells:
                    yield line, _parse_row(path, line, dict(zip(header, cells, strict=True)))
                line = reader.line_num + 1  # a quoted cell may hold line breaks: name the line where the row begins
        except csv.Error as error:
            raise FormatError(f"{path}:{line}: the line is not CSV: {error}") from None
        except UnicodeDecodeError:
            raise FormatError(f"{path}:{line}: the file is not UTF-8 text from about here on") from None
        if header is None:
            raise FormatError(f"{path}:1: the file is empty: a CSV file of records begins with a header")


def _parse_row(path: Path, line: int, cells: Mapping[str, str]) -> dict[str, Any]:
    record_class = CLASSES.get(cells["kind"])
    fields = _fields(record_class) if record_class else {}
    shared = _fields_of_any_kind()
    try:
        return {name: _parse_cell(name, cell, fields.get(name, shared.get(name))) for name, cell in cells.items()}
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}:{line}: {error}") from None


def _parse_cell(name: str, cell: str, item: _Field | None) -> Any:
    if cell == "" and (item is None or item.nullable):
        return None
    if item is not None and not item.listed:
        if item.type is str:
            return cell
        pattern = _INT if item.type is int else _FLOAT
        if not pattern.fullmatch(cell):
            raise ValueError(f"column {name} holds {cell!r}, which is not {item.type.__name__}")
        return item.type(cell)
    if _INT.fullmatch(cell):
        return int(cell)
    if _FLOAT.fullmatch(cell):
        return float(cell)
    if cell in ("true", "false"):
        return cell == "true"
    return json.loads(cell, parse_constant=_refuse_constant) if cell.startswith("[") else cell

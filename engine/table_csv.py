"""The CSV file of a decision table: texts with their places, then cells and outputs of known types.

The header names the columns as the strategy file does, in any order. What a cell accepts:

    *             anything, null too          [1..5)  (..10]  >= 5  < 3     a range, each end open or closed
    null          null alone                  gold    'gold'                 a value; quotes keep |, .. and spaces as text
    a | b | c     one of several values

An output is one value; empty or `null` is null. Every mistake has its line and column in the CSV.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.strategy import Cell, TableRow
from features.expr import Mistake, Type
from features.expr.times import parse_duration, parse_timestamp
from features.expr.types import INT_MAX, INT_MIN
from features.yaml_source import name_hint

MAX_ROWS: Final = 10_000
MAX_COLUMNS: Final = 32
ORDERED: Final = ("int", "double", "timestamp", "duration")  # kinds that have ranges
_RANGE: Final = re.compile(r"([\[(])\s*(.*?)\s*\.\.\s*(.*?)\s*([\])])")
_RELATION: Final = re.compile(r"(>=|<=|>|<)\s*(.*)")
_INT: Final = re.compile(r"[-+]?[0-9]{1,19}")
_DOUBLE: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
LINE_END: Final = re.compile("\r\n|\n|\r")  # spreadsheets still write all three
_QUOTED: Final = re.compile(r"'((?:[^']|'')*)'")
_EMPTY_HINT: Final = "write * for any value, null for no value"


@dataclass(frozen=True, kw_only=True)
class RawCell:
    """The text of one field and where it stands; `end_col` is exclusive."""

    text: str
    line: int
    col: int
    end_col: int


@dataclass(frozen=True, kw_only=True)
class RawTable:
    """A CSV file as fields. `lines` are the file's, for display."""

    file: str
    lines: tuple[str, ...]
    header: tuple[RawCell, ...]
    rows: tuple[tuple[RawCell, ...], ...]

    def mistake(self, cell: RawCell, kind: str, message: str, hint: str = "") -> Mistake:
        return Mistake(kind, self.file, cell.line, cell.col, cell.end_col, message, hint, self.lines[cell.line - 1])


def read_csv(text: str, file: str) -> tuple[RawTable, list[Mistake]]:
    """Split a CSV text into fields: commas, double quotes around a field, `""` for a quote in it; blank lines are left out.

    A field ends on its line. Rows of a wrong length are mistakes and left out.
    """
    lines = tuple(LINE_END.split(text.removeprefix("\ufeff")))
    table = RawTable(file=file, lines=lines, header=(), rows=())
    mistakes: list[Mistake] = []
    records: list[tuple[RawCell, ...]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells, problem = _split(line, number)
        if problem is not None:
            mistakes.append(
                table.mistake(
                    problem, "csv", problem.text, 'put the whole field in double quotes, with "" for a quote inside'
                )
            )
        elif records and len(cells) != len(records[0]):
            message = f"{len(cells)} fields, and the header has {len(records[0])}"
            mistakes.append(
                table.mistake(_whole(line, number), "csv", message, "put a field with a comma in double quotes")
            )
        else:
            records.append(cells)
        if len(records) > MAX_ROWS + 1:
            mistakes.append(
                table.mistake(_whole(line, number), "limit", f"more than {MAX_ROWS} rows", "split the table")
            )
            break
    if not records:
        mistakes.append(
            table.mistake(_whole("", 1), "csv", "the file has no header", "its first line names the columns")
        )
        return table, mistakes
    header = tuple(records[0])
    return RawTable(file=file, lines=lines, header=header, rows=tuple(records[1:])), mistakes


def _split(line: str, number: int) -> tuple[tuple[RawCell, ...], RawCell | None]:
    """The fields of one line; or the place of what is wrong, with the message as its text."""
    cells: list[RawCell] = []
    at = 0
    while True:
        start = at + len(line[at:]) - len(line[at:].lstrip())
        if line[start : start + 1] == '"':
            end = start + 1
            while (end := line.find('"', end)) >= 0 and line[end : end + 2] == '""':
                end += 2
            if end < 0:
                return (), RawCell(text="this quote is not closed", line=number, col=start + 1, end_col=len(line) + 1)
            value, end = line[start + 1 : end].replace('""', '"'), end + 1
            stop = line.find(",", end)
            stop = len(line) if stop < 0 else stop
            if line[end:stop].strip():
                message = "text behind a closing quote"
                return (), RawCell(text=message, line=number, col=end + 1, end_col=stop + 1)
        else:
            stop = line.find(",", at)
            stop = len(line) if stop < 0 else stop
            value = line[at:stop]
            end = start + len(value.strip())
        cells.append(RawCell(text=value.strip(), line=number, col=start + 1, end_col=max(end, start + 1) + 1))
        if stop >= len(line):
            return tuple(cells), None
        at = stop + 1


def _whole(line: str, number: int) -> RawCell:
    return RawCell(text=line, line=number, col=1, end_col=max(2, len(line) + 1))


@dataclass(frozen=True, kw_only=True)
class TableBody:
    """What the rows hold: their cells and outputs, and the type of each output without what a gap adds."""

    rows: tuple[TableRow, ...]
    outputs: Mapping[str, Type]


def read_rows(
    raw: RawTable, inputs: Mapping[str, Type], outputs: Mapping[str, Type | None]
) -> tuple[TableBody | None, list[Mistake]]:
    """The fields as cells of the inputs' types and as outputs. An output declared as None takes its type from its values.

    Header names of outputs start with `out.`. Returns no body where there is a mistake.
    """
    mistakes: list[Mistake] = []
    places = _places(raw, [*inputs, *(f"out.{name}" for name in outputs)], mistakes)
    if places is None:
        return None, mistakes
    if not raw.rows:
        return None, [
            raw.mistake(raw.header[0], "table", "the table has no rows", "write at least one line below the header")
        ]
    kinds: dict[str, Type] = {}
    for name, declared in outputs.items():
        column = [row[places[f"out.{name}"]] for row in raw.rows]
        found = declared or _guess(column)
        if found is None:
            hint = f"declare its type in the strategy file: {{out.{name}: double?}}"
            mistakes.append(
                raw.mistake(column[0], "type", f"every 'out.{name}' is null, so its type is not known", hint)
            )
            continue
        kinds[name] = found
    rows: list[TableRow] = []
    for record in raw.rows:
        cells = [_input(raw, record[places[name]], kind, mistakes) for name, kind in inputs.items()]
        values = [_output(raw, record[places[f"out.{name}"]], name, kind, mistakes) for name, kind in kinds.items()]
        rows.append(TableRow(cells=tuple(cells), outputs=tuple(values), line=record[0].line))
    if mistakes:
        return None, mistakes
    return TableBody(rows=tuple(rows), outputs=kinds), []


def _places(raw: RawTable, wanted: Sequence[str], mistakes: list[Mistake]) -> dict[str, int] | None:
    """Where each column stands in the file; None when the header does not name them all, each once."""
    places: dict[str, int] = {}
    for at, cell in enumerate(raw.header):
        if cell.text in places:
            mistakes.append(
                raw.mistake(cell, "duplicate", f"column '{cell.text}' is there twice", "remove one of them")
            )
        elif cell.text not in wanted:
            message = f"the table in the strategy file has no column '{cell.text}'"
            mistakes.append(raw.mistake(cell, "unknown-column", message, name_hint(cell.text, wanted)))
        else:
            places[cell.text] = at
    if missing := [name for name in wanted if name not in places]:
        message = f"column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))} missing from the header"
        place = RawCell(text="", line=raw.header[0].line, col=1, end_col=raw.header[-1].end_col)
        mistakes.append(raw.mistake(place, "missing", message, f"the header is {','.join(wanted)}"))
    return None if mistakes else places


def _guess(column: Sequence[RawCell]) -> Type | None:
    """The narrowest type that all values of an output have."""
    texts = [cell.text for cell in column if cell.text not in ("", "null")]
    nullable = len(texts) < len(column)
    if not texts:
        return None
    if all(_INT.fullmatch(text) for text in texts):
        return Type("int", nullable)
    if all(_DOUBLE.fullmatch(text) for text in texts):
        return Type("double", nullable)
    return Type("bool" if all(text in ("true", "false") for text in texts) else "string", nullable)


def _output(raw: RawTable, cell: RawCell, name: str, kind: Type, mistakes: list[Mistake]) -> Any:
    if cell.text in ("", "null"):
        if not kind.nullable:
            hint = f"write a value, or declare {{out.{name}: '{kind}?'}}"
            mistakes.append(raw.mistake(cell, "nullable", f"out.{name} is {kind}, and this is null", hint))
        return None
    try:
        return literal(cell.text, kind.kind)
    except ValueError as error:
        mistakes.append(raw.mistake(cell, "type", str(error), f"out.{name} is {kind}"))
        return None


def _input(raw: RawTable, cell: RawCell, kind: Type, mistakes: list[Mistake]) -> Cell:
    try:
        found = read_cell(cell.text, kind.kind)
    except ValueError as error:
        message, _, hint = str(error).partition("\n")
        mistakes.append(raw.mistake(cell, "cell", message, hint))
        found = Cell(kind="any")
    return Cell(
        kind=found.kind,
        values=found.values,
        low=found.low,
        high=found.high,
        low_open=found.low_open,
        high_open=found.high_open,
        text=cell.text,
        line=cell.line,
        col=cell.col,
    )


def read_cell(text: str, kind: str) -> Cell:
    """What the cell of an input of this kind accepts. Raises: ValueError, message and hint on two lines."""
    if not text:
        raise ValueError(f"an empty cell\n{_EMPTY_HINT}")
    if text == "*":
        return Cell(kind="any")
    if text == "null":
        return Cell(kind="null")
    interval, relation = _RANGE.fullmatch(text), _RELATION.fullmatch(text)
    if kind not in ORDERED:
        if interval or relation:
            raise ValueError(f"a {kind} has no ranges\nput text in quotes: '{text}'")
    elif interval:
        return _range(interval[2], interval[3], interval[1] == "(", interval[4] == ")", kind)
    elif relation:
        low, high = (relation[2], "") if relation[1][0] == ">" else ("", relation[2])
        return _range(low, high, relation[1] == ">", relation[1] == "<", kind)
    return Cell(kind="values", values=tuple(literal(part, kind) for part in _alternatives(text)))


def _alternatives(text: str) -> list[str]:
    """`a | 'b | c' | d` apart. Raises: ValueError for one that is empty, or null or * among others."""
    parts: list[str] = []
    at = 0
    while at <= len(text):
        start = at + len(text[at:]) - len(text[at:].lstrip())
        quoted = _QUOTED.match(text, start)
        stop = text.find("|", quoted.end() if quoted else start)
        stop = len(text) if stop < 0 else stop
        parts.append(text[start:stop].strip())
        at = stop + 1
    for part in parts:
        if not part:
            raise ValueError(f"an empty alternative\n{_EMPTY_HINT}, or quotes around text with |")
        if part in ("*", "null") and len(parts) > 1:
            raise ValueError(f"{part} cannot stand beside other values\ngive it a row of its own")
    return parts


def _range(low: str, high: str, low_open: bool, high_open: bool, kind: str) -> Cell:
    if not low and not high:
        raise ValueError("a range without bounds\nwrite * for any value")
    a, b = (literal(bound, kind) if bound else None for bound in (low, high))
    if a is not None and b is not None and (a > b or (a == b and (low_open or high_open))):
        raise ValueError("nothing lies in this range\nwrite [from..to], [from..to) or (from..to)")
    return Cell(kind="range", low=a, high=b, low_open=low_open and a is not None, high_open=high_open and b is not None)


def literal(text: str, kind: str) -> Any:
    """A value as written in a cell. Raises: ValueError."""
    return _LITERALS[kind](text)


def _int(text: str) -> int:
    if not _INT.fullmatch(text) or not INT_MIN <= int(text) <= INT_MAX:
        raise ValueError(f"'{text}' is not a whole number")
    return int(text)


def _double(text: str) -> float:
    if not _DOUBLE.fullmatch(text) or not math.isfinite(float(text)):
        raise ValueError(f"'{text}' is not a number")
    return float(text)


def _bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"'{text}' is not true or false")
    return text == "true"


def _string(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return quoted[1].replace("''", "'")
    if text.startswith("'"):
        raise ValueError("this quote is not closed, or text follows it\nwrite '' for a quote inside quotes")
    return text


def _time(parse: Callable[[str], int]) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"'{text}': {error}") from None

    return read


_LITERALS: Final[dict[str, Callable[[str], Any]]] = {
    "int": _int,
    "double": _double,
    "bool": _bool,
    "string": _string,
    "timestamp": _time(parse_timestamp),
    "duration": _time(parse_duration),
}
CELL_KINDS: Final = tuple(_LITERALS)

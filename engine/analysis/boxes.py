"""A decision table as boxes: per column, the values cut into points that no cell tells apart; a row is a set of points a column.

    zone: [1..5) , 7 , *          points: below 1 | 1 … 4 | 5, 6 | 7 | above 7

Rows are bits of whole numbers, so what fits a combination of points is an `and` per column. Questions about all combinations
are answered by walking the columns and meeting each set of rows that is left once. That is exact; a table on which it would
take too long is not decided.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.strategy import Cell
from engine.table import accepts
from features.expr import Facts, Type
from features.expr.keys import NUMBERS, key_of, key_range, nice, value_of

MAX_STEPS: Final = 1_500_000  # points of cells and sets of rows looked at for one table, about two seconds
_TEXTS: Final = ("other", "else", "some", "any")


@dataclass(frozen=True, kw_only=True)
class Point:
    """Values of one column that no cell tells apart. `value` stands for them; `low`, `high` are the first and the last
    of numbers; `other`: every text that stands in no cell."""

    value: Any
    low: Any = None
    high: Any = None
    other: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Axis:
    """One column: its points, for each the rows that fit there, and for each row the points that it fits, as bits.

    `texts` are those of all cells.
    """

    name: str
    type: Type
    points: tuple[Point, ...]
    rows_at: tuple[int, ...]
    fits: tuple[int, ...]

    @property
    def texts(self) -> list[str]:
        return [point.value for point in self.points if isinstance(point.value, str) and not point.other]


class TooLong(Exception):
    """More than MAX_STEPS would be needed."""


class Steps:
    """What is left of MAX_STEPS."""

    def __init__(self, left: int = MAX_STEPS) -> None:
        self.left = left

    def take(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise TooLong


def cut(name: str, kind: Type, facts: Facts | None, cells: Sequence[Cell], steps: Steps) -> Axis:
    """The points of a column. Only values within the type and the bounds are points; NaN is one where it can be.

    Raises: TooLong.
    """
    points = _points(kind, facts, cells)
    shapes: dict[tuple[Any, ...], list[int]] = {}
    for row, cell in enumerate(cells):
        shape = (cell.kind, cell.values, cell.low, cell.high, cell.low_open, cell.high_open)
        shapes.setdefault(shape, []).append(row)
    rows_at = [0] * len(points)
    fits = [0] * len(cells)
    keys = [key_of(point.low) for point in points if point.low is not None]
    numbers = [at for at, point in enumerate(points) if point.low is not None]
    at_value = {repr(point.value): at for at, point in enumerate(points)}
    for like in shapes.values():
        cell = cells[like[0]]
        rows = sum(1 << row for row in like)
        touched = dict.fromkeys(_touched(cell, points, keys, numbers, at_value))
        fitting = [at for at in touched if accepts(cell, points[at].value)]
        steps.take(len(fitting))
        bits = sum(1 << at for at in fitting)
        for at in fitting:
            rows_at[at] |= rows
        for row in like:
            fits[row] = bits
    return Axis(name=name, type=kind, points=tuple(points), rows_at=tuple(rows_at), fits=tuple(fits))


def _touched(
    cell: Cell, points: Sequence[Point], keys: Sequence[int], numbers: Sequence[int], at_value: dict[str, int]
) -> Iterator[int]:
    """The points that a cell may fit: few, so that a long table is cut in little time."""
    if cell.kind == "any":
        yield from range(len(points))
    elif cell.kind == "null":
        yield from (at for at, point in enumerate(points) if point.value is None)
    elif cell.kind == "range":
        start = 0 if cell.low is None else max(0, bisect.bisect_left(keys, key_of(cell.low)) - 2)
        end = len(keys) if cell.high is None else bisect.bisect_right(keys, key_of(cell.high)) + 2
        yield from numbers[start:end]
        yield from (at for at in range(len(points) - 2, len(points)) if at >= 0 and points[at].low is None)  # NaN
    elif not keys:
        yield from (at_value[repr(value)] for value in cell.values if repr(value) in at_value)
    else:
        for value in cell.values:
            place = bisect.bisect_left(keys, key_of(value))
            yield from numbers[max(0, place - 1) : place + 2]


def _points(kind: Type, facts: Facts | None, cells: Sequence[Cell]) -> list[Point]:
    out: list[Point] = []
    if kind.kind in NUMBERS:
        out = _numbers(kind.kind, facts, cells)
        bounded = facts is not None and (facts.low is not None or facts.high is not None)
        if kind.kind == "double" and not bounded:
            out.append(Point(value=float("nan")))
    elif kind.kind == "bool":
        out = [Point(value=True), Point(value=False)]
    else:
        texts = list(dict.fromkeys(value for cell in cells for value in cell.values))
        other = next(text for text in (*_TEXTS, *(f"other {n}" for n in range(len(texts) + 1))) if text not in texts)
        out = [*(Point(value=text) for text in texts), Point(value=other, other=True)]
    return out + [Point(value=None)] * kind.nullable


def _numbers(kind: str, facts: Facts | None, cells: Sequence[Cell]) -> list[Point]:
    low, high = key_range(kind, facts)
    cuts = {low, high + 1}
    if kind == "double":
        cuts |= {-1, 1}  # -0.0 and 0.0 are equal: one point
    for cell in cells:
        for value in cell.values:
            key = key_of(value)
            cuts |= {key, key + 1} if value != 0 or kind != "double" else set()
        if cell.low is not None and (cell.low != 0 or kind != "double"):
            cuts.add(key_of(cell.low) + cell.low_open)
        if cell.high is not None and (cell.high != 0 or kind != "double"):
            cuts.add(key_of(cell.high) + (not cell.high_open))
    starts = sorted(at for at in cuts if low <= at <= high)
    out = []
    for start, after in zip(starts, [*starts[1:], high + 1], strict=True):
        value = 0.0 if kind == "double" and start <= 0 < after else nice(start, after - 1, kind)
        out.append(Point(value=value, low=value_of(start, kind), high=value_of(after - 1, kind)))
    return out


class Boxes:
    """The rows of a table over its axes. Every question may raise TooLong."""

    def __init__(self, axes: Sequence[Axis], num_rows: int, steps: Steps) -> None:
        self.axes, self.num_rows, self.steps = tuple(axes), num_rows, steps
        self.all_rows = (1 << num_rows) - 1
        # Points of a column at which the same rows fit lead to the same answers: one group.
        self.groups: list[dict[int, list[int]]] = []
        for axis in self.axes:
            groups: dict[int, list[int]] = {}
            for at, rows in enumerate(axis.rows_at):
                groups.setdefault(rows, []).append(at)
            self.groups.append(groups)
        self._met: list[dict[int, int]] = [{} for _ in self.axes]

    def box(self, row: int) -> tuple[int, ...]:
        """The points that a row fits, as bits, per column."""
        return tuple(axis.fits[row] for axis in self.axes)

    def meeting(self, box: Sequence[int]) -> int:
        """The rows whose boxes meet a box: exact, for two boxes meet where they do in every column."""
        out = self.all_rows
        for column, points in enumerate(box):
            known = self._met[column].get(points)
            if known is None:
                known = 0
                for at in ones(points):
                    known |= self.axes[column].rows_at[at]
                self._met[column][points] = known
            out &= known
        return out

    def at(self, points: Sequence[int]) -> int:
        """The rows that fit one combination of points."""
        out = self.all_rows
        for axis, at in zip(self.axes, points, strict=True):
            out &= axis.rows_at[at]
        return out

    def gaps(self) -> Iterator[list[list[int]]]:
        """Combinations of points that no row fits: per column the points of a group. Each set of rows is met once, so not
        every combination is listed; there is one exactly if there is a gap."""
        for path in self._uncovered(self.all_rows, [(1 << len(axis.points)) - 1 for axis in self.axes]):
            yield [self.groups[column][rows] for column, rows in enumerate(path)]

    def covered(self, box: Sequence[int], by: int) -> bool:
        """Whether the rows `by` together fit all of a box."""
        return next(self._uncovered(by, box), None) is None

    def _uncovered(self, by: int, box: Sequence[int]) -> Iterator[list[int]]:
        """The groups, column by column, that none of the rows `by` fits within a box."""
        inside = [
            [rows for rows, points in self.groups[column].items() if any(box[column] >> at & 1 for at in points)]
            for column in range(len(self.axes))
        ]
        open_from = [by] * (len(self.axes) + 1)  # rows that fit all of the box from a column on
        for column in range(len(self.axes) - 1, -1, -1):
            everywhere = open_from[column + 1]
            for rows in inside[column]:
                everywhere &= rows
            open_from[column] = everywhere
        seen: list[set[int]] = [set() for _ in self.axes]

        def walk(column: int, left: int, path: list[int]) -> Iterator[list[int]]:
            if column == len(self.axes):
                if not left:
                    yield path
                return
            if left & open_from[column] or left in seen[column]:
                return
            seen[column].add(left)
            for here in inside[column]:
                self.steps.take()
                yield from walk(column + 1, left & here, [*path, here])

        return walk(0, by, [])

    def answers_differ(self, column: int, answer: Callable[[int], Any]) -> bool:
        """Whether the answer, a function of the rows that fit, ever hangs on a column."""
        states = {self.all_rows}
        for other, groups in enumerate(self.groups):
            if other != column:
                grown: set[int] = set()
                for left in states:
                    self.steps.take(len(groups))
                    grown.update(left & here for here in groups)
                states = grown
        for left in states:
            self.steps.take(len(self.groups[column]))
            if len({answer(left & here) for here in self.groups[column]}) > 1:
                return True
        return False


def ones(bits: int) -> Iterator[int]:
    """The places of the bits that are set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest

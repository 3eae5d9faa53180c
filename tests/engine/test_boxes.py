"""Tables as boxes against trying every combination of values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from engine.analysis.boxes import Axis, Boxes, Steps, TooLong, cut, ones
from engine.strategy import Cell
from engine.table import accepts
from features.expr import Facts, Type

KINDS = (("int", False), ("int", True), ("double", True), ("string", False), ("string", True), ("bool", True))
VALUES: dict[str, list[Any]] = {
    "int": [*range(-2, 9), 100, -(2**63), 2**63 - 1],
    "double": [-0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0, float("inf"), float("-inf"), float("nan"), 5e-324],
    "string": ["a", "b", "c", "", "zzz"],
    "bool": [True, False],
}


def random_cell(rng: random.Random, kind: Type) -> Cell:
    choice = rng.random()
    if choice < 0.3:
        return Cell(kind="any", text="*")
    if choice < 0.4 and kind.nullable:
        return Cell(kind="null", text="null")
    if kind.kind in ("int", "double") and choice < 0.7:
        low, high = sorted(rng.sample(range(6), 2))
        number = float if kind.kind == "double" else int
        return Cell(
            kind="range",
            low=None if rng.random() < 0.2 else number(low),
            high=None if rng.random() < 0.2 else number(high),
            low_open=rng.random() < 0.5,
            high_open=rng.random() < 0.5,
        )
    pool = [v for v in VALUES[kind.kind] if v == v and not (isinstance(v, float) and abs(v) > 1e9)][:8]
    return Cell(kind="values", values=tuple(dict.fromkeys(rng.choices(pool, k=rng.randrange(1, 4)))))


def table_of(rng: random.Random) -> tuple[Boxes, list[list[Cell]], list[Type]]:
    kinds = [Type(*rng.choice(KINDS)) for _ in range(rng.randrange(1, 4))]
    rows = [[random_cell(rng, kind) for kind in kinds] for _ in range(rng.randrange(1, 7))]
    steps = Steps()
    axes = [
        cut(f"c{at}", kind, Facts(low=0.0, high=5.0) if bounded else None, [row[at] for row in rows], steps)
        for at, kind in enumerate(kinds)
        for bounded in [kind.kind in ("int", "double") and rng.random() < 0.3]
    ]
    return Boxes(axes, len(rows), steps), rows, kinds


def fitting(rows: Sequence[Sequence[Cell]], values: Sequence[Any]) -> int:
    """The rows that fit, as bits: what defines a table."""
    fits = [all(accepts(cell, value) for cell, value in zip(row, values, strict=True)) for row in rows]
    return sum(1 << at for at, one in enumerate(fits) if one)


def combinations(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(axis.points)) for axis in axes)))


@pytest.mark.parametrize("seed", range(200))
def test_answers_are_those_of_every_combination(seed: int) -> None:
    print("seed", seed)
    boxes, rows, _ = table_of(random.Random(seed))
    everywhere = {}
    for points in combinations(boxes.axes):
        values = [axis.points[at].value for axis, at in zip(boxes.axes, points, strict=True)]
        everywhere[points] = fitting(rows, values)
        assert boxes.at(points) == everywhere[points]
    gaps = {points for points, found in everywhere.items() if not found}
    listed = list(boxes.gaps())
    assert bool(gaps) == bool(listed)
    assert all(points in gaps for gap in listed for points in itertools.product(*gap))
    for row in range(len(rows)):
        box, mine = boxes.box(row), [points for points, found in everywhere.items() if found >> row & 1]
        meeting = 0
        for points in mine:
            meeting |= everywhere[points]
        assert not mine or boxes.meeting(box) == meeting
        before = (1 << row) - 1
        assert boxes.covered(box, before) == all(everywhere[points] & before for points in mine)
    for column in range(len(boxes.axes)):
        answers: dict[tuple[int, ...], set[int]] = {}
        for points, found in everywhere.items():
            first = next(ones(found), -1)
            answers.setdefault((*points[:column], *points[column + 1 :]), set()).add(first)
        differ = any(len(one) > 1 for one in answers.values())
        assert boxes.answers_differ(column, lambda bits: next(ones(bits), -1)) == differ


@pytest.mark.parametrize("seed", range(100))
def test_every_value_is_in_a_point_that_no_cell_tells_from_it(seed: int) -> None:
    rng = random.Random(seed)
    kind = Type(*rng.choice(KINDS))
    cells = [random_cell(rng, kind) for _ in range(5)]
    axis = cut("c", kind, None, cells, Steps())
    for value in [*VALUES[kind.kind], *[None] * kind.nullable]:
        shape = [accepts(cell, value) for cell in cells]
        shapes = [[bool(rows >> row & 1) for row in range(5)] for rows in axis.rows_at]
        assert shape in shapes, f"{value!r} of {kind} fits {shape}"


def test_what_would_take_too_long_says_so() -> None:
    rng = random.Random(1)
    kind = Type("int", False)
    rows = [[random_cell(rng, kind) for _ in range(12)] for _ in range(300)]
    steps = Steps(20_000)
    axes = [cut(f"c{at}", kind, None, [row[at] for row in rows], steps) for at in range(12)]
    with pytest.raises(TooLong):
        list(Boxes(axes, 300, steps).gaps())

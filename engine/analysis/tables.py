"""Decision tables: combinations that no row fits, rows that no combination reaches, rows that meet, columns without effect.

All of it is exact on the boxes of `boxes.py`. A column stands for its name's values, whatever they are computed from: that a gap can be
reached is shown by a row of values that gets there, and that it cannot by a proof.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from engine.analysis.boxes import Axis, Boxes, Point, Steps, TooLong, cut, ones
from engine.analysis.show import example, found
from engine.analysis.world import World
from engine.strategy import CompiledLet, Table, TableRow
from engine.table import collected, gap_of, match_rows
from features.expr import ROW_ERROR, Mistake, Program, SourceText, Type, interpret_marked
from features.expr.pieces import as_program
from features.expr.program import Step
from features.expr.shown import shown
from features.expr.types import BOOL

MAX_GAPS: Final = 24  # of one table that are looked at
MAX_SHOWN: Final = 20  # findings of one kind in one table
_GUESSES: Final = 8
_LOOKS: Final = 32
_NOWHERE: Final = SourceText("")


def check_tables(world: World) -> Iterator[Mistake]:
    for step in (*world.compiled.steps_before, *world.compiled.steps_after):
        if not isinstance(step, CompiledLet):
            yield from _Table(world, step.table).check()


class _Table:
    """One table and its boxes."""

    def __init__(self, world: World, table: Table) -> None:
        self.world, self.table = world, table
        self.types = [self._type(name) for name in table.inputs]
        self.steps = Steps()

    def check(self) -> Iterator[Mistake]:
        worst = [
            kind.optional() if self._unsure(name) else kind
            for name, kind in zip(self.table.inputs, self.types, strict=True)
        ]
        try:
            boxes = self._boxes(self.types)
            all_boxes = boxes if worst == self.types else self._boxes(worst)
        except TooLong:
            yield self._not_decided("anything")
            return
        looks: list[tuple[str, Callable[[Boxes], Iterator[Mistake]], Boxes]] = [
            ("whether a row always fits", self._gap, boxes),
            ("whether every row can be reached", self._rows, all_boxes),
            ("", self._columns, all_boxes),
        ]
        for what, look, over in looks:
            try:
                yield from look(over)
            except TooLong:
                if what:
                    yield self._not_decided(what)

    def _boxes(self, types: Sequence[Type]) -> Boxes:
        cells = list(zip(*(row.cells for row in self.table.rows), strict=True)) or [()] * len(self.table.inputs)
        facts = self.world.compiled.strategy.facts
        axes = [
            cut(name, kind, facts.get(name), column, self.steps)
            for name, kind, column in zip(self.table.inputs, types, cells, strict=True)
        ]
        return Boxes(axes, len(self.table.rows), self.steps)

    def _unsure(self, name: str) -> bool:
        """Whether it may be null although it is not typed so: no claim may rest on the type then."""
        kind = self.world.types.get(name) or self._type(name)
        step = self.world.inliner.lets.get(name) or Step("name", kind, (), 0, 0, name)
        return bool(as_program(step).names & self.world.unsure)

    def _type(self, name: str) -> Type:
        """As the table sees it: before the drop rules nothing is narrowed."""
        lets = self.world.samples.let_programs
        if name in lets:
            return lets[name].type
        table, _, output = name.rpartition(".")
        tables = self.world.compiled.strategy.tables
        return tables[table].outputs[output] if table in tables else self.world.given[name]

    # rows -----------------------------------------------------------------------------------------------------------

    def _rows(self, boxes: Boxes) -> Iterator[Mistake]:
        """Rows that can never count, from first to last."""
        rng = random.Random(0)
        first_like: dict[tuple[int, ...], int] = {}
        count = 0
        for at, row in enumerate(self.table.rows):
            box = boxes.box(at)
            mistake = self._empty(boxes, row, box) or self._twin(row, first_like.get(box))
            if mistake is None and self.table.hit != "collect":
                meeting = boxes.meeting(box) & ((1 << at) - 1)
                if meeting and self.table.hit == "unique":
                    mistake = self._overlap(boxes, row, box, next(ones(meeting)))
                elif meeting and not _reached(boxes, box, meeting, rng) and boxes.covered(box, meeting):
                    mistake = self._covered(boxes, row, box, meeting)
            first_like.setdefault(box, at)
            if mistake is not None:
                count += 1
                if count <= MAX_SHOWN:
                    yield mistake
        if count > MAX_SHOWN:
            more = count - MAX_SHOWN
            text = f"{more} more {'rows have mistakes' if more > 1 else 'row has a mistake'} like these"
            yield self._at_name("unreachable-row", text, "warning")

    def _empty(self, boxes: Boxes, row: TableRow, box: Sequence[int]) -> Mistake | None:
        for column, points in enumerate(box):
            if not points:
                axis, cell = boxes.axes[column], row.cells[column]
                why = _bounds(axis) or f"'{axis.name}' is never {cell.text}"
                message = f"this row never fits: {why}"
                mistake = self._in_csv(row, "unreachable-row", message, "remove it, or change the bounds", column)
                return replace(mistake, severity="warning")
        return None

    def _twin(self, row: TableRow, first: int | None) -> Mistake | None:
        if first is None:
            return None
        other = self.table.rows[first]
        same = other.outputs == row.outputs
        if self.table.hit == "collect":
            text = f"this row fits what line {other.line} fits, so both are collected"
            mistake = self._in_csv(row, "duplicate-row", text, "make them one row, if that is not meant")
            return replace(mistake, severity="warning")
        text = f"this row fits what line {other.line} fits" + ("" if same else ", and has other outputs")
        mistake = self._in_csv(row, "duplicate-row", text, "remove one of them")
        harmless = same and self.table.hit == "first"
        return replace(mistake, severity="warning") if harmless else mistake

    def _overlap(self, boxes: Boxes, row: TableRow, box: Sequence[int], first: int) -> Mistake:
        both = [next(ones(one & other)) for one, other in zip(box, boxes.box(first), strict=True)]
        values = {axis.name: axis.points[at].value for axis, at in zip(boxes.axes, both, strict=True)}
        text = f"line {self.table.rows[first].line} and this row can both fit, which hit: unique makes a row error"
        return self._in_csv(row, "overlap", f"{text}; {self._example(values)}", "let them exclude each other")

    def _covered(self, boxes: Boxes, row: TableRow, box: Sequence[int], by: int) -> Mistake:
        alone = next((at for at in ones(by) if _inside(box, boxes.box(at))), None)
        if alone is not None:
            text = f"this row is never reached: line {self.table.rows[alone].line} fits all that it fits"
        else:
            lines = [self.table.rows[at].line for at in ones(by)]
            shown_lines = ", ".join(str(line) for line in lines[:5]) + (" …" if len(lines) > 5 else "")
            text = f"this row is never reached: lines {shown_lines} together fit all that it fits"
        return self._in_csv(row, "unreachable-row", text, "put it before them, or remove it")

    # gaps -----------------------------------------------------------------------------------------------------------

    def _gap(self, boxes: Boxes) -> Iterator[Mistake]:
        """Where no row fits, on_gap: error is a row error: a mistake if values get there."""
        if self.table.on_gap != "error":
            return
        gaps = list(islice(boxes.gaps(), MAX_GAPS + 1))
        reached: list[dict[str, Any]] = []  # rows of values that get into a gap; the first one that harms says it
        excluded = 0
        for gap in gaps[:MAX_GAPS]:
            rows, proved = self._reach(boxes, gap)
            excluded += proved
            reached += rows
            harming = next((row for row in rows if self._harms(row)), None)
            if harming is not None:
                yield self._gap_mistake(harming, "error")
                return
        if reached:
            yield self._gap_mistake(reached[0], "warning")
        elif len(gaps) > excluded:
            values = {axis.name: axis.points[points[0]].value for axis, points in zip(boxes.axes, gaps[0], strict=True)}
            text = f"it is not proved that a row of table {self.table.name} always fits; {self._example(values)}"
            yield self._at_name("gap", text, "warning", "add a row that fits all, or say on_gap")

    def _gap_mistake(self, row: Mapping[str, Any], severity: str) -> Mistake:
        names = [*self.table.inputs, *self.world.base_names(self._let_programs())]
        values = dict(row) | {name: self.world.run(row).values[name] for name in self.table.inputs}
        text = (
            f"table {self.table.name} has no row for some values, which is a row error; {self._example(values, names)}"
        )
        return self._at_name("gap", text, severity, "add a row, or say with on_gap what holds there: null, or values")

    def _harms(self, row: Mapping[str, Any]) -> bool:
        """Whether the row error of the gap gets through to a rule, the score or an output."""
        world, result = self.world, self.world.run(row)
        compiled = world.compiled
        programs = [compiled.score, *(output.program for output in compiled.outputs)] if result.alive else []
        for rule in (*compiled.drops, *compiled.adjusts):
            if result.reached >> rule.bit & 1:
                programs += [p for p in (rule.condition, rule.set, rule.add, rule.multiply) if p is not None]
        outputs = {f"{self.table.name}.{out}" for out in self.table.outputs}
        reading = [program for program in programs if world.inline(program).names & outputs]
        return any(interpret_marked(program, result.values)[1] for program in reading)

    def _reach(self, boxes: Boxes, gap: list[list[int]]) -> tuple[list[dict[str, Any]], bool]:
        """Rows of values that get into a gap and to where the table is read; or the proof that there are none."""
        wanted: list[tuple[Program, bool | None]] = []
        for axis, points in zip(boxes.axes, gap, strict=True):
            if len(points) < len(axis.points):
                wanted.append((self._within(axis, points), True))
        read_by_drops = self._read_by_drops()
        survived = [] if read_by_drops else self.world.survived(self.world.compiled.drops)
        search = self.world.search([*wanted, *survived])
        part = search.example
        if part is None and not search.exact and survived:
            part = self.world.search(wanted).example
        out = []
        for row in self.world.fill(part) if part is not None else []:
            result = self.world.run(row)
            inputs = [result.values.get(name) for name in self.table.inputs]
            failed = any(value is ROW_ERROR for value in inputs)
            if not failed and (result.alive or read_by_drops) and not match_rows(self.table, result.values):
                out.append(row)
        return out, search.exact and search.example is None

    def _within(self, axis: Axis, points: Sequence[int]) -> Program:
        """That a name has one of these values, as a condition."""
        name = Step("name", axis.type, (), 0, 0, axis.name)
        if len(points) > 1 and len(points) * 2 > len(axis.points):
            rest = [at for at in range(len(axis.points)) if at not in set(points)]
            step = Step("not", BOOL, (_any_of([_is(axis, name, axis.points[at]) for at in rest]),), 0, 0)
        else:
            step = _any_of([_is(axis, name, axis.points[at]) for at in points])
        return self.world.inline(as_program(step))

    def _read_by_drops(self) -> bool:
        """Whether a drop rule reads an output, itself or through lets and tables."""
        reads: set[str] = set()
        todo = [name for rule in self.world.compiled.drops for name in rule.condition.names]
        lets = self.world.samples.let_programs
        tables = {f"{t.name}.{out}": t for t in self.world.compiled.strategy.tables.values() for out in t.outputs}
        while todo:
            name = todo.pop()
            if name not in reads:
                reads.add(name)
                todo += lets[name].names if name in lets else tables[name].inputs if name in tables else ()
        return any(f"{self.table.name}.{out}" in reads for out in self.table.outputs)

    def _let_programs(self) -> list[Program]:
        lets = self.world.samples.let_programs
        return [lets[name] for name in self.table.inputs if name in lets]

    # columns --------------------------------------------------------------------------------------------------------

    def _columns(self, boxes: Boxes) -> Iterator[Mistake]:
        """Columns without which every answer is the same."""
        if len(self.table.rows) < 2:
            return
        for column, axis in enumerate(boxes.axes):
            alike = len(boxes.groups[column]) < 2
            if alike or not (self._seen_to_matter(boxes, column) or boxes.answers_differ(column, self._answer)):
                cell = self.table.rows[0].cells[column]
                text = f"column {axis.name} never matters: the answers are the same whatever it is"
                yield replace(
                    self._cell(cell.line, cell.col, cell.col + max(1, len(cell.text)), "no-effect", text, "remove it"),
                    severity="warning",
                )

    def _seen_to_matter(self, boxes: Boxes, column: int) -> bool:
        """Whether a few combinations show it: a row's points, and others in its place in this column."""
        rng = random.Random(column)
        for row in rng.choices(range(boxes.num_rows), k=_LOOKS):
            box = boxes.box(row)
            if all(box):
                points = [rng.choice(list(ones(fits))) for fits in box]
                tried = [next(iter(group)) for group in boxes.groups[column].values()]
                tried = rng.sample(tried, min(_GUESSES, len(tried)))
                answers = {
                    self._answer(boxes.at([*points[:column], at, *points[column + 1 :]]))
                    for at in (points[column], *tried)
                }
                if len(answers) > 1:
                    return True
        return False

    def _answer(self, rows: int) -> Any:
        if not rows:
            return repr(gap_of(self.table))
        if self.table.hit == "collect":
            return repr(collected(self.table, list(ones(rows))))
        if self.table.hit == "unique" and rows & (rows - 1):
            return "row error"
        return repr(self.table.rows[next(ones(rows))].outputs)

    # messages -------------------------------------------------------------------------------------------------------

    def _example(self, values: Mapping[str, Any], names: Sequence[str] | None = None) -> str:
        kinds = dict(self.world.types) | dict(zip(self.table.inputs, self.types, strict=True))
        return example(values, names or self.table.inputs, kinds)

    def _in_csv(self, row: TableRow, kind: str, message: str, hint: str, column: int | None = None) -> Mistake:
        cells = row.cells if column is None else row.cells[column : column + 1]
        start = min(cells, key=lambda cell: cell.col)
        end = max(cell.col + max(1, len(cell.text)) for cell in cells)
        return self._cell(row.line, start.col, end, kind, message, hint)

    def _cell(self, line: int, col: int, end_col: int, kind: str, message: str, hint: str) -> Mistake:
        text = self.table.lines[line - 1] if line <= len(self.table.lines) else ""
        return Mistake(kind, self.table.file, line, col, end_col, message, hint, text)

    def _at_name(self, kind: str, message: str, severity: str, hint: str = "") -> Mistake:
        return found(self.table.source or _NOWHERE, kind, message, hint, severity=severity)

    def _not_decided(self, what: str) -> Mistake:
        text = f"table {self.table.name} is too large to say {what}: it is not decided"
        return self._at_name("not-decided", text, "warning", "split the table")


def _reached(boxes: Boxes, box: Sequence[int], by: int, rng: random.Random) -> bool:
    """Whether a few combinations in a box show one that none of the rows `by` fits."""
    choices = [list(ones(points)) for points in box]
    return any(not boxes.at([rng.choice(points) for points in choices]) & by for _ in range(_GUESSES))


def _inside(box: Sequence[int], other: Sequence[int]) -> bool:
    return all(not points & ~wider for points, wider in zip(box, other, strict=True))


def _bounds(axis: Axis) -> str:
    numbers = [point for point in axis.points if point.low is not None]
    if not numbers:
        return ""
    return f"{axis.name} is from {shown(numbers[0].low)} to {shown(numbers[-1].high)}"


def _is(axis: Axis, name: Step, point: Point) -> Step:
    """The condition that a name's value is in a point."""
    kind = axis.type.kind
    if point.value is None:
        return Step("is_null", BOOL, (name,), 0, 0)
    present = [Step("not", BOOL, (Step("is_null", BOOL, (name,), 0, 0),), 0, 0)] if axis.type.nullable else []
    if point.other:
        parts = [_compare("ne_string", name, text) for text in axis.texts]
    elif point.value != point.value:
        parts = [Step("is_nan", BOOL, (name,), 0, 0)]
    elif point.low is None or point.low == point.high:
        parts = [_compare(f"eq_{kind}", name, point.value)]
    else:
        parts = [_compare(f"ge_{kind}", name, point.low), _compare(f"le_{kind}", name, point.high)]
    parts = [*present, *parts]
    return parts[0] if len(parts) == 1 else Step("and", BOOL, tuple(parts) or (_TRUE, _TRUE), 0, 0)


def _any_of(steps: Sequence[Step]) -> Step:
    return steps[0] if len(steps) == 1 else Step("or", BOOL, tuple(steps), 0, 0)


def _compare(step: str, name: Step, value: Any) -> Step:
    return Step(step, BOOL, (name, Step("const", name.type.required(), (), 0, 0, value)), 0, 0)


_TRUE: Final = Step("const", BOOL, (), 0, 0, True)

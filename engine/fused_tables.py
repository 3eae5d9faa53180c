"""A small decision table as values of the fused loop: every row's match, then a choice from the last row to the first.

Rows that ask for what a whole request shares are matched once per request, not once per candidate. A table that is too
large, collects, or asks for or answers something that is no loop's stays a lookup before the loop (`engine/table.py`, which
defines what a table means).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from engine.strategy import Cell, Table
from features.expr import Program, SourceText, Type
from features.expr.program import Step
from features.expr.ssa import LOOP_KINDS, Graph, Input

MOST_CELLS: Final = 96  # in the loop each costs a candidate a fraction of a nanosecond
_BOOL: Final = Type("bool")


def table_in_loop(table: Table, inputs: Mapping[str, Input]) -> dict[str, Callable[[Graph], int]] | None:
    """What makes each output, `table.output` to a function of the graph; None for a table that is not for the loop.

    inputs: what is known of the names that the table reads, texts among them.
    """
    if table.hit == "collect" or len(table.rows) * len(table.inputs) > MOST_CELLS:
        return None
    if any(kind.kind not in LOOP_KINDS for kind in table.outputs.values()):
        return None
    for at, name in enumerate(table.inputs):
        if not all(_fits(row.cells[at], inputs[name].kind) for row in table.rows):
            return None
    return {
        f"{table.name}.{output}": _maker(table, inputs, at, kind.kind)
        for at, (output, kind) in enumerate(table.outputs.items())
    }


def _fits(cell: Cell, kind: str) -> bool:
    if cell.kind in ("any", "null"):
        return True
    values = cell.values if cell.kind == "values" else [end for end in (cell.low, cell.high) if end is not None]
    wanted = {"string": str, "bool": bool, "double": float, "int": int}.get(kind)
    if wanted is None or (kind == "string" and cell.kind == "range"):
        return False
    return all(type(value) is wanted or (kind == "double" and _exact(value)) for value in values)


def _exact(value: object) -> bool:
    return type(value) is int and int(float(value)) == value


def _maker(table: Table, inputs: Mapping[str, Input], output: int, kind: str) -> Callable[[Graph], int]:
    def make(graph: Graph) -> int:
        matches = [_match(graph, table, inputs, row) for row in range(len(table.rows))]
        found = _gap(graph, table, output, kind)
        for row in range(len(table.rows) - 1, -1, -1):
            answer = _constant(graph, kind, table.rows[row].outputs[output])
            found = graph.make("if", kind, matches[row], answer, found)
        if table.hit == "unique":
            found = graph.make("if", kind, _two(graph, matches), graph.fail(kind), found)
        return _guarded(graph, inputs, table.inputs, kind, found)

    return make


def _match(graph: Graph, table: Table, inputs: Mapping[str, Input], row: int) -> int:
    """Whether all cells of a row accept."""
    cells = zip(table.rows[row].cells, table.inputs, strict=True)
    return graph.make("and", "bool", *(_accepts(graph, cell, inputs[name]) for cell, name in cells))


def _accepts(graph: Graph, cell: Cell, given: Input) -> int:
    """`engine.table.accepts`: null fits `any` and `null` alone."""
    if cell.kind == "any":
        return graph.constant("bool", True)
    if given.kind == "string":
        return graph.add(_text_predicate(cell, given))
    value = graph.name(given.name)
    if cell.kind == "null":
        return graph.make("is_null", "bool", value)
    if cell.kind == "values":
        options = [_constant(graph, given.kind, option) for option in cell.values]
        tests = [graph.make(f"in_{given.kind}", "bool", value, *options)]
    else:
        ends = ((cell.low, "gt" if cell.low_open else "ge"), (cell.high, "lt" if cell.high_open else "le"))
        tests = [
            graph.make(f"{order}_{given.kind}", "bool", value, _constant(graph, given.kind, end))
            for end, order in ends
            if end is not None
        ]
        known = graph.make("not", "bool", graph.make("is_null", "bool", value))
        tests = tests or [known]
    return graph.make("coalesce", "bool", graph.make("and", "bool", *tests), graph.constant("bool", False))


def _text_predicate(cell: Cell, given: Input) -> Program:
    name = Step("name", Type("string", given.nullable), (), 0, 0, given.name)
    if cell.kind == "null":
        root = Step("is_null", _BOOL, (name,), 0, 0)
    else:
        options = (Step("const", Type("string"), (), 0, 0, option) for option in cell.values)
        found = Step("in_string", Type("bool", given.nullable), (name, *options), 0, 0)
        root = Step("coalesce", _BOOL, (found, Step("const", _BOOL, (), 0, 0, False)), 0, 0)
    return Program(_BOOL, frozenset({given.name}), SourceText(""), root)


def _gap(graph: Graph, table: Table, output: int, kind: str) -> int:
    if table.on_gap == "error":
        return graph.fail(kind)
    return _constant(graph, kind, None if table.on_gap == "null" else table.gap_values[list(table.outputs)[output]])


def _two(graph: Graph, matches: list[int]) -> int:
    """Whether more than one row matches."""
    before, two = graph.constant("bool", False), graph.constant("bool", False)
    for match in matches:
        two = graph.make("or", "bool", two, graph.make("and", "bool", before, match))
        before = graph.make("or", "bool", before, match)
    return two


def _guarded(graph: Graph, inputs: Mapping[str, Input], names: tuple[str, ...], kind: str, found: int) -> int:
    """A row error of any input is one of the output, even where the row that matches does not look at it."""
    guard = graph.constant("bool", True)
    for name in names:
        if not inputs[name].fails:
            continue
        if inputs[name].kind == "string":
            step = Step("is_null", _BOOL, (Step("name", Type("string", True), (), 0, 0, name),), 0, 0)
            null = graph.add(Program(_BOOL, frozenset({name}), SourceText(""), step))
        else:
            null = graph.make("is_null", "bool", graph.name(name))
        either = graph.make("or", "bool", null, graph.make("not", "bool", null))  # true, or the error
        guard = graph.make("and", "bool", guard, either)
    return graph.make("if", kind, guard, found, _constant(graph, kind, None))


def _constant(graph: Graph, kind: str, value: object) -> int:
    return graph.constant(kind, float(value) if kind == "double" and isinstance(value, int) else value)

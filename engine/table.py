"""Decision tables as they run: which row of a table fits, for one candidate and for all of them at once.

`look_up_row` defines a table, slowly; `CompiledTable.lookup` is its fast form (`engine/table_index.py` says how).
`engine/table_csv.py` reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.strategy import Cell, Table
from engine.table_index import TableIndex
from features.expr import ROW_ERROR, Column
from features.expr.types import INT_MAX, INT_MIN


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledTable:
    """A table whose inputs are typed. `lookup` is the fast form of `look_up_row`."""

    table: Table
    index: TableIndex

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(self.table.inputs)

    @property
    def makes(self) -> tuple[str, ...]:
        """The names of its columns: `table.output`."""
        return tuple(f"{self.name}.{output}" for output in self.table.outputs)

    def lookup(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """The outputs, `table.output` to column; length 1 when every input has length 1.

        A row error in an input is a row error of every output.
        """
        found = self.index.lookup([columns[name] for name in self.table.inputs])
        return dict(zip(self.makes, found, strict=True))


def compile_table(table: Table, kinds: Sequence[str]) -> CompiledTable:
    """Lay a table out for lookups. `kinds` are those of its inputs."""
    gap = gap_of(table)
    rows = [row.outputs for row in table.rows] if table.hit != "collect" else []
    index = TableIndex(
        cells=[row.cells for row in table.rows],
        kinds=kinds,
        out_kinds=[kind.kind for kind in table.outputs.values()],
        answers=[*rows, gap, [ROW_ERROR] * len(gap)],
        hit=table.hit,
        collect=lambda at: collected(table, at),
    )
    return CompiledTable(table=table, index=index)


def accepts(cell: Cell, value: Any) -> bool:
    """Whether a cell fits a value; None is null. NaN fits `any` alone."""
    if cell.kind == "any":
        return True
    if value is None:
        return cell.kind == "null"
    if cell.kind == "values":
        return value in cell.values
    if cell.kind == "null":
        return False
    above = cell.low is None or (value > cell.low if cell.low_open else value >= cell.low)
    below = cell.high is None or (value < cell.high if cell.high_open else value <= cell.high)
    return above and below


def match_rows(table: Table, values: Mapping[str, Any]) -> list[int]:
    """The rows that fit, first one first: what defines a table."""
    given = [values[name] for name in table.inputs]
    return [
        at
        for at, row in enumerate(table.rows)
        if all(accepts(cell, value) for cell, value in zip(row.cells, given, strict=True))
    ]


def look_up_row(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs for one candidate, `table.output` to value; None is null, ROW_ERROR a row error.

    A row error of an input is one of every output. Two rows that fit a `unique` table are a row error, too.
    """
    if any(values[name] is ROW_ERROR for name in table.inputs):
        answer: Sequence[Any] = [ROW_ERROR] * len(table.outputs)
    else:
        answer = _answer(table, match_rows(table, values))
    return {f"{table.name}.{name}": value for name, value in zip(table.outputs, answer, strict=True)}


def _answer(table: Table, rows: list[int]) -> Sequence[Any]:
    if not rows:
        return gap_of(table)
    if table.hit == "collect":
        return collected(table, rows)
    if table.hit == "unique" and len(rows) > 1:
        return [ROW_ERROR] * len(table.outputs)
    return table.rows[rows[0]].outputs


def gap_of(table: Table) -> list[Any]:
    """What every output is where no row fits."""
    if table.on_gap == "default":
        return [table.gap_values[name] for name in table.outputs]
    return [None if table.on_gap == "null" else ROW_ERROR] * len(table.outputs)


def collected(table: Table, rows: Sequence[int]) -> list[Any]:
    """Every output over the rows that fit, at least one. Nulls do not count; nothing but nulls is null (for count: 0).

    Doubles are added in row order. A whole number that no longer fits 64 bits is a row error.
    """
    out: list[Any] = []
    for at in range(len(table.outputs)):
        known = [value for row in rows if (value := table.rows[row].outputs[at]) is not None]
        if table.collect == "count":
            out.append(len(known))
        elif not known:
            out.append(None)
        elif table.collect == "sum":
            total = sum(known[1:], known[0])
            fits = isinstance(total, float) or INT_MIN <= total <= INT_MAX
            out.append(total if fits else ROW_ERROR)
        else:
            out.append(min(known) if table.collect == "min" else max(known))
    return out

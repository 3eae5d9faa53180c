"""Decision tables as they run: which row of a table fits, for one candidate and for all of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.strategy import Cell, Table
from features.expr import Column


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledTable:
    """A table whose inputs are typed. `lookup` is the fast form of `match_row`."""

    table: Table

    @property
    def name(self) -> str:
        return self.table.name

    def lookup(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """The outputs, `table.output` to column; length 1 when every input has length 1.

        A row error in an input is a row error of every output.
        """
        raise NotImplementedError


def accepts(cell: Cell, value: Any) -> bool:
    """Whether a cell fits a value; None is null."""
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

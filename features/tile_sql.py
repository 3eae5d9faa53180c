"""The SQL of tile groups, for Flink and DuckDB: the rows that a GROUP BY reads, and the aggregates over them.

    source ─► rows: key columns, number of the row, what the partials need ─► GROUP BY key, row ─► one number per partial

The feature job (pipelines/sql.py) and the backfill write the same tiles because both take them from here. What the SQL
means is defined by `aggregate.py`; where the two databases differ from it or from each other, the text bends them: sums
of DuckDB's are wide and wrap here as Flink's do, and a double that is no finite number is NULL in both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from features.aggregate import MOMENT_BITS
from features.buckets import sql_bucket, sql_double, sql_quantized
from features.declared import INT32
from features.expr import Program, to_sql
from features.expr.sql import Dialect
from features.spec import LastGroup, Partial, TileGroup, text_of
from features.window import sql_tile

ROW: Final = "tile"  # the column with the number of the row
_QUOTES: Final = {"flink": "`", "duckdb": '"'}
_DIVIDE: Final = {"flink": "/", "duckdb": "//"}
_LEAST: Final = "-9223372036854775807 - 1"  # the digits of -2^63 alone are beyond BIGINT
_GREATEST: Final = "9223372036854775807"


class TileSql:
    """One group's SQL in one dialect."""

    def __init__(self, group: TileGroup, dialect: Dialect, *, arrival: str | None = None) -> None:
        """`arrival`: what DuckDB orders the rows of a tile by when it adds doubles; Flink adds them as they come.

        Raises: ValueError for an unknown dialect.
        """
        if dialect not in _QUOTES:
            raise ValueError(f"unknown dialect {dialect!r}; known: flink, duckdb")
        self.group, self.dialect = group, dialect
        self._order = "" if arrival is None else f" ORDER BY {arrival}"
        self._steps = self._step_columns()

    def rows(self, source: str, carried: Sequence[str], condition: str, *, event_time: str | None = None) -> str:
        """A SELECT of the records that a group counts: `carried`, the row's number, and what the partials need.

        `source` is what stands behind FROM; `carried` are select items; `condition` leaves out records without a key.
        `event_time` is an expression of the epoch milliseconds, the source's column where it is None.
        """
        group, source_columns = self.group, self.group.source.schema
        tile = sql_tile(event_time or self.quoted(group.source.event_time), group.hop_ms, self.dialect)
        if group.buckets is not None:
            tile = f"{tile} * {group.rows_per_tile} + {sql_bucket(self.quoted('steps_0'), dialect=self.dialect)}"
        needed = {name for p in group.partials if p.resolution is None for name in _names(p.of)}
        needed |= {name for p in group.partials if p.resolution is None for name in _names(p.where)}
        columns = [self.quoted(name) for name in source_columns if name in needed]
        columns += [self.quoted(name) for name in self._steps if group.buckets is None]
        items = ", ".join([*carried, f"{tile} AS {self.quoted(ROW)}", *columns])
        if not self._steps:
            return f"SELECT {items}\nFROM {source}\nWHERE {condition}"
        steps = ", ".join(f"{text} AS {self.quoted(name)}" for name, text in self._steps.items())
        return f"SELECT {items}\nFROM (\n  SELECT *, {steps}\n  FROM {source}\n  WHERE {condition}\n)"

    def partials(self) -> list[str]:
        """One aggregate per partial, in their order. Integers are BIGINT and never NULL."""
        return [self._moment(p) if p.resolution is not None else self._plain(p) for p in self.group.partials]

    def quoted(self, name: str) -> str:
        quote = _QUOTES[self.dialect]
        return f"{quote}{name}{quote}"

    def program(self, program: Program) -> str:
        """An expression over the source's columns."""
        return to_sql(program, self.dialect, self.quoted)

    def _plain(self, partial: Partial) -> str:
        kept = "" if partial.where is None else f" FILTER (WHERE {self.program(partial.where)})"
        if partial.of is None:
            return f"COUNT(*){kept}"
        value = self._value(partial.of)
        if partial.function == "count":
            return f"COUNT({value}){kept}"
        if partial.type == "int":
            value = f"CAST({value} AS BIGINT)"
        if partial.function == "sum":
            return self._sum(value, kept, partial.type)
        text = f"{partial.function.upper()}({value}){kept}"
        if partial.type == "int":  # the identity: it changes nothing when tiles are merged
            return f"COALESCE({text}, {_GREATEST if partial.function == 'min' else _LEAST})"
        if self.dialect == "flink":  # NULL, which the writer turns into the identity
            return text
        return f"COALESCE({text}, '{'' if partial.function == 'min' else '-'}inf'::DOUBLE)"

    def _value(self, of: Program) -> str:
        text = self.program(of)
        if of.type.kind != "double":
            return text
        # Not NaN and not infinite: NaN compares as false in Flink, and as above everything in DuckDB.
        limit = sql_double(sys.float_info.max)
        return f"CASE WHEN {text} >= -{limit} AND {text} <= {limit} THEN {text} END"

    def _sum(self, value: str, kept: str, type_name: str) -> str:
        if type_name == "double":
            return f"COALESCE(SUM({value}{self._order}){kept}, {sql_double(0.0)})"
        if self.dialect == "flink":
            return f"COALESCE(SUM({value}){kept}, CAST(0 AS BIGINT))"
        wide = f"COALESCE(SUM({value}){kept}, 0)"  # a HUGEINT
        turns = 2**64
        return f"CAST(({wide} % {turns} + {turns + 2**63}) % {turns} - {2**63} AS BIGINT)"

    def _moment(self, partial: Partial) -> str:
        q, limb = self.quoted(self._step_name(partial)), 1 << MOMENT_BITS
        if partial.function == "moment_n":
            return f"COUNT({q})"
        low = f"CAST(MOD(MOD({q}, {limb}) + {limb}, {limb}) AS BIGINT)"  # Flink's MOD has its divisor's type, INT
        high = f"(({q} - {low}) {_DIVIDE[self.dialect]} {limb})"
        term = {
            "moment_q": q,
            "moment_aa": f"{low} * {low}",
            "moment_ab": f"{low} * {high}",
            "moment_bb": f"{high} * {high}",
        }[partial.function]
        return self._sum(term, "", "int")

    def _step_columns(self) -> dict[str, str]:
        """The values in steps of a resolution that moments and buckets are made of: steps_0, steps_1, … and their SQL."""
        group = self.group
        if group.buckets is not None:
            buckets = group.buckets
            return {"steps_0": self._steps_of(buckets.of, buckets.where, buckets.resolution)}
        out: dict[str, str] = {}
        for partial in group.partials:
            if partial.resolution is not None and partial.of is not None:
                out.setdefault(self._step_name(partial), self._steps_of(partial.of, partial.where, partial.resolution))
        return out

    def _step_name(self, partial: Partial) -> str:
        """Columns of a source with such a name would be in the way; none of a record is."""
        kinds = sorted({_kind(p) for p in self.group.partials if p.resolution is not None})
        return f"steps_{kinds.index(_kind(partial))}"

    def _steps_of(self, of: Program, where: Program | None, resolution: float) -> str:
        steps = sql_quantized(self.program(of), of.type.kind, resolution, dialect=self.dialect)
        return steps if where is None else f"CASE WHEN {self.program(where)} THEN {steps} END"


def key_condition(group: TileGroup | LastGroup, dialect: Dialect) -> str:
    """Whether a record has the group's key, as `Entity.key_of` says it."""
    quote, parts = _QUOTES[dialect], []
    for column, field in zip(group.entity.keys, group.key_fields, strict=True):
        name = f"{quote}{field}{quote}"
        parts.append(f"{name} BETWEEN {INT32[0]} AND {INT32[1]}" if column.type == "int32" else f"{name} IS NOT NULL")
    return " AND ".join(parts)


def _kind(partial: Partial) -> tuple[str, str, str]:
    return text_of(partial.of), text_of(partial.where), repr(partial.resolution)


def _names(program: Program | None) -> frozenset[str]:
    return frozenset() if program is None else frozenset(program.names)

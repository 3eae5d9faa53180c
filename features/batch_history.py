"""Batch rows as of each row of a frame: the latest that was known, by one ASOF join, whatever order they came in.

A row is *in force* from `from_us` on: its event time, and where the source has an ingest time the moment behind that.
Of the rows of a key in order of `from_us`, only those whose (event time, ingest time) is the highest so far can ever be
the answer; without the others both rise together, so the last one in force at t is the latest one known at t. All of
this is done with times and places in the files alone; the values of the rows that were found are read at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from features.parquet import Files, files_of, keys_hold, open_files, quoted
from features.rows import empty_column
from features.spec import BatchSource, FeatureView

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PLACE: Final = "(file_index::BIGINT << 40) + file_row_number"
_ORDER: Final = "event_ms::HUGEINT * 18446744073709551616 + created_us"  # one number that orders both


@dataclass(frozen=True)
class BatchRows:
    """`table`: k0 …, from_us, event_ms, created_us, until_ms, place of the rows that can be an answer; `values`: the SQL of
    the columns that are served, by their name in the files."""

    table: str
    files: Files
    keys: Sequence[str]
    values: dict[str, str]


@dataclass(frozen=True)
class RowColumns:
    """(R,) each: whether a row is in force, its event time, and by column (values, whether not null)."""

    there: NDArray[np.bool_]
    event_ms: NDArray[np.int64]
    columns: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]]


def load_rows(
    connection: DuckDBPyConnection,
    view: FeatureView,
    source: BatchSource,
    folder: Path,
    until_ms: int,
    *,
    name: str = "",
    event_time_only: bool = False,
) -> BatchRows:
    """Find the rows that can be an answer up to `until_ms`, into a table that `name` tells from others.

    Raises: HistoryError for files that do not fit.
    """
    what = f"source {source.name}"
    files = open_files(connection, files_of(source.path, folder, what), what)
    keys = [f"k{i}" for i in range(len(view.key_fields))]
    columns = dict.fromkeys(spec.column for spec in view.features if spec.column is not None)
    rows = BatchRows(f"rows_{name or view.name}", files, keys, {c: files.column(c, source.schema[c]) for c in columns})
    event, known = files.column(source.event_time, "timestamp"), event_time_only or source.ingest_time is None
    created = "0" if source.ingest_time is None else files.micros(source.ingest_time)
    items = [
        f"{files.column(field, source.schema[field])} AS {k}" for k, field in zip(keys, view.key_fields, strict=True)
    ]
    items += [
        f"{event} AS event_ms",
        f"{created} AS created_us",
        f"{f'1000 * ({event})' if known else f'greatest(1000 * ({event}), {created} + 1)'} AS from_us",
        f"{files.column(source.valid_to, 'timestamp') if source.valid_to else 'CAST(NULL AS BIGINT)'} AS until_ms",
        f"{_PLACE} AS place",
    ]
    where = f"{keys_hold(view.entity, keys)} AND event_ms IS NOT NULL AND created_us IS NOT NULL AND from_us <= {1000 * until_ms}"
    by = ", ".join(keys)
    # Without ingest times a row is in force from its event time on, so those rise by themselves.
    highest = "" if known else f"QUALIFY {_ORDER} = max({_ORDER}) OVER (PARTITION BY {by} ORDER BY from_us)"
    connection.execute(
        f"CREATE OR REPLACE TABLE {quoted(rows.table)} AS "
        f"SELECT * FROM (SELECT {', '.join(items)} FROM {files.relation}) WHERE {where} {highest}"
    )
    _drop_ties(connection, rows, by, "event_ms" if known else "event_ms, created_us")
    return rows


def _drop_ties(connection: DuckDBPyConnection, rows: BatchRows, by: str, same: str) -> None:
    """Of rows with one key and time the last made stays, of copies of that the first in the files."""
    table = quoted(rows.table)
    ties = f"SELECT 1 FROM {table} GROUP BY {by}, {same} HAVING count(*) > 1 LIMIT 1"
    if connection.execute(ties).fetchall():
        connection.execute(
            f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM {table} "
            f"QUALIFY row_number() OVER (PARTITION BY {by}, {same} ORDER BY created_us DESC, place) = 1"
        )


def row_columns(connection: DuckDBPyConnection, rows: BatchRows, types: dict[str, str], num_rows: int) -> RowColumns:
    """The rows in force at the chunk's times (the registered table `asks`). `types`: of the columns."""
    same = " AND ".join(f"a.{k} = r.{k}" for k in rows.keys)
    connection.execute(
        f"CREATE OR REPLACE TABLE found AS SELECT a.ask, r.event_ms, r.place FROM asks a ASOF JOIN {quoted(rows.table)} r "
        f"ON {same} AND 1000 * a.t >= r.from_us WHERE r.until_ms IS NULL OR r.until_ms > a.t"
    )
    found = connection.sql(values_query(rows, "ask, event_ms")).to_arrow_table()
    at = found.column("ask").to_numpy()
    there, event_ms = np.zeros(num_rows, dtype=bool), np.zeros(num_rows, dtype=np.int64)
    there[at], event_ms[at] = True, found.column("event_ms").to_numpy()
    columns = {}
    for i, name in enumerate(rows.values):
        column = found.column(f"v{i}").combine_chunks()
        values_R, known_R = empty_column(types[name], num_rows), np.zeros(num_rows, dtype=bool)
        known = np.asarray(column.is_valid())
        known_R[at] = known
        values_R[at[known]] = column.drop_null().to_numpy(zero_copy_only=False)
        columns[name] = values_R, known_R
    return RowColumns(there, event_ms, columns)


def values_query(rows: BatchRows, carried: str) -> str:
    """`carried` columns of the table `found`, and v0 … of the rows at its places."""
    values = ", ".join([f"{_PLACE} AS here", *(f"{text} AS v{i}" for i, text in enumerate(rows.values.values()))])
    names = ", ".join([carried, *(f"v{i}" for i in range(len(rows.values)))])
    return f"SELECT {names} FROM found JOIN (SELECT {values} FROM {rows.files.relation}) ON here = place"

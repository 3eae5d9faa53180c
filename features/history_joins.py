"""One role's values as of each row of a frame: tiles, last values and batch rows as they were known then, by DuckDB.

    asks (ask, t, k0, k1 …) ─┬─ tiles that had closed for longer than the disorder bound ── joined ready-made ─┐
                             └─ newer ones ── counted again from the events with ingest < t ──────────────────┴─► merge
                             ├─ last, first ── the newest record known before t: ASOF over ingest times
                             └─ batch rows ─── the newest row known at t: ASOF over the time of both

Tiles come out with numbers relative to each ask's own, so one window stands for all asks, and features/merge.py, which
serves online reads, merges and finishes them: DuckDB only counts. `features/history.py` calls this chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.expr import Program, to_sql
from features.merge import WindowRead, finish, reduce_window
from features.packing import NUM_FIXED_CELLS, partial_cells
from features.parquet import EventTables, fetch_dict, keys_hold, quoted
from features.rows import empty_column
from features.spec import LastField, LastGroup, TileGroup
from features.tile_sql import TileSql
from features.window import num_whole_tiles, sql_tile

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BATCH_CELLS: Final = 4 << 20  # 8-byte cells of tiles that are held at once
_TYPES: Final = {"int": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}


def create_tiles(connection: DuckDBPyConnection, group: TileGroup, events: EventTables, *, name: str) -> None:
    """A table of every row of a group over the used events, whole: k0 …, tile (the row's number), n, partials."""
    connection.execute(
        f"CREATE OR REPLACE TABLE {quoted(name)} AS SELECT {_keys(group)}, tile, {_aggregates(group)} "
        f"FROM ({_rows(group, events)}) GROUP BY {_keys(group)}, tile"
    )


def window_columns(
    connection: DuckDBPyConnection,
    group: TileGroup,
    windows: Sequence[WindowRead],
    events: EventTables,
    tiles: str,
    num_rows: int,
    *,
    disorder_ms: int,
) -> dict[int, tuple[NDArray[Any], NDArray[np.bool_]]]:
    """(values, whether known) by the feature's place, of a chunk's rows. `asks` is the registered table of the chunk."""
    out: dict[int, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
    for window in windows:
        for place, spec, _ in window.features:
            out[place] = (empty_column(spec.type, num_rows), np.ones(num_rows, dtype=bool))
    span = max(num_whole_tiles(window.window_ms, group.hop_ms) for window in windows)
    query = _cells_query(group, events, tiles, span, disorder_ms)
    for first, last, cells, rows in _parts(connection, group, query, num_rows):
        for window in windows:
            oldest = -num_whole_tiles(window.window_ms, group.hop_ms)
            merged = reduce_window(cells, rows, last - first, oldest, 0, window)
            for place, spec, partials in window.features:
                values, known = finish(spec, [merged[p] for p in partials], group, partials)
                out[place][0][first:last] = values
                if known is not None:
                    out[place][1][first:last] = known
    return out


def _cells_query(group: TileGroup, events: EventTables, tiles: str, span: int, disorder_ms: int) -> str:
    """(ask, row relative to the ask's own tile, n, partials), in no order.

    A tile that ended `disorder_ms` before t has all its used events: later ones would be late.
    """
    same = " AND ".join(f"w.k{i} = e.k{i}" for i in range(len(group.key_fields)))
    names = "".join(f", {partial.name}" for partial in group.partials)
    number = sql_tile("e.tile", group.rows_per_tile, "duckdb")  # of the tile that the row belongs to
    relative = f"e.tile - w.now * {group.rows_per_tile}"
    settled = f"(w.now - w.back + 1) * {group.hop_ms} + {disorder_ms} <= w.t"
    newest_settled, oldest_fresh = disorder_ms // group.hop_ms, disorder_ms // group.hop_ms + 1

    def wanted(first: int, last: int) -> str:
        listed = f"SELECT *, unnest(range({first}, {last + 1})) AS back FROM asks"
        return f"(SELECT *, {sql_tile('t', group.hop_ms, 'duckdb')} AS now FROM ({listed})) w"

    return f"""
        SELECT w.ask AS ask, {relative} AS rel, n{names}
        FROM {wanted(newest_settled, span)} JOIN {quoted(tiles)} e ON {same} AND {number} = w.now - w.back
        WHERE {settled}
        UNION ALL
        SELECT w.ask, {relative} AS rel, {_aggregates(group)}
        FROM {wanted(0, min(oldest_fresh, span))} JOIN ({_rows(group, events)}) e ON {same} AND {number} = w.now - w.back
        WHERE NOT ({settled}) AND e.ingest_ms < w.t
        GROUP BY w.ask, w.now, e.tile"""


def _parts(
    connection: DuckDBPyConnection, group: TileGroup, query: str, num_rows: int
) -> Iterator[tuple[int, int, NDArray[np.int64], NDArray[np.int64]]]:
    """(first ask, ask behind the last, their cells, newest first, of which ask each is, from 0), until all asks are
    through. The whole may be larger than memory, so DuckDB keeps it, and each part is about BATCH_CELLS large."""
    connection.execute(f"CREATE OR REPLACE TABLE cells AS {query}")
    width = NUM_FIXED_CELLS + len(group.partials)
    total = int(fetch_dict(connection, "SELECT count(*) AS n FROM cells")["n"])
    step = max(BATCH_CELLS * num_rows // max(width * total, 1), 1)
    for first in range(0, num_rows, step):
        last = min(first + step, num_rows)
        part = connection.sql(
            f"SELECT * FROM cells WHERE ask >= {first} AND ask < {last} ORDER BY ask, rel DESC"
        ).to_arrow_table()
        yield first, last, _cells(group, part), part.column("ask").to_numpy() - first
    connection.execute("DROP TABLE cells")


def _cells(group: TileGroup, part: pa.Table) -> NDArray[np.int64]:
    cells = np.empty((part.num_rows, NUM_FIXED_CELLS + len(group.partials)), dtype="<i8")
    for place in range(NUM_FIXED_CELLS):
        cells[:, place] = part.column(1 + place).to_numpy()
    for place, partial in enumerate(group.partials, start=NUM_FIXED_CELLS):
        column = partial_cells(partial, part.column(1 + place).to_numpy())
        cells[:, place] = column.view("<i8") if partial.type == "double" else column
    return cells


def create_last(
    connection: DuckDBPyConnection, group: LastGroup, field: LastField, events: EventTables, *, name: str
) -> None:
    """A table of the events that were, when they arrived, the newest (oldest) of their key: k0 …, known_ms, event_ms, value.

    Sorted by arrival their event times only rise (fall), so the one known before t is the last that arrived before t.
    """
    keys = ", ".join(f"{quoted(key)} AS k{i}" for i, key in enumerate(group.key_fields))
    by = _keys(group)
    best = "max" if field.newest else "min"
    value = last_value_sql(field)
    connection.execute(
        f"""CREATE OR REPLACE TABLE {quoted(name)} AS
        WITH candidates AS (
          SELECT {keys}, ingest_ms, event_ms, place, {quoted(group.source.event_id)} AS id, {value} AS value
          FROM {quoted(events.used)} WHERE {keyed(group)}
        ), by_time AS (
          SELECT * FROM candidates WHERE value IS NOT NULL
          QUALIFY event_ms = {best}(event_ms) OVER (PARTITION BY {by} ORDER BY ingest_ms)
        ), by_id AS (
          SELECT * FROM by_time QUALIFY id = {best}(id) OVER (PARTITION BY {by}, event_ms ORDER BY ingest_ms)
        )
        SELECT {by}, ingest_ms AS known_ms, event_ms, value FROM by_id
        QUALIFY row_number() OVER (PARTITION BY {by}, event_ms, id ORDER BY ingest_ms, place) = 1"""
    )


def last_column(
    connection: DuckDBPyConnection, group: LastGroup, field: LastField, table: str, num_rows: int
) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.int64]]:
    """(values, whether there is one, event times) of a chunk's rows."""
    same = " AND ".join(f"a.k{i} = r.k{i}" for i in range(len(group.key_fields)))
    found = connection.sql(
        f"SELECT a.ask, r.event_ms, r.value FROM asks a ASOF JOIN {quoted(table)} r ON {same} AND a.t > r.known_ms"
    ).to_arrow_table()
    values, known = empty_column(field.type, num_rows), np.zeros(num_rows, dtype=bool)
    times = np.zeros(num_rows, dtype=np.int64)
    at = found.column(0).to_numpy()
    values[at], known[at], times[at] = found.column(2).to_numpy(zero_copy_only=False), True, found.column(1).to_numpy()
    return values, known, times


def final_last_sql(group: LastGroup, events: EventTables) -> str:
    """A query of the winners among all used events: k0 …, event_ms, id and a column per field, NULL where it did not win."""
    keys = ", ".join(f"{quoted(key)} AS k{i}" for i, key in enumerate(group.key_fields))
    parts = []
    for field in group.fields:
        down = " DESC" if field.newest else ""
        columns = ", ".join(
            f"{'value' if other is field else f'CAST(NULL AS {_TYPES[other.type]})'} AS {other.name}"
            for other in group.fields
        )
        parts.append(
            f"SELECT {_keys(group)}, event_ms, id, {columns} FROM (SELECT {keys}, event_ms, ingest_ms, place, "
            f"{quoted(group.source.event_id)} AS id, {last_value_sql(field)} AS value FROM {quoted(events.used)} "
            f"WHERE {keyed(group)}) WHERE value IS NOT NULL QUALIFY row_number() OVER (PARTITION BY {_keys(group)} "
            f"ORDER BY event_ms{down}, id{down}, ingest_ms, place) = 1"
        )
    return " UNION ALL ".join(parts)


def heard_before(connection: DuckDBPyConnection, events: EventTables, num_rows: int) -> NDArray[np.int64]:
    """(R,) the newest ingest time of the source before each row's time, of any record; the least int64 for none.

    What the heartbeat is online: a source that has gone silent is stale, whatever the row's key.
    """
    out = np.full(num_rows, np.iinfo(np.int64).min)
    found = connection.sql(
        f"SELECT a.ask, s.ingest_ms FROM asks a ASOF JOIN {quoted(events.seen)} s ON a.t > s.ingest_ms"
    ).to_arrow_table()
    out[found.column(0).to_numpy()] = found.column(1).to_numpy()
    return out


def _rows(group: TileGroup, events: EventTables) -> str:
    keys = [f"{quoted(field)} AS k{i}" for i, field in enumerate(group.key_fields)]
    return _sql_of(group).rows(quoted(events.used), [*keys, "ingest_ms", "place"], keyed(group), event_time="event_ms")


def _aggregates(group: TileGroup) -> str:
    named = [f"{text} AS {p.name}" for text, p in zip(_sql_of(group).partials(), group.partials, strict=True)]
    return ", ".join(["count(*) AS n", *named])


def _sql_of(group: TileGroup) -> TileSql:
    """Doubles are added in the order of arrival, as the job does."""
    return TileSql(group, "duckdb", arrival="ingest_ms, place")


def _keys(group: TileGroup | LastGroup) -> str:
    return ", ".join(f"k{i}" for i in range(len(group.key_fields)))


def keyed(group: TileGroup | LastGroup) -> str:
    return keys_hold(group.entity, [quoted(field) for field in group.key_fields])


def columns_of(group: TileGroup | LastGroup) -> set[str]:
    """The source's columns that a group is made of."""
    needed = set(group.key_fields)
    parts: list[Any] = [*group.partials] if isinstance(group, TileGroup) else [*group.fields]
    if isinstance(group, TileGroup) and group.buckets is not None:
        parts.append(group.buckets)
    if isinstance(group, LastGroup):
        needed.add(group.source.event_id)
    return needed | {name for part in parts for program in (part.of, part.where) if program for name in program.names}


def last_value_sql(field: LastField) -> str:
    """The value of an event, NULL where it has none: `where` is not true, or a double is no finite number."""

    def sql(program: Program) -> str:
        return to_sql(program, "duckdb", quoted)

    value = sql(field.of)
    conditions = [] if field.where is None else [sql(field.where)]
    if field.type == "double":
        conditions.append(f"isfinite({value})")
    return f"CASE WHEN {' AND '.join(conditions)} THEN {value} END" if conditions else value

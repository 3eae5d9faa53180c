"""A source's Parquet files through DuckDB: what a file must hold, and what became of each record when it arrived.

    files ─► rows: checked columns, `event_ms`, `ingest_ms`, `place` ─► fates, in the job's order ─► used
                                                                    └─► seen: when the source was heard at all

Arrival is the order of ingest times, then `place`: the topic's offset where the file has it (pipelines/archive.py
writes it), else the row in the file. Fates are those of `features/aggregate.fate_of`, so what the job would have set
aside is set aside here. DuckDB is imported when a session is opened; it spills to a temporary folder beyond its limit.
Read `features/history.py` and `features/backfill.py` next.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from features.declared import INT32, Entity, Source
from features.expr import did_you_mean
from features.store import FeatureError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PARTITION, OFFSET, APPENDED = "kafka_partition", "kafka_offset", "kafka_appended_ms"  # columns of an archive
_BLOCK: Final = re.compile(r"(?P<start>.*block-\d{12})-\d{12}\.parquet")
_WHOLE: Final = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"})
_REAL: Final = frozenset({"FLOAT", "DOUBLE"})
_TIMES: Final = ("TIMESTAMP", "DATE")
_SQL_TYPES: Final = {"int": "BIGINT", "int32": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}


class HistoryError(FeatureError):
    """Files or a frame that cannot be joined: which file and column, what was found, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a join may use. Beyond `memory_mb` DuckDB spills into `temp_dir` (default: the system's)."""

    memory_mb: int = 512
    threads: int = 2
    temp_dir: Path | None = None


@contextmanager
def session(limits: Limits) -> Iterator[DuckDBPyConnection]:
    """A DuckDB of its own, gone afterwards with what it spilled. Its errors become HistoryError."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="hailstream-history-", dir=limits.temp_dir) as folder:
        connection = duckdb.connect(
            config={
                "memory_limit": f"{limits.memory_mb}MB",
                "threads": limits.threads,
                "temp_directory": folder,
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,  # nothing is fetched from anywhere
            }
        )
        try:
            yield connection
        except duckdb.Error as error:
            raise HistoryError(f"DuckDB: {error}") from error
        finally:
            connection.close()


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def files_of(pattern: str | None, folder: Path, what: str) -> list[str]:
    """The files of a glob, by name; relative ones from `folder`. Raises: HistoryError where there are none."""
    if pattern is None:
        raise HistoryError(
            f"{what} has no history: name its Parquet files as `history: archive/trip_events/**/*.parquet` "
            "(`hailstream features archive` writes them from the topic)"
        )
    path = os.path.join(folder, pattern)
    files = _newest_blocks(sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name)))
    if not files:
        raise HistoryError(f"{what}: no file matches {path}")
    return files


def keys_hold(entity: Entity, columns: Sequence[str]) -> str:
    """The SQL condition that key columns (SQL texts) hold a key, as `Entity.key_of` says."""
    parts = [f"{column} IS NOT NULL" for column in columns]
    bounds = f"BETWEEN {INT32[0]} AND {INT32[1]}"
    parts += [f"{column} {bounds}" for key, column in zip(entity.keys, columns, strict=True) if key.type == "int32"]
    return " AND ".join(parts)


def _newest_blocks(files: Sequence[str]) -> list[str]:
    """An archive that is just being written shows its open block twice for a moment, the longer one last."""
    blocks: dict[str, str] = {}
    for file in files:
        found = _BLOCK.fullmatch(file)
        blocks[found["start"] if found else file] = file
    return list(blocks.values())


@dataclass(frozen=True)
class Files:
    """Parquet files that were found to have the declared columns. `types` are DuckDB's, by column."""

    what: str
    paths: Sequence[str]
    types: Mapping[str, str]

    @property
    def relation(self) -> str:
        """FROM text. Files of different writers may differ in the order of columns, and in columns nobody asks for."""
        return f"{_read(self.paths)[:-1]}, file_row_number = true)"

    @property
    def has_offsets(self) -> bool:
        return {PARTITION, OFFSET} <= set(self.types)

    def column(self, name: str, declared: str) -> str:
        """SQL of a column in its declared type; NaN is null, as everywhere.

        Raises: HistoryError naming the file, for a column that is absent or of another type.
        """
        found = self.types.get(name)
        if found is None:
            hint = did_you_mean(name, list(self.types))
            raise HistoryError(f"{self.what}: {self.paths[0]} has no column '{name}'" + (f"; {hint}" if hint else ""))
        kind, text = declared.removesuffix("?"), quoted(name)
        if kind in ("int", "int32") and found in _WHOLE:
            return f"CAST({text} AS BIGINT)"
        if kind in ("int", "timestamp") and found.startswith(_TIMES):
            return f"epoch_ms({_timestamp(text, found)})"
        if kind == "double" and found in _REAL:
            return f"(CASE WHEN NOT isnan({text}) THEN CAST({text} AS DOUBLE) END)"
        if kind == "double" and (found in _WHOLE or found.startswith("DECIMAL")):
            return f"CAST({text} AS DOUBLE)"
        if (kind, found) in (("string", "VARCHAR"), ("bool", "BOOLEAN")) or (kind == "string" and found[:4] == "ENUM"):
            return f"CAST({text} AS {_SQL_TYPES[kind]})"
        raise HistoryError(
            f"{self.what}: column '{name}' is declared {declared}, but {self._file_with(name)} holds {found}"
        )

    def micros(self, name: str) -> str:
        """A column of times as microseconds; whole numbers are milliseconds. Raises: as `column`."""
        found = self.types.get(name, "")
        text = _timestamp(quoted(name), found)
        return f"epoch_us({text})" if found.startswith(_TIMES) else f"1000 * {self.column(name, 'int')}"

    def _file_with(self, name: str) -> str:
        """The first file whose own column is not what most have; any of them when all agree."""
        import duckdb

        query = f"SELECT file_name, type FROM parquet_schema([{', '.join(map(literal, self.paths))}]) WHERE name = ?"
        found = duckdb.execute(query, [name]).fetchall()
        kinds = [kind for _, kind in found]
        odd = [file for file, kind in found if kinds.count(kind) < len(kinds) / 2]
        return str(odd[0] if odd else self.paths[0])


def open_files(connection: DuckDBPyConnection, paths: Sequence[str], what: str) -> Files:
    """Look at the files' columns. Raises: HistoryError for files that cannot be read."""
    import duckdb

    try:
        described = connection.execute(f"DESCRIBE SELECT * FROM {_read(paths)}").fetchall()
    except duckdb.Error as error:
        raise HistoryError(f"{what}: {error}") from error
    return Files(what, paths, {row[0]: row[1] for row in described})


@dataclass(frozen=True)
class EventTables:
    """Names of tables: `used` (the asked-for columns, event_ms, ingest_ms, place) and `seen` (ingest_ms, distinct).

    With `has_offsets` a place is partition * 2^48 + offset of the topic.
    """

    used: str
    seen: str
    has_offsets: bool


def load_events(
    connection: DuckDBPyConnection,
    source: Source,
    files: Files,
    columns: Collection[str],
    *,
    event_time_only: bool = False,
    known_before_ms: int | None = None,
    from_ms: int | None = None,
    before_ms: int | None = None,
    suffix: str = "",
) -> EventTables:
    """Judge every record that arrived before `known_before_ms`, and keep the used ones with event times in
    [from_ms, before_ms). Fates need all that arrived earlier, so these are no bounds of what is judged.

    Raises: HistoryError.
    """
    rows = _view_of_rows(connection, source, files, columns, event_time_only, known_before_ms)
    name = f"{source.name}_{suffix}"
    tables = EventTables(f"{name}_used", f"{name}_seen", files.has_offsets)
    copies = _table_of_copies(connection, source, rows)
    kept = ", ".join([*map(quoted, sorted(columns)), "event_ms", "ingest_ms", "place"])
    bounds = [f"event_ms >= {from_ms}"] * (from_ms is not None) + [f"event_ms < {before_ms}"] * (before_ms is not None)
    where = " AND ".join(["well_formed", f"NOT ({_future(source)})", f"NOT ({_late(source)})", *bounds])
    anti = f" ANTI JOIN {quoted(copies)} USING (place)" if copies else ""
    connection.execute(
        f"CREATE OR REPLACE TABLE {quoted(tables.used)} AS SELECT {kept} FROM {quoted(rows)}{anti} WHERE {where}"
    )
    heard = f"SELECT DISTINCT ingest_ms FROM {quoted(rows)} WHERE well_formed AND NOT coalesce(ahead, false)"
    connection.execute(f"CREATE OR REPLACE TABLE {quoted(tables.seen)} AS {heard}")
    return tables


def count_fates(
    connection: DuckDBPyConnection, source: Source, files: Files, columns: Collection[str], *, before_ms: int
) -> dict[str, int]:
    """What became of all records: malformed, duplicate, future, late, used, and `after_seam` (event >= before_ms)."""
    rows = _view_of_rows(connection, source, files, columns, False, None)
    copies = _table_of_copies(connection, source, rows)
    again = f"place IN (SELECT place FROM {quoted(copies)})" if copies else "false"
    fate = (
        f"CASE WHEN NOT well_formed THEN 'malformed' WHEN {again} THEN 'duplicate' WHEN {_future(source)} THEN 'future' "
        f"WHEN {_late(source)} THEN 'late' WHEN event_ms >= {before_ms} THEN 'after_seam' ELSE 'used' END"
    )
    found = dict(connection.execute(f"SELECT {fate}, count(*) FROM {quoted(rows)} GROUP BY 1").fetchall())
    return {name: found.get(name, 0) for name in ("malformed", "duplicate", "future", "late", "used", "after_seam")}


def _read(paths: Sequence[str]) -> str:
    listed = ", ".join(map(literal, paths))
    return f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"


def _view_of_rows(
    connection: DuckDBPyConnection,
    source: Source,
    files: Files,
    columns: Collection[str],
    event_time_only: bool,
    known_before_ms: int | None,
) -> str:
    """A view of all records with the columns that are needed, in their declared types."""
    name = f"{source.name}_rows"
    wanted = sorted({*columns, source.event_id, *([source.dedup.by] if source.dedup else [])})
    event = files.column(source.event_time, "int")
    has_ingest = source.ingest_time in files.types and not event_time_only
    ingest = files.column(source.ingest_time, "int") if has_ingest else event
    place = f"({quoted(PARTITION)}::BIGINT << 48) + {quoted(OFFSET)}"
    if not files.has_offsets:
        place = "(file_index::BIGINT << 40) + file_row_number"
    ahead = f"{ingest} - {quoted(APPENDED)} > {source.future_ms}" if APPENDED in files.types and has_ingest else "false"
    listed = [f"{files.column(column, source.schema[column])} AS {quoted(column)}" for column in wanted]
    never_null = [quoted(column) for column in wanted if not source.schema[column].endswith("?")]
    well_formed = " AND ".join(f"{text} IS NOT NULL" for text in [*never_null, event, ingest])
    known = "" if known_before_ms is None else f" WHERE {ingest} < {known_before_ms}"
    connection.execute(
        f"CREATE OR REPLACE VIEW {quoted(name)} AS SELECT {', '.join(listed)}, {event} AS event_ms, "
        f"{ingest} AS ingest_ms, {place} AS place, {ahead} AS ahead, {well_formed} AS well_formed "
        f"FROM {files.relation}{known}"
    )
    return name


def _table_of_copies(connection: DuckDBPyConnection, source: Source, rows: str) -> str | None:
    """Places of the duplicates. A record is one when a record with its id was the first, or the first again after the
    horizon, and this one came within the horizon of it."""
    if source.dedup is None:
        return None
    table, by = f"{rows}_copies", quoted(source.dedup.by)
    connection.execute(
        f"""CREATE OR REPLACE TABLE {quoted(table)} AS
        WITH RECURSIVE again AS (
          SELECT {by} AS id FROM {quoted(rows)} WHERE well_formed GROUP BY id HAVING count(*) > 1
        ), many AS MATERIALIZED (
          SELECT id, ingest_ms, place FROM {quoted(rows)} JOIN again ON {by} = id WHERE well_formed
        ), firsts AS (
          SELECT id, min({{'ingest_ms': ingest_ms, 'place': place}}) AS first FROM many GROUP BY id
          UNION ALL
          SELECT many.id, min({{'ingest_ms': many.ingest_ms, 'place': many.place}})
          FROM firsts JOIN many ON many.id = firsts.id AND many.ingest_ms - firsts.first.ingest_ms > {source.dedup.horizon_ms}
          GROUP BY many.id
        )
        SELECT place FROM many WHERE place NOT IN (SELECT first.place FROM firsts)"""
    )
    return table


def _future(source: Source) -> str:
    return f"event_ms - ingest_ms > {source.future_ms} OR coalesce(ahead, false)"


def _late(source: Source) -> str:
    return f"ingest_ms - event_ms > {source.disorder_ms}"


def _timestamp(text: str, found: str) -> str:
    """Seconds, milliseconds and nanoseconds have types of their own in DuckDB, without all of its functions."""
    return text if found in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE") else f"CAST({text} AS TIMESTAMP)"


def fetch_dict(connection: DuckDBPyConnection, query: str) -> dict[str, Any]:
    """One row as a dictionary."""
    result = connection.execute(query)
    names = [column[0] for column in result.description]
    return dict(zip(names, result.fetchall()[0], strict=True))

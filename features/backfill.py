"""The tiles, last values and rows of a generation below its seam, from Parquet into the store, as the job would write them.

    event time ──── backfill ────┤seam├──── stream ────►        tiles do not straddle the seam, so nothing is twice

The backfill takes every used event below the seam, however late it arrived; the stream calls what arrives for those
tiles `before_seam` and leaves it. So the history has to reach as far as such a record can: an ingest time of the seam
plus the disorder bound. Writes go through the store's guards in the order of keys: an interrupted backfill is simply run
again, a tile that is there already is left alone, and `used` counts every event once. The marker that the switch
waits for is set last. SQL and fates are those of `parquet.py`, `history_joins.py` and `tile_sql.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features import history_joins
from features.loader import SHIPPED
from features.packing import partial_cells
from features.parquet import (
    EventTables,
    Files,
    HistoryError,
    Limits,
    count_fates,
    fetch_dict,
    files_of,
    load_events,
    open_files,
    quoted,
    session,
)
from features.spec import Group, LastGroup, Source, TileGroup

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BATCH_ROWS = 20_000
POSITIONS = 1 << 18  # offsets that are marked as counted in one call


class BackfillWriter(Protocol):
    """What the store must do (features/redis_writes.TileWriter)."""

    def write_backfill(
        self, group: TileGroup, generation: int, keys: Sequence[Any], tiles: NDArray[np.int64],
        counts: NDArray[np.int64], partials: Sequence[NDArray[Any]], *, seam_ms: int,
    ) -> NDArray[np.uint8]: ...  # fmt: skip
    def write_last(
        self, group: LastGroup, generation: int, keys: Sequence[Any], event_time_ms: NDArray[np.int64],
        event_ids: Sequence[str], values: Any, *, applied_through_ms: int | None,
        positions: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> NDArray[np.uint8]: ...  # fmt: skip
    def mark_backfilled(self, group: Group, generation: int, seam_ms: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class BackfillReport:
    """What became of one group's history. `fates` counts the records of the whole source: malformed, duplicate, future,
    late, used (below the seam), after_seam. `records` of the used ones are in the rows that were sent; others have no key
    or are older than any window that can be asked for. `rows_written` of `rows` changed something."""

    group: str
    generation: int
    seam_ms: int
    history_from_ms: int | None
    history_through_ms: int | None
    fates: dict[str, int]
    rows: int
    rows_written: int
    records: int


def backfill_group(
    writer: BackfillWriter, group: TileGroup | LastGroup, generation: int, seam_ms: int, **options: Any
) -> BackfillReport:
    """`backfill_groups` of one group."""
    return backfill_groups(writer, [(group, generation)], seam_ms, **options)[0]


def backfill_groups(
    writer: BackfillWriter,
    groups: Iterable[tuple[TileGroup | LastGroup, int]],
    seam_ms: int,
    *,
    folder: Path | str = SHIPPED,
    accept_gap: bool = False,
    limits: Limits | None = None,
    batch_rows: int = BATCH_ROWS,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[BackfillReport]:
    """Write (group, generation) pairs below the seam and mark them as backfilled; each source is read once.

    `folder`: where the sources' relative paths start. `accept_gap`: go on though the history ends before everything
    below the seam can have arrived. `progress(group, rows sent, rows)`.
    Raises: HistoryError for files that do not fit or end too early; StoreError, GenerationLost of the writer: run it again.
    """
    by_source = groupby(sorted(groups, key=lambda pair: pair[0].source.name), key=lambda pair: pair[0].source.name)
    reports: list[BackfillReport] = []
    for _, found in by_source:
        pairs = list(found)
        with session(limits or Limits()) as connection:
            reports += _backfill_source(
                connection, writer, pairs, seam_ms, Path(folder), accept_gap, batch_rows, progress or (lambda *_: None)
            )
    return reports


def _backfill_source(
    connection: DuckDBPyConnection,
    writer: BackfillWriter,
    pairs: Sequence[tuple[TileGroup | LastGroup, int]],
    seam_ms: int,
    folder: Path,
    accept_gap: bool,
    batch_rows: int,
    progress: Callable[[str, int, int], None],
) -> list[BackfillReport]:
    source = pairs[0][0].source
    files = open_files(connection, files_of(source.history, folder, f"source {source.name}"), f"source {source.name}")
    columns = set[str]().union(*(history_joins.columns_of(group) for group, _ in pairs))
    events = load_events(connection, source, files, columns, before_ms=seam_ms)
    heard = fetch_dict(connection, f"SELECT min(ingest_ms) AS low, max(ingest_ms) AS high FROM {quoted(events.seen)}")
    _check_coverage(source, files, seam_ms, heard["high"], accept_gap)
    fates = count_fates(connection, source, files, columns, before_ms=seam_ms)
    reports = []
    for group, generation in pairs:
        if isinstance(group, TileGroup):
            sent = _write_tiles(connection, writer, group, generation, events, seam_ms, batch_rows, progress)
        else:
            sent = _write_last(connection, writer, group, generation, events, seam_ms, batch_rows, progress)
        writer.mark_backfilled(group, generation, seam_ms)
        rows, written, records = sent
        reports.append(
            BackfillReport(
                group=group.name, generation=generation, seam_ms=seam_ms, history_from_ms=heard["low"],
                history_through_ms=heard["high"], fates=fates, rows=rows, rows_written=written, records=records,
            )
        )  # fmt: skip
    return reports


def _check_coverage(source: Source, files: Files, seam_ms: int, through_ms: int | None, accept_gap: bool) -> None:
    """Raises: HistoryError where records for tiles below the seam can lie behind the end of the history."""
    wanted_ms = seam_ms + source.disorder_ms
    if accept_gap or (through_ms is not None and through_ms >= wanted_ms):
        return
    ends = "holds no record" if through_ms is None else f"ends at ingest time {through_ms}"
    raise HistoryError(
        f"source {source.name}: its history ({len(files.paths)} files, the last {files.paths[-1]}) {ends}, but records for "
        f"tiles below the seam {seam_ms} arrive until {wanted_ms}, and the stream leaves them to the backfill: archive the "
        "topic up to now and run this again, or accept that such records are missing with --accept-gap"
    )


def _write_tiles(
    connection: DuckDBPyConnection,
    writer: BackfillWriter,
    group: TileGroup,
    generation: int,
    events: EventTables,
    seam_ms: int,
    batch_rows: int,
    progress: Callable[[str, int, int], None],
) -> tuple[int, int, int]:
    """Rows sent, rows that changed something, events in them. Tiles that no window can reach any more are left out."""
    table = f"backfill_{group.name}"
    history_joins.create_tiles(connection, group, events, name=table)
    oldest = (seam_ms // group.hop_ms - group.retain_tiles) * group.rows_per_tile
    connection.execute(f"DELETE FROM {quoted(table)} WHERE tile < {oldest}")
    total = int(fetch_dict(connection, f"SELECT count(*) AS n FROM {quoted(table)}")["n"])
    sent = written = records = 0
    order = ", ".join(f"k{i}" for i in range(len(group.key_fields)))
    for batch in _batches(connection, f"SELECT * FROM {quoted(table)} ORDER BY {order}, tile DESC", batch_rows):
        column = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        counts = column["n"].to_numpy()
        partials = [partial_cells(p, column[p.name].to_numpy(zero_copy_only=False)) for p in group.partials]
        status = writer.write_backfill(
            group, generation, _keys(group, column), column["tile"].to_numpy(), counts, partials, seam_ms=seam_ms
        )
        sent, written, records = sent + len(counts), written + int((status != 0).sum()), records + int(counts.sum())
        progress(group.name, sent, total)
    return sent, written, records


def _write_last(
    connection: DuckDBPyConnection,
    writer: BackfillWriter,
    group: LastGroup,
    generation: int,
    events: EventTables,
    seam_ms: int,
    batch_rows: int,
    progress: Callable[[str, int, int], None],
) -> tuple[int, int, int]:
    """One row per key and field that has a value. Where the history has the topic's offsets, every event is counted."""
    table = f"backfill_{group.name}"
    connection.execute(f"CREATE OR REPLACE TABLE {quoted(table)} AS {history_joins.final_last_sql(group, events)}")
    total = int(fetch_dict(connection, f"SELECT count(*) AS n FROM {quoted(table)}")["n"])
    sent = written = 0
    order = ", ".join(f"k{i}" for i in range(len(group.key_fields)))
    for batch in _batches(connection, f"SELECT * FROM {quoted(table)} ORDER BY {order}", batch_rows):
        column = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        values = {field.name: column[field.name].to_pylist() for field in group.fields}
        times, ids = column["event_ms"].to_numpy(), column["id"].to_pylist()
        status = writer.write_last(group, generation, _keys(group, column), times, ids, values, applied_through_ms=None)
        sent, written = sent + batch.num_rows, written + int((status != 0).sum())
        progress(group.name, sent, total)
    return sent, written, _count_last(connection, writer, group, generation, events, seam_ms)


def _count_last(
    connection: DuckDBPyConnection,
    writer: BackfillWriter,
    group: LastGroup,
    generation: int,
    events: EventTables,
    seam_ms: int,
) -> int:
    """Mark the offsets of all events as counted in `used`: a maximum cannot tell how many it has seen."""
    query = f"SELECT place FROM {quoted(events.used)} WHERE {history_joins.keyed(group)}"
    records = 0
    for batch in _batches(connection, query, POSITIONS):
        records += batch.num_rows
        if not events.has_offsets:
            continue
        place = batch.column(0).to_numpy()
        writer.write_last(
            group,
            generation,
            [],
            np.empty(0, dtype=np.int64),
            [],
            {field.name: [] for field in group.fields},
            applied_through_ms=seam_ms - group.source.future_ms - 1,  # all that arrived by then lies below the seam
            positions=((place >> 48).tolist(), (place & ((1 << 48) - 1)).tolist()),
        )
    return records


def _batches(connection: DuckDBPyConnection, query: str, num_rows: int) -> Iterator[pa.RecordBatch]:
    return iter(connection.sql(query).to_arrow_reader(num_rows))


def _keys(group: Group, column: dict[str, pa.Array]) -> list[Any]:
    """A scalar per row, or a tuple of several key columns."""
    lists = [column[f"k{i}"].to_pylist() for i in range(len(group.key_fields))]
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))

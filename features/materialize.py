"""Batch views into the store: per key the row that is in force at a time, written under the store's guard.

Which row that is, is what `features/history.py` says of the same time, so a read online and a join offline agree. A row
that has ended by then is not written; one that ends later is served until it is stale or another takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.backfill import BATCH_ROWS, BackfillReport
from features.batch_history import load_rows, values_query
from features.loader import SHIPPED
from features.parquet import Limits, fetch_dict, quoted, session
from features.spec import BatchSource, Catalogue, RowGroup

ANY_FUTURE_MS: Final = 1 << 40  # rows made ahead of their event time wait for it here, so none is from the future


class RowsWriter(Protocol):
    """What the store must do (features/redis_rows.RowWriter)."""

    def write_rows(
        self, group: RowGroup, generation: int, keys: Any, event_time_ms: NDArray[np.int64], sequences: NDArray[np.int64],
        values: Any, *, max_age_ms: int, future_ms: int = 0, applied_through_ms: int | None = None,
    ) -> NDArray[np.uint8]: ...  # fmt: skip


def materialize(
    writer: RowsWriter,
    catalogue: Catalogue,
    group: RowGroup,
    generation: int,
    as_of_ms: int,
    *,
    folder: Path | str = SHIPPED,
    limits: Limits | None = None,
    batch_rows: int = BATCH_ROWS,
    progress: Callable[[str, int, int], None] = lambda group, done, total: None,
) -> BackfillReport:
    """Write the rows in force at `as_of_ms`, keys rising; again changes nothing. The heartbeat moves when all are written.

    Raises: HistoryError for files that do not fit; StoreError, GenerationLost of the writer: run it again.
    """
    view = catalogue.views[group.view]
    source = view.source
    assert isinstance(source, BatchSource)
    with session(limits or Limits()) as connection:
        rows = load_rows(connection, view, source, Path(folder), as_of_ms)
        by = ", ".join(rows.keys)
        sequence = "created_us" if source.ingest_time else "1000 * event_ms"
        connection.execute(
            f"CREATE OR REPLACE TABLE found AS SELECT {by}, event_ms, {sequence} AS sequence, place, until_ms "
            f"FROM {quoted(rows.table)} QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY from_us DESC) = 1"
        )
        connection.execute(f"DELETE FROM found WHERE until_ms <= {as_of_ms}")
        total = int(fetch_dict(connection, "SELECT count(*) AS n FROM found")["n"])
        sent = written = 0
        query = f"{values_query(rows, f'{by}, event_ms, sequence')} ORDER BY {by}"
        for batch in connection.sql(query).to_arrow_reader(batch_rows):
            sent += batch.num_rows
            status = writer.write_rows(
                group,
                generation,
                _keys(batch, len(rows.keys)),
                batch.column("event_ms").to_numpy(),
                batch.column("sequence").to_numpy(),
                {name: batch.column(f"v{i}").to_pylist() for i, name in enumerate(rows.values)},
                max_age_ms=view.max_age_ms,
                future_ms=ANY_FUTURE_MS,
                applied_through_ms=as_of_ms if sent == total else None,
            )
            written += int((status == 1).sum())
            progress(group.name, sent, total)
    return BackfillReport(
        group=group.name, generation=generation, seam_ms=as_of_ms, history_from_ms=None, history_through_ms=None,
        fates={}, rows=total, rows_written=written, records=total,
    )  # fmt: skip


def _keys(batch: pa.RecordBatch, num_keys: int) -> list[Any]:
    lists = [batch.column(i).to_pylist() for i in range(num_keys)]
    return lists[0] if num_keys == 1 else list(zip(*lists, strict=True))

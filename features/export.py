"""A view's values over a stretch of time without an entity frame: a row per key and step, to Parquet.

The keys of a step are those that were known before it: the frame that `features/history.py` then joins as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features import batch_history
from features.frames import Frame
from features.history import AS_OF, reads_request, resolve, write_batches
from features.loader import SHIPPED
from features.parquet import HistoryError, Limits, files_of, keys_hold, load_events, open_files, quoted, session
from features.spec import BatchSource, Catalogue, FeatureView

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class StepFrame(Frame):
    """Every key of `keys` at every step from the first one after `since_ms` (K,), when it became known."""

    keys_table: pa.Table = None
    since_ms: NDArray[np.int64] = None  # type: ignore[assignment]
    steps: range = range(0)

    def chunks(self, num_rows: int, columns: list[str] | None = None) -> Iterator[pa.Table]:
        held: list[pa.Table] = []
        count = 0
        for step in self.steps:
            known = self.keys_table.filter(pa.array(self.since_ms < step))
            for first in range(0, known.num_rows, num_rows):
                part = known.slice(first, num_rows)
                part = part.append_column(AS_OF, pa.array(np.full(part.num_rows, step)))
                if count and count + part.num_rows > num_rows:
                    yield pa.concat_tables(held)
                    held, count = [], 0
                held.append(part)
                count += part.num_rows
        if held or self.num_rows == 0:
            yield pa.concat_tables(held) if held else self.schema.empty_table()

    def bounds(self, column: str) -> tuple[int, int] | None:
        return (self.steps[0], self.steps[-1]) if self.num_rows else None


def export(
    catalogue: Catalogue,
    view: str,
    out: Path | str,
    *,
    from_ms: int,
    to_ms: int,
    every_ms: int,
    features: Sequence[str] | None = None,
    folder: Path | str = SHIPPED,
    event_time_only: bool = False,
    statuses: bool = False,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the view's values at from_ms, from_ms + every_ms … below to_ms, steps rising, keys rising in each; returns the
    rows. `features`: names within the view; by default all that need no request field.

    Raises: HistoryError as `history`, and for a stretch without steps.
    """
    if every_ms <= 0 or to_ms <= from_ms:
        raise HistoryError(f"no step lies in [{from_ms}, {to_ms}) every {every_ms} ms")
    known = catalogue.views.get(view)
    if features is None and known is not None:
        features = [spec.name for spec in known.features if not reads_request(known, spec)]
    names = [f"{view}.{name}" for name in (features or ["*"])]
    (asked,) = resolve(catalogue, names, {})
    limits = limits or Limits()
    with session(limits) as connection:
        keys = _known_keys(connection, asked.view, Path(folder), to_ms, event_time_only)
    since_ms = np.asarray(keys.column("since_ms").to_numpy(), dtype=np.int64)
    keys = keys.drop_columns(["since_ms"]).rename_columns(list(asked.view.entity.join_keys))
    steps = range(from_ms, to_ms, every_ms)
    total = int(np.searchsorted(np.sort(since_ms), np.array(steps), side="left").sum())
    schema = keys.schema.append(pa.field(AS_OF, pa.int64()))
    frame = StepFrame(f"view {view}", schema, total, keys_table=keys, since_ms=since_ms, steps=steps)
    options: dict[str, Any] = {
        "folder": folder, "event_time_only": event_time_only, "statuses": statuses, "limits": limits, "progress": progress,
    }  # fmt: skip
    return write_batches(catalogue, frame, out, names, **options)


def _known_keys(
    connection: DuckDBPyConnection, view: FeatureView, folder: Path, to_ms: int, event_time_only: bool
) -> pa.Table:
    """k0 …, since_ms: the newest time at which a key was not known yet. Keys rise."""
    source, what = view.source, f"view {view.name}"
    if source is None:
        raise HistoryError(f"{what} has no source: request fields have no history of their own")
    by = ", ".join(f"k{i}" for i in range(len(view.key_fields)))
    if isinstance(source, BatchSource):
        found = batch_history.load_rows(connection, view, source, folder, to_ms, event_time_only=event_time_only)
        rows, since = f"SELECT {by}, (from_us + 999) // 1000 - 1 AS since FROM {quoted(found.table)}", "min(since)"
    else:
        files = open_files(
            connection, files_of(source.history, folder, f"source {source.name}"), f"source {source.name}"
        )
        events = load_events(
            connection, source, files, set(view.key_fields), event_time_only=event_time_only, known_before_ms=to_ms
        )
        keys = ", ".join(f"{quoted(field)} AS k{i}" for i, field in enumerate(view.key_fields))
        keyed = keys_hold(view.entity, [quoted(field) for field in view.key_fields])
        rows, since = f"SELECT {keys}, ingest_ms FROM {quoted(events.used)} WHERE {keyed}", "min(ingest_ms)"
    return connection.sql(
        f"SELECT {by}, {since} AS since_ms FROM ({rows}) GROUP BY {by} ORDER BY {by}"
    ).to_arrow_table()

"""One role of a history: the tables that its view needs, made once, and a FeatureBatch per chunk of rows.

What `read_plan` does with a store's answers is done here with the columns of `history_joins`: statuses by each row's own
time, defaults, derived features. Read `features/history.py` for what the values mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features import batch_history, history_joins
from features.batch_history import BatchRows
from features.derived import derive, evaluation_order
from features.expr import Column
from features.frames import Requests
from features.merge import WindowRead
from features.parquet import EventTables, files_of, load_events, open_files
from features.read_plan import grouped_features
from features.rows import UNKNOWN_AGE_MS, FeatureBatch, Status, empty_column
from features.spec import BatchSource, Catalogue, FeatureSpec, FeatureView, LastGroup, Source, TileGroup
from features.window import num_whole_tiles, tile_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_NEVER = np.iinfo(np.int64).min


class RoleHistory:
    """The view of one role, cut down to the features that are asked for. `bounds_ms`: the frame's least and greatest
    time, None of an empty one. Tables carry the role's name: another role may read the same view over other spans."""

    def __init__(
        self,
        connection: DuckDBPyConnection,
        catalogue: Catalogue,
        role: str,
        view: FeatureView,
        folder: Path,
        bounds_ms: tuple[int, int] | None,
        *,
        event_time_only: bool,
    ) -> None:
        self._connection, self._role, self._view = connection, role, view
        self._places = {spec.name: place for place, spec in enumerate(view.features)}
        self._event_time_only = event_time_only
        self._windows: list[tuple[TileGroup, tuple[WindowRead, ...], str]] = []
        self._lasts: list[tuple[LastGroup, tuple[tuple[int, FeatureSpec, int], ...]]] = []
        self._events: EventTables | None = None
        self._rows: BatchRows | None = None
        source = view.source
        if bounds_ms is None or source is None:
            return
        if isinstance(source, BatchSource):
            self._rows = batch_history.load_rows(
                connection, view, source, folder, bounds_ms[1], name=role, event_time_only=event_time_only
            )
        elif any(spec.aggregate for spec in view.features):
            self._load_stream(catalogue, source, folder, bounds_ms)

    def batch(self, keys: Sequence[pa.Array], as_of_ms: NDArray[np.int64], requests: Requests) -> FeatureBatch:
        """The values of a chunk. Shapes: keys in the entity's order, (R,) each; as_of_ms (R,)."""
        num_rows = len(as_of_ms)
        columns = _Columns(self._view, num_rows)
        asks = pa.table({"ask": np.arange(num_rows), "t": as_of_ms, **{f"k{i}": key for i, key in enumerate(keys)}})
        self._connection.register("asks", asks.drop_null())  # a row without a whole key asks for nothing
        try:
            if self._events is not None:
                self._fill_stream(columns, as_of_ms, self._events)
            elif self._rows is not None:
                self._fill_batch(columns, as_of_ms, self._rows)
        finally:
            self._connection.unregister("asks")
        return columns.finish(self._places, requests)

    def _load_stream(self, catalogue: Catalogue, source: Source, folder: Path, bounds_ms: tuple[int, int]) -> None:
        files = open_files(
            self._connection, files_of(source.history, folder, f"source {source.name}"), f"source {source.name}"
        )
        tiles, self._lasts = grouped_features(catalogue, self._view)
        needed = set(self._view.key_fields)
        groups: list[TileGroup | LastGroup] = [*(g for g, _ in tiles), *(g for g, _ in self._lasts)]
        for read in groups:
            needed |= history_joins.columns_of(read)
        oldest = [
            (tile_of(bounds_ms[0], group.hop_ms) - num_whole_tiles(max(w.window_ms for w in windows), group.hop_ms))
            * group.hop_ms
            for group, windows in tiles
        ]
        self._events = load_events(
            self._connection,
            source,
            files,
            needed,
            event_time_only=self._event_time_only,
            known_before_ms=bounds_ms[1],
            from_ms=None if self._lasts else min(oldest),
            suffix=self._role,
        )
        for group, windows in tiles:
            table = f"tiles_{self._role}_{group.name}"
            history_joins.create_tiles(self._connection, group, self._events, name=table)
            self._windows.append((group, windows, table))
        for last_group, features in self._lasts:
            for at in sorted({at for _, _, at in features}):
                table = f"last_{self._role}_{at}"
                history_joins.create_last(self._connection, last_group, last_group.fields[at], self._events, name=table)

    def _fill_stream(self, columns: _Columns, as_of_ms: NDArray[np.int64], events: EventTables) -> None:
        num_rows = len(as_of_ms)
        if self._windows:
            heard_ms = history_joins.heard_before(self._connection, events, num_rows)
            ages_ms = np.where(heard_ms == _NEVER, UNKNOWN_AGE_MS, np.maximum(as_of_ms - heard_ms, 0))
            live = np.where(
                heard_ms == _NEVER,
                Status.MISSING,
                np.where(ages_ms > self._view.max_age_ms, Status.STALE, Status.PRESENT),
            )
        for group, windows, table in self._windows:
            disorder_ms = 0 if self._event_time_only else group.source.disorder_ms
            found = history_joins.window_columns(
                self._connection, group, windows, events, table, num_rows, disorder_ms=disorder_ms
            )
            for place, (values, known) in found.items():
                columns.put(place, values, np.where((live == Status.PRESENT) & ~known, Status.NULL, live), ages_ms)
        for last_group, features in self._lasts:
            for place, _, at in features:
                table = f"last_{self._role}_{at}"
                values, known, times_ms = history_joins.last_column(
                    self._connection, last_group, last_group.fields[at], table, num_rows
                )
                columns.put_aged(place, values, known, None, np.maximum(as_of_ms - times_ms, 0))

    def _fill_batch(self, columns: _Columns, as_of_ms: NDArray[np.int64], rows: BatchRows) -> None:
        plain = [(place, spec) for place, spec in enumerate(self._view.features) if spec.column is not None]
        types = {spec.column: spec.type for _, spec in plain if spec.column is not None}
        found = batch_history.row_columns(self._connection, rows, types, len(as_of_ms))
        ages_ms = np.maximum(as_of_ms - found.event_ms, 0)
        for place, spec in plain:
            assert spec.column is not None
            values, known = found.columns[spec.column]
            columns.put_aged(place, values, found.there, known, ages_ms)


class _Columns:
    """The columns of one chunk while they are filled. R rows, F features."""

    def __init__(self, view: FeatureView, num_rows: int) -> None:
        self.view, self.num_rows = view, num_rows
        self.columns: dict[str, NDArray[Any]] = {}
        self.valid: dict[str, NDArray[np.bool_]] = {}
        self.statuses = np.full((num_rows, len(view.features)), Status.MISSING, dtype=np.uint8)
        self.ages_ms = np.full((num_rows, len(view.features)), UNKNOWN_AGE_MS, dtype=np.int64)

    def put_aged(
        self,
        place: int,
        values: NDArray[Any],
        there: NDArray[np.bool_],
        known: NDArray[np.bool_] | None,
        ages_ms: NDArray[np.int64],
    ) -> None:
        """A value with an age of its own: missing where nothing is `there`, null where something is but not `known`."""
        fresh = np.where(ages_ms > self.view.max_age_ms, Status.STALE, Status.PRESENT)
        if known is not None:
            fresh = np.where((fresh == Status.PRESENT) & ~known, Status.NULL, fresh)
        self.put(place, values, np.where(there, fresh, Status.MISSING), np.where(there, ages_ms, UNKNOWN_AGE_MS))

    def put(self, place: int, values: NDArray[Any], statuses: NDArray[Any], ages_ms: NDArray[np.int64]) -> None:
        """A finished column; the declared default stands in where a status says that there is no value."""
        spec = self.view.features[place]
        known = statuses == Status.PRESENT
        if not known.all():
            values = values.copy()
            values[~known] = empty_column(spec.type, 1)[0] if spec.default is None else spec.default
            if spec.default is not None:
                statuses = np.where(known, Status.PRESENT, Status.DEFAULT)
                known = np.ones(self.num_rows, dtype=bool)
        self.statuses[:, place], self.ages_ms[:, place] = statuses, ages_ms
        self.columns[spec.name], self.valid[spec.name] = values, known

    def finish(self, places: dict[str, int], requests: Requests) -> FeatureBatch:
        """Fill in what nothing was found for, derive, and hand over."""
        specs = self.view.features
        nothing = np.full(self.num_rows, Status.MISSING, dtype=np.uint8)
        for place, spec in enumerate(specs):
            if spec.expr is None and spec.name not in self.columns:
                self.put(place, empty_column(spec.type, self.num_rows), nothing, self.ages_ms[:, place])
        given = {name: Column(*column) for name, column in requests.items()}
        for place in evaluation_order(self.view):
            found = derive(specs[place], specs, places, self, given)
            self.put(place, found.values, found.statuses, found.ages_ms)
        return FeatureBatch(
            view=self.view.name,
            generation=0,
            applied_through_ms=None,
            names=tuple(spec.name for spec in specs),
            types=tuple(spec.type for spec in specs),
            columns=self.columns,
            valid=self.valid,
            statuses=self.statuses,
            ages_ms=self.ages_ms,
        )

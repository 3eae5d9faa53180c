"""Guarded writes of plain rows into Redis, as `materialize` and Feast's `write_to_online_store` need them.

Bytes are made in features/row_packing.py, the server-side guard is features/lua/write_rows.lua. features/store.py has the
same in dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.packing import GroupKeys
from features.redis_scripts import KEYS_PER_CALL, ScriptWriter
from features.row_packing import pack_rows
from features.spec import Key, RowGroup
from features.store import APPLIED, newest_rows
from features.window import DAY_MS, MINUTE_MS


class RowWriter(ScriptWriter):
    """Writes batches of rows, each guarded on the server: the higher (event time, sequence) of a key wins."""

    def write_rows(
        self,
        group: RowGroup,
        generation: int,
        keys: Sequence[Key],
        event_time_ms: NDArray[np.int64],
        sequences: NDArray[np.int64],
        values: Mapping[str, Sequence[Any] | NDArray[Any]],
        *,
        max_age_ms: int,
        future_ms: int = MINUTE_MS,
        applied_through_ms: int | None = None,
    ) -> NDArray[np.uint8]:
        """Write N rows and return what became of each: 1 applied, 0 ignored (not newer), 3 refused as from the future.

        Shapes: keys N; event_time_ms, sequences (N,) int64, below 2**53; `values[field.name]` N items, None for null.
        `sequences` is when a row was made, in µs: of rows with one event time the later made wins, and a row whose event
        time is ahead of it by more than `future_ms` is refused, or it would stand in the way of all that are right.
        A key expires by wall clock twice `max_age_ms` after its last write, two days at least. `applied_through_ms` moves
        the group's heartbeat.
        Raises: StoreError, GenerationLost as TileWriter.write_tiles; ValueError, TypeError for what does not fit.
        """
        chosen, status = newest_rows(keys, event_time_ms, sequences, future_ms)
        names = GroupKeys(self._project, group.name, generation)
        marker, life = names.marker, self._life(names)
        picked = {name: _take(column, chosen) for name, column in values.items()}
        rows = pack_rows(group, event_time_ms[chosen], sequences[chosen], picked)
        encoded = self._encoder(group.entity).encode_many((keys[row] for row in chosen.tolist()), names.suffix)
        expiry_ms = max(2 * DAY_MS, 2 * max_age_ms)
        calls = [
            (
                [marker, *encoded[first : first + KEYS_PER_CALL]],
                [life, expiry_ms, *rows[first : first + KEYS_PER_CALL]],
            )
            for first in range(0, len(encoded), KEYS_PER_CALL)
        ]
        won = np.frombuffer(b"".join(self._call("write_rows", calls)), dtype=np.uint8) == ord("1")
        status[chosen[won]] = APPLIED
        if applied_through_ms is not None:
            self._call(
                "mark_applied",
                [([marker, names.heartbeat, names.freshness, names.used], [life, applied_through_ms, 0, b""])],
            )
        return status


def _take(column: Sequence[Any] | NDArray[Any], rows: NDArray[np.int64]) -> Sequence[Any] | NDArray[Any]:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows.tolist()]

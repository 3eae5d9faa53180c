"""Tiles and last values in Redis: guarded writes, one-round-trip reads, and what has been applied.

The only file (with features/registry_redis.py) that imports redis. Bytes are made and read in features/packing.py, the
server-side guards are features/lua/*.lua, what is read and how it is merged is features/read_plan.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.spec import PROJECT, LastGroup, TileGroup


class TileWriter:
    """Writes batches of tiles and last values, each guarded on the server. One per thread: it owns one connection."""

    def __init__(self, redis_url: str, project: str = PROJECT, *, timeout_s: float = 5.0) -> None:
        raise NotImplementedError

    def write_tiles(
        self,
        group: TileGroup,
        generation: int,
        keys: Sequence[str | int],
        tiles: NDArray[np.int64],
        counts: NDArray[np.int64],
        partials: Sequence[NDArray[Any]],
        *,
        applied_through_ms: int,
        appended_ms: NDArray[np.int64] | None = None,
        now_ms: int | None = None,
    ) -> NDArray[np.uint8]:
        """Write N rows of (key, tile) and return what became of each: 1 applied, 0 ignored (older sequence), 2 counted
        in `used` but below the span that is kept.

        Shapes: keys N, no nulls; tiles, counts (N,) int64; partials len(group.partials) arrays of (N,), nulls as NaN or
        None; appended_ms (N,) Kafka append wall time. applied_through_ms is the batch's highest ingest time.
        Raises: StoreError naming the address when Redis cannot be reached: write the same batch again, it is idempotent.
        """
        raise NotImplementedError

    def write_last(
        self,
        group: LastGroup,
        generation: int,
        keys: Sequence[str | int],
        event_time_ms: NDArray[np.int64],
        event_ids: Sequence[str],
        values: Mapping[str, Sequence[Any]],
        *,
        applied_through_ms: int,
        positions: tuple[Sequence[int], Sequence[int]] | None = None,
        appended_ms: NDArray[np.int64] | None = None,
        now_ms: int | None = None,
    ) -> NDArray[np.uint8]:
        """Write N events' last values, merged per field by (event_time_ms, event_id); 1 where one field or more won.

        `values[field.name]` has N items, None where the field's `where` is not true or its `of` is null.
        `positions` = (Kafka partition (N,), offset (N,)): with it every record is counted in `used` exactly once,
        whatever is sent again; without it `used` does not move, because a maximum cannot tell how many it has seen.
        """
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

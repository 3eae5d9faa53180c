"""What an online store does, apart from where it keeps its bytes; and one that keeps them in this process.

`InMemoryStore` has the meaning of the Redis store (guards, `used`, heartbeats, statuses) in plain Python, so that
tests and YAML view tests run without a server. It keeps every tile; Redis keeps the span that windows need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from features.coalesce import coalesce_last, wins
from features.packing import ABSENT_CELL, GroupKeys, KeyEncoder, pack_last_cell, pack_tiles, pack_value, unpack_last
from features.read_plan import ReadPlan, Requests
from features.row_packing import order_of_row, pack_rows
from features.rows import FeatureBatch
from features.spec import PROJECT, Key, LastGroup, RowGroup, TileGroup
from features.window import MINUTE_MS

IGNORED: Final = 0
APPLIED: Final = 1
COUNTED_BELOW_SPAN: Final = 2
FUTURE: Final = 3
MAX_ORDER: Final = 1 << 53  # of event times and sequences: the guards run in Lua, whose numbers are doubles


class FeatureError(Exception):
    """Base of this room's errors."""


class StoreError(FeatureError):
    """The online store could not be reached or refused. The message names its address."""


class GenerationLost(StoreError):
    """The store no longer holds what a writer counts on. Sending the batch again cannot help."""


@dataclass(frozen=True, kw_only=True)
class GroupStats:
    """What has become of one group's records. `forgotten` counts deliveries too old to tell new from repeated.

    `freshness` is the histogram behind the percentiles (features/freshness.py), so that a stretch can be told apart by
    subtracting an earlier one.
    """

    generation: int
    used: int
    forgotten: int
    applied_through_ms: int | None
    num_fresh: int
    freshness_p50_ms: float | None
    freshness_p99_ms: float | None
    freshness: Mapping[int, int]


class OnlineStore(Protocol):
    """Writes are guarded and idempotent: any batch may be sent again, in any order, by two writers at once."""

    def write_tiles(
        self,
        group: TileGroup,
        generation: int,
        keys: Sequence[Key],
        tiles: NDArray[np.int64],
        counts: NDArray[np.int64],
        partials: Sequence[NDArray[Any]],
        *,
        applied_through_ms: int,
    ) -> NDArray[np.uint8]: ...

    def write_last(
        self,
        group: LastGroup,
        generation: int,
        keys: Sequence[Key],
        event_time_ms: NDArray[np.int64],
        event_ids: Sequence[str],
        values: Mapping[str, Sequence[Any]],
        *,
        applied_through_ms: int,
    ) -> NDArray[np.uint8]: ...

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch]: ...


class InMemoryStore:
    """An OnlineStore in dictionaries."""

    def __init__(self, project: str = PROJECT) -> None:
        self._project = project
        self._tiles: dict[bytes, dict[int, NDArray[np.int64]]] = {}
        self._last: dict[bytes, bytes] = {}
        self._numbers: dict[bytes, int] = {}

    def write_tiles(
        self,
        group: TileGroup,
        generation: int,
        keys: Sequence[Key],
        tiles: NDArray[np.int64],
        counts: NDArray[np.int64],
        partials: Sequence[NDArray[Any]],
        *,
        applied_through_ms: int,
    ) -> NDArray[np.uint8]:
        names, encoder = GroupKeys(self._project, group.name, generation), KeyEncoder(group.entity)
        status = np.zeros(len(keys), dtype=np.uint8)
        for row, cells in enumerate(pack_tiles(group, np.asarray(tiles), np.asarray(counts), partials)):
            known = self._tiles.setdefault(encoder.encode(keys[row]) + names.suffix, {})
            old = known.get(int(cells[0]))
            if old is None or cells[1] > old[1]:
                known[int(cells[0])] = cells
                self._numbers[names.used] = self.used(group, generation) + int(
                    cells[1] - (0 if old is None else old[1])
                )
                status[row] = APPLIED
        self._beat(names, applied_through_ms)
        return status

    def write_last(
        self,
        group: LastGroup,
        generation: int,
        keys: Sequence[Key],
        event_time_ms: NDArray[np.int64],
        event_ids: Sequence[str],
        values: Mapping[str, Sequence[Any]],
        *,
        applied_through_ms: int,
    ) -> NDArray[np.uint8]:
        names, encoder = GroupKeys(self._project, group.name, generation), KeyEncoder(group.entity)
        status = np.zeros(len(keys), dtype=np.uint8)
        batch = coalesce_last(group, keys, event_time_ms, event_ids, values)
        for key, rows in zip(batch.keys, batch.rows.reshape(-1, max(len(group.fields), 1)), strict=True):
            name = encoder.encode(key) + names.suffix
            cells = split_cells(group, self._last.get(name, ABSENT_CELL * len(group.fields)))
            for f, field in enumerate(group.fields):
                row = int(rows[f])
                if row < 0:
                    continue
                time_ms, event_id = int(event_time_ms[row]), event_ids[row].encode()
                if cells[f] == ABSENT_CELL or wins(field, (time_ms, event_id), _order_of(cells[f])):
                    cells[f] = pack_last_cell(time_ms, event_id, pack_value(field.type, values[field.name][row]))
                    status[row] = APPLIED
            self._last[name] = b"".join(cells)
        self._beat(names, applied_through_ms)
        return status

    def write_rows(
        self,
        group: RowGroup,
        generation: int,
        keys: Sequence[Any],
        event_time_ms: NDArray[np.int64],
        sequences: NDArray[np.int64],
        values: Mapping[str, Sequence[Any] | NDArray[Any]],
        *,
        max_age_ms: int,
        future_ms: int = MINUTE_MS,
        applied_through_ms: int | None = None,
    ) -> NDArray[np.uint8]:
        """features.redis_rows.RowWriter.write_rows, without an expiry."""
        names, encoder = GroupKeys(self._project, group.name, generation), KeyEncoder(group.entity)
        chosen, status = newest_rows(keys, event_time_ms, sequences, future_ms)
        rows = pack_rows(group, event_time_ms, sequences, values)
        for row in chosen.tolist():
            name = encoder.encode(keys[row]) + names.suffix
            old = self._last.get(name)
            if old is None or order_of_row(rows[row]) > order_of_row(old):
                self._last[name] = rows[row]
                status[row] = APPLIED
        if applied_through_ms is not None:
            self._beat(names, applied_through_ms)
        return status

    def read(
        self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int, *, request: Requests | None = None
    ) -> dict[str, FeatureBatch]:
        values = [self._get(name) for name in plan.store_keys(self._project, keys)]
        return plan.assemble(values, keys, as_of_ms, request=request)

    def used(self, group: TileGroup | LastGroup, generation: int) -> int:
        """Records counted in a group's tiles."""
        return self._numbers.get(GroupKeys(self._project, group.name, generation).used, 0)

    def _get(self, name: bytes) -> bytes | None:
        if name in self._tiles:
            return b"".join(self._tiles[name][tile].tobytes() for tile in sorted(self._tiles[name], reverse=True))
        if name in self._numbers:
            return str(self._numbers[name]).encode()
        return self._last.get(name)

    def _beat(self, names: GroupKeys, applied_through_ms: int) -> None:
        self._numbers[names.heartbeat] = max(self._numbers.get(names.heartbeat, applied_through_ms), applied_through_ms)


def newest_rows(
    keys: Sequence[Any], event_time_ms: NDArray[np.int64], sequences: NDArray[np.int64], future_ms: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Of each key the row with the highest (event time, sequence), and all rows' statuses so far: FUTURE or IGNORED.

    A row is from the future where its event time is ahead of its sequence (µs) by more than `future_ms`.
    Raises: ValueError for an order that a guard could not compare exactly.
    """
    orders = (event_time_ms, sequences)
    if len(keys) and any(order.max() >= MAX_ORDER or order.min() <= -MAX_ORDER for order in orders):
        raise ValueError("event times and sequences must lie below 2**53: milliseconds, and microseconds since 1970")
    status = np.full(len(keys), IGNORED, dtype=np.uint8)
    status[event_time_ms - sequences // 1000 > future_ms] = FUTURE
    best: dict[Any, int] = {}
    for row in np.lexsort((sequences, event_time_ms)).tolist():
        if status[row] != FUTURE:
            best[keys[row]] = row
    return np.fromiter(best.values(), dtype=np.int64, count=len(best)), status


def split_cells(group: LastGroup, data: bytes) -> list[bytes]:
    """The cells of one stored last value."""
    unpack_last(group, data)  # refuses what does not fit
    out: list[bytes] = []
    at = 0
    for _ in group.fields:
        size = (
            1
            if data[at] == 0
            else 17
            + int.from_bytes(data[at + 9 : at + 13], "little")
            + int.from_bytes(data[at + 13 : at + 17], "little")
        )
        out.append(data[at : at + size])
        at += size
    return out


def _order_of(cell: bytes) -> tuple[int, bytes]:
    id_length = int.from_bytes(cell[9:13], "little")
    return int.from_bytes(cell[1:9], "little", signed=True), cell[17 : 17 + id_length]

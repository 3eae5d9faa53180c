"""Guarded writes of tiles and last values into Redis: what a batch becomes, and which script takes it.

Bytes are made in features/packing.py, the server-side guards are features/lua/*.lua, how a script is called is in
features/redis_scripts.py. What reads the same keys is features/redis_store.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features import freshness
from features.coalesce import coalesce_last, coalesce_tiles, guards_of
from features.packing import CELL_BYTES, GroupKeys, pack_tiles, record_cells
from features.redis_scripts import KEYS_PER_CALL, ScriptWriter
from features.spec import PROJECT, Group, Key, LastGroup, RowGroup, TileGroup
from features.store import APPLIED
from features.window import DAY_MS

COUNTED_SPAN_MS: Final = 2 * DAY_MS  # event time for which a tile that left its span is still known to `used`
EVICTION_SLACK: Final = 16  # expired records that wait for each other, so that moving them is rare
OFFSETS_PER_BLOCK: Final = 1 << 20


def expiry_ms(group: Group | RowGroup) -> int:
    """Wall-clock expiry of a key that is no longer written. It collects garbage only: never under two days, so that
    a replay of old data, at whatever speed, finds what the first run wrote."""
    retained_ms = group.retain_tiles * group.hop_ms if isinstance(group, TileGroup) else 28 * DAY_MS
    return max(2 * DAY_MS, 2 * retained_ms)


class TileWriter(ScriptWriter):
    """Writes batches of tiles and last values, each guarded on the server.

    `used`: how many records a group had used after its last batch, whoever wrote them; `through_ms`: the heartbeat that
    this writer said last.
    """

    def __init__(
        self,
        redis_url: str,
        project: str = PROJECT,
        *,
        lives: Mapping[tuple[str, int], str] | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        super().__init__(redis_url, project, lives=lives, timeout_s=timeout_s)
        self.used: dict[str, int] = {}
        self.through_ms: dict[str, int] = {}

    def write_tiles(
        self,
        group: TileGroup,
        generation: int,
        keys: Sequence[Key],
        tiles: NDArray[np.int64],
        counts: NDArray[np.int64],
        partials: Sequence[NDArray[Any]],
        *,
        applied_through_ms: int | None,
        appended_ms: NDArray[np.int64] | None = None,
        now_ms: int | None = None,
    ) -> NDArray[np.uint8]:
        """Write N rows of (key, tile) and return what became of each: 1 applied, 0 ignored (older sequence), 2 counted
        in `used` but below the span that is kept.

        Shapes: keys N, no nulls; tiles, counts (N,) int64; partials len(group.partials) arrays of (N,), nulls as NaN or
        None; appended_ms (N,) Kafka append wall time. applied_through_ms is the batch's highest ingest time; None leaves
        the heartbeat where it is.
        Raises: StoreError naming the address when Redis cannot be reached: write the same batch again, it is idempotent.
        GenerationLost when Redis has lost the generation: writing again does not help.
        """
        names = GroupKeys(self._project, group.name, generation)
        batch = coalesce_tiles(keys, pack_tiles(group, np.asarray(tiles), np.asarray(counts), partials))
        encoded = self._encoder(group.entity).encode_many(batch.keys, names.suffix)
        marker, life = names.marker, self._life(names)
        head = [
            life,
            record_cells(group) * CELL_BYTES,
            group.retain_rows,
            expiry_ms(group),
            max(COUNTED_SPAN_MS // group.hop_ms, 1) * group.rows_per_tile + group.retain_rows,
            EVICTION_SLACK,
        ]
        calls = [
            (
                [marker, names.used, names.forgotten, *encoded[first : first + KEYS_PER_CALL]],
                [*head, *batch.records[first : first + KEYS_PER_CALL]],
            )
            for first in range(0, len(encoded), KEYS_PER_CALL)
        ]
        replies = b"".join(self._call("write_tiles", calls))
        status = np.zeros(len(keys), dtype=np.uint8)
        status[batch.rows] = np.frombuffer(replies, dtype=np.uint8) - ord("0")
        self._mark(names, applied_through_ms, status != 0, appended_ms, now_ms, None, expiry_ms(group))
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
        applied_through_ms: int | None,
        positions: tuple[Sequence[int], Sequence[int]] | None = None,
        appended_ms: NDArray[np.int64] | None = None,
        now_ms: int | None = None,
    ) -> NDArray[np.uint8]:
        """Write N events' last values, merged per field by (event_time_ms, event_id); 1 where one field or more won.

        `values[field.name]` has N items, None where the field's `where` is not true or its `of` is null.
        `positions` = (Kafka partition (N,), offset (N,)): with it every record is counted in `used` exactly once,
        whatever is sent again; without it `used` does not move, because a maximum cannot tell how many it has seen.
        Raises: StoreError as `write_tiles`.
        """
        names = GroupKeys(self._project, group.name, generation)
        batch = coalesce_last(group, keys, event_time_ms, event_ids, values)
        encoded = self._encoder(group.entity).encode_many(batch.keys, names.suffix)
        marker, life = names.marker, self._life(names)
        calls = [
            (
                [marker, *encoded[first : first + KEYS_PER_CALL]],
                [life, guards_of(group), expiry_ms(group), *batch.cells[first : first + KEYS_PER_CALL]],
            )
            for first in range(0, len(encoded), KEYS_PER_CALL)
        ]
        won = np.frombuffer(b"".join(self._call("write_last", calls)), dtype=np.uint8) == ord("1")
        status = np.zeros(len(keys), dtype=np.uint8)
        status[batch.rows[won]] = APPLIED
        self._mark(names, applied_through_ms, status == APPLIED, appended_ms, now_ms, positions, expiry_ms(group))
        return status

    def write_backfill(
        self,
        group: TileGroup,
        generation: int,
        keys: Sequence[Key],
        tiles: NDArray[np.int64],
        counts: NDArray[np.int64],
        partials: Sequence[NDArray[Any]],
        *,
        seam_ms: int,
    ) -> NDArray[np.uint8]:
        """`write_tiles` of tiles below the seam, which the stream does not own; the heartbeat stays the stream's.

        For last values there is `write_last(…, applied_through_ms=None)`: their order decides, not an owner.
        Raises: ValueError for a tile at the seam or above it; StoreError, GenerationLost as `write_tiles`.
        """
        tiles = np.asarray(tiles)
        newest = int(tiles.max()) // group.rows_per_tile if len(tiles) else None
        if newest is not None and (newest + 1) * group.hop_ms > seam_ms:
            raise ValueError(f"group {group.name}: tile {newest} is above the seam {seam_ms}, it is the stream's")
        return self.write_tiles(group, generation, keys, tiles, counts, partials, applied_through_ms=None)

    def mark_applied(self, group: Group, generation: int, applied_through_ms: int) -> None:
        """Move the heartbeat of a group forward, never back: for who knows from elsewhere what is written.

        Raises: StoreError; GenerationLost.
        """
        names = GroupKeys(self._project, group.name, generation)
        self._mark(names, applied_through_ms, np.zeros(0, dtype=np.bool_), None, None, None, 0)

    def mark_backfilled(self, group: Group, generation: int, seam_ms: int) -> None:
        """Say that a backfill has filled a generation up to the seam: the switch waits for it.

        Raises: StoreError; GenerationLost.
        """
        names = GroupKeys(self._project, group.name, generation)
        self._call("mark_backfilled", [([names.marker, names.backfilled], [self._life(names), seam_ms])])

    def _mark(
        self,
        names: GroupKeys,
        applied_through_ms: int | None,
        applied: NDArray[np.bool_],
        appended_ms: NDArray[np.int64] | None,
        now_ms: int | None,
        positions: tuple[Sequence[int], Sequence[int]] | None,
        bitmap_expiry_ms: int,
    ) -> None:
        """A step of its own after every write has been answered: a heartbeat must not run ahead of its values."""
        if applied_through_ms is None and appended_ms is None and positions is None:
            return
        histogram = b""
        if appended_ms is not None and applied.any():
            now_ms = int(time.time() * 1000) if now_ms is None else now_ms
            histogram = freshness.pack_histogram(now_ms - np.asarray(appended_ms)[applied])
        bitmaps = list(_bitmaps(names, positions)) if positions is not None else []
        keys = [names.marker, names.heartbeat, names.freshness, names.used, *(name for name, _ in bitmaps)]
        args = [
            self._life(names),
            b"" if applied_through_ms is None else applied_through_ms,
            bitmap_expiry_ms,
            histogram,
            *(offsets for _, offsets in bitmaps),
        ]
        (self.used[names.group],) = self._call("mark_applied", [(keys, args)])
        if applied_through_ms is not None:
            self.through_ms[names.group] = applied_through_ms


def _bitmaps(names: GroupKeys, positions: tuple[Sequence[int], Sequence[int]]) -> Iterator[tuple[bytes, bytes]]:
    partitions, offsets = (np.asarray(p, dtype=np.int64) for p in positions)
    blocks = offsets // OFFSETS_PER_BLOCK
    for partition, block in sorted(set(zip(partitions.tolist(), blocks.tolist(), strict=True))):
        here = (partitions == partition) & (blocks == block)
        yield names.offsets(partition, block), (offsets[here] % OFFSETS_PER_BLOCK).astype("<u4").tobytes()

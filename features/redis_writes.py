"""Guarded writes of tiles and last values into Redis: what a batch becomes, and which script takes it.

Every script compares the generation's marker with the *life* that the writer shows. A Redis that lost its data, or was
filled anew, holds another one or none: then nothing is written, because the tiles that a job still remembers are not all
that windows need, and a heartbeat beside them would show wrong values as fresh ones.

Bytes are made in features/packing.py, the server-side guards are features/lua/*.lua. Scripts, not functions, so that
Redis 6.2 serves. What reads the same keys is features/redis_store.py.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import redis
from numpy.typing import NDArray

from features import freshness
from features.coalesce import coalesce_last, coalesce_tiles, guards_of
from features.lua import script
from features.packing import CELL_BYTES, GroupKeys, KeyEncoder, pack_tiles, record_cells
from features.redis_client import address_of, connect, store_errors
from features.spec import PROJECT, Entity, Group, LastGroup, TileGroup
from features.store import APPLIED, GenerationLost, StoreError
from features.window import DAY_MS

KEYS_PER_CALL: Final = 32  # one script call serves this many keys: tests/bench/bench_tiles.py
CALLS_PER_PIPELINE: Final = 64
COUNTED_SPAN_MS: Final = 2 * DAY_MS  # event time for which a tile that left its span is still known to `used`
EVICTION_SLACK: Final = 16  # expired records that wait for each other, so that moving them is rare
OFFSETS_PER_BLOCK: Final = 1 << 20


def expiry_ms(group: Group) -> int:
    """Wall-clock expiry of a key that is no longer written. It collects garbage only: never under two days, so that
    a replay of old data, at whatever speed, finds what the first run wrote."""
    retained_ms = group.retain_tiles * group.hop_ms if isinstance(group, TileGroup) else 28 * DAY_MS
    return max(2 * DAY_MS, 2 * retained_ms)


class TileWriter:
    """Writes batches of tiles and last values, each guarded on the server. One per thread: it owns one connection.

    `lives`: what the marker of (group, generation) must say (`Registry.life_of`). A writer that is given none for a
    generation takes what stands there at its first write, and makes a generation that has no marker.
    """

    def __init__(
        self,
        redis_url: str,
        project: str = PROJECT,
        *,
        lives: Mapping[tuple[str, int], str] | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._address = address_of(redis_url)
        self._project = project
        with store_errors(self._address):  # a single connection is opened at once
            self._client = connect(redis_url, timeout_s, single_connection=True)
        self._encoders: dict[Entity, KeyEncoder] = {}
        self._shas: dict[str, bytes] = {}
        self._lives = {GroupKeys(project, *place).marker: life.encode() for place, life in (lives or {}).items()}

    def write_tiles(
        self,
        group: TileGroup,
        generation: int,
        keys: Sequence[str | int],
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
        keys: Sequence[str | int],
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
        keys: Sequence[str | int],
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

    def mark_backfilled(self, group: Group, generation: int, seam_ms: int) -> None:
        """Say that a backfill has filled a generation up to the seam: the switch waits for it.

        Raises: StoreError; GenerationLost.
        """
        names = GroupKeys(self._project, group.name, generation)
        self._call("mark_backfilled", [([names.marker, names.backfilled], [self._life(names), seam_ms])])

    def close(self) -> None:
        self._client.close()

    def _life(self, names: GroupKeys) -> bytes:
        """What the marker must say, for as long as this writer lives."""
        known = self._lives.get(names.marker)
        if known is None:
            with store_errors(self._address):
                self._client.set(names.marker, secrets.token_hex(8), nx=True)
                found: bytes | None = self._client.get(names.marker)  # type: ignore[assignment]
            known = self._lives[names.marker] = found or b""
        return known

    def _encoder(self, entity: Entity) -> KeyEncoder:
        return self._encoders.setdefault(entity, KeyEncoder(entity))

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
        if applied_through_ms is None:
            return
        histogram = b""
        if appended_ms is not None and applied.any():
            now_ms = int(time.time() * 1000) if now_ms is None else now_ms
            histogram = freshness.pack_histogram(now_ms - np.asarray(appended_ms)[applied])
        bitmaps = list(_bitmaps(names, positions)) if positions is not None else []
        keys = [names.marker, names.heartbeat, names.freshness, names.used, *(name for name, _ in bitmaps)]
        args = [
            self._life(names),
            applied_through_ms,
            bitmap_expiry_ms,
            histogram,
            *(offsets for _, offsets in bitmaps),
        ]
        self._call("mark_applied", [(keys, args)])

    def _call(self, name: str, calls: Sequence[tuple[Sequence[bytes], Sequence[Any]]]) -> list[Any]:
        """Run one script many times, pipelined; replies in order.

        A Redis that restarted has forgotten its scripts and answers NOSCRIPT for calls that had no effect: the script
        is loaded again and only those are repeated.
        """
        replies: list[Any] = []
        with store_errors(self._address):
            for first in range(0, len(calls), CALLS_PER_PIPELINE):
                part = calls[first : first + CALLS_PER_PIPELINE]
                got = self._pipeline(name, part)
                forgotten = [i for i, reply in enumerate(got) if isinstance(reply, redis.exceptions.NoScriptError)]
                if forgotten:
                    self._shas.pop(name, None)
                    for i, reply in zip(forgotten, self._pipeline(name, [part[i] for i in forgotten]), strict=True):
                        got[i] = reply
                for reply in got:
                    if isinstance(reply, Exception):
                        self._refuse_lost(str(reply))
                        raise StoreError(f"Redis at {self._address} refused {name}: {reply}") from reply
                replies.extend(got)
        return replies

    def _refuse_lost(self, reply: str) -> None:
        """Raises: GenerationLost where a script answered that the marker does not say what it should."""
        if not reply.startswith("NOGEN "):
            return
        project, group, generation = reply.removeprefix("NOGEN ").split(":")[2:5]
        raise GenerationLost(
            f"Redis at {self._address} no longer holds generation {generation} of group {group} (project {project}): its data was "
            "lost, dropped or applied anew, and what a job remembers of it is not all that windows need. Nothing is written. "
            "Where the registry is still there (`hailstream features list`): `hailstream features rebuild --all`. Where it is "
            "gone as well: `hailstream features apply`, then `hailstream jobs stop ID --no-savepoint` and submit the job again"
        )

    def _pipeline(self, name: str, calls: Sequence[tuple[Sequence[bytes], Sequence[Any]]]) -> list[Any]:
        if name not in self._shas:
            sha = self._client.script_load(script(name))
            self._shas[name] = sha if isinstance(sha, bytes) else str(sha).encode()
        pipeline = self._client.pipeline(transaction=False)
        for keys, args in calls:
            pipeline.execute_command("EVALSHA", self._shas[name], len(keys), *keys, *args)
        return pipeline.execute(raise_on_error=False)


def _bitmaps(names: GroupKeys, positions: tuple[Sequence[int], Sequence[int]]) -> Iterator[tuple[bytes, bytes]]:
    partitions, offsets = (np.asarray(p, dtype=np.int64) for p in positions)
    blocks = offsets // OFFSETS_PER_BLOCK
    for partition, block in sorted(set(zip(partitions.tolist(), blocks.tolist(), strict=True))):
        here = (partitions == partition) & (blocks == block)
        yield names.offsets(partition, block), (offsets[here] % OFFSETS_PER_BLOCK).astype("<u4").tobytes()

"""Canary events: real records of reserved keys, sent through Kafka and the job to the store, and timed on their way.

    send ─► topic ─► job ─► store: the canary's own tile counts one more, its offset is marked as used
    |<--------------- freshness --------------->|

They prove that the whole way works, say how long it takes, and keep heartbeats alive in a quiet city. Their entity keys
belong to nobody (`driver_id` "canary", the highest zone there may be), so they are in no real aggregate; to the job they
are records as all others: used, counted, in the conservation of places. They carry the wall clock, so they belong where
the live events do, and not beside a replay of old ones: there they would move heartbeats to today.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from features.packing import GroupKeys, KeyEncoder, record_cells
from features.records import DRIVER_EVENTS, TRIP_EVENTS, DriverEvent, TripEvent, encode
from features.redis_client import address_of, connect, store_errors
from features.redis_writes import OFFSETS_PER_BLOCK
from features.registry import Registry
from features.spec import Group, Source, TileGroup
from features.store import FeatureError
from features.topics import Producer

CANARY: Final = "canary"  # every text of such a record, ids included, is this or begins with it
CANARY_ZONE: Final = 2**31 - 1  # of no city
POLL_S: Final = 0.002


@dataclass(frozen=True, kw_only=True)
class Flight:
    """One canary in one group. `seconds` from sending to readable; None when it was not seen in time."""

    source: str
    group: str
    sent_ms: int
    seconds: float | None


def is_canary(event_id: str) -> bool:
    """Whether a record was sent by a canary."""
    return event_id.startswith(f"{CANARY}-")


def canary_of(topic: str, now_ms: int) -> TripEvent | DriverEvent:
    """A record of this moment that belongs to nobody. Raises: FeatureError for a topic that has none."""
    event_id = f"{CANARY}-{uuid.uuid4().hex}"
    if topic == DRIVER_EVENTS:
        return DriverEvent(
            event_id=event_id,
            driver_id=CANARY,
            city=CANARY,
            status="offline",
            zone=CANARY_ZONE,
            event_time_ms=now_ms,
            ingest_time_ms=now_ms,
        )
    if topic != TRIP_EVENTS:
        raise FeatureError(f"no canary is known for topic {topic!r}: add one to features/canary.py")
    return TripEvent(
        event_id=event_id,
        event_type="requested",  # of no decision, so the sample job has nothing to match
        order_id=event_id,
        rider_id=CANARY,
        driver_id=CANARY,
        city=CANARY,
        product=CANARY,
        pickup_zone=CANARY_ZONE,
        dropoff_zone=CANARY_ZONE,
        event_time_ms=now_ms,
        ingest_time_ms=now_ms,
    )


class CanaryRun:
    """Sends canaries for what is applied and watches them arrive. One run at a time a project: they share their keys."""

    def __init__(self, registry: Registry, kafka: str, redis_url: str) -> None:
        self._registry, self._kafka = registry, kafka
        self._address = address_of(redis_url)
        self._client = connect(redis_url, 5.0)
        self._producer = Producer(kafka, linger_ms=0)

    def close(self) -> None:
        self._client.close()

    def fly(self, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> list[Flight]:
        """One canary in every topic that feeds a group; returns when each is seen in all of its groups, or time is up.

        Raises: TopicError, StoreError.
        """
        flights = [self._send(source, groups) for source, groups in self._sources()]
        waiting = [one for several in flights for one in several]
        out: list[Flight] = []
        end = time.monotonic() + timeout_s
        while waiting and time.monotonic() < end and not stopped():
            still = []
            for one in waiting:
                if self._arrived(one):
                    out.append(one.flight(time.monotonic() - one.sent))
                else:
                    still.append(one)
            waiting = still
            time.sleep(POLL_S)
        return out + [one.flight(None) for one in waiting]

    def _sources(self) -> Iterator[tuple[Source, list[tuple[Group, int]]]]:
        by_topic: dict[str, tuple[Source, list[tuple[Group, int]]]] = {}
        for group, generation in self._registry.groups():
            by_topic.setdefault(group.source.topic, (group.source, []))[1].append((group, generation))
        yield from by_topic.values()

    def _send(self, source: Source, groups: Sequence[tuple[Group, int]]) -> list[_Waiting]:
        now_ms = int(time.time() * 1000)
        record = canary_of(source.topic, now_ms)
        sent = time.monotonic()
        places = [self._place(source, record, group, generation, sent, now_ms) for group, generation in groups]
        before = [self._count(place) for place in places]
        key = record.order_id if isinstance(record, TripEvent) else record.driver_id
        sent = time.monotonic()
        partition, offset = self._producer.send_and_wait(source.topic, key, encode(record))
        for place, count in zip(places, before, strict=True):
            place.sent, place.count, place.partition, place.offset = sent, count, partition, offset
        return places

    def _place(self, source: Source, record: Any, group: Group, generation: int, sent: float, now_ms: int) -> _Waiting:
        names = GroupKeys(self._registry.project, group.name, generation)
        key = tuple(getattr(record, name) for name in group.key_fields)
        name = KeyEncoder(group.entity).encode(key if len(key) > 1 else key[0]) + names.suffix
        return _Waiting(source=source.name, group=group, names=names, key=name, sent=sent, now_ms=now_ms)

    def _count(self, one: _Waiting) -> int:
        """Events in the canary's tile."""
        if not isinstance(one.group, TileGroup):
            return 0
        with store_errors(self._address):
            value: bytes | None = self._client.get(one.key)  # type: ignore[assignment]
        cells = np.frombuffer(value or b"", dtype=np.int64).reshape(-1, record_cells(one.group))
        tile = one.now_ms // one.group.hop_ms
        return int(cells[cells[:, 0] // one.group.rows_per_tile == tile, 1].sum())

    def _arrived(self, one: _Waiting) -> bool:
        if isinstance(one.group, TileGroup):
            return self._count(one) > one.count
        block, bit = divmod(one.offset, OFFSETS_PER_BLOCK)
        with store_errors(self._address):
            return bool(self._client.getbit(one.names.offsets(one.partition, block).decode(), bit))


@dataclass(kw_only=True)
class _Waiting:
    source: str
    group: Group
    names: GroupKeys
    key: bytes
    sent: float
    now_ms: int
    count: int = 0
    partition: int = 0
    offset: int = 0

    def flight(self, seconds: float | None) -> Flight:
        return Flight(source=self.source, group=self.group.name, sent_ms=self.now_ms, seconds=seconds)

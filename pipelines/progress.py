"""The heartbeat of a job of several tasks: what Flink's checkpoints have finished, read back from Kafka.

With one task the sink sees all rows of a batch and says itself how far they reach (pipelines/sink.py). With several a fast
one would promise rows that a slow one has not written, and one without rows could promise nothing. But a checkpoint is
complete only after every task has written all that it got before the barrier, and then Flink commits the offsets that
were read up to there. So, over all partitions of a source:

    records      ........ finished ........ | committed        end |
    behind       a partition where committed < end
    through  =   some are behind:  the least ingest time of their first open records, minus 1
                 none is:          the greatest ingest time of the last records

Nothing depends on which task wrote what, on tasks that have no rows, or on a writer that an old TaskManager left
behind: it reads the same offsets. The price is that the heartbeat is one checkpoint old; the values are not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from features.records import RECORD_OF_TOPIC, RecordError, decode
from features.redis_store import TileWriter
from features.spec import PROJECT, Group
from features.store import GenerationLost, StoreError
from features.topics import Message, TopicError, TopicTail

PERIOD_S: Final = 0.25
LOOK: Final = 50  # records that are looked through for a good one
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a job says what it has finished of one source."""

    kafka: str
    topic: str
    consumer_group: str  # of this job and of what it feeds alone: another's offsets say nothing about these writes
    ingest_time: str  # the column
    future_ms: int

    def known_ms(self, message: Message) -> int | None:
        """When the record was known; None of one that is malformed, or from the future of its broker."""
        try:
            record = decode(message.value, RECORD_OF_TOPIC[self.topic])
        except RecordError:
            return None
        ingest_ms: int = getattr(record, self.ingest_time)
        return None if ingest_ms - message.timestamp_ms > self.future_ms else ingest_ms


class Tail(Protocol):
    """What `features.topics.TopicTail` answers."""

    def positions(self) -> dict[int, tuple[int, int, int | None]]: ...
    def read(self, partition: int, first: int, end: int) -> list[Message]: ...


def finished_through(tail: Tail, progress: Progress) -> int | None:
    """The ingest time up to which all records are written; None where nobody can say yet. Raises: TopicError."""
    newest: list[int] = []
    bounds: list[int] = []
    for partition, (low, end, committed) in tail.positions().items():
        if committed is None and end > low:
            return None  # read, perhaps, but no checkpoint has said so
        if committed is None:
            continue  # an empty partition
        if committed > low:
            newest += _known(progress, tail.read(partition, max(low, committed - LOOK), committed))
        if committed < end:
            open_ones = _known(progress, tail.read(partition, committed, min(end, committed + LOOK)))
            if not open_ones and end > committed + LOOK:
                return None
            bounds += [open_ones[0] - 1] if open_ones else []
    return min(bounds) if bounds else max(newest, default=None)


def _known(progress: Progress, messages: Iterable[Message]) -> list[int]:
    return [known for known in map(progress.known_ms, messages) if known is not None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One group's heartbeat."""

    redis_url: str
    project: str = PROJECT
    group: Group
    generation: int
    life: str | None

    def writer(self) -> TileWriter:
        lives = {} if self.life is None else {(self.group.name, self.generation): self.life}
        return TileWriter(self.redis_url, self.project, lives=lives)


class _Follower(threading.Thread):
    """Asks how far a job is, and says it in the heartbeats of all groups of one source that this process writes."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(name=f"progress of {progress.topic}", daemon=True)
        self.progress = progress
        self.places: list[Place] = []
        self.ended = threading.Event()
        self.said: dict[str, int] = {}

    def run(self) -> None:
        tail: TopicTail | None = None
        while not self.ended.wait(PERIOD_S):
            try:
                tail = tail or TopicTail(self.progress.kafka, self.progress.topic, self.progress.consumer_group)
                through_ms = finished_through(tail, self.progress)
                if through_ms is not None:
                    self._say(through_ms)
            except (TopicError, StoreError) as error:  # a heartbeat that stands still is right; the writes go on
                log.warning("heartbeat of %s: %s", self.progress.topic, error)
        if tail is not None:
            tail.close()

    def _say(self, through_ms: int) -> None:
        for place in list(self.places):
            if self.said.get(place.group.name) == through_ms:
                continue
            writer = place.writer()
            try:
                writer.mark_applied(place.group, place.generation, through_ms)
                self.said[place.group.name] = through_ms
            except GenerationLost:
                pass  # the next write fails the job, and says why
            finally:
                writer.close()


_followers: dict[Progress, _Follower] = {}
_lock = threading.Lock()


def follow(progress: Progress, place: Place) -> Callable[[], None]:
    """Keep a group's heartbeat at what the job has finished, from a thread that all groups of a source share.

    Returns what ends it.
    """
    with _lock:
        follower = _followers.get(progress)
        if follower is None:
            follower = _followers[progress] = _Follower(progress)
            follower.start()
        follower.places.append(place)

    def end() -> None:
        with _lock:
            follower.places.remove(place)
            if not follower.places:
                follower.ended.set()
                _followers.pop(progress, None)

    return end


def said_through(progress: Progress, group: Group) -> int | None:
    """What this process has said last in a group's heartbeat."""
    follower = _followers.get(progress)
    return None if follower is None else follower.said.get(group.name)

"""Kafka, behind one small interface: the only file that names a Kafka client.

kafka-python does what is rare and wants plain code: topic administration and offset look-ups. confluent-kafka does what
is frequent: its work happens outside the interpreter lock and is 11-16 times faster. Records and topic names are in
`features/records.py`; this file moves bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from features.records import DEAD_LETTERS, DECISIONS, DRIVER_EVENTS, LEDGER, SAMPLES, TRIP_EVENTS

SHADOW_DECISIONS: Final = "shadow_decisions"  # Decisions that nobody was answered with; `shadow_of` is set

# Partitions of each topic on a local stack. Keyed topics need order per key only, so any number is right.
PARTITIONS: Mapping[str, int] = {
    TRIP_EVENTS: 2,
    DRIVER_EVENTS: 2,
    DECISIONS: 2,
    SAMPLES: 2,
    DEAD_LETTERS: 1,
    LEDGER: 1,
    SHADOW_DECISIONS: 2,
}
KEEP_FOREVER = {"retention.ms": "-1"}  # a replay carries old data: broker time must not delete it
# A dead letter holds the largest message that the broker takes elsewhere (1 MiB), in base64.
LARGE_MESSAGES = {"max.message.bytes": str(2 << 20)}


class TopicError(RuntimeError):
    """The broker could not be reached or refused; the message names the address."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `timestamp_ms` is when it was appended (wall clock): good for freshness, never for meaning."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int


def create_topics(bootstrap: str, partitions: Mapping[str, int] = PARTITIONS) -> list[str]:
    """Create the topics that do not exist yet; returns their names. Raises: TopicError."""
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    try:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=20_000, bootstrap_timeout_ms=5_000)
    except KafkaError as error:
        raise TopicError(f"no Kafka broker at {bootstrap}: {error}") from None
    try:
        missing = sorted(set(partitions) - set(admin.list_topics()))
        wanted = [
            NewTopic(
                name=name,
                num_partitions=partitions[name],
                replication_factor=1,
                topic_configs=KEEP_FOREVER | (LARGE_MESSAGES if name == DEAD_LETTERS else {}),
            )
            for name in missing
        ]
        if wanted:
            try:
                admin.create_topics(wanted)
            except (
                TopicAlreadyExistsError
            ):  # another creator won the race for one of them: what is left is created singly
                for topic in wanted:
                    try:
                        admin.create_topics([topic])
                    except TopicAlreadyExistsError:
                        continue
        return missing
    except KafkaError as error:
        raise TopicError(f"the broker at {bootstrap} refused to create topics: {error}") from None
    finally:
        admin.close()


class Producer:
    """Sends messages in order per key, each exactly once while the process lives (idempotent producer, acks=all).

    `linger_ms` trades latency for batches. A failed delivery is counted in `failed` and raised by `flush`, unless the
    caller passed `on_delivery(error_text | None)` for that message and deals with it. `max_message_bytes` is of a message
    before `compression` ("none", "lz4", "zstd", …); the topic's own limit is of what is sent.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        linger_ms: int = 5,
        timeout_ms: int = 120_000,
        compression: str = "none",
        max_message_bytes: int = 1_000_000,
    ) -> None:
        from confluent_kafka import Producer as ConfluentProducer

        self.bootstrap = bootstrap
        self.sent = 0
        self.failed: list[str] = []
        self._producer = ConfluentProducer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                "delivery.timeout.ms": timeout_ms,
                "queue.buffering.max.messages": 500_000,
                "compression.type": compression,
                "message.max.bytes": max_message_bytes,
                "partitioner": "murmur2_random",  # the Java client's: any producer puts a key where the others do
                "log_level": 3,
            }
        )

    def send(
        self,
        topic: str,
        key: str | bytes,
        value: bytes,
        *,
        on_delivery: Callable[[str | None], None] | None = None,
    ) -> None:
        """Queue one message; blocks while the queue is full (back-pressure, not loss)."""

        def delivered(error: Any, _message: Any) -> None:
            if on_delivery is not None:
                on_delivery(None if error is None else str(error))
            elif error is not None:
                self.failed.append(f"{topic}: {error}")

        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
        self.sent += 1
        self._producer.poll(0)

    def send_and_wait(self, topic: str, key: str | bytes, value: bytes, timeout_s: float = 30.0) -> tuple[int, int]:
        """Send one message and wait for it; its (partition, offset). Raises: TopicError when it is not acknowledged."""
        done: list[tuple[Any, Any]] = []
        self._producer.produce(topic, value, key, on_delivery=lambda error, message: done.append((error, message)))
        end = time.monotonic() + timeout_s
        while not done:
            self._producer.poll(0.05)
            if time.monotonic() > end:
                raise TopicError(f"{topic} at {self.bootstrap}: not acknowledged after {timeout_s:g} s")
        error, message = done[0]
        if error is not None:
            raise TopicError(f"{topic} at {self.bootstrap}: {error}")
        return int(message.partition()), int(message.offset())

    def poll(self, timeout_s: float = 0.0) -> None:
        """Run delivery callbacks that are due."""
        self._producer.poll(timeout_s)

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until everything sent is acknowledged. Raises: TopicError when something is not."""
        left = self._producer.flush(timeout_s)
        if left or self.failed:
            reasons = "; ".join(sorted(set(self.failed))[:3])
            raise TopicError(
                f"{left} messages not acknowledged by {self.bootstrap} after {timeout_s:g} s, {len(self.failed)} failed {reasons}"
            )


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """The next offset of each partition, `{partition: offset}`. Raises: TopicError for an unknown topic or broker."""
    consumer = _consumer(bootstrap)
    try:
        return {p: _watermarks(consumer, bootstrap, tp)[1] for p, tp in _partitions(consumer, bootstrap, topic)}
    finally:
        consumer.close()


def committed_offsets(bootstrap: str, topic: str, group: str) -> dict[int, int]:
    """How far a consumer group has said to have read, `{partition: next offset}`; 0 where it has said nothing.

    Raises: TopicError for an unknown topic or broker.
    """
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 3})
    try:
        partitions = [tp for _, tp in _partitions(consumer, bootstrap, topic)]
        return {tp.partition: max(tp.offset, 0) for tp in consumer.committed(partitions, timeout=20)}
    except KafkaException as error:
        raise TopicError(f"the broker at {bootstrap} does not say what group {group} has read: {error}") from None
    finally:
        consumer.close()


class TopicTail:
    """How far a consumer group has got in a topic, and single records of it, over one connection. Not for two threads."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.topic, self._bootstrap = topic, bootstrap
        self._consumer = _consumer(bootstrap, group)

    def close(self) -> None:
        self._consumer.close()

    def positions(self) -> dict[int, tuple[int, int, int | None]]:
        """(first offset, next offset, the offset that the group has committed) of each partition.

        The end is asked first: what is appended in between is not taken for finished. Raises: TopicError.
        """
        from confluent_kafka import KafkaException

        parts = _partitions(self._consumer, self._bootstrap, self.topic)
        ends = {p: _watermarks(self._consumer, self._bootstrap, tp) for p, tp in parts}
        try:
            committed = self._consumer.committed([tp for _, tp in parts], timeout=20)
        except KafkaException as error:
            raise TopicError(
                f"the broker at {self._bootstrap} does not say what was read of {self.topic}: {error}"
            ) from None
        return {tp.partition: (*ends[tp.partition], tp.offset if tp.offset >= 0 else None) for tp in committed}

    def read(self, partition: int, first: int, end: int) -> list[Message]:
        """The messages of [first, end) of one partition; fewer where transaction markers took offsets. Raises: TopicError."""
        from confluent_kafka import TopicPartition

        out: list[Message] = []
        self._consumer.assign([TopicPartition(self.topic, partition, first)])
        deadline = time.monotonic() + 20
        while True:
            for message in self._consumer.consume(end - first, timeout=0.2):
                if message.error() is not None:
                    if message.error().code() == _partition_eof():
                        return out
                    raise TopicError(f"reading {self.topic} from {self._bootstrap}: {message.error()}")
                if message.offset() < end:
                    out.append(_message(message))
                if message.offset() + 1 >= end:
                    return out
            if time.monotonic() > deadline:
                raise TopicError(
                    f"reading {self.topic} from {self._bootstrap}: offset {first} did not come within 20 s"
                )


def read_all(bootstrap: str, topic: str, *, start: Mapping[int, int] | None = None) -> Iterator[Message]:
    """Every committed message of a topic from `start` (default: the first) up to the end offsets at call time.

    Within a partition in offset order. Transaction markers take offsets too, so offsets may have gaps.
    Raises: TopicError.
    """
    from confluent_kafka import TopicPartition

    consumer = _consumer(bootstrap)
    try:
        left: dict[int, int] = {}
        assignment = []
        for partition, tp in _partitions(consumer, bootstrap, topic):
            low, high = _watermarks(consumer, bootstrap, tp)
            first = max(low, (start or {}).get(partition, low))
            if first < high:
                left[partition] = high
                assignment.append(TopicPartition(topic, partition, first))
        consumer.assign(assignment)
        deadline = time.monotonic() + 60
        while left:
            batch = consumer.consume(10_000, timeout=0.2)
            for message in batch:
                if message.error() is not None:
                    if message.error().code() == _partition_eof():
                        left.pop(message.partition(), None)  # only transaction markers were left
                        continue
                    raise TopicError(f"reading {topic} from {bootstrap}: {message.error()}")
                end = left.get(message.partition())
                if end is None or message.offset() >= end:
                    left.pop(message.partition(), None)
                    continue
                yield _message(message)
                if message.offset() + 1 >= end:
                    left.pop(message.partition(), None)
            if batch:
                deadline = time.monotonic() + 60
            elif time.monotonic() > deadline:
                raise TopicError(f"reading {topic} from {bootstrap}: nothing arrived for 60 s, still to read {left}")
    finally:
        consumer.close()


def _consumer(bootstrap: str, group: str = "hailstream-reader") -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,  # never commits: positions belong to the caller
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 3,
        }
    )


def _partitions(consumer: Any, bootstrap: str, topic: str) -> list[tuple[int, Any]]:
    from confluent_kafka import KafkaException, TopicPartition

    try:
        metadata = consumer.list_topics(topic, timeout=20).topics[topic]
    except KafkaException as error:
        raise TopicError(f"no Kafka broker at {bootstrap}: {error}") from None
    if metadata.error is not None:
        raise TopicError(f"topic {topic} at {bootstrap}: {metadata.error}")
    return [(p, TopicPartition(topic, p)) for p in sorted(metadata.partitions)]


def _watermarks(consumer: Any, bootstrap: str, partition: Any) -> tuple[int, int]:
    """First and next offset. A partition that was just created has no leader for some milliseconds."""
    from confluent_kafka import KafkaError, KafkaException

    passing = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART}
    end = time.monotonic() + 20
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=20)
            return int(low), int(high)
        except KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() > end:
                raise TopicError(f"topic {partition.topic} at {bootstrap}: {error}") from None
            time.sleep(0.05)


def _message(message: Any) -> Message:
    return Message(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value() or b"",
        timestamp_ms=message.timestamp()[1],
    )


def _partition_eof() -> int:
    from confluent_kafka import KafkaError

    return KafkaError._PARTITION_EOF

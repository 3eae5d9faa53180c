"""Moving the sample job's clock where no record does: the end of a replay, a quiet day.

The clock has a topic of its own, so it is no record of anybody's: no feature counts it, no sum of events, decisions or dead
letters changes. `jobs/samples.py` reads it beside the other two. Nothing here imports pyflink.
"""

from __future__ import annotations

from typing import Final

import msgspec

from features.topics import Producer, create_topics

CLOCK: Final = "clock"
CLOCK_PARTITIONS: Final = 1  # so that one message moves all of it


def publish_clock(producer: Producer, now_ms: int, *, topic_prefix: str = "") -> None:
    """Promise the sample job that every record with an ingest time before `now_ms` has been sent; returns when it is on the topic.

    Waits and windows that end before `now_ms` then close, as soon as the other topics' partitions have been silent for the
    job's `idle_ms` (5 s). So after a replay `last ingest time + labels.max_retention_ms` closes every sample and forgets
    every outcome that no decision took. A record that comes behind the promise is still joined, until its retention has passed.
    The job does not believe a time that lies more than 5 minutes ahead of the broker's own.
    Raises: TopicError.
    """
    topic = topic_prefix + CLOCK
    create_topics(producer.bootstrap, {topic: CLOCK_PARTITIONS})
    producer.send(topic, b"", msgspec.json.encode({"clock_ms": now_ms}))
    producer.flush()

"""How far a job of several tasks has got, from the offsets that its checkpoints committed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from features.topics import Message
from pipelines.progress import LOOK, Progress, finished_through
from tests import generate

PROGRESS = Progress(
    kafka="broker:9092",
    topic="trip_events",
    consumer_group="g",
    ingest_time="ingest_time_ms",
    future_ms=60_000,
)
EVENT = {**generate.trip_events(1, 1)[0], "event_type": "requested", "schema_version": 1}
BAD = -1


@dataclass
class Log:
    """One topic in memory. `ingests[p][i]`: when the record of offset `low[p] + i` was known; BAD is no record at all."""

    ingests: list[list[int]]
    committed: list[int | None]
    low: list[int] = field(default_factory=lambda: [0, 0])
    appended_ms: int = 10**6

    def positions(self) -> dict[int, tuple[int, int, int | None]]:
        ends = [low + len(records) for low, records in zip(self.low, self.ingests, strict=True)]
        return {
            p: (low, end, done) for p, (low, end, done) in enumerate(zip(self.low, ends, self.committed, strict=True))
        }

    def read(self, partition: int, first: int, end: int) -> list[Message]:
        low = self.low[partition]
        assert low <= first < end <= low + len(self.ingests[partition])
        rows = self.ingests[partition][first - low : end - low]
        return [
            Message("trip_events", partition, first + i, None, self.raw(ingest), self.appended_ms)
            for i, ingest in enumerate(rows)
        ]

    @staticmethod
    def raw(ingest_ms: int) -> bytes:
        return b"?" if ingest_ms == BAD else json.dumps({**EVENT, "ingest_time_ms": ingest_ms}).encode()


def through(log: Log) -> int | None:
    return finished_through(log, PROGRESS)


def test_all_is_finished_so_the_newest_record_counts() -> None:
    assert through(Log([[10, 30], [20]], [2, 1])) == 30
    assert through(Log([[10, 30, 25], [20]], [3, 1])) == 30  # in order of arrival, not of time
    assert through(Log([[10], []], [1, None])) == 10  # an empty partition holds nothing back


def test_the_first_open_record_of_the_slowest_partition_bounds() -> None:
    """p0 10 20 | 30 40      p1 12 15 18 |        |: committed"""
    assert through(Log([[10, 20, 30, 40], [12, 15, 18]], [2, 3])) == 29
    assert through(Log([[10, 20, 30, 40], [12, 15, 18]], [2, 1])) == 14
    assert through(Log([[10, 20, 30, 40], [12, 15, 18]], [0, 3])) == 9


def test_a_partition_of_which_no_checkpoint_speaks_holds_all_back() -> None:
    assert through(Log([[10, 20], [12]], [2, None])) is None
    assert through(Log([[], []], [None, None])) is None


def test_a_quiet_partition_holds_nothing_back() -> None:
    assert through(Log([[10, 500_000], [12]], [2, 1])) == 500_000


def test_bad_records_and_those_from_the_future_say_nothing_of_time() -> None:
    ahead = 10**6 + 60_001
    assert through(Log([[10, BAD, ahead], [12]], [3, 1])) == 12
    assert through(Log([[10, BAD, ahead, 40], [12]], [1, 1])) == 39
    assert through(Log([[10, BAD, ahead], [12]], [1, 1])) == 12  # what is open holds no record that counts
    many = [10, *[BAD] * (LOOK + 1), 50]
    assert through(Log([many, [12]], [1, 1])) is None  # nobody has looked so far
    assert through(Log([many, [12]], [5, 1])) == 49


def test_a_topic_whose_start_is_deleted_is_read_from_what_is_left() -> None:
    assert through(Log([[10, 20], [12]], [8, 1], low=[6, 0])) == 20
    assert through(Log([[10, 20], [12]], [6, 1], low=[6, 0])) == 9

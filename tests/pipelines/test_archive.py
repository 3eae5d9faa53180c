"""A topic's archive is its history: what the files hold, and that a join over them sees what a replay sees."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features.history import STATUS, history
from features.loader import SHIPPED, load_catalogue
from features.parquet import APPENDED, OFFSET, PARTITION
from features.records import TRIP_EVENTS, encode
from features.topics import Message
from pipelines.archive import GLOB, archive_writer
from pipelines.trips.arrival import Arrival, ArrivalConfig
from pipelines.trips.events import recorded_events
from pipelines.trips.green import read_green
from pipelines.trips.hvfhv import read_hvfhv
from pipelines.trips.replay import in_arrival_order
from tests.features.history_cases import online_rows, with_history

Topic = dict[int, list[Message]]
SEED = 5


class InMemoryTopic:
    """A topic's messages by partition."""

    def __init__(self, messages: Topic) -> None:
        self.messages = messages

    def end_offsets(self) -> dict[int, int]:
        return {partition: len(messages) for partition, messages in self.messages.items()}

    def read(self, start: dict[int, int]) -> list[Message]:
        return [m for partition, messages in self.messages.items() for m in messages[start.get(partition, 0) :]]


def topic_of(trips: list) -> Topic:
    """The trips' events in order of arrival over two partitions, with copies, and one broken message."""
    stamp = Arrival(ArrivalConfig(seed=SEED))
    events = in_arrival_order(c for trip in trips for e in recorded_events(trip) for c in stamp.copies(e))
    assert stamp.counts["duplicates"]
    topic: Topic = {0: [], 1: []}
    for event in events:
        partition = hash_of(event.order_id) % 2
        value = encode(event)
        topic[partition].append(
            Message(TRIP_EVENTS, partition, len(topic[partition]), None, value, event.ingest_time_ms)
        )
    topic[0].append(Message(TRIP_EVENTS, 0, len(topic[0]), None, b"{}", 0))
    return topic


def hash_of(text: str) -> int:
    return sum(text.encode())


def test_writing_again_adds_what_is_new_and_gives_the_same_bytes(tmp_path: Path) -> None:
    trips, _ = read_hvfhv(seed=SEED, limit_rows=150)
    topic, source = topic_of(trips), load_catalogue(SHIPPED).streams["trip_events"]
    short = {p: messages[: len(messages) // 2] for p, messages in topic.items()}
    for part in (short, topic, topic):
        with archive_writer(InMemoryTopic(part), source, tmp_path / "twice", block_offsets=50) as writer:
            writer.catch_up()
    with archive_writer(InMemoryTopic(topic), source, tmp_path / "once", block_offsets=50) as writer:
        once = writer.catch_up()
    assert once.rejected == 1 and once.rows == sum(map(len, topic.values())) - 1
    files = {path.relative_to(tmp_path / "once"): path.read_bytes() for path in (tmp_path / "once").rglob("block-*")}
    assert files == {
        path.relative_to(tmp_path / "twice"): path.read_bytes() for path in (tmp_path / "twice").rglob("block-*")
    }
    table = pa.concat_tables(pq.ParquetFile(path).read() for path in sorted((tmp_path / "once").glob(GLOB)))
    assert table.column_names == [PARTITION, OFFSET, APPENDED, *source.schema]
    assert table.num_rows == once.rows


@pytest.mark.parametrize(
    ("city", "rows", "num_times"),
    [("hvfhv", 500, 3), ("green", 1_200, 3), pytest.param("green", None, 12, marks=pytest.mark.slow)],
)
def test_the_history_of_real_trips_is_what_the_store_would_have_served(
    city: str, rows: int | None, num_times: int, tmp_path: Path
) -> None:
    read = {"hvfhv": read_hvfhv, "green": read_green}[city]
    trips, _ = read(seed=SEED, limit_rows=rows)
    topic, declared = topic_of(trips), load_catalogue(SHIPPED)
    source = declared.streams["trip_events"]
    with archive_writer(InMemoryTopic(topic), source, tmp_path) as writer:
        writer.catch_up()
    declared = with_history(declared, trip_events=str(tmp_path / GLOB))
    table = pa.concat_tables(pq.ParquetFile(path).read() for path in sorted(tmp_path.glob(GLOB)))
    events = table.sort_by(
        [("ingest_time_ms", "ascending"), (PARTITION, "ascending"), (OFFSET, "ascending")]
    ).to_pylist()
    arrivals = sorted({event["ingest_time_ms"] for event in events})
    times = [arrivals[i * (len(arrivals) - 1) // num_times] + i % 2 for i in range(1, num_times + 1)]
    zones = sorted({trip.pickup_zone for trip in trips})[:60]
    asked = [(zone, t) for t in times for zone in zones]
    frame = pa.table({"zone": [zone for zone, _ in asked], "as_of_ms": [t for _, t in asked]})
    got = history(declared, frame, ["zone_demand.*"], statuses=True).to_pylist()
    wanted = online_rows(declared, "zone_demand", source, events, asked)
    seen = 0
    for row, (values, statuses) in zip(got, wanted, strict=True):
        for name, value in values.items():
            assert row[f"zone_demand.{name}"] == value, (row["zone"], row["as_of_ms"], name)
            assert row[f"zone_demand.{name}{STATUS}"] == statuses[name], (row["zone"], row["as_of_ms"], name)
            seen += bool(value) and name == "completed_1h"
    assert seen > 20

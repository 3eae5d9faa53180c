"""Plain replay: order, idempotence, sums, what is named as derived."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from features.records import DEAD_LETTERS, DRIVER_EVENTS, TRIP_EVENTS, DeadLetter, DriverEvent, TripEvent, decode
from pipelines.trips.arrival import Arrival, ArrivalConfig
from pipelines.trips.pace import Pacer
from pipelines.trips.replay import Progress, ReplayReport, first_request_ms, replay

SEED = 7


class Kept:
    """A sink that keeps what it was sent, in order."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str | bytes, bytes]] = []
        self.flushed_at = 0

    def send(self, topic: str, key: str | bytes, value: bytes) -> None:
        self.messages.append((topic, key, value))

    def flush(self) -> None:
        self.flushed_at = len(self.messages)

    def trip_events(self) -> list[TripEvent]:
        return [decode(value, TripEvent) for topic, _, value in self.messages if topic == TRIP_EVENTS]

    def driver_events(self) -> list[DriverEvent]:
        return [decode(value, DriverEvent) for topic, _, value in self.messages if topic == DRIVER_EVENTS]


@pytest.fixture(scope="module")
def hvfhv() -> tuple[Kept, ReplayReport]:
    sink = Kept()
    return sink, replay("hvfhv", sink, seed=SEED, pacer=Pacer(None))


@pytest.fixture(scope="module")
def history() -> tuple[Kept, ReplayReport]:
    sink = Kept()
    return sink, replay("history", sink, seed=SEED, pacer=Pacer(None), until_ms=first_request_ms(seed=SEED) - 120_000)


def test_messages_are_the_events_of_the_file_plus_what_was_made_up(hvfhv: tuple[Kept, ReplayReport]) -> None:
    sink, report = hvfhv
    assert report.check() == []
    assert report.recorded == {"requested": 4995, "arrived": 3727, "picked_up": 4995, "completed": 4995}
    assert len(sink.messages) == report.published.total() == sink.flushed_at
    assert len({event.event_id for event in sink.trip_events()}) == report.recorded.total() + sum(
        count for name, count in report.derived.items() if name.startswith(TRIP_EVENTS)
    )
    letters = [decode(value, DeadLetter) for topic, _, value in sink.messages if topic == DEAD_LETTERS]
    assert len(letters) == 5


def test_a_message_that_gets_lost_breaks_the_sum(hvfhv: tuple[Kept, ReplayReport]) -> None:
    _, report = hvfhv
    report.published[f"{TRIP_EVENTS}:completed"] -= 1
    try:
        assert len(report.check()) == 2
    finally:
        report.published[f"{TRIP_EVENTS}:completed"] += 1


def test_messages_go_out_in_order_of_arrival_under_the_key_that_orders_them(hvfhv: tuple[Kept, ReplayReport]) -> None:
    sink, _ = hvfhv
    arrivals = [
        decode(value, TripEvent if topic == TRIP_EVENTS else DriverEvent).ingest_time_ms
        for topic, _, value in sink.messages
        if topic != DEAD_LETTERS
    ]
    assert arrivals == sorted(arrivals)
    for topic, key, value in sink.messages[:2_000]:
        if topic == TRIP_EVENTS:
            assert key == decode(value, TripEvent).order_id
        elif topic == DRIVER_EVENTS:
            assert key == decode(value, DriverEvent).driver_id


def test_a_second_replay_sends_the_same_bytes_and_another_seed_does_not() -> None:
    first, again, other = Kept(), Kept(), Kept()
    for sink, seed in ((first, SEED), (again, SEED), (other, SEED + 1)):
        replay("hvfhv", sink, seed=seed, pacer=Pacer(None), limit_rows=300, num_drivers=400)
    assert first.messages == again.messages != other.messages


def test_what_was_made_up_is_named(hvfhv: tuple[Kept, ReplayReport]) -> None:
    for event in hvfhv[0].trip_events():
        assert {"order_id", "rider_id", "event_id", "ingest_time_ms"} <= set(event.derived)
        if event.driver_id is not None:
            assert "driver_id" in event.derived
        if event.event_type in ("offered", "accepted"):
            assert {"event_type", "event_time_ms", "offer_id", "decision_id"} <= set(event.derived)
        else:
            assert "event_type" not in event.derived
    assert all({"status", "event_time_ms"} <= set(event.derived) for event in hvfhv[0].driver_events())


def test_an_assigned_driver_does_one_trip_at_a_time(hvfhv: tuple[Kept, ReplayReport]) -> None:
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    accepted = {e.order_id: e.event_time_ms for e in hvfhv[0].trip_events() if e.event_type == "accepted"}
    seen = set()
    for event in hvfhv[0].trip_events():
        if event.event_type == "completed" and event.driver_id is not None and event.order_id not in seen:
            seen.add(event.order_id)
            spans[event.driver_id].append((accepted[event.order_id], event.event_time_ms))
    assert len(seen) == 4995 - hvfhv[1].unassigned
    for driver_id, trips in spans.items():
        trips.sort()
        for (_, ended_ms), (next_ms, _) in pairwise(trips):
            assert ended_ms <= next_ms, driver_id


def test_history_carries_over_what_arrives_after_its_end(history: tuple[Kept, ReplayReport]) -> None:
    sink, report = history
    cut_ms = first_request_ms(seed=SEED) - 120_000
    assert report.check() == []
    assert report.pending and all(event.ingest_time_ms >= cut_ms for event in report.pending)
    assert all(event.ingest_time_ms < cut_ms for event in sink.trip_events())
    assert all(event.event_time_ms < cut_ms for event in report.pending)
    assert report.recorded == {"picked_up": report.rows.used, "completed": report.rows.used}
    assert {event.city for event in sink.trip_events()} == {"chicago"}


def test_the_report_as_json_keeps_every_count(hvfhv: tuple[Kept, ReplayReport]) -> None:
    report = hvfhv[1]
    plain = json.loads(json.dumps(report.plain()))
    assert plain["rows"]["dead_lettered"] == {"$.pickup_datetime: pickup before request": 5}
    assert sum(plain["published"].values()) == len(hvfhv[0].messages)
    assert set(plain) == {field.name for field in dataclasses.fields(report)}


def test_progress_reaches_the_total_and_a_file_of_no_rows_is_no_error() -> None:
    steps: list[Progress] = []
    report = replay("hvfhv", Kept(), seed=SEED, pacer=Pacer(None), limit_rows=50, progress=steps.append)
    assert steps[-1].done == steps[-1].total == report.published.total()
    assert steps[-1].simulated_ms == report.last_ms
    empty = replay("hvfhv", Kept(), seed=SEED, pacer=Pacer(None), limit_rows=0)
    assert empty.check() == [] and empty.published.total() == 0


def test_fates_are_foreseen_over_both_parts_of_a_history(history: tuple[Kept, ReplayReport]) -> None:
    """Counted here from ids and times alone: a copy in `pending` is a duplicate even if its first one was published
    before.
    """
    sink, report = history
    seen: set[str] = set()
    found: dict[str, int] = defaultdict(int)
    arrival = Arrival(ArrivalConfig(seed=SEED))
    events = [*sink.trip_events(), *sink.driver_events()]
    for event in [*sorted(events, key=lambda event: event.ingest_time_ms), *report.pending]:
        topic = TRIP_EVENTS if isinstance(event, TripEvent) else DRIVER_EVENTS
        late = event.ingest_time_ms - event.event_time_ms > 600_000
        found[f"{topic}:{'duplicate' if event.event_id in seen else 'late' if late else 'used'}"] += 1
        seen.add(event.event_id)
    report_and_rest = report.fates + Counter(arrival.fate_of(event) for event in report.pending)
    assert dict(found) == dict(report_and_rest)
    assert found[f"{TRIP_EVENTS}:late"] > 10 and found[f"{DRIVER_EVENTS}:duplicate"] > 100

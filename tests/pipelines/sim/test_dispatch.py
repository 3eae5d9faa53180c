"""The dispatch service: order of things, sums, and what it does when there is nobody or no answer."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from features.records import DRIVER_EVENTS, TRIP_EVENTS, DriverEvent, TripEvent, decode
from pipelines.sim.asking import COUPON, DISPATCH
from pipelines.sim.dispatch import Dispatch, DispatchConfig, DispatchProgress
from pipelines.sim.policies import ScorePolicy, nearest
from pipelines.sim.truth import TruthLog, read_truth
from pipelines.trips.arrival import Arrival, ArrivalConfig
from pipelines.trips.events import driver_event
from pipelines.trips.pace import Pacer
from pipelines.trips.rows import Trip

from .conftest import Hour

NUM_ORDERS = 300


class Down(Exception):
    code = "store_down"


class Witness:
    """Sink and engine in one: it sees publications and questions in the order in which they happen."""

    def __init__(self, policy: ScorePolicy) -> None:
        self.policy = policy
        self.log: list[tuple[str, Any]] = []  # ("event", record), ("flush", None), ("asked", (strategy, body))

    def send(self, topic: str, key: str | bytes, value: bytes) -> None:
        event = decode(value, TripEvent if topic == TRIP_EVENTS else DriverEvent)
        assert key == (event.order_id if isinstance(event, TripEvent) else event.driver_id)
        self.log.append(("event", event))

    def flush(self) -> None:
        self.log.append(("flush", None))

    def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]:
        self.log.append(("asked", (strategy, body)))
        return self.policy.decide(strategy, body)

    def events(self) -> list[TripEvent | DriverEvent]:
        return [what for kind, what in self.log if kind == "event"]

    def first_copies(self) -> list[TripEvent]:
        seen: dict[str, TripEvent] = {}
        for event in self.events():
            if isinstance(event, TripEvent):
                seen.setdefault(event.event_id, event)
        return list(seen.values())


def _first(hour: Hour) -> list[Trip]:
    """300 trips from the busy part of the hour."""
    return sorted(hour.trips, key=lambda trip: trip.requested_ms or 0)[2_000 : 2_000 + NUM_ORDERS]


def _dispatch(hour: Hour, witness: Witness, trips: list[Trip], **changes: Any) -> Dispatch:
    settings: dict[str, Any] = {"engine": witness, "truth": TruthLog(), "history": hour.history, "refusals": (Down,)}
    config = changes.pop("config", DispatchConfig(seed=hour.seed, num_drivers=400))
    return Dispatch(config, trips, zones=hour.zones, sink=witness, pacer=Pacer(None), **(settings | changes))


def _witness(hour: Hour) -> Witness:
    return Witness(ScorePolicy(nearest, seed=hour.seed, temperature=0.5))


@pytest.fixture(scope="module")
def run(hour: Hour) -> tuple[Witness, Dispatch]:
    print(f"seed {hour.seed}")
    witness = _witness(hour)
    dispatch = _dispatch(hour, witness, _first(hour))
    dispatch.run()
    return witness, dispatch


def test_every_event_has_one_end(run: tuple[Witness, Dispatch]) -> None:
    witness, dispatch = run
    account = dispatch.account
    assert account.check() == []
    assert account.waiting == 0
    assert account.messages.total() == len(witness.events())
    assert account.orders["requested"] == account.decisions[COUPON] == NUM_ORDERS
    by_type = defaultdict(int)
    for event in witness.first_copies():
        by_type[event.event_type] += 1
    assert by_type["completed"] == account.orders["completed"]
    assert by_type["offered"] == by_type["accepted"] + by_type["declined"] + by_type["timed_out"]
    assert by_type["offered"] == account.rounds["offered"] == len(dispatch.truth.records)
    assert by_type["completed"] + by_type["cancelled"] == NUM_ORDERS
    assert account.suppressed["completed: order cancelled"] == by_type["cancelled"] > 0


def test_a_lost_message_or_order_breaks_a_sum(run: tuple[Witness, Dispatch]) -> None:
    account = run[1].account
    for counter, name in (
        (account.messages, f"{TRIP_EVENTS}:offered"),
        (account.kept, "arrived"),
        (account.orders, "completed"),
    ):
        counter[name] -= 1
        assert account.check(), name
        counter[name] += 1
    assert account.check() == []


def test_fates_are_foreseen_as_the_contract_defines_them(run: tuple[Witness, Dispatch]) -> None:
    """Duplicate before late before used, by arrival; computed here from what was published alone."""
    witness, dispatch = run
    seen: set[str] = set()
    found: dict[str, int] = defaultdict(int)
    for event in witness.events():
        topic = TRIP_EVENTS if isinstance(event, TripEvent) else DRIVER_EVENTS
        late = event.ingest_time_ms - event.event_time_ms > 600_000
        fate = "duplicate" if event.event_id in seen else "late" if late else "used"
        seen.add(event.event_id)
        found[f"{topic}:{fate}"] += 1
    assert dict(found) == {name: count for name, count in dispatch.account.fates.items() if count}
    assert found[f"{TRIP_EVENTS}:duplicate"] > 0


def test_nothing_that_arrives_at_or_after_a_request_is_published_before_its_answer(
    run: tuple[Witness, Dispatch],
) -> None:
    newest_ms, published, flushed = 0, 0, 0
    for kind, what in run[0].log:
        if kind == "event":
            assert what.ingest_time_ms >= newest_ms, "events go out in order of arrival"
            newest_ms = what.ingest_time_ms
            published += 1
        elif kind == "flush":
            flushed = published
        else:
            assert newest_ms < what[1]["as_of_ms"]
            assert flushed == published, "asked before everything so far was acknowledged"


def test_questions_have_the_fields_the_shipped_strategies_declare(run: tuple[Witness, Dispatch], hour: Hour) -> None:
    asked = [what for kind, what in run[0].log if kind == "asked"]
    coupon = next(body for strategy, body in asked if strategy == COUPON)
    assert set(coupon["request"]) == {"pickup_zone", "fare_cents", "hour"}
    assert coupon["request"]["hour"] == 0  # after midnight in New York
    num_nulls = num_etas = 0
    for strategy, body in asked:
        if strategy != DISPATCH:
            continue
        assert set(body["candidates"]) == {"driver_id", "eta_s", "pickup_distance_m", "state"}
        assert 1 <= len(body["candidates"]["driver_id"]) <= 20
        assert {len(column) for column in body["candidates"].values()} == {len(body["candidates"]["driver_id"])}
        num_nulls += body["candidates"]["eta_s"].count(None)
        num_etas += len(body["candidates"]["eta_s"])
    assert 0.003 < num_nulls / num_etas < 0.03


def test_a_driver_has_one_order_at_a_time(run: tuple[Witness, Dispatch]) -> None:
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    offered: dict[str | None, int] = {}
    ends = {e.order_id: e.event_time_ms for e in run[0].first_copies() if e.event_type == "completed"}
    events = sorted(run[0].first_copies(), key=lambda event: event.event_time_ms)
    for event in events:
        if event.event_type == "offered":
            offered[event.offer_id] = event.event_time_ms
        elif event.event_type in ("accepted", "declined", "timed_out"):
            assert event.driver_id is not None
            end_ms = ends[event.order_id] if event.event_type == "accepted" else event.event_time_ms
            spans[event.driver_id].append((offered[event.offer_id], end_ms))
    assert spans
    for driver_id, busy in spans.items():
        for (_, ended_ms), (next_ms, _) in zip(sorted(busy), sorted(busy)[1:], strict=False):
            assert ended_ms <= next_ms, driver_id


def test_refused_drivers_are_not_asked_again_and_rounds_end_at_three(run: tuple[Witness, Dispatch]) -> None:
    refused: dict[str, set[str]] = defaultdict(set)
    for record in run[1].truth.records:
        assert record.chosen is not None and 1 <= record.round_id <= 3
        assert not refused[record.order_id] & set(record.candidate_ids)
        if record.answer != "accepted":
            refused[record.order_id].add(record.candidate_ids[record.chosen])
    assert max(len(drivers) for drivers in refused.values()) == 3


def test_a_served_order_keeps_the_files_times_fare_and_distance(run: tuple[Witness, Dispatch], hour: Hour) -> None:
    trips = {trip.order_id: trip for trip in hour.trips}
    moved = 0
    for event in run[0].first_copies():
        trip = trips[event.order_id]
        if event.event_type == "completed":
            assert event.event_time_ms == trip.completed_ms and event.duration_s == trip.duration_s
            assert (event.fare_cents, event.distance_m) == (trip.fare_cents, trip.distance_m)
            assert "driver_id" in event.derived and "event_time_ms" not in event.derived
        elif event.event_type in ("arrived", "picked_up"):
            recorded_ms = trip.arrived_ms if event.event_type == "arrived" else trip.picked_up_ms
            assert (event.event_time_ms != recorded_ms) == ("event_time_ms" in event.derived)
            moved += event.event_time_ms != recorded_ms
    assert moved < 0.1 * NUM_ORDERS  # only where the file's driver was there before ours had said yes


def test_stopping_between_orders_and_going_on_changes_nothing(run: tuple[Witness, Dispatch], hour: Hour) -> None:
    witness = _witness(hour)
    dispatch = _dispatch(hour, witness, _first(hour))
    steps: list[DispatchProgress] = []
    dispatch.run(stop_after_orders=120, progress=steps.append)
    assert dispatch.account.orders["requested"] == steps[-1].orders == 120
    assert dispatch.account.waiting > 0
    dispatch.run(progress=steps.append)
    assert (steps[-1].orders, steps[-1].num_orders) == (NUM_ORDERS, NUM_ORDERS)
    ours, whole = ([entry for entry in w.log if entry[0] != "flush"] for w in (witness, run[0]))
    assert ours == whole


def test_an_engine_that_cannot_answer_costs_rounds_and_is_counted(hour: Hour) -> None:
    class Broken(Witness):
        def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]:
            raise Down("the store is down")

    trips = _first(hour)[:10]
    dispatch = _dispatch(hour, Broken(ScorePolicy(nearest, seed=1)), trips)
    dispatch.run()
    assert dispatch.account.engine_errors == {f"{COUPON}: store_down": 10, f"{DISPATCH}: store_down": 30}
    assert dispatch.account.orders["cancelled_no_answer"] == 10
    assert dispatch.last_engine_error == "the store is down"
    assert dispatch.account.check() == []


def test_an_engine_error_that_is_not_a_refusal_ends_the_run(hour: Hour) -> None:
    class Buggy(Witness):
        def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]:
            raise KeyError("bug")

    with pytest.raises(KeyError, match="bug"):
        _dispatch(hour, Buggy(ScorePolicy(nearest, seed=1)), _first(hour)[:1]).run()


def test_no_survivor_and_no_driver_near_cancel_the_order(hour: Hour) -> None:
    class Nobody(Witness):
        def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]:
            return super().decide(strategy, body) | {"chosen": None}

    trips = _first(hour)[:10]
    picky = _dispatch(hour, Nobody(ScorePolicy(nearest, seed=1)), trips)
    picky.run()
    assert picky.account.rounds == {"no_survivor": 30}
    assert [record.answer for record in picky.truth.records] == ["none"] * 30
    empty = _dispatch(hour, _witness(hour), trips, config=DispatchConfig(seed=hour.seed, num_drivers=1, within_m=1.0))
    empty.run()
    assert empty.account.orders["cancelled_no_candidate"] == 10
    assert picky.account.check() == empty.account.check() == []


def test_what_an_earlier_replay_left_is_published_in_its_turn(hour: Hour) -> None:
    trips = _first(hour)[:5]
    arrival = Arrival(ArrivalConfig(seed=hour.seed))
    causes = (f"history-{number}" for number in range(10_000))
    cause = next(cause for cause in causes if arrival.delay_ms(f"d-0001:{cause}:idle") > 600_000)
    at_ms = (trips[2].requested_ms or 0) + 1
    late_ms = arrival.delay_ms(f"d-0001:{cause}:idle")
    left = driver_event("d-0001", "chicago", "idle", 1008, at_ms - late_ms, cause=cause)
    witness = _witness(hour)
    dispatch = _dispatch(hour, witness, trips, earlier=[msgspec.structs.replace(left, ingest_time_ms=at_ms)])
    dispatch.run()
    ids = [event.event_id for event in witness.events()]
    assert 0 < ids.index(left.event_id) < len(ids) - 1
    assert dispatch.account.fates[f"{DRIVER_EVENTS}:late"] >= 1
    assert dispatch.account.check() == []


def test_the_truth_file_holds_what_memory_holds_and_no_message_does(hour: Hour, tmp_path: Path) -> None:
    witness = _witness(hour)
    with TruthLog(tmp_path / "truth" / "truth.jsonl") as truth:
        _dispatch(hour, witness, _first(hour)[:20], truth=truth).run()
    assert read_truth(tmp_path / "truth" / "truth.jsonl") == truth.records
    assert truth.records
    asked = repr([what for kind, what in witness.log if kind == "asked"])
    assert not any(repr(chance) in asked for record in truth.records for chance in record.p_accept)


def test_trips_without_a_request_are_refused(hour: Hour) -> None:
    with pytest.raises(ValueError, match="has no request time"):
        _dispatch(hour, _witness(hour), hour.history[:1])

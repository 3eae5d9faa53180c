"""New York's green month: exact fates on the shipped file, and each rule on a row made for it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from pipelines.trips.green import read_green, to_trip
from pipelines.trips.pace import Pacer
from pipelines.trips.replay import replay
from pipelines.trips.rows import BadRow

SEED = 7
GOOD = {
    "lpep_pickup_datetime": datetime(2023, 1, 1, 0, 26, 10),
    "lpep_dropoff_datetime": datetime(2023, 1, 1, 0, 37, 11),
    "store_and_fwd_flag": "N",
    "PULocationID": 166,
    "DOLocationID": 143,
    "trip_distance": 2.58,
    "fare_amount": 14.9,
}


def test_every_row_of_the_shipped_month_has_one_fate() -> None:
    trips, report = read_green(seed=SEED)
    assert (report.rows_in, report.used, len(trips)) == (68211, 67529, 67529)
    assert report.dead == {
        "$.lpep_dropoff_datetime: over four hours: the meter was left on": 258,
        "$.PULocationID: pickup outside the zones of New York": 185,
        "$.fare_amount: negative": 174,
        "$.lpep_dropoff_datetime: dropoff not after pickup": 61,
        "$.lpep_pickup_datetime: pickup outside the month of the file": 4,
    }
    assert +report.corrections == {
        "distance_zero_unknown": 3086,
        "dropoff_zone_unknown": 464,
        "sent_late": 283,
        "distance_impossible_unknown": 174,
        "fare_zero": 73,
    }
    assert report.check() == []


def test_local_time_becomes_utc_and_nothing_is_made_up() -> None:
    trip = to_trip(3, GOOD, Counter(), seed=SEED)
    assert trip.picked_up_ms == datetime(2023, 1, 1, 5, 26, 10, tzinfo=UTC).timestamp() * 1000  # EST is UTC-5
    assert (trip.fare_cents, trip.distance_m, trip.duration_s) == (1490, 4152, 661)
    assert (trip.requested_ms, trip.arrived_ms, trip.driver_id) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lpep_pickup_datetime": None}, "$.lpep_pickup_datetime: missing"),
        ({"lpep_pickup_datetime": datetime(2009, 1, 1, 20, 21, 27)}, "pickup outside the month"),
        ({"lpep_dropoff_datetime": datetime(2023, 1, 1, 0, 26, 10)}, "dropoff not after pickup"),
        ({"lpep_dropoff_datetime": datetime(2023, 1, 1, 4, 26, 11)}, "the meter was left on"),
        ({"PULocationID": 264}, "pickup outside the zones"),
        ({"DOLocationID": 266}, "not a taxi zone"),
        ({"fare_amount": -14.9}, "$.fare_amount: negative"),
        ({"trip_distance": None}, "$.trip_distance: missing"),
    ],
)
def test_a_row_that_cannot_be_a_trip_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadRow) as refused:
        to_trip(0, {**GOOD, **change}, Counter(), seed=SEED)
    assert message in str(refused.value)


def test_a_month_of_hails_becomes_two_events_a_trip_without_drivers() -> None:
    class Sink:
        def send(self, topic: str, key: str | bytes, value: bytes) -> None: ...
        def flush(self) -> None: ...

    report = replay("green", Sink(), seed=SEED, pacer=Pacer(None), limit_rows=500)
    assert report.check() == []
    assert report.recorded == {"picked_up": report.rows.used, "completed": report.rows.used}
    assert report.derived == {} and report.unassigned == 0

"""New York's rows: exact fates on the shipped file, and each rule on a row made for it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from pipelines.trips.files import HVFHV_FILE, csv_rows
from pipelines.trips.hvfhv import first_orders, read_hvfhv, to_trip
from pipelines.trips.rows import BadRow

SEED = 7
GOOD = {
    "request_datetime": "2024-09-01 00:00:42",
    "on_scene_datetime": "2024-09-01 00:04:11",
    "pickup_datetime": "2024-09-01 00:04:54",
    "dropoff_datetime": "2024-09-01 00:12:03",
    "PULocationID": "263",
    "DOLocationID": "75",
    "trip_miles": "1.64",
    "trip_time": "429",
    "base_passenger_fare": "8.45",
}


def test_every_row_of_the_shipped_file_has_one_fate() -> None:
    trips, report = read_hvfhv(seed=SEED)
    assert (report.rows_in, report.used, len(trips)) == (5000, 4995, 4995)
    assert report.dead == {"$.pickup_datetime: pickup before request": 5}
    assert report.corrections == {"arrival_not_recorded": 1268, "dropoff_zone_unknown": 222, "trip_time_from_clock": 2}
    assert report.check() == []


def test_a_dead_letter_keeps_place_reason_path_and_raw_bytes() -> None:
    _, report = read_hvfhv(seed=SEED)
    raw = [line for _, line in csv_rows(HVFHV_FILE)]
    for letter in report.dead_letters:
        assert (letter.topic, letter.partition) == (f"file:{HVFHV_FILE}", 0)
        assert (letter.reason, letter.path) == ("pickup before request", "$.pickup_datetime")
        assert letter.raw == raw[letter.offset]


def test_local_time_becomes_utc_and_units_become_cents_and_metres() -> None:
    trip = to_trip(0, GOOD, Counter(), seed=SEED)
    assert trip.requested_ms == datetime(2024, 9, 1, 4, 0, 42, tzinfo=UTC).timestamp() * 1000  # EDT is UTC-4
    assert trip.arrived_ms == datetime(2024, 9, 1, 4, 4, 11, tzinfo=UTC).timestamp() * 1000
    assert (trip.fare_cents, trip.distance_m, trip.duration_s) == (845, 2639, 429)
    assert (trip.pickup_zone, trip.dropoff_zone, trip.driver_id) == (263, 75, None)
    assert {"order_id", "rider_id", "event_id", "ingest_time_ms"} <= set(trip.derived)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"request_datetime": ""}, "$.request_datetime: missing"),
        ({"pickup_datetime": "yesterday"}, "$.pickup_datetime: not a time"),
        ({"request_datetime": "2024-11-03 01:30:00"}, "$.request_datetime: missing or ambiguous in America/New_York"),
        ({"request_datetime": "2024-03-10 02:30:00"}, "$.request_datetime: missing or ambiguous in America/New_York"),
        ({"request_datetime": "2024-09-01 00:04:20"}, "$.on_scene_datetime: arrival before request"),
        ({"request_datetime": "2024-09-01 00:05:00"}, "$.pickup_datetime: pickup before request"),
        ({"on_scene_datetime": "2024-09-01 00:04:55"}, "$.pickup_datetime: pickup before arrival"),
        ({"dropoff_datetime": "2024-09-01 00:04:54"}, "$.dropoff_datetime: dropoff not after pickup"),
        ({"PULocationID": "264"}, "$.PULocationID: pickup outside"),
        ({"PULocationID": "0"}, "$.PULocationID: not a taxi zone"),
        ({"DOLocationID": "1.5"}, "$.DOLocationID: not a taxi zone"),
        ({"base_passenger_fare": "-3.0"}, "$.base_passenger_fare: negative"),
        ({"base_passenger_fare": "501"}, "$.base_passenger_fare: over 500 dollars"),
        ({"base_passenger_fare": "NaN"}, "$.base_passenger_fare: not a finite number"),
        ({"base_passenger_fare": ""}, "$.base_passenger_fare: missing"),
        ({"trip_miles": "201"}, "$.trip_miles: over 200 miles"),
        ({"trip_miles": "far"}, "$.trip_miles: not a number"),
    ],
)
def test_a_faulty_row_is_refused_with_reason_and_column(change: dict[str, str], message: str) -> None:
    with pytest.raises(BadRow) as caught:
        to_trip(0, GOOD | change, Counter(), seed=SEED)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "correction", "field", "value"),
    [
        ({"DOLocationID": "265"}, "dropoff_zone_unknown", "dropoff_zone", None),
        ({"DOLocationID": "264"}, "dropoff_zone_unknown", "dropoff_zone", None),
        ({"trip_time": "430"}, "trip_time_from_clock", "duration_s", 429),
        ({"trip_miles": "0.0"}, "distance_zero_unknown", "distance_m", None),
        ({"on_scene_datetime": ""}, "arrival_not_recorded", "arrived_ms", None),
    ],
)
def test_a_correction_is_counted_by_name(change: dict[str, str], correction: str, field: str, value: object) -> None:
    corrections: Counter[str] = Counter()
    trip = to_trip(0, GOOD | change, corrections, seed=SEED)
    assert corrections == {correction: 1}
    assert getattr(trip, field) == value


def test_orders_beyond_the_wanted_number_are_set_aside_not_lost() -> None:
    trips, report = read_hvfhv(seed=SEED)
    kept = first_orders(trips, report, 300)
    assert len(kept) == report.used == 300
    assert report.set_aside.total() == 4695
    assert report.check() == []
    assert max(trip.requested_ms or 0 for trip in kept) <= min(
        trip.requested_ms or 0 for trip in trips if trip not in set(kept)
    )


def test_a_lost_row_breaks_the_sum() -> None:
    _, report = read_hvfhv(seed=SEED)
    report.used -= 1
    assert report.check() == [f"{HVFHV_FILE}: 5000 rows in, but 4994 used + 5 dead-lettered + 0 set aside = 4999"]

"""Chicago's rows: exact fates on the shipped file, each rule on a row made for it, and the day as history."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from pipelines.trips.chicago import TIME_ZONE, as_history, driver_numbers, read_chicago, to_trip
from pipelines.trips.files import CHICAGO_FILE, parquet_rows
from pipelines.trips.rows import BadRow, RowReport, Trip

SEED = 7
DRIVERS = {"taxi-a": "d-0000"}
GOOD: dict[str, Any] = {
    "trip_id": "t1",
    "taxi_id": "taxi-a",
    "trip_start_timestamp": datetime(2022, 4, 1, 12, 0),
    "trip_end_timestamp": datetime(2022, 4, 1, 12, 15),
    "trip_seconds": 600.0,
    "trip_miles": 2.0,
    "pickup_community_area": "8",
    "dropoff_community_area": "32",
    "fare": 11.25,
}


@pytest.fixture(scope="module")
def day() -> tuple[list[Trip], RowReport]:
    return read_chicago(seed=SEED)


def test_every_row_of_the_shipped_file_has_one_fate(day: tuple[list[Trip], RowReport]) -> None:
    trips, report = day
    assert (report.rows_in, report.used, len(trips)) == (19456, 18889, 18889)
    assert report.dead == {
        "$.trip_seconds: zero, and zero miles: no trip": 498,
        "$.trip_seconds: zero, with miles driven": 31,
        "$.trip_seconds: over four hours: the meter was left on": 18,
        "$.trip_seconds: missing": 9,
        "$.fare: missing": 8,
        "$.fare: over 500 dollars": 3,  # the fourth such row was refused for its seconds
    }
    overlaps = report.corrections["overlaps_previous_trip"]  # depends on the drawn starts, so on the seed
    assert 1028 <= overlaps <= 2000, overlaps
    assert report.corrections - Counter(overlaps_previous_trip=overlaps) == {
        "distance_zero_unknown": 2197,
        "dropoff_area_not_stated": 1853,
        "pickup_area_not_stated": 1379,
        "distance_impossible_unknown": 21,
        "fare_zero": 5,
    }
    assert report.check() == []


def test_drawn_starts_fall_into_the_slots_the_city_printed(day: tuple[list[Trip], RowReport]) -> None:
    """The city rounds to the nearest quarter: start and end must both round back to what is in the file."""
    rows = [row for row, _ in parquet_rows(CHICAGO_FILE)]
    for trip in day[0]:
        row = rows[trip.row]
        for at_ms, column in ((trip.picked_up_ms, "trip_start_timestamp"), (trip.completed_ms, "trip_end_timestamp")):
            slot_ms = row[column].replace(tzinfo=TIME_ZONE).timestamp() * 1000
            assert -450_000 <= at_ms - slot_ms < 450_000, (trip.row, column)


def test_vehicles_are_renumbered_the_same_way_in_any_order() -> None:
    assert driver_numbers(["b", "a", "b"]) == driver_numbers(["a", "b"]) == {"a": "d-0000", "b": "d-0001"}


def test_chicago_zones_never_collide_with_new_york(day: tuple[list[Trip], RowReport]) -> None:
    zones = {trip.pickup_zone for trip in day[0]} | {trip.dropoff_zone for trip in day[0]} - {None}
    assert min(zone for zone in zones if zone is not None) == 1000
    assert max(zone for zone in zones if zone is not None) == 1077


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trip_seconds": None}, "$.trip_seconds: missing"),
        ({"trip_seconds": 0.0, "trip_miles": 0.0}, "$.trip_seconds: zero, and zero miles: no trip"),
        ({"trip_seconds": 0.0}, "$.trip_seconds: zero, with miles driven"),
        ({"trip_seconds": 14401.0}, "$.trip_seconds: over four hours"),
        ({"trip_seconds": -5.0}, "$.trip_seconds: negative"),
        ({"fare": None}, "$.fare: missing"),
        ({"fare": 500.01}, "$.fare: over 500 dollars"),
        ({"fare": -1.0}, "$.fare: negative"),
        ({"fare": float("nan")}, "$.fare: not a finite number"),
        ({"trip_miles": None}, "$.trip_miles: missing"),
        ({"pickup_community_area": "78"}, "$.pickup_community_area: not a community area"),
        ({"trip_start_timestamp": None}, "$.trip_start_timestamp: missing"),
        ({"trip_end_timestamp": datetime(2022, 4, 1, 11, 45)}, "$.trip_end_timestamp: end before start"),
    ],
)
def test_a_faulty_row_is_refused_with_reason_and_column(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRow) as caught:
        to_trip(0, GOOD | change, Counter(), seed=SEED, driver_ids=DRIVERS)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "correction", "field", "value"),
    [
        ({"pickup_community_area": None}, "pickup_area_not_stated", "pickup_zone", 1000),
        ({"dropoff_community_area": None}, "dropoff_area_not_stated", "dropoff_zone", None),
        ({"trip_miles": 0.0}, "distance_zero_unknown", "distance_m", None),
        ({"trip_miles": 100.5, "trip_seconds": 7200.0, "trip_end_timestamp": datetime(2022, 4, 1, 14)},
         "distance_impossible_unknown", "distance_m", None),
        ({"trip_miles": 17.0}, "distance_impossible_unknown", "distance_m", None),  # 102 mph
        ({"fare": 0.0}, "fare_zero", "fare_cents", 0),
        ({"trip_seconds": 3600.0}, "slots_disagree", "duration_s", 3600),
    ],
)  # fmt: skip
def test_a_correction_is_counted_by_name(change: dict[str, Any], correction: str, field: str, value: object) -> None:
    corrections: Counter[str] = Counter()
    trip = to_trip(0, GOOD | change, corrections, seed=SEED, driver_ids=DRIVERS)
    assert +corrections == {correction: 1}
    assert getattr(trip, field) == value


def test_history_ends_before_the_cut_and_counts_what_does_not() -> None:
    trips, report = read_chicago(seed=SEED)
    before_ms = 1_725_160_588_000
    history = as_history(trips, report, before_ms=before_ms)
    assert report.check() == []
    assert report.used == len(history)
    assert report.set_aside == {"ends after the history's last moment": len(trips) - len(history)}
    assert 0 < len(trips) - len(history) < 153  # 153 rows of the file end after midnight, to the slot
    assert max(trip.completed_ms for trip in history) < before_ms
    # The whole day lies within the 24 hours before the cut, but for half a slot: its features are alive then.
    assert min(trip.picked_up_ms for trip in history) >= before_ms - 24 * 3_600_000 - 450_000
    assert len({trip.driver_id for trip in history}) > 1_700
    assert all("event_time_ms" in trip.derived for trip in history)

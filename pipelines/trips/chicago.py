"""Chicago's taxi rows to trips, and that day as the history of the day before New York's hour.

The city rounds both times to the nearest quarter of an hour. The start is put back somewhere inside its slot by a
seeded draw, so that start + `trip_seconds` falls into the recorded end slot too; both event times are named in
`derived`. Zones are community area + 1000, so that they never collide with New York's; 1000 itself means that the
area is not stated.

Refused (dead letter): `trip_seconds` missing, zero, or over four hours; money missing or a fare over 500 dollars;
unreadable times or areas. Corrected and counted: `pickup_area_not_stated` (zone 1000), `dropoff_area_not_stated`
(null), `distance_zero_unknown`, `distance_impossible_unknown` (over 100 miles, or faster than 100 mph),
`slots_disagree` (no start fits both slots: the start slot wins). Noted: `fare_zero`, `overlaps_previous_trip` (the
vehicle's last trip had not ended).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pipelines.trips.draws import between
from pipelines.trips.files import CHICAGO_FILE, DATA_DIR, parquet_rows
from pipelines.trips.rows import BadRow, Reader, RowReport, Trip, cents, decimal, local_ms, metered_metres

CITY = "chicago"
PRODUCT = "taxi"
TIME_ZONE = ZoneInfo("America/Chicago")
ZONE_BASE = 1000
MAX_AREA = 77
HALF_SLOT_MS = 450_000
MAX_TRIP_S = 4 * 3600
MAX_FARE_DOLLARS = 500
MAX_MILES = 100
MAX_MPH = 100
DAY_END = "2022-04-02 00:00:00"  # local
DERIVED = ("driver_id", "event_id", "event_time_ms", "ingest_time_ms", "product", "rider_id")


def read_chicago(
    *, seed: int, data_dir: Path = DATA_DIR, limit_rows: int | None = None
) -> tuple[list[Trip], RowReport]:
    """Trips in file order and the fate of each row. Driver ids are the vehicles, renumbered. Raises: TripFileError."""
    rows = list(parquet_rows(CHICAGO_FILE, data_dir))
    numbers = driver_numbers(row["taxi_id"] for row, _ in rows)
    reader: Reader[Mapping[str, Any]] = Reader(
        CHICAGO_FILE, lambda number, row, found: to_trip(number, row, found, seed=seed, driver_ids=numbers)
    )
    trips = reader.read(rows[:limit_rows])
    reader.report.corrections += _overlaps(trips)
    return trips, reader.report


def driver_numbers(taxi_ids: Any) -> dict[str, str]:
    """Vehicle pseudonym -> driver id `d-0000`…, by sorted pseudonym, so that it depends on the file alone."""
    return {taxi: f"d-{number:04d}" for number, taxi in enumerate(sorted(set(taxi_ids)))}


def as_history(trips: list[Trip], report: RowReport, *, before_ms: int) -> list[Trip]:
    """Move the day in time so that its local midnight falls on `before_ms`: the history of who works from then on.

    A trip that would end at or after `before_ms` is set aside and counted in the report: its driver is needed then.
    """
    shift_ms = before_ms - local_ms(DAY_END, TIME_ZONE, "trip_end_timestamp")
    kept = []
    for trip in trips:
        if trip.completed_ms + shift_ms >= before_ms:
            report.used -= 1
            report.set_aside["ends after the history's last moment"] += 1
            continue
        moved = replace(trip, picked_up_ms=trip.picked_up_ms + shift_ms, completed_ms=trip.completed_ms + shift_ms)
        kept.append(moved)
    return kept


def to_trip(
    number: int, row: Mapping[str, Any], corrections: Counter[str], *, seed: int, driver_ids: Mapping[str, str]
) -> Trip:
    """One row. Raises: BadRow."""
    duration_s = _duration_s(row)
    start_ms = _start_ms(row, duration_s, corrections, seed=seed)
    derived = set(DERIVED)
    pickup_area, dropoff_area = _area(row, "pickup_community_area"), _area(row, "dropoff_community_area")
    if pickup_area is None:
        corrections["pickup_area_not_stated"] += 1
        derived.add("pickup_zone")
    if dropoff_area is None:
        corrections["dropoff_area_not_stated"] += 1
    fare_cents = cents(row["fare"], "fare", limit=MAX_FARE_DOLLARS)
    corrections["fare_zero"] += fare_cents == 0
    return Trip(
        row=number,
        order_id=f"o-{row['trip_id']}",
        rider_id=f"r-chi-{number:05d}",
        city=CITY,
        product=PRODUCT,
        requested_ms=None,
        arrived_ms=None,
        picked_up_ms=start_ms,
        completed_ms=start_ms + duration_s * 1000,
        pickup_zone=ZONE_BASE + (pickup_area or 0),
        dropoff_zone=None if dropoff_area is None else ZONE_BASE + dropoff_area,
        fare_cents=fare_cents,
        distance_m=metered_metres(
            decimal(row["trip_miles"], "trip_miles"), duration_s, corrections, max_miles=MAX_MILES, max_mph=MAX_MPH
        ),
        duration_s=duration_s,
        driver_id=driver_ids[row["taxi_id"]],
        derived=tuple(sorted(derived)),
    )


def _duration_s(row: Mapping[str, Any]) -> int:
    duration_s = int(decimal(row["trip_seconds"], "trip_seconds"))
    if duration_s == 0:
        miles = row["trip_miles"]
        raise BadRow("zero, with miles driven" if miles else "zero, and zero miles: no trip", "trip_seconds")
    if duration_s > MAX_TRIP_S:
        raise BadRow("over four hours: the meter was left on", "trip_seconds")
    return duration_s


def _start_ms(row: Mapping[str, Any], duration_s: int, corrections: Counter[str], *, seed: int) -> int:
    """A seeded moment of the start slot from which the trip also ends in its end slot, to the second."""
    start_slot = local_ms(row["trip_start_timestamp"], TIME_ZONE, "trip_start_timestamp")
    end_slot = local_ms(row["trip_end_timestamp"], TIME_ZONE, "trip_end_timestamp")
    if end_slot < start_slot:
        raise BadRow("end before start", "trip_end_timestamp")
    earliest = max(start_slot, end_slot - duration_s * 1000) - HALF_SLOT_MS
    latest = min(start_slot, end_slot - duration_s * 1000) + HALF_SLOT_MS - 1000
    if latest < earliest:
        corrections["slots_disagree"] += 1
        earliest, latest = start_slot - HALF_SLOT_MS, start_slot + HALF_SLOT_MS - 1000
    return earliest + 1000 * between(0, (latest - earliest) // 1000, seed, "start", row["trip_id"])


def _area(row: Mapping[str, Any], column: str) -> int | None:
    if row[column] is None:
        return None
    number = decimal(row[column], column)
    if number != int(number) or not 1 <= number <= MAX_AREA:
        raise BadRow(f"not a community area (1-{MAX_AREA})", column)
    return int(number)


def _overlaps(trips: list[Trip]) -> Counter[str]:
    free_ms: dict[str, int] = {}
    found: Counter[str] = Counter()
    for trip in sorted(trips, key=lambda trip: (trip.picked_up_ms, trip.row)):
        assert trip.driver_id is not None
        found["overlaps_previous_trip"] += trip.picked_up_ms < free_ms.get(trip.driver_id, trip.picked_up_ms)
        free_ms[trip.driver_id] = max(trip.completed_ms, free_ms.get(trip.driver_id, 0))
    return found

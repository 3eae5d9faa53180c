"""New York's HVFHV rows to trips: which column is which event, which faults are refused, which are corrected.

Refused (dead letter): a time missing or unreadable; arrival before request; pickup before request or arrival; dropoff
not after pickup; fare or miles missing, negative, or above the limits; a zone that is no zone; pickup in 264
(unknown) or 265 (outside New York). Corrected and counted: `dropoff_zone_unknown` (264, 265: no zone of the city,
becomes null), `trip_time_from_clock` (the column differs from dropoff - pickup), `distance_zero_unknown`. Noted,
since nothing is made up for it: `arrival_not_recorded` (no `arrived` event).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from zoneinfo import ZoneInfo

from pipelines.trips.draws import between
from pipelines.trips.files import DATA_DIR, HVFHV_FILE, csv_rows
from pipelines.trips.rows import BadRow, Reader, RowReport, Trip, cents, decimal, local_ms, metres, new_york_zones

CITY = "nyc"
PRODUCT = "express"
TIME_ZONE = ZoneInfo("America/New_York")
MAX_FARE_DOLLARS = 500
MAX_MILES = 200
NUM_RIDERS = 20_000
# The file has no ids at all, and its companies' products become our one product.
DERIVED = ("event_id", "ingest_time_ms", "order_id", "product", "rider_id")


def read_hvfhv(*, seed: int, data_dir: Path = DATA_DIR, limit_rows: int | None = None) -> tuple[list[Trip], RowReport]:
    """Trips in file order and the fate of each row. Raises: TripFileError."""
    reader: Reader[Mapping[str, str]] = Reader(
        HVFHV_FILE, lambda number, row, corrections: to_trip(number, row, corrections, seed=seed)
    )
    rows = csv_rows(HVFHV_FILE, data_dir)
    trips = reader.read(row for number, row in enumerate(rows) if limit_rows is None or number < limit_rows)
    return trips, reader.report


def first_orders(trips: list[Trip], report: RowReport, num_orders: int) -> list[Trip]:
    """The trips that were requested first. The others are set aside and counted in the report."""
    ordered = sorted(trips, key=lambda trip: (trip.requested_ms or 0, trip.row))
    num_left = len(ordered[num_orders:])
    if num_left:
        report.used -= num_left
        report.set_aside["requested after the last order wanted"] += num_left
    return ordered[:num_orders]


def to_trip(number: int, row: Mapping[str, str], corrections: Counter[str], *, seed: int) -> Trip:
    """One row. Raises: BadRow."""
    requested_ms, arrived_ms, picked_up_ms, completed_ms = _times(row, corrections)
    pickup_zone, dropoff_zone = new_york_zones(row, corrections)
    derived = {*DERIVED, "dropoff_zone"} if dropoff_zone is None else set(DERIVED)
    duration_s = (completed_ms - picked_up_ms) // 1000
    if int(decimal(row["trip_time"], "trip_time")) != duration_s:
        corrections["trip_time_from_clock"] += 1
    return Trip(
        row=number,
        order_id=f"o-nyc-{number:05d}",
        rider_id=f"r-{between(0, NUM_RIDERS - 1, seed, 'rider', number):05d}",
        city=CITY,
        product=PRODUCT,
        requested_ms=requested_ms,
        arrived_ms=arrived_ms,
        picked_up_ms=picked_up_ms,
        completed_ms=completed_ms,
        pickup_zone=pickup_zone,
        dropoff_zone=dropoff_zone,
        fare_cents=cents(row["base_passenger_fare"], "base_passenger_fare", limit=MAX_FARE_DOLLARS),
        distance_m=_distance(row, corrections),
        duration_s=duration_s,
        driver_id=None,
        derived=tuple(sorted(derived)),
    )


def _times(row: Mapping[str, str], corrections: Counter[str]) -> tuple[int, int | None, int, int]:
    requested_ms = local_ms(row["request_datetime"], TIME_ZONE, "request_datetime")
    picked_up_ms = local_ms(row["pickup_datetime"], TIME_ZONE, "pickup_datetime")
    completed_ms = local_ms(row["dropoff_datetime"], TIME_ZONE, "dropoff_datetime")
    arrived_ms: int | None = None
    if row["on_scene_datetime"] == "":
        corrections["arrival_not_recorded"] += 1
    else:
        arrived_ms = local_ms(row["on_scene_datetime"], TIME_ZONE, "on_scene_datetime")
    if picked_up_ms < requested_ms:
        raise BadRow("pickup before request", "pickup_datetime")
    if arrived_ms is not None and arrived_ms < requested_ms:
        raise BadRow("arrival before request", "on_scene_datetime")
    if arrived_ms is not None and picked_up_ms < arrived_ms:
        raise BadRow("pickup before arrival", "pickup_datetime")
    if completed_ms <= picked_up_ms:
        raise BadRow("dropoff not after pickup", "dropoff_datetime")
    return requested_ms, arrived_ms, picked_up_ms, completed_ms


def _distance(row: Mapping[str, str], corrections: Counter[str]) -> int | None:
    miles = decimal(row["trip_miles"], "trip_miles")
    if miles > MAX_MILES:
        raise BadRow(f"over {MAX_MILES} miles", "trip_miles")
    if miles == 0:
        corrections["distance_zero_unknown"] += 1
        return None
    return metres(miles)

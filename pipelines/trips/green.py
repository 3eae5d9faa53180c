"""New York's green taxi rows (street hails, a whole month) to trips: which faults are refused, which are corrected.

The file records pickups and dropoffs only: no request, no driver, no id. Nothing is made up for the first two, so a
trip becomes `picked_up` and `completed` events without a driver.

Refused (dead letter): a time missing, or a pickup outside the month; dropoff not after pickup; over four hours (the
meter was left on); fare or miles missing or negative (half of each void pair), fare above the limit; a zone that is no
zone; pickup in 264 (unknown) or 265 (outside New York). Corrected and counted: `dropoff_zone_unknown` (264, 265),
`distance_zero_unknown`, `distance_impossible_unknown` (over 200 miles, or faster than 100 mph). Noted: `fare_zero`,
`sent_late` (held in the vehicle before sending).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pipelines.trips.draws import between
from pipelines.trips.files import DATA_DIR, GREEN_FILE, parquet_rows
from pipelines.trips.rows import (
    BadRow,
    Reader,
    RowReport,
    Trip,
    cents,
    decimal,
    local_ms,
    metered_metres,
    new_york_zones,
)

CITY = "nyc"
PRODUCT = "street_hail"
TIME_ZONE = ZoneInfo("America/New_York")
MAX_TRIP_S = 4 * 3600
MAX_FARE_DOLLARS = 500
MAX_MILES = 200
MAX_MPH = 100
NUM_RIDERS = 20_000
MONTH_MS = tuple(local_ms(text, TIME_ZONE, "month") for text in ("2023-01-01 00:00:00", "2023-02-01 00:00:00"))
DERIVED = ("event_id", "ingest_time_ms", "order_id", "product", "rider_id")


def read_green(*, seed: int, data_dir: Path = DATA_DIR, limit_rows: int | None = None) -> tuple[list[Trip], RowReport]:
    """Trips in file order, which is far from time order, and the fate of each row. Raises: TripFileError."""
    reader: Reader[Mapping[str, Any]] = Reader(
        GREEN_FILE, lambda number, row, corrections: to_trip(number, row, corrections, seed=seed)
    )
    trips = reader.read(islice(parquet_rows(GREEN_FILE, data_dir), limit_rows))
    return trips, reader.report


def to_trip(number: int, row: Mapping[str, Any], corrections: Counter[str], *, seed: int) -> Trip:
    """One row. Raises: BadRow."""
    picked_up_ms, completed_ms = _times(row)
    duration_s = (completed_ms - picked_up_ms) // 1000
    pickup_zone, dropoff_zone = new_york_zones(row, corrections)
    derived = {*DERIVED, "dropoff_zone"} if dropoff_zone is None else set(DERIVED)
    fare_cents = cents(row["fare_amount"], "fare_amount", limit=MAX_FARE_DOLLARS)
    corrections["fare_zero"] += fare_cents == 0
    corrections["sent_late"] += row["store_and_fwd_flag"] == "Y"
    return Trip(
        row=number,
        order_id=f"o-green-{number:05d}",
        rider_id=f"r-{between(0, NUM_RIDERS - 1, seed, 'green rider', number):05d}",
        city=CITY,
        product=PRODUCT,
        requested_ms=None,
        arrived_ms=None,
        picked_up_ms=picked_up_ms,
        completed_ms=completed_ms,
        pickup_zone=pickup_zone,
        dropoff_zone=dropoff_zone,
        fare_cents=fare_cents,
        distance_m=metered_metres(
            decimal(row["trip_distance"], "trip_distance"),
            duration_s,
            corrections,
            max_miles=MAX_MILES,
            max_mph=MAX_MPH,
        ),
        duration_s=duration_s,
        driver_id=None,
        derived=tuple(sorted(derived)),
    )


def _times(row: Mapping[str, Any]) -> tuple[int, int]:
    picked_up_ms = local_ms(row["lpep_pickup_datetime"], TIME_ZONE, "lpep_pickup_datetime")
    completed_ms = local_ms(row["lpep_dropoff_datetime"], TIME_ZONE, "lpep_dropoff_datetime")
    if not MONTH_MS[0] <= picked_up_ms < MONTH_MS[1]:
        raise BadRow("pickup outside the month of the file", "lpep_pickup_datetime")
    if completed_ms <= picked_up_ms:
        raise BadRow("dropoff not after pickup", "lpep_dropoff_datetime")
    if completed_ms - picked_up_ms > MAX_TRIP_S * 1000:
        raise BadRow("over four hours: the meter was left on", "lpep_dropoff_datetime")
    return picked_up_ms, completed_ms

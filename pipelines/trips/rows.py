"""What a row of a trip file becomes: a Trip, or a DeadLetter; and the count of both.

Every row meets one fate. A row that passes with a correction is used, and the correction is counted by name.
`hvfhv.py` and `chicago.py` hold the rules; `events.py` turns a Trip into events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, TypeVar
from zoneinfo import ZoneInfo

from features.records import DeadLetter

METRES_PER_MILE = Decimal("1609.344")
LAST_NEW_YORK_ZONE = 263  # 264 is "Unknown" and 265 "Outside of NYC"
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trip:
    """One completed trip as its file tells it. Epoch milliseconds UTC, cents, metres, seconds.

    `derived` names the fields of the events of this trip that were made up or corrected.
    """

    row: int
    order_id: str
    rider_id: str
    city: str
    product: str
    requested_ms: int | None
    arrived_ms: int | None
    picked_up_ms: int
    completed_ms: int
    pickup_zone: int
    dropoff_zone: int | None
    fare_cents: int
    distance_m: int | None
    duration_s: int
    driver_id: str | None
    derived: tuple[str, ...]


class BadRow(ValueError):
    """A row that cannot be a trip. `path` is the column (`$.fare`)."""

    def __init__(self, reason: str, column: str) -> None:
        super().__init__(f"$.{column}: {reason}")
        self.reason = reason
        self.path = f"$.{column}"


@dataclass(kw_only=True)
class RowReport:
    """The fate of each row of one file. `check` says what does not add up."""

    file: str
    rows_in: int = 0
    used: int = 0
    set_aside: Counter[str] = field(default_factory=Counter)  # well-formed, not wanted by the caller: reason -> rows
    dead: Counter[str] = field(default_factory=Counter)  # "$.column: reason" -> rows
    corrections: Counter[str] = field(default_factory=Counter)  # name -> rows; a row may have several
    dead_letters: list[DeadLetter] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """The counts as plain values, for JSON."""
        return {
            "file": self.file,
            "in": self.rows_in,
            "used": self.used,
            "set_aside": dict(self.set_aside),
            "dead_lettered": dict(self.dead),
            "corrections": dict(self.corrections),
        }

    def check(self) -> list[str]:
        """Sums that do not hold, as sentences; empty when all do."""
        broken = []
        ends = self.used + self.dead.total() + self.set_aside.total()
        if self.rows_in != ends:
            broken.append(
                f"{self.file}: {self.rows_in} rows in, but {self.used} used + {self.dead.total()} dead-lettered"
                f" + {self.set_aside.total()} set aside = {ends}"
            )
        if len(self.dead_letters) != self.dead.total():
            broken.append(f"{self.file}: {self.dead.total()} rows refused, {len(self.dead_letters)} dead letters")
        return broken


class Reader(Generic[Row]):
    """Applies one file's rule to its rows, and counts."""

    def __init__(self, file: str, to_trip: Callable[[int, Row, Counter[str]], Trip]) -> None:
        self.report = RowReport(file=file)
        self._to_trip = to_trip

    def read(self, rows: Iterable[tuple[Row, bytes]]) -> list[Trip]:
        """The trips of the rows, in file order. `to_trip` counts its corrections; a BadRow becomes a dead letter."""
        trips = []
        for number, (row, raw) in enumerate(rows):
            self.report.rows_in += 1
            corrections: Counter[str] = Counter()
            try:
                trip = self._to_trip(number, row, corrections)
            except BadRow as bad:
                self._refuse(number, raw, bad)
                continue
            self.report.used += 1
            self.report.corrections += corrections
            trips.append(trip)
        return trips

    def _refuse(self, number: int, raw: bytes, bad: BadRow) -> None:
        self.report.dead[str(bad)] += 1
        letter = DeadLetter(
            topic=f"file:{self.report.file}", partition=0, offset=number, reason=bad.reason, path=bad.path, raw=raw
        )
        self.report.dead_letters.append(letter)


def local_ms(value: str | datetime | None, zone: ZoneInfo, column: str) -> int:
    """A local wall time to epoch milliseconds.

    Raises: BadRow when it is missing, unreadable, or does not exist or exists twice in that zone (clock change).
    """
    if value is None or value == "":
        raise BadRow("missing", column)
    try:
        naive = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise BadRow("not a time", column) from None
    first, second = naive.replace(tzinfo=zone, fold=0), naive.replace(tzinfo=zone, fold=1)
    if first.utcoffset() != second.utcoffset():
        raise BadRow(f"missing or ambiguous in {zone.key} (clock change)", column)
    return round(first.timestamp() * 1000)


def decimal(value: Any, column: str) -> Decimal:
    """A number that is not negative, exact as printed. Raises: BadRow."""
    if value is None or value == "":
        raise BadRow("missing", column)
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise BadRow("not a number", column) from None
    if not number.is_finite():
        raise BadRow("not a finite number", column)
    if number < 0:
        raise BadRow("negative", column)
    return number


def cents(value: Any, column: str, *, limit: int) -> int:
    """Dollars to cents. Raises: BadRow, also above `limit` dollars."""
    dollars = decimal(value, column)
    if dollars > limit:
        raise BadRow(f"over {limit} dollars", column)
    return int((dollars * 100).to_integral_value())


def metres(miles: Decimal) -> int:
    return int((miles * METRES_PER_MILE).to_integral_value())


def new_york_zones(row: Mapping[str, Any], corrections: Counter[str]) -> tuple[int, int | None]:
    """Pickup and dropoff zone of a file of the TLC; a dropoff outside its zones is None and counted. Raises: BadRow."""
    pickup = _taxi_zone(row, "PULocationID")
    if pickup > LAST_NEW_YORK_ZONE:
        raise BadRow("pickup outside the zones of New York", "PULocationID")
    dropoff = _taxi_zone(row, "DOLocationID")
    if dropoff > LAST_NEW_YORK_ZONE:
        corrections["dropoff_zone_unknown"] += 1
        return pickup, None
    return pickup, dropoff


def _taxi_zone(row: Mapping[str, Any], column: str) -> int:
    number = decimal(row[column], column)
    if number != int(number) or not 1 <= number <= 265:
        raise BadRow("not a taxi zone (1-265)", column)
    return int(number)


def metered_metres(
    miles: Decimal, duration_s: int, corrections: Counter[str], *, max_miles: int, max_mph: int
) -> int | None:
    """What a taxi's meter says; None and counted where it says nothing or what no taxi drives."""
    if miles == 0:
        corrections["distance_zero_unknown"] += 1
        return None
    if miles > max_miles or miles * 3600 / Decimal(duration_s) > max_mph:
        corrections["distance_impossible_unknown"] += 1
        return None
    return metres(miles)

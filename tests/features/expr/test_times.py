"""Times: the calendar against Python's own, zones by column against zones one by one, texts there and back."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from features.expr.times import (
    DAY,
    DURATION_MAX,
    FIELDS,
    HOUR,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    civil,
    duration_field,
    format_duration,
    format_timestamp,
    parse_duration,
    parse_timestamp,
)
from features.expr.zones import UnknownZone, find_zone, local_time, local_times, zone_names

EPOCH = datetime(1970, 1, 1)
SEED = 20260820


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def moments() -> list[int]:
    rng = random.Random(SEED)
    print("seed", SEED)
    edges = [
        micros(datetime(year, month, day)) + shift
        for year in (1, 4, 100, 400, 1582, 1900, 1970, 1999, 2000, 2024, 2100, 9999)
        for month, day in ((1, 1), (2, 28), (3, 1), (12, 31))
        for shift in (0, DAY - 1)
    ]
    return [TIMESTAMP_MIN, TIMESTAMP_MAX, *edges, *(rng.randint(TIMESTAMP_MIN, TIMESTAMP_MAX) for _ in range(2_000))]


def test_the_calendar_is_pythons_own() -> None:
    for value in moments():
        t = EPOCH + timedelta(microseconds=value)
        expected = {
            "getFullYear": t.year,
            "getMonth": t.month - 1,
            "getDate": t.day,
            "getDayOfMonth": t.day - 1,
            "getDayOfWeek": t.isoweekday() % 7,
            "getDayOfYear": t.timetuple().tm_yday - 1,
            "getHours": t.hour,
            "getMinutes": t.minute,
            "getSeconds": t.second,
            "getMilliseconds": t.microsecond // 1000,
        }
        assert {field: civil(field, value) for field in FIELDS} == expected, t


def test_a_column_of_the_calendar_is_its_rows() -> None:
    values = moments()
    for field in FIELDS:
        assert civil(field, np.array(values)).tolist() == [civil(field, value) for value in values]


@pytest.mark.parametrize(
    "zone", ["America/New_York", "Europe/London", "Australia/Lord_Howe", "Africa/Monrovia", "Asia/Kathmandu"]
)
def test_zones_by_column_are_zones_one_by_one_and_those_of_python(zone: str) -> None:
    """Every half hour of two years with both clock changes, every microsecond beside a change, and all of the calendar."""
    start = micros(datetime(2023, 12, 1))
    values = [start + step * HOUR // 2 for step in range(2 * 365 * 48)]
    offsets = [local_time(value, zone) - value for value in values]
    changes = [
        b for a, b, before, after in zip(values, values[1:], offsets, offsets[1:], strict=False) if before != after
    ]
    values += [change + shift for change in changes for shift in (-1, 0, 1)] + moments()
    assert local_times(np.array(values), zone).tolist() == [local_time(value, zone) for value in values]
    for value in values:
        if TIMESTAMP_MIN + 2 * DAY < value < TIMESTAMP_MAX - 2 * DAY:
            there = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)).astimezone(ZoneInfo(zone))
            assert local_time(value, zone) == micros(there.replace(tzinfo=None))


def test_fixed_offsets_and_utc() -> None:
    assert find_zone("+05:30") == 5 * HOUR + HOUR // 2 == find_zone("05:30")
    assert find_zone("-08:00") == -8 * HOUR
    assert find_zone("") == find_zone("UTC") == 0


@pytest.mark.parametrize(
    "name", ["Nowhere/Town", "america/new_york", "../etc/passwd", "/etc/passwd", "+24:00", "+5:30", "x" * 10_000, "\0"]
)
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(UnknownZone):
        find_zone(name)


def test_every_zone_that_is_named_is_found() -> None:
    assert "America/New_York" in zone_names()
    assert all(isinstance(find_zone(name), int | ZoneInfo) for name in zone_names())


def test_texts_of_times_go_there_and_back() -> None:
    rng = random.Random(SEED)
    for value in moments():
        assert parse_timestamp(format_timestamp(value)) == value
    for value in [
        0,
        1,
        -1,
        DURATION_MAX,
        -DURATION_MAX,
        *(rng.randint(-DURATION_MAX, DURATION_MAX) for _ in range(500)),
    ]:
        assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "micros_"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.5z", 500_000),
        ("1970-01-01t01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),  # digits behind the sixth are cut
        ("2024-02-29T00:00:00-00:30", 1709166600 * 10**6),
    ],
)
def test_a_timestamp_is_read(text: str, micros_: int) -> None:
    assert parse_timestamp(text) == micros_


@pytest.mark.parametrize(
    "text",
    ["", "2024-03-10", "2024-03-10T07:30:00", "2024-03-10 07:30:00Z", "2024-02-30T00:00:00Z", "2023-02-29T00:00:00Z",
     "2024-00-10T00:00:00Z", "2024-03-10T24:00:00Z", "2024-03-10T23:60:00Z", "2024-03-10T23:59:60Z", "0000-12-31T23:59:59Z",
     "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "2024-03-10T07:30:00+24:00", "٢٠٢٤-03-10T07:30:00Z",
     "2024-03-10T07:30:00." + "1" * 10_000 + "Z"],
)  # fmt: skip
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        parse_timestamp(text)


@pytest.mark.parametrize(
    ("text", "micros_"),
    [("0", 0), ("-0", 0), ("1h30m", 5_400_000_000), ("-1.5s", -1_500_000), ("+250ms", 250_000), ("1us", 1), ("1999ns", 1),
     ("-1999ns", -1), ("1h1h", 7_200_000_000), (".5s", 500_000), ("1.s", 1_000_000)],
)  # fmt: skip
def test_a_duration_is_read(text: str, micros_: int) -> None:
    assert parse_duration(text) == micros_


@pytest.mark.parametrize(
    "text", ["", "-", "1", "1d", " 1s", "1s ", "1h-1m", "--1s", "1.2.3s", "s", "2562048h", "9" * 30 + "h", "1s" * 100]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        parse_duration(text)


def test_fields_of_a_duration_are_cut_towards_zero() -> None:
    assert [duration_field(field, -5_461_999_999) for field in FIELDS[-4:]] == [-1, -91, -5461, -999]

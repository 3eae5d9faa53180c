"""Timestamps and durations: whole microseconds in an int, CEL's text forms, its calendar and its ranges.

A timestamp is microseconds since 1970-01-01T00:00:00Z, in years 1 to 9999. A duration is microseconds, at most what fits
64 bits of nanoseconds (about 292 years), which is the range of CEL's arithmetic. `civil` computes a calendar field by
integer arithmetic only, so that one text serves Python ints, NumPy columns and SQL (`sql.py`). `zones.py` has zones.
"""

from __future__ import annotations

import re
from typing import Any, Final

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
TIMESTAMP_MIN: Final = -62_135_596_800 * SECOND  # 0001-01-01T00:00:00Z
TIMESTAMP_MAX: Final = 253_402_300_800 * SECOND - 1  # 9999-12-31T23:59:59.999999Z
DURATION_MAX: Final = (2**63 - 1) // 1000
RANGES: Final = {"timestamp": (TIMESTAMP_MIN, TIMESTAMP_MAX), "duration": (-DURATION_MAX, DURATION_MAX)}

# From 0000-03-01 to 1970-01-01. In years that start in March the leap day is the last one.
_DAYS_TO_EPOCH: Final = 719_468
_DAYS_IN_400_YEARS: Final = 146_097
_TIMESTAMP: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|ns)", re.ASCII)
_UNITS_NS: Final = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
MAX_TEXT: Final = 60  # characters; no sensible text of either type is longer


def parse_timestamp(text: str) -> int:
    """RFC 3339 with 'Z' or an offset -> microseconds; digits behind the sixth of a second are cut.

    Raises: ValueError, saying what is wrong, also when the year is not 1 to 9999.
    """
    match = _TIMESTAMP.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError("not of the form 2024-03-10T07:30:00Z or 2024-03-10T07:30:00+05:30")
    year, month, day, hour, minute, second = (int(match.group(at)) for at in range(1, 7))
    if not (1 <= month <= 12 and 1 <= day <= _days_in(year, month)):
        raise ValueError("there is no such day")
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("there is no such time of day")
    shift = 0
    if match.group(8):
        shift = int(match.group(9)) * HOUR + int(match.group(10)) * MINUTE
        if int(match.group(9)) > 23 or int(match.group(10)) > 59:
            raise ValueError("there is no such offset")
        shift = -shift if match.group(8) == "-" else shift
    fraction = int((match.group(7) or "").ljust(6, "0")[:6])
    value = _days_of(year, month, day) * DAY + hour * HOUR + minute * MINUTE + second * SECOND + fraction - shift
    if not TIMESTAMP_MIN <= value <= TIMESTAMP_MAX:
        raise ValueError("the year is not 1 to 9999")
    return value


def parse_duration(text: str) -> int:
    """'1h30m', '-1.5s', '250ms' -> microseconds, cut towards zero. Raises: ValueError, saying what is wrong."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    at, total_ns = 0, 0
    while at < len(rest) and len(text) <= MAX_TEXT:
        match = _PART.match(rest, at)
        if match is None:
            break
        whole, _, fraction = match.group(1).partition(".")
        unit = _UNITS_NS[match.group(2)]
        total_ns += int(whole or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        at = match.end()
    if at < len(rest) or not rest:
        raise ValueError("not of the form 1h30m, 45s or 250ms; units: h, m, s, ms, us, ns")
    total = total_ns // 1000
    if total > DURATION_MAX:
        raise ValueError("longer than 292 years")
    return sign * total


def format_timestamp(value: int) -> str:
    """'2024-03-10T07:30:00Z', with 3 or 6 digits of a second where they are needed."""
    date = "-".join(
        (f"{civil('getFullYear', value):04d}", f"{civil('getMonth', value) + 1:02d}", f"{civil('getDate', value):02d}")
    )
    clock = ":".join(f"{civil(field, value):02d}" for field in ("getHours", "getMinutes", "getSeconds"))
    return f"{date}T{clock}{_fraction(value % SECOND)}Z"


def format_duration(value: int) -> str:
    """'5400s', '-1.500s'."""
    whole, rest = divmod(abs(value), SECOND)
    return f"{'-' if value < 0 else ''}{whole}{_fraction(rest)}s"


def civil(field: str, local: Any) -> Any:
    """A calendar field of local microseconds, as CEL counts: months and days of month and year from 0, Sunday is 0.

    `getDate` alone counts from 1. Works on anything with `+ - * // %` that floor: ints, int64 columns, text of SQL.
    """
    if field in _CLOCK:
        unit, count = _CLOCK[field]
        return local // unit % count
    days = local // DAY
    if field == "getDayOfWeek":
        return (days + 4) % 7  # 1970-01-01 was a Thursday
    # Years of 400-year eras from 0000-03-01, whose lengths repeat.
    day = days + _DAYS_TO_EPOCH
    era = day // _DAYS_IN_400_YEARS
    in_era = day % _DAYS_IN_400_YEARS
    year_of_era = (in_era - in_era // 1460 + in_era // 36524 - in_era // 146096) // 365
    in_year = in_era - (year_of_era * 365 + year_of_era // 4 - year_of_era // 100)  # from 1 March
    month = (in_year * 5 + 2) // 153  # 0 is March
    if field in ("getDate", "getDayOfMonth"):
        return in_year - (month * 153 + 2) // 5 + (1 if field == "getDate" else 0)
    if field == "getMonth":
        return (month + 2) % 12
    before_march = (month + 2) // 12  # 1 in January and February, which belong to the year before
    if field == "getFullYear":
        return era * 400 + year_of_era + before_march
    assert field == "getDayOfYear", field
    # 31 + 28 days stand before March, and one more in a leap year; from March to December there are 306.
    common = (
        (year_of_era % 4 + 3) // 4 + (year_of_era + 399) // 400 - (year_of_era % 100 + 99) // 100
    )  # 0 in a leap year
    return in_year + 60 - common - before_march * (common * -1 + 366)


def duration_field(field: str, value: Any) -> Any:
    """The whole duration in that unit, cut towards zero; of milliseconds only those beside the whole seconds.

    Takes an int; `columns.py` has the same over int64 columns.
    """
    size = abs(value)
    part = size % SECOND // 1000 if field == "getMilliseconds" else size // DURATION_UNITS[field]
    return -part if value < 0 else part


DURATION_UNITS: Final = {"getHours": HOUR, "getMinutes": MINUTE, "getSeconds": SECOND}
_CLOCK: Final = {
    "getHours": (HOUR, 24),
    "getMinutes": (MINUTE, 60),
    "getSeconds": (SECOND, 60),
    "getMilliseconds": (1000, 1000),
}
FIELDS: Final = (
    "getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", *_CLOCK,
)  # fmt: skip


def _fraction(micros: int) -> str:
    if micros == 0:
        return ""
    return f".{micros // 1000:03d}" if micros % 1000 == 0 else f".{micros:06d}"


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days_in(year: int, month: int) -> int:
    return 28 + _is_leap(year) if month == 2 else 30 + (month + month // 8) % 2


def _days_of(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01."""
    since_march = (month + 9) % 12
    year -= month <= 2
    in_year = (since_march * 153 + 2) // 5 + day - 1
    in_era = year % 400 * 365 + year % 400 // 4 - year % 400 // 100 + in_year
    return year // 400 * _DAYS_IN_400_YEARS + in_era - _DAYS_TO_EPOCH

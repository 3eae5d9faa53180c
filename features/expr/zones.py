"""Time zones: how far local time is from UTC at an instant, for one timestamp or a column of them.

Zones are IANA names ('America/New_York', by the machine's time-zone data or that of the package tzdata) or fixed
offsets ('+05:30'); '' and 'UTC' are UTC. `times.civil` turns local time into calendar fields.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import numpy.typing as npt

from features.expr.times import DAY, HOUR, MINUTE, TIMESTAMP_MAX, TIMESTAMP_MIN

_OFFSET: Final = re.compile(r"([+-]?)(\d\d):(\d\d)", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Local time must be a datetime too, so the first and last days of the calendar use the offset two days inwards; no zone
# changes then.
_FIRST: Final = TIMESTAMP_MIN + 2 * DAY
_LAST: Final = TIMESTAMP_MAX - 2 * DAY
MAX_NAME: Final = 64


class UnknownZone(ValueError):
    """There is no zone of that name."""


@lru_cache(maxsize=1024)
def find_zone(name: str) -> ZoneInfo | int:
    """The zone, or the microseconds of a fixed offset. Raises: UnknownZone."""
    match = _OFFSET.fullmatch(name)
    if match:
        sign, hours, minutes = match.groups()
        if int(hours) > 23 or int(minutes) > 59:
            raise UnknownZone(name)
        return (int(hours) * HOUR + int(minutes) * MINUTE) * (-1 if sign == "-" else 1)
    if name in ("", "UTC"):
        return 0
    # A name is a path below the zone data for zoneinfo: only the names of zones may reach it, spelt exactly.
    if len(name) > MAX_NAME or name not in zone_names():
        raise UnknownZone(name)
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """All IANA names that are known here."""
    return frozenset(available_timezones())


def local_time(value: int, name: str) -> int:
    """Microseconds of local time. Raises: UnknownZone."""
    return value + _offset(value, find_zone(name))


def local_times(values: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int64]:
    """`local_time` of a column; the offset is looked up once an hour that occurs.

    Shapes: values (N,) int64; returns (N,) int64.
    Raises: UnknownZone.
    """
    zone = find_zone(name)
    if isinstance(zone, int):
        return values + zone
    hours, where = np.unique(values // HOUR, return_inverse=True)
    offsets = np.empty(len(hours), dtype=np.int64)
    mixed = []
    for at, hour in enumerate(hours.tolist()):
        found = _offset_in_hour(hour, name)
        offsets[at] = 0 if found is None else found
        if found is None:
            mixed.append(at)
    local = values + offsets[where]
    for row in np.flatnonzero(np.isin(where, mixed)) if mixed else ():
        local[row] = local_time(int(values[row]), name)
    return local


@lru_cache(maxsize=65_536)  # seven years of hours of one zone; 10 MB at most
def _offset_in_hour(hour: int, name: str) -> int | None:
    """The offset all through an hour since the epoch; None where it changes inside. No zone changes twice in an hour."""
    zone = find_zone(name)
    first, last = _offset(hour * HOUR, zone), _offset(hour * HOUR + HOUR - 1, zone)
    return first if first == last else None


def _offset(value: int, zone: ZoneInfo | int) -> int:
    if isinstance(zone, int):
        return zone
    instant = _EPOCH + timedelta(microseconds=min(max(value, _FIRST), _LAST))
    shift: Any = instant.astimezone(zone).utcoffset()
    return int(shift // timedelta(microseconds=1))

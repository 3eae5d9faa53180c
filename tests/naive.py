"""Slow, obvious windows over plain events: what every fast form is compared with.

Written apart from the product's code on purpose: no tiles that are merged, no shared helpers, floor division spelled out.
Takes the events that were *used*, with duplicates already removed; events carry `key`, `event_time_ms`,
`ingest_time_ms`, `event_id` and plain fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]


def in_window(event_ms: int, as_of_ms: int, window_ms: int, hop_ms: int) -> bool:
    """floor(T/h) - W/h <= floor(t/h) <= floor(T/h)."""
    tile, last = math.floor(event_ms / hop_ms), math.floor(as_of_ms / hop_ms)
    return last - window_ms // hop_ms <= tile <= last


def window_values(
    events: Iterable[Event],
    key: str | int,
    as_of_ms: int,
    *,
    window_ms: int,
    hop_ms: int,
    of: Callable[[Event], Any] | None = None,
    where: Callable[[Event], bool] = lambda event: True,
) -> list[Any]:
    """The values (1 where there is no `of`) of one key's events in the window that were known before `as_of_ms`."""
    return [
        1 if of is None else of(event)
        for event in events
        if event["key"] == key
        and event["ingest_time_ms"] < as_of_ms
        and in_window(event["event_time_ms"], as_of_ms, window_ms, hop_ms)
        and where(event)
        and (of is None or of(event) is not None)
    ]


def aggregate(name: str, values: Sequence[Any]) -> Any:
    """count, sum, avg, min or max of a list; the average and extremes of nothing are None."""
    if name == "count":
        return len(values)
    if name == "sum":
        return sum(values)
    if not values:
        return None
    return {"avg": sum(values) / len(values), "min": min(values), "max": max(values)}[name]


def last_value(
    events: Iterable[Event],
    key: str | int,
    as_of_ms: int,
    *,
    of: Callable[[Event], Any],
    where: Callable[[Event], bool] = lambda event: True,
) -> tuple[int, Any] | None:
    """(event time, value) of the newest event of a key, by (event time, event id as bytes), among those with a value."""
    known = [
        event
        for event in events
        if event["key"] == key and event["ingest_time_ms"] < as_of_ms and where(event) and of(event) is not None
    ]
    if not known:
        return None
    newest = max(known, key=lambda event: (event["event_time_ms"], event["event_id"].encode()))
    return newest["event_time_ms"], of(newest)


def used_once(events: Iterable[Event], *, disorder_ms: int, future_ms: int) -> tuple[list[Event], dict[str, int]]:
    """The events that are used, and how many met each fate, in order of arrival. Ids are duplicates for ever.

    `appended_ms`, where an event has it, is when the broker took it: nothing can be known before that.
    """
    seen: set[str] = set()
    used: list[Event] = []
    fates = {"duplicate": 0, "future": 0, "late": 0, "used": 0}
    for event in events:
        lag_ms = event["ingest_time_ms"] - event["event_time_ms"]
        if event["event_id"] in seen:
            fate = "duplicate"
        elif -lag_ms > future_ms or event["ingest_time_ms"] - event.get("appended_ms", math.inf) > future_ms:
            fate = "future"
        elif lag_ms > disorder_ms:
            fate = "late"
        else:
            fate = "used"
            used.append(event)
        seen.add(event["event_id"])
        fates[fate] += 1
    return used, fates

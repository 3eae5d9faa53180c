"""Slow, obvious windows over plain events: what every fast form is compared with.

Written apart from the product's code on purpose: no tiles that are merged, no shared helpers, floor division spelled out.
Takes the events that were *used*, with duplicates already removed; events carry `key`, `event_time_ms`,
`ingest_time_ms`, `event_id` and plain fields.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
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
        and (of is None or known(of(event)) is not None)
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


def known(value: Any) -> Any:
    """A double that is no finite number is no value."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def wrapped(total: int) -> int:
    """What is left of a sum in 64 bits."""
    return (total + 2**63) % 2**64 - 2**63


def in_steps(values: Iterable[int | float], resolution: float) -> list[int]:
    """Values in the nearest whole steps, halves upwards; those from 2^42 steps on are left out."""
    steps = [
        v if isinstance(v, int) and resolution == 1 else math.floor(float(v) / resolution + 0.5)
        for v in values
        if abs(float(v) / resolution) < 2.0**43
    ]
    return [step for step in steps if abs(step) < 2**42]


def standard_deviation(values: Iterable[int | float], resolution: float) -> float | None:
    """Of the whole population, of values in whole steps."""
    steps = in_steps(values, resolution)
    return statistics.pstdev(steps) * resolution if steps else None


def quantile(values: Iterable[int | float], q: float, resolution: float) -> float | None:
    """The value of rank ceil(q * n) among the values in whole steps, exactly: what buckets come near."""
    steps = sorted(in_steps(values, resolution))
    if not steps:
        return None
    rank = max(1, math.ceil(Fraction(round(q * 1_000_000), 1_000_000) * len(steps)))
    return steps[rank - 1] * resolution


def decayed_sum(timed: Iterable[tuple[int, int | float]], as_of_ms: int, hop_ms: int, half_life_ms: int) -> float:
    """Each value halves with every half life between its tile and the tile that holds `as_of_ms`. `timed`: (time, value)."""
    now = math.floor(as_of_ms / hop_ms)
    return math.fsum(
        value * 2.0 ** (-(now - math.floor(event_ms / hop_ms)) * hop_ms / half_life_ms) for event_ms, value in timed
    )


def last_value(
    events: Iterable[Event],
    key: str | int,
    as_of_ms: int,
    *,
    of: Callable[[Event], Any],
    where: Callable[[Event], bool] = lambda event: True,
    oldest: bool = False,
) -> tuple[int, Any] | None:
    """(event time, value) of the newest or oldest event of a key with a value, by (event time, event id as bytes)."""
    valued = [
        event
        for event in events
        if event["key"] == key and event["ingest_time_ms"] < as_of_ms and where(event) and known(of(event)) is not None
    ]
    if not valued:
        return None
    pick = min if oldest else max
    found = pick(valued, key=lambda event: (event["event_time_ms"], event["event_id"].encode()))
    return found["event_time_ms"], of(found)


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

"""Seeded streams of events with everything that goes wrong: late, duplicate, out of order, from the future, equal times,
tile edges, times before 1970, missing fields.
"""

from __future__ import annotations

import random
from typing import Any

MINUTE_MS = 60_000
TYPES = ("requested", "offered", "accepted", "declined", "timed_out", "cancelled", "arrived", "picked_up", "completed")


def trip_events(
    seed: int,
    num_events: int,
    *,
    num_drivers: int = 5,
    num_zones: int = 4,
    start_ms: int = -40 * MINUTE_MS,
    span_ms: int = 26 * 60 * MINUTE_MS,
) -> list[dict[str, Any]]:
    """Events of topic trip_events as dictionaries, in order of arrival.

    About 5 % arrive late beyond 10 minutes, 2 % come from more than a minute ahead, 8 % arrive twice, a third share
    their time with another event, a fifth stands exactly on a minute's edge.
    """
    rng = random.Random(seed)
    events: list[dict[str, Any]] = []
    for i in range(num_events):
        event_ms = start_ms + rng.randrange(span_ms)
        if rng.random() < 0.2:
            event_ms = event_ms // MINUTE_MS * MINUTE_MS - rng.randrange(2)
        if events and rng.random() < 0.3:
            event_ms = rng.choice(events)["event_time_ms"]
        lag_ms = int(rng.expovariate(1 / 20_000))
        if rng.random() < 0.05:
            lag_ms = rng.randrange(10 * MINUTE_MS, 60 * MINUTE_MS)
        elif rng.random() < 0.02:
            lag_ms = -rng.randrange(3 * MINUTE_MS)
        events.append(
            {
                "event_id": f"{rng.choice(['e', 'E', 'é', '~'])}-{rng.randrange(10**9)}-{i}",
                "event_type": rng.choice(TYPES),
                "order_id": f"o-{i}",
                "offer_id": None,
                "decision_id": None,
                "rider_id": "r-1",
                "driver_id": None if rng.random() < 0.1 else f"d-{rng.randrange(num_drivers)}",
                "city": "nyc",
                "product": "express",
                "pickup_zone": rng.randrange(num_zones),
                "dropoff_zone": None if rng.random() < 0.2 else rng.randrange(num_zones),
                "event_time_ms": event_ms,
                "ingest_time_ms": event_ms + lag_ms,
                "fare_cents": None if rng.random() < 0.2 else rng.randrange(10_000),
                "distance_m": None if rng.random() < 0.2 else rng.randrange(20_000),
                "duration_s": None,
            }
        )
    for event in rng.sample(events, num_events * 8 // 100):
        events.append({**event, "ingest_time_ms": event["ingest_time_ms"] + rng.randrange(2_000)})
    return sorted(events, key=lambda event: event["ingest_time_ms"])


def driver_events(
    seed: int, num_events: int, *, num_drivers: int = 5, span_ms: int = 60 * MINUTE_MS
) -> list[dict[str, Any]]:
    """Events of topic driver_events as dictionaries, in order of arrival; many share their time."""
    rng = random.Random(seed)
    events = []
    for i in range(num_events):
        event_ms = rng.randrange(span_ms) // 7_000 * 7_000
        events.append(
            {
                "event_id": f"{rng.choice(['s', 'S', 'ß'])}-{rng.randrange(10**6)}-{i}",
                "driver_id": f"d-{rng.randrange(num_drivers)}",
                "city": "nyc",
                "status": rng.choice(["idle", "en_route", "on_trip", "offline"]),
                "zone": rng.randrange(260),
                "event_time_ms": event_ms,
                "ingest_time_ms": event_ms + int(rng.expovariate(1 / 20_000)),
            }
        )
    return sorted(events, key=lambda event: event["ingest_time_ms"])

"""A Trip to the events it stands for, and the events that a dispatcher adds to it.

`derived` on each event names what no file recorded. A whole event that was made up (an offer, an answer, a driver's
status) names `event_type` or `status`. Arrivals are put on by `arrival.py`; until then `ingest_time_ms` equals the
event time.
"""

from __future__ import annotations

from collections.abc import Iterable

from features.records import DRIVER_EVENTS, TRIP_EVENTS, DriverEvent, DriverStatus, TripEvent, TripEventType
from pipelines.trips.rows import Trip

OUTSIDE_ZONE = 265  # where a driver goes whose trip ended outside the city
OFFER_DERIVED = ("decision_id", "driver_id", "event_time_ms", "event_type", "offer_id")
DRIVER_DERIVED = ["event_id", "event_time_ms", "ingest_time_ms", "status"]


def recorded_events(trip: Trip, *, driver_id: str | None = None, not_before_ms: int | None = None) -> list[TripEvent]:
    """What the file says of a trip, in the order it happened: requested?, arrived?, picked_up, completed.

    `driver_id` puts a made-up driver on everything after the request. `not_before_ms` is the moment that driver said
    yes: an arrival or pickup that the file has earlier is moved to it, and says so in `derived`.
    """
    steps: list[tuple[TripEventType, int | None]] = [
        ("requested", trip.requested_ms),
        ("arrived", trip.arrived_ms),
        ("picked_up", trip.picked_up_ms),
        ("completed", trip.completed_ms),
    ]
    events = []
    for event_type, at_ms in steps:
        if at_ms is None:
            continue
        added: set[str] = set()
        with_driver = trip.driver_id
        if event_type == "requested":
            added.add("fare_cents")  # the fare that was paid in the end stands in for the quote
        elif driver_id is not None:
            with_driver = driver_id
            added.add("driver_id")
        if not_before_ms is not None and event_type in ("arrived", "picked_up") and at_ms < not_before_ms:
            at_ms = not_before_ms
            added.add("event_time_ms")
        duration_s = trip.duration_s if event_type == "completed" else None
        events.append(_event(trip, event_type, at_ms, driver_id=with_driver, added=added, duration_s=duration_s))
    return events


def dispatch_event(
    trip: Trip,
    event_type: TripEventType,
    at_ms: int,
    *,
    driver_id: str | None = None,
    decision_id: str | None = None,
    round_id: int | None = None,
) -> TripEvent:
    """An event that only a dispatcher could have sent: offered, accepted, declined, timed_out, cancelled."""
    added = {"event_type", "event_time_ms", "fare_cents"}
    offer_id = None
    if round_id is not None:
        offer_id = f"{trip.order_id}:offer:{round_id}"
        added.update(OFFER_DERIVED)
    return _event(trip, event_type, at_ms, driver_id=driver_id, added=added, offer_id=offer_id, decision_id=decision_id)


def driver_event(driver_id: str, city: str, status: DriverStatus, zone: int, at_ms: int, *, cause: str) -> DriverEvent:
    """A driver's status from `at_ms` on. `cause` makes the id: `opening`, or the order that led to it."""
    return DriverEvent(
        event_id=f"{driver_id}:{cause}:{status}",
        driver_id=driver_id,
        city=city,
        status=status,
        zone=zone,
        event_time_ms=at_ms,
        ingest_time_ms=at_ms,
        derived=sorted({*DRIVER_DERIVED, "driver_id"}),
    )


def trip_driver_events(trip: Trip, driver_id: str, *, accepted_ms: int | None) -> list[DriverEvent]:
    """What a driver does for a trip: en_route (when there was an answer), on_trip, then idle at the dropoff.

    A trip that ends outside the city leaves the driver offline there. In a history whose dropoff area is not stated,
    the driver is idle in the pickup zone, the last place known.
    """
    events = []
    start_ms = trip.picked_up_ms
    if accepted_ms is not None:
        start_ms = max(start_ms, accepted_ms)
        events.append(
            driver_event(driver_id, trip.city, "en_route", trip.pickup_zone, accepted_ms, cause=trip.order_id)
        )
    events.append(driver_event(driver_id, trip.city, "on_trip", trip.pickup_zone, start_ms, cause=trip.order_id))
    status, zone = _after(trip)
    events.append(driver_event(driver_id, trip.city, status, zone, trip.completed_ms, cause=trip.order_id))
    return events


def name_of(event: TripEvent | DriverEvent) -> str:
    """`topic:type` of an event, the name under which it is counted."""
    if isinstance(event, TripEvent):
        return f"{TRIP_EVENTS}:{event.event_type}"
    return f"{DRIVER_EVENTS}:{event.status}"


def _after(trip: Trip) -> tuple[DriverStatus, int]:
    if trip.dropoff_zone is not None:
        return "idle", trip.dropoff_zone
    if trip.requested_ms is None:
        return "idle", trip.pickup_zone
    return "offline", OUTSIDE_ZONE


def _event(
    trip: Trip,
    event_type: TripEventType,
    at_ms: int,
    *,
    driver_id: str | None,
    added: Iterable[str],
    offer_id: str | None = None,
    decision_id: str | None = None,
    duration_s: int | None = None,
) -> TripEvent:
    step = event_type if offer_id is None else f"{event_type}:{offer_id.rsplit(':', 1)[1]}"
    return TripEvent(
        event_id=f"{trip.order_id}:{step}",
        event_type=event_type,
        order_id=trip.order_id,
        offer_id=offer_id,
        decision_id=decision_id,
        rider_id=trip.rider_id,
        driver_id=driver_id,
        city=trip.city,
        product=trip.product,
        pickup_zone=trip.pickup_zone,
        dropoff_zone=trip.dropoff_zone,
        event_time_ms=at_ms,
        ingest_time_ms=at_ms,
        fare_cents=trip.fare_cents,
        distance_m=trip.distance_m,
        duration_s=duration_s,
        derived=sorted({*trip.derived, *added}),
    )

"""A made-up driver for each trip of a file that names none: the nearest idle one of a pool, in request order.

For plain replays only. The demo's dispatch service (`pipelines/sim/dispatch.py`) asks the engine instead. Two seconds
after a request the nearest idle driver within 10 km is offered the order, four seconds later the driver accepts;
whoever works becomes idle again at the dropoff. Each of these events is named as derived.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from pathlib import Path

from features.records import DriverEvent, TripEvent
from pipelines.trips.draws import between
from pipelines.trips.events import dispatch_event, driver_event, recorded_events, trip_driver_events
from pipelines.trips.fleet import Fleet, pool_ids
from pipelines.trips.rows import Trip
from pipelines.trips.zones import ZoneMap, drawn_zones

OFFER_AFTER_MS = 2_000
ANSWER_AFTER_MS = 4_000
WITHIN_M = 10_000.0
SHIFT_STARTS_MS = 60_000  # drivers come on shift within this time before the first request


@dataclass(kw_only=True)
class Assigned:
    """`recorded` are the file's events, with a driver where one was found; `made_up` the rest."""

    recorded: list[TripEvent] = field(default_factory=list)
    made_up: list[TripEvent | DriverEvent] = field(default_factory=list)
    num_without: int = 0


def opening_events(num_drivers: int, trips: list[Trip], *, seed: int) -> list[DriverEvent]:
    """Each driver comes on shift, idle, in the minute before the first request, in a zone drawn by pickups."""
    first_ms = min(trip.requested_ms for trip in trips if trip.requested_ms is not None)
    zones = drawn_zones(num_drivers, [trip.pickup_zone for trip in trips], seed)
    return [
        driver_event(
            driver_id,
            trips[0].city,
            "idle",
            zone,
            first_ms - between(1_000, SHIFT_STARTS_MS, seed, "shift", driver_id),
            cause="opening",
        )
        for driver_id, zone in zip(pool_ids(num_drivers), zones, strict=True)
    ]


def assign_nearest(trips: list[Trip], *, seed: int, data_dir: Path, num_drivers: int) -> Assigned:
    """All events of trips that have a request time and no driver. Raises: TripFileError (zone table)."""
    zones = ZoneMap(data_dir)
    fleet = Fleet(pool_ids(num_drivers), zones, seed=seed)
    opening = opening_events(num_drivers, trips, seed=seed)
    result = Assigned(made_up=[*opening])
    for event in opening:
        fleet.observe(event)
    working: list[tuple[int, str, DriverEvent]] = []  # the event that ends each driver's trip, soonest first
    for trip in sorted(trips, key=lambda trip: (trip.requested_ms or 0, trip.row)):
        assert trip.requested_ms is not None
        while working and working[0][0] <= trip.requested_ms:
            _, driver_id, last = heapq.heappop(working)
            fleet.release(driver_id)
            fleet.observe(last)
        place = zones.point_in(trip.pickup_zone, seed, "pickup", trip.order_id)
        near = fleet.nearest(place, limit=1, within_m=WITHIN_M, order_id=trip.order_id)
        if not near.driver_ids:
            result.num_without += 1
            result.recorded += recorded_events(trip)
            continue
        driver_id = near.driver_ids[0]
        fleet.hold(driver_id)
        result.recorded += recorded_events(trip, driver_id=driver_id)
        steps = _steps(trip, driver_id)
        result.made_up += steps
        ends = steps[-1]
        assert isinstance(ends, DriverEvent)
        heapq.heappush(working, (trip.completed_ms, driver_id, ends))
    return result


def _steps(trip: Trip, driver_id: str) -> list[TripEvent | DriverEvent]:
    """Offer, answer, and the driver's own changes. A pickup sooner than the answer would be pulls both forward."""
    assert trip.requested_ms is not None
    first_ms = trip.picked_up_ms if trip.arrived_ms is None else trip.arrived_ms
    offered_ms = min(trip.requested_ms + OFFER_AFTER_MS, first_ms)
    accepted_ms = min(offered_ms + ANSWER_AFTER_MS, first_ms)
    ids = {"driver_id": driver_id, "decision_id": f"{trip.order_id}:nearest", "round_id": 1}
    return [
        dispatch_event(trip, "offered", offered_ms, **ids),  # type: ignore[arg-type]
        dispatch_event(trip, "accepted", accepted_ms, **ids),  # type: ignore[arg-type]
        *trip_driver_events(trip, driver_id, accepted_ms=accepted_ms),
    ]

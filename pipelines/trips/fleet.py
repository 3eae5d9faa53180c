"""What a dispatcher knows of its drivers: their last reported status and zone, and who is held for an order.

State comes from DriverEvents in the order in which they arrive. An older event that arrives late never overwrites a
newer one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.records import DriverEvent
from pipelines.trips.draws import normal, uniform
from pipelines.trips.zones import Point, ZoneMap, distances_m

ROAD_FACTOR = 1.3  # streets against the straight line
SPEED_M_S = 7.0  # city traffic with its lights
GET_GOING_S = 40.0
ETA_SPREAD = 0.2  # standard deviation of log(eta): traffic, turns, the side of the street
NO_ROUTE_SHARE = 0.01
NEVER_MS = -(2**53) + 1


@dataclass(frozen=True, slots=True)
class Nearby:
    """Idle drivers near a point, nearest first; all lists are (K,).

    `eta_s` is the time the way takes; where `routed` is false the router gave no answer and nobody but the driver
    knows it.
    """

    driver_ids: list[str]
    distances_m: list[float]
    eta_s: list[float]
    routed: list[bool]


class Fleet:
    """Status and place of each driver of the pool."""

    def __init__(self, driver_ids: Sequence[str], zones: ZoneMap, *, seed: int) -> None:
        self.driver_ids = list(driver_ids)
        self._number = {driver_id: number for number, driver_id in enumerate(self.driver_ids)}
        self._zones = zones
        self._seed = seed
        size = len(self.driver_ids)
        self._idle_D = np.zeros(size, dtype=bool)
        self._held_D = np.zeros(size, dtype=bool)
        self._seen_ms_D = np.full(size, NEVER_MS, dtype=np.int64)
        self._latitude_D: NDArray[np.float64] = np.full(size, np.nan)
        self._longitude_D: NDArray[np.float64] = np.full(size, np.nan)

    @property
    def num_idle(self) -> int:
        """Drivers that could be offered an order now."""
        return int((self._idle_D & ~self._held_D).sum())

    def observe(self, event: DriverEvent) -> None:
        """Take in an event. A duplicate, or one older than what is known, changes nothing; a stranger is not ours."""
        number = self._number.get(event.driver_id)
        if number is None or event.event_time_ms <= self._seen_ms_D[number]:
            return
        self._seen_ms_D[number] = event.event_time_ms
        has_place = event.zone in self._zones
        self._idle_D[number] = event.status == "idle" and has_place
        if has_place:
            point = self._zones.point_in(event.zone, self._seed, event.driver_id, event.event_time_ms)
            self._latitude_D[number], self._longitude_D[number] = point.latitude, point.longitude

    def hold(self, driver_id: str) -> None:
        """Keep a driver out of `nearest`: an offer is open, or an order is on the way."""
        self._held_D[self._number[driver_id]] = True

    def release(self, driver_id: str) -> None:
        self._held_D[self._number[driver_id]] = False

    def nearest(
        self, point: Point, *, limit: int, within_m: float, order_id: str, excluded: Collection[str] = ()
    ) -> Nearby:
        """Up to `limit` idle drivers within a straight-line distance, nearest first, ties by pool order."""
        distance_D = distances_m(self._latitude_D, self._longitude_D, point)
        free_D = self._idle_D & ~self._held_D & (distance_D <= within_m)
        for driver_id in excluded:
            free_D[self._number[driver_id]] = False
        free = np.flatnonzero(free_D)
        chosen = free[np.argsort(distance_D[free], kind="stable")[:limit]]
        ids = [self.driver_ids[number] for number in chosen]
        metres = [round(float(distance), 1) for distance in distance_D[chosen]]
        return Nearby(
            driver_ids=ids,
            distances_m=metres,
            eta_s=[self._eta_s(m, driver_id, order_id) for m, driver_id in zip(metres, ids, strict=True)],
            routed=[uniform(self._seed, "route", driver_id, order_id) >= NO_ROUTE_SHARE for driver_id in ids],
        )

    def _eta_s(self, distance_m: float, driver_id: str, order_id: str) -> float:
        factor = float(np.exp(ETA_SPREAD * normal(self._seed, "eta", driver_id, order_id)))
        return round((GET_GOING_S + distance_m * ROAD_FACTOR / SPEED_M_S) * factor, 1)


def pool_ids(num: int) -> list[str]:
    """`d-0000` and on. The first 1,764 are Chicago's vehicles too (`chicago.driver_numbers`): they have a history."""
    return [f"d-{number:04d}" for number in range(num)]

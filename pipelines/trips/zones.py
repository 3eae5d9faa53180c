"""Where New York's taxi zones are, and how far things are apart.

A zone is taken as a disc around its inner point with the zone's area, so that two drivers of one zone stand at
different places.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.trips.draws import uniform
from pipelines.trips.files import DATA_DIR, ZONE_POINTS_FILE, checked_path

EARTH_RADIUS_M = 6_371_000.0
METRES_PER_DEGREE = EARTH_RADIUS_M * math.pi / 180
MAX_RADIUS_M = 2_500.0  # the few large zones are mostly water and airfield: nobody waits at their rim


@dataclass(frozen=True, slots=True)
class Point:
    """WGS84 degrees."""

    latitude: float
    longitude: float


class ZoneMap:
    """Zones with a place. 264 and 265 have none, nor has any zone of another city."""

    def __init__(self, data_dir: Path = DATA_DIR) -> None:
        self._discs: dict[int, tuple[Point, float]] = {}
        with checked_path(ZONE_POINTS_FILE, data_dir).open(newline="") as file:
            for row in csv.DictReader(file):
                if row["inside_lat"]:
                    radius_m = min(MAX_RADIUS_M, math.sqrt(float(row["area_km2"]) * 1e6 / math.pi))
                    point = Point(float(row["inside_lat"]), float(row["inside_lon"]))
                    self._discs[int(row["LocationID"])] = (point, radius_m)

    def __contains__(self, zone: object) -> bool:
        return zone in self._discs

    def point_in(self, zone: int, seed: int, *names: object) -> Point:
        """A seeded place inside the zone's disc. Raises: KeyError for a zone without a place."""
        centre, radius_m = self._discs[zone]
        distance = radius_m * math.sqrt(uniform(seed, "radius", zone, *names)) / METRES_PER_DEGREE
        angle = 2 * math.pi * uniform(seed, "angle", zone, *names)
        return Point(
            centre.latitude + distance * math.sin(angle),
            centre.longitude + distance * math.cos(angle) / math.cos(math.radians(centre.latitude)),
        )


def distances_m(
    latitudes_D: NDArray[np.float64], longitudes_D: NDArray[np.float64], point: Point
) -> NDArray[np.float64]:
    """Great-circle metres from each of D places to one point (haversine). NaN places give NaN."""
    latitude = np.radians(latitudes_D)
    half_dlat = (latitude - math.radians(point.latitude)) / 2
    half_dlon = np.radians(longitudes_D - point.longitude) / 2
    inner = np.sin(half_dlat) ** 2 + np.cos(latitude) * math.cos(math.radians(point.latitude)) * np.sin(half_dlon) ** 2
    return 2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(inner))


def drawn_zones(num: int, pickup_zones: Sequence[int], seed: int) -> list[int]:
    """A zone for each of `num` drivers, drawn in proportion to how often each zone is a pickup in the file."""
    ordered = sorted(pickup_zones)
    return [ordered[int(uniform(seed, "first zone", number) * len(ordered))] for number in range(num)]

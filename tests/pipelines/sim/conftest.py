"""The demo's real trips, read once for all tests of the simulation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pipelines.trips.chicago import as_history, read_chicago
from pipelines.trips.hvfhv import read_hvfhv
from pipelines.trips.replay import HISTORY_GAP_MS, first_request_ms
from pipelines.trips.rows import Trip
from pipelines.trips.zones import ZoneMap

SEED = 7


@dataclass(frozen=True)
class Hour:
    """New York's hour, and Chicago's day moved to end before it."""

    seed: int
    trips: list[Trip]
    history: list[Trip]
    zones: ZoneMap


@pytest.fixture(scope="session")
def hour() -> Hour:
    trips, _ = read_hvfhv(seed=SEED)
    day, rows = read_chicago(seed=SEED)
    history = as_history(day, rows, before_ms=first_request_ms(seed=SEED) - HISTORY_GAP_MS)
    return Hour(seed=SEED, trips=trips, history=history, zones=ZoneMap())

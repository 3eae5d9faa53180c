"""Arrivals: shares, bounds, and the same answer every time."""

from __future__ import annotations

import pytest

from features.records import DriverEvent
from pipelines.trips.arrival import Arrival, ArrivalConfig
from pipelines.trips.events import driver_event

SEED = 7
NUM = 50_000


def _event(number: int) -> DriverEvent:
    return driver_event(f"d-{number}", "nyc", "idle", 1, 1_000_000, cause="test")


def test_shares_of_disorder_lateness_and_duplicates_are_as_configured() -> None:
    print(f"seed {SEED}")
    arrival = Arrival(ArrivalConfig(seed=SEED))
    delays = []
    for number in range(NUM):
        copies = arrival.copies(_event(number))
        delays.append(copies[0].ingest_time_ms - 1_000_000)
        assert [copy.event_id for copy in copies] == [copies[0].event_id] * len(copies)
        assert all(copies[0].ingest_time_ms < later.ingest_time_ms for later in copies[1:])
    assert arrival.counts["events"] == NUM
    assert abs(arrival.counts["disordered"] / NUM - 0.02) < 0.003
    assert abs(arrival.counts["late"] / NUM - 0.001) < 0.0006
    assert abs(arrival.counts["duplicates"] / NUM - 0.01) < 0.002
    assert min(delays) >= 50
    assert sum(delay > 600_000 for delay in delays) == arrival.counts["late"]
    assert sum(3_000 < delay <= 30_000 for delay in delays) == arrival.counts["disordered"]
    assert not any(30_000 < delay <= 600_000 for delay in delays)


def test_the_same_seed_and_event_arrive_the_same_way_and_another_seed_differs() -> None:
    first, second, other = (Arrival(ArrivalConfig(seed=seed)) for seed in (SEED, SEED, SEED + 1))
    delays = [[arrival.delay_ms(f"e{number}") for number in range(200)] for arrival in (first, second, other)]
    assert delays[0] == delays[1] != delays[2]


def test_a_share_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"late_share is 1\.5"):
        ArrivalConfig(seed=SEED, late_share=1.5)

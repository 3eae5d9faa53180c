"""A dispatcher's view of its drivers, and the zone map under it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from features.records import DriverStatus
from pipelines.trips.events import driver_event
from pipelines.trips.fleet import Fleet
from pipelines.trips.zones import Point, ZoneMap, distances_m, drawn_zones

SEED = 7


@pytest.fixture(scope="module")
def zones() -> ZoneMap:
    return ZoneMap()


def _saw(fleet: Fleet, driver_id: str, status: DriverStatus, zone: int, at_ms: int) -> None:
    fleet.observe(driver_event(driver_id, "nyc", status, zone, at_ms, cause=f"test-{at_ms}"))


def test_haversine_equals_the_written_formula_and_keeps_unknown_places_unknown() -> None:
    jfk, lga = Point(40.6413, -73.7781), Point(40.7769, -73.8740)
    p1, p2 = math.radians(jfk.latitude), math.radians(lga.latitude)
    half = math.sin((p2 - p1) / 2) ** 2
    half += math.cos(p1) * math.cos(p2) * math.sin(math.radians(lga.longitude - jfk.longitude) / 2) ** 2
    expected = 2 * 6_371_000 * math.asin(math.sqrt(half))
    found = distances_m(np.array([jfk.latitude, np.nan]), np.array([jfk.longitude, np.nan]), lga)
    assert found[0] == pytest.approx(expected, rel=1e-12)
    assert 16_900 < found[0] < 17_300
    assert np.isnan(found[1])


def test_every_city_zone_but_the_unknown_ones_has_a_place_inside_its_disc(zones: ZoneMap) -> None:
    assert [zone for zone in range(1, 266) if zone not in zones] == [264, 265]
    first, again, other = (zones.point_in(148, SEED, name) for name in ("a", "a", "b"))
    assert first == again != other


def test_first_zones_follow_how_often_a_zone_is_a_pickup() -> None:
    drawn = drawn_zones(2_000, [1] * 30 + [2] * 10, SEED)
    assert set(drawn) == {1, 2}
    assert abs(drawn.count(1) / 2_000 - 0.75) < 0.04


def test_only_idle_drivers_near_the_place_are_found_nearest_first(zones: ZoneMap) -> None:
    fleet = Fleet(["d-0", "d-1", "d-2", "d-3", "d-4"], zones, seed=SEED)
    _saw(fleet, "d-0", "idle", 148, 10)
    _saw(fleet, "d-1", "idle", 79, 10)  # the next zone
    _saw(fleet, "d-2", "on_trip", 148, 10)
    _saw(fleet, "d-3", "idle", 132, 10)  # JFK: too far
    place = zones.point_in(148, SEED, "pickup")
    near = fleet.nearest(place, limit=20, within_m=8_000, order_id="o")
    assert sorted(near.driver_ids) == ["d-0", "d-1"]
    assert near.distances_m == sorted(near.distances_m)
    assert all(eta > 0 for eta in near.eta_s)
    assert fleet.nearest(place, limit=1, within_m=8_000, order_id="o").driver_ids == near.driver_ids[:1]
    assert fleet.nearest(place, limit=5, within_m=8_000, order_id="o", excluded=["d-0"]).driver_ids == ["d-1"]


def test_held_drivers_are_not_offered_until_released(zones: ZoneMap) -> None:
    fleet = Fleet(["d-0"], zones, seed=SEED)
    _saw(fleet, "d-0", "idle", 148, 10)
    assert fleet.num_idle == 1
    fleet.hold("d-0")
    assert fleet.num_idle == 0
    fleet.release("d-0")
    assert fleet.num_idle == 1


def test_an_older_event_or_a_copy_that_arrives_late_changes_nothing(zones: ZoneMap) -> None:
    fleet = Fleet(["d-0"], zones, seed=SEED)
    _saw(fleet, "d-0", "on_trip", 148, 20)
    _saw(fleet, "d-0", "idle", 148, 10)
    assert fleet.num_idle == 0
    _saw(fleet, "d-0", "idle", 148, 30)
    _saw(fleet, "d-0", "on_trip", 148, 20)
    _saw(fleet, "d-9", "idle", 148, 40)  # a stranger
    assert fleet.num_idle == 1


def test_a_driver_outside_the_city_is_out_of_reach(zones: ZoneMap) -> None:
    fleet = Fleet(["d-0"], zones, seed=SEED)
    _saw(fleet, "d-0", "idle", 1032, 10)  # Chicago
    assert fleet.num_idle == 0


def test_about_one_in_a_hundred_has_no_route(zones: ZoneMap) -> None:
    fleet = Fleet([f"d-{number}" for number in range(500)], zones, seed=SEED)
    for number in range(500):
        _saw(fleet, f"d-{number}", "idle", 148, 10)
    place = zones.point_in(148, SEED, "pickup")
    routed = [
        route
        for order in range(20)
        for route in fleet.nearest(place, limit=500, within_m=8_000, order_id=f"o{order}").routed
    ]
    assert len(routed) == 10_000
    assert 60 <= routed.count(False) <= 140

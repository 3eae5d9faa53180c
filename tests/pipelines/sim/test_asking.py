"""The seam to the engine: the shipped strategies accept our bodies, whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import engine
from engine.loader import load_strategy
from engine.request import Request, parse
from features.loader import SHIPPED, load_catalogue
from pipelines.sim.asking import COUPON, COUPONS, DISPATCH, coupon_body, dispatch_body, scored_by
from pipelines.trips.fleet import Nearby

from .conftest import Hour

NEAR = Nearby(driver_ids=["d-1", "d-2"], distances_m=[250.0, 900.5], eta_s=[90.5, 210.0], routed=[True, False])


def _parsed(strategy: str, body: dict[str, Any]) -> Request:
    path = Path(next(iter(engine.__path__))) / "strategies" / f"{strategy}.yaml"
    compiled = load_strategy(path, load_catalogue(SHIPPED), schema_fingerprint="test")
    return parse(compiled, msgspec.json.encode(body))


def test_the_dispatch_strategy_accepts_our_question(hour: Hour) -> None:
    trip = hour.trips[0]
    assert trip.requested_ms is not None
    request = _parsed(DISPATCH, dispatch_body(trip, 2, trip.requested_ms, NEAR))
    assert (request.order_id, request.round_id, request.as_of_ms) == (trip.order_id, 2, trip.requested_ms)
    assert request.candidate_ids == ["d-1", "d-2"]
    assert request.candidates["eta_s"] == [90.5, None]  # no routing answer
    assert request.candidates["pickup_distance_m"] == [250.0, 900.5]
    assert request.values["fare_cents"] == trip.fare_cents and request.values["hour"] == 0


def test_the_dispatch_strategy_accepts_an_order_that_leaves_the_city(hour: Hour) -> None:
    trip = next(trip for trip in hour.trips if trip.dropoff_zone is None)
    assert _parsed(DISPATCH, dispatch_body(trip, 1, 0, NEAR)).values["dropoff_zone"] is None


def test_the_coupon_strategy_accepts_our_question(hour: Hour) -> None:
    request = _parsed(COUPON, coupon_body(hour.trips[0], 1_725_160_000_000))
    assert request.candidate_ids == list(COUPONS)
    assert request.candidates["value_cents"] == list(COUPONS.values())
    assert request.values["hour"] == 23  # 03:06 UTC is the evening before, in New York


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ({}, None),
        ({"p_accept": {"model": "accept@v0001", "model_hash": None, "source": "absent"}}, None),
        ({"p_accept": {"model": "accept@v0001", "model_hash": "ab" * 32, "source": "fallback"}}, None),
        (
            {"p_accept": {"model": "accept@v0001", "model_hash": "ab" * 32, "source": "model"}},
            "accept@v0001 abababababab",
        ),
    ],
)
def test_a_decision_counts_for_a_model_only_when_it_scored(models: dict[str, Any], expected: str | None) -> None:
    assert scored_by({"models": models}) == expected

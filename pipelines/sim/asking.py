"""What the dispatch service sends to the engine, and what it reads of the answer. The wire is engine/WIRE.md."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Protocol

from pipelines.trips.fleet import Nearby
from pipelines.trips.hvfhv import TIME_ZONE
from pipelines.trips.rows import Trip

DISPATCH = "express_dispatch"
COUPON = "rider_coupon"
DISPATCH_MODEL = "p_accept"  # the strategy's name for the model whose version the report groups by
COUPONS = {"none": 0, "c-100": 100, "c-200": 200, "c-400": 400}  # coupon_id -> value_cents


class Engine(Protocol):
    """What `engine.client.EngineClient` does for us."""

    def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]: ...


def dispatch_body(trip: Trip, round_id: int, as_of_ms: int, near: Nearby) -> dict[str, Any]:
    """A driver for an order, out of those near. An eta is null where the router gave no answer."""
    etas = [eta if routed else None for eta, routed in zip(near.eta_s, near.routed, strict=True)]
    candidates: dict[str, list[Any]] = {
        "driver_id": near.driver_ids,
        "eta_s": etas,
        "pickup_distance_m": near.distances_m,
        "state": ["idle"] * len(near.driver_ids),
    }
    request = {
        "order_id": trip.order_id,
        "pickup_zone": trip.pickup_zone,
        "dropoff_zone": trip.dropoff_zone,
        "fare_cents": trip.fare_cents,
        "distance_m": trip.distance_m or 0,
        "hour": _local_hour(as_of_ms),
    }
    return _body(trip, round_id, as_of_ms, request, candidates)


def coupon_body(trip: Trip, as_of_ms: int) -> dict[str, Any]:
    """A coupon for the rider of an order."""
    request = {"pickup_zone": trip.pickup_zone, "fare_cents": trip.fare_cents, "hour": _local_hour(as_of_ms)}
    candidates: dict[str, list[Any]] = {"coupon_id": list(COUPONS), "value_cents": list(COUPONS.values())}
    return _body(trip, 1, as_of_ms, request, candidates)


def scored_by(answer: dict[str, Any]) -> str | None:
    """The model that scored, as `name hash`; null when it was absent, late or failed."""
    output = answer["models"].get(DISPATCH_MODEL)
    if output is None or output["source"] != "model":
        return None
    return f"{output['model']} {str(output['model_hash'])[:12]}"


def _local_hour(at_ms: int) -> int:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(TIME_ZONE).hour


def _body(
    trip: Trip, round_id: int, as_of_ms: int, request: dict[str, Any], candidates: dict[str, list[Any]]
) -> dict[str, Any]:
    return {
        "order_id": trip.order_id,
        "round_id": round_id,
        "city": trip.city,
        "product": trip.product,
        "as_of_ms": as_of_ms,
        "request": request,
        "candidates": candidates,
    }

"""A made-up city whose chance of acceptance is known: folded samples with real Decision bytes, and the truth beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from features.expr import Type
from features.records import Decision, encode
from features.rows import FeatureBatch, Status, to_served

START_MS = 1_725_235_200_000
STRATEGY = "express_dispatch"
NAMES: dict[str, Type] = {
    "order_id": Type("string", False),
    "driver_id": Type("string", False),
    "hour": Type("int", False),
    "fare_cents": Type("int", False),
    "dropoff_zone": Type("int", True),
    "eta_s": Type("double", True),
    "driver.accept_rate_24h": Type("double", True),
    "driver.completed_1h": Type("int", False),
    "pickup_zone.requested_15m": Type("int", True),
}
PROGRAM: list[dict[str, Any]] = [
    {"name": "eta_s", "expr": "eta_s", "fill": 300.0},
    {"name": "fare_cents", "expr": "fare_cents", "fill": 0.0},
    {"name": "accept_rate", "expr": "driver.accept_rate_24h", "fill": 0.75},
    {"name": "accept_rate_missing", "expr": "driver.accept_rate_24h == null", "fill": 1.0},
    {"name": "completed_1h", "expr": "driver.completed_1h", "fill": 0.0},
    {"name": "rush", "expr": "hour >= 7 && hour < 10", "fill": 0.0},
    {"name": "requested_15m", "expr": "pickup_zone.requested_15m", "fill": 0.0},
]


@dataclass(frozen=True)
class World:
    """Shapes: N samples. `p` (N,) is the true chance of the offered candidate, `y` (N,) what happened."""

    table: pa.Table
    p: np.ndarray
    y: np.ndarray


def truth(eta: np.ndarray, fare: np.ndarray, rate: np.ndarray, hour: np.ndarray, requested: np.ndarray) -> np.ndarray:
    """Chance of acceptance: an interaction of eta and fare, and effects of two streaming features."""
    fare_z, eta_z = (np.log(fare) - 7.2) / 0.5, (eta - 270.0) / 155.0
    logit = 0.9 - 1.1 * eta_z + 0.5 * fare_z + 0.6 * eta_z * fare_z + 5.0 * (rate - 0.75)
    logit = logit + 0.5 * ((hour >= 7) & (hour < 10)) - 0.06 * (requested - 8)
    return 1.0 / (1.0 + np.exp(-logit))


def make_world(num: int, seed: int, *, orders_of: int = 2, step_ms: int = 700) -> World:
    """`num` samples in time order, `orders_of` decisions an order. The same seed gives the same world."""
    rng = np.random.default_rng(seed)
    k = 3
    eta, rate = rng.gamma(3, 90, (num, k)), rng.beta(6, 2, (num, k))
    fare, requested = rng.lognormal(7.2, 0.5, num).astype(np.int64), rng.poisson(8, num)
    known = rng.random((num, k)) > 0.1  # a driver without history has no rate
    chosen = rng.integers(0, k, num)
    at_ms = START_MS + np.arange(num) * step_ms
    hour = (at_ms // 60_000) % 24  # a "day" of 24 minutes, so that every split sees every hour
    rows = np.arange(num)
    rate_used = np.where(known, rate, 0.75)
    p = truth(eta[rows, chosen], fare.astype(float), rate_used[rows, chosen], hour, requested)
    y = (rng.random(num) < p).astype(np.int64)
    samples = [
        sample_row(
            make_decision(
                i, at_ms=int(at_ms[i]), order=f"o-{i // orders_of}", hour=int(hour[i]), fare=int(fare[i]), chosen=int(chosen[i]),
                eta=eta[i].tolist(), rate=rate[i], rate_known=known[i], requested=int(requested[i]),
            ),
            int(y[i]),
        )
        for i in range(num)
    ]  # fmt: skip
    return World(to_table(samples), p, y)


def make_decision(
    number: int, *, at_ms: int = START_MS, order: str = "o-1", hour: int = 8, fare: int = 1500, chosen: int | None = 0,
    eta: list[Any] | None = None, rate: Any = (0.8, 0.7, 0.6), rate_known: Any = (True, True, True), requested: int = 5,
    **changes: Any,
) -> Decision:  # fmt: skip
    """One decision of three candidates; `changes` replace fields."""
    k = 3
    fields: dict[str, Any] = {
        "decision_id": f"d-{number:06d}", "order_id": order, "city": "nyc", "product": "express", "strategy": STRATEGY,
        "strategy_version": 1, "strategy_hash": "s", "as_of_ms": at_ms, "event_time_ms": at_ms,
        "request": {"hour": hour, "fare_cents": fare, "dropoff_zone": None}, "candidate_key": "driver_id",
        "candidate_ids": [f"drv-{i}" for i in range(k)], "candidates": {"eta_s": eta or [100.0, 200.0, 300.0]},
        "features": {
            "driver": to_served(driver_batch(np.asarray(rate), np.asarray(rate_known, dtype=bool))),
            "pickup_zone": to_served(zone_batch(requested)),
        },
        "model_outputs": {}, "scores": [0.0] * k, "propensities": [1 / k] * k, "survivors": [True] * k,
        "reasons": [None] * k, "fired": [0] * k, "unknown": [0] * k, "chosen": chosen, "decided_by": "explore",
        "quality": "full", "salt": "", "schema_fingerprint": "f1", "arms": {"learned_ranking": "rules"}, "layers_read": [],
        "params": {},
    }  # fmt: skip
    return Decision(**(fields | changes))


def driver_batch(rate: np.ndarray, known: np.ndarray) -> FeatureBatch:
    k = len(rate)
    status = np.where(known, Status.PRESENT, Status.MISSING).astype(np.uint8)
    return FeatureBatch(
        view="driver_activity", generation=1, applied_through_ms=START_MS, names=("accept_rate_24h", "completed_1h"),
        types=("double", "int"),
        columns={"accept_rate_24h": np.where(known, rate, 0.0), "completed_1h": np.arange(k, dtype=np.int64)},
        valid={"accept_rate_24h": known, "completed_1h": np.ones(k, dtype=bool)},
        statuses=np.stack([status, np.zeros(k, dtype=np.uint8)], axis=1), ages_ms=np.full((k, 2), -1, dtype=np.int64),
    )  # fmt: skip


def zone_batch(requested: int) -> FeatureBatch:
    return FeatureBatch(
        view="zone_demand", generation=1, applied_through_ms=START_MS, names=("requested_15m",), types=("int",),
        columns={"requested_15m": np.array([requested], dtype=np.int64)}, valid={"requested_15m": np.array([True])},
        statuses=np.zeros((1, 1), dtype=np.uint8), ages_ms=np.full((1, 1), -1, dtype=np.int64),
    )  # fmt: skip


def sample_row(made: Decision, accepted: int | None, **changes: Any) -> dict[str, Any]:
    """One row of the folded samples."""
    row = {
        "sample_id": made.decision_id, "strategy": made.strategy, "event_time_ms": made.event_time_ms,
        "kind": "positive" if accepted else "negative", "closed": True, "accepted": accepted, "completed": accepted,
        "propensity_valid": True, "decision": encode(made),
    }  # fmt: skip
    return row | changes


def to_table(rows: list[Mapping[str, Any]]) -> pa.Table:
    schema = pa.schema(
        [
            ("sample_id", pa.string()), ("strategy", pa.string()), ("event_time_ms", pa.int64()), ("kind", pa.string()),
            ("closed", pa.bool_()), ("accepted", pa.int8()), ("completed", pa.int8()), ("propensity_valid", pa.bool_()),
            ("decision", pa.binary()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)

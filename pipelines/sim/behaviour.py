"""How the demo's drivers answer offers: a seeded truth that only the simulation and its report know.

Nothing under `pipelines/training` may import this file, and what it computes reaches no topic: training has to learn
it from offers and answers.

P(accept) is a logistic of
  - the way to the rider in minutes (long is bad),
  - the fare per kilometre driven, the way to the rider included (high is good),
  - their product: a long way is tolerated when the fare per kilometre is high,
  - what the driver earned in the last 24 hours (a driver near the day's target gets choosy). It changes with each
    trip and lives only in the stream: no request and no candidate carries it,
  - how many trips the driver ended in the last hour (tired), and a small taste of each driver's own.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from pipelines.trips.draws import normal, uniform

DAY_MS = 24 * 3600 * 1000
HOUR_MS = 3600 * 1000


@dataclass(frozen=True, kw_only=True)
class BehaviourConfig:
    """The truth. Weights are log-odds per unit of the named term. tests/pipelines/sim holds the bands they meet."""

    seed: int
    bias: float = 0.3
    per_eta: float = -0.75  # per 3 minutes beyond 4
    per_fare_rate: float = 0.35  # per dollar/km around 3, squashed to (-1.5, 1.5)
    per_eta_and_fare_rate: float = 0.5
    per_income: float = -1.2  # per 120 dollars around 150, squashed to (-1.5, 1.5)
    per_trip_last_hour: float = -0.2
    own_taste: float = 0.2  # standard deviation between drivers


@dataclass(frozen=True, slots=True)
class Offer:
    """What a driver sees of an order. `distance_m` null: the trip's length is not known."""

    order_id: str
    fare_cents: int
    distance_m: int | None
    pickup_distance_m: float
    eta_s: float


class Earnings:
    """Completed trips of each driver, exact and at once, over the last day. Fed by the simulation, not by topics."""

    def __init__(self) -> None:
        self._trips: dict[str, deque[tuple[int, int]]] = {}

    def add(self, driver_id: str, completed_ms: int, fare_cents: int) -> None:
        """Trips of one driver may be added in any order that is not far from time order."""
        trips = self._trips.setdefault(driver_id, deque())
        trips.append((completed_ms, fare_cents))
        if len(trips) > 1 and trips[-2][0] > completed_ms:
            self._trips[driver_id] = deque(sorted(trips))

    def of(self, driver_id: str, now_ms: int) -> tuple[int, int]:
        """Cents earned in the 24 hours before `now_ms`, and trips ended in the hour before it."""
        trips = self._trips.get(driver_id, deque())
        fares = sum(fare for at_ms, fare in trips if now_ms - DAY_MS <= at_ms < now_ms)
        last_hour = sum(1 for at_ms, _ in trips if now_ms - HOUR_MS <= at_ms < now_ms)
        return fares, last_hour


class Behaviour:
    """The truth: P(accept) of an offer to a driver, and the draw of the answer."""

    def __init__(self, config: BehaviourConfig, earnings: Earnings) -> None:
        self.config = config
        self.earnings = earnings

    def p_accept(self, driver_id: str, offer: Offer, now_ms: int) -> float:
        """The chance in (0, 1) that the driver accepts at `now_ms`."""
        config = self.config
        earned_cents, trips_last_hour = self.earnings.of(driver_id, now_ms)
        eta = (offer.eta_s / 60 - 4) / 3
        fare_rate = _fare_rate(offer)
        income = _squashed((earned_cents / 100 - 150) / 120)
        log_odds = (
            config.bias
            + config.per_eta * eta
            + config.per_fare_rate * fare_rate
            + config.per_eta_and_fare_rate * eta * fare_rate
            + config.per_income * income
            + config.per_trip_last_hour * trips_last_hour
            + config.own_taste * normal(config.seed, "taste", driver_id)
        )
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, log_odds))))

    def accepts(self, driver_id: str, offer: Offer, round_id: int, p_accept: float) -> bool:
        """The answer. The same driver, order and round draw the same number whatever else happened."""
        return uniform(self.config.seed, "answer", driver_id, offer.order_id, round_id) < p_accept


def _fare_rate(offer: Offer) -> float:
    """Dollars per kilometre of the whole way, around 3, squashed."""
    trip_km = (offer.distance_m or 0) / 1000
    return _squashed(offer.fare_cents / 100 / max(0.5, trip_km + offer.pickup_distance_m / 1000) - 3)


def _squashed(value: float) -> float:
    return 1.5 * math.tanh(value / 1.5)

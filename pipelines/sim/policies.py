"""Engines in this process that choose by a plain rule: how the simulation is calibrated and tested without services.

They answer with the fields of the wire that `dispatch.py` reads. The oracle is told the truth, which no real engine
can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.sim.asking import DISPATCH
from pipelines.trips.draws import uniform

Scores = Callable[[dict[str, Any]], Sequence[float]]  # body -> one score per candidate, higher is better
UNROUTED_ETA_S = 900.0


class ScorePolicy:
    """Chooses by softmax of score / temperature, or the best at temperature 0. Coupons: always the first."""

    def __init__(self, scores: Scores, *, seed: int, temperature: float = 0.0, arm: str = "rules") -> None:
        self._scores = scores
        self._seed = seed
        self._temperature = temperature
        self._arm = arm

    def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]:
        decision_id = f"{strategy}:{body['order_id']}:{body['round_id']}"
        chosen = 0
        if strategy == DISPATCH:
            chosen = self._choose(list(self._scores(body)), decision_id)
        return {
            "decision_id": decision_id,
            "chosen": chosen,
            "decided_by": "rank" if self._temperature == 0 else "explore",
            "quality": "full",
            "models": {},
            "arms": {"learned_ranking": self._arm},
        }

    def _choose(self, scores: list[float], decision_id: str) -> int:
        best = max(range(len(scores)), key=lambda number: scores[number])
        if self._temperature == 0:
            return best
        weights = [math.exp((score - scores[best]) / self._temperature) for score in scores]
        left = uniform(self._seed, "softmax", decision_id) * sum(weights)
        for number, weight in enumerate(weights):
            left -= weight
            if left <= 0:
                return number
        return best


def nearest(body: dict[str, Any]) -> list[float]:
    """The rules of the demo in one line: minutes to the rider, negated."""
    etas = body["candidates"]["eta_s"]
    return [-(UNROUTED_ETA_S if eta is None else eta) / 60 for eta in etas]

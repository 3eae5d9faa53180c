"""What would be true of each candidate of a decision, and how the chosen driver is going to answer."""

from __future__ import annotations

from typing import Any

from pipelines.sim.asking import scored_by
from pipelines.sim.behaviour import Behaviour, Offer
from pipelines.sim.truth import Answer, TruthRecord
from pipelines.trips.draws import uniform
from pipelines.trips.fleet import Nearby
from pipelines.trips.rows import Trip

TIMED_OUT_SHARE = 0.3  # of those who do not accept; the others decline


def foresee(
    behaviour: Behaviour, trip: Trip, round_id: int, near: Nearby, decision: dict[str, Any], now_ms: int
) -> TruthRecord:
    """The truth of one decision. `decision` is the engine's answer; its `chosen` indexes the candidates sent."""
    offers = [
        Offer(trip.order_id, trip.fare_cents, trip.distance_m, distance_m, eta_s)
        for distance_m, eta_s in zip(near.distances_m, near.eta_s, strict=True)
    ]
    chances = [
        behaviour.p_accept(driver_id, offer, now_ms) for driver_id, offer in zip(near.driver_ids, offers, strict=True)
    ]
    chosen = decision["chosen"]
    answer: Answer = "none"
    if chosen is not None:
        answer = _answer(behaviour, near.driver_ids[chosen], offers[chosen], round_id, chances[chosen])
    return TruthRecord(
        decision_id=decision["decision_id"],
        order_id=trip.order_id,
        round_id=round_id,
        as_of_ms=now_ms,
        arms=decision["arms"],
        decided_by=decision["decided_by"],
        quality=decision["quality"],
        model=scored_by(decision),
        candidate_ids=near.driver_ids,
        p_accept=chances,
        chosen=chosen,
        answer=answer,
    )


def _answer(behaviour: Behaviour, driver_id: str, offer: Offer, round_id: int, p_accept: float) -> Answer:
    if behaviour.accepts(driver_id, offer, round_id, p_accept):
        return "accepted"
    silent = uniform(behaviour.config.seed, "silent", driver_id, offer.order_id, round_id)
    return "timed_out" if silent < TIMED_OUT_SHARE else "declined"

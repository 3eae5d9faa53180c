"""Seeded decisions and trip events for the sample join: late, duplicate, contradictory, missing, on either side."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

from features.records import Decision, TripEvent, TripEventType

BASE_MS = 1_725_000_000_000
SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@dataclass
class Streams:
    """What stands in the two topics, before anybody shuffles it."""

    decisions: list[Decision] = field(default_factory=list)
    events: list[TripEvent] = field(default_factory=list)


def make_decision(decision_id: str, order_id: str, at_ms: int, **changes: Any) -> Decision:
    """A well-formed Decision of three candidates, the first one chosen."""
    candidates = changes.pop("candidate_ids", ["d-0", "d-1", "d-2"])
    k = len(candidates)
    chosen = changes.pop("chosen", 0)
    fields: dict[str, Any] = {
        "decision_id": decision_id,
        "order_id": order_id,
        "city": "nyc",
        "product": "express",
        "strategy": "express_dispatch",
        "strategy_version": 1,
        "strategy_hash": "h",
        "as_of_ms": at_ms,
        "event_time_ms": at_ms,
        "request": {"order_id": order_id, "pickup_zone": 7},
        "candidate_key": "driver_id",
        "candidate_ids": candidates,
        "candidates": {"eta_s": [60.0 * (i + 1) for i in range(k)]},
        "features": {},
        "model_outputs": {},
        "scores": [1.0 / (i + 1) for i in range(k)],
        "propensities": [0.0] * k if chosen is None else [1.0 if i == chosen else 0.0 for i in range(k)],
        "survivors": [chosen is not None] * k,
        "reasons": [None] * k,
        "fired": [0] * k,
        "unknown": [0] * k,
        "chosen": chosen,
        "decided_by": "rank",
        "quality": "full",
        "salt": "s",
        "schema_fingerprint": "f",
        "arms": {"learned_ranking": "rules"},
        "layers_read": ["learned_ranking"],
        "params": {},
    }
    return Decision(**{**fields, **changes})


def make_event(
    event_id: str, event_type: TripEventType, order_id: str, at_ms: int, *, delay_ms: int = 0, **changes: Any
) -> TripEvent:
    """A TripEvent that was known `delay_ms` after it happened."""
    return TripEvent(
        event_id=event_id,
        event_type=event_type,
        order_id=order_id,
        rider_id="r-1",
        city="nyc",
        product="express",
        pickup_zone=7,
        event_time_ms=at_ms,
        ingest_time_ms=at_ms + delay_ms,
        **changes,
    )


def make_streams(rng: random.Random, num_orders: int, span_ms: int = 20 * MINUTE_MS) -> Streams:
    """Orders with 0 to 3 dispatch decisions, 0 or 1 coupon decisions, and whatever may follow."""
    streams = Streams()
    for number in range(num_orders):
        _Order(rng, streams, f"o-{number}", BASE_MS + rng.randrange(span_ms)).write()
    _repeat_some(rng, streams)
    return streams


class _Order:
    """One order's life."""

    def __init__(self, rng: random.Random, streams: Streams, order_id: str, at_ms: int) -> None:
        self.rng, self.streams, self.order_id, self.at_ms = rng, streams, order_id, at_ms
        self.num_events = 0

    def write(self) -> None:
        rng = self.rng
        self.event("requested", self.at_ms)
        if rng.random() < 0.4:
            self.decide(f"{self.order_id}-coupon", self.at_ms + 10, strategy="rider_coupon", candidate_key="coupon_id")
        drivers = ["d-0"]
        at_ms = self.at_ms
        for round_id in range(rng.choice([0, 1, 1, 1, 2, 2, 3])):
            at_ms += rng.randrange(1, 90) * SECOND_MS
            drivers += self.round(f"{self.order_id}-{round_id}", round_id, at_ms)
        if rng.random() < 0.25:
            self.event("cancelled", at_ms + rng.randrange(-60, 600) * SECOND_MS)
        if rng.random() < 0.6:
            done_ms = at_ms + rng.choice([10 * MINUTE_MS, 40 * MINUTE_MS, 170 * MINUTE_MS, 200 * MINUTE_MS])
            driver = rng.choice([None, "d-9", *drivers, *drivers])
            self.event("arrived", at_ms + 5 * MINUTE_MS, driver_id=driver)
            self.event("picked_up", at_ms + 6 * MINUTE_MS, driver_id=driver)
            self.event("completed", done_ms, driver_id=driver)
        if rng.random() < 0.1:  # of a decision that nobody logged
            self.offer_event("accepted", "lost", "d-0", at_ms + 5)

    def round(self, decision_id: str, round_id: int, at_ms: int) -> list[str]:
        """One decision and its offers; returns the drivers who accepted."""
        rng = self.rng
        chosen = rng.choice([None, 0, 0, 1, 2, 2])
        decided_by: Literal["rank", "assign", "explore"] = rng.choice(["rank", "rank", "explore", "assign"])
        self.decide(decision_id, at_ms, chosen=chosen, decided_by=decided_by, round_id=round_id)
        accepted = []
        for number in range(rng.choice([0, 1, 1, 1, 1, 2])):
            offered_ms = at_ms + (1 + 20 * number) * SECOND_MS
            driver = (
                f"d-{chosen}"
                if chosen is not None and number == 0 and rng.random() < 0.85
                else rng.choice(["d-0", "d-1"])
            )
            self.offer_event("offered", decision_id, driver, offered_ms)
            for answer in rng.choice([["accepted"]] * 4 + [["declined"], ["timed_out"], [], ["timed_out", "accepted"]]):
                self.offer_event(answer, decision_id, driver, offered_ms + rng.randrange(1, 15) * SECOND_MS)
                accepted += [driver] if answer == "accepted" else []
        return accepted

    def decide(self, decision_id: str, at_ms: int, **changes: Any) -> None:
        if self.rng.random() < 0.95:  # some never reach the topic
            self.streams.decisions.append(make_decision(decision_id, self.order_id, at_ms, **changes))

    def offer_event(self, event_type: TripEventType, decision_id: str, driver: str, at_ms: int) -> None:
        self.event(event_type, at_ms, decision_id=decision_id, offer_id=f"{decision_id}-{driver}", driver_id=driver)

    def event(self, event_type: TripEventType, at_ms: int, **changes: Any) -> None:
        rng = self.rng
        self.num_events += 1
        if rng.random() < 0.05:
            return
        delay_ms = rng.choice([0, 100, 2 * SECOND_MS] * 6 + [12 * MINUTE_MS, 2 * HOUR_MS, 5 * HOUR_MS, 7 * HOUR_MS])
        event_id = f"{self.order_id}-e{self.num_events}"
        self.streams.events.append(make_event(event_id, event_type, self.order_id, at_ms, delay_ms=delay_ms, **changes))


def _repeat_some(rng: random.Random, streams: Streams) -> None:
    streams.decisions += rng.sample(streams.decisions, len(streams.decisions) // 10)
    for event in rng.sample(streams.events, len(streams.events) // 10):
        later = rng.choice([0, 5 * SECOND_MS])  # a second copy, perhaps stamped by another gateway
        streams.events.append(
            make_event(
                event.event_id,
                event.event_type,
                event.order_id,
                event.event_time_ms,
                delay_ms=event.ingest_time_ms - event.event_time_ms + later,
                decision_id=event.decision_id,
                offer_id=event.offer_id,
                driver_id=event.driver_id,
            )
        )

"""The sample join over a whole log, written the slow and obvious way: what `pipelines/joiner.py` must end in.

It sees all decisions and events at once, sorted by nothing, after all time has passed. It shares no code with the joiner:
the shipped labels are written out here as sets of event types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from features.records import Decision, TripEvent

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One label. `by` is "decision", "accepted_offer" or "order"."""

    by: str
    yes: frozenset[str]
    no: frozenset[str]
    shut: frozenset[str] = frozenset()
    redispatch: bool = False
    wait_ms: int
    window_ms: int


SHIPPED: Mapping[str, Mapping[str, Rule]] = {
    "express_dispatch": {
        "accepted": Rule(
            by="decision",
            yes=frozenset({"accepted"}),
            no=frozenset({"declined", "timed_out"}),
            shut=frozenset({"cancelled"}),
            redispatch=True,
            wait_ms=10 * MINUTE_MS,
            window_ms=10 * MINUTE_MS,
        ),
        "completed": Rule(
            by="accepted_offer",
            yes=frozenset({"completed"}),
            no=frozenset({"cancelled", "declined", "timed_out"}),
            redispatch=True,
            wait_ms=3 * HOUR_MS,
            window_ms=3 * HOUR_MS,
        ),
    },
    "rider_coupon": {
        "completed": Rule(
            by="order",
            yes=frozenset({"completed"}),
            no=frozenset({"cancelled"}),
            wait_ms=3 * HOUR_MS,
            window_ms=3 * HOUR_MS,
        )
    },
}
SHIPPED_RETENTION_MS = 6 * HOUR_MS


def join(
    decisions: Iterable[Decision],
    events: Iterable[TripEvent],
    rules: Mapping[str, Mapping[str, Rule]] = SHIPPED,
    retention_ms: int = SHIPPED_RETENTION_MS,
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """(one row per decision_id, the event_ids of the outcomes that no decision took)."""
    first_of: dict[str, Decision] = {}
    for decision in decisions:
        first_of.setdefault(decision.decision_id, decision)
    copies: dict[str, TripEvent] = {}
    for event in events:
        known = copies.get(event.event_id)
        if known is None or event.ingest_time_ms < known.ingest_time_ms:
            copies[event.event_id] = event
    taken: set[str] = set()
    rows = {}
    for decision in first_of.values():
        near = [
            e
            for e in copies.values()
            if e.order_id == decision.order_id and abs(e.ingest_time_ms - decision.event_time_ms) <= retention_ms
        ]
        siblings = [
            d
            for d in first_of.values()
            if d.order_id == decision.order_id
            and d.strategy == decision.strategy
            and (d.event_time_ms, d.decision_id) > (decision.event_time_ms, decision.decision_id)
            and d.event_time_ms - decision.event_time_ms <= retention_ms
        ]
        rows[decision.decision_id] = _row(decision, near, siblings, rules[decision.strategy], taken)
    interesting = {"offered", "accepted"}.union(
        *(r.yes | r.no | r.shut for labels in rules.values() for r in labels.values())
    )
    unmatched = {e.event_id for e in copies.values() if e.event_type in interesting and e.event_id not in taken}
    return rows, unmatched


def _row(
    decision: Decision, near: list[TripEvent], siblings: list[Decision], rules: Mapping[str, Rule], taken: set[str]
) -> dict[str, Any]:
    named = [e for e in near if e.decision_id == decision.decision_id]
    accepts = [e for e in named if e.event_type == "accepted"]
    offers = sorted((e for e in named if e.event_type == "offered"), key=lambda e: (e.event_time_ms, e.event_id))
    taken.update(e.event_id for e in accepts + offers)
    answers = {name: _answer(decision, near, siblings, accepts, rule, taken) for name, rule in rules.items()}
    chosen = None if decision.chosen is None else decision.candidate_ids[decision.chosen]
    if chosen is None:
        answers = dict.fromkeys(rules, (None, None, "open"))
    hows = {how for value, _, how in answers.values() if value == 1}
    kind = next((how for how in ("late_positive", "corrected", "positive") if how in hows), None)
    if kind is None:
        kind = "negative" if any(value == 0 for value, _, _ in answers.values()) else "provisional"
    valid: bool | None = None
    if decision.decided_by == "assign":
        valid = False
    elif offers:
        valid = offers[0].driver_id == chosen and all(a.driver_id == chosen for a in accepts)
    return {
        "strategy": decision.strategy,
        "order_id": decision.order_id,
        "event_time_ms": decision.event_time_ms,
        "kind": kind,
        "closed": True,  # all time has passed
        "labels": {name: value for name, (value, _, _) in answers.items()},
        "times": {name: time for name, (_, time, _) in answers.items()},
        "propensity_valid": valid,
    }


def _answer(
    decision: Decision,
    near: list[TripEvent],
    siblings: list[Decision],
    accepts: list[TripEvent],
    rule: Rule,
    taken: set[str],
) -> tuple[int | None, int | None, str]:
    """(label, its time, how a positive came about)."""
    if rule.by == "order":
        mine = [e for e in near if e.event_time_ms >= decision.event_time_ms]
    else:
        mine = [e for e in near if e.decision_id == decision.decision_id]
        mine += [e for e in near if e.decision_id is None and e.event_time_ms >= decision.event_time_ms]
    yes: list[tuple[int, int]] = []  # (event time, known since)
    for event in (e for e in mine if e.event_type in rule.yes):
        known = event.ingest_time_ms
        if rule.by == "accepted_offer" and event.decision_id is None:
            by_driver = [a for a in accepts if event.driver_id in (None, a.driver_id)]
            if not by_driver:
                continue
            known = max(known, min(a.ingest_time_ms for a in by_driver))
        taken.add(event.event_id)
        yes.append((event.event_time_ms, known))
    no = [(e.event_time_ms, e.ingest_time_ms) for e in mine if e.event_type in rule.no]
    shut = [e.ingest_time_ms for e in mine if e.event_type in rule.shut]
    taken.update(e.event_id for e in mine if e.event_type in rule.no | rule.shut)
    if rule.redispatch:
        no += [(d.event_time_ms, d.event_time_ms) for d in siblings]
    wait_end = decision.event_time_ms + rule.wait_ms
    window_end = decision.event_time_ms + rule.window_ms
    no_known = min((known for _, known in no), default=None)
    if yes:
        since = min(known for _, known in yes)
        how = "positive"
        if since > window_end:
            how = "late_positive"
        elif since > wait_end or (no_known is not None and since > no_known):
            how = "corrected"
        return 1, min(time for time, _ in yes), how
    if no_known is not None and no_known <= window_end:
        return 0, min(time for time, _ in no), "no"
    if shut and min(shut) <= window_end:
        return None, None, "shut"
    return 0, window_end, "silence"

"""What is known of one decision's labels: a pure function of the decision, the outcomes of its order and the time.

It never looks at what was emitted before, or at the order in which outcomes came: that is why any interleaving of the
same records ends in the same Sample. `pipelines/joiner.py` keeps the state and turns changes into versions;
`tests/naive_join.py` is the same meaning over a whole log, written the slow way.

Rules that hold for every label:
- An outcome belongs to a decision when it was known within the strategy's retention of it, before or after.
- A positive outweighs everything, so a label never goes from positive to negative.
- Silence is a no when the wait has passed (it may be corrected) and a final no when the window has passed.
- How the positive came about (in time, after a no had been said, after the window) is read from the ingest times of the
  records, not from when this process saw them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from features.records import SampleKind
from pipelines.labels.spec import Bits, JoinedBy, LabelSpec, StrategyLabels


class Outcome(msgspec.Struct, array_like=True):
    """What is kept of one TripEvent: ids, times and its answers to the labels (`LabelSet.bits`)."""

    event_id: str
    event_type: str
    decision_id: str | None
    driver_id: str | None
    event_time_ms: int
    ingest_time_ms: int
    bits: int
    partition: int
    offset: int
    matched: bool = False  # some decision took it


class View(msgspec.Struct, array_like=True):
    """All that a Sample version says of the labels. `values` and `times_ms` are in the order of the strategy's labels."""

    kind: SampleKind
    closed: bool
    values: list[int | None]
    times_ms: list[int | None]
    propensity_valid: bool | None
    known_ms: int  # ingest time by which all this was known


class Held(msgspec.Struct, array_like=True):
    """What is kept of one Decision. Its payload left with version 1."""

    decision_id: str
    strategy: str
    event_time_ms: int
    chosen_id: str | None
    assigned: bool  # decided together with other orders: it has no propensity of its own
    version: int
    view: View


class _Verdict(NamedTuple):
    value: int | None
    time_ms: int | None
    final: bool
    known_ms: int | None  # None: nothing is known
    kind: SampleKind  # of a positive; otherwise unused


_OPEN = _Verdict(None, None, False, None, "provisional")
_NEVER = 1 << 62


def first_view(num_labels: int, event_time_ms: int, *, closed: bool) -> View:
    """Version 1: nothing is known yet. Closed at once where nothing was chosen: there is nothing to learn from what follows."""
    return View("provisional", closed, [None] * num_labels, [None] * num_labels, None, event_time_ms)


def view_of(
    held: Held, strategy: StrategyLabels, outcomes: Iterable[Outcome], others: Iterable[Held], now_ms: int
) -> View:
    """What is known of a decision at ingest time `now_ms`, given its order's outcomes and other decisions.

    Marks the outcomes that the decision took as matched.
    """
    near = [o for o in outcomes if abs(o.ingest_time_ms - held.event_time_ms) <= strategy.retention_ms]
    accepts = [o for o in near if o.decision_id == held.decision_id and o.event_type == "accepted"]
    redispatched_ms = _redispatched_ms(held, others, strategy.retention_ms)
    verdicts = [_verdict(label, held, near, accepts, redispatched_ms, now_ms) for label in strategy.labels]
    valid, valid_known_ms = _propensity_valid(held, near, accepts)
    if held.chosen_id is None:  # nothing was done, so nothing can be learned from what followed
        verdicts = [_Verdict(None, None, True, None, "provisional")] * len(verdicts)
    return View(
        kind=_kind(verdicts),
        closed=all(verdict.final for verdict in verdicts),
        values=[verdict.value for verdict in verdicts],
        times_ms=[verdict.time_ms for verdict in verdicts],
        propensity_valid=valid,
        known_ms=max(held.event_time_ms, valid_known_ms, *(v.known_ms for v in verdicts if v.known_ms is not None)),
    )


def due_times(held: Held, strategy: StrategyLabels) -> Iterable[int]:
    """The ingest times at which silence alone changes what is known of a decision, and the one at which it is forgotten."""
    if not held.view.closed:  # a final answer changes by a record, never by silence
        for label in strategy.labels:
            yield held.event_time_ms + label.wait_ms
            yield held.event_time_ms + label.window_ms
    yield held.event_time_ms + strategy.retention_ms


def _verdict(
    label: LabelSpec, held: Held, near: list[Outcome], accepts: list[Outcome], redispatched_ms: int | None, now_ms: int
) -> _Verdict:
    """One label. Times of several outcomes that say the same: the earliest counts."""
    positive_ms = positive_known_ms = negative_ms = negative_known_ms = closed_ms = closed_known_ms = _NEVER
    for outcome in near:
        answers = outcome.bits >> label.bit & 7
        if not answers or not _speaks_of(label, held, outcome):
            continue
        if answers & Bits.POSITIVE:
            known_ms = _positive_known_ms(label, outcome, accepts)
            if known_ms is not None:
                outcome.matched = True
                positive_ms = min(positive_ms, outcome.event_time_ms)
                positive_known_ms = min(positive_known_ms, known_ms)
        if answers & Bits.NEGATIVE:
            outcome.matched = True
            negative_ms = min(negative_ms, outcome.event_time_ms)
            negative_known_ms = min(negative_known_ms, outcome.ingest_time_ms)
        if answers & Bits.CLOSED:
            outcome.matched = True
            closed_ms = min(closed_ms, outcome.event_time_ms)
            closed_known_ms = min(closed_known_ms, outcome.ingest_time_ms)
    if label.redispatch_is_negative and redispatched_ms is not None:
        negative_ms = min(negative_ms, redispatched_ms)
        negative_known_ms = min(negative_known_ms, redispatched_ms)
    waited_ms, deadline_ms = held.event_time_ms + label.wait_ms, held.event_time_ms + label.window_ms
    if positive_known_ms < _NEVER:
        if positive_known_ms > deadline_ms:
            return _Verdict(1, positive_ms, True, positive_known_ms, "late_positive")
        after_a_no = positive_known_ms > min(waited_ms, negative_known_ms)
        return _Verdict(1, positive_ms, True, positive_known_ms, "corrected" if after_a_no else "positive")
    if negative_known_ms <= deadline_ms:
        return _Verdict(0, negative_ms, True, negative_known_ms, "negative")
    if closed_known_ms <= deadline_ms:
        return _Verdict(None, None, True, closed_known_ms, "provisional")
    if now_ms >= deadline_ms:
        return _Verdict(0, deadline_ms, True, deadline_ms, "negative")
    if now_ms >= waited_ms:
        return _Verdict(0, waited_ms, False, waited_ms, "negative")
    return _OPEN


def _speaks_of(label: LabelSpec, held: Held, outcome: Outcome) -> bool:
    """May this outcome of the order be about this decision? An event of the order alone is not about what came after it."""
    if label.joined_by is not JoinedBy.ORDER and outcome.decision_id is not None:
        return outcome.decision_id == held.decision_id
    return outcome.event_time_ms >= held.event_time_ms


def _positive_known_ms(label: LabelSpec, outcome: Outcome, accepts: list[Outcome]) -> int | None:
    """When a positive outcome was known to be this decision's; None when it is not."""
    if label.joined_by is not JoinedBy.ACCEPTED_OFFER or outcome.decision_id is not None:
        return outcome.ingest_time_ms
    mine = [a.ingest_time_ms for a in accepts if outcome.driver_id is None or outcome.driver_id == a.driver_id]
    return max(outcome.ingest_time_ms, min(mine)) if mine else None


def _redispatched_ms(held: Held, others: Iterable[Held], retention_ms: int) -> int | None:
    """When the same strategy next decided for the order: then nobody had taken this decision."""
    later = [
        other.event_time_ms
        for other in others
        if other.strategy == held.strategy
        and (other.event_time_ms, other.decision_id) > (held.event_time_ms, held.decision_id)
        and other.event_time_ms - held.event_time_ms <= retention_ms
    ]
    return min(later, default=None)


def _propensity_valid(held: Held, near: list[Outcome], accepts: list[Outcome]) -> tuple[bool | None, int]:
    """Do labels and propensities speak of the same candidate? (answer, when it was known).

    The first offer must have gone to the chosen one; and when dispatch offered to several under one decision, nobody else
    may be the one who accepted. None until an offer was seen.
    """
    offers = [o for o in near if o.decision_id == held.decision_id and o.event_type == "offered"]
    for outcome in (*offers, *accepts):
        outcome.matched = True
    if held.assigned:
        return False, held.event_time_ms
    if not offers:
        return None, held.event_time_ms
    first = min(offers, key=lambda o: (o.event_time_ms, o.event_id))
    if first.driver_id != held.chosen_id:
        return False, first.ingest_time_ms
    others_ms = [a.ingest_time_ms for a in accepts if a.driver_id != held.chosen_id]
    return (False, min(others_ms)) if others_ms else (True, first.ingest_time_ms)


def _kind(verdicts: list[_Verdict]) -> SampleKind:
    """The most telling label names the version: late and corrected positives must be weighted by whoever trains."""
    kinds = {verdict.kind for verdict in verdicts if verdict.value == 1}
    for kind in ("late_positive", "corrected", "positive"):
        if kind in kinds:
            return kind
    return "negative" if any(verdict.value == 0 for verdict in verdicts) else "provisional"

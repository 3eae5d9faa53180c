"""Decisions + outcomes -> versions of Samples. No framework: state in, records out, and the clock is moved by hand.

```
decision ──► version 1, at once, with the Decision's bytes          (kind provisional)
outcome  ──► the next version, labels only, if it changes anything  (positive, negative, corrected, late_positive)
time     ──► the next version when a wait or a window has passed in silence (negative)
```

Both sides may come in any order, twice, and late. What a version says is `labels/verdict.py`, a pure function of the
records and the clock, so every interleaving ends in the same Samples. `Joiner` works on the state of one order (what Flink keeps
per key); `SampleJoiner` holds many orders and their timers, for tests, tools and batch runs. `jobs/samples.py` is the wiring.

The clock is ingest time: "every record with an ingest time up to now has most likely arrived". It only ends waits; a
record that arrives behind it is still joined, until the retention has passed and the state is forgotten.

Fates. A decision: malformed (dead letter), duplicate (ledger) or exactly one Sample. A trip event: malformed or a duplicate (both
reported by the feature job, which reads the same topic, and only counted here), no outcome of any label (counted), joined, or
unmatched (ledger): no decision took it within the retention, or its message's key is another order than the event's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Final

import msgspec

from features.records import (
    DECISIONS,
    TRIP_EVENTS,
    DeadLetter,
    Decision,
    LedgerEntry,
    RecordError,
    Sample,
    TripEvent,
    decode,
)
from pipelines.dead_letter import dead_letter, short
from pipelines.decision_check import read_decision
from pipelines.labels.spec import LabelSet
from pipelines.labels.verdict import Held, Outcome, View, due_times, first_view, view_of

# An order has a handful of each; the bounds keep a faulty producer from growing one key without end.
MAX_DECISIONS: Final = 64
MAX_OUTCOMES: Final = 256
# Structural outcomes: they say which decision's driver it was, whatever the labels read.
_ALWAYS_OUTCOMES: Final = frozenset({"offered", "accepted"})

Output = Sample | DeadLetter | LedgerEntry


class OrderState(msgspec.Struct, array_like=True):
    """What is kept of one order: ids, times and labels, no payload. `timer_ms` is the next timer that was asked for."""

    decisions: list[Held] = []
    outcomes: list[Outcome] = []
    timer_ms: int | None = None

    @property
    def empty(self) -> bool:
        return not self.decisions and not self.outcomes


_STATE_DECODER: Final = msgspec.json.Decoder(OrderState)
_STATE_ENCODER: Final = msgspec.json.Encoder()


def encode_state(state: OrderState) -> str:
    return _STATE_ENCODER.encode(state).decode()


def decode_state(raw: str) -> OrderState:
    return _STATE_DECODER.decode(raw)


class Joiner:
    """The joiner of one order at a time. Every method changes `state` and returns what is to be written."""

    def __init__(self, labels: LabelSet) -> None:
        self.labels = labels
        self.counts: Counter[str] = Counter()

    def on_decision(
        self, state: OrderState, raw: bytes, *, partition: int, offset: int, now_ms: int, key: str | None = None
    ) -> list[Output]:
        """A message of `decisions`. With `key` (the message's key) the Decision must be about that order."""
        try:
            decision = self._read(raw, key, state)
        except RecordError as error:
            self.counts["decision_malformed"] += 1
            return [dead_letter(DECISIONS, partition, offset, error, raw)]
        if any(held.decision_id == decision.decision_id for held in state.decisions):
            self.counts["decision_duplicate"] += 1
            return [_duplicate(decision, partition, offset)]
        strategy = self.labels.strategies[decision.strategy]
        held = Held(
            decision_id=decision.decision_id,
            strategy=decision.strategy,
            event_time_ms=decision.event_time_ms,
            chosen_id=None if decision.chosen is None else decision.candidate_ids[decision.chosen],
            assigned=decision.decided_by == "assign",
            version=1,
            view=first_view(len(strategy.labels), decision.event_time_ms, closed=decision.chosen is None),
        )
        self.counts["decision_sampled"] += 1
        state.decisions.append(held)
        first = self._sample(held, decision.order_id, payload=raw)
        return [first, *self._settle(state, decision.order_id, now_ms)]

    def is_outcome(self, event: TripEvent) -> bool:
        """May this event say something of some decision? Others need no state at all."""
        return event.event_type in _ALWAYS_OUTCOMES or self.labels.bits(event) != 0

    def on_event(
        self, state: OrderState, event: TripEvent, *, partition: int, offset: int, now_ms: int, key: str | None = None
    ) -> list[Output]:
        """A well-formed message of `trip_events`. With `key` (the message's key) an outcome must be about that order.

        The key chose the state: under another order's, it would label that order's decisions.
        """
        if not self.is_outcome(event):
            self.counts["event_no_outcome"] += 1
            return []
        if key is not None and key != event.order_id:
            self.counts["event_unmatched"] += 1
            outcome = self._outcome(event, partition, offset)
            return [_unmatched(outcome, event.order_id, f"; the message's key '{short(key)}' is another order")]
        for known in state.outcomes:
            if known.event_id == event.event_id:
                self.counts["event_duplicate"] += 1
                if event.ingest_time_ms >= known.ingest_time_ms:
                    return []
                known.ingest_time_ms = event.ingest_time_ms  # the earlier copy came later: it was known by then
                return self._settle(state, event.order_id, now_ms)
        outcome = self._outcome(event, partition, offset)
        if len(state.outcomes) >= MAX_OUTCOMES:
            self.counts["event_unmatched"] += 1
            return [_unmatched(outcome, event.order_id, f"; the order holds {MAX_OUTCOMES} outcomes already")]
        self.counts["event_outcome"] += 1
        state.outcomes.append(outcome)
        return self._settle(state, event.order_id, now_ms)

    def on_timer(self, state: OrderState, order_id: str, now_ms: int) -> list[Output]:
        """Time has moved to `now_ms`: waits, windows and retentions that ended by then take effect."""
        return self._settle(state, order_id, now_ms)

    def next_due_ms(self, state: OrderState, now_ms: int) -> int | None:
        """The next ingest time at which this order needs `on_timer`; None when the state is empty."""
        due = [
            time_ms
            for held in state.decisions
            for time_ms in due_times(held, self.labels.strategies[held.strategy])
            if time_ms > now_ms
        ]
        due += [self._forget_ms(outcome) for outcome in state.outcomes if self._forget_ms(outcome) > now_ms]
        return min(due, default=None)

    def _outcome(self, event: TripEvent, partition: int, offset: int) -> Outcome:
        return Outcome(
            event_id=event.event_id,
            event_type=event.event_type,
            decision_id=event.decision_id,
            driver_id=event.driver_id,
            event_time_ms=event.event_time_ms,
            ingest_time_ms=event.ingest_time_ms,
            bits=self.labels.bits(event),
            partition=partition,
            offset=offset,
        )

    def _read(self, raw: bytes, key: str | None, state: OrderState) -> Decision:
        decision = read_decision(raw)
        if decision.strategy not in self.labels.strategies:
            known = ", ".join(self.labels.strategies)
            raise RecordError(
                f"no labels are declared for strategy '{decision.strategy}' (declared: {known}): add "
                f"pipelines/labels/{decision.strategy}.yaml and submit the sample job with --labels FOLDER",
                "$.strategy",
            )
        if key is not None and key != decision.order_id:
            raise RecordError(
                f"the message's key '{short(key)}' is another order than '{decision.order_id}'", "$.order_id"
            )
        if len(state.decisions) >= MAX_DECISIONS:
            raise RecordError(f"order '{decision.order_id}' has {MAX_DECISIONS} decisions already", "$.order_id")
        return decision

    def _settle(self, state: OrderState, order_id: str, now_ms: int) -> list[Output]:
        """Emit what changed, then forget what is past its retention."""
        out: list[Output] = []
        for held in state.decisions:
            view = view_of(held, self.labels.strategies[held.strategy], state.outcomes, state.decisions, now_ms)
            if view != held.view:
                held.view = view
                held.version += 1
                out.append(self._sample(held, order_id))
        state.decisions = [
            held
            for held in state.decisions
            if held.event_time_ms + self.labels.strategies[held.strategy].retention_ms > now_ms
        ]
        past = [o for o in state.outcomes if self._forget_ms(o) <= now_ms and not self._needed(o, state)]
        for outcome in past:
            state.outcomes.remove(outcome)
            if not outcome.matched:
                self.counts["event_unmatched"] += 1
                out.append(_unmatched(outcome, order_id))
        return out

    def _needed(self, outcome: Outcome, state: OrderState) -> bool:
        """A decision that is still held must find its outcomes again, or its labels would be taken back.

        An unmatched one is kept too: the offer that makes it this decision's may still come.
        """
        return any(
            abs(outcome.ingest_time_ms - held.event_time_ms) <= self.labels.strategies[held.strategy].retention_ms
            for held in state.decisions
        )

    def _forget_ms(self, outcome: Outcome) -> int:
        return outcome.ingest_time_ms + self.labels.max_retention_ms

    def _sample(self, held: Held, order_id: str, payload: bytes | None = None) -> Sample:
        names = [label.name for label in self.labels.strategies[held.strategy].labels]
        view: View = held.view
        self.counts[f"sample_{view.kind}"] += 1
        return Sample(
            sample_id=held.decision_id,
            version=held.version,
            kind=view.kind,
            closed=view.closed,
            order_id=order_id,
            strategy=held.strategy,
            event_time_ms=held.event_time_ms,
            ingest_time_ms=view.known_ms,
            labels=dict(zip(names, view.values, strict=True)),
            label_times_ms=dict(zip(names, view.times_ms, strict=True)),
            propensity_valid=view.propensity_valid,
            decision=msgspec.UNSET if payload is None else msgspec.Raw(payload),
        )


class SampleJoiner:
    """Many orders, and a clock that is moved by hand."""

    def __init__(self, labels: LabelSet) -> None:
        self.joiner = Joiner(labels)
        self.now_ms = -(1 << 62)
        self.orders: dict[str, OrderState] = {}
        self._timers: list[tuple[int, str]] = []

    @property
    def counts(self) -> Counter[str]:
        return self.joiner.counts

    def add_decision(self, raw: bytes, *, partition: int = 0, offset: int = 0, key: str) -> list[Output]:
        """A message of `decisions`; its key is its order's id."""
        state = self.orders.setdefault(key, OrderState())
        out = self.joiner.on_decision(state, raw, partition=partition, offset=offset, now_ms=self.now_ms, key=key)
        self._schedule(key, state)
        return out

    def add_event(self, raw: bytes, *, partition: int = 0, offset: int = 0, key: str | None = None) -> list[Output]:
        """A message of `trip_events`, its key its order's id (None: taken as such). A malformed one is counted only."""
        try:
            event = decode(raw, TripEvent)
        except RecordError:
            self.counts["event_malformed"] += 1
            return []
        key = event.order_id if key is None else key
        state = self.orders.setdefault(key, OrderState())
        out = self.joiner.on_event(state, event, partition=partition, offset=offset, now_ms=self.now_ms, key=key)
        self._schedule(key, state)
        return out

    def advance(self, now_ms: int) -> list[Output]:
        """Move the clock to `now_ms` (never back) and let everything happen that is due by then, in order of time."""
        out: list[Output] = []
        while self._timers and self._timers[0][0] <= now_ms:
            due_ms, order_id = heapq.heappop(self._timers)
            self.now_ms = max(self.now_ms, due_ms)
            state = self.orders.get(order_id)
            if state is not None and state.timer_ms == due_ms:
                state.timer_ms = None
                out += self.joiner.on_timer(state, order_id, self.now_ms)
                self._schedule(order_id, state)
        self.now_ms = max(self.now_ms, now_ms)
        return out

    def save(self) -> bytes:
        """Everything that a restart needs."""
        return msgspec.msgpack.encode((self.now_ms, {key: encode_state(state) for key, state in self.orders.items()}))

    @classmethod
    def restore(cls, labels: LabelSet, raw: bytes) -> SampleJoiner:
        joiner = cls(labels)
        joiner.now_ms, orders = msgspec.msgpack.decode(raw, type=tuple[int, dict[str, str]])
        joiner.orders = {key: decode_state(state) for key, state in orders.items()}
        joiner._timers = [(s.timer_ms, key) for key, s in joiner.orders.items() if s.timer_ms is not None]
        heapq.heapify(joiner._timers)
        return joiner

    def _schedule(self, order_id: str, state: OrderState) -> None:
        if state.empty:
            self.orders.pop(order_id, None)
            return
        due_ms = self.joiner.next_due_ms(state, self.now_ms)
        if due_ms is not None and due_ms != state.timer_ms:
            state.timer_ms = due_ms
            heapq.heappush(self._timers, (due_ms, order_id))


def _duplicate(decision: Decision, partition: int, offset: int) -> LedgerEntry:
    return LedgerEntry(
        topic=DECISIONS,
        partition=partition,
        offset=offset,
        reason="duplicate",
        key=decision.order_id,
        event_id=decision.decision_id,
        lateness_ms=0,
        effect=f"none: the first copy of {decision.decision_id} made the sample",
    )


def _unmatched(outcome: Outcome, order_id: str, why: str = "") -> LedgerEntry:
    of = outcome.decision_id or "a decision of the order"
    return LedgerEntry(
        topic=TRIP_EVENTS,
        partition=outcome.partition,
        offset=outcome.offset,
        reason="unmatched",
        key=order_id,
        event_id=outcome.event_id,
        lateness_ms=outcome.ingest_time_ms - outcome.event_time_ms,
        effect=f"`{outcome.event_type}` would label {of}{why}",
    )

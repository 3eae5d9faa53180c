"""Labels as compiled: which outcome says yes or no to a decision, and until when. Read `loader.py` for the YAML, `joiner.py` for the use.

A condition reads the fields of one TripEvent, so it can be evaluated before the decision is known; the joiner keeps only its
three answers a label (`Bits`), never the event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgspec

from features.records import TripEvent

# An answer that depends on a number could have any number of inputs; the cache starts over past this many.
MAX_CACHED_ANSWERS: Final = 4096


class JoinedBy(Enum):
    """How an outcome finds the decision that it labels."""

    DECISION = (
        "decision"  # events that name the decision; events of the order alone speak of every decision made before them
    )
    ACCEPTED_OFFER = (
        "accepted_offer"  # the same, but a positive of the order alone needs this decision's accepted driver
    )
    ORDER = "order"  # every event of the order that is not older than the decision


class Condition:
    """One boolean expression over the fields of a TripEvent. Null (unknown) counts as no."""

    def __init__(self, text: str, names: frozenset[str], evaluate: Callable[[Mapping[str, Any]], Any]) -> None:
        self.text = text
        self._names = tuple(sorted(names))
        self._evaluate = evaluate
        self._answers: dict[tuple[Any, ...], bool] = {}  # most conditions read event_type alone: nine answers in all

    def holds(self, event: TripEvent) -> bool:
        inputs = tuple([getattr(event, name) for name in self._names])
        answer = self._answers.get(inputs)
        if answer is None:
            if len(self._answers) >= MAX_CACHED_ANSWERS:
                self._answers.clear()
            answer = self._evaluate(dict(zip(self._names, inputs, strict=True))) is True
            self._answers[inputs] = answer
        return answer


@dataclass(frozen=True, kw_only=True)
class LabelSpec:
    """One label of one strategy."""

    name: str
    joined_by: JoinedBy
    positive_when: Condition
    negative_when: Condition | None
    closed_when: Condition | None  # ends the wait without an answer: the label stays null
    redispatch_is_negative: bool  # a later decision of the same strategy for the order counts as a no
    wait_ms: (
        int  # silence for so long is a no that may still be corrected; = window_ms: none before the window has passed
    )
    window_ms: int  # silence for so long is a final no
    bit: int  # this label's place in Bits: 3 * its rank among all labels of all strategies


@dataclass(frozen=True, kw_only=True)
class StrategyLabels:
    """The labels of one strategy, in the order of its file."""

    strategy: str
    retention_ms: int
    labels: tuple[LabelSpec, ...]


class Bits:
    """An outcome's answers to every label of every strategy, as one int: per label positive, negative, closed."""

    POSITIVE: Final = 1
    NEGATIVE: Final = 2
    CLOSED: Final = 4


class LabelSet:
    """The labels of all strategies. `fingerprint` changes when the meaning of kept state would; `fingerprints` are each one's."""

    def __init__(self, strategies: tuple[StrategyLabels, ...]) -> None:
        self.strategies: dict[str, StrategyLabels] = {s.strategy: s for s in strategies}
        self.max_retention_ms = max((s.retention_ms for s in strategies), default=0)
        self.fingerprint = _fingerprint(strategies)
        self.fingerprints = {s.strategy: _fingerprint((s,)) for s in strategies}

    def bits(self, event: TripEvent) -> int:
        """What this event says, whichever decision it turns out to belong to. 0: it is nobody's outcome."""
        bits = 0
        for strategy in self.strategies.values():
            for label in strategy.labels:
                if label.positive_when.holds(event):
                    bits |= Bits.POSITIVE << label.bit
                if label.negative_when is not None and label.negative_when.holds(event):
                    bits |= Bits.NEGATIVE << label.bit
                if label.closed_when is not None and label.closed_when.holds(event):
                    bits |= Bits.CLOSED << label.bit
        return bits


def _fingerprint(strategies: tuple[StrategyLabels, ...]) -> str:
    described = [
        [s.strategy, s.retention_ms, [[_plain(value) for value in vars(label).values()] for label in s.labels]]
        for s in strategies
    ]
    return hashlib.sha256(msgspec.json.encode(described)).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, Condition):
        return value.text
    return value.value if isinstance(value, JoinedBy) else value

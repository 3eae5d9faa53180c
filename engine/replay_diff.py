"""What a changed strategy does to logged Decisions: first choices that are others now, by change, by zone, by hour.

The first choice is the best-ranked candidate, before any draw. What the draw would do is said apart, in chances: the share of chosen
mass that moves in a decision is half the sum of |chance now - chance then| over its candidates, the least share of draws
that must come out otherwise, whatever is drawn. It is what the strategies say, and not what drivers or riders would then do.
Legend: D decisions, R candidates of all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from engine.replay_block import NO_ROW, Block
from engine.replay_changes import Element, changed_elements, hybrid
from engine.replay_fit import fit
from engine.replay_rank import rank_rows
from engine.replay_run import Replayed, decision_again, replay_block
from engine.rules import ColumnRules
from engine.strategy import CompiledStrategy
from features.records import Decision

SEVERAL: Final = "several"
OTHER: Final = "something else"  # all changes taken back do not bring the old choice back: our mistake
NO_FILE: Final = "not attributed: no file of that version"
HOUR_MS: Final = 3_600_000
TELLING: Final = 20
_KEPT_PER_CAUSE: Final = 40


@dataclass(kw_only=True)
class Group:
    """Decisions, and how many of them have another first choice."""

    decisions: int = 0
    changed: int = 0


@dataclass(kw_only=True)
class RuleDiff:
    """One rule over all candidates. `fired_then` and `fired_now` count candidates; `newly_dropped` were kept then and are dropped by it
    now, `newly_kept` were dropped by it then and are kept now. `there_then`: a version of the log that is at hand has the rule,
    without which its bits cannot be read; `there_now`: the strategy that is replayed has it."""

    fired_then: int = 0
    fired_now: int = 0
    newly_dropped: int = 0
    newly_kept: int = 0
    there_then: bool = False
    there_now: bool = False


@dataclass(frozen=True, kw_only=True)
class Telling:
    """A decision whose first choice changes, for a person to look at. `moved` is the chosen mass that moves."""

    decision: Decision  # as it was logged
    again: Decision  # as it is now, without outputs
    cause: str
    details: tuple[str, ...]
    moved: float
    then: str | None
    now: str | None


class Histogram:
    """Counts of score shifts. The edges are laid by the first values that are not zero; what is beyond them is counted apart."""

    BINS: Final = 60

    def __init__(self) -> None:
        self.edges: np.ndarray | None = None
        self.counts = np.zeros(self.BINS, dtype=np.int64)
        self.below = self.above = self.zero = self.count = 0
        self.total = 0.0

    def add(self, shift_N: np.ndarray) -> None:
        shift_N = shift_N[np.isfinite(shift_N)]
        self.count += len(shift_N)
        self.total += float(shift_N.sum())
        moved_N = shift_N[shift_N != 0.0]
        self.zero += len(shift_N) - len(moved_N)
        if not len(moved_N):
            return
        if self.edges is None:
            low, high = np.quantile(moved_N, [0.005, 0.995])
            reach = max(high - low, abs(high), abs(low), 1e-9) * 0.25
            self.edges = np.linspace(min(low - reach, 0.0), max(high + reach, 0.0), self.BINS + 1)
        self.counts += np.histogram(moved_N, self.edges)[0]
        self.below += int((moved_N < self.edges[0]).sum())
        self.above += int((moved_N > self.edges[-1]).sum())


class Diff:
    """Counts over all blocks that another version decided."""

    def __init__(self, compiled: CompiledStrategy, before: Mapping[str, CompiledStrategy], by: Sequence[str]) -> None:
        self.compiled, self.before, self.by = compiled, before, tuple(by)
        self.decisions = self.candidates = 0
        self.first_changed = self.chosen_changed = 0
        self.newly_dropped = self.newly_kept = 0
        self.moved = self.moved_squares = 0.0
        self.causes: Counter[str] = Counter()
        self.combinations: Counter[tuple[str, ...]] = Counter()
        self.groups: dict[str, dict[Any, Group]] = {name: defaultdict(Group) for name in self.by}
        self.hours: dict[int, Group] = defaultdict(Group)
        self.rules: dict[str, RuleDiff] = {rule.id: RuleDiff(there_now=True) for rule in compiled.strategy.rules}
        self.shift = Histogram()
        self.elements: dict[str, list[Element]] = {
            key: changed_elements(old, compiled) for key, old in before.items() if key != compiled.strategy.hash
        }
        self._kept: dict[str, list[Telling]] = defaultdict(list)
        self._hybrids: dict[tuple[str, frozenset[Element]], CompiledStrategy | None] = {}

    @property
    def changed_share(self) -> float:
        return self.first_changed / self.decisions if self.decisions else 0.0

    @property
    def telling(self) -> list[Telling]:
        """The decisions that show most: of every cause in turn, the one that moves the most chosen mass."""
        queues = [
            sorted(found, key=lambda one: (-one.moved, one.decision.decision_id)) for found in self._kept.values()
        ]
        out: list[Telling] = []
        while any(queues) and len(out) < TELLING:
            out += [queue.pop(0) for queue in queues if queue]
        return out[:TELLING]

    def add(self, block: Block, replayed: Replayed, usable_D: np.ndarray) -> None:
        """`usable_D` (D,): the decisions of which the replay can say something."""
        old = self.before.get(block.hash)
        ties = (old or self.compiled).strategy.rank.ties
        then = rank_rows(block, ties if ties in block.candidates else "", block.survives_R, block.score_R)
        then_D, now_D = then.first_D(), replayed.ranked.first_D()
        changed_D = (then_D != now_D) & usable_D
        moved_D = 0.5 * np.bincount(
            block.decision_of_R, np.abs(replayed.propensity_R - block.propensity_R), minlength=block.num_decisions
        )
        self.decisions += int(usable_D.sum())
        self.candidates += int(usable_D[block.decision_of_R].sum())
        self.first_changed += int(changed_D.sum())
        self.chosen_changed += int(((block.chosen_D != replayed.chosen_D) & usable_D).sum())
        self.moved += float(moved_D[usable_D].sum())
        self.moved_squares += float((moved_D[usable_D] ** 2).sum())
        self._add_groups(block, usable_D, changed_D)
        self._add_rules(block, replayed, usable_D, old)
        if changed_D.any():
            for at, labels in self._causes(block, old, then_D, changed_D).items():
                cause = labels[0] if len(labels) == 1 else SEVERAL
                self.causes[cause] += 1
                if cause == SEVERAL:
                    self.combinations[labels] += 1
                if self._keep(cause, float(moved_D[at])):
                    telling = Telling(
                        decision=block.decision(at),
                        again=decision_again(self.compiled, block, replayed, at),
                        cause=cause,
                        details=labels,
                        moved=float(moved_D[at]),
                        then=_candidate(block, int(then_D[at])),
                        now=_candidate(block, int(now_D[at])),
                    )
                    self._kept[cause].append(telling)

    def _add_groups(self, block: Block, usable_D: np.ndarray, changed_D: np.ndarray) -> None:
        for name, groups in self.groups.items():
            _count(groups, values_by(block, name), usable_D, changed_D)
        hours_D = block.as_of_ms_D // HOUR_MS * HOUR_MS
        _count(self.hours, hours_D.tolist(), usable_D, changed_D)

    def _add_rules(self, block: Block, replayed: Replayed, usable_D: np.ndarray, old: CompiledStrategy | None) -> None:
        usable_R = usable_D[block.decision_of_R]
        survived_R, survives_R = block.survives_R, replayed.survives_R
        dropped_R = usable_R & survived_R & ~survives_R
        kept_R = usable_R & ~survived_R & survives_R
        self.newly_dropped += int(dropped_R.sum())
        self.newly_kept += int(kept_R.sum())
        for text, count in zip(*np.unique(replayed.reason_R[dropped_R], return_counts=True), strict=True):
            self._rule(str(replayed.reasons.texts[text])).newly_dropped += int(count)
        for place, count in zip(*np.unique(block.reason_R[kept_R], return_counts=True), strict=True):
            self._rule(block.reasons[int(place)]).newly_kept += int(count)
        for bit, rule in enumerate(self.compiled.strategy.rules):
            self._rule(rule.id).fired_now += int((replayed.fired_R[usable_R] >> bit & 1).sum())
        for bit, written in enumerate(old.strategy.rules if old is not None else ()):
            counted = self._rule(written.id)
            counted.there_then = True
            counted.fired_then += int((block.fired_R[usable_R] >> bit & 1).sum())
        both_R = usable_R & survived_R & survives_R
        with np.errstate(over="ignore"):  # of scores at the edge of a double
            self.shift.add(replayed.after.score_K[both_R] - block.score_R[both_R])

    def _rule(self, reason: str) -> RuleDiff:
        return self.rules.setdefault(reason.removeprefix("unknown:"), RuleDiff())

    def _causes(
        self, block: Block, old: CompiledStrategy | None, then_D: np.ndarray, changed_D: np.ndarray
    ) -> dict[int, tuple[str, ...]]:
        """The labels of the changes of which each, taken back alone, brings the old first choice back.

        (OTHER,) where not even all of them do; empty where only several together do.
        """
        places = np.flatnonzero(changed_D).tolist()
        if old is None:
            return dict.fromkeys(places, (NO_FILE,))
        elements = self.elements[block.hash]
        found: dict[int, list[str]] = {at: [] for at in places}
        for element in elements:
            restored_D = self._restored(block, old, frozenset([element]), then_D)
            for at in places:
                if restored_D[at]:
                    found[at].append(element.label)
        if any(not labels for labels in found.values()):
            restored_D = self._restored(block, old, frozenset(elements), then_D)
            for at, labels in found.items():
                if not labels and not restored_D[at]:
                    labels.append(OTHER)
        return {at: tuple(labels) for at, labels in found.items()}

    def _restored(
        self, block: Block, old: CompiledStrategy, reverted: frozenset[Element], then_D: np.ndarray
    ) -> np.ndarray:
        """Where the old first choice is back with these changes taken back. Shapes: returns (D,) bool."""
        key = (block.hash, reverted)
        if key not in self._hybrids:
            self._hybrids[key] = hybrid(old, self.compiled, reverted)
        made = self._hybrids[key]
        nowhere = np.zeros(block.num_decisions, dtype=np.bool_)
        if made is None:
            return nowhere
        fitted = fit(made, block, old.strategy)
        if fitted.blocked:
            return nowhere
        replayed = replay_block(made, ColumnRules(made), fitted)
        return (replayed.ranked.first_D() == then_D) & ~replayed.unresolved_D

    def _keep(self, cause: str, moved: float) -> bool:
        """Whether a decision that moves that much is among those that a person should see."""
        kept = self._kept[cause]
        if len(kept) >= 2 * _KEPT_PER_CAUSE:
            kept.sort(key=lambda one: (-one.moved, one.decision.decision_id))
            del kept[_KEPT_PER_CAUSE:]
        return len(kept) < _KEPT_PER_CAUSE or moved > kept[_KEPT_PER_CAUSE - 1].moved


def values_by(block: Block, name: str) -> list[Any]:
    """The value of a request field, or of the envelope, for each decision; None where the log has no such field."""
    envelope = {"city": block.cities, "product": block.products, "order_id": block.order_ids}
    if name in envelope:
        return list(envelope[name])
    if name in block.request:
        return block.request[name].tolist()
    return [None] * block.num_decisions


def hour_text(hour_ms: int) -> str:
    return datetime.fromtimestamp(hour_ms / 1000, UTC).strftime("%Y-%m-%d %H:00")


def _count(groups: dict[Any, Group], values: Sequence[Any], usable_D: np.ndarray, changed_D: np.ndarray) -> None:
    for value, usable, changed in zip(values, usable_D.tolist(), changed_D.tolist(), strict=True):
        if usable:
            group = groups[str(value) if isinstance(value, list) else value]
            group.decisions += 1
            group.changed += changed


def _candidate(block: Block, row: int) -> str | None:
    return None if row == NO_ROW else str(block.candidate_ids[row])

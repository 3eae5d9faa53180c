"""What logged traffic reaches of a strategy: rules that never fire, thresholds that no value comes near.

`count_traffic` takes any Decisions: rules from the fired and unknown bits that every Decision carries, thresholds from the
recorded values, as columns. Beside the coverage of the tests (`engine/coverage.py`) it says what fires though no test has it,
and what is tested though it never happens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.decide import UNKNOWN
from engine.flip_search import NUMERIC, comparisons
from engine.redecide import rows_of
from engine.row import part_of
from engine.strategy import CompiledLet, CompiledStrategy
from features.expr import Program, evaluate
from features.records import Decision

CHUNK: Final = 256  # decisions that are looked at as one batch
NEAR: Final = 0.05  # of the spread of the values seen: a gap above this on one side only is "nothing comes near"


@dataclass(kw_only=True)
class RuleTraffic:
    """Candidates that came to a rule, that it fired for, that it was unknown for; decisions in which it was switched off."""

    rule: str
    reached: int = 0
    fired: int = 0
    unknown: int = 0
    killed: int = 0


@dataclass(kw_only=True)
class Threshold:
    """A comparison of numbers, `left` against `right` as written. `gap` is left - right: how far below zero, how far above.

    `count` values were compared; `share_above` of them had left > right. Nothing comes near when all stand on one side and
    the nearest is further away than `NEAR` of the spread of all.
    """

    owner: str
    text: str
    line: int
    count: int = 0
    above: int = 0
    lowest: float = np.inf
    highest: float = -np.inf

    def add(self, gaps_N: np.ndarray) -> None:
        gaps_N = gaps_N[np.isfinite(gaps_N)]
        if len(gaps_N):
            self.count += len(gaps_N)
            self.above += int((gaps_N > 0).sum())
            self.lowest = min(self.lowest, float(gaps_N.min()))
            self.highest = max(self.highest, float(gaps_N.max()))

    @property
    def nearest(self) -> float:
        """How far the nearest value stood from the threshold; 0 where values stood on both sides."""
        if self.count and self.lowest > 0:
            return self.lowest
        return -self.highest if self.count and self.highest < 0 else 0.0

    @property
    def is_far(self) -> bool:
        return bool(self.count) and self.nearest > NEAR * max(self.highest - self.lowest, 0.0) and self.nearest > 0


@dataclass(frozen=True, kw_only=True)
class _Gap:
    threshold: Threshold
    left: Program
    right: Program


class Traffic:
    """What was seen of one version of a strategy. Decisions of others are counted in `others` and not looked at."""

    def __init__(self, compiled: CompiledStrategy) -> None:
        self.compiled = compiled
        self.decisions = self.candidates = self.others = 0
        self.rules = {rule.id: RuleTraffic(rule=rule.id) for rule in compiled.strategy.rules}
        self._gaps = list(_gaps(compiled))

    @property
    def thresholds(self) -> list[Threshold]:
        return [gap.threshold for gap in self._gaps]

    def add(self, decisions: Sequence[Decision]) -> None:
        """Count Decisions, as the rows of one batch."""
        mine = [one for one in decisions if one.strategy_hash == self.compiled.strategy.hash]
        self.others += len(decisions) - len(mine)
        self.decisions += len(mine)
        self.candidates += sum(len(one.candidate_ids) for one in mine)
        mine = [one for one in mine if one.candidate_ids]
        if not mine:
            return
        for decision in mine:
            self._count_rules(decision)
        columns = rows_of(self.compiled, mine).columns
        for step in (*self.compiled.steps_before, *self.compiled.steps_after):
            if isinstance(step, CompiledLet):
                columns[step.name] = evaluate(step.program, columns)
            else:
                columns.update(step.lookup(columns))
        for gap in self._gaps:
            left, right = evaluate(gap.left, columns), evaluate(gap.right, columns)
            known = left.valid & right.valid
            gap.threshold.add((left.values.astype(np.float64) - right.values.astype(np.float64))[known])

    def _count_rules(self, decision: Decision) -> None:
        """A drop rule is reached by what no earlier one dropped, another rule by what no rule had dropped before it."""
        order = [*self.compiled.drops, *self.compiled.adjusts]
        place = {rule.id: at for at, rule in enumerate(order)}
        last = len(order)
        dropped_at = np.array([place.get((reason or "").removeprefix(UNKNOWN), last) for reason in decision.reasons])
        fired, unknown = np.array(decision.fired, dtype=np.int64), np.array(decision.unknown, dtype=np.int64)
        for at, rule in enumerate(order):
            seen = self.rules[rule.id]
            if rule.id in decision.killed:
                seen.killed += 1
                continue
            seen.reached += int((dropped_at >= at).sum())
            seen.fired += int((fired >> rule.bit & 1).sum())
            seen.unknown += int((unknown >> rule.bit & 1).sum())

    def findings(self, tested: Iterable[str] | None = None) -> list[str]:
        """What a reader should look at, one sentence each. `tested` are rules that fire in tests, None for not known."""
        known = None if tested is None else frozenset(tested)
        out: list[str] = []
        for rule in self.rules.values():
            if not rule.fired:
                where = "" if known is None else ", though its tests do" if rule.rule in known else ", in tests neither"
                came = (
                    f"of {rule.reached} candidates that came to it" if rule.reached else "and no candidate came to it"
                )
                out.append(f"rule {rule.rule} never fires {came}{where}")
            elif known is not None and rule.rule not in known:
                out.append(f"rule {rule.rule} fires ({rule.fired} of {rule.reached}) and no test has it fire")
            if rule.unknown:
                out.append(f"rule {rule.rule} could not be told for {rule.unknown} of {rule.reached} candidates")
        for threshold in self.thresholds:
            if threshold.is_far:
                side = "above" if threshold.lowest > 0 else "below"
                out.append(
                    f"{threshold.owner}: no value comes near '{threshold.text}': all {threshold.count} are {side}, "
                    f"the nearest by {threshold.nearest:.6g}"
                )
        return out


def count_traffic(compiled: CompiledStrategy, decisions: Iterable[Decision]) -> Traffic:
    """The traffic of a strategy among decisions of any strategy."""
    traffic = Traffic(compiled)
    mine = (decision for decision in decisions if decision.strategy == compiled.name)
    while chunk := list(itertools.islice(mine, CHUNK)):
        traffic.add(chunk)
    return traffic


def _gaps(compiled: CompiledStrategy) -> Iterable[_Gap]:
    """The comparisons of two numbers in everything that decides."""
    owners: list[tuple[str, Program]] = []
    for rule in (*compiled.drops, *compiled.adjusts):
        programs = (rule.condition, rule.set, rule.add, rule.multiply)
        owners += [(f"rule {rule.id}", program) for program in programs if program is not None]
    steps = (*compiled.steps_before, *compiled.steps_after)
    owners += [(f"let {step.name}", step.program) for step in steps if isinstance(step, CompiledLet)]
    owners.append(("score", compiled.score))
    for owner, whole in owners:
        for program, step in comparisons([whole]):
            if len(step.args) == 2 and all(side.type.kind in NUMERIC for side in step.args):
                line, _ = program.source.place(step.start)
                text = " ".join(program.source.text[step.start : step.end].split())
                left, right = (part_of(program, side) for side in step.args)
                yield _Gap(threshold=Threshold(owner=owner, text=text, line=line), left=left, right=right)

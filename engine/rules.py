"""The rules of a strategy over all candidates: what has to run, whatever runs it.

`decide` calls a `RuleRunner`: first `before`, what needs no model; then, with the models' answers among the columns, `after`.
Two forms, one meaning: `ColumnRules` here goes through NumPy and serves a strategy from its first request on; the fused
loop of `engine/fused.py` takes over once it has agreed with it. `tests/engine/naive_decide.py` defines both.

A candidate that is dropped, by a rule that holds or by a `fail_row` rule that cannot tell, is not looked at by later
rules: they neither fire nor are unknown for it.
Legend: K candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from engine.strategy import CompiledLet, CompiledRule, CompiledStrategy
from engine.table import CompiledTable
from features.expr import Column
from features.expr.array_plan import ArrayPlan, widened
from features.expr.array_steps import Masks

KEPT = -1  # of `Before.dropped_by_K` and `After.failed_by_K`: no rule did


@dataclass(slots=True, eq=False)  # not frozen, which costs half a microsecond
class Before:
    """After the drop rules. Shapes: all (K,).

    `dropped_by_K` int16: the bit of the rule that dropped the candidate, KEPT for a survivor. `fired_K`, `unknown_K` int64:
    a bit per rule. A candidate that a `fail_row` rule dropped has the rule's bit in `unknown_K` and not in `fired_K`.
    """

    alive_K: np.ndarray
    dropped_by_K: np.ndarray
    fired_K: np.ndarray
    unknown_K: np.ndarray


@dataclass(slots=True, eq=False)
class After:
    """After score and adjustments. Shapes: all (K,); rows that were dropped before mean nothing.

    `known_K`: the score is a finite number and no `fail_row` rule failed; `failed_by_K` int16: the bit of the rule that did.
    `fired_K`, `unknown_K`: the bits of this part only. `outputs` by name.
    """

    score_K: np.ndarray
    known_K: np.ndarray
    failed_by_K: np.ndarray
    fired_K: np.ndarray
    unknown_K: np.ndarray
    outputs: Mapping[str, Column]


class RuleRunner(Protocol):
    """`columns` are by name, length K or 1 (what the whole request shares). `killed` has the bit of every rule that is
    switched off: it neither fires nor is unknown."""

    def before(self, columns: dict[str, Column], num_candidates: int, killed: int) -> Before:
        """Adds to `columns` what models or `after` will read: the lets and tables of `compiled.read_after`."""
        ...

    def after(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        """`columns` has the models' answers by now, length K; what it says of a dropped row means nothing."""
        ...


class ColumnRules:
    """Every rule for all candidates at once, by NumPy. Serves as soon as a strategy is compiled.

    All expressions of a half are one list of array steps (`features/expr/array_plan.py`), what they share computed once; then
    the bits of all rules are made together. `engine/program_rules.py` is the same, rule by rule.
    """

    def __init__(self, compiled: CompiledStrategy) -> None:
        self.compiled = compiled

    def prepare(self) -> ColumnRules:
        """Lay the steps out now, some milliseconds, instead of at the first request."""
        _ = self._drops, self._scores
        return self

    @cached_property
    def _drops(self) -> _Drops:
        return _Drops(self.compiled)

    @cached_property
    def _scores(self) -> _Scores:
        return _Scores(self.compiled)

    def before(self, columns: dict[str, Column], num_candidates: int, killed: int) -> Before:
        with np.errstate(all="ignore"):
            return self._drops.run(columns, num_candidates, killed)

    def after(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        """An amount that is null where its rule fired is an adjustment that is not made: the rule is unknown there."""
        with np.errstate(all="ignore"):  # an overflow is a score that is not finite, which `known_K` says in the end
            return self._scores.run(columns, alive_K, killed)


class _Marks:
    """Where rules hold and are unknown, of one call. Shapes: holds_RK, unsure_RK (R, K) bool, R rules in file order.

    A rule is a bit of a double, which has room for `loader.MAX_RULES`: all bits of a candidate are one product of matrices.
    """

    __slots__ = ("holds_RK", "num_rows", "rules", "unsure_RK")

    def __init__(self, rules: _Rules, num_rows: int) -> None:
        self.rules, self.num_rows = rules, num_rows
        self.holds_RK = np.empty((len(rules.rules), num_rows), np.bool_)
        self.unsure_RK: np.ndarray | None = None  # until a rule is unknown somewhere

    def condition(self, at: int, values: np.ndarray, masks: Masks) -> None:
        if masks is None:
            self.holds_RK[at] = values
            return
        np.logical_and(values, masks[0], out=self.holds_RK[at])
        self.unsure(at, ~masks[0])
        if self.rules.rules[at].on_unknown == "fire":
            self.holds_RK[at] |= ~masks[0]

    def unsure(self, at: int, rows_K: np.ndarray) -> None:
        if self.unsure_RK is None:
            self.unsure_RK = np.zeros_like(self.holds_RK)
        self.unsure_RK[at] |= rows_K

    def kill(self, at: int) -> None:
        self.holds_RK[at] = False

    def stops(self, *, drops: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rule that each candidate ends at, and the bits of the rules that looked at it.

        drops: a rule that holds ends it, too. Shapes: returns by (K,) int16, KEPT where none did, fired (K,) int64,
        unknown (K,) int64.
        """
        fired_K = (self.rules.weights_R @ self.holds_RK).astype(np.int64)
        if self.unsure_RK is None:
            if not drops:
                return np.full(self.num_rows, KEPT, np.int16), fired_K, np.zeros(self.num_rows, np.int64)
            unknown_K, ends_K = np.zeros(self.num_rows, np.int64), fired_K
        else:
            unknown_K = (self.rules.weights_R @ self.unsure_RK).astype(np.int64)
            ends_K = unknown_K & self.rules.fail_bits
            ends_K = ends_K | fired_K if drops else ends_K
        first_K = ends_K & -ends_K
        by_K = (np.frexp(first_K.astype(np.float64))[1] - 1).astype(np.int16)  # of 0 the exponent is 0: KEPT
        if drops and self.unsure_RK is None:
            return by_K, first_K, unknown_K
        looked_K = first_K | (first_K - 1)
        return by_K, fired_K & looked_K, unknown_K & looked_K


class _Rules:
    """The conditions of some rules: their slots in a plan, their bits."""

    def __init__(self, plan: ArrayPlan, rules: Sequence[CompiledRule]) -> None:
        self.rules = rules
        self.slots = [plan.add(rule.condition) for rule in rules]
        self.weights_R = np.array([float(1 << rule.bit) for rule in rules])
        self.fail_bits = sum(1 << rule.bit for rule in rules if rule.on_unknown == "fail_row")
        self.all_bits = sum(1 << rule.bit for rule in rules)

    def marks(self, V: list[Any], M: list[Any], num_rows: int, killed: int) -> _Marks:
        marks = _Marks(self, num_rows)
        live = not killed & self.all_bits
        for at, slot in enumerate(self.slots):
            if live or not killed >> self.rules[at].bit & 1:
                marks.condition(at, V[slot], M[slot])
            else:
                marks.kill(at)
        return marks


class _Drops:
    """What comes before the models."""

    def __init__(self, compiled: CompiledStrategy) -> None:
        self.plan = ArrayPlan()
        _compute(self.plan, compiled.steps_before)
        self.rules = _Rules(self.plan, compiled.drops)

    def run(self, columns: dict[str, Column], num_rows: int, killed: int) -> Before:
        V, M = self.plan.run(columns)
        by_K, fired_K, unknown_K = self.rules.marks(V, M, num_rows, killed).stops(drops=True)
        return Before(alive_K=by_K == KEPT, dropped_by_K=by_K, fired_K=fired_K, unknown_K=unknown_K)


class _Scores:
    """What comes after them. Rules that add or multiply by a constant, most of them, share one choice of amounts: where such a rule does
    not hold, it adds -0.0 or multiplies by 1.0, which changes no score, not even the sign of a zero."""

    def __init__(self, compiled: CompiledStrategy) -> None:
        self.plan = plan = ArrayPlan()
        _compute(plan, compiled.steps_after)
        self.score = plan.add(compiled.score)
        self.rules = _Rules(plan, compiled.adjusts)
        self.amounts = [_amounts(plan, rule) for rule in compiled.adjusts]
        self.outputs = [(named.name, plan.add(named.program)) for named in compiled.outputs]
        self.ops: list[Any] = []
        constants, neutral = [], []
        for amounts in self.amounts:
            op, slot = amounts[0]
            constant = plan.constant(slot) if len(amounts) == 1 and op is not None else None
            self.ops.append(None if constant is None else op)
            constants.append(0.0 if constant is None else float(constant))
            neutral.append(1.0 if op is np.multiply else -0.0)
        self.constants_R1, self.neutral_R1 = (np.array(part).reshape(-1, 1) for part in (constants, neutral))

    def run(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        num_rows = len(alive_K)
        V, M = self.plan.run(columns)
        base = widened(V[self.score], M[self.score], num_rows)
        score_K, known_K = base.values.astype(np.float64), base.valid
        marks = self.rules.marks(V, M, num_rows, killed)
        steps_RK = np.where(marks.holds_RK, self.constants_R1, self.neutral_R1)
        for at, (op, step_K) in enumerate(zip(self.ops, steps_RK, strict=True)):
            if op is not None:
                op(score_K, step_K, score_K)
            elif not killed >> self.rules.rules[at].bit & 1:
                known_K = self._adjust(at, marks, V, M, score_K, known_K)
        by_K, fired_K, unknown_K = marks.stops(drops=False)
        return After(
            score_K=score_K,
            known_K=known_K & np.isfinite(score_K) & (by_K == KEPT),
            failed_by_K=np.where(alive_K, by_K, np.int16(KEPT)),
            fired_K=fired_K * alive_K,
            unknown_K=unknown_K * alive_K,
            outputs={name: widened(V[slot], M[slot], num_rows) for name, slot in self.outputs},
        )

    def _adjust(
        self, at: int, marks: _Marks, V: list[Any], M: list[Any], score_K: np.ndarray, known_K: np.ndarray
    ) -> np.ndarray:
        """One rule in full; returns what is known. A score that is set is known from there on, whatever it was before."""
        holds_K = marks.holds_RK[at]
        changed_K = score_K
        for _, slot in self.amounts[at]:
            if M[slot] is not None:
                marks.unsure(at, holds_K & ~M[slot][0])
                holds_K &= M[slot][0]
        for op, slot in self.amounts[at]:
            if op is None:
                changed_K = V[slot].astype(np.float64)
                known_K = known_K | holds_K
            else:
                changed_K = op(changed_K, V[slot])
        np.copyto(score_K, changed_K, where=holds_K)
        return known_K


def _amounts(plan: ArrayPlan, rule: CompiledRule) -> list[tuple[Any, int]]:
    """What a rule changes the score by, in the order in which it does: the ufunc (None: the score is set) and the slot."""
    programs = ((None, rule.set), (np.add, rule.add), (np.multiply, rule.multiply))
    return [(op, plan.add(program)) for op, program in programs if program is not None]


def _compute(plan: ArrayPlan, steps: Sequence[CompiledLet | CompiledTable]) -> None:
    """The named values and tables, in order."""
    for step in steps:
        if isinstance(step, CompiledLet):
            plan.name(step.name, step.program)
        else:
            plan.call(_added(step))


def _added(table: CompiledTable) -> Callable[[dict[str, Column]], None]:
    return lambda columns: columns.update(table.lookup(columns))

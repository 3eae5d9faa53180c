"""The rules of a strategy over all candidates: what has to run, whatever runs it.

`decide` calls a `RuleRunner`: first `before`, what needs no model; then, with the models' answers among the columns, `after`.
Two forms, one meaning: `ColumnRules` here goes through NumPy and serves a strategy from its first request on; the fused
loop of `engine/fused.py` takes over once it has agreed with it. `tests/engine/naive_decide.py` defines both.

A candidate that is dropped, by a rule that holds or by a `fail_row` rule that cannot tell, is not looked at by later
rules: they neither fire nor are unknown for it.
Legend: K candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.strategy import CompiledLet, CompiledRule, CompiledStrategy
from engine.table import CompiledTable
from features.expr import Column, evaluate

KEPT = -1  # of `Before.dropped_by_K` and `After.failed_by_K`: no rule did


@dataclass(frozen=True, kw_only=True, eq=False)
class Before:
    """After the drop rules. Shapes: all (K,).

    `dropped_by_K` int16: the bit of the rule that dropped the candidate, KEPT for a survivor. `fired_K`, `unknown_K` int64:
    a bit per rule. A candidate that a `fail_row` rule dropped has the rule's bit in `unknown_K` and not in `fired_K`.
    """

    alive_K: np.ndarray
    dropped_by_K: np.ndarray
    fired_K: np.ndarray
    unknown_K: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
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
    """Every rule for all candidates at once, by NumPy. Ready as soon as a strategy is compiled."""

    def __init__(self, compiled: CompiledStrategy) -> None:
        self.compiled = compiled

    def before(self, columns: dict[str, Column], num_candidates: int, killed: int) -> Before:
        _compute(self.compiled.steps_before, columns)
        alive_K = np.ones(num_candidates, dtype=np.bool_)
        dropped_by_K = np.full(num_candidates, KEPT, dtype=np.int16)
        fired_K = np.zeros(num_candidates, dtype=np.int64)
        unknown_K = np.zeros(num_candidates, dtype=np.int64)
        for rule in self.compiled.drops:
            if killed >> rule.bit & 1:
                continue
            holds_K, unsure_K = _condition(rule, columns, num_candidates)
            holds_K, unsure_K = holds_K & alive_K, unsure_K & alive_K
            _set_bits(unknown_K, unsure_K, rule.bit)
            _set_bits(fired_K, holds_K, rule.bit)
            dropped_K = holds_K | unsure_K if rule.on_unknown == "fail_row" else holds_K
            dropped_by_K[dropped_K] = rule.bit
            alive_K &= ~dropped_K
        return Before(alive_K=alive_K, dropped_by_K=dropped_by_K, fired_K=fired_K, unknown_K=unknown_K)

    def after(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        """An amount that is null where its rule fired is an adjustment that is not made: the rule is unknown there."""
        num_rows = len(alive_K)
        _compute(self.compiled.steps_after, columns)
        base = evaluate(self.compiled.score, columns, num_rows=num_rows)
        score_K, known_K = base.values.astype(np.float64), base.valid
        failed_by_K = np.full(num_rows, KEPT, dtype=np.int16)
        fired_K = np.zeros(num_rows, dtype=np.int64)
        unknown_K = np.zeros(num_rows, dtype=np.int64)
        for rule in self.compiled.adjusts:
            if killed >> rule.bit & 1:
                continue
            left_K = alive_K & (failed_by_K == KEPT)
            holds_K, unsure_K = _condition(rule, columns, num_rows)
            amounts = _amounts(rule, columns, num_rows)
            for amount in amounts.values():
                unsure_K = unsure_K | (holds_K & ~amount.valid)
                holds_K = holds_K & amount.valid
            holds_K, unsure_K = holds_K & left_K, unsure_K & left_K
            score_K, known_K = _adjusted(score_K, known_K, holds_K, amounts)
            _set_bits(fired_K, holds_K, rule.bit)
            _set_bits(unknown_K, unsure_K, rule.bit)
            if rule.on_unknown == "fail_row":
                failed_by_K[unsure_K] = rule.bit
        outputs = {named.name: evaluate(named.program, columns, num_rows=num_rows) for named in self.compiled.outputs}
        return After(
            score_K=score_K,
            known_K=known_K & np.isfinite(score_K) & (failed_by_K == KEPT),
            failed_by_K=failed_by_K,
            fired_K=fired_K,
            unknown_K=unknown_K,
            outputs=outputs,
        )


def _compute(steps: Sequence[CompiledLet | CompiledTable], columns: dict[str, Column]) -> None:
    """The named values and tables, into `columns`."""
    for step in steps:
        if isinstance(step, CompiledLet):
            columns[step.name] = evaluate(step.program, columns)
        else:
            columns.update(step.lookup(columns))


def _condition(rule: CompiledRule, columns: Mapping[str, Column], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a condition holds and where it is unknown; with `on_unknown: fire` both at once. Shapes: (num_rows,) bool."""
    found = evaluate(rule.condition, columns, num_rows=num_rows)
    unsure_K = ~found.valid
    holds_K = found.values & found.valid
    return (holds_K | unsure_K if rule.on_unknown == "fire" else holds_K), unsure_K


def _amounts(rule: CompiledRule, columns: Mapping[str, Column], num_rows: int) -> dict[str, Column]:
    """What a rule changes the score by, in the order in which it does."""
    programs = {"set": rule.set, "add": rule.add, "multiply": rule.multiply}
    return {
        name: evaluate(program, columns, num_rows=num_rows) for name, program in programs.items() if program is not None
    }


def _adjusted(
    score_K: np.ndarray, known_K: np.ndarray, holds_K: np.ndarray, amounts: Mapping[str, Column]
) -> tuple[np.ndarray, np.ndarray]:
    """The score where a rule holds, changed; a score that is set is known from there on, whatever it was before."""
    changed_K = score_K
    with np.errstate(all="ignore"):  # an overflow is a score that is not finite, which `known_K` says in the end
        for name, amount in amounts.items():
            if name == "set":
                changed_K = amount.values.astype(np.float64)
                known_K = known_K | holds_K
            elif name == "add":
                changed_K = changed_K + amount.values
            else:
                changed_K = changed_K * amount.values
    return np.where(holds_K, changed_K, score_K), known_K


def _set_bits(bits_K: np.ndarray, rows_K: np.ndarray, bit: int) -> None:
    bits_K |= rows_K.astype(np.int64) << bit

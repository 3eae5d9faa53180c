"""The rules of a strategy, one expression at a time: the plain form by NumPy, which the fast ones are held against.

It shares nothing with `engine.rules.ColumnRules` and the fused loop but `columns.evaluate`, so that it is a witness for both;
`tests/engine/naive_decide.py` defines all of them.
Legend: K candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.rules import KEPT, After, Before
from engine.strategy import CompiledLet, CompiledRule, CompiledStrategy
from engine.table import CompiledTable
from features.expr import Column, evaluate


class ProgramRules:
    """A RuleRunner: every rule by itself, for all candidates at once."""

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

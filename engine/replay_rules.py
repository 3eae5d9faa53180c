"""The fused form of a strategy's rules for replay: laid out for candidates of many requests in one batch.

`engine/rule_forms.py` is what serves; there a request's values are shared by its candidates, here every row has its own.
"""

from __future__ import annotations

import numpy as np

from engine.fused import fused_rules
from engine.fused_cache import CompileFailedError, FusedCache
from engine.fused_plan import NotFusableError, plan_rules
from engine.made_columns import made_columns
from engine.program_rules import ProgramRules
from engine.rule_forms import Seen, disagreement
from engine.rules import ColumnRules, RuleRunner
from engine.strategy import CompiledStrategy
from features.expr import Column

_MADE_ROWS = (2, 7, 64, 200)


def fused_for_replay(compiled: CompiledStrategy, cache: FusedCache) -> tuple[RuleRunner, str | None]:
    """The fused form, once it has agreed with NumPy bit for bit on made-up rows; else NumPy, and why."""
    slow = ColumnRules(compiled)
    try:
        plan = plan_rules(compiled, stacked=True)
        fast = fused_rules(compiled, plan, cache.get(plan.text))
    except (NotFusableError, CompileFailedError, TimeoutError) as error:
        return slow, str(error)
    batches = [_stacked(*made_columns(compiled, rows)) for rows in _MADE_ROWS]
    problem = disagreement(ProgramRules(compiled), fast, batches, compiled.strategy.models)
    return (fast, None) if problem is None else (slow, f"the fused form disagrees: {problem}")


def _stacked(columns: dict[str, Column], num_rows: int) -> Seen:
    wide = {
        name: column
        if len(column) == num_rows
        else Column(np.repeat(column.values, num_rows), np.repeat(column.valid, num_rows))
        for name, column in columns.items()
    }
    return Seen(wide, num_rows, 0)

"""Columns that no request brought: edges of every type, nulls where a name may be null, the constants of the rules themselves.

The fused form of a strategy is held against NumPy on them before it serves, besides the rows that real requests brought.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from engine.strategy import ENVELOPE, CompiledLet, CompiledStrategy
from features.expr import Column, Program, Type

_DTYPES: Final[dict[str, Any]] = {
    "int": np.int64,
    "double": np.float64,
    "bool": np.bool_,
    "timestamp": np.int64,
    "duration": np.int64,
}
_EDGES: Final[dict[str, list[Any]]] = {
    "int": [0, 1, -1, 2, 7, 100, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)],
    "double": [0.0, -0.0, 0.5, 1.0, -1.0, 100.0, 1e-300, 1e308, -1e308, float("inf"), float("-inf"), float("nan")],
    "bool": [False, True],
    "string": ["", "a", "idle", "é", "a text that is longer than most are"],
    "timestamp": [0, 1_700_000_000_000_000, 1_709_251_199_999_999],
    "duration": [0, 1, -1, 60_000_000, 86_400_000_000],
}


def made_columns(compiled: CompiledStrategy, num_rows: int) -> tuple[dict[str, Column], int]:
    """Every column that the rules may read, models' answers too, and `num_rows`. The same for the same strategy.

    Shapes: (num_rows,) for what differs by candidate, else (1,).
    """
    strategy = compiled.strategy
    rng = random.Random(num_rows)
    pools = {kind: [*edges, *constants_of(compiled, kind)] for kind, edges in _EDGES.items()}
    per_role = {role.name for role in strategy.roles if role.per_candidate}
    columns = {}
    for name, kind in compiled.names.items():
        wide = name in strategy.candidate_fields or name.partition(".")[0] in per_role
        wide = wide and name not in (*ENVELOPE, *strategy.request)
        columns[name] = _column(rng, pools, kind, num_rows if wide else 1)
    for param in strategy.params.values():
        columns[f"params.{param.name}"] = _column(rng, pools, Type(param.type), 1)
    for use in strategy.models:
        nullable = use not in compiled.on_late or compiled.on_late[use].type.nullable
        columns[use] = _column(rng, pools, Type("double", nullable), num_rows)
    return columns, num_rows


def constants_of(compiled: CompiledStrategy, kind: str) -> list[Any]:
    """The constants of the rules: a comparison turns at them."""
    found = {
        (repr(step.value), step.value)
        for program in _programs(compiled)
        for step in program.root.walk()
        if step.step == "const" and step.type.kind == kind and step.value is not None
    }
    return [value for _, value in sorted(found, key=lambda pair: pair[0])]


def _programs(compiled: CompiledStrategy) -> Iterable[Program]:
    steps = [step.program for step in (*compiled.steps_before, *compiled.steps_after) if isinstance(step, CompiledLet)]
    rules = [
        program
        for rule in (*compiled.drops, *compiled.adjusts)
        for program in (rule.condition, rule.set, rule.add, rule.multiply)
        if program is not None
    ]
    return [*steps, *rules, compiled.score, *(named.program for named in compiled.outputs)]


def _column(rng: random.Random, pools: dict[str, list[Any]], kind: Type, num_rows: int) -> Column:
    valid = np.array([not kind.nullable or rng.random() < 0.8 for _ in range(num_rows)], dtype=np.bool_)
    values = np.empty(num_rows, dtype=_DTYPES.get(kind.kind, np.object_))
    for row in range(num_rows):
        if kind.is_list:
            values[row] = [rng.choice(pools[kind.item.kind]) for _ in range(rng.randrange(4))]
        else:
            values[row] = rng.choice(pools[kind.kind])
    return Column(values, valid)

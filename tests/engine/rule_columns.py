"""Random columns for the rules of a strategy, straight from the types of its names: what no request would say, too."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from engine.rules import After, Before
from engine.strategy import ENVELOPE, CompiledStrategy
from features.expr import Column, Type, parse_type

DTYPES: dict[str, Any] = {
    "int": np.int64,
    "double": np.float64,
    "bool": np.bool_,
    "timestamp": np.int64,
    "duration": np.int64,
}
EDGES: dict[str, list[Any]] = {
    "int": [0, 1, 3, 5, 7, 18, 24, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -7],
    "double": [0.0, -0.0, 0.5, 3.0, 900.0, 1500.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan")],
    "bool": [True, False],
    "string": ["idle", "on_trip", "completed", "skip", "", "πέντε", "🐱", "gold"],
    "timestamp": [0, 1_725_000_000_000_000, 1_730_000_000_000_001],
    "duration": [0, 1, 1_000_000, -3_600_000_000],
}


def random_columns(
    compiled: CompiledStrategy, rng: random.Random, num_rows: int, *, edges: float = 0.3
) -> dict[str, Column]:
    """Every name that the rules may read: length 1 for what the request shares, `num_rows` for the rest. A share of the
    values are edges; a value behind a null would be wrong to read."""
    strategy = compiled.strategy
    per_role = {role.name for role in strategy.roles if role.per_candidate}
    columns = {}
    for name, kind in compiled.names.items():
        wide = name in strategy.candidate_fields or name.partition(".")[0] in per_role
        columns[name] = random_column(kind, rng, num_rows if wide else 1, edges)
    for name in (*ENVELOPE, *strategy.request):
        if name in columns:
            columns[name] = random_column(compiled.names[name], rng, 1, edges)
    for param in strategy.params.values():
        columns[f"params.{param.name}"] = random_column(parse_type(param.type), rng, 1, edges)
    for use in strategy.models:
        nullable = use not in compiled.on_late or compiled.on_late[use].type.nullable
        columns[use] = random_column(Type("double", nullable), rng, num_rows, edges)
    return columns


def random_column(kind: Type, rng: random.Random, num_rows: int, edges: float) -> Column:
    valid = np.array([not kind.nullable or rng.random() < 0.75 for _ in range(num_rows)], dtype=np.bool_)
    if kind.is_list:
        lists = np.empty(num_rows, dtype=np.object_)
        for row in range(num_rows):
            lists[row] = [_value(kind.item.kind, rng, edges) for _ in range(rng.randrange(4))]
        return Column(lists, valid)
    values = np.empty(num_rows, dtype=DTYPES.get(kind.kind, np.object_))
    for row in range(num_rows):
        values[row] = _value(kind.kind, rng, edges)
    return Column(values, valid)


def _value(kind: str, rng: random.Random, edges: float) -> Any:
    if kind in ("bool", "string") or rng.random() < edges:
        return rng.choice(EDGES[kind])
    return rng.random() * 1500.0 if kind == "double" else rng.randrange(30)


def assert_same_before(got: Before, wanted: Before, about: object) -> None:
    for part in ("alive_K", "dropped_by_K", "fired_K", "unknown_K"):
        a, b = getattr(got, part), getattr(wanted, part)
        assert a.dtype == b.dtype and np.array_equal(a, b), (part, np.flatnonzero(a != b)[:5], a, b, about)


def assert_same_after(got: After, wanted: After, alive_K: np.ndarray, about: object) -> None:
    """Rows that were dropped before mean nothing, nor does the score of a row without one."""
    for part in ("known_K", "failed_by_K", "fired_K", "unknown_K"):
        a, b = getattr(got, part)[alive_K], getattr(wanted, part)[alive_K]
        assert a.dtype == b.dtype and np.array_equal(a, b), (part, np.flatnonzero(a != b)[:5], a, b, about)
    rows_K = alive_K & wanted.known_K
    a, b = got.score_K[rows_K], wanted.score_K[rows_K]
    assert np.array_equal(a.view(np.int64), b.view(np.int64)), (a, b, about)
    assert list(got.outputs) == list(wanted.outputs)
    for name, column in wanted.outputs.items():
        assert_same_column(got.outputs[name], column, rows_K, (name, about))


def assert_same_column(got: Column, wanted: Column, rows_K: np.ndarray, about: object) -> None:
    assert got.values.dtype == wanted.values.dtype, about
    assert np.array_equal(got.valid[rows_K], wanted.valid[rows_K]), about
    kept_K = rows_K & wanted.valid
    a, b = got.values[kept_K], wanted.values[kept_K]
    if a.dtype == np.float64:
        a, b = (np.where(np.isnan(x), np.nan, x).view(np.int64) for x in (a, b))
    assert a.tolist() == b.tolist(), about
    none = np.zeros(len(rows_K), dtype=np.bool_)
    errors = [none if column.error is None else column.error for column in (got, wanted)]
    assert np.array_equal(errors[0][rows_K], errors[1][rows_K]), about

"""The array steps of ColumnRules equal the rules one by one, bit for bit, and add the same columns."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from engine.made_columns import made_columns
from engine.program_rules import ProgramRules
from engine.rules import ColumnRules
from engine.strategy import CompiledStrategy
from features.expr import Column
from features.registry import Registry
from tests.engine.random_strategies import random_strategy
from tests.engine.rule_columns import assert_same_after, assert_same_before, assert_same_column, random_columns
from tests.engine.support import KITCHEN_SINK, catalogue_registry, compile_text

SIZES = (0, 1, 2, 40, 200)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return catalogue_registry()


def check(fast: ColumnRules, columns: dict[str, Column], num_rows: int, killed: int, about: object) -> None:
    slow, own, other = ProgramRules(fast.compiled), dict(columns), dict(columns)
    wanted, found = slow.before(own, num_rows, killed), fast.before(other, num_rows, killed)
    assert_same_before(found, wanted, about)
    alive_K = wanted.alive_K
    assert_same_after(fast.after(other, alive_K, killed), slow.after(own, alive_K, killed), alive_K, about)
    assert own.keys() == other.keys(), about
    for name in own.keys() - columns.keys():
        assert len(own[name]) == len(other[name]), (name, about)
        assert_same_column(other[name], own[name], np.ones(len(own[name]), np.bool_), (name, about))


def check_strategy(compiled: CompiledStrategy, seed: int) -> None:
    print("seed", seed)
    fast, rng = ColumnRules(compiled), random.Random(seed)
    for num_rows in SIZES:
        for killed in (0, rng.getrandbits(len(compiled.strategy.rules))):
            columns = random_columns(compiled, rng, num_rows, edges=rng.choice([0.0, 0.3, 0.9]))
            check(fast, columns, num_rows, killed, seed)
            check(fast, made_columns(compiled, num_rows)[0], num_rows, killed, seed)


@pytest.mark.parametrize("seed", range(40))
def test_random_strategies(seed: int, tmp_path: Path, registry: Registry) -> None:
    check_strategy(random_strategy(seed, tmp_path, registry), seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_random_strategies(block: int, tmp_path: Path, registry: Registry) -> None:
    for seed in range(100 + 50 * block, 150 + 50 * block):
        check_strategy(random_strategy(seed, tmp_path, registry), seed)


def test_columns_that_are_not_as_declared(tmp_path: Path, registry: Registry) -> None:
    """Nulls where none can be, row errors that were given, narrow numbers."""
    compiled = compile_text(KITCHEN_SINK, tmp_path, registry)
    for seed in range(20):
        rng = random.Random(seed)
        columns = random_columns(compiled, rng, 30)
        for name, column in columns.items():
            size = len(column)
            error = np.array([rng.random() < 0.1 for _ in range(size)], np.bool_)
            valid = np.array([rng.random() < 0.8 for _ in range(size)], np.bool_) & ~error
            columns[name] = Column(column.values, valid, error)
        columns["rank_no"] = Column(columns["rank_no"].values.astype(np.int16), columns["rank_no"].valid)
        check(ColumnRules(compiled), columns, 30, 0, seed)

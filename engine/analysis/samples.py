"""Rows of values for a strategy, at the edges of what it compares, and what its rules make of them all at once.

The same rows every time. Numbers stay below a million where nothing bounds or compares them: an overflow that only a
number beyond all reason makes is no finding. Parameters are as their defaults or an arm of an experiment have them.
Legend: K rows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.rules import After, Before, ColumnRules
from engine.strategy import CompiledLet, Table
from features.expr import Column, Facts, Program, Type, evaluate
from features.expr.column_steps import DTYPES, FILLERS
from features.expr.keys import NUMBERS, key_of, key_range, value_of
from features.expr.regions import critical_values

if TYPE_CHECKING:
    from engine.analysis.world import World

NUM_ROWS: Final = 2_048
TAME: Final = 1_000_000
MAX_EDGES: Final = 48  # values of one name that come from comparisons
MAX_LOOKED_AT: Final = 64  # rows among which the best example is chosen
MAX_NICE: Final = 4
_DAY_US: Final = 86_400_000_000
_NOW_US: Final = 1_725_000_000_000_000
_TEXTS: Final = ("other", "idle", "")


class Samples:
    """`values` by given name, K each; `columns` the same with models' answers, as the rules read them."""

    def __init__(self, world: World) -> None:
        self.world, self.num_rows = world, NUM_ROWS
        self.let_programs = {
            step.name: step.program
            for step in (*world.compiled.steps_before, *world.compiled.steps_after)
            if isinstance(step, CompiledLet)
        }
        rng = random.Random(1)
        pools = self._pools(rng)
        self.values = {name: [rng.choice(pool) for _ in range(NUM_ROWS)] for name, pool in pools.items()}
        self._assign(rng)
        self.columns = {name: column_of(self.values[name], kind) for name, kind in world.given.items()}

    @cached_property
    def outcome(self) -> Outcome:
        """What the rules make of the rows."""
        return self.run({})

    @cached_property
    def alive_rows(self) -> list[int]:
        """The rows that no drop rule drops."""
        return [int(row) for row in self.outcome.before.alive_K.nonzero()[0]]

    def run(self, instead: Mapping[str, Column]) -> Outcome:
        """The same with other columns for some names."""
        columns = {**self.columns, **instead}
        rules = ColumnRules(self.world.compiled)
        before = rules.before(columns, NUM_ROWS, 0)
        after = rules.after(columns, before.alive_K, 0)
        return Outcome(columns, before, after)

    def row(self, at: int, instead: Mapping[str, Column] | None = None) -> dict[str, Any]:
        """One row as the row interpreter takes it."""
        out = {name: values[at] for name, values in self.values.items()}
        for name, column in (instead or {}).items():
            place = at if len(column) > 1 else 0
            out[name] = column.values[place : place + 1].tolist()[0] if column.valid[place] else None
        return out

    def nicest(
        self, rows: Sequence[int], names: Sequence[str], instead: Mapping[str, Column] | None = None
    ) -> list[int]:
        """A few of these rows, first the one whose values of some names are quickest read."""

        def length(at: int) -> int:
            row = self.row(at, instead)
            return sum(len(repr(row[name])) for name in names)

        return sorted(rows[:MAX_LOOKED_AT], key=length)[:MAX_NICE]

    # which values a name has ----------------------------------------------------------------------------------------

    def _pools(self, rng: random.Random) -> dict[str, list[Any]]:
        world = self.world
        compiled = world.compiled
        programs = [*world.conditions.values(), world.inline(compiled.score)]
        for rule in (*compiled.drops, *compiled.adjusts):
            programs += [world.inline(p) for p in (rule.set, rule.add, rule.multiply) if p is not None]
        programs += [world.inline(step) for step in self.let_programs.values()]
        edges = critical_values(programs, world.types, world.facts)
        for table in compiled.strategy.tables.values():
            for name, found in _table_edges(table).items():
                edges.setdefault(name, []).extend(found)
        return {name: self._pool(name, kind, edges.get(name, []), rng) for name, kind in world.given.items()}

    def _pool(self, name: str, kind: Type, edges: Sequence[Any], rng: random.Random) -> list[Any]:
        if name in self.world.fixed:
            return [self.world.fixed[name]]
        facts = self.world.facts.get(name)
        fitting = [value for value in edges if value is not None and _fits(value, kind, facts)]
        pool = fitting if len(fitting) <= MAX_EDGES else rng.sample(fitting, MAX_EDGES)
        pool = [*pool, *_usual(name, kind, facts, rng, name in self.world.compiled.strategy.models)]
        pool = [value for value in pool if _fits(value, kind, facts)] or [_any(kind, facts)]
        return [*pool, *[None] * (max(1, len(pool) // 6) if kind.nullable else 0)]

    def _assign(self, rng: random.Random) -> None:
        """Parameters row by row: defaults, or what one arm of each layer sets where its experiment may run."""
        compiled = self.world.compiled
        strategy = compiled.strategy
        for param in strategy.params.values():
            self.values[f"params.{param.name}"] = [param.default] * NUM_ROWS
        envelope = {name: column_of(self.values[name], kind) for name, kind in self.world.given.items()}
        layers: dict[str, list[Any]] = {}
        for split in compiled.arms:
            layers.setdefault(split.experiment.layer, []).append(split)
        for splits in layers.values():
            admitted = [self._admitted(split.where, envelope) for split in splits]
            for row in range(NUM_ROWS):
                running = [split for split, where in zip(splits, admitted, strict=True) if where[row]]
                arms = [arm for split in running for arm in split.values]
                for name, value in (rng.choice([{}, *arms]) if arms else {}).items():
                    self.values[f"params.{name}"][row] = value

    def _admitted(self, where: Program | None, columns: Mapping[str, Column]) -> list[bool]:
        if where is None:
            return [True] * NUM_ROWS
        found = evaluate(where, columns, num_rows=NUM_ROWS)
        holds: list[bool] = (found.values.astype(bool) & found.valid).tolist()
        return holds


class Outcome:
    """What the rules make of rows. Shapes: all (K,)."""

    def __init__(self, columns: dict[str, Column], before: Before, after: After) -> None:
        self.columns, self.before, self.after = columns, before, after
        self.alive_K = before.alive_K
        self.fired_K = before.fired_K | np.where(before.alive_K, after.fired_K, 0)
        self.unknown_K = before.unknown_K | np.where(before.alive_K, after.unknown_K, 0)

    def fired(self, bit: int) -> np.ndarray:
        return (self.fired_K >> bit & 1).astype(bool)

    def unknown(self, bit: int) -> np.ndarray:
        return (self.unknown_K >> bit & 1).astype(bool)


def column_of(values: Sequence[Any], kind: Type) -> Column:
    """Values as a column; None is null."""
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    filler = FILLERS[kind.kind][0]
    out = np.empty(len(values), dtype=DTYPES[kind.kind])
    for at, value in enumerate(values):
        out[at] = filler if value is None else value
    return Column(out, valid)


def _fits(value: Any, kind: Type, facts: Facts | None) -> bool:
    """Whether a value can stand in a row: inside the bounds, and a number that is one."""
    if kind.kind not in NUMBERS or value is None:
        return value is not None
    if isinstance(value, float) and (value != value or abs(value) > 1e15):
        return False
    low, high = key_range(kind.kind, facts)
    return low <= key_of(float(value) if kind.kind == "double" else int(value)) <= high and abs(value) < 2**60


def _usual(name: str, kind: Type, facts: Facts | None, rng: random.Random, is_model: bool) -> list[Any]:
    """Values that a name may well have, whatever is compared."""
    if is_model:
        return [0.0, 0.25, 0.5, 1.0, rng.random()]
    if kind.kind == "bool":
        return [True, False]
    if kind.kind == "string":
        return list(_TEXTS) if not name.endswith("_id") else ["id-1", "id-2"]
    if kind.kind == "timestamp":
        return [_NOW_US - rng.randrange(30 * _DAY_US) for _ in range(6)]
    if kind.kind == "duration":
        return [0, 60_000_000, 600_000_000, rng.randrange(_DAY_US)]
    if kind.is_list:
        return [[]]
    low, high = -10.0 if facts is None or facts.low is None else facts.low, float(TAME)
    if facts is not None and facts.high is not None:
        high = facts.high
    spans = [round(rng.uniform(low, min(high, low + span)), 1) for span in (10, 100, 1_000, TAME) for _ in range(2)]
    spans = [value for value in spans if low <= value <= high] + [low]
    ends = [end for end in (low, high) if facts is not None and end in (facts.low, facts.high)]
    numbers = [0.0, 1.0, 2.0, *ends, *spans]
    return [float(n) for n in numbers] if kind.kind == "double" else [round(n) for n in numbers]


def _any(kind: Type, facts: Facts | None) -> Any:
    if kind.kind in NUMBERS:
        return value_of(key_range(kind.kind, facts)[0], kind.kind)
    return FILLERS[kind.kind][0].item() if kind.kind == "bool" else FILLERS[kind.kind][0]


def _table_edges(table: Table) -> dict[str, list[Any]]:
    """The values at which the rows of a table begin and end, by input."""
    out: dict[str, list[Any]] = {name: [] for name in table.inputs}
    for row in table.rows:
        for name, cell in zip(table.inputs, row.cells, strict=True):
            out[name] += [value for value in (*cell.values, cell.low, cell.high) if value is not None]
    return {name: list(dict.fromkeys(values)) for name, values in out.items()}

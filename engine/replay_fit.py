"""A block of logged Decisions as the columns that a strategy reads, and what of them the log lacks.

A value that the log lacks (a field, a feature, a model that the strategy of that time did not have) is not guessed: its
column is all row errors, as if it had been computed and failed. A row error is absorbed only where it cannot matter, so what comes out without
one is exact, and `engine/replay_run.py` counts the rest apart.
What the strategy would refuse today (another scope, a bound that was narrowed, a null where none may be) is said per Decision.
Legend: D decisions, R candidates of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.inputs import names_read
from engine.replay_block import Block, Raw, RoleColumns
from engine.strategy import AS_OF, ENVELOPE, CompiledStrategy, Role, Strategy
from engine.wire_values import US_PER_MS, is_time
from features.expr import Column, Facts, Type
from features.expr.column_steps import FILLERS
from features.expr.times import RANGES
from features.rows import has_value

_RAW_KIND: Final = {"timestamp": "int", "duration": "int"}
_PYTHON: Final[dict[str, type]] = {"int": int, "double": float, "string": str, "bool": bool}


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """A block for one strategy. `columns` (R,) has every name that is read, besides parameters and models; `shared` (D,)
    those of the whole request.

    `lacking` names what the log has not, each with the reason; `blocked` those of them without which nothing can be replayed (arms, ties).
    `refused` says by decision why the strategy would not have taken the request.
    """

    block: Block
    columns: dict[str, Column]
    shared: dict[str, Column]
    lacking: dict[str, str]
    blocked: dict[str, str]
    refused: dict[int, str]


def fit(compiled: CompiledStrategy, block: Block, before: Strategy | None = None) -> Fitted:
    """`before` is the strategy that made the Decisions, where its file is at hand: it knows by which keys features were read."""
    fitter = _Fitter(compiled, block, before)
    return fitter.run()


def needed_names(compiled: CompiledStrategy) -> tuple[frozenset[str], frozenset[str]]:
    """(what expressions and tables read, what assignment and ranking read)."""
    strategy = compiled.strategy
    fixed = {strategy.rank.ties} if strategy.rank.ties else set()
    for split in compiled.arms:
        experiment = split.experiment
        fixed.add(experiment.region if experiment.kind == "switchback" else experiment.unit)
        fixed |= split.where.names if split.where is not None else frozenset()
    return names_read(compiled), frozenset(fixed)


class _Fitter:
    def __init__(self, compiled: CompiledStrategy, block: Block, before: Strategy | None) -> None:
        self.compiled, self.block, self.before = compiled, block, before
        self.columns: dict[str, Column] = {}
        self.shared: dict[str, Column] = {}
        self.lacking: dict[str, str] = {}
        self.refused: dict[int, str] = {}

    def run(self) -> Fitted:
        read, fixed = needed_names(self.compiled)
        self.scope()
        for name, column in self.envelope():
            self.share(name, column, read)
        self.request(read, fixed)
        self.candidates(read, fixed)
        self.features(read)
        blocked = {name: why for name, why in self.lacking.items() if name in fixed}
        return Fitted(
            block=self.block,
            columns=self.columns,
            shared=self.shared,
            lacking=self.lacking,
            blocked=blocked,
            refused=self.refused,
        )

    def scope(self) -> None:
        block = self.block
        for name, found in (("city", block.cities), ("product", block.products)):
            wanted = self.compiled.strategy.scope[name]
            if wanted != "*":
                for at in (at for at, value in enumerate(found) if value != wanted):
                    self.refused.setdefault(at, f"{name} is '{found[at]}', out of scope")

    def envelope(self) -> Iterator[tuple[str, Column]]:
        block = self.block
        known = np.ones(block.num_decisions, dtype=np.bool_)
        for name, values in zip(ENVELOPE, (block.order_ids, block.cities, block.products), strict=True):
            objects = np.empty(len(values), dtype=np.object_)
            objects[:] = values
            yield name, Column(objects, known)
        yield AS_OF, Column(block.as_of_ms_D * US_PER_MS, known)

    def share(self, name: str, column: Column, read: frozenset[str]) -> None:
        """A value of the whole request, for each of its candidates."""
        self.shared[name] = column
        if name in read:
            rows = self.block.decision_of_R
            error = None if column.error is None else column.error[rows]
            self.columns[name] = Column(column.values[rows], column.valid[rows], error)

    def request(self, read: frozenset[str], fixed: frozenset[str]) -> None:
        block, strategy = self.block, self.compiled.strategy
        for name, kind in strategy.request.items():
            if name in (*ENVELOPE, AS_OF):
                continue
            raw = block.request.get(name)
            column = self.column(f"request field {name}", name, raw, kind, block.num_decisions, (read | fixed))
            if column is None:
                continue
            if column.error is None:
                rows = np.arange(block.num_decisions)
                self.refuse_nulls(f"request field {name}", column, kind, rows)
                outside = self.outside(name, column, kind)
                self.refuse(outside, rows, f"request field {name} is out of its bounds")
            self.share(name, column, read)

    def candidates(self, read: frozenset[str], fixed: frozenset[str]) -> None:
        block, strategy = self.block, self.compiled.strategy
        for name, kind in strategy.candidate_fields.items():
            if name == strategy.candidate_key:
                if name != block.candidate_key:
                    self.lacking[name] = f"candidates had the key {block.candidate_key}, not {name}"
                    if name in read:
                        self.columns[name] = _failed(kind, block.num_rows)
                else:
                    self.columns[name] = Column(block.candidate_ids, np.ones(block.num_rows, dtype=np.bool_))
                continue
            raw = block.candidates.get(name)
            column = self.column(f"candidate field {name}", name, raw, kind, block.num_rows, (read | fixed))
            if column is None:
                continue
            if column.error is None:
                self.refuse_nulls(f"candidate field {name}", column, kind, block.decision_of_R)
                outside = self.outside(name, column, kind)
                if kind.nullable and outside.any():
                    column = Column(column.values, column.valid & ~outside)
                else:
                    self.refuse(outside, block.decision_of_R, f"candidate field {name} is out of its bounds")
            self.columns[name] = column

    def features(self, read: frozenset[str]) -> None:
        for role in self.compiled.strategy.roles:
            served = self.block.roles.get(role.name)
            for spec in role.view.features:
                name = f"{role.name}.{spec.name}"
                if name not in read:
                    continue
                kind = self.compiled.names[name]
                why = self.feature_problem(role, spec.name, spec.type, served)
                if why is not None or served is None:
                    self.lacking[name] = str(why)
                    self.columns[name] = _failed(kind, self.block.num_rows)
                    continue
                self.columns[name] = self.feature(role, spec.name, served)

    def feature_problem(self, role: Role, feature: str, kind: str, served: RoleColumns | None) -> str | None:
        name = f"feature {role.name}.{feature}"
        if served is None:
            return f"{name}: the log has no features under {role.name}"
        if served.view != role.view.name:
            return f"{name}: the log has view {served.view} under {role.name}, not {role.view.name}"
        if feature not in served.names:
            return f"{name}: view {served.view} had no such feature"
        found = served.types[served.names.index(feature)]
        if found != kind:
            return f"{name} is {found} in the log, {kind} now"
        wanted = self.block.sizes_D if role.per_candidate else 1
        if not np.array_equal(served.rows_D, np.broadcast_to(wanted, len(served.rows_D))):
            return f"{name} was read by another key"
        then = next((one for one in self.before.roles if one.name == role.name), None) if self.before else None
        if then is not None and then.keys != role.keys:
            return f"{name} was read by the key {', '.join(then.keys)}, not {', '.join(role.keys)}"
        return None

    def feature(self, role: Role, feature: str, served: RoleColumns) -> Column:
        """As a live decision has it: a NaN is null."""
        values = served.columns[feature]
        valid = has_value(served.statuses[served.names.index(feature)])
        if values.dtype == np.float64:
            valid = valid & (values == values)
        if role.per_candidate:
            return Column(values, valid)
        rows = self.block.decision_of_R
        return Column(values[rows], valid[rows])

    def column(
        self, what: str, name: str, raw: Raw | None, kind: Type, num_rows: int, wanted: frozenset[str]
    ) -> Column | None:
        """The column of a field; all row errors when the log lacks it; None when it does and nobody reads it."""
        why = f"{what}: the log has none" if raw is None else _kind_problem(what, raw, kind)
        if raw is not None and why is None:
            return to_typed(raw, kind)
        if name not in wanted:
            return None
        self.lacking[name] = str(why)
        return _failed(kind, num_rows)

    def refuse_nulls(self, what: str, column: Column, kind: Type, decision_N: np.ndarray) -> None:
        if not kind.nullable:
            self.refuse(~column.valid, decision_N, f"{what} is null and must not be")

    def refuse(self, rows_N: np.ndarray, decision_N: np.ndarray, why: str) -> None:
        if rows_N.any():
            for at in np.unique(decision_N[rows_N]).tolist():
                self.refused.setdefault(at, why)

    def outside(self, name: str, column: Column, kind: Type) -> np.ndarray:
        """Where a value breaks the declared bounds. Shapes: returns (N,) bool."""
        facts: Facts | None = self.compiled.strategy.facts.get(name)
        outside = np.zeros(len(column), dtype=np.bool_)
        if facts is None or kind.kind not in ("int", "double"):
            return outside
        if facts.low is not None:
            outside |= column.values < facts.low
        if facts.high is not None:
            outside |= column.values > facts.high
        return outside & column.valid


def to_typed(raw: Raw, kind: Type) -> Column:
    """A column of the language's values; times become microseconds. Shapes: as `raw`."""
    if raw.kind == "null":
        return Column(_filled(kind, len(raw.values)), raw.valid)
    if not is_time(kind):
        return Column(raw.values, raw.valid)
    if kind.is_list:
        values = np.empty(len(raw.values), dtype=np.object_)
        for row, items in enumerate(raw.values):
            values[row] = None if items is None else [item * US_PER_MS for item in items]
        return Column(values, raw.valid)
    return Column(raw.values * US_PER_MS, raw.valid)


def _kind_problem(what: str, raw: Raw, kind: Type) -> str | None:
    """Why the values of a field are not of the declared kind."""
    if raw.kind == "null":
        return None
    if kind.is_list:
        item = _PYTHON[_RAW_KIND.get(kind.item.kind, kind.item.kind)]
        fits = raw.kind == "list" and all(type(value) is item for items in raw.values if items for value in items)
        return None if fits else f"{what} is not a {kind} in the log"
    if raw.kind != _RAW_KIND.get(kind.kind, kind.kind):
        return f"{what} is {raw.kind} in the log, {kind} now"
    if is_time(kind):
        low, high = (edge // US_PER_MS for edge in RANGES[kind.kind])
        if ((raw.values < low) | (raw.values > high)).any():
            return f"{what} has values in the log that are no {kind.kind}"
    return None


def _failed(kind: Type, num_rows: int) -> Column:
    """A column of row errors."""
    none = np.zeros(num_rows, dtype=np.bool_)
    return Column(_filled(kind, num_rows), none, ~none)


def _filled(kind: Type, num_rows: int) -> np.ndarray:
    """What stands where there is no value."""
    return np.repeat(FILLERS[kind.kind], num_rows)  # an empty list is one object, not values to spread

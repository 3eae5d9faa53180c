"""What a decision is made of besides the request: the parameters of its arms, features, and what the models say.

`Inputs` is the seam: `LiveInputs` here hashes, reads and asks, each with its rung of last resort (defaults and nulls when
the store is away, `on_late` or null when a model is), and never raises for what is merely missing. `engine/redecide.py`
has the form that takes all of it from a Decision's record.
Legend: K candidates, S survivors of the drop rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np

from engine.experiment import Assignment, assign
from engine.feature_source import missing_batch
from engine.model import Model
from engine.request import Request
from engine.rules import RuleRunner
from engine.scorer import Scored, nothing, score
from engine.strategy import CompiledStrategy, ModelUse, Role
from engine.wire_values import to_list
from features.expr import Column, evaluate
from features.read_plan import ReadPlan
from features.records import ModelOutput, ModelSource, ServedFeatures
from features.rows import FeatureBatch
from features.spec import Key

ABSENT: Final[ModelSource] = "absent"
SCORE_NOT_FINITE: Final = "score_not_finite"
UNKNOWN: Final = "unknown:"  # before the id of a `fail_row` rule that could not tell
_NO_KEY: Final[dict[str, str | int]] = {
    "string": "",
    "int": -1,
    "int32": -1,
}  # read in place of a null, then thrown away


class Features(Protocol):
    """Where features come from; None means that they cannot be had now (engine/feature_source.py)."""

    def read(
        self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int
    ) -> dict[str, FeatureBatch] | None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveStrategy:
    """A compiled strategy with what it needs to run now. `models` is by the name of the use; None is "no champion yet".

    `broken_models` are uses whose champion is there but must not serve.
    """

    compiled: CompiledStrategy
    plan: ReadPlan
    models: Mapping[str, Model | None]
    broken_models: frozenset[str]
    rules: RuleRunner

    @cached_property
    def reasons(self) -> Reasons:
        return reasons_of(self.compiled)

    @cached_property
    def feature_reads(self) -> tuple[tuple[str, str, str], ...]:
        """(role, feature, name) of the features that anything here reads: the others are only recorded."""
        read = names_read(self.compiled)
        read |= frozenset().union(*(model.program.reads for model in self.models.values() if model is not None))
        return tuple(
            (role.name, spec.name, f"{role.name}.{spec.name}")
            for role in self.compiled.strategy.roles
            for spec in role.view.features
            if f"{role.name}.{spec.name}" in read
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Reasons:
    """The reasons a candidate can be dropped for, in a table: 0 none, 1 + bit a rule that held, 1 + num_rules + bit a
    `fail_row` rule that could not tell, the last one a score. `may_fail`: a drop rule is of that kind.

    Shapes: texts (2 * num_rules + 2,) object.
    """

    texts: np.ndarray
    num_rules: int
    may_fail: bool


def reasons_of(compiled: CompiledStrategy) -> Reasons:
    ids = [rule.id for rule in compiled.strategy.rules]
    texts = np.array([None, *ids, *(UNKNOWN + name for name in ids), SCORE_NOT_FINITE], dtype=np.object_)
    may_fail = any(rule.on_unknown == "fail_row" for rule in compiled.drops)
    return Reasons(texts=texts, num_rules=len(ids), may_fail=may_fail)


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """Features by role, as they were served. `records`: the same as they are recorded, where that is at hand already;
    `answered`: the store did; `fresh`: every view that was asked is kept up to date."""

    batches: Mapping[str, FeatureBatch]
    records: dict[str, ServedFeatures] | None = None
    answered: bool
    fresh: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Said:
    """What the models said, for the record; `problem`: one of them was late, failed or must not serve."""

    outputs: dict[str, ModelOutput]
    problem: bool


class Inputs(Protocol):
    """What `decide` asks for, in this order, once each."""

    def assign(self) -> Assignment:
        """The arm of every experiment that the request is in, and the parameters as they then are."""
        ...

    def read_features(self) -> Served: ...

    def ask_models(self, columns: dict[str, Column], alive_K: np.ndarray) -> Said:
        """Puts a column of length K under every model's name; nothing is said of candidates that are dropped."""
        ...


@dataclass(kw_only=True)
class LiveInputs:
    """Inputs as they are now. No model is asked for longer than what is left of `budget_ms`, counted from `started`."""

    live: LiveStrategy
    request: Request
    features: Features
    budget_ms: float
    clock: Callable[[], float]
    started: float

    def assign(self) -> Assignment:
        return assign(self.live.compiled, self.request.values, self.request.as_of_ms)

    def read_features(self) -> Served:
        """One read of all roles. A role without a key is missing whatever the store says, and says nothing of freshness."""
        request, roles = self.request, self.live.compiled.strategy.roles
        if not roles:
            return Served(batches={}, answered=True, fresh=True)
        keys: dict[str, Sequence[Key]] = {}
        keyless = set()
        for role in roles:
            found_keys = keys_of(role, request)
            if found_keys is None:
                keyless.add(role.name)
                found_keys = [_no_key(role)] * (request.num_candidates if role.per_candidate else 1)
            keys[role.name] = found_keys
        found = self.features.read(self.live.plan, keys, request.as_of_ms)
        batches = dict(found) if found is not None else {}
        fresh = found is not None
        for role in roles:
            if role.name in batches and role.name not in keyless:
                through_ms = batches[role.name].applied_through_ms
                fresh &= through_ms is not None and request.as_of_ms - through_ms <= role.view.max_age_ms
            else:
                generation = next(plan.generation for plan in self.live.plan.roles if plan.role == role.name)
                batches[role.name] = missing_batch(role, generation, len(keys[role.name]))
        return Served(batches=batches, answered=found is not None, fresh=fresh)

    def ask_models(self, columns: dict[str, Column], alive_K: np.ndarray) -> Said:
        outputs: dict[str, ModelOutput] = {}
        problem = False
        for use in self.live.compiled.strategy.models.values():
            model = self.live.models[use.name]
            problem |= use.name in self.live.broken_models
            column, source = nothing(len(alive_K)), ABSENT
            if model is not None or use.name in self.live.compiled.on_late:
                said = self._score(use, model, columns, alive_K)
                problem |= said.problem is not None
                column, source = _with_fallback(self.live.compiled, use.name, said, columns, alive_K)
            columns[use.name] = column
            outputs[use.name] = ModelOutput(
                model=model.ref if model else f"{use.model}@{use.version}",
                model_hash=model.hash if model else None,
                source=source,
                values=to_list(column.values, column.valid),
            )
        return Said(outputs=outputs, problem=problem)

    def _score(self, use: ModelUse, model: Model | None, columns: Mapping[str, Column], alive_K: np.ndarray) -> Scored:
        """The model's answer for the survivors only: rows cost it far more than they cost rules."""
        rows_S = alive_K.nonzero()[0]
        asked = {name: take(columns[name], rows_S, len(alive_K)) for name in model.program.reads} if model else {}
        left_ms = self.budget_ms - (self.clock() - self.started) * 1000.0
        return score(model, asked, len(rows_S), budget_ms=min(use.deadline_ms, left_ms), clock=self.clock)


def keys_of(role: Role, request: Request) -> Sequence[Key] | None:
    """The keys that a role is read by, one or one a candidate; None where a part that the request holds is null."""
    num_rows = request.num_candidates if role.per_candidate else 1
    parts: list[Sequence[Any]] = []
    for name in role.keys:
        if role.per_candidate and name in request.candidates:
            parts.append(request.candidates[name])
        elif (value := request.values[name]) is None:
            return None
        else:
            parts.append([value] * num_rows)
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def _no_key(role: Role) -> Key:
    parts = tuple(_NO_KEY[column.type] for column in role.view.entity.keys)
    return parts[0] if len(parts) == 1 else parts


def add_features(columns: dict[str, Column], live: LiveStrategy, batches: Mapping[str, FeatureBatch]) -> None:
    """The features that are read, among the columns. A NaN that arrives as a feature is null from here on."""
    for role, feature, name in live.feature_reads:
        batch = batches[role]
        values, valid = batch.columns[feature], batch.valid[feature]
        if values.dtype == np.float64:
            valid = valid & (values == values)
        columns[name] = Column(values, valid)


def names_read(compiled: CompiledStrategy) -> frozenset[str]:
    """Every name that an expression or a table of the strategy reads."""
    rules = (*compiled.drops, *compiled.adjusts)
    programs = [compiled.score, *compiled.on_late.values(), *(named.program for named in compiled.outputs)]
    programs += [p for rule in rules for p in (rule.condition, rule.set, rule.add, rule.multiply) if p is not None]
    names: set[str] = set()
    for step in (*compiled.steps_before, *compiled.steps_after):
        names |= step.reads
    return frozenset(names.union(*(program.names for program in programs)))


def take(column: Column, rows_S: np.ndarray, num_rows: int) -> Column:
    """The column of some rows; a value of the whole request stays as it is.

    With one candidate the two cannot be told apart and need not be: it is gone or it is all there is.
    """
    if len(rows_S) == num_rows or len(column.values) != num_rows:
        return column
    return Column(column.values[rows_S], column.valid[rows_S], None if column.error is None else column.error[rows_S])


def _with_fallback(
    compiled: CompiledStrategy, name: str, said: Scored, columns: Mapping[str, Column], alive_K: np.ndarray
) -> tuple[Column, ModelSource]:
    """The answer for all K, `on_late` put where the model said nothing. A row error of it is a plain null here: that is
    what the record of a Decision can say, and the Decision must follow from its record."""
    values_K, known_K = np.zeros(len(alive_K)), np.zeros(len(alive_K), dtype=np.bool_)
    num_known = np.count_nonzero(said.probability.valid)
    if num_known:
        values_K[alive_K] = said.probability.values
        known_K[alive_K] = said.probability.valid
    if name not in compiled.on_late or num_known == len(said.probability):
        return Column(values_K, known_K), said.source
    stand_in = evaluate(compiled.on_late[name], columns, num_rows=len(alive_K))
    column = Column(np.where(known_K, values_K, stand_in.values), (known_K | stand_in.valid) & alive_K)
    return column, said.source if num_known else "fallback"

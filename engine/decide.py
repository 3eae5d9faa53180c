"""From request to Decision: the whole path in one function.

features → rules without models → survivors → model scores → score → rank → explore → Decision

Every step works on columns of all candidates at once; a value of the whole request is a column of length one.
`tests/engine/naive_decide.py` is the same path row by row, and defines it.
Legend: K candidates, S survivors of the drop rules, N ranked ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engine.experiment import UNASSIGNED, hash01
from engine.feature_source import missing_batch
from engine.model import Model
from engine.request import Request, request_columns
from engine.scorer import Scored, score
from engine.strategy import CompiledLet, CompiledRule, CompiledStrategy, Explore, Strategy
from engine.table import CompiledTable
from features.expr import Column, evaluate
from features.read_plan import ReadPlan
from features.records import Decision, ModelOutput
from features.rows import FeatureBatch, to_served

SCORE_NOT_FINITE = "score_not_finite"
_NO_KEY: dict[str, str | int] = {"string": "", "int": -1}  # read in place of a null key, then thrown away


class Features(Protocol):
    """Where features come from; None means that they cannot be had now (engine/feature_source.py)."""

    def read(
        self, plan: ReadPlan, keys: Mapping[str, Sequence[str | int]], as_of_ms: int
    ) -> dict[str, FeatureBatch] | None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveStrategy:
    """A compiled strategy with what it needs to run now. `models` is by the name of the use; None is "no champion yet".

    `broken_models` are uses whose champion is there but must not serve. `read_after` are the columns that survivors need.
    """

    compiled: CompiledStrategy
    plan: ReadPlan
    models: Mapping[str, Model | None]
    broken_models: frozenset[str]
    read_after: frozenset[str]


def decide(
    live: LiveStrategy,
    request: Request,
    features: Features,
    *,
    budget_ms: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Decision:
    """Choose among the candidates of one request.

    `budget_ms` is what the caller still waits: no model is asked for longer. Deterministic in what was read and what the
    models said: the draw is a hash of (decision_id, salt).
    """
    compiled, strategy = live.compiled, live.compiled.strategy
    started = clock()
    num_candidates = request.num_candidates

    # Request, parameters of its arms, features: all columns that are known before anything is decided.
    columns = request_columns(compiled, request)
    arms, params = _assign(compiled, request, columns)
    batches, store_answered, fresh = _read_features(live, request, features)
    for role, batch in batches.items():
        for name in batch.names:
            columns[f"{role}.{name}"] = Column(batch.columns[name], batch.valid[name])
    _compute(compiled.steps_before, columns)

    # Rules without models: the first one that holds drops the candidate, later ones do not look at it any more.
    alive_K = np.ones(num_candidates, dtype=bool)
    fired_K = np.zeros(num_candidates, dtype=np.int64)
    unknown_K = np.zeros(num_candidates, dtype=np.int64)
    reasons: list[str | None] = [None] * num_candidates
    for rule in compiled.drops:
        holds_K, unsure_K = _condition(rule, columns, num_candidates)
        unknown_K[unsure_K & alive_K] |= 1 << rule.bit
        dropped_K = holds_K & alive_K
        fired_K[dropped_K] |= 1 << rule.bit
        alive_K &= ~dropped_K
        for row in np.flatnonzero(dropped_K).tolist():
            reasons[row] = rule.id

    # From here on only survivors: models, names that need models, score, and the rules that adjust it.
    survivors_S = np.flatnonzero(alive_K)
    num_survivors = len(survivors_S)
    if num_survivors < num_candidates:
        columns = {name: _take(columns[name], survivors_S, num_candidates) for name in live.read_after}
    left_ms = budget_ms - (clock() - started) * 1000.0
    outputs, model_problem = _ask_models(live, columns, survivors_S, num_candidates, left_ms, clock)
    _compute(compiled.steps_after, columns)
    score_S, known_S = _score(compiled, columns, survivors_S, fired_K, unknown_K)

    # Rank, explore, draw.
    for row in survivors_S[~known_S].tolist():
        reasons[row] = SCORE_NOT_FINITE
    ranked = _rank(strategy, request, survivors_S[known_S].tolist(), score_S[known_S].tolist())
    kept = ranked[: strategy.rank.keep]
    chances = propensities(strategy.explore, [best for _, best in kept])
    chosen = draw(chances, hash01(strategy.explore.salt, request.decision_id))

    scores: list[float | None] = [None] * num_candidates
    propensity = [0.0] * num_candidates
    for row, value in ranked:
        scores[row] = value
    for (row, _), chance in zip(kept, chances, strict=True):
        propensity[row] = chance
    return Decision(
        decision_id=request.decision_id,
        order_id=request.order_id,
        round_id=request.round_id,
        city=request.city,
        product=request.product,
        strategy=strategy.name,
        strategy_version=strategy.version,
        strategy_hash=strategy.hash,
        as_of_ms=request.as_of_ms,
        event_time_ms=request.as_of_ms,
        request={name: request.values[name] for name in strategy.request},
        candidate_key=strategy.candidate_key,
        candidate_ids=list(request.candidate_ids),
        candidates={
            name: list(values) for name, values in request.candidates.items() if name != strategy.candidate_key
        },
        features={role: to_served(batch) for role, batch in batches.items()},
        model_outputs=outputs,
        scores=scores,
        propensities=propensity,
        survivors=[value is not None for value in scores],
        reasons=reasons,
        fired=fired_K.tolist(),
        unknown=unknown_K.tolist(),
        chosen=None if chosen is None else kept[chosen][0],
        decided_by="fallback" if not store_answered else "explore" if chosen else "rank",
        quality="full" if store_answered and fresh and not model_problem else "degraded",
        salt=strategy.explore.salt,
        schema_fingerprint=compiled.schema_fingerprint,
        arms=arms,
        layers_read=list(compiled.layers_read),
        params=params,
    )


def _compute(steps: Sequence[CompiledLet | CompiledTable], columns: dict[str, Column]) -> None:
    """The named values and tables, into `columns`."""
    for step in steps:
        if isinstance(step, CompiledLet):
            columns[step.name] = evaluate(step.program, columns)
        else:
            columns.update(step.lookup(columns))


def propensities(explore: Explore, scores: Sequence[float]) -> list[float]:
    """The chance of each kept candidate, best first; they add up to 1 (to rounding), or are none.

    math.exp and a plain sum in ranking order, not NumPy's: the same doubles on every machine, so a Decision replays.
    """
    if not scores:
        return []
    if explore.kind == "epsilon":
        each = explore.epsilon / len(scores)
        return [1.0 - explore.epsilon + each, *([each] * (len(scores) - 1))]
    if explore.kind == "softmax":
        weights = [math.exp((value - scores[0]) / explore.temperature) for value in scores]
        total = sum(weights)
        return [weight / total for weight in weights]
    return [1.0, *([0.0] * (len(scores) - 1))]


def draw(chances: Sequence[float], u: float) -> int | None:
    """The first place whose cumulated chance exceeds u in [0, 1). None when there is nothing to choose."""
    total = 0.0
    last: int | None = None
    for place, chance in enumerate(chances):
        if chance > 0.0:
            last = place
            total += chance
            if u < total:
                return place
    return last  # rounding left the sum below u


def _assign(
    compiled: CompiledStrategy, request: Request, columns: dict[str, Column]
) -> tuple[dict[str, str], dict[str, Any]]:
    """The arm of every experiment, and the parameters as they then are (also put into `columns`)."""
    columns.update(compiled.param_columns)
    arms: dict[str, str] = {}
    params = dict(compiled.param_values)
    for split in compiled.arms:
        experiment = split.experiment
        arm = split.bucketing.arm_of(experiment.salt, str(request.values[experiment.unit]))
        if arm != UNASSIGNED:
            arms[experiment.name] = experiment.arms[arm].name
            columns.update(split.columns[arm])
            params.update(split.values[arm])
    return arms, params


def _read_features(
    live: LiveStrategy, request: Request, features: Features
) -> tuple[dict[str, FeatureBatch], bool, bool]:
    """Batches by role, whether the store answered, and whether every view is being kept up to date."""
    roles = live.compiled.strategy.roles
    if not roles:
        return {}, True, True
    generations = {plan.role: plan.generation for plan in live.plan.roles}
    keys: dict[str, Sequence[str | int]] = {}
    keyless = set()
    for role in roles:
        if role.per_candidate:
            keys[role.name] = request.candidates[role.key]
        elif (key := request.values[role.key]) is not None:
            keys[role.name] = [key]
        else:
            keyless.add(role.name)
            keys[role.name] = [_NO_KEY[role.view.entity.type]]
    batches = features.read(live.plan, keys, request.as_of_ms)
    if batches is None:
        return (
            {role.name: missing_batch(role, generations[role.name], len(keys[role.name])) for role in roles},
            False,
            False,
        )
    through = {role.name: batches[role.name].applied_through_ms for role in roles}
    fresh = all(
        (known := through[role.name]) is not None and request.as_of_ms - known <= role.view.max_age_ms for role in roles
    )
    for role in roles:
        if role.name in keyless:
            batches[role.name] = missing_batch(role, generations[role.name], 1)
    return batches, True, fresh


def _condition(rule: CompiledRule, columns: Mapping[str, Column], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a condition holds and where it is unknown. Shapes: (num_rows,) bool each."""
    found = evaluate(rule.condition, columns, num_rows=num_rows)
    return found.values & found.valid, ~found.valid


def _take(column: Column, rows: np.ndarray, num_rows: int) -> Column:
    """The column of the survivors; a value of the whole request stays as it is.

    With one candidate the two cannot be told apart and need not be: it is gone or it is all there is.
    """
    if len(column.values) != num_rows:
        return column
    return Column(column.values[rows], column.valid[rows], None if column.error is None else column.error[rows])


def _ask_models(
    live: LiveStrategy,
    columns: dict[str, Column],
    survivors_S: np.ndarray,
    num_candidates: int,
    left_ms: float,
    clock: Callable[[], float],
) -> tuple[dict[str, ModelOutput], bool]:
    """Every model's answer as a column under its name and as the record of it; whether one was late or failed."""
    outputs: dict[str, ModelOutput] = {}
    problem = False
    num_survivors = len(survivors_S)
    for use in live.compiled.strategy.models.values():
        model = live.models[use.name]
        asked = clock()
        said = score(model, columns, num_survivors, budget_ms=min(use.deadline_ms, left_ms), clock=clock)
        left_ms -= (clock() - asked) * 1000.0
        problem |= said.problem is not None or use.name in live.broken_models
        column, source = _with_fallback(live.compiled, use.name, said, columns, num_survivors)
        columns[use.name] = column
        values: list[float | None] = [None] * num_candidates
        for row, value, known in zip(survivors_S.tolist(), column.values.tolist(), column.valid.tolist(), strict=True):
            values[row] = value if known else None
        outputs[use.name] = ModelOutput(
            model=model.ref if model else f"{use.model}@{use.version}",
            model_hash=model.hash if model else None,
            source=source,
            values=values,
        )
    return outputs, problem


def _with_fallback(
    compiled: CompiledStrategy, name: str, said: Scored, columns: Mapping[str, Column], num_rows: int
) -> tuple[Column, Any]:
    """Put `on_late` where the model said nothing. A row error of it is a plain null here: that is what the record of a
    Decision can say, and the Decision must follow from its record."""
    if name not in compiled.on_late or said.probability.valid.all():
        return said.probability, said.source
    stand_in = evaluate(compiled.on_late[name], columns, num_rows=num_rows)
    known = said.probability.valid
    column = Column(np.where(known, said.probability.values, stand_in.values), known | stand_in.valid)
    return column, said.source if known.any() else "fallback"


def _score(
    compiled: CompiledStrategy,
    columns: Mapping[str, Column],
    survivors_S: np.ndarray,
    fired_K: np.ndarray,
    unknown_K: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Score and whether it is a finite number, after the rules that add and multiply, in their order.

    An adjustment whose condition or amount is unknown is not made, and says so in `unknown`.
    Shapes: survivors_S (S,) rows of K; returns (S,) float64 and (S,) bool; fired_K and unknown_K are updated.
    """
    num_rows = len(survivors_S)
    base = evaluate(compiled.score, columns, num_rows=num_rows)
    score_S = base.values.astype(np.float64)
    for rule in compiled.adjusts:
        holds_S, unsure_S = _condition(rule, columns, num_rows)
        amounts = [
            (operation, evaluate(program, columns, num_rows=num_rows))
            for operation, program in ((np.add, rule.add), (np.multiply, rule.multiply))
            if program is not None
        ]
        for _, amount in amounts:
            unsure_S = unsure_S | (holds_S & ~amount.valid)
        for operation, amount in amounts:
            with np.errstate(all="ignore"):  # an overflow is a score that is not finite: said below
                score_S = np.where(holds_S & ~unsure_S, operation(score_S, amount.values), score_S)
        fired_K[survivors_S[holds_S & ~unsure_S]] |= 1 << rule.bit
        unknown_K[survivors_S[unsure_S]] |= 1 << rule.bit
    return score_S, base.valid & np.isfinite(score_S)


def _rank(strategy: Strategy, request: Request, rows: list[int], scores: list[float]) -> list[tuple[int, float]]:
    """(row, score), best first; equal scores by the ties field ascending, then by key."""
    ties, ids = request.candidates[strategy.rank.ties], request.candidate_ids
    return sorted(zip(rows, scores, strict=True), key=lambda pair: (-pair[1], ties[pair[0]], ids[pair[0]]))

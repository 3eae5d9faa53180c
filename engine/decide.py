"""From request to Decision: the whole path in one function.

features → rules without models → survivors → model scores → score → rank → explore → Decision

Every step works on columns of all candidates at once; a value of the whole request is a column of length one.
`tests/engine/naive_decide.py` is the same path row by row, and defines it; `engine/inputs.py` is where everything besides
the request comes from, `engine/rules.py` what runs the rules.
Legend: K candidates, N ranked ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from engine.experiment import hash01
from engine.inputs import Features, Inputs, LiveInputs, LiveStrategy, add_features
from engine.propensity import draw, propensities
from engine.request import Request
from engine.rules import KEPT, After, Before
from engine.strategy import CompiledStrategy, Strategy
from engine.wire_values import is_time, to_wire
from features.expr import Column
from features.records import Decision
from features.rows import to_served

__all__ = ["SCORE_NOT_FINITE", "UNKNOWN", "Features", "LiveStrategy", "decide", "decide_from"]

SCORE_NOT_FINITE: Final = "score_not_finite"
UNKNOWN: Final = "unknown:"  # before the id of a `fail_row` rule that could not tell


def decide(
    live: LiveStrategy,
    request: Request,
    features: Features,
    *,
    budget_ms: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    killed: int = 0,
) -> Decision:
    """Choose among the candidates of one request.

    `budget_ms` is what the caller still waits: no model is asked for longer. `killed` has the bits of the rules that are
    switched off. Deterministic in what was read and what the models said: the draw is a hash of (decision_id, salt).
    """
    inputs = LiveInputs(
        live=live, request=request, features=features, budget_ms=budget_ms, clock=clock, started=clock()
    )
    return decide_from(live, request, inputs, killed)


def decide_from(live: LiveStrategy, request: Request, inputs: Inputs, killed: int) -> Decision:
    """The same, wherever everything besides the request comes from: now, or the record of a Decision."""
    compiled, strategy = live.compiled, live.compiled.strategy

    # Request, parameters of its arms, features: all columns that are known before anything is decided.
    assignment = inputs.assign()
    served = inputs.read_features()
    columns = {**request.columns, **assignment.columns}
    add_features(columns, live, served.batches)

    # Rules without models, the models for whoever is left, then the score and the rules that adjust it.
    before = live.rules.before(columns, request.num_candidates, killed)
    said = inputs.ask_models(columns, before.alive_K)
    after = live.rules.after(columns, before.alive_K, killed)

    # Rank, explore, draw.
    survives_K = before.alive_K & after.known_K
    ranked_N = _rank(strategy, request, survives_K, after.score_K)
    kept = ranked_N[: strategy.rank.keep]
    chances = propensities(strategy.explore, after.score_K[kept].tolist())
    chosen = draw(chances, hash01(strategy.explore.salt, request.decision_id))
    propensity_K = np.zeros(request.num_candidates)
    propensity_K[kept] = chances

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
        request=dict(request.fields),
        candidate_key=strategy.candidate_key,
        candidate_ids=list(request.candidate_ids),
        candidates={
            name: list(values) for name, values in request.candidates.items() if name != strategy.candidate_key
        },
        features={role: to_served(batch) for role, batch in served.batches.items()},
        model_outputs=said.outputs,
        scores=Column(after.score_K, survives_K).tolist(),
        propensities=propensity_K.tolist(),
        survivors=survives_K.tolist(),
        reasons=_reasons(strategy, before, after, survives_K),
        fired=(before.fired_K | np.where(before.alive_K, after.fired_K, 0)).tolist(),
        unknown=(before.unknown_K | np.where(before.alive_K, after.unknown_K, 0)).tolist(),
        chosen=None if chosen is None else int(kept[chosen]),
        decided_by="fallback" if not served.answered else "explore" if chosen else "rank",
        quality="full" if served.answered and served.fresh and not said.problem else "degraded",
        salt=strategy.explore.salt,
        schema_fingerprint=compiled.schema_fingerprint,
        arms=assignment.arms,
        layers_read=list(compiled.layers_read),
        params=assignment.params,
        outputs=_outputs(compiled, after, survives_K),
        killed=[rule.id for bit, rule in enumerate(strategy.rules) if killed >> bit & 1],
    )


def _rank(strategy: Strategy, request: Request, survives_K: np.ndarray, score_K: np.ndarray) -> np.ndarray:
    """Rows of the survivors, best first; equal scores by the ties field ascending, then by key. Shapes: returns (N,)."""
    rows_N = np.flatnonzero(survives_K)
    order_N = np.argsort(-score_K[rows_N], kind="stable")
    rows_N = rows_N[order_N]
    scores_N = score_K[rows_N]
    same = scores_N[1:] == scores_N[:-1]
    if not same.any():
        return rows_N
    ties, ids = request.candidates[strategy.rank.ties], request.candidate_ids
    score_of = score_K.tolist()
    return np.array(sorted(rows_N.tolist(), key=lambda row: (-score_of[row], ties[row], ids[row])), dtype=np.int64)


def _reasons(strategy: Strategy, before: Before, after: After, survives_K: np.ndarray) -> list[str | None]:
    """Why each candidate was dropped: a rule's id, `unknown:` and the id of a rule that could not tell, or its score."""
    if survives_K.all():
        return [None] * len(survives_K)
    num_rules = len(strategy.rules)
    texts = np.array(
        [
            None,
            *(rule.id for rule in strategy.rules),
            *(UNKNOWN + rule.id for rule in strategy.rules),
            SCORE_NOT_FINITE,
        ],
        dtype=object,
    )
    fired_K = before.fired_K >> np.maximum(before.dropped_by_K, 0) & 1
    dropped_K = before.dropped_by_K + np.where(fired_K == 1, 1, 1 + num_rules)
    failed_K = np.where(after.failed_by_K == KEPT, 2 * num_rules, after.failed_by_K + num_rules) + 1
    code_K = np.where(before.alive_K, np.where(survives_K, 0, failed_K), dropped_K)
    reasons: list[str | None] = texts[code_K].tolist()
    return reasons


def _outputs(compiled: CompiledStrategy, after: After, survives_K: np.ndarray) -> dict[str, list[Any]]:
    """The named outputs of the survivors; null for the others, and for a double that JSON cannot say."""
    out: dict[str, list[Any]] = {}
    for named in compiled.outputs:
        column = after.outputs[named.name]
        valid_K = column.valid & survives_K
        if column.values.dtype == np.float64:
            valid_K &= np.isfinite(column.values)
        plain = Column(column.values, valid_K).tolist()
        kind = named.program.type
        out[named.name] = [to_wire(value, kind) for value in plain] if is_time(kind) else plain
    return out

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
from typing import Any

import numpy as np

from engine.experiment import hash01
from engine.inputs import SCORE_NOT_FINITE, UNKNOWN, Features, Inputs, LiveInputs, LiveStrategy, Reasons, add_features
from engine.propensity import draw, propensities
from engine.request import Request
from engine.rules import KEPT, After, Before
from engine.strategy import CompiledStrategy, Rank
from engine.wire_values import is_time, to_list, to_wire
from features.records import Decision
from features.rows import to_served

__all__ = ["SCORE_NOT_FINITE", "UNKNOWN", "Features", "LiveStrategy", "decide", "decide_from", "reason_codes"]


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
    rows_N = survives_K.nonzero()[0]
    scores_N = after.score_K[rows_N]
    kept, best_first = _rank(strategy.rank, request, rows_N, scores_N)
    chances = propensities(strategy.explore, best_first)
    chosen = draw(chances, hash01(strategy.explore.salt, request.decision_id))
    propensity = [0.0] * request.num_candidates
    for row, chance in zip(kept, chances, strict=True):
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
        request=request.fields,
        candidate_key=strategy.candidate_key,
        candidate_ids=request.candidate_ids,
        candidates=request.others,
        features=served.records or {role: to_served(batch) for role, batch in served.batches.items()},
        model_outputs=said.outputs,
        scores=_spread(rows_N, scores_N, request.num_candidates),
        propensities=propensity,
        survivors=survives_K.tolist(),
        reasons=_reasons(live.reasons, before, after),
        fired=(before.fired_K | after.fired_K * before.alive_K).tolist(),
        unknown=(before.unknown_K | after.unknown_K * before.alive_K).tolist(),
        chosen=None if chosen is None else kept[chosen],
        decided_by="fallback" if not served.answered else "explore" if chosen else "rank",
        quality="full" if served.answered and served.fresh and not said.problem else "degraded",
        salt=strategy.explore.salt,
        schema_fingerprint=compiled.schema_fingerprint,
        arms=assignment.arms,
        layers_read=list(compiled.layers_read),
        params=assignment.params,
        outputs=_outputs(compiled, after, survives_K),
        killed=[rule.id for bit, rule in enumerate(strategy.rules) if killed >> bit & 1] if killed else [],
    )


def _rank(rank: Rank, request: Request, rows_N: np.ndarray, scores_N: np.ndarray) -> tuple[list[int], list[float]]:
    """The rows that are kept and their scores, best first; equal scores by the ties field ascending, then by key."""
    falls_N = -scores_N
    order_N = falls_N.argsort()
    falls_N = falls_N[order_N]
    ranked: list[int] = rows_N[order_N].tolist()
    equal_N = falls_N[1:] == falls_N[:-1]
    if np.count_nonzero(equal_N):
        ties, ids = request.candidates[rank.ties], request.candidate_ids
        ends_N = np.append((~equal_N).nonzero()[0] + 1, len(ranked))  # where a run of equal scores is over
        start = 0
        for end in ends_N.tolist():
            if end - start > 1:
                ranked[start:end] = sorted(ranked[start:end], key=lambda row: (ties[row], ids[row]))
            start = end
    return ranked[: rank.keep], (-falls_N[: rank.keep]).tolist()


def _spread(rows_N: np.ndarray, values_N: np.ndarray, num_candidates: int) -> list[float | None]:
    """Values of some rows as a list of all: None for the others."""
    values: list[float | None] = values_N.tolist()
    if len(values) == num_candidates:
        return values
    out: list[float | None] = [None] * num_candidates
    for row, value in zip(rows_N.tolist(), values, strict=True):
        out[row] = value
    return out


def _reasons(texts: Reasons, before: Before, after: After) -> list[str | None]:
    """Why each candidate was dropped: a rule's id, `unknown:` and the id of a rule that could not tell, or its score."""
    reasons: list[str | None] = texts.texts.take(reason_codes(texts, before, after)).tolist()
    return reasons


def reason_codes(texts: Reasons, before: Before, after: After) -> np.ndarray:
    """The same as places in `texts.texts`. Shapes: returns (K,) int16."""
    dropped_by_K, alive_K = before.dropped_by_K, before.alive_K
    code_K = dropped_by_K + np.int16(1)
    if texts.may_fail:
        held_K = before.fired_K >> np.where(alive_K, 0, dropped_by_K) & 1
        code_K[(held_K == 0) & ~alive_K] += texts.num_rules
    failed_K = alive_K & ~after.known_K
    if np.count_nonzero(failed_K):
        by_K = after.failed_by_K[failed_K]
        code_K[failed_K] = np.where(by_K == KEPT, 2 * texts.num_rules, by_K + texts.num_rules) + 1
    return code_K


def _outputs(compiled: CompiledStrategy, after: After, survives_K: np.ndarray) -> dict[str, list[Any]]:
    """The named outputs of the survivors; null for the others, and for a double that JSON cannot say."""
    out: dict[str, list[Any]] = {}
    for named in compiled.outputs:
        column = after.outputs[named.name]
        valid_K = column.valid & survives_K
        if column.values.dtype == np.float64:
            valid_K &= np.isfinite(column.values)
        plain = to_list(column.values, valid_K)
        kind = named.program.type
        out[named.name] = [to_wire(value, kind) for value in plain] if is_time(kind) else plain
    return out

"""The meaning of `engine/decide.py`, one candidate after the other with the row interpreter. Slow and obvious."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.decide import LiveStrategy
from engine.experiment import hash64
from engine.request import Request
from features.expr import ROW_ERROR, Program, interpret, interpret_marked
from features.rows import FeatureBatch


def naive_decide(live: LiveStrategy, request: Request, batches: Mapping[str, FeatureBatch]) -> dict[str, Any]:
    """What a Decision must say of survivors, reasons, bits, scores, propensities, outputs, arms and the chosen one.

    `batches` are the features as they were served. Models are asked once for all survivors, in order, as decide does:
    a matrix product may differ in the last bit by the number of rows.
    """
    compiled, strategy = live.compiled, live.compiled.strategy
    params, arms = _params(live, request)
    rows = [_values(live, request, batches, params, row) for row in range(request.num_candidates)]
    reasons: list[str | None] = [None] * len(rows)
    fired, unknown = [0] * len(rows), [0] * len(rows)

    for row, values in enumerate(rows):
        for step in compiled.steps_before:
            values[step.name] = _let(step.program, values)
        for rule in compiled.drops:
            holds = interpret(rule.condition, values)
            if holds is None:
                unknown[row] |= 1 << rule.bit
            elif holds:
                fired[row] |= 1 << rule.bit
                reasons[row] = rule.id
                break

    survivors = [row for row in range(len(rows)) if reasons[row] is None]
    outputs = {use: _probabilities(live, use, rows, survivors) for use in strategy.models}
    scores: list[float | None] = [None] * len(rows)
    for row in survivors:
        values = rows[row]
        for use in strategy.models:
            values[use] = outputs[use][row]
        for step in compiled.steps_after:
            values[step.name] = _let(step.program, values)
        score = interpret(compiled.score, values)
        for rule in compiled.adjusts:
            holds = interpret(rule.condition, values)
            amounts = [interpret(p, values) if p is not None else None for p in (rule.add, rule.multiply)]
            missing = [
                p is not None and found is None for p, found in zip((rule.add, rule.multiply), amounts, strict=True)
            ]
            if holds is None or (holds and any(missing)):
                unknown[row] |= 1 << rule.bit
                continue
            if holds:
                fired[row] |= 1 << rule.bit
                if score is not None:
                    score = score if amounts[0] is None else score + amounts[0]
                    score = score if amounts[1] is None else score * amounts[1]
        if score is None or not math.isfinite(score):
            reasons[row] = "score_not_finite"
        else:
            scores[row] = float(score)

    ties = request.candidates[strategy.rank.ties]
    ranked = sorted(
        (row for row in survivors if scores[row] is not None),
        key=lambda row: (-scores[row], ties[row], request.candidate_ids[row]),  # type: ignore[operator]
    )
    kept = ranked[: strategy.rank.keep]
    chances = _chances(strategy.explore, [scores[row] for row in kept])
    propensities = [0.0] * len(rows)
    for row, chance in zip(kept, chances, strict=True):
        propensities[row] = chance
    u = (hash64(strategy.explore.salt, request.decision_id) >> 11) / 2**53
    chosen, total = None, 0.0
    for row, chance in zip(kept, chances, strict=True):
        total += chance
        if chance > 0 and u < total:
            chosen = row
            break
    return {
        "chosen": chosen,
        "reasons": reasons,
        "fired": fired,
        "unknown": unknown,
        "scores": scores,
        "propensities": propensities,
        "survivors": [score is not None for score in scores],
        "params": params,
        "arms": arms,
        "outputs": outputs,
    }


def _let(program: Program, values: Mapping[str, Any]) -> Any:
    """What a name stands for: its value, or the row error that what reads it then has, too."""
    value, failed = interpret_marked(program, values)
    return ROW_ERROR if failed else value


def _params(live: LiveStrategy, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    params = {param.name: param.default for param in live.compiled.strategy.params.values()}
    arms = {}
    for split in live.compiled.arms:
        experiment = split.experiment
        bucket = hash64(experiment.salt, str(request.values[experiment.unit])) >> 40
        owner = [
            arm for start, arm in zip(split.bucketing.starts, split.bucketing.arms, strict=True) if start <= bucket
        ]
        if owner[-1] >= 0:
            arm = experiment.arms[owner[-1]]
            arms[experiment.name] = arm.name
            params |= arm.set
    return params, arms


def _values(
    live: LiveStrategy, request: Request, batches: Mapping[str, FeatureBatch], params: Mapping[str, Any], row: int
) -> dict[str, Any]:
    values = dict(request.values)
    values |= {name: column[row] for name, column in request.candidates.items()}
    values |= {f"params.{name}": value for name, value in params.items()}
    for role in live.compiled.strategy.roles:
        found = batches[role.name].row(row if role.per_candidate else 0)
        values |= {f"{role.name}.{name}": value for name, value in found.items()}
    return values


def _probabilities(
    live: LiveStrategy, use: str, rows: list[dict[str, Any]], survivors: list[int]
) -> list[float | None]:
    out: list[float | None] = [None] * len(rows)
    model = live.models[use]
    if model is not None:
        x = [[_input(program, fill, rows[row]) for _, program, fill in model.program.columns] for row in survivors]
        matrix = np.array(x, dtype=np.float32).reshape(len(survivors), len(model.program.columns))
        for row, probability in zip(survivors, model.run(matrix).tolist(), strict=True):
            out[row] = probability if math.isfinite(probability) else None
    if use in live.compiled.on_late:
        for row in survivors:
            if out[row] is None:
                stand_in = interpret(live.compiled.on_late[use], rows[row])
                out[row] = None if stand_in is None else float(stand_in)
    return out


def _input(program: Any, fill: float, values: Mapping[str, Any]) -> float:
    found = interpret(program, values)
    return fill if found is None else float(found)


def _chances(explore: Any, scores: list[Any]) -> list[float]:
    if not scores:
        return []
    if explore.kind == "softmax":
        weights = [math.exp((score - scores[0]) / explore.temperature) for score in scores]
        return [weight / sum(weights) for weight in weights]
    if explore.kind == "epsilon":
        return [explore.epsilon / len(scores) + (1 - explore.epsilon) * (at == 0) for at in range(len(scores))]
    return [float(at == 0) for at in range(len(scores))]

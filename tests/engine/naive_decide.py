"""The meaning of `engine/decide.py`, one candidate after the other with the row interpreter. Slow and obvious."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.decide import LiveStrategy
from engine.experiment import hash64
from engine.request import Request
from engine.strategy import CompiledLet, CompiledRule
from engine.table import CompiledTable, look_up_row
from features.expr import ROW_ERROR, Program, Type, interpret, interpret_marked
from features.rows import FeatureBatch
from tests.engine.naive_assignment import arm_or_why


def naive_decide(
    live: LiveStrategy, request: Request, batches: Mapping[str, FeatureBatch], killed: int = 0
) -> dict[str, Any]:
    """What a Decision must say of survivors, reasons, bits, scores, propensities, outputs, arms and the chosen one.

    `batches` are the features as they were served. Models are asked once for all survivors, in order, as decide does:
    a matrix product may differ in the last bit by the number of rows. `probabilities` are what the models said.
    """
    compiled, strategy = live.compiled, live.compiled.strategy
    params, arms = _params(live, request)
    rows = [_values(live, request, batches, params, row) for row in range(request.num_candidates)]
    reasons: list[str | None] = [None] * len(rows)
    fired, unknown = [0] * len(rows), [0] * len(rows)

    for row, values in enumerate(rows):
        _run_steps(compiled.steps_before, values)
        for rule in compiled.drops:
            if killed >> rule.bit & 1:
                continue
            holds, unsure = _holds(rule, values)
            fired[row] |= holds << rule.bit
            unknown[row] |= unsure << rule.bit
            if holds or (unsure and rule.on_unknown == "fail_row"):
                reasons[row] = rule.id if holds else f"unknown:{rule.id}"
                break

    survivors = [row for row in range(len(rows)) if reasons[row] is None]
    probabilities = {use: _probabilities(live, use, rows, survivors) for use in strategy.models}
    scores: list[float | None] = [None] * len(rows)
    outputs: dict[str, list[Any]] = {named.name: [None] * len(rows) for named in compiled.outputs}
    for row in survivors:
        values = rows[row]
        for use in strategy.models:
            values[use] = probabilities[use][row]
        _run_steps(compiled.steps_after, values)
        score = _number(interpret(compiled.score, values))
        for rule in compiled.adjusts:
            if killed >> rule.bit & 1:
                continue
            holds, unsure = _holds(rule, values)
            amounts = {
                name: _number(interpret(program, values))
                for name, program in (("set", rule.set), ("add", rule.add), ("multiply", rule.multiply))
                if program is not None
            }
            if holds and None in amounts.values():
                holds, unsure = False, True
            fired[row] |= holds << rule.bit
            unknown[row] |= unsure << rule.bit
            if unsure and rule.on_unknown == "fail_row":
                reasons[row] = f"unknown:{rule.id}"
                break
            if holds:
                score = _adjusted(score, amounts)
        if reasons[row] is None and (score is None or not math.isfinite(score)):
            reasons[row] = "score_not_finite"
        if reasons[row] is None:
            scores[row] = score
            for named in compiled.outputs:
                outputs[named.name][row] = _output(interpret(named.program, values), named.program.type)

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
        if chance > 0:
            chosen, total = row, total + chance
            if u < total:
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
        "killed": [rule.id for bit, rule in enumerate(strategy.rules) if killed >> bit & 1],
        "probabilities": probabilities,
    }


def _run_steps(steps: Sequence[CompiledLet | CompiledTable], values: dict[str, Any]) -> None:
    """The named values and tables of one candidate, into `values`."""
    for step in steps:
        if isinstance(step, CompiledLet):
            values[step.name] = _let(step.program, values)
        else:
            values |= look_up_row(step.table, values)


def _holds(rule: CompiledRule, values: Mapping[str, Any]) -> tuple[bool, bool]:
    """(whether the condition counts as true, whether it could not be told)."""
    found = interpret(rule.condition, values)
    return (rule.on_unknown == "fire", True) if found is None else (bool(found), False)


def _adjusted(score: float | None, amounts: Mapping[str, float | None]) -> float | None:
    for name, amount in amounts.items():
        assert amount is not None
        if name == "set":
            score = amount
        elif score is not None:
            score = score + amount if name == "add" else score * amount
    return score


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _microseconds(value: Any, kind: Type) -> Any:
    """A candidate's value as the language sees it: times are sent in milliseconds."""
    if value is None or not kind.kind.startswith(("timestamp", "duration", "list(timestamp", "list(duration")):
        return value
    return [item * 1000 for item in value] if isinstance(value, list) else value * 1000


def _output(value: Any, kind: Type) -> Any:
    """As JSON says it: times in milliseconds, no double that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or not kind.kind.startswith(("timestamp", "duration", "list(timestamp", "list(duration")):
        return value
    return [item // 1000 for item in value] if isinstance(value, list) else value // 1000


def _let(program: Program, values: Mapping[str, Any]) -> Any:
    """What a name stands for: its value, or the row error that what reads it then has, too."""
    value, failed = interpret_marked(program, values)
    return ROW_ERROR if failed else value


def _params(live: LiveStrategy, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    params = {param.name: param.default for param in live.compiled.strategy.params.values()}
    arms = {}
    for split in live.compiled.arms:
        experiment = split.experiment
        known = {**request.values, "as_of": request.as_of_ms * 1000}
        if split.where is not None and interpret(split.where, known) is not True:
            continue
        unit = request.values[experiment.region if experiment.kind == "switchback" else experiment.unit]
        layer = live.compiled.strategy.layers.get(experiment.layer)
        found = arm_or_why(experiment, layer, str(unit), request.as_of_ms)
        arms[experiment.name] = found
        params |= next((arm.set for arm in experiment.arms if arm.name == found), {})
    return params, arms


def _values(
    live: LiveStrategy, request: Request, batches: Mapping[str, FeatureBatch], params: Mapping[str, Any], row: int
) -> dict[str, Any]:
    values = dict(request.values)
    for name, kind in live.compiled.strategy.candidate_fields.items():
        values[name] = _microseconds(request.candidates[name][row], kind)
    values |= {f"params.{name}": value for name, value in params.items()}
    for role in live.compiled.strategy.roles:
        found = batches[role.name].row(row if role.per_candidate else 0)
        values |= {f"{role.name}.{name}": None if value != value else value for name, value in found.items()}
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
        return [weight / math.fsum(weights) for weight in weights]
    if explore.kind == "top_k_softmax":
        weights = [math.exp((score - scores[0]) / explore.temperature) for score in scores]
        weights = [weight if at < explore.top_k else 0.0 for at, weight in enumerate(weights)]
        return [weight / math.fsum(weights) for weight in weights]
    if explore.kind == "epsilon":
        return [explore.epsilon / len(scores) + (1 - explore.epsilon) * (at == 0) for at in range(len(scores))]
    return [float(at == 0) for at in range(len(scores))]

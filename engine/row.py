"""A strategy for one candidate at a time, by the row interpreter: what `explain`, flips and coverage reason with.

`run_row` is the meaning of the rules of `engine/rules.py` for one row of values. It asks no model: what a model said is a
value like any other, as it stands in the record of a Decision. `recorded_rows` gets such rows out of a Decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.decide import SCORE_NOT_FINITE, UNKNOWN
from engine.strategy import CompiledLet, CompiledRule, CompiledStrategy, Table
from engine.table import CompiledTable, look_up_row, match_rows
from engine.wire_values import US_PER_MS, from_wire
from features.expr import ROW_ERROR, Program, interpret, interpret_marked
from features.expr.program import Step
from features.records import Decision
from features.rows import FeatureBatch, Status, from_served


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """One step of a score: `operation` is set, add or multiply; `score` is what it came to."""

    rule: str
    operation: str
    amount: float
    score: float


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """What the rules make of one candidate. `score` is None where `reason` is not, `base` is the score before any rule.

    `alive`: no drop rule dropped it, so it was scored. `values` has every name that was computed on the way, ROW_ERROR for
    one that failed; `reached` the bits of the rules that looked at this candidate.
    """

    reason: str | None
    alive: bool
    score: float | None
    base: float | None
    fired: int
    unknown: int
    reached: int
    adjustments: tuple[Adjustment, ...]
    outputs: Mapping[str, Any]
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One value of a record. `status` is a feature's status, else where the value is from: `request`, `candidate`,
    `parameter`, or a model and its source."""

    name: str
    value: Any
    status: str


def run_row(compiled: CompiledStrategy, given: Mapping[str, Any], *, killed: int = 0) -> RowResult:
    """Drop rules, then score and the rules that change it, for one candidate.

    `given` has every name that a strategy does not compute itself, models too; a name that is not there is null.
    """
    values = _with_steps(compiled.steps_before, _Given(given))
    fired = unknown = reached = 0
    for rule in compiled.drops:
        if killed >> rule.bit & 1:
            continue
        reached |= 1 << rule.bit
        held, unsure = _holds(rule, values)
        unknown |= unsure << rule.bit
        fired |= held << rule.bit
        if held or (unsure and rule.on_unknown == "fail_row"):
            reason = rule.id if held else f"{UNKNOWN}{rule.id}"
            return _dropped(reason, fired, unknown, reached, values)
    values = _with_steps(compiled.steps_after, values)
    base = _number(interpret(compiled.score, values))
    score, failed = base, None  # a score that is set is known from there on
    trail: list[Adjustment] = []
    for rule in compiled.adjusts:
        if killed >> rule.bit & 1:
            continue
        reached |= 1 << rule.bit
        held, unsure = _holds(rule, values)
        amounts = _amounts(rule, values) if held else []
        if any(amount is None for _, amount in amounts):
            held, unsure = 0, 1
        unknown |= unsure << rule.bit
        fired |= held << rule.bit
        if unsure and rule.on_unknown == "fail_row":
            failed = f"{UNKNOWN}{rule.id}"
            break
        for operation, amount in amounts if held else ():
            assert amount is not None
            if score is not None or operation == "set":
                score = _apply(operation, score, amount)
                trail.append(Adjustment(rule=rule.id, operation=operation, amount=amount, score=score))
    if failed is None and (score is None or not math.isfinite(score)):
        failed = SCORE_NOT_FINITE
    outputs = {output.name: interpret(output.program, values) for output in compiled.outputs}
    return RowResult(
        reason=failed,
        alive=True,
        score=None if failed else score,
        base=base,
        fired=fired,
        unknown=unknown,
        reached=reached,
        adjustments=tuple(trail),
        outputs=outputs if failed is None else dict.fromkeys(outputs),
        values=values,
    )


def table_row(table: Table, values: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The rows of a table that count for one candidate: all that match for `collect`, else the first. Empty: a gap; None:
    an input failed."""
    if any(values[name] is ROW_ERROR for name in table.inputs):
        return None
    found = match_rows(table, values)
    return tuple(found if table.hit == "collect" else found[:1])


def part_of(program: Program, step: Step) -> Program:
    """One step of a program as a program of its own."""
    names = frozenset(str(inner.value) for inner in step.walk() if inner.step == "name")
    return Program(step.type, names, program.source, step)


def recorded_rows(decision: Decision, compiled: CompiledStrategy) -> list[dict[str, Any]]:
    """What `run_row` needs, for every candidate of a Decision: values by name, as the language has them."""
    batches = {role: from_served(served) for role, served in decision.features.items()}
    return [recorded_row(decision, compiled, row, batches) for row in range(len(decision.candidate_ids))]


def recorded_row(
    decision: Decision, compiled: CompiledStrategy, row: int, batches: Mapping[str, FeatureBatch] | None = None
) -> dict[str, Any]:
    """The same for one candidate."""
    strategy = compiled.strategy
    values = {one.name: one.value for one in recorded(decision, row, batches)}
    for name, kind in (*strategy.request.items(), *strategy.candidate_fields.items()):
        values[name] = from_wire(values.get(name), kind)
    return values | {"as_of": decision.as_of_ms * US_PER_MS}


def recorded(decision: Decision, row: int, batches: Mapping[str, FeatureBatch] | None = None) -> Iterator[Recorded]:
    """All that the record knows of one candidate, under the names of the strategy. `batches` are the features, unpacked."""
    if batches is None:
        batches = {role: from_served(served) for role, served in decision.features.items()}
    for name in ("order_id", "city", "product"):
        yield Recorded(name=name, value=getattr(decision, name), status="request")
    for name, value in decision.request.items():
        yield Recorded(name=name, value=value, status="request")
    yield Recorded(name=decision.candidate_key, value=decision.candidate_ids[row], status="candidate")
    for name, column in decision.candidates.items():
        yield Recorded(name=name, value=column[row], status="candidate")
    for name, value in decision.params.items():
        yield Recorded(name=f"params.{name}", value=value, status="parameter")
    for role, batch in batches.items():
        at = row if batch.num_rows == len(decision.candidate_ids) else 0  # a role of the request has one row
        values = batch.row(at)
        for column_at, name in enumerate(batch.names):
            status = Status(batch.statuses[at, column_at]).name.lower()
            value = values[name]  # a NaN that arrives as a feature is null from there on
            known = None if isinstance(value, float) and math.isnan(value) else value
            yield Recorded(name=f"{role}.{name}", value=known, status=status)
    for name, output in decision.model_outputs.items():
        yield Recorded(name=name, value=output.values[row], status=f"{output.model}, {output.source}")


class _Given(dict[str, Any]):
    """Values by name; a name that nobody gave is null."""

    def __missing__(self, name: str) -> None:
        return None


def _with_steps(steps: tuple[CompiledLet | CompiledTable, ...], values: Mapping[str, Any]) -> _Given:
    """The values with the named values and tables of `steps` among them."""
    out = _Given(values)
    for step in steps:
        if isinstance(step, CompiledLet):
            value, failed = interpret_marked(step.program, out)
            out[step.name] = ROW_ERROR if failed else value
        else:
            out.update(look_up_row(step.table, out))
    return out


def _holds(rule: CompiledRule, values: Mapping[str, Any]) -> tuple[int, int]:
    """(whether the condition counts as true, whether it is null or failed), as bits."""
    found = interpret(rule.condition, values)
    if found is None:
        return int(rule.on_unknown == "fire"), 1
    return int(found), 0


def _amounts(rule: CompiledRule, values: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    """What the rule does to a score, in order; None for an amount that is null or failed."""
    programs: list[tuple[str, Program | None]] = [("set", rule.set), ("add", rule.add), ("multiply", rule.multiply)]
    return [(name, _number(interpret(program, values))) for name, program in programs if program is not None]


def _apply(operation: str, score: float | None, amount: float) -> float:
    if operation == "set" or score is None:
        return amount
    return score + amount if operation == "add" else score * amount


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _dropped(reason: str, fired: int, unknown: int, reached: int, values: Mapping[str, Any]) -> RowResult:
    return RowResult(
        reason=reason,
        alive=False,
        score=None,
        base=None,
        fired=fired,
        unknown=unknown,
        reached=reached,
        adjustments=(),
        outputs={},
        values=values,
    )

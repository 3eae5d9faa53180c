"""A Decision again, from nothing but its record: request, features as served, arms, parameters, what the models said.

`redecide` runs the same `decide_from` as a live request, so an unchanged strategy gives the same Decision to the bit, and a
changed one what it would have made of the same facts. What was seen and not computed is taken over as it was: whether the
store answered, whether something was late or out of date. Re-scoring with a model is another question (its matrix
products may differ in the last bit), and not asked here.
`rows_of` is the same for many Decisions at once: their candidates as the rows of one batch.
Legend: D decisions, K candidates of one, R candidates of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.decide import decide_from
from engine.experiment import Assignment
from engine.inputs import LiveStrategy, Said, Served
from engine.request import Request, build
from engine.strategy import CompiledStrategy
from engine.wire_values import column_of_wire, to_column
from features.expr import DOUBLE, Column, Type
from features.records import Decision, ModelOutput
from features.rows import FeatureBatch, from_served


def redecide(live: LiveStrategy, decision: Decision) -> Decision:
    """Decide again on what the record says. `live.models` are not asked.

    Raises: RequestError where the record does not fit the strategy (a field that another version declared).
    """
    request = request_of(live.compiled, decision)
    return decide_from(live, request, Recorded(live.compiled, decision), killed_bits(live.compiled, decision.killed))


def request_of(compiled: CompiledStrategy, decision: Decision) -> Request:
    """The request that a Decision answered. A field that the strategy declares and the record lacks is null.

    Raises: RequestError.
    """
    sent = {**decision.candidates, decision.candidate_key: decision.candidate_ids}
    fields = {name: decision.request.get(name) for name in compiled.strategy.request}
    return build(compiled, decision, fields, {name: sent.get(name) for name in compiled.strategy.candidate_fields})


def killed_bits(compiled: CompiledStrategy, ids: Sequence[str]) -> int:
    """The bits of the rules that were switched off; a rule that is gone since has none."""
    return sum(1 << bit for bit, rule in enumerate(compiled.strategy.rules) if rule.id in ids)


@dataclass(frozen=True)
class Recorded:
    """`engine.inputs.Inputs` of a Decision's record."""

    compiled: CompiledStrategy
    decision: Decision

    def assign(self) -> Assignment:
        """The arms as they were; a parameter that the record lacks has its default."""
        decision, known = self.decision, self.compiled.strategy.params
        columns = dict(self.compiled.param_columns)
        for name, value in decision.params.items():
            if name in known:
                columns[f"params.{name}"] = to_column([value], Type(known[name].type, False))
        return Assignment(arms=dict(decision.arms), columns=columns, params=dict(decision.params))

    def read_features(self) -> Served:
        decision = self.decision
        return Served(
            batches={role: from_served(served) for role, served in decision.features.items()},
            records=dict(decision.features),
            answered=decision.decided_by != "fallback",
            fresh=decision.quality == "full",
        )

    def ask_models(self, columns: dict[str, Column], alive_K: np.ndarray) -> Said:
        """What was said; of a candidate that is dropped now nothing, as a live model is not asked about it."""
        outputs: dict[str, ModelOutput] = {}
        for name in self.compiled.strategy.models:
            columns[name], outputs[name] = said_of(self.compiled, name, self.decision, alive_K)
        return Said(outputs=outputs, problem=self.decision.quality == "degraded")


def said_of(
    compiled: CompiledStrategy, name: str, decision: Decision, alive_K: np.ndarray
) -> tuple[Column, ModelOutput]:
    """The column of a model's answers, and the record of it; all null for a model that the strategy had not then."""
    output = decision.model_outputs.get(name)
    if output is None:
        use = compiled.strategy.models[name]
        said: list[float | None] = [None] * len(alive_K)
        return to_column(said, DOUBLE), ModelOutput(
            model=f"{use.model}@{use.version}", model_hash=None, source="absent", values=said
        )
    said = [value if alive else None for value, alive in zip(output.values, alive_K.tolist(), strict=True)]
    recorded = ModelOutput(model=output.model, model_hash=output.model_hash, source=output.source, values=said)
    return to_column(said, DOUBLE), recorded


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The candidates of many Decisions after each other. Shapes: columns (R,); starts (D + 1,): decision d has the rows
    [starts[d], starts[d + 1])."""

    columns: dict[str, Column]
    starts: np.ndarray


def rows_of(compiled: CompiledStrategy, decisions: Sequence[Decision]) -> Rows:
    """Every name that the rules read, for all candidates of the Decisions, as `RuleRunner` takes it: what a whole request
    shares is repeated for its candidates. Models are among the columns, as recorded.

    The Decisions need the same rules switched off, for a runner is told once; and at least one, none without candidates.
    Raises: KeyError for a field, feature or parameter that the records lack.
    """
    strategy = compiled.strategy
    sizes_D = np.array([len(decision.candidate_ids) for decision in decisions], dtype=np.int64)
    columns: dict[str, Column] = {}
    for name, kind, shared in _shared(compiled, decisions):
        columns[name] = _repeated(column_of_wire(shared, kind), sizes_D)
    for name, kind in strategy.candidate_fields.items():
        key = name == strategy.candidate_key
        columns[name] = column_of_wire(
            [value for d in decisions for value in (d.candidate_ids if key else d.candidates[name])], kind
        )
    for role in strategy.roles:
        batches = [from_served(decision.features[role.name]) for decision in decisions]
        for spec in role.view.features:
            column = _joined(batches, spec.name)
            columns[f"{role.name}.{spec.name}"] = column if role.per_candidate else _repeated(column, sizes_D)
    for name in strategy.models:
        said = [_values_of(decision, name) for decision in decisions]
        columns[name] = to_column([value for values in said for value in values], DOUBLE)
    return Rows(columns=columns, starts=np.concatenate(([0], np.cumsum(sizes_D))))


def _shared(compiled: CompiledStrategy, decisions: Sequence[Decision]) -> list[tuple[str, Type, list[Any]]]:
    """(name, type, a value per Decision) of what a whole request shares, as it was sent."""
    envelope = {"order_id": "order_id", "city": "city", "product": "product", "as_of": "as_of_ms"}
    out = [
        (name, compiled.names[name], [getattr(decision, field) for decision in decisions])
        for name, field in envelope.items()
        if name in compiled.names
    ]
    out += [
        (name, kind, [decision.request[name] for decision in decisions])
        for name, kind in compiled.strategy.request.items()
        if name not in envelope
    ]
    for param in compiled.strategy.params.values():
        values = [decision.params[param.name] for decision in decisions]
        out.append((f"params.{param.name}", Type(param.type, False), values))
    return out


def _values_of(decision: Decision, model: str) -> list[float | None]:
    output = decision.model_outputs.get(model)
    return [None] * len(decision.candidate_ids) if output is None else output.values


def _repeated(column: Column, sizes_D: np.ndarray) -> Column:
    return Column(np.repeat(column.values, sizes_D), np.repeat(column.valid, sizes_D))


def _joined(batches: Sequence[FeatureBatch], name: str) -> Column:
    """One feature of all batches; a NaN is null, as in a live decision."""
    values = np.concatenate([batch.columns[name] for batch in batches])
    valid = np.concatenate([batch.valid[name] for batch in batches])
    return Column(values, valid & (values == values) if values.dtype == np.float64 else valid)

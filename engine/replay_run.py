"""A block of logged Decisions through a strategy: what `decide` would say of each, all candidates as the rows of one batch.

`replay_one` defines it, slowly: the one function `decide_from` on the record of one Decision, with its arms assigned anew. `replay_block`
is the same for thousands of candidates, equal to the bit: rules by a `RuleRunner`, `engine/replay_rank.py` ranks and draws.
Models are not asked: what one said is taken from the record, and what `on_late` put in its place is computed again, for it
belongs to the strategy.
Legend: D decisions, R candidates of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from engine.decide import decide_from, reason_codes
from engine.experiment import HELD_OUT, HOLDOUT, NOT_EXPOSED, Assignment
from engine.experiment_log import assign_many, reassign
from engine.inputs import SCORE_NOT_FINITE, UNKNOWN, LiveStrategy, Reasons, Said, reasons_of
from engine.redecide import Recorded, killed_bits, request_of
from engine.replay_block import NO_ROW, SOURCES, Block
from engine.replay_fit import Fitted
from engine.replay_rank import Ranked, choose_block, rank_rows
from engine.rules import After, Before, RuleRunner
from engine.strategy import CompiledArms, CompiledLet, CompiledStrategy
from engine.wire_values import to_column, to_list
from features.expr import Column, Type, evaluate
from features.records import Decision, ModelOutput

OUTSIDE: Final = -3  # of a side, besides HELD_OUT and UNEXPOSED: `where` is not true
_MODEL: Final = SOURCES.index("model")


@dataclass(frozen=True, kw_only=True, eq=False)
class Assigned:
    """The arms of all decisions. `distinct` are the (arms, params) that occur, `place_D` (D,) which one a decision has;
    `columns` the parameters by `params.name` over `distinct`."""

    distinct: list[tuple[dict[str, str], dict[str, Any]]]
    place_D: np.ndarray
    columns: dict[str, Column]


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """What a strategy makes of a block. `reason_R` are places in `reasons.texts`; `chosen_D` a place among the decision's own
    candidates, NO_ROW for nobody. `unresolved_D`: it depends on something that the log lacks, so nothing is said of it.
    """

    assigned: Assigned
    before: Before
    after: After
    survives_R: np.ndarray
    reasons: Reasons
    reason_R: np.ndarray
    fired_R: np.ndarray
    unknown_R: np.ndarray
    ranked: Ranked
    propensity_R: np.ndarray
    chosen_D: np.ndarray
    unresolved_D: np.ndarray


def replay_one(live: LiveStrategy, decision: Decision) -> Decision:
    """The Decision that the strategy would make of the recorded facts, its own parameters and experiments.

    Raises: RequestError where the strategy would refuse the request.
    """
    request = request_of(live.compiled, decision)
    inputs = Assigning(live.compiled, decision)
    return decide_from(live, request, inputs, killed_bits(live.compiled, decision.killed))


@dataclass(frozen=True)
class Assigning(Recorded):
    """The record of a Decision, besides what is the strategy's own: arms, and what stands in for a silent model."""

    def assign(self) -> Assignment:
        return reassign(self.compiled, self.decision)

    def ask_models(self, columns: dict[str, Column], alive_K: np.ndarray) -> Said:
        said = super().ask_models(columns, alive_K)
        for name, output in self.decision.model_outputs.items():
            if name not in self.compiled.on_late or name not in columns:
                continue
            stand_in = evaluate(self.compiled.on_late[name], columns, num_rows=len(alive_K))
            silent_K = np.array([output.source != "model" or value is None for value in output.values])
            known = columns[name]
            valid_K = np.where(silent_K, stand_in.valid & alive_K, known.valid)
            columns[name] = Column(np.where(silent_K, stand_in.values, known.values), valid_K)
            said.outputs[name] = ModelOutput(
                model=output.model, model_hash=output.model_hash, source=output.source, values=columns[name].tolist()
            )
        return said


def replay_block(compiled: CompiledStrategy, rules: RuleRunner, fitted: Fitted) -> Replayed:
    """All decisions of a block. `fitted.blocked` must be empty: without arms there is nothing to replay."""
    block = fitted.block
    columns = dict(fitted.columns)
    assigned = assign_block(compiled, fitted)
    place_R = assigned.place_D[block.decision_of_R]
    for name, column in assigned.columns.items():
        columns[name] = Column(column.values[place_R], column.valid[place_R])
    killed = killed_bits(compiled, block.killed)

    before = rules.before(columns, block.num_rows, killed)
    gaps = _add_models(compiled, fitted, columns, before.alive_K)
    gaps |= {name: np.ones(block.num_rows, dtype=np.bool_) for name in fitted.lacking}
    after = rules.after(columns, before.alive_K, killed)

    survives_R = before.alive_K & after.known_K
    reasons = reasons_of(compiled)
    ranked = rank_rows(block, compiled.strategy.rank.ties, survives_R, after.score_K)
    propensity_R, chosen_D = choose_block(compiled.strategy.explore, compiled.strategy.rank.keep, block, ranked, after)
    return Replayed(
        assigned=assigned,
        before=before,
        after=after,
        survives_R=survives_R,
        reasons=reasons,
        reason_R=reason_codes(reasons, before, after),
        fired_R=before.fired_K | after.fired_K * before.alive_K,
        unknown_R=before.unknown_K | after.unknown_K * before.alive_K,
        ranked=ranked,
        propensity_R=propensity_R,
        chosen_D=chosen_D,
        unresolved_D=_unresolved(compiled, block, gaps, before, after),
    )


def assign_block(compiled: CompiledStrategy, fitted: Fitted) -> Assigned:
    """`assign` for every decision. Shapes: `Assigned`."""
    block, strategy = fitted.block, compiled.strategy
    if not compiled.arms:
        params = dict(compiled.param_values)
        place_D = np.zeros(block.num_decisions, dtype=np.int64)
        return Assigned(distinct=[({}, params)], place_D=place_D, columns=dict(compiled.param_columns))
    sides_DE = np.stack([_sides(compiled, split, fitted) for split in compiled.arms], axis=1)
    found, place_D = np.unique(sides_DE, axis=0, return_inverse=True)
    distinct = [_assignment(compiled, sides) for sides in found.tolist()]
    columns = {
        f"params.{param.name}": to_column([params[param.name] for _, params in distinct], Type(param.type, False))
        for param in strategy.params.values()
    }
    return Assigned(distinct=distinct, place_D=place_D.reshape(-1), columns=columns)


def _sides(compiled: CompiledStrategy, split: CompiledArms, fitted: Fitted) -> np.ndarray:
    """The arm of every decision in one experiment. Shapes: returns (D,) int16."""
    experiment = split.experiment
    column = fitted.shared[experiment.region if experiment.kind == "switchback" else experiment.unit]
    units = [str(value) for value in column.tolist()]
    layer = compiled.strategy.layers.get(experiment.layer)
    sides_D = assign_many(experiment, layer, units, fitted.block.as_of_ms_D)
    if split.where is not None:
        inside = evaluate(split.where, fitted.shared, num_rows=len(units))
        sides_D[~(inside.valid & inside.values)] = OUTSIDE
    return sides_D


def _assignment(compiled: CompiledStrategy, sides: Sequence[int]) -> tuple[dict[str, str], dict[str, Any]]:
    arms: dict[str, str] = {}
    params = dict(compiled.param_values)
    for split, side in zip(compiled.arms, sides, strict=True):
        if side == OUTSIDE:
            continue
        if side >= 0:
            arms[split.experiment.name] = split.experiment.arms[side].name
            params |= split.values[side]
        else:
            arms[split.experiment.name] = HOLDOUT if side == HELD_OUT else NOT_EXPOSED
    return arms, params


def _add_models(
    compiled: CompiledStrategy, fitted: Fitted, columns: dict[str, Column], alive_R: np.ndarray
) -> dict[str, np.ndarray]:
    """A column under every model's name; a row error where the log does not know what it would have said.

    That is: nobody asked it (the strategy had no such use of it), or not about this candidate, which a rule had dropped.
    Shapes: returns by model (R,) bool, the rows with such an error, where there is one.
    """
    block = fitted.block
    lacking = _reached(compiled, fitted.lacking)
    gaps: dict[str, np.ndarray] = {}
    for name in compiled.strategy.models:
        said = block.models.get(name)
        if said is None or not _is_model(compiled, name, said.model):
            columns[name] = Column(np.zeros(block.num_rows), np.zeros(block.num_rows, dtype=np.bool_), alive_R.copy())
            gaps[name] = alive_R
            continue
        silent_R = (said.source_D != _MODEL)[block.decision_of_R]
        asked_R = silent_R | said.valid | _asked(compiled, block)
        known_R = said.valid & ~silent_R
        values_R, valid_R = said.values, known_R & alive_R
        missing_R = alive_R & ~asked_R
        if name in compiled.on_late and (open_R := alive_R & asked_R & ~known_R).any():
            stand_in = evaluate(compiled.on_late[name], columns, num_rows=block.num_rows)
            values_R = np.where(open_R, stand_in.values, values_R)
            valid_R = np.where(open_R, stand_in.valid, valid_R)
            if stand_in.error is not None and compiled.on_late[name].names & lacking:  # any other failure is a null
                missing_R |= open_R & stand_in.error
        if missing_R.any():
            gaps[name] = missing_R
        columns[name] = Column(values_R, valid_R, gaps.get(name))
    return gaps


def lacking_models(compiled: CompiledStrategy, block: Block) -> dict[str, str]:
    """Models of the strategy that the log says nothing of, with the reason."""
    out: dict[str, str] = {}
    for name, use in compiled.strategy.models.items():
        said = block.models.get(name)
        if said is None:
            out[name] = f"model {name}: it was not asked"
        elif not _is_model(compiled, name, said.model):
            out[name] = f"model {name} was {said.model} in the log, {use.model}@{use.version} now"
    return out


def _is_model(compiled: CompiledStrategy, name: str, logged: str) -> bool:
    """Whether what is logged as `model@version` is what the strategy means: a champion is whichever was it then."""
    use = compiled.strategy.models[name]
    model, _, version = logged.partition("@")
    return model == use.model and use.version in ("champion", version)


def _asked(compiled: CompiledStrategy, block: Block) -> np.ndarray:
    """The rows that no drop rule had dropped when they were logged. An `unknown:` rule that is gone since counts as a drop rule.

    Shapes: returns (R,) bool.
    """
    adjusts = {rule.id for rule in compiled.adjusts}
    asked = [text == SCORE_NOT_FINITE or text.removeprefix(UNKNOWN) in adjusts for text in block.reasons]
    return np.array([*asked, True])[block.reason_R]  # the last one is for -1, no reason


def _unresolved(
    compiled: CompiledStrategy, block: Block, gaps: Mapping[str, np.ndarray], before: Before, after: After
) -> np.ndarray:
    """Decisions of which a candidate's outcome may hang on what the log lacks: what reads it could not tell, or failed.

    `gaps` are the rows (R,) in which a name is missing. Shapes: returns (D,) bool.
    """
    out_D = np.zeros(block.num_decisions, dtype=np.bool_)
    alive_R = before.alive_K
    for name, missing_R in gaps.items():
        bits, scores, outputs = _readers(compiled, name)
        unsure_R = (before.unknown_K & bits) != 0
        unsure_R |= alive_R & ((after.unknown_K & bits) != 0)
        if scores:
            unsure_R |= alive_R & ~after.known_K
        for output in outputs:
            if (error := after.outputs[output].error) is not None:
                unsure_R |= alive_R & error
        out_D[block.decision_of_R[missing_R & unsure_R]] = True
    return out_D


def _readers(compiled: CompiledStrategy, name: str) -> tuple[int, bool, list[str]]:
    """(bits of the rules, whether the score, which outputs) that read a name, by themselves or through lets and tables."""
    reached = _reached(compiled, [name])
    bits = 0
    for rule in (*compiled.drops, *compiled.adjusts):
        programs = (rule.condition, rule.set, rule.add, rule.multiply)
        if any(program is not None and program.names & reached for program in programs):
            bits |= 1 << rule.bit
    outputs = [named.name for named in compiled.outputs if named.program.names & reached]
    return bits, bool(compiled.score.names & reached), outputs


def _reached(compiled: CompiledStrategy, names: Iterable[str]) -> set[str]:
    """The names, and the lets, tables and stand-ins that are made of them."""
    reached = set(names)
    for step in (*compiled.steps_before, *compiled.steps_after):  # each stands after what it reads
        if isinstance(step, CompiledLet):
            reached |= {step.name} if step.program.names & reached else set()
        elif reached & set(step.table.inputs):
            reached |= {f"{step.name}.{output}" for output in step.table.outputs}
    return reached


def decision_again(compiled: CompiledStrategy, block: Block, replayed: Replayed, at: int) -> Decision:
    """One Decision of the block as the strategy now makes it, without its named outputs and with the models as logged."""
    rows = slice(int(block.starts[at]), int(block.starts[at + 1]))
    arms, params = replayed.assigned.distinct[int(replayed.assigned.place_D[at])]
    chosen = int(replayed.chosen_D[at])
    strategy, survives_K = compiled.strategy, replayed.survives_R[rows]
    return msgspec.structs.replace(
        block.decision(at),
        strategy_version=strategy.version,
        strategy_hash=strategy.hash,
        survivors=survives_K.tolist(),
        scores=to_list(replayed.after.score_K[rows], survives_K),
        propensities=replayed.propensity_R[rows].tolist(),
        reasons=replayed.reasons.texts[replayed.reason_R[rows]].tolist(),
        fired=replayed.fired_R[rows].tolist(),
        unknown=replayed.unknown_R[rows].tolist(),
        chosen=None if chosen == NO_ROW else chosen,
        salt=strategy.explore.salt,
        arms=dict(arms),
        params=dict(params),
        outputs={},
    )


def outputs_as_logged(
    compiled: CompiledStrategy, after: After, survives_R: np.ndarray
) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """The named outputs as a Decision records them: (values, valid), doubles that JSON cannot say among the nulls."""
    out = {}
    for named in compiled.outputs:
        column = after.outputs[named.name]
        valid_R = column.valid & survives_R
        if column.values.dtype == np.float64:
            valid_R &= np.isfinite(column.values)
        out[named.name] = (column.values, valid_R)
    return out

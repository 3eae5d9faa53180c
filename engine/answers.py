"""What the engine says: the answer to a decision, and what is live. `engine/WIRE.md` shows both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.inputs import LiveStrategy
from engine.reload import Live
from engine.rule_forms import COLUMNS, RuleForms
from engine.shadow import ShadowCount
from features.records import Decision


def answer_of(decision: Decision, ties: str) -> dict[str, Any]:
    """What the caller gets of a Decision (WIRE.md). `ties` is the strategy's field that orders equal scores."""
    ids, scores = decision.candidate_ids, decision.scores
    order = decision.candidates.get(ties, ids)
    ranked = sorted((-value, order[row], ids[row]) for row, value in enumerate(scores) if value is not None)
    return {
        "decision_id": decision.decision_id,
        "strategy": decision.strategy,
        "strategy_version": decision.strategy_version,
        "strategy_hash": decision.strategy_hash,
        "chosen": decision.chosen,
        "chosen_id": None if decision.chosen is None else ids[decision.chosen],
        "ranking": [identifier for _, _, identifier in ranked],
        "scores": scores,
        "propensities": decision.propensities,
        "survivors": decision.survivors,
        "reasons": decision.reasons,
        "decided_by": decision.decided_by,
        "quality": decision.quality,
        "models": {
            name: {"model": output.model, "model_hash": output.model_hash, "source": output.source}
            for name, output in decision.model_outputs.items()
        },
        "arms": decision.arms,
        "as_of_ms": decision.as_of_ms,
        "applied_through_ms": {role: served.applied_through_ms for role, served in decision.features.items()},
    }


def strategies_of(state: Live, counts: Mapping[str, ShadowCount]) -> dict[str, Any]:
    """What is live: versions, hashes, models, shadows and how often they agreed, what is switched off, and what is not
    used and why."""
    shadows = [shadow for beside in state.shadows.values() for shadow in beside]
    return {
        "generation": state.generation,
        "strategies": {name: _shown(live) for name, live in state.strategies.items()},
        "shadows": {live.compiled.name: _shown(live) | _counted(live, counts) for live in shadows},
        "switches": None if state.switches is None else list(state.switches.killed.values()),
        "errors": state.errors,
        "warnings": state.warnings,
    }


def _counted(live: LiveStrategy, counts: Mapping[str, ShadowCount]) -> dict[str, Any]:
    strategy = live.compiled.strategy
    count = counts.get(strategy.name)
    if count is None or count.hash != strategy.hash:
        count = ShadowCount(hash=strategy.hash)
    return {"decided": count.decided, "agreed": count.agreed, "undecided": dict(count.undecided)}


def _shown(live: LiveStrategy) -> dict[str, Any]:
    strategy = live.compiled.strategy
    shown = {
        "version": strategy.version,
        "hash": strategy.hash,
        "file": strategy.file,
        "scope": strategy.scope,
        "candidate_key": strategy.candidate_key,
        "rules": live.rules.state if isinstance(live.rules, RuleForms) else COLUMNS,
        "models": {
            use: None if model is None else {"model": model.ref, "model_hash": model.hash}
            for use, model in live.models.items()
        },
        "experiments": {
            split.experiment.name: {arm.name: arm.share for arm in split.experiment.arms}
            for split in live.compiled.arms
        },
    }
    return shown if strategy.shadow_of is None else shown | {"shadow_of": strategy.shadow_of}

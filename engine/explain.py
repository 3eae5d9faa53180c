"""Why a candidate was chosen, ranked or dropped, from a Decision's record: "why not driver X".

Everything that is said stands in the record; the strategy is needed only to give the bits of `fired` and `unknown` their
names, so it must be the very version that decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.decide import SCORE_NOT_FINITE
from engine.strategy import Strategy, StrategyError
from features.records import Decision
from features.rows import Status, from_served


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What became of one candidate. `rank` counts from 1, among survivors; None for a dropped one.

    `features` are (name, value as served, status); `fired` and `unknown` are rule ids.
    """

    candidate: str
    outcome: str
    rank: int | None
    score: float | None
    propensity: float
    fired: tuple[str, ...]
    unknown: tuple[str, ...]
    models: dict[str, float | None]
    features: tuple[tuple[str, Any, str], ...]


def explain(decision: Decision, strategy: Strategy, candidate: str) -> Explanation:
    """Explain one candidate of a Decision.

    Raises: StrategyError when the strategy is not the version that decided, KeyError when there was no such candidate.
    """
    if (strategy.name, strategy.hash) != (decision.strategy, decision.strategy_hash):
        raise StrategyError(
            f"the decision was made by {decision.strategy} version {decision.strategy_version} "
            f"({decision.strategy_hash[:12]}…), not by {strategy.name} version {strategy.version} ({strategy.hash[:12]}…)"
        )
    if candidate not in decision.candidate_ids:
        raise KeyError(f"decision {decision.decision_id} had no candidate '{candidate}'")
    row = decision.candidate_ids.index(candidate)
    ties = decision.candidates.get(strategy.rank.ties, decision.candidate_ids)
    ranked = sorted(
        (-score, ties[at], decision.candidate_ids[at], at)
        for at, score in enumerate(decision.scores)
        if score is not None
    )
    rank = next((place for place, (*_, at) in enumerate(ranked, start=1) if at == row), None)
    return Explanation(
        candidate=candidate,
        outcome=_outcome(decision, strategy, row, rank),
        rank=rank,
        score=decision.scores[row],
        propensity=decision.propensities[row],
        fired=_rules(strategy, decision.fired[row]),
        unknown=_rules(strategy, decision.unknown[row]),
        models={name: output.values[row] for name, output in decision.model_outputs.items()},
        features=_features(decision, strategy, row),
    )


def _outcome(decision: Decision, strategy: Strategy, row: int, rank: int | None) -> str:
    """One sentence."""
    reason = decision.reasons[row]
    if reason == SCORE_NOT_FINITE:
        return "dropped: its score is not a finite number"
    if reason is not None:
        why = next((rule.why for rule in strategy.rules if rule.id == reason), "")
        return f"dropped by rule {reason}" + (f": {why}" if why else "")
    place = f"ranked {rank} of {sum(decision.survivors)}"
    chance = decision.propensities[row]
    if decision.chosen == row:
        drawn = "as the best" if rank == 1 else "by the draw, ahead of better ones"
        return f"{place} and chosen {drawn} (chance {chance:.3g})"
    if chance == 0.0:
        return f"{place} and not kept: it could not be chosen"
    return f"{place} and not chosen (chance {chance:.3g})"


def _rules(strategy: Strategy, mask: int) -> tuple[str, ...]:
    return tuple(rule.id for bit, rule in enumerate(strategy.rules) if mask >> bit & 1)


def _features(decision: Decision, strategy: Strategy, row: int) -> tuple[tuple[str, Any, str], ...]:
    out = []
    per_candidate = {role.name: role.per_candidate for role in strategy.roles}
    for role, served in decision.features.items():
        batch = from_served(served)
        at = row if per_candidate[role] else 0
        values = batch.row(at)
        out += [
            (f"{role}.{name}", values[name], Status(batch.statuses[at, f]).name.lower())
            for f, name in enumerate(batch.names)
        ]
    return tuple(out)

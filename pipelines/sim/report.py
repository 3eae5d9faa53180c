"""What a simulation's truth says of its decisions: acceptance by arm, and how good a model could be at best.

Everything here is computed from `truth.TruthRecord`s. A first offer is the offer of round 1. How good a probability is
has one definition, `pipelines/training/evaluate.py`, so that figures of a live model and of its training compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.sim.truth import TruthRecord
from pipelines.training.evaluate import auc, log_loss

Z_95 = 1.959963984540054


@dataclass(frozen=True, kw_only=True)
class Share:
    """`successes` of `trials`, with the 95 % Wilson interval; NaN where there was no trial."""

    successes: int
    trials: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Share of one arm minus another's, with Newcombe's 95 % interval."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """How well the best possible model (the truth itself) does on the offers that were made.

    `rules_like` is the mean true chance of those who were chosen, `oracle` that of the best candidate of each decision.
    """

    offers: int
    base_rate: float
    base_log_loss: float
    best_auc: float
    best_log_loss: float
    rules_like: float
    oracle: float


def wilson(successes: int, trials: int) -> Share:
    """A share and its 95 % interval. Raises: ValueError for counts that cannot be."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials cannot be")
    if trials == 0:
        return Share(successes=0, trials=0, share=math.nan, low=math.nan, high=math.nan)
    share, square = successes / trials, Z_95**2 / trials
    centre = (share + square / 2) / (1 + square)
    half = Z_95 / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return Share(
        successes=successes, trials=trials, share=share, low=max(0.0, centre - half), high=min(1.0, centre + half)
    )


def difference(ours: Share, theirs: Share) -> Difference:
    """`ours` minus `theirs` of two independent groups, by Newcombe's hybrid of the two Wilson intervals."""
    delta = ours.share - theirs.share
    return Difference(
        difference=delta,
        low=delta - math.hypot(ours.share - ours.low, theirs.high - theirs.share),
        high=delta + math.hypot(ours.high - ours.share, theirs.share - theirs.low),
    )


def first_offers(records: Iterable[TruthRecord], *, since_ms: int | None = None) -> list[TruthRecord]:
    """Round 1 decisions that led to an offer, at or after `since_ms`."""
    return [
        record
        for record in records
        if record.round_id == 1 and record.chosen is not None and (since_ms is None or record.as_of_ms >= since_ms)
    ]


def acceptance_by_arm(records: Sequence[TruthRecord], experiment: str) -> dict[str, Share]:
    """Acceptance of the offers by arm of one experiment, in alphabetical order; orders outside it are the group `-`."""
    answers: dict[str, list[bool]] = {}
    for record in records:
        if record.chosen is not None:
            answers.setdefault(record.arms.get(experiment, "-"), []).append(record.answer == "accepted")
    return {name: wilson(sum(found), len(found)) for name, found in sorted(answers.items())}


def ceiling(records: Sequence[TruthRecord]) -> Ceiling:
    """The best possible metrics on these offers. Raises: ValueError when all answers are equal, or there are none."""
    offered = [record for record in records if record.chosen is not None]
    chance_N = np.array([record.p_accept[record.chosen] for record in offered if record.chosen is not None])
    accepted_N = np.array([record.answer == "accepted" for record in offered], dtype=bool)
    base = float(accepted_N.mean()) if len(offered) else math.nan
    if not 0 < base < 1:
        raise ValueError(f"the best AUC of {len(offered)} offers with an acceptance of {base} is not defined")
    best_auc = auc(chance_N, accepted_N)
    assert best_auc is not None  # both answers are there
    return Ceiling(
        offers=len(offered),
        base_rate=base,
        base_log_loss=log_loss(np.full(len(offered), base), accepted_N),
        best_auc=best_auc,
        best_log_loss=log_loss(chance_N, accepted_N),
        rules_like=float(chance_N.mean()),
        oracle=float(np.mean([max(record.p_accept) for record in offered])),
    )

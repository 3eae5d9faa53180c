"""What a simulation's truth says of its decisions: acceptance by arm, and how good a model could be at best.

Everything here is computed from `truth.TruthRecord`s. A first offer is the offer of round 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.sim.truth import TruthRecord

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


@dataclass(frozen=True, kw_only=True)
class Band:
    """Expected calibration error of a perfectly calibrated model on so many answers: it is not 0."""

    offers: int
    median: float
    p95: float


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


def acceptance(records: Sequence[TruthRecord], group: Callable[[TruthRecord], str]) -> dict[str, Share]:
    """Acceptance of the offers in each group, groups in alphabetical order."""
    answers: dict[str, list[bool]] = {}
    for record in records:
        if record.chosen is not None:
            answers.setdefault(group(record), []).append(record.answer == "accepted")
    return {name: wilson(sum(found), len(found)) for name, found in sorted(answers.items())}


def acceptance_by_arm(records: Sequence[TruthRecord], experiment: str) -> dict[str, Share]:
    """Acceptance by arm of one experiment; orders outside it are the group `-`."""
    return acceptance(records, lambda record: record.arms.get(experiment, "-"))


def acceptance_by_model(records: Sequence[TruthRecord]) -> dict[str, Share]:
    """Acceptance by the model that scored; where none did, the group `-`."""
    return acceptance(records, lambda record: record.model or "-")


def ceiling(records: Sequence[TruthRecord]) -> Ceiling:
    """The best possible metrics on these offers. Raises: ValueError when all answers are equal, or there are none."""
    offered = [record for record in records if record.chosen is not None]
    chance_N = np.array([record.p_accept[record.chosen] for record in offered if record.chosen is not None])
    accepted_N = np.array([record.answer == "accepted" for record in offered], dtype=bool)
    base = float(accepted_N.mean()) if len(offered) else math.nan
    if not 0 < base < 1:
        raise ValueError(f"the best AUC of {len(offered)} offers with an acceptance of {base} is not defined")
    return Ceiling(
        offers=len(offered),
        base_rate=base,
        base_log_loss=log_loss(np.full(len(offered), base), accepted_N),
        best_auc=auc(chance_N, accepted_N),
        best_log_loss=log_loss(chance_N, accepted_N),
        rules_like=float(chance_N.mean()),
        oracle=float(np.mean([max(record.p_accept) for record in offered])),
    )


def auc(score_N: NDArray[np.float64], positive_N: NDArray[np.bool_]) -> float:
    """Chance that a positive scores above a negative, a tie counts half. NaN without both kinds."""
    num_positive = int(positive_N.sum())
    num_negative = len(positive_N) - num_positive
    if num_positive == 0 or num_negative == 0:
        return math.nan
    _, inverse_N, counts = np.unique(score_N, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    rank_N = (last_rank - (counts - 1) / 2)[inverse_N]
    return float((rank_N[positive_N].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def log_loss(chance_N: NDArray[np.float64], positive_N: NDArray[np.bool_]) -> float:
    """Mean negative log likelihood, in nats; chances are clipped to 1e-12."""
    clipped_N = np.clip(chance_N, 1e-12, 1 - 1e-12)
    return float(-np.mean(np.where(positive_N, np.log(clipped_N), np.log1p(-clipped_N))))


def expected_calibration_error(
    chance_N: NDArray[np.float64], positive_N: NDArray[np.bool_], *, num_bins: int = 10
) -> float:
    """Mean distance of the mean chance to the positive share, over bins of equal count, weighted by count."""
    order_N = np.argsort(chance_N, kind="stable")
    error = 0.0
    for members in np.array_split(order_N, num_bins):
        if len(members):
            error += len(members) * abs(float(chance_N[members].mean()) - float(positive_N[members].mean()))
    return error / len(chance_N)


def calibration_band(chance_N: NDArray[np.float64], *, seed: int, num_draws: int = 400, num_bins: int = 10) -> Band:
    """What a perfect model's calibration error looks like on these chances. Compare a model with this, not with 0."""
    draws = np.random.default_rng(seed)
    errors = [
        expected_calibration_error(chance_N, draws.random(len(chance_N)) < chance_N, num_bins=num_bins)
        for _ in range(num_draws)
    ]
    return Band(offers=len(chance_N), median=float(np.median(errors)), p95=float(np.quantile(errors, 0.95)))

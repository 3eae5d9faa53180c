"""The report's arithmetic against published and known values."""

from __future__ import annotations

import math

import pytest

from pipelines.sim.report import (
    acceptance_by_arm,
    ceiling,
    difference,
    first_offers,
    wilson,
)
from pipelines.sim.truth import Answer, TruthRecord


def _record(answer: Answer, p_accept: list[float], chosen: int | None = 0, **changes: object) -> TruthRecord:
    fields = {
        "decision_id": "dec",
        "order_id": "o",
        "round_id": 1,
        "as_of_ms": 0,
        "arms": {"learned_ranking": "rules"},
        "decided_by": "rank",
        "quality": "full",
        "model": None,
        "candidate_ids": [f"d-{number}" for number in range(len(p_accept))],
        "p_accept": p_accept,
        "chosen": chosen,
        "answer": answer,
    }
    return TruthRecord(**(fields | changes))  # type: ignore[arg-type]


def test_wilson_matches_the_published_example() -> None:
    """Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611."""
    share = wilson(81, 263)
    assert (round(share.low, 4), round(share.high, 4)) == (0.2553, 0.3662)
    assert (wilson(0, 20).low, round(wilson(0, 20).high, 4)) == (0.0, 0.1611)
    assert math.isnan(wilson(0, 0).share)
    with pytest.raises(ValueError, match="3 successes of 2 trials"):
        wilson(3, 2)


def test_the_interval_of_a_difference_matches_the_published_example() -> None:
    """Newcombe 1998 (difference of independent proportions), method 10: 56/70 - 48/80 gives 0.0524 to 0.3339."""
    found = difference(wilson(56, 70), wilson(48, 80))
    assert (round(found.difference, 4), round(found.low, 4), round(found.high, 4)) == (0.2, 0.0524, 0.3339)


def test_acceptance_is_grouped_by_arm() -> None:
    records = [
        _record("accepted", [0.5]),
        _record("declined", [0.5], arms={"learned_ranking": "model"}),
        _record("accepted", [0.5], arms={"learned_ranking": "model"}),
        _record("timed_out", [0.5], arms={}),
        _record("none", [0.5], chosen=None),
    ]
    arms = acceptance_by_arm(records, "learned_ranking")
    assert {name: (arm.successes, arm.trials) for name, arm in arms.items()} == {
        "-": (0, 1),
        "model": (1, 2),
        "rules": (1, 1),
    }


def test_first_offers_leave_out_later_rounds_and_decisions_without_an_offer() -> None:
    records = [
        _record("declined", [0.5], as_of_ms=5),
        _record("accepted", [0.5], round_id=2, as_of_ms=6),
        _record("none", [0.5], chosen=None, as_of_ms=7),
        _record("accepted", [0.5], as_of_ms=8),
    ]
    assert first_offers(records) == [records[0], records[3]]
    assert first_offers(records, since_ms=6) == [records[3]]


def test_the_ceiling_takes_the_best_candidate_of_each_decision() -> None:
    found = ceiling([_record("accepted", [0.6, 0.9]), _record("declined", [0.2, 0.8, 0.4], chosen=2)])
    assert (found.offers, found.base_rate, found.best_auc) == (2, 0.5, 1.0)
    assert found.rules_like == pytest.approx(0.5)
    assert found.oracle == pytest.approx(0.85)
    with pytest.raises(ValueError, match="not defined"):
        ceiling([_record("accepted", [0.6])])

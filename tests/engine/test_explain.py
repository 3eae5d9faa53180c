"""Explanations say what the record says, for every candidate, and only with the strategy that decided."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec
import pytest

from engine.decide import LiveStrategy, decide
from engine.explain import explain
from engine.request import parse
from engine.strategy import StrategyError
from features.records import Decision
from tests.engine.support import KITCHEN_SINK, RandomFeatures, catalogue_registry, compile_text, make_live, random_body


@pytest.fixture
def decided(tmp_path: Path) -> tuple[LiveStrategy, Decision]:
    registry = catalogue_registry()
    live = make_live(compile_text(KITCHEN_SINK, tmp_path, registry), registry)
    body = random_body(random.Random(11), live.compiled, 60)
    return live, decide(live, parse(live.compiled, msgspec.json.encode(body)), RandomFeatures(live.compiled, 11))


def test_every_candidate_is_explained_by_the_record(decided: tuple[LiveStrategy, Decision]) -> None:
    live, decision = decided
    strategy = live.compiled.strategy
    told = [explain(decision, strategy, candidate) for candidate in decision.candidate_ids]
    for row, one in enumerate(told):
        assert (one.score, one.propensity) == (decision.scores[row], decision.propensities[row])
        assert sum(2 ** [rule.id for rule in strategy.rules].index(rule) for rule in one.fired) == decision.fired[row]
        assert (one.rank is not None) == decision.survivors[row]
        if decision.reasons[row] is not None and decision.reasons[row] != "score_not_finite":
            assert one.outcome.startswith(f"dropped by rule {decision.reasons[row]}")
    ranks = sorted(one.rank for one in told if one.rank is not None)
    assert ranks == list(range(1, sum(decision.survivors) + 1))
    assert sum("and chosen" in one.outcome for one in told) == 1
    assert any("no routing answer" in one.outcome for one in told)
    assert any("not kept" in one.outcome for one in told) == (sum(decision.survivors) > strategy.rank.keep)
    assert {name for name, *_ in told[0].features} >= {"driver.offers", "zone.avg_fare", "to.requests"}
    assert {status for one in told for *_, status in one.features} == {"present", "null", "missing", "default"}


def test_another_version_and_an_unknown_candidate_are_refused(decided: tuple[LiveStrategy, Decision]) -> None:
    live, decision = decided
    with pytest.raises(StrategyError, match="version 3"):
        explain(decision, dataclasses.replace(live.compiled.strategy, hash="0" * 64), decision.candidate_ids[0])
    with pytest.raises(KeyError, match="no candidate 'nobody'"):
        explain(decision, live.compiled.strategy, "nobody")

"""Explanations say what the record says, for every candidate, with and without the strategy that decided."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec
import pytest

from engine.decide import LiveStrategy, decide
from engine.explain import explain
from engine.request import parse
from engine.server import SHIPPED_STRATEGIES
from features.records import Decision, decode, encode
from tests.engine.support import (
    AS_OF_MS,
    KITCHEN_SINK,
    RandomFeatures,
    catalogue_registry,
    compile_text,
    make_live,
    random_body,
    shipped_registry,
)


@pytest.fixture
def decided(tmp_path: Path) -> tuple[LiveStrategy, Decision]:
    registry = catalogue_registry()
    live = make_live(compile_text(KITCHEN_SINK, tmp_path, registry), registry)
    body = random_body(random.Random(11), live.compiled, 60)
    decision = decide(live, parse(live.compiled, msgspec.json.encode(body)), RandomFeatures(live.compiled, 11))
    return live, decode(encode(decision), Decision)  # as a reader of the topic has it


def test_every_candidate_is_explained_by_the_record(decided: tuple[LiveStrategy, Decision]) -> None:
    live, decision = decided
    strategy = live.compiled.strategy
    told = [explain(decision, candidate, live.compiled) for candidate in decision.candidate_ids]
    ids = [rule.id for rule in strategy.rules]
    for row, one in enumerate(told):
        assert (one.score, one.propensity) == (decision.scores[row], decision.propensities[row])
        assert sum(2 ** ids.index(rule) for rule in one.fired) == decision.fired[row]
        assert sum(2 ** ids.index(rule) for rule in one.unknown) == decision.unknown[row]
        assert (one.rank is not None) == decision.survivors[row]
        if decision.reasons[row] is not None and decision.reasons[row] != "score_not_finite":
            assert one.outcome.startswith(f"dropped by rule {decision.reasons[row]} because ")
        assert one.notes == ()
    ranks = sorted(one.rank for one in told if one.rank is not None)
    assert ranks == list(range(1, sum(decision.survivors) + 1))
    assert sum("and chosen" in one.outcome for one in told) == 1
    assert any("(no routing answer)" in one.outcome for one in told)
    assert any("could not be chosen" in one.outcome for one in told) == (sum(decision.survivors) > strategy.rank.keep)


def test_reads_are_what_the_rule_or_the_score_read(decided: tuple[LiveStrategy, Decision]) -> None:
    """A `let` stands for what it reads itself; parameters come with the value that the arm gave them."""
    live, decision = decided
    for row, candidate in enumerate(decision.candidate_ids):
        reads = {read.name: read for read in explain(decision, candidate, live.compiled).reads}
        if decision.reasons[row] == "too_far":
            assert set(reads) == {"eta_s", "params.max_eta_s", "distance_m"}
            assert reads["eta_s"].value == decision.candidates["eta_s"][row]
        elif decision.survivors[row]:
            assert {"driver.accept_rate", "p_accept", "p_cancel", "params.use_model", "eta_s"} <= set(reads)
            if decision.fired[row] >> 5 & 1:  # rush_hour: rush and pressure are names for these
                assert {"hour", "zone.requests", "to.requests"} <= set(reads)
            assert not {"rush", "pressure", "demand", "blend"} & set(reads)
            assert reads["driver.accept_rate"].status in {"present", "default"}
            assert reads["params.w_rate"].value == decision.params["w_rate"]
    assert {"too_far", None} <= set(decision.reasons)


@pytest.mark.parametrize("at_hand", ["nothing", "another version"])
def test_record_alone_explains_with_rules_by_place_and_all_features(
    decided: tuple[LiveStrategy, Decision], at_hand: str
) -> None:
    live, decision = decided
    other = dataclasses.replace(live.compiled, strategy=dataclasses.replace(live.compiled.strategy, hash="0" * 64))
    given = None if at_hand == "nothing" else other
    statuses = set()
    for row, candidate in enumerate(decision.candidate_ids):
        one, full = explain(decision, candidate, given), explain(decision, candidate, live.compiled)
        assert (one.score, one.propensity) == (full.score, full.propensity)
        assert (one.rank is None) == (full.rank is None)
        assert {f"rule {bit + 1}" for bit in range(9) if decision.fired[row] >> bit & 1} == set(one.fired)
        if full.rank is None:
            assert full.outcome.startswith(one.outcome)
        assert "kitchen_sink version 3" in one.notes[0]
        assert ("not at hand" if given is None else "not the one given (000000000000…)") in one.notes[0]
        names = {read.name for read in one.reads}
        assert names >= {"driver.offers", "zone.avg_fare", "to.requests", "eta_s"}
        statuses |= {read.status for read in one.reads if read.name.startswith(("driver.", "zone."))}
    assert statuses == {"present", "null", "missing", "default"}


def test_lines_of_a_dropped_and_of_a_ranked_driver(tmp_path: Path) -> None:
    registry = shipped_registry()
    text = (SHIPPED_STRATEGIES / "express_dispatch.yaml").read_text()
    live = make_live(compile_text(text, tmp_path, registry), registry)
    body = {
        "order_id": "o-1",
        "decision_id": "dec-1",
        "as_of_ms": AS_OF_MS,
        "city": "nyc",
        "product": "express",
        "request": {"pickup_zone": 7, "fare_cents": 1850, "distance_m": 4200, "hour": 9},
        "candidates": {
            "driver_id": ["d-1", "d-2", "d-3"],
            "eta_s": [90.0, 1200.0, 800.0],
            "pickup_distance_m": [500.0, 9000.0, 4000.0],
            "state": ["idle", "idle", "idle"],
        },
    }
    decision = decide(
        live, parse(live.compiled, msgspec.json.encode(body)), RandomFeatures(live.compiled, 1, down=True)
    )
    assert explain(decision, "d-2", live.compiled).lines == [
        "d-2 in decision dec-1: dropped by rule too_far because eta_s > params.max_eta_s",
        "score none, chance of being chosen 0",
        "rules that held: too_far",
        "arms: learned_ranking = model",
        "read:",
        "  eta_s             1200  (candidate)",
        "  params.max_eta_s  900  (parameter)",
        "note: the decision was degraded because features could not be read",
    ]
    assert explain(decision, "d-3", live.compiled).lines == [
        "d-3 in decision dec-1: ranked 2 of 2 and not drawn: d-1, ranked 1 with score 0.885, was",
        "score 0.214444, chance of being chosen 1.96e-10",
        "arms: learned_ranking = model",
        "read:",
        "  eta_s                   800  (candidate)",
        "  params.max_eta_s        900  (parameter)",
        "  params.w_accept         0.15  (parameter)",
        "  params.use_model        true  (parameter)",
        "  params.w_closeness      0.1  (parameter)",
        "  driver.accept_rate_24h  0.8  (default)",
        "  p_accept                null  (accept@champion, absent)",
        "note: the decision was degraded because features could not be read",
    ]
    alone = explain(decision, "d-2").lines
    assert alone[:3] == [
        "d-2 in decision dec-1: dropped by rule too_far",
        "score none, chance of being chosen 0",
        "rules that held: rule 3",
    ]
    assert "  driver.offers_1h           null  (missing)" in alone


def test_unknown_candidate_is_refused_with_the_known_ones(decided: tuple[LiveStrategy, Decision]) -> None:
    live, decision = decided
    with pytest.raises(KeyError, match=f"no candidate 'nobody'; it had {decision.candidate_ids[0]}, .*…"):
        explain(decision, "nobody", live.compiled)

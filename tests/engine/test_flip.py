"""Every flip that is told is true: decided again from the changed request, the candidate has the promised fate."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.compiler import constant
from engine.decide import LiveStrategy, decide
from engine.flip import FIRST, NOT_FIRST, SURVIVES, Flip, find_flips
from engine.request import parse
from features.read_plan import ReadPlan
from features.records import Decision, decode, encode
from features.rows import FeatureBatch, from_served
from features.spec import Key
from tests.engine.support import AS_OF_MS, RandomFeatures, catalogue_registry, compile_text, make_live, random_body

RULES_ONLY = """
strategy: rules_only
version: 1
request: {order_id: string, zone: int, drop_zone: 'int?', fare_cents: int, hour: int}
candidates:
  key: driver_id
  fields: {eta_s: 'double?', distance_m: double, state: string, rank_no: int}
features:
  driver: driver_stats
  zone: zone_stats
params:
  max_eta_s: {type: double, default: 900, min: 60, max: 3600}
  w_rate:    {type: double, default: 0.5, min: 0, max: 5}
let:
  demand: double(zone.requests ?? 0)
  cost: (eta_s ?? 0.0) * 1.5 + distance_m / 10.0
rules:
  - {id: not_idle,    drop_when: "state == 'on_trip'"}
  - {id: unknown_eta, drop_when: eta_s == null}
  - {id: too_far,     drop_when: eta_s > params.max_eta_s}
  - {id: too_dear,    drop_when: cost > 2300.0 + demand * 5.0}
  - {id: band,        drop_when: 'rank_no >= 7 && rank_no < 9'}
  - {id: near,        when: distance_m < 500.0, add: 0.25}
  - {id: night,       when: hour >= 22 || hour < 5, multiply: 0.9}
score: 'params.w_rate * driver.accept_rate + (1.0 - eta_s / params.max_eta_s) + (fare_cents > 1500 ? distance_m / 10000.0 : 0.0)'
rank: {by: score, ties: rank_no, keep: 7}
"""


class Given:
    """Features as a Decision has them."""

    def __init__(self, decision: Decision) -> None:
        self.batches = {role: from_served(served) for role, served in decision.features.items()}

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        return self.batches


def decided(tmp_path: Path, seed: int, num_candidates: int) -> tuple[LiveStrategy, dict[str, Any], Decision]:
    registry = catalogue_registry()
    live = make_live(compile_text(RULES_ONLY, tmp_path, registry), registry)
    body = random_body(random.Random(seed), live.compiled, num_candidates)
    features = RandomFeatures(live.compiled, seed)
    decision = decide(live, parse(live.compiled, msgspec.json.encode(body)), features)
    return live, body, decode(encode(decision), Decision)


def decided_with(
    live: LiveStrategy, body: dict[str, Any], decision: Decision, row: int, name: str, value: Any
) -> Decision:
    """The whole decision once more, by columns, with one input of one candidate (or of the request) at another value."""
    body = msgspec.json.decode(msgspec.json.encode(body))
    features = Given(decision)
    role, _, feature = name.partition(".")
    if name in body["request"]:
        body["request"][name] = value
    elif name in body["candidates"]:
        body["candidates"][name][row] = value
    elif role == "params":
        kind = live.compiled.strategy.params[feature].type
        columns = dict(live.compiled.param_columns) | {name: constant(value, kind)}
        live = replace(live, compiled=replace(live.compiled, param_columns=columns))
        live = replace(live, rules=type(live.rules)(live.compiled))  # type: ignore[call-arg]
    else:
        batch = features.batches[role]
        at = row if batch.num_rows == len(decision.candidate_ids) else 0
        column = batch.columns[feature].copy()
        column[at] = value
        features.batches[role] = replace(batch, columns=dict(batch.columns) | {feature: column})
    return decide(live, parse(live.compiled, msgspec.json.encode(body)), features)


def fate(decision: Decision, row: int) -> set[str]:
    """The goals that hold for a candidate."""
    ids, scores = decision.candidate_ids, decision.scores
    ties = decision.candidates["rank_no"]
    ranked = sorted((-score, ties[at], ids[at], at) for at, score in enumerate(scores) if score is not None)
    first = bool(ranked) and ranked[0][3] == row
    return {*([SURVIVES] if decision.survivors[row] else []), FIRST if first else NOT_FIRST}


@pytest.mark.parametrize("seed", range(3))
def test_every_flip_is_true_by_decide(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    live, body, decision = decided(tmp_path, seed, 17)
    goals: set[str] = set()
    for row, candidate in enumerate(decision.candidate_ids):
        before = fate(decision, row)
        for goal, flips in find_flips(decision, candidate, live.compiled, per_goal=50).flips.items():
            assert goal not in before
            goals.add(goal)
            assert list(flips) == sorted(flips, key=lambda flip: (flip.distance, flip.name))
            for flip in flips:
                assert goal in fate(decided_with(live, body, decision, row, flip.name, flip.after), row), flip
    assert goals == {SURVIVES, FIRST, NOT_FIRST}


@pytest.mark.parametrize("seed", range(2))
def test_no_smaller_change_of_a_whole_number_flips(tmp_path: Path, seed: int) -> None:
    """All smaller steps of the ints, one by one, by decide."""
    live, body, decision = decided(tmp_path, seed, 9)
    tried = 0
    for row, candidate in enumerate(decision.candidate_ids):
        found = find_flips(decision, candidate, live.compiled, per_goal=50).flips
        for goal in found:
            for name in ("rank_no", "hour"):
                here = body["request"].get(name, decision.candidates.get(name, [0] * 9)[row])
                steps = {flip.after - here for flip in found[goal] if flip.name == name}
                down, up = (max((s for s in steps if s < 0), default=-12), min((s for s in steps if s > 0), default=12))
                for step in (*range(down + 1, 0), *range(1, int(up))):
                    again = decided_with(live, body, decision, row, name, here + int(step))
                    assert goal not in fate(again, row), (candidate, goal, name, step)
                    tried += 1
    assert tried > 100


@pytest.mark.parametrize("seed", range(2))
def test_halfway_to_a_flip_nothing_has_flipped(tmp_path: Path, seed: int) -> None:
    """Doubles: no value of a fine grid between the recorded one and the nearest flip of that side has the promised fate."""
    live, body, decision = decided(tmp_path, seed, 9)
    tried = 0
    for row, candidate in enumerate(decision.candidate_ids):
        for goal, flips in find_flips(decision, candidate, live.compiled, per_goal=50).flips.items():
            for flip in flips:
                if isinstance(flip.after, float):
                    for part in np.linspace(0.0, 0.998, 9)[1:]:
                        value = flip.before + (flip.after - flip.before) * float(part)
                        again = decided_with(live, body, decision, row, flip.name, value)
                        assert goal not in fate(again, row), (flip, value)
                        tried += 1
    assert tried > 40


def test_threshold_itself_is_told_where_it_is_enough(tmp_path: Path) -> None:
    live, flips = small(tmp_path, eta_s=[90.0, 1200.0])
    told = flips["d-2"].flips[SURVIVES]
    assert [(flip.name, flip.before, flip.after) for flip in told] == [
        ("params.max_eta_s", 900.0, 1200.0),
        ("eta_s", 1200.0, 900.0),
    ]
    assert told[0].of == "its range"
    assert told[0].distance == pytest.approx(300 / 3540)
    assert told[1].line == "eta_s 1200 → 900 (25.0% of itself)"
    assert flips["d-2"].lines[0] == "d-2 survives with one change, the smallest first:"
    assert live.compiled.strategy.params["max_eta_s"].max == 3600


def test_change_beyond_declared_bounds_is_not_told(tmp_path: Path) -> None:
    _, flips = small(tmp_path, eta_s=[90.0, 4000.0])  # no admissible max_eta_s lets it in
    assert {flip.name for flip in flips["d-2"].flips[SURVIVES]} == {"eta_s"}


def test_candidate_that_no_number_helps_is_told_so(tmp_path: Path) -> None:
    _, flips = small(tmp_path, eta_s=[90.0, 100.0], state=["idle", "on_trip"])
    assert flips["d-2"].flips == {SURVIVES: (), FIRST: ()}
    assert flips["d-2"].lines[0] == "no change of one number was found with which d-2 survives"


def test_null_cannot_move_and_that_is_told(tmp_path: Path) -> None:
    _, flips = small(tmp_path, eta_s=[90.0, None])
    assert flips["d-2"].flips[SURVIVES] == ()
    assert "note: null is no number and does not move: eta_s" in [line.split(", ")[0] for line in flips["d-2"].lines]


def test_keys_and_units_do_not_move(tmp_path: Path) -> None:
    _, flips = small(tmp_path, eta_s=[90.0, 100.0])
    told = {flip.name for found in flips.values() for group in found.flips.values() for flip in group}
    assert "zone" not in told
    assert {"eta_s", "distance_m"} <= told


def test_record_that_does_not_follow_from_the_strategy_claims_nothing(tmp_path: Path) -> None:
    live, _, decision = decided(tmp_path, 1, 5)
    row = decision.survivors.index(True)
    scores = list(decision.scores)
    scores[row] = 17.0
    wrong = msgspec.structs.replace(decision, scores=scores)
    found = find_flips(wrong, decision.candidate_ids[row], live.compiled)
    assert found.flips == {}
    assert "no flip is claimed" in found.notes[0]


def test_other_version_and_unknown_candidate_are_refused(tmp_path: Path) -> None:
    live, _, decision = decided(tmp_path, 1, 5)
    with pytest.raises(KeyError, match="no candidate 'nobody'"):
        find_flips(decision, "nobody", live.compiled)
    other = msgspec.structs.replace(decision, strategy_hash="0" * 64)
    with pytest.raises(ValueError, match="another version"):
        find_flips(other, decision.candidate_ids[0], live.compiled)


def small(tmp_path: Path, **fields: Any) -> tuple[LiveStrategy, dict[str, Any]]:
    """Two drivers; the flips of both by id."""
    registry = catalogue_registry()
    live = make_live(compile_text(RULES_ONLY, tmp_path, registry), registry)
    body = {
        "order_id": "o-1",
        "as_of_ms": AS_OF_MS,
        "city": "nyc",
        "product": "express",
        "request": {"zone": 7, "fare_cents": 1850, "hour": 9},
        "candidates": {
            "driver_id": ["d-1", "d-2"],
            "distance_m": [500.0, 900.0],
            "state": ["idle", "idle"],
            "rank_no": [1, 2],
            **fields,
        },
    }
    features = RandomFeatures(live.compiled, 1, down=True)
    decision = decide(live, parse(live.compiled, msgspec.json.encode(body)), features)
    return live, {candidate: find_flips(decision, candidate, live.compiled) for candidate in decision.candidate_ids}


def test_line_shows_every_digit_that_was_proved() -> None:
    flip = Flip(goal=FIRST, name="x", status="candidate", before=1.0, after=1.0000001, distance=1e-7, of="itself")
    assert flip.line == "x 1 → 1.0000001 (0.0% of itself)"

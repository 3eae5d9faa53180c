"""Arms of whole logs equal arms one by one, from whatever column the log has, and follow from a Decision's record."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.decide import decide
from engine.experiment_log import _CHUNK, assign_many, reassign
from engine.request import parse
from engine.strategy import Arm, Experiment, Layer
from tests.engine.assignment_vectors import HALF_HOUR, experiment
from tests.engine.naive_assignment import arm_or_why
from tests.engine.support import RandomFeatures, catalogue_registry, compile_text, make_live, random_body

NAMES = {-1: "not_exposed", -2: "holdout"}


def named(found: Experiment, sides: np.ndarray) -> list[str]:
    return [NAMES.get(side) or found.arms[side].name for side in sides.tolist()]


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=20),
    shares=st.lists(st.integers(0, 10), min_size=1, max_size=7).filter(any),
    exposure=st.floats(0, 1),
    holdout=st.floats(0, 1),
)
def test_columns_equal_the_twin(texts: list[str], shares: list[int], exposure: float, holdout: float) -> None:
    arms = tuple(Arm(name=f"a{at}", share=share / sum(shares), set={}) for at, share in enumerate(shares))
    found = experiment(arms=arms, exposure=exposure)
    layer = Layer(name="ranking", holdout=holdout, salt="h")
    wanted = [arm_or_why(found, layer, text, 0) for text in texts]
    for units in (texts, pa.array(texts), pa.array(texts).dictionary_encode()):
        assert named(found, assign_many(found, layer, units)) == wanted


@given(
    zones=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    time=st.integers(-(10**13), 10**13),
    window_ms=st.integers(1, 10**10),
    offset=st.sampled_from(["none", "hashed"]),
)
def test_switchback_columns_equal_the_twin(zones: list[int], time: int, window_ms: int, offset: str) -> None:
    found = experiment(kind="switchback", unit="", region="zone", window_ms=window_ms, offset=offset, exposure=0.8)
    times = time + np.arange(len(zones)) * max(window_ms // 2, 1)
    wanted = [arm_or_why(found, None, str(zone), at) for zone, at in zip(zones, times.tolist(), strict=True)]
    assert named(found, assign_many(found, None, np.array(zones), times)) == wanted


def test_a_log_longer_than_a_chunk_is_assigned_to_its_end() -> None:
    units = np.arange(_CHUNK + 3)
    found = experiment()
    tail = [arm_or_why(found, None, str(unit), 0) for unit in units[-5:].tolist()]
    assert named(found, assign_many(found, None, units))[-5:] == tail


def test_a_switchback_without_times_is_refused() -> None:
    with pytest.raises(ValueError, match="depend on as_of_ms"):
        assign_many(experiment(kind="switchback", unit="", region="zone", window_ms=HALF_HOUR), None, ["1"])


STRATEGY = """
strategy: sides
version: 1
request: {hour: int, pickup_zone: int, booked: 'timestamp?'}
candidates: {key: driver_id, fields: {eta_s: double}}
params:
  weight: {type: double, default: 0.5, layer: ranking}
  bonus:  {type: double, default: 0.0, layer: core}
score: params.weight * eta_s + params.bonus
layers: {ranking: {holdout: 0.2}, core: {holdout: 0.1}}
experiments:
  nights:
    layer: ranking
    unit: order_id
    where: hour < 6
    exposure: 0.7
    arms: {a: {share: 0.5}, b: {share: 0.5, set: {params.weight: 0.9}}}
  days:
    layer: ranking
    unit: pickup_zone
    where: hour >= 6
    arms: {a: {share: 0.2}, b: {share: 0.3, set: {params.weight: 0.1}}, c: {share: 0.5, set: {params.weight: 0.2}}}
  zones:
    layer: core
    kind: switchback
    region: pickup_zone
    window: 30m
    offset: hashed
    where: (booked ?? as_of) <= as_of
    arms: {off: {share: 0.5}, on: {share: 0.5, set: {params.bonus: 1}}}
"""


def test_an_assignment_follows_from_the_logged_decision(tmp_path: Path) -> None:
    rng = random.Random(5)
    registry = catalogue_registry()
    compiled = compile_text(STRATEGY, tmp_path, registry)
    live = make_live(compiled, registry)
    decisions = []
    for _ in range(120):
        body = random_body(rng, compiled, 2)
        body["as_of_ms"] += rng.randrange(-10, 10) * HALF_HOUR // 3
        body["request"]["booked"] = rng.choice([None, body["as_of_ms"], body["as_of_ms"] + 1])
        request = parse(compiled, json.dumps(body).encode())
        decisions.append(decide(live, request, RandomFeatures(compiled, 1)))
    rng.shuffle(decisions)
    for decision in decisions:
        again = reassign(compiled, decision)
        assert (again.arms, again.params) == (decision.arms, decision.params)
        assert decision.layers_read == ["core", "ranking"]  # both decided: by an arm or by their holdout
        assert ("nights" in decision.arms) == (decision.request["hour"] < 6) != ("days" in decision.arms)
        assert ("zones" in decision.arms) == (decision.request["booked"] in (None, decision.as_of_ms))
        if decision.arms.get("zones", "holdout") == "holdout":
            assert decision.params["bonus"] == 0.0
    seen = {(name, arm) for decision in decisions for name, arm in decision.arms.items()}
    assert seen == {
        *(("nights", arm) for arm in ("a", "b", "holdout", "not_exposed")),
        *(("days", arm) for arm in ("a", "b", "c", "holdout")),
        *(("zones", arm) for arm in ("off", "on", "holdout")),
    }
    switchback = compiled.strategy.experiments[2]
    decisions = [decision for decision in decisions if "zones" in decision.arms]
    sides = assign_many(
        switchback,
        compiled.strategy.layers["core"],
        pa.array([decision.request["pickup_zone"] for decision in decisions]),
        np.array([decision.as_of_ms for decision in decisions]),
    )
    assert named(switchback, sides) == [decision.arms["zones"] for decision in decisions]

"""decide equals its row-by-row twin for strategies of every shape; a bad row never changes its neighbours."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.decide import LiveStrategy, decide
from engine.model import Model
from engine.redecide import redecide
from engine.request import Request, parse
from features.records import Decision, decode, encode
from features.registry import Registry
from features.rows import from_served
from tests.engine.naive_decide import naive_decide
from tests.engine.random_strategies import NanFeatures, random_request, random_strategy
from tests.engine.support import AS_OF_MS, RandomFeatures, catalogue_registry, compile_text, make_live, sink_models

NUM_SEEDS = 40


@pytest.fixture(scope="module")
def registry() -> Registry:
    return catalogue_registry()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return sink_models(tmp_path_factory.mktemp("models"))


class Broken:
    """A model whose graph fails on every call."""

    ref, hash = "accept@v0009", "0" * 64

    def __init__(self, model: Model) -> None:
        self.program = model.program

    def score(self, columns: Any, num_rows: int) -> Any:
        raise RuntimeError("the graph divides by nothing")


def random_live(seed: int, folder: Path, registry: Registry, models: dict[str, Model]) -> LiveStrategy:
    rng = random.Random(seed)
    given = {name: model if rng.random() < 0.7 else None for name, model in models.items()}
    return make_live(random_strategy(seed, folder, registry), registry, given)


def check(live: LiveStrategy, request: Request, features: Any, killed: int) -> Decision:
    """The Decision, after it was compared with the twin and decided again from its own bytes."""
    decision = decide(live, request, features, killed=killed)
    expected = naive_decide(live, request, {r: from_served(b) for r, b in decision.features.items()}, killed)
    probabilities = expected.pop("probabilities")
    assert {name: getattr(decision, name) for name in expected} == expected
    assert {use: output.values for use, output in decision.model_outputs.items()} == probabilities
    assert encode(redecide(live, decode(encode(decision), Decision))) == encode(decision)
    return decision


def compare_with_twin(seed: int, folder: Path, registry: Registry, models: dict[str, Model]) -> list[Decision]:
    """Some decisions of one random strategy, with kills and with the store away."""
    live = random_live(seed, folder, registry, models)
    rng = random.Random(seed)
    out = []
    for at in range(4):
        body = random_request(rng, live.compiled, rng.choice([1, 2, 5, 30]))
        killed = rng.getrandbits(len(live.compiled.strategy.rules)) if at % 2 else 0
        features = NanFeatures(live.compiled, seed + at, down=at == 3)
        out.append(check(live, parse(live.compiled, msgspec.json.encode(body)), features, killed))
    return out


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_random_strategies_decide_as_the_row_by_row_twin(
    seed: int, tmp_path: Path, registry: Registry, models: dict[str, Model]
) -> None:
    print("seed", seed)
    compare_with_twin(seed, tmp_path, registry, models)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_more_random_strategies(block: int, tmp_path: Path, registry: Registry, models: dict[str, Model]) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        print("seed", seed)
        compare_with_twin(seed, tmp_path, registry, models)


def test_random_strategies_reach_every_outcome(tmp_path: Path, registry: Registry, models: dict[str, Model]) -> None:
    """The comparison above is worth what it covers."""
    reasons: set[str] = set()
    fired_or_unknown, decided_by, kinds, on_unknown = set(), set(), set(), set()
    outputs = 0
    for seed in range(NUM_SEEDS):
        decisions = compare_with_twin(seed, tmp_path, registry, models)
        strategy = random_strategy(seed, tmp_path, registry).strategy
        kinds.add(strategy.explore.kind)
        on_unknown |= {rule.on_unknown for rule in strategy.rules}
        for decision in decisions:
            reasons |= {reason.rstrip("0123456789") for reason in decision.reasons if reason}
            fired_or_unknown |= {(bool(f), bool(u)) for f, u in zip(decision.fired, decision.unknown, strict=True)}
            decided_by.add(decision.decided_by)
            outputs += any(value is not None for values in decision.outputs.values() for value in values)
    assert reasons == {"rule_", "unknown:rule_", "score_not_finite"}
    assert fired_or_unknown == {(False, False), (False, True), (True, False), (True, True)}
    assert decided_by == {"rank", "explore", "fallback"}
    assert kinds == {"none", "epsilon", "softmax", "top_k_softmax"}
    assert on_unknown == {None, "skip", "fire", "fail_row"}
    assert outputs > NUM_SEEDS // 2


@pytest.mark.parametrize("seed", range(20))
def test_bad_row_never_changes_its_neighbours(
    seed: int, tmp_path: Path, registry: Registry, models: dict[str, Model]
) -> None:
    """One candidate is replaced by one that breaks what can break; the others keep bits, reasons, scores and outputs."""
    print("seed", seed)
    live = random_live(seed, tmp_path, registry, dict.fromkeys(models))
    rng = random.Random(seed)
    body = random_request(rng, live.compiled, 12)
    row = rng.randrange(12)
    bad = {"eta_s": None, "distance_m": 1e308, "rank_no": 0, "vip": None, "seen": None, "seats": None, "state": "🐱"}
    broken = msgspec.json.decode(msgspec.json.encode(body))
    for name, value in bad.items():
        broken["candidates"][name][row] = value
    first, second = (
        decide(live, parse(live.compiled, msgspec.json.encode(sent)), RandomFeatures(live.compiled, seed))
        for sent in (body, broken)
    )
    others = [at for at in range(12) if at != row]
    for name in ("reasons", "fired", "unknown", "scores"):
        assert [getattr(first, name)[at] for at in others] == [getattr(second, name)[at] for at in others], name
    for name, values in first.outputs.items():
        assert [values[at] for at in others] == [second.outputs[name][at] for at in others]


def test_failing_models_are_the_same_decision_as_none_but_degraded(
    tmp_path: Path, registry: Registry, models: dict[str, Model]
) -> None:
    for seed in range(10):
        live = random_live(seed, tmp_path, registry, dict.fromkeys(models))
        failing = dataclasses.replace(live, models={name: Broken(model) for name, model in models.items()})
        body = random_request(random.Random(seed), live.compiled, 20)
        request = parse(live.compiled, msgspec.json.encode(body))
        without, with_failing = (decide(one, request, RandomFeatures(live.compiled, seed)) for one in (live, failing))
        assert with_failing.quality == "degraded"
        for name in ("reasons", "fired", "unknown", "scores", "propensities", "chosen", "outputs"):
            assert getattr(with_failing, name) == getattr(without, name)
        assert encode(redecide(live, with_failing)) == encode(with_failing)


EFFECTS = """
strategy: effects
version: 1
request: {hour: int}
candidates: {key: id, fields: {x: 'double?', flag: 'bool?', n: int}}
rules:
  - {id: gone,   drop_when: 'flag && n == 9', on_unknown: fail_row}
  - {id: sure,   drop_when: 'flag && n == 8', on_unknown: fire}
  - {id: base,   when: 'n == 1', set: 10.0}
  - {id: all,    when: 'n == 2', set: 3.0, add: 1.0, multiply: 2.0}
  - {id: amount, when: 'n == 3', add: x, on_unknown: skip}
  - {id: must,   when: 'n == 4', add: x, on_unknown: fail_row}
  - {id: last,   when: 'n >= 3', add: 0.5}
score: 'n == 1 ? double(hour - 1) / double(hour - 1) : 1.0'
outputs: {twice: 'n * 2', x: x, big: 'n == 5 ? 1.0 / double(hour - 1) : 0.0'}
"""


def rows_of_effects(tmp_path: Path, registry: Registry, rows: list[dict[str, Any]], killed: int = 0) -> Decision:
    live = make_live(compile_text(EFFECTS, tmp_path, registry), registry)
    body = {
        "order_id": "o", "as_of_ms": AS_OF_MS, "city": "c", "product": "p", "request": {"hour": 1},
        "candidates": {
            "id": [f"c{at}" for at in range(len(rows))],
            **{name: [row.get(name) for row in rows] for name in ("x", "flag")},
            "n": [row["n"] for row in rows],
        },
    }  # fmt: skip
    return check(live, parse(live.compiled, msgspec.json.encode(body)), RandomFeatures(live.compiled, 0), killed)


def test_effects_and_what_unknown_means(tmp_path: Path, registry: Registry) -> None:
    rows = [
        {"n": 9, "flag": None},  # unknown, fail_row: dropped, and the next rule does not look at it
        {"n": 9, "flag": True},  # holds
        {"n": 8, "flag": None},  # gone: false && null is false; sure: null fires
        {"n": 1, "flag": False},  # the score is NaN until it is set
        {"n": 2, "flag": False},  # set, then add, then multiply
        {"n": 3, "flag": False},  # the amount is null: not made, unknown, and the next rule goes on
        {"n": 3, "flag": False, "x": 4.0},
        {"n": 4, "flag": False},  # the amount is null, fail_row
        {"n": 5, "flag": False},
    ]
    decision = rows_of_effects(tmp_path, registry, rows)
    assert decision.reasons == ["unknown:gone", "gone", "sure", None, None, None, None, "unknown:must", None]
    assert decision.scores == [None, None, None, 10.0, 8.0, 1.5, 5.5, None, 1.5]
    assert decision.fired == [0, 0b1, 0b10, 0b100, 0b1000, 0b1000000, 0b1010000, 0, 0b1000000]
    assert decision.unknown == [0b1, 0, 0b10, 0, 0, 0b10000, 0, 0b100000, 0]
    assert decision.outputs["twice"] == [None, None, None, 2, 4, 6, 6, None, 10]
    assert decision.outputs["big"] == [None, None, None, 0.0, 0.0, 0.0, 0.0, None, None]  # infinity is no JSON


def test_killed_rule_neither_fires_nor_is_unknown(tmp_path: Path, registry: Registry) -> None:
    rows = [{"n": 9, "flag": None}, {"n": 1, "flag": True}, {"n": 2, "flag": True}]
    decision = rows_of_effects(tmp_path, registry, rows, killed=0b100 | 0b1)
    assert decision.reasons == [None, "score_not_finite", None]
    assert decision.fired == [0b1000000, 0, 0b1000]
    assert decision.unknown == [0, 0, 0]
    assert decision.killed == ["gone", "base"]

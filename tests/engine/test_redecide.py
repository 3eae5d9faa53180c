"""A Decision follows from its record: again to the bit, one by one, and as rows of many Decisions at once."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.decide import LiveStrategy, decide
from engine.redecide import killed_bits, redecide, rows_of
from engine.request import parse
from features.records import Decision, decode, encode
from tests.engine.support import (
    KITCHEN_SINK,
    RandomFeatures,
    catalogue_registry,
    compile_text,
    make_live,
    random_body,
)


def recorded(live: LiveStrategy, seed: int, *, killed: int = 0, num_candidates: int | None = None) -> Decision:
    """A random decision as it comes back from its topic."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 7, 40]) if num_candidates is None else num_candidates
    request = parse(live.compiled, msgspec.json.encode(random_body(rng, live.compiled, size)))
    decision = decide(live, request, RandomFeatures(live.compiled, seed, down=seed % 11 == 0), killed=killed)
    return decode(encode(decision), Decision)


@pytest.mark.parametrize("seed", range(30))
def test_unchanged_strategy_decides_the_same_without_asking_its_models(sink: LiveStrategy, seed: int) -> None:
    print("seed", seed)
    decision = recorded(sink, seed, killed=random.Random(seed).getrandbits(9) if seed % 2 else 0)
    without_models = dataclasses.replace(sink, models={"p_accept": None, "p_cancel": None})
    assert encode(redecide(without_models, decision)) == encode(decision)


def test_late_model_and_its_stand_in_are_taken_from_the_record(sink: LiveStrategy) -> None:
    request = parse(sink.compiled, msgspec.json.encode(random_body(random.Random(2), sink.compiled, 20)))
    ticks = iter(range(0, 10_000, 6))
    decision = decide(sink, request, RandomFeatures(sink.compiled, 2), clock=lambda: float(next(ticks)))
    assert (decision.quality, decision.model_outputs["p_cancel"].source) == ("degraded", "fallback")
    assert encode(redecide(sink, decision)) == encode(decision)


def test_changed_strategy_decides_on_the_same_facts(sink: LiveStrategy, tmp_path: Path) -> None:
    registry = catalogue_registry()
    text = KITCHEN_SINK.replace("drop_when: \"state != 'idle'\"", "drop_when: \"state == 'idle'\"")
    changed = make_live(compile_text(text, tmp_path, registry), registry)
    decision = recorded(sink, 5, num_candidates=40)
    again = redecide(changed, decision)
    assert again.features == decision.features and again.params == decision.params
    states = decision.candidates["state"]
    assert any(decision.survivors) and any(again.survivors)
    assert all(states[row] == "idle" for row in range(40) if decision.survivors[row])
    assert all(states[row] != "idle" for row in range(40) if again.survivors[row])


def test_killed_rule_that_is_gone_has_no_bit(sink: LiveStrategy) -> None:
    assert killed_bits(sink.compiled, ["too_far", "no_such_rule", "not_idle"]) == 0b1001


@pytest.mark.parametrize("killed", [0, 0b101000010])
def test_rows_of_many_decisions_run_as_one_batch(sink: LiveStrategy, killed: int) -> None:
    decisions = [recorded(sink, seed, killed=killed) for seed in range(40)]
    rows = rows_of(sink.compiled, decisions)
    before = sink.rules.before(rows.columns, int(rows.starts[-1]), killed)
    after = sink.rules.after(rows.columns, before.alive_K, killed)
    survives_R = before.alive_K & after.known_K
    fired_R = before.fired_K | np.where(before.alive_K, after.fired_K, 0)
    unknown_R = before.unknown_K | np.where(before.alive_K, after.unknown_K, 0)
    for decision, start, end in zip(decisions, rows.starts[:-1], rows.starts[1:], strict=True):
        assert survives_R[start:end].tolist() == decision.survivors
        assert fired_R[start:end].tolist() == decision.fired
        assert unknown_R[start:end].tolist() == decision.unknown
        kept = [score for score in decision.scores if score is not None]
        assert after.score_K[start:end][survives_R[start:end]].tolist() == kept

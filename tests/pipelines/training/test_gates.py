from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from pipelines.training.evaluate import evaluate
from pipelines.training.gates import Champion, GateConfig, Verdict, judge, latency_p99

SEED = 21


def world(num: int = 800) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True logits, outcomes, and orders of two rows."""
    rng = np.random.default_rng(SEED)
    logit = rng.normal(0.6, 1.2, num)
    return logit, (rng.random(num) < sigmoid(logit)).astype(np.int64), np.arange(num) // 2


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def verdict_of(p: np.ndarray, y: np.ndarray, order: np.ndarray, **changes: Any) -> Verdict:
    metrics = evaluate(p, y, order, base_rate=0.62, seed=SEED, num_bootstrap=200)
    options: dict[str, Any] = {
        "champion": None,
        "latency_p99_ms": 0.5,
        "config": GateConfig(),
        "seed": SEED,
        "num_bootstrap": 200,
    }
    return judge(p, y, order, metrics, **(options | changes))


def failed(verdict: Verdict) -> list[str]:
    return [check.name for check in verdict.checks if not check.passed]


def test_the_true_model_passes_every_check() -> None:
    logit, y, order = world()
    verdict = verdict_of(sigmoid(logit), y, order)
    assert verdict.passed, verdict.refused
    assert verdict.to_dict()["passed"] is True and verdict.refused == []


def test_a_constant_is_refused_because_it_does_not_beat_the_base_rate() -> None:
    _, y, order = world()
    verdict = verdict_of(np.full(len(y), y.mean()), y, order)
    assert failed(verdict) == ["beats_base_rate"]
    assert "must be below 0" in verdict.refused[0]


def test_a_worse_model_is_refused_and_the_reason_names_champion_and_gap() -> None:
    logit, y, order = world()
    rng = np.random.default_rng(SEED + 1)
    noise = logit + rng.normal(0, 1.0, len(y))  # blurred, then scaled back so that only its ranking is worse
    verdict = verdict_of(
        sigmoid(0.6 + 0.55 * (noise - 0.6)), y, order, champion=Champion(version="v0007", p_N=sigmoid(logit))
    )
    assert failed(verdict) == ["not_worse_than_champion"]
    assert "champion v0007: +0.0" in verdict.refused[0]


def test_the_same_model_again_is_not_worse() -> None:
    logit, y, order = world()
    assert verdict_of(sigmoid(logit), y, order, champion=Champion(version="v0001", p_N=sigmoid(logit))).passed


def test_a_few_rows_cannot_show_that_a_different_model_is_not_worse() -> None:
    logit, y, order = world(140)
    champion = Champion(version="v0001", p_N=sigmoid(logit + np.where(np.arange(140) % 2, 0.5, -0.5)), seen_rows=9)
    verdict = verdict_of(sigmoid(logit), y, order, champion=champion)
    assert failed(verdict) == ["not_worse_than_champion"]
    assert "9 of 140 rows may be in the champion's own training data" in verdict.refused[0]


def test_an_overconfident_model_is_refused_with_the_band_in_the_reason() -> None:
    logit, y, order = world(3000)
    verdict = verdict_of(sigmoid(0.6 + 2.0 * (logit - 0.6)), y, order)
    assert failed(verdict) == ["calibrated"]
    assert "a perfect model of 3000 rows shows" in verdict.refused[0]


def test_too_few_rows_or_one_outcome_is_refused() -> None:
    logit, y, order = world(60)
    assert "enough_rows" in failed(verdict_of(sigmoid(logit), y, order))
    ones = np.ones(200, dtype=np.int64)
    assert "enough_rows" in failed(verdict_of(np.full(200, 0.9), ones, np.arange(200)))


def test_a_slow_model_is_refused() -> None:
    logit, y, order = world()
    assert failed(verdict_of(sigmoid(logit), y, order, latency_p99_ms=9.0)) == ["latency"]


def test_a_champion_that_cannot_be_scored_is_named_and_does_not_block() -> None:
    logit, y, order = world()
    verdict = verdict_of(sigmoid(logit), y, order, champion_problem="v0003: model.onnx was changed")
    assert verdict.passed
    assert "v0003: model.onnx was changed" in next(
        c.text for c in verdict.checks if c.name == "not_worse_than_champion"
    )


def test_latency_is_the_p99_of_the_quietest_round() -> None:
    #  each call takes 1 ms by this clock, and every call of the first round 50 ms
    ticks, calls = count(), []

    def clock() -> float:
        tick = next(ticks)
        step = 0.050 if tick < 2 * 10 else 0.001
        return (tick // 2) * 1.0 + (step if tick % 2 else 0.0)

    assert latency_p99(lambda: calls.append(1), clock, num_calls=10, rounds=3) == pytest.approx(1.0)
    assert len(calls) == 31  # one to warm up

"""Metrics against slow twins and worked cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipelines.training.evaluate import (
    OrderBootstrap,
    auc,
    calibration_by_slice,
    ece,
    ece_band,
    evaluate,
    log_loss,
    row_log_loss,
)


def slow_auc(p: list[float], y: list[int], weights: list[float] | None = None) -> float:
    """Every pair of a positive and a negative, one by one."""
    w = weights or [1.0] * len(p)
    won = total = 0.0
    for i, j in ((i, j) for i in range(len(p)) for j in range(len(p)) if y[i] == 1 and y[j] == 0):
        total += w[i] * w[j]
        won += w[i] * w[j] * (1.0 if p[i] > p[j] else 0.5 if p[i] == p[j] else 0.0)
    return won / total


@pytest.mark.parametrize(
    ("y", "p", "expected"),
    [
        ([0, 1, 1], [0.5, 0.9, 0.5], 0.75),
        ([1, 0], [0.5, 0.5], 0.5),
        ([0, 1], [0.5, 0.5], 0.5),
        ([1, 0, 1, 0], [0.9, 0.9, 0.5, 0.5], 0.5),
    ],
)
def test_auc_counts_a_tie_as_one_half(y: list[int], p: list[float], expected: float) -> None:
    assert auc(np.array(p), np.array(y)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_auc_equals_counting_all_pairs_with_ties_and_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, y = rng.integers(0, 8, 60) / 8, rng.integers(0, 2, 60)
    weights = rng.integers(0, 3, 60).astype(float)
    assert auc(p, y) == pytest.approx(slow_auc(p.tolist(), y.tolist()))
    assert auc(p, y, weights) == pytest.approx(slow_auc(p.tolist(), y.tolist(), weights.tolist()))


def test_auc_of_one_class_is_unknown() -> None:
    assert auc(np.array([0.1, 0.9]), np.array([1, 1])) is None


@pytest.mark.parametrize(
    ("p", "y", "expected"),
    [([1, 1, 1, 1, 0], [0, 0, 1, 1, 1], 0.60), ([0.25, 0.25, 0.55, 0.75, 0.75], [0, 0, 1, 1, 1], 0.29)],
)
def test_ece_of_two_equal_bins_matches_the_worked_case(p: list[float], y: list[int], expected: float) -> None:
    assert ece(np.array(p, dtype=float), np.array(y), num_bins=2, equal_mass=False) == pytest.approx(expected)


def test_ece_does_not_depend_on_the_order_of_equal_scores() -> None:
    rng = np.random.default_rng(3)
    p, y = rng.integers(1, 5, 200) / 6, rng.integers(0, 2, 200)
    shuffled = rng.permutation(200)
    assert ece(p, y) == pytest.approx(ece(p[shuffled], y[shuffled]))


def test_band_at_a_thousand_rows_is_far_from_zero_and_shrinks_with_rows() -> None:
    rng = np.random.default_rng(5)
    small, large = (ece_band(rng.beta(4, 2, n), seed=1) for n in (1_000, 16_000))
    assert 0.025 < small.median < 0.045  # 0.034 was seen for a perfect model at this size
    assert small.median < small.p95 < small.p99
    assert large.median == pytest.approx(small.median / 4, rel=0.2)  # 16 times the rows, a quarter of the error


@pytest.mark.parametrize(("bias", "inside"), [(0.0, 0.95), (0.6, 0.0)])
def test_band_holds_perfect_models_and_shows_biased_ones(bias: float, inside: float) -> None:
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(60):
        logit = rng.normal(0.5, 1.0, 800)
        y = (rng.random(800) < 1 / (1 + np.exp(-logit))).astype(int)
        p = 1 / (1 + np.exp(-(logit + bias)))
        held += ece(p, y) <= ece_band(p, seed=2, num_sims=200).p95
    assert held / 60 == pytest.approx(inside, abs=0.09)


def test_log_loss_is_minus_log_of_what_happened_and_stays_finite() -> None:
    p, y = np.array([0.9, 0.2, 0.0, 1.0]), np.array([1, 0, 1, 0])
    rows = row_log_loss(p, y)
    assert rows[:2] == pytest.approx([-math.log(0.9), -math.log(0.8)])
    assert np.isfinite(rows).all() and rows[2:].min() > 10
    assert log_loss(p, y) == pytest.approx(rows.mean())


def test_interval_is_wider_when_rows_of_an_order_move_together() -> None:
    rng = np.random.default_rng(0)
    shared = np.repeat(rng.normal(size=50), 8)  # 50 orders of 8 equal rows: 50 facts, not 400
    by_order = OrderBootstrap(np.repeat(np.arange(50), 8), seed=1, num_replicates=400).mean(shared)
    by_row = OrderBootstrap(np.arange(400), seed=1, num_replicates=400).mean(shared)
    assert by_order.low is not None and by_order.high is not None and by_row.low is not None and by_row.high is not None
    assert by_order.value == by_row.value == pytest.approx(shared.mean())
    ratio = (by_order.high - by_order.low) / (by_row.high - by_row.low)
    assert ratio == pytest.approx(math.sqrt(8), rel=0.25)


def test_bootstrap_mean_of_the_difference_is_zero_for_equal_models() -> None:
    gap = OrderBootstrap(np.arange(30), seed=1, num_replicates=50).mean(np.zeros(30))
    assert (gap.value, gap.low, gap.high) == (0.0, 0.0, 0.0)


def test_evaluate_is_seeded_and_refuses_what_is_no_probability() -> None:
    rng = np.random.default_rng(7)
    p, orders = rng.random(300), np.arange(300) // 2
    y = (rng.random(300) < p).astype(int)
    first, second = (evaluate(p, y, orders, base_rate=0.5, seed=9, num_bootstrap=50) for _ in range(2))
    assert first == second
    assert first["auc"]["low"] < first["auc"]["value"] < first["auc"]["high"]
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        evaluate(p + 0.5, y, orders, base_rate=0.5, seed=9, num_bootstrap=5)
    with pytest.raises(ValueError, match="N > 0"):
        evaluate(p[:0], y[:0], orders[:0], base_rate=0.5, seed=9, num_bootstrap=5)


def test_slice_that_is_off_stands_out_and_a_small_one_says_nothing() -> None:
    p = np.full(240, 0.5)
    y = np.concatenate([np.tile([0, 1], 50), np.ones(100, dtype=int), np.ones(40, dtype=int)])
    slices = calibration_by_slice(p, y, {"zone": ["a"] * 100 + ["b"] * 100 + ["c"] * 40}, min_rows=50)
    z = {entry["value"]: entry["z"] for entry in slices}
    assert z["a"] == pytest.approx(0.0)
    assert z["b"] == pytest.approx(-10.0)
    assert z["c"] is None

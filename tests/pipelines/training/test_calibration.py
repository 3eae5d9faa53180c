from __future__ import annotations

import numpy as np
import pytest

from pipelines.training.calibration import MIN_SLOPE, fit_platt


def drawn(logit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(np.int64)


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (0.4, -0.8), (2.0, 0.5)])
def test_platt_finds_the_distortion(slope: float, shift: float) -> None:
    rng = np.random.default_rng(4)
    logit = rng.normal(0, 1.5, 20_000)
    assert fit_platt(logit, drawn(slope * logit + shift, rng)) == pytest.approx((slope, shift), abs=0.08)


def test_platt_never_turns_the_ranking_round() -> None:
    rng = np.random.default_rng(4)
    logit = rng.normal(0, 1, 2_000)
    slope, _ = fit_platt(logit, drawn(-2.0 * logit, rng))
    assert slope == MIN_SLOPE


def test_platt_of_one_class_or_of_separable_rows_stays_finite() -> None:
    for y in (np.ones(30, dtype=int), np.r_[np.zeros(15, dtype=int), np.ones(15, dtype=int)]):
        slope, shift = fit_platt(np.linspace(-30, 30, 30), y)
        assert np.isfinite([slope, shift]).all() and slope > 0


def test_platt_refuses_nothing_and_infinities() -> None:
    with pytest.raises(ValueError, match="N > 0"):
        fit_platt(np.zeros(0), np.zeros(0, dtype=int))
    with pytest.raises(ValueError, match="finite"):
        fit_platt(np.array([np.inf]), np.array([1]))

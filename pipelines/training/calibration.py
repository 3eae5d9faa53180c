"""Platt scaling: the slope and shift on a logit that make a model's probabilities true on rows it was not fitted on.

Float64 and plain NumPy; the two numbers go into the exported graph (`network.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pipelines.training.evaluate import Floats, Ints

# A weak pull towards "the network is right as it is" (slope 1, shift 0), as strong as a handful of rows: it decides
# only where the calibration rows cannot (one class, a separable handful).
PRIOR_ROWS: Final = 4.0
MIN_SLOPE: Final = 0.05  # never turn the ranking round: a model that is worse than chance must fail its gate, visibly


def fit_platt(logit_N: Floats, y_N: Ints, *, max_steps: int = 50) -> tuple[float, float]:
    """Slope and shift with the best penalised log-loss of sigmoid(slope * logit + shift).

    Shapes: (N,) each. Raises: ValueError on no rows or logits that are not finite.
    """
    logit, y = np.asarray(logit_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    if len(logit) == 0 or logit.shape != y.shape or not np.isfinite(logit).all():
        raise ValueError(f"need finite logits and labels of one shape (N,), N > 0; got {logit.shape} and {y.shape}")
    slope, shift = _newton(logit, y, np.array([1.0, 0.0]), fixed_slope=False, max_steps=max_steps)
    if slope < MIN_SLOPE:
        slope, shift = _newton(logit, y, np.array([MIN_SLOPE, 0.0]), fixed_slope=True, max_steps=max_steps)
    return float(slope), float(shift)


def _newton(logit: Floats, y: Floats, start: Floats, *, fixed_slope: bool, max_steps: int) -> Floats:
    """Newton steps with halving; the penalised loss is strictly convex, so this ends at its one minimum."""
    design = np.stack([logit, np.ones_like(logit)], axis=1)
    prior, at = np.array([1.0, 0.0]), start
    free = np.array([not fixed_slope, True])

    def loss(w: Floats) -> float:
        z = design @ w
        return float((np.logaddexp(0.0, z) - y * z).sum() + PRIOR_ROWS / 2 * ((w - prior) ** 2).sum())

    for _ in range(max_steps):
        p = 1.0 / (1.0 + np.exp(-np.clip(design @ at, -500, 500)))
        gradient = design.T @ (p - y) + PRIOR_ROWS * (at - prior)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + PRIOR_ROWS * np.eye(2)
        step = np.zeros(2)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        size = 1.0
        while loss(at - size * step) > loss(at) and size > 1e-6:
            size /= 2
        at = at - size * step
        if np.abs(step).max() < 1e-10:
            break
    return at

"""How good a probability is: log-loss, AUC, calibration error with the band that chance alone allows, intervals by order.

Rows of one order share a rider, a place and often a fate, so intervals resample orders, not rows. Everything is float64,
seeded, and plain NumPy; `gates.py` reads the numbers and decides. tests/pipelines/training/test_evaluate.py holds
the slow twins.

Shape legend: N rows, G orders, B bootstrap replicates, S simulations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EPS: Final = 1e-7  # a float32 sigmoid saturates near here; without a floor one row makes the log-loss infinite
NUM_BINS: Final = 10


@dataclass(frozen=True)
class Interval:
    """A value with its bootstrap interval. `low` and `high` are None where no replicate could be computed."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class EceBand:
    """What a perfectly calibrated model with these very probabilities would show at this number of rows."""

    median: float
    p95: float
    p99: float


def row_log_loss(p_N: Floats, y_N: Ints) -> Floats:
    """-log of the probability given to what happened. Shapes: (N,), (N,) in {0, 1}; returns (N,)."""
    p = np.clip(np.asarray(p_N, dtype=np.float64), EPS, 1.0 - EPS)
    return np.where(np.asarray(y_N) == 1, -np.log(p), -np.log1p(-p))


def log_loss(p_N: Floats, y_N: Ints) -> float:
    """Mean of `row_log_loss`. Raises: ValueError on no rows."""
    _check(p_N, y_N)
    return float(row_log_loss(p_N, y_N).mean())


def auc(p_N: Floats, y_N: Ints, weights_N: Floats | None = None) -> float | None:
    """Chance that a positive row is scored above a negative one, ties counting one half; None with one class only.

    Shapes: (N,) each; `weights_N` counts how often a row is taken (bootstrap).
    """
    _, group_N = np.unique(np.asarray(p_N, dtype=np.float64), return_inverse=True)
    return _auc_of_groups(group_N, np.asarray(y_N), weights_N)


def _auc_of_groups(group_N: Ints, y_N: Ints, weights_N: Floats | None) -> float | None:
    """`group_N` numbers the distinct scores in ascending order."""
    weight = np.ones(len(y_N)) if weights_N is None else weights_N
    size = int(group_N.max()) + 1 if len(group_N) else 0
    positive = np.bincount(group_N, weights=weight * (y_N == 1), minlength=size)
    negative = np.bincount(group_N, weights=weight * (y_N != 1), minlength=size)
    pairs = positive.sum() * negative.sum()
    if pairs == 0:
        return None
    below = np.cumsum(negative) - negative
    return float((positive * (below + 0.5 * negative)).sum() / pairs)


def bins_of(p_N: Floats, *, num_bins: int = NUM_BINS, equal_mass: bool = True) -> Ints:
    """The calibration bin of each row. Equal scores share a bin, so order of rows cannot matter. Returns (N,) int64."""
    p = np.asarray(p_N, dtype=np.float64)
    if equal_mass:
        edges = np.unique(np.quantile(p, np.arange(1, num_bins) / num_bins))
        return np.searchsorted(edges, p, side="right").astype(np.int64)
    return np.minimum((p * num_bins).astype(np.int64), num_bins - 1)


def ece(p_N: Floats, y_N: Ints, *, num_bins: int = NUM_BINS, equal_mass: bool = True) -> float:
    """Expected calibration error: mean over rows of |mean probability - observed rate| of the row's bin."""
    _check(p_N, y_N)
    return _ece_of_bins(bins_of(p_N, num_bins=num_bins, equal_mass=equal_mass), np.asarray(p_N, dtype=np.float64), y_N)


def _ece_of_bins(bin_N: Ints, p_N: Floats, y_N: NDArray[Any]) -> float:
    return float(np.abs(np.bincount(bin_N, weights=p_N - y_N)).sum() / len(p_N))


def ece_band(
    p_N: Floats, *, seed: int, num_sims: int = 400, num_bins: int = NUM_BINS, equal_mass: bool = True
) -> EceBand:
    """ECE when labels are drawn from these very probabilities: what sampling alone does at this N.

    At 1,000 rows a perfect model shows about 0.03, so a constant limit would refuse perfect models or pass bad ones.
    """
    p = np.asarray(p_N, dtype=np.float64)
    _check(p, p)
    rng = np.random.default_rng(seed)
    bin_N = bins_of(p, num_bins=num_bins, equal_mass=equal_mass)
    shown_S = [_ece_of_bins(bin_N, p, rng.random(len(p)) < p) for _ in range(num_sims)]
    median, p95, p99 = np.quantile(shown_S, [0.5, 0.95, 0.99])
    return EceBand(float(median), float(p95), float(p99))


class OrderBootstrap:
    """Resamples orders with replacement; every statistic of one object sees the same replicates, so differences pair.

    Shapes: order_N (N,) any hashable dtype. Seeded: the same seed draws the same orders.
    """

    def __init__(self, order_N: NDArray[Any], *, seed: int, num_replicates: int) -> None:
        _, self._group_N = np.unique(order_N, return_inverse=True)
        self.num_orders = int(self._group_N.max()) + 1 if len(self._group_N) else 0
        self._seed = seed
        self._num = num_replicates

    def mean(self, value_N: Floats, level: float = 0.95) -> Interval:
        """Mean over rows of `value_N`, with its interval."""
        sums_G = np.bincount(self._group_N, weights=value_N, minlength=self.num_orders)
        rows_G = np.bincount(self._group_N, minlength=self.num_orders)
        drawn = [float(count_G @ sums_G / (count_G @ rows_G)) for count_G in self._counts()]
        return _interval(float(np.mean(value_N)), drawn, level)

    def of(self, statistic: Callable[[Floats], float | None], level: float = 0.95) -> Interval:
        """Any statistic of row weights: called with (N,) counts, once with ones and once per replicate."""
        drawn = [statistic(count_G[self._group_N]) for count_G in self._counts()]
        known = [value for value in drawn if value is not None]
        return _interval(statistic(np.ones(len(self._group_N))), known, level)

    def auc(self, p_N: Floats, y_N: Ints) -> Interval:
        _, group_N = np.unique(np.asarray(p_N, dtype=np.float64), return_inverse=True)
        return self.of(lambda weight_N: _auc_of_groups(group_N, np.asarray(y_N), weight_N))

    def _counts(self) -> Any:
        rng = np.random.default_rng(self._seed)
        for _ in range(self._num):
            picked = rng.integers(0, self.num_orders, self.num_orders)
            yield np.bincount(picked, minlength=self.num_orders).astype(np.float64)


def evaluate(
    p_N: Floats, y_N: Ints, order_N: NDArray[Any], *, base_rate: float, seed: int, num_bootstrap: int
) -> dict[str, Any]:
    """All metrics of one set of rows as plain numbers (JSON).

    `base_rate` is the constant to beat: the label's mean on the rows the model was fitted on, not on these.
    Shapes: (N,) each. Raises: ValueError on no rows, other shapes, or probabilities outside [0, 1].
    """
    _check(p_N, y_N)
    p = np.asarray(p_N, dtype=np.float64)
    boot = OrderBootstrap(order_N, seed=seed, num_replicates=num_bootstrap)
    base = np.full(len(p), base_rate)
    band = ece_band(p, seed=seed)
    shown = ece(p, y_N)
    return {
        "rows": len(p),
        "orders": boot.num_orders,
        "observed_rate": float(np.mean(y_N)),
        "mean_p": float(p.mean()),
        "base_rate": base_rate,
        "log_loss": _dict(boot.mean(row_log_loss(p, y_N))),
        "base_log_loss": log_loss(base, y_N),
        "log_loss_minus_base": _dict(boot.mean(row_log_loss(p, y_N) - row_log_loss(base, y_N))),
        "auc": _dict(boot.auc(p, y_N)),
        "ece": shown,
        "ece_equal_width": ece(p, y_N, equal_mass=False),
        "ece_band": {"median": band.median, "p95": band.p95, "p99": band.p99},
        "ece_inside_band": shown <= band.p95,
    }


def calibration_by_slice(
    p_N: Floats, y_N: Ints, slices: Mapping[str, Sequence[str]], *, min_rows: int = 30
) -> list[dict[str, Any]]:
    """Mean probability against observed rate in each value of each named slice.

    `z` is the difference over its standard error under perfect calibration. Slices below `min_rows` are listed with
    z None: too few rows to say. Shapes: (N,) each, also each slice.
    """
    p, y = np.asarray(p_N, dtype=np.float64), np.asarray(y_N)
    out = []
    for name, values in slices.items():
        value_N = np.asarray(values, dtype=object).astype(str)
        for value in np.unique(value_N):
            row_N = value_N == value
            rows = int(row_N.sum())
            gap = float(p[row_N].mean() - y[row_N].mean())
            spread = float(np.sqrt((p[row_N] * (1 - p[row_N])).sum()) / rows)
            z = gap / spread if rows >= min_rows and spread > 0 else None
            out.append({"slice": name, "value": str(value), "rows": rows, "mean_p": float(p[row_N].mean()),
                        "observed_rate": float(y[row_N].mean()), "z": z})  # fmt: skip
    return out


def _interval(value: float | None, drawn: list[float], level: float) -> Interval:
    if not drawn:
        return Interval(value, None, None)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def _dict(interval: Interval) -> dict[str, float | None]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _check(p_N: NDArray[Any], y_N: NDArray[Any]) -> None:
    p, y = np.asarray(p_N), np.asarray(y_N)
    if p.ndim != 1 or p.shape != y.shape or len(p) == 0:
        raise ValueError(f"need (N,) probabilities and (N,) labels with N > 0; got shapes {p.shape} and {y.shape}")
    if not (np.isfinite(p).all() and p.min() >= 0 and p.max() <= 1):
        raise ValueError(f"probabilities must be finite and in [0, 1]; got min {p.min()}, max {p.max()}")

"""How likely counts as uneven as these are: tests of randomness without a statistics package."""

from __future__ import annotations

import math

import numpy as np


def chi_square_p(counts: np.ndarray) -> float:
    """The chance of counts at least as uneven as these, all being equally likely. Shapes: counts of any shape."""
    expected = counts.sum() / counts.size
    return chi_square_tail(float(((counts - expected) ** 2 / expected).sum()), counts.size - 1)


def independence_p(table: np.ndarray) -> float:
    """The chance of a table at least as uneven, were rows and columns independent. Shapes: table (R, C) of counts."""
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    return chi_square_tail(statistic, (table.shape[0] - 1) * (table.shape[1] - 1))


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square with these degrees of freedom >= statistic); exact for one, else the normal form of Wilson and Hilferty."""
    if degrees == 1:
        return math.erfc(math.sqrt(statistic / 2))
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return 0.5 * math.erfc(z / math.sqrt(2))

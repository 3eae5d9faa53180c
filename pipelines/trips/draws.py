"""Seeded draws by hash: the same seed and the same names give the same number, in any order and any process.

Everything that a trip file does not record is made up with these, so that a second replay publishes the same bytes.
"""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist

_STANDARD_NORMAL = NormalDist()


def uniform(seed: int, *names: object) -> float:
    """A number in (0, 1) that depends on the seed and the names only."""
    text = "\x1f".join(map(str, (seed, *names)))
    bits = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 11
    return (bits + 0.5) * 2.0**-53


def normal(seed: int, *names: object) -> float:
    """A standard normal number."""
    return _STANDARD_NORMAL.inv_cdf(uniform(seed, *names))


def exponential(mean: float, seed: int, *names: object) -> float:
    """An exponential number with this mean."""
    return -mean * math.log(uniform(seed, *names))


def between(low: int, high: int, seed: int, *names: object) -> int:
    """An integer in [low, high]. Raises: ValueError if high < low."""
    if high < low:
        raise ValueError(f"no integer lies in [{low}, {high}]")
    return low + int(uniform(seed, *names) * (high - low + 1))

"""The chance of each candidate, and the draw. Read `engine/strategy.py::Explore` for what the kinds mean.

A Decision replays to the bit, so the doubles must not hang on the processor or on how many candidates there are, as
NumPy's exp and sum do: a chance is math.exp of (score - best) / temperature, one kept candidate at a time, over the exactly
rounded sum (`math.fsum`) of those. What is left to trust is the C library's exp: another one may round its last bit otherwise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from engine.strategy import Explore


def propensities(explore: Explore, scores: Sequence[float]) -> list[float]:
    """The chance of each kept candidate, best first; they add up to 1 (to rounding), or are none."""
    num_kept = len(scores)
    if num_kept == 0:
        return []
    if explore.kind == "epsilon":
        each = explore.epsilon / num_kept
        return [1.0 - explore.epsilon + each, *([each] * (num_kept - 1))]
    if explore.kind == "none":
        return [1.0, *([0.0] * (num_kept - 1))]
    drawn = scores[: explore.top_k] if explore.kind == "top_k_softmax" else scores
    best, temperature = scores[0], explore.temperature
    weights = list(map(math.exp, [(value - best) / temperature for value in drawn]))
    total = math.fsum(weights)
    return [*[weight / total for weight in weights], *([0.0] * (num_kept - len(drawn)))]


def draw(chances: Sequence[float], u: float) -> int | None:
    """The first place whose cumulated chance exceeds u in [0, 1). None when there is nothing to choose."""
    ends = list(accumulate(chances))  # one addition after the other, best first: the same sums wherever it runs
    place = bisect_right(ends, u)
    if place < len(ends):
        return place
    return max(
        (place for place, chance in enumerate(chances) if chance > 0.0), default=None
    )  # rounding left the sum below u

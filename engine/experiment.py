"""Layers, experiments and buckets: which arm a unit is in, as a pure function of (salt, unit).

Nothing is stored and no clock is read, so an assignment can be recomputed from a logged record. The 64-bit mix and
`hash01`, its draw in [0, 1), are in `features/expr/hashing.py`. Read `engine/strategy.py` for how an arm's settings
reach the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from features.expr.hashing import hash01, hash64, hash64_array

__all__ = ["STEPS", "UNASSIGNED", "Bucketing", "hash01", "hash64", "hash64_array", "lay_out"]

STEPS: Final = 1 << 24  # buckets of one layer; a share is rounded to this grid
UNASSIGNED: Final = -1


@dataclass(frozen=True, kw_only=True)
class Bucketing:
    """The half-open bucket ranges [starts[i], starts[i+1]) of a layer, and the arm that owns each.

    `arms[i]` is an index into the experiment's arms, or UNASSIGNED: such a unit keeps the defaults.
    """

    starts: tuple[int, ...]
    arms: tuple[int, ...]

    def arm_of(self, salt: str, unit: str) -> int:
        """The arm of one unit."""
        bucket = hash64(salt, unit) >> 40
        at = len(self.starts) - 1
        while self.starts[at] > bucket:
            at -= 1
        return self.arms[at]

    def arms_of(self, salt: str, units: Sequence[str]) -> np.ndarray:
        """The arms of many units. Shapes: units N texts; returns (N,) int64."""
        buckets_N = (hash64_array(salt, units) >> np.uint64(40)).astype(np.int64)
        return np.asarray(self.arms)[np.searchsorted(np.asarray(self.starts), buckets_N, side="right") - 1]


def lay_out(shares: Sequence[float]) -> Bucketing:
    """Give every arm its buckets, so that raising an arm's share only adds buckets to it.

    Arm i of n fills its home [i/n, (i+1)/n) from below. A share above 1/n overflows into what the other homes leave
    free, counted from the top: the first such arm takes from the top down, the last one from the bottom up, so these
    two also only grow (a third arm above 1/n, which needs n >= 4, takes what is left between and may move).

        shares 0.9, 0.1     |000000000|1|00000000|        shares 0.8, 0.2     |000000000|11|0000000|
                            0        0.5 0.6     1                            0        0.5 0.7     1

    Raises: ValueError for no share at all, a share outside [0, 1], or shares above 1 in sum.
    """
    if not shares:
        raise ValueError("there is no arm")
    if any(not 0.0 <= share <= 1.0 for share in shares):
        raise ValueError(f"every share must lie in [0, 1], not {list(shares)}")
    wanted = [round(share * STEPS) for share in shares]
    if sum(wanted) > STEPS + len(wanted):  # each may have been rounded up by half a step
        raise ValueError(f"shares add up to {sum(shares):g}, more than 1")
    homes = [(arm * STEPS // len(wanted), (arm + 1) * STEPS // len(wanted)) for arm in range(len(wanted))]
    taken: list[tuple[int, int, int]] = []
    free: list[tuple[int, int]] = []
    for arm, (low, high) in enumerate(homes):
        fill = min(low + wanted[arm], high)
        taken.append((low, fill, arm))
        free.append((fill, high))
    over = [arm for arm, (low, high) in enumerate(homes) if wanted[arm] > high - low]
    from_bottom = over[-1:] if len(over) > 1 else []
    for arm in [*over[:1], *from_bottom, *over[1:-1]]:
        low, high = homes[arm]
        _take(free, wanted[arm] - (high - low), arm, taken, from_top=arm not in from_bottom)
    taken.extend((low, high, UNASSIGNED) for low, high in free)
    ranges = sorted((low, arm) for low, high, arm in taken if low < high)
    return Bucketing(starts=tuple(low for low, _ in ranges), arms=tuple(arm for _, arm in ranges))


def _take(
    free: list[tuple[int, int]], count: int, arm: int, taken: list[tuple[int, int, int]], *, from_top: bool
) -> None:
    """Move `count` buckets from the free ranges to `arm`, from one end of the line; what is not there is not taken."""
    for at in range(len(free) - 1, -1, -1) if from_top else range(len(free)):
        low, high = free[at]
        step = min(count, high - low)
        count -= step
        if from_top:
            taken.append((high - step, high, arm))
            free[at] = (low, high - step)
        else:
            taken.append((low, low + step, arm))
            free[at] = (low + step, high)

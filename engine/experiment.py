"""Layers, experiments and buckets: which arm a unit is in, as a pure function of (salt, unit).

Nothing is stored and no clock is read, so an assignment can be recomputed from a logged record. The 64-bit mix and
`hash01`, its draw in [0, 1), are in `features/expr/hashing.py`. Read `engine/strategy.py` for how an arm's settings
reach the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from features.expr import Column, interpret
from features.expr.hashing import hash01, hash64, hash64_array

if TYPE_CHECKING:
    from engine.strategy import CompiledArms, CompiledStrategy, Experiment

__all__ = [
    "HOLDOUT",
    "NOT_EXPOSED",
    "STEPS",
    "UNASSIGNED",
    "Assignment",
    "Bucketing",
    "assign",
    "hash01",
    "hash64",
    "hash64_array",
    "lay_out",
]

HOLDOUT: Final = "holdout"  # in place of an arm: the unit is in the layer's holdout
NOT_EXPOSED: Final = "not_exposed"  # in place of an arm: the unit is outside `exposure`

STEPS: Final = 1 << 24  # buckets of one layer; a share is rounded to this grid
UNASSIGNED: Final = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
    """What the experiments of a strategy make of one request.

    `arms` has the arm by experiment, or HOLDOUT or NOT_EXPOSED; an experiment whose `where` is not true is left out.
    `columns` are all parameters as they then are, by `params.name`, shape (1,); `params` the same as plain values.
    """

    arms: dict[str, str]
    columns: dict[str, Column]
    params: dict[str, Any]


def assign(compiled: CompiledStrategy, values: Mapping[str, Any], as_of_ms: int) -> Assignment:
    """The arm of every experiment, and the parameters that its arms set.

    `values` are the request's fields and the envelope's. Pure: the same values and time are the same assignment.
    """
    found = Assignment(arms={}, columns=dict(compiled.param_columns), params=dict(compiled.param_values))
    for split in compiled.arms:
        if not _wanted(split, values, as_of_ms):
            continue
        experiment = split.experiment
        unit = unit_of(experiment, values, as_of_ms)
        layer = compiled.strategy.layers.get(experiment.layer)
        if layer is not None and _within(layer.holdout, layer.salt, unit):
            found.arms[experiment.name] = HOLDOUT
        elif not _within(experiment.exposure, f"{experiment.salt}:exposure", unit):
            found.arms[experiment.name] = NOT_EXPOSED
        elif (arm := split.bucketing.arm_of(experiment.salt, unit)) != UNASSIGNED:
            found.arms[experiment.name] = experiment.arms[arm].name
            found.columns.update(split.columns[arm])
            found.params.update(split.values[arm])
    return found


def unit_of(experiment: Experiment, values: Mapping[str, Any], as_of_ms: int) -> str:
    """What is hashed: the value of the unit as text, or for a switchback `window:region`."""
    if experiment.kind == "switchback":
        return f"{as_of_ms // experiment.window_ms}:{values[experiment.region]}"
    return str(values[experiment.unit])


def _wanted(split: CompiledArms, values: Mapping[str, Any], as_of_ms: int) -> bool:
    """Whether `where` is true; null and a row error are not."""
    if split.where is None:
        return True
    return interpret(split.where, {**values, "as_of": as_of_ms * 1000}) is True


def _within(share: float, salt: str, unit: str) -> bool:
    """Whether the unit is in that share of all units; a larger share has all units of a smaller one."""
    if share <= 0.0 or share >= 1.0:
        return share > 0.0
    return hash64(salt, unit) >> 40 < round(share * STEPS)


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

"""Layers, experiments and arms: which arm a request is in, as a pure function of what a Decision records.

Nothing is stored and no clock is read. What is hashed is the experiment's unit: the value of a field, or for a
switchback the pair of a region and the window of event time that the request falls in. Holdout, exposure and arm are
drawn by salts of their own, so none of them says anything about another. `engine/vectors/README.md` describes the scheme
for other languages; the hash is `features/expr/hashing.py`; `engine/experiment_log.py` does it for whole logs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from features.expr import Column, interpret
from features.expr.hashing import draw64, hash01, hash64, hash64_array, step_key, unit_key

if TYPE_CHECKING:
    from engine.strategy import CompiledArms, CompiledStrategy, Experiment, Layer

__all__ = [
    "HELD_OUT",
    "HOLDOUT",
    "NOT_EXPOSED",
    "STEPS",
    "UNEXPOSED",
    "Assignment",
    "Bucketing",
    "Window",
    "assign",
    "hash01",
    "hash64",
    "hash64_array",
    "lay_out",
    "num_steps",
    "side_of",
    "window_of",
]

STEPS: Final = 1 << 24  # buckets of a draw; a share is rounded to this grid
BUCKET_SHIFT: Final = 40  # a bucket is the top 24 bits of a draw
UNEXPOSED: Final = -1  # `side_of`, in place of the index of an arm: outside `exposure`
HELD_OUT: Final = -2  # the same: in the layer's holdout
NOT_EXPOSED: Final = "not_exposed"  # what `arms` of a Decision says in place of an arm's name
HOLDOUT: Final = "holdout"
SHARES_TOLERANCE: Final = 1e-5  # shares are written by hand: 0.333333 three times is one


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
    """What the experiments of a strategy make of one request.

    `arms` has the arm by experiment, or HOLDOUT or NOT_EXPOSED; an experiment whose `where` is not true is left out.
    `columns` are all parameters as they then are, by `params.name`, shape (1,); `params` the same as plain values.
    """

    arms: dict[str, str]
    columns: dict[str, Column]
    params: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Window:
    """One window of a region: event times from `start_ms` up to, and without, `end_ms`. Index 0 is the first from 1970 on."""

    index: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True, kw_only=True)
class Bucketing:
    """The half-open bucket ranges [starts[i], starts[i+1]) that tile [0, STEPS), and the arm that owns each."""

    starts: tuple[int, ...]
    arms: tuple[int, ...]


def assign(compiled: CompiledStrategy, values: Mapping[str, Any], as_of_ms: int) -> Assignment:
    """The arm of every experiment, and the parameters that its arms set.

    `values` are the request's fields and the envelope's. Pure: the same values and time are the same assignment.
    """
    found = Assignment(arms={}, columns=dict(compiled.param_columns), params=dict(compiled.param_values))
    keys: dict[str, int] = {}
    for split in compiled.arms:
        experiment = split.experiment
        if split.where is not None and not _is_true(split, values, as_of_ms):
            continue
        field = experiment.region if experiment.kind == "switchback" else experiment.unit
        if field not in keys:
            keys[field] = unit_key(str(values[field]))
        key = keys[field]
        if experiment.kind == "switchback":
            key = step_key(key, _window_index(experiment, key, as_of_ms))
        side = side_of(split, compiled.strategy.layers.get(experiment.layer), key)
        if side >= 0:
            found.arms[experiment.name] = experiment.arms[side].name
            found.columns.update(split.columns[side])
            found.params.update(split.values[side])
        else:
            found.arms[experiment.name] = HOLDOUT if side == HELD_OUT else NOT_EXPOSED
    return found


def side_of(split: CompiledArms, layer: Layer | None, key: int) -> int:
    """The index of the arm of the unit with that key, or HELD_OUT, or UNEXPOSED."""
    experiment = split.experiment
    if layer is not None and layer.holdout > 0.0 and _bucket(layer.salt, key) < num_steps(layer.holdout):
        return HELD_OUT
    if experiment.exposure < 1.0 and _bucket(exposure_salt(experiment), key) >= num_steps(experiment.exposure):
        return UNEXPOSED
    found = bisect_right(split.bucketing.starts, _bucket(experiment.salt, key))
    return split.bucketing.arms[found - 1]


def window_of(experiment: Experiment, region: str, as_of_ms: int) -> Window:
    """The window of a switchback that this region is in at this event time.

    [i * w + offset, (i + 1) * w + offset) for every whole i, also below 0; the offset is 0, or with `offset: hashed` one
    of the region's own in [0, w), so that regions do not switch all at once.
    """
    key = unit_key(region)
    index = _window_index(experiment, key, as_of_ms)
    start = index * experiment.window_ms + _offset_ms(experiment, key)
    return Window(index=index, start_ms=start, end_ms=start + experiment.window_ms)


def lay_out(shares: Sequence[float]) -> Bucketing:
    """Give the arms their buckets one behind the other, in the order of the file. Shares are of the exposed units.

        shares 0.9, 0.1     |000000000|1|        shares 0.5, 0.3, 0.2     |00000|111|22|
                            0        0.9 1                                0    0.5 0.8 1

    Whoever is in an arm stays when that arm's share is raised at the cost of others: what stands before it only gets
    shorter, and so does what stands behind it. That is why shares must add up to 1: with a share left to nobody, three
    arms or more could not all grow into it without taking from each other (arm i alone at share x has units A_i(x), and
    A_1(x) must miss A_2(1-x) as well as A_3(1-x), so A_2(1/2) would be A_3(1/2), which must be disjoint). To let fewer
    units in is what `exposure` is for: raising it moves nobody, however many arms there are.

    Raises: ValueError for no share at all, a share outside [0, 1], or shares that do not add up to 1.
    """
    if not shares:
        raise ValueError("there is no arm")
    if any(not 0.0 <= share <= 1.0 for share in shares):
        raise ValueError(f"every share must lie in [0, 1], not {list(shares)}")
    total = math.fsum(shares)
    if abs(total - 1.0) > SHARES_TOLERANCE:
        raise ValueError(f"shares add up to {total:g}, not to 1")
    edges = [0, *(min(num_steps(math.fsum(shares[: at + 1])), STEPS) for at in range(len(shares)))]
    last = max(at for at, share in enumerate(shares) if share > 0.0)
    edges[last + 1 :] = [STEPS] * (len(shares) - last)
    owned = [(low, arm) for arm, (low, high) in enumerate(pairwise(edges)) if low < high]
    return Bucketing(starts=tuple(low for low, _ in owned), arms=tuple(arm for _, arm in owned))


def num_steps(share: float) -> int:
    """A share on the grid of buckets, half a bucket rounded up: buckets below it are in."""
    return math.floor(share * STEPS + 0.5)


def exposure_salt(experiment: Experiment) -> str:
    """What exposure is drawn by."""
    return f"{experiment.salt}:exposure"


def offset_salt(experiment: Experiment) -> str:
    """What a region's own offset is drawn by."""
    return f"{experiment.salt}:offset"


def _bucket(salt: str, key: int) -> int:
    return draw64(salt, key) >> BUCKET_SHIFT


def _window_index(experiment: Experiment, region_key: int, as_of_ms: int) -> int:
    return (as_of_ms - _offset_ms(experiment, region_key)) // experiment.window_ms


def _offset_ms(experiment: Experiment, region_key: int) -> int:
    if experiment.offset != "hashed":
        return 0
    return draw64(offset_salt(experiment), region_key) % experiment.window_ms


def _is_true(split: CompiledArms, values: Mapping[str, Any], as_of_ms: int) -> bool:
    """Whether `where` is true; null and a row error are not."""
    assert split.where is not None
    return interpret(split.where, {**values, "as_of": as_of_ms * 1000}) is True

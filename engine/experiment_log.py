"""Arms of whole logs: `assign` over columns, for replay and analysis.

The same scheme as `engine/experiment.py`, which defines it: a unit is mixed to its key once, a region once per distinct
text where the column is an Arrow dictionary. Legend: N logged requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.experiment import (
    BUCKET_SHIFT,
    HELD_OUT,
    STEPS,
    UNEXPOSED,
    Bucketing,
    assign,
    exposure_salt,
    lay_out,
    num_steps,
    offset_salt,
)
from engine.wire_values import from_wire
from features.expr.hashing import draw64_array, step_keys, unit_keys

if TYPE_CHECKING:
    from engine.experiment import Assignment
    from engine.strategy import CompiledStrategy, Experiment, Layer
    from features.records import Decision

_CHUNK = 16_384  # rows whose intermediate columns stay in the cache


def assign_many(
    experiment: Experiment, layer: Layer | None, units: Any, as_of_ms_N: np.ndarray | None = None
) -> np.ndarray:
    """Per request the index of its arm, or HELD_OUT or UNEXPOSED; `where` is the caller's to look at.

    `units` are the values of the unit, or of the region of a switchback: a sequence of texts, ints, or an Arrow array.
    Shapes: units N; as_of_ms_N (N,) int64, only for a switchback; returns (N,) int16.
    Units:  epoch milliseconds, UTC.
    Raises: ValueError for a null unit, or a switchback without times.
    """
    keys_N = unit_keys(units)
    if experiment.kind == "switchback" and as_of_ms_N is None:
        raise ValueError(
            f"experiment '{experiment.name}' is a switchback: its arms depend on as_of_ms, which is missing"
        )
    bucketing = lay_out([arm.share for arm in experiment.arms])
    out_N = np.empty(len(keys_N), dtype=np.int16)
    for start in range(0, len(keys_N), _CHUNK):
        rows = slice(start, start + _CHUNK)
        keys = keys_N[rows]
        if experiment.kind == "switchback":
            assert as_of_ms_N is not None
            keys = step_keys(keys, windows_of(experiment, keys, as_of_ms_N[rows]))
        out_N[rows] = _sides(experiment, layer, bucketing, keys)
    return out_N


def windows_of(experiment: Experiment, region_keys_N: np.ndarray, as_of_ms_N: np.ndarray) -> np.ndarray:
    """The index of the window that each request of a switchback falls in; the keys are `unit_keys` of the regions.

    Shapes: region_keys_N (N,) uint64, as_of_ms_N (N,) int64; returns (N,) int64.
    """
    times_N = as_of_ms_N
    if experiment.offset == "hashed":
        offsets_N = draw64_array(offset_salt(experiment), region_keys_N) % np.uint64(experiment.window_ms)
        times_N = times_N - offsets_N.astype(np.int64)
    return times_N // np.int64(experiment.window_ms)  # floors, also before 1970


def reassign(compiled: CompiledStrategy, decision: Decision) -> Assignment:
    """The assignment of a logged Decision again, from its request and event time alone.

    It is the recorded one as long as `compiled` is the strategy of the record (`strategy_hash`).
    """
    declared = compiled.strategy.request
    values = {name: from_wire(decision.request.get(name), kind) for name, kind in declared.items()}
    values |= {"order_id": decision.order_id, "city": decision.city, "product": decision.product}
    return assign(compiled, values, decision.as_of_ms)


def _sides(experiment: Experiment, layer: Layer | None, bucketing: Bucketing, keys_N: np.ndarray) -> np.ndarray:
    """`side_of` of many keys. Shapes: keys_N (N,) uint64; returns (N,) int16."""
    buckets_N = _buckets(experiment.salt, keys_N)
    if len(bucketing.starts) <= 4:
        places_N = np.zeros(len(keys_N), dtype=np.int16)
        for first in bucketing.starts[1:]:
            places_N += buckets_N >= first
    else:
        places_N = np.searchsorted(np.asarray(bucketing.starts), buckets_N, side="right").astype(np.int16) - 1
    in_order = bucketing.arms == tuple(range(len(bucketing.arms)))  # no arm with a share of 0 among them
    sides_N = places_N if in_order else np.asarray(bucketing.arms, dtype=np.int16)[places_N]
    if num_steps(experiment.exposure) < STEPS:
        sides_N[_buckets(exposure_salt(experiment), keys_N) >= num_steps(experiment.exposure)] = UNEXPOSED
    if layer is not None and layer.holdout > 0.0:
        sides_N[_buckets(layer.salt, keys_N) < num_steps(layer.holdout)] = HELD_OUT
    return sides_N


def _buckets(salt: str, keys_N: np.ndarray) -> np.ndarray:
    return (draw64_array(salt, keys_N) >> np.uint64(BUCKET_SHIFT)).view(np.int64)

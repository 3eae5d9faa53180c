"""Stored tiles to window values, over columns: the NumPy form of what `aggregate.py` defines row by row.

    cells of all keys, newest first ─► those inside the window ─► one number per key and partial ─► values

The compiled form (features/merge_machine.py) is compared with this one, which is for tests and for where no compiled
form was loaded. Integers merge in any order; doubles are added one after the other, from a window's oldest tile to its
newest. Shapes: N tile records of R keys, P partials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.aggregate import MOMENT_BITS, MOMENT_EVENTS, decay_weights, stddev_of
from features.buckets import MIDPOINTS, MILLIONTHS, NO_VALUE, NUM_BUCKETS, millionths
from features.packing import NUM_FIXED_CELLS
from features.spec import FeatureSpec, TileGroup

Values = tuple[NDArray[Any], NDArray[np.bool_] | None]
_EXTREMES: Final = {"min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class Reduction:
    """Partials of one function and type, reduced together: `places` in the group, `cells` in a tile record."""

    ufunc: np.ufunc
    is_double: bool
    cells: NDArray[np.int64]
    identity: int | float
    places: tuple[int, ...]


@dataclass(frozen=True)
class WindowRead:
    """All features of one window of one group. `features`: (place in the view, spec, slots of what it is made of).

    A slot is one merged column: those below the number of partials are the partials, the others are filled by `decayed`
    (slot, place of the sum, spec) and, in a bucketed group, by `quantiles` (slot of the value, spec; the next one says
    where there is one).
    """

    window_ms: int
    reductions: tuple[Reduction, ...]
    features: tuple[tuple[int, FeatureSpec, tuple[int, ...]], ...]
    decayed: tuple[tuple[int, int, FeatureSpec], ...] = ()
    quantiles: tuple[tuple[int, FeatureSpec], ...] = ()


def compile_window(group: TileGroup, window_ms: int, features: Sequence[tuple[int, FeatureSpec]]) -> WindowRead:
    """What has to be merged for features (place in the view, spec) of one window."""
    slot = len(group.partials)
    placed: list[tuple[int, FeatureSpec, tuple[int, ...]]] = []
    decayed: list[tuple[int, int, FeatureSpec]] = []
    quantiles: list[tuple[int, FeatureSpec]] = []
    kinds: dict[tuple[np.ufunc, str, int | float], set[int]] = {}
    for place, spec in features:
        slots = group.places_of(spec)
        if spec.aggregate == "decayed_sum":
            decayed.append((slot, slots[0], spec))
            slots, slot = (slot,), slot + 1
        elif spec.aggregate == "quantile":
            quantiles.append((slot, spec))
            slots, slot = (slot, slot + 1), slot + 2
        else:
            for p in slots:
                kind, partial = _EXTREMES.get(group.partials[p].function, np.add), group.partials[p]
                kinds.setdefault((kind, partial.type, partial.identity), set()).add(p)
        placed.append((place, spec, slots))
    reductions = tuple(
        Reduction(ufunc, type_name == "double", np.array(places) + NUM_FIXED_CELLS, identity, places)
        for (ufunc, type_name, identity), places in ((kind, tuple(sorted(found))) for kind, found in kinds.items())
    )
    return WindowRead(window_ms, reductions, tuple(placed), tuple(decayed), tuple(quantiles))


def reduce_window(
    cells: NDArray[np.int64], rows: NDArray[np.int64], num_rows: int, first: int, last: int, read: WindowRead
) -> dict[int, NDArray[Any]]:
    """Merge each key's tiles first..last.

    Shapes: cells (N, 2 + P) of all keys one after the other, each key's newest first; rows (N,) ascending, the key of
    each; returns by slot (R,), the identity where a key has no tile in the window.
    """
    if read.quantiles:
        return _quantiles(cells, rows, num_rows, first, last, read)
    inside = (cells[:, 0] >= first) & (cells[:, 0] <= last)
    chosen, chosen_rows = cells[inside], rows[inside]
    num_tiles = np.bincount(chosen_rows, minlength=num_rows)
    present = num_tiles > 0
    starts = (np.cumsum(num_tiles) - num_tiles)[present]
    out: dict[int, NDArray[Any]] = {}
    for reduction in read.reductions:
        data = chosen.view("<f8") if reduction.is_double else chosen
        if reduction.is_double and reduction.ufunc is np.add:
            for place, cell in zip(reduction.places, reduction.cells, strict=True):
                out[place] = add_in_order(data[:, cell], chosen_rows, num_rows)
            continue
        merged = np.full((len(reduction.cells), num_rows), reduction.identity, dtype=data.dtype)
        if len(starts):
            merged[:, present] = reduction.ufunc.reduceat(data[:, reduction.cells], starts, axis=0).T
        for place, column in zip(reduction.places, merged, strict=True):
            out[place] = column
    for slot, place, spec in read.decayed:
        assert spec.of is not None
        parts = chosen.view("<f8") if spec.of.type.kind == "double" else chosen
        with np.errstate(invalid="ignore"):  # a sum beyond the doubles, times a weight of 0
            decayed = parts[:, NUM_FIXED_CELLS + place] * np.array(decay_weights(spec))[last - chosen[:, 0]]
        out[slot] = add_in_order(decayed, chosen_rows, num_rows)
    return out


def add_in_order(values: NDArray[Any], rows: NDArray[np.int64], num_rows: int) -> NDArray[np.float64]:
    """(R,) sums of each key's (N,) values, one addition after the other from the last of them to the first.

    A stored list is newest first, so that is from the oldest tile on. `bincount` adds in the order of its input;
    `reduceat` adds in blocks.
    """
    sums: NDArray[np.float64] = np.bincount(rows[::-1], weights=values[::-1], minlength=num_rows).astype(np.float64)
    return sums


def _quantiles(
    cells: NDArray[np.int64], rows: NDArray[np.int64], num_rows: int, first: int, last: int, read: WindowRead
) -> dict[int, NDArray[Any]]:
    """`reduce_window` of a bucketed group: cells (N, 2) are (tile * NUM_BUCKETS + bucket, count)."""
    numbers = cells[:, 0] - first * NUM_BUCKETS
    inside = (numbers >= 0) & (numbers < (last - first + 1) * NUM_BUCKETS)
    numbers = numbers[inside]
    buckets = numbers - numbers // NUM_BUCKETS * NUM_BUCKETS
    occurs = np.bincount(buckets, minlength=NUM_BUCKETS) > 0  # few of all, so the table of counts is small
    occurs[NO_VALUE] = True
    occurring, column_of = np.flatnonzero(occurs), np.cumsum(occurs) - 1
    places = rows[inside] * len(occurring) + column_of[buckets]
    counts = np.bincount(places, weights=cells[inside, 1], minlength=num_rows * len(occurring))
    counts_RB = counts.reshape(num_rows, len(occurring))
    counts_RB[:, 0] = 0  # of NO_VALUE
    upto_RB = np.cumsum(counts_RB, axis=1)  # doubles, exact below 2^53 events
    num_values = upto_RB[:, -1].astype(np.int64)
    known = num_values > 0
    out: dict[int, NDArray[Any]] = {}
    for slot, spec in read.quantiles:
        assert spec.q is not None and spec.resolution is not None
        ranks = np.maximum(-(-millionths(spec.q) * num_values // MILLIONTHS), 1)
        found = occurring[np.argmax(upto_RB[known] >= ranks[known, None], axis=1)]
        out[slot], out[slot + 1] = np.zeros(num_rows), known
        out[slot][known] = MIDPOINTS[found] * spec.resolution
    return out


def finish(spec: FeatureSpec, merged: Sequence[NDArray[Any]], group: TileGroup, partials: Sequence[int]) -> Values:
    """The merged columns of a feature's slots to its values, and where there is one (None: everywhere).

    The sum or count of nothing is 0; its average, extremes and deviation are null, and so is a sum beyond the doubles.
    """
    if spec.aggregate in ("count", "sum", "decayed_sum"):
        return merged[0], _where_finite(merged[0])
    if spec.aggregate == "avg":
        totals, counts = merged
        finite = _where_finite(totals)
        known = counts > 0 if finite is None else finite & (counts > 0)
        return np.where(known, totals, 0).astype(np.float64) / np.maximum(counts, 1), known
    if spec.aggregate == "quantile":
        return merged[0], merged[1]
    if spec.aggregate == "stddev":
        assert spec.resolution is not None
        return _deviations(merged, spec.resolution)
    return merged[0], merged[0] != group.partials[partials[0]].identity


def _where_finite(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    if values.dtype.kind != "f":
        return None
    finite = np.isfinite(values)
    return None if finite.all() else finite


def _deviations(
    moments: Sequence[NDArray[np.int64]], resolution: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """`aggregate.stddev_of` of (R,) moments, to the same bits.

    n * Σq² − (Σq)² in 64 bits is right, however often it wraps on the way, where the whole fits them; the rest, of
    values beyond a billion steps or so, is left to whole numbers of any size.
    """
    n, q, aa, ab, bb = moments
    known = (n > 0) & (n <= MOMENT_EVENTS)
    spread = n * ((bb << 2 * MOMENT_BITS) + (ab << MOMENT_BITS + 1) + aa) - q * q
    about = n * (bb * 2.0 ** (2 * MOMENT_BITS) + ab * 2.0 ** (MOMENT_BITS + 1) + aa)  # of n * Σq², an upper bound
    fits = known & (about < 2.0**62)
    values = np.zeros(len(n))
    values[fits] = np.sqrt(spread[fits].astype(np.float64)) / n[fits] * resolution
    for row in np.flatnonzero(known & ~fits).tolist():
        values[row] = stddev_of(*(int(column[row]) for column in moments), resolution=resolution)
    return values, known

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

from features.packing import NUM_FIXED_CELLS
from features.spec import FeatureSpec, TileGroup

_UFUNCS: Final = {"count": np.add, "sum": np.add, "min": np.minimum, "max": np.maximum}


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
    """All features of one window of one group. `features`: (place in the view, spec, places of its partials)."""

    window_ms: int
    reductions: tuple[Reduction, ...]
    features: tuple[tuple[int, FeatureSpec, tuple[int, ...]], ...]


def compile_window(group: TileGroup, window_ms: int, features: Sequence[tuple[int, FeatureSpec]]) -> WindowRead:
    """What has to be merged for features (place in the view, spec) of one window."""
    placed = tuple((place, spec, group.places_of(spec)) for place, spec in features)
    kinds: dict[tuple[np.ufunc, str, int | float], list[int]] = {}
    for p in sorted({p for _, _, partials in placed for p in partials}):
        partial = group.partials[p]
        kinds.setdefault((_UFUNCS[partial.function], partial.type, partial.identity), []).append(p)
    reductions = tuple(
        Reduction(ufunc, type_name == "double", np.array(places) + NUM_FIXED_CELLS, identity, tuple(places))
        for (ufunc, type_name, identity), places in kinds.items()
    )
    return WindowRead(window_ms, reductions, placed)


def reduce_window(
    cells: NDArray[np.int64], rows: NDArray[np.int64], num_rows: int, first: int, last: int, read: WindowRead
) -> dict[int, NDArray[Any]]:
    """Merge each key's tiles first..last.

    Shapes: cells (N, 2 + P) of all keys one after the other, each key's newest first; rows (N,) ascending, the key of
    each; returns by partial (R,), the identity where a key has no tile in the window.
    """
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
    return out


def add_in_order(values: NDArray[Any], rows: NDArray[np.int64], num_rows: int) -> NDArray[np.float64]:
    """(R,) sums of each key's (N,) values, one addition after the other from the last of them to the first.

    A stored list is newest first, so that is from the oldest tile on. `bincount` adds in the order of its input;
    `reduceat` adds in blocks.
    """
    sums: NDArray[np.float64] = np.bincount(rows[::-1], weights=values[::-1], minlength=num_rows).astype(np.float64)
    return sums


def finish(
    spec: FeatureSpec, merged: Sequence[NDArray[Any]], group: TileGroup, partials: Sequence[int]
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Merged partials to values, and where there is one (None: everywhere). The sum or count of nothing is 0, its
    average null."""
    if spec.aggregate in ("count", "sum"):
        return merged[0], None
    if spec.aggregate == "avg":
        return merged[0].astype(np.float64) / np.maximum(merged[1], 1), merged[1] > 0
    return merged[0], merged[0] != group.partials[partials[0]].identity

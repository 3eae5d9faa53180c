"""A batch of rows to one write per key: which row of each tile or field wins, found before it is sent.

The same guards stand on the server (features/lua/*.lua), against what other batches wrote.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.packing import ABSENT_CELL, pack_last_cell, pack_value
from features.spec import Key, LastField, LastGroup


@dataclass(frozen=True)
class TileBatch:
    """records[k]: the packed records of keys[k], unique tiles, newest first. rows: of which input row each record is."""

    keys: list[Key]
    records: list[bytes]
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class LastBatch:
    """cells[k]: the packed cells of keys[k], one per field. rows (keys * fields,): of which input row each cell is."""

    keys: list[Key]
    cells: list[bytes]
    rows: NDArray[np.int64]


def coalesce_tiles(keys: Sequence[Key], cells: NDArray[np.int64]) -> TileBatch:
    """Of rows with one key and tile only the highest count is kept: the others could never win.

    Shapes: keys N; cells (N, 2 + P) as packing.pack_tiles gives them.
    """
    if not len(keys):
        return TileBatch([], [], np.empty(0, dtype=np.int64))
    seen: dict[Key, int] = {}
    codes = np.fromiter((seen.setdefault(key, len(seen)) for key in keys), dtype=np.int64, count=len(keys))
    order = np.lexsort((-cells[:, 1], -cells[:, 0], codes))
    codes, cells = codes[order], cells[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (codes[1:] != codes[:-1]) | (cells[1:, 0] != cells[:-1, 0])
    codes, cells, order = codes[first], np.ascontiguousarray(cells[first]), order[first]
    data, width = cells.tobytes(), cells.shape[1] * cells.itemsize
    edges = (np.searchsorted(codes, np.arange(len(seen) + 1)) * width).tolist()
    return TileBatch(list(seen), [data[a:b] for a, b in pairwise(edges)], order)


def coalesce_last(
    group: LastGroup,
    keys: Sequence[Key],
    event_time_ms: NDArray[np.int64],
    event_ids: Sequence[str],
    values: Mapping[str, Sequence[Any]],
) -> LastBatch:
    """Per key and field the row that wins among those that carry a value: NaN and infinity are none."""
    times = np.asarray(event_time_ms).tolist()
    ids = [event_id.encode() for event_id in event_ids]
    best: dict[Key, list[int]] = {}
    for f, field in enumerate(group.fields):
        for row, value in enumerate(values[field.name]):
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                continue
            rows = best.setdefault(keys[row], [-1] * len(group.fields))
            at = rows[f]
            if at < 0 or wins(field, (times[row], ids[row]), (times[at], ids[at])):
                rows[f] = row
    cells = [
        b"".join(
            ABSENT_CELL
            if row < 0
            else pack_last_cell(times[row], ids[row], pack_value(field.type, values[field.name][row]))
            for field, row in zip(group.fields, rows, strict=True)
        )
        for rows in best.values()
    ]
    flat = [row for rows in best.values() for row in rows]
    return LastBatch(list(best), cells, np.array(flat, dtype=np.int64))


def wins(field: LastField, new: tuple[int, bytes], old: tuple[int, bytes]) -> bool:
    """Whether an event (time, id) takes a field from another: the higher one a `last`, the lower one a `first`."""
    return new > old if field.newest else new < old


def guards_of(group: LastGroup) -> str:
    """How the server compares each field: one character, 1 the higher wins, 0 the lower."""
    return "".join("1" if field.newest else "0" for field in group.fields)

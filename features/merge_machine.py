"""The compiled merge: stored tile lists to window values, read in place from the answers of the store.

One text for all plans, compiled by the process that compiles rules (`expr/fused_ops.py`) and called through
`expr/fused_machine.py`, so a reader needs no Numba. What it computes is defined by `merge.reduce_window`; doubles are
added from a window's oldest tile to its newest.

    inputs  [layout, values, plan, weights]      outputs [cells, newest]
    plan    cells a record, windows, then per window: first tile, last tile, its first and last + 1 operation;
            then per operation: function, cell in the record, row of `cells`, bits of the identity, first weight
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from features.aggregate import decay_weights
from features.expr.fused_machine import Machine
from features.merge import WindowRead
from features.packing import NUM_FIXED_CELLS, record_cells
from features.spec import TileGroup
from features.window import window_tiles

ENTRY: Final = "merge_tiles"
ADD_INT, ADD_DOUBLE, MIN_INT, MAX_INT, MIN_DOUBLE, MAX_DOUBLE, DECAY_INT, DECAY_DOUBLE = range(8)
HEAD, WINDOW_WIDTH, OPERATION_WIDTH = 2, 4, 5
NO_TILE: Final = -(2**63)
_FUNCTIONS: Final[dict[tuple[np.ufunc, bool], int]] = {
    (np.add, False): ADD_INT,
    (np.add, True): ADD_DOUBLE,
    (np.minimum, False): MIN_INT,
    (np.maximum, False): MAX_INT,
    (np.minimum, True): MIN_DOUBLE,
    (np.maximum, True): MAX_DOUBLE,
}

Operation = tuple[int, int, int, int | float, int]  # function, cell, row, identity, first weight

# By operation: where a fold starts, how a cell is read, what it becomes with the next one, and how the result is written.
# A name for each: one variable of ints and doubles would be a double.
_LOAD_INT, _LOAD_DOUBLE = "peek(cell + size * place)", "get_double(cell + size * place, 0)"
_WEIGHT: Final = "get_double(weights, peek(step + 32) + last - peek(tiles + size * place))"
_FOLDS: Final = {
    ADD_INT: ("0", _LOAD_INT, "total + value", "int"),
    ADD_DOUBLE: ("0.0", _LOAD_DOUBLE, "total + value", "double"),
    MIN_INT: ("peek(step + 24)", _LOAD_INT, "min(total, value)", "int"),
    MAX_INT: ("peek(step + 24)", _LOAD_INT, "max(total, value)", "int"),
    MIN_DOUBLE: ("get_double(step + 24, 0)", _LOAD_DOUBLE, "select(value < total, value, total)", "double"),
    MAX_DOUBLE: ("get_double(step + 24, 0)", _LOAD_DOUBLE, "select(value > total, value, total)", "double"),
    DECAY_INT: ("0.0", f"to_double({_LOAD_INT})", f"total + value * {_WEIGHT}", "double"),
    DECAY_DOUBLE: ("0.0", _LOAD_DOUBLE, f"total + value * {_WEIGHT}", "double"),
}
_FOLD: Final = """\
                if function == {number}:
                    total = {start}
                    while place >= begin:
                        value = {load}
                        total = {next}
                        place -= 1
                    put_{kind}(cells, row, total, 0)
"""
# Bytes objects of CPython 3.11: length at 16, contents at 32, which NumPy's allocator and Python's keep 8-aligned.
_HEAD: Final = """\
def merge_tiles(inputs, outputs, killed):
    layout, values = data_of(item_of(inputs, 0)), item_of(inputs, 1)
    plan, weights = data_of(item_of(inputs, 2)), data_of(item_of(inputs, 3))
    cells, newest = data_of(item_of(outputs, 0)), data_of(item_of(outputs, 1))
    num = rows_of(item_of(outputs, 1))
    size, num_windows = 8 * peek(plan), peek(plan + 8)
    windows = plan + 16
    operations = windows + 32 * num_windows
    for key in range(num):
        value = item_of(values, key)
        tiles, records = 0, 0
        if value != peek(layout + 8):
            if peek(value + 8) != peek(layout + 16):
                return 0 - key - 1
            length = peek(value + 16)
            records = quotient(length, size)
            if records * size != length:
                return key + 1
            tiles = value + 32
        put_int(newest, key, peek(tiles) if records > 0 else lowest(), 1)
        for window in range(num_windows):
            here = windows + 32 * window
            first, last = peek(here), peek(here + 8)
            begin = 0
            while begin < records and peek(tiles + size * begin) > last:
                begin += 1
            end = begin
            while end < records and peek(tiles + size * end) >= first:
                end += 1
            for at in range(peek(here + 16), peek(here + 24)):
                step = operations + 40 * at
                function, cell = peek(step), tiles + 8 * peek(step + 8)
                row, place = peek(step + 16) * num + key, end - 1
"""


def _text() -> str:
    folds = []
    for number, (start, load, following, kind) in _FOLDS.items():
        fold = _FOLD.format(number=number, start=start, load=load, next=following, kind=kind)
        folds.append(re.sub(r"\b(total|value)\b", rf"\1_{number}", fold))
    return "".join([_HEAD, *folds, "    return 0\n"])


TEXT: Final = _text()


class TileMachine:
    """The compiled merge, loaded. Safe to share between threads: a call keeps nothing."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        """`objects` as `fused_ops.compile_text(TEXT, [ENTRY])` makes them. Raises: ValueError as `Machine` does."""
        self._machine = Machine(objects)
        self._call = self._machine.functions[ENTRY]
        self._layout = np.array([id(np.ndarray), id(None), id(bytes)], dtype=np.int64)

    def merge(
        self,
        values: Sequence[bytes | None],
        plan: NDArray[np.int64],
        weights: NDArray[np.float64],
        num_cells: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(num_cells, R) merged partials, doubles as their bits, and (R,) each key's newest tile, NO_TILE for none.

        Shapes: values R stored lists, newest tile first; plan and weights (…,) as the module says.
        Raises: ValueError for a list that is not whole records; TypeError for what is not bytes.
        """
        items = values if type(values) is list else list(values)
        num = len(items)
        cells, newest = np.empty((num_cells, num), dtype=np.int64), np.empty(num, dtype=np.int64)
        found = self._call([self._layout, items, plan, weights], [cells, newest], 0)
        if found > 0:
            raise ValueError(f"{len(items[found - 1] or b'')} bytes are not whole records of {8 * int(plan[0])} bytes")
        if found < 0:
            raise TypeError(f"a stored list is {type(items[-found - 1]).__name__}, not bytes")
        return cells, newest


def plan_array(
    record_cells: int,
    windows: Sequence[tuple[int, int]],
    operations: Sequence[Sequence[Operation]],
) -> NDArray[np.int64]:
    """(…,) int64 from windows (first, last tile) and for each of them its operations (function, cell, row, identity,
    first weight)."""
    flat: list[int] = [record_cells, len(windows)]
    at = 0
    for (first, last), mine in zip(windows, operations, strict=True):
        flat += [first, last, at, at + len(mine)]
        at += len(mine)
    for mine in operations:
        for function, cell, row, identity, weight in mine:
            flat += [function, cell, row, _bits(identity), weight]
    return np.array(flat, dtype=np.int64)


def _bits(identity: int | float) -> int:
    return int(np.float64(identity).view(np.int64)) if isinstance(identity, float) else identity


@dataclass(frozen=True)
class MergePlan:
    """What is merged of one group. `rows[w]`: of window w, per slot its row among the merged ones and whether it holds
    doubles. `weights` (…,): those of all decayed sums, one after the other."""

    group: TileGroup
    windows_ms: tuple[int, ...]
    rows: tuple[Mapping[int, tuple[int, bool]], ...]
    num_rows: int
    template: NDArray[np.int64]
    weights: NDArray[np.float64]

    def at(self, as_of_ms: int) -> NDArray[np.int64]:
        """The plan's array for one asking time."""
        plan = self.template.copy()
        for w, window_ms in enumerate(self.windows_ms):
            start = HEAD + WINDOW_WIDTH * w
            plan[start : start + 2] = window_tiles(as_of_ms, window_ms, self.group.hop_ms)
        return plan


def compile_merge(group: TileGroup, windows: Sequence[WindowRead]) -> MergePlan | None:
    """None for buckets, which NumPy merges."""
    rows: list[dict[int, tuple[int, bool]]] = []
    operations: list[list[Operation]] = []
    weights: list[float] = []
    num = 0
    for window in windows:
        if window.quantiles:
            return None
        steps, slots = _operations(group, window, num, weights)
        num += len(steps)
        rows.append(slots)
        operations.append(steps)
    template = plan_array(record_cells(group), [(0, 0)] * len(windows), operations)
    windows_ms = tuple(window.window_ms for window in windows)
    return MergePlan(group, windows_ms, tuple(rows), num, template, np.array(weights or [1.0]))


def _operations(
    group: TileGroup, window: WindowRead, row: int, weights: list[float]
) -> tuple[list[Operation], dict[int, tuple[int, bool]]]:
    """The operations of a window, which fill the rows from `row` on; `weights` grows by those of its decayed sums."""
    steps: list[Operation] = []
    slots: dict[int, tuple[int, bool]] = {}
    for reduction in window.reductions:
        function = _FUNCTIONS[reduction.ufunc, reduction.is_double]
        identity = float(reduction.identity) if reduction.is_double else int(reduction.identity)
        for place, cell in zip(reduction.places, reduction.cells.tolist(), strict=True):
            slots[place] = row + len(steps), reduction.is_double
            steps.append((function, cell, row + len(steps), identity, 0))
    for slot, place, spec in window.decayed:
        is_double = group.partials[place].type == "double"
        slots[slot] = row + len(steps), True
        function = DECAY_DOUBLE if is_double else DECAY_INT
        steps.append((function, NUM_FIXED_CELLS + place, row + len(steps), 0, len(weights)))
        weights += decay_weights(spec)
    return steps, slots


def compiled() -> TileMachine:
    """Compiled in this process: about a second, and it imports Numba. For tools; an engine loads what was compiled."""
    from features.expr.fused_ops import compile_text

    return TileMachine(compile_text(TEXT, [ENTRY]))

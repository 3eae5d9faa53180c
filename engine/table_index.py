"""The fast form of a table: from the columns of its inputs to the row that fits, for all candidates at once.

Each input column is cut into *classes*: values that no cell of the column tells apart. For numbers these are the points
that cells name and the open intervals between them, found by a dense array (whole numbers near each other) or by one
sorted search; for texts they are the texts that cells name, and all others. Null and NaN are classes of their own.
Every class has the set of rows that accept it, as bits in 64-bit words; a candidate's rows are the AND over its columns.

A table whose combinations of classes are few remembers the answer of each in one array, so that a lookup is one index a
column, one sum and one take; a table with many ANDs the words of every candidate.
Legend: N candidates, R rows of the table, W = ceil(R / 64) words, G classes of a column, P points.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from engine.strategy import Cell
from features.expr import ROW_ERROR, Column

MAX_REMEMBERED: Final = 1 << 20  # combinations of classes whose answer is kept: 4 MiB a table
MAX_DENSE: Final = 1 << 16  # span of whole numbers that are looked up in an array, not searched
MAX_SETS: Final = 1 << 16  # answers of `collect` that are kept before starting over
COLLECT_GAP, COLLECT_ERROR = 0, 1  # the first two answers of `collect`: no row fits; a row error

_DTYPES: Final[dict[str, Any]] = {"int": np.int64, "double": np.float64, "bool": np.bool_, "string": np.object_}
_FILLERS: Final[dict[str, Any]] = {"int": 0, "double": 0.0, "bool": False, "string": ""}
_TIMES: Final = ("timestamp", "duration")  # whole numbers of microseconds
_UNKNOWN: Final = -1


class TableIndex:
    """What a table's lookup needs. `answers` has the outputs of each row, then those of a gap, then row errors; for
    `collect` it starts with the last two, and the outputs of each set of rows are added when the set is first met."""

    def __init__(
        self,
        *,
        cells: Sequence[Sequence[Cell]],
        kinds: Sequence[str],
        out_kinds: Sequence[str],
        answers: Sequence[Sequence[Any]],
        hit: str,
        collect: Callable[[Sequence[int]], Sequence[Any]],
    ) -> None:
        self.num_rows, self.hit, self.collect = len(cells), hit, collect
        self.error_slot = COLLECT_ERROR if hit == "collect" else len(cells) + 1
        self.columns = [
            ColumnClasses([row[at] for row in cells], "int" if kind in _TIMES else kind)
            for at, kind in enumerate(kinds)
        ]
        self.strides: list[int] = []
        self.combinations = 1
        for column in self.columns:
            self.strides.append(self.combinations)
            self.combinations *= len(column.rows_GW)
        self._fresh = lambda: _Memory(answers, out_kinds, self.combinations)
        self._memory = self._fresh()
        self._lock = threading.Lock()  # around what grows: the sets of rows that were met

    def lookup(self, columns: Sequence[Column]) -> list[Column]:
        """A column for each output. Shapes: columns of length N or 1; returns length N, or 1 when all have length 1."""
        classes = [classes.classes_of(column) for classes, column in zip(self.columns, columns, strict=True)]
        memory = self._memory  # one for the whole lookup: it may be replaced meanwhile
        slots_N = self._resolve(memory, classes) if memory.slots is None else self._remember(memory, classes)
        for column in columns:
            if column.error is not None and column.error.any():
                slots_N = np.where(column.error, self.error_slot, slots_N)
        out = []
        for values, valid, error in memory.answers:
            failed_N = error[slots_N]
            out.append(Column(values[slots_N], valid[slots_N], failed_N if failed_N.any() else None))
        return out

    def _remember(self, memory: _Memory, classes: list[np.ndarray]) -> np.ndarray:
        """The answer of each combination, from the array; what it does not know yet is worked out and put there."""
        slots = memory.slots
        assert slots is not None
        keys_N = classes[0]  # its stride is 1
        for ids_N, stride in zip(classes[1:], self.strides[1:], strict=True):
            keys_N = keys_N + ids_N * stride
        slots_N = slots[keys_N]
        if slots_N.size and slots_N.min() == _UNKNOWN:
            new_M = np.unique(keys_N[slots_N == _UNKNOWN])
            parts = [
                new_M // stride % len(column.rows_GW) for column, stride in zip(self.columns, self.strides, strict=True)
            ]
            slots[new_M] = self._resolve(memory, parts)
            slots_N = slots[keys_N]
        return slots_N

    def _resolve(self, memory: _Memory, classes: list[np.ndarray]) -> np.ndarray:
        """The answer of each combination of classes. Shapes: each (M,) or (1,); returns (M,) places in `answers`."""
        words_MW = self.columns[0].rows_GW[classes[0]]
        for column, ids_M in zip(self.columns[1:], classes[1:], strict=True):
            words_MW = words_MW & column.rows_GW[ids_M]
        if self.hit == "collect":
            return self._sets_of(memory, words_MW)
        at_M = (words_MW != 0).argmax(axis=1)
        word_M = words_MW[np.arange(len(words_MW)), at_M]
        lowest_M = word_M & (~word_M + np.uint64(1))
        bit_M = np.frexp(lowest_M.astype(np.float64))[1] - 1  # exact: a power of two
        slots_M = np.where(word_M != 0, at_M * 64 + bit_M, self.num_rows)
        if self.hit == "unique":
            slots_M = np.where(np.bitwise_count(words_MW).sum(axis=1) > 1, self.error_slot, slots_M)
        return slots_M

    def _sets_of(self, memory: _Memory, words_MW: np.ndarray) -> np.ndarray:
        """`collect`: the answer of each set of rows, worked out once."""
        slots_M = np.empty(len(words_MW), dtype=np.int64)
        with self._lock:
            known = len(memory.rows)
            for at, words_W in enumerate(words_MW):
                key = words_W.tobytes()
                if key not in memory.sets:
                    bits = np.flatnonzero(np.unpackbits(words_W.view(np.uint8), bitorder="little"))
                    memory.sets[key] = len(memory.rows) if len(bits) else COLLECT_GAP
                    if len(bits):
                        memory.rows.append(list(self.collect(bits.tolist())))
                slots_M[at] = memory.sets[key]
            if len(memory.rows) > known:
                memory.lay_out()
            if len(memory.rows) > MAX_SETS and memory is self._memory:
                self._memory = self._fresh()
        return slots_M


class _Memory:
    """What lookups have worked out so far. `slots` is the answer of each combination of classes (None: there are too many
    to keep), `sets` that of each set of rows, `answers` their outputs laid out as columns."""

    def __init__(self, answers: Sequence[Sequence[Any]], out_kinds: Sequence[str], combinations: int) -> None:
        self.rows = [list(answer) for answer in answers]
        self.out_kinds = out_kinds
        self.sets: dict[bytes, int] = {}
        self.slots: np.ndarray | None = None
        if combinations <= MAX_REMEMBERED:
            self.slots = np.full(combinations, _UNKNOWN, dtype=np.int32)
        self.lay_out()

    def lay_out(self) -> None:
        """Made anew and swapped in: another thread may be reading the old arrays."""
        self.answers = [_answers(self.rows, at, kind) for at, kind in enumerate(self.out_kinds)]


def _answers(rows: Sequence[Sequence[Any]], at: int, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One output of all answers: values, which are known, which are row errors."""
    given = [row[at] for row in rows]
    error = np.array([value is ROW_ERROR for value in given], dtype=np.bool_)
    valid = np.array([value is not None and value is not ROW_ERROR for value in given], dtype=np.bool_)
    kind = "int" if kind in _TIMES else kind
    values = np.empty(len(given), dtype=_DTYPES[kind])
    values[:] = [value if known else _FILLERS[kind] for value, known in zip(given, valid.tolist(), strict=True)]
    return values, valid, error


class _Finder(Protocol):
    """Values to the places of their elementary classes, or of what those were merged into."""

    def __call__(self, values_N: np.ndarray) -> np.ndarray: ...


class ColumnClasses:
    """The classes of one input column: `classes_of` finds them, `rows_GW` says which rows accept each."""

    def __init__(self, cells: Sequence[Cell], kind: str) -> None:
        self.kind = kind
        ordered = kind in ("int", "double")
        named = {value for cell in cells for value in cell.values}
        if ordered:
            named |= {bound for cell in cells for bound in (cell.low, cell.high) if bound is not None}
        points = sorted(named)
        place = {point: at for at, point in enumerate(points)}
        # Elementary classes. Ordered: 2p + 1 is the point p, 2p the interval below it. Otherwise: p, then all others.
        num = 2 * len(points) + 1 if ordered else len(points) + 1
        rows_EW = _rows_by_class(cells, place, num, ordered)
        any_W, null_W = _rows_of(cells, ("any",)), _rows_of(cells, ("any", "null"))
        rows_EW = np.concatenate([rows_EW, any_W[None], null_W[None]])  # then NaN, then null
        merged_E, self.rows_GW = _merge(rows_EW)
        self.null = int(merged_E[-1])
        self._find = self._finder(points, place, merged_E)

    def classes_of(self, column: Column) -> np.ndarray:
        """Shapes: (N,) values; returns (N,) places in `rows_GW`."""
        values_N = column.values
        if self.kind == "string" and not column.valid.all():
            values_N = np.where(column.valid, values_N, "")
        ids_N = self._find(values_N)
        return ids_N if column.valid.all() else np.where(column.valid, ids_N, self.null)

    def _finder(self, points: list[Any], place: dict[Any, int], merged_E: np.ndarray) -> _Finder:
        if self.kind == "string":
            codes = {text: int(merged_E[at]) for text, at in place.items()}
            other = int(merged_E[len(points)])
            get = codes.get
            return lambda values_N: np.fromiter(
                [get(text, other) for text in values_N.tolist()], np.int64, len(values_N)
            )
        if self.kind == "bool":
            both = np.array([merged_E[place.get(value, len(points))] for value in (False, True)])
            return lambda values_N: both[values_N.astype(np.int8)]
        if not points:
            return lambda values_N: np.where(values_N == values_N, merged_E[0], merged_E[1])
        low, high = points[0], points[-1]
        if self.kind == "int" and high - low <= MAX_DENSE and low > -(2**63) and high < 2**63 - 1:
            span = np.arange(low - 1, high + 2, dtype=np.int64)
            dense = merged_E[_elementary(np.array(points, dtype=np.int64), span)]
            return lambda values_N: dense[np.minimum(np.maximum(values_N, low - 1), high + 1) - (low - 1)]
        points_P = np.array(points, dtype=np.int64 if self.kind == "int" else np.float64)
        if self.kind == "int":
            return lambda values_N: merged_E[_elementary(points_P, values_N)]
        nan = int(merged_E[2 * len(points) + 1])

        def find(values_N: np.ndarray) -> np.ndarray:
            ids_N = merged_E[_elementary(points_P, values_N)]
            odd_N = values_N != values_N
            return np.where(odd_N, nan, ids_N) if odd_N.any() else ids_N

        return find


def _elementary(points_P: np.ndarray, values_N: np.ndarray) -> np.ndarray:
    """2p + 1 for the point p, 2p for what lies between it and the point below."""
    at_N = points_P.searchsorted(values_N)
    equal_N = points_P[np.minimum(at_N, len(points_P) - 1)] == values_N
    return 2 * at_N + equal_N


def _rows_by_class(cells: Sequence[Cell], place: dict[Any, int], num: int, ordered: bool) -> np.ndarray:
    """Which rows accept each elementary class. Shapes: returns (num, W) uint64.

    A row is a bit that is flipped where its range starts and behind where it ends; running XOR fills what is between.
    """
    num_words = max(1, -(-len(cells) // 64))
    flips_EW = np.zeros((num + 1, num_words), dtype=np.uint64)
    for row, cell in enumerate(cells):
        word, bit = row // 64, np.uint64(1 << row % 64)
        spans: list[tuple[int, int]] = []
        if cell.kind == "any":
            spans = [(0, num)]
        elif cell.kind == "values":
            ids = sorted({2 * place[value] + 1 if ordered else place[value] for value in cell.values})
            spans = [(at, at + 1) for at in ids]
        elif cell.kind == "range":
            first = 0 if cell.low is None else 2 * place[cell.low] + 1 + cell.low_open
            last = num - 1 if cell.high is None else 2 * place[cell.high] + 1 - cell.high_open
            spans = [(first, last + 1)] if first <= last else []
        for start, end in spans:
            flips_EW[start, word] ^= bit
            flips_EW[end, word] ^= bit
    return np.bitwise_xor.accumulate(flips_EW, axis=0)[:-1]


def _rows_of(cells: Sequence[Cell], kinds: tuple[str, ...]) -> np.ndarray:
    """The rows whose cell is of one of these kinds. Shapes: returns (W,) uint64."""
    bits = np.zeros(max(1, -(-len(cells) // 64)) * 64, dtype=np.uint8)
    bits[: len(cells)] = [cell.kind in kinds for cell in cells]
    return np.packbits(bits, bitorder="little").view(np.uint64)


def _merge(rows_EW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Classes that the same rows accept are one. Returns its number by elementary class, and the rows by number."""
    seen: dict[bytes, int] = {}
    merged = [seen.setdefault(words.tobytes(), len(seen)) for words in rows_EW]
    rows_GW = np.frombuffer(b"".join(seen), dtype=np.uint64).reshape(len(seen), -1)
    return np.array(merged, dtype=np.int64), rows_GW

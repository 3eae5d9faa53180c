"""The same meaning over columns, by NumPy: every step is evaluated for all rows, and masks say which rows count.

Read `column_steps.py` for what each strict step does with values; nulls, errors, branches and loops are here.

No branch is skipped: `a != null && a > 0 ? r / a : 0` computes the division for every row and picks by mask, so a bad row
can neither raise nor change its neighbours. Columns of length 1 (what a whole request shares) stay of length 1 until
they meet a longer one. A loop over lists is one evaluation of its condition over the elements of all rows in a row.

Shapes: N rows; values (N,) or (1,): int64 (also timestamps and durations), float64, bool, or object holding str, or a
        Python list a row; masks the same shape, bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from features.expr.column_steps import CHECKED, DTYPES, FILLERS, TOTAL, Array, Mask, flatten
from features.expr.program import Program, Step

_NONE: Final = np.zeros(1, dtype=np.bool_)
_ALL: Final = np.ones(1, dtype=np.bool_)


@dataclass(slots=True, eq=False)  # not frozen, which costs thrice as much: every request makes dozens
class Column:
    """Values and which of them count. `error` marks the rows that are null because of a row error: an expression that
    reads them fails there too, as if it were written out in place. Neither a column nor its arrays change once it is made.

    Shapes: values (N,), valid (N,) bool, error (N,) bool or None for none. A value where `valid` is False means nothing.
    """

    values: Array
    valid: Mask
    error: Mask | None = None
    # Of texts: what the fused loop found of them and which predicates those are numbers of (`text_bits.py`).
    numbers: tuple[object, Array] | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.values)

    def tolist(self) -> list[Any]:
        """Python values, None for null."""
        return [
            value if valid else None for value, valid in zip(self.values.tolist(), self.valid.tolist(), strict=True)
        ]


class CodedTexts(Column):
    """A column of texts as a dictionary and codes: row i is `texts[codes[i]]`. `values` are made when they are first asked
    for; the fused loop never asks. A code where `valid` is False means nothing.

    Shapes: codes (N,), any whole numbers, kept as int64; texts (M,) object, str; valid (N,) bool.
    """

    __slots__ = ("codes", "texts")

    def __init__(self, codes: Array, texts: Array, valid: Mask, error: Mask | None = None) -> None:
        self.codes, self.texts = np.ascontiguousarray(codes, np.int64), texts
        self.valid, self.error, self.numbers = valid, error, None

    def __getattr__(self, name: str) -> Any:
        """Raises: IndexError for a code that the dictionary does not have."""
        if name != "values":
            raise AttributeError(name)
        self.values = self._take(self.texts, FILLERS["string"][0])
        return self.values

    def __len__(self) -> int:
        return len(self.valid)

    def tolist(self) -> list[Any]:
        return self._take(self.texts, None).tolist()

    def _take(self, texts: Array, null: Any) -> Array:
        codes = self.codes
        if np.count_nonzero(self.valid) < len(codes):
            codes = np.where(self.valid, codes, len(texts))
            texts = np.append(texts, np.array([null], np.object_))
        if len(codes) and codes.min() < 0:  # which NumPy would count from the end
            raise IndexError(f"code {codes.min()} of a dictionary of {len(self.texts)} texts")
        return texts.take(codes)


def evaluate(program: Program, columns: Mapping[str, Column], *, num_rows: int | None = None) -> Column:
    """The expression for every row, equal to `interpret` of each row to the bit.

    Shapes: columns of length N or 1; returns length N, or 1 when all that was read has length 1. `num_rows` widens a
            result of length 1 to that many rows.
    Raises: KeyError for a name of `program.names` that is not there; ValueError when lengths do not fit together.
    """
    lengths = {name: len(columns[name]) for name in program.names}
    if len({length for length in lengths.values() if length != 1}) > 1:
        raise ValueError(f"columns of different lengths: {', '.join(f'{k} {v}' for k, v in sorted(lengths.items()))}")
    with np.errstate(all="ignore"):
        values, valid, error = _evaluate(program.root, columns)
    size = next((length for length in lengths.values() if length != 1), 1)
    size = num_rows if size == 1 and num_rows is not None else size
    if num_rows is not None and size != num_rows:
        raise ValueError(f"columns have {size} rows, and {num_rows} are expected")
    parts = (values, _ALL if valid is None else valid, _NONE if error is None else error)
    return Column(*(part if len(part) == size else np.ascontiguousarray(np.broadcast_to(part, size)) for part in parts))


# Values, valid (None: all), error (None: none); arrays are (N,) or (1,). A failed row is never valid.
Part = tuple[Array, Mask | None, Mask | None]


def _evaluate(step: Step, columns: Mapping[str, Column]) -> Part:
    special = _SPECIAL.get(step.step)
    if special is not None:
        return special(step, columns)
    return _strict(step.step, [_evaluate(arg, columns) for arg in step.args])


def _constant(step: Step, columns: Mapping[str, Column]) -> Part:
    if step.value is None:
        return FILLERS[step.type.kind], _NONE, None
    values = np.empty(1, dtype=DTYPES[step.type.kind])
    values[0] = step.value
    return values, None, None


def _given(step: Step, columns: Mapping[str, Column]) -> Part:
    column, kind = columns[str(step.value)], step.type.kind
    values = column.values
    valid = None if column.valid.all() else column.valid
    if valid is not None and values.dtype == np.object_:
        values = np.where(valid, values, FILLERS[kind])  # None would break comparisons and casts
    error = column.error if column.error is not None and column.error.any() else None
    return values.astype(DTYPES[kind], copy=False), valid, error


def _is_null(step: Step, columns: Mapping[str, Column]) -> Part:
    values, valid, error = _evaluate(step.args[0], columns)
    if valid is None:
        return np.zeros(len(values), np.bool_), None, None
    return (~valid, None, None) if error is None else (~valid & ~error, ~error, error)


def _logic(step: Step, columns: Mapping[str, Column]) -> Part:
    return _kleene([_evaluate(arg, columns) for arg in step.args], absorbing=step.step == "or")


def _kleene(args: list[Part], *, absorbing: bool) -> Part:
    """Absorbing > error > null > the other value; see interpret._kleene."""
    absorbed: Mask = _NONE
    known: Mask | None = None
    failed: Mask | None = None
    for values, valid, error in args:
        absorbs = values if absorbing else ~values
        absorbed = absorbed | (absorbs if valid is None else absorbs & valid)
        known = _both(known, valid)
        failed = _either(failed, error)
    result = absorbed if absorbing else ~absorbed
    valid = None if known is None else absorbed | known
    return result, valid, None if failed is None else failed & ~absorbed


def _choose(step: Step, columns: Mapping[str, Column]) -> Part:
    condition, then, otherwise = (_evaluate(arg, columns) for arg in step.args)
    test, valid, error = condition
    chosen_valid = _pick(test, then[1], otherwise[1], _ALL)
    chosen_error = _pick(test, then[2], otherwise[2], _NONE)
    if chosen_error is not None:
        chosen_error = _both(chosen_error, valid)
    return np.where(test, then[0], otherwise[0]), _both(valid, chosen_valid), _either(error, chosen_error)


def _pick(test: Mask, then: Mask | None, otherwise: Mask | None, absent: Mask) -> Mask | None:
    """The mask of the branch taken; `absent` stands for a mask that is not there."""
    if then is None and otherwise is None:
        return None
    return np.where(test, absent if then is None else then, absent if otherwise is None else otherwise)


def _coalesce(step: Step, columns: Mapping[str, Column]) -> Part:
    left, right = (_evaluate(arg, columns) for arg in step.args)
    values, valid, error = left
    if valid is None:
        return left
    keep = valid if error is None else valid | error  # an error is not replaced
    right_valid = ~keep if right[1] is None else ~keep & right[1]
    right_error = None if right[2] is None else ~keep & right[2]
    all_valid = right[1] is None and error is None
    return np.where(valid, values, right[0]), None if all_valid else valid | right_valid, _either(error, right_error)


def _strict(step: str, args: list[Part]) -> Part:
    valid: Mask | None = None
    error: Mask | None = None
    for _, arg_valid, arg_error in args:
        valid = _both(valid, arg_valid)
        error = _either(error, arg_error)
    inputs = [values for values, _, _ in args]
    checked = CHECKED.get(step)
    if checked is None:
        return TOTAL[step](*inputs), valid, error
    values, bad = checked(*inputs)
    if not bad.any():
        return values, valid, error
    bad = bad if valid is None else bad & valid
    return values, _both(valid, ~bad), _either(error, bad)


def _loop(step: Step, columns: Mapping[str, Column]) -> Part:
    """`exists` and `all`: the condition over all elements of all rows at once, then Kleene's `||` or `&&` by row."""
    lists, valid, error = _evaluate(step.args[0], columns)
    size = len(lists)
    if size == 1:  # of the whole request: its elements stand beside every row that the condition reads
        size = next((n for n in _lengths(step.args[1], columns) if n != 1), 1)
        lists = np.broadcast_to(lists, size)
    items, rows = flatten(lists, step.args[0].type.item.kind)
    inside = _Inside(columns, rows)
    inside[_item_key(step)] = Column(items, np.ones(len(items), np.bool_))
    values, known, failed = _evaluate(step.args[1], inside)
    hits = values if step.step == "exists" else ~values
    hit = _rows_with(hits if known is None else hits & known, rows, size)
    result = hit if step.step == "exists" else ~hit
    if known is not None:
        valid = _both(valid, hit | ~_rows_with(~known, rows, size))
    if failed is not None:
        error = _either(error, _rows_with(failed, rows, size) & ~hit)
    return result, valid, error


class _Inside(dict[str, Column]):
    """The columns inside a loop, one row an element; taken from the outer ones when they are read."""

    def __init__(self, outer: Mapping[str, Column], rows: Array) -> None:
        super().__init__()
        self.outer, self.rows = outer, rows

    def __missing__(self, name: str) -> Column:
        column = self.outer[name]
        if len(column) != 1:
            error = None if column.error is None else column.error[self.rows]
            column = Column(column.values[self.rows], column.valid[self.rows], error)
        self[name] = column
        return column


def _item(step: Step, columns: Mapping[str, Column]) -> Part:
    return columns[_item_key(step)].values, None, None


def _item_key(step: Step) -> str:
    return f"loop variable {step.value}"  # no name has a space


def _lengths(step: Step, columns: Mapping[str, Column]) -> list[int]:
    """Lengths of what a condition reads from outside its loop."""
    inner = {part.value for part in step.walk() if part.step in ("exists", "all")}
    found = []
    for part in step.walk():
        if part.step == "name":
            found.append(len(columns[str(part.value)]))
        elif part.step == "item" and part.value not in inner and _item_key(part) in columns:
            found.append(len(columns[_item_key(part)]))
    return found


def _rows_with(marks: Mask, rows: Array, size: int) -> Mask:
    """The rows of which any element is marked. Shapes: marks (M,) or (1,), rows (M,); returns (size,) bool."""
    chosen = rows[np.broadcast_to(marks, len(rows))]
    found = np.zeros(size, np.bool_)
    found[chosen] = True
    return found


def _both(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else a & b


def _either(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else a | b


_SPECIAL: Final[dict[str, Callable[[Step, Mapping[str, Column]], Part]]] = {
    "const": _constant,
    "name": _given,
    "item": _item,
    "and": _logic,
    "or": _logic,
    "if": _choose,
    "coalesce": _coalesce,
    "is_null": _is_null,
    "exists": _loop,
    "all": _loop,
}

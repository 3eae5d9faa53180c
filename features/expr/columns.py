"""The same meaning over columns, by NumPy: every step is evaluated for all rows, and masks say which rows count.

No branch is skipped: `a != null && a > 0 ? r / a : 0` computes the division for every row and picks by mask, so a bad row
can neither raise nor change its neighbours. Columns of length 1 (what a whole request shares) stay of length 1 until
they meet a longer one.

Shapes: N rows; values (N,) or (1,): int64, float64, bool, or object holding str; masks the same shape, bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from features.expr.interpret import STRICT, TWO_63, RowError
from features.expr.program import Program, Step
from features.expr.types import INT_MAX, INT_MIN

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
_DTYPES: Final[dict[str, Any]] = {
    "bool": np.bool_,
    "int": np.int64,
    "double": np.float64,
    "string": np.object_,
    "null": np.object_,
}
_FILLERS: Final[dict[str, Any]] = {"bool": False, "int": 0, "double": 0.0, "string": "", "null": ""}
_NONE: Final = np.zeros(1, dtype=np.bool_)
_ALL: Final = np.ones(1, dtype=np.bool_)


@dataclass(frozen=True)
class Column:
    """Values and which of them count. `error` marks the rows that are null because of a row error: an expression that
    reads them fails there too, as if it were written out in place.

    Shapes: values (N,), valid (N,) bool, error (N,) bool or None for none. A value where `valid` is False means nothing.
    """

    values: Array
    valid: Mask
    error: Mask | None = None

    def __len__(self) -> int:
        return len(self.values)

    def tolist(self) -> list[Any]:
        """Python values, None for null."""
        return [
            value if valid else None for value, valid in zip(self.values.tolist(), self.valid.tolist(), strict=True)
        ]


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
    if step.step == "const":
        return _constant(step)
    if step.step == "name":
        return _given(columns[str(step.value)], step.type.kind)
    args = [_evaluate(arg, columns) for arg in step.args]
    if step.step in ("and", "or"):
        return _kleene(args, absorbing=step.step == "or")
    if step.step == "if":
        return _choose(*args)
    if step.step == "coalesce":
        return _coalesce(*args)
    if step.step == "is_null":
        values, valid, error = args[0]
        if valid is None:
            return np.zeros(len(values), np.bool_), None, None
        return (~valid, None, None) if error is None else (~valid & ~error, ~error, error)
    return _strict(step.step, args)


def _constant(step: Step) -> Part:
    values = np.empty(1, dtype=_DTYPES[step.type.kind])
    values[0] = _FILLERS[step.type.kind] if step.value is None else step.value
    return values, (_NONE if step.value is None else None), None


def _given(column: Column, kind: str) -> Part:
    values = column.values
    valid = None if column.valid.all() else column.valid
    if valid is not None and values.dtype == np.object_:
        values = np.where(valid, values, _FILLERS[kind])  # None would break comparisons and casts
    error = column.error if column.error is not None and column.error.any() else None
    return values.astype(_DTYPES[kind], copy=False), valid, error


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


def _choose(condition: Part, then: Part, otherwise: Part) -> Part:
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


def _coalesce(left: Part, right: Part) -> Part:
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
    checked = _CHECKED.get(step)
    if checked is None:
        return _TOTAL[step](*inputs), valid, error
    values, bad = checked(*inputs)
    if not bad.any():
        return values, valid, error
    bad = bad if valid is None else bad & valid
    return values, _both(valid, ~bad), _either(error, bad)


def _both(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else a & b


def _either(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else a | b


# Steps that can fail return (values, bad rows) -------------------------------------------------------------------------


def _add_int(a: Array, b: Array) -> tuple[Array, Mask]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _sub_int(a: Array, b: Array) -> tuple[Array, Mask]:
    difference = a - b
    return difference, ((a ^ b) & (a ^ difference)) < 0


def _mul_int(a: Array, b: Array) -> tuple[Array, Mask]:
    """int64 wraps; rows whose product is near or past the end (by doubles, with room for rounding) are done exactly."""
    product = a * b
    near = np.abs(a.astype(np.float64) * b.astype(np.float64)) > TWO_63 / 2
    if not near.any():
        return product, near
    bad = near.copy()
    left, right = np.broadcast_to(a, near.shape), np.broadcast_to(b, near.shape)
    for row in np.flatnonzero(near):
        bad[row] = not INT_MIN <= int(left[row]) * int(right[row]) <= INT_MAX
    return product, bad


def _neg_int(a: Array) -> tuple[Array, Mask]:
    return -a, a == INT_MIN


def _abs_int(a: Array) -> tuple[Array, Mask]:
    return np.abs(a), a == INT_MIN


def _div_int(a: Array, b: Array) -> tuple[Array, Mask]:
    bad = (b == 0) | ((a == INT_MIN) & (b == -1))
    divisor = np.where(bad, 1, b)
    quotient = a // divisor
    inexact = quotient * divisor != a
    return quotient + (inexact & ((a < 0) != (divisor < 0))), bad  # NumPy floors; we cut


def _mod_int(a: Array, b: Array) -> tuple[Array, Mask]:
    bad = (b == 0) | ((a == INT_MIN) & (b == -1))
    return np.fmod(a, np.where(bad, 1, b)), bad


def _int_of_double(a: Array) -> tuple[Array, Mask]:
    bad = ~((a > -TWO_63) & (a < TWO_63))
    return np.where(bad, 0.0, a).astype(np.int64), bad


def _by_row(step: str, dtype: Any) -> Callable[[Array], tuple[Array, Mask]]:
    """A cast of text, by the interpreter's own routine."""

    def apply(a: Array) -> tuple[Array, Mask]:
        values, bad = np.zeros(len(a), dtype=dtype), np.zeros(len(a), dtype=np.bool_)
        for row, text in enumerate(a):
            try:
                values[row] = STRICT[step](text)
            except RowError:
                bad[row] = True
        return values, bad

    return apply


_CHECKED: Final[dict[str, Callable[..., tuple[Array, Mask]]]] = {
    "add_int": _add_int,
    "sub_int": _sub_int,
    "mul_int": _mul_int,
    "neg_int": _neg_int,
    "abs_int": _abs_int,
    "div_int": _div_int,
    "mod_int": _mod_int,
    "int_of_double": _int_of_double,
    "int_of_string": _by_row("int_of_string", np.int64),
    "double_of_string": _by_row("double_of_string", np.float64),
}


# Steps that cannot ----------------------------------------------------------------------------------------------------


def _compare(compare: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Array]:
    """Comparison of object columns gives object or bool by version; make it bool."""
    return lambda a, b: np.asarray(compare(a, b), dtype=np.bool_)


def _within(a: Array, *options: Array) -> Array:
    if a.dtype == np.object_ and len(options) > 4:
        known = {option[0] for option in options}
        return np.fromiter((value in known for value in a), np.bool_, len(a))
    found = np.zeros(len(a), dtype=np.bool_)
    for option in options:
        found |= np.asarray(a == option[0], dtype=np.bool_)
    return found


def _least(*args: Array) -> Array:
    least = args[0]
    for arg in args[1:]:
        least = np.where((arg < least) | (arg != arg), arg, least)
    return least


def _greatest(*args: Array) -> Array:
    greatest = args[0]
    for arg in args[1:]:
        greatest = np.where((arg > greatest) | (arg != arg), arg, greatest)
    return greatest


def _round(a: Array) -> Array:
    cut = np.trunc(a)
    return np.where(np.abs(a - cut) >= 0.5, cut + np.copysign(1.0, a), cut)


def _text(function: Callable[..., Any], dtype: Any) -> Callable[..., Array]:
    """A function of strings, row by row."""

    def apply(*args: Array) -> Array:
        rows = np.broadcast_arrays(*args)
        out = np.empty(len(rows[0]), dtype=dtype)
        for row, values in enumerate(zip(*rows, strict=True)):
            out[row] = function(*values)
        return out

    return apply


def _contiguous(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """NumPy may take another routine for strided input, with other last bits."""
    return lambda a: function(np.ascontiguousarray(a))


_KINDS: Final = ("bool", "int", "double", "string")
_TOTAL: Final[dict[str, Callable[..., Array]]] = {
    "not": np.logical_not,
    "same": lambda a: a,
    "add_double": np.add,
    "sub_double": np.subtract,
    "mul_double": np.multiply,
    "div_double": np.divide,
    "neg_double": np.negative,
    "abs_double": np.abs,
    "add_string": np.add,
    **{f"eq_{kind}": _compare(np.equal) for kind in _KINDS},
    **{f"ne_{kind}": _compare(np.not_equal) for kind in _KINDS},
    **{f"lt_{kind}": _compare(np.less) for kind in _KINDS[1:]},
    **{f"le_{kind}": _compare(np.less_equal) for kind in _KINDS[1:]},
    **{f"gt_{kind}": _compare(np.greater) for kind in _KINDS[1:]},
    **{f"ge_{kind}": _compare(np.greater_equal) for kind in _KINDS[1:]},
    **{f"in_{kind}": _within for kind in _KINDS},
    **{f"least_{kind}": _least for kind in ("int", "double")},
    **{f"greatest_{kind}": _greatest for kind in ("int", "double")},
    "double_of_int": lambda a: a.astype(np.float64),
    "string_of_int": _text(lambda a: str(int(a)), np.object_),
    "string_of_bool": _text(lambda a: "true" if a else "false", np.object_),
    "size": _text(len, np.int64),
    "starts_with": _text(STRICT["starts_with"], np.bool_),
    "ends_with": _text(STRICT["ends_with"], np.bool_),
    "contains": _text(STRICT["contains"], np.bool_),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": _round,
    "sqrt": _contiguous(np.sqrt),
    "exp": _contiguous(np.exp),
    "log1p": _contiguous(np.log1p),
}

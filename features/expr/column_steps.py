"""What each strict step does with the values of whole columns; `columns.py` deals with what is null or failed.

A step sees every row, also rows whose value means nothing, and must neither raise nor let one row change another.

Shapes: as in `columns.py`: values (N,) or (1,).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from features.expr.hashing import hash64_array
from features.expr.interpret import STRICT, TWO_63, RowError
from features.expr.regex import compile_pattern
from features.expr.times import DURATION_UNITS, FIELDS, RANGES, SECOND, civil
from features.expr.types import INT_MAX, INT_MIN, LISTS, SCALARS
from features.expr.zones import UnknownZone, local_time, local_times

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
DTYPES: Final[dict[str, Any]] = {
    "bool": np.bool_,
    "int": np.int64,
    "double": np.float64,
    "string": np.object_,
    "timestamp": np.int64,
    "duration": np.int64,
    "null": np.object_,
    **dict.fromkeys(LISTS, np.object_),
}


def _filler(kind: str) -> Array:
    """What stands in a row that does not count: one value, of the dtype of the kind."""
    values = np.zeros(1, DTYPES[kind])
    if values.dtype == np.object_:
        values[0] = [] if kind in LISTS else ""
    return values


FILLERS: Final[dict[str, Array]] = {kind: _filler(kind) for kind in DTYPES}

# Steps that can fail return (values, bad rows); no bad row at all may be one False ------------------------------------


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


def _by_row(step: str, dtype: Any) -> Callable[..., tuple[Array, Mask]]:
    """Row by row, by the interpreter's own routine."""

    def apply(*args: Array) -> tuple[Array, Mask]:
        rows = np.broadcast_arrays(*args)
        values, bad = np.zeros(len(rows[0]), dtype=dtype), np.zeros(len(rows[0]), dtype=np.bool_)
        for row, given in enumerate(zip(*(column.tolist() for column in rows), strict=True)):
            try:
                values[row] = STRICT[step](*given)
            except RowError:
                bad[row] = True
        return values, bad

    return apply


def _ranged(function: Callable[[Array, Array], Array], kind: str) -> Callable[..., tuple[Array, Mask]]:
    """Arithmetic of times: both operands are in range, so int64 cannot wrap, and the result may leave the range."""
    low, high = RANGES[kind]

    def apply(a: Array, b: Array) -> tuple[Array, Mask]:
        result = function(a, b)
        return result, (result < low) | (result > high)

    return apply


def _timestamp_of_int(a: Array) -> tuple[Array, Mask]:
    low, high = RANGES["timestamp"]
    return a * SECOND, (a < low // SECOND) | (a > high // SECOND)


def _zoned(field: str) -> Callable[[Array, Array], tuple[Array, Mask]]:
    """A calendar field in a zone; zones are few, so each is done for all of its rows."""

    def apply(a: Array, zones: Array) -> tuple[Array, Mask]:
        if len(zones) != 1:
            return _by_zone(field, np.broadcast_to(a, len(zones)), zones)
        try:
            if len(a) == 1:  # the time of a request: arrays would cost more than they save
                return np.array([civil(field, local_time(int(a[0]), zones[0]))], np.int64), np.zeros(1, np.bool_)
            return civil(field, local_times(a, zones[0])), np.zeros(1, np.bool_)
        except UnknownZone:
            return np.zeros(len(a), np.int64), np.ones(len(a), np.bool_)

    return apply


def _by_zone(field: str, a: Array, zones: Array) -> tuple[Array, Mask]:
    values, bad = np.zeros(len(a), np.int64), np.zeros(len(a), np.bool_)
    for zone in set(zones.tolist()):
        rows = zones == zone
        try:
            values[rows] = civil(field, local_times(a[rows], zone))
        except UnknownZone:
            bad |= rows
    return values, bad


CHECKED: Final[dict[str, Callable[..., tuple[Array, Mask]]]] = {
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
    "add_timestamp_duration": _ranged(np.add, "timestamp"),
    "add_duration_timestamp": _ranged(np.add, "timestamp"),
    "add_duration": _ranged(np.add, "duration"),
    "sub_timestamp_duration": _ranged(np.subtract, "timestamp"),
    "sub_timestamp_timestamp": _ranged(np.subtract, "duration"),
    "sub_duration": _ranged(np.subtract, "duration"),
    "timestamp_of_int": _timestamp_of_int,
    "timestamp_of_string": _by_row("timestamp_of_string", np.int64),
    "duration_of_string": _by_row("duration_of_string", np.int64),
    **{f"{field}_timestamp_string": _zoned(field) for field in FIELDS},
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


def _within_lists(a: Array, lists: Array) -> Array:
    """Whether the list of the row has the value."""
    if len(lists) == 1:
        found = np.zeros(len(a), dtype=np.bool_)
        for item in lists[0]:
            found |= np.asarray(a == item, dtype=np.bool_)
        return found
    values = np.broadcast_to(a, len(lists))
    if a.dtype == np.object_:
        return np.fromiter((value in items for value, items in zip(values, lists, strict=True)), np.bool_, len(lists))
    items, rows = flatten(lists, _KIND_OF[a.dtype.kind])
    found = np.zeros(len(lists), dtype=np.bool_)
    found[rows[values[rows] == items]] = True
    return found


def flatten(lists: Array, kind: str) -> tuple[Array, Array]:
    """The elements of all lists, and the row of each.

    Shapes: lists (N,) object holding lists with M elements in all; returns items (M,) and rows (M,) int64.
    """
    counts = np.fromiter(map(len, lists), np.int64, len(lists))
    items = np.empty(int(counts.sum()), dtype=DTYPES[kind])
    items[:] = list(chain.from_iterable(lists))
    return items, np.repeat(np.arange(len(lists)), counts)


def _calendar(field: str) -> Callable[[Array], Array]:
    def apply(a: Array) -> Array:
        if len(a) == 1:  # the time of a request: arrays would cost more than they save
            return np.array([civil(field, int(a[0]))], np.int64)
        return np.asarray(civil(field, a), np.int64)

    return apply


def _duration_field(field: str) -> Callable[[Array], Array]:
    def apply(a: Array) -> Array:
        size = np.abs(a)
        part = size % SECOND // 1000 if field == "getMilliseconds" else size // DURATION_UNITS[field]
        return np.where(a < 0, -part, part)

    return apply


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


def _matches(a: Array, pattern: Array) -> Array:
    """Once for every distinct text."""
    texts = a.tolist()
    try:
        search = compile_pattern(pattern[0]).search
        found = {text: search(text) is not None for text in set(texts)}
    except UnicodeEncodeError:  # half a character somewhere
        return _text(STRICT["matches"], np.bool_)(a, pattern)
    return np.fromiter((found[text] for text in texts), np.bool_, len(texts))


def _hash01(salt: Array, unit: Array) -> Array:
    if len(salt) != 1 or len(unit) < 2:
        return _text(STRICT["hash01"], np.float64)(salt, unit)
    try:
        mixed = hash64_array(salt[0], unit.tolist())
    except UnicodeEncodeError:
        return _text(STRICT["hash01"], np.float64)(salt, unit)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _contiguous(function: Callable[..., Array]) -> Callable[..., Array]:
    """NumPy may take another routine for strided or broadcast input, with other last bits."""
    return lambda *args: function(*(np.ascontiguousarray(column) for column in np.broadcast_arrays(*args)))


_KIND_OF: Final = {"b": "bool", "i": "int", "f": "double"}  # of a dtype; all integers are compared alike
TOTAL: Final[dict[str, Callable[..., Array]]] = {
    "not": np.logical_not,
    "same": lambda a: a,
    "add_double": np.add,
    "sub_double": np.subtract,
    "mul_double": np.multiply,
    "div_double": np.divide,
    "neg_double": np.negative,
    "abs_double": np.abs,
    "add_string": np.add,
    **{f"eq_{kind}": _compare(np.equal) for kind in SCALARS},
    **{f"ne_{kind}": _compare(np.not_equal) for kind in SCALARS},
    **{f"lt_{kind}": _compare(np.less) for kind in SCALARS[1:]},
    **{f"le_{kind}": _compare(np.less_equal) for kind in SCALARS[1:]},
    **{f"gt_{kind}": _compare(np.greater) for kind in SCALARS[1:]},
    **{f"ge_{kind}": _compare(np.greater_equal) for kind in SCALARS[1:]},
    **{f"in_{kind}": _within for kind in SCALARS},
    **{f"in_list_{kind}": _within_lists for kind in SCALARS},
    **{f"least_{kind}": _least for kind in ("int", "double")},
    **{f"greatest_{kind}": _greatest for kind in ("int", "double")},
    "double_of_int": lambda a: a.astype(np.float64),
    "int_of_timestamp": lambda a: a // SECOND,
    "string_of_timestamp": _text(STRICT["string_of_timestamp"], np.object_),
    "string_of_duration": _text(STRICT["string_of_duration"], np.object_),
    **{f"{field}_timestamp": _calendar(field) for field in FIELDS},
    **{f"{field}_duration": _duration_field(field) for field in FIELDS[-4:]},
    "string_of_int": _text(lambda a: str(int(a)), np.object_),
    "string_of_bool": _text(lambda a: "true" if a else "false", np.object_),
    "size": _text(len, np.int64),
    "matches": _matches,
    "hash01": _hash01,
    "size_list": lambda a: np.fromiter(map(len, a), np.int64, len(a)),
    "starts_with": _text(STRICT["starts_with"], np.bool_),
    "ends_with": _text(STRICT["ends_with"], np.bool_),
    "contains": _text(STRICT["contains"], np.bool_),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": _round,
    "trunc": np.trunc,
    "sign_int": np.sign,
    "sign_double": lambda a: np.sign(a) + 0.0,  # of -0.0 it is 0.0
    "is_nan": np.isnan,
    "is_inf": np.isinf,
    "is_finite": np.isfinite,
    "sqrt": _contiguous(np.sqrt),
    "exp": _contiguous(np.exp),
    "log": _contiguous(np.log),
    "log1p": _contiguous(np.log1p),
    "pow": _contiguous(np.power),
}

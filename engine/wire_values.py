"""Values as they are sent and recorded, and the same as the expression language sees them.

JSON has no times: a timestamp or a duration is whole milliseconds there and microseconds in the language; a list is a list.
Everything else is itself. `engine/request.py` is where values come in, `engine/decide.py` where they are recorded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta

from features.expr import Column, Type
from features.expr.times import RANGES

US_PER_MS: Final = 1000
_TIMES: Final = ("timestamp", "duration")
_INT64: Final = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_TEXT: Final = Annotated[str, Meta(max_length=1000)]
_PYTHON: Final[dict[str, Any]] = {
    "int": _INT64,
    "double": float,
    "bool": bool,
    "string": _TEXT,
    **{
        kind: Annotated[int, Meta(ge=-(-RANGES[kind][0] // US_PER_MS), le=RANGES[kind][1] // US_PER_MS)]
        for kind in _TIMES
    },
}
DTYPES: Final[dict[str, Any]] = {
    "int": np.int64,
    "double": np.float64,
    "bool": np.bool_,
    "timestamp": np.int64,
    "duration": np.int64,
}
_CODES: Final = {"int": "q", "timestamp": "q", "duration": "q", "double": "d"}  # of `struct`


def python_type(kind: Type) -> Any:
    """What msgspec checks one value of a request against."""
    scalar = _PYTHON[kind.item.kind if kind.is_list else kind.kind]
    value: Any = list.__class_getitem__(scalar) if kind.is_list else scalar
    return value | None if kind.nullable else value


def is_time(kind: Type) -> bool:
    """Whether a value of this kind differs from what is sent."""
    return (kind.item.kind if kind.is_list else kind.kind) in _TIMES


def from_wire(value: Any, kind: Type) -> Any:
    """A value that was sent, as the language sees it."""
    if value is None or not is_time(kind):
        return value
    return [item * US_PER_MS for item in value] if kind.is_list else value * US_PER_MS


def to_wire(value: Any, kind: Type) -> Any:
    """The opposite, for what was computed: a time is cut to its millisecond, towards the past."""
    if value is None or not is_time(kind):
        return value
    return [item // US_PER_MS for item in value] if kind.is_list else value // US_PER_MS


def column_of_wire(values: Sequence[Any], kind: Type) -> Column:
    """A column of values that were sent, None for null. Shapes: returns (len(values),)."""
    return to_column([from_wire(value, kind) for value in values] if is_time(kind) else values, kind)


def to_column(values: Sequence[Any], kind: Type) -> Column:
    """A column of the language's plain values, None for null. A double that is not finite is null: NaN is no value here.

    Shapes: returns (len(values),); its arrays may be read-only.
    """
    return column_maker(kind)(values)


def column_maker(kind: Type) -> Callable[[Sequence[Any]], Column]:
    """`to_column` of one kind."""
    if kind.is_list:
        return partial(_lists, nullable=kind.nullable)
    if kind.kind == "string":
        return _nullable_texts if kind.nullable else _texts
    if kind.kind == "double" and kind.nullable:
        return _doubles
    if kind.kind == "bool":
        return _bools
    return partial(_numbers, kind=kind.kind)


def wire_column_maker(kind: Type) -> Callable[[Sequence[Any]], Column]:
    """`column_of_wire` of one kind."""
    return partial(column_of_wire, kind=kind) if is_time(kind) else column_maker(kind)


def _numbers(values: Sequence[Any], kind: str) -> Column:
    try:
        packed = struct.pack(f"{len(values)}{_CODES[kind]}", *values)  # half of what NumPy takes
    except struct.error:  # a null is among them
        return _doubles(values) if kind == "double" else _with_nulls(values, kind)
    found = np.frombuffer(packed, dtype=DTYPES[kind])
    return _finite(found) if kind == "double" else Column(found, all_valid(len(values)))


def _bools(values: Sequence[Any]) -> Column:
    try:
        return Column(np.frombuffer(bytes(values), dtype=np.bool_), all_valid(len(values)))
    except TypeError:  # a null is among them
        return _with_nulls(values, "bool")


def _doubles(values: Sequence[Any]) -> Column:
    return _finite(np.array(values, dtype=np.float64))  # None becomes NaN


def _finite(doubles: np.ndarray) -> Column:
    valid = np.isfinite(doubles)
    if np.count_nonzero(valid) == len(valid):
        return Column(doubles, all_valid(len(valid)))
    return Column(np.where(valid, doubles, 0.0), valid)


def _with_nulls(values: Sequence[Any], kind: str) -> Column:
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    return Column(np.array([0 if value is None else value for value in values], dtype=DTYPES[kind]), valid)


def _texts(values: Sequence[Any]) -> Column:
    return Column(np.array(values, dtype=np.object_), all_valid(len(values)))


def _nullable_texts(values: Sequence[Any]) -> Column:
    if all(values) or None not in values:
        return _texts(values)
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    return Column(np.array(["" if value is None else value for value in values], dtype=np.object_), valid)


def _lists(values: Sequence[Any], nullable: bool) -> Column:
    objects, valid = np.empty(len(values), dtype=np.object_), all_valid(len(values))
    if nullable and None in values:
        valid = np.array([value is not None for value in values], dtype=np.bool_)
    for row, value in enumerate(values):  # a slice would spread lists of one length over a second axis
        objects[row] = [] if value is None else value
    return Column(objects, valid)


@lru_cache(maxsize=1024)
def all_valid(num_rows: int) -> np.ndarray:
    """The mask of a column without null, one for all columns of that length. Shapes: returns (num_rows,) bool, read-only."""
    mask = np.ones(num_rows, dtype=np.bool_)
    mask.flags.writeable = False
    return mask


def to_list(values: np.ndarray, valid: np.ndarray) -> list[Any]:
    """Plain values, None where not valid. Shapes: (K,) both.

    As `Column.tolist`, but with no look at every row: this is on the path of every decision.
    """
    num_valid = np.count_nonzero(valid)
    if 2 * num_valid <= len(values):
        out: list[Any] = [None] * len(values)
        if num_valid:
            rows = valid.nonzero()[0]
            for row, value in zip(rows.tolist(), values[rows].tolist(), strict=True):
                out[row] = value
        return out
    out = values.tolist()
    if num_valid < len(values):
        for row in (~valid).nonzero()[0].tolist():
            out[row] = None
    return out

"""Values as they are sent and recorded, and the same as the expression language sees them.

JSON has no times: a timestamp or a duration is whole milliseconds there and microseconds in the language; a list is a list.
Everything else is itself. `engine/request.py` is where values come in, `engine/decide.py` where they are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """A column of the language's plain values, None for null. A double that is not finite is null: NaN is no value here."""
    if kind.kind == "double":
        doubles = np.array(values, dtype=np.float64)  # None becomes NaN
        valid = np.isfinite(doubles)
        if not valid.all():
            doubles[~valid] = 0.0
        return Column(doubles, valid)
    if kind.nullable and None in values:
        valid = np.array([value is not None for value in values], dtype=np.bool_)
        filler: Any = [] if kind.is_list else "" if kind.kind == "string" else 0
        values = [filler if value is None else value for value in values]
    else:
        valid = np.ones(len(values), dtype=np.bool_)
    if kind.kind in DTYPES:
        return Column(np.array(values, dtype=DTYPES[kind.kind]), valid)
    objects = np.empty(len(values), dtype=np.object_)
    if kind.is_list:
        for row, value in enumerate(values):  # a slice would spread lists of one length over a second axis
            objects[row] = value
    else:
        objects[:] = values
    return Column(objects, valid)


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

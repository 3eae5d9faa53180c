"""A request whose candidates come as an Arrow record batch: the columns of the rules without a copy where Arrow's own
layout allows it (whole numbers of 64 bits, doubles), by one gather for dictionary-coded texts.

The envelope is JSON: the body of `engine/WIRE.md` without `candidates`. What a column may be, by the field's kind:

    int                    any integer type          bool                  bool
    double                 float64 or float32        string                utf8, large_utf8, or a dictionary of those
    timestamp, duration    int64 of milliseconds, or timestamp and duration in s or ms
    list(T)                a list of T, no element null

A NaN or an infinity is null where the field may be null, else refused, as a value outside declared bounds is.
Legend: K candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from engine.request import Request, RequestError, build, decode_envelope
from engine.wire_values import US_PER_MS, column_of_wire, python_type, to_list
from features.expr import Column, Type
from features.expr.times import RANGES
from features.yaml_source import name_hint

if TYPE_CHECKING:
    import pyarrow as pa

    from engine.strategy import CompiledStrategy

_TIME_UNITS: Final = {"s": 1000, "ms": 1}  # what makes milliseconds of a value
_MAX_TEXT: Final = 1000  # as for a text in JSON


def request_from_arrow(compiled: CompiledStrategy, envelope: bytes, candidates: pa.RecordBatch) -> Request:
    """The same Request as `engine.request.parse` makes of the same values in JSON.

    `envelope` is the body without `candidates`, as JSON.
    Raises: RequestError, 400 with the path of what does not fit, 413 for too many candidates.
    """
    strategy = compiled.strategy
    head, fields = decode_envelope(compiled, envelope)
    given = {name: candidates.column(at) for at, name in enumerate(candidates.schema.names)}
    if len(given) < candidates.num_columns:
        raise RequestError(400, "malformed", "two columns have one name", path="$.candidates")
    for name in given:
        if name not in strategy.candidate_fields:
            hint = name_hint(name, strategy.candidate_fields)
            raise RequestError(400, "malformed", f"unknown field `{name}`", path=f"$.candidates.{name}", hint=hint)
    columns: dict[str, Column] = {}
    lists: dict[str, list[Any]] = {}
    for name, kind in strategy.candidate_fields.items():
        array = given.get(name)
        if array is None and not kind.nullable:
            raise RequestError(400, "malformed", f"missing required field `{name}`", path=f"$.candidates.{name}")
        columns[name], lists[name] = _absent(candidates.num_rows, kind) if array is None else _read(array, kind, name)
    return build(compiled, head, fields, lists, columns)


def _absent(num_rows: int, kind: Type) -> tuple[Column, list[Any]]:
    nothing: list[Any] = [None] * num_rows
    return column_of_wire(nothing, kind), nothing


def _read(array: pa.Array, kind: Type, name: str) -> tuple[Column, list[Any]]:
    """A column as the language sees it, and its values as they are recorded."""
    path = f"$.candidates.{name}"
    if len(array) == 0 or str(array.type) == "null":
        column, values = _absent(len(array), kind)
    elif kind.is_list:
        values = array.to_pylist()
        _check_items(values, kind, path)
        column = column_of_wire(values, kind)
    elif kind.kind == "string":
        column = _texts(array, path)
        values = to_list(column.values, column.valid)
    else:
        column = _numbers(array, kind, path)
        values = to_list(column.values, column.valid)
        if kind.kind in ("timestamp", "duration"):
            _check_times(column, kind, path)
            column = Column(column.values * US_PER_MS, column.valid)
    if not kind.nullable and not column.valid.all():
        row = int(np.argmin(column.valid))
        raise RequestError(400, "malformed", f"Expected `{kind}`, got `null`", path=f"{path}[{row}]")
    return column, values


def _numbers(array: pa.Array, kind: Type, path: str) -> Column:
    """Whole numbers, doubles, bools; a double that is not finite is null."""
    valid = _valid(array)
    text = str(array.type)
    if kind.kind == "bool":
        if text != "bool":
            raise _wrong_type(array, "bool", path)
        return Column(_bits(array.buffers()[1], array), valid)
    if kind.kind == "double":
        if text not in ("double", "float"):
            raise _wrong_type(array, "float64", path)
        doubles = _values(array, np.float64 if text == "double" else np.float32).astype(np.float64, copy=False)
        return Column(doubles, valid & np.isfinite(doubles))
    scale = 1
    if kind.kind in ("timestamp", "duration") and text.startswith(f"{kind.kind}["):
        unit = array.type.unit
        if unit not in _TIME_UNITS:
            raise _wrong_type(array, f"{kind.kind}[ms]", path)
        scale, dtype = _TIME_UNITS[unit], np.dtype(np.int64)
    elif text in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"):
        dtype = np.dtype(text)
    else:
        raise _wrong_type(array, "int64", path)
    numbers = _values(array, dtype).astype(np.int64, copy=False)
    return Column(numbers if scale == 1 else numbers * scale, valid)


def _texts(array: pa.Array, path: str) -> Column:
    """Texts as Python strings; of a dictionary each one is made once."""
    text = str(array.type)
    valid = _valid(array)
    if text.startswith("dictionary<values=string") or text.startswith("dictionary<values=large_string"):
        known = np.array([*array.dictionary.to_pylist(), None], dtype=np.object_)
        indices = array.indices
        codes = _values(indices, np.dtype(str(indices.type)))
        values = known[np.where(valid, codes, len(known) - 1)]
        valid = valid & (values != None)  # noqa: E711  # a dictionary may hold a null, too
    elif text in ("string", "large_string"):
        known = values = np.array([*array.to_pylist(), None], dtype=np.object_)[:-1]
    else:
        raise _wrong_type(array, "utf8 or a dictionary of utf8", path)
    if any(one is not None and len(one) > _MAX_TEXT for one in known.tolist()):
        raise RequestError(400, "malformed", f"Expected `str` of length <= {_MAX_TEXT}", path=path)
    return Column(values if valid.all() else np.where(valid, values, ""), valid)


def _values(array: pa.Array, dtype: Any) -> np.ndarray:
    """The values where Arrow has them, in place. Shapes: returns (len(array),), read-only."""
    found: np.ndarray = np.frombuffer(array.buffers()[1], dtype=dtype, count=array.offset + len(array))[array.offset :]
    return found


def _valid(array: pa.Array) -> np.ndarray:
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return _bits(array.buffers()[0], array)


def _bits(buffer: pa.Buffer, array: pa.Array) -> np.ndarray:
    """Arrow's bits, lowest first. Shapes: returns (len(array),) bool."""
    packed = np.frombuffer(buffer, dtype=np.uint8)
    bits = np.unpackbits(packed, bitorder="little", count=array.offset + len(array))
    return bits[array.offset :].astype(np.bool_)


def _check_items(values: list[Any], kind: Type, path: str) -> None:
    """Lists are rare and short: their elements are checked as JSON's would be, one by one."""
    for row, value in enumerate(values):
        try:
            msgspec.convert(value, python_type(kind), strict=True)
        except msgspec.ValidationError as error:
            raise RequestError(400, "malformed", str(error).partition(" - at ")[0], path=f"{path}[{row}]") from None


def _check_times(column: Column, kind: Type, path: str) -> None:
    low, high = (end / US_PER_MS for end in RANGES[kind.kind])
    outside = ((column.values < low) | (column.values > high)) & column.valid
    if outside.any():
        row = int(np.argmax(outside))
        raise RequestError(400, "malformed", f"{column.values[row]} ms is no {kind.kind}", path=f"{path}[{row}]")


def _wrong_type(array: pa.Array, wanted: str, path: str) -> RequestError:
    return RequestError(400, "malformed", f"a column of {array.type}", path=path, hint=f"send {wanted}")

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

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from engine.request import Request, RequestError, build, decode_envelope
from engine.wire_values import US_PER_MS, all_valid, column_of_wire, python_type, to_list
from features.expr import CodedTexts, Column, Type
from features.expr.times import RANGES
from features.yaml_source import name_hint

if TYPE_CHECKING:
    import pyarrow as pa

    from engine.strategy import CompiledStrategy

_TIME_UNITS: Final = {"s": 1000, "ms": 1}  # what makes milliseconds of a value
_INTS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_MAX_TEXT: Final = 1000  # as for a text in JSON

_Read = tuple[Column, list[Any]]  # a column as the language sees it, and its values as they are recorded


def request_from_arrow(compiled: CompiledStrategy, envelope: bytes, candidates: pa.RecordBatch) -> Request:
    """The same Request as `engine.request.parse` makes of the same values in JSON.

    `envelope` is the body without `candidates`, as JSON.
    Raises: RequestError, 400 with the path of what does not fit, 413 for too many candidates.
    """
    head, fields = decode_envelope(compiled, envelope)
    try:
        candidates.validate(full=True)  # offsets, codes and texts may come from anywhere; all columns cost 3 us
    except ValueError as error:
        raise RequestError(400, "malformed", f"damaged Arrow data: {error}", path="$.candidates") from None
    columns: dict[str, Column] = {}
    lists: dict[str, list[Any]] = {}
    for name, field in _fields_of(compiled, candidates.schema).items():
        read = _read_absent if field.at is None else field.read
        columns[name], lists[name] = read(candidates if field.at is None else candidates.column(field.at), field)
        if not field.kind.nullable and np.count_nonzero(columns[name].valid) < candidates.num_rows:
            row = int(np.argmin(columns[name].valid))
            path = f"{field.path}[{row}]"
            raise RequestError(400, "malformed", f"Expected `{field.kind}`, got `null`", path=path)
    return build(compiled, head, fields, lists, columns)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Field:
    """A field of a strategy and the column that has it: `at` is its place, None where there is none. `dtype` and `scale` (what
    makes milliseconds of it) are those of numbers."""

    kind: Type
    path: str
    at: int | None
    read: Callable[[Any, _Field], _Read]
    dtype: np.dtype[Any] | None = None
    scale: int = 1


@lru_cache(maxsize=64)  # of the strategies that are live, and a few that just were
def _last_seen(compiled: CompiledStrategy) -> list[tuple[pa.Schema, dict[str, _Field]]]:
    """The last schema that was read and what it means: callers send the same one again and again. At most one entry."""
    return []


def _fields_of(compiled: CompiledStrategy, schema: pa.Schema) -> dict[str, _Field]:
    """How to read every field. Raises: RequestError for a schema that does not fit the strategy."""
    last = _last_seen(compiled)
    for known, found in last[:1]:
        if known.equals(schema):
            return found
    declared = compiled.strategy.candidate_fields
    names: list[str] = schema.names
    if len(set(names)) < len(names):
        raise RequestError(400, "malformed", "two columns have one name", path="$.candidates")
    for name in names:
        if name not in declared:
            hint = name_hint(name, declared)
            raise RequestError(400, "malformed", f"unknown field `{name}`", path=f"$.candidates.{name}", hint=hint)
    fields = {}
    for name, kind in declared.items():
        path = f"$.candidates.{name}"
        if name in names:
            fields[name] = _field(kind, path, names.index(name), schema.field(name).type)
        elif kind.nullable:
            fields[name] = _Field(kind=kind, path=path, at=None, read=_read_absent)
        else:
            raise RequestError(400, "malformed", f"missing required field `{name}`", path=path)
    last[:] = [(schema, fields)]
    return fields


def _field(kind: Type, path: str, at: int, found: pa.DataType) -> _Field:
    """How to read a column of a field. Raises: RequestError for a type that the field does not take."""
    text, dtype, scale = str(found), "int64", 1
    read: Callable[[Any, _Field], _Read] = _read_numbers
    if text == "null":
        read = _read_absent
    elif kind.is_list:
        read = _read_lists
    elif kind.kind == "string":
        if text.startswith(("dictionary<values=string", "dictionary<values=large_string")):
            read, dtype = _read_coded, str(found.index_type)
        elif text in ("string", "large_string"):
            read, dtype = _read_texts, "int32" if text == "string" else "int64"
        else:
            raise _wrong_type(found, "utf8 or a dictionary of utf8", path)
    elif kind.kind == "bool":
        if text != "bool":
            raise _wrong_type(found, "bool", path)
        read = _read_bools
    elif kind.kind == "double":
        if text not in ("double", "float"):
            raise _wrong_type(found, "float64", path)
        read, dtype = _read_doubles, "float64" if text == "double" else "float32"
    elif kind.kind in ("timestamp", "duration") and text.startswith(f"{kind.kind}["):
        if found.unit not in _TIME_UNITS:
            raise _wrong_type(found, f"{kind.kind}[ms]", path)
        scale = _TIME_UNITS[found.unit]
    elif text in _INTS:
        dtype = text
    else:
        raise _wrong_type(found, "int64", path)
    return _Field(kind=kind, path=path, at=at, read=read, dtype=np.dtype(dtype), scale=scale)


# One function per kind of column ---------------------------------------------------------------------------------------


def _read_absent(rows: Any, field: _Field) -> _Read:
    """`rows`: anything that has their number, `len` or `num_rows`."""
    nothing: list[Any] = [None] * (len(rows) if field.at is not None else rows.num_rows)
    return column_of_wire(nothing, field.kind), nothing


def _read_lists(array: pa.Array, field: _Field) -> _Read:
    """Lists are rare and short: their elements are checked as JSON's would be, one by one."""
    values = array.to_pylist()
    for row, value in enumerate(values):
        try:
            msgspec.convert(value, python_type(field.kind), strict=True)
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - at ")[0]
            raise RequestError(400, "malformed", reason, path=f"{field.path}[{row}]") from None
    return column_of_wire(values, field.kind), values


def _read_bools(array: pa.Array, field: _Field) -> _Read:
    column = Column(_bits(array.buffers()[1], array), _valid(array))
    return column, to_list(column.values, column.valid)


def _read_doubles(array: pa.Array, field: _Field) -> _Read:
    """A double that is not finite is null."""
    doubles = _values(array, field).astype(np.float64, copy=False)
    valid = np.isfinite(doubles)
    if array.null_count:
        valid &= _valid(array)
    return Column(doubles, valid), to_list(doubles, valid)


def _read_numbers(array: pa.Array, field: _Field) -> _Read:
    """Whole numbers, and times, which are checked in milliseconds."""
    numbers, valid = _values(array, field).astype(np.int64, copy=False), _valid(array)
    if field.kind.kind not in RANGES:
        return Column(numbers, valid), to_list(numbers, valid)
    low, high = (end / US_PER_MS for end in RANGES[field.kind.kind])
    outside = ((numbers < low / field.scale) | (numbers > high / field.scale)) & valid
    if outside.any():
        row = int(np.argmax(outside))
        message = f"{int(numbers[row]) * field.scale} ms is no {field.kind.kind}"
        raise RequestError(400, "malformed", message, path=f"{field.path}[{row}]")
    times = numbers if field.scale == 1 else numbers * field.scale
    return Column(times * US_PER_MS, valid), to_list(times, valid)


def _read_coded(array: pa.Array, field: _Field) -> _Read:
    """Every text of the dictionary is made once."""
    texts, codes, valid = _plain_texts(array.dictionary, field), _values(array, field), _valid(array)
    if array.dictionary.null_count and len(texts):  # a dictionary may hold a null, too
        valid = valid & _valid(array.dictionary)[np.where(valid, codes, 0)]
    column = CodedTexts(codes, texts, valid)
    return column, column.tolist()


def _read_texts(array: pa.Array, field: _Field) -> _Read:
    texts, valid = _plain_texts(array, field), _valid(array)
    return Column(texts, valid), to_list(texts, valid)


def _plain_texts(array: pa.Array, field: _Field) -> np.ndarray:
    """Python's texts, empty ones for null. Shapes: returns (len(array),) object."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or data is None:  # Arrow may leave the data of empty texts away
        return np.full(len(array), "", dtype=np.object_)
    dtype: Any = np.int64 if str(array.type) == "large_string" else np.int32
    starts_N: np.ndarray = np.frombuffer(offsets, dtype=dtype, count=array.offset + len(array) + 1)[array.offset :]
    ends = starts_N.tolist()
    first = ends[0]
    raw = data[first : ends[-1]].to_pybytes()
    text = raw.decode()
    if len(text) == len(raw):  # a byte a character
        values = [text[start - first : end - first] for start, end in pairwise(ends)]
    else:
        values = [raw[start - first : end - first].decode() for start, end in pairwise(ends)]
    if np.diff(starts_N).max() > _MAX_TEXT and max(map(len, values)) > _MAX_TEXT:
        raise RequestError(400, "malformed", f"Expected `str` of length <= {_MAX_TEXT}", path=field.path)
    if array.null_count:  # what lies under a null may be anything
        values = ["" if value is None else value for value in to_list(np.array(values, np.object_), _valid(array))]
    return np.array(values, dtype=np.object_)


def _values(array: pa.Array, field: _Field) -> np.ndarray:
    """The numbers where Arrow has them, in place. Shapes: returns (len(array),), read-only."""
    end = array.offset + len(array)
    found: np.ndarray = np.frombuffer(array.buffers()[1], field.dtype, end) if end else np.empty(0, field.dtype)
    return found[array.offset :] if array.offset else found


def _valid(array: pa.Array) -> np.ndarray:
    if array.null_count == 0:
        return all_valid(len(array))
    return _bits(array.buffers()[0], array)


def _bits(buffer: pa.Buffer | None, array: pa.Array) -> np.ndarray:
    """Arrow's bits, lowest first. Shapes: returns (len(array),) bool."""
    if buffer is None:
        return np.zeros(len(array), dtype=np.bool_)
    packed = np.frombuffer(buffer, dtype=np.uint8)
    bits = np.unpackbits(packed, bitorder="little", count=array.offset + len(array))
    return bits[array.offset :].view(np.bool_)


def _wrong_type(found: pa.DataType, wanted: str, path: str) -> RequestError:
    return RequestError(400, "malformed", f"a column of {found}", path=path, hint=f"send {wanted}")

"""Plain rows, as batch views store them: all values of one key in one string, and back to columns for many keys at once.

    format u8 | number of fields u16 | event time i64 | sequence i64 | null bitmap | one 8-byte cell a field | strings

Little-endian, without padding. A set bit of the bitmap is a null; int and bool cells are i64, doubles f64. The cell of a
string is where it starts, counted from the row's first byte, and there stand its length u32 and its UTF-8. The order of
(event time, sequence) is the guard's (features/lua/write_rows.lua).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.spec import RowField, RowGroup

ROW_FORMAT: Final = 1
NO_ROW_MS: Final = int(np.iinfo(np.int64).min)  # the event time of a key without a row
_ORDER: Final = struct.Struct("<qq")
_LENGTH: Final = struct.Struct("<I")


@cache
def row_dtype(num_fields: int) -> np.dtype[Any]:
    """The part of a row that has the same size for every key."""
    return np.dtype(
        [
            ("format", "u1"),
            ("num_fields", "<u2"),
            ("event_time_ms", "<i8"),
            ("sequence", "<i8"),
            ("nulls", "u1", (-(-num_fields // 8),)),
            ("cells", "<i8", (num_fields,)),
        ]
    )


def pack_rows(
    group: RowGroup,
    event_time_ms: NDArray[np.int64],
    sequences: NDArray[np.int64],
    values: Mapping[str, Sequence[Any] | NDArray[Any]],
) -> list[bytes]:
    """N rows to their bytes. `values[field.name]` has N items, None (or NaN) for null.

    Raises: KeyError for a field without values; ValueError where the lengths differ; TypeError or OverflowError for a value
    that does not fit its field's type.
    """
    num_rows, fields = len(event_time_ms), group.fields
    fixed = np.zeros(num_rows, dtype=row_dtype(len(fields)))
    fixed["format"], fixed["num_fields"] = ROW_FORMAT, len(fields)
    fixed["event_time_ms"], fixed["sequence"] = event_time_ms, sequences
    nulls = np.zeros((num_rows, len(fields)), dtype=bool)
    texts: list[tuple[int, list[bytes | None]]] = []
    for f, field in enumerate(fields):
        column = values[field.name]
        if len(column) != num_rows:
            raise ValueError(f"group {group.name}: {len(column)} values of {field.name} for {num_rows} rows")
        known = _known(column)
        nulls[:, f] = ~known
        if field.type == "string":
            texts.append((f, [_text(value) if there else None for value, there in zip(column, known, strict=True)]))
        else:
            fixed["cells"][known, f] = _cells(group, field, column, known)
    fixed["nulls"] = np.packbits(nulls, axis=1, bitorder="little")
    if not texts:
        data, size = fixed.tobytes(), fixed.itemsize
        return [data[at : at + size] for at in range(0, len(data), size)]
    return [_with_texts(fixed, row, texts) for row in range(num_rows)]


def unpack_rows(
    group: RowGroup, values: Sequence[bytes | None]
) -> tuple[list[NDArray[Any]], NDArray[np.bool_], NDArray[np.int64]]:
    """Stored rows, None for a key without one, as (columns, valid, event time).

    Shapes: N rows, F fields; columns F arrays of (N,) int64, float64, bool or object (str), 0/False/"" where there is no
    value; valid (F, N) bool; event time (N,) int64, NO_ROW_MS where there is no row. Number columns are rows of one array.
    Raises: ValueError for bytes that are not rows of this group.
    """
    fields, dtype = group.fields, row_dtype(len(group.fields))
    size, absent = dtype.itemsize, bytes(dtype.itemsize)
    has_texts = any(field.type == "string" for field in fields)
    if has_texts:
        data = b"".join([absent if value is None else value[:size] for value in values])
    else:
        data = b"".join([absent if value is None else value for value in values])
    if len(data) != size * len(values):
        raise ValueError(f"group {group.name}: {len(data)} bytes are not {len(values)} rows of {size} bytes")
    fixed = np.frombuffer(data, dtype=dtype)
    there = fixed["format"] == ROW_FORMAT
    if not ((there | (fixed["format"] == 0)) & (there == (fixed["num_fields"] == len(fields)))).all():
        raise ValueError(f"group {group.name}: the bytes are not rows of format {ROW_FORMAT} with {len(fields)} fields")
    valid = np.unpackbits(fixed["nulls"], axis=1, count=len(fields), bitorder="little").T == 0
    valid &= there
    cells = np.ascontiguousarray(fixed["cells"].T)
    doubles = cells.view("<f8")
    columns: list[NDArray[Any]] = []
    for f, field in enumerate(fields):
        if field.type == "string":
            columns.append(_texts_of(cells[f], valid[f], values))
        else:
            columns.append(
                doubles[f] if field.type == "double" else cells[f] != 0 if field.type == "bool" else cells[f]
            )
    return columns, valid, np.where(there, fixed["event_time_ms"], NO_ROW_MS)


def order_of_row(data: bytes) -> tuple[int, int]:
    """(event time, sequence) of one stored row."""
    event_time_ms, sequence = _ORDER.unpack_from(data, 3)
    return event_time_ms, sequence


def _known(column: Sequence[Any] | NDArray[Any]) -> NDArray[np.bool_]:
    if isinstance(column, np.ndarray) and column.dtype.kind in "iub":
        return np.ones(len(column), dtype=bool)
    if isinstance(column, np.ndarray) and column.dtype.kind == "f":
        return ~np.isnan(column)
    return np.fromiter((value is not None and value == value for value in column), dtype=bool, count=len(column))


def _cells(
    group: RowGroup, field: RowField, column: Sequence[Any] | NDArray[Any], known: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The known values as cells. Nothing is cut or rounded: 1.5 is no int, and "1" is none either."""
    kept = column[known] if isinstance(column, np.ndarray) else [v for v, k in zip(column, known, strict=True) if k]
    found = np.asarray(kept, dtype=np.float64 if len(kept) == 0 else None)
    kinds = {"int": "iu", "bool": "b", "double": "fiu"}[field.type]
    if len(kept) and found.dtype.kind == "f" and field.type == "int" and (found == np.floor(found)).all():
        if isinstance(column, np.ndarray):  # a column of ints with nulls comes as doubles
            found = found.astype(np.int64)
    elif len(kept) and found.dtype.kind == "O":
        found = np.array([value.item() if isinstance(value, np.generic) else value for value in kept])
    if len(kept) and found.dtype.kind not in kinds:
        bad = next(v for v in kept if np.asarray(v).dtype.kind not in kinds)
        raise TypeError(f"group {group.name}: field {field.name} is {field.type}, {bad!r} is not")
    if field.type == "double":
        return found.astype("<f8").view("<i8")
    if found.dtype.kind == "u" and len(found) and int(found.max()) > np.iinfo(np.int64).max:
        raise OverflowError(f"group {group.name}: field {field.name}: {int(found.max())} does not fit 64 bits")
    return found.astype("<i8")


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value.encode()


def _with_texts(fixed: NDArray[Any], row: int, texts: Sequence[tuple[int, list[bytes | None]]]) -> bytes:
    parts, at = [], fixed.itemsize
    for f, column in texts:
        text = column[row]
        if text is not None:
            fixed["cells"][row, f] = at
            parts += [_LENGTH.pack(len(text)), text]
            at += _LENGTH.size + len(text)
    return b"".join([fixed[row].tobytes(), *parts])


def _texts_of(starts: NDArray[np.int64], valid: NDArray[np.bool_], values: Sequence[bytes | None]) -> NDArray[Any]:
    out = np.full(len(starts), "", dtype=object)
    for row in np.flatnonzero(valid).tolist():
        value, at = values[row], int(starts[row])
        assert value is not None
        (length,) = _LENGTH.unpack_from(value, at)
        out[row] = value[at + _LENGTH.size : at + _LENGTH.size + length].decode()
    return out

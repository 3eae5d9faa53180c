"""Values to the bytes of stored rows and back, and the names of the keys they are stored under.

A tile list is records of 8-byte little-endian cells, `tile i64 | count i64 | one i64 or f64 per partial`, unique tiles,
newest first; count is the number of events and the tile's sequence. A last value is one cell per field: present u8,
and if 1: event time i64, length of id u32, length of value u32, id, value. Layouts hold for one generation of a group;
the generation is in the key, so bytes of another layout are never read. The same bytes are taken apart in
features/lua/*.lua (guards) and features/read_plan.py (reads).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.spec import Entity, Key, LastGroup, Partial, TileGroup

CELL_BYTES: Final = 8
NUM_FIXED_CELLS: Final = 2  # tile, count
_STRING_TYPE: Final = 2  # Feast's ValueType numbers: 2, INT32 3, INT64 4
_INT32_HEAD: Final = struct.pack("<II", 3, 4)
_INT64_HEAD: Final = struct.pack("<II", 4, 8)
_LAST_HEAD: Final = struct.Struct("<BqII")
ABSENT_CELL: Final = b"\0"


class KeyEncoder:
    """Entity keys as Feast's serialisation version 3 writes them: names, then values, both in the order of the names."""

    def __init__(self, entity: Entity) -> None:
        columns = sorted(enumerate(entity.keys), key=lambda pair: pair[1].name)
        names = [column.name.encode() for _, column in columns]
        self._head = struct.pack("<I", len(names)) + b"".join(_sized(_STRING_TYPE, name) for name in names)
        self._order = [(place, column.type) for place, column in columns]
        self._type = entity.keys[0].type
        self._entity = entity

    def encode(self, value: Key) -> bytes:
        """Raises: TypeError, ValueError or OverflowError where the value does not fit the entity's key (never coerced)."""
        if len(self._order) == 1:
            return self._head + self._part(self._type, value)
        if not isinstance(value, tuple) or len(value) != len(self._order):
            raise TypeError(f"entity {self._entity.name}: key {value!r} is not a tuple of {self._entity.join_keys}")
        return self._head + b"".join([self._part(kind, value[place]) for place, kind in self._order])

    def encode_many(self, values: Iterable[Key], suffix: bytes = b"") -> list[bytes]:
        return [self.encode(value) + suffix for value in values]

    def _part(self, kind: str, value: Any) -> bytes:
        if kind == "string":
            if not isinstance(value, str):
                raise TypeError(f"entity {self._entity.name}: key {value!r} is not a string")
            return _sized(_STRING_TYPE, value.encode())
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"entity {self._entity.name}: key {value!r} is not an int")
        if kind == "int32":
            return _INT32_HEAD + int(value).to_bytes(4, "little", signed=True)
        return _INT64_HEAD + int(value).to_bytes(8, "little", signed=True)


@dataclass(frozen=True)
class GroupKeys:
    """The names under which one generation of one group lives."""

    project: str
    group: str
    generation: int

    @property
    def suffix(self) -> bytes:
        """What follows the entity key bytes. Feast's own hash key ends after the project, so the two never meet."""
        return f"{self.project}\0{self.group}\0{self.generation}".encode()

    @property
    def marker(self) -> bytes:
        """What says that the generation is whole: gone with a Redis that lost its data, and then nothing is written."""
        return self._named("marker")

    @property
    def backfilled(self) -> bytes:
        """The seam up to which a backfill has filled the generation."""
        return self._named("backfilled_through")

    @property
    def heartbeat(self) -> bytes:
        return self._named("applied_through_ms")

    @property
    def used(self) -> bytes:
        return self._named("used")

    @property
    def forgotten(self) -> bytes:
        return self._named("forgotten")

    @property
    def freshness(self) -> bytes:
        return self._named("freshness")

    def offsets(self, partition: int, block: int) -> bytes:
        """The bitmap of one block of a source partition's used offsets."""
        return self._named(f"offsets:{partition}:{block}")

    def _named(self, what: str) -> bytes:
        return f"hailstream:group:{self.project}:{self.group}:{self.generation}:{what}".encode()


def _sized(value_type: int, data: bytes) -> bytes:
    return struct.pack("<II", value_type, len(data)) + data


def record_cells(group: TileGroup) -> int:
    """Cells of one tile record."""
    return NUM_FIXED_CELLS + len(group.partials)


def pack_tiles(
    group: TileGroup, tiles: NDArray[np.int64], counts: NDArray[np.int64], partials: Sequence[NDArray[Any]]
) -> NDArray[np.int64]:
    """(N,) columns to (N, 2 + P) cells; doubles are carried as their bits.

    Raises: ValueError where the number or the length of the partials does not fit the group.
    """
    if len(partials) != len(group.partials) or any(len(p) != len(tiles) for p in partials):
        raise ValueError(
            f"group {group.name} has {len(group.partials)} partials; got {len(partials)} arrays of lengths "
            f"{[len(p) for p in partials]} for {len(tiles)} tiles"
        )
    cells = np.empty((len(tiles), record_cells(group)), dtype="<i8")
    cells[:, 0] = tiles
    cells[:, 1] = counts
    for p, (partial, values) in enumerate(zip(group.partials, partials, strict=True)):
        column = partial_cells(partial, values)
        cells[:, NUM_FIXED_CELLS + p] = column.view("<i8") if partial.type == "double" else column
    return cells


def partial_cells(partial: Partial, values: NDArray[Any]) -> NDArray[Any]:
    """Numbers with nulls (None; NaN of a minimum or maximum) to (N,) int64 or float64 with the partial's identity instead.

    A sum is never null: its NaN is what is left of +inf and -inf, and is kept, so that it is read as null.
    """
    dtype = np.float64 if partial.type == "double" else np.int64
    values = np.asarray(values)
    if values.dtype.kind in "iu":
        return values.astype(dtype)
    if values.dtype.kind == "f":
        known = ~np.isnan(values) | (partial.function == "sum" and partial.type == "double")
    else:
        known = np.array([v is not None and v == v for v in values], dtype=bool)
    out = np.full(len(values), partial.identity, dtype=dtype)
    out[known] = values[known].astype(dtype)
    return out


def unpack_tiles(group: TileGroup, data: bytes) -> NDArray[np.int64]:
    """One stored list, or several one after the other, as (N, 2 + P) cells. Raises ValueError for a torn record."""
    width = record_cells(group)
    if len(data) % (width * CELL_BYTES):
        raise ValueError(f"group {group.name}: {len(data)} bytes are not whole records of {width * CELL_BYTES} bytes")
    return np.frombuffer(data, dtype="<i8").reshape(-1, width)


def pack_value(type_name: str, value: Any) -> bytes:
    """One last value: int and bool as i64, double as f64, string as UTF-8."""
    if type_name == "string":
        return str(value).encode()
    if type_name == "double":
        return struct.pack("<d", value)
    return struct.pack("<q", int(value))


def unpack_value(type_name: str, data: bytes) -> Any:
    if type_name == "string":
        return data.decode()
    if type_name == "double":
        return struct.unpack("<d", data)[0]
    number = struct.unpack("<q", data)[0]
    return bool(number) if type_name == "bool" else number


def pack_last_cell(event_time_ms: int, event_id: bytes, value: bytes) -> bytes:
    return _LAST_HEAD.pack(1, event_time_ms, len(event_id), len(value)) + event_id + value


def unpack_last(group: LastGroup, data: bytes) -> list[tuple[int, Any] | None]:
    """One stored value as (event time, value) per field, None where there is none."""
    out: list[tuple[int, Any] | None] = []
    at = 0
    for field in group.fields:
        if data[at] == 0:
            out.append(None)
            at += 1
            continue
        _, time_ms, id_length, value_length = _LAST_HEAD.unpack_from(data, at)
        at += _LAST_HEAD.size + id_length
        out.append((time_ms, unpack_value(field.type, data[at : at + value_length])))
        at += value_length
    if at != len(data):
        raise ValueError(f"group {group.name}: {len(data)} bytes do not hold {len(group.fields)} last values")
    return out

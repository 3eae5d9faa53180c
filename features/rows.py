"""FeatureBatch: the values of one view for R keys at one time, with a status and an age for every value.

`to_served` and `from_served` turn it into the bytes that a Decision carries and back: what was served is what is
trained on, value for value and status for status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.records import ServedFeatures


class Status(IntEnum):
    """What a value is. Exactly PRESENT and DEFAULT carry a value; in the others the cell is null."""

    PRESENT = 0  # known; an empty window of a live view is a present 0
    NULL = 1  # known to be null: the average of nothing, an expression that says null
    MISSING = 2  # never known: no heartbeat, or no value of this key yet
    STALE = 3  # known once, but older than the view's max_age
    DEFAULT = 4  # one of the three above, and the declared default stands in


UNKNOWN_AGE_MS: Final = -1
_PRESENT: Final = np.uint8(
    Status.PRESENT
)  # NumPy takes 5 µs to make sense of an IntEnum, and this is asked for every read
_DEFAULT: Final = np.uint8(Status.DEFAULT)
_CELL_DTYPES: Final = {"int": np.dtype("<i8"), "bool": np.dtype("<i8"), "double": np.dtype("<f8")}
_ZERO: Final = bytes(8)
_HAS_VALUE: Final = bytes(status in (Status.PRESENT, Status.DEFAULT) for status in range(256))
DTYPES: Final[dict[str, Any]] = {"int": np.int64, "double": np.float64, "bool": np.bool_, "string": np.object_}


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureBatch:
    """Columns of one view.

    Shapes: R keys, F features. columns[name] (R,) int64, float64, bool or object (str) by type, 0/False/"" where
    there is no value; valid[name] (R,) bool; statuses (R, F) uint8; ages_ms (R, F) int64, -1 where unknown. The age
    of a windowed value is the time since its group's heartbeat, of a last value the time since its event. `cells_FR`,
    where a store has them at hand, are the cells of ServedFeatures (those of strings excepted), which `columns` are views of.
    """

    view: str
    generation: int
    applied_through_ms: int | None
    names: tuple[str, ...]
    types: tuple[str, ...]
    columns: Mapping[str, NDArray[Any]]
    valid: Mapping[str, NDArray[np.bool_]]
    statuses: NDArray[np.uint8]
    ages_ms: NDArray[np.int64]
    cells_FR: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        return int(self.statuses.shape[0])

    def row(self, index: int) -> dict[str, Any]:
        """One key's values as plain Python values, None for null."""
        out: dict[str, Any] = {}
        for name, type_name in zip(self.names, self.types, strict=True):
            value = self.columns[name][index]
            out[name] = None if not self.valid[name][index] else str(value) if type_name == "string" else value.item()
        return out


def has_value(statuses: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where a status says that there is a value."""
    return (statuses == _PRESENT) | (statuses == _DEFAULT)


def empty_column(type_name: str, num_rows: int) -> NDArray[Any]:
    """(R,) of the type's null filler."""
    if type_name == "string":
        return np.full(num_rows, "", dtype=object)
    return np.zeros(num_rows, dtype=DTYPES[type_name])


def to_served(batch: FeatureBatch) -> ServedFeatures:
    """The batch as the bytes that a Decision carries (records.ServedFeatures). Ages are not part of them."""
    statuses = np.ascontiguousarray(batch.statuses.T).tobytes()
    strings: dict[str, int] = {}
    if batch.cells_FR is None or "string" in batch.types:
        values = _cells(batch, strings)
        if statuses.count(Status.PRESENT) < len(statuses):  # a cell without a value is 0, whatever the column has there
            known = np.frombuffer(statuses.translate(_HAS_VALUE), dtype=np.bool_)
            values = (np.frombuffer(values, dtype="<i8") * known).tobytes()
    else:
        values = batch.cells_FR.tobytes()
    return ServedFeatures(
        view=batch.view,
        generation=batch.generation,
        applied_through_ms=batch.applied_through_ms,
        rows=batch.num_rows,
        names=list(batch.names),
        types=list(batch.types),
        values=values,
        statuses=statuses,
        strings=list(strings),
    )


def _cells(batch: FeatureBatch, strings: dict[str, int]) -> bytes:
    """The columns, one after the other; `strings` becomes the texts in their order."""
    cells = []
    for name, type_name in zip(batch.names, batch.types, strict=True):
        column = batch.columns[name]
        if type_name == "string":
            cells.append(_string_cells(column, batch.valid[name], strings))
            continue
        if column.dtype is not (dtype := _CELL_DTYPES[type_name]):
            column = column.astype(dtype)
        cells.append(column.tobytes())
    return b"".join(cells)


def _string_cells(column: NDArray[Any], valid: NDArray[np.bool_], strings: dict[str, int]) -> bytes:
    """Every text's place in `strings`, which grows by the texts that are new to it."""
    texts = column.tolist()
    complete = np.count_nonzero(valid) == len(texts)
    for text in dict.fromkeys(texts if complete else column[valid].tolist()):
        strings.setdefault(text, len(strings))
    cell_of = {text: place.to_bytes(8, "little") for text, place in strings.items()}
    return b"".join([cell_of.get(text, _ZERO) for text in texts])


def from_served(served: ServedFeatures) -> FeatureBatch:
    """The batch that `to_served` was given: same values, same statuses, ages unknown.

    Raises: ValueError where the bytes do not fit the number of rows and names.
    """
    num_rows, num_features = served.rows, len(served.names)
    if len(served.values) != 8 * num_rows * num_features or len(served.statuses) != num_rows * num_features:
        raise ValueError(
            f"view {served.view}: {len(served.values)} value bytes and {len(served.statuses)} status bytes do not fit "
            f"{num_rows} rows x {num_features} features"
        )
    ints = np.frombuffer(served.values, dtype="<i8").reshape(num_features, num_rows)
    doubles = np.frombuffer(served.values, dtype="<f8").reshape(num_features, num_rows)
    statuses = np.frombuffer(served.statuses, dtype=np.uint8).reshape(num_features, num_rows)
    columns: dict[str, NDArray[Any]] = {}
    valid: dict[str, NDArray[np.bool_]] = {}
    for f, (name, type_name) in enumerate(zip(served.names, served.types, strict=True)):
        valid[name] = has_value(statuses[f])
        if type_name == "double":
            columns[name] = doubles[f].astype(np.float64)
        elif type_name == "string":
            columns[name] = _strings_at(ints[f], valid[name], served.strings)
        else:
            columns[name] = ints[f].astype(DTYPES[type_name])
    return FeatureBatch(
        view=served.view,
        generation=served.generation,
        applied_through_ms=served.applied_through_ms,
        names=tuple(served.names),
        types=tuple(served.types),
        columns=columns,
        valid=valid,
        statuses=np.ascontiguousarray(statuses.T),
        ages_ms=np.full((num_rows, num_features), UNKNOWN_AGE_MS, dtype=np.int64),
    )


def _strings_at(codes: NDArray[np.int64], valid: NDArray[np.bool_], strings: Sequence[str]) -> NDArray[Any]:
    out = np.full(codes.shape[0], "", dtype=object)
    for row in np.flatnonzero(valid):
        out[row] = strings[int(codes[row])]
    return out

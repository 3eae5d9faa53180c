"""The rows that a history is asked for: a table in memory, a Parquet file or a CSV file, chunk by chunk and checked.

Keys are never coerced: an int key is a column of whole numbers, a string key one of text. `as_of_ms` is epoch
milliseconds, or an Arrow timestamp (without a zone it is UTC). Used by `features/history.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.declared import INT32, FeatureView, KeyColumn
from features.expr import did_you_mean
from features.parquet import HistoryError

_REQUEST: Final = {"int": pa.int64(), "double": pa.float64(), "bool": pa.bool_(), "string": pa.string()}


@dataclass(frozen=True)
class Frame:
    """`table`, or the Parquet file `path`. `what` names it in messages."""

    what: str
    schema: pa.Schema
    num_rows: int
    table: pa.Table | None = None
    path: Path | None = None

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)

    def chunks(self, num_rows: int, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """In order; one empty chunk of an empty frame."""
        if self.table is not None:
            table = self.table if columns is None else self.table.select(columns)
            for first in range(0, max(table.num_rows, 1), num_rows):
                yield table.slice(first, num_rows)
            return
        assert self.path is not None
        empty = True
        for batch in pq.ParquetFile(self.path).iter_batches(num_rows, columns=columns):
            empty = False
            yield pa.Table.from_batches([batch])
        if empty:
            schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
            yield schema.empty_table()

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Least and greatest time, None of an empty frame. Raises: HistoryError for a row without one."""
        found: list[tuple[int, int]] = []
        for first, chunk in _numbered(self.chunks(1 << 20, [column])):
            if chunk.num_rows:
                nulls = chunk.column(0).is_null()
                if pc.any(nulls).as_py():
                    row = first + pc.index(nulls, True).as_py()
                    raise HistoryError(f"{self.what}: row {row} (from 0) has no '{column}'")
                times = self.times(chunk, column)
                found.append((int(times.min()), int(times.max())))
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None

    def times(self, chunk: pa.Table, column: str) -> NDArray[np.int64]:
        """(R,) epoch milliseconds."""
        values = chunk.column(column)
        if pa.types.is_timestamp(values.type):
            values = pc.cast(values, pa.timestamp("ms", values.type.tz), safe=False)
        return np.asarray(pc.cast(values, pa.int64()).to_numpy(), dtype=np.int64)

    def keys(self, chunk: pa.Table, column: str, key: KeyColumn) -> pa.Array:
        """One key column of a chunk, int64 or string. A key beyond its type is no key of anything: null."""
        values = chunk.column(column)
        if key.type == "string":
            return _one(pc.cast(values, pa.string()))
        if pa.types.is_uint64(values.type):
            values = pc.if_else(pc.less_equal(values, 2**63 - 1), values, None)
        values = pc.cast(values, pa.int64())
        if key.type == "int32":
            inside = pc.and_(pc.greater_equal(values, INT32[0]), pc.less_equal(values, INT32[1]))
            values = pc.if_else(inside, values, None)
        return _one(values)

    def requests(self, chunk: pa.Table, view: FeatureView) -> dict[str, tuple[NDArray[Any], NDArray[np.bool_]]]:
        """The request fields that a view's expressions read: (values, whether there is one)."""
        out = {}
        for name in sorted(_read_requests(view)):
            kind = view.request[name].removesuffix("?")
            column = _one(pc.cast(chunk.column(name), _REQUEST[kind]))
            known = np.asarray(column.is_valid())
            filled = pc.fill_null(column, "" if kind == "string" else False if kind == "bool" else 0)
            out[name] = (filled.to_numpy(zero_copy_only=False), known)
        return out

    def check_times(self, column: str) -> list[str]:
        return self._check(column, lambda kind: pa.types.is_integer(kind) or pa.types.is_timestamp(kind), "epoch ms")

    def check_key(self, column: str, key: KeyColumn, whose: str) -> list[str]:
        fits = _is_text if key.type == "string" else pa.types.is_integer
        return self._check(column, fits, f"{key.type}, key '{key.name}' of {whose}")

    def check_requests(self, view: FeatureView) -> list[str]:
        wrong = []
        for name in sorted(_read_requests(view)):
            kind = view.request[name].removesuffix("?")
            fits = {
                "int": pa.types.is_integer,
                "double": lambda t: pa.types.is_floating(t) or pa.types.is_integer(t),
                "bool": pa.types.is_boolean,
                "string": _is_text,
            }[kind]
            wrong += self._check(name, fits, f"{kind}, request field of view {view.name}")
        return wrong

    def _check(self, column: str, fits: Any, wanted: str) -> list[str]:
        if column not in self.names:
            hint = did_you_mean(column, self.names)
            return [f"no column '{column}' ({wanted})" + (f"; did you mean '{hint}'?" if hint else "")]
        kind = self.schema.field(column).type
        if fits(kind) or pa.types.is_null(kind):
            return []
        return [f"column '{column}' is {kind}, wanted {wanted}"]


def frame_of(source: pa.Table | Path | str) -> Frame:
    """A frame. A CSV file is read whole. Raises: HistoryError for a file that is not there or cannot be read."""
    if isinstance(source, pa.Table):
        return Frame("the frame", source.schema, source.num_rows, table=source)
    path = Path(source)
    try:
        if path.suffix == ".csv":
            table = pa_csv.read_csv(path)
            return Frame(str(path), table.schema, table.num_rows, table=table)
        file = pq.ParquetFile(path)
        return Frame(str(path), file.schema_arrow, file.metadata.num_rows, path=path)
    except FileNotFoundError:
        raise HistoryError(f"there is no {path}") from None
    except pa.ArrowInvalid as error:
        raise HistoryError(f"{path}: {error}") from None


def _read_requests(view: FeatureView) -> set[str]:
    return {name for spec in view.features if spec.expr is not None for name in spec.expr.names if name in view.request}


def _numbered(chunks: Iterator[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
    first = 0
    for chunk in chunks:
        yield first, chunk
        first += chunk.num_rows


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


Requests = Mapping[str, tuple[NDArray[Any], NDArray[np.bool_]]]

"""What was served comes back from a Decision's bytes, value for value and status for status."""

from __future__ import annotations

import dataclasses
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.records import ServedFeatures
from features.rows import DTYPES, FeatureBatch, Status, empty_column, from_served, has_value, to_served

VALUES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=5),
}


@st.composite
def batches(draw: st.DrawFn) -> FeatureBatch:
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=5))
    num_rows = draw(st.integers(0, 6))
    names = tuple(f"f{i}" for i in range(len(types)))
    statuses = np.array(
        draw(
            st.lists(
                st.lists(st.integers(0, 4), min_size=len(types), max_size=len(types)),
                min_size=num_rows,
                max_size=num_rows,
            )
        ),
        dtype=np.uint8,
    ).reshape(num_rows, len(types))
    columns, valid = {}, {}
    for f, (name, type_name) in enumerate(zip(names, types, strict=True)):
        valid[name] = has_value(statuses[:, f])
        column = empty_column(type_name, num_rows)
        for row in np.flatnonzero(valid[name]):
            column[row] = draw(VALUES[type_name])
        columns[name] = column
    return FeatureBatch(
        view="v", generation=3, applied_through_ms=draw(st.none() | st.integers(-5, 5)), names=names, types=tuple(types),
        columns=columns, valid=valid, statuses=statuses, ages_ms=np.full(statuses.shape, -1, dtype=np.int64),
    )  # fmt: skip


@given(batches())
def test_a_batch_survives_the_bytes_of_a_decision(batch: FeatureBatch) -> None:
    wire = msgspec.json.encode(to_served(batch))
    back = from_served(msgspec.json.decode(wire, type=ServedFeatures))
    assert (back.view, back.generation, back.applied_through_ms) == (
        batch.view,
        batch.generation,
        batch.applied_through_ms,
    )
    assert back.names == batch.names and back.types == batch.types
    assert np.array_equal(back.statuses, batch.statuses)
    for name, type_name in zip(batch.names, batch.types, strict=True):
        assert back.columns[name].dtype == DTYPES[type_name]
        assert np.array_equal(back.valid[name], batch.valid[name])
        assert back.columns[name].tolist() == batch.columns[name].tolist()
    assert [back.row(i) for i in range(back.num_rows)] == [batch.row(i) for i in range(batch.num_rows)]


def slow_cells(batch: FeatureBatch) -> bytes:
    """The cells of a batch, one after the other: what `to_served` means by `values`."""
    out, strings = b"", []
    for name, type_name in zip(batch.names, batch.types, strict=True):
        for row in range(batch.num_rows):
            value = batch.row(row)[name]
            if type_name == "string" and value is not None:
                strings += [value] if value not in strings else []
                value = strings.index(value)
            out += struct.pack("<d" if type_name == "double" else "<q", 0 if value is None else value)
    return out


@given(batches(), st.booleans())
def test_cells_are_those_of_the_slow_form_also_behind_values_that_do_not_count(batch: FeatureBatch, junk: bool) -> None:
    expected = slow_cells(batch)
    if junk:
        for name, type_name in zip(batch.names, batch.types, strict=True):
            batch.columns[name][~batch.valid[name]] = "junk" if type_name == "string" else 1
    assert to_served(batch).values == expected
    if "string" not in batch.types:
        cells_FR = np.frombuffer(expected, dtype="<i8").reshape(len(batch.names), batch.num_rows)
        assert to_served(dataclasses.replace(batch, cells_FR=cells_FR)).values == expected


def test_negative_zero_and_infinities_keep_their_bits() -> None:
    column = np.array([-0.0, np.inf, -np.inf, 5e-324])
    batch = FeatureBatch(
        view="v", generation=1, applied_through_ms=0, names=("x",), types=("double",), columns={"x": column},
        valid={"x": np.ones(4, dtype=bool)}, statuses=np.zeros((4, 1), np.uint8), ages_ms=np.zeros((4, 1), np.int64),
    )  # fmt: skip
    assert from_served(to_served(batch)).columns["x"].tobytes() == column.tobytes()


def test_bytes_that_do_not_fit_are_refused() -> None:
    served = ServedFeatures(view="v", generation=1, applied_through_ms=None, rows=2, names=["a"], types=["int"], values=b"\0" * 8, statuses=b"\0\0")  # fmt: skip
    with pytest.raises(ValueError, match="do not fit 2 rows x 1 features"):
        from_served(served)


def test_only_present_and_default_carry_values() -> None:
    assert has_value(np.arange(5, dtype=np.uint8)).tolist() == [s in (Status.PRESENT, Status.DEFAULT) for s in Status]

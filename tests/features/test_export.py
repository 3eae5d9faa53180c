"""A view over a stretch of time: every known key at every step, with the values of a join."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from features.export import export
from features.history import history
from features.parquet import HistoryError
from tests.features.test_batch_history import MINUTE, T, catalogue, row, write
from tests.features.test_history import trip, written


def test_each_step_has_the_keys_that_were_known_before_it(tmp_path: Path) -> None:
    declared = written([trip("a", 7, 0), trip("b", 9, 60_000, ingest_ms=90_000), trip("c", None, 0)], tmp_path / "in")
    done: list[tuple[int, int]] = []
    rows = export(
        declared, "demand", tmp_path / "out.parquet", from_ms=0, to_ms=180_000, every_ms=30_000,
        features=["trips_15m", "last_fare"], progress=lambda at, total: done.append((at, total)),
    )  # fmt: skip
    got = pq.read_table(tmp_path / "out.parquet")
    assert rows == got.num_rows and done[-1] == (rows, rows)
    pairs = list(zip(got.column("as_of_ms").to_pylist(), got.column("zone").to_pylist(), strict=True))
    assert pairs == [(30_000, 7), (60_000, 7), (90_000, 7), (120_000, 7), (120_000, 9), (150_000, 7), (150_000, 9)]
    frame = got.select(["zone", "as_of_ms"])
    assert got.equals(history(declared, frame, ["demand.trips_15m", "demand.last_fare"]))


def test_rows_of_a_batch_view_start_when_they_are_in_force(tmp_path: Path) -> None:
    declared = catalogue(write([row(1, T, T + 5, 1.0), row(2, T + 10, T, 2.0)], tmp_path / "a.parquet"))
    export(declared, "cars", tmp_path / "out.parquet", from_ms=T, to_ms=T + 15, every_ms=5, features=["stars"])
    got = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(r["as_of_ms"] - T, r["city"], r["car"], r["cars.stars"]) for r in got] == [
        (10, "x", 1, 1.0),
        (10, "x", 2, 2.0),
    ]


def test_a_stretch_without_steps_is_refused(tmp_path: Path) -> None:
    declared = written([trip("a", 7, 0)], tmp_path / "in")
    with pytest.raises(HistoryError, match=r"no step lies in \[5, 5\)"):
        export(declared, "demand", tmp_path / "out.parquet", from_ms=5, to_ms=5, every_ms=MINUTE)
    assert not (tmp_path / "out.parquet").exists()
    assert export(declared, "demand", tmp_path / "out.parquet", from_ms=-10, to_ms=-5, every_ms=1) == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 0

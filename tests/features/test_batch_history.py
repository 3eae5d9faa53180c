"""Batch rows as of a time: what was known, what had ended, and which of many copies counts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features.history import history
from features.parquet import HistoryError
from features.spec import BatchSource, Catalogue, Entity, FeatureSpec, FeatureView, KeyColumn

MINUTE = 60_000
T = 1_700_000_000_000


def catalogue(pattern: str, **changes: Any) -> Catalogue:
    """One view with a column of every type, of an entity with two key columns, one of 32 bits."""
    entity = Entity(name="car", keys=(KeyColumn(name="city", type="string"), KeyColumn(name="car", type="int32")))
    schema = {
        "town": "string", "car": "int", "rating": "double?", "seats": "int?", "name": "string?", "ok": "bool?",
    }  # fmt: skip
    source = BatchSource(
        name="cars", path=pattern, schema=schema, **{"event_time": "at", "ingest_time": "created", **changes}
    )
    features = tuple(
        FeatureSpec(name=name, column=column, type=kind, nullable=True, default=default)
        for name, column, kind, default in (
            ("stars", "rating", "double", None), ("seats", "seats", "int", -1), ("name", "name", "string", None),
            ("ok", "ok", "bool", None),
        )
    )  # fmt: skip
    view = FeatureView(
        name="cars", entity=entity, source=source, key_fields=("town", "car"), max_age_ms=60 * MINUTE, features=features
    )
    return Catalogue(entities={"car": entity}, sources={"cars": source}, views={"cars": view})


def row(car: int | None, at: int, created: int, rating: float | None, **more: Any) -> dict[str, Any]:
    return {
        "town": "x", "car": car, "at": at, "created": created, "until": None, "rating": rating, "seats": 4, "name": "é",
        "ok": True, **more,
    }  # fmt: skip


def write(rows: list[dict[str, Any]], path: Path) -> str:
    stamp, types = pa.timestamp("us", "UTC"), {"town": pa.string(), "car": pa.int64(), "rating": pa.float64()}
    names = {
        "at": stamp,
        "created": stamp,
        "until": stamp,
        **types,
        "seats": pa.int32(),
        "name": pa.string(),
        "ok": pa.bool_(),
    }
    columns = {}
    for name, kind in names.items():
        values = [r[name] for r in rows]
        if kind == stamp:
            values = [None if value is None else 1000 * value for value in values]
        columns[name] = pa.array(values, kind)
    pq.write_table(pa.table(columns), path)
    return str(path)


def asked(cars: list[int | None], times: list[int]) -> pa.Table:
    return pa.table({"city": ["x"] * len(cars), "car": pa.array(cars, pa.int64()), "as_of_ms": times})


def stars(declared: Catalogue, cars: list[int | None], times: list[int], **options: Any) -> list[float | None]:
    got: list[float | None] = history(declared, asked(cars, times), ["cars.stars"], **options).column(3).to_pylist()
    return got


def test_a_value_never_shows_before_it_was_created(tmp_path: Path) -> None:
    """feast#6615: 10 at t-10 m, known a minute later; 20 at t-1 m, known half an hour after t; 30 at t, known after t."""
    rows = [
        row(1, T - 10 * MINUTE, T - 9 * MINUTE, 10.0),
        row(1, T - MINUTE, T + 30 * MINUTE, 20.0),
        row(1, T, T + MINUTE, 30.0),
    ]
    declared = catalogue(write(rows, tmp_path / "a.parquet"))
    assert stars(declared, [1, 1], [T, T - 2 * MINUTE]) == [10.0, 10.0]
    assert stars(declared, [1, 1], [T, T - 2 * MINUTE], event_time_only=True) == [30.0, 10.0]
    assert stars(declared, [1] * 4, [T + MINUTE, T + MINUTE + 1, T + 31 * MINUTE, T - 9 * MINUTE]) == [10, 30, 30, None]


def test_the_copy_that_was_created_last_counts(tmp_path: Path) -> None:
    """feast#3360: four copies of one key and event time."""
    rows = [row(1, T, T + created, float(created)) for created in (3, 9, 1, 5)]
    declared = catalogue(write(rows, tmp_path / "a.parquet"))
    assert stars(declared, [1] * 4, [T + 2, T + 4, T + 6, T + 20]) == [1.0, 3.0, 5.0, 9.0]
    assert stars(declared, [1], [T], event_time_only=True) == [9.0]


def test_a_row_that_has_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    rows = [row(1, T, T, 1.0), row(1, T + 10, T + 10, 2.0, until=T + 20), row(1, T + 30, T + 30, 3.0)]
    declared = catalogue(write(rows, tmp_path / "a.parquet"), valid_to="until", ingest_time=None)
    times = [T - 1, T, T + 10, T + 19, T + 20, T + 29, T + 30]
    assert stars(declared, [1] * 7, times) == [None, 1.0, 2.0, 2.0, None, None, 3.0]


def test_values_of_every_type_nulls_ages_and_defaults(tmp_path: Path) -> None:
    rows = [
        row(1, T, T, None, seats=None, name=None, ok=None),
        row(2, T, T, float("nan")),
        row(3, T, T, 2.5, seats=2, ok=False),
    ]
    declared = catalogue(write(rows, tmp_path / "a.parquet"))
    old, late = T + 60 * MINUTE, T + 60 * MINUTE + 1
    got = history(declared, asked([1, 2, 3, 3, 4, None], [old, old, old, late, old, old]), ["cars.*"], statuses=True)
    assert got.column("cars.stars").to_pylist() == [None, None, 2.5, None, None, None]
    assert got.column("cars.seats").to_pylist() == [-1, 4, 2, -1, -1, -1]
    assert got.column("cars.name").to_pylist() == [None, "é", "é", None, None, None]
    assert got.column("cars.ok").to_pylist() == [None, True, False, None, None, None]
    assert got.column("cars.stars__status").to_pylist() == ["null", "null", "present", "stale", "missing", "missing"]
    assert got.column("cars.seats__status").to_pylist() == [
        "default",
        "present",
        "present",
        "default",
        "default",
        "default",
    ]


def test_a_key_beyond_32_bits_is_no_key(tmp_path: Path) -> None:
    declared = catalogue(write([row(2**31, T, T, 1.0), row(-(2**31), T, T, 2.0)], tmp_path / "a.parquet"))
    assert stars(declared, [2**31, -(2**31), 2**40], [T + 1] * 3) == [None, 2.0, None]


@pytest.mark.parametrize("seed", range(6))
def test_random_rows_equal_the_slow_answer(seed: int, tmp_path: Path) -> None:
    """The latest by (event time, created) of the rows with event time <= t and created < t, one by one."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    rows = [
        row(rng.choice([1, 2, 3, None]), T + rng.randrange(30), T + rng.randrange(40), float(i), until=rng.choice([None, None, T + rng.randrange(50)]))
        for i in range(80)
    ]  # fmt: skip
    known_once = {(r["car"], r["at"], r["created"]): r for r in reversed(rows)}  # the first copy in the file stays
    cars, times = [rng.choice([1, 2, 3, 4]) for _ in range(60)], [T + rng.randrange(-2, 45) for _ in range(60)]
    write(rows[:50], tmp_path / "1.parquet")
    write(rows[50:], tmp_path / "2.parquet")
    for event_time_only in (False, True):
        declared = catalogue(str(tmp_path / "*.parquet"), valid_to="until")
        got = stars(declared, list(cars), times, event_time_only=event_time_only)
        for car, t, value in zip(cars, times, got, strict=True):
            known = [
                r for r in known_once.values() if r["car"] == car and r["at"] <= t and (event_time_only or r["created"] < t)
            ]  # fmt: skip
            latest = max(known, key=lambda r: (r["at"], r["created"]), default=None)
            ended = latest is not None and latest["until"] is not None and latest["until"] <= t
            assert value == (None if latest is None or ended else latest["rating"]), (car, t, event_time_only)


def test_a_column_of_another_type_is_named_with_its_file(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"town": ["x"], "car": [1], "at": [T], "created": [T], "rating": ["5"]}), tmp_path / "a.parquet"
    )
    declared = catalogue(str(tmp_path / "a.parquet"))
    with pytest.raises(HistoryError, match=r"column 'rating' is declared double\?, but .*a\.parquet holds VARCHAR"):
        stars(declared, [1], [T])
    view = replace(declared.views["cars"], source=replace(declared.sources["cars"], path=str(tmp_path / "b*.parquet")))
    with pytest.raises(HistoryError, match="source cars: no file matches"):
        stars(replace(declared, views={"cars": view}), [1], [T])

"""Batch rows in the store are the ones that a history of the same time has."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import redis

from features.history import history
from features.materialize import materialize
from features.packing import GroupKeys, KeyEncoder
from features.redis_rows import RowWriter
from features.registry import local_registry
from features.row_packing import unpack_rows
from tests.features.test_batch_history import T, asked, catalogue, row, write


def test_rows_in_force_are_written_once_and_equal_the_history(tmp_path: Path, redis_url: str) -> None:
    rng = random.Random(1)
    rows = [
        row(rng.randrange(12), T + rng.randrange(30), T + rng.randrange(40), float(i), until=rng.choice([None, T + rng.randrange(60)]))
        for i in range(150)
    ]  # fmt: skip
    rows += [row(12, T + 30_000, T, 1.0), row(13, T, T, None, name=None, seats=None)]  # made ahead of its time; nulls
    declared = catalogue(write(rows, tmp_path / "a.parquet"), valid_to="until")
    registry = local_registry(declared, f"test-{uuid.uuid4().hex[:8]}")
    (group,) = declared.row_groups()
    writer, client = RowWriter(redis_url, registry.project), redis.Redis.from_url(redis_url)
    suffix, encoder = GroupKeys(registry.project, group.name, 1).suffix, KeyEncoder(group.entity)
    cars = list(range(14))
    for as_of_ms in (T + 5, T + 20, T + 30_000, T + 30_001):
        report = materialize(writer, declared, group, 1, as_of_ms, batch_rows=5)
        wanted = history(declared, asked(list(cars), [as_of_ms] * 14), ["cars.stars", "cars.name"], statuses=True)
        there = [status != "missing" for status in wanted.column("cars.stars__status").to_pylist()]
        assert report.rows == sum(there)
        columns, valid, _ = unpack_rows(group, client.mget([encoder.encode(("x", car)) + suffix for car in cars]))
        for place, name in enumerate(field.name for field in group.fields):
            if name not in ("rating", "name"):
                continue
            column = wanted.column({"rating": "cars.stars", "name": "cars.name"}[name]).to_pylist()
            for car in cars:
                if there[car]:
                    got = columns[place][car] if valid[place][car] else None
                    assert got == column[car], (as_of_ms, car, name)
        assert materialize(writer, declared, group, 1, as_of_ms).rows_written == 0
    assert there[12]
    writer.close()
    client.close()

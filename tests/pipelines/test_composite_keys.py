"""Keys of several columns from the job's SQL to the reader: no column is lost, mixed up or taken for another."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pandas as pd
import pytest

from features.loader import load_catalogue
from features.read_plan import compile_read_plan
from features.redis_store import FeatureReader
from features.registry import Registry, local_registry
from features.rows import Status
from pipelines.sink import WriteLast, WriteTiles

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "sql" / "composite"
HOP_MS = 300_000


@pytest.fixture
def registry() -> Registry:
    return local_registry(load_catalogue(FOLDER), f"composite-{uuid.uuid4().hex[:8]}")


def test_the_sink_writes_under_the_whole_key_and_the_reader_finds_it(redis_url: str, registry: Registry) -> None:
    (tiles,), (last,) = registry.catalogue.tile_groups(), registry.catalogue.last_groups()
    now_ms, keys = int(time.time() * 1000), ([7, 7, -8], ["pool", "black", "pool"])
    step = WriteTiles(tiles, redis_url, 1, registry.project)
    step.open(None)
    columns = [*keys, [100, 100, 100], [2, 3, 4], [100 * HOP_MS + 5] * 3, [now_ms] * 3, [1, 2, 3]]
    assert step.eval(*map(pd.Series, columns)).tolist() == [1, 1, 1]
    newest = WriteLast(last, redis_url, 1, registry.project)
    newest.open(None)
    columns = [*keys, [100 * HOP_MS] * 3, ["a", "b", "c"], [0] * 3, [0, 1, 2], [100 * HOP_MS + 5] * 3, [now_ms] * 3]
    assert newest.eval(*map(pd.Series, [*columns, [500, 900, None]])).tolist() == [1, 1, 0]

    plan = compile_read_plan(registry, {"here": "zone_product"})
    reader = FeatureReader(redis_url, registry.project)
    asked = [(7, "black"), (-8, "pool"), (7, "pool"), (8, "pool"), (-8, "black")]
    batch = reader.read(plan, {"here": asked}, 100 * HOP_MS + 1_000)["here"]
    reader.close()
    assert batch.columns["completed_1h"].tolist() == [2, 3, 1, 0, 0]
    assert [row["last_fare"] for row in map(batch.row, range(5))] == [900, None, 500, None, None]
    assert batch.statuses[:, 1].tolist() == [
        Status.PRESENT, Status.MISSING, Status.PRESENT, Status.MISSING, Status.MISSING
    ]  # fmt: skip

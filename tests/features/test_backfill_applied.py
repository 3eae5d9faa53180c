"""The backfill of a staged version: only its new groups, up to their seam, so that the switch no longer waits for it."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features.backfill_applied import backfill_registry
from features.history import history
from features.loader import SHIPPED
from features.parquet import HistoryError
from features.read_plan import compile_read_plan
from features.redis_store import FeatureReader
from features.registry import apply_catalogue, load_registry
from features.rollout import readiness
from features.rows import has_value
from features.spec import Catalogue
from tests.features.history_cases import table_of, with_history
from tests.features.test_staging import HOUR_MS, NEW, OLD, QUARTER, beat, folder_with

QUARTER_MS, THROUGH_MS = 15 * 60_000, 100 * HOUR_MS


def events_of(source: Any, until_ms: int) -> list[dict[str, Any]]:
    """An offer, an answer and a trip of each of three drivers, hour after hour."""
    rows = []
    for at in range(until_ms - 30 * HOUR_MS, until_ms, 20 * 60_000):
        for number, kind in enumerate(("offered", "accepted", "completed")):
            driver = f"d-{at // HOUR_MS % 3}"
            row = {
                name: None if text.endswith("?") else "-" if text == "string" else 0
                for name, text in source.schema.items()
            }
            rows.append({
                **row, "event_id": f"{at}:{kind}", "event_type": kind, "driver_id": driver, "pickup_zone": 7, "fare_cents": 1000,
                "distance_m": 500, "event_time_ms": at + number * 1000, "ingest_time_ms": at + number * 1000 + 500,
            })  # fmt: skip
    return rows


def test_only_the_new_groups_are_filled_and_the_switch_stops_waiting(tmp_path: Path, redis_url: str) -> None:
    project, edited = f"back-{uuid.uuid4().hex[:8]}", folder_with(tmp_path / "edited", OLD, NEW)
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project)
    with pytest.raises(HistoryError, match=f"nothing in project '{project}' has a seam"):
        backfill_registry(redis_url, project)
    beat(redis_url, first.registry, THROUGH_MS)
    staged = apply_catalogue(edited, redis_url, actor="a", reason="r", project=project).registry.staged
    assert staged is not None
    source, seam_ms = staged.catalogue.streams["trip_events"], THROUGH_MS - QUARTER_MS
    events = events_of(source, THROUGH_MS + HOUR_MS)

    pq.write_table(table_of(source, events), tmp_path / "events.parquet")
    shutil.rmtree(edited)

    def prepare(catalogue: Catalogue) -> Catalogue:
        return with_history(catalogue, trip_events="events.parquet")

    assert any("not backfilled" in problem for ready in readiness(redis_url, project) for problem in ready.problems)
    with pytest.raises(KeyError, match="no view 'nothing' is applied"):
        backfill_registry(redis_url, project, views=["nothing"], prepare=prepare, folder=tmp_path)
    (report,) = backfill_registry(redis_url, project, prepare=prepare, folder=tmp_path)
    assert (report.group, report.generation, report.seam_ms) == (QUARTER, 2, seam_ms)
    (ready,) = readiness(redis_url, project)
    assert ready.backfilled_through_ms == seam_ms and not any("backfill" in problem for problem in ready.problems)
    assert load_registry(redis_url, project).document.next is not None

    # With nothing above the seam, the new generation has at the seam what the history of that moment has.
    beat(redis_url, staged, seam_ms - 1, names={QUARTER})
    plan, reader = compile_read_plan(staged, {"d": "driver_activity"}), FeatureReader(redis_url, project)
    drivers = ["d-0", "d-1", "d-2"]
    batch = reader.read(plan, {"d": drivers}, seam_ms)["d"]

    names = ["offers_24h", "accepts_24h", "fare_24h", "avg_trip_m_24h", "max_fare_24h"]
    frame = pa.table({"driver_id": drivers, "as_of_ms": [seam_ms] * 3})
    wanted = history(prepare(staged.catalogue), frame, [f"driver_activity.{name}" for name in names], folder=tmp_path)
    assert has_value(batch.statuses[:, batch.names.index("accepts_24h")]).all()
    for row in range(3):
        for name in names:
            assert batch.row(row)[name] == wanted.column(f"driver_activity.{name}")[row].as_py(), (drivers[row], name)
    assert wanted.column("driver_activity.accepts_24h").to_pylist() == [48] * 3
    reader.close()

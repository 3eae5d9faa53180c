"""The backfill of a generation below its seam: with the stream above it, the values of one that was fed from the start."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from features.aggregate import fate_of, replay, write_last, write_tiles
from features.backfill import backfill_group, backfill_groups
from features.parquet import OFFSET, PARTITION, HistoryError
from features.read_plan import compile_read_plan
from features.redis_store import FeatureReader, TileWriter, group_stats
from features.registry import Registry, local_registry
from features.spec import Catalogue, TileGroup
from features.store import InMemoryStore
from features.window import tile_of
from tests.features import aggregate_cases
from tests.features.history_cases import table_of, with_history, write_events

MINUTE = 60_000
Event = dict[str, Any]


def used_of(catalogue: Catalogue, events: list[Event]) -> list[Event]:
    first_ms: dict[str, int] = {}
    source = catalogue.streams["things"]
    return [event for event in events if fate_of(source, event, first_ms) == "used"]


def stream_from(writer: Any, registry: Registry, seam_ms: int, used: list[Event]) -> None:
    """What job v2 writes: tiles and last values of the events from the seam on, twice, the second time the whole."""
    mine = [event for event in used if event["event_time_ms"] >= seam_ms and event["thing"] is not None]
    for part in (mine[: len(mine) // 2], mine):
        for group, generation in registry.groups():
            if isinstance(group, TileGroup):
                write_tiles(writer, group, generation, part, max((e["ingest_time_ms"] for e in part), default=seam_ms))
            elif part:
                write_last(writer, group, generation, part, max(e["ingest_time_ms"] for e in part))


def counted(registry: Registry, used: list[Event], seam_ms: int) -> dict[str, int]:
    """How many events each tile group has to have counted: those with a key in tiles that a window can still reach."""
    out = {}
    for group in registry.catalogue.tile_groups():
        oldest = (seam_ms // group.hop_ms - group.retain_tiles) * group.hop_ms
        out[group.name] = sum(e["thing"] is not None and e["event_time_ms"] >= oldest for e in used)
    return out


@pytest.mark.parametrize("seed", [1, 2])
def test_with_the_stream_above_the_seam_nothing_is_twice_and_nothing_missing(
    seed: int, tmp_path: Path, redis_url: str
) -> None:
    print(f"seed {seed}")
    rng, declared = random.Random(seed), aggregate_cases.catalogue()
    events = aggregate_cases.random_stream(rng, 220)
    declared = with_history(
        declared, things=write_events(declared.streams["things"], events, tmp_path, files=3, rng=rng)
    )
    registry, used = local_registry(declared, f"test-{uuid.uuid4().hex[:8]}"), used_of(declared, events)
    seam_ms, end_ms = tile_of(rng.randrange(-MINUTE, MINUTE), MINUTE) * MINUTE, events[-1]["ingest_time_ms"] + 1
    writer, reader = TileWriter(redis_url, registry.project), FeatureReader(redis_url, registry.project)
    stream_first = seed % 2 == 0
    if stream_first:
        stream_from(writer, registry, seam_ms, used)
    stopped = _stop_after(rng.randrange(3, 9))
    with pytest.raises(InterruptedError):
        backfill_groups(writer, registry.groups(), seam_ms, batch_rows=7, progress=stopped)
    reports = backfill_groups(writer, registry.groups(), seam_ms, batch_rows=rng.choice([5, 10_000]))
    if not stream_first:
        stream_from(writer, registry, seam_ms, used)
    memory, plan = InMemoryStore(registry.project), compile_read_plan(registry, {"r": "things"})
    replay(memory, declared, registry.generations(), declared.streams["things"], events)
    asked = [*aggregate_cases.KEYS, "never"]
    for as_of_ms in (end_ms, max(seam_ms, end_ms - MINUTE), end_ms + 3 * MINUTE):
        got, want = reader.read(plan, {"r": asked}, as_of_ms)["r"], memory.read(plan, {"r": asked}, as_of_ms)["r"]
        for row in range(len(asked)):
            assert got.row(row) == want.row(row), (seed, as_of_ms, asked[row])
        assert np.array_equal(got.statuses, want.statuses)
    expected = counted(registry, used, seam_ms)
    for group, generation in registry.groups():
        if isinstance(group, TileGroup):
            stats = group_stats(redis_url, [(group, generation)], registry.project)[group.name]
            assert (stats.used, stats.forgotten) == (expected[group.name], 0), group.name
    again = backfill_groups(writer, registry.groups(), seam_ms)
    assert sum(report.rows_written for report in again) == 0
    assert [report.fates for report in again] == [report.fates for report in reports]
    assert sum(reports[0].fates.values()) == len(events)
    below = [event for event in used if event["event_time_ms"] < seam_ms]
    assert reports[0].fates["used"] == len(below) and reports[0].fates["after_seam"] == len(used) - len(below)
    writer.close()
    reader.close()


def test_a_history_that_ends_too_early_is_refused_until_the_gap_is_accepted(tmp_path: Path, redis_url: str) -> None:
    declared = aggregate_cases.catalogue()
    source = declared.streams["things"]
    event = {
        "event_id": "a",
        "thing": "a",
        "event_time_ms": 0,
        "ingest_time_ms": 179_999,
        "i": 1,
        "d": 1.0,
        "ok": True,
        "s": "x",
    }
    event["ingest_time_ms"] = 60_000 + source.disorder_ms - 1
    event["event_time_ms"] = event["ingest_time_ms"] - source.disorder_ms
    declared = with_history(declared, things=write_events(source, [event], tmp_path, files=1, rng=random.Random(0)))
    registry = local_registry(declared, f"test-{uuid.uuid4().hex[:8]}")
    group = next(g for g in declared.tile_groups() if g.hop_ms == MINUTE and g.buckets is None)
    writer = TileWriter(redis_url, registry.project)
    with pytest.raises(
        HistoryError, match=r"ends at ingest time 179999, but records .* arrive until 180000.*--accept-gap"
    ):
        backfill_group(writer, group, 1, MINUTE)
    assert group_stats(redis_url, [(group, 1)], registry.project)[group.name].used == 0
    report = backfill_group(writer, group, 1, MINUTE, accept_gap=True)
    assert (report.rows, report.rows_written, report.records) == (1, 1, 1)
    assert group_stats(redis_url, [(group, 1)], registry.project)[group.name].used == 1
    writer.close()


def test_last_values_count_every_event_where_the_history_has_offsets(tmp_path: Path, redis_url: str) -> None:
    """The stream marks offsets from the seam on, the backfill those below; an offset that both mark counts once."""
    rng, declared = random.Random(3), aggregate_cases.catalogue()
    source = declared.streams["things"]
    events = aggregate_cases.random_stream(rng, 80)
    table = table_of(source, events)
    table = table.append_column(PARTITION, [[i % 2 for i in range(len(events))]])
    table = table.append_column(OFFSET, [[i // 2 for i in range(len(events))]])
    pq.write_table(table, tmp_path / "block.parquet")
    declared = with_history(declared, things=str(tmp_path / "*.parquet"))
    registry, used = local_registry(declared, f"test-{uuid.uuid4().hex[:8]}"), used_of(declared, events)
    group, seam_ms = declared.last_groups()[0], 0
    writer = TileWriter(redis_url, registry.project)
    for _ in range(2):
        report = backfill_group(writer, group, 1, seam_ms, batch_rows=3)
    below = [event for event in used if event["event_time_ms"] < seam_ms and event["thing"] is not None]
    assert report.records == len(below) > 10
    stats = group_stats(redis_url, [(group, 1)], registry.project)[group.name]
    assert stats.used == len(below) and stats.applied_through_ms is not None and stats.applied_through_ms < seam_ms
    writer.close()


def test_a_group_without_files_is_refused(tmp_path: Path, redis_url: str) -> None:
    declared = aggregate_cases.catalogue()
    group = next(g for g in declared.tile_groups() if g.hop_ms == MINUTE and g.buckets is None)
    source = replace(group.source, history=str(tmp_path / "none-*.parquet"))
    writer = TileWriter(redis_url, f"test-{uuid.uuid4().hex[:8]}")
    with pytest.raises(HistoryError, match="source things: no file matches"):
        backfill_group(writer, replace(group, source=source), 1, 0)
    writer.close()


def _stop_after(calls: int) -> Any:
    left = [calls]

    def progress(group: str, done: int, total: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise InterruptedError(f"stopped in {group} at {done} of {total}")

    return progress

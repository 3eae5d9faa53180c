"""The Python steps of the feature job as plain functions, and its sink against a real Redis."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from pathlib import Path

import pandas as pd
import pytest
import redis

from features.loader import SHIPPED, load_catalogue
from features.read_plan import compile_read_plan
from features.records import DeadLetter, LedgerEntry, decode
from features.redis_store import FeatureReader, group_stats
from features.registry import Registry, apply_catalogue, local_registry
from features.spec import LastGroup, TileGroup
from features.store import GenerationLost
from infra.local.process import stop, wait_ready
from infra.local.redis import redis_ready, start_redis
from infra.local.stack import free_ports
from pipelines.dead_letter import count_reasons, dead_letter_bytes, fold, ledger_bytes
from pipelines.jobs.options import BATCH_ROWS
from pipelines.sink import DeadLetters, DecodeRecords, LedgerEntries, WriteLast, WriteTiles, decode_columns
from pipelines.sql import DecodeFunction

GOOD = {
    "event_id": "e-1",
    "event_type": "completed",
    "order_id": "o-1",
    "rider_id": "r-1",
    "city": "nyc",
    "product": "express",
    "pickup_zone": 7,
    "event_time_ms": 1_000,
    "ingest_time_ms": 1_500,
    "schema_version": 1,
}
NAMES = ("event_id", "driver_id", "pickup_zone", "event_time_ms", "fare_cents")


def raw(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


BAD = [
    (None, "the message has no value", "$"),
    (b"", "not JSON", "$"),
    (b"\xff\xfe{", "not JSON", "$"),
    (b"[]", "Expected `object`, got `array`", "$"),
    (b"{}", "missing required field", "$.event_id"),
    (raw(pickup_zone="7"), "Expected `int`, got `str`", "$.pickup_zone"),
    (raw(fare_cents=-1), "Expected `int` >= 0", "$.fare_cents"),
    (raw(event_type="teleported"), "Invalid enum value 'teleported'", "$.event_type"),
    (raw(event_type="offered"), "`offer_id` is required", "$.offer_id"),
    (raw(schema_version=99), "schema_version 99 is not readable", "$.schema_version"),
]


def test_good_record_becomes_its_columns() -> None:
    columns = decode_columns([raw(driver_id="d-1", fare_cents=2**53 - 1)], "trip_events", NAMES)
    assert columns == {
        "reason": [None],
        "path": [None],
        "event_id": ["e-1"],
        "driver_id": ["d-1"],
        "pickup_zone": [7],
        "event_time_ms": [1_000],
        "fare_cents": [2**53 - 1],
    }


@pytest.mark.parametrize(("message", "reason", "path"), BAD, ids=[reason[:24] for _, reason, _ in BAD])
def test_bad_record_has_reason_and_path_and_leaves_its_neighbours_alone(
    message: bytes | None, reason: str, path: str
) -> None:
    columns = decode_columns([raw(), message, raw(event_id="e-2")], "trip_events", NAMES)
    assert columns["reason"][0] is None and columns["reason"][2] is None
    assert reason in columns["reason"][1]
    assert columns["path"] == [None, path, None]
    assert columns["event_id"] == ["e-1", None, "e-2"]
    assert columns["event_time_ms"] == [1_000, None, 1_000]


def test_empty_batch_decodes_to_empty_columns() -> None:
    assert decode_columns([], "trip_events", NAMES) == {name: [] for name in ("reason", "path", *NAMES)}


def test_decode_step_keeps_large_integers_beside_nulls() -> None:
    step = DecodeRecords(
        DecodeFunction(name="d", topic="trip_events", columns=(("event_id", "string"), ("fare_cents", "int")))
    )
    frame = step.eval(pd.Series([raw(fare_cents=2**53 - 1), b"?", raw()]))
    assert list(frame.columns) == ["reason", "path", "event_id", "fare_cents"]
    assert frame["fare_cents"].tolist() == [2**53 - 1, None, None]


def test_dead_letter_keeps_place_reason_and_bytes() -> None:
    step = DeadLetters()
    out = step.eval(
        "trip_events",
        pd.Series([0, 1]),
        pd.Series([10, 11]),
        pd.Series(["not JSON", "no value"]),
        pd.Series(["$", "$"]),
        pd.Series([b"\xff\x00", None]),
    )
    letters = [decode(value, DeadLetter) for value in out]
    assert [(x.topic, x.partition, x.offset, x.reason, x.path, x.raw) for x in letters] == [
        ("trip_events", 0, 10, "not JSON", "$", b"\xff\x00"),
        ("trip_events", 1, 11, "no value", "$", b""),
    ]


def test_ledger_entry_says_what_the_record_would_have_done() -> None:
    columns = [[3], [42], ["late"], [b"o-1"], ["e-1"], [700_000], ["driver.trip_events.60000[d-1]@5"]]
    (out,) = LedgerEntries().eval("trip_events", *(pd.Series(c, dtype=object) for c in columns))
    assert decode(out, LedgerEntry) == LedgerEntry(
        topic="trip_events",
        partition=3,
        offset=42,
        reason="late",
        key="o-1",
        event_id="e-1",
        lateness_ms=700_000,
        effect="driver.trip_events.60000[d-1]@5",
    )


def test_fold_counts_a_place_once_and_the_first_entry_stands() -> None:
    first = ledger_bytes("trip_events", 0, 1, "late", b"o-1", "e-1", 700_000, "")
    again = ledger_bytes("trip_events", 0, 1, "duplicate", b"o-1", "e-1", 700_000, "")
    other = ledger_bytes("trip_events", 1, 1, "future", None, "e-2", -90_000, "")
    unmatched = ledger_bytes("trip_events", 0, 9, "unmatched", b"o-9", "e-9", 0, "")
    folded = fold([first, again, other, unmatched, first], LedgerEntry)
    assert {place: entry.reason for place, entry in folded.items()} == {
        ("trip_events", 0, 1): "late",
        ("trip_events", 1, 1): "future",
    }
    dead = fold([dead_letter_bytes("trip_events", 0, 2, "not JSON", "$", b"?")], DeadLetter)
    assert count_reasons(dead.values(), folded.values()) == {"malformed": 1, "late": 1, "future": 1}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return local_registry(load_catalogue(SHIPPED), f"sink-{uuid.uuid4().hex[:8]}")


def zone_writer(registry: Registry, redis_url: str, life: str | None = None) -> WriteTiles:
    group = next(g for g in registry.catalogue.tile_groups() if g.name == "zone.trip_events.300000.pickup_zone")
    step = WriteTiles(group, redis_url, registry.generation_of(group.name), registry.project, life)
    step.open(None)
    return step


def tiles(step: WriteTiles, zone: int, tile: int, fares: list[int]) -> pd.Series:
    """One row as the SQL would give it: `fares` of completed trips in one tile."""
    values = {"count": len(fares), "sum": sum(fares), "min": min(fares), "max": max(fares)}
    assert isinstance(step.group, TileGroup)
    partials = [pd.Series([values[p.function]]) for p in step.group.partials]
    ints = [pd.Series([value]) for value in (zone, tile, len(fares), tile * 300_000 + 299_000, int(time.time() * 1000))]
    return step.eval(*ints, *partials)


def test_tiles_are_written_once_and_an_older_partial_is_ignored(redis_url: str, registry: Registry) -> None:
    step = zone_writer(registry, redis_url)
    assert tiles(step, 7, 100, [500, 900]).tolist() == [1]
    assert tiles(step, 7, 100, [500]).tolist() == [0]
    assert tiles(step, 7, 100, [500, 900]).tolist() == [0]
    stats = group_stats(redis_url, [(step.group, step.generation)], registry.project)[step.group.name]
    assert stats.used == 2
    plan = compile_read_plan(registry, {"zone": "zone_demand"})
    batch = FeatureReader(redis_url, registry.project).read(plan, {"zone": [7]}, 100 * 300_000 + 299_500)["zone"]
    assert (batch.columns["completed_1h"][0], batch.columns["avg_fare_1h"][0], batch.columns["min_fare_1h"][0]) == (
        2,
        700.0,
        500,
    )


def test_last_values_of_nulls_and_integers_are_written_exactly(redis_url: str, registry: Registry) -> None:
    group = next(g for g in registry.catalogue.last_groups() if g.name == "driver.driver_events.last")
    assert isinstance(group, LastGroup)
    step = WriteLast(group, redis_url, registry.generation_of(group.name), registry.project)
    step.open(None)
    by_text = {
        "status": pd.Series(["idle", None, "on_trip"], dtype=object),
        "zone": pd.Series([str(2**63 - 1), None, None], dtype=object),
    }
    step.eval(
        pd.Series(["d-1", "d-1", "d-1"], dtype=object),
        pd.Series([1_000, 3_000, 2_000]),
        pd.Series(["a", "b", "c"], dtype=object),
        pd.Series([0, 0, 0]),
        pd.Series([0, 1, 2]),
        pd.Series([1_100, 3_100, 2_100]),
        pd.Series([1_100, 3_100, 2_100]),
        *(by_text[f.of.source.text.strip()] for f in group.fields),
    )
    plan = compile_read_plan(registry, {"driver": "driver_state"})
    batch = FeatureReader(redis_url, registry.project).read(plan, {"driver": ["d-1"]}, 4_000)["driver"]
    assert (batch.columns["last_status"][0], batch.columns["last_zone"][0]) == ("on_trip", 2**63 - 1)
    assert group_stats(redis_url, [(group, step.generation)], registry.project)[group.name].used == 3


def test_heartbeat_stays_until_the_rest_of_a_full_batch_has_followed(redis_url: str, registry: Registry) -> None:
    """A mini-batch of 10,003 tiles is cut after BATCH_ROWS; the newest tile may be in the first part.

    |---- 10,000 rows, newest 900 ----|-- 3 rows --|
                       heartbeat stays             heartbeat 900
    """
    step = zone_writer(registry, redis_url)
    assert step._complete_through(pd.Series([100, 300])) == 300
    assert step._complete_through(pd.Series([900] + [400] * (BATCH_ROWS - 1))) == 300
    assert step._complete_through(pd.Series([500, 600, 700])) == 900


def test_each_thread_has_a_connection_of_its_own(redis_url: str, registry: Registry) -> None:
    step = zone_writer(registry, redis_url)
    own = step._connection()
    assert step._connection() is own
    others: list[object] = []
    thread = threading.Thread(target=lambda: others.append(step._connection()))
    thread.start()
    thread.join()
    assert others[0] is not own


def test_a_redis_that_lost_its_data_fails_the_batch_and_stays_as_empty_as_it_is(tmp_path: Path) -> None:
    """FLUSHALL under a running job: no half of a window is written, whoever writes, and the error says what to do.

    A restart of the job shows the life that it was submitted with, so it fails again, also after a fresh apply.
    """
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    running = start_redis(tmp_path, port, stack_id=f"test-flush-{os.getpid()}", log=tmp_path / "redis.log")
    try:
        wait_ready(running, lambda: redis_ready(port), deadline_s=30)
        applied = apply_catalogue(SHIPPED, url, actor="test", reason="test", project="flush").registry
        step = zone_writer(applied, url, applied.life_of("zone.trip_events.300000.pickup_zone"))
        assert tiles(step, 7, 100, [500, 900]).tolist() == [1]
        client = redis.Redis.from_url(url)
        client.flushall()
        with pytest.raises(GenerationLost, match=r"no longer holds generation 1 .*`hailstream features rebuild --all`"):
            tiles(step, 7, 100, [500, 900, 700])
        assert client.dbsize() == 0
        apply_catalogue(SHIPPED, url, actor="test", reason="again", project="flush")
        restarted = zone_writer(applied, url, step.place.life)
        with pytest.raises(GenerationLost):
            tiles(restarted, 7, 101, [500])
        assert not [key for key in client.scan_iter() if b"registry" not in key and not key.endswith(b":marker")]
    finally:
        stop(running)


def test_batch_waits_for_a_redis_that_is_down_and_is_not_lost(tmp_path: Path, registry: Registry) -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    step = zone_writer(registry, url)
    answers: list[list[int]] = []
    writing = threading.Thread(target=lambda: answers.append(tiles(step, 7, 100, [500]).tolist()), daemon=True)
    writing.start()
    writing.join(timeout=0.3)
    assert writing.is_alive() and not answers  # it waits, it does not give up and does not answer
    running = start_redis(tmp_path, port, stack_id=f"test-sink-{os.getpid()}", log=tmp_path / "redis.log")
    try:
        wait_ready(running, lambda: redis_ready(port), deadline_s=30)
        writing.join(timeout=20)
        assert answers == [[1]]
        assert group_stats(url, [(step.group, step.generation)], registry.project)[step.group.name].used == 1
    finally:
        stop(running)

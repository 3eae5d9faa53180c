"""Two writers of the same keys at once, an old one and a new one: on the server the new one wins, every single time.

    writer A:  the older of each pair ─┐
                                       ├─► one Redis, started together round by round
    writer B:  the newer of each pair ─┘

The public system that this is measured against inverted 223 of 300 such pairs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from features.loader import SHIPPED, load_catalogue
from features.packing import GroupKeys, KeyEncoder, unpack_last, unpack_tiles
from features.redis_rows import RowWriter
from features.redis_store import FeatureReader, TileWriter, compile_read_plan, group_stats
from features.registry import apply_catalogue, local_registry
from features.row_packing import unpack_rows
from features.rows import Status
from features.spec import TileGroup
from features.store import StoreError
from infra.local.process import stop, wait_ready
from infra.local.redis import redis_ready, start_redis
from infra.local.stack import free_ports
from tests.features.test_row_packing import row_group

CATALOGUE = load_catalogue(SHIPPED)
TILES = next(g for g in CATALOGUE.tile_groups() if g.name == "driver.trip_events.60000")
LAST = next(g for g in CATALOGUE.last_groups() if g.name == "driver.driver_events.last")
ROWS = row_group("race", ("version", "int"), entity=CATALOGUE.entities["driver"])
KEYS = [f"d-{i}" for i in range(200)]
PAIRS = 10_000


def write_tiles(writer: Any, round_: int, newer: bool) -> np.ndarray:
    one = np.ones(len(KEYS), dtype=np.int64)
    count = one * (2 * round_ + 1 + newer)
    status: np.ndarray = writer.write_tiles(
        TILES, 1, KEYS, one * 5, count, [count] * len(TILES.partials), applied_through_ms=round_
    )
    return status


def write_last(writer: Any, round_: int, newer: bool) -> np.ndarray:
    """Every second round the times are equal and the ids decide."""
    time_ms = 2 * round_ + (1 if round_ % 2 else newer)
    ids = [f"e-{int(newer)}"] * len(KEYS)
    version = 2 * round_ + 1 + newer
    values = {f.name: [version if f.type == "int" else str(version)] * len(KEYS) for f in LAST.fields}
    status: np.ndarray = writer.write_last(
        LAST, 1, KEYS, np.full(len(KEYS), time_ms, dtype=np.int64), ids, values, applied_through_ms=round_
    )
    return status


def write_rows(writer: Any, round_: int, newer: bool) -> np.ndarray:
    """Every second round the times are equal and the sequences decide."""
    time_ms = np.full(len(KEYS), 2 * round_ + (1 if round_ % 2 else newer), dtype=np.int64)
    made = np.full(len(KEYS), 10**12 + newer, dtype=np.int64)
    values = {"version": np.full(len(KEYS), 2 * round_ + 1 + newer, dtype=np.int64)}
    status: np.ndarray = writer.write_rows(ROWS, 1, KEYS, time_ms, made, values, max_age_ms=86_400_000)
    return status


def race(kind: str, url: str, project: str, newer: bool, rounds: int, barrier: Barrier, out: Any) -> None:
    """One writer, in a process of its own. Reports in how many pairs it was the one that was ignored."""
    writer = (RowWriter if kind == "rows" else TileWriter)(url, project)
    write: Callable[[Any, int, bool], np.ndarray] = {"tiles": write_tiles, "last": write_last, "rows": write_rows}[kind]
    ignored = 0
    for round_ in range(rounds):
        barrier.wait(60)
        ignored += int(np.count_nonzero(write(writer, round_, newer) == 0))
        barrier.wait(60)
        if newer:
            found = versions(kind, url, project)
            wrong = np.flatnonzero(found != 2 * round_ + 2)
            if len(wrong):
                out.put(
                    ("inverted", f"round {round_}: {len(wrong)} keys have {found[wrong][:5]}, not {2 * round_ + 2}")
                )
                os._exit(1)
        barrier.wait(60)
    out.put((newer, ignored))


_CLIENTS: dict[str, redis.Redis] = {}


def versions(kind: str, url: str, project: str) -> np.ndarray:
    client = _CLIENTS.setdefault(url, redis.Redis.from_url(url))
    group = {"tiles": TILES, "last": LAST, "rows": ROWS}[kind]
    suffix = GroupKeys(project, group.name, 1).suffix
    values = client.mget([KeyEncoder(group.entity).encode(key) + suffix for key in KEYS])
    if kind == "rows":
        return unpack_rows(ROWS, values)[0][0]
    if kind == "tiles":
        cells = [unpack_tiles(TILES, value) for value in values]
        assert all(len(c) == 1 and (c[0, 1:] == c[0, 1]).all() for c in cells)  # no row is torn
        return np.array([c[0, 1] for c in cells])
    found = [unpack_last(LAST, value) for value in values]
    numbers = [{int(cell[1]) for cell in cells if cell is not None} for cells in found]
    assert all(len(one) == 1 for one in numbers)
    return np.array([one.pop() for one in numbers])


@pytest.mark.parametrize("kind", ["tiles", "last", "rows"])
def test_of_ten_thousand_racing_pairs_none_ends_inverted(kind: str, redis_url: str) -> None:
    project, rounds = f"race-{uuid.uuid4().hex[:8]}", PAIRS // len(KEYS)
    (RowWriter if kind == "rows" else TileWriter)(redis_url, project)._life(GroupKeys(project, name_of(kind), 1))
    context = multiprocessing.get_context("spawn")
    barrier, out = context.Barrier(2), context.Queue()
    writers = [
        context.Process(target=race, args=(kind, redis_url, project, newer, rounds, barrier, out))
        for newer in (False, True)
    ]
    for process in writers:
        process.start()
    results = dict(out.get(timeout=120) for _ in range(2))
    for process in writers:
        process.join(30)
    assert "inverted" not in results, results
    assert results[True] == 0 and 0 < results[False] < PAIRS, f"{results}: they did not race"
    if kind == "tiles":
        stats = group_stats(redis_url, [(TILES, 1)], project)[TILES.name]
        assert stats.used == len(KEYS) * 2 * rounds  # the counts of the last round, each event once


def name_of(kind: str) -> str:
    return {"tiles": TILES.name, "last": LAST.name, "rows": ROWS.name}[kind]


def test_a_tile_ahead_of_its_time_costs_no_history_and_blocks_no_event(redis_url: str) -> None:
    """One event as far ahead as the source's bound allows: what is right and earlier is still written and still read.

    tiles:  … 99 100 │101 (ahead by the bound of a minute)          asked in tile 100, then in 102
    """
    registry = local_registry(CATALOGUE, f"ahead-{uuid.uuid4().hex[:8]}")
    writer, reader = TileWriter(redis_url, registry.project), FeatureReader(redis_url, registry.project)
    assert TILES.source.future_ms == 60_000
    history = np.arange(40, 101, dtype=np.int64)

    def write(tiles: np.ndarray, count: int) -> None:
        n = np.full(len(tiles), count, dtype=np.int64)
        writer.write_tiles(TILES, 1, ["a"] * len(tiles), tiles, n, [n] * len(TILES.partials), applied_through_ms=1)

    write(history, 1)
    write(np.array([101]), 1)  # the one that is ahead
    write(np.array([100, 40]), 2)  # an ordinary one, and the oldest tile of the window is corrected
    view = registry.catalogue.views["driver_activity"]
    completed = view.feature("completed_1h")
    assert completed.window_ms == 3_600_000 and completed.hop_ms == 60_000
    plan = compile_read_plan(registry, {"d": "driver_activity"})
    at = [f.name for f in view.features].index("completed_1h")
    for as_of_tile, expected in ((100, 61 + 2), (101, 61 + 2 - 1)):
        batch = reader.read(plan, {"d": ["a"]}, as_of_tile * 60_000 + 5)["d"]
        assert batch.statuses[0, at] == Status.PRESENT and batch.columns["completed_1h"][0] == expected
    writer.close()
    reader.close()


def test_every_last_field_is_corrected_behind_one_that_is_ahead(redis_url: str) -> None:
    """A field whose newest event is ahead does not hold back another field of the same key."""
    registry = local_registry(CATALOGUE, f"ahead-{uuid.uuid4().hex[:8]}")
    writer = TileWriter(redis_url, registry.project)
    ahead, other = LAST.fields[0], LAST.fields[1]

    def put(time_ms: int, **values: Any) -> int:
        given = {f.name: [values.get(f.name)] for f in LAST.fields}
        return int(writer.write_last(LAST, 1, ["a"], np.array([time_ms]), ["e"], given, applied_through_ms=1)[0])

    value = {f.name: 7 if f.type == "int" else "x" for f in LAST.fields}
    assert put(60_000, **{ahead.name: value[ahead.name]}) == 1
    assert put(10, **{other.name: value[other.name]}) == 1
    with redis.Redis.from_url(redis_url) as client:
        data = client.get(KeyEncoder(LAST.entity).encode("a") + GroupKeys(registry.project, LAST.name, 1).suffix)
    assert data is not None and [cell and cell[0] for cell in unpack_last(LAST, data)] == [60_000, 10]
    writer.close()


@pytest.mark.parametrize("key", [2147483648, -(2**31) - 1, 2**63 - 1, -(2**63), 0])
def test_keys_beyond_32_bits_are_read_back_and_have_eight_bytes(key: int, redis_url: str) -> None:
    registry = local_registry(CATALOGUE, f"wide-{uuid.uuid4().hex[:8]}")
    group = next(g for g in CATALOGUE.tile_groups() if g.name == "zone.trip_events.300000.pickup_zone")
    writer, reader = TileWriter(redis_url, registry.project), FeatureReader(redis_url, registry.project)
    one = np.array([1], dtype=np.int64)
    writer.write_tiles(group, 1, [key], one * 3, one, [one * 5] * len(group.partials), applied_through_ms=1_000_000)
    other = next(g for g in CATALOGUE.tile_groups() if g.name == "zone.trip_events.60000.pickup_zone")
    writer.write_tiles(other, 1, [key], one * 15, one, [one] * len(other.partials), applied_through_ms=1_000_000)
    plan = compile_read_plan(registry, {"z": "zone_demand"})
    neighbours = [key, key - 1 if key > -(2**63) else key + 1, key & 0xFFFFFFFF if key != 0 else 1]
    batch = reader.read(plan, {"z": neighbours}, 1_000_000)["z"]
    assert batch.columns["avg_fare_1h"][0] == 1.0 and batch.valid["avg_fare_1h"].tolist() == [
        one == key for one in neighbours
    ]
    assert KeyEncoder(group.entity).encode(key)[-12:] == (8).to_bytes(4, "little") + key.to_bytes(
        8, "little", signed=True
    )
    writer.close()
    reader.close()


def test_what_is_not_written_any_more_expires_and_what_is_lives_on(redis_url: str) -> None:
    """3.6, 6: a key's expiry is its own; another view of the same entity does not keep it alive."""
    registry = local_registry(CATALOGUE, f"expiry-{uuid.uuid4().hex[:8]}")
    writer = TileWriter(redis_url, registry.project)
    quarter = next(g for g in CATALOGUE.tile_groups() if g.name == "driver.trip_events.900000")
    one = np.array([1], dtype=np.int64)

    def write(group: TileGroup, tile: int) -> bytes:
        writer.write_tiles(group, 1, ["a"], one * tile, one, [one] * len(group.partials), applied_through_ms=1)
        return KeyEncoder(group.entity).encode("a") + GroupKeys(registry.project, group.name, 1).suffix

    with redis.Redis.from_url(redis_url) as client:
        first = write(TILES, 1)
        client.pexpire(first, 1)  # as if its days had passed
        second = write(quarter, 1)
        while client.exists(first):
            pass
        assert client.pttl(second) > 86_400_000
        write(TILES, 2)
        assert client.pttl(first) > 86_400_000 and client.pttl(GroupKeys(registry.project, TILES.name, 1).marker) == -1
    writer.close()


@pytest.mark.parametrize("same_writer", [True, False], ids=["the connection is made anew", "the writer is made anew"])
def test_a_redis_that_was_killed_has_all_that_was_written_after_the_next_batch(
    same_writer: bool, tmp_path: Path
) -> None:
    """Its file may end up to two seconds before its last answers: the writer sends them again, before the heartbeat moves.

    answered:   tiles 1 … 60 │ file ends somewhere ✂ killed │ restarted │ tile 61 → and all that was cut off
    """
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    project, log = f"aof-{uuid.uuid4().hex[:8]}", tmp_path / "redis.log"
    running = start_redis(tmp_path, port, stack_id=f"test-aof-{os.getpid()}", log=log)
    try:
        wait_ready(running, lambda: redis_ready(port), deadline_s=30)
        registry = apply_catalogue(SHIPPED, url, actor="a", reason="r", project=project).registry
        writer = TileWriter(url, project, lives=registry.lives())
        one = np.ones(1, dtype=np.int64)

        def write(tile: int) -> None:
            partials = [one] * len(TILES.partials)
            writer.write_tiles(TILES, 1, ["a"], one * tile, one, partials, applied_through_ms=tile)

        with redis.Redis.from_url(url) as client:
            file = next((tmp_path / "appendonlydir").glob("*.incr.aof"), tmp_path / "appendonly.aof")
            for tile in range(1, 31):
                write(tile)
            end = time.monotonic() + 20
            while client.info("persistence")["aof_pending_bio_fsync"] or file.stat().st_size == 0:
                assert time.monotonic() < end
                time.sleep(0.01)
            size = file.stat().st_size
            for tile in range(31, 61):
                write(tile)
        os.kill(running.pid, signal.SIGKILL)
        os.truncate(file, size)  # the worst that everysec allows: nothing of the last batches was in the file
        running = start_redis(tmp_path, port, stack_id=f"test-aof-{os.getpid()}", log=log)
        wait_ready(running, lambda: redis_ready(port), deadline_s=30)
        assert group_stats(url, [(TILES, 1)], project)[TILES.name].used == 30
        if not same_writer:
            writer.close()
            writer = TileWriter(url, project, lives=registry.lives())
        while True:
            try:
                write(61)
                break
            except StoreError:
                continue  # the old connection is noticed once; the sink does the same
        assert group_stats(url, [(TILES, 1)], project)[TILES.name].used == 61
        cells = unpack_tiles(TILES, redis.Redis.from_url(url).get(key_of(TILES, project, "a")))
        assert cells[:, 0].tolist() == list(range(61, 0, -1))
    finally:
        stop(running)


def key_of(group: TileGroup, project: str, key: str) -> bytes:
    return KeyEncoder(group.entity).encode(key) + GroupKeys(project, group.name, 1).suffix

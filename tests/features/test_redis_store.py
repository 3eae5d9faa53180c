"""The Redis store against brute force, on a real Redis: values, statuses, replays, racing writers, exactly-once counts."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Iterator

import numpy as np
import pytest
import redis

from features.loader import SHIPPED, load_catalogue, load_texts
from features.packing import GroupKeys, KeyEncoder, unpack_tiles
from features.read_plan import ReadPlan, compile_read_plan
from features.redis_store import FeatureReader, TileWriter, group_stats
from features.registry import Registry, local_registry
from features.rows import Status
from features.spec import LastGroup, TileGroup
from features.store import InMemoryStore, OnlineStore, StoreError
from tests import generate, naive
from tests.features.feature_job import TileJob, Write, assert_equals_oracle, send, send_all

DRIVERS = [f"d-{i}" for i in range(5)] + ["d-never"]
ZONES = [0, 1, 2, 3, 99]
ROLES = {"driver": "driver_activity", "pickup_zone": "zone_demand", "dropoff_zone": "zone_demand", "money": "money"}
KEYS = {"driver": DRIVERS, "pickup_zone": ZONES, "dropoff_zone": ZONES[::-1], "money": ZONES}
MONEY = """
view: money
entity: zone
source: trip_events
key: {zone: dropoff_zone}
max_age: 2d
features:
  euros_20m:  {aggregate: sum, of: "fare_cents != null ? double(fare_cents) / 100.0 : null", window: 20m, hop: 2m}
  lowest_20m: {aggregate: min, of: "fare_cents != null ? double(fare_cents) / 100.0 : null", window: 20m, hop: 2m}
  highest_1h: {aggregate: max, of: fare_cents, where: "event_type != 'requested'", window: 1h, hop: 2m}
  last_type:  {aggregate: last, of: event_type}
"""


@pytest.fixture(scope="module")
def catalogue_files() -> dict[str, str]:
    return {**load_catalogue(SHIPPED).files, "views/money.yaml": MONEY}


@pytest.fixture
def registry(catalogue_files: dict[str, str]) -> Registry:
    """A project of its own, so that tests do not see each other's keys."""
    return local_registry(load_texts(catalogue_files), f"test-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def writer(redis_url: str, registry: Registry) -> Iterator[TileWriter]:
    writer = TileWriter(redis_url, registry.project)
    yield writer
    writer.close()


@pytest.fixture
def reader(redis_url: str, registry: Registry) -> Iterator[FeatureReader]:
    reader = FeatureReader(redis_url, registry.project)
    yield reader
    reader.close()


def tile_jobs(registry: Registry) -> list[TileJob]:
    return [TileJob(group) for group in registry.catalogue.tile_groups()]


def group_of(registry: Registry, name: str) -> TileGroup:
    return next(g for g in registry.catalogue.tile_groups() if g.name == name)


def rows(group: TileGroup, key: str | int, tiles_counts: list[tuple[int, int]], through_ms: int = 0) -> Write:
    """Rows of one key; every partial carries the count, so that a torn row would show."""
    tiles, counts = (np.array([pair[i] for pair in tiles_counts], dtype=np.int64) for i in (0, 1))
    return group, [key] * len(tiles), tiles, counts, [counts] * len(group.partials), through_ms


def stored(redis_url: str, registry: Registry, group: TileGroup, key: str | int) -> list[list[int]]:
    name = KeyEncoder(group.entity).encode(key) + GroupKeys(registry.project, group.name, 1).suffix
    with redis.Redis.from_url(redis_url) as client:
        return unpack_tiles(group, client.get(name) or b"").tolist()


def used(redis_url: str, registry: Registry, group: TileGroup | LastGroup) -> int:
    return group_stats(redis_url, [(group, 1)], registry.project)[group.name].used


@pytest.mark.parametrize(("kind", "seed"), [("redis", 1), ("redis", 2), ("memory", 3)])
def test_every_value_equals_brute_force_while_events_arrive(
    kind: str, seed: int, registry: Registry, writer: TileWriter, reader: FeatureReader
) -> None:
    """Reads between batches, at times that include tile edges and times before 1970."""
    memory = InMemoryStore(registry.project)
    store: OnlineStore = memory if kind == "memory" else writer  # type: ignore[assignment]
    source = registry.catalogue.sources["trip_events"]
    arrived, _ = naive.used_once(
        generate.trip_events(seed, 1_000), disorder_ms=source.disorder_ms, future_ms=source.future_ms
    )
    rng, jobs, plan = random.Random(seed), tile_jobs(registry), compile_read_plan(registry, ROLES)
    num_known, sent = 0, 0
    while sent < len(arrived):
        batch = arrived[sent : sent + rng.choice([1, 30, 200, 400])]
        send_all(store, registry, "trip_events", jobs, batch)
        sent += len(batch)
        as_of_ms = batch[-1]["ingest_time_ms"] + rng.randrange(1, 1_000)
        for asked_ms in (as_of_ms, (as_of_ms // 60_000 + 1) * 60_000, (as_of_ms // 60_000 + 1) * 60_000 - 1):
            if sent < len(arrived) and arrived[sent]["ingest_time_ms"] < asked_ms:
                continue  # it would have to know what has not been sent
            answer = (memory if kind == "memory" else reader).read(plan, KEYS, asked_ms)
            for role, view_name in ROLES.items():
                view = registry.catalogue.views[view_name]
                num_known += assert_equals_oracle(answer[role], view, arrived[:sent], KEYS[role], asked_ms)
    assert num_known > 500


@pytest.mark.parametrize("seed", [11, 12])
def test_shuffled_and_repeated_batches_end_in_the_same_bytes_and_counts(
    seed: int, redis_url: str, registry: Registry, catalogue_files: dict[str, str]
) -> None:
    source = registry.catalogue.sources["trip_events"]
    arrived, fates = naive.used_once(
        generate.trip_events(seed, 1_200), disorder_ms=source.disorder_ms, future_ms=source.future_ms
    )
    jobs, rng = tile_jobs(registry), random.Random(seed)
    writes = [job.batch(arrived[i : i + 60]) for i in range(0, len(arrived), 60) for job in jobs]
    assert fates["duplicate"] and fates["late"] and fates["future"]

    other = local_registry(load_texts(catalogue_files), registry.project + "-shuffled")
    for project, order in (
        (registry, writes),
        (other, rng.sample(writes, len(writes)) + rng.sample(writes, len(writes))),
    ):
        writer = TileWriter(redis_url, project.project)
        for write in order:
            send(writer, write)
        writer.close()

    for group in registry.catalogue.tile_groups():
        keys = {group.key_of(event) for event in arrived} - {None}
        counted = sum(group.key_of(event) is not None for event in arrived)
        assert used(redis_url, registry, group) == used(redis_url, other, group) == counted
        for key in keys:
            a, b = stored(redis_url, registry, group, key), stored(redis_url, other, group, key)
            floor = a[0][0] - group.retain_tiles + 1
            assert [r for r in a if r[0] >= floor] == [r for r in b if r[0] >= floor]
            assert [r[0] for r in b] == sorted({r[0] for r in b}, reverse=True)


def test_a_tile_far_below_the_span_is_counted_once_however_often_it_is_sent(
    redis_url: str, registry: Registry, writer: TileWriter
) -> None:
    #   span of 62 tiles:            [ 939 … 1000 ]
    #   arrives behind its time:  100 (3 events, then 5), 101
    group = group_of(registry, "driver.trip_events.60000")
    assert send(writer, rows(group, "a", [(1000, 4)])).tolist() == [1]
    assert send(writer, rows(group, "a", [(100, 3), (101, 2)])).tolist() == [2, 2]
    assert used(redis_url, registry, group) == 9
    assert send(writer, rows(group, "a", [(100, 3), (101, 2)])).tolist() == [0, 0]
    assert send(writer, rows(group, "a", [(100, 5)])).tolist() == [2]
    assert send(writer, rows(group, "a", [(100, 4), (1000, 4)])).tolist() == [0, 0]
    assert used(redis_url, registry, group) == 11
    assert [r[0] for r in stored(redis_url, registry, group, "a")] == [1000]


def test_a_tile_that_was_evicted_is_not_counted_again_by_a_replay(
    redis_url: str, registry: Registry, writer: TileWriter
) -> None:
    group = group_of(registry, "driver.trip_events.60000")
    history = [(tile, 1 + tile % 3) for tile in range(0, 600)]
    for first in range(0, 600, 7):
        assert all(send(writer, rows(group, "a", history[first : first + 7])) == 1)
    total = sum(count for _, count in history)
    assert used(redis_url, registry, group) == total
    kept = stored(redis_url, registry, group, "a")
    assert [r[0] for r in kept[: group.retain_tiles]] == list(range(599, 599 - group.retain_tiles, -1))
    assert len(kept) <= group.retain_tiles + 16 + 7, "expired tiles must not pile up"
    for first in random.Random(5).sample(range(0, 600), 600):
        assert send(writer, rows(group, "a", history[first : first + 7])).max() == 0
    assert used(redis_url, registry, group) == total
    assert stored(redis_url, registry, group, "a") == kept
    # what grew since then counts with the difference only
    assert send(writer, rows(group, "a", [(3, 1 + 3 % 3 + 10)])).tolist() == [2]
    assert used(redis_url, registry, group) == total + 10


def test_what_is_older_than_the_memory_is_refused_and_counted_as_forgotten(
    redis_url: str, registry: Registry, writer: TileWriter
) -> None:
    group = group_of(registry, "driver.trip_events.60000")
    for first in range(0, 9_000, 500):
        send(writer, rows(group, "a", [(tile, 1) for tile in range(first, first + 500)]))
    assert used(redis_url, registry, group) == 9_000
    assert send(writer, rows(group, "a", [(1, 1), (2, 1)])).tolist() == [0, 0]
    stats = group_stats(redis_url, [(group, 1)], registry.project)[group.name]
    assert (stats.used, stats.forgotten) == (9_000, 2)
    name = KeyEncoder(group.entity).encode("a") + GroupKeys(registry.project, group.name, 1).suffix + b"\0counted"
    with redis.Redis.from_url(redis_url) as client:
        assert client.strlen(name) < 16 * 4_000, "two days of minutes, not for ever"
        assert client.pttl(name) > 86_400_000


def test_an_older_sequence_never_wins_and_equal_ones_change_nothing(
    redis_url: str, registry: Registry, writer: TileWriter
) -> None:
    group = group_of(registry, "zone.trip_events.300000.pickup_zone")
    assert send(writer, rows(group, 7, [(-3, 5), (2, 8)])).tolist() == [1, 1]
    assert send(writer, rows(group, 7, [(2, 7), (-3, 4), (-3, 5), (0, 1)])).tolist() == [0, 0, 0, 1]
    assert [r[:2] for r in stored(redis_url, registry, group, 7)] == [[2, 8], [0, 1], [-3, 5]]
    assert used(redis_url, registry, group) == 14


def test_two_racing_writers_invert_nothing(redis_url: str, registry: Registry) -> None:
    """One writer is a zombie that keeps sending older partials of the same tiles. 0 inversions, and counts once."""
    group = group_of(registry, "driver.trip_events.900000")
    keys, tiles, rounds = [f"d-{i}" for i in range(20)], list(range(40, 60)), 30

    def run(seed: int) -> None:
        rng, writer = random.Random(seed), TileWriter(redis_url, registry.project)
        for step in rng.sample(range(1, rounds + 1), rounds):
            for key in keys:
                send(writer, rows(group, key, [(tile, step) for tile in rng.sample(tiles, 5)]))
        for key in keys:
            send(writer, rows(group, key, [(tile, rounds if seed == 1 else 1) for tile in tiles]))
        writer.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in keys:
        assert stored(redis_url, registry, group, key) == [
            [t] + [rounds] * (1 + len(group.partials)) for t in reversed(tiles)
        ]
    assert used(redis_url, registry, group) == rounds * len(tiles) * len(keys)


def test_last_values_follow_event_time_then_id_bytes_in_any_order(redis_url: str, registry: Registry) -> None:
    plan = compile_read_plan(registry, {"s": "driver_state"})
    view, events = registry.catalogue.views["driver_state"], generate.driver_events(3, 400)
    as_of_ms = max(event["ingest_time_ms"] for event in events) + 1
    rng, writer, reader = (
        random.Random(3),
        TileWriter(redis_url, registry.project),
        FeatureReader(redis_url, registry.project),
    )
    for order in (events, rng.sample(events, len(events))):
        for first in range(0, len(order), 50):
            send_all(writer, registry, "driver_events", [], order[first : first + 50])
    batch = reader.read(plan, {"s": DRIVERS}, as_of_ms)["s"]
    assert assert_equals_oracle(batch, view, events, DRIVERS, as_of_ms) == 10
    writer.close()
    reader.close()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_of_events_at_one_time_the_highest_id_in_bytes_wins_on_the_server(
    order: tuple[int, ...], registry: Registry, writer: TileWriter, reader: FeatureReader
) -> None:
    #  in bytes: "Z" < "a" < "ab" < "é"; a locale would sort "Z" behind "a" and "é" among the e
    plan, base = compile_read_plan(registry, {"s": "driver_state"}), generate.driver_events(1, 1)[0]
    events = [
        {**base, "driver_id": "d", "event_id": id_, "zone": zone, "event_time_ms": 5, "ingest_time_ms": 6}
        for zone, id_ in enumerate(["Z", "a", "ab", "é"])
    ]
    for i in order:
        send_all(writer, registry, "driver_events", [], [events[i]])
    assert reader.read(plan, {"s": ["d"]}, 10)["s"].row(0)["last_zone"] == 3
    send_all(writer, registry, "driver_events", [], [{**events[0], "event_id": "A", "event_time_ms": 7, "zone": 9}])
    assert reader.read(plan, {"s": ["d"]}, 10)["s"].row(0)["last_zone"] == 9


def test_records_of_last_groups_are_counted_once_by_their_offsets(
    redis_url: str, registry: Registry, writer: TileWriter
) -> None:
    (group,) = (g for g in registry.catalogue.last_groups() if g.source.name == "driver_events")
    values = {field.name: [1, 2, 3] if field.type == "int" else ["a", "b", "c"] for field in group.fields}
    positions = ([0, 1, 0], [5, 5, (1 << 20) + 5])
    for _ in range(3):
        writer.write_last(
            group, 1, ["d", "d", "e"], np.array([2, 1, 3]), ["x", "y", "z"], values, applied_through_ms=9, positions=positions
        )  # fmt: skip
    assert used(redis_url, registry, group) == 3
    status = writer.write_last(
        group, 1, ["d"], np.array([1]), ["q"], {n: v[:1] for n, v in values.items()}, applied_through_ms=1
    )
    assert status.tolist() == [0]
    assert group_stats(redis_url, [(group, 1)], registry.project)[group.name].applied_through_ms == 9


def test_statuses_follow_the_heartbeat_and_last_values_their_own_age(
    registry: Registry, writer: TileWriter, reader: FeatureReader
) -> None:
    plan = compile_read_plan(registry, {"d": "driver_activity", "s": "driver_state"})
    keys, day_ms = {"d": ["d-1", "d-2"], "s": ["d-1", "d-2"]}, 86_400_000

    def at(as_of_ms: int) -> dict[tuple[str, str, int], Status]:
        answer = reader.read(plan, keys, as_of_ms)
        return {
            (role, name, row): Status(b.statuses[row, f])
            for role, b in answer.items()
            for f, name in enumerate(b.names)
            for row in (0, 1)
        }

    before = at(0)
    assert before["d", "completed_1h", 0] == Status.MISSING and before["d", "accept_rate_24h", 0] == Status.DEFAULT
    event = {
        **generate.trip_events(1, 1)[0],
        "driver_id": "d-1",
        "event_type": "completed",
        "event_time_ms": 0,
        "ingest_time_ms": 0,
    }
    send_all(writer, registry, "trip_events", tile_jobs(registry), [event])
    state = {**generate.driver_events(1, 1)[0], "driver_id": "d-1", "event_time_ms": 0, "ingest_time_ms": 0}
    send_all(writer, registry, "driver_events", [], [state])
    live = at(1)
    assert live["d", "completed_1h", 0] == live["d", "completed_1h", 1] == Status.PRESENT
    assert live["d", "avg_trip_m_24h", 1] == live["d", "max_fare_24h", 1] == Status.NULL
    assert live["s", "last_zone", 0] == Status.PRESENT and live["s", "last_zone", 1] == Status.MISSING
    assert at(day_ms // 2)["s", "last_zone", 0] == Status.PRESENT
    assert at(day_ms // 2 + 1)["s", "last_zone", 0] == Status.STALE
    assert at(2 * day_ms)["d", "completed_1h", 0] == Status.PRESENT
    stale = at(2 * day_ms + 1)
    assert stale["d", "completed_1h", 0] == stale["d", "avg_trip_m_24h", 1] == Status.STALE
    assert stale["d", "accept_rate_24h", 0] == Status.DEFAULT
    batch = reader.read(plan, keys, 60_001)["d"]
    assert batch.applied_through_ms == 0 and set(batch.ages_ms[0]) <= {60_001, -1}


def test_a_time_whose_tiles_have_made_room_is_missing_not_zero(
    registry: Registry, writer: TileWriter, reader: FeatureReader
) -> None:
    """d-1 has tiles 0 and 5,000 of a minute; the span that is kept ends far above tile 0, so at tile 1 nothing is known."""
    group = group_of(registry, "driver.trip_events.60000")
    send(writer, rows(group, "d-1", [(0, 3)], 60_000))
    send(writer, rows(group, "d-1", [(5_000, 4)], 5_000 * 60_000))
    plan = compile_read_plan(registry, {"d": "driver_activity"})

    def at(as_of_ms: int, key: str) -> tuple[Status, int | None]:
        batch = reader.read(plan, {"d": [key]}, as_of_ms)["d"]
        status = Status(batch.statuses[0, batch.names.index("completed_1h")])
        return status, int(batch.columns["completed_1h"][0]) if batch.valid["completed_1h"][0] else None

    assert at(5_000 * 60_000 + 1, "d-1") == (Status.PRESENT, 4)
    assert at(60_001, "d-1") == (Status.MISSING, None)
    assert at(60_001, "d-2") == (Status.PRESENT, 0)  # never had a tile


def test_generations_do_not_see_each_other(registry: Registry, writer: TileWriter, redis_url: str) -> None:
    group = group_of(registry, "driver.trip_events.60000")
    send(writer, rows(group, "a", [(5, 9)]), generation=1)
    assert send(writer, rows(group, "a", [(5, 1)]), generation=2).tolist() == [1]
    assert used(redis_url, registry, group) == 9


def test_a_read_is_one_command(registry: Registry, reader: FeatureReader, redis_url: str) -> None:
    plan = compile_read_plan(registry, ROLES)
    reader.read(plan, KEYS, 0)
    with redis.Redis.from_url(redis_url) as client:
        before = client.info("commandstats")
        reader.read(plan, KEYS, 0)
        after = client.info("commandstats")
    grown = {name for name in after if after[name]["calls"] > before.get(name, {"calls": 0})["calls"]} - {
        "cmdstat_info"
    }
    assert grown == {"cmdstat_mget"} and after["cmdstat_mget"]["calls"] - before["cmdstat_mget"]["calls"] == 1


def test_forgotten_scripts_are_loaded_again(redis_url: str, registry: Registry, writer: TileWriter) -> None:
    group = group_of(registry, "driver.trip_events.60000")
    keys = [f"d-{i}" for i in range(100)]
    with redis.Redis.from_url(redis_url) as client:
        for count in (1, 2):
            ones = np.full(100, count, dtype=np.int64)
            status = writer.write_tiles(
                group, 1, keys, ones, ones, [ones] * len(group.partials), applied_through_ms=count
            )
            assert status.tolist() == [1] * 100
            client.script_flush()
    assert used(redis_url, registry, group) == 300


def test_freshness_is_measured_for_applied_tiles_only(redis_url: str, registry: Registry, writer: TileWriter) -> None:
    group = group_of(registry, "driver.trip_events.60000")
    one = np.array([1], dtype=np.int64)
    for appended_ms in (1_000, 99_000):  # the second is a replay: nothing new became readable
        writer.write_tiles(
            group, 1, ["a"], one, one, [one] * len(group.partials), applied_through_ms=1,
            appended_ms=np.array([appended_ms]), now_ms=1_200,
        )  # fmt: skip
    stats = group_stats(redis_url, [(group, 1)], registry.project)[group.name]
    assert stats.num_fresh == 1 and stats.freshness_p99_ms is not None and 200 <= stats.freshness_p99_ms < 240


def test_an_empty_batch_moves_only_the_heartbeat(redis_url: str, registry: Registry, writer: TileWriter) -> None:
    group = group_of(registry, "driver.trip_events.60000")
    none = np.empty(0, dtype=np.int64)
    assert len(writer.write_tiles(group, 1, [], none, none, [none] * len(group.partials), applied_through_ms=77)) == 0
    stats = group_stats(redis_url, [(group, 1)], registry.project)[group.name]
    assert (stats.used, stats.applied_through_ms) == (0, 77)


def test_without_redis_the_error_names_the_address_soon(registry: Registry) -> None:
    plan, started = compile_read_plan(registry, ROLES), time.monotonic()
    group = group_of(registry, "driver.trip_events.60000")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1 cannot be reached.*hailstream up") as caught:
        FeatureReader("redis://:secret@127.0.0.1:1/0", registry.project).read(plan, KEYS, 0)
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        send(TileWriter("redis://127.0.0.1:1/0", registry.project), rows(group, "a", [(1, 1)]))
    assert time.monotonic() - started < 3


def test_a_plan_refuses_missing_roles_wrong_keys_and_unknown_views(registry: Registry, reader: FeatureReader) -> None:
    plan: ReadPlan = compile_read_plan(registry, {"driver": "driver_activity"})
    with pytest.raises(KeyError, match="no keys for role 'driver'"):
        reader.read(plan, {"rider": ["r"]}, 0)
    with pytest.raises(TypeError, match="entity driver: key 5 is not a string"):
        reader.read(plan, {"driver": [5]}, 0)
    with pytest.raises(KeyError, match="applied are"):
        compile_read_plan(registry, {"driver": "driver_activty"})
    assert reader.read(plan, {"driver": []}, 0)["driver"].num_rows == 0

"""Online equals offline: random streams and query times; what is stored and read equals brute force over the events.

    random stream ─► events with ingest < T ─► replay ─► store ─► read plan ─► values      at T
                  └─► those that are used and known at T ─► tests/naive.py ─► the same values

The pairs are run by equality.py; the bench runs 100,000 of them (tests/bench/bench_features_equal.py).
"""

from __future__ import annotations

import random
import threading
import uuid
from functools import reduce

import pytest

from features.aggregate import LastAggregator, replay, write_last
from features.read_plan import compile_read_plan
from features.redis_store import FeatureReader, TileWriter, group_stats
from features.registry import local_registry
from features.store import InMemoryStore
from tests.features.aggregate_cases import (
    FEATURES,
    HOUR,
    KEYS,
    MINUTE,
    Event,
    catalogue,
    differences,
    random_stream,
    used_events,
)
from tests.features.equality import query_times, run_pairs


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_values_read_at_a_time_are_brute_forces(seed: int) -> None:
    pairs, compared, found = run_pairs(seed, 60, catalogue(), FEATURES)
    assert not found, f"seed {seed}: {len(found)} of {compared} values differ, first {found[:5]}"
    assert pairs >= 60 and compared > 20_000


@pytest.mark.parametrize(("seed", "span_ms"), [(5, 6 * MINUTE), (6, 10 * HOUR)])
def test_redis_and_memory_serve_the_same_values(seed: int, span_ms: int, redis_url: str) -> None:
    """The same batches, and to Redis shuffled and once more: an arrival's order and its copies leave no trace.

    Over ten hours tiles and buckets leave their span between two questions, and are counted once all the same.
    """
    rng, declared = random.Random(seed), catalogue()
    registry = local_registry(declared, f"test-{uuid.uuid4().hex[:8]}")
    plan, view, asked = compile_read_plan(registry, {"r": "things"}), declared.views["things"], [*KEYS, "never"]
    writer, reader = TileWriter(redis_url, registry.project), FeatureReader(redis_url, registry.project)
    events = random_stream(rng, 250, span_ms=span_ms)
    used, memory = used_events(events, view), InMemoryStore(registry.project)
    times = query_times(rng, events, 5)
    for as_of_ms in [*times, events[-1]["ingest_time_ms"] + 1]:
        known = [event for event in events if event["ingest_time_ms"] < as_of_ms]
        parts = [known[: rng.randrange(len(known) + 1)] for _ in range(2)]  # older states of the same tiles, sent late
        for part in rng.sample([*parts, known, known], 4):
            if part:
                replay(writer, declared, registry.generations(), view.source, part)  # type: ignore[arg-type]
        replay(memory, declared, registry.generations(), view.source, known)
        for batch in (reader.read(plan, {"r": asked}, as_of_ms)["r"], memory.read(plan, {"r": asked}, as_of_ms)["r"]):
            assert differences(batch, FEATURES, used, asked, as_of_ms) == []
    counted = sum(event["thing"] is not None for event in used)
    stats = group_stats(redis_url, [(group, 1) for group in declared.tile_groups()], registry.project)
    assert {name: (one.used, one.forgotten) for name, one in stats.items()} == dict.fromkeys(stats, (counted, 0))
    writer.close()
    reader.close()


@pytest.mark.parametrize("seed", [7])
def test_two_racing_writers_leave_the_first_and_the_last(seed: int, redis_url: str) -> None:
    """Each sends all events in an order of its own, in small batches; a read in between may see any of them, at the end none."""
    rng, declared = random.Random(seed), catalogue()
    registry = local_registry(declared, f"test-{uuid.uuid4().hex[:8]}")
    (group,), view = declared.last_groups(), declared.views["things"]
    used = used_events(random_stream(rng, 300), view)
    events = [event for event in used if event["thing"] is not None]

    def send(order: list[Event]) -> None:
        writer = TileWriter(redis_url, registry.project)
        for at in range(0, len(order), 7):
            write_last(writer, group, 1, order[at : at + 7], 10**9)
        writer.close()

    threads = [threading.Thread(target=send, args=(rng.sample(events, len(events)),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader, plan = FeatureReader(redis_url, registry.project), compile_read_plan(registry, {"r": "things"})
    batch = reader.read(plan, {"r": KEYS}, 10**7)["r"]
    reader.close()
    last = LastAggregator(group)
    for row, key in enumerate(KEYS):
        whole = reduce(last.add, [event for event in events if event["thing"] == key], last.start())
        for spec in view.features:
            if spec.aggregate in ("first", "last"):
                assert batch.row(row)[spec.name] == last.finish(spec, whole), (key, spec.name)

"""Online equals offline: random streams and query times; what is stored and read equals brute force over the events.

    random stream ─► events with ingest < T ─► replay ─► store ─► read plan ─► values      at T
                  └─► those that are used and known at T ─► tests/naive.py ─► the same values

The pairs are run by equality.py; the bench runs 100,000 of them (tests/bench/bench_features_equal.py).
"""

from __future__ import annotations

import random
import uuid

import pytest

from features.aggregate import replay
from features.read_plan import compile_read_plan
from features.redis_store import FeatureReader, TileWriter
from features.registry import local_registry
from features.store import InMemoryStore
from tests.features.aggregate_cases import FEATURES, KEYS, catalogue, differences, random_stream, used_events
from tests.features.equality import query_times, run_pairs


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_values_read_at_a_time_are_brute_forces(seed: int) -> None:
    pairs, compared, found = run_pairs(seed, 60, catalogue(), FEATURES)
    assert not found, f"seed {seed}: {len(found)} of {compared} values differ, first {found[:5]}"
    assert pairs >= 60 and compared > 20_000


@pytest.mark.parametrize("seed", [5])
def test_redis_and_memory_serve_the_same_values(seed: int, redis_url: str) -> None:
    """The same batches, and to Redis shuffled and once more: an arrival's order and its copies leave no trace."""
    rng, declared = random.Random(seed), catalogue()
    registry = local_registry(declared, f"test-{uuid.uuid4().hex[:8]}")
    plan, view, asked = compile_read_plan(registry, {"r": "things"}), declared.views["things"], [*KEYS, "never"]
    writer, reader = TileWriter(redis_url, registry.project), FeatureReader(redis_url, registry.project)
    events = random_stream(rng, 200)
    used, memory = used_events(events, view), InMemoryStore(registry.project)
    for as_of_ms in query_times(rng, events, 12):
        known = [event for event in events if event["ingest_time_ms"] < as_of_ms]
        parts = [known[: rng.randrange(len(known) + 1)] for _ in range(2)]  # older states of the same tiles, sent late
        for part in rng.sample([*parts, known, known], 4):
            if part:
                replay(writer, declared, registry.generations(), view.source, part)  # type: ignore[arg-type]
        replay(memory, declared, registry.generations(), view.source, known)
        for batch in (reader.read(plan, {"r": asked}, as_of_ms)["r"], memory.read(plan, {"r": asked}, as_of_ms)["r"]):
            assert differences(batch, FEATURES, used, asked, as_of_ms) == []
    writer.close()
    reader.close()

"""Random (stream, T) pairs through replay, store and read plan, compared with brute force."""

from __future__ import annotations

import random
from collections.abc import Mapping

from features.aggregate import replay
from features.read_plan import compile_read_plan
from features.registry import local_registry
from features.spec import Catalogue
from features.store import InMemoryStore
from tests.features.aggregate_cases import KEYS, Event, Feature, differences, random_stream, used_events


def query_times(rng: random.Random, events: list[Event], num: int) -> list[int]:
    """Times at which something is known: also when an event arrives, on tile edges, and long afterwards."""
    first = events[0]["ingest_time_ms"]
    times = [rng.choice(events)["ingest_time_ms"] + rng.choice([0, 1, rng.randrange(120_000)]) for _ in range(num)]
    times += [time // 10_000 * 10_000 + rng.choice([0, -1]) for time in times[: num // 2]]
    return sorted({time for time in times if time > first})[:num]


def run_pairs(
    seed: int, num_pairs: int, declared: Catalogue, features: Mapping[str, Feature], *, num_events: int = 40
) -> tuple[int, int, list[str]]:
    """(pairs, values compared, differences) of random (stream, T) pairs, each stream asked at several times."""
    rng, registry = random.Random(seed), local_registry(declared)
    plan = compile_read_plan(registry, {"r": "things"})
    view, asked = declared.views["things"], [*KEYS, "never"]
    done, compared, found = 0, 0, list[str]()
    while done < num_pairs:
        events = random_stream(rng, rng.randrange(1, num_events))
        used = used_events(events, view)
        store = InMemoryStore(registry.project)
        for as_of_ms in query_times(rng, events, min(8, num_pairs - done)):
            known = [event for event in events if event["ingest_time_ms"] < as_of_ms]
            replay(store, declared, registry.generations(), view.source, known)
            batch = store.read(plan, {"r": asked}, as_of_ms)["r"]
            found += differences(batch, features, used, asked, as_of_ms)
            compared += len(asked) * len(batch.names)
            done += 1
    return done, compared, found

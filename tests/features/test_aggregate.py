"""The reference aggregator against plain lists; merge is associative, and order and repetition are told apart by fate."""

from __future__ import annotations

import random

import pytest

from features.aggregate import Aggregator, replay
from features.loader import SHIPPED, load_catalogue
from features.registry import local_registry
from features.spec import partials_of
from features.store import InMemoryStore
from tests import generate, naive

CATALOGUE = load_catalogue(SHIPPED)
SPECS = [
    (view, spec, CATALOGUE.group_for(view, spec))
    for view in CATALOGUE.views.values()
    for spec in view.features
    if spec.aggregate not in (None, "last")
]


@pytest.mark.parametrize("seed", [1, 2])
def test_any_split_and_order_of_a_tile_finishes_in_the_same_value(seed: int) -> None:
    rng, events = random.Random(seed), generate.trip_events(seed, 60)
    assert {spec.aggregate for _, spec, _ in SPECS} == {"count", "sum", "avg", "min", "max"}
    for _, spec, group in SPECS:
        aggregator = Aggregator(group)  # type: ignore[arg-type]
        whole = aggregator.start()
        for event in events:
            whole = aggregator.add(whole, event)
        parts = [aggregator.start() for _ in range(4)]
        for event in rng.sample(events, len(events)):
            i = rng.randrange(3)  # the fourth stays empty
            parts[i] = aggregator.add(parts[i], event)
        a, b, c, empty = parts
        left = aggregator.merge(aggregator.merge(aggregator.merge(a, b), c), empty)
        right = aggregator.merge(empty, aggregator.merge(c, aggregator.merge(b, a)))
        assert left == right == whole and whole[0] == len(events)
        assert aggregator.finish(spec, left) == aggregator.finish(spec, whole)
        if spec.aggregate in ("avg", "min", "max"):
            assert aggregator.finish(spec, aggregator.start()) is None
        else:
            assert aggregator.finish(spec, aggregator.start()) == 0
        assert len(partials_of(spec)) == (2 if spec.aggregate == "avg" else 1)


def test_every_event_meets_one_fate_and_only_used_ones_count() -> None:
    source, registry = CATALOGUE.sources["trip_events"], local_registry(CATALOGUE)
    events = generate.trip_events(5, 800)
    used, want = naive.used_once(events, disorder_ms=source.disorder_ms, future_ms=source.future_ms)
    store = InMemoryStore(registry.project)
    fates = replay(store, CATALOGUE, registry.generations(), source, events)
    assert dict(fates) == want and sum(fates.values()) == len(events) and min(want.values()) > 0
    for group in CATALOGUE.tile_groups():
        assert store.used(group, 1) == sum(event[group.key_field] is not None for event in used)


def test_a_copy_after_the_horizon_is_used_again() -> None:
    source, registry = CATALOGUE.sources["trip_events"], local_registry(CATALOGUE)
    assert source.dedup is not None
    first = {**generate.trip_events(1, 1)[0], "event_time_ms": 0, "ingest_time_ms": 0}
    moved = [
        {**first, "event_time_ms": lag, "ingest_time_ms": lag}
        for lag in (0, source.dedup.horizon_ms, source.dedup.horizon_ms + 1)
    ]
    assert replay(InMemoryStore(), CATALOGUE, registry.generations(), source, moved) == {"used": 2, "duplicate": 1}

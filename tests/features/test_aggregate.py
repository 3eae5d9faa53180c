"""The reference aggregator against plain lists; merge is associative, and order and repetition are told apart by fate.

Every aggregate over random streams, through the store and back, is in test_online_offline.py.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from functools import reduce
from importlib import resources
from typing import Any

import pytest

from features.aggregate import Aggregator, LastAggregator, State, replay, stddev_of
from features.buckets import NO_VALUE, bucket_of
from features.loader import SHIPPED, load_catalogue
from features.registry import local_registry
from features.spec import AGGREGATES, LastGroup, TileGroup, partials_of
from features.store import InMemoryStore
from tests import generate, naive
from tests.features import aggregate_cases

CATALOGUE = load_catalogue(SHIPPED)
SPECS = [
    (view, spec, CATALOGUE.group_for(view, spec))
    for view in CATALOGUE.views.values()
    for spec in view.features
    if spec.aggregate not in (None, "first", "last")
]


@pytest.mark.parametrize("seed", [1, 2])
def test_any_split_and_order_of_a_tile_finishes_in_the_same_value(seed: int) -> None:
    rng, events = random.Random(seed), generate.trip_events(seed, 60)
    assert {spec.aggregate for _, spec, _ in SPECS} >= {"count", "sum", "avg", "min", "max"}
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
        assert store.used(group, 1) == sum(group.key_of(event) is not None for event in used)


def test_a_copy_after_the_horizon_is_used_again() -> None:
    source, registry = CATALOGUE.sources["trip_events"], local_registry(CATALOGUE)
    assert source.dedup is not None
    first = {**generate.trip_events(1, 1)[0], "event_time_ms": 0, "ingest_time_ms": 0}
    moved = [
        {**first, "event_time_ms": lag, "ingest_time_ms": lag}
        for lag in (0, source.dedup.horizon_ms, source.dedup.horizon_ms + 1)
    ]
    assert replay(InMemoryStore(), CATALOGUE, registry.generations(), source, moved) == {"used": 2, "duplicate": 1}


DECLARED = aggregate_cases.catalogue()
VIEW = DECLARED.views["things"]
EVENT = {
    "event_id": "e",
    "thing": "a",
    "event_time_ms": 0,
    "ingest_time_ms": 0,
    "i": None,
    "d": None,
    "ok": None,
    "s": None,
}


def value_of(name: str, events: list[dict[str, Any]], as_of_ms: int = 0) -> Any:
    """One feature of these events of one key."""
    spec = VIEW.feature(name)
    group = DECLARED.group_for(VIEW, spec)
    if isinstance(group, LastGroup):
        last = LastAggregator(group)
        return last.finish(spec, reduce(last.add, events, last.start()))
    aggregator, rows = Aggregator(group), dict[int, State]()
    for event in events:
        number = aggregator.row_of(event)
        rows[number] = aggregator.add(rows.get(number) or aggregator.start(), event)
    return aggregator.value_at(spec, rows, as_of_ms)


def of(column: str, *values: Any, at_ms: int = 0) -> list[dict[str, Any]]:
    return [{**EVENT, "event_id": f"e{i}", "event_time_ms": at_ms, column: value} for i, value in enumerate(values)]


def test_deviation_of_near_equal_numbers_is_exact() -> None:
    """Σx² − n·mean² of doubles gives 0 or worse here: 1e18 has steps of 128."""
    values = [10**9 + at % 2 for at in range(1_000)]
    assert value_of("stddev_i_1_1.0", of("i", *values)) == 0.5
    assert value_of("stddev_d_1_1.0", of("d", *map(float, values))) == 0.5
    assert value_of("stddev_d_1_0.001", of("d", *map(float, values))) == 0.5
    assert value_of("stddev_i_1_1.0", of("i", 2**42 - 1, 1 - 2**42)) == 2**42 - 1
    assert value_of("stddev_i_1_1.0", of("i", 7)) == 0.0
    assert value_of("stddev_i_1_1.0", []) is None
    assert value_of("stddev_i_1_1.0", of("i", 2**42, 3, -(2**42), 2**63 - 1, 5)) == 1.0, "beyond 2^42 takes no part"


def test_deviation_of_more_events_than_the_moments_hold_is_null() -> None:
    moments = {"q": 0, "aa": 0, "ab": 0, "bb": 0, "resolution": 1.0}
    assert stddev_of(2**20, **moments) == 0.0 and stddev_of(2**20 + 1, **moments) is None
    # the largest sums that 2^20 events can reach fit 64 bits
    low, high = 2**21 - 1, -(2**21)
    assert all(2**20 * abs(each) < 2**63 for each in (2**42 - 1, low * low, low * high, high * high))


@pytest.mark.parametrize("seed", [1, 2])
def test_deviation_from_moments_is_that_of_the_list(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        size = 10 ** rng.randrange(1, 13)
        values = [rng.randrange(-size, size) for _ in range(rng.randrange(1, 30))]
        got, want = value_of("stddev_i_1_1.0", of("i", *values)), statistics.pstdev(values)
        assert got == pytest.approx(want, rel=4 * 2.0**-53, abs=0.0)


def test_a_value_halves_with_every_half_life() -> None:
    # hop 1m, half life 90s, asked in minute 3:   minute 0 is two half lives old, minute 3 is now
    events = of("i", 800) + of("i", 100, at_ms=3 * 60_000 + 59_999)
    assert value_of("decayed_i_1", events, 3 * 60_000) == 800 / 4 + 100
    assert value_of("decayed_i_1", events, 6 * 60_000) == pytest.approx(100 / 4)  # minute 0 has left the window of 5m
    assert value_of("decayed_i_1", []) == 0.0


def test_quantile_is_near_the_value_of_its_rank() -> None:
    assert value_of("quantile_i_0", of("i", *range(16))) == 7.0, "exact below 16 steps: rank 8 of 0 … 15"
    assert value_of("quantile_i_0", of("i", -5, 3, None)) == -5.0
    assert value_of("quantile_99_0", of("i", *range(1, 1_001))) == pytest.approx(990, rel=1 / 32)
    assert value_of("quantile_i_0", of("i", 2**42, None)) is None
    assert value_of("quantile_small_0", of("i", 10**6)) is None


def test_records_that_take_no_part_in_a_quantile_are_counted_all_the_same() -> None:
    group = DECLARED.group_for(VIEW, VIEW.feature("quantile_small_0"))
    assert isinstance(group, TileGroup) and group.buckets is not None
    numbers = [Aggregator(group).row_of(event) for event in of("i", None, 10**6, 3)]
    assert numbers == [NO_VALUE, NO_VALUE, bucket_of(3)]


def test_a_double_that_is_no_finite_number_is_no_value() -> None:
    events = of("d", math.nan, math.inf, -math.inf, 2.0)
    for name, value in {"count_d_1": 1, "sum_d_1": 2.0, "avg_d_1": 2.0, "min_d_1": 2.0, "max_d_1": 2.0, "first_d": 2.0, "last_d": 2.0, "stddev_d_1_1.0": 0.0, "decayed_d_1": 2.0, "quantile_d_1": 2.0}.items():  # fmt: skip
        assert value_of(name, events) == value, name
    assert value_of("count_nan_1", events) == 0 and value_of("sum_nan_1", events) == 0


def test_the_ends_of_64_bits() -> None:
    top, bottom = 2**63 - 1, -(2**63)
    assert value_of("sum_i_1", of("i", top, 1)) == bottom and value_of("sum_i_1", of("i", bottom, -1)) == top
    assert value_of("max_i_1", of("i", top, bottom)) == top and value_of("min_i_1", of("i", top, bottom)) == bottom
    assert value_of("min_i_1", of("i", top)) is None and value_of("max_i_1", of("i", bottom)) is None, (
        "as an empty tile"
    )
    assert value_of("first_i", of("i", top)) == value_of("last_i", of("i", top)) == top


@pytest.mark.parametrize("seed", [1, 2])
def test_first_and_last_do_not_depend_on_order_or_copies(seed: int) -> None:
    rng = random.Random(seed)
    events = [event for event in aggregate_cases.random_stream(rng, 60) if event["thing"] is not None]
    group = DECLARED.last_groups()[0]
    assert [field.newest for field in group.fields].count(False) == 5
    last = LastAggregator(group)
    whole = reduce(last.add, events, last.start())
    for _ in range(10):
        again = rng.sample(events, len(events)) + rng.sample(events, 10)
        half = rng.randrange(len(again))
        a, b = (reduce(last.add, part, last.start()) for part in (again[:half], again[half:]))
        assert last.merge(a, b) == last.merge(b, a) == whole


def test_page_lists_every_aggregate() -> None:
    page = resources.files("features").joinpath("AGGREGATES.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = re.findall(r"`(\w+)`", "".join(rows))
    assert sorted(listed) == sorted({feature.aggregate for feature in aggregate_cases.FEATURES.values()})
    assert set(AGGREGATES) <= set(listed)

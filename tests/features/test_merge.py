"""The merge over columns equals the algebra, on random tiles and at the edges of windows."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from features.aggregate import Aggregator, State
from features.buckets import NUM_BUCKETS
from features.merge import add_in_order, compile_window, finish, reduce_window
from features.packing import pack_tiles
from features.spec import FeatureSpec, TileGroup
from features.window import window_tiles
from tests.features.aggregate_cases import KEYS, catalogue, random_stream

CATALOGUE = catalogue()
VIEW = CATALOGUE.views["things"]
Rows = dict[int, State]  # of one key, by number


def states(group: TileGroup, events: Sequence[Mapping[str, Any]]) -> dict[str, Rows]:
    aggregator = Aggregator(group)
    out: dict[str, Rows] = {key: {} for key in KEYS}
    for event in events:
        if event["thing"] is not None:
            rows, at = out[event["thing"]], aggregator.row_of(event)
            rows[at] = aggregator.add(rows.get(at) or aggregator.start(), event)
    return out


def columns(group: TileGroup, rows: Mapping[str, Rows]) -> tuple[np.ndarray, np.ndarray]:
    """The rows as a store holds them, newest first, and the key of each."""
    flat = [
        (k, number, row) for k, mine in enumerate(rows.values()) for number, row in sorted(mine.items(), reverse=True)
    ]
    dtypes = [np.float64 if p.type == "double" else np.int64 for p in group.partials]
    partials = [np.array([row[1 + p] for _, _, row in flat], dtype=dtype) for p, dtype in enumerate(dtypes)]
    counts = np.array([row[0] for _, _, row in flat], dtype=np.int64)
    cells = pack_tiles(group, np.array([number for _, number, _ in flat], dtype=np.int64), counts, partials)
    return cells, np.array([k for k, _, _ in flat], dtype=np.int64)


def merged(
    group: TileGroup, specs: Sequence[FeatureSpec], rows: Mapping[str, Rows], as_of_ms: int
) -> dict[str, list[Any]]:
    """By feature: each key's value, None where there is none."""
    window_ms = specs[0].window_ms
    assert window_ms is not None
    read = compile_window(group, window_ms, list(enumerate(specs)))
    first, last = window_tiles(as_of_ms, window_ms, group.hop_ms)
    found = reduce_window(*columns(group, rows), len(rows), first, last, read)
    out = {}
    for _, spec, slots in read.features:
        values, there = finish(spec, [found[slot] for slot in slots], group, slots)
        everywhere = np.ones(len(rows), dtype=bool) if there is None else there
        out[spec.name] = [v if ok else None for v, ok in zip(values.tolist(), everywhere.tolist(), strict=True)]
    return out


def by_group_and_window() -> dict[tuple[str, int], tuple[TileGroup, list[FeatureSpec]]]:
    out: dict[tuple[str, int], tuple[TileGroup, list[FeatureSpec]]] = {}
    for spec in VIEW.features:
        group = CATALOGUE.group_for(VIEW, spec)
        if isinstance(group, TileGroup) and spec.window_ms is not None:
            out.setdefault((group.name, spec.window_ms), (group, []))[1].append(spec)
    return out


@pytest.mark.parametrize("seed", range(4))
def test_merged_columns_are_the_algebras_values_bit_for_bit(seed: int) -> None:
    rng = random.Random(seed)
    events = random_stream(rng, 120)
    edges = [0, 60_000, -60_000, 59_999, -1, *(rng.choice(events)["event_time_ms"] for _ in range(3))]
    num_known = 0
    for group, specs in by_group_and_window().values():
        rows = states(group, events)
        for as_of_ms in edges:
            got = merged(group, specs, rows, as_of_ms)
            for spec in specs:
                want = [Aggregator(group).value_at(spec, mine, as_of_ms) for mine in rows.values()]
                assert got[spec.name] == want, (spec.name, as_of_ms)
                num_known += sum(value is not None for value in want)
    assert num_known > 1_000


@pytest.mark.parametrize("seed", [1, 2])
def test_whole_numbers_merge_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    events = [event for event in random_stream(rng, 200) if event["thing"] is not None]
    for group in CATALOGUE.tile_groups():
        aggregator = Aggregator(group)
        whole = [p for p, partial in enumerate(group.partials) if partial.type == "int"]
        parts = [aggregator.add(aggregator.start(), event) for event in events]
        results = []
        for _ in range(5):
            pending = rng.sample(parts, len(parts))
            while len(pending) > 1:  # merge any two
                a, b = pending.pop(rng.randrange(len(pending))), pending.pop(rng.randrange(len(pending)))
                pending.append(aggregator.merge(a, b))
            results.append([pending[0][0], *(pending[0][1 + p] for p in whole)])
        assert all(result == results[0] for result in results)
        assert results[0][0] == len(events)


def test_doubles_are_added_from_the_oldest_tile_to_the_newest() -> None:
    # oldest to newest 1e16 + 1.0 + 1.0 loses both ones; the other way round 1.0 + 1.0 + 1e16 does not
    newest_first, rows = np.array([1.0, 1.0, 1e16, 0.1, 0.2, 0.3]), np.array([0, 0, 0, 2, 2, 2])
    assert add_in_order(newest_first, rows, 4).tolist() == [1e16, 0.0, 0.3 + 0.2 + 0.1, 0.0]
    assert 1e16 + 1.0 + 1.0 != 1.0 + 1.0 + 1e16
    rng = np.random.default_rng(3)
    values = rng.normal(size=20_000) * 10.0 ** rng.integers(-9, 9, 20_000)
    want = 0.0
    for value in values[::-1].tolist():
        want += value
    assert add_in_order(values, np.zeros(len(values), dtype=np.int64), 1)[0] == want
    assert abs(want - math.fsum(values)) <= len(values) * 2.0**-53 * math.fsum(np.abs(values))


def test_window_takes_whole_tiles_and_the_current_one() -> None:
    #  hop 1m, window 5m, asked in tile 0:   tiles -5 … 0
    group, specs = next(
        (g, s) for g, s in by_group_and_window().values() if s[0].window_ms == 300_000 and g.buckets is None
    )
    count = next(spec for spec in specs if spec.name == "count_1")
    empty = Aggregator(group).start()[1:]
    place = group.places_of(count)[0]
    ones = [1 if p == place else value for p, value in enumerate(empty)]
    rows = {"a": {tile: [1, *ones] for tile in range(-9, 4)}, "b": {}}
    assert [merged(group, specs, rows, as_of_ms)["count_1"] for as_of_ms in (0, 59_999, -1, 60_000)] == [[6, 0]] * 4
    only = {"a": {-5: [1, *ones]}, "b": {-6: [1, *ones]}}
    assert merged(group, specs, only, 0)["count_1"] == [1, 0]
    assert merged(group, specs, only, -1)["count_1"] == [1, 1]


def test_sum_beyond_the_doubles_is_null_and_a_sum_of_ints_wraps() -> None:
    group, specs = next(
        (g, s) for g, s in by_group_and_window().values() if s[0].window_ms == 300_000 and g.buckets is None
    )
    event = {"event_id": "e", "thing": "a", "ingest_time_ms": 0, "i": 2**63 - 1, "d": 1.7e308, "ok": True, "s": None}
    events = [{**event, "event_time_ms": at} for at in (0, 0, 60_000)]
    rows = states(group, events)
    got = {name: values[0] for name, values in merged(group, specs, rows, 60_000).items()}
    assert got["sum_d_1"] is got["avg_d_1"] is got["decayed_d_1"] is None and got["max_d_1"] == 1.7e308
    assert got["sum_i_1"] == 3 * (2**63 - 1) - 2**64 and got["count_i_1"] == 3
    back = {name: values[0] for name, values in merged(group, specs, states(group, [*events, *({**e, "d": -1.7e308} for e in events)]), 60_000).items()}  # fmt: skip
    assert back["sum_d_1"] is None and back["count_d_1"] == 6, "inf and -inf add up to nothing that is known"


def test_bucketed_rows_before_1970_stay_in_their_tile() -> None:
    group, specs = next(
        (g, s) for g, s in by_group_and_window().values() if g.buckets is not None and s[0].name == "quantile_i_1"
    )
    event = {"event_id": "e", "thing": "a", "ingest_time_ms": 0, "d": None, "ok": None, "s": None}
    rows = states(group, [{**event, "event_time_ms": -1, "i": 5}, {**event, "event_time_ms": -60_001, "i": None}])
    assert sorted(number // NUM_BUCKETS for number in rows["a"]) == [-2, -1]
    assert merged(group, specs, rows, 0)["quantile_i_1"] == [5.0, None, None]
    assert merged(group, specs, rows, 300_000)["quantile_i_1"][0] is None


def test_no_keys_and_no_tiles_merge_to_nothing() -> None:
    for group, specs in by_group_and_window().values():
        nothing: dict[str, Rows] = {}
        assert all(values == [] for values in merged(group, specs, nothing, 0).values())
        for name, values in merged(group, specs, {"a": {}}, 0).items():
            spec = next(spec for spec in specs if spec.name == name)
            assert values == [Aggregator(group).value_at(spec, {}, 0)], name


def test_deviations_of_columns_are_those_of_single_rows_bit_for_bit() -> None:
    """From nothing to the limit of 2^42, also negative steps whose moments wrap on the way to a small result."""
    rng = random.Random(4)
    group, specs = next(
        (g, s) for g, s in by_group_and_window().values() if s[0].window_ms == 300_000 and g.buckets is None
    )
    spec = next(spec for spec in specs if spec.name == "stddev_i_1_1.0")
    slots, aggregator = group.places_of(spec), Aggregator(group)
    states = []
    for size in range(1, 43):
        for centre in (0, 2**size // 2, -(2**size) // 2):
            state = aggregator.start()
            for _ in range(rng.randrange(6)):
                value = max(min(centre + rng.randrange(-(2**size) // 2, 2**size // 2 + 1), 2**42 - 1), 1 - 2**42)
                state = aggregator.add(state, {"i": value, "d": None, "ok": None})
            states.append(state)
    columns = [np.array([state[1 + slot] for state in states], dtype=np.int64) for slot in slots]
    values, there = finish(spec, columns, group, slots)
    assert there is not None
    want = [aggregator.finish(spec, state) for state in states]
    assert [v if ok else None for v, ok in zip(values.tolist(), there.tolist(), strict=True)] == want
    wide = [np.array([n, 0, 0, 0, 0]) for n in (2**20, 2**20 + 1, 0)]
    found, there = finish(spec, list(np.array(wide).T), group, slots)
    assert there is not None and there.tolist() == [True, False, False] and found[0] == 0.0

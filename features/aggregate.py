"""The aggregates row at a time: start, add, merge, finish. The plain meaning of what Flink SQL and the reader compute.

    events ─► add: one state per key and row of a tile group ─► merge: the rows of a window ─► finish: a value
    events ─► add: one state per key of a last group ─► merge, any time, any order ─► finish: a value

What each aggregate means, exactly, and its limits: AGGREGATES.md. `replay` runs a list of events through it into a store,
with the fates of infra/DESIGN.md §2: the feature job without Flink, for YAML view tests and for oracles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from features.buckets import MIDPOINTS, NO_VALUE, bucket_of, quantized, rank_of
from features.expr import Program, interpret
from features.spec import Catalogue, FeatureSpec, Key, LastField, LastGroup, Partial, Source, TileGroup
from features.window import num_whole_tiles, tile_of, window_tiles

if TYPE_CHECKING:
    from features.store import OnlineStore

Event = Mapping[str, Any]
State = list[int | float]  # number of events, then one number per partial
LastState = list[tuple[int, bytes, Any] | None]  # (event time, event id, value) per field

MOMENT_BITS: Final = 21  # a step count q is b * 2^21 + a
MOMENT_EVENTS: Final = 1 << 20  # the sums of moments fit 64 bits up to this many events


class Aggregator:
    """One tile group. Its rows are the tiles, or the buckets of tiles, of one key."""

    def __init__(self, group: TileGroup) -> None:
        self.group = group

    def row_of(self, event: Event) -> int:
        """The number of the row that counts an event."""
        tile = tile_of(int(event[self.group.source.event_time]), self.group.hop_ms)
        buckets = self.group.buckets
        if buckets is None:
            return tile
        steps = quantized(_value(buckets.of, buckets.where, event), buckets.resolution)
        return tile * self.group.rows_per_tile + (NO_VALUE if steps is None else bucket_of(steps))

    def start(self) -> State:
        return [0, *(partial.identity for partial in self.group.partials)]

    def add(self, state: State, event: Event) -> State:
        """The state of a row with one more of its events. Every event counts, also one that no `where` lets through."""
        return [state[0] + 1] + [
            _combine(partial, value, contribution(partial, event))
            for partial, value in zip(self.group.partials, state[1:], strict=True)
        ]

    def merge(self, a: State, b: State) -> State:
        """Associative and commutative; of sums of doubles only to rounding, so they merge from the oldest tile on."""
        return [a[0] + b[0]] + [
            _combine(partial, x, y) for partial, x, y in zip(self.group.partials, a[1:], b[1:], strict=True)
        ]

    def finish(self, spec: FeatureSpec, state: State) -> int | float | None:
        """The value of a merged state, for the aggregates that one state is enough for: `value_at` is for all."""
        places = self.group.places_of(spec)
        values = [state[1 + place] for place in places]
        if spec.aggregate == "avg":
            total = _finite(float(values[0]))
            return None if total is None or not values[1] else total / values[1]
        if spec.aggregate in ("min", "max"):
            return None if values[0] == self.group.partials[places[0]].identity else values[0]
        if spec.aggregate == "stddev":
            assert spec.resolution is not None
            return stddev_of(*(int(value) for value in values), resolution=spec.resolution)
        assert spec.aggregate in ("count", "sum"), spec.aggregate
        return _finite(values[0])

    def value_at(self, spec: FeatureSpec, rows: Mapping[int, State], as_of_ms: int) -> int | float | None:
        """A feature's value at a time, from all rows of one key; those outside the window are left out here."""
        assert spec.window_ms is not None and spec.hop_ms is not None
        first, last = window_tiles(as_of_ms, spec.window_ms, spec.hop_ms)
        per_tile = self.group.rows_per_tile
        inside = [(row, rows[row]) for row in sorted(rows) if first <= row // per_tile <= last]
        if spec.aggregate == "quantile":
            assert spec.q is not None and spec.resolution is not None
            counts: Counter[int] = Counter()
            for row, state in inside:
                counts[row % per_tile] += int(state[0])
            return quantile_of(counts, q=spec.q, resolution=spec.resolution)
        if spec.aggregate == "decayed_sum":
            (place,) = self.group.places_of(spec)
            weights, total = decay_weights(spec), 0.0
            for tile, state in inside:
                total += float(state[1 + place]) * weights[last - tile]
            return _finite(total)
        merged = self.start()
        for _, state in inside:
            merged = self.merge(merged, state)
        return self.finish(spec, merged)


class LastAggregator:
    """One last group: per field the value with the highest, or the lowest, (event time, event id bytes)."""

    def __init__(self, group: LastGroup) -> None:
        self.group = group

    def start(self) -> LastState:
        return [None] * len(self.group.fields)

    def add(self, state: LastState, event: Event) -> LastState:
        source = self.group.source
        at = int(event[source.event_time]), str(event[source.event_id]).encode()
        values = [_value(field.of, field.where, event) for field in self.group.fields]
        return self.merge(state, [None if value is None else (*at, value) for value in values])

    def merge(self, a: LastState, b: LastState) -> LastState:
        """Associative, commutative, and merging a state again changes nothing."""
        return [_first_or_last(field, x, y) for field, x, y in zip(self.group.fields, a, b, strict=True)]

    def finish(self, spec: FeatureSpec, state: LastState) -> Any:
        """The value, None where there is none."""
        found = state[self.group.index_of(spec)]
        return None if found is None else found[2]


def contribution(partial: Partial, event: Event) -> int | float:
    """What one event adds: the identity where `where` is not true or `of` has no value."""
    if partial.of is None:
        let_through = partial.where is None or interpret(partial.where, event) is True
        return 1 if let_through else partial.identity
    value = _value(partial.of, partial.where, event)
    if partial.resolution is not None:
        value = quantized(value, partial.resolution)
    if value is None:
        return partial.identity
    if partial.resolution is not None:
        low, high = value & ((1 << MOMENT_BITS) - 1), value >> MOMENT_BITS
        return {
            "moment_n": 1,
            "moment_q": value,
            "moment_aa": low * low,
            "moment_ab": low * high,
            "moment_bb": high * high,
        }[partial.function]
    return 1 if partial.function == "count" else value


def stddev_of(n: int, q: int, aa: int, ab: int, bb: int, *, resolution: float) -> float | None:
    """The population's standard deviation from the sums of moments (spec.Partial).

    n * Σq² − (Σq)² in whole numbers of any size: nothing cancels. None for nothing, and for more than 2^20 events,
    whose sums may have wrapped.
    """
    if not 0 < n <= MOMENT_EVENTS:
        return None
    squares = (bb << 2 * MOMENT_BITS) + (ab << MOMENT_BITS + 1) + aa
    return math.sqrt(n * squares - q * q) / n * resolution


def quantile_of(counts: Mapping[int, int], *, q: float, resolution: float) -> float | None:
    """The middle of the bucket that holds the value of rank ceil(q * n); None for no value at all."""
    known = sorted((bucket, count) for bucket, count in counts.items() if bucket != NO_VALUE and count > 0)
    if not known:
        return None
    rank = rank_of(q, sum(count for _, count in known))
    for bucket, count in known:
        rank -= count
        if rank <= 0:
            return float(MIDPOINTS[bucket]) * resolution
    raise AssertionError("a rank is within the count")


def decay_weights(spec: FeatureSpec) -> tuple[float, ...]:
    """2^(−age · hop / half life) for each age in tiles, from 0, the current tile, to the window's oldest.

    A table and not a formula, so that every form multiplies with the same doubles.
    """
    assert spec.window_ms is not None and spec.hop_ms is not None and spec.half_life_ms is not None
    return _weights(num_whole_tiles(spec.window_ms, spec.hop_ms), spec.hop_ms, spec.half_life_ms)


@lru_cache(maxsize=256)
def _weights(num_tiles: int, hop_ms: int, half_life_ms: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-age * hop_ms / half_life_ms) for age in range(num_tiles + 1))


def wrap_int64(value: int) -> int:
    """What is left in 64 bits: a sum that leaves them wraps in Flink and NumPy, so it does everywhere."""
    return (value + 2**63) % 2**64 - 2**63


def _value(of: Program, where: Program | None, event: Event) -> Any:
    """An event's value, None where `where` is not true, and for a double that is no finite number."""
    if where is not None and interpret(where, event) is not True:
        return None
    return _finite(interpret(of, event))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _combine(partial: Partial, a: int | float, b: int | float) -> int | float:
    if partial.function in ("min", "max"):
        return min(a, b) if partial.function == "min" else max(a, b)
    return a + b if partial.type == "double" else wrap_int64(int(a) + int(b))


def _first_or_last(
    field: LastField, a: tuple[int, bytes, Any] | None, b: tuple[int, bytes, Any] | None
) -> tuple[int, bytes, Any] | None:
    if a is None or b is None:
        return b if a is None else a
    return a if (a[:2] >= b[:2]) == field.newest else b


def fate_of(source: Source, event: Event, first_ms: dict[str, int]) -> str:
    """ "duplicate", "future", "late" or "used", tried in this order. `first_ms` keeps each id's first arrival."""
    event_ms, ingest_ms = int(event[source.event_time]), int(event[source.ingest_time])
    if source.dedup is not None:
        id_ = str(event[source.dedup.by])
        if id_ in first_ms and ingest_ms - first_ms[id_] <= source.dedup.horizon_ms:
            return "duplicate"
        first_ms[id_] = ingest_ms
    if event_ms - ingest_ms > source.future_ms:
        return "future"
    return "late" if ingest_ms - event_ms > source.disorder_ms else "used"


def replay(
    store: OnlineStore, catalogue: Catalogue, generations: Mapping[str, int], source: Source, events: Sequence[Event]
) -> Counter[str]:
    """Send one source's events, in the order of arrival, to all its groups. Returns the number of events per fate."""
    first_ms: dict[str, int] = {}
    fates: Counter[str] = Counter()
    used: list[Event] = []
    for event in events:
        fate = fate_of(source, event, first_ms)
        fates[fate] += 1
        if fate == "used":
            used.append(event)
    if not events:
        return fates
    through_ms = max(int(event[source.ingest_time]) for event in events)
    for group in catalogue.groups_of(source.name):
        mine = [event for event in used if group.key_of(event) is not None]
        if isinstance(group, TileGroup):
            write_tiles(store, group, generations[group.name], mine, through_ms)
        else:
            write_last(store, group, generations[group.name], mine, through_ms)
    return fates


def write_tiles(
    store: OnlineStore, group: TileGroup, generation: int, events: Iterable[Event], through_ms: int
) -> None:
    """Aggregate events by (key, row) and write the rows."""
    aggregator = Aggregator(group)
    states: dict[tuple[Key, int], State] = {}
    for event in events:
        key = group.key_of(event)
        assert key is not None, "an event without a key belongs to no tile"
        at = (key, aggregator.row_of(event))
        states[at] = aggregator.add(states.get(at) or aggregator.start(), event)
    columns = list(zip(*states.values(), strict=True)) or [()] * (1 + len(group.partials))
    store.write_tiles(
        group,
        generation,
        [key for key, _ in states],
        np.array([row for _, row in states], dtype=np.int64),
        np.array(columns[0], dtype=np.int64),
        [
            np.array(c, dtype=np.float64 if p.type == "double" else np.int64)
            for p, c in zip(group.partials, columns[1:], strict=True)
        ],
        applied_through_ms=through_ms,
    )


def write_last(store: OnlineStore, group: LastGroup, generation: int, events: Iterable[Event], through_ms: int) -> None:
    """Write each event's last values."""
    rows = list(events)
    keys = [key for key in map(group.key_of, rows) if key is not None]
    assert len(keys) == len(rows), "an event without a key has no last values"
    values: dict[str, list[Any]] = {
        field.name: [_value(field.of, field.where, event) for event in rows] for field in group.fields
    }
    source = group.source
    store.write_last(
        group,
        generation,
        keys,
        np.array([event[source.event_time] for event in rows], dtype=np.int64),
        [str(event[source.event_id]) for event in rows],
        values,
        applied_through_ms=through_ms,
    )

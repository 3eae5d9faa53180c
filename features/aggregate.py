"""The aggregates row at a time: start, add, merge, finish. The plain meaning of what Flink SQL and the reader compute.

`replay` runs a list of events through it into a store, with the fates of infra/DESIGN.md §2: the feature job without
Flink, for YAML view tests and for oracles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from features.expr import interpret
from features.spec import Catalogue, FeatureSpec, LastGroup, Partial, Source, TileGroup
from features.store import OnlineStore
from features.window import tile_of

Event = Mapping[str, Any]
State = list[int | float]  # number of events, then one number per partial


class Aggregator:
    """One tile of one key."""

    def __init__(self, group: TileGroup) -> None:
        self.group = group

    def start(self) -> State:
        return [0, *(partial.identity for partial in self.group.partials)]

    def add(self, state: State, event: Event) -> State:
        """The state with one more event. Every event counts, also one that no `where` lets through."""
        return [state[0] + 1] + [
            _combine(partial, value, contribution(partial, event))
            for partial, value in zip(self.group.partials, state[1:], strict=True)
        ]

    def merge(self, a: State, b: State) -> State:
        """Associative and commutative (of doubles: to rounding)."""
        return [a[0] + b[0]] + [
            _combine(partial, x, y) for partial, x, y in zip(self.group.partials, a[1:], b[1:], strict=True)
        ]

    def finish(self, spec: FeatureSpec, state: State) -> int | float | None:
        """The feature's value, None for the average, minimum or maximum of nothing."""
        places = self.group.places_of(spec)
        values = [state[1 + place] for place in places]
        if spec.aggregate == "avg":
            return float(values[0]) / values[1] if values[1] else None
        if spec.aggregate in ("min", "max"):
            return None if values[0] == self.group.partials[places[0]].identity else values[0]
        return values[0]


def contribution(partial: Partial, event: Event) -> int | float:
    """What one event adds: its identity where `where` is not true or `of` is null."""
    if partial.where is not None and interpret(partial.where, event) is not True:
        return partial.identity
    if partial.of is None:
        return 1
    value = interpret(partial.of, event)
    if value is None:
        return partial.identity
    return 1 if partial.function == "count" else value


def _combine(partial: Partial, a: int | float, b: int | float) -> int | float:
    if partial.function in ("count", "sum"):
        return a + b
    return min(a, b) if partial.function == "min" else max(a, b)


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
        mine = [event for event in used if event[group.key_field] is not None]
        if isinstance(group, TileGroup):
            write_tiles(store, group, generations[group.name], mine, through_ms)
        else:
            write_last(store, group, generations[group.name], mine, through_ms)
    return fates


def write_tiles(
    store: OnlineStore, group: TileGroup, generation: int, events: Iterable[Event], through_ms: int
) -> None:
    """Aggregate events by (key, tile) and write the tiles."""
    aggregator = Aggregator(group)
    states: dict[tuple[str | int, int], State] = {}
    for event in events:
        at = (event[group.key_field], tile_of(int(event[group.source.event_time]), group.hop_ms))
        states[at] = aggregator.add(states.get(at) or aggregator.start(), event)
    columns = list(zip(*states.values(), strict=True)) or [()] * (1 + len(group.partials))
    store.write_tiles(
        group,
        generation,
        [key for key, _ in states],
        np.array([tile for _, tile in states], dtype=np.int64),
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
    values: dict[str, list[Any]] = {
        field.name: [
            interpret(field.of, event) if field.where is None or interpret(field.where, event) is True else None
            for event in rows
        ]
        for field in group.fields
    }
    source = group.source
    store.write_last(
        group,
        generation,
        [event[group.key_field] for event in rows],
        np.array([event[source.event_time] for event in rows], dtype=np.int64),
        [str(event[source.event_id]) for event in rows],
        values,
        applied_through_ms=through_ms,
    )

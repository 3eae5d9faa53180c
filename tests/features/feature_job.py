"""The feature job as these tests need it: running tile aggregates that are sent in batches, as Flink sends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from features.aggregate import Aggregator, State, write_last
from features.expr import interpret
from features.registry import Registry
from features.rows import FeatureBatch, Status, to_served
from features.spec import FeatureSpec, FeatureView, Key, TileGroup
from tests import naive

Write = tuple[TileGroup, list[str | int], np.ndarray, np.ndarray, list[np.ndarray], int]


@dataclass
class TileJob:
    """Keeps every tile's running state; a batch of events gives the rows that changed."""

    group: TileGroup
    states: dict[tuple[str | int, int], State] = field(default_factory=dict)

    def batch(self, events: Sequence[Mapping[str, Any]]) -> Write:
        aggregator, changed = Aggregator(self.group), dict[tuple[str | int, int], State]()
        mine = [event for event in events if self.group.key_of(event) is not None]
        for event in mine:
            at = (self.group.key_of(event), aggregator.row_of(event))
            changed[at] = self.states[at] = aggregator.add(self.states.get(at) or aggregator.start(), event)
        columns = list(zip(*changed.values(), strict=True)) or [()] * (1 + len(self.group.partials))
        return (
            self.group,
            [key for key, _ in changed],
            np.array([tile for _, tile in changed], dtype=np.int64),
            np.array(columns[0], dtype=np.int64),
            [np.array(column) for column in columns[1:]],
            max((event["ingest_time_ms"] for event in mine), default=-(2**53)),
        )


def send(store: Any, write: Write, generation: int = 1) -> np.ndarray:
    group, keys, tiles, counts, partials, through_ms = write
    return store.write_tiles(group, generation, keys, tiles, counts, partials, applied_through_ms=through_ms)


def send_all(
    store: Any, registry: Registry, source: str, jobs: list[TileJob], events: Sequence[Mapping[str, Any]]
) -> list[Write]:
    """One batch of used events to every group of a source."""
    writes = [job.batch(events) for job in jobs]
    for write in writes:
        send(store, write)
    for group in registry.catalogue.last_groups():
        mine = [event for event in events if group.source.name == source and group.key_of(event) is not None]
        if mine:
            write_last(store, group, 1, mine, max(event["ingest_time_ms"] for event in mine))
    return writes


def expected(
    view: FeatureView, spec: FeatureSpec, events: Iterable[Mapping[str, Any]], key: str | int, as_of_ms: int
) -> Any:
    """The brute-force value of one aggregated feature. `events` = the used ones."""
    keyed = [{**event, "key": view.entity.key_of(event, view.key_fields)} for event in events]

    def where(event: Mapping[str, Any]) -> bool:
        return spec.where is None or interpret(spec.where, event) is True

    of = None if spec.of is None else (lambda event: interpret(spec.of, event))
    if spec.aggregate == "last":
        assert of is not None
        found = naive.last_value(keyed, key, as_of_ms, of=of, where=where)
        return None if found is None else found[1]
    assert spec.window_ms is not None and spec.hop_ms is not None and spec.aggregate is not None
    values = naive.window_values(keyed, key, as_of_ms, window_ms=spec.window_ms, hop_ms=spec.hop_ms, of=of, where=where)
    return naive.aggregate(spec.aggregate, values)


def assert_equals_oracle(
    batch: FeatureBatch,
    view: FeatureView,
    events: Sequence[Mapping[str, Any]],
    keys: Sequence[Key],
    as_of_ms: int,
) -> int:
    """Every aggregated value equals brute force. Returns how many values were not null, so that a caller can insist."""
    num_known = 0
    assert to_served(batch) == to_served(replace(batch, cells_FR=None))  # the cells are those of the columns
    for row, key in enumerate(keys):
        got = batch.row(row)
        for f, spec in enumerate(view.features):
            if spec.aggregate is None:
                continue
            want = expected(view, spec, events, key, as_of_ms)
            status = Status(batch.statuses[row, f])
            if want is None:
                assert got[spec.name] is None and status in (Status.NULL, Status.MISSING), (view.name, spec.name, key)
            else:
                # Averages divide the same exact sum by the same count; double sums add in another order.
                close = abs(got[spec.name] - want) <= 1e-9 * max(1.0, abs(want)) if isinstance(want, float) else False
                assert got[spec.name] == want or close, (view.name, spec.name, key, as_of_ms, got[spec.name], want)
                assert status == Status.PRESENT, (view.name, spec.name, key, status)
                num_known += 1
    return num_known

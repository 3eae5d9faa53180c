"""Events as Parquet, and what the online store would have answered: what a history is compared with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from features.aggregate import replay
from features.read_plan import compile_read_plan
from features.registry import local_registry
from features.rows import Status
from features.spec import Catalogue, Source
from features.store import InMemoryStore

TYPES = {"int": pa.int64(), "double": pa.float64(), "bool": pa.bool_(), "string": pa.string()}
Event = Mapping[str, Any]


def table_of(source: Source, events: Iterable[Event]) -> pa.Table:
    """Events as a table of the source's columns."""
    rows = list(events)
    return pa.table(
        {name: pa.array([row[name] for row in rows], TYPES[kind.rstrip("?")]) for name, kind in source.schema.items()}
    )


def write_events(source: Source, events: Sequence[Event], folder: Path, *, files: int, rng: random.Random) -> str:
    """Events in several files, shuffled, but what arrived at one moment in the order of arrival: that is all a file can
    say of it, and doubles are added in it. Returns the glob."""
    folder.mkdir(parents=True, exist_ok=True)
    order = list(range(len(events)))
    rng.shuffle(order)
    seen: dict[int, list[int]] = {}
    for i in sorted(order):
        seen.setdefault(events[i][source.ingest_time], []).append(i)
    order = [seen[events[i][source.ingest_time]].pop(0) for i in order]
    size = -(-len(order) // files)
    for number in range(files):
        part = [events[i] for i in order[number * size : (number + 1) * size]]
        pq.write_table(table_of(source, part), folder / f"part-{number}.parquet", row_group_size=64)
    return str(folder / "*.parquet")


def with_history(catalogue: Catalogue, **patterns: str) -> Catalogue:
    """The catalogue whose sources have these histories."""
    sources = {
        name: replace(source, history=patterns[name]) if name in patterns else source
        for name, source in catalogue.sources.items()
    }
    views = {
        name: view if view.source is None else replace(view, source=sources[view.source.name])
        for name, view in catalogue.views.items()
    }
    return replace(catalogue, sources=sources, views=views)


def online_rows(
    catalogue: Catalogue, view_name: str, source: Source, events: Sequence[Event], asked: Sequence[tuple[Any, int]]
) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """(values, statuses) of each (key, time): a store that was fed what had arrived before it, read once."""
    registry = local_registry(catalogue)
    plan = compile_read_plan(registry, {"r": view_name})
    out: dict[tuple[Any, int], tuple[dict[str, Any], dict[str, str]]] = {}
    for as_of_ms in sorted({t for _, t in asked}):
        store = InMemoryStore(registry.project)
        known = [event for event in events if event[source.ingest_time] < as_of_ms]
        replay(store, catalogue, registry.generations(), source, known)
        keys = list(dict.fromkeys(key for key, t in asked if t == as_of_ms and key is not None))
        batch = store.read(plan, {"r": keys}, as_of_ms)["r"]
        for row, key in enumerate(keys):
            statuses = [Status(code).name.lower() for code in batch.statuses[row]]
            out[key, as_of_ms] = batch.row(row), dict(zip(batch.names, statuses, strict=True))
    return [out[at] if at[0] is not None else ({}, {}) for at in asked]

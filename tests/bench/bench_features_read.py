"""Reads of the online store to arrays, on a real Redis of its own: `python -m tests.bench.bench_features_read`.

Tiles: two views of 4 windows x 5 aggregates each. "dense" keys have an event in every tile that is kept, the worst case;
"sparse" ones in three of ten. Rounds time the whole call: keys to bytes, one round trip, bytes to columns and statuses.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from features.loader import load_catalogue
from features.merge_machine import compiled
from features.redis_store import FeatureReader, TileWriter, compile_read_plan
from features.registry import Registry, local_registry
from features.spec import TileGroup
from infra.local.process import stop, wait_ready
from infra.local.redis import redis_ready, start_redis
from infra.local.stack import free_ports
from tests.bench.harness import Bench, arguments

AS_OF_MS = 1_700_000_000_123
WINDOWS = (("5m", "1m"), ("15m", "1m"), ("1h", "1m"), ("24h", "15m"))
AGGREGATES = ("count", "sum", "avg", "min", "max")

ENTITIES = """
driver: {join_key: driver_id, type: string}
zone: {join_key: zone, type: int}
"""
SOURCES = """
trip_events:
  topic: trip_events
  event_time: event_time_ms
  ingest_time: ingest_time_ms
  event_id: event_id
  disorder: 10m
  future: 1m
  schema:
    {event_id: string, driver_id: string, zone: int, event_time_ms: int, ingest_time_ms: int, fare_cents: 'int?', distance_m: 'double?'}
"""


def view_text(view: str, entity: str, of: str) -> str:
    features = "\n".join(
        f"  {name}_{window}: {{aggregate: {name}, of: {of}, window: {window}, hop: {hop}}}"
        for window, hop in WINDOWS
        for name in AGGREGATES
    )
    return f"view: {view}\nentity: {entity}\nsource: trip_events\nmax_age: 2d\nfeatures:\n{features}\n"


def registry_of(folder: Path) -> Registry:
    (folder / "views").mkdir(parents=True)
    (folder / "entities.yaml").write_text(ENTITIES)
    (folder / "sources.yaml").write_text(SOURCES)
    (folder / "views" / "driver_fares.yaml").write_text(view_text("driver_fares", "driver", "fare_cents"))
    (folder / "views" / "zone_trips.yaml").write_text(view_text("zone_trips", "zone", "distance_m"))
    return local_registry(load_catalogue(folder))


@contextmanager
def own_redis() -> Iterator[str]:
    """A Redis for this run alone."""
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        (port,) = free_ports(1)
        running = start_redis(Path(folder), port, stack_id=f"bench-redis-{os.getpid()}", log=Path(folder) / "log")
        try:
            wait_ready(running, lambda: redis_ready(port), deadline_s=30)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            stop(running)


def keys_of(group: TileGroup, num_keys: int) -> list[str | int]:
    return [f"d-{i:05d}" for i in range(num_keys)] if group.entity.name == "driver" else list(range(num_keys))


def fill_tiles(url: str, registry: Registry, num_keys: int, density: float) -> None:
    """Give every key tiles over the whole span that is kept; seed 7."""
    rng, writer = np.random.default_rng(7), TileWriter(url, registry.project)
    for group, generation in registry.groups():
        assert isinstance(group, TileGroup)
        newest = AS_OF_MS // group.hop_ms
        grid = np.array([newest - i for i in range(group.retain_tiles - 1)])
        for key in keys_of(group, num_keys):
            tiles = grid[rng.random(len(grid)) < density]
            counts = rng.integers(1, 9, len(tiles))
            partials = [
                rng.random(len(tiles)) * 9_000 if p.type == "double" else rng.integers(1, 9_000, len(tiles))
                for p in group.partials
            ]
            writer.write_tiles(
                group, generation, [key] * len(tiles), tiles, counts, partials, applied_through_ms=AS_OF_MS
            )
    writer.close()


def bench_tiles(bench: Bench, registry: Registry, sizes: tuple[int, ...], rounds: int) -> None:
    machine = compiled()
    for density, name in ((1.0, "dense"), (0.3, "sparse")):
        with own_redis() as url:
            fill_tiles(url, registry, max(sizes), density)
            reader, by_numpy = FeatureReader(url, registry.project), FeatureReader(url, registry.project)
            reader.machine = machine
            plan = compile_read_plan(registry, {"driver": "driver_fares", "zone": "zone_trips"})
            groups = {group.entity.name: group for group, _ in registry.groups() if isinstance(group, TileGroup)}
            for size in sizes:
                keys = {role: keys_of(groups[role], size) for role in ("driver", "zone")}
                batch = reader.read(plan, keys, AS_OF_MS)["driver"]
                assert batch.columns["count_5m"].shape == (size,) and batch.valid["count_5m"].all()
                bench.compare(
                    f"tiles, {name}, {size} entities x 2 views x 4 windows x 5 aggregates",
                    {
                        "compiled": partial(reader.read, plan, keys, AS_OF_MS),
                        "NumPy": partial(by_numpy.read, plan, keys, AS_OF_MS),
                    },
                    ours="compiled",
                    unit="ms",
                    limit={100: 2.5, 1000: 15.0}.get(size),
                    rounds=rounds,
                )
            reader.close()


def main() -> int:
    args = arguments(__doc__ or "").parse_args()
    bench = Bench("features_read", packages=("redis", "hiredis", "numpy", "feast"))
    with tempfile.TemporaryDirectory(prefix="bench-catalogue-") as folder:
        registry = registry_of(Path(folder) / "definitions")
        bench_tiles(bench, registry, (10, 100) if args.quick else (10, 100, 1000), 3 if args.quick else 15)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

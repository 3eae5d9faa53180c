"""Guarded tile writes and reads on a real Redis: `python -m tests.bench.bench_tiles redis://127.0.0.1:6379/9`.

The database is flushed. Workload: zipf(1.1) events of 20,000 drivers over 27 hours, 5 % up to ten minutes late, sent as
running partials in batches of 10,000 events to the two tile groups of `driver_activity`; then reads of three views.
CPU seconds of the client and of the server are steadier than wall time on shared cores; both are printed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from typing import Any

import numpy as np
import redis

import features.redis_store as redis_store
import features.redis_writes as redis_writes
from features.loader import SHIPPED, load_catalogue
from features.registry import Registry, local_registry

NUM_DRIVERS, BATCH, HOURS, HOUR_MS = 20_000, 10_000, 27, 3_600_000
AS_OF_MS = HOURS * HOUR_MS - 100_000


def batches(num_batches: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(driver, event time) of each batch; seed 1."""
    rng, span_ms = np.random.default_rng(1), HOURS * HOUR_MS / num_batches
    out = []
    for i in range(num_batches):
        drivers = rng.zipf(1.1, 2 * BATCH)
        drivers = drivers[drivers <= NUM_DRIVERS][:BATCH]
        event_ms = ((i + rng.random(len(drivers))) * span_ms).astype(np.int64)
        late = rng.random(len(drivers)) < 0.05
        event_ms[late] -= rng.integers(0, 600_000, late.sum())
        out.append((drivers, event_ms))
    return out


def bench_writes(
    url: str, registry: Registry, stream: list[tuple[np.ndarray, np.ndarray]], keys_per_call: int
) -> dict[str, Any]:
    redis_writes.KEYS_PER_CALL = keys_per_call  # type: ignore[misc]
    client, writer = redis.Redis.from_url(url), redis_store.TileWriter(url)
    client.flushdb()
    counts: Counter[tuple[int, int, int]] = Counter()
    num_tiles, wall_s, client_s, server_before = 0, 0.0, 0.0, _server_cpu_s(client)
    for drivers, event_ms in stream:
        for group in registry.catalogue.tile_groups()[:2]:
            pairs, num_events = np.unique(np.stack([drivers, event_ms // group.hop_ms], 1), axis=0, return_counts=True)
            for i, (driver, tile) in enumerate(pairs.tolist()):
                counts[group.hop_ms, driver, tile] += int(num_events[i])
                num_events[i] = counts[group.hop_ms, driver, tile]
            keys, partials = [f"d-{driver:05d}" for driver in pairs[:, 0]], [num_events] * len(group.partials)
            started, cpu = time.perf_counter(), time.process_time()
            writer.write_tiles(
                group, 1, keys, pairs[:, 1], num_events, partials, applied_through_ms=int(event_ms.max())
            )
            wall_s += time.perf_counter() - started
            client_s += time.process_time() - cpu
            num_tiles += len(pairs)
    server_s = _server_cpu_s(client) - server_before
    for group in registry.catalogue.tile_groups()[:2]:
        used = redis_store.group_stats(url, [(group, 1)])[group.name].used
        assert used == sum(len(drivers) for drivers, _ in stream), (group.name, used)
    writer.close()
    return {
        "work": "write_tiles",
        "keys_per_call": keys_per_call,
        "tiles": num_tiles,
        "tiles_per_s": round(num_tiles / wall_s),
        "tiles_per_client_cpu_s": round(num_tiles / client_s),
        "tiles_per_server_cpu_s": round(num_tiles / server_s),
        "memory_mb": round(client.info("memory")["used_memory"] / 2**20, 1),
    }


def bench_reads(url: str, registry: Registry, num_drivers: int) -> dict[str, Any]:
    """Three views of `num_drivers` of the busiest drivers, after `bench_writes`."""
    reader = redis_store.FeatureReader(url)
    roles = {"driver": "driver_activity", "driver_state": "driver_state", "pickup_zone": "zone_demand"}
    plan = redis_store.compile_read_plan(registry, roles)
    drivers: list[str | int] = [f"d-{i:05d}" for i in range(1, num_drivers + 1)]
    keys: dict[str, list[str | int]] = {"driver": drivers, "driver_state": drivers, "pickup_zone": [7]}
    for _ in range(20):
        reader.read(plan, keys, AS_OF_MS)
    took, cpu = [], time.process_time()
    for _ in range(300):
        started = time.perf_counter()
        reader.read(plan, keys, AS_OF_MS)
        took.append(1000 * (time.perf_counter() - started))
    cpu_ms = 1000 * (time.process_time() - cpu) / len(took)
    reader.close()
    row = {f"p{p}_ms": round(float(np.percentile(took, p)), 2) for p in (20, 50, 80, 99)}
    return {"work": "read 3 views", "drivers": num_drivers, **row, "client_cpu_ms": round(cpu_ms, 2)}


def _server_cpu_s(client: redis.Redis) -> float:
    cpu: dict[str, float] = client.info("cpu")  # type: ignore[assignment]
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="a Redis database that may be flushed")
    parser.add_argument("--batches", type=int, default=40)
    args = parser.parse_args()
    registry, stream = local_registry(load_catalogue(SHIPPED)), batches(args.batches)
    for keys_per_call in (1, 8, 128, 32):
        print(json.dumps(bench_writes(args.url, registry, stream, keys_per_call)), flush=True)
    for num_drivers in (1, 20, 100):
        print(json.dumps(bench_reads(args.url, registry, num_drivers)), flush=True)


if __name__ == "__main__":
    main()

"""An engine in the test's own process, on a real port, over a real Redis; and features for it to read."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.app import App
from engine.decision_log import DecisionLog, DecisionLogConfig
from engine.feature_source import FeatureSource
from engine.metrics import Metrics
from engine.reload import Library, LibraryConfig
from engine.server import SHIPPED_STRATEGIES, asgi_server
from features.records import Decision, decode
from features.redis_store import FeatureReader, TileWriter
from features.registry import Registry, load_registry
from tests.engine.support import AS_OF_MS
from tests.engine.test_decision_log import Broker


class Engine:
    """An engine in this process on a real port, with a real Redis and a broker in memory."""

    def __init__(self, folder: Path, redis_url: str, project: str) -> None:
        self.strategies, self.models = folder / "strategies", folder / "models"
        self.strategies.mkdir()
        self.models.mkdir()
        for path in SHIPPED_STRATEGIES.glob("*.yaml"):
            (self.strategies / path.name).write_text(path.read_text())
        shutil.copytree(SHIPPED_STRATEGIES / "tables", self.strategies / "tables")
        self.broker = Broker()
        self.log = DecisionLog(DecisionLogConfig(directory=folder / "spill"), lambda: self.broker)
        config = LibraryConfig(strategies_dir=self.strategies, models_dir=self.models)
        self.library = Library(config, lambda: load_registry(redis_url, project))
        self.library.start()
        self.reader = FeatureReader(redis_url, project, timeout_s=0.5)
        self.app = App(self.library, FeatureSource(self.reader), self.log, Metrics())
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = asgi_server(self.app, 5)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.library.stop()
        self.log.close()
        self.reader.close()

    def decisions(self) -> list[Decision]:
        """What reached the topic, once it is all there."""
        deadline = time.monotonic() + 10
        while self.log.backlog:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return [decode(value, Decision) for _, value in self.broker.kept]


def fill(redis_url: str, registry: Registry) -> None:
    """A heartbeat in every group, and a few tiles for drivers c-0 to c-9 (offers, fares) and zone 7."""
    writer = TileWriter(redis_url, registry.project)
    for group in registry.catalogue.tile_groups():
        keys: list[Any] = [f"c-{n}" for n in range(10)] if group.entity.keys[0].type == "string" else [7]
        count = len(keys)
        tiles = np.full(count, AS_OF_MS // group.hop_ms - 1, dtype=np.int64)
        counts = np.arange(1, count + 1, dtype=np.int64)
        partials = [counts.astype(np.int64 if p.type == "int" else np.float64) for p in group.partials]
        generation = registry.generation_of(group.name)
        writer.write_tiles(group, generation, keys, tiles, counts, partials, applied_through_ms=AS_OF_MS - 500)
    for last in registry.catalogue.last_groups():
        values = {f.name: ["idle" if f.type == "string" else 3] for f in last.fields}
        key: list[Any] = ["c-1"] if last.entity.keys[0].type == "string" else [7]
        times = np.array([AS_OF_MS - 1000], dtype=np.int64)
        generation = registry.generation_of(last.name)
        writer.write_last(last, generation, key, times, ["e-1"], values, applied_through_ms=AS_OF_MS - 500)
    writer.close()

"""An engine in a process of its own for bench_rules.py: the benchmark's strategy, no store, no log, no model.

usage: python -m tests.bench.reload_engine FOLDER      FOLDER/strategies has the files; prints its port
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

from engine.app import App
from engine.feature_source import FeatureSource
from engine.fused_cache import FusedCache
from engine.metrics import Metrics
from engine.reload import Library, LibraryConfig
from engine.rule_forms import RuleForms
from engine.server import asgi_server, settle_interpreter
from features.store import StoreError
from tests.engine.support import catalogue_registry


class NoStore:
    """The benchmark's strategy reads no features: a read would be a fault."""

    def read(self, plan: Any, keys: Any, as_of_ms: int) -> Any:
        raise StoreError("there is no store here")


def main(folder: Path) -> None:
    (folder / "models").mkdir(exist_ok=True)
    cache = FusedCache(folder / "fused")
    registry = catalogue_registry()
    config = LibraryConfig(strategies_dir=folder / "strategies", models_dir=folder / "models")
    library = Library(config, lambda: registry, make_rules=lambda compiled: RuleForms(compiled, cache))
    library.start()
    app = App(library, FeatureSource(NoStore()), None, Metrics())
    settle_interpreter()  # as `engine.server.serve` does
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    try:
        asgi_server(app, 5).run(sockets=[listener])
    finally:
        library.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

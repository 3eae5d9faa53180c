"""Fixtures of the engine's tests: one applied project in the shared Redis, and an engine on a real port."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.decide import LiveStrategy
from features.loader import SHIPPED
from features.registry import apply_catalogue
from tests.engine.running import Engine, fill
from tests.engine.support import KITCHEN_SINK, catalogue_registry, compile_text, make_live, sink_models


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> LiveStrategy:
    """The strategy with everything in it, and both of its models."""
    folder = tmp_path_factory.mktemp("sink")
    registry = catalogue_registry()
    return make_live(compile_text(KITCHEN_SINK, folder, registry), registry, sink_models(folder / "models"))


@pytest.fixture(scope="session")
def project(redis_url: str) -> str:
    """The shipped features applied and a few values written, under a name of this run's own."""
    name = f"engine-{os.getpid()}"
    registry = apply_catalogue(SHIPPED, redis_url, actor="test", reason="test", project=name).registry
    fill(redis_url, registry)
    return name


@pytest.fixture
def engine(tmp_path: Path, redis_url: str, project: str) -> Iterator[Engine]:
    running = Engine(tmp_path, redis_url, project)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def client(engine: Engine) -> Iterator[EngineClient]:
    with EngineClient(engine.url, timeout_s=5.0) as made:
        yield made

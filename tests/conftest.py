"""Fixtures that every room uses: one real Redis, one real local stack (Kafka, Redis, Flink) for the whole run.

Tests that need a service ask for it here; nothing is mocked and nothing is skipped when a part is missing: the fixture
fails with the reason. Both are stopped at the end, and live in a temporary folder of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from infra.local.process import stop, wait_ready
from infra.local.redis import redis_ready, start_redis
from infra.local.stack import Stack, free_ports

# Deadlines measure the machine, not the code: a busy one must not fail a right test.
settings.register_profile("hailstream", deadline=None)
settings.load_profile("hailstream")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis of its own. Tests share it: each uses a project name or keys of its own."""
    folder = tmp_path_factory.mktemp("redis")
    (port,) = free_ports(1)
    running = start_redis(folder, port, stack_id=f"test-redis-{os.getpid()}", log=folder / "redis.log")
    try:
        wait_ready(running, lambda: redis_ready(port), deadline_s=30)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        stop(running)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A real local stack. Its address book is `stack.kafka`, `.redis_url`, `.flink_rest`, its folder `.folder`."""
    own = Stack(tmp_path_factory.mktemp("stack"))
    try:
        own.up(print)
        yield own
    finally:
        own.down()

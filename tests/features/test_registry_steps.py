"""A step of the registry that fails anywhere leaves all of it or nothing: document, history and markers together."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from features.loader import SHIPPED
from features.packing import GroupKeys
from features.registry import apply_catalogue, history_key, load_registry, registry_key
from features.rollout import abort, rebuild, switch
from features.store import StoreError
from tests.features.test_staging import HOUR_MS, NEW, OLD, QUARTER, beat, folder_with, keys_of


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    return folder_with(tmp_path / "edited", OLD, NEW)


@pytest.mark.parametrize("verb", ["apply", "stage", "switch", "rebuild", "abort"])
def test_a_step_that_fails_anywhere_leaves_all_or_nothing(redis_url: str, edited: Path, verb: str) -> None:
    """The connection is cut after the first, the second, … command of the step, until one gets through."""
    for cut_after in range(60):
        name = f"cut-{verb}-{cut_after}"
        if verb != "apply":
            beat(
                redis_url,
                apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=name).registry,
                9 * HOUR_MS,
            )
        if verb in ("switch", "abort"):
            staged = apply_catalogue(edited, redis_url, actor="a", reason="r", project=name).registry.staged
            assert staged is not None
            beat(redis_url, staged, 9 * HOUR_MS, names={QUARTER})
        before = snapshot(redis_url, name)
        with CutAfter(redis_url, cut_after) as url:
            try:
                step(verb, url, name, edited)
            except StoreError:
                done = False
            else:
                done = True
        after = snapshot(redis_url, name)
        changed = after[0] != before[0]
        assert len(after[1]) == len(before[1]) + changed, (verb, cut_after)
        if changed:
            registry = load_registry(redis_url, name)
            alive = [registry, *([registry.staged] if registry.staged else [])]
            wanted = {GroupKeys(name, n, g.generation).marker for r in alive for n, g in r.document.groups.items()}
            assert wanted <= after[2]
        else:
            assert not done and after[2] == before[2]
        if done:
            assert cut_after > 2
            return
    pytest.fail("no number of commands was enough")


def step(verb: str, url: str, project: str, edited: Path) -> None:
    who = {"actor": "a", "reason": "r"}
    if verb in ("apply", "stage"):
        apply_catalogue(SHIPPED if verb == "apply" else edited, url, project=project, **who)
    elif verb == "switch":
        switch(url, project, without_backfill=True, **who)
    elif verb == "rebuild":
        rebuild(url, None, project, **who)
    else:
        abort(url, project, **who)


def snapshot(redis_url: str, project: str) -> tuple[bytes | None, list[bytes], set[bytes]]:
    with redis.Redis.from_url(redis_url) as client:
        markers = {
            k for k in keys_of(redis_url, project) if k.startswith(b"hailstream:group:") and k.endswith(b":marker")
        }
        return client.get(registry_key(project)), client.lrange(history_key(project), 0, -1), markers


class CutAfter:
    """A way to Redis that closes all connections after so many messages of the client have passed."""

    def __init__(self, redis_url: str, num_messages: int) -> None:
        port = urlsplit(redis_url).port
        assert port is not None
        self._port, self._left = port, num_messages
        self._lock, self._sockets = threading.Lock(), list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> str:
        threading.Thread(target=self._accept, daemon=True).start()
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 20):
                if counted:
                    with self._lock:
                        self._left -= 1
                        if self._left < 0:
                            self._cut()
                            return
                target.sendall(data)
        except OSError:
            return

    def _cut(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

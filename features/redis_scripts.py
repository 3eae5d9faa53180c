"""Running scripts on Redis: one connection, the lives that markers must show, pipelined calls and their refusals.

Every script compares the generation's marker with the *life* that the writer shows. A Redis that lost its data, or was
filled anew, holds another one or none: then nothing is written, because the tiles that a job still remembers are not all
that windows need, and a heartbeat beside them would show wrong values as fresh ones. Scripts, not functions, so that
Redis 6.2 serves. What is written is in features/redis_writes.py (tiles, last values) and features/redis_rows.py.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from features.lua import script
from features.packing import GroupKeys, KeyEncoder
from features.redis_client import address_of, connect, store_errors
from features.spec import PROJECT, Entity
from features.store import GenerationLost, StoreError

KEYS_PER_CALL: Final = 32  # one script call serves this many keys: tests/bench/bench_tiles.py
CALLS_PER_PIPELINE: Final = 64
KEPT_S: Final = 5.0  # a killed Redis loses two seconds at most (appendfsync everysec, whose write is put off no longer)

Calls = Sequence[tuple[Sequence[bytes], Sequence[Any]]]


@dataclass
class Recent:
    """What a thread has lately written to one Redis, to be sent again to one that was killed and came back without it.

    Its file ends a little before its last answers. A tile whose last events were answered then would stay as it is for
    good: no state of a job says it again. All calls are idempotent, so too many do no harm.
    """

    run_id: str | None = None
    calls: deque[tuple[float, str, Calls]] = field(default_factory=deque)

    def add(self, name: str, calls: Calls) -> None:
        now_s = time.monotonic()
        while self.calls and now_s - self.calls[0][0] > KEPT_S:
            self.calls.popleft()
        self.calls.append((now_s, name, calls))


_OF_THREAD: Final = threading.local()  # by address: it outlives a writer, which is made anew after every error


class ScriptWriter:
    """A writer's way to Redis. One per thread: it owns one connection.

    `lives`: what the marker of (group, generation) must say (`Registry.life_of`). A writer that is given none for a
    generation takes what stands there at its first write, and makes a generation that has no marker.
    """

    def __init__(
        self,
        redis_url: str,
        project: str = PROJECT,
        *,
        lives: Mapping[tuple[str, int], str] | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._address = address_of(redis_url)
        self._project = project
        self._recent: Recent = vars(_OF_THREAD).setdefault(self._address, Recent())
        self._num_connections, self._num_checked = 0, -1
        with store_errors(self._address):  # a single connection is opened at once
            self._client = connect(redis_url, timeout_s, single_connection=True, connected=self._connected)
        self._encoders: dict[Entity, KeyEncoder] = {}
        self._shas: dict[str, bytes] = {}
        self._lives = {GroupKeys(project, *place).marker: life.encode() for place, life in (lives or {}).items()}

    def close(self) -> None:
        self._client.close()

    def _life(self, names: GroupKeys) -> bytes:
        """What the marker must say, for as long as this writer lives."""
        known = self._lives.get(names.marker)
        if known is None:
            with store_errors(self._address):
                self._client.set(names.marker, secrets.token_hex(8), nx=True)
                found: bytes | None = self._client.get(names.marker)  # type: ignore[assignment]
            known = self._lives[names.marker] = found or b""
        return known

    def _encoder(self, entity: Entity) -> KeyEncoder:
        return self._encoders.setdefault(entity, KeyEncoder(entity))

    def _connected(self) -> None:
        self._num_connections += 1

    def _call(self, name: str, calls: Calls) -> list[Any]:
        """Run one script many times, pipelined; replies in order. Before it returns, a Redis that was restarted has what it
        lost: values come before the heartbeat that speaks of them, which is a call of its own."""
        self._repeat_lost()
        replies = self._run(name, calls)
        self._repeat_lost()
        self._recent.add(name, calls)
        return replies

    def _repeat_lost(self) -> None:
        while (seen := self._num_connections) != self._num_checked:
            with store_errors(self._address):
                run_id = str(self._client.info("server")["run_id"])  # type: ignore[index]
            if self._recent.run_id not in (None, run_id):
                for _, name, calls in tuple(self._recent.calls):
                    self._run(name, calls)
            self._recent.run_id, self._num_checked = run_id, seen

    def _run(self, name: str, calls: Calls) -> list[Any]:
        """One script many times.

        A Redis that restarted has forgotten its scripts and answers NOSCRIPT for calls that had no effect: the script
        is loaded again and only those are repeated.
        """
        replies: list[Any] = []
        with store_errors(self._address):
            for first in range(0, len(calls), CALLS_PER_PIPELINE):
                part = calls[first : first + CALLS_PER_PIPELINE]
                got = self._pipeline(name, part)
                forgotten = [i for i, reply in enumerate(got) if isinstance(reply, redis.exceptions.NoScriptError)]
                if forgotten:
                    self._shas.pop(name, None)
                    for i, reply in zip(forgotten, self._pipeline(name, [part[i] for i in forgotten]), strict=True):
                        got[i] = reply
                for reply in got:
                    if isinstance(reply, Exception):
                        self._refuse_lost(str(reply))
                        raise StoreError(f"Redis at {self._address} refused {name}: {reply}") from reply
                replies.extend(got)
        return replies

    def _refuse_lost(self, reply: str) -> None:
        """Raises: GenerationLost where a script answered that the marker does not say what it should."""
        if not reply.startswith("NOGEN "):
            return
        project, group, generation = reply.removeprefix("NOGEN ").split(":")[2:5]
        raise GenerationLost(
            f"Redis at {self._address} no longer holds generation {generation} of group {group} (project {project}): its data was "
            "lost, dropped or applied anew, and what a job remembers of it is not all that windows need. Nothing is written. "
            "Where the registry is still there (`hailstream features list`): `hailstream features rebuild --all`. Where it is "
            "gone as well: `hailstream features apply`, then `hailstream jobs stop ID --no-savepoint` and submit the job again"
        )

    def _pipeline(self, name: str, calls: Calls) -> list[Any]:
        if name not in self._shas:
            sha = self._client.script_load(script(name))
            self._shas[name] = sha if isinstance(sha, bytes) else str(sha).encode()
        pipeline = self._client.pipeline(transaction=False)
        for keys, args in calls:
            pipeline.execute_command("EVALSHA", self._shas[name], len(keys), *keys, *args)
        return pipeline.execute(raise_on_error=False)

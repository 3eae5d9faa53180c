"""Running scripts on Redis: one connection, the lives that markers must show, pipelined calls and their refusals.

Every script compares the generation's marker with the *life* that the writer shows. A Redis that lost its data, or was
filled anew, holds another one or none: then nothing is written, because the tiles that a job still remembers are not all
that windows need, and a heartbeat beside them would show wrong values as fresh ones. Scripts, not functions, so that
Redis 6.2 serves. What is written is in features/redis_writes.py (tiles, last values) and features/redis_rows.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis

from features.lua import script
from features.packing import GroupKeys, KeyEncoder
from features.redis_client import address_of, connect, store_errors
from features.spec import PROJECT, Entity
from features.store import GenerationLost, StoreError

KEYS_PER_CALL: Final = 32  # one script call serves this many keys: tests/bench/bench_tiles.py
CALLS_PER_PIPELINE: Final = 64


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
        with store_errors(self._address):  # a single connection is opened at once
            self._client = connect(redis_url, timeout_s, single_connection=True)
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

    def _call(self, name: str, calls: Sequence[tuple[Sequence[bytes], Sequence[Any]]]) -> list[Any]:
        """Run one script many times, pipelined; replies in order.

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

    def _pipeline(self, name: str, calls: Sequence[tuple[Sequence[bytes], Sequence[Any]]]) -> list[Any]:
        if name not in self._shas:
            sha = self._client.script_load(script(name))
            self._shas[name] = sha if isinstance(sha, bytes) else str(sha).encode()
        pipeline = self._client.pipeline(transaction=False)
        for keys, args in calls:
            pipeline.execute_command("EVALSHA", self._shas[name], len(keys), *keys, *args)
        return pipeline.execute(raise_on_error=False)

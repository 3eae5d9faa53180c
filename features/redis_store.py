"""Reads of tiles, last values and rows from Redis, in one round trip, and what the groups report of themselves.

    redis_client.py    the connection, the registry's document      redis_scripts.py   how a guarded script is called
    redis_writes.py    tiles and last values                        redis_rows.py      rows of batch views
    redis_keys.py      which keys there are, and taking them away

What is read and how it is merged is in features/read_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from features import freshness
from features.merge_machine import TileMachine
from features.packing import GroupKeys
from features.read_plan import ReadPlan, Requests, compile_read_plan
from features.redis_client import address_of, connect, read_document, read_history, store_errors, swap_document
from features.redis_writes import TileWriter, expiry_ms
from features.rows import FeatureBatch
from features.spec import PROJECT, Group, Key
from features.store import GroupStats

__all__ = [
    "FeatureReader",
    "GroupStats",
    "ReadPlan",
    "TileWriter",
    "address_of",
    "compile_read_plan",
    "connect",
    "expiry_ms",
    "group_stats",
    "read_document",
    "read_history",
    "store_errors",
    "swap_document",
]


class FeatureReader:
    """Reads the features of all roles of a request in one round trip. Safe to share between threads."""

    def __init__(self, redis_url: str, project: str = PROJECT, *, timeout_s: float = 2.0) -> None:
        self._address = address_of(redis_url)
        self._project = project
        self._client = connect(redis_url, timeout_s)
        self.machine: TileMachine | None = None  # merges tiles in place of NumPy once it is there

    def read(
        self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int, *, request: Requests | None = None
    ) -> dict[str, FeatureBatch]:
        """Features by role; rows in the order of that role's keys. `request` as in ReadPlan.assemble.

        Raises: KeyError for a role without keys; TypeError for a key of the wrong type; StoreError naming the address
        when Redis cannot be reached within the timeout.
        """
        names = plan.store_keys(self._project, keys)
        with store_errors(self._address):
            values: list[bytes | None] = self._client.mget(names)  # type: ignore[assignment]
        return plan.assemble(values, keys, as_of_ms, self.machine, request=request)

    def ping(self) -> None:
        """Raises: StoreError when Redis cannot be reached."""
        with store_errors(self._address):
            self._client.ping()

    def close(self) -> None:
        self._client.close()


def group_stats(
    redis_url: str, groups: Iterable[tuple[Group, int]], project: str = PROJECT, *, timeout_s: float = 5.0
) -> dict[str, GroupStats]:
    """Per group name: records used, heartbeat, freshness. `groups` = (group, generation), as `Registry.groups()` gives."""
    wanted = list(groups)
    client = connect(redis_url, timeout_s)
    with store_errors(address_of(redis_url)):
        pipeline = client.pipeline(transaction=False)
        for group, generation in wanted:
            names = GroupKeys(project, group.name, generation)
            pipeline.mget([names.used, names.forgotten, names.heartbeat])
            pipeline.hgetall(names.freshness.decode())
        replies = pipeline.execute()
        client.close()
    out: dict[str, GroupStats] = {}
    for (group, generation), numbers, histogram in zip(wanted, replies[::2], replies[1::2], strict=True):
        buckets = {int(bucket): int(count) for bucket, count in histogram.items()}
        out[group.name] = GroupStats(
            generation=generation,
            used=int(numbers[0] or 0),
            forgotten=int(numbers[1] or 0),
            applied_through_ms=None if numbers[2] is None else int(numbers[2]),
            num_fresh=sum(buckets.values()),
            freshness_p50_ms=freshness.percentile_ms(buckets, 0.50),
            freshness_p99_ms=freshness.percentile_ms(buckets, 0.99),
            freshness=buckets,
        )
    return out

"""Which keys of Redis belong to a group: its bookkeeping, and taking exactly its keys away.

A key of values is entity key bytes + project + group + generation, and a project's name may be the end of another's, or
of a key value: so a pattern only proposes, and the bytes decide. The entity key says its own length, what follows it must
be the suffix of the group and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import redis

from features.packing import GroupKeys
from features.redis_client import address_of, connect, store_errors
from features.redis_writes import expiry_ms
from features.spec import Group, RowGroup

SCAN_COUNT: Final = 5_000
KEYS_PER_DELETE: Final = 500
COUNTED: Final = b"\0counted"  # features/lua/write_tiles.lua keeps its memory there
_GLOB: Final = re.compile(rb"[*?\[\]\\]")


def delete_groups(
    redis_url: str,
    project: str,
    groups: Mapping[str, frozenset[int] | None],
    *,
    progress: Callable[[int, int], None] = lambda deleted, seen: None,
    timeout_s: float = 10.0,
) -> int:
    """Delete the keys of some groups of a project, of the generations that are named or (None) of all; how many there were.

    `progress(deleted, seen)` is called after every step of the scan. The whole database is walked, in small steps that
    let others in between; who writes meanwhile must have ended. Raises: StoreError.
    """
    deleted = seen = 0
    with store_errors(address_of(redis_url)), connect(redis_url, timeout_s) as client:
        for page in _pages(client, _pattern(project)):
            mine = [key for key in page if is_key_of(key, project, groups)]
            for first in range(0, len(mine), KEYS_PER_DELETE):
                deleted += int(client.unlink(*mine[first : first + KEYS_PER_DELETE]))
            seen += len(page)
            progress(deleted, seen)
    return deleted


@dataclass(frozen=True, kw_only=True)
class Bookkeeping:
    """What one generation of a group says of itself; None where it says nothing."""

    life: str | None
    backfilled_through_ms: int | None
    applied_through_ms: int | None


def read_bookkeeping(
    redis_url: str, groups: Iterable[tuple[Group, int]], project: str, *, timeout_s: float = 5.0
) -> dict[str, Bookkeeping]:
    """By group name. `groups` = (group, generation), as `Registry.groups()` gives. Raises: StoreError."""
    places = [GroupKeys(project, group.name, generation) for group, generation in groups]
    if not places:
        return {}
    with store_errors(address_of(redis_url)), connect(redis_url, timeout_s) as client:
        found: list[bytes | None] = client.mget([n for p in places for n in (p.marker, p.backfilled, p.heartbeat)])
    return {
        place.group: Bookkeeping(
            life=None if life is None else life.decode(),
            backfilled_through_ms=None if backfilled is None else int(backfilled),
            applied_through_ms=None if applied is None else int(applied),
        )
        for place, life, backfilled, applied in zip(places, found[::3], found[1::3], found[2::3], strict=True)
    }


def expire_bookkeeping(
    redis_url: str, groups: Iterable[tuple[Group | RowGroup, int]], project: str, *, timeout_s: float = 5.0
) -> None:
    """Let the bookkeeping of generations that are not served any more go as late as their values. Raises: StoreError."""
    with store_errors(address_of(redis_url)), connect(redis_url, timeout_s) as client:
        pipeline = client.pipeline(transaction=False)
        for group, generation in groups:
            place = GroupKeys(project, group.name, generation)
            for name in (place.marker, place.backfilled, place.heartbeat, place.used, place.forgotten, place.freshness):
                pipeline.pexpire(name, expiry_ms(group))
        pipeline.execute()


def is_key_of(key: bytes, project: str, groups: Mapping[str, frozenset[int] | None]) -> bool:
    """Whether a key holds values or the bookkeeping of one of these groups."""
    found = group_of_key(key, project)
    if found is None or found[0] not in groups:
        return False
    generations = groups[found[0]]
    return generations is None or found[1] in generations


def group_of_key(key: bytes, project: str) -> tuple[str, int] | None:
    """(group, generation) of a key of this project; None for any other key."""
    named = f"hailstream:group:{project}:".encode()
    if key.startswith(named):
        parts = key[len(named) :].split(b":", 2)
        return _numbered(parts[0], parts[1]) if len(parts) == 3 else None
    length = entity_key_length(key)
    if length is None:
        return None
    parts = key[length:].removesuffix(COUNTED).split(b"\0")
    if len(parts) < 3 or b"\0".join(parts[:-2]) != project.encode():
        return None
    return _numbered(parts[-2], parts[-1])


def entity_key_length(key: bytes) -> int | None:
    """How many bytes at the start of a key are Feast's serialisation (version 3) of an entity key; None where none are.

    u32 number of columns, then per column its name as (type u32, length u32, bytes), then per column its value likewise.
    """
    if len(key) < 4:
        return None
    num_columns, at = int.from_bytes(key[:4], "little"), 4
    if not 1 <= num_columns <= 64:
        return None
    for _ in range(2 * num_columns):
        if at + 8 > len(key):
            return None
        at += 8 + int.from_bytes(key[at + 4 : at + 8], "little")
    return at if at <= len(key) else None


def _pattern(project: str) -> bytes:
    """A glob that every key of a project matches, and some of others: it saves sending most of those."""
    return b"*" + _GLOB.sub(rb"\\\g<0>", project.encode()) + b"*"


def _pages(client: redis.Redis, pattern: bytes) -> Iterator[list[bytes]]:
    cursor = 0
    while True:
        cursor, page = client.scan(cursor, match=pattern, count=SCAN_COUNT)  # type: ignore[misc]
        yield page
        if not cursor:
            return


def _numbered(group: bytes, generation: bytes) -> tuple[str, int] | None:
    return (group.decode(errors="replace"), int(generation)) if generation.isdigit() else None

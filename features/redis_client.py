"""A connection to Redis, its errors in our words, and what has been applied: the registry's document and its history.

Read features/redis_writes.py and features/redis_store.py next for the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis

from features.store import StoreError


def connect(
    redis_url: str,
    timeout_s: float,
    *,
    single_connection: bool = False,
    connected: Callable[[], None] = lambda: None,
) -> redis.Redis:
    """A client that answers or fails within the timeout. It retries nothing by itself: callers know what is safe.

    `connected` is called for every connection that is made: the client makes new ones in silence where an old one was idle.
    """

    def on_connect(connection: Any) -> None:
        connection.on_connect()
        connected()

    return redis.Redis.from_url(
        redis_url,
        redis_connect_func=on_connect,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, 2.0),
        socket_keepalive=True,
        single_connection_client=single_connection,
    )


def address_of(redis_url: str) -> str:
    """host:port of a URL, without a password that it may carry."""
    parts = urlsplit(redis_url)
    return f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path


@contextmanager
def store_errors(address: str) -> Iterator[None]:
    """Turn the client's connection errors into a StoreError that says where and what to do."""
    try:
        yield
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        raise StoreError(
            f"Redis at {address} cannot be reached: {error}. Start it (`hailstream up`) or pass its address"
        ) from error
    except redis.exceptions.RedisError as error:
        raise StoreError(f"Redis at {address} refused: {error}") from error


def read_document(redis_url: str, key: str, *, timeout_s: float = 5.0) -> bytes | None:
    """The registry's bytes, or None. Raises: StoreError."""
    with store_errors(address_of(redis_url)), connect(redis_url, timeout_s) as client:
        return client.get(key)


def read_history(redis_url: str, key: str, *, timeout_s: float = 5.0) -> list[bytes]:
    """The entries of the registry's history, oldest first. Raises: StoreError."""
    with store_errors(address_of(redis_url)), connect(redis_url, timeout_s) as client:
        return client.lrange(key, 0, -1)


def swap_document(
    redis_url: str,
    keys: tuple[str, str],
    expected: bytes | None,
    new: bytes,
    entry: bytes,
    values: Mapping[bytes, bytes] | None = None,
    *,
    timeout_s: float = 5.0,
) -> bool:
    """Replace (document, history) and set `values`, all or nothing, where the document is still what was read.

    False where somebody was faster. Raises: StoreError; one that comes while the answer is on its way leaves it open
    whether the transaction was done.
    """
    document, history = keys
    with store_errors(address_of(redis_url)), connect(redis_url, timeout_s) as client:
        pipeline = client.pipeline(transaction=True)
        pipeline.watch(document)
        if pipeline.get(document) != expected:
            return False
        pipeline.multi()
        pipeline.set(document, new)
        pipeline.rpush(history, entry)
        for name, value in (values or {}).items():
            pipeline.set(name, value)
        try:
            pipeline.execute()
        except redis.exceptions.WatchError:
            return False
        return True

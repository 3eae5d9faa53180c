"""`hailstream features canary`: is the way from topic to store whole, and how long does it take?"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from infra.commands.output import (
    Json,
    Kafka,
    RedisUrl,
    kafka_or_local,
    out,
    plain_errors,
    print_json,
    print_table,
    redis_or_local,
)

if TYPE_CHECKING:
    from features.canary import Flight

_SECONDS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)


def canary(
    num: Annotated[int, typer.Option(min=0, help="How many rounds; 0 goes on until it is stopped.")] = 20,
    every: Annotated[float, typer.Option(min=0.01, help="Seconds between two rounds.")] = 1.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a canary counts as lost.")] = 10.0,
    port: Annotated[int | None, typer.Option(help="Serve GET /metrics for Prometheus at this port.")] = None,
    kafka: Kafka = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Send events of reserved keys through Kafka and the job, and time them until they can be read. Exit code 1 when one is lost.

    They are in no real aggregate, and they keep heartbeats alive while a city is quiet. They carry the wall clock: leave
    them out beside a replay of old events. SIGINT and SIGTERM end it after the round that is under way.
    """
    from features.canary import CanaryRun
    from features.registry import load_registry

    url = redis_or_local(redis)
    flights: list[Flight] = []
    with plain_errors(), _stopping() as stopped:
        run = CanaryRun(load_registry(url), kafka_or_local(kafka), url)
        observe = _metrics(port)
        done = 0
        while not stopped.is_set() and (num == 0 or done < num):
            started = time.monotonic()
            found = run.fly(timeout, stopped.is_set)
            if stopped.is_set():  # what had no time to arrive is not lost
                found = [flight for flight in found if flight.seconds is not None]
            observe(found)
            flights = (flights + found)[-100_000:]
            done += 1
            stopped.wait(max(every - (time.monotonic() - started), 0) if num == 0 or done < num else 0)
        run.close()
    rows = summary(flights)
    if json:
        print_json(rows)
    else:
        print_table(rows)
        out.print(f"{done} rounds")
    raise typer.Exit(1 if any(row["lost"] for row in rows) else 0)


def summary(flights: Sequence[Flight]) -> list[dict[str, Any]]:
    """Per group: how many were seen and lost, and the percentiles of those seen, in ms."""
    groups: dict[tuple[str, str], list[float | None]] = {}
    for flight in flights:
        groups.setdefault((flight.source, flight.group), []).append(flight.seconds)
    rows = []
    for (source, group), seconds in sorted(groups.items()):
        seen = sorted(s for s in seconds if s is not None)
        at = {p: round(seen[min(len(seen) - 1, int(len(seen) * p / 100))] * 1000, 1) for p in (50, 99)} if seen else {}
        rows.append(
            {
                "source": source,
                "group": group,
                "seen": len(seen),
                "lost": len(seconds) - len(seen),
                "p50_ms": at.get(50),
                "p99_ms": at.get(99),
            }
        )
    return rows


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set."""
    stopped = threading.Event()
    before = {s: signal.signal(s, lambda *_: stopped.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _metrics(port: int | None) -> Any:
    """What takes a round's flights into Prometheus' series."""
    if port is None:
        return lambda flights: None
    from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

    registry = CollectorRegistry()
    fresh = Histogram(
        "hailstream_canary_freshness_seconds",
        "From Kafka append to readable",
        ["source", "group"],
        buckets=_SECONDS,
        registry=registry,
    )
    lost = Counter("hailstream_canary_lost", "Canaries not seen in time", ["source", "group"], registry=registry)
    start_http_server(port, addr="127.0.0.1", registry=registry)

    def observe(flights: Sequence[Flight]) -> None:
        for flight in flights:
            if flight.seconds is None:
                lost.labels(flight.source, flight.group).inc()
            else:
                fresh.labels(flight.source, flight.group).observe(flight.seconds)
                lost.labels(flight.source, flight.group).inc(0)

    return observe

"""`hailstream replay`: the shipped files to `trip_events` and `driver_events`, in order of simulated arrival.

Reading order: `hvfhv.py`, `green.py` or `chicago.py` (row -> Trip), `assign.py` (a made-up driver for New York's trips),
`events.py` (Trip -> events), `arrival.py` (when each arrives), then here: sort by arrival, pace, publish, count.
Event ids depend on the file and the seed alone: a second replay publishes the same ids, and the feature job counts
them as duplicates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from features.records import DEAD_LETTERS, DRIVER_EVENTS, TRIP_EVENTS, DeadLetter, DriverEvent, TripEvent, encode
from pipelines.trips.arrival import Arrival, ArrivalConfig
from pipelines.trips.assign import assign_nearest
from pipelines.trips.chicago import as_history, read_chicago
from pipelines.trips.events import name_of, recorded_events, trip_driver_events
from pipelines.trips.files import DATA_DIR
from pipelines.trips.green import read_green
from pipelines.trips.hvfhv import read_hvfhv
from pipelines.trips.pace import Pacer
from pipelines.trips.rows import RowReport, Trip

Source = Literal["hvfhv", "chicago", "history", "green"]
HISTORY_GAP_MS = 120_000  # between the history's last moment and New York's first request: drivers come on shift in it
PROGRESS_EVERY = 500


class EventSink(Protocol):
    """What `features.topics.Producer` does for us."""

    def send(self, topic: str, key: str | bytes, value: bytes) -> None: ...
    def flush(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a replay stands, for a progress bar. `rate` is messages per second of wall time."""

    done: int
    total: int
    rate: float
    simulated_ms: int


@dataclass(kw_only=True)
class ReplayReport:
    """What was read and what was published. `check` says what does not add up."""

    rows: RowReport
    recorded: Counter[str] = field(default_factory=Counter)  # events that the used rows stand for, by type
    derived: Counter[str] = field(default_factory=Counter)  # events made up, by `topic:type`
    published: Counter[str] = field(default_factory=Counter)  # messages, by `topic:type`; copies included
    fates: Counter[str] = field(default_factory=Counter)  # what the feature job should call them, by `topic:fate`
    copies: int = 0  # second arrivals among them
    late: int = 0  # beyond the disorder bound, first arrivals
    unassigned: int = 0  # orders for which no driver was idle
    pending: list[TripEvent | DriverEvent] = field(default_factory=list)  # arrive at or after `until_ms`: the caller's
    first_ms: int | None = None
    last_ms: int | None = None
    wall_s: float = 0.0

    def plain(self) -> dict[str, Any]:
        """The counts as plain values, for JSON."""
        return {
            "rows": self.rows.plain(),
            "recorded": dict(self.recorded),
            "derived": dict(self.derived),
            "published": dict(self.published),
            "fates": dict(self.fates),
            "copies": self.copies,
            "late": self.late,
            "unassigned": self.unassigned,
            "pending": len(self.pending),
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "wall_s": round(self.wall_s, 3),
        }

    def check(self) -> list[str]:
        """Sums that do not hold, as sentences; empty when all do."""
        broken = self.rows.check()
        events = self.recorded.total() + self.derived.total()
        messages = self.published.total() - self.published[DEAD_LETTERS] + len(self.pending)
        if messages != events + self.copies:
            broken.append(f"{events} events + {self.copies} copies, but {messages} messages published or pending")
        if self.fates.total() != self.published.total() - self.published[DEAD_LETTERS]:
            broken.append(
                f"{self.fates.total()} fates foreseen, of {self.published.total()} messages with the dead letters"
            )
        if self.published[DEAD_LETTERS] != len(self.rows.dead_letters):
            broken.append(f"{len(self.rows.dead_letters)} dead letters, {self.published[DEAD_LETTERS]} published")
        return broken


def replay(
    source: Source,
    sink: EventSink,
    *,
    seed: int,
    pacer: Pacer,
    arrival: ArrivalConfig | None = None,
    data_dir: Path = DATA_DIR,
    limit_rows: int | None = None,
    before_ms: int | None = None,
    until_ms: int | None = None,
    num_drivers: int = 3_000,
    progress: Callable[[Progress], None] | None = None,
) -> ReplayReport:
    """Publish one file. Blocks until everything is acknowledged.

    `history` is Chicago's day moved to end at `before_ms` (default: two minutes before New York's first request).
    What arrives at or after `until_ms` is left in the report as `pending`, for a caller who publishes it in its turn.
    Raises: TripFileError; TopicError from the sink.
    """
    trips, rows = _read(source, seed=seed, data_dir=data_dir, limit_rows=limit_rows, before_ms=before_ms)
    report = ReplayReport(rows=rows)
    stamp = Arrival(arrival or ArrivalConfig(seed=seed))
    events = _events(trips, report, seed=seed, data_dir=data_dir, num_drivers=num_drivers)
    messages = in_arrival_order(copy for event in events for copy in stamp.copies(event))
    report.copies, report.late = stamp.counts["duplicates"], stamp.counts["late"]
    publish_dead_letters(sink, rows, report.published)
    started_s = pacer.clock()
    for done, event in enumerate(messages, start=1):
        if until_ms is not None and event.ingest_time_ms >= until_ms:
            report.pending = messages[done - 1 :]
            break
        pacer.wait_for(event.ingest_time_ms)
        publish(sink, event, report.published)
        report.fates[stamp.fate_of(event)] += 1
        if report.first_ms is None:
            report.first_ms = event.ingest_time_ms
        report.last_ms = event.ingest_time_ms
        report.wall_s = pacer.clock() - started_s
        if progress is not None and (done % PROGRESS_EVERY == 0 or done == len(messages)):
            rate = done / max(report.wall_s, 1e-9)
            progress(Progress(done=done, total=len(messages), rate=rate, simulated_ms=event.ingest_time_ms))
    sink.flush()
    report.wall_s = pacer.clock() - started_s
    return report


def first_request_ms(*, seed: int, data_dir: Path = DATA_DIR) -> int:
    """When New York's hour starts. Raises: TripFileError."""
    trips, _ = read_hvfhv(seed=seed, data_dir=data_dir)
    return min(trip.requested_ms for trip in trips if trip.requested_ms is not None)


def in_arrival_order(events: Iterable[TripEvent | DriverEvent]) -> list[TripEvent | DriverEvent]:
    """Sorted by arrival; ties by event id, so that the order depends on nothing else."""
    return sorted(events, key=lambda event: (event.ingest_time_ms, event.event_id))


def publish(sink: EventSink, event: TripEvent | DriverEvent, published: Counter[str]) -> None:
    """Send one event under the key that orders it, and count it."""
    published[name_of(event)] += 1
    if isinstance(event, TripEvent):
        sink.send(TRIP_EVENTS, event.order_id, encode(event))
    else:
        sink.send(DRIVER_EVENTS, event.driver_id, encode(event))


def publish_dead_letters(sink: EventSink, rows: RowReport, published: Counter[str]) -> None:
    """Send the refused rows of a file. They have no order to keep."""
    for letter in rows.dead_letters:
        published[DEAD_LETTERS] += 1
        sink.send(DEAD_LETTERS, dead_letter_key(letter), encode(letter))


def dead_letter_key(letter: DeadLetter) -> str:
    return f"{letter.topic}:{letter.offset}"


def _read(
    source: Source, *, seed: int, data_dir: Path, limit_rows: int | None, before_ms: int | None
) -> tuple[list[Trip], RowReport]:
    if source == "hvfhv":
        return read_hvfhv(seed=seed, data_dir=data_dir, limit_rows=limit_rows)
    if source == "green":
        return read_green(seed=seed, data_dir=data_dir, limit_rows=limit_rows)
    trips, rows = read_chicago(seed=seed, data_dir=data_dir, limit_rows=limit_rows)
    if source == "history":
        if before_ms is None:
            before_ms = first_request_ms(seed=seed, data_dir=data_dir) - HISTORY_GAP_MS
        trips = as_history(trips, rows, before_ms=before_ms)
    return trips, rows


def _events(
    trips: list[Trip], report: ReplayReport, *, seed: int, data_dir: Path, num_drivers: int
) -> list[TripEvent | DriverEvent]:
    """Each trip's events. Orders without a driver get the nearest idle one of a made-up pool; a street hail, which
    nobody ordered, stays without one."""
    recorded: list[TripEvent]
    made_up: list[TripEvent | DriverEvent]
    if trips and all(trip.driver_id is None and trip.requested_ms is not None for trip in trips):
        assigned = assign_nearest(trips, seed=seed, data_dir=data_dir, num_drivers=num_drivers)
        report.unassigned = assigned.num_without
        recorded, made_up = assigned.recorded, assigned.made_up
    else:
        recorded = [event for trip in trips for event in recorded_events(trip)]
        made_up = [
            event
            for trip in trips
            if trip.driver_id is not None
            for event in trip_driver_events(trip, trip.driver_id, accepted_ms=None)
        ]
    report.recorded.update(event.event_type for event in recorded)
    report.derived.update(name_of(event) for event in made_up)
    return [*recorded, *made_up]

"""When an event reaches the system: delay, disorder, lateness and duplicates, all by a seeded hash of its id.

No trip file records an arrival, so `ingest_time_ms` is derived on every replayed event. The delay is some tenths of a
second; about 2 % of the events are held up by up to 30 s, so they arrive out of order; about 0.1 % arrive beyond the
source's disorder bound, so that the feature job must call them late; about 1 % arrive a second time, later, with the
same id.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from features.records import DRIVER_EVENTS, TRIP_EVENTS, DriverEvent, TripEvent
from pipelines.trips.draws import between, exponential, uniform

Event = TypeVar("Event", bound=TripEvent | DriverEvent)


@dataclass(frozen=True, kw_only=True)
class ArrivalConfig:
    """Shares are of events; times are milliseconds."""

    seed: int
    least_delay_ms: int = 50
    mean_extra_delay_ms: int = 250
    most_delay_ms: int = 3_000
    disordered_share: float = 0.02
    most_disorder_ms: int = 30_000
    late_share: float = 0.001
    disorder_bound_ms: int = 600_000  # of trip_events and driver_events in features/definitions/sources.yaml
    most_lateness_ms: int = 600_000  # beyond the bound
    duplicate_share: float = 0.01
    most_duplicate_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("disordered_share", "late_share", "duplicate_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be a share between 0 and 1")


class Arrival:
    """Gives each event its arrival, and counts what it did."""

    def __init__(self, config: ArrivalConfig) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()

    def delay_ms(self, event_id: str) -> int:
        """Event time to first arrival. Pure: depends on the seed and the id."""
        config = self.config
        fate = uniform(config.seed, "fate", event_id)
        if fate < config.late_share:
            return config.disorder_bound_ms + between(1_000, config.most_lateness_ms, config.seed, "late", event_id)
        if fate < config.late_share + config.disordered_share:
            return between(config.most_delay_ms + 1, config.most_disorder_ms, config.seed, "disorder", event_id)
        extra = exponential(config.mean_extra_delay_ms, config.seed, "delay", event_id)
        return min(config.most_delay_ms, config.least_delay_ms + int(extra))

    def copies(self, event: Event) -> list[Event]:
        """The event as it arrives: once, or twice with the later copy second. Both say that the arrival is derived."""
        config = self.config
        delay_ms = self.delay_ms(event.event_id)
        self.counts["events"] += 1
        self.counts["late"] += delay_ms > config.disorder_bound_ms
        self.counts["disordered"] += config.most_delay_ms < delay_ms <= config.most_disorder_ms
        arrivals_ms = [event.event_time_ms + delay_ms]
        if uniform(config.seed, "twice", event.event_id) < config.duplicate_share:
            self.counts["duplicates"] += 1
            again_ms = between(1, config.most_duplicate_ms, config.seed, "again", event.event_id)
            arrivals_ms.append(arrivals_ms[0] + again_ms)
        return [msgspec.structs.replace(event, ingest_time_ms=at_ms) for at_ms in arrivals_ms]

    def fate_of(self, event: TripEvent | DriverEvent) -> str:
        """`topic:fate`: what the feature job should call this message, which `copies` made.

        Duplicate before late before used (DESIGN §2): a copy that is not the first arrival is a duplicate, however
        late.
        """
        topic = TRIP_EVENTS if isinstance(event, TripEvent) else DRIVER_EVENTS
        delay_ms = self.delay_ms(event.event_id)
        if event.ingest_time_ms != event.event_time_ms + delay_ms:
            return f"{topic}:duplicate"
        return f"{topic}:{'late' if delay_ms > self.config.disorder_bound_ms else 'used'}"

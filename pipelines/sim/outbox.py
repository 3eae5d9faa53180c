"""The way of an event to its topic: it waits in the agenda until it arrives, then it is published and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from features.records import DriverEvent, TripEvent
from pipelines.sim.account import Account
from pipelines.sim.agenda import ARRIVES, Agenda
from pipelines.trips.arrival import Arrival
from pipelines.trips.replay import EventSink, publish


class Outbox:
    """Publishes in order of arrival. `observe` is shown each DriverEvent at the moment it arrives."""

    def __init__(
        self,
        agenda: Agenda,
        arrival: Arrival,
        sink: EventSink,
        account: Account,
        observe: Callable[[DriverEvent], None],
    ) -> None:
        self._agenda = agenda
        self._arrival = arrival
        self._sink = sink
        self._account = account
        self._observe = observe
        self._unflushed = False

    def send(self, event: TripEvent | DriverEvent, *, from_file: bool) -> None:
        """Put an event on its way: it will be published when it arrives, and perhaps once more."""
        copies = self._arrival.copies(event)
        self._account.event(event, num_copies=len(copies), from_file=from_file)
        for copy in copies:
            self._agenda.at(copy.ingest_time_ms, ARRIVES, self._arrive, copy)

    def take_over(self, stamped: Sequence[TripEvent | DriverEvent]) -> None:
        """Publish in their turn the events that another replay left over; they are stamped, by the same rule."""
        self._account.earlier += len(stamped)
        self._account.waiting += len(stamped)
        for event in stamped:
            self._agenda.at(event.ingest_time_ms, ARRIVES, self._arrive, event)

    def settle(self) -> None:
        """Return when all that has arrived so far is on its topic. Raises: TopicError."""
        if self._unflushed:
            self._sink.flush()
            self._unflushed = False

    def _arrive(self, event: TripEvent | DriverEvent) -> None:
        publish(self._sink, event, self._account.messages)
        self._unflushed = True
        self._account.waiting -= 1
        self._account.fates[self._arrival.fate_of(event)] += 1
        if isinstance(event, DriverEvent):
            self._observe(event)

"""Counts of a simulation: every event of the file and of the simulation has one end, and the sums can be checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from features.records import DriverEvent, TripEvent
from pipelines.trips.events import name_of


@dataclass(kw_only=True)
class Account:
    """Events and messages are counted by type; a copy is a second arrival of one event."""

    recorded: Counter[str] = field(default_factory=Counter)  # events of the file's rows, by event type
    kept: Counter[str] = field(default_factory=Counter)  # of these, put on their way
    suppressed: Counter[str] = field(default_factory=Counter)  # of these, not sent: "type: reason"
    simulated: Counter[str] = field(default_factory=Counter)  # events made up, by "topic:type"
    earlier: int = 0  # messages that another replay left for this one to publish in their turn
    copies: int = 0
    waiting: int = 0  # messages on their way
    messages: Counter[str] = field(default_factory=Counter)  # published, by "topic:type"
    fates: Counter[str] = field(default_factory=Counter)  # what the feature job should call them, by "topic:fate"
    orders: Counter[str] = field(default_factory=Counter)  # requested, and how each ended
    decisions: Counter[str] = field(default_factory=Counter)  # answers of the engine, by strategy
    engine_errors: Counter[str] = field(default_factory=Counter)  # by "strategy: error code"
    rounds: Counter[str] = field(default_factory=Counter)  # offered, no_candidate, no_survivor, no_answer

    def event(self, event: TripEvent | DriverEvent, *, num_copies: int, from_file: bool) -> None:
        """One event is put on its way, as so many messages."""
        if from_file:
            assert isinstance(event, TripEvent)
            self.kept[event.event_type] += 1
        else:
            self.simulated[name_of(event)] += 1
        self.copies += num_copies - 1
        self.waiting += num_copies

    def check(self) -> list[str]:
        """Sums that do not hold, as sentences; empty when all do. Meant for a simulation that has run to its end."""
        broken = []
        ends = self.kept.copy()
        for name, count in self.suppressed.items():
            ends[name.split(":", 1)[0]] += count
        for event_type in sorted(self.recorded.keys() | ends.keys()):
            if self.recorded[event_type] != ends[event_type]:
                broken.append(
                    f"{event_type}: {self.recorded[event_type]} in the file, but {self.kept[event_type]} kept"
                    f" and {ends[event_type] - self.kept[event_type]} suppressed"
                )
        made = self.kept.total() + self.simulated.total() + self.copies + self.earlier
        sent = self.messages.total() + self.waiting
        if made != sent:
            broken.append(f"{made} messages made, but {self.messages.total()} published and {self.waiting} waiting")
        if self.fates.total() != self.messages.total():
            broken.append(f"{self.messages.total()} messages published, {self.fates.total()} fates foreseen")
        ended = self.orders.total() - self.orders["requested"]
        if self.orders["requested"] != ended:
            broken.append(f"{self.orders['requested']} orders requested, {ended} ended")
        return broken

"""The dispatch service of the demo: it asks the engine for a driver for each order and plays out what follows.

One agenda holds all that will happen, by time: orders, answers, dropoffs, and the arrivals of events. At one time the
service acts before events arrive, so nothing that arrives at T or later is on a topic before the request at T is
answered, and given the engine's answers the run is the same every time. Read `asking.py` for what the engine is
asked, `behaviour.py` for how drivers answer, `account.py` for the sums, `truth.py` for what only the report may see.

The service is told of an order at once, by the rider's app; the `requested` event takes the topic's way, with its
delays. It keeps driver states from the DriverEvents as they arrive and knows besides whom it holds for an order. A
coupon is decided for each order, but changes nothing that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from features.records import DriverEvent, TripEvent, TripEventType
from pipelines.sim.account import Account
from pipelines.sim.agenda import ACTS, Agenda
from pipelines.sim.asking import COUPON, DISPATCH, Engine, coupon_body, dispatch_body
from pipelines.sim.behaviour import Behaviour, BehaviourConfig, Earnings
from pipelines.sim.foresight import foresee
from pipelines.sim.outbox import Outbox
from pipelines.sim.truth import TruthLog, TruthRecord
from pipelines.trips.arrival import Arrival, ArrivalConfig
from pipelines.trips.assign import opening_events
from pipelines.trips.draws import between
from pipelines.trips.events import dispatch_event, recorded_events, trip_driver_events
from pipelines.trips.fleet import Fleet, pool_ids
from pipelines.trips.pace import Pacer
from pipelines.trips.replay import EventSink
from pipelines.trips.rows import Trip
from pipelines.trips.zones import ZoneMap


@dataclass(frozen=True, kw_only=True)
class DispatchConfig:
    """Times are milliseconds of simulated time, distances metres."""

    seed: int
    num_drivers: int = 3_000
    num_candidates: int = 20
    within_m: float = 8_000.0
    num_rounds: int = 3
    app_delay_ms: tuple[int, int] = (50, 300)  # request to service
    offer_after_ms: int = 100  # decision to offer
    answer_after_ms: tuple[int, int] = (2_000, 8_000)
    time_out_ms: int = 15_000
    retry_after_ms: int = 5_000  # next round when there was nobody to offer to
    cancel_after_ms: int = 1_000

    def __post_init__(self) -> None:
        for name in ("num_drivers", "num_candidates", "num_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class DispatchProgress:
    """Where the simulation stands, for a progress bar."""

    orders: int
    num_orders: int
    decisions: int
    messages: int
    simulated_ms: int


@dataclass(slots=True)
class Order:
    """An order while a driver is being looked for."""

    trip: Trip
    round_id: int = 0
    refused: list[str] = field(default_factory=list)


class Dispatch:
    """A simulation that can be stopped between two orders and resumed. `account` and `truth` hold what happened.

    `history` are trips that drivers of the pool ended before the first request: they count for their earnings.
    `earlier` are events that a replay of that history left over, because they arrive during this hour. `refusals` are
    what `engine.decide` may raise for a request it could not answer: such a round goes without an offer and is
    counted; anything else ends the run.
    """

    def __init__(
        self,
        config: DispatchConfig,
        trips: Iterable[Trip],
        *,
        zones: ZoneMap,
        engine: Engine,
        sink: EventSink,
        pacer: Pacer,
        truth: TruthLog,
        behaviour: BehaviourConfig | None = None,
        arrival: ArrivalConfig | None = None,
        history: Sequence[Trip] = (),
        earlier: Sequence[TripEvent | DriverEvent] = (),
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        self.config = config
        self.account = Account()
        self.truth = truth
        self.now_ms = 0
        self.last_engine_error: str | None = None  # in words, for whoever prints the counts
        self._trips = sorted(trips, key=lambda trip: (_requested_ms(trip), trip.row))
        self._zones = zones
        self._engine = engine
        self._pacer = pacer
        self._refusals = refusals
        self._fleet = Fleet(pool_ids(config.num_drivers), zones, seed=config.seed)
        self._earnings = Earnings()
        self.behaviour = Behaviour(behaviour or BehaviourConfig(seed=config.seed), self._earnings)
        self._agenda = Agenda()
        stamp = Arrival(arrival or ArrivalConfig(seed=config.seed))
        self._outbox = Outbox(self._agenda, stamp, sink, self.account, self._fleet.observe)
        self._open(history, earlier)

    @property
    def num_orders(self) -> int:
        return len(self._trips)

    def run(
        self,
        *,
        stop_after_orders: int | None = None,
        progress: Callable[[DispatchProgress], None] | None = None,
    ) -> None:
        """Go on until that many orders were requested in all, or (None) to the end of everything.

        What is still open when it stops waits for the next call. Raises: TopicError from the sink.
        """
        while self._agenda:
            is_request = self._agenda.next_step() == self._request
            if is_request and stop_after_orders is not None and self.account.orders["requested"] >= stop_after_orders:
                break
            at_ms, step, arguments = self._agenda.pop()
            self._pacer.wait_for(at_ms)
            self.now_ms = at_ms
            step(*arguments)
            if is_request and progress is not None:
                progress(self._progress())
        self._outbox.settle()
        if progress is not None:
            progress(self._progress())

    # What happens, in the order in which it happens to an order.

    def _open(self, history: Sequence[Trip], earlier: Sequence[TripEvent | DriverEvent]) -> None:
        for trip in sorted(history, key=lambda trip: trip.completed_ms):
            if trip.driver_id is not None:
                self._earnings.add(trip.driver_id, trip.completed_ms, trip.fare_cents)
        self._outbox.take_over(earlier)
        if not self._trips:
            return
        for opening in opening_events(self.config.num_drivers, self._trips, seed=self.config.seed):
            self._outbox.send(opening, from_file=False)
        for trip in self._trips:
            recorded = recorded_events(trip)
            self.account.recorded.update(event.event_type for event in recorded)
            self._outbox.send(recorded[0], from_file=True)
            delay_ms = between(*self.config.app_delay_ms, self.config.seed, "app", trip.order_id)
            self._agenda.at(_requested_ms(trip) + delay_ms, ACTS, self._request, Order(trip))

    def _request(self, order: Order) -> None:
        self.account.orders["requested"] += 1
        self._decide(COUPON, coupon_body(order.trip, self.now_ms))
        self._look_for_driver(order)

    def _look_for_driver(self, order: Order) -> None:
        """One round: who is near, whom does the engine choose, and the offer to that driver."""
        order.round_id += 1
        trip = order.trip
        place = self._zones.point_in(trip.pickup_zone, self.config.seed, "pickup", trip.order_id)
        near = self._fleet.nearest(
            place,
            limit=self.config.num_candidates,
            within_m=self.config.within_m,
            order_id=trip.order_id,
            excluded=order.refused,
        )
        if not near.driver_ids:
            return self._nobody(order, "no_candidate")
        answer = self._decide(DISPATCH, dispatch_body(trip, order.round_id, self.now_ms, near))
        if answer is None:
            return self._nobody(order, "no_answer")
        record = foresee(self.behaviour, trip, order.round_id, near, answer, self.now_ms)
        if record.chosen is None:
            self.truth.add(record)
            return self._nobody(order, "no_survivor")
        self.account.rounds["offered"] += 1
        self._offer(order, record)

    def _nobody(self, order: Order, reason: str) -> None:
        self.account.rounds[reason] += 1
        self._next_round(order, self.now_ms + self.config.retry_after_ms, reason)

    def _offer(self, order: Order, record: TruthRecord) -> None:
        assert record.chosen is not None
        config, trip, driver_id = self.config, order.trip, record.candidate_ids[record.chosen]
        self._fleet.hold(driver_id)
        offered_ms = self.now_ms + config.offer_after_ms
        shortest_ms, longest_ms = config.answer_after_ms
        answer_ms = offered_ms + between(
            shortest_ms, longest_ms, config.seed, trip.order_id, driver_id, record.round_id
        )
        if record.answer == "timed_out":
            answer_ms = offered_ms + config.time_out_ms
        self._outbox.send(_offer_event(order, record, "offered", offered_ms), from_file=False)
        self._agenda.at(answer_ms, ACTS, self._answered, order, record)

    def _answered(self, order: Order, record: TruthRecord) -> None:
        assert record.chosen is not None and record.answer != "none"
        self.truth.add(record)
        self._outbox.send(_offer_event(order, record, record.answer, self.now_ms), from_file=False)
        driver_id = record.candidate_ids[record.chosen]
        if record.answer == "accepted":
            self._drive(order.trip, driver_id)
        else:
            self._fleet.release(driver_id)
            order.refused.append(driver_id)
            self._next_round(order, self.now_ms, "refused")

    def _next_round(self, order: Order, at_ms: int, reason: str) -> None:
        if order.round_id < self.config.num_rounds:
            self._agenda.at(at_ms, ACTS, self._look_for_driver, order)
        else:
            self._agenda.at(self.now_ms + self.config.cancel_after_ms, ACTS, self._cancel, order, reason)

    def _cancel(self, order: Order, reason: str) -> None:
        self.account.orders[f"cancelled_{reason}"] += 1
        self._outbox.send(dispatch_event(order.trip, "cancelled", self.now_ms), from_file=False)
        for event in recorded_events(order.trip)[1:]:
            self.account.suppressed[f"{event.event_type}: order cancelled"] += 1

    def _drive(self, trip: Trip, driver_id: str) -> None:
        """The trip's own events, with this driver; the driver is held until the dropoff."""
        for event in recorded_events(trip, driver_id=driver_id, not_before_ms=self.now_ms)[1:]:
            self._outbox.send(event, from_file=True)
        for driver_event in trip_driver_events(trip, driver_id, accepted_ms=self.now_ms):
            self._outbox.send(driver_event, from_file=False)
        self._agenda.at(max(trip.completed_ms, self.now_ms), ACTS, self._drop_off, trip, driver_id)

    def _drop_off(self, trip: Trip, driver_id: str) -> None:
        self.account.orders["completed"] += 1
        self._earnings.add(driver_id, trip.completed_ms, trip.fare_cents)
        self._fleet.release(driver_id)

    # How it is done.

    def _decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the engine, after everything that has arrived so far is on its topic."""
        self._outbox.settle()
        try:
            answer = self._engine.decide(strategy, body)
        except self._refusals as error:
            code = getattr(error, "code", type(error).__name__)  # engine.client.EngineError has one
            self.account.engine_errors[f"{strategy}: {code}"] += 1
            self.last_engine_error = str(error)
            return None
        self.account.decisions[strategy] += 1
        return answer

    def _progress(self) -> DispatchProgress:
        return DispatchProgress(
            orders=self.account.orders["requested"],
            num_orders=len(self._trips),
            decisions=self.account.decisions.total(),
            messages=self.account.messages.total(),
            simulated_ms=self.now_ms,
        )


def _offer_event(order: Order, record: TruthRecord, event_type: TripEventType, at_ms: int) -> TripEvent:
    """The offer of a decision to its chosen driver, or the answer to it."""
    assert record.chosen is not None
    return dispatch_event(
        order.trip,
        event_type,
        at_ms,
        driver_id=record.candidate_ids[record.chosen],
        decision_id=record.decision_id,
        round_id=record.round_id,
    )


def _requested_ms(trip: Trip) -> int:
    if trip.requested_ms is None:
        raise ValueError(f"order {trip.order_id} has no request time: a dispatch service cannot serve it")
    return trip.requested_ms

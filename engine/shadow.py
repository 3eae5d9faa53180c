"""Shadow strategies: they decide the same requests beside the strategy that answers, without effect and off its path.

A thread takes what was answered from a bounded queue, puts the same request and the same served features through each
shadow (only one that needs other views reads the store, itself), and sends its Decision to `shadow_decisions` under the
same `decision_id`. Losing one is allowed and counted: nothing here may hold an answer up, and the queue drops what is too much.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from engine.decide import decide
from engine.decision_log import MessageSender
from engine.inputs import Features, LiveStrategy
from engine.metrics import Metrics
from engine.request import Request, RequestError
from engine.rules import After, Before, RuleRunner
from engine.shadow_fit import request_for
from engine.strategy import CompiledStrategy, Strategy
from engine.switches import Switches
from features.expr import Column
from features.read_plan import ReadPlan
from features.records import Decision, encode
from features.rows import FeatureBatch, from_served
from features.spec import Key
from features.topics import SHADOW_DECISIONS

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 256  # answered requests whose shadows have not been computed: a fraction of a second under load
MAX_YIELD_S: Final = 0.05  # how long a shadow stands aside at one point: under full load it goes on slowly, not never
_PAUSE_S: Final = 1.0  # before a connection that failed is tried again


@dataclass(frozen=True, kw_only=True, eq=False)
class Answered:
    """What a shadow is computed from: a request, and what was answered to it."""

    shadows: tuple[LiveStrategy, ...]
    live: LiveStrategy
    request: Request
    decision: Decision
    switches: Switches


@dataclass(kw_only=True)
class ShadowCount:
    """What became of one version of a shadow since it went live. `undecided` is by reason: full, killed, refused, failed."""

    hash: str
    decided: int = 0
    agreed: int = 0  # its first choice was that of the strategy that answered
    undecided: dict[str, int] = field(default_factory=dict)


class ShadowRunner:
    """The queue, its thread, and the counts by shadow. `lost` are Decisions that did not reach the topic.

    `source` reads features for shadows that need other views. `connect` makes the sender, in the thread; without one,
    shadows are computed and compared, and not logged.
    """

    def __init__(
        self,
        source: Features,
        connect: Callable[[], MessageSender] | None,
        metrics: Metrics,
        *,
        max_waiting: int = MAX_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: dict[str, ShadowCount] = {}
        self.sent = self.lost = self.delivered = 0
        self._source, self._connect, self._metrics, self._clock = source, connect, metrics, clock
        # Set while no request is being decided. Two threads that compute take turns of the interpreter, so a shadow that
        # runs into a request would double its time: it stands aside before each of its parts.
        self._quiet = threading.Event()
        self._quiet.set()
        self._waiting: queue.Queue[Answered | None] = queue.Queue(max_waiting)
        self._sender: MessageSender | None = None
        self._connect_after = float("-inf")
        self._stopping = False
        metrics.gauge("hailstream_shadow_lost", "Shadow decisions that did not reach the topic", lambda: self.lost)
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
        self._thread.start()

    def offer(self, answered: Answered) -> None:
        """Have the shadows of an answered request computed some time; never waits."""
        try:
            self._waiting.put_nowait(answered)
        except queue.Full:
            for shadow in answered.shadows:
                self._undecided(shadow.compiled, "full")

    def stand_aside(self) -> None:
        """A request is being decided."""
        self._quiet.clear()

    def go_on(self) -> None:
        """Its answer has left."""
        if not self._quiet.is_set():
            self._quiet.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop; what still waits is dropped, what was sent gets `timeout_s` to arrive."""
        self._stopping = True
        with suppress(queue.Full):  # then it is awake
            self._waiting.put_nowait(None)
        self._thread.join(5.0)
        deadline = self._clock() + timeout_s
        while self._sender is not None and self.sent > self.delivered + self.lost and self._clock() < deadline:
            self._sender.poll(0.05)

    def _run(self) -> None:
        while not self._stopping:
            try:
                answered = self._waiting.get(timeout=0.2)
            except queue.Empty:
                answered = None
            for shadow in answered.shadows if answered is not None else ():
                assert answered is not None
                try:
                    self._decide(shadow, answered)
                except RequestError as error:  # another scope, other bounds
                    logger.debug("shadow %s: %s", shadow.compiled.name, error)
                    self._undecided(shadow.compiled, "refused")
                except Exception:
                    logger.exception(
                        "shadow %s failed on decision %s", shadow.compiled.name, answered.decision.decision_id
                    )
                    self._undecided(shadow.compiled, "failed")
            if self._sender is not None:
                self._sender.poll(0)

    def _decide(self, shadow: LiveStrategy, answered: Answered) -> None:
        compiled, city = shadow.compiled, answered.request.city
        if answered.switches.kills(compiled.name, city) is not None:
            self._undecided(compiled, "killed")
            return
        self._yield()
        request = request_for(compiled, answered.request)
        features = ServedAgain(shadow, answered, self._source, self._yield)
        patient = replace(shadow, rules=PatientRules(shadow.rules, self._yield))
        decision = decide(patient, request, features, killed=answered.switches.killed_bits(compiled, city))
        self._yield()
        decision = msgspec.structs.replace(decision, shadow_of=answered.live.compiled.name)
        count = self._count(compiled)
        agrees = first_choice(decision, compiled.strategy) == first_choice(
            answered.decision, answered.live.compiled.strategy
        )
        count.decided += 1
        count.agreed += agrees
        self._metrics.shadowed(compiled.name, answered.live.compiled.name, agrees, count.agreed / count.decided)
        self._send(decision)

    def _yield(self) -> None:
        self._quiet.wait(MAX_YIELD_S)

    def _send(self, decision: Decision) -> None:
        if self._connect is None:
            return
        self.sent += 1
        try:
            if self._sender is None:
                if self._clock() < self._connect_after:
                    self.lost += 1
                    return
                self._sender = self._connect()
            self._sender.send(SHADOW_DECISIONS, decision.order_id, encode(decision), on_delivery=self._delivered)
        except Exception as error:  # whatever the client raises: these may be lost, and the next one tries anew
            logger.warning("a shadow decision is lost: %s", error)
            self.lost = self.sent - self.delivered  # with it all that this connection has not acknowledged
            self._sender, self._connect_after = None, self._clock() + _PAUSE_S

    def _delivered(self, error: str | None) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.lost += 1

    def _count(self, compiled: CompiledStrategy) -> ShadowCount:
        count = self.counts.get(compiled.name)
        if count is None or count.hash != compiled.strategy.hash:
            count = self.counts[compiled.name] = ShadowCount(hash=compiled.strategy.hash)
        return count

    def _undecided(self, compiled: CompiledStrategy, reason: str) -> None:
        undecided = self._count(compiled).undecided
        undecided[reason] = undecided.get(reason, 0) + 1
        self._metrics.shadow_undecided.labels(compiled.name, reason).inc()


class PatientRules:
    """Rules that stand aside, before each of their two parts, for a request that is being decided."""

    def __init__(self, inner: RuleRunner, stand_aside: Callable[[], None]) -> None:
        self._inner, self._yield = inner, stand_aside

    def before(self, columns: dict[str, Column], num_candidates: int, killed: int) -> Before:
        self._yield()
        return self._inner.before(columns, num_candidates, killed)

    def after(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        self._yield()
        found = self._inner.after(columns, alive_K, killed)
        self._yield()
        return found


class ServedAgain:
    """The features that were served to a Decision, for a shadow that reads the same views under the same keys.

    One that reads others reads all of its own from `source`. When the store was away, it is away here, too.
    """

    def __init__(
        self, shadow: LiveStrategy, answered: Answered, source: Features, stand_aside: Callable[[], None] = lambda: None
    ) -> None:
        self._shadow, self._answered, self._source, self._yield = shadow, answered, source, stand_aside

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        self._yield()
        decision = self._answered.decision
        if decision.decided_by == "fallback":
            return None
        generations = {role.role: role.generation for role in plan.roles}
        theirs = {(role.view.name, role.keys): role.name for role in self._answered.live.compiled.strategy.roles}
        out: dict[str, FeatureBatch] = {}
        for role in self._shadow.compiled.strategy.roles:
            served = decision.features.get(theirs.get((role.view.name, role.keys), ""))
            if served is None or served.generation != generations[role.name]:
                return self._source.read(plan, keys, as_of_ms)
            out[role.name] = from_served(served)
        return out


def first_choice(decision: Decision, strategy: Strategy) -> str | None:
    """The candidate that is ranked first, whoever was drawn; None when nobody survived."""
    ids = decision.candidate_ids
    ties = decision.candidates.get(strategy.rank.ties, ids)
    ranked = [(-value, ties[row], ids[row]) for row, value in enumerate(decision.scores) if value is not None]
    return min(ranked)[2] if ranked else None

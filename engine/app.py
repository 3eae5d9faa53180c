"""The ASGI application: HTTP in, Decision out, logged before the answer leaves. `engine/WIRE.md` shows the bodies.

Without a framework. A decision runs in the event loop's own thread: it takes a millisecond and holds the interpreter lock
anyway, so handing it to a thread would only add to it. Everything slow (compiling, loading models, sending decisions) has
a thread of its own. `engine/server.py` puts it on a port.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from engine.answers import answer_of, strategies_of
from engine.decide import decide
from engine.decision_log import DecisionLog
from engine.feature_source import FeatureSource
from engine.metrics import Metrics
from engine.reload import REGISTRY, Library, Live
from engine.request import MAX_BODY_BYTES, RequestError, parse
from engine.shadow import Answered, ShadowRunner
from engine.strategy import CompiledStrategy
from engine.switches import SWITCHES, in_utc
from features.expr import did_you_mean
from features.records import encode

logger = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

DEADLINE_HEADER: Final = b"x-hailstream-deadline-ms"
RETRY_HEADER: Final = b"x-hailstream-retry"
_REMEMBERED: Final = 2_048  # answers kept for a caller that lost one and asks again
_JSON: Final = [(b"content-type", b"application/json")]
_TEXT: Final = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_DECIDE: Final = ("/v1/strategies/", "/decide")


class App:
    """The ASGI application. All of its parts are arguments, so that a test can bring its own."""

    def __init__(
        self,
        library: Library,
        features: FeatureSource,
        log: DecisionLog | None,
        metrics: Metrics,
        shadows: ShadowRunner | None = None,
    ) -> None:
        self.library, self.features, self.log, self.metrics, self.shadows = library, features, log, metrics, shadows
        self._answered: deque[Answered] = deque()  # for the shadows, once the answer has left
        self._answers: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        features.observe = metrics.feature_seconds.observe
        metrics.gauge("hailstream_strategies", "Strategies that are live", lambda: len(library.live.strategies))
        metrics.gauge(
            "hailstream_reload_errors", "Files and models that are not used", lambda: len(library.live.errors)
        )
        metrics.gauge("hailstream_switches", "Targets that are switched off", lambda: _num_killed(library.live))
        metrics.gauge(
            "hailstream_switches_unreadable",
            "1 while switches.json cannot be read: the last good switches stay",
            lambda: float(SWITCHES in library.live.errors),
        )
        metrics.gauge("hailstream_feature_failures", "Reads without an answer of the store", lambda: features.failures)
        metrics.gauge(
            "hailstream_feature_broken_reads", "Reads whose answer made no sense", lambda: features.broken_reads
        )
        if log is not None:
            metrics.gauge("hailstream_decision_log_backlog", "Decisions not yet acknowledged", lambda: log.backlog)
            metrics.gauge("hailstream_decision_log_resent", "Left by an earlier run and sent again", lambda: log.resent)
            metrics.gauge(
                "hailstream_decision_log_failed",
                "Deliveries that failed and were repeated",
                lambda: log.failed_deliveries,
            )
            metrics.gauge(
                "hailstream_decision_log_refused",
                "Decisions that can never be sent, moved aside in the spill folder",
                lambda: log.refused,
            )
            metrics.gauge("hailstream_decision_log_reconnects", "New connections to the broker", lambda: log.reconnects)
            metrics.gauge("hailstream_decision_log_torn", "Torn records found at the start", lambda: log.torn)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        try:
            if path.startswith(_DECIDE[0]) and path.endswith(_DECIDE[1]):
                if method != "POST":
                    raise RequestError(405, "method", f"{method} is not POST", path=path)
                body = await _body(scope, receive)
                if self.shadows is not None:
                    self.shadows.stand_aside()
                status, answer = 200, self.decide(path[len(_DECIDE[0]) : -len(_DECIDE[1])], body, scope["headers"])
                headers = _JSON
            else:
                status, answer, headers = self.look(path, method)
        except RequestError as error:
            self.metrics.errors.labels(error.code).inc()
            status, answer, headers = error.status, _error(error), _JSON
        except Exception:
            logger.exception("%s %s failed", method, path)
            self.metrics.errors.labels("internal").inc()
            failed = RequestError(500, "internal", "the engine failed on this request; its log says why")
            status, answer, headers = 500, _error(failed), _JSON
        length = (b"content-length", str(len(answer)).encode())
        try:
            await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
            await send({"type": "http.response.body", "body": answer})
        finally:
            self._to_shadows()

    def decide(self, name: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
        """One decision, logged; the bytes of its answer.

        A caller that lost the answer says so by a header and gets the same bytes again, whatever is live by now: decided
        anew, features or the strategy may have moved, and the caller would act on another Decision than the one that the
        samples keep under this id. Raises: RequestError.
        """
        started = time.perf_counter()
        budget_ms, is_retry = _read_headers(headers)
        key = (name, hashlib.blake2b(body, digest_size=16).digest())
        if is_retry and (known := self._answers.get(key)) is not None:
            return known
        state = self.library.live
        live = state.strategies.get(name)
        if live is None:
            raise _shadow(name) if state.shadow(name) is not None else _unknown(name, state)
        request = parse(live.compiled, body)
        killed = self._killed(state, live.compiled, request.city)
        decision = decide(live, request, self.features, budget_ms=budget_ms, killed=killed)
        if self.log is not None:
            try:
                self.log.append(decision.order_id, encode(decision))
            except OSError as error:
                raise RequestError(503, "log_unavailable", f"the decision cannot be kept: {error}") from None
        answer = msgspec.json.encode(answer_of(decision, live.compiled.strategy.rank.ties))
        self._answers[key] = answer
        self._answers.move_to_end(key)
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        self.metrics.decided(decision, time.perf_counter() - started)
        beside = state.shadows.get(name)
        if beside and self.shadows is not None and state.switches is not None:
            self._answered.append(
                Answered(shadows=beside, live=live, request=request, decision=decision, switches=state.switches)
            )
        return answer

    def _to_shadows(self) -> None:
        """Once an answer has left, the shadows may have its request, and time."""
        if self.shadows is not None:
            while self._answered:
                self.shadows.offer(self._answered.popleft())
            self.shadows.go_on()

    def _killed(self, state: Live, compiled: CompiledStrategy, city: str) -> int:
        """The bits of the rules that are switched off. Raises: RequestError 503 where the whole decision is."""
        if state.switches is None:
            raise RequestError(
                503,
                "switches_unreadable",
                f"nobody can tell what is switched off: {state.errors.get(SWITCHES, 'not read yet')}",
                hint="GET /readyz says when",
            )
        switch = state.switches.kills(compiled.name, city)
        if switch is not None:
            self.metrics.killed.labels(compiled.name, switch.target).inc()
            raise RequestError(
                503,
                "killed",
                f"{switch.target} is switched off by {switch.actor} since {in_utc(switch.at_ms)}: {switch.reason}",
                path=f"/v1/strategies/{compiled.name}",
                hint="decide without the engine until it is revived; GET /v1/strategies lists what is off",
            )
        return state.switches.killed_bits(compiled, city)

    def look(self, path: str, method: str) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        """The paths that only look: health, readiness, metrics, strategies."""
        if path not in ("/healthz", "/readyz", "/metrics", "/v1/strategies"):
            hint = "POST /v1/strategies/{name}/decide, or GET /v1/strategies, /healthz, /readyz, /metrics"
            raise RequestError(404, "unknown_path", f"there is no {path}", path=path, hint=hint)
        if method not in ("GET", "HEAD"):
            raise RequestError(405, "method", f"{method} is not GET", path=path)
        state = self.library.live
        if path == "/metrics":
            return 200, self.metrics.text(), _TEXT
        if path == "/healthz":
            return 200, b'{"ok":true}', _JSON
        if path == "/readyz":
            ready = bool(state.strategies) and state.switches is not None
            return (200 if ready else 503), msgspec.json.encode({"ready": ready, "errors": state.errors}), _JSON
        return 200, msgspec.json.encode(strategies_of(state, self.shadows.counts if self.shadows else {})), _JSON


async def _body(scope: dict[str, Any], receive: Receive) -> bytes:
    """The whole body. Raises: RequestError 413 as soon as it is known to be too long."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > MAX_BODY_BYTES:
            raise _too_long(int(value))
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(400, "disconnected", "the caller went away before the body was there")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_long(len(body))
    return body


def _too_long(found: int) -> RequestError:
    return RequestError(
        413, "too_long", f"the body has {found} bytes or more; {MAX_BODY_BYTES} are read", hint="send fewer candidates"
    )


def _read_headers(headers: list[tuple[bytes, bytes]]) -> tuple[float, bool]:
    """The caller's remaining budget in ms (infinite without one), and whether it is asking again."""
    budget_ms, is_retry = math.inf, False
    for name, value in headers:
        if name == DEADLINE_HEADER:
            try:
                budget_ms = float(value)
            except ValueError:
                budget_ms = math.nan
            if math.isnan(budget_ms):
                raise RequestError(
                    400, "malformed", f"{value.decode('latin-1')!r} is not a number of ms", path=name.decode()
                )
            if budget_ms <= 0:
                raise RequestError(
                    504, "deadline", "the deadline has passed before the request was read", path=name.decode()
                )
        elif name == RETRY_HEADER:
            is_retry = True
    return budget_ms, is_retry


def _num_killed(state: Live) -> int:
    return 0 if state.switches is None else len(state.switches.killed)


def _shadow(name: str) -> RequestError:
    return RequestError(
        409,
        "shadow",
        f"'{name}' is a shadow: it decides beside another strategy and answers nobody",
        path=f"/v1/strategies/{name}",
        hint="ask the strategy that it shadows",
    )


def _unknown(name: str, state: Live) -> RequestError:
    if not state.strategies and REGISTRY in state.errors:
        return RequestError(
            503,
            "store_unavailable",
            f"no strategy can be compiled yet: {state.errors[REGISTRY]}",
            hint="GET /readyz says when",
        )
    known = ", ".join(sorted(state.strategies)) or "none"
    near = did_you_mean(name, state.strategies)
    hint = f"did you mean '{near}'?" if near else "GET /v1/strategies lists them"
    return RequestError(
        404,
        "unknown_strategy",
        f"no strategy '{name}' is live; live are: {known}",
        path=f"/v1/strategies/{name}",
        hint=hint,
    )


def _error(error: RequestError) -> bytes:
    fields = {"code": error.code, "message": error.message, "path": error.path, "hint": error.hint}
    return msgspec.json.encode({"error": fields})

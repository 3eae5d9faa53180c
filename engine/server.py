"""The network edge: HTTP in, Decision out, logged before the answer leaves. `engine/WIRE.md` shows the bodies.

A plain ASGI app without a framework, on uvicorn's httptools and uvloop. A decision runs in the event loop's own thread:
it takes a millisecond and holds the interpreter lock anyway, so handing it to a thread would only add to it. Everything
slow (compiling, loading models, sending decisions) has a thread of its own.

    python -m engine.server --help
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import ipaddress
import logging
import math
import signal
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from engine.decide import decide
from engine.decision_log import DecisionLog, DecisionLogConfig
from engine.feature_source import FeatureSource
from engine.metrics import Metrics
from engine.reload import REGISTRY, Library, LibraryConfig, Live
from engine.request import MAX_BODY_BYTES, RequestError, parse
from features.expr import did_you_mean
from features.records import Decision, encode
from features.spec import PROJECT

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

DEADLINE_HEADER: Final = b"x-hailstream-deadline-ms"
RETRY_HEADER: Final = b"x-hailstream-retry"
SHIPPED_STRATEGIES: Final = Path(__file__).parent / "strategies"
_REMEMBERED: Final = 2_048  # answers kept for a caller that lost one and asks again
_JSON: Final = [(b"content-type", b"application/json")]
_TEXT: Final = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_DECIDE: Final = ("/v1/strategies/", "/decide")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What an engine needs to run."""

    redis_url: str
    """Where features and what is applied are read from."""
    kafka: str | None
    """Bootstrap servers for the decisions topic; None answers without logging, for trying strategies out."""
    models_dir: Path
    spill_dir: Path
    strategies_dir: Path = SHIPPED_STRATEGIES
    host: str = "127.0.0.1"
    port: int = 8500
    """0 takes a free port."""
    allow_remote: bool = False
    """Needed to listen on anything but loopback: there is no authentication yet."""
    project: str = PROJECT
    feature_timeout_s: float = 0.25
    """A read that takes longer counts as "store unavailable"."""
    drain_s: float = 10.0
    """How long a stop waits for open requests, and then for the decision log."""

    def __post_init__(self) -> None:
        if not self.allow_remote and not _is_loopback(self.host):
            raise ValueError(
                f"{self.host} is not a loopback address, and the engine has no authentication: "
                "listen on 127.0.0.1, or say --allow-remote if the network is yours"
            )


class App:
    """The ASGI application. All of its parts are arguments, so that a test can bring its own."""

    def __init__(self, library: Library, features: FeatureSource, log: DecisionLog | None, metrics: Metrics) -> None:
        self.library, self.features, self.log, self.metrics = library, features, log, metrics
        self._answers: OrderedDict[tuple[int, str, bytes], bytes] = OrderedDict()
        features.observe = metrics.feature_seconds.observe
        metrics.gauge("hailstream_strategies", "Strategies that are live", lambda: len(library.live.strategies))
        metrics.gauge(
            "hailstream_reload_errors", "Files and models that are not used", lambda: len(library.live.errors)
        )
        metrics.gauge("hailstream_feature_failures", "Reads that failed since the start", lambda: features.failures)
        if log is not None:
            metrics.gauge("hailstream_decision_log_backlog", "Decisions not yet acknowledged", lambda: log.backlog)
            metrics.gauge("hailstream_decision_log_resent", "Left by an earlier run and sent again", lambda: log.resent)
            metrics.gauge(
                "hailstream_decision_log_failed",
                "Deliveries that failed and were repeated",
                lambda: log.failed_deliveries,
            )
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
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": answer})

    def decide(self, name: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
        """One decision, logged; the bytes of its answer.

        A caller that lost the answer says so by a header and gets the same bytes again: the draw would be the same, but
        features may have moved since. Raises: RequestError.
        """
        started = time.perf_counter()
        state = self.library.live
        live = state.strategies.get(name)
        if live is None:
            raise _unknown(name, state)
        budget_ms, is_retry = _read_headers(headers)
        key = (state.generation, name, hashlib.blake2b(body, digest_size=16).digest())
        if is_retry and (known := self._answers.get(key)) is not None:
            return known
        request = parse(live.compiled, body)
        decision = decide(live, request, self.features, budget_ms=budget_ms)
        if self.log is not None:
            try:
                self.log.append(decision.order_id, encode(decision))
            except OSError as error:
                raise RequestError(503, "log_unavailable", f"the decision cannot be kept: {error}") from None
        answer = msgspec.json.encode(answer_of(decision, live.compiled.strategy.rank.ties))
        self._answers[key] = answer
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        self.metrics.decided(decision, time.perf_counter() - started)
        return answer

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
            ready = bool(state.strategies)
            return (200 if ready else 503), msgspec.json.encode({"ready": ready, "errors": state.errors}), _JSON
        return 200, msgspec.json.encode(strategies_of(state)), _JSON


def answer_of(decision: Decision, ties: str) -> dict[str, Any]:
    """What the caller gets of a Decision (WIRE.md). `ties` is the strategy's field that orders equal scores."""
    ids, scores = decision.candidate_ids, decision.scores
    order = decision.candidates.get(ties, ids)
    ranked = sorted((-value, order[row], ids[row]) for row, value in enumerate(scores) if value is not None)
    return {
        "decision_id": decision.decision_id,
        "strategy": decision.strategy,
        "strategy_version": decision.strategy_version,
        "strategy_hash": decision.strategy_hash,
        "chosen": decision.chosen,
        "chosen_id": None if decision.chosen is None else ids[decision.chosen],
        "ranking": [identifier for _, _, identifier in ranked],
        "scores": scores,
        "propensities": decision.propensities,
        "survivors": decision.survivors,
        "reasons": decision.reasons,
        "decided_by": decision.decided_by,
        "quality": decision.quality,
        "models": {
            name: {"model": output.model, "model_hash": output.model_hash, "source": output.source}
            for name, output in decision.model_outputs.items()
        },
        "arms": decision.arms,
        "as_of_ms": decision.as_of_ms,
        "applied_through_ms": {role: served.applied_through_ms for role, served in decision.features.items()},
    }


def strategies_of(state: Live) -> dict[str, Any]:
    """What is live: versions, hashes, models, and what is not used and why."""
    return {
        "generation": state.generation,
        "strategies": {
            name: {
                "version": live.compiled.strategy.version,
                "hash": live.compiled.strategy.hash,
                "file": live.compiled.strategy.file,
                "scope": live.compiled.strategy.scope,
                "candidate_key": live.compiled.strategy.candidate_key,
                "models": {
                    use: None if model is None else {"model": model.ref, "model_hash": model.hash}
                    for use, model in live.models.items()
                },
                "experiments": {
                    split.experiment.name: {arm.name: arm.share for arm in split.experiment.arms}
                    for split in live.compiled.arms
                },
            }
            for name, live in state.strategies.items()
        },
        "errors": state.errors,
    }


def serve(config: ServeConfig, *, announce: Callable[[str], None] = print) -> None:
    """Run an engine until SIGTERM or SIGINT: then finish open requests and empty the decision log.

    Must run in the main thread, which signals go to. Redis being away is not a reason to stop: `/readyz` says so and the engine tries again.
    Raises: ValueError for a wrong configuration, OSError for a port that is taken, RuntimeError for a spill folder in use.
    """
    from features.redis_store import FeatureReader
    from features.registry import load_registry

    listener = _listen(config)
    library = Library(
        LibraryConfig(strategies_dir=config.strategies_dir, models_dir=config.models_dir),
        lambda: load_registry(config.redis_url, config.project),
    )
    reader = FeatureReader(config.redis_url, config.project, timeout_s=config.feature_timeout_s)
    log = _open_log(config)
    library.start()
    for what, problem in library.live.errors.items():
        logger.error("%s: %s", what, problem)
    app = App(library, FeatureSource(reader), log, Metrics())
    # A compile in the reload thread must not keep the interpreter from a request for its default 5 ms.
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    server = asgi_server(app, config.drain_s)
    # uvicorn raises the signal again once it has drained; the default action would then end the process before the
    # decision log is emptied.
    before = {number: signal.signal(number, lambda *_: _exit(server)) for number in (signal.SIGTERM, signal.SIGINT)}
    announce(f"engine on http://{config.host}:{listener.getsockname()[1]}")
    try:
        server.run(sockets=[listener])
    finally:
        library.stop()
        left = log.close(config.drain_s) if log is not None else 0
        reader.close()
        listener.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        announce(f"engine stopped, {left} decisions left for the next start")


def asgi_server(app: App, drain_s: float) -> uvicorn.Server:
    """The server around the app: no access log, no lifespan, connections kept alive longer than any caller's pause."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="httptools",
            loop="uvloop",
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=max(1, round(drain_s)),
            timeout_keep_alive=75,
        )
    )


def _exit(server: uvicorn.Server) -> None:
    server.should_exit = True


def _open_log(config: ServeConfig) -> DecisionLog | None:
    if config.kafka is None:
        logger.warning("no Kafka given: decisions are answered and not logged")
        return None
    from features.topics import Producer

    kafka = config.kafka
    return DecisionLog(DecisionLogConfig(directory=config.spill_dir), lambda: Producer(kafka))


def _listen(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno, f"cannot listen on {config.host}:{config.port}: {error.strerror}; choose another --port"
        ) from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.listen(1024)  # callers that come before the loop runs wait in the queue and are not refused
    return listener


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def main(argv: list[str] | None = None) -> int:
    """The command line of the engine alone; `hailstream serve` calls `serve` the same way."""
    parser = argparse.ArgumentParser(prog="python -m engine.server", description="Serve decisions over HTTP.")
    parser.add_argument("--redis", required=True, metavar="URL", help="features and registry, redis://host:port")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--kafka", metavar="HOST:PORT", help="where decisions are logged")
    where.add_argument("--no-decision-log", action="store_true", help="answer without logging, to try strategies out")
    parser.add_argument("--models", type=Path, required=True, help="folder of model directories")
    parser.add_argument("--spill", type=Path, required=True, help="folder of this engine's own for unsent decisions")
    parser.add_argument(
        "--strategies", type=Path, default=SHIPPED_STRATEGIES, help="folder of *.yaml (default: shipped)"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8500, help="0 takes a free port (default: 8500)")
    parser.add_argument("--allow-remote", action="store_true", help="listen beyond loopback, without authentication")
    parser.add_argument("--project", default=PROJECT)
    parser.add_argument("--drain", type=float, default=10.0, metavar="SECONDS", help="how long a stop may take to send")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = ServeConfig(
            redis_url=options.redis,
            kafka=options.kafka,
            models_dir=options.models,
            spill_dir=options.spill,
            strategies_dir=options.strategies,
            host=options.host,
            port=options.port,
            allow_remote=options.allow_remote,
            project=options.project,
            drain_s=options.drain,
        )
        serve(config, announce=lambda line: print(line, flush=True))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

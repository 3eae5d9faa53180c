"""An engine as a process: its parts put together, on a port, from start to an orderly stop.

`engine/app.py` is what answers; it runs on uvicorn's httptools and uvloop. `hailstream serve` calls `serve`.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.app import App
from engine.decision_log import DecisionLog, DecisionLogConfig, MessageSender
from engine.feature_source import FeatureSource
from engine.fused_cache import FusedCache
from engine.metrics import Metrics
from engine.reload import Library, LibraryConfig
from engine.rule_forms import RuleForms
from engine.shadow import ShadowRunner
from features.spec import PROJECT

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger(__name__)

SHIPPED_STRATEGIES: Final = Path(__file__).parent / "strategies"


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
    fused_dir: Path | None = None
    """Folder of compiled rules, this user's alone; None stays with NumPy."""
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
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"{self.port} is no port: 0 to 65535")
        if not self.allow_remote and not _is_loopback(self.host):
            raise ValueError(
                f"{self.host} is not a loopback address, and the engine has no authentication: "
                "listen on 127.0.0.1, or say --allow-remote if the network is yours"
            )


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
        make_rules=partial(RuleForms, cache=_open_cache(config)),
    )
    reader = FeatureReader(config.redis_url, config.project, timeout_s=config.feature_timeout_s)
    log = _open_log(config)
    library.start()
    for what, problem in library.live.errors.items():
        logger.error("%s: %s", what, problem)
    metrics = Metrics()
    shadows = ShadowRunner(FeatureSource(reader), _connect(config), metrics)
    app = App(library, FeatureSource(reader), log, metrics, shadows)
    settle_interpreter()
    server = asgi_server(app, config.drain_s)
    # uvicorn raises the signal again once it has drained; the default action would then end the process before the
    # decision log is emptied.
    before = {number: signal.signal(number, lambda *_: _exit(server)) for number in (signal.SIGTERM, signal.SIGINT)}
    announce(f"engine on http://{config.host}:{listener.getsockname()[1]}")
    try:
        server.run(sockets=[listener])
    finally:
        library.stop()
        shadows.close()
        left = log.close(config.drain_s) if log is not None else 0
        reader.close()
        listener.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        announce(f"engine stopped, {left} decisions left for the next start")


def settle_interpreter() -> None:
    """What keeps a request waiting for the interpreter, made short; once everything is there that stays.

    A thread that compiles keeps the interpreter for 5 ms by default whenever a request wants it back, which is several times
    a request. A full collection looks at every object that is not frozen: 35 ms for what is imported.
    """
    sys.setswitchinterval(0.0001)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


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


def _open_cache(config: ServeConfig) -> FusedCache | None:
    """Rules answer through NumPy in any case: a cache that cannot be used costs speed and is said."""
    if config.fused_dir is None:
        return None
    try:
        return FusedCache(config.fused_dir)
    except (OSError, ImportError) as error:
        logger.warning("rules are not compiled to machine code: %s", error)
        return None


def _open_log(config: ServeConfig) -> DecisionLog | None:
    if config.kafka is None:
        logger.warning("no Kafka given: decisions are answered and not logged")
        return None
    connect = _connect(config)
    assert connect is not None
    return DecisionLog(DecisionLogConfig(directory=config.spill_dir), connect)


def _connect(config: ServeConfig) -> Callable[[], MessageSender] | None:
    """What makes a connection to the broker, if there is one. Each of its users has one of its own."""
    kafka = config.kafka
    if kafka is None:
        return None
    from features.topics import Producer

    return lambda: Producer(kafka)


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

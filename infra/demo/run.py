"""The demo, in the order in which it happens.

    fresh stack → apply features → submit both jobs → engine → a day of history → orders on rules alone → samples → train →
    hot swap → orders split by hash between rules and model, at the same time → drain → sums → report

Nothing here knows how a part works; each step calls one function of a room. The report is in `report.py`, the sums are
in `checks.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from engine.client import EngineClient, EngineError
from features.records import SAMPLES, TOPICS, Decision
from features.redis_store import group_stats
from features.registry import Registry, apply_catalogue
from features.store import GroupStats
from features.topics import Producer, end_offsets
from infra.demo.checks import (
    Check,
    TopicFates,
    decision_checks,
    fate_checks,
    file_checks,
    label_check,
    log_check,
    topic_fates,
)
from infra.demo.meters import PeakMemory, TimedEngine
from infra.local.flink import flink_env
from infra.local.home import CHECKOUT
from infra.local.stack import Stack, free_ports
from pipelines.jobs.clock import publish_clock
from pipelines.jobs.submit import num_restarts, submit, wait_running
from pipelines.labels.loader import load_labels
from pipelines.sample_log import KafkaSource, SampleLogWriter, fold
from pipelines.sim.account import Account
from pipelines.sim.asking import DISPATCH
from pipelines.sim.dispatch import Dispatch, DispatchConfig
from pipelines.sim.truth import TruthLog, TruthRecord
from pipelines.trips.chicago import as_history, read_chicago
from pipelines.trips.hvfhv import first_orders, read_hvfhv
from pipelines.trips.pace import Pacer
from pipelines.trips.replay import HISTORY_GAP_MS, ReplayReport, first_request_ms, publish_dead_letters, replay
from pipelines.trips.rows import RowReport, Trip
from pipelines.trips.zones import ZoneMap

MARK: Final = "demo.json"  # says that what lies in the stack's folder was put there by a demo
MODEL: Final = "accept"
MAX_SPEED_UP: Final = 30.0  # beyond it a second of real freshness is too much of simulated time
JOBS_S: Final = 180.0
DRAIN_S: Final = 120.0
SWAP_S: Final = 10.0


class DemoError(RuntimeError):
    """The demo could not go on; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What a demo is asked to do. `num_orders` None means all of the hour's.

    `speed_up` None means as fast as possible: then features lag far behind simulated time, which is no way to show
    decisions, but the sums and the final values must hold all the same (tests/e2e).
    """

    speed_up: float | None = MAX_SPEED_UP
    num_orders: int | None = None
    seed: int = 20240901
    force_promotion: bool = False  # promote over a refused gate; for runs too short to train a model worth having

    def __post_init__(self) -> None:
        if self.speed_up is not None and not 0 < self.speed_up <= MAX_SPEED_UP:
            raise DemoError(f"speed-up {self.speed_up:g} is not above 0 and at most {MAX_SPEED_UP:g}")
        if self.num_orders is not None and self.num_orders < 2:
            raise DemoError(f"{self.num_orders} orders cannot be split into two stretches")


@dataclass(kw_only=True)
class Watch:
    """Where the demo says what it does: a line, or how far a step has come."""

    say: Callable[[str], None] = lambda _text: None
    step: Callable[[str, int, int, str], None] = lambda _what, _done, _total, _note: None


@dataclass(kw_only=True)
class DemoRun:
    """Everything that a run leaves for its report."""

    options: DemoOptions
    stack: Stack
    engine_url: str
    registry: Registry
    rows: list[RowReport]
    history: ReplayReport
    account: Account
    truth: list[TruthRecord]
    swap_ms: int  # simulated time of the hot swap
    training: dict[str, Any]
    champion: str
    engine: TimedEngine
    stats_before: dict[str, GroupStats]  # when the first order came: what follows is the hour's own
    stats: dict[str, GroupStats]
    fates: list[TopicFates]
    decisions: list[Decision]
    samples: pa.Table
    checks: list[Check]
    restarts: dict[str, int]
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0


def run_demo(options: DemoOptions, stack: Stack, watch: Watch) -> DemoRun:
    """Run the loop once on a fresh local stack, which stays up afterwards.

    Raises: DemoError, StackError, and the rooms' own errors.
    """
    seconds: dict[str, float] = {}
    with Stopwatch(seconds, "stack"):
        fresh_stack(stack, watch)
    with PeakMemory(stack.state.stack_id) as memory, ExitStack() as open_things:
        with Stopwatch(seconds, "jobs and engine"):
            registry = apply_features(stack, watch)
            jobs, engine_url = start_jobs_and_engine(stack, watch)
        client = open_things.enter_context(EngineClient(engine_url, timeout_s=10.0))
        engine = TimedEngine(client)
        truth = open_things.enter_context(TruthLog(stack.folder / "demo" / "truth.jsonl"))
        producer = Producer(stack.kafka)

        with Stopwatch(seconds, "history"):
            history, driven = publish_history(options, producer, watch)
            _, stats_before = drain_features(stack, registry, watch)
        trips, rows = orders_of(options, producer)
        dispatch = open_shop(options, trips, driven, history, engine, producer, truth)
        with Stopwatch(seconds, "orders on rules alone"):
            dispatch.run(stop_after_orders=dispatch.num_orders // 2, progress=_progress(watch, "orders on rules alone"))
        with Stopwatch(seconds, "samples and training"):
            write_samples(stack, len(engine.answered), watch)
            training = train(stack, options, watch)
            champion = wait_for_champion(client, watch)
        swap_ms = dispatch.now_ms
        with Stopwatch(seconds, "orders split between rules and model"):
            dispatch.run(progress=_progress(watch, "orders split between rules and model"))
        with Stopwatch(seconds, "drain and sums"):
            fates, stats = drain_features(stack, registry, watch)
            publish_clock(producer, dispatch.now_ms + load_labels().max_retention_ms + 60_000)
            samples = write_samples(stack, len(engine.answered), watch, settled=True)
            checks, decisions = decision_checks(stack.kafka, engine.answered, samples)
            checks += file_checks(stack.kafka, [rows, history.rows], history.check() + dispatch.account.check())
            checks += fate_checks(fates, history, dispatch.account)
            checks += [label_check(samples, truth.records, DISPATCH), log_check(stack.kafka, stack.folder / "samples")]
    return DemoRun(
        options=options,
        stack=stack,
        engine_url=engine_url,
        registry=registry,
        rows=[rows, history.rows],
        history=history,
        account=dispatch.account,
        truth=truth.records,
        swap_ms=swap_ms,
        training=training,
        champion=champion,
        engine=engine,
        stats_before=stats_before,
        stats=stats,
        fates=fates,
        decisions=decisions,
        samples=samples,
        checks=checks,
        restarts={name: num_restarts(stack.flink_rest, job_id) for name, job_id in jobs.items()},
        seconds=seconds,
        peak_bytes=memory.peak_bytes,
    )


def fresh_stack(stack: Stack, watch: Watch) -> None:
    """An empty stack: sums are only sums if nobody else wrote. Data that is not a demo's is never removed.

    Raises: DemoError when the folder holds something that no demo wrote.
    """
    mark = stack.folder / MARK
    if not mark.exists() and (found := _foreign_data(stack)):
        raise DemoError(
            f"{stack.folder} holds {found} that no demo wrote, and the demo needs an empty place: "
            "`hailstream down --clean` removes all of it, or HAILSTREAM_HOME=FOLDER gives the demo a folder of its own"
        )
    stack.down(watch.say, clean=True)
    stack.up(watch.say)
    mark.write_bytes(msgspec.json.encode({"started_ms": int(time.time() * 1000)}))


def apply_features(stack: Stack, watch: Watch) -> Registry:
    """The shipped catalogue, applied."""
    watch.say("applying the shipped features")
    folder = CHECKOUT / "features" / "definitions"
    return apply_catalogue(folder, stack.redis_url, actor="demo", reason="the demo's features").registry


def start_jobs_and_engine(stack: Stack, watch: Watch) -> tuple[dict[str, str], str]:
    """Both jobs and an engine, started side by side; returns job ids by kind and the engine's URL."""
    watch.say("submitting the feature job and the sample job, starting the engine")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "infra.cli", "serve", "--port", str(port)]
    with ThreadPoolExecutor(3) as pool:
        arguments = {
            "features": ["--kafka", stack.kafka, "--redis", stack.redis_url],
            "samples": ["--kafka", stack.kafka],
        }
        env = flink_env(stack.flink_folder)
        ids = {
            kind: pool.submit(submit, f"pipelines.jobs.{kind}", args, rest=stack.flink_rest, env=env)
            for kind, args in arguments.items()
        }
        engine = pool.submit(stack.run, "engine", command, ready=lambda: _engine_ready(url), say=watch.say)
        jobs = {kind: found.result() for kind, found in ids.items()}
        engine.result()
    for job_id in jobs.values():
        wait_running(stack.flink_rest, job_id, JOBS_S)
    return jobs, url


def publish_history(options: DemoOptions, producer: Producer, watch: Watch) -> tuple[ReplayReport, list[Trip]]:
    """A day of Chicago, moved to end before the first request: what 24 h driver features are made of at the start."""
    first_ms = first_request_ms(seed=options.seed)
    before_ms = first_ms - HISTORY_GAP_MS
    report = replay(
        "history",
        producer,
        seed=options.seed,
        pacer=Pacer(None),
        before_ms=before_ms,
        until_ms=first_ms,
        progress=lambda at: watch.step("a day of history", at.done, at.total, f"{at.rate:,.0f} events/s"),
    )
    trips, rows = read_chicago(seed=options.seed)
    return report, as_history(trips, rows, before_ms=before_ms)


def orders_of(options: DemoOptions, producer: Producer) -> tuple[list[Trip], RowReport]:
    """New York's orders, the first so many by time of request; rows that are no trips go to the dead letters."""
    trips, rows = read_hvfhv(seed=options.seed)
    if options.num_orders is not None:
        trips = first_orders(trips, rows, options.num_orders)
    publish_dead_letters(producer, rows, Counter())
    return trips, rows


def open_shop(
    options: DemoOptions,
    trips: list[Trip],
    driven: list[Trip],
    history: ReplayReport,
    engine: TimedEngine,
    producer: Producer,
    truth: TruthLog,
) -> Dispatch:
    """The dispatch service, with the drivers' history behind it and all orders ahead."""
    return Dispatch(
        DispatchConfig(seed=options.seed),
        trips,
        zones=ZoneMap(),
        engine=engine,
        sink=producer,
        pacer=Pacer(options.speed_up),
        truth=truth,
        history=driven,
        earlier=history.pending,
        refusals=(EngineError,),
    )


def train(stack: Stack, options: DemoOptions, watch: Watch) -> dict[str, Any]:
    """`hailstream train`, in a process of its own: torch stays out of this one. Raises: DemoError with its message."""
    watch.say("training on the samples of the first stretch")
    report = _hailstream(stack, "train", "--actor", "demo", "--json", accept=(0, 3))
    if not report["promoted"]:
        refused = "; ".join(report["gate"]["refused"])
        if not options.force_promotion:
            raise DemoError(f"the gate refused the model, so there is nothing to swap in: {refused}")
        reason = f"short run; the gate said: {refused}"
        _hailstream(stack, "models", "promote", MODEL, report["version"], "--reason", reason, "--force", "--json")
    return report


def wait_for_champion(client: EngineClient, watch: Watch) -> str:
    """The model that the running engine answers with now, as `name@version`. Raises: DemoError when it does not swap."""
    end = time.monotonic() + SWAP_S
    while time.monotonic() < end:
        live = client.strategies()
        model = live["strategies"][DISPATCH]["models"]["p_accept"]
        if model is not None:
            watch.say(f"the engine swapped in {model['model']} while it served")
            return str(model["model"])
        time.sleep(0.05)
    raise DemoError(f"the engine did not swap the champion in within {SWAP_S:g} s: {live['errors'] or 'no error'}")


def drain_features(stack: Stack, registry: Registry, watch: Watch) -> tuple[list[TopicFates], dict[str, GroupStats]]:
    """Wait until every record of both source topics has met its fate, or time runs out; the sums then say what is missing."""
    watch.say("waiting until every event has met its fate")
    end = time.monotonic() + DRAIN_S
    while True:
        stats = group_stats(stack.redis_url, registry.groups())
        fates = topic_fates(stack.kafka, registry, stats)
        if all(topic.ended >= topic.records for topic in fates) or time.monotonic() > end:
            return fates, stats
        time.sleep(0.5)


def write_samples(stack: Stack, num_decisions: int, watch: Watch, *, settled: bool = False) -> pa.Table:
    """Write the sample log until it holds a sample for each decision (`settled`: and all are closed); the fold."""
    folder, end = stack.folder / "samples", time.monotonic() + DRAIN_S
    with SampleLogWriter(KafkaSource(stack.kafka), folder) as writer:
        last: dict[int, int] = {}
        while True:
            writer.catch_up()
            samples = fold(folder)
            ends = end_offsets(stack.kafka, SAMPLES)
            still = ends == last
            watch.step("samples", min(samples.num_rows, num_decisions), num_decisions, "")
            closed = not settled or all(samples["closed"].to_pylist())
            if (samples.num_rows >= num_decisions and still and closed) or time.monotonic() > end:
                return samples
            last = ends
            time.sleep(1.0)


def _progress(watch: Watch, what: str) -> Callable[[Any], None]:
    def show(at: Any) -> None:
        clock = time.strftime("%H:%M:%S", time.gmtime(at.simulated_ms / 1000))
        watch.step(what, at.orders, at.num_orders, f"{at.decisions} decisions, {clock} UTC")

    return show


def _hailstream(stack: Stack, *args: str, accept: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """One verb of our own command with --json, in a process of its own. Raises: DemoError with its message."""
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli", *args],
        env={**os.environ, "HAILSTREAM_HOME": str(stack.folder)},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in accept:
        raise DemoError(f"hailstream {args[0]} exited with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _engine_ready(url: str) -> bool:
    try:
        with EngineClient(url, timeout_s=1.0) as client:
            client.wait_ready(timeout_s=0.5)
        return True
    except EngineError:
        return False


def _foreign_data(stack: Stack) -> str | None:
    """What lies in the folder beside a stack that was never used. The broker is started if need be: only it knows."""
    for name in ("samples", "models", "spill"):
        if any((stack.folder / name).glob("**/*")):
            return name
    if not (stack.folder / "kafka" / "data" / "meta.properties").exists():
        return None
    stack.up()
    used = [topic for topic in TOPICS if sum(end_offsets(stack.kafka, topic).values())]
    return f"records in {', '.join(used)}" if used else None


class Stopwatch:
    """Seconds of wall time of one step, added to a table."""

    def __init__(self, table: dict[str, float], name: str) -> None:
        self._table, self._name = table, name

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._table[self._name] = round(self._table.get(self._name, 0.0) + time.monotonic() - self._started, 1)

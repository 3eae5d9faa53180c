"""The feature job's plan, and the job itself on the real stack against brute force.

topics ─► job ─┬─► dead letters + ledger     every (topic, partition, offset) meets one fate
               └─► Redis                     every feature equals tests/naive.py over the used events
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from features.expr import Program, SourceText, compile_expr, interpret
from features.loader import SHIPPED
from features.read_plan import compile_read_plan
from features.records import (
    DEAD_LETTERS,
    DRIVER_EVENTS,
    LEDGER,
    OFFER_EVENT_TYPES,
    RECORD_OF_TOPIC,
    TRIP_EVENTS,
    DeadLetter,
    LedgerEntry,
    RecordError,
    decode,
)
from features.redis_store import FeatureReader, GroupStats, group_stats
from features.registry import Registry, apply_catalogue
from features.topics import Producer, read_all
from infra.local.flink import flink_env, prepare_flink
from infra.local.process import marked
from infra.local.stack import Stack, free_ports
from pipelines.dead_letter import MAX_RAW_BYTES, Place, count_reasons, fold
from pipelines.jobs.running import running_jobs
from pipelines.jobs.submit import (
    AlreadyRunning,
    JobError,
    client_environment,
    list_jobs,
    num_restarts,
    stop_job,
    submit,
    wait_running,
)
from tests import generate, naive
from tests.features.aggregate_cases import Asked, Feature, assert_same_tiles
from tests.features.aggregate_cases import brute_force as brute_force_value
from tests.pipelines.expressions import EXPRESSIONS, names_of, rows_of
from tests.pipelines.flink_tiles import tile_catalogue, tile_events

MODULE = "pipelines.jobs.features"
SEED = 20_260
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def flink_client(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Flink client, without a cluster."""
    folder = tmp_path_factory.mktemp("flink")
    rest_port, rpc_port = free_ports(2)
    prepare_flink(folder, rest_port=rest_port, rpc_port=rpc_port)
    return client_environment(flink_env(folder))


@pytest.fixture(scope="module")
def session(flink_client: dict[str, str]) -> dict[str, Any]:
    """What one Flink session says: `plan`, `other_zone`, `answers`."""
    command = [sys.executable, "-m", "tests.pipelines.flink_session"]
    done = subprocess.run(command, env=flink_client, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def plan(session: dict[str, Any]) -> str:
    """What Flink makes of the shipped catalogue."""
    return str(session["plan"])


def test_every_record_is_decoded_once(plan: str) -> None:
    executed = plan[plan.index("== Optimized Execution Plan ==") :]
    assert {name: executed.count(f"{name}(") for name in ("decode_trip_events", "decode_driver_events")} == {
        "decode_trip_events": 1,
        "decode_driver_events": 1,
    }
    assert executed.count("TableSourceScan(") == 2


def test_writes_see_inserts_and_new_values_only_and_nothing_stands_above_them(plan: str) -> None:
    physical = plan[plan.index("== Optimized Physical Plan ==") : plan.index("== Optimized Execution Plan ==")]
    lines = physical.splitlines()
    writes = [i for i, line in enumerate(lines) if "PythonCalc(select=[write_" in line]
    assert len(writes) == 6
    for i in writes:
        expected = "[I]" if "_last(" in lines[i] else "[I,UA]"
        assert f"changelogMode={expected}" in lines[i]
        assert re.search(r"Sink\(table=\[\w+\.\w+\.written_", lines[i - 1])
    assert "UB" not in "".join(re.findall(r"changelogMode=\[[\w,]*\]", physical))


def test_state_of_groups_has_a_ttl_of_its_own(plan: str) -> None:
    physical = plan[plan.index("== Optimized Physical Plan ==") : plan.index("== Optimized Execution Plan ==")]
    aggregates = [line for line in physical.splitlines() if "GlobalGroupAggregate(" in line]
    assert len(aggregates) == 4
    assert all("stateTtlHints=" in line for line in aggregates)


def test_session_in_another_zone_is_refused(session: dict[str, Any]) -> None:
    assert session["other_zone"] == "the Flink session is in zone Asia/Shanghai: set table.local-time-zone to UTC"


@pytest.mark.parametrize("kind", EXPRESSIONS)
def test_flinks_own_values_of_expressions_are_the_interpreters(session: dict[str, Any], kind: str) -> None:
    """A fixed few, quick; every operation and random texts are in tests/features/expr/test_sql_flink.py."""
    rows = rows_of(kind)
    assert len(session["answers"][kind]) == len(rows)
    for number, text in enumerate(EXPRESSIONS[kind]):
        program = compile_expr(SourceText(text), names_of(kind))
        for row, answers in zip(rows, session["answers"][kind], strict=True):
            got, expected = answers[number], interpret(program, row)
            same = got == expected and type(got) is type(expected)
            both_nan = isinstance(got, float) and isinstance(expected, float) and got != got and expected != expected
            assert same or both_nan, f"{text} of {row}: Flink {got!r}, rows {expected!r}"


def test_flinks_tiles_are_the_algebras(session: dict[str, Any]) -> None:
    """All partials and buckets in a streaming session, over nulls, filters, negative numbers and doubles."""
    groups = tile_catalogue().tile_groups()
    assert {group.name for group in groups} == session["tiles"].keys()
    assert {group.buckets is None for group in groups} == {True, False}
    for group in groups:
        found = {(key, number): state for key, number, *state in session["tiles"][group.name]}
        for state in found.values():  # NULL is an extreme of nothing: the writer puts the identity there
            for place, partial in enumerate(group.partials):
                if partial.type == "double" and state[1 + place] is None:
                    state[1 + place] = partial.identity
        assert_same_tiles(group, found, tile_events())


def test_missing_cluster_and_missing_apply_are_named(redis_url: str, flink_client: dict[str, str]) -> None:
    project = f"nothing-{uuid.uuid4().hex[:8]}"
    (port,) = free_ports(1)
    rest = f"http://127.0.0.1:{port}"
    with pytest.raises(
        JobError, match=f"no features are applied in project '{project}': run `hailstream features apply`"
    ):
        submit(MODULE, ["--redis", redis_url, "--project", project], rest=rest, env=flink_client)
    apply_catalogue(SHIPPED, redis_url, actor="test", reason="test", project=project)
    with pytest.raises(JobError, match=f"no Flink cluster answers at {rest}"):
        submit(MODULE, ["--redis", redis_url, "--project", project], rest=rest, env=flink_client)


@dataclass
class Run:
    """One job on the real stack."""

    stack: Stack
    registry: Registry
    job_id: str

    @property
    def env(self) -> dict[str, str]:
        return flink_env(self.stack.flink_folder)

    @property
    def args(self) -> list[str]:
        return ["--kafka", self.stack.kafka, "--redis", self.stack.redis_url, "--project", self.registry.project]

    def stats(self) -> dict[str, GroupStats]:
        return group_stats(self.stack.redis_url, self.registry.groups(), self.registry.project)

    def submit(self, *args: str) -> None:
        self.job_id = submit(MODULE, [*self.args, *args], rest=self.stack.flink_rest, env=self.env)
        wait_running(self.stack.flink_rest, self.job_id, deadline_s=120)

    def wait_used(self, expected: dict[str, int], deadline_s: float = 90) -> None:
        end = time.monotonic() + deadline_s
        while (used := {name: group.used for name, group in self.stats().items()}) != expected:
            assert time.monotonic() < end, f"used {used}, expected {expected}"
            time.sleep(0.2)

    def stop(self) -> str:
        """Everything read is finished and committed, so what the topics hold now is final."""
        savepoint = stop_job(self.stack.flink_rest, self.job_id, str(self.stack.flink_folder / "savepoints"))
        assert savepoint is not None
        return savepoint


EVERYTHING = """\
view: everything
entity: zone
source: trip_events
key: {zone: pickup_zone}
max_age: 2d
features:
  fare_deviation:   {aggregate: stddev, of: fare_cents, window: 30m, hop: 5m}
  euros_deviation:  {aggregate: stddev, of: "fare_cents != null ? double(fare_cents) / 100.0 : null", window: 30m, hop: 5m}
  fare_decayed:     {aggregate: decayed_sum, of: fare_cents, window: 2h, hop: 5m, half_life: 7m}
  euros_30m:        {aggregate: sum, of: "fare_cents != null ? double(fare_cents) / 100.0 : null", window: 30m, hop: 5m}
  fare_p90:         {aggregate: quantile, of: fare_cents, q: 0.9, window: 30m, hop: 5m}
  fare_median:      {aggregate: quantile, of: fare_cents, q: 0.5, window: 2h, hop: 5m}
  first_distance_m: {aggregate: first, of: distance_m, where: "event_type == 'completed'"}
  last_distance_m:  {aggregate: last, of: distance_m}
"""  # every aggregate that no shipped view has


@pytest.fixture(scope="module")
def run(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("definitions") / "all"
    shutil.copytree(SHIPPED, folder)
    (folder / "views" / "everything.yaml").write_text(EVERYTHING)
    project = f"features-{uuid.uuid4().hex[:8]}"
    report = apply_catalogue(folder, stack.redis_url, actor="test", reason="test", project=project)
    send_events(stack.kafka, SEED)
    run = Run(stack, report.registry, "")
    try:
        run.submit()
        yield run
    finally:
        for job in list_jobs(stack.flink_rest):
            if job.name.startswith(project) and not job.ended:
                stop_job(stack.flink_rest, job.job_id)


def send_events(kafka: str, seed: int) -> None:
    """A few thousand events of both topics: good, malformed in ten ways, twice, late, from the future."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    producer = Producer(kafka)
    for event in generate.trip_events(seed, 3_000):
        if event["event_type"] in OFFER_EVENT_TYPES:  # without a driver it stays malformed
            event = {**event, "offer_id": "f-1", "decision_id": "x-1"}
        producer.send(TRIP_EVENTS, event["order_id"], damaged(rng, event))
    for event in generate.driver_events(seed, 1_000):
        producer.send(DRIVER_EVENTS, event["driver_id"], damaged(rng, event))
    ahead = {
        **generate.trip_events(seed + 1, 1)[0],
        "event_id": "ahead",
        "event_type": "requested",
        "schema_version": 1,
    }
    ahead |= {
        "event_time_ms": 4_102_444_800_000,
        "ingest_time_ms": 4_102_444_800_000,
    }  # known in 2100, on the topic now
    producer.send(TRIP_EVENTS, ahead["order_id"], json.dumps(ahead).encode())
    producer.send(TRIP_EVENTS, "large", rng.randbytes(990_000))  # its dead letter is above the usual limit of 1 MiB
    producer.flush()
    packed = Producer(kafka, compression="lz4", max_message_bytes=8 << 20)
    packed.send(TRIP_EVENTS, "packed", b"a" * (3 << 20))  # 12 kB on its topic; whole, its dead letter has 4 MiB
    packed.flush()


def damaged(rng: random.Random, event: dict[str, Any]) -> bytes:
    """The event's bytes, 3 % of them spoilt."""
    event = {**event, "schema_version": 1}
    good = json.dumps(event).encode()
    if rng.random() > 0.03:
        return good
    ways: list[bytes] = [
        b"",
        b"not JSON",
        b"{}",
        b"\xff\xfe",
        good[:-5],
        json.dumps({**event, "event_time_ms": "soon"}).encode(),
        json.dumps({**event, "city": None}).encode(),
        json.dumps({**event, "schema_version": 99}).encode(),
        json.dumps({k: v for k, v in event.items() if k != "event_id"}).encode(),
        json.dumps({**event, "event_time_ms": 2**60}).encode(),
    ]
    return rng.choice(ways)


@dataclass
class Expected:
    """What brute force says of everything that is on the topics."""

    places: set[Place]
    malformed: set[Place]
    used: dict[str, list[dict[str, Any]]]  # by source
    fates: Counter[str]

    def used_by_group(self, registry: Registry) -> dict[str, int]:
        return {
            group.name: sum(group.key_of(event) is not None for event in self.used[group.source.name])
            for group, _ in registry.groups()
        }


def brute_force(kafka: str, registry: Registry) -> Expected:
    expected = Expected(set(), set(), {}, Counter())
    for source in registry.catalogue.sources.values():
        good: list[dict[str, Any]] = []
        for message in read_all(kafka, source.topic):
            place = (message.topic, message.partition, message.offset)
            expected.places.add(place)
            try:
                record = decode(message.value, RECORD_OF_TOPIC[source.topic])
            except RecordError:
                expected.malformed.add(place)
                expected.fates["malformed"] += 1
            else:
                fields = {name: getattr(record, name) for name in source.schema}
                good.append({**fields, "place": place, "appended_ms": message.timestamp_ms})
        used, fates = naive.used_once(good, disorder_ms=source.disorder_ms, future_ms=source.future_ms)
        expected.used[source.name] = [dict(event) for event in used]
        expected.fates.update(fates)
    return expected


@pytest.mark.services
@pytest.mark.timeout(600)  # two starts of the job; most of it is waiting for JVMs on a busy machine
def test_every_record_meets_one_fate_and_features_equal_brute_force(run: Run) -> None:
    expected = brute_force(run.stack.kafka, run.registry)
    run.wait_used(expected.used_by_group(run.registry))
    assert num_restarts(run.stack.flink_rest, run.job_id) == 0
    (job,) = (job for job in list_jobs(run.stack.flink_rest) if job.job_id == run.job_id)
    assert (job.name, job.state) == (f"{run.registry.project}-features-g1", "RUNNING")
    assert re.fullmatch("[0-9a-f]{16}", job.parameters["hailstream.fingerprint"])
    runs_already = (
        rf"{run.registry.project}-features-g1 \(RUNNING, job {run.job_id}\) runs already: nothing was submitted"
    )
    with pytest.raises(AlreadyRunning, match=runs_already):
        submit(MODULE, run.args, rest=run.stack.flink_rest, env=run.env)
    savepoint = run.stop()
    assert_conservation(run, expected)
    assert_features(run, expected)

    # The same events again, from the savepoint: each is a duplicate now, nothing else moves.
    before = run.stats()
    send_events(run.stack.kafka, SEED)
    run.submit("--from-savepoint", savepoint)
    again = brute_force(run.stack.kafka, run.registry)
    assert again.used_by_group(run.registry) == expected.used_by_group(run.registry)
    wait_for_ledger(run, again)
    run.stop()
    assert_conservation(run, again)
    assert {name: s.used for name, s in run.stats().items()} == {name: s.used for name, s in before.items()}


@pytest.mark.services
@pytest.mark.timeout(600)
def test_what_is_applied_later_is_fed_by_the_job_that_replaces_the_older_one(stack: Stack, tmp_path: Path) -> None:
    """First without `driver_state` and with another fare in `zone_demand`: a new group and a new generation of a known one.

    g1 feeds 4 groups ──► apply ──► submit: refused, says what is not fed ──► --replace ──► g2 feeds all 6, g1 has ended
    """
    older, project = tmp_path / "older", f"replace-{uuid.uuid4().hex[:8]}"
    shutil.copytree(SHIPPED, older)
    for folder in ("views", "tests"):
        (older / folder / "driver_state.yaml").unlink()
    zone_demand = older / "views" / "zone_demand.yaml"
    zone_demand.write_text(zone_demand.read_text().replace("of: fare_cents", 'of: "(fare_cents ?? 0) + 1"'))
    send_events(stack.kafka, SEED + 1)
    report = apply_catalogue(older, stack.redis_url, actor="test", reason="first", project=project)
    run = Run(stack, report.registry, "")
    try:
        run.submit()
        run.wait_used(brute_force(stack.kafka, run.registry).used_by_group(run.registry))
        before, old_id = run.stats(), run.job_id

        run.registry = apply_catalogue(
            SHIPPED, stack.redis_url, actor="test", reason="second", project=project, now=True
        ).registry
        with pytest.raises(JobError) as caught:
            run.submit()
        assert not isinstance(caught.value, AlreadyRunning)
        assert "does not feed " in str(caught.value) and "driver.driver_events.last@1" in str(caught.value)
        assert "zone.trip_events.300000.pickup_zone@2" in str(caught.value)
        run.submit("--replace", str(stack.flink_folder / "savepoints"))
        (running,) = running_jobs(stack.flink_rest, project, "features")
        assert (running.job_id, running.name) == (run.job_id, f"{project}-features-g2") and run.job_id != old_id
        expected = brute_force(stack.kafka, run.registry)
        run.wait_used(expected.used_by_group(run.registry))
        unchanged = {name: s for name, s in before.items() if name in run.stats() and "300000" not in name}
        assert {name: run.stats()[name].used for name in unchanged} == {name: s.used for name, s in unchanged.items()}

        # A worker dies: the failure is counted, and what came meanwhile is used once all the same.
        assert num_restarts(stack.flink_rest, run.job_id) == 0
        for pid in marked(stack.state.stack_id):
            if b"pyflink.fn_execution" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        send_events(stack.kafka, SEED + 2)
        expected = brute_force(stack.kafka, run.registry)
        run.wait_used(expected.used_by_group(run.registry))
        assert num_restarts(stack.flink_rest, run.job_id) >= 1
        run.stop()
        assert_conservation(run, expected)
        assert_features(run, expected)
    finally:
        for job in running_jobs(stack.flink_rest, project, "features"):
            stop_job(stack.flink_rest, job.job_id)


def wait_for_ledger(run: Run, expected: Expected, deadline_s: float = 60) -> None:
    end = time.monotonic() + deadline_s
    wanted = sum(expected.fates.values()) - expected.fates["used"]
    while (found := len(unused(run)[0]) + len(unused(run)[1])) != wanted:
        assert time.monotonic() < end, f"{found} records on dead_letters and ledger, expected {wanted}"
        time.sleep(0.5)


def unused(run: Run) -> tuple[dict[Place, DeadLetter], dict[Place, LedgerEntry]]:
    dead = fold((m.value for m in read_all(run.stack.kafka, DEAD_LETTERS)), DeadLetter)
    ledger = fold((m.value for m in read_all(run.stack.kafka, LEDGER)), LedgerEntry)
    topics = {source.topic for source in run.registry.catalogue.sources.values()}
    return (
        {place: letter for place, letter in dead.items() if letter.topic in topics},
        {place: entry for place, entry in ledger.items() if entry.topic in topics},
    )


def assert_conservation(run: Run, expected: Expected) -> None:
    """used + ledger + dead letters = input, place by place and without overlap."""
    dead, ledger = unused(run)
    used = {event["place"] for events in expected.used.values() for event in events}
    assert set(dead) == expected.malformed
    assert set(ledger) == expected.places - expected.malformed - used
    assert count_reasons(dead.values(), ledger.values()) == +Counter({**expected.fates, "used": 0})
    raw = {(m.topic, m.partition, m.offset): m.value for s in expected.used for m in read_all(run.stack.kafka, s)}
    assert all(
        letter.raw == raw[place][:MAX_RAW_BYTES] and letter.path.startswith("$") for place, letter in dead.items()
    )


def assert_features(run: Run, expected: Expected) -> None:
    """Every aggregated feature of every key, asked when all is known: at the newest arrival, and hours later."""
    newest = max(event["ingest_time_ms"] for events in expected.used.values() for event in events)
    reader = FeatureReader(run.stack.redis_url, run.registry.project)
    compared = 0
    for view in run.registry.catalogue.views.values():
        events = [
            {**e, "key": key}
            for e in expected.used[view.stream.name]
            if (key := view.entity.key_of(e, view.key_fields)) is not None
        ]
        events_of: dict[Any, list[dict[str, Any]]] = {}
        for event in events:
            events_of.setdefault(event["key"], []).append(event)
        keys = sorted(events_of)
        plan = compile_read_plan(run.registry, {"role": view.name})
        for as_of_ms in (newest + 1, newest + HOUR_MS // 2, newest + 5 * HOUR_MS):
            batch = reader.read(plan, {"role": keys}, as_of_ms)["role"]
            for row, key in enumerate(keys):
                for feature in (f for f in view.features if f.aggregate is not None):
                    where, of = row_function(feature.where, True), row_function(feature.of, 1)
                    tolerance = 0.0
                    if feature.aggregate in ("first", "last"):
                        oldest = feature.aggregate == "first"
                        last = naive.last_value(events_of[key], key, as_of_ms, of=of, where=where, oldest=oldest)
                        wanted = None if last is None or as_of_ms - last[0] > view.max_age_ms else last[1]
                    else:
                        asked = Feature(
                            name=feature.name, aggregate=str(feature.aggregate), of=Asked("", of), where=Asked("", where),
                            window_ms=feature.window_ms, hop_ms=feature.hop_ms, half_life_ms=feature.half_life_ms,
                            q=feature.q, resolution=feature.resolution,
                        )  # fmt: skip
                        wanted, tolerance = brute_force_value(asked, events_of[key], key, as_of_ms)
                    got = batch.columns[feature.name][row] if batch.valid[feature.name][row] else None
                    same = got == wanted or (tolerance and got is not None and abs(got - wanted) <= tolerance)
                    assert same, f"{view.name}.{feature.name} of {key} at {as_of_ms}: {got}, expected {wanted}"
                    compared += 1
    assert compared > 200


def row_function(program: Program | None, otherwise: Any) -> Any:
    """An expression as a function of one event: the row interpreter is the language's definition."""
    if program is None:
        return lambda event: otherwise
    return lambda event: interpret(program, {name: event[name] for name in program.names})

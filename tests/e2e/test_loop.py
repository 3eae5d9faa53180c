"""The whole loop on the real local stack, with some hundred real trips: `hailstream demo`, made short.

Runs once for the module on the session's stack, emptied first; what it leaves is then looked at from several sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.client import EngineClient
from features.expr import interpret
from features.records import RECORD_OF_TOPIC, TOPICS, decode
from features.redis_store import FeatureReader, compile_read_plan
from features.rows import Status
from features.spec import FeatureSpec, FeatureView
from features.topics import end_offsets, read_all
from infra.demo.report import report_of
from infra.demo.run import DemoError, DemoOptions, DemoRun, Watch, fresh_stack, run_demo
from infra.local.stack import Stack
from pipelines.jobs.submit import list_jobs, stop_job
from pipelines.sim.asking import DISPATCH
from tests import naive

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

NUM_ORDERS = 600


@pytest.fixture(scope="module")
def run(stack: Stack) -> Iterator[DemoRun]:
    if any(sum(end_offsets(stack.kafka, topic).values()) for topic in TOPICS):
        stack.down(clean=True)  # another test was here first
    options = DemoOptions(num_orders=NUM_ORDERS, force_promotion=True, speed_up=None)
    try:
        yield run_demo(options, stack, Watch(say=print))
    finally:
        stack.up()
        for job in list_jobs(stack.flink_rest):
            if not job.ended:
                stop_job(stack.flink_rest, job.job_id)
        stack.stop("engine")


@pytest.fixture(scope="module")
def report(run: DemoRun) -> dict[str, Any]:
    return report_of(run)


def test_every_sum_holds(report: dict[str, Any]) -> None:
    broken = [check for check in report["checks"] if not check["holds"]]
    assert broken == []
    assert report["ok"]
    assert report["events"]["rows"]["hvfhv_2024-09-01_head5000.csv"]["in"] == 5000
    fates = report["events"]["topics"]["trip_events"]
    assert fates["used"] > 10_000
    assert fates["duplicate"] > 0 and fates["late"] > 0


def test_no_job_was_restarted(report: dict[str, Any]) -> None:
    assert report["cost"]["job_restarts"] == {"features": 0, "samples": 0}


def test_the_second_model_decides(run: DemoRun, report: dict[str, Any]) -> None:
    assert report["decisions"]["by_model"][run.champion] > 100
    assert report["decisions"]["by_model"]["rules alone"] > 100
    hashes = {
        output.model_hash
        for d in run.decisions
        if d.strategy == DISPATCH and (output := d.model_outputs["p_accept"]).source == "model"
    }
    assert hashes == {run.training["model_hash"]}


def test_propensities_of_every_decision_are_a_distribution(run: DemoRun) -> None:
    for decision in run.decisions:
        if decision.chosen is None:
            assert not any(decision.survivors)
            continue
        assert sum(decision.propensities) == pytest.approx(1, abs=1e-9)
        assert decision.propensities[decision.chosen] > 0
        for kept, p in zip(decision.survivors, decision.propensities, strict=True):
            assert kept or p == 0


def test_every_feature_in_redis_equals_the_oracle(run: DemoRun) -> None:
    """Brute force over the records of the topics, against what the engine would be served, for every key there is."""
    registry = run.registry
    compared = 0
    for view in registry.catalogue.views.values():
        by_key = used_events(run, view)
        as_of_ms = 1 + max(e["ingest_time_ms"] for events in by_key.values() for e in events)
        keys = sorted(by_key)
        reader = FeatureReader(run.stack.redis_url, registry.project)
        batch = reader.read(compile_read_plan(registry, {"it": view.name}), {"it": keys}, as_of_ms)["it"]
        reader.close()
        for row, key in enumerate(keys):
            for spec in view.features:
                if spec.aggregate is None:
                    continue
                expected = oracle(spec, by_key[key], key, as_of_ms)
                found = batch.columns[spec.name][row] if batch.valid[spec.name][row] else None
                status = Status(batch.statuses[row, batch.names.index(spec.name)])
                place = (view.name, key, spec.name, status)
                if status in (Status.STALE, Status.MISSING):  # a last value older than max_age, or never seen
                    assert spec.aggregate == "last", place
                    assert (expected is None) == (status is Status.MISSING), place
                elif spec.aggregate == "avg" and expected is not None:
                    assert found == pytest.approx(expected, rel=1e-12), place
                else:
                    assert found == expected, place
                compared += 1
    assert compared > 10_000


def oracle(spec: FeatureSpec, events: list[dict[str, Any]], key: Any, as_of_ms: int) -> Any:
    def where(event: Mapping[str, Any]) -> bool:
        return spec.where is None or interpret(spec.where, event) is True

    def of(event: Mapping[str, Any]) -> Any:
        assert spec.of is not None
        return interpret(spec.of, event)

    if spec.aggregate == "last":
        newest = naive.last_value(events, key, as_of_ms, of=of, where=where)
        return None if newest is None else newest[1]
    assert spec.window_ms is not None and spec.hop_ms is not None and spec.aggregate is not None
    values = naive.window_values(
        events,
        key,
        as_of_ms,
        window_ms=spec.window_ms,
        hop_ms=spec.hop_ms,
        of=None if spec.of is None else of,
        where=where,
    )
    return naive.aggregate(spec.aggregate, values)


def used_events(run: DemoRun, view: FeatureView) -> dict[Any, list[dict[str, Any]]]:
    source = view.source
    records = []
    for message in read_all(run.stack.kafka, source.topic):
        record = decode(message.value, RECORD_OF_TOPIC[source.topic])  # type: ignore[type-var]
        fields = msgspec.to_builtins(record)
        records.append({**dict.fromkeys(source.schema), **fields, "key": fields.get(view.key_fields[0])})
    used, _ = naive.used_once(records, disorder_ms=source.disorder_ms, future_ms=source.future_ms)
    by_key = defaultdict(list)
    for event in used:
        if event["key"] is not None:
            by_key[event["key"]].append(dict(event))
    return by_key


def test_the_engine_goes_on_with_the_model_and_says_so(run: DemoRun) -> None:
    with EngineClient(run.engine_url) as client:
        live = client.strategies()
    assert live["errors"] == {}
    assert live["strategies"][DISPATCH]["models"]["p_accept"]["model"] == run.champion


@pytest.mark.parametrize(
    "verb",
    [
        "status",
        "features list",
        "features get driver d-0001",
        "features get zone 79 --as-of applied",
        "jobs list",
        "models list",
        "samples stats",
        "jobs submit features",
    ],
)
def test_verbs_answer_after_the_demo(run: DemoRun, verb: str) -> None:
    env = {**os.environ, "HAILSTREAM_HOME": str(run.stack.folder)}
    for options in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "infra.cli", *verb.split(), *options],
            env=env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
    json.loads(done.stdout)


def test_a_decision_explains_itself(run: DemoRun) -> None:
    decision = next(d for d in run.decisions if d.strategy == DISPATCH and not all(d.survivors) and any(d.survivors))
    dropped = decision.candidate_ids[decision.survivors.index(False)]
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli", "strategies", "explain", decision.decision_id, dropped],
        env={**os.environ, "HAILSTREAM_HOME": str(run.stack.folder)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert dropped in done.stdout and str(decision.reasons[decision.candidate_ids.index(dropped)]) in done.stdout


def test_a_second_demo_never_removes_what_no_demo_wrote(run: DemoRun) -> None:
    mark = run.stack.folder / "demo.json"
    kept = mark.read_bytes()
    mark.unlink()
    try:
        with pytest.raises(DemoError, match="hailstream down --clean"):
            fresh_stack(run.stack, Watch())
        assert Path(run.stack.folder / "kafka").exists()
    finally:
        mark.write_bytes(kept)

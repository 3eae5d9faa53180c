"""`hailstream features rollout` from nothing to an edit, on a stack of its own: the command does all the steps by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from features.loader import SHIPPED
from features.records import TRIP_EVENTS
from features.redis_store import FeatureReader, compile_read_plan, group_stats
from features.registry import load_history, load_registry
from features.spec import PROJECT
from features.topics import Producer
from infra.cli import app
from infra.local.stack import Stack
from pipelines.jobs.running import of_seam, running_jobs
from tests import naive
from tests.features.feature_job import assert_equals_oracle
from tests.features.test_staging import NEW, OLD, QUARTER, folder_with
from tests.pipelines.test_rollout import HOUR_MS, VIEWS, my_events


@pytest.fixture
def own_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """The command works on the default project of the stack in HAILSTREAM_HOME."""
    monkeypatch.setenv("HAILSTREAM_HOME", str(tmp_path / "home"))
    stack = Stack()
    try:
        stack.up(print)
        yield stack
    finally:
        stack.down()


def rollout(folder: Path) -> dict[str, Any]:
    words = ["features", "rollout", str(folder), "--allow", "breaking", "--no-feast", "--json", "--wait", "120"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "500"})
    assert done.exit_code == 0, done.output + repr(done.exception)
    return dict(json.loads(done.stdout))


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_command_takes_an_edit_all_the_way(own_stack: Stack, tmp_path: Path) -> None:
    first = rollout(SHIPPED)
    (job,) = running_jobs(own_stack.flink_rest, PROJECT, "features")
    assert (first["version"], first["job"]) == (1, job.job_id) and of_seam(job) is None

    span_ms = 30 * HOUR_MS
    events = my_events(7, 600, int(time.time() * 1000) - span_ms - 60_000, span_ms)
    producer = Producer(own_stack.kafka)
    for event in events:
        producer.send(TRIP_EVENTS, event["order_id"], json.dumps(event).encode())
    producer.flush()
    registry = load_registry(own_stack.redis_url)
    source = registry.catalogue.streams["trip_events"]
    used, _ = naive.used_once(events, disorder_ms=source.disorder_ms, future_ms=source.future_ms)
    counted = [(g, n) for g, n in registry.groups() if g.name == QUARTER]
    wanted, end = sum(event["driver_id"] is not None for event in used), time.monotonic() + 90
    while group_stats(own_stack.redis_url, counted)[QUARTER].used != wanted:
        assert time.monotonic() < end
        time.sleep(0.1)

    second = rollout(folder_with(tmp_path / "edited", OLD, NEW))
    (now,) = running_jobs(own_stack.flink_rest, PROJECT, "features")
    assert (second["version"], second["job"], second["stopped"]) == (2, now.job_id, [job.job_id])
    assert of_seam(now) is not None
    assert [entry.kind for entry in load_history(own_stack.redis_url)] == ["apply", "stage", "switch"]
    served = load_registry(own_stack.redis_url)
    assert served.generation_of(QUARTER) == 2 and served.staged is None
    as_of_ms = max(event["ingest_time_ms"] for event in events) + 1
    answer = FeatureReader(own_stack.redis_url).read(compile_read_plan(served, {n: n for n in VIEWS}), VIEWS, as_of_ms)
    num_known = sum(
        assert_equals_oracle(answer[name], served.catalogue.views[name], used, keys, as_of_ms)
        for name, keys in VIEWS.items()
    )
    assert num_known > 15
    again = rollout(tmp_path / "edited")  # nothing is left to do
    assert (again["version"], again["job"]) == (2, now.job_id)

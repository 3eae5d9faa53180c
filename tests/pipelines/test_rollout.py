"""An edited view cut over under load, on the real stack: no read ever shows a value of neither definition.

    events ──────────────────────────────────────────────────────────────────────────────►
    job v1  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│stopped
    job v2                    │seam   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│a marker is lost: failed
    backfill                  │ from Parquet ▓▓▓▓▓
    served  old definition ────────────────────────────┤switch├ new definition

After every batch of events all values of all keys are read under what is served at that moment and compared with brute
force of that definition.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from features.backfill import BackfillReport
from features.backfill_applied import backfill_registry
from features.loader import SHIPPED
from features.packing import GroupKeys
from features.records import LEDGER, OFFER_EVENT_TYPES, TRIP_EVENTS, LedgerEntry, decode
from features.redis_store import FeatureReader, compile_read_plan, group_stats
from features.registry import Registry, apply_catalogue, load_history, load_registry
from features.rollout import readiness, switch
from features.store import FeatureError
from features.topics import Producer, committed_offsets, end_offsets, read_all
from infra.commands.features_history import archive_dir, with_archives
from infra.local.flink import flink_env
from infra.local.stack import Stack
from pipelines.archive import archive_topic
from pipelines.jobs.running import running_jobs
from pipelines.jobs.submit import AlreadyRunning, JobError, list_jobs, root_cause, stop_job, submit, wait_running
from pipelines.sql import consumer_group
from tests import generate, naive
from tests.features.feature_job import assert_equals_oracle
from tests.pipelines.test_feature_job import brute_force

MODULE = "pipelines.jobs.features"
SEED = 41
HOUR_MS = 3_600_000
QUARTER = "driver.trip_events.900000"
VIEWS = {"driver_activity": ["w-0", "w-1", "w-2", "w-never"], "zone_demand": [5000, 5001, 5999]}


def my_events(seed: int, num: int, start_ms: int, span_ms: int) -> list[dict[str, Any]]:
    """Events of keys that no other test of the stack has, up to now, in order of arrival."""
    print(f"seed {seed}")
    events = []
    for event in generate.trip_events(seed, num, start_ms=start_ms, span_ms=span_ms):
        if event["ingest_time_ms"] > start_ms + span_ms:
            continue
        offer = event["event_type"] in OFFER_EVENT_TYPES
        driver = event["driver_id"] or ("d-0" if offer else None)
        event |= {
            "event_id": f"w{seed}-{event['event_id']}",
            "driver_id": None if driver is None else driver.replace("d-", "w-"),
            "pickup_zone": 5000 + event["pickup_zone"],
            "schema_version": 1,
        }
        events.append(event | ({"offer_id": "f-1", "decision_id": "x-1"} if offer else {}))
    return events


@dataclass
class Load:
    """Publishes events batch by batch, and after each compares what is served with brute force over all of them."""

    stack: Stack
    project: str
    base_used: dict[str, int]  # by group of the first version: what others had sent before
    events: list[dict[str, Any]]
    sent: list[dict[str, Any]] = field(default_factory=list)
    num_checks: int = 0
    num_values: int = 0

    def __post_init__(self) -> None:
        self.producer = Producer(self.stack.kafka)
        self.reader = FeatureReader(self.stack.redis_url, self.project)

    def publish(self, num: int) -> None:
        batch, self.events = self.events[:num], self.events[num:]
        assert batch, "the test has run out of events: it took too long"
        for event in batch:
            self.producer.send(TRIP_EVENTS, event["order_id"], json.dumps(event).encode())
        self.producer.flush()
        self.sent += batch

    def used(self, registry: Registry, *, from_ms: int = -(2**62)) -> dict[str, list[dict[str, Any]]]:
        source = registry.catalogue.sources["trip_events"]
        events, _ = naive.used_once(self.sent, disorder_ms=source.disorder_ms, future_ms=source.future_ms)
        mine = [dict(event) for event in events if event["event_time_ms"] >= from_ms]
        return {
            group.name: [event for event in mine if group.key_of(event) is not None]
            for group, _ in registry.groups()
            if group.source.name == "trip_events"
        }

    def wait_used(self, registry: Registry, wanted: dict[str, int], deadline_s: float = 60) -> None:
        end = time.monotonic() + deadline_s
        groups = [(group, generation) for group, generation in registry.groups() if group.name in wanted]
        while True:
            stats = group_stats(self.stack.redis_url, groups, self.project)
            if (found := {name: one.used for name, one in stats.items()}) == wanted:
                return
            assert time.monotonic() < end, f"used {found}, wanted {wanted}"
            time.sleep(0.05)

    def wanted_of_first(self, registry: Registry) -> dict[str, int]:
        return {name: self.base_used[name] + len(events) for name, events in self.used(registry).items()}

    def check(self) -> Registry:
        """Read everything under what is served now."""
        registry = load_registry(self.stack.redis_url, self.project)
        plan = compile_read_plan(registry, {name: name for name in VIEWS})
        newest_ms = max(event["ingest_time_ms"] for event in self.sent)
        source = registry.catalogue.sources["trip_events"]
        used, _ = naive.used_once(self.sent, disorder_ms=source.disorder_ms, future_ms=source.future_ms)
        times_ms = (newest_ms + 1, (newest_ms // 900_000 + 1) * 900_000, newest_ms + 40 * 60_000)
        as_of_ms = times_ms[self.num_checks % len(times_ms)]  # all of them each time would mean seconds of brute force
        self.num_checks += 1
        answer = self.reader.read(plan, VIEWS, as_of_ms)
        for name, keys in VIEWS.items():
            view = registry.catalogue.views[name]
            self.num_values += assert_equals_oracle(answer[name], view, used, keys, as_of_ms)
        return registry

    def tick(self, registry: Registry, num: int = 12) -> None:
        self.publish(num)
        self.wait_used(registry, self.wanted_of_first(registry))
        served = self.check()
        assert served.generations() == registry.generations()

    def tick_while(self, work: Future[Any], registry: Registry) -> Any:
        while not work.done():
            self.tick(registry)
        return work.result()


@dataclass(frozen=True)
class Jobs:
    stack: Stack
    project: str

    def submit(self, *args: str) -> str:
        arguments = ["--kafka", self.stack.kafka, "--redis", self.stack.redis_url, "--project", self.project, *args]
        job_id = submit(MODULE, arguments, rest=self.stack.flink_rest, env=flink_env(self.stack.flink_folder))
        wait_running(self.stack.flink_rest, job_id, deadline_s=120)
        return job_id

    def running(self) -> list[str]:
        return [job.job_id for job in running_jobs(self.stack.flink_rest, self.project, "features")]

    def end(self) -> None:
        for job in list_jobs(self.stack.flink_rest):
            if job.name.startswith(self.project) and not job.ended:
                stop_job(self.stack.flink_rest, job.job_id)


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The shipped catalogue, and the same with another `accepts_24h`."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(SHIPPED, first)
    shutil.copytree(first, second)
    view = second / "views" / "driver_activity.yaml"
    old = "event_type == 'accepted'"
    assert old in view.read_text()
    view.write_text(view.read_text().replace(old, f"{old} || event_type == 'picked_up'"))
    return first, second


def backfill(stack: Stack, registry: Registry) -> list[BackfillReport]:
    """As `hailstream features rollout` does it: the topic as it is now becomes Parquet, and that becomes tiles."""
    source = registry.catalogue.streams["trip_events"]
    archive_topic(stack.kafka, source, archive_dir() / source.name)
    return backfill_registry(stack.redis_url, registry.project, prepare=with_archives)


@pytest.mark.services
@pytest.mark.slow  # a minute on a quiet machine, most of it two starts of a job
@pytest.mark.timeout(900)
def test_an_edited_view_is_cut_over_under_load_without_a_wrong_value(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAILSTREAM_HOME", str(tmp_path / "home"))  # where archives go
    first, second = folders(tmp_path)
    project = f"rollout-{uuid.uuid4().hex[:8]}"
    jobs, who = Jobs(stack, project), {"actor": "test", "reason": "test"}
    registry = apply_catalogue(first, stack.redis_url, project=project, **who).registry
    base = brute_force(stack.kafka, registry).used_by_group(registry)
    span_ms = 30 * HOUR_MS
    events = my_events(SEED, 2_500, int(time.time() * 1000) - span_ms - 60_000, span_ms)
    load = Load(stack, project, base, events)
    try:
        load.publish(1_000)
        first_id = jobs.submit()
        load.wait_used(registry, load.wanted_of_first(registry), deadline_s=90)
        for _ in range(3):
            load.tick(registry)

        staged = apply_catalogue(second, stack.redis_url, project=project, **who).registry
        following = staged.document.next
        assert following is not None and staged.staged is not None
        newest_ms = max(event["ingest_time_ms"] for event in load.used(registry)[QUARTER])
        assert newest_ms - following.seam_ms < 2 * HOUR_MS, "another test has sent later events: the seam is theirs"
        with ThreadPoolExecutor(1) as pool:
            second_id = load.tick_while(pool.submit(jobs.submit, "--next"), registry)
            with pytest.raises(FeatureError, match="is not backfilled up to its seam"):
                switch(stack.redis_url, project, **who)
            (report,) = load.tick_while(pool.submit(backfill, stack, staged), registry)
        assert sorted(jobs.running()) == sorted([first_id, second_id])
        with pytest.raises(JobError, match="run already, and the job of a staged version runs beside one other"):
            jobs.submit("--next", "--mini-batch-ms", "77")

        load.tick(registry)
        end = time.monotonic() + 60
        group_id = consumer_group(staged.staged.generations(), project, following.seam_ms)
        target = end_offsets(stack.kafka, TRIP_EVENTS)
        while any(group.problems for group in readiness(stack.redis_url, project)) or any(
            committed_offsets(stack.kafka, TRIP_EVENTS, group_id)[partition] < offset
            for partition, offset in target.items()
        ):
            assert time.monotonic() < end, readiness(stack.redis_url, project)
            time.sleep(0.1)
        switch(stack.redis_url, project, **who)
        switched = load.check()  # at once: what is served is whole
        assert switched.generation_of(QUARTER) == 2 and load_history(stack.redis_url, project)[-1].kind == "switch"

        with pytest.raises(AlreadyRunning, match="Beside it runs"):
            jobs.submit()
        assert stop_job(stack.flink_rest, first_id, str(stack.flink_folder / "savepoints")) is not None
        assert jobs.running() == [second_id]
        with pytest.raises(AlreadyRunning):
            jobs.submit()
        for _ in range(4):
            load.publish(12)
            wanted = load.wanted_of_first(switched)
            wanted[QUARTER] = report.records + len(load.used(switched, from_ms=following.seam_ms)[QUARTER])
            load.wait_used(switched, wanted)
            load.check()
        assert load.num_checks > 10 and load.num_values > 300
        before_seam = [
            entry
            for message in read_all(stack.kafka, LEDGER)
            if (entry := decode(message.value, LedgerEntry)).reason == "before_seam"
        ]
        assert before_seam

        with redis.Redis.from_url(stack.redis_url) as client:  # a Redis that lost a generation under the running job
            client.delete(GroupKeys(project, QUARTER, 2).marker)
        load.publish(12)
        end = time.monotonic() + 60
        while "no longer holds generation 2 of group driver.trip_events.900000" not in (
            cause := root_cause(stack.flink_rest, second_id) or ""
        ):
            assert time.monotonic() < end, cause
            time.sleep(0.2)
        assert "hailstream features rebuild" in cause
    finally:
        jobs.end()

"""The sample job on the real stack: Kafka, Flink in thread mode, Kafka, Parquet. What comes out is the batch join."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from features.records import (
    DEAD_LETTERS,
    DECISIONS,
    LEDGER,
    SAMPLES,
    TRIP_EVENTS,
    DeadLetter,
    Decision,
    LedgerEntry,
    TripEvent,
    decode,
    encode,
)
from features.topics import PARTITIONS, Producer, create_topics, end_offsets, read_all
from infra.local.flink import flink_env
from infra.local.stack import Stack
from pipelines.dead_letter import fold as fold_unused
from pipelines.jobs.clock import CLOCK, publish_clock
from pipelines.jobs.options import SampleJobOptions
from pipelines.jobs.samples import source_sql
from pipelines.jobs.submit import EXIT_REFUSED, JobError, num_restarts, root_cause, stop_job, submit, wait_running
from pipelines.sample_log import KafkaSource, SampleLogWriter, check_log, fold
from tests.naive_join import join
from tests.sample_streams import BASE_MS, HOUR_MS, Streams, make_decision, make_event, make_streams

# The stack is shared, and one clock event would close everybody's windows: topics and job of our own.
PREFIX = f"samplejob-{os.getpid()}-"
OWN = {topic: PREFIX + topic for topic in (DECISIONS, TRIP_EVENTS, SAMPLES, DEAD_LETTERS, LEDGER)}
# The records are shuffled without regard to time, so the clock must not run until all are there.
HOLD_CLOCK_MS = 20 * HOUR_MS


@pytest.fixture
def job(stack: Stack) -> Iterator[str]:
    create_topics(stack.kafka, {OWN[topic]: PARTITIONS[topic] for topic in OWN})
    clock = ["--disorder-ms", str(HOLD_CLOCK_MS), "--idle-ms", "1000"]
    job_id = submit(
        "pipelines.jobs.samples",
        ["--kafka", stack.kafka, "--project", "samplejob", "--topic-prefix", PREFIX, *clock],
        rest=stack.flink_rest,
        env=flink_env(stack.flink_folder),
    )
    yield job_id
    stop_job(stack.flink_rest, job_id)


def wait_for(stack: Stack, job: str, holds: Callable[[], bool], what: str, deadline_s: float = 120) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        cause = root_cause(stack.flink_rest, job) if num_restarts(stack.flink_rest, job) else None
        assert cause is None, f"the job failed: {cause}"
        assert time.monotonic() < end, f"{what} did not happen within {deadline_s:g} s"
        time.sleep(0.25)


def faulty_decisions() -> list[bytes]:
    return [
        b'{"decision_id": "cut',
        encode(make_decision("bad-1", "bad", BASE_MS, candidate_ids=[], propensities=[], chosen=None)),
        encode(make_decision("bad-2", "bad", BASE_MS, propensities=[0.5, 0.1, 0.1])),
    ]


@pytest.mark.services
@pytest.mark.timeout(600)
def test_shuffled_topics_fold_to_the_batch_join(stack: Stack, job: str, tmp_path: Path) -> None:
    seed = 20240901
    print(f"seed {seed}")
    streams = make_streams(random.Random(seed), num_orders=250)
    records: list[Decision | TripEvent | bytes] = [*streams.decisions, *streams.events, *faulty_decisions()]
    random.Random(seed).shuffle(records)
    producer = Producer(stack.kafka)
    for record in records:
        if isinstance(record, bytes):
            producer.send(OWN[DECISIONS], "bad", record)
        else:
            topic = DECISIONS if isinstance(record, Decision) else TRIP_EVENTS
            producer.send(OWN[topic], record.order_id, encode(record))
    # Of an order that has decisions, but under the key of another one, which has none.
    astray = make_event("astray", "completed", streams.decisions[0].order_id, BASE_MS + HOUR_MS, driver_id="d-0")
    producer.send(OWN[TRIP_EVENTS], "elsewhere", encode(astray))
    producer.flush()
    rows, lost = join(streams.decisions, streams.events)
    wait_running(stack.flink_rest, job, 120)

    log = SampleLogWriter(KafkaSource(stack.kafka, OWN[SAMPLES]), tmp_path)

    def ours() -> list[dict[str, Any]]:
        log.catch_up()
        return fold(tmp_path).to_pylist()

    wait_for(stack, job, lambda: len(ours()) == len(rows), "a version 1 of every sample")
    records_before = {topic: end_offsets(stack.kafka, OWN[topic]) for topic in (DECISIONS, TRIP_EVENTS)}
    publish_clock(producer, BASE_MS + 1000 * HOUR_MS, topic_prefix=PREFIX)
    assert records_before == {topic: end_offsets(stack.kafka, OWN[topic]) for topic in (DECISIONS, TRIP_EVENTS)}
    wait_for(stack, job, lambda: all(row["closed"] for row in ours()), "the end of all windows")

    payloads = {d.decision_id: encode(d) for d in streams.decisions}
    folded = ours()
    assert len({row["sample_id"] for row in folded}) == len(folded) == len(rows)
    for row in folded:
        expected = rows[row["sample_id"]]
        labels = {name: row[name] for name in expected["labels"]}
        times = {name: row[f"{name}_time_ms"] for name in expected["labels"]}
        assert (labels, times, row["kind"]) == (expected["labels"], expected["times"], expected["kind"]), row[
            "sample_id"
        ]
        assert row["propensity_valid"] == expected["propensity_valid"]
        assert row["decision"] == payloads[row["sample_id"]]
    assert check_log(tmp_path, end_offsets(stack.kafka, OWN[SAMPLES])).holds
    log.close()

    lost |= {"astray"}
    wait_for(stack, job, lambda: len(unmatched(stack)) == len(lost), "the forgetting of unmatched outcomes")
    assert {entry.event_id for entry in unmatched(stack)} == lost
    check_decisions(stack, streams)


def ledger(stack: Stack) -> list[LedgerEntry]:
    """By place: after a restart an entry may stand there twice."""
    entries = [decode(m.value, LedgerEntry) for m in read_all(stack.kafka, OWN[LEDGER])]
    return list({(e.topic, e.partition, e.offset): e for e in entries}.values())


def unmatched(stack: Stack) -> list[LedgerEntry]:
    return [entry for entry in ledger(stack) if entry.reason == "unmatched"]


def check_decisions(stack: Stack, streams: Streams) -> None:
    """Each decision met one fate: a sample, the ledger (duplicate) or the dead letters."""
    letters = fold_unused((m.value for m in read_all(stack.kafka, OWN[DEAD_LETTERS])), DeadLetter).values()
    assert Counter(letter.path for letter in letters) == {"$": 1, "$.candidate_ids": 1, "$.propensities": 1}
    assert {letter.raw for letter in letters} == set(faulty_decisions())
    duplicates = [entry for entry in ledger(stack) if entry.reason == "duplicate"]
    assert len(duplicates) == len(streams.decisions) - len({d.decision_id for d in streams.decisions})


def test_a_mistake_in_the_labels_is_reported_before_anything_is_submitted(tmp_path: Path) -> None:
    from pipelines.jobs.samples import main

    (tmp_path / "a.yaml").write_text(
        "strategy: s\nlabels: {l: {joined_by: order, window: 1h, positive_when: 'event_typ'}}\n"
    )
    assert main(["--labels", str(tmp_path), "--rest", "http://127.0.0.1:1"]) == EXIT_REFUSED


def test_an_unreachable_cluster_is_named() -> None:
    from pipelines.jobs.samples import submit_here
    from pipelines.labels.loader import load_labels

    with pytest.raises(JobError, match=r"127\.0\.0\.1:1"):
        submit_here(load_labels(), SampleJobOptions(kafka="127.0.0.1:1"), rest="http://127.0.0.1:1")


def test_the_clock_runs_behind_the_newest_record_and_disbelieves_stamps_from_the_future() -> None:
    sql = source_sql(TRIP_EVENTS, SampleJobOptions(kafka="k:1", disorder_ms=7, stamp_ahead_ms=9))
    assert '"ingest_time_ms" *: *' in sql and " - 9, 3) < `appended`" in sql and " - 7, 3) END" in sql
    assert '"event_time_ms" *: *' in source_sql(DECISIONS, SampleJobOptions(kafka="k:1"))
    assert " - 0, 3) END" in source_sql(CLOCK, SampleJobOptions(kafka="k:1", disorder_ms=7))

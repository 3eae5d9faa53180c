"""The sample job: decisions and trip events -> versions of Samples. `python -m pipelines.jobs.samples --help`.

    decisions ───┐ key = order, raw bytes, place     ┌─► samples       key = sample
    trip_events ─┼──► JoinSamples (keyed by order) ──┼─► dead_letters  malformed decisions
    clock ───────┘    clock = ingest time            └─► ledger        duplicate decisions, unmatched outcomes

Malformed, duplicate, late and future trip events are the feature job's to report: it reads the same topic; here they are only
counted, and a late one is joined all the same. So a place of `trip_events` may stand in the ledger twice: once for what the
feature job did with it, once as `unmatched`.

The three topics are written at least once, without transactions, for four reasons: a provisional sample is readable at once and not
at the next checkpoint; a killed job leaves no open transaction that holds up readers; offsets have no gaps, so that the
sample log can tell a loss; and the fold over versions gives the same Samples however much is repeated
(tests/pipelines/test_joiner.py::test_a_restart_from_older_state_…). readers of the other two count each place once.

The clock. Each partition's is the largest ingest time seen (of a decision: its event time) less a bound on disorder; the job's is the
slowest partition's, not counting those that are silent for a while. A stamp later than the broker's own receipt is not believed. A
replay closes when something moves the clock past its last window: `clock.py::publish_clock`, on a topic that only this job reads.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from features.records import DEAD_LETTERS, DECISIONS, LEDGER, SAMPLES, TRIP_EVENTS
from features.topics import create_topics
from pipelines.jobs.clock import CLOCK, CLOCK_PARTITIONS
from pipelines.jobs.options import SampleJobOptions, sample_settings
from pipelines.jobs.running import Candidate
from pipelines.jobs.session import (
    add_run_options,
    assert_utc,
    run_main,
    run_options,
    submit_candidate,
    where,
)
from pipelines.labels.loader import SHIPPED, load_labels
from pipelines.labels.spec import LabelSet

if TYPE_CHECKING:
    from pyflink.table import StatementSet, StreamTableEnvironment

# The field that moves the clock, in the bytes of each topic: written by our own encoder, and before any free text.
_CLOCK_FIELD: Final = {DECISIONS: "event_time_ms", TRIP_EVENTS: "ingest_time_ms", CLOCK: "clock_ms"}
_WRITTEN: Final = (SAMPLES, DEAD_LETTERS, LEDGER)


def build(t_env: StreamTableEnvironment, labels: LabelSet, options: SampleJobOptions) -> StatementSet:
    """Sources, joiner and sinks, in that order; returns the inserts, not yet executed.

    Raises: JobError when the session is not in UTC.
    """
    from pyflink.common import Types
    from pyflink.table import Schema

    from pipelines.jobs.sample_function import INPUT_FIELDS, OUTPUT_TYPE, JoinSamples

    assert_utc(t_env)
    for topic in _CLOCK_FIELD:
        t_env.execute_sql(source_sql(topic, options))
    columns = ", ".join(f"`{column}`" for column in INPUT_FIELDS[1:])
    both = " UNION ALL ".join(f"SELECT '{topic}' AS `topic`, {columns} FROM `{topic}`" for topic in _CLOCK_FIELD)
    joined = (
        t_env.to_data_stream(t_env.sql_query(both))
        .key_by(_order_of, key_type=Types.STRING())
        .process(JoinSamples(labels), output_type=OUTPUT_TYPE)
        .name("join samples")
        # Kept state holds answers to these labels: under other labels a restore must fail, not misread it.
        .uid(f"join-samples-{labels.fingerprint}")
    )
    schema = (
        Schema.new_builder()
        .column("topic", "STRING")
        .column("message_key", "STRING")
        .column("message", "BYTES")
        .build()
    )
    t_env.create_temporary_view("joined", t_env.from_data_stream(joined, schema))
    statements = t_env.create_statement_set()
    for topic in _WRITTEN:
        t_env.execute_sql(sink_sql(topic, options))
        keys = "`message_key`, " if topic == SAMPLES else ""
        statements.add_insert_sql(
            f"INSERT INTO `{topic}` SELECT {keys}`message` FROM `joined` WHERE `topic` = '{topic}'"
        )
    return statements


def source_sql(topic: str, options: SampleJobOptions) -> str:
    """A topic as raw bytes with key and place, and the clock that it moves. What is on `clock` is a promise: no disorder."""
    behind_ms = 0 if topic == CLOCK else options.disorder_ms
    pattern = f'"{_CLOCK_FIELD[topic]}" *: *(-?[0-9]{{1,15}})'
    stamp_ms = f"TRY_CAST(REGEXP_EXTRACT(CAST(`message` AS STRING), '{pattern}', 1) AS BIGINT)"
    return f"""CREATE TEMPORARY TABLE `{topic}` (
  `order_key` STRING,
  `message` BYTES,
  `kafka_partition` INT METADATA FROM 'partition' VIRTUAL,
  `kafka_offset` BIGINT METADATA FROM 'offset' VIRTUAL,
  `appended` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL,
  `clock` AS CASE WHEN TO_TIMESTAMP_LTZ({stamp_ms} - {options.stamp_ahead_ms}, 3) < `appended`
    THEN TO_TIMESTAMP_LTZ({stamp_ms} - {behind_ms}, 3) END,
  WATERMARK FOR `clock` AS `clock`
) WITH (
  'connector' = 'kafka',
  'topic' = '{options.topic_prefix}{topic}',
  'properties.bootstrap.servers' = '{options.kafka}',
  'scan.startup.mode' = 'earliest-offset',
  'key.format' = 'raw',
  'key.fields' = 'order_key',
  'value.format' = 'raw',
  'value.fields-include' = 'EXCEPT_KEY',
  'scan.watermark.idle-timeout' = '{options.idle_ms} ms'
)"""


def sink_sql(topic: str, options: SampleJobOptions) -> str:
    """A topic that is written at least once; `samples` with its key, so that the versions of a sample stay in order."""
    key = "  `message_key` STRING,\n" if topic == SAMPLES else ""
    formats = "  'format' = 'raw',"
    if topic == SAMPLES:
        formats = "\n".join(
            [
                "  'key.format' = 'raw',",
                "  'key.fields' = 'message_key',",
                "  'value.format' = 'raw',",
                "  'value.fields-include' = 'EXCEPT_KEY',",
            ]
        )
    return f"""CREATE TEMPORARY TABLE `{topic}` (
{key}  `message` BYTES
) WITH (
  'connector' = 'kafka',
  'topic' = '{options.topic_prefix}{topic}',
  'properties.bootstrap.servers' = '{options.kafka}',
{formats}
  'properties.compression.type' = 'lz4',
  'properties.max.request.size' = '{options.max_message_bytes}',
  'sink.delivery-guarantee' = 'at-least-once'
)"""


def candidate_of(labels: LabelSet, options: SampleJobOptions) -> Candidate:
    """The job as those see it who want to know whether it runs already. The fingerprint is of labels and tables."""
    tables = [source_sql(topic, options) for topic in _CLOCK_FIELD] + [sink_sql(topic, options) for topic in _WRITTEN]
    text = "\n".join([labels.fingerprint, *tables, *map("=".join, sample_settings(options).items())])
    return Candidate(
        project=options.project,
        kind="samples",
        name=options.name,
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:16],
        feeds=tuple(f"{name}@{fingerprint}" for name, fingerprint in labels.fingerprints.items()),
    )


def submit_here(labels: LabelSet, options: SampleJobOptions, **where: Any) -> dict[str, str]:
    """Submit from this process, the clock's topic made where it is missing; `where` as `submit_candidate` takes it.

    Raises: AlreadyRunning, JobError, TopicError.
    """

    def prepared(t_env: StreamTableEnvironment) -> StatementSet:
        create_topics(options.kafka, {options.topic_prefix + CLOCK: CLOCK_PARTITIONS})
        return build(t_env, labels, options)

    return submit_candidate(candidate_of(labels, options), sample_settings(options), prepared, **where)


def _order_of(row: Any) -> str:
    """The message's key. The joiner checks that a Decision is about that order."""
    return row[1] or ""


def main(argv: Sequence[str] | None = None) -> int:
    """Submit. Prints `{"job_id": …}` as its last line."""
    args = _parser().parse_args(argv)
    return run_main(lambda: _run(args))


def _run(args: argparse.Namespace) -> dict[str, str]:
    labels = load_labels(args.labels)
    options = SampleJobOptions(
        **run_options(args), topic_prefix=args.topic_prefix, disorder_ms=args.disorder_ms, idle_ms=args.idle_ms
    )
    return submit_here(labels, options, **where(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.jobs.samples",
        description="Submit the sample job to a Flink cluster: decisions and trip events in, versions of samples out.",
        epilog="The environment needs FLINK_LIB_DIR (jars with the Kafka connector) and FLINK_HOME; `hailstream jobs submit samples` sets all of it. "
        "A second submit of a running job is refused (exit 3), and so is one with other labels (exit 4) unless --replace is given.",
    )
    add_run_options(parser)
    parser.add_argument(
        "--topic-prefix", default="", help="before every topic's name, for a replay or a test beside the live ones"
    )
    parser.add_argument(
        "--labels", type=Path, default=SHIPPED, help="folder of label files (default: the shipped ones)"
    )
    parser.add_argument(
        "--disorder-ms", type=int, default=30_000, help="how far the clock runs behind (default %(default)s)"
    )
    parser.add_argument(
        "--idle-ms",
        type=int,
        default=5_000,
        help="a partition silent for so long holds nothing back (default %(default)s)",
    )
    return parser


if __name__ == "__main__":
    # By its own name, not as __main__: the functions are sent to the cluster by reference, and it knows no __main__.
    from pipelines.jobs.samples import main as run

    sys.exit(run())

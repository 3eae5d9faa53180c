"""The sample job: decisions and trip events -> versions of Samples. `python -m pipelines.jobs.samples --help`.

    decisions ───┐ key = order, raw bytes, place     ┌─► samples       key = sample
                 ├──► JoinSamples (keyed by order) ──┼─► dead_letters  malformed decisions
    trip_events ─┘    clock = ingest time            └─► ledger        duplicate decisions, unmatched outcomes

Malformed, duplicate, late and future trip events are the feature job's to report: it reads the same topic; here they are only
counted, and a late one is joined all the same. So a place of `trip_events` may stand in the ledger twice: once for what the
feature job did with it, once as `unmatched`.

The three topics are written at least once, without transactions, for four reasons: a provisional sample is readable at once and not
at the next checkpoint; a killed job leaves no open transaction that holds up readers; offsets have no gaps, so that the
sample log can tell a loss; and the fold over versions gives the same Samples however much is repeated
(tests/pipelines/test_joiner.py::test_a_restart_from_older_state_…). readers of the other two count each place once.

The clock. Each partition's is the largest ingest time seen (of a decision: its event time) less a bound on disorder; the job's is the
slowest partition's, not counting those that are silent for a while. A stamp later than the broker's own receipt is not believed. A
replay closes when something moves the clock past its last window: any later trip event does, such as `clock_events` gives.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from features.records import DEAD_LETTERS, DECISIONS, LEDGER, SAMPLES, TRIP_EVENTS, TripEvent
from features.yaml_source import Mistakes
from pipelines.jobs.submit import EXIT_ALREADY_RUNNING, AlreadyRunning, JobError, refuse_second, remote_settings
from pipelines.labels.loader import SHIPPED, load_labels
from pipelines.labels.spec import LabelSet

if TYPE_CHECKING:
    from pyflink.table import StatementSet, StreamTableEnvironment

# The field that moves the clock, in the bytes of each topic: written by our own encoder, and before any free text.
_CLOCK_FIELD: Final = {DECISIONS: "event_time_ms", TRIP_EVENTS: "ingest_time_ms"}


@dataclass(frozen=True, kw_only=True)
class SampleJobOptions:
    """Where the sample job runs and what it may cost."""

    kafka: str  # bootstrap servers
    project: str = "hailstream"  # begins the job's name
    topic_prefix: str = ""  # before the name of every topic: a replay or a test beside the live ones
    parallelism: int = 1
    disorder_ms: int = 30_000  # ingest time: the clock runs this far behind the newest record of a partition
    idle_ms: int = 5_000  # wall time: a partition that is silent for so long no longer holds the clock back
    stamp_ahead_ms: int = 300_000  # an ingest time so far beyond the broker's receipt is a fault and moves no clock
    checkpoint_ms: int = 2_000
    checkpoint_dir: str | None = None  # a URI; None: the cluster's execution.checkpointing.dir
    state_backend: str = "hashmap"  # "rocksdb" where the open orders do not fit into memory
    buffer_ms: int = 20  # a record waits at most this long for its network buffer to fill
    max_message_bytes: int = 16 << 20  # before compression; a Decision of 100 candidates x 50 features has 39 kB

    @property
    def name(self) -> str:
        return f"{self.project}-samples"


def build(t_env: StreamTableEnvironment, labels: LabelSet, options: SampleJobOptions) -> StatementSet:
    """Sources, joiner and sinks, in that order; returns the inserts, not yet executed.

    Raises: JobError when the session is not in UTC.
    """
    from pyflink.common import Types
    from pyflink.table import Schema

    from pipelines.jobs.sample_function import INPUT_FIELDS, OUTPUT_TYPE, JoinSamples

    if t_env.get_config().get_local_timezone() != "UTC":
        raise JobError("set table.local-time-zone to UTC: Flink 2.2 loses rows in other zones")
    for topic in (DECISIONS, TRIP_EVENTS):
        t_env.execute_sql(source_sql(topic, options))
    columns = ", ".join(f"`{column}`" for column in INPUT_FIELDS[1:])
    both = " UNION ALL ".join(
        f"SELECT '{topic}' AS `topic`, {columns} FROM `{topic}`" for topic in (DECISIONS, TRIP_EVENTS)
    )
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
    for topic in (SAMPLES, DEAD_LETTERS, LEDGER):
        t_env.execute_sql(sink_sql(topic, options))
        keys = "`message_key`, " if topic == SAMPLES else ""
        statements.add_insert_sql(
            f"INSERT INTO `{topic}` SELECT {keys}`message` FROM `joined` WHERE `topic` = '{topic}'"
        )
    return statements


def source_sql(topic: str, options: SampleJobOptions) -> str:
    """A topic as raw bytes with key and place, and the clock that it moves."""
    pattern = f'"{_CLOCK_FIELD[topic]}" *: *(-?[0-9]{{1,15}})'
    stamp_ms = f"TRY_CAST(REGEXP_EXTRACT(CAST(`message` AS STRING), '{pattern}', 1) AS BIGINT)"
    return f"""CREATE TEMPORARY TABLE `{topic}` (
  `order_key` STRING,
  `message` BYTES,
  `kafka_partition` INT METADATA FROM 'partition' VIRTUAL,
  `kafka_offset` BIGINT METADATA FROM 'offset' VIRTUAL,
  `appended` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL,
  `clock` AS CASE WHEN TO_TIMESTAMP_LTZ({stamp_ms} - {options.stamp_ahead_ms}, 3) < `appended`
    THEN TO_TIMESTAMP_LTZ({stamp_ms} - {options.disorder_ms}, 3) END,
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


def settings(options: SampleJobOptions) -> dict[str, str]:
    """Flink's settings for this job."""
    chosen = {
        "pipeline.name": options.name,
        "parallelism.default": str(options.parallelism),
        "table.local-time-zone": "UTC",
        "python.execution-mode": "thread",  # asserted by the function: Flink falls back to processes in silence
        "pipeline.object-reuse": "true",
        "execution.buffer-timeout.interval": f"{options.buffer_ms} ms",
        "execution.checkpointing.interval": f"{options.checkpoint_ms} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "state.backend.type": options.state_backend,
        "state.backend.incremental": "true" if options.state_backend == "rocksdb" else "false",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "2147483647",
        "restart-strategy.fixed-delay.delay": "1 s",
    }
    if options.checkpoint_dir is not None:
        chosen["execution.checkpointing.dir"] = options.checkpoint_dir
    return chosen


def submit_here(
    labels: LabelSet,
    options: SampleJobOptions,
    *,
    rest: str,
    from_savepoint: str | None = None,
    worker_python: str = sys.executable,
) -> str:
    """Submit from this process and return the job's id. Raises: AlreadyRunning, JobError."""
    refuse_second(rest, options.name)
    chosen = {
        **settings(options),
        **remote_settings(rest, worker_python=worker_python),
        "pipeline.global-job-parameters": f"hailstream.fingerprint:{labels.fingerprint}",
    }
    if from_savepoint is not None:
        chosen["execution.state-recovery.path"] = from_savepoint
    client = build(_table_environment(chosen), labels, options).execute().get_job_client()
    if client is None:
        raise JobError(f"{options.name} was sent to {rest} and no job came back")
    return str(client.get_job_id())


def clock_events(now_ms: int, num: int = 64) -> list[TripEvent]:
    """Trip events that are about nothing and move the clock to `now_ms`: the end marker of a replay, a heartbeat of a quiet day.

    Send each keyed by its order_id: `num` of them reach every partition (of 4, one is missed with a chance of 4 x 0.75^64 = 4e-8).
    `arrived` is read by no shipped feature and no label.
    """
    return [
        TripEvent(
            event_id=f"clock-{now_ms}-{number}",
            event_type="arrived",
            order_id=f"clock-{number}",
            rider_id="clock",
            city="clock",
            product="clock",
            pickup_zone=0,
            event_time_ms=now_ms,
            ingest_time_ms=now_ms,
            derived=["event_type"],
        )
        for number in range(num)
    ]


def _order_of(row: Any) -> str:
    """The message's key. The joiner checks that a Decision is about that order."""
    return row[1] or ""


def _table_environment(chosen: dict[str, str]) -> StreamTableEnvironment:
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    configuration = Configuration()
    for key, value in chosen.items():
        configuration.set_string(key, value)
    t_env = StreamTableEnvironment.create(StreamExecutionEnvironment.get_execution_environment(configuration))
    for key, value in chosen.items():  # the table planner reads its own copy
        t_env.get_config().set(key, value)
    return t_env


def main(argv: Sequence[str] | None = None) -> int:
    """Submit. Prints `{"job_id": …}` as its last line."""
    args = _parser().parse_args(argv)
    try:
        options = SampleJobOptions(
            kafka=args.kafka,
            project=args.project,
            topic_prefix=args.topic_prefix,
            parallelism=args.parallelism,
            disorder_ms=args.disorder_ms,
            idle_ms=args.idle_ms,
            checkpoint_dir=args.checkpoints,
            state_backend=args.state_backend,
        )
        labels = load_labels(args.labels)
        job_id = submit_here(
            labels,
            options,
            rest=args.rest,
            from_savepoint=args.from_savepoint,
            worker_python=args.worker_python,
        )
    except AlreadyRunning as error:
        print(error, file=sys.stderr)
        return EXIT_ALREADY_RUNNING
    except (JobError, Mistakes, FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"job_id": job_id, "name": options.name, "fingerprint": labels.fingerprint}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.jobs.samples",
        description="Submit the sample job to a Flink cluster: decisions and trip events in, versions of samples out.",
        epilog="The environment needs FLINK_LIB_DIR (jars with the Kafka connector) and FLINK_HOME; `hailstream jobs submit samples` sets all of it. "
        "A second submit of a running job is refused (exit 3).",
    )
    parser.add_argument("--kafka", default="127.0.0.1:9092", help="bootstrap servers (default %(default)s)")
    parser.add_argument("--rest", required=True, help="the cluster's REST address, http://HOST:PORT")
    parser.add_argument("--project", default="hailstream", help="begins the job's name (default %(default)s)")
    parser.add_argument(
        "--topic-prefix", default="", help="before every topic's name, for a replay or a test beside the live ones"
    )
    parser.add_argument("--parallelism", type=int, default=1, help="tasks per step (default %(default)s)")
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
    parser.add_argument("--checkpoints", help="a URI for checkpoints (default: the cluster's own)")
    parser.add_argument(
        "--state-backend",
        choices=("hashmap", "rocksdb"),
        default="hashmap",
        help="rocksdb when open orders outgrow memory",
    )
    parser.add_argument("--from-savepoint", help="start from this savepoint or checkpoint")
    parser.add_argument(
        "--worker-python",
        default=os.environ.get("HAILSTREAM_WORKER_PYTHON", sys.executable),
        help="interpreter of the cluster's Python workers (default: this one)",
    )
    return parser


if __name__ == "__main__":
    # By its own name, not as __main__: the functions are sent to the cluster by reference, and it knows no __main__.
    from pipelines.jobs.samples import main as run

    sys.exit(run())

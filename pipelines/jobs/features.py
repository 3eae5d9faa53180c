"""The feature job: topics → tiles and last values in Redis. `python -m pipelines.jobs.features --help`.

Reads what is applied from Redis (features/registry.py), renders it as SQL (pipelines/sql.py), registers the Python steps
(pipelines/sink.py) and submits the whole as one job to a Flink cluster. Run it as a process of its own
(pipelines/jobs/submit.py): PyFlink starts a JVM in the process that imports it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from features.loader import load_catalogue
from features.registry import load_registry, local_registry
from features.spec import PROJECT, Catalogue
from features.store import FeatureError
from pipelines.jobs.submit import EXIT_ALREADY_RUNNING, AlreadyRunning, JobError, refuse_second, remote_settings
from pipelines.sql import FeatureJobSql, JobOptions, render_feature_job

if TYPE_CHECKING:
    from pyflink.table import StatementSet, TableEnvironment


def render(catalogue: Catalogue, generations: Mapping[str, int], options: JobOptions) -> str:
    """The job's SQL text, as `hailstream jobs render` prints it."""
    return render_feature_job(catalogue, generations, options).text()


def build(t_env: TableEnvironment, sql: FeatureJobSql, redis_url: str, project: str = PROJECT) -> StatementSet:
    """Register functions, tables and views, in that order; returns the inserts, not yet executed.

    Raises: JobError when the session is not in UTC.
    """
    from pipelines.sink import dead_letter_udf, decode_udf, ledger_udf, write_udf

    assert_utc(t_env)
    for decoder in sql.decoders:
        t_env.create_temporary_function(decoder.name, decode_udf(decoder))
    t_env.create_temporary_function("dead_letter", dead_letter_udf())
    t_env.create_temporary_function("ledger_entry", ledger_udf())
    for writer in sql.writers:
        t_env.create_temporary_function(writer.name, write_udf(writer, redis_url, project))
    for statement in (*sql.tables, *sql.views):
        t_env.execute_sql(statement)
    statements = t_env.create_statement_set()
    for insert in sql.inserts:
        statements.add_insert_sql(insert)
    return statements


def explain(sql: FeatureJobSql, redis_url: str, project: str = PROJECT) -> str:
    """Flink's plan of the job with the kinds of rows that pass each step: `[I,UA]` into a sink, never UB or D."""
    from pyflink.table import ExplainDetail

    return str(build(table_environment(sql.settings), sql, redis_url, project).explain(ExplainDetail.CHANGELOG_MODE))


def table_environment(settings: Mapping[str, str]) -> TableEnvironment:
    """A streaming session with these settings."""
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    environment = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    return TableEnvironment.create(environment)


def assert_utc(t_env: Any) -> None:
    """Raises: JobError unless the session's zone is UTC: Flink 2.2 loses rows of day windows in other zones."""
    zone = t_env.get_config().get_local_timezone()
    if zone != "UTC":
        raise JobError(f"the Flink session is in zone {zone}: set table.local-time-zone to UTC")


def submit_here(
    sql: FeatureJobSql,
    *,
    rest: str,
    redis_url: str,
    project: str = PROJECT,
    from_savepoint: str | None = None,
    worker_python: str = sys.executable,
) -> str:
    """Submit from this process and return the job's id. Raises: AlreadyRunning, JobError."""
    refuse_second(rest, sql.name)
    settings = {
        **sql.settings,
        **remote_settings(rest, worker_python=worker_python),
        "pipeline.global-job-parameters": f"hailstream.fingerprint:{fingerprint(sql)}",
    }
    if from_savepoint is not None:
        settings["execution.state-recovery.path"] = from_savepoint
    result = build(table_environment(settings), sql, redis_url, project).execute()
    client = result.get_job_client()
    if client is None:
        raise JobError(f"{sql.name} was sent to {rest} and no job came back")
    return str(client.get_job_id())


def fingerprint(sql: FeatureJobSql) -> str:
    """Of the whole text: two jobs with the same one do the same."""
    return hashlib.sha256(sql.text().encode()).hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> int:
    """Submit, or print with --render. Prints `{"job_id": …}` as its last line."""
    args = _parser().parse_args(argv)
    try:
        catalogue, generations = _applied(args)
        options = JobOptions(
            kafka=args.kafka,
            project=args.project,
            parallelism=args.parallelism,
            checkpoint_dir=args.checkpoints,
            state_backend=args.state_backend,
            **({} if args.mini_batch_ms is None else {"mini_batch_ms": args.mini_batch_ms}),
            **({} if args.bundle_ms is None else {"bundle_ms": args.bundle_ms}),
        )
        sql = render_feature_job(catalogue, generations, options)
        if args.render:
            print(sql.text(), end="")
            return 0
        if args.explain:
            print(explain(sql, args.redis, args.project))
            return 0
        if args.rest is None:
            raise JobError(
                "--rest says which cluster to submit to, such as http://127.0.0.1:8081 (`hailstream status` shows it)"
            )
        job_id = submit_here(
            sql,
            rest=args.rest,
            redis_url=args.redis,
            project=args.project,
            from_savepoint=args.from_savepoint,
            worker_python=args.worker_python,
        )
    except AlreadyRunning as error:
        print(error, file=sys.stderr)
        return EXIT_ALREADY_RUNNING
    except (JobError, FeatureError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"job_id": job_id, "name": sql.name, "fingerprint": fingerprint(sql)}))
    return 0


def _applied(args: argparse.Namespace) -> tuple[Catalogue, dict[str, int]]:
    """What is applied, or with --definitions a folder of YAML as a first generation (only to look at)."""
    if args.definitions is not None:
        if not (args.render or args.explain):
            raise JobError(
                "--definitions is for --render and --explain: a job runs what `hailstream features apply` has put into Redis"
            )
        catalogue = load_catalogue(args.definitions)
        return catalogue, local_registry(catalogue, args.project).generations()
    registry = load_registry(args.redis, args.project)
    return registry.catalogue, registry.generations()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.jobs.features",
        description="Submit the feature job to a Flink cluster: the topics of all applied views in, tiles and last values in Redis out.",
        epilog="Looks first: --render prints the SQL. The environment needs FLINK_LIB_DIR (jars with the Kafka connector) and FLINK_HOME; "
        "`hailstream jobs submit features` sets all of it. A second submit of a running job is refused (exit 3).",
    )
    parser.add_argument("--kafka", default="127.0.0.1:9092", help="bootstrap servers (default %(default)s)")
    parser.add_argument(
        "--redis", default="redis://127.0.0.1:6379/0", help="the online store and registry (default %(default)s)"
    )
    parser.add_argument("--rest", help="the cluster's REST address, http://HOST:PORT")
    parser.add_argument("--project", default=PROJECT, help="the registry's project (default %(default)s)")
    parser.add_argument("--parallelism", type=int, default=1, help="tasks per step (default %(default)s)")
    parser.add_argument("--checkpoints", help="a URI for checkpoints (default: the cluster's own)")
    parser.add_argument(
        "--state-backend", choices=("hashmap", "rocksdb"), default="hashmap", help="rocksdb when keys outgrow memory"
    )
    parser.add_argument("--mini-batch-ms", type=int, help="aggregates are sent on this often: freshness against rate")
    parser.add_argument("--bundle-ms", type=int, help="a Python step answers this often: freshness against rate")
    parser.add_argument("--from-savepoint", help="start from this savepoint or checkpoint")
    parser.add_argument(
        "--worker-python",
        default=os.environ.get("HAILSTREAM_WORKER_PYTHON", sys.executable),
        help="interpreter of the cluster's Python workers (default: this one)",
    )
    parser.add_argument("--render", action="store_true", help="print the SQL and submit nothing")
    parser.add_argument("--explain", action="store_true", help="print Flink's plan of it and submit nothing")
    parser.add_argument(
        "--definitions", type=Path, help="with --render or --explain: a folder of YAML instead of what is applied"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

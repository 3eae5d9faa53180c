"""What both jobs' modules share: the Flink session, the options of the command line, how a submit ends.

Nothing here imports pyflink until a session is asked for: it starts a JVM in the process that imports it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from features.spec import PROJECT
from features.store import FeatureError
from features.topics import TopicError
from features.yaml_source import Mistakes
from pipelines.jobs.options import STATE_BACKENDS
from pipelines.jobs.running import Candidate, refuse_second, running_jobs, stop_all
from pipelines.jobs.submit import EXIT_ALREADY_RUNNING, EXIT_REFUSED, AlreadyRunning, JobError, remote_settings

if TYPE_CHECKING:
    from pyflink.table import StatementSet, StreamTableEnvironment


def table_environment(settings: Mapping[str, str]) -> StreamTableEnvironment:
    """A streaming session with these settings."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    t_env = StreamTableEnvironment.create(StreamExecutionEnvironment.get_execution_environment(configuration))
    for key, value in settings.items():  # the table planner reads its own copy
        t_env.get_config().set(key, value)
    return t_env


def assert_utc(t_env: Any) -> None:
    """Raises: JobError unless the session's zone is UTC: Flink 2.2 loses rows of day windows in other zones."""
    zone = t_env.get_config().get_local_timezone()
    if zone != "UTC":
        raise JobError(f"the Flink session is in zone {zone}: set table.local-time-zone to UTC")


def submit_candidate(
    candidate: Candidate,
    settings: Mapping[str, str],
    build: Callable[[StreamTableEnvironment], StatementSet],
    *,
    rest: str,
    worker_python: str = sys.executable,
    from_savepoint: str | None = None,
    replace: str | None = None,
) -> dict[str, str]:
    """Submit from this process and return what `run_main` prints: the job's id, name and fingerprint.

    `replace` names a folder for the savepoint of the job that runs now and is to be replaced. That one is stopped only after
    Flink has planned the new one.
    Raises: AlreadyRunning, JobError.
    """
    running = running_jobs(rest, candidate.project, candidate.kind)
    to_stop = refuse_second(candidate, running, replace=replace is not None)
    chosen = {**settings, **remote_settings(rest, worker_python=worker_python), **candidate.settings()}
    if from_savepoint is not None:
        chosen["execution.state-recovery.path"] = from_savepoint
    from py4j.protocol import Py4JJavaError

    try:
        statements = build(table_environment(chosen))
        if to_stop and replace is not None:
            statements.explain()
            stop_all(rest, to_stop, replace)
        client = statements.execute().get_job_client()
    except (
        Py4JJavaError
    ) as error:  # Flink 2.2 fails to plan rare texts (constants divided by constants), and says so here
        raise JobError(f"Flink does not take {candidate.name}: {_causes(str(error.java_exception))}") from error
    if client is None:
        raise JobError(f"{candidate.name} was sent to {rest} and no job came back")
    return {"job_id": str(client.get_job_id()), "name": candidate.name, "fingerprint": candidate.fingerprint}


def run_main(act: Callable[[], dict[str, str] | None]) -> int:
    """The body of a module's `main`: prints what `act` submitted as one line of JSON, or its mistake; the exit code."""
    try:
        submitted = act()
    except AlreadyRunning as error:
        print(error, file=sys.stderr)
        return EXIT_ALREADY_RUNNING
    except (JobError, FeatureError, TopicError, Mistakes, FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    if submitted is not None:
        print(json.dumps(submitted))
    return 0


def _causes(error: str) -> str:
    return " | ".join(line.strip() for line in error.splitlines() if line.strip())[:1500]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options that every job has."""
    parser.add_argument("--kafka", default="127.0.0.1:9092", help="bootstrap servers (default %(default)s)")
    parser.add_argument("--rest", help="the cluster's REST address, http://HOST:PORT")
    parser.add_argument("--project", default=PROJECT, help="begins the job's name (default %(default)s)")
    parser.add_argument("--parallelism", type=int, default=1, help="tasks per step (default %(default)s)")
    parser.add_argument("--checkpoints", help="a URI for checkpoints (default: the cluster's own)")
    parser.add_argument(
        "--state-backend", choices=STATE_BACKENDS, default="hashmap", help="rocksdb when the state outgrows memory"
    )
    parser.add_argument("--from-savepoint", help="start from this savepoint or checkpoint")
    parser.add_argument(
        "--replace",
        metavar="FOLDER",
        help="stop the job of this kind that runs with something else, with a savepoint in FOLDER, and start anew",
    )
    parser.add_argument(
        "--worker-python",
        default=os.environ.get("HAILSTREAM_WORKER_PYTHON", sys.executable),
        help="interpreter of the cluster's Python workers (default: this one)",
    )


def run_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `RunOptions` that the command line says."""
    return {
        "kafka": args.kafka,
        "project": args.project,
        "parallelism": args.parallelism,
        "checkpoint_dir": args.checkpoints,
        "state_backend": args.state_backend,
    }


def where(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `submit_candidate` that the command line says. Raises: JobError without a cluster."""
    if args.rest is None:
        raise JobError(
            "--rest says which cluster to submit to, such as http://127.0.0.1:8081 (`hailstream status` shows it)"
        )
    return {
        "rest": args.rest,
        "worker_python": args.worker_python,
        "from_savepoint": args.from_savepoint,
        "replace": args.replace,
    }

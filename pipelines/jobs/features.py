"""The feature job: topics → tiles and last values in Redis. `python -m pipelines.jobs.features --help`.

Reads what is applied from Redis (features/registry.py), renders it as SQL (pipelines/sql.py), registers the Python steps
(pipelines/sink.py) and submits the whole as one job to a Flink cluster. Run it as a process of its own
(pipelines/jobs/submit.py): PyFlink starts a JVM in the process that imports it.

A job feeds what was applied when it was submitted; what was applied since is fed by a new job in its place (`--replace`), which
starts at the first offset of every topic. A version that was staged (features/staging.py) gets a job beside it (`--next`), which
reads from the seam on, feeds all groups and takes the other's place after the switch. Reading again harms nothing: a tile takes a count only if it is higher than the one it
has, a last value only if it is newer, and readers of ledger and dead letters count a place once.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from features.applying import applied_through
from features.loader import load_catalogue
from features.registry import Registry, load_registry, local_registry
from features.spec import PROJECT, Catalogue
from features.staging import needs_staged
from pipelines.jobs.options import JobOptions
from pipelines.jobs.running import Candidate
from pipelines.jobs.session import (
    add_run_options,
    assert_utc,
    run_main,
    run_options,
    submit_candidate,
    table_environment,
    where,
)
from pipelines.jobs.submit import JobError
from pipelines.sql import FeatureJobSql, render_feature_job

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


def candidate_of(sql: FeatureJobSql, project: str = PROJECT, seam_ms: int | None = None) -> Candidate:
    """The job as those see it who want to know whether it runs already. The fingerprint is of the whole text
    and of the lives: after a fresh apply to an empty Redis the text is the same, and the job is not."""
    lives = "".join(f"{writer.group.name} {writer.life}\n" for writer in sql.writers if writer.life is not None)
    return Candidate(
        project=project,
        kind="features",
        name=sql.name,
        fingerprint=hashlib.sha256((sql.text() + lives).encode()).hexdigest()[:16],
        feeds=tuple(f"{writer.group.name}@{writer.generation}" for writer in sql.writers),
        seam_ms=seam_ms,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Submit, or print with --render or --explain."""
    args = _parser().parse_args(argv)
    return run_main(lambda: _run(args))


def _run(args: argparse.Namespace) -> dict[str, str] | None:
    sql, seam_ms = _rendered(args)
    if args.render:
        print(sql.text(), end="")
        return None
    if args.explain:
        print(explain(sql, args.redis, args.project))
        return None
    return submit_candidate(
        candidate_of(sql, args.project, seam_ms),
        sql.settings,
        lambda t_env: build(t_env, sql, args.redis, args.project),
        **where(args),
    )


def _rendered(args: argparse.Namespace) -> tuple[FeatureJobSql, int | None]:
    """The job, and the seam of a staged version."""
    registry, seam_ms = _applied(args)
    chosen = {name: getattr(args, name) for name in ("mini_batch_ms", "bundle_ms") if getattr(args, name) is not None}
    _refuse_lost(args, registry)
    options = JobOptions(**run_options(args), **chosen, seam_ms=seam_ms)
    lives = {group: life for (group, _), life in registry.lives().items()}
    return render_feature_job(registry.catalogue, registry.generations(), options, lives), seam_ms


def _refuse_lost(args: argparse.Namespace, registry: Registry) -> None:
    """Raises: JobError where a savepoint would go on with tiles that the store no longer has."""
    if args.from_savepoint is None or any(t is not None for t in applied_through(args.redis, registry).values()):
        return
    raise JobError(
        f"no group of project {args.project!r} has ever been written in this Redis, but the savepoint remembers what it has "
        "read: what is missing would never be written again. Submit without --from-savepoint: the job reads the topics anew"
    )


def _applied(args: argparse.Namespace) -> tuple[Registry, int | None]:
    """What is applied, or with --next staged, or with --definitions a folder of YAML as a first generation (only to look at)."""
    if args.definitions is not None:
        if not (args.render or args.explain):
            raise JobError(
                "--definitions is for --render and --explain: a job runs what `hailstream features apply` has put into Redis"
            )
        return local_registry(load_catalogue(args.definitions), args.project), None
    registry = load_registry(args.redis, args.project)
    if not args.next:
        return registry, None
    if args.replace is not None:
        raise JobError("--next runs beside the job that is served and replaces none")
    staged = needs_staged(registry)
    assert registry.document.next is not None
    return staged, registry.document.next.seam_ms


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.jobs.features",
        description="Submit the feature job to a Flink cluster: the topics of all applied views in, tiles and last values in Redis out.",
        epilog="Looks first: --render prints the SQL. The environment needs FLINK_LIB_DIR (jars with the Kafka connector) and FLINK_HOME; "
        "`hailstream jobs submit features` sets all of it. A second submit of a running job is refused (exit 3), and so is one of a "
        "newer catalogue beside it (exit 4) unless --replace is given. With --parallelism above 1 heartbeats follow the checkpoints.",
    )
    add_run_options(parser)
    parser.add_argument(
        "--redis", default="redis://127.0.0.1:6379/0", help="the online store and registry (default %(default)s)"
    )
    parser.add_argument("--mini-batch-ms", type=int, help="aggregates are sent on this often: freshness against rate")
    parser.add_argument("--bundle-ms", type=int, help="a Python step answers this often: freshness against rate")
    parser.add_argument(
        "--next",
        action="store_true",
        help="the version that `hailstream features apply` has staged, from its seam on, beside the job that is served",
    )
    parser.add_argument("--render", action="store_true", help="print the SQL and submit nothing")
    parser.add_argument("--explain", action="store_true", help="print Flink's plan of it and submit nothing")
    parser.add_argument(
        "--definitions", type=Path, help="with --render or --explain: a folder of YAML instead of what is applied"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`hailstream jobs submit | list | stop | render`: Flink jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from features.spec import PROJECT
from infra.commands.output import (
    FlinkRest,
    Json,
    Kafka,
    RedisUrl,
    err,
    flink_or_local,
    kafka_or_local,
    out,
    plain_errors,
    print_json,
    print_table,
    redis_or_local,
)
from infra.local.flink import flink_env
from infra.local.stack import Stack

app = typer.Typer(no_args_is_help=True, help="Flink jobs: submit, list, stop, render as SQL.")
RUNNING_S = 120.0  # until a submitted job's tasks all run, on a busy machine


class JobKind(StrEnum):
    """The jobs that there are."""

    features = "features"
    samples = "samples"


Kind = Annotated[
    JobKind, typer.Argument(help="features: topics to the online store; samples: decisions and outcomes to samples.")
]


@app.command()
def submit(
    kind: Kind,
    parallelism: Annotated[
        int,
        typer.Option(min=1, help="How many subtasks each step has."),
    ] = 1,
    labels: Annotated[
        Path | None, typer.Option(help="samples: folder of label files (default: the shipped ones).")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Stop the job of this kind that runs with an older catalogue or other labels (with a savepoint) and take its place.",
        ),
    ] = False,
    staged: Annotated[
        bool,
        typer.Option(
            "--next",
            help="features: the version that is staged, from its seam on, beside the job that is served.",
        ),
    ] = False,
    from_savepoint: Annotated[str | None, typer.Option(help="Resume from this savepoint of the same job.")] = None,
    kafka: Kafka = None,
    redis: RedisUrl = None,
    flink: FlinkRest = None,
    json: Json = False,
) -> None:
    """Submit a job and wait until its tasks run. The same job that runs already is left alone; another of its kind is refused.

    A job feeds what was applied when it was submitted. After `hailstream features apply` of new views: submit with --replace; of
    an edit that was staged: `hailstream features rollout` does all of it, or submit with --next.
    """
    from pipelines.jobs.running import running_jobs
    from pipelines.jobs.submit import AlreadyRunning, JobError, wait_running
    from pipelines.jobs.submit import submit as submit_job

    with plain_errors():
        rest = flink_or_local(flink)
        args = ["--kafka", kafka_or_local(kafka), "--parallelism", str(parallelism)]
        if kind is JobKind.features:
            args += ["--redis", redis_or_local(redis)]
            if labels is not None:
                raise JobError("--labels is the sample job's: `hailstream jobs submit samples --labels FOLDER`")
            args += ["--next"] if staged else []
        elif staged:
            raise JobError("--next is the feature job's: samples have no staged version")
        elif labels is not None:
            args += ["--labels", str(labels.resolve())]
        if replace:
            args += ["--replace", _savepoints()]
        if from_savepoint:
            args += ["--from-savepoint", from_savepoint]
        try:
            job_id = submit_job(f"pipelines.jobs.{kind}", args, rest=rest, env=flink_env(Stack().flink_folder))
            job = wait_running(rest, job_id, RUNNING_S)
        except AlreadyRunning as refused:
            err.print(str(refused), style="yellow", markup=False)
            found = running_jobs(rest, PROJECT, kind)
            if not found:
                raise JobError("it has ended meanwhile: submit it again") from None
            job = found[0]
    if json:
        print_json({"job_id": job.job_id, "name": job.name, "state": job.state})
    else:
        out.print(f"{job.name} is {job.state}: {rest}/#/job/running/{job.job_id}/overview")


@app.command("list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Those that have ended, too.")] = False,
    flink: FlinkRest = None,
    json: Json = False,
) -> None:
    """Show the jobs of the cluster, newest first."""
    from pipelines.jobs.submit import list_jobs

    with plain_errors():
        jobs = [job for job in list_jobs(flink_or_local(flink)) if every or not job.ended]
    rows = [
        {
            "name": job.name,
            "state": job.state,
            "started": datetime.fromtimestamp(job.started_ms / 1000, UTC).isoformat(timespec="seconds"),
            "job_id": job.job_id,
        }
        for job in jobs
    ]
    if json:
        print_json(rows)
    else:
        print_table(rows, empty="no job runs: `hailstream jobs submit features`")


@app.command()
def stop(
    job: Annotated[str, typer.Argument(help="Name, kind (features, samples) or id of a job.")],
    savepoint: Annotated[bool, typer.Option(help="Finish what was read and keep the state.")] = True,
    flink: FlinkRest = None,
    json: Json = False,
) -> None:
    """Stop a job, with a savepoint to start again from."""
    from pipelines.jobs.running import running_jobs
    from pipelines.jobs.submit import JobError, list_jobs, stop_job

    with plain_errors():
        rest = flink_or_local(flink)
        if job in list(JobKind):
            found = running_jobs(rest, PROJECT, job)
        else:
            found = [j for j in list_jobs(rest) if not j.ended and job in (j.job_id, j.name)]
        if len(found) > 1:
            each = ", ".join(f"{j.job_id} ({j.name})" for j in found)
            raise JobError(f"{len(found)} running jobs are called {job!r}: stop one by its id: {each}")
        if not found:
            known = ", ".join(j.name for j in list_jobs(rest) if not j.ended) or "none"
            raise JobError(f"no running job is called {job!r}; running: {known}")
        target = _savepoints() if savepoint else None
        path = stop_job(rest, found[0].job_id, target)
    if json:
        print_json({"job_id": found[0].job_id, "name": found[0].name, "savepoint": path})
    else:
        out.print(f"{found[0].name} has stopped" + (f"; start it again with --from-savepoint {path}" if path else ""))


@app.command()
def render(
    kind: Kind,
    kafka: Kafka = None,
    redis: RedisUrl = None,
) -> None:
    """Print the job as the SQL that Flink runs. Needs what is applied, not a cluster."""
    from pipelines.jobs.submit import JobError

    with plain_errors():
        if kind is not JobKind.features:
            raise JobError("the samples job is a keyed process function, not SQL: read pipelines/joiner.py")
        from features.registry import load_registry
        from pipelines.jobs.features import render as render_job
        from pipelines.jobs.options import JobOptions

        registry = load_registry(redis_or_local(redis))
        text = render_job(registry.catalogue, registry.generations(), JobOptions(kafka=kafka_or_local(kafka)))
    typer.echo(text, nl=False)


def _savepoints() -> str:
    """Where the local cluster puts savepoints. A cluster elsewhere must see the same folder."""
    return str(Stack().flink_folder / "savepoints")

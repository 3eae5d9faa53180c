"""`hailstream features rollout | switch | rebuild | drop | abort`: from one version to the next while both are fed.

Each verb first looks at the jobs that run: what a job still writes is not deleted, and what is not fed is not served.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from features.spec import PROJECT
from infra.commands.features_history import archive_dir, with_archives
from infra.commands.features_plan import SHIPPED, Allow, Allowed, Folder, refusal
from infra.commands.output import (
    FlinkRest,
    Json,
    Kafka,
    RedisUrl,
    err,
    fail,
    flink_or_local,
    kafka_or_local,
    out,
    plain_errors,
    print_json,
    print_table,
    progress,
    redis_or_local,
    whoami,
)
from infra.local.flink import flink_env
from infra.local.home import home
from infra.local.stack import Stack

if TYPE_CHECKING:
    from features.registry import Registry
    from features.rollout import Dropped, GroupReadiness
    from pipelines.jobs.submit import Job

RUNNING_S = 120.0
POLL_S = 0.5
ENGINES_S = 10.0  # within these every engine reads the new version: it asks every second, and compiles what has changed
MODULE = "pipelines.jobs.features"
Reason = Annotated[str, typer.Option(help="Why; kept in the history.")]
Actor = Annotated[
    str | None, typer.Option(envvar="HAILSTREAM_ACTOR", help="Who; kept in the history. (default: the user)")
]
Feast = Annotated[bool, typer.Option(help="Write Feast's registry as well; importing Feast takes some seconds.")]
NoJobs = Annotated[bool, typer.Option("--no-jobs", help="No job runs anywhere: do not ask the cluster.")]
WithoutBackfill = Annotated[
    bool,
    typer.Option(
        "--without-backfill", help="Serve windows that reach beyond the seam incomplete; the history says so."
    ),
]


def rollout(
    folder: Folder = SHIPPED,
    allow: Allowed = Allow.backfill,
    reason: Reason = "",
    actor: Actor = None,
    without_backfill: WithoutBackfill = False,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="The history may end before all of it can have arrived.")
    ] = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until the new job has caught up.")] = 600.0,
    feast: Feast = True,
    kafka: Kafka = None,
    redis: RedisUrl = None,
    flink: FlinkRest = None,
    json: Json = False,
) -> None:
    """Take an edit all the way: apply, second job, backfill, wait, switch, stop the first job. Run it again to go on.

    What is served stays as it is until the switch. An edit that moves no group which is fed is applied at once, and a new
    job takes the place of the one that runs.

    Exit code: 0 done, 1 a mistake, or not caught up in time: nothing is lost, run it again; 3 refused, see --allow.
    """
    from features.registry import apply_catalogue
    from features.rollout import switch as switch_to_staged
    from features.verbs import refuse_beyond

    with plain_errors(FileNotFoundError), refusal():
        url, rest, who = redis_or_local(redis), flink_or_local(flink), actor or whoami()
        feast_dir = home() / "feast" if feast else None
        check = refuse_beyond(allow.value)
        report = apply_catalogue(folder, url, actor=who, reason=reason, feast_dir=feast_dir, check=check)
        registry = report.registry
        args = ["--kafka", kafka_or_local(kafka), "--redis", url]
        if registry.staged is None:
            job = _submit(rest, [*args, "--replace", _savepoints()])
            _done(
                json, f"version {registry.version} is served and fed by {job.name}", version=registry.version, job=job
            )
            return
        before = _running(rest)
        job = _submit(rest, [*args, "--next"])
        _say(
            json,
            f"staged with seam {registry.document.next.seam_ms if registry.document.next else '-'}; {job.name} runs",
        )
        if not without_backfill:
            _backfill(url, registry, folder, accept_gap, kafka_or_local(kafka))
        _wait_ready(url, wait, without_backfill, kafka_or_local(kafka), registry)
        served = switch_to_staged(url, actor=who, reason=reason, without_backfill=without_backfill, feast_dir=feast_dir)
        _say(json, f"version {served.version} is served")
        stopped = [old for old in before if old.job_id != job.job_id]
        if stopped:  # what an engine still reads must not stand still under it
            time.sleep(ENGINES_S)
        for old in stopped:
            _stop(rest, old)
    _done(
        json,
        f"{job.name} feeds it; stopped {', '.join(old.name for old in stopped) or 'none'}",
        version=served.version,
        job=job,
        stopped=[old.job_id for old in stopped],
    )


def switch(
    reason: Reason = "",
    actor: Actor = None,
    without_backfill: WithoutBackfill = False,
    check: Annotated[bool, typer.Option("--check", help="Only show how far the new generations are.")] = False,
    feast: Feast = True,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Serve the staged version from now on. Refused until it is backfilled and its job is as far as what is served.

    Then stop the first job: the second one feeds all groups. Exit code: 0 switched (or ready), 1 not ready.
    """
    from features.rollout import readiness
    from features.rollout import switch as switch_to_staged

    with plain_errors():
        url = redis_or_local(redis)
        if check:
            _show_readiness(readiness(url, without_backfill=without_backfill), json)
            return
        registry = switch_to_staged(
            url,
            actor=actor or whoami(),
            reason=reason,
            without_backfill=without_backfill,
            feast_dir=home() / "feast" if feast else None,
        )
    _done(
        json,
        f"version {registry.version} is served; stop the first job: `hailstream jobs list`",
        version=registry.version,
    )


def rebuild(
    views: Annotated[list[str] | None, typer.Argument(metavar="[VIEW]...", help="Views to make anew.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All views.")] = False,
    reason: Reason = "",
    actor: Actor = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Make new generations of views without an edit, after Redis or a job's state lost what they held.

    Where something is still served, they are staged like an edit: `hailstream features rollout` goes on. Where nothing is,
    they are applied at once: `hailstream jobs submit features --replace` feeds them from the first record on.
    """
    from features.rollout import rebuild as make_anew

    with plain_errors(KeyError):
        if bool(views) == every:
            fail("error: name the views, or give --all")
        registry, staged = make_anew(
            redis_or_local(redis), None if every else views, actor=actor or whoami(), reason=reason
        )
    step = "`hailstream features rollout`" if staged else "`hailstream jobs submit features --replace`"
    where = "staged" if staged else "applied; readers see missing until they are fed"
    _done(json, f"new generations are {where}: go on with {step}", staged=staged, version=registry.version)


def drop(
    view: Annotated[str, typer.Argument(help="The view to take out.")],
    reason: Reason = "",
    actor: Actor = None,
    no_jobs: NoJobs = False,
    feast: Feast = True,
    redis: RedisUrl = None,
    flink: FlinkRest = None,
    json: Json = False,
) -> None:
    """Take a view out of what is applied and delete its keys, and no others. Its name never reads old bytes again.

    Keys that a job still feeds are left: submit the job with --replace, then drop again. Exit code: 0 all is gone, 2 keys
    are left to a job.
    """
    from features.rollout import drop as take_out

    with plain_errors(KeyError), progress() as bar:
        task = bar.add_task("keys seen", total=None, note="")
        done = take_out(
            redis_or_local(redis),
            view,
            actor=actor or whoami(),
            reason=reason,
            fed=set() if no_jobs else _fed(flink_or_local(flink)),
            feast_dir=home() / "feast" if feast else None,
            progress=lambda deleted, seen: bar.update(task, completed=seen, note=f"{deleted} deleted"),
        )
    _show_dropped(done, json, f"{view} is gone")


def abort(
    reason: Reason = "",
    actor: Actor = None,
    no_jobs: NoJobs = False,
    redis: RedisUrl = None,
    flink: FlinkRest = None,
    json: Json = False,
) -> None:
    """Forget the staged version and delete what its generations hold. What is served does not change.

    Stop the job of the staged version first, or its keys are left. Exit code: 0 all is gone, 2 keys are left to a job.
    """
    from features.rollout import abort as forget

    with plain_errors(), progress() as bar:
        task = bar.add_task("keys seen", total=None, note="")
        done = forget(
            redis_or_local(redis),
            actor=actor or whoami(),
            reason=reason,
            fed=set() if no_jobs else _fed(flink_or_local(flink)),
            progress=lambda deleted, seen: bar.update(task, completed=seen, note=f"{deleted} deleted"),
        )
    _show_dropped(done, json, "the staged version is forgotten")


def _submit(rest: str, args: list[str]) -> Job:
    """The job, running; one that runs already is taken as it is."""
    from pipelines.jobs.running import of_seam
    from pipelines.jobs.submit import AlreadyRunning, submit, wait_running

    try:
        return wait_running(rest, submit(MODULE, args, rest=rest, env=flink_env(Stack().flink_folder)), RUNNING_S)
    except AlreadyRunning as refused:
        err.print(str(refused), style="yellow", markup=False)
        return next(job for job in _running(rest) if of_seam(job) is not None or "--next" not in args)


def _running(rest: str) -> list[Job]:
    from pipelines.jobs.running import running_jobs

    return running_jobs(rest, PROJECT, "features")


def _fed(rest: str) -> set[str]:
    from pipelines.jobs.running import fed_by

    return set().union(*(fed_by(job) for job in _running(rest)))


def _stop(rest: str, job: Job) -> None:
    """With a savepoint, so that what it has read is finished; one that fails all the time cannot take one."""
    from pipelines.jobs.submit import JobError, stop_job

    try:
        stop_job(rest, job.job_id, _savepoints())
    except JobError as error:
        err.print(f"{job.name} is cancelled: {error}", style="yellow", markup=False)
        stop_job(rest, job.job_id)


def _backfill(url: str, registry: Registry, folder: Path, accept_gap: bool, kafka: str) -> None:
    """Fill the new generations below the seam: from the history that a source names, else from its topic as it is now."""
    from features.backfill_applied import backfill_registry
    from features.rollout import readiness
    from pipelines.archive import archive_topic

    staged = registry.staged
    assert staged is not None
    new = {ready.group for ready in readiness(url) if not ready.is_backfilled}
    if not new:
        return
    sources = {group.source.name: group.source for group, _ in staged.groups() if group.name in new}
    with progress() as bar:
        for name, source in sources.items():
            if source.history is None:
                task = bar.add_task(f"archive {name}", total=None, note="")
                archive_topic(kafka, source, archive_dir() / name)
                bar.update(task, total=1, completed=1)
        tasks = {name: bar.add_task(f"backfill {name}", total=None, note="") for name in sorted(new)}
        backfill_registry(
            url,
            registry.project,
            prepare=with_archives,
            folder=folder,
            accept_gap=accept_gap,
            progress=lambda group, done, total: bar.update(tasks[group], completed=done, total=total),
        )


def _wait_ready(url: str, wait_s: float, without_backfill: bool, kafka: str, registry: Registry) -> None:
    """Until the new generations are as far as what is served. Exits with what is missing when time is up.

    A heartbeat is the newest of all partitions, and while a job catches up one may be far behind another: so first all
    must be read, and in a checkpoint, that the topics hold now.
    """
    from features.rollout import readiness
    from features.topics import committed_offsets, end_offsets
    from pipelines.sql import consumer_group

    end = time.monotonic() + wait_s
    staged, following = registry.staged, registry.document.next
    assert staged is not None and following is not None
    group_id = consumer_group(staged.generations(), registry.project, following.seam_ms)
    topics = {group.source.topic for group, _ in staged.groups()}
    targets = {topic: end_offsets(kafka, topic) for topic in topics}
    with progress() as bar:
        task = bar.add_task("groups caught up", total=None, note="")
        while True:
            groups = readiness(url, without_backfill=without_backfill)
            problems = [p for group in groups for p in group.problems]
            for topic, target in targets.items():
                read = committed_offsets(kafka, topic, group_id)
                left = sum(max(offset - read.get(p, 0), 0) for p, offset in target.items())
                problems += [f"{left} records of {topic} are still to be read"] if left else []
            bar.update(task, completed=sum(not group.problems for group in groups), total=len(groups))
            if not problems:
                return
            if time.monotonic() > end:
                fail(
                    f"error: not caught up after {wait_s:g} s, nothing was switched; run it again: "
                    + "; ".join(problems)
                )
            time.sleep(POLL_S)


def _show_readiness(groups: list[GroupReadiness], json: bool) -> None:
    if json:
        print_json([asdict(group) for group in groups])
    else:
        rows = [{k: v for k, v in asdict(group).items() if k != "problems"} for group in groups]
        print_table(rows, empty="no group changes")
        for group in groups:
            for problem in group.problems:
                err.print(problem, style="yellow", markup=False)
    raise typer.Exit(1 if any(group.problems for group in groups) else 0)


def _show_dropped(done: Dropped, json: bool, what: str) -> None:
    if json:
        print_json({"groups": done.groups, "keys_deleted": done.keys_deleted, "waiting": done.waiting})
    else:
        out.print(f"{what}; {done.keys_deleted} keys deleted of {', '.join(done.groups) or 'no group'}", markup=False)
    if done.waiting:
        err.print(
            f"left, for a job feeds them: {', '.join(done.waiting)}. `hailstream jobs submit features --replace` (or stop the job "
            "of a staged version), then run this again",
            style="yellow",
            markup=False,
        )
    raise typer.Exit(2 if done.waiting else 0)


def _say(json: bool, text: str) -> None:
    if not json:
        out.print(text, markup=False)


def _done(json: bool, text: str, **facts: Any) -> None:
    if not json:
        out.print(text, markup=False)
        return
    plain: Mapping[str, Any] = {k: v.job_id if hasattr(v, "job_id") else v for k, v in facts.items()}
    print_json(plain)


def _savepoints() -> str:
    return str(Stack().flink_folder / "savepoints")

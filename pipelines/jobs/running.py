"""One job of a kind per project: find the one that runs, refuse a second, put a new one in its place.

Two feature jobs of a project would write the same keys and the same ledger, whatever their names. A job says in its parameters
what it is (`hailstream.fingerprint`) and what it feeds (`hailstream.feeds`), so that a submit can tell "runs already" from
"an older one runs, and what you applied since is fed by nobody". Nothing here imports pyflink.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from pipelines.jobs.submit import AlreadyRunning, Job, JobError, list_jobs, stop_job

FINGERPRINT: Final = "hailstream.fingerprint"
FEEDS: Final = "hailstream.feeds"
SEAM: Final = "hailstream.seam"
_BETWEEN: Final = "/"  # in the list of what a job feeds; `,` and `:` mean something to Flink
_LISTED: Final = 5


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A job that wants to run."""

    project: str
    kind: str  # "features", "samples"
    name: str
    fingerprint: str  # of all that it does: two jobs with the same one do the same
    feeds: tuple[str, ...]  # groups with their generation, strategies: what somebody would miss
    seam_ms: int | None = None  # of a staged version, which runs beside the one that is served

    def settings(self) -> dict[str, str]:
        """The Flink setting that lets a later submit recognise this job."""
        feeds = _BETWEEN.join(quote(name, safe="@.") for name in self.feeds)
        seam = "" if self.seam_ms is None else f",{SEAM}:{self.seam_ms}"
        return {"pipeline.global-job-parameters": f"{FINGERPRINT}:{self.fingerprint},{FEEDS}:{feeds}{seam}"}


def running_jobs(rest: str, project: str, kind: str) -> list[Job]:
    """The jobs of one kind of one project that have not ended, newest first. More than one is a mistake of somebody's."""
    return [job for job in list_jobs(rest) if not job.ended and is_of(job, project, kind)]


def is_of(job: Job, project: str, kind: str) -> bool:
    """Whatever the generation in its name."""
    return re.fullmatch(rf"{re.escape(project)}-{re.escape(kind)}(-g\d+)?(-from-?\d+)?", job.name) is not None


def refuse_second(candidate: Candidate, running: Sequence[Job], *, replace: bool = False) -> list[Job]:
    """The jobs that must end before this one may run: none, or with `replace` those that do something else.

    `running` are the jobs of the candidate's kind and project.
    The job of a staged version runs beside the one that is served, and after the switch it is the one that feeds what is
    applied. Raises: AlreadyRunning when this very job runs; JobError, without `replace`, when another of the kind does.
    """
    same = [job for job in running if _does(job, candidate)]
    others = [job for job in running if job not in same]
    if candidate.seam_ms is not None and not same:
        if len(others) > 1:
            raise JobError(
                f"{_listed(others)} run already, and the job of a staged version runs beside one other: stop what feeds neither "
                "what is served nor what is staged by `hailstream jobs stop ID`. Nothing was submitted."
            )
        return []
    may_stay = bool(same) and any(SEAM in job.parameters for job in running)  # one of them is to take the other's place
    if others and not replace and not may_stay:
        raise JobError(_other_runs(candidate, others))
    if same:
        left = f" Beside it runs {_listed(others)}: stop that by its id." if others else ""
        raise AlreadyRunning(f"{_listed(same)} runs already: nothing was submitted.{left}")
    return others


def _does(job: Job, candidate: Candidate) -> bool:
    """Whether a job is this very one, or that of a version that was staged and has been switched to since."""
    if job.parameters.get(FINGERPRINT) == candidate.fingerprint:
        return True
    return candidate.seam_ms is None and SEAM in job.parameters and set(candidate.feeds) <= fed_by(job)


def fed_by(job: Job) -> set[str]:
    """The generations, or strategies, that a job feeds."""
    return {unquote(name) for name in job.parameters.get(FEEDS, "").split(_BETWEEN)}


def of_seam(job: Job) -> int | None:
    """Where the job of a staged version starts; None of any other job."""
    return int(job.parameters[SEAM]) if SEAM in job.parameters else None


def stop_all(rest: str, jobs: Sequence[Job], savepoint_dir: str) -> None:
    """Stop jobs, each with a savepoint, so that all they have read is finished and committed. Raises: JobError."""
    for job in jobs:
        try:
            stop_job(rest, job.job_id, savepoint_dir)
        except JobError as error:
            raise JobError(
                f"{_listed([job])} was not stopped, and nothing was submitted: {error}. A job that cannot take a savepoint "
                f"is ended by `hailstream jobs stop {job.job_id} --no-savepoint`; then submit again."
            ) from None


def _other_runs(candidate: Candidate, others: Sequence[Job]) -> str:
    fed = set().union(*(fed_by(job) for job in others))
    missing = [name for name in candidate.feeds if name not in fed]
    more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
    what = {
        "features": f"with an older catalogue: it does not feed {', '.join(missing[:_LISTED])}{more}",
        "samples": f"with other labels: it has none, or older ones, for {', '.join(missing[:_LISTED])}{more}",
    }[candidate.kind]
    stop = (
        f"`hailstream jobs stop {candidate.kind}` (it takes a savepoint)"
        if len(others) == 1
        else "`hailstream jobs stop ID` for each"
    )
    labels = " --labels FOLDER" if candidate.kind == "samples" else ""
    submit = f"hailstream jobs submit {candidate.kind}{labels}"
    return (
        f"{_listed(others)} runs {what if missing else 'with other options'}. Nothing was submitted. "
        f"`{submit} --replace` puts the new one in its place; the same by hand: {stop}, then `{submit}`. "
        "The new job reads the topics from their start; what is written already stays right meanwhile."
    )


def _listed(jobs: Sequence[Job]) -> str:
    return ", ".join(f"{job.name} ({job.state}, job {job.job_id})" for job in jobs)

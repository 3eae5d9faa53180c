"""Jobs on a Flink cluster: submit one from a process of its own, list, wait for and stop them over REST.

A job is a module with a `main` (`python -m pipelines.jobs.features`), which builds and submits itself and prints one
line of JSON, `{"job_id": …}`. `submit` runs that module as a child, because PyFlink starts a JVM inside the process
that imports it and keeps it. Nothing here imports pyflink.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

ENDED: Final = frozenset({"FINISHED", "CANCELED", "FAILED"})
POLL_S: Final = 0.1
REST_TIMEOUT_S: Final = 20.0
EXIT_ALREADY_RUNNING: Final = 3  # what a job's module exits with when it refuses a second submit
EXIT_REFUSED: Final = 4  # … and when it refuses for another reason: its message says all there is to say
CHECKOUT: Final = Path(__file__).resolve().parents[2]


class JobError(RuntimeError):
    """A job could not be submitted, found, run or stopped; the message says what to do."""


class AlreadyRunning(JobError):
    """A job of that name runs already."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job as the cluster knows it. `parameters` are what its module declared (`hailstream.fingerprint`, …)."""

    job_id: str
    name: str
    state: str
    started_ms: int
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def submit(
    module: str, args: Sequence[str], *, rest: str, env: Mapping[str, str] | None = None, timeout_s: float = 180.0
) -> str:
    """Run `python -m module ARGS --rest REST` and return the id of the job that it submitted.

    `env` is what the cluster's own processes got (FLINK_LIB_DIR, JAVA_HOME, …): the client compiles the job with the
    same jars. What it does not name comes from this process.
    Raises: JobError with the module's own last lines; AlreadyRunning where it refused for that reason.
    """
    command = [sys.executable, "-m", module, *args, "--rest", rest]
    environment = client_environment(env)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise JobError(f"{module} did not submit its job to {rest} within {timeout_s:g} s") from None
    if done.returncode == EXIT_ALREADY_RUNNING:
        raise AlreadyRunning(_last_line(done.stderr))
    if done.returncode == EXIT_REFUSED:
        raise JobError(_tail(done.stderr))
    if done.returncode != 0:
        raise JobError(f"{module} exited with {done.returncode}:\n{_tail(done.stderr or done.stdout)}")
    try:
        return str(msgspec.json.decode(_last_line(done.stdout))["job_id"])
    except (msgspec.DecodeError, KeyError, TypeError):
        raise JobError(f"{module} ended without naming its job:\n{_tail(done.stdout)}") from None


def client_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that submits a job: this one's, `env` over it, and what PyFlink 2.2.1 needs.

    Without `_python_worker_execution_mode` the client serves the workers from itself, and they die with it; without
    FLINK_HOME it overwrites FLINK_LIB_DIR and finds no Kafka connector.
    Raises: JobError when no folder of jars is named.
    """
    merged = {**os.environ, **(env or {})}
    lib = merged.get("FLINK_LIB_DIR")
    if lib is None or not Path(lib).is_dir():
        raise JobError(
            f"no folder of Flink jars ({lib or 'FLINK_LIB_DIR is not set'}): `hailstream up` makes one, `<home>/flink/lib`"
        )
    path = [str(CHECKOUT), *filter(None, merged.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **merged,
        "_python_worker_execution_mode": "process",
        "FLINK_HOME": merged.get("FLINK_HOME") or str(flink_home()),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
    }


def remote_settings(rest: str, *, worker_python: str = sys.executable) -> dict[str, str]:
    """Flink settings of a client that submits to the cluster at `rest` and leaves: for a TableEnvironment of any job."""
    address = urllib.parse.urlsplit(rest if "://" in rest else f"http://{rest}")
    if address.hostname is None or address.port is None:
        raise JobError(f"{rest!r} is not a REST address: write http://HOST:PORT (`hailstream status` shows it)")
    return {
        "execution.target": "remote",
        "execution.attached": "false",
        "rest.address": address.hostname,
        "rest.port": str(address.port),
        "python.executable": worker_python,
        "python.pythonpath": str(CHECKOUT),  # workers import our packages from any working directory
    }


def flink_home() -> Path:
    """The Flink distribution inside the apache-flink wheel. Raises: JobError when the `flink` extra is not installed."""
    spec = find_spec("pyflink")
    if spec is None or spec.origin is None:
        raise JobError("apache-flink is not installed here: install the `flink` extra (`make setup`)")
    return Path(spec.origin).parent


def list_jobs(rest: str) -> list[Job]:
    """Every job that the cluster remembers, newest first. Raises: JobError."""
    jobs = [
        Job(
            job_id=row["jid"],
            name=row["name"],
            state=row["state"],
            started_ms=int(row["start-time"]),
            parameters=_parameters(rest, row["jid"]),
        )
        for row in call(rest, "GET", "/jobs/overview")["jobs"]
    ]
    return sorted(jobs, key=lambda job: job.started_ms, reverse=True)


def wait_running(rest: str, job_id: str, deadline_s: float) -> Job:
    """Wait until every task of the job runs.

    Raises: JobError with the job's root cause when it ends, and when it is not running after `deadline_s` seconds.
    """
    end = time.monotonic() + deadline_s
    while True:
        detail = call(rest, "GET", f"/jobs/{job_id}")
        tasks = [vertex["status"] for vertex in detail["vertices"]]
        if detail["state"] == "RUNNING" and tasks and all(status in ("RUNNING", "FINISHED") for status in tasks):
            return Job(job_id=job_id, name=detail["name"], state="RUNNING", started_ms=int(detail["start-time"]))
        if detail["state"] in ENDED:
            raise JobError(
                f"{detail['name']} ({job_id}) is {detail['state']}: {root_cause(rest, job_id) or 'no cause recorded'}"
            )
        if time.monotonic() > end:
            raise JobError(
                f"{detail['name']} ({job_id}) is {detail['state']} after {deadline_s:g} s, its tasks {sorted(set(tasks))}. "
                f"{root_cause(rest, job_id) or 'No failure was recorded.'} Look at {rest}/#/job/running/{job_id}"
            )
        time.sleep(POLL_S)


def stop_job(rest: str, job_id: str, savepoint_dir: str | None = None, *, deadline_s: float = 120.0) -> str | None:
    """Stop a job and wait until it has ended.

    With `savepoint_dir` (a folder or URI that the cluster can write) everything read so far is finished and committed, and the path
    of the savepoint is returned: start again from it. Without, the job is cancelled at once: what it read since the last
    checkpoint is read again by a job that starts from that checkpoint, and its open transactions are aborted.
    Raises: JobError.
    """
    if savepoint_dir is None:
        call(rest, "PATCH", f"/jobs/{job_id}?mode=cancel")
        _wait_ended(rest, job_id, deadline_s)
        return None
    # Not `as_uri`: Flink takes `%20` for three characters of the folder's name.
    target = savepoint_dir if "://" in savepoint_dir else f"file://{Path(savepoint_dir).resolve()}"
    trigger = call(rest, "POST", f"/jobs/{job_id}/stop", {"targetDirectory": target, "drain": False})["request-id"]
    end = time.monotonic() + deadline_s
    while True:
        answer = call(rest, "GET", f"/jobs/{job_id}/savepoints/{trigger}")
        if answer["status"]["id"] == "COMPLETED":
            break
        if time.monotonic() > end:
            raise JobError(f"{job_id} took no savepoint within {deadline_s:g} s; it still runs")
        time.sleep(POLL_S)
    operation = answer["operation"]
    if "failure-cause" in operation:
        raise JobError(
            f"{job_id} was not stopped, its savepoint failed: {_first_lines(operation['failure-cause']['stack-trace'])}"
        )
    _wait_ended(rest, job_id, deadline_s)
    return str(operation["location"])


def root_cause(rest: str, job_id: str) -> str | None:
    """The last failure that the cluster recorded of a job: the innermost messages of its stack. None if there is none."""
    entries = call(rest, "GET", f"/jobs/{job_id}/exceptions").get("exceptionHistory", {}).get("entries", [])
    return _innermost(entries[0].get("stacktrace", "")) if entries else None


def num_restarts(rest: str, job_id: str) -> int:
    """How often the job failed and was restarted: a job that fails for ever still says RUNNING now and then.

    Counted in the failures that the cluster recorded, which are there at once (the metric of this name lags behind). It keeps the
    last 16 of a job (`web.exception-history-size`): a 16 means "16 or more".
    """
    history = call(rest, "GET", f"/jobs/{job_id}/exceptions?maxExceptions=1000").get("exceptionHistory", {})
    return len(history.get("entries", []))


def call(rest: str, method: str, path: str, body: Any = None) -> Any:
    """One REST call, decoded. Raises: JobError that names the address, or carries the cluster's own message."""
    url = f"{rest.rstrip('/') if '://' in rest else 'http://' + rest}{path}"
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=REST_TIMEOUT_S) as answer:
            raw = answer.read()
    except urllib.error.HTTPError as error:
        raise JobError(f"{method} {url}: {_rest_message(error.read()) or error}") from None
    except (urllib.error.URLError, OSError) as error:
        raise JobError(f"no Flink cluster answers at {rest} ({error}): is it up? `hailstream status`") from None
    return msgspec.json.decode(raw) if raw.strip() else None


def _wait_ended(rest: str, job_id: str, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while (state := call(rest, "GET", f"/jobs/{job_id}")["state"]) not in ENDED:
        if time.monotonic() > end:
            raise JobError(f"{job_id} is still {state} {deadline_s:g} s after it was told to stop")
        time.sleep(POLL_S)


def _parameters(rest: str, job_id: str) -> dict[str, str]:
    config = call(rest, "GET", f"/jobs/{job_id}/config").get("execution-config", {})
    return {str(k): str(v) for k, v in config.get("user-config", {}).items() if str(k).startswith("hailstream.")}


def _rest_message(raw: bytes) -> str:
    try:
        return _first_lines("\n".join(msgspec.json.decode(raw)["errors"]))
    except (msgspec.DecodeError, KeyError, TypeError):
        return raw.decode(errors="replace")[:500]


def _innermost(stack: str) -> str:
    """A Java stack nests causes, the Python error comes last: its last lines say what went wrong."""
    lines = [line for line in stack.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "... "))]
    return " | ".join(line.strip() for line in lines[-4:])[:1500]


def _first_lines(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if not line.lstrip().startswith("at "))[:800]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])

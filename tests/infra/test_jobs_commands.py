"""The verbs of `hailstream jobs` where no cluster is needed to see what they say."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from infra.commands.jobs import app
from pipelines.jobs import running, submit
from pipelines.jobs.submit import AlreadyRunning, Job, JobError

AT = ["--kafka", "127.0.0.1:1", "--redis", "redis://127.0.0.1:1/0", "--flink", "http://127.0.0.1:1"]
OLD = Job(job_id="a1", name="hailstream-features-g1", state="RUNNING", started_ms=0)
NEW = Job(job_id="b2", name="hailstream-features-g2", state="RUNNING", started_ms=0)


def hailstream(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*args])
    return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs of a cluster, to be changed by the test."""
    jobs: list[Job] = []
    for module in (submit, running):
        monkeypatch.setattr(module, "list_jobs", lambda _rest: list(jobs))
    return jobs


def refuse_with(monkeypatch: pytest.MonkeyPatch, error: JobError) -> None:
    def refuse(*_args: Any, **_options: Any) -> str:
        raise error

    monkeypatch.setattr(submit, "submit", refuse)


def test_the_same_job_that_runs_is_left_alone(cluster: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.append(OLD)
    refuse_with(monkeypatch, AlreadyRunning("it runs already"))
    code, text = hailstream("submit", "features", *AT)
    assert code == 0 and "it runs already" in text and "hailstream-features-g1 is RUNNING" in text


def test_another_job_that_runs_is_a_mistake(cluster: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.append(OLD)
    refuse_with(monkeypatch, JobError("it does not feed b@1"))
    assert hailstream("submit", "features", *AT) == (1, "error: it does not feed b@1")


def test_a_job_that_ended_between_two_looks_is_no_crash(cluster: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_with(monkeypatch, AlreadyRunning("it runs already"))
    code, text = hailstream("submit", "features", *AT)
    assert code == 1 and "it has ended meanwhile: submit it again" in text


def test_labels_belong_to_the_sample_job() -> None:
    code, text = hailstream("submit", "features", "--labels", ".", *AT)
    assert code == 1 and "--labels is the sample job's" in text


def test_stop_by_kind_names_them_when_there_are_several(cluster: list[Job]) -> None:
    cluster += [OLD, NEW]
    code, text = hailstream("stop", "features", "--flink", "http://127.0.0.1:1")
    assert code == 1
    assert "2 running jobs are called 'features': stop one by its id: a1 (hailstream-features-g1), b2" in text


def test_stop_takes_the_only_one_whatever_its_generation(cluster: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster += [NEW, Job(job_id="c3", name="other-features-g1", state="RUNNING", started_ms=0)]
    stopped: list[str] = []
    monkeypatch.setattr(submit, "stop_job", lambda _rest, job_id, _target: stopped.append(job_id) or "file:/s/1")
    code, text = hailstream("stop", "features", "--flink", "http://127.0.0.1:1")
    assert (code, stopped) == (0, ["b2"]) and "hailstream-features-g2 has stopped" in text


def test_stop_of_what_does_not_run_says_what_does(cluster: list[Job]) -> None:
    cluster.append(NEW)
    code, text = hailstream("stop", "samples", "--flink", "http://127.0.0.1:1")
    assert code == 1 and "no running job is called 'samples'; running: hailstream-features-g2" in text

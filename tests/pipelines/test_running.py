"""Whether a job may run beside what runs: the same one, an older one, another project's. The clusters' word is in test_feature_job.py."""

from __future__ import annotations

import argparse
import re
import uuid

import pytest

from features.loader import SHIPPED
from features.registry import apply_catalogue
from pipelines.jobs.features import _refuse_lost
from pipelines.jobs.running import FEEDS, FINGERPRINT, Candidate, is_of, of_seam, refuse_second
from pipelines.jobs.submit import AlreadyRunning, Job, JobError
from tests.features.test_staging import beat


def candidate(*feeds: str, fingerprint: str = "new", kind: str = "features") -> Candidate:
    return Candidate(project="p", kind=kind, name=f"p-{kind}-g2", fingerprint=fingerprint, feeds=feeds)


def runs(*feeds: str, fingerprint: str = "old", job_id: str = "a1", kind: str = "features") -> Job:
    """A job as the cluster shows it: its parameters went through the setting that the client sends."""
    name, _, rest = (
        candidate(*feeds, fingerprint=fingerprint, kind=kind)
        .settings()["pipeline.global-job-parameters"]
        .partition(f",{FEEDS}:")
    )
    parameters = {FINGERPRINT: name.removeprefix(f"{FINGERPRINT}:"), FEEDS: rest}
    return Job(job_id=job_id, name=f"p-{kind}-g1", state="RUNNING", started_ms=1, parameters=parameters)


def test_nothing_runs_so_nothing_is_in_the_way() -> None:
    assert refuse_second(candidate("a@1"), []) == []


@pytest.mark.parametrize("replace", [False, True])
def test_the_same_job_is_left_alone(replace: bool) -> None:
    same = runs("a@1", fingerprint="new")
    with pytest.raises(AlreadyRunning, match=r"p-features-g1 \(RUNNING, job a1\) runs already: nothing was submitted"):
        refuse_second(candidate("a@1"), [same], replace=replace)


def test_an_older_catalogue_is_no_reason_to_say_runs_already() -> None:
    """A new view adds a group of generation 1, and the name of the job stays the same."""
    with pytest.raises(JobError) as caught:
        refuse_second(candidate("a@1", "b@1", "c@2"), [runs("a@1", "c@1")])
    assert not isinstance(caught.value, AlreadyRunning)
    text = str(caught.value)
    assert "p-features-g1 (RUNNING, job a1) runs with an older catalogue: it does not feed b@1, c@2. " in text
    assert "`hailstream jobs submit features --replace`" in text
    assert "`hailstream jobs stop features` (it takes a savepoint), then `hailstream jobs submit features`" in text


def test_another_option_is_named_as_such() -> None:
    with pytest.raises(JobError, match="runs with other options"):
        refuse_second(candidate("a@1"), [runs("a@1")])


def test_other_labels_are_named() -> None:
    wanted = candidate("s@f1", "a, b: c/d@f2", kind="samples")
    with pytest.raises(JobError, match=re.escape("other labels: it has none, or older ones, for a, b: c/d@f2. ")):
        refuse_second(wanted, [runs("s@f1", kind="samples")])
    with pytest.raises(JobError, match="`hailstream jobs submit samples --labels FOLDER --replace` puts the new one"):
        refuse_second(wanted, [runs("s@f1", kind="samples")])


def test_several_that_run_are_all_named_and_all_replaced() -> None:
    others = [runs("a@1", job_id="a1"), runs("b@1", job_id="b2", fingerprint="older")]
    with pytest.raises(JobError, match=r"job a1.*job b2.*`hailstream jobs stop ID` for each"):
        refuse_second(candidate("a@1", "b@1"), others)
    assert refuse_second(candidate("a@1", "b@1"), others, replace=True) == others


def staged(*feeds: str, seam_ms: int = -900_000) -> Candidate:
    return Candidate(
        project="p", kind="features", name="p-features-g2-from0", fingerprint="s", feeds=feeds, seam_ms=seam_ms
    )


def runs_staged(*feeds: str, fingerprint: str = "s", job_id: str = "s1") -> Job:
    settings = staged(*feeds).settings()["pipeline.global-job-parameters"]
    parameters = dict(part.split(":", 1) for part in settings.split(","))
    return Job(
        job_id=job_id,
        name="p-features-g2-from-900000",
        state="RUNNING",
        started_ms=2,
        parameters={**parameters, FINGERPRINT: fingerprint},
    )


def test_a_staged_version_runs_beside_the_one_that_is_served() -> None:
    served = runs("a@1", "b@1")
    assert refuse_second(staged("a@1", "b@2"), [served]) == []
    assert of_seam(runs_staged("a@1")) == -900_000 and of_seam(served) is None
    with pytest.raises(AlreadyRunning, match="job s1"):
        refuse_second(staged("a@1", "b@2"), [runs_staged("a@1", "b@2"), served])
    with pytest.raises(
        JobError, match=r"job s1.*job a1.*run already, and the job of a staged version runs beside one other"
    ):
        refuse_second(staged("a@1", "b@3"), [runs_staged("a@1", "b@2", fingerprint="older"), served])


def test_the_served_job_is_left_alone_while_a_staged_one_runs_beside_it() -> None:
    served = runs("a@1", "b@1", fingerprint="new")
    with pytest.raises(AlreadyRunning, match=r"job a1\) runs already.* Beside it runs .*job s1"):
        refuse_second(candidate("a@1", "b@1"), [runs_staged("a@1", "b@2"), served])


def test_after_the_switch_the_staged_job_is_the_one_that_feeds_what_is_applied() -> None:
    now = candidate("a@1", "b@2")
    with pytest.raises(AlreadyRunning, match=r"job s1\) runs already"):
        refuse_second(now, [runs_staged("a@1", "b@2")])
    with pytest.raises(AlreadyRunning, match=r"job s1\) runs already.* Beside it runs .*job a1.*: stop that by its id"):
        refuse_second(now, [runs_staged("a@1", "b@2"), runs("a@1", "b@1")])
    with pytest.raises(JobError, match="does not feed b@2"):
        refuse_second(now, [runs("a@1", "b@1")])
    with pytest.raises(JobError, match="does not feed b@2"):  # another version was switched to meanwhile
        refuse_second(now, [runs_staged("a@1", "b@1")])


def test_a_long_list_is_cut() -> None:
    with pytest.raises(JobError, match="it does not feed g0@1, g1@1, g2@1, g3@1, g4@1 and 4 more"):
        refuse_second(candidate(*(f"g{n}@1" for n in range(9))), [runs()])


def test_what_flink_would_split_is_not_in_the_setting() -> None:
    (setting,) = candidate("a, b: c/d@f2").settings().values()
    assert setting == f"{FINGERPRINT}:new,{FEEDS}:a%2C%20b%3A%20c%2Fd@f2"


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("p-features-g1", True),
        ("p-features-g12", True),
        ("p-features-g12-from1700000000000", True),
        ("p-features-g12-from-900000", True),
        ("p-features-from", False),
        ("p-samples", False),
        ("pp-features-g1", False),
        ("p-features-g1-copy", False),
        ("p.features-g1", False),
    ],
)
def test_a_job_is_of_a_project_whatever_its_generation(name: str, mine: bool) -> None:
    job = Job(job_id="a", name=name, state="RUNNING", started_ms=0)
    assert is_of(job, "p", "features") is mine


def test_a_savepoint_does_not_go_on_above_an_empty_store(redis_url: str) -> None:
    """What the savepoint's state has counted would never be written again."""
    project = f"savepoint-{uuid.uuid4().hex[:8]}"
    registry = apply_catalogue(SHIPPED, redis_url, actor="test", reason="test", project=project).registry
    args = argparse.Namespace(from_savepoint="file:///s", redis=redis_url, project=project)
    with pytest.raises(JobError, match="Submit without --from-savepoint: the job reads the topics anew"):
        _refuse_lost(args, registry)
    _refuse_lost(argparse.Namespace(from_savepoint=None, redis=redis_url, project=project), registry)
    beat(redis_url, registry, 5)
    _refuse_lost(args, registry)

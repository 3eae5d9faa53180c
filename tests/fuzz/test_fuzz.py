"""Bad input never crashes, never hangs and always says where: 2,000 cases in every run, 100,000 in the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import run
from tests.fuzz.oracle import judge
from tests.fuzz.targets import TARGETS, Target

SHORT, LONG = 2_000, 100_000
REGRESSIONS = Path(__file__).parent / "regressions"


def check(target: Target, seed: int, cases: int, folder: Path) -> None:
    count = cases * target.share // 100
    found = run(target, seed, count, folder, lambda line: print(line, flush=True))
    assert not found.faults, f"{len(found.faults)} faults, the first: {found.faults[0]}"
    # What is never accepted is never run, what is always accepted is no bad input.
    assert 0.02 < found.accepted / found.cases < 0.9, f"{found.accepted} of {found.cases} accepted"


def test_shares_are_a_hundred() -> None:
    assert sum(target.share for target in TARGETS) == 100


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_bad_input_runs_or_is_refused_with_places(target: Target, tmp_path: Path) -> None:
    check(target, 20, SHORT, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_much_bad_input_runs_or_is_refused_with_places(target: Target, tmp_path: Path) -> None:
    check(target, 21, LONG, tmp_path)


@pytest.mark.parametrize("folder", sorted(REGRESSIONS.iterdir()), ids=lambda folder: folder.name)
def test_input_that_once_went_wrong_is_refused_with_places(folder: Path, tmp_path: Path) -> None:
    """Each folder is one input, as a campaign keeps it; its name starts with the target's."""
    import random

    target = next(target for target in TARGETS if folder.name.startswith(target.name))
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for seed in range(3):
        own = tmp_path / str(seed)
        own.mkdir()
        _, fault = judge(files, lambda own=own, seed=seed: target.run(random.Random(seed), own, files))
        assert fault is None, fault.what

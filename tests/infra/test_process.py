"""Only what we started is stopped: by mark, by session, by (pid, start time)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from infra.local.process import Running, marked, start, start_tick, stop, stop_marked, wait_ready
from infra.local.programs import StackError

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()",
]


def begin(command: list[str], stack_id: str, folder: Path) -> Running:
    return start("program", command, env={}, stack_id=stack_id, cwd=folder, log=folder / "program.log")


def wait_until(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def test_an_orphan_of_a_killed_parent_is_found_by_its_mark(tmp_path: Path) -> None:
    stack_id = uuid.uuid4().hex
    parent = begin(PARENT, stack_id, tmp_path)
    wait_until(lambda: len(list(marked(stack_id))) == 2)
    os.kill(parent.pid, 9)
    wait_until(lambda: not parent.alive and len(list(marked(stack_id))) == 1)
    (orphan,) = marked(stack_id)
    assert stop_marked(stack_id) == [orphan]
    assert list(marked(stack_id)) == []


def test_a_process_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = uuid.uuid4().hex, uuid.uuid4().hex
    running, other = begin(SLEEP, ours, tmp_path), begin(SLEEP, theirs, tmp_path)
    try:
        stop_marked(ours)
        assert (running.alive, other.alive) == (False, True)
    finally:
        stop(other)


def test_a_pid_that_was_used_again_is_not_ours() -> None:
    with subprocess.Popen(SLEEP) as process:
        ours = start_tick(process.pid)
        assert ours is not None
        stale = Running(name="old", pid=process.pid, started=ours - 1, log="-")
        assert not stale.alive
        stop(stale)
        assert process.poll() is None
        process.kill()


def test_a_program_that_dies_while_starting_shows_the_end_of_its_log(tmp_path: Path) -> None:
    running = begin([sys.executable, "-c", "raise SystemExit('no port')"], uuid.uuid4().hex, tmp_path)
    with pytest.raises(StackError, match=r"(?s)program stopped while starting.*no port"):
        wait_ready(running, lambda: False, deadline_s=20)


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="program did not start"):
        begin(["/no/such/program"], "x", tmp_path)


def test_an_orphan_that_ignores_the_polite_signal_is_stopped(tmp_path: Path) -> None:
    deaf = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    parent = [
        sys.executable,
        "-c",
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {deaf!r}]).wait()",
    ]
    stack_id = uuid.uuid4().hex
    running = begin(parent, stack_id, tmp_path)
    wait_until(lambda: "1" in Path(running.log).read_text())
    os.kill(running.pid, 9)
    wait_until(lambda: not running.alive and len(list(marked(stack_id))) == 1)
    (pid,) = marked(stack_id)
    stop(Running(name="orphan", pid=pid, started=start_tick(pid) or 0, log="-"), deadline_s=0.2)
    assert list(marked(stack_id)) == []


def test_an_answer_of_somebody_else_does_not_make_ours_ready(tmp_path: Path) -> None:
    running = begin([sys.executable, "-c", "raise SystemExit('port in use')"], uuid.uuid4().hex, tmp_path)
    wait_until(lambda: not running.alive)
    with pytest.raises(StackError, match="port in use"):
        wait_ready(running, lambda: True, deadline_s=5)

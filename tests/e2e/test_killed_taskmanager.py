"""The loop with its TaskManager killed in the middle: nothing lost, nothing doubled. Belongs to `make test-long`."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from infra.demo.report import report_of
from infra.demo.run import DemoOptions, Watch, run_demo
from infra.local.process import marked
from infra.local.stack import Stack

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    "stretch, at_order", [("orders on rules alone", 120), ("orders split between rules and model", 420)]
)
def test_a_killed_taskmanager_loses_and_doubles_nothing(tmp_path: Path, stretch: str, at_order: int) -> None:
    stack = Stack(tmp_path)
    revival: list[threading.Thread] = []

    def kill(what: str, done: int, _total: int, _note: str) -> None:
        if what == stretch and done >= at_order and not revival:
            os.kill(stack.state.programs["taskmanager"].pid, signal.SIGKILL)
            revival.append(threading.Thread(target=stack.restart_taskmanager))
            revival[0].start()

    try:
        run = run_demo(DemoOptions(num_orders=600, force_promotion=True), stack, Watch(say=print, step=kill))
        report = report_of(run)
        assert revival, "nothing was killed"
        assert [check for check in report["checks"] if not check["holds"]] == []
        assert all(count > 0 for count in report["cost"]["job_restarts"].values()), report["cost"]
    finally:
        for thread in revival:
            thread.join()
        stack_id = stack.state.stack_id
        stack.down()
        assert list(marked(stack_id)) == []

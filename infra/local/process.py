"""Starts and stops programs so that only what we started is ever stopped.

Each program runs in a session of its own, and everything that it starts inherits HAILSTREAM_STACK from its
environment. So the Python workers that a killed TaskManager leaves behind are found by that mark, and no program of
anybody else's ever matches. A process is named by (pid, start time): a pid that was used again is not ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from infra.local.programs import StackError

MARK = "HAILSTREAM_STACK"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """One started program. `started` is the kernel's start tick of `pid`."""

    name: str
    pid: int
    started: int
    log: str

    @property
    def alive(self) -> bool:
        return start_tick(self.pid) == self.started


def start(name: str, command: Sequence[str], *, env: Mapping[str, str], stack_id: str, cwd: Path, log: Path) -> Running:
    """Start a program in a session of its own, its output appended to `log`. Raises: StackError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        try:
            process = subprocess.Popen(
                list(command),
                env={**os.environ, **env, MARK: stack_id},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise StackError(f"{name} did not start: {error}") from None
    return Running(name=name, pid=process.pid, started=start_tick(process.pid) or 0, log=str(log))


def wait_ready(running: Running, ready: Callable[[], bool], *, deadline_s: float) -> None:
    """Poll `ready` until it holds. Raises: StackError with the log's last lines when the program died or time ran out."""
    end = time.monotonic() + deadline_s
    while not ready() or not running.alive:  # what answers must be ours
        if not running.alive:
            raise StackError(
                f"{running.name} stopped while starting; the end of {running.log}:\n{tail(Path(running.log))}"
            )
        if time.monotonic() > end:
            raise StackError(
                f"{running.name} was not ready after {deadline_s:g} s; the end of {running.log}:\n{tail(Path(running.log))}"
            )
        time.sleep(0.1)


def stop(running: Running, *, deadline_s: float = 20.0) -> None:
    """SIGTERM, then SIGKILL after the deadline; returns when the process is gone, or after five more seconds.

    Does nothing when the process is gone already or the pid is another's.
    """
    for number, patience_s in ((signal.SIGTERM, deadline_s), (signal.SIGKILL, 5.0)):
        if not running.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, number)
        end = time.monotonic() + patience_s
        while running.alive and time.monotonic() < end:
            _reap(running.pid)
            time.sleep(0.02)


def stop_marked(stack_id: str, *, deadline_s: float = 5.0) -> list[int]:
    """Stop every process that carries the stack's mark, orphans included; returns their pids.

    A process that is just starting shows no environment for a moment, so none must be seen twice in a row.
    Raises: StackError naming processes that cannot be stopped.
    """
    stopped: list[int] = []
    end = time.monotonic() + deadline_s
    looks_without = 0
    while looks_without < 2:
        pids = [pid for pid in marked(stack_id) if pid != os.getpid()]
        if pids and time.monotonic() > end + deadline_s:
            raise StackError(f"processes {pids} of this stack cannot be stopped: stop them by hand")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
            _reap(pid)
            if pid not in stopped:
                stopped.append(pid)
        looks_without = 0 if pids else looks_without + 1
        time.sleep(0.05)
    return stopped


def marked(stack_id: str) -> Iterator[int]:
    """The pids of living processes whose environment carries the stack's mark."""
    needle = f"{MARK}={stack_id}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0") and start_tick(int(entry.name)) is not None:
                yield int(entry.name)
        except (OSError, ProcessLookupError):
            continue


def start_tick(pid: int) -> int | None:
    """The kernel's start tick of a living process, None when there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def tree_memory(stack_id: str) -> int:
    """Resident bytes (proportional share) of all marked processes."""
    return sum(resident_bytes(pid) for pid in marked(stack_id))


def resident_bytes(pid: int) -> int:
    """Resident bytes of one process, shared pages by their share; 0 when it is gone or another user's."""
    with contextlib.suppress(OSError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for a message."""
    try:
        return "\n".join("  " + line for line in log.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"  (no log: {error})"


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(pid, os.WNOHANG)

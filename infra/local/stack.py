"""The local stack as a whole: `up`, `down`, `status`, and where its parts listen.

Ports and the stack's id are written to `<home>/stack.json` before anything starts, each program right after its start.
What a crash in between leaves carries the id in its environment, so the next `up` or `down` finds it. `up` starts what
is not running and leaves alone what is; `down` stops what was started.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from features.topics import create_topics
from infra.local.flink import num_taskmanagers, prepare_flink, start_jobmanager, start_taskmanager
from infra.local.home import home
from infra.local.kafka import kafka_ready, start_kafka
from infra.local.process import MARK, Running, marked, start, start_tick, stop, stop_marked, wait_ready
from infra.local.programs import StackError
from infra.local.redis import redis_ready, start_redis

PORT_S = 3.0  # until a dead program's port is free
READY_S = 90.0  # of each program, on a busy machine
PORTS = ("kafka", "kafka_controller", "redis", "flink_rest", "flink_rpc", "flink_metrics")
Say = Callable[[str], None]
# Everything that we ever write into a stack's folder, and so all that `down --clean` may remove: a home can be any folder.
DATA = ("redis", "kafka", "flink", "logs", "samples", "models", "spill", "feast", "demo", "demo.json", "stack.json")


class StackState(msgspec.Struct, kw_only=True):
    """What `stack.json` holds."""

    stack_id: str
    ports: dict[str, int]
    programs: dict[str, Running] = {}


class Stack:
    """One local stack under one folder. `Stack(folder).up()` is idempotent."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or home()).resolve()
        self._path = self.folder / "stack.json"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def state(self) -> StackState:
        """What runs. Raises: StackError when no stack was started here, or its file is not readable."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=StackState)
        except FileNotFoundError:
            raise StackError(f"no local stack in {self.folder}: start one with `hailstream up`") from None
        except msgspec.DecodeError as error:
            raise StackError(
                f"{self._path} is not readable ({error}): `hailstream down --clean`, then `hailstream up`"
            ) from None

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.state.ports['kafka']}"

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.state.ports['redis']}/0"

    @property
    def flink_rest(self) -> str:
        return f"http://127.0.0.1:{self.state.ports['flink_rest']}"

    @property
    def flink_metrics(self) -> str:
        """What the jobs count, as Prometheus scrapes it."""
        return f"http://127.0.0.1:{self.state.ports['flink_metrics']}/metrics"

    @property
    def flink_folder(self) -> Path:
        return self.folder / "flink"

    def up(self, say: Say = lambda _text: None) -> None:
        """Start what is not running, wait until each part answers, create the topics. Raises: StackError."""
        with self._locked():
            state = self._load_or_new()
            self._stop_orphans(state)
            self._start_redis(state, say)
            self._start_kafka(state, say)
            self._start_flink(state, say)
            created = create_topics(self.kafka)
            if created:
                say(f"topics created: {', '.join(created)}")

    def down(self, say: Say = lambda _text: None, *, clean: bool = False) -> list[int]:
        """Stop everything that this stack started; returns the pids stopped.

        `clean` removes its data too: topics, features, logs, samples, models, unsent decisions. Jars stay.
        Raises: StackError for a `stack.json` that cannot be read, unless `clean` removes it.
        """
        if not self.folder.exists():
            return []
        with self._locked():
            stopped: list[int] = []
            state = self._state_if_any(say if clean else None)
            if state is not None:
                for name, running in reversed(state.programs.items()):
                    if running.alive:
                        say(f"stopping {name} (pid {running.pid})")
                        stop(running)
                        stopped.append(running.pid)
                stopped += stop_marked(state.stack_id)
                state.programs = {}
                self._save(state)
            if clean:
                for name in DATA:
                    path = self.folder / name
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            return stopped

    def _state_if_any(self, say: Say | None) -> StackState | None:
        """None without a stack; with `say`, an unreadable file is said and counts as none."""
        if not self._path.exists():
            return None
        try:
            return self.state
        except StackError as error:
            if say is None:
                raise
            say(f"{error}; programs that it named, if any still run, carry {MARK} in their environment")
            return None

    def status(self) -> dict[str, dict[str, object]]:
        """Each program with address, pid, log and whether it runs and answers."""
        state = self.state
        answers: dict[str, bool] = {
            "redis": redis_ready(state.ports["redis"]),
            "kafka": _listens(state.ports["kafka"]),
            "jobmanager": num_taskmanagers(state.ports["flink_rest"]) is not None,
            "taskmanager": bool(num_taskmanagers(state.ports["flink_rest"])),
        }
        addresses = {
            "redis": self.redis_url,
            "kafka": self.kafka,
            "jobmanager": self.flink_rest,
            "taskmanager": self.flink_metrics,
        }
        for name, running in state.programs.items():
            answers.setdefault(name, running.alive)
            addresses.setdefault(name, "-")
        return {
            name: {
                "running": _is_alive(state, name),
                "answers": answers[name],
                "address": addresses[name],
                "pid": state.programs[name].pid if name in state.programs else None,
                "log": state.programs[name].log if name in state.programs else None,
            }
            for name in addresses
        }

    def run(
        self, name: str, command: list[str], *, ready: Callable[[], bool], say: Say = lambda _text: None
    ) -> Running:
        """Start a program of ours (an engine, say) beside the services, or leave it when it runs; `down` stops it too.

        It finds the services by HAILSTREAM_HOME. Raises: StackError with the end of its log when it is not `ready` in time.
        """
        with self._locked():
            state = self.state
            env = {"HAILSTREAM_HOME": str(self.folder)}
            log = self.logs / f"{name}.log"
            running = self._ensure(
                state,
                name,
                lambda: start(name, command, env=env, stack_id=state.stack_id, cwd=self.folder, log=log),
                say,
            )
        wait_ready(running, ready, deadline_s=READY_S)
        return running

    def stop(self, name: str) -> None:
        """Stop one program of this stack, if it runs."""
        with self._locked():
            state = self.state
            running = state.programs.pop(name, None)
            if running is not None:
                stop(running)
                self._save(state)

    def restart_taskmanager(self, say: Say = lambda _text: None) -> None:
        """Bring back a TaskManager that died, and end the Python workers that the dead one left."""
        with self._locked():
            state = self.state
            self._stop_orphans(state)
            self._start_flink(state, say)

    def _start_redis(self, state: StackState, say: Say) -> None:
        port = self._own_ports(state, "redis", ["redis"], say)[0]
        running = self._ensure(
            state,
            "redis",
            lambda: start_redis(self.folder / "redis", port, stack_id=state.stack_id, log=self.logs / "redis.log"),
            say,
        )
        wait_ready(running, lambda: redis_ready(port), deadline_s=READY_S)

    def _start_kafka(self, state: StackState, say: Say) -> None:
        port, controller = self._own_ports(state, "kafka", ["kafka", "kafka_controller"], say)
        log = self.logs / "kafka.log"
        running = self._ensure(
            state,
            "kafka",
            lambda: start_kafka(self.folder / "kafka", port, controller, stack_id=state.stack_id, log=log),
            say,
        )
        wait_ready(running, lambda: kafka_ready(log) and _listens(port), deadline_s=READY_S)

    def _start_flink(self, state: StackState, say: Say) -> None:
        folder = self.flink_folder
        known = state.ports["flink_rpc"]
        rest, rpc = self._own_ports(state, "jobmanager", ["flink_rest", "flink_rpc"], say)
        if rpc != known and _is_alive(state, "taskmanager"):
            stop(state.programs["taskmanager"])  # it would look for the JobManager at the old port for ever
        if not _is_alive(state, "jobmanager"):
            prepare_flink(folder, rest_port=rest, rpc_port=state.ports["flink_rpc"])
        jobmanager = self._ensure(
            state,
            "jobmanager",
            lambda: start_jobmanager(folder, stack_id=state.stack_id, log=self.logs / "jobmanager.log"),
            say,
        )
        wait_ready(jobmanager, lambda: num_taskmanagers(rest) is not None, deadline_s=READY_S)
        (metrics,) = self._own_ports(state, "taskmanager", ["flink_metrics"], say)
        log = self.logs / "taskmanager.log"
        taskmanager = self._ensure(
            state,
            "taskmanager",
            lambda: start_taskmanager(folder, metrics_port=metrics, stack_id=state.stack_id, log=log),
            say,
        )
        wait_ready(taskmanager, lambda: bool(num_taskmanagers(rest)), deadline_s=READY_S)

    def _own_ports(self, state: StackState, program: str, names: list[str], say: Say) -> list[int]:
        """The program's ports. One that somebody else listens on by now is exchanged: theirs must not be taken for ours.

        A JVM that was killed can hold its ports for a moment after it counts as dead; that is waited for.
        """
        for name in names:
            end = time.monotonic() + PORT_S
            while (taken := not _is_alive(state, program) and _listens(state.ports[name])) and time.monotonic() < end:
                time.sleep(0.05)
            if taken:
                say(f"port {state.ports[name]} is taken by another program: {name} gets another one")
                (state.ports[name],) = free_ports(1)
                self._save(state)
        return [state.ports[name] for name in names]

    def _ensure(self, state: StackState, name: str, begin: Callable[[], Running], say: Say) -> Running:
        if _is_alive(state, name):
            return state.programs[name]
        say(f"starting {name}")
        running = begin()
        state.programs[name] = running
        self._save(state)
        return running

    def _stop_orphans(self, state: StackState) -> None:
        """Processes with our mark that belong to no living program: workers of a killed TaskManager, a half-done start."""
        alive = {running.pid for running in state.programs.values() if running.alive}
        sessions = {pid: _session(pid) for pid in marked(state.stack_id)}
        orphans = [pid for pid, session in sessions.items() if session not in alive and pid != os.getpid()]
        for pid in orphans:
            stop(Running(name="orphan", pid=pid, started=start_tick(pid) or 0, log="-"), deadline_s=5)

    def _load_or_new(self) -> StackState:
        if self._path.exists():
            state = self.state
            missing = [name for name in PORTS if name not in state.ports]  # of a stack from before that part was there
            state.ports.update(zip(missing, free_ports(len(missing)), strict=True))
            return state
        state = StackState(stack_id=uuid.uuid4().hex, ports=dict(zip(PORTS, free_ports(len(PORTS)), strict=True)))
        self._save(state)
        return state

    def _save(self, state: StackState) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
        temporary.replace(self._path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time; a second one waits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _is_alive(state: StackState, name: str) -> bool:
    running = state.programs.get(name)
    return running is not None and running.alive


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Free loopback ports, all held until all are chosen so that they differ."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            listener = held.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
        return ports

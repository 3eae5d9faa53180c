"""What the demo measures of itself: latency of decisions as the caller sees it, and memory of everything that runs."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from infra.local.process import marked, resident_bytes


class Deciding(Protocol):
    """What `engine.client.EngineClient` does."""

    def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]: ...


class TimedEngine:
    """Asks the engine and keeps how long each answer took, and what was answered."""

    def __init__(self, engine: Deciding) -> None:
        self._engine = engine
        self.latencies_ms: dict[str, list[float]] = {}
        self.answered: dict[str, str] = {}  # decision_id -> strategy

    def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        answer = self._engine.decide(strategy, body)
        self.latencies_ms.setdefault(strategy, []).append(1000 * (time.perf_counter() - started))
        self.answered[answer["decision_id"]] = strategy
        return answer

    def latency(self, strategy: str) -> dict[str, float]:
        """`{count, p50_ms, p99_ms}` of one strategy."""
        found = self.latencies_ms.get(strategy, [])
        p50, p99 = np.percentile(found, [50, 99]) if found else (float("nan"), float("nan"))
        return {"count": len(found), "p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


class PeakMemory:
    """Samples the resident memory (proportional share) of the stack, this process and its children until it is left."""

    def __init__(self, stack_id: str, *, every_s: float = 2.0) -> None:
        self._stack_id, self._every_s = stack_id, every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            pids = {*marked(self._stack_id), *_descendants(os.getpid()), os.getpid()}
            self.peak_bytes = max(self.peak_bytes, sum(resident_bytes(pid) for pid in pids))
            if self._done.wait(self._every_s):
                return


def _descendants(pid: int) -> set[int]:
    """Children of a process, their children, and so on: here what submits jobs and trains."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    open_pids = [pid]
    while open_pids:
        for child in children.get(open_pids.pop(), []):
            found.add(child)
            open_pids.append(child)
    return found

"""Machine code of fused rules on disk, and the process that makes it: one per host, started when something is missing.

A folder holds, by key, what is asked for (`<key>.source`), what was made (`<key>.fused`) and what cannot be
(`<key>.failed`, with the reason). The key is a hash of the text and of all that shapes machine code: versions and processor.
Any number of engine processes share the folder; `engine/fused_worker.py` is the one that compiles, kept to one by a lock. An
engine never imports Numba: it reads code, checks its hash, and gives it to LLVM's loader. What is cut off, altered or of
another machine is as good as absent and is made again.

The code in the folder is run by whoever loads it, so the folder belongs to its owner alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

LOCK: Final = "worker.lock"
SOURCE, FUSED, FAILED = ".source", ".fused", ".failed"
_MAGIC: Final = b"hailstream fused 1\n"
_POLL_S: Final = 0.05
_MOST_STARTS: Final = 3  # of the worker, for one text: then it is the text that kills it


class CompileFailedError(RuntimeError):
    """The text cannot be compiled; the message says why."""


class FusedCache:
    """A folder of compiled texts. Methods may be called from any thread."""

    def __init__(self, folder: Path, *, start_worker: Callable[[Path], None] | None = None) -> None:
        """Makes the folder. Loads LLVM's loader, which holds the interpreter for some 50 ms: do this at start.

        start_worker: starts the process that compiles, without waiting for it.
        Raises: PermissionError for a folder that others may write to.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{folder} must belong to this user alone (chmod 700): its files are run as code")
        self.folder = folder
        self._start_worker = start_worker or spawn_worker
        host()

    def key(self, text: str) -> str:
        return hashlib.sha256(f"{host()}\n{text}".encode()).hexdigest()[:40]

    def load(self, text: str) -> dict[str, bytes] | None:
        """Object code by function, or None when it is not there. Milliseconds; no compiling."""
        path = self.folder / (self.key(text) + FUSED)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        objects = unpack(raw)
        if objects is None:
            logger.error("%s is damaged and will be compiled again", path)
            path.unlink(missing_ok=True)
            return None
        os.utime(path)  # what is used is kept
        return objects

    def get(self, text: str, *, timeout_s: float = 120.0, stop: Callable[[], bool] = lambda: False) -> dict[str, bytes]:
        """The same, made if it is not there. Waits in the calling thread; `stop` ends the wait.

        Raises: CompileFailedError; TimeoutError, also when stopped.
        """
        objects = self.load(text)
        if objects is not None:
            return objects
        stem = self.folder / self.key(text)
        failed, source = stem.with_suffix(FAILED), stem.with_suffix(SOURCE)
        failed.unlink(missing_ok=True)  # of an earlier life: tried once more
        write_atomically(source, text.encode())
        deadline, starts = time.monotonic() + timeout_s, 0
        while time.monotonic() < deadline and not stop():
            if not locked(self.folder):
                objects = self.load(text)
                if objects is None and not failed.exists():
                    if starts == _MOST_STARTS:
                        source.unlink(missing_ok=True)
                        raise CompileFailedError(f"the compiler died {starts} times over it")
                    if not source.exists():
                        write_atomically(source, text.encode())
                    starts += 1
                    self._start_worker(self.folder)
                    self._wait_for_lock(deadline)
            objects = objects or self.load(text)
            if objects is not None:
                return objects
            if failed.exists():
                raise CompileFailedError(failed.read_text())
            time.sleep(_POLL_S)
        raise TimeoutError(f"not compiled within {timeout_s:g} s")

    def _wait_for_lock(self, deadline: float) -> None:
        """Until the worker that was started holds the lock, or has been and gone."""
        patience = min(deadline, time.monotonic() + 5.0)
        while time.monotonic() < patience and not locked(self.folder):
            time.sleep(_POLL_S / 5)


def spawn_worker(folder: Path) -> None:
    """A process of its own that outlives this one."""
    command = [sys.executable, "-m", "engine.fused_worker", str(folder)]
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    log = (folder / "worker.log").open("ab")
    with log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )


def locked(folder: Path) -> bool:
    """Whether a worker is at work."""
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


@lru_cache(maxsize=1)
def host() -> str:
    """All that machine code depends on besides the text."""
    import llvmlite.binding as llvm

    expr = Path(__file__).resolve().parents[1] / "features" / "expr"
    ours = hashlib.sha256(
        b"".join(
            (expr / name).read_bytes()
            for name in ("fused_ops.py", "fused_memory.py", "fused_machine.py", "text_bits.py")
        )
    )
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("numba", "llvmlite", "numpy")]
    features = llvm.get_host_cpu_features().flatten()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return "\n".join(
        [python, *versions, llvm.get_process_triple(), llvm.get_host_cpu_name(), features, ours.hexdigest()]
    )


def pack(objects: Mapping[str, bytes]) -> bytes:
    """Magic, hash of the rest, a line that says which functions at which sizes, their code."""
    head = json.dumps([[name, len(code)] for name, code in objects.items()]).encode() + b"\n"
    body = head + b"".join(objects.values())
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unpack(raw: bytes) -> dict[str, bytes] | None:
    """What was packed; None when it is not that, whole and unaltered."""
    start = len(_MAGIC) + 65
    body = raw[start:]
    if raw[:start] != _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n":
        return None
    head, _, code = body.partition(b"\n")
    objects, at = {}, 0
    for name, size in json.loads(head):
        objects[name] = code[at : at + size]
        at += size
    return objects


def write_atomically(path: Path, raw: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        file.write(raw)
    os.replace(file.name, path)

"""A folder with one writer at a time, and the log of what was done to it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

LOCK: Final = ".lock"
AUDIT: Final = "audit.jsonl"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other writers of the folder out; readers need no lock. Ends with the process, however it ends."""
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def note(folder: Path, record: Mapping[str, Any]) -> None:
    """Append one line to the folder's audit log, on disk when this returns. Needs the folder's lock."""
    path = folder / AUDIT
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # a write that died: keep the next line whole
        line = json.dumps(dict(record), ensure_ascii=False, separators=(", ", ": "))
        os.write(descriptor, (("\n" if torn else "") + line + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """The audit log, oldest first. A line that died half-way never came to be: what it announced was not done."""
    path = folder / AUDIT
    if not path.exists():
        return []
    out = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            out.append(record)
    return out

"""The compiler process of a host: `python -m engine.fused_worker FOLDER`.

Takes the lock of the folder or leaves at once; compiles what is asked for there, in order of asking, at low priority; ends
after a while without work. Whatever goes wrong with one text is written down beside it and does not end the process; what
does end it loses nothing, since the question stays in the folder until its answer is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Final

from engine.fused_cache import FAILED, FUSED, LOCK, SOURCE, pack, write_atomically
from engine.fused_plan import AFTER, BEFORE

_POLL_S: Final = 0.05
_NICE: Final = 15
KEEP: Final = 200  # compiled texts; the ones used last


def main(folder: Path, *, idle_s: float = 30.0) -> int:
    """Work until there has been none for `idle_s`; returns how many texts were compiled."""
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        be_nice()
        done, idle_since = 0, time.monotonic()
        while time.monotonic() - idle_since < idle_s:
            sources = waiting(folder)
            for source in sources:
                done += compile_file(source)
                idle_since = time.monotonic()
            if not sources:
                time.sleep(_POLL_S)
        prune(folder)
        return done


def be_nice() -> None:
    """A niceness counts only within its session where Linux groups processes by session (sched_autogroup), as most desktops
    and virtual machines do: then the session, which is this process's own, must be nice too."""
    os.nice(_NICE)
    with contextlib.suppress(OSError):  # there are no such groups, or this one was set a moment ago
        Path("/proc/self/autogroup").write_text(f"{_NICE}")


def waiting(folder: Path) -> list[Path]:
    """The texts that are asked for, the oldest first."""
    found = [(entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(folder) if entry.name.endswith(SOURCE)]
    return [Path(path) for _, path in sorted(found)]


def compile_file(source: Path) -> bool:
    """Answer one question: the code, or why there is none."""
    from features.expr.fused_ops import compile_text

    try:
        started = time.perf_counter()
        objects = compile_text(source.read_text(), (BEFORE, AFTER))
        write_atomically(source.with_suffix(FUSED), pack(objects))
        print(f"{source.stem} compiled in {time.perf_counter() - started:.2f} s", flush=True)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        write_atomically(source.with_suffix(FAILED), reason[:2000].encode())
    made = source.with_suffix(FUSED).exists()
    source.unlink(missing_ok=True)
    return made


def prune(folder: Path) -> None:
    """Forget what was used longest ago, and answers that nobody read."""
    found = sorted(folder.glob(f"*{FUSED}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in [*found[KEEP:], *sorted(folder.glob(f"*{FAILED}"))[KEEP:]]:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What bad input may lead to: nothing at all, or mistakes that say where, each with a known code. Never anything else."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import process_time

from features.expr import Mistake, Mistakes
from features.expr.causes import CAUSES
from features.expr.source import LINE_BREAK

MAX_SECONDS = 4.0  # of one case, in CPU time: ten times what the slowest case takes on an idle machine
_CSV_LINE_END = re.compile("\r\n|\n|\r")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One case that came out as it must not. `what` is the fault, `files` the input."""

    what: str
    files: Mapping[str, bytes]


def judge(files: Mapping[str, bytes], run: Callable[[], bool]) -> tuple[bool, Fault | None]:
    """Run a case: whether it was accepted, and its fault. `run` raises Mistakes about `files`."""
    started = process_time()
    accepted, what = False, None
    try:
        accepted = run()
    except Mistakes as error:
        what = find_fault(error, files)
    except Exception:
        what = traceback.format_exc(limit=-6)
    seconds = process_time() - started
    if what is None and seconds > MAX_SECONDS:
        what = f"took {seconds:.1f} s"
    return accepted, None if what is None else Fault(what=what, files=files)


def find_fault(error: Mistakes, files: Mapping[str, bytes]) -> str | None:
    """What is wrong with the mistakes themselves; None when an author can act on each."""
    if not any(item.severity == "error" for item in error.items):
        return "Mistakes without a mistake"
    problems = [problem for item in error.items if (problem := _problem(item, files)) is not None]
    try:
        str(error).encode()
    except UnicodeEncodeError as encoding:
        problems.append(f"cannot be printed: {encoding}")
    return "; ".join(problems[:3]) or None


def _problem(item: Mistake, files: Mapping[str, bytes]) -> str | None:
    where = f"{item.kind} at {item.file}:{item.line}:{item.col}-{item.end_col}: {item.message[:200]!r}"
    if item.kind not in CAUSES:
        return f"code without a meaning: {where}"
    if item.file not in files:
        return f"about a file that is not there: {where}"
    if not item.message.strip() or len(item.message) + len(item.hint) > 2_000:
        return f"no message, or an endless one: {where}"
    line_end = _CSV_LINE_END if item.file.endswith(".csv") else LINE_BREAK
    lines = line_end.split(files[item.file].decode("utf-8-sig", "replace"))
    if not 1 <= item.line <= len(lines):
        return f"behind the last line ({len(lines)}): {where}"
    width = len(lines[item.line - 1])
    if not 1 <= item.col <= width + 1 or item.end_col <= item.col:
        return f"not on its line of {width} characters: {where}"
    try:
        item.format().encode()
        json.dumps(item.as_dict(), ensure_ascii=False).encode()
    except Exception as error:
        return f"cannot be shown ({error!r}): {where}"
    return None

"""Which version of a model serves: list, promote, roll back.

    <models>/<name>/champion        "<version>\\n", replaced by one rename
    <models>/<name>/history.jsonl   one line per move: time, actor, reason, from, to

A move first writes its line, then renames. If it dies between the two, the last line says where the champion should
be and the next move completes it, so a retry neither doubles a line nor loses one. Moves of one model exclude each
other by a file lock. `model_dir.py` describes a version's directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from engine.model import CHAMPION_FILE, champion_version
from features.files import sync_folder
from pipelines.training.model_dir import PublishError, read_manifest, versions_of, write_atomic


@dataclass(frozen=True, kw_only=True)
class Move:
    """One promotion or rollback as history keeps it. `forced` marks a promotion over a refused gate."""

    time_ms: int
    move: Literal["promote", "rollback"]
    actor: str
    reason: str
    from_version: str | None
    to_version: str
    forced: bool = False


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a promote or rollback did. `changed` is False where the champion already was there."""

    name: str
    champion: str
    before: str | None
    changed: bool


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One published version. `problem` is set, and the rest may be empty, where its directory fails its checks."""

    name: str
    version: str
    champion: bool
    strategy: str | None
    label: str | None
    created_ms: int | None
    model_hash: str | None
    gate_passed: bool | None
    metrics: dict[str, Any]
    problem: str | None


def list_models(models_dir: Path) -> list[ModelEntry]:
    """Every version of every model, by name then version; broken ones are listed with what is wrong."""
    if not models_dir.is_dir():
        return []
    names = sorted(entry.name for entry in models_dir.iterdir() if (entry / "versions").is_dir())
    return [
        _entry(models_dir / name, version, champion=version == champion_version(models_dir, name))
        for name in names
        for version in versions_of(models_dir / name)
    ]


def history_of(models_dir: Path, name: str) -> list[Move]:
    """All moves, oldest first. Raises: PublishError with file:line for a line that cannot be read."""
    path = models_dir / name / "history.jsonl"
    if not path.exists():
        return []
    moves = []
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            raw = json.loads(line)
            moves.append(
                Move(
                    **{("from_version" if k == "from" else "to_version" if k == "to" else k): v for k, v in raw.items()}
                )
            )
        except (ValueError, TypeError) as error:
            if number == len(lines):  # no newline after it: the write died half-way, so the move never began
                continue
            raise PublishError(f"{path}:{number}: not a history line ({error})") from None
    return moves


def promote(
    models_dir: Path,
    name: str,
    version: str,
    actor: str,
    reason: str,
    *,
    force: bool = False,
    now_ms: int | None = None,
) -> Moved:
    """Make a version the champion. Doing it again changes nothing and writes nothing.

    Raises: PublishError if there is no such version, its files fail their hashes, or its gate refused it (unless `force`,
    which history records).
    """
    model_dir = _known(models_dir, name, version)
    with _locked(model_dir):
        manifest = read_manifest(model_dir / "versions" / version)
        gate = manifest.get("gate") or {}
        if not gate.get("passed") and not force:
            why = "; ".join(gate.get("refused", [])) or "no verdict was recorded"
            raise PublishError(f"{name} {version}: the gate refused it: {why}. Promote with force to overrule the gate")
        _finish_interrupted(models_dir, name)
        before = champion_version(models_dir, name)
        if before == version:
            return Moved(name=name, champion=version, before=before, changed=False)
        forced = not gate.get("passed")
        _move(model_dir, Move(time_ms=_now(now_ms), move="promote", actor=actor, reason=reason,
                              from_version=before, to_version=version, forced=forced))  # fmt: skip
        return Moved(name=name, champion=version, before=before, changed=True)


def rollback(
    models_dir: Path, name: str, actor: str, reason: str, *, leave: str | None = None, now_ms: int | None = None
) -> Moved:
    """Go back to the champion before this one. Twice goes back twice, never forth again.

    `leave` names the version to leave: where the champion is another one already, nothing changes, so a retry is safe.

    Raises: PublishError if there is no earlier champion, or its files fail their hashes.
    """
    model_dir = _known(models_dir, name, None)
    with _locked(model_dir):
        _finish_interrupted(models_dir, name)
        before = champion_version(models_dir, name)
        if before is None:
            raise PublishError(f"{name}: there is no champion to roll back from; promote a version first")
        if leave is not None and leave != before:
            return Moved(name=name, champion=before, before=before, changed=False)
        served = _served_before(history_of(models_dir, name))
        if not served:
            raise PublishError(
                f"{name}: {before} is the first champion; there is nothing to roll back to. "
                f"{_way_out(name, [version for version in versions_of(model_dir) if version != before])}"
            )
        target = served[-1]
        _known(models_dir, name, target)
        read_manifest(model_dir / "versions" / target)
        _move(model_dir, Move(time_ms=_now(now_ms), move="rollback", actor=actor, reason=reason,
                              from_version=before, to_version=target))  # fmt: skip
        return Moved(name=name, champion=target, before=before, changed=True)


def _served_before(history: list[Move]) -> list[str]:
    """Earlier champions, oldest first, as a stack: a promotion pushes what it replaced, a rollback pops."""
    stack: list[str] = []
    for move in history:
        if move.move == "promote" and move.from_version is not None:
            stack.append(move.from_version)
        elif move.move == "rollback" and stack:
            stack.pop()
    return stack


def _way_out(name: str, others: Sequence[str]) -> str:
    if not others:
        return "It is the only version: train another with `hailstream train`"
    return f"Promote another version: `hailstream models promote {name} VERSION --reason …` with {', '.join(others)}"


def _move(model_dir: Path, move: Move) -> None:
    line = {("from" if k == "from_version" else "to" if k == "to_version" else k): v for k, v in asdict(move).items()}
    path = model_dir / "history.jsonl"
    with path.open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":  # cut off half-written bytes: glued to ours they would spoil both lines
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(line) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(model_dir)
    write_atomic(model_dir / CHAMPION_FILE, f"{move.to_version}\n".encode())


def _finish_interrupted(models_dir: Path, name: str) -> None:
    """Complete a move whose line is written but whose rename did not happen."""
    history = history_of(models_dir, name)
    if history and champion_version(models_dir, name) == history[-1].from_version != history[-1].to_version:
        write_atomic(models_dir / name / CHAMPION_FILE, f"{history[-1].to_version}\n".encode())


def _known(models_dir: Path, name: str, version: str | None) -> Path:
    model_dir = models_dir / name
    if not (model_dir / "versions").is_dir():
        names = sorted({entry.name for entry in list_models(models_dir)})
        raise PublishError(f"{models_dir}: no model {name!r}; known: {', '.join(names) or 'none'}")
    if version is not None and version not in versions_of(model_dir):
        raise PublishError(f"{name}: no version {version!r}; known: {', '.join(versions_of(model_dir)) or 'none'}")
    return model_dir


def _entry(model_dir: Path, version: str, *, champion: bool) -> ModelEntry:
    try:
        manifest, problem = read_manifest(model_dir / "versions" / version), None
    except (PublishError, OSError) as error:
        manifest, problem = {}, str(error)
    gate = manifest.get("gate")
    return ModelEntry(
        name=model_dir.name, version=version, champion=champion, strategy=manifest.get("strategy"),
        label=manifest.get("label"), created_ms=manifest.get("created_ms"), model_hash=manifest.get("model_hash"),
        gate_passed=None if gate is None else bool(gate.get("passed")), metrics=manifest.get("metrics", {}), problem=problem,
    )  # fmt: skip


@contextmanager
def _locked(model_dir: Path) -> Iterator[None]:
    with (model_dir / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _now(now_ms: int | None) -> int:
    return int(time.time() * 1000) if now_ms is None else now_ms

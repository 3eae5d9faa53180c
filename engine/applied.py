"""A folder of applied strategies: what is live, every version that ever was, and who applied it and why.

    DIR/NAME.yaml                   what is live: a link to its kept version, moved by one rename
    DIR/history/NAME/v14-3f2c…/     NAME.yaml, its tables and tests as they were applied, applied.json; never written again
    DIR/audit.jsonl                 one line per apply, rollback, retirement, kill and revival; only ever appended to
    DIR/switches.json               what is switched off (engine/switches.py)

An apply stages the version, makes it history by one rename, writes its audit line, and then moves the link: a reader sees
the old version or the new one with all of its files, and an apply that dies leaves the old one live. A line whose link was
never moved is followed by an `interrupted` line at the next change.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from engine.files import locked, note, read_notes
from engine.history import (
    HISTORY,
    RECORD,
    AppliedError,
    Kept,
    history_of,
    kept_version,
    live_in,
    names_there,
    path_of,
    read_kept,
)
from engine.outline import Outline, read_outline
from features.expr import Mistakes
from features.files import sync_folder

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What an apply did to one strategy. `before` is what was live; `what` says `unchanged` where it already was this one."""

    strategy: str
    what: Literal["apply", "rollback", "unchanged"]
    kept: Kept
    before: Kept | None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checked file: where it is, what is in it, and the hash that its compiled form has."""

    path: Path
    outline: Outline
    hash: str

    @property
    def files(self) -> list[str]:
        """What it consists of besides itself, relative to it."""
        tests = [self.outline.tests] if self.outline.tests else []
        return sorted({*self.outline.tables.values(), *tests})


Check = Callable[[Path, str], str]  # the compiled strategy's hash of (file, name in messages); raises Mistakes
OnStep = Callable[[str], None]  # told after each step that changes something on disk: where a test lets an apply die


def read_source(path: Path, check: Check) -> Source:
    """Raises: Mistakes, AppliedError for a name or a file that cannot be kept, OSError."""
    digest = check(path, str(path))
    source = Source(path=path, outline=read_outline(path), hash=digest)
    if not _NAME.fullmatch(source.outline.name):
        raise AppliedError(f"{path}: '{source.outline.name}' cannot be the name of a file; use letters, digits, _ . -")
    for name in source.files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise AppliedError(f"{path}: '{name}' lies outside of the strategy's folder and cannot be kept with it")
        if not (path.parent / name).is_file():
            raise AppliedError(f"{path}: there is no file {path.parent / name}")
    return source


def apply(
    folder: Path,
    sources: Sequence[Source],
    check: Check,
    *,
    actor: str,
    reason: str,
    now_ms: int,
    on_step: OnStep = lambda step: None,
) -> list[Applied]:
    """Make the sources live in the folder, one after the other; nothing is changed when one of them is refused.

    Applying what is live already changes nothing. Raises: AppliedError for a version that was used for other content or
    lies below the live one, a name that another file has, or a shadow of nothing; OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _note_interrupted(folder, now_ms)
        live = live_in(folder)
        _refuse_shared_names(sources)
        for source in sources:
            _refuse(folder, source, live, {other.outline.name for other in sources})
        out = []
        for source in sources:
            before = live.get(source.outline.name)
            if before is not None and before.hash == source.hash:
                out.append(Applied(strategy=source.outline.name, what="unchanged", kept=before, before=before))
                continue
            kept = _keep(folder, source, check, actor, reason, now_ms, on_step)
            _move(folder, kept, before, "apply", actor, reason, now_ms, on_step)
            out.append(Applied(strategy=source.outline.name, what="apply", kept=kept, before=before))
    return out


def restore(
    folder: Path,
    name: str,
    version: int,
    check: Check,
    *,
    actor: str,
    reason: str,
    now_ms: int,
    on_step: OnStep = lambda step: None,
) -> Applied:
    """Make a version from history live again. Raises: AppliedError, Mistakes when it no longer compiles, OSError."""
    with locked(_there(folder)):
        _note_interrupted(folder, now_ms)
        kept = kept_version(folder, name, version)
        before = live_in(folder).get(name)
        if before is not None and before.hash == kept.hash:
            return Applied(strategy=name, what="unchanged", kept=before, before=before)
        path = path_of(folder, kept)
        _refuse_foreign(folder, name)
        if check(path, path.name) != kept.hash:
            raise AppliedError(f"{path.parent} has been changed by hand; what was applied there cannot be restored")
        what: Literal["apply", "rollback"] = "rollback" if before and version < before.version else "apply"
        _move(folder, kept, before, what, actor, reason, now_ms, on_step)
        return Applied(strategy=name, what=what, kept=kept, before=before)


def retire(folder: Path, name: str, *, actor: str, reason: str, now_ms: int) -> Kept:
    """Take a strategy out of service; its history stays. Raises: AppliedError when it is not live, OSError."""
    with locked(_there(folder)):
        _note_interrupted(folder, now_ms)
        live = live_in(folder)
        if name not in live:
            raise AppliedError(f"no strategy '{name}' is live in {folder}; {names_there(name, live)}")
        note(folder, _line("retire", live[name], None, actor, reason, now_ms, strategy=name))
        (folder / f"{name}.yaml").unlink()
        sync_folder(folder)
        return live[name]


# ---------- refusing ----------


def _there(folder: Path) -> Path:
    if not folder.is_dir():
        raise AppliedError(f"no folder of strategies at {folder}; `strategies apply` makes one")
    return folder


def _refuse_shared_names(sources: Sequence[Source]) -> None:
    files: dict[str, Path] = {}
    for source in sources:
        other = files.setdefault(source.outline.name, source.path)
        if other != source.path:
            raise AppliedError(
                f"{source.path}: strategy '{source.outline.name}' is already in {other}; rename one of them"
            )


def _refuse(folder: Path, source: Source, live: Mapping[str, Kept], batch: set[str]) -> None:
    name, version = source.outline.name, source.outline.version
    _refuse_foreign(folder, name)
    same = next((kept for kept in history_of(folder, name) if kept.version == version), None)
    if same is not None and same.hash != source.hash:
        raise AppliedError(
            f"{source.path}: version {version} of '{name}' was applied with other content by {same.actor}; "
            f"raise the version, or see `strategies diff {name} {version} {source.path}`"
        )
    before = live.get(name)
    if before is not None and version < before.version:
        way = f"go back to it with `strategies apply {name} --version {version}`" if same else "versions only go up"
        raise AppliedError(
            f"{source.path}: version {version} of '{name}' is below {before.version}, which is live; {way}"
        )
    of = source.outline.shadow_of
    if of is not None and of not in batch and of not in live:
        raise AppliedError(
            f"{source.path}: '{name}' is a shadow of '{of}', which is not applied; {names_there(of, live)}"
        )


def _refuse_foreign(folder: Path, name: str) -> None:
    """A file that nobody applied is nobody's to replace, and may hold the same strategy."""
    path = folder / f"{name}.yaml"
    if path.exists() and not path.is_symlink():
        raise AppliedError(f"{path} was not put there by apply; move it away, then apply it")
    for other in folder.glob("*.yaml"):
        if not other.is_symlink() and _name_in(other) == name:
            raise AppliedError(
                f"strategy '{name}' is already in {other}, which was not put there by apply; move it away"
            )


def _name_in(path: Path) -> str:
    try:
        return read_outline(path).name
    except (Mistakes, OSError):
        return ""


# ---------- changing ----------


def _keep(folder: Path, source: Source, check: Check, actor: str, reason: str, now_ms: int, on_step: OnStep) -> Kept:
    """The source as a version in history, whole by one rename. One that an earlier apply left there is taken as it is."""
    name = source.outline.name
    kept = Kept(
        strategy=name,
        version=source.outline.version,
        hash=source.hash,
        files=[f"{name}.yaml", *source.files],
        actor=actor,
        reason=reason,
        at_ms=now_ms,
        shadow_of=source.outline.shadow_of,
    )
    home = folder / HISTORY / name
    if (home / kept.label).is_dir():
        return read_kept(home / kept.label)
    home.mkdir(parents=True, exist_ok=True)
    aside = home / ".new"
    shutil.rmtree(aside, ignore_errors=True)  # of an apply that died
    aside.mkdir()
    on_step("staging")
    for to, file in ((f"{name}.yaml", source.path), *((file, source.path.parent / file) for file in source.files)):
        (aside / to).parent.mkdir(parents=True, exist_ok=True)
        _write(aside / to, file.read_bytes())
        on_step(f"copied {to}")
    # What was checked and what was copied are two readings of the author's files: they may have been saved in between.
    if check(aside / f"{name}.yaml", str(source.path)) != source.hash:
        raise AppliedError(f"{source.path} or a table of it changed while it was applied; apply it again")
    _write(aside / RECORD, msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
    on_step("recorded")
    os.replace(aside, home / kept.label)
    sync_folder(home)
    on_step("kept")
    return kept


def _move(
    folder: Path,
    kept: Kept,
    before: Kept | None,
    event: str,
    actor: str,
    reason: str,
    now_ms: int,
    on_step: OnStep,
) -> None:
    """Say it, then do it: the link goes from one version to the other by one rename."""
    note(folder, _line(event, before, kept, actor, reason, now_ms, strategy=kept.strategy))
    on_step("noted")
    aside = folder / f".{kept.strategy}.new"
    aside.unlink(missing_ok=True)
    aside.symlink_to(path_of(folder, kept).relative_to(folder))
    on_step("linked aside")
    os.replace(aside, folder / f"{kept.strategy}.yaml")
    sync_folder(folder)
    on_step("live")


def _line(
    event: str, before: Kept | None, after: Kept | None, actor: str, reason: str, now_ms: int, *, strategy: str
) -> dict[str, Any]:
    return {
        "event": event,
        "strategy": strategy,
        "from": None if before is None else before.hash,
        "to": None if after is None else after.hash,
        "from_version": None if before is None else before.version,
        "to_version": None if after is None else after.version,
        "actor": actor,
        "reason": reason,
        "at_ms": now_ms,
    }


def _note_interrupted(folder: Path, now_ms: int) -> None:
    """Say of every strategy whose last line announced what did not come to be that it did not."""
    live = live_in(folder)
    last = {line["strategy"]: line for line in read_notes(folder) if "strategy" in line and "to" in line}
    for name, line in last.items():
        found = live.get(name)
        if (found.hash if found else None) != line["to"]:
            why = f"the {line['event']} of {line['at_ms']} by {line['actor']} was cut off"
            note(folder, _line("interrupted", None, found, "hailstream", why, now_ms, strategy=name))


def _write(path: Path, raw: bytes) -> None:
    with path.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())

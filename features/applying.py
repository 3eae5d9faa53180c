"""Changes of the registry in Redis: read, decide, write in one transaction, again where somebody was faster.

A step is decided by pure functions (features/registry.py, features/staging.py) on what was read. It is written together
with its entry in the history and the markers of its new generations: all of it or nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from features.loader import load_catalogue
from features.packing import GroupKeys
from features.registry import (
    ApplyReport,
    Change,
    HistoryEntry,
    Registry,
    decode_registry,
    history_key,
    next_registry,
    registry_key,
)
from features.spec import Catalogue, LastGroup, TileGroup
from features.staging import moved_groups, refuse_staged, seam_of, stage_next
from features.store import FeatureError

ATTEMPTS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a change does. `kind` and `note` are the history's; `changes` says what is, or will be, served differently."""

    after: Registry
    kind: str
    changes: list[Change]
    note: str = ""


Decide = Callable[[Registry | None, int], Step | None]  # from what is applied, and the time to write down


def change_registry(
    redis_url: str,
    project: str,
    decide: Decide,
    *,
    actor: str,
    reason: str,
    feast_dir: Path | None = None,
    now_ms: int | None = None,
) -> tuple[Registry | None, Step | None, bool]:
    """Take one step. Returns what was read, the step (None: there was nothing to do), and whether Feast's files changed.

    Raises: whatever `decide` raises; StoreError; FeatureError where others are always faster.
    """
    from features.redis_store import read_document, swap_document

    for _ in range(ATTEMPTS):
        stored = read_document(redis_url, registry_key(project))
        before = None if stored is None else decode_registry(stored)
        when_ms = int(time.time() * 1000) if now_ms is None else now_ms
        step = decide(before, when_ms)
        served = before if step is None else step.after
        feast_written = feast_dir is not None and served is not None and _write_feast(served, redis_url, feast_dir)
        if step is None:
            return before, None, feast_written
        entry = HistoryEntry(
            time_ms=when_ms,
            actor=actor,
            reason=reason,
            version=step.after.version,
            fingerprint=step.after.fingerprint,
            changes=step.changes,
            kind=step.kind,
            note=step.note,
        )
        names, encoded = (registry_key(project), history_key(project)), msgspec.json.encode(step.after.document)
        markers = _new_markers(before, step.after)
        if swap_document(redis_url, names, stored, encoded, msgspec.json.encode(entry), markers):
            return before, step, feast_written
    raise FeatureError(f"project {project!r} is being changed by somebody else; tried {ATTEMPTS} times, try again")


def apply_folder(
    folder: Path | str,
    redis_url: str,
    project: str,
    *,
    actor: str,
    reason: str,
    feast_dir: Path | None,
    now_ms: int | None,
    now: bool,
    check: Callable[[Registry | None, Catalogue], str],
) -> ApplyReport:
    """`features.registry.apply_catalogue`, which says what it does."""
    catalogue = load_catalogue(folder)

    def decide(before: Registry | None, when_ms: int) -> Step | None:
        if before is not None and before.document.next is not None:
            if dict(catalogue.files) == before.document.next.files:
                return None
            refuse_staged(before)
        note = check(before, catalogue)
        after, changes = next_registry(before, catalogue, project, life=new_life(when_ms))
        step = Step(after=after, kind="apply", changes=changes, note=note)
        if before is None:
            return step
        if not now and (staged := stage_step(before, catalogue, redis_url, when_ms, actor=actor, reason=reason)):
            return replace(staged, note=note)
        return None if after.document == before.document else step

    before, step, feast_written = change_registry(
        redis_url, project, decide, actor=actor, reason=reason, feast_dir=feast_dir, now_ms=now_ms
    )
    if step is None:
        assert before is not None
        staged = before.document.next is not None
        return ApplyReport(changed=False, registry=before, feast_written=feast_written, staged=staged)
    return ApplyReport(
        changed=True,
        registry=step.after,
        changes=step.changes,
        feast_written=feast_written,
        staged=step.kind == "stage",
    )


def stage_step(
    before: Registry,
    catalogue: Catalogue,
    redis_url: str,
    when_ms: int,
    *,
    actor: str,
    reason: str,
    again: frozenset[str] = frozenset(),
) -> Step | None:
    """The step that stages a catalogue. None where nothing that is fed moves: it can be applied at once."""
    after, _ = next_registry(before, catalogue, before.project, again=again)
    if not moved_groups(before, after):
        return None
    seam_ms = seam_of(before, after, applied_through(redis_url, before))
    if seam_ms is None:
        return None
    staged, changes = stage_next(
        before,
        catalogue,
        before.project,
        seam_ms,
        started_ms=when_ms,
        actor=actor,
        reason=reason,
        life=new_life(when_ms),
        again=again,
    )
    return Step(after=staged, kind="stage", changes=changes)


def applied_through(redis_url: str, registry: Registry) -> dict[str, int | None]:
    """Heartbeats of the stream groups by name. Raises: StoreError."""
    from features.redis_store import group_stats

    streams = [(g, n) for g, n in registry.groups() if isinstance(g, TileGroup | LastGroup)]
    stats = group_stats(redis_url, streams, registry.project)
    return {name: group.applied_through_ms for name, group in stats.items()}


def new_life(when_ms: int) -> str:
    """What the markers of generations that are made now say: never the same twice."""
    return f"{when_ms}-{secrets.token_hex(8)}"


def _new_markers(before: Registry | None, after: Registry) -> dict[bytes, bytes]:
    """Of new generations only: a marker that was lost must stay lost, or a job would go on with half of its tiles."""
    new = _lives(after) - (set() if before is None else _lives(before))
    return {
        GroupKeys(after.project, name, generation).marker: life.encode()
        for name, generation, life in sorted(new)
        if life
    }


def _lives(registry: Registry) -> set[tuple[str, int, str]]:
    following = registry.document.next
    groups = [registry.document.groups, *([] if following is None else [following.groups])]
    return {(name, group.generation, group.life) for part in groups for name, group in part.items()}


def _write_feast(registry: Registry, redis_url: str, feast_dir: Path) -> bool:
    """Feast's files, unless they are those of this registry already: importing feast takes seconds."""
    marker = feast_dir / "hailstream.fingerprint"
    wanted = f"{registry.fingerprint} {redis_url}\n"
    if marker.is_file() and marker.read_text() == wanted:
        return False
    from features.feast_store import write_feast_repo

    write_feast_repo(registry, redis_url, feast_dir)
    marker.write_text(wanted)
    return True

"""What an operator does with versions: switch to the staged one, rebuild, drop, abort. Each registry step is one transaction.

Which jobs run is not known here: `fed` names the generations that running jobs feed (`group@generation`), and keys that a
job still writes are left until it has ended. The whole way of an edit, jobs and backfill included, is
`hailstream features rollout` (infra/commands/features_rollout.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from features.applying import Step, change_registry, new_life, stage_step
from features.registry import Change, Registry, load_history, load_registry, next_registry
from features.spec import PROJECT
from features.staging import abort_next, needs_staged, new_groups, refuse_staged, switch_next, without_views
from features.store import FeatureError

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class GroupReadiness:
    """One new generation before the switch. Times in ms; None where there is none. Not `problems`: it is ready."""

    group: str
    generation: int
    seam_ms: int
    backfilled_through_ms: int | None
    applied_through_ms: int | None
    served_through_ms: int | None  # of the generation that is served, or of another group of the source
    marked: bool
    problems: tuple[str, ...]

    @property
    def is_backfilled(self) -> bool:
        return self.backfilled_through_ms is not None and self.backfilled_through_ms >= self.seam_ms


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What a drop or an abort took away. `waiting` names the generations whose keys are left to a job that feeds them."""

    registry: Registry
    changes: tuple[Change, ...]
    groups: tuple[str, ...]
    keys_deleted: int
    waiting: tuple[str, ...]


def readiness(redis_url: str, project: str = PROJECT, *, without_backfill: bool = False) -> list[GroupReadiness]:
    """How far the new generations of the staged version are. Raises: FeatureError where none is staged; StoreError."""
    return _readiness(load_registry(redis_url, project), redis_url, without_backfill)


def switch(
    redis_url: str,
    project: str = PROJECT,
    *,
    actor: str,
    reason: str,
    without_backfill: bool = False,
    feast_dir: Path | None = None,
    now_ms: int | None = None,
) -> Registry:
    """Serve the staged version from now on, in one transaction; the bookkeeping of the old generations gets an expiry.

    `without_backfill`: what lies before the seam is missing in the new generations, and the history says so.
    Raises: FeatureError naming what is not ready, or where nothing is staged; StoreError.
    """
    from features.redis_keys import expire_bookkeeping

    def decide(before: Registry | None, when_ms: int) -> Step | None:
        registry = _applied(before, project)
        problems = [p for group in _readiness(registry, redis_url, without_backfill) for p in group.problems]
        if problems:
            raise FeatureError(f"project {project!r} is not ready for the switch: " + "; ".join(problems))
        after, changes = switch_next(registry)
        note = "without backfill: windows that reach beyond the seam are incomplete" if without_backfill else ""
        return Step(after=after, kind="switch", changes=changes, note=note)

    before, step, _ = change_registry(
        redis_url, project, decide, actor=actor, reason=reason, feast_dir=feast_dir, now_ms=now_ms
    )
    assert before is not None and step is not None
    served = step.after.document.groups
    all_of_before = (*before.groups(), *before.row_groups())
    old = [(g, n) for g, n in all_of_before if g.name not in served or served[g.name].generation != n]
    expire_bookkeeping(redis_url, old, project)
    return step.after


def rebuild(
    redis_url: str,
    views: Collection[str] | None = None,
    project: str = PROJECT,
    *,
    actor: str,
    reason: str,
    now_ms: int | None = None,
) -> tuple[Registry, bool]:
    """New generations of some views' groups (None: of all) without an edit. Returns the registry, and whether it is staged.

    Not staged: nothing of them was ever applied, or Redis has lost even the heartbeats, so readers see missing anyway, and
    a new job may start at the topics' first offsets.
    Raises: KeyError for an unknown view; FeatureError where a version is staged or nothing is applied; StoreError.
    """

    def decide(before: Registry | None, when_ms: int) -> Step | None:
        registry = _applied(before, project)
        refuse_staged(registry)
        again = groups_of(registry, registry.catalogue.views if views is None else views)
        step = stage_step(
            registry, registry.catalogue, redis_url, when_ms, actor=actor, reason=reason, again=frozenset(again)
        )
        if step is None:
            after, changes = next_registry(registry, registry.catalogue, project, life=new_life(when_ms), again=again)
            step = Step(after=after, kind="rebuild", changes=changes)
        return Step(after=step.after, kind="rebuild", changes=step.changes, note=step.kind)

    _, step, _ = change_registry(redis_url, project, decide, actor=actor, reason=reason, now_ms=now_ms)
    assert step is not None
    return step.after, step.after.document.next is not None


def drop(
    redis_url: str,
    view: str,
    project: str = PROJECT,
    *,
    actor: str,
    reason: str,
    fed: Collection[str] = (),
    feast_dir: Path | None = None,
    progress: Progress = lambda deleted, seen: None,
    now_ms: int | None = None,
) -> Dropped:
    """Take a view out of the registry, then delete the keys of the groups that only it used.

    Again, for a view that is gone already, it deletes what was left: keys that a job still fed, or those of a view that an
    apply took out. Raises: KeyError for a view that never was; FeatureError where it shares a group with another view, or
    a version is staged; StoreError.
    """
    registry = load_registry(redis_url, project)
    changes: tuple[Change, ...] = ()
    if view in registry.catalogue.views:

        def decide(before: Registry | None, when_ms: int) -> Step | None:
            after, changed = without_views(_applied(before, project), {view})
            return Step(after=after, kind="drop", changes=changed)

        _, step, _ = change_registry(
            redis_url, project, decide, actor=actor, reason=reason, feast_dir=feast_dir, now_ms=now_ms
        )
        assert step is not None
        registry, changes = step.after, tuple(step.changes)
        gone = _gone_groups(step.changes)
    else:
        gone = _gone_with(redis_url, view, registry)
    wanted: dict[str, frozenset[int] | None] = dict.fromkeys(gone)
    return _delete(redis_url, registry, changes, wanted, fed, progress)


def abort(
    redis_url: str,
    project: str = PROJECT,
    *,
    actor: str,
    reason: str,
    fed: Collection[str] = (),
    progress: Progress = lambda deleted, seen: None,
    now_ms: int | None = None,
) -> Dropped:
    """Forget the staged version and delete the keys of its new generations, which are never used again.

    Raises: FeatureError where nothing is staged; StoreError.
    """

    def decide(before: Registry | None, when_ms: int) -> Step | None:
        after, changes = abort_next(_applied(before, project))
        return Step(after=after, kind="abort", changes=changes)

    before, step, _ = change_registry(redis_url, project, decide, actor=actor, reason=reason, now_ms=now_ms)
    assert before is not None and before.staged is not None and step is not None
    new = {name: frozenset({group.generation}) for name, group in new_groups(before, before.staged).items()}
    return _delete(redis_url, step.after, tuple(step.changes), new, fed, progress)


def groups_of(registry: Registry, views: Collection[str]) -> set[str]:
    """The groups that feed some views. Raises: KeyError naming the views that there are."""
    catalogue = registry.catalogue
    unknown = sorted(set(views) - set(catalogue.views))
    if unknown:
        raise KeyError(
            f"no view {unknown[0]!r} is applied in project {registry.project!r}; applied are {sorted(catalogue.views)}"
        )
    chosen = [catalogue.views[name] for name in views]
    rows = {group.name for group in catalogue.row_groups() if group.view in views}
    return rows | {
        catalogue.group_for(view, spec).name for view in chosen for spec in view.features if spec.aggregate is not None
    }


def _applied(registry: Registry | None, project: str) -> Registry:
    if registry is None:
        raise FeatureError(f"no features are applied in project {project!r}: run `hailstream features apply`")
    return registry


def _readiness(registry: Registry, redis_url: str, without_backfill: bool) -> list[GroupReadiness]:
    from features.redis_keys import read_bookkeeping

    staged = needs_staged(registry)
    served = read_bookkeeping(redis_url, registry.groups(), registry.project)
    found = read_bookkeeping(redis_url, staged.groups(), registry.project)
    sources = {group.name: group.source.name for group in (*registry.catalogue.groups(), *staged.catalogue.groups())}
    out = []
    for name, group in sorted(new_groups(registry, staged).items()):
        seam_ms = group.seam_ms if group.seam_ms is not None else 0
        through = [
            book.applied_through_ms
            for other, book in served.items()
            if (other == name or (name not in served and sources[other] == sources[name]))
            and book.applied_through_ms is not None
        ]
        before_ms, book = max(through, default=None), found[name]
        marked = not group.life or book.life == group.life
        problems = []
        at = f"{name} (generation {group.generation})"
        if not marked:
            problems.append(f"{at} has lost its marker in Redis: `hailstream features abort`, then stage it again")
        if not without_backfill and (book.backfilled_through_ms is None or book.backfilled_through_ms < seam_ms):
            problems.append(
                f"{at} is not backfilled up to its seam {seam_ms}: run `hailstream features backfill --next`"
            )
        if before_ms is not None and (book.applied_through_ms is None or book.applied_through_ms < before_ms):
            problems.append(
                f"{at} is applied through {book.applied_through_ms}, what is served through {before_ms}: wait for its job, or "
                "submit it with `hailstream jobs submit features --next`"
            )
        out.append(
            GroupReadiness(
                group=name,
                generation=group.generation,
                seam_ms=seam_ms,
                backfilled_through_ms=book.backfilled_through_ms,
                applied_through_ms=book.applied_through_ms,
                served_through_ms=before_ms,
                marked=marked,
                problems=tuple(problems),
            )
        )
    return out


def _gone_groups(changes: Collection[Change]) -> list[str]:
    return [change.name for change in changes if change.kind == "group" and change.after is None]


def _gone_with(redis_url: str, view: str, registry: Registry) -> list[str]:
    """The groups that went with a view, by the history. Raises: KeyError for a view that never was."""
    for entry in reversed(load_history(redis_url, registry.project)):
        if (
            any(c.kind == "view" and c.name == view and c.after is None for c in entry.changes)
            and entry.kind != "abort"
        ):
            return [name for name in _gone_groups(entry.changes) if name not in registry.document.groups]
    raise KeyError(
        f"no view {view!r} is, or was, applied in project {registry.project!r}; applied are {sorted(registry.catalogue.views)}"
    )


def _delete(
    redis_url: str,
    registry: Registry,
    changes: tuple[Change, ...],
    groups: Mapping[str, frozenset[int] | None],
    fed: Collection[str],
    progress: Progress,
) -> Dropped:
    from features.redis_keys import delete_groups

    busy: dict[str, list[int]] = {}
    for name, _, generation in (place.rpartition("@") for place in fed):
        busy.setdefault(name, []).append(int(generation))
    waiting = {n: [g for g in busy.get(n, []) if chosen is None or g in chosen] for n, chosen in groups.items()}
    free = {name: chosen for name, chosen in groups.items() if not waiting[name]}
    deleted = delete_groups(redis_url, registry.project, free, progress=progress) if free else 0
    return Dropped(
        registry=registry,
        changes=changes,
        groups=tuple(sorted(free)),
        keys_deleted=deleted,
        waiting=tuple(sorted(f"{name}@{g}" for name, found in waiting.items() for g in found)),
    )

"""A new version beside the one that is served: where its seam lies, what the switch makes of it. Pure functions.

A generation of a stream group takes long to fill. So an edit of a view that is served is *staged*: the registry holds the
new version whole (`RegistryDocument.next`), with new generations of the groups that changed, while readers stay with the
old one. The stream of the new version owns event times from the *seam* on, the backfill what is earlier:

    event time ──── backfill from Parquet ────┤seam├──── job v2 ──── applied through ──► now
    served:      version 1 (job v1, all of it) ·············┤switch├··· version 2 (job v2)

What touches Redis is in features/applying.py (apply) and features/rollout.py (switch, rebuild, drop, abort).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import lcm

import msgspec

from features.loader import load_texts
from features.registry import AppliedGroup, Change, NextVersion, Registry, changes_between, next_registry, retire
from features.spec import Catalogue, LastGroup, TileGroup
from features.store import FeatureError


def stage_next(
    before: Registry,
    catalogue: Catalogue,
    project: str,
    seam_ms: int,
    *,
    started_ms: int,
    actor: str,
    reason: str,
    life: str = "",
    again: Collection[str] = (),
) -> tuple[Registry, list[Change]]:
    """The registry with the catalogue staged, and what its switch will change. What is served stays as it is.

    Raises: FeatureError where a version is staged already.
    """
    refuse_staged(before)
    after, changes = next_registry(before, catalogue, project, life=life, seam_ms=seam_ms, again=again)
    following = NextVersion(
        files=after.document.files,
        groups=after.document.groups,
        views=after.document.views,
        seam_ms=seam_ms,
        started_ms=started_ms,
        actor=actor,
        reason=reason,
    )
    return Registry(
        msgspec.structs.replace(before.document, format=after.document.format, next=following), before.catalogue
    ), changes


def switch_next(before: Registry) -> tuple[Registry, list[Change]]:
    """The staged version as the one that is served. Raises: FeatureError where none is staged."""
    staged = needs_staged(before)
    changes = changes_between(before.document, staged.document)
    retired = retire(before.document.retired, changes)
    document = msgspec.structs.replace(staged.document, retired=retired, version=before.version + 1)
    return Registry(document, staged.catalogue), changes


def abort_next(before: Registry) -> tuple[Registry, list[Change]]:
    """The registry without its staged version, whose generations are never used again. Raises: FeatureError."""
    staged = needs_staged(before)
    changes = changes_between(before.document, staged.document)
    retired = dict(before.document.retired)
    for change in changes:
        if change.after is not None:
            retired[change.name] = max(change.after, retired.get(change.name, 0))
    document = msgspec.structs.replace(before.document, retired=retired, next=None)
    undone = [msgspec.structs.replace(change, before=change.after, after=change.before) for change in changes]
    return Registry(document, before.catalogue), undone


def without_views(before: Registry, names: Collection[str]) -> tuple[Registry, list[Change]]:
    """The registry without some views and what only they used.

    Raises: KeyError for an unknown view; FeatureError where a version is staged, or where another view shares a group
    with one of them: without it the group would be another one, and that has to be staged.
    """
    refuse_staged(before)
    views = before.catalogue.views
    unknown = sorted(set(names) - set(views))
    if unknown:
        raise KeyError(f"no view {unknown[0]!r} is applied in project {before.project!r}; applied are {sorted(views)}")
    gone = {path for name in names for path in (views[name].file, views[name].tests) if path}
    files = {path: text for path, text in before.document.files.items() if path not in gone}
    after, changes = next_registry(before, load_texts(files), before.project)
    touched = {change.name for change in changes if change.before is not None and change.after is not None}
    if touched:
        shared = sorted(touched & set(after.document.groups))
        raise FeatureError(
            f"{', '.join(sorted(names))} shares {', '.join(shared)} with other views, which would lose their values: take the "
            "view out of its folder instead and run `hailstream features apply`, which stages the change"
        )
    return after, changes


def moved_groups(before: Registry, after: Registry) -> list[str]:
    """The stream groups that are applied and get another generation."""
    old, new = before.document.groups, after.document.groups
    streams = {g.name for g in after.catalogue.groups() if isinstance(g, TileGroup | LastGroup)}
    return sorted(name for name in streams if name in old and old[name].generation != new[name].generation)


def new_groups(before: Registry, staged: Registry) -> dict[str, AppliedGroup]:
    """The stream groups of a staged version that are not the ones that are served: the backfill's and the switch's."""
    old, new = before.document.groups, staged.document.groups
    streams = [g.name for g in staged.catalogue.groups() if isinstance(g, TileGroup | LastGroup)]
    return {n: new[n] for n in streams if n not in old or old[n].generation != new[n].generation}


def seam_of(before: Registry, after: Registry, applied_through_ms: Mapping[str, int | None]) -> int | None:
    """Where the stream of `after` may start: None where none of the groups that move has ever been fed.

    Every event before the seam has been applied already, however late it was: its ingest time is at most the seam plus
    the source's disorder bound. A multiple of all hops, so that no tile has two owners.
    `applied_through_ms`: heartbeats of the groups that are served, None for one without.
    """
    if all(applied_through_ms.get(name) is None for name in moved_groups(before, after)):
        return None
    bounds = [
        through_ms - group.source.disorder_ms
        for group in before.catalogue.groups()
        if isinstance(group, TileGroup | LastGroup)
        and group.source.name in after.catalogue.sources
        and (through_ms := applied_through_ms.get(group.name)) is not None
    ]
    hop_ms = lcm(*(group.hop_ms for group in after.catalogue.tile_groups()))
    return min(bounds) // hop_ms * hop_ms


def needs_staged(registry: Registry) -> Registry:
    """The staged version. Raises: FeatureError where there is none."""
    if registry.staged is None:
        raise FeatureError(
            f"nothing is staged in project {registry.project!r}: `hailstream features apply` stages an edit of a view that is "
            "served, `hailstream features rebuild` a new generation of one"
        )
    return registry.staged


def refuse_staged(registry: Registry) -> None:
    """Raises: FeatureError where a version is staged already: it would be lost, or undo what comes between."""
    following = registry.document.next
    if following is not None:
        raise FeatureError(
            f"a version is staged in project {registry.project!r} since {following.started_ms} by {following.actor} "
            f"({following.reason or 'no reason given'}): finish it with `hailstream features rollout`, or drop it with "
            "`hailstream features abort`"
        )

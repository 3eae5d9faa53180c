"""The backfill of what a registry asks for: the new groups of the staged version, each below its own seam; batch views.

Without a staged version only what is named is written, and below a time that is given: groups whose topic starts later
than their history. Needs Redis; `features/backfill.py` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import groupby
from pathlib import Path
from typing import Final

from features.backfill import BackfillReport, backfill_groups
from features.loader import SHIPPED
from features.materialize import materialize
from features.parquet import HistoryError, Limits
from features.registry import Registry, load_registry
from features.spec import PROJECT, Catalogue, LastGroup, TileGroup
from features.staging import new_groups

Pair = tuple[TileGroup | LastGroup, int]


def backfill_registry(
    redis_url: str,
    project: str = PROJECT,
    *,
    views: Collection[str] | None = None,
    until_ms: int | None = None,
    now_ms: int | None = None,
    prepare: Callable[[Catalogue], Catalogue] = lambda catalogue: catalogue,
    folder: Path | str = SHIPPED,
    accept_gap: bool = False,
    limits: Limits | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[BackfillReport]:
    """Write and mark what lies below the seams, and the batch views' rows in force at `now_ms`; one report a group.

    `views`: only the groups that they read. `until_ms`: the seam of groups that have none. `now_ms` None: no batch views. `prepare` may point sources to
    their archives. `folder`: where relative paths of histories start.
    Raises: KeyError for an unknown view; HistoryError where nothing has a seam, or as `backfill_groups`; StoreError,
    GenerationLost: run it again, or rebuild.
    """
    from features.redis_writes import TileWriter

    registry = load_registry(redis_url, project)
    target = registry.staged or registry
    catalogue = prepare(target.catalogue)
    _known(registry, catalogue, views)
    reports = _materialize(redis_url, target, catalogue, views, now_ms, folder, limits, progress)
    seams = _seams(registry, target, catalogue, views, until_ms)
    if not seams and not reports:
        raise HistoryError(_NOTHING.format(project=project))
    writer = TileWriter(redis_url, project, lives=target.lives())
    try:
        for seam_ms, found in groupby(sorted(seams, key=lambda one: one[1]), key=lambda one: one[1]):
            pairs = [pair for pair, _ in found]
            reports += backfill_groups(
                writer, pairs, seam_ms, folder=folder, accept_gap=accept_gap, limits=limits, progress=progress
            )
    finally:
        writer.close()
    return reports


_NOTHING: Final = (
    "nothing in project {project!r} has a seam to backfill up to: an edit of a served view is staged with one (`hailstream "
    "features apply`); for a first generation say --until, a time before its topic's first record"
)


def _known(registry: Registry, catalogue: Catalogue, views: Collection[str] | None) -> None:
    unknown = sorted(set(views or ()) - set(catalogue.views))
    if unknown:
        known = sorted(catalogue.views)
        raise KeyError(f"no view {unknown[0]!r} is applied in project {registry.project!r}; applied are {known}")


def _materialize(
    redis_url: str,
    target: Registry,
    catalogue: Catalogue,
    views: Collection[str] | None,
    now_ms: int | None,
    folder: Path | str,
    limits: Limits | None,
    progress: Callable[[str, int, int], None] | None,
) -> list[BackfillReport]:
    from features.redis_rows import RowWriter

    groups = [group for group in catalogue.row_groups() if views is None or group.view in views]
    if now_ms is None or not groups:
        return []
    writer = RowWriter(redis_url, target.project, lives=target.lives())
    try:
        return [
            materialize(
                writer, catalogue, group, target.generation_of(group.name), now_ms, folder=folder, limits=limits,
                progress=progress or (lambda *_: None),
            )
            for group in groups
        ]  # fmt: skip
    finally:
        writer.close()


def _seams(
    registry: Registry, target: Registry, catalogue: Catalogue, views: Collection[str] | None, until_ms: int | None
) -> list[tuple[Pair, int]]:
    """(group, generation) and its seam."""
    read = None if views is None else {
        catalogue.group_for(view, spec).name
        for view in (catalogue.views[name] for name in views)
        for spec in view.features
        if spec.aggregate is not None
    }  # fmt: skip
    fresh = new_groups(registry, target) if registry.staged is not None else target.document.groups
    out: list[tuple[Pair, int]] = []
    for group in catalogue.groups():
        applied = fresh.get(group.name)
        if (
            applied is None
            or not isinstance(group, TileGroup | LastGroup)
            or (read is not None and group.name not in read)
        ):
            continue
        seam_ms = applied.seam_ms if applied.seam_ms is not None else until_ms
        if seam_ms is not None:
            out.append(((group, applied.generation), _whole(group, seam_ms)))
    return out


def _whole(group: TileGroup | LastGroup, seam_ms: int) -> int:
    """Raises: HistoryError for a given seam that cuts a tile in two."""
    if isinstance(group, TileGroup) and seam_ms % group.hop_ms:
        raise HistoryError(f"group {group.name}: a seam at {seam_ms} cuts a tile of {group.hop_ms} ms in two")
    return seam_ms

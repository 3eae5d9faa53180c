"""The backfill of what a registry asks for: the new groups of the staged version, each below its own seam.

Without a staged version only what is named is written, and below a time that is given: groups whose topic starts later
than their history. Needs Redis; `features/backfill.py` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import groupby
from pathlib import Path

from features.backfill import BackfillReport, backfill_groups
from features.loader import SHIPPED
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
    prepare: Callable[[Catalogue], Catalogue] = lambda catalogue: catalogue,
    folder: Path | str = SHIPPED,
    accept_gap: bool = False,
    limits: Limits | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[BackfillReport]:
    """Write and mark what lies below the seams; one report a group.

    `views`: only the groups that they read. `until_ms`: the seam of groups that have none. `prepare` may point sources to
    their archives. `folder`: where relative paths of histories start.
    Raises: KeyError for an unknown view; HistoryError where nothing has a seam, or as `backfill_groups`; StoreError,
    GenerationLost: run it again, or rebuild.
    """
    from features.redis_writes import TileWriter

    registry = load_registry(redis_url, project)
    target = registry.staged or registry
    seams = _seams(registry, target, prepare(target.catalogue), views, until_ms)
    writer = TileWriter(redis_url, project, lives=target.lives())
    reports: list[BackfillReport] = []
    try:
        for seam_ms, found in groupby(sorted(seams, key=lambda one: one[1]), key=lambda one: one[1]):
            pairs = [pair for pair, _ in found]
            reports += backfill_groups(
                writer, pairs, seam_ms, folder=folder, accept_gap=accept_gap, limits=limits, progress=progress
            )
    finally:
        writer.close()
    return reports


def _seams(
    registry: Registry, target: Registry, catalogue: Catalogue, views: Collection[str] | None, until_ms: int | None
) -> list[tuple[Pair, int]]:
    """(group, generation) and its seam."""
    unknown = sorted(set(views or ()) - set(catalogue.views))
    if unknown:
        raise KeyError(
            f"no view {unknown[0]!r} is applied in project {registry.project!r}; applied are {sorted(catalogue.views)}"
        )
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
    if not out:
        raise HistoryError(
            f"nothing in project {registry.project!r} has a seam to backfill up to: an edit of a served view is staged with one "
            "(`hailstream features apply`); for a first generation say --until, a time before its topic's first record"
        )
    return out


def _whole(group: TileGroup | LastGroup, seam_ms: int) -> int:
    """Raises: HistoryError for a given seam that cuts a tile in two."""
    if isinstance(group, TileGroup) and seam_ms % group.hop_ms:
        raise HistoryError(f"group {group.name}: a seam at {seam_ms} cuts a tile of {group.hop_ms} ms in two")
    return seam_ms

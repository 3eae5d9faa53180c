"""What `hailstream features …` does, as plain functions that return data; printing is the command line's work.

`apply` is features.registry.apply_catalogue, with `refuse_beyond` as its check. `describe` is in features/describe.py,
`get` in features/lookup.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from features.describe import ViewDescription
from features.describe import describe as describe_view
from features.edits import BACKFILL, Edit, meaning_of
from features.estimates import stored_groups
from features.expr import Mistake, Mistakes
from features.loader import load_catalogue, read_catalogue
from features.lookup import get, parse_key
from features.plan import Plan, Uses, plan_changes
from features.registry import (
    ApplyReport,
    Registry,
    applied_or_none,
    apply_catalogue,
    load_history,
    load_registry,
    local_registry,
)
from features.spec import PROJECT, Catalogue
from features.store import FeatureError, GroupStats
from features.view_tests import CaseResult, load_cases, read_cases, run_case

__all__ = [
    "ApplyReport",
    "apply_catalogue",
    "describe",
    "freshness",
    "get",
    "list_features",
    "load_history",
    "parse_key",
    "plan",
    "refuse_beyond",
    "test",
    "validate",
]


@dataclass(frozen=True, kw_only=True)
class ListedFeature:
    view: str
    entity: str
    name: str
    type: str
    meaning: str
    default: Any | None
    unit: str
    generation: int | None
    place: str


@dataclass(frozen=True, kw_only=True)
class GroupFreshness:
    """`slo_p99_ms` is the strictest of the views that read the group; `met` None where nothing was measured or asked."""

    group: str
    stats: GroupStats
    slo_p99_ms: int | None
    met: bool | None


def validate(folder: Path | str) -> list[Mistake]:
    """All mistakes of all files of a catalogue and its tests, sorted by place; empty when it is right.

    Raises: FileNotFoundError naming what is missing.
    """
    catalogue, problems = read_catalogue(folder)
    read_cases(folder, catalogue, problems)
    return list(Mistakes(problems.items).items)


def test(folder: Path | str, view: str | None = None) -> list[CaseResult]:
    """Run the YAML tests of one view or of all. Raises: Mistakes for wrong YAML, KeyError for an unknown view."""
    catalogue = load_catalogue(folder)
    if view is not None and view not in catalogue.views:
        raise KeyError(f"no view {view!r}; known are {sorted(catalogue.views)}")
    registry = local_registry(catalogue)
    cases = load_cases(folder, catalogue)
    return [run_case(case, registry) for case in cases if view in (None, case.view)]


class Refused(FeatureError):
    """An apply that would do more than was allowed; nothing was written. `edits` are those that go too far."""

    def __init__(self, edits: Sequence[Edit], allowed: str) -> None:
        self.edits = tuple(edits)
        lines = [f"  {edit.risk}: {edit.what} ({edit.reason}) {edit.place}".rstrip() for edit in edits]
        super().__init__(f"refused: only {allowed} edits are allowed, and there are\n" + "\n".join(lines))


def plan(
    folder: Path | str,
    redis_url: str,
    *,
    uses: Callable[[Registry, Catalogue], tuple[Uses, Mapping[str, str]]] | None = None,
    keys: int | None = None,
    project: str = PROJECT,
) -> Plan:
    """What applying a folder would mean. `uses`: what strategies and models read of what is applied, and which of them would
    not load with what is declared; `keys` as in plan_changes.

    Raises: Mistakes for wrong YAML; FileNotFoundError; StoreError.
    """
    catalogue, before = load_catalogue(folder), applied_or_none(redis_url, project)
    if before is None:
        return plan_changes(None, catalogue, project=project, keys=keys)
    read, broken = uses(before, catalogue) if uses is not None else ({}, {})
    stored = stored_groups(redis_url, before.groups(), project)
    return plan_changes(before, catalogue, uses=read, broken=broken, stored=stored, keys=keys)


def refuse_beyond(allowed: str) -> Callable[[Registry | None, Catalogue], str]:
    """A check for apply_catalogue that raises Refused for edits more severe than a class, and notes those that are breaking
    or worse and were allowed."""

    def check(before: Registry | None, catalogue: Catalogue) -> str:
        found = plan_changes(before, catalogue)
        edits = found.beyond(allowed)
        if edits:
            raise Refused(edits, allowed)
        severe = dict.fromkeys(f"{edit.feature or edit.view or 'all'}: {edit.what}" for edit in found.beyond(BACKFILL))
        return f"allowed {allowed}: {'; '.join(severe)}" if severe else ""

    return check


def list_features(
    redis_url: str | None = None, folder: Path | str | None = None, project: str = PROJECT
) -> list[ListedFeature]:
    """Every feature that is applied, or, with `folder`, declared there."""
    if folder is not None:
        catalogue, registry = load_catalogue(folder), None
    elif redis_url is not None:
        registry = load_registry(redis_url, project)
        catalogue = registry.catalogue
    else:
        raise ValueError("list_features needs a redis_url or a folder")
    return [
        ListedFeature(
            view=view.name,
            entity=view.entity.name,
            name=spec.name,
            type=spec.served_type,
            meaning=meaning_of(spec),
            default=spec.default,
            unit=spec.unit,
            generation=None if registry is None else registry.view_generation(view.name),
            place=f"{spec.file}:{spec.line}",
        )
        for view in catalogue.views.values()
        for spec in view.features
    ]


def describe(
    name: str, redis_url: str | None = None, folder: Path | str | None = None, project: str = PROJECT
) -> ViewDescription:
    """A view, or one feature of it, as it is applied, with its history; or, with `folder`, as it is declared there.

    Raises: KeyError for an unknown name; ValueError without a place to look.
    """
    if folder is not None:
        return describe_view(load_catalogue(folder), name)
    if redis_url is None:
        raise ValueError("describe needs a redis_url or a folder")
    registry = load_registry(redis_url, project)
    return describe_view(registry.catalogue, name, registry=registry, history=load_history(redis_url, project))


def freshness(redis_url: str, project: str = PROJECT) -> list[GroupFreshness]:
    """How long records took from Kafka to readable, per group, against the views' objective."""
    from features.redis_store import group_stats

    registry = load_registry(redis_url, project)
    stats = group_stats(redis_url, registry.groups(), project)
    out = []
    for group in registry.catalogue.groups():
        asked = [
            view.freshness_slo_p99_ms
            for view in registry.catalogue.views.values()
            if view.freshness_slo_p99_ms is not None
            and any(f.aggregate and registry.catalogue.group_for(view, f).name == group.name for f in view.features)
        ]
        slo, measured = min(asked, default=None), stats[group.name].freshness_p99_ms
        met = None if slo is None or measured is None else measured <= slo
        out.append(GroupFreshness(group=group.name, stats=stats[group.name], slo_p99_ms=slo, met=met))
    return out

"""What `hailstream features …` does, as plain functions that return data; printing is the command line's work.

`apply` is features.registry.apply_catalogue, with `refuse_beyond` as its check. `describe` is in features/describe.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from features.describe import ViewDescription
from features.describe import describe as describe_view
from features.edits import Edit, meaning_of
from features.estimates import stored_groups
from features.expr import Mistake, Mistakes
from features.loader import load_catalogue, read_catalogue
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
from features.rows import UNKNOWN_AGE_MS, FeatureBatch, Status
from features.spec import PROJECT, Catalogue, Entity, Key, KeyColumn
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
    "plan",
    "refuse_beyond",
    "test",
    "validate",
]


@dataclass(frozen=True, kw_only=True)
class FeatureValue:
    """One value of one key. `status` is a word (present, null, missing, stale, default); `age_ms` None if unknown."""

    name: str
    type: str
    value: Any | None
    status: str
    age_ms: int | None
    unit: str


@dataclass(frozen=True, kw_only=True)
class KeyFeatures:
    """All values of one key, with the time they are asked for and the time through which events have been applied."""

    view: str
    key: Key
    as_of_ms: int
    applied_through_ms: int | None
    generation: int
    values: tuple[FeatureValue, ...]


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


def refuse_beyond(allowed: str) -> Callable[[Registry | None, Catalogue], None]:
    """A check for apply_catalogue that raises Refused for edits more severe than a class."""

    def check(before: Registry | None, catalogue: Catalogue) -> None:
        edits = plan_changes(before, catalogue).beyond(allowed)
        if edits:
            raise Refused(edits, allowed)

    return check


def get(
    redis_url: str,
    view: str,
    keys: Sequence[str],
    *,
    as_of: int | str = "applied",
    project: str = PROJECT,
) -> list[KeyFeatures]:
    """Values, statuses and ages of some keys, as the engine would be served them.

    `as_of`: epoch milliseconds; "wall", now; or "applied", the time through which the view's events have been applied,
    which is what to ask on replayed data. An entity's name stands for its view where it has only one.
    Raises: KeyError for an unknown view; ValueError for a key that is not of the entity's type or an `as_of` that is
    none of these; StoreError.
    """
    from features.redis_store import FeatureReader, compile_read_plan

    registry = load_registry(redis_url, project)
    name = resolve_view(registry, view)
    entity = registry.catalogue.views[name].entity
    typed = [parse_key(entity, key) for key in keys]
    plan = compile_read_plan(registry, {name: name})
    reader = FeatureReader(redis_url, project)
    try:
        as_of_ms = _as_of_ms(as_of, lambda: reader.read(plan, {name: []}, 0)[name].applied_through_ms)
        batch = reader.read(plan, {name: typed}, as_of_ms)[name]
    finally:
        reader.close()
    return [_key_features(registry, batch, row, key, as_of_ms) for row, key in enumerate(typed)]


def resolve_view(registry: Registry, name: str) -> str:
    """A view by its name, or by its entity's where that is unambiguous. Raises: KeyError naming the views."""
    views = registry.catalogue.views
    if name in views:
        return name
    of_entity = [view.name for view in views.values() if view.entity.name == name]
    if len(of_entity) == 1:
        return of_entity[0]
    known = f"choose one of {of_entity}" if of_entity else f"applied are {sorted(views)}"
    raise KeyError(f"no view {name!r}; {known}")


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


def _as_of_ms(as_of: int | str, applied_through: Any) -> int:
    if isinstance(as_of, int):
        return as_of
    if as_of == "applied":
        through_ms = applied_through()
        return int(time.time() * 1000) if through_ms is None else through_ms
    if as_of == "wall":
        return int(time.time() * 1000)
    try:
        return int(as_of)
    except ValueError:
        raise ValueError(f"as_of {as_of!r} is not 'wall', 'applied' or epoch milliseconds") from None


def parse_key(entity: Entity, text: str) -> Key:
    """A key as it is typed: `7`, `7,express` in the order of the columns, or `product=express,zone=7` in any order.

    Raises: ValueError saying how a key of the entity is written.
    """
    parts = [text] if len(entity.keys) == 1 else text.split(",")
    pairs = [part.partition("=") for part in parts]
    named = {name.strip(): value for name, equals, value in pairs if equals and name.strip() in entity.join_keys}
    if named:
        parts = [named[name] for name in entity.join_keys if name in named]
    if len(parts) != len(entity.keys) or (named and len(named) != len(pairs)):
        written = ",".join(f"{name}=…" for name in entity.join_keys)
        raise ValueError(f"{text!r} is no key of entity {entity.name}: write {written}, or the values in this order")
    values = tuple(_typed(column, part) for column, part in zip(entity.keys, parts, strict=True))
    return values[0] if len(values) == 1 else values


def _typed(column: KeyColumn, text: str) -> str | int:
    if column.type == "string":
        return text
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{column.name} is an {column.type}, {text!r} is not") from None
    if not column.holds(value) or not -(2**63) <= value < 2**63:
        raise ValueError(f"{column.name} is an {column.type}, {text} does not fit")
    return value


def _key_features(registry: Registry, batch: FeatureBatch, row: int, key: Key, as_of_ms: int) -> KeyFeatures:
    view, values = registry.catalogue.views[batch.view], batch.row(row)
    return KeyFeatures(
        view=batch.view,
        key=key,
        as_of_ms=as_of_ms,
        applied_through_ms=batch.applied_through_ms,
        generation=batch.generation,
        values=tuple(
            FeatureValue(
                name=spec.name,
                type=spec.served_type,
                value=values[spec.name],
                status=Status(batch.statuses[row, f]).name.lower(),
                age_ms=None if batch.ages_ms[row, f] == UNKNOWN_AGE_MS else int(batch.ages_ms[row, f]),
                unit=spec.unit,
            )
            for f, spec in enumerate(view.features)
        ),
    )

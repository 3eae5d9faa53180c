"""Values of some keys, as the engine would be served them, from what is applied: `hailstream features get`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from features.registry import Registry, load_registry
from features.rows import UNKNOWN_AGE_MS, FeatureBatch, Status
from features.spec import PROJECT, Entity, Key, KeyColumn


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

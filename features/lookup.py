"""Values of some keys, as the engine would be served them, from what is applied: `hailstream features get`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.expr import Column
from features.registry import Registry, load_registry
from features.rows import UNKNOWN_AGE_MS, FeatureBatch, Status, empty_column
from features.spec import PROJECT, Entity, FeatureView, Key, KeyColumn


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
    request: Mapping[str, str] | None = None,
    project: str = PROJECT,
) -> list[KeyFeatures]:
    """Values, statuses and ages of some keys, as the engine would be served them.

    `as_of`: epoch milliseconds; "wall", now; or "applied", the time through which the view's events have been applied,
    which is what to ask on replayed data. An entity's name stands for its view where it has only one. `request`: the view's
    request fields, as they are typed.
    Raises: KeyError for an unknown view; ValueError for a key or request field that is not of its type or not there, or an
    `as_of` that is none of these; StoreError.
    """
    from features.redis_store import FeatureReader, compile_read_plan

    registry = load_registry(redis_url, project)
    name = resolve_view(registry, view)
    declared = registry.catalogue.views[name]
    typed = [parse_key(declared.entity, key) for key in keys]
    asked = {name: parse_request(declared, request or {})}
    plan = compile_read_plan(registry, {name: name})
    reader = FeatureReader(redis_url, project)
    try:
        as_of_ms = _as_of_ms(as_of, lambda: reader.read(plan, {name: []}, 0, request=asked)[name].applied_through_ms)
        batch = reader.read(plan, {name: typed}, as_of_ms, request=asked)[name]
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


def parse_request(view: FeatureView, given: Mapping[str, str]) -> dict[str, Column]:
    """A view's request fields as columns of one row; one that may be null need not be given.

    Raises: ValueError naming the fields that are missing, unknown or of another type.
    """
    unknown = sorted(set(given) - set(view.request))
    missing = sorted(name for name, kind in view.request.items() if name not in given and not kind.endswith("?"))
    if unknown or missing:
        fields = ", ".join(f"{name}: {kind}" for name, kind in view.request.items()) or "none"
        wrong = f"unknown are {', '.join(unknown)}" if unknown else f"missing are {', '.join(missing)}"
        raise ValueError(f"view {view.name} takes the request fields {fields}; {wrong}")
    out: dict[str, Column] = {}
    for name, kind in view.request.items():
        column = empty_column(kind.removesuffix("?"), 1)
        if name in given:
            column[0] = _request_value(name, kind.removesuffix("?"), given[name])
        out[name] = Column(column, np.array([name in given]))
    return out


def _request_value(name: str, kind: str, text: str) -> Any:
    readers: dict[str, Callable[[str], Any]] = {
        "int": int,
        "double": float,
        "bool": {"true": True, "false": False}.__getitem__,
        "string": str,
    }
    try:
        return readers[kind](text)
    except (ValueError, KeyError):
        raise ValueError(f"request field {name} is {kind}, {text!r} is not") from None


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

"""All that is known of one view or one feature: what it means, what feeds it, who shares it, what happened to it.

Read `features/verbs.py` for the other verbs of `hailstream features`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from features.edits import meaning_of, place_of
from features.expr import did_you_mean
from features.follows import group_of
from features.registry import HistoryEntry, Registry
from features.spec import Catalogue, FeatureSpec, FeatureView, Group, RowGroup, TileGroup, partials_of, text_of


@dataclass(frozen=True, kw_only=True)
class FeatureDescription:
    """`group` is what feeds it, None for an expression; `shared_with` are features that need one of the same partials;
    `span_ms` is how much event time of tiles is kept for it. `reads`: the features that an expression reads."""

    view: str
    name: str
    type: str
    meaning: str
    default: Any | None
    unit: str
    description: str
    place: str
    window_ms: int | None
    hop_ms: int | None
    group: str | None
    group_generation: int | None
    span_ms: int | None
    shared_with: tuple[str, ...]
    reads: tuple[str, ...]
    read_by: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Happened:
    """One entry of the history that moved a view or its groups: what it was, `name before → after` of each."""

    time_ms: int
    kind: str
    actor: str
    reason: str
    version: int
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ViewDescription:
    """`generation` is None of a view that is declared and not applied."""

    view: str
    entity: str
    keys: Mapping[str, str]
    source: str
    max_age_ms: int
    freshness_slo_p99_ms: int | None
    owner: str
    description: str
    place: str
    generation: int | None
    features: tuple[FeatureDescription, ...]
    history: tuple[Happened, ...] = field(default=())


def describe(
    catalogue: Catalogue, name: str, *, registry: Registry | None = None, history: Sequence[HistoryEntry] = ()
) -> ViewDescription:
    """A view by its name, or one feature by `view.feature` or its name alone: then `features` has only that one.

    `registry` and `history` add what is applied. Raises: KeyError with what was meant, or all that have the name.
    """
    view, features = _found(catalogue, name)
    groups = {group.name for f in view.features if (group := group_of(catalogue, view, f)) is not None}
    return ViewDescription(
        view=view.name,
        entity=view.entity.name,
        keys=_keys(view),
        source="" if view.source is None else view.source.name,
        max_age_ms=view.max_age_ms,
        freshness_slo_p99_ms=view.freshness_slo_p99_ms,
        owner=view.owner,
        description=view.description,
        place=place_of(view),
        generation=None if registry is None else registry.view_generation(view.name),
        features=tuple(_feature(catalogue, view, spec, registry) for spec in features),
        history=tuple(_happened(history, {view.name, *groups})),
    )


def _found(catalogue: Catalogue, name: str) -> tuple[FeatureView, tuple[FeatureSpec, ...]]:
    views = catalogue.views
    if name in views:
        return views[name], views[name].features
    view_name, _, feature = name.rpartition(".")
    everywhere = [(view, spec) for view in views.values() for spec in view.features]
    found = [(view, spec) for view, spec in everywhere if spec.name == feature and view_name in ("", view.name)]
    if len(found) == 1:
        return found[0][0], (found[0][1],)
    if found:
        raise KeyError(f"feature {name!r} is in several views: {', '.join(f'{v.name}.{f.name}' for v, f in found)}")
    known = {*views, *(spec.name for _, spec in everywhere), *(f"{view.name}.{spec.name}" for view, spec in everywhere)}
    near = did_you_mean(name, known)
    raise KeyError(
        f"no view or feature {name!r}; {f'did you mean {near!r}?' if near else f'views are {sorted(views)}'}"
    )


def _keys(view: FeatureView) -> dict[str, str]:
    """The source's columns that hold the key, with the types of the entity's."""
    return dict(zip(view.key_fields, (column.type for column in view.entity.keys), strict=False))


def _feature(
    catalogue: Catalogue, view: FeatureView, spec: FeatureSpec, registry: Registry | None
) -> FeatureDescription:
    group = group_of(catalogue, view, spec)
    known = {other.name for other in view.features}
    return FeatureDescription(
        view=view.name,
        name=spec.name,
        type=spec.served_type,
        meaning=meaning_of(spec),
        default=spec.default,
        unit=spec.unit,
        description=spec.description,
        place=place_of(spec),
        window_ms=spec.window_ms,
        hop_ms=spec.hop_ms,
        group=None if group is None else group.name,
        group_generation=None if group is None or registry is None else registry.generation_of(group.name),
        span_ms=group.retain_tiles * group.hop_ms if isinstance(group, TileGroup) else None,
        shared_with=()
        if group is None or isinstance(group, RowGroup)
        else tuple(_sharing(catalogue, view, spec, group)),
        reads=() if spec.expr is None else tuple(sorted(spec.expr.names & known)),
        read_by=tuple(f.name for f in view.features if f.expr is not None and spec.name in f.expr.names),
    )


def _sharing(catalogue: Catalogue, view: FeatureView, spec: FeatureSpec, group: Group) -> Iterator[str]:
    """The other features, of any view, that are computed from one of the same kept numbers."""
    mine = _kept(spec)
    for other_view in catalogue.views.values():
        for other in other_view.features:
            if other.aggregate is None or (other_view.name, other.name) == (view.name, spec.name):
                continue
            if catalogue.group_for(other_view, other).name == group.name and mine & _kept(other):
                yield f"{other_view.name}.{other.name}"


def _kept(spec: FeatureSpec) -> set[tuple[str, ...]]:
    """What of its group a feature reads."""
    partials = {partial.key for partial in partials_of(spec)} if spec.window_ms is not None else set()
    return partials or {(str(spec.aggregate), text_of(spec.of), text_of(spec.where))}


def _happened(history: Sequence[HistoryEntry], names: set[str]) -> Iterator[Happened]:
    for entry in history:
        moved = [f"{c.name} {c.before or '-'} → {c.after or '-'}" for c in entry.changes if c.name in names]
        if moved:
            yield Happened(
                time_ms=entry.time_ms,
                kind=entry.kind,
                actor=entry.actor,
                reason=entry.reason,
                version=entry.version,
                changes=tuple(moved),
            )

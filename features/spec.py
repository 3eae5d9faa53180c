"""What is declared: entities, sources, views and features; and what follows from it: tile groups and last groups.

A *tile group* is what one GROUP BY (key, tile) feeds: (entity, source, key column, hop). A view reads the groups that
its features need, and features of several views share one group's partials. A *last group* holds, per (entity, source,
key column), the newest value of each `last` feature. Made from YAML by features/loader.py; read by the SQL generator
(pipelines/sql.py), the writer and the reader (features/redis_store.py, features/read_plan.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from features.window import num_whole_tiles

if TYPE_CHECKING:
    from features.expr import Program

PROJECT: Final = "hailstream"
_SPACES: Final = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|\s+""")
AGGREGATES: Final = ("count", "sum", "avg", "min", "max", "last")


@dataclass(frozen=True, kw_only=True)
class Entity:
    """What features describe. `type` is the join key's: "string" or "int"."""

    name: str
    join_key: str
    type: str
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """Copies of a record are recognised by this column for this long after the first arrival."""

    by: str
    horizon_ms: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """A topic and its records. `schema` maps each column to its type, "int" or "int?" and so on."""

    name: str
    topic: str
    schema: Mapping[str, str]
    event_time: str
    ingest_time: str
    event_id: str
    disorder_ms: int  # ingest - event above this is late
    future_ms: int  # event - ingest above this is from the future
    dedup: Dedup | None = None
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """One column of a view: either an aggregate over a source, or an `expr` over the view's other features.

    `type` is the type of a value ("int", "double", "bool", "string"); `nullable` says whether an expression in the
    same view has to expect null while the view is live. A served value can always be missing or stale as well, unless
    a default is declared: that is `served_type`.
    """

    name: str
    type: str
    nullable: bool
    aggregate: str | None = None
    of: Program | None = None
    where: Program | None = None
    window_ms: int | None = None
    hop_ms: int | None = None
    expr: Program | None = None
    default: Any | None = None
    unit: str = ""
    description: str = ""
    file: str = ""
    line: int = 0

    @property
    def served_type(self) -> str:
        return self.type if self.default is not None else f"{self.type}?"

    @property
    def local_type(self) -> str:
        """The type under which the view's own expressions see this feature."""
        return f"{self.type}?" if self.nullable and self.default is None else self.type


@dataclass(frozen=True, kw_only=True)
class FeatureView:
    """Ordered features of one entity from one source. `key_field` is the source's column that holds the key."""

    name: str
    entity: Entity
    source: Source
    key_field: str
    max_age_ms: int
    features: tuple[FeatureSpec, ...]
    owner: str = ""
    freshness_slo_p99_ms: int | None = None
    description: str = ""
    file: str = ""
    line: int = 0
    tests: str | None = None

    def feature(self, name: str) -> FeatureSpec:
        return next(f for f in self.features if f.name == name)


@dataclass(frozen=True, kw_only=True)
class Partial:
    """One number kept per tile. `of` is None only for a plain count; a count with `of` counts where it is not null.

    The empty value (`identity`) is 0 for count and sum, and for min and max what changes nothing when merged.
    """

    name: str
    function: str  # count, sum, min, max
    of: Program | None
    where: Program | None
    type: str  # "int" (int64) or "double" (float64)

    @property
    def identity(self) -> int | float:
        if self.function in ("count", "sum"):
            return 0
        if self.type == "double":
            return float("inf") if self.function == "min" else float("-inf")
        return 2**63 - 1 if self.function == "min" else -(2**63)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.function, text_of(self.of), text_of(self.where))


@dataclass(frozen=True, kw_only=True)
class TileGroup:
    """What one GROUP BY (key, tile) feeds: rows of (key, tile, number of events, one number per partial).

    Records without a key (a null in `key_field`) belong to no tile: the SQL leaves them out before the GROUP BY.
    `retain_tiles` is the span that is kept per key, counted from its newest tile: the longest window's whole tiles,
    the current one, and what the source's future bound lets the newest tile run ahead of the asking time.
    """

    entity: Entity
    source: Source
    key_field: str
    hop_ms: int
    partials: tuple[Partial, ...]
    retain_tiles: int

    @property
    def name(self) -> str:
        return _group_name(self.entity, self.source, self.key_field, str(self.hop_ms))

    @cached_property
    def fingerprint(self) -> str:
        """Changes when, and only when, tiles of before and after must not be mixed. Retention is judged apart."""
        return fingerprint_of(
            ["tiles", self.entity.name, self.entity.type, self.source.name, self.source.topic, self.key_field]
            + [self.source.event_time, self.hop_ms, [[*p.key, p.type] for p in self.partials]]
        )

    def index_of(self, function: str, of: Program | None, where: Program | None) -> int:
        """The place of a partial in `partials`."""
        wanted = (function, text_of(of), text_of(where))
        return next(i for i, p in enumerate(self.partials) if p.key == wanted)


@dataclass(frozen=True, kw_only=True)
class LastField:
    """The newest non-null value of `of` among the events that `where` lets through."""

    name: str
    of: Program
    where: Program | None
    type: str

    @property
    def key(self) -> tuple[str, str]:
        return (text_of(self.of), text_of(self.where))


@dataclass(frozen=True, kw_only=True)
class LastGroup:
    """The `last` features of one (entity, source, key column), without tiles."""

    entity: Entity
    source: Source
    key_field: str
    fields: tuple[LastField, ...]

    @property
    def name(self) -> str:
        return _group_name(self.entity, self.source, self.key_field, "last")

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(
            ["last", self.entity.name, self.entity.type, self.source.name, self.source.topic, self.key_field]
            + [self.source.event_time, self.source.event_id, [[*f.key, f.type] for f in self.fields]]
        )

    def index_of(self, of: Program, where: Program | None) -> int:
        wanted = (text_of(of), text_of(where))
        return next(i for i, f in enumerate(self.fields) if f.key == wanted)


Group = TileGroup | LastGroup


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Everything that is declared. `files` holds the YAML texts by relative path, so that it can travel whole."""

    entities: Mapping[str, Entity]
    sources: Mapping[str, Source]
    views: Mapping[str, FeatureView]
    files: Mapping[str, str] = field(default_factory=dict)

    def tile_groups(self) -> tuple[TileGroup, ...]:
        return self._tile_groups

    def last_groups(self) -> tuple[LastGroup, ...]:
        return self._last_groups

    def groups_of(self, source: str) -> tuple[Group, ...]:
        """The groups that one source feeds, tile groups first."""
        groups: tuple[Group, ...] = (*self._tile_groups, *self._last_groups)
        return tuple(g for g in groups if g.source.name == source)

    def groups(self) -> tuple[Group, ...]:
        return (*self._tile_groups, *self._last_groups)

    def group_for(self, view: FeatureView, feature: FeatureSpec) -> Group:
        """The group that feeds an aggregated feature."""
        suffix = "last" if feature.aggregate == "last" else str(feature.hop_ms)
        name = _group_name(view.entity, view.source, view.key_field, suffix)
        return next(g for g in self.groups() if g.name == name)

    @cached_property
    def _tile_groups(self) -> tuple[TileGroup, ...]:
        found: dict[tuple[str, str, str, int], list[tuple[FeatureView, FeatureSpec]]] = {}
        for view, spec in self._aggregated():
            if spec.aggregate != "last":
                assert spec.hop_ms is not None
                place = (view.entity.name, view.source.name, view.key_field, spec.hop_ms)
                found.setdefault(place, []).append((view, spec))
        return tuple(_tile_group(found[place]) for place in sorted(found))

    @cached_property
    def _last_groups(self) -> tuple[LastGroup, ...]:
        found: dict[tuple[str, str, str], list[tuple[FeatureView, FeatureSpec]]] = {}
        for view, spec in self._aggregated():
            if spec.aggregate == "last":
                found.setdefault((view.entity.name, view.source.name, view.key_field), []).append((view, spec))
        return tuple(_last_group(found[place]) for place in sorted(found))

    def _aggregated(self) -> Iterator[tuple[FeatureView, FeatureSpec]]:
        for view in self.views.values():
            yield from ((view, spec) for spec in view.features if spec.aggregate is not None)


def partials_of(spec: FeatureSpec) -> list[tuple[str, Program | None, str]]:
    """(function, of, type) of the partials that a windowed feature needs. An average is a sum and a count."""
    if spec.aggregate == "count":
        return [("count", spec.of, "int")]
    assert spec.of is not None
    of_type = spec.of.type.kind
    if spec.aggregate == "avg":
        return [("sum", spec.of, of_type), ("count", spec.of, "int")]
    assert spec.aggregate in ("sum", "min", "max")
    return [(spec.aggregate, spec.of, of_type)]


def text_of(program: Program | None) -> str:
    """An expression as written, however its spaces and line breaks are; those inside a text are its own. "" for none."""
    if program is None:
        return ""
    return _SPACES.sub(lambda match: match[1] or " ", program.source.text.strip())


def fingerprint_of(value: Any) -> str:
    """sha256 over canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _group_name(entity: Entity, source: Source, key_field: str, suffix: str) -> str:
    base = f"{entity.name}.{source.name}.{suffix}"
    return base if key_field == entity.join_key else f"{base}.{key_field}"


def _tile_group(members: list[tuple[FeatureView, FeatureSpec]]) -> TileGroup:
    """The order of partials depends on what they are, not on where they are written: moving a line changes nothing."""
    view = members[0][0]
    wanted: dict[tuple[str, str, str], tuple[str, Program | None, Program | None, str]] = {}
    retain = 0
    for _, spec in members:
        assert spec.window_ms is not None and spec.hop_ms is not None
        ahead = -(-view.source.future_ms // spec.hop_ms)
        retain = max(retain, num_whole_tiles(spec.window_ms, spec.hop_ms) + 1 + ahead)
        for function, of, type_name in partials_of(spec):
            wanted[(function, text_of(of), text_of(spec.where))] = (function, of, spec.where, type_name)
    partials = tuple(
        Partial(name=f"p{i}", function=function, of=of, where=where, type=type_name)
        for i, (function, of, where, type_name) in enumerate(wanted[key] for key in sorted(wanted))
    )
    hop_ms = members[0][1].hop_ms
    assert hop_ms is not None
    return TileGroup(
        entity=view.entity,
        source=view.source,
        key_field=view.key_field,
        hop_ms=hop_ms,
        partials=partials,
        retain_tiles=retain,
    )


def _last_group(members: list[tuple[FeatureView, FeatureSpec]]) -> LastGroup:
    view = members[0][0]
    wanted: dict[tuple[str, str], tuple[Program, Program | None, str]] = {}
    for _, spec in members:
        assert spec.of is not None
        wanted[(text_of(spec.of), text_of(spec.where))] = (spec.of, spec.where, spec.type)
    fields = tuple(
        LastField(name=f"v{i}", of=of, where=where, type=type_name)
        for i, (of, where, type_name) in enumerate(wanted[key] for key in sorted(wanted))
    )
    return LastGroup(entity=view.entity, source=view.source, key_field=view.key_field, fields=fields)

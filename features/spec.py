"""What follows from what is declared (features/declared.py): tile, last and row groups, and the catalogue of all.

A *tile group* is what one GROUP BY (key, tile) feeds: (entity, source, key columns, hop). A view reads the groups that
its features need, and features of several views share one group's partials. A *last group* holds, per (entity, source,
key columns), the newest value of each `last` feature. A *row group* holds the rows of one batch view. Made from YAML by
features/loader.py; read by the SQL generator (pipelines/sql.py), the writer and the reader (features/redis_store.py,
features/read_plan.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from features.buckets import NUM_BUCKETS
from features.declared import (
    BatchSource,
    ColumnFacts,
    Dedup,
    Entity,
    FeatureSpec,
    FeatureView,
    Key,
    KeyColumn,
    Source,
    single_key,
)
from features.partials import (
    AGGREGATES,
    MOMENTS,
    UNWINDOWED,
    BucketSpec,
    LastField,
    Partial,
    buckets_of,
    last_field_of,
    partials_of,
    text_of,
)
from features.window import num_whole_tiles

if TYPE_CHECKING:
    from features.expr import Program

__all__ = [
    "AGGREGATES",
    "MOMENTS",
    "PROJECT",
    "UNWINDOWED",
    "BatchSource",
    "BucketSpec",
    "Catalogue",
    "ColumnFacts",
    "Dedup",
    "Entity",
    "FeatureSpec",
    "FeatureView",
    "Group",
    "Key",
    "KeyColumn",
    "LastField",
    "LastGroup",
    "Partial",
    "RowField",
    "RowGroup",
    "Source",
    "TileGroup",
    "buckets_of",
    "fingerprint_of",
    "partials_of",
    "single_key",
    "text_of",
]

PROJECT: Final = "hailstream"


@dataclass(frozen=True, kw_only=True)
class TileGroup:
    """What one GROUP BY (key, tile) feeds: rows of (key, tile, number of events, one number per partial).

    A bucketed group has a row per bucket that has events, numbered tile * rows_per_tile + bucket, and no partials: the
    number of events is the row's count and its sequence, so that all guards hold for its rows as for tiles.

    Records without a key (`Entity.key_of`) belong to no tile: the SQL leaves them out before the GROUP BY.
    `retain_tiles` is the span that is kept per key, counted from its newest tile: the longest window's whole tiles,
    the current one, and what the source's future bound lets the newest tile run ahead of the asking time.
    """

    entity: Entity
    source: Source
    key_fields: tuple[str, ...]
    hop_ms: int
    partials: tuple[Partial, ...]
    retain_tiles: int
    buckets: BucketSpec | None = None

    @property
    def name(self) -> str:
        return _group_name(self.entity, self.source, self.key_fields, _tile_suffix(self.hop_ms, self.buckets))

    def key_of(self, record: Mapping[str, Any]) -> Key | None:
        return self.entity.key_of(record, self.key_fields)

    @property
    def rows_per_tile(self) -> int:
        return 1 if self.buckets is None else NUM_BUCKETS

    @property
    def programs(self) -> tuple[Program, ...]:
        """The expressions that are asked of each record."""
        parts: tuple[Partial | BucketSpec, ...] = (*self.partials, *([] if self.buckets is None else [self.buckets]))
        return tuple(program for part in parts for program in (part.of, part.where) if program is not None)

    @property
    def retain_rows(self) -> int:
        """`retain_tiles` in numbers of rows: what the store, which knows rows only, keeps."""
        return self.retain_tiles * self.rows_per_tile

    @cached_property
    def fingerprint(self) -> str:
        """Changes when, and only when, tiles of before and after must not be mixed. Retention is judged apart."""
        return fingerprint_of(
            [
                "tiles",
                self.entity.name,
                self.entity.signature,
                self.source.name,
                self.source.topic,
                _scalar(self.key_fields),
            ]
            + [self.source.event_time, self.hop_ms, [[*p.key, p.type] for p in self.partials]]
            + ([] if self.buckets is None else [["buckets", *self.buckets.key]])
        )

    def places_of(self, spec: FeatureSpec) -> tuple[int, ...]:
        """Where in `partials` those of a feature are, in the order of `partials_of`."""
        places = {partial.key: place for place, partial in enumerate(self.partials)}
        return tuple(places[partial.key] for partial in partials_of(spec))


@dataclass(frozen=True, kw_only=True)
class LastGroup:
    """The `last` and `first` features of one (entity, source, key column), without tiles."""

    entity: Entity
    source: Source
    key_fields: tuple[str, ...]
    fields: tuple[LastField, ...]

    @property
    def name(self) -> str:
        return _group_name(self.entity, self.source, self.key_fields, "last")

    def key_of(self, record: Mapping[str, Any]) -> Key | None:
        return self.entity.key_of(record, self.key_fields)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(
            [
                "last",
                self.entity.name,
                self.entity.signature,
                self.source.name,
                self.source.topic,
                _scalar(self.key_fields),
            ]
            + [self.source.event_time, self.source.event_id, [[*f.key, f.type] for f in self.fields]]
        )

    @property
    def programs(self) -> tuple[Program, ...]:
        """The expressions that are asked of each record."""
        return tuple(program for part in self.fields for program in (part.of, part.where) if program is not None)

    def index_of(self, spec: FeatureSpec) -> int:
        """The place of a feature's field in `fields`."""
        wanted = last_field_of(spec).key
        return next(i for i, f in enumerate(self.fields) if f.key == wanted)


@dataclass(frozen=True, kw_only=True)
class RowField:
    """A column of a batch source that a view serves."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """What is stored of one batch view: per key one row (features/row_packing.py), all of whose values have one age."""

    entity: Entity
    source: BatchSource
    view: str
    key_fields: tuple[str, ...]
    fields: tuple[RowField, ...]

    @property
    def name(self) -> str:
        return _group_name(self.entity, self.source, self.key_fields, f"rows.{self.view}")

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(
            ["rows", self.entity.name, self.entity.signature, self.source.name, self.view, _scalar(self.key_fields)]
            + [self.source.path, self.source.event_time, self.source.ingest_time, self.source.valid_to]
            + [[[f.name, f.type] for f in self.fields]]
        )

    def key_of(self, record: Mapping[str, Any]) -> Key | None:
        return self.entity.key_of(record, self.key_fields)

    def index_of(self, spec: FeatureSpec) -> int:
        """The place of a feature's column in `fields`."""
        return next(i for i, f in enumerate(self.fields) if f.name == spec.column)


Group = TileGroup | LastGroup


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Everything that is declared. `files` holds the YAML texts by relative path, so that it can travel whole."""

    entities: Mapping[str, Entity]
    sources: Mapping[str, Source | BatchSource]
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
        """What streams feed."""
        return (*self._tile_groups, *self._last_groups)

    def row_groups(self) -> tuple[RowGroup, ...]:
        """What batch sources feed, in the order of the views."""
        return self._row_groups

    def row_group_of(self, view: FeatureView) -> RowGroup:
        """Raises: KeyError for a view that serves no rows."""
        found = next((group for group in self._row_groups if group.view == view.name), None)
        if found is None:
            raise KeyError(f"view {view.name} is a {view.kind} view without stored rows")
        return found

    @cached_property
    def streams(self) -> dict[str, Source]:
        return {name: source for name, source in self.sources.items() if isinstance(source, Source)}

    def group_for(self, view: FeatureView, feature: FeatureSpec) -> Group:
        """The group that feeds an aggregated feature."""
        if feature.aggregate in UNWINDOWED:
            suffix = "last"
        else:
            assert feature.hop_ms is not None
            suffix = _tile_suffix(feature.hop_ms, buckets_of(feature))
        name = _group_name(view.entity, view.stream, view.key_fields, suffix)
        return next(g for g in self.groups() if g.name == name)

    @cached_property
    def _tile_groups(self) -> tuple[TileGroup, ...]:
        found: dict[tuple[str, str, tuple[str, ...], int, tuple[str, ...]], list[tuple[FeatureView, FeatureSpec]]] = {}
        for view, spec in self._aggregated():
            if spec.aggregate not in UNWINDOWED:
                assert spec.hop_ms is not None
                buckets = buckets_of(spec)
                place = (
                    view.entity.name,
                    view.stream.name,
                    view.key_fields,
                    spec.hop_ms,
                    buckets.key if buckets else (),
                )
                found.setdefault(place, []).append((view, spec))
        return tuple(_tile_group(found[place]) for place in sorted(found))

    @cached_property
    def _last_groups(self) -> tuple[LastGroup, ...]:
        found: dict[tuple[str, str, tuple[str, ...]], list[tuple[FeatureView, FeatureSpec]]] = {}
        for view, spec in self._aggregated():
            if spec.aggregate in UNWINDOWED:
                found.setdefault((view.entity.name, view.stream.name, view.key_fields), []).append((view, spec))
        return tuple(_last_group(found[place]) for place in sorted(found))

    @cached_property
    def _row_groups(self) -> tuple[RowGroup, ...]:
        out = []
        for view in self.views.values():
            columns = {spec.column: spec.type for spec in view.features if spec.column is not None}
            if isinstance(view.source, BatchSource) and columns:
                fields = tuple(RowField(name=name, type=columns[name]) for name in sorted(columns))
                out.append(
                    RowGroup(
                        entity=view.entity,
                        source=view.source,
                        view=view.name,
                        key_fields=view.key_fields,
                        fields=fields,
                    )
                )
        return tuple(out)

    def _aggregated(self) -> Iterator[tuple[FeatureView, FeatureSpec]]:
        for view in self.views.values():
            yield from ((view, spec) for spec in view.features if spec.aggregate is not None)


def fingerprint_of(value: Any) -> str:
    """sha256 over canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _group_name(entity: Entity, source: Source | BatchSource, key_fields: tuple[str, ...], suffix: str) -> str:
    base = f"{entity.name}.{source.name}.{suffix}"
    return base if key_fields == entity.join_keys else ".".join((base, *key_fields))


def _scalar(key_fields: tuple[str, ...]) -> str | list[str]:
    """Names of one column and of several, as they stand in fingerprints."""
    return key_fields[0] if len(key_fields) == 1 else list(key_fields)


def _tile_suffix(hop_ms: int, buckets: BucketSpec | None) -> str:
    """A bucketed group counts one expression, so the name of one hop's is told apart by what is counted."""
    return str(hop_ms) if buckets is None else f"{hop_ms}.q{fingerprint_of(buckets.key)[:8]}"


def _tile_group(members: list[tuple[FeatureView, FeatureSpec]]) -> TileGroup:
    """The order of partials depends on what they are, not on where they are written: moving a line changes nothing."""
    view, any_spec = members[0]
    assert any_spec.hop_ms is not None
    wanted: dict[tuple[str, ...], Partial] = {}
    retain = 0
    for _, spec in members:
        assert spec.window_ms is not None and spec.hop_ms is not None
        ahead = -(-view.stream.future_ms // spec.hop_ms)
        retain = max(retain, num_whole_tiles(spec.window_ms, spec.hop_ms) + 1 + ahead)
        wanted |= {partial.key: partial for partial in partials_of(spec)}
    return TileGroup(
        entity=view.entity,
        source=view.stream,
        key_fields=view.key_fields,
        hop_ms=any_spec.hop_ms,
        partials=tuple(replace(wanted[key], name=f"p{i}") for i, key in enumerate(sorted(wanted))),
        retain_tiles=retain,
        buckets=buckets_of(any_spec),
    )


def _last_group(members: list[tuple[FeatureView, FeatureSpec]]) -> LastGroup:
    view = members[0][0]
    wanted = {field.key: field for field in (last_field_of(spec) for _, spec in members)}
    fields = tuple(replace(wanted[key], name=f"v{i}") for i, key in enumerate(sorted(wanted)))
    return LastGroup(entity=view.entity, source=view.stream, key_fields=view.key_fields, fields=fields)

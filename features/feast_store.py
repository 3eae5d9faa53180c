"""Feast's view of the same bytes: an online store plugin, and Feast objects generated from our views.

The only file that imports feast, which costs seconds: import it late. Our views become plain FeatureViews with a
PushSource and no Python function (dill cannot load one on this Python), tagged `hailstream: view`. Reads of tagged views
go through the same read plan as the engine's, so the numbers are the same; untagged views keep RedisOnlineStore's ways.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import numpy as np
import yaml
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, RepoConfig, ValueType
from feast import types as feast_types
from feast.infra.online_stores.redis import RedisOnlineStore, RedisOnlineStoreConfig
from feast.infra.supported_async_methods import SupportedAsyncMethods
from feast.protos.feast.serving.ServingService_pb2 import FieldStatus, GetOnlineFeaturesResponse
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.utils import _get_entity_key_protos, _get_unique_entities
from google.protobuf.timestamp_pb2 import Timestamp

from features.expr import Column
from features.read_plan import ReadPlan
from features.redis_store import FeatureReader, compile_read_plan
from features.registry import Registry, load_registry
from features.rows import FeatureBatch, Status, empty_column
from features.spec import Catalogue, FeatureSpec, Key
from features.spec import Entity as OurEntity
from features.spec import FeatureView as OurView
from features.store import FeatureError

TAG: Final = {"hailstream": "view"}
STORE_TYPE: Final = "features.feast_store.HailstreamOnlineStore"
REGISTRY_CACHE_S: Final = 5.0  # how long an apply may stay unseen by a Feast process
_TYPES: Final = {
    "int": feast_types.Int64,
    "int32": feast_types.Int32,
    "double": feast_types.Float64,
    "bool": feast_types.Bool,
    "string": feast_types.String,
}
_FIELDS: Final = {"int": "int64_val", "double": "double_val", "bool": "bool_val", "string": "string_val"}
_STATUSES: Final = {
    Status.PRESENT: FieldStatus.PRESENT,
    Status.DEFAULT: FieldStatus.PRESENT,
    Status.NULL: FieldStatus.NULL_VALUE,
    Status.MISSING: FieldStatus.NOT_FOUND,
    Status.STALE: FieldStatus.OUTSIDE_MAX_AGE,
}


class HailstreamOnlineStoreConfig(RedisOnlineStoreConfig):
    """`as_of` is the time that features are asked for: "wall", now; "applied", the time through which events have been
    applied (what to ask on replayed data); or epoch milliseconds."""

    type: Literal["features.feast_store.HailstreamOnlineStore"] = STORE_TYPE  # type: ignore[assignment]
    url: str
    as_of: str | int = "wall"


class HailstreamOnlineStore(RedisOnlineStore):
    """Serves tagged views from tiles and last values; they are written by the feature job and by nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._reader: FeatureReader | None = None
        self._registry: Registry | None = None
        self._loaded_s = 0.0
        self._plans: dict[tuple[str, tuple[str, ...]], ReadPlan] = {}

    @property
    def async_supported(self) -> SupportedAsyncMethods:
        return SupportedAsyncMethods(read=True, write=True)

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKey],
        requested_features: list[str] | None = None,
    ) -> list[tuple[datetime | None, dict[str, Value] | None]]:
        """One row per key; (None, None) where nothing at all is known of a key."""
        if not is_ours(table):
            return super().online_read(config, table, entity_keys, requested_features)
        batch = self._read(config, [table.name], [entity_keys])[0]
        wanted = list(batch.names) if requested_features is None else requested_features
        read_at = _applied_at(batch)
        rows: list[tuple[datetime | None, dict[str, Value] | None]] = []
        for row in range(batch.num_rows):
            known = {name: _value(batch, row, name) for name in wanted}
            found = any(batch.valid[name][row] for name in wanted)
            rows.append((read_at, known) if found else (None, None))
        return rows

    async def online_read_async(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKey],
        requested_features: list[str] | None = None,
    ) -> list[tuple[datetime | None, dict[str, Value] | None]]:
        if not is_ours(table):
            return await super().online_read_async(config, table, entity_keys, requested_features)
        return await asyncio.to_thread(self.online_read, config, table, entity_keys, requested_features)

    def _read_features_per_fv(
        self,
        config: RepoConfig,
        grouped_refs: list[tuple[FeatureView, list[str]]],
        join_key_values: dict[str, Any],
        entity_name_to_join_key_map: dict[str, str],
        online_features_response: GetOnlineFeaturesResponse,
        full_feature_names: bool,
        include_feature_view_version_metadata: bool,
    ) -> None:
        """All of our views in one round trip, with their own statuses; the others as RedisOnlineStore does."""
        others = [(table, names) for table, names in grouped_refs if not is_ours(table)]
        ours = [(table, names) for table, names in grouped_refs if is_ours(table)]
        if others:
            super()._read_features_per_fv(
                config,
                others,
                join_key_values,
                entity_name_to_join_key_map,
                online_features_response,
                full_feature_names,
                include_feature_view_version_metadata,
            )
        if not ours:
            return
        unique = [_get_unique_entities(table, join_key_values, entity_name_to_join_key_map) for table, _ in ours]
        keys = [_get_entity_key_protos(values) for values, _, _ in unique]
        batches = self._read(config, [table.name for table, _ in ours], keys)
        for (table, names), (_, places, num_rows), batch in zip(ours, unique, batches, strict=True):
            _fill(online_features_response, table, names, batch, places, num_rows, full_feature_names)

    async def _read_features_per_fv_async(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.to_thread(self._read_features_per_fv, *args, **kwargs)

    def online_write_batch(
        self, config: RepoConfig, table: FeatureView, data: list[Any], progress: Callable[[int], Any] | None
    ) -> None:
        _refuse_write(table)
        super().online_write_batch(config, table, data, progress)

    async def online_write_batch_async(
        self, config: RepoConfig, table: FeatureView, data: list[Any], progress: Callable[[int], Any] | None
    ) -> None:
        _refuse_write(table)
        await super().online_write_batch_async(config, table, data, progress)

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """Feast never deletes what the feature job owns: old generations expire by themselves."""
        others = [table for table in tables_to_delete if not is_ours(table)]
        super().update(config, others, tables_to_keep, entities_to_delete, entities_to_keep, partial)

    def teardown(self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]) -> None:
        super().teardown(config, [table for table in tables if not is_ours(table)], entities)

    def _read(self, config: RepoConfig, views: list[str], keys: list[list[EntityKey]]) -> list[FeatureBatch]:
        """One batch per view, in order; keys are Feast's protos."""
        store: HailstreamOnlineStoreConfig = config.online_store
        now_s = time.monotonic()
        if self._registry is None or now_s - self._loaded_s > REGISTRY_CACHE_S:
            self._registry, self._loaded_s = load_registry(store.url, config.project), now_s
        if self._reader is None:
            self._reader = FeatureReader(store.url, config.project)
        roles = {f"{i}": view for i, view in enumerate(views)}
        at = (self._registry.fingerprint, tuple(views))
        plan = self._plans.get(at)
        if plan is None:
            plan = self._plans[at] = compile_read_plan(self._registry, roles)
        ours = self._registry.catalogue.views
        asked = {
            role: [_plain(key, ours[view].entity.join_keys) for key in part]
            for (role, view), part in zip(roles.items(), keys, strict=True)
        }
        as_of_ms = self._as_of_ms(store.as_of, plan, roles)
        answer = self._reader.read(plan, asked, as_of_ms, request=self._nothing(roles))
        return [answer[role] for role in roles]

    def _nothing(self, roles: Mapping[str, str]) -> dict[str, dict[str, Column]]:
        """Nulls in place of request fields; what reads them is not served."""
        assert self._registry is not None
        views = {role: self._registry.catalogue.views[view] for role, view in roles.items()}
        return {
            role: {
                name: Column(empty_column(kind.removesuffix("?"), 1), np.zeros(1, dtype=np.bool_))
                for name, kind in view.request.items()
            }
            for role, view in views.items()
        }

    def _as_of_ms(self, as_of: str | int, plan: ReadPlan, roles: Mapping[str, str]) -> int:
        if as_of == "wall":
            return int(time.time() * 1000)
        if as_of != "applied":
            return int(as_of)
        assert self._reader is not None
        beats = self._reader.read(plan, {role: [] for role in roles}, 0, request=self._nothing(roles)).values()
        return max((b.applied_through_ms for b in beats if b.applied_through_ms is not None), default=0)


def is_ours(table: FeatureView) -> bool:
    """Whether the feature job owns this view's values."""
    return TAG.items() <= (table.tags or {}).items()


def feast_objects(catalogue: Catalogue) -> list[Any]:
    """Our entities and views in Feast's words. The batch source is a name only: history is not read through Feast."""
    entities = {name: _feast_entities(entity) for name, entity in catalogue.entities.items()}
    out: list[Any] = [one for several in entities.values() for one in several]
    for view in catalogue.views.values():
        if not _served(view):
            continue
        source = PushSource(name=f"{view.name}_job", batch_source=_history_of(view))
        out += [source, _feast_view(view, entities[view.entity.name], source)]
    return out


def _feast_entities(entity: OurEntity) -> list[Entity]:
    """Feast's entities have one join key each, so a key of several columns is several of them."""
    types = {"string": ValueType.STRING, "int": ValueType.INT64, "int32": ValueType.INT32}
    single = len(entity.keys) == 1
    return [
        Entity(
            name=entity.name if single else f"{entity.name}__{column.name}",
            join_keys=[column.name],
            value_type=types[column.type],
            description=entity.description,
        )
        for column in entity.keys
    ]


def _served(view: OurView) -> list[FeatureSpec]:
    """The features that need no request fields: Feast has no place to give them to."""
    asked = set(view.request)
    while True:
        more = {f.name for f in view.features if f.expr is not None and f.expr.names & asked} - asked
        if not more:
            return [spec for spec in view.features if spec.name not in asked]
        asked |= more


def write_feast_repo(registry: Registry, redis_url: str, folder: Path, *, as_of: str | int = "applied") -> None:
    """Write `feature_store.yaml` and `registry.db` into a folder; both are replaced only when both are ready.

    Objects that others registered there are kept; views of ours that are gone are taken out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "project": registry.project,
        "provider": "local",
        "registry": "registry.db",
        "online_store": {
            "type": STORE_TYPE,
            "url": redis_url,
            "connection_string": _connection_string(redis_url),
            "as_of": as_of,
        },
        "offline_store": {"type": "dask"},
        "entity_key_serialization_version": 3,
    }
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as scratch:
        (Path(scratch) / "feature_store.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        if (folder / "registry.db").is_file():
            shutil.copy2(folder / "registry.db", Path(scratch) / "registry.db")
        store = FeatureStore(repo_path=scratch)
        objects = feast_objects(registry.catalogue)
        names = {thing.name for thing in objects}
        gone: list[Any] = [v for v in store.list_feature_views() if is_ours(v) and v.name not in names]
        store.apply(objects, objects_to_delete=gone, partial=not gone)
        for name in ("registry.db", "feature_store.yaml"):
            os.replace(Path(scratch) / name, folder / name)


def _history_of(view: OurView) -> FileSource:
    return FileSource(
        name=f"{view.name}_history", path=f"history/{view.name}.parquet", timestamp_field="event_timestamp"
    )


def _feast_view(view: OurView, entities: list[Entity], source: PushSource) -> FeatureView:
    keys = [Field(name=column.name, dtype=_TYPES[column.type]) for column in view.entity.keys]
    features = [Field(name=spec.name, dtype=_TYPES[spec.type], description=spec.description) for spec in _served(view)]
    return FeatureView(
        name=view.name,
        entities=entities,
        ttl=timedelta(milliseconds=view.max_age_ms),
        schema=[*keys, *features],
        source=source,
        online=True,
        tags=TAG,
        owner=view.owner,
        description=view.description,
    )


def _fill(
    response: GetOnlineFeaturesResponse,
    table: FeatureView,
    names: Sequence[str],
    batch: FeatureBatch,
    places: Sequence[Sequence[int]],
    num_rows: int,
    full_feature_names: bool,
) -> None:
    """One feature vector per requested feature. places[i]: the rows of the answer that row i of the batch goes to."""
    shown = table.projection.name_to_use()
    response.metadata.feature_names.val.extend(f"{shown}__{n}" if full_feature_names else n for n in names)
    row_of = {place: row for row, rows in enumerate(places) for place in rows}
    read_at = Timestamp()
    if batch.applied_through_ms is not None:
        read_at.FromMilliseconds(batch.applied_through_ms)
    for name in names:
        f = batch.names.index(name)
        order = [row_of[place] for place in range(num_rows)]
        response.results.add(
            values=[_value(batch, row, name) for row in order],
            statuses=[_STATUSES[Status(batch.statuses[row, f])] for row in order],
            event_timestamps=[read_at] * num_rows,
        )


def _value(batch: FeatureBatch, row: int, name: str) -> Value:
    if not batch.valid[name][row]:
        return Value()
    kind, value = batch.types[batch.names.index(name)], batch.columns[name][row]
    return Value(**{_FIELDS[kind]: value if kind == "string" else value.item()})


def _applied_at(batch: FeatureBatch) -> datetime | None:
    if batch.applied_through_ms is None:
        return None
    return datetime.fromtimestamp(batch.applied_through_ms / 1000, tz=UTC)


def _plain(key: EntityKey, join_keys: Sequence[str]) -> Key:
    """Feast's key as ours: a scalar, or the values in the order of our columns."""
    values = [getattr(value, value.WhichOneof("val")) for value in key.entity_values]
    if len(join_keys) == 1:
        return values[0]
    by_name = dict(zip(key.join_keys, values, strict=True))
    return tuple(by_name[name] for name in join_keys)


def _refuse_write(table: FeatureView) -> None:
    if is_ours(table):
        raise FeatureError(
            f"view '{table.name}' is computed by the feature job from its events; a value that is pushed or materialized "
            f"beside it would be lost or wrong. Send events to the view's source instead"
        )


def _connection_string(redis_url: str) -> str:
    parts = urlsplit(redis_url)
    db = parts.path.strip("/") or "0"
    password = f",password={parts.password}" if parts.password else ""
    return f"{parts.hostname}:{parts.port or 6379},db={db}{password}"

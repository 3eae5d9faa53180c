"""Feast's own get_online_features against the engine's reader, on one real Redis. One module, one import of feast."""

from __future__ import annotations

import asyncio
import itertools
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feast import FeatureStore
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value

from features.loader import SHIPPED
from features.packing import KeyEncoder
from features.redis_store import FeatureReader, TileWriter, compile_read_plan
from features.registry import ApplyReport, apply_catalogue
from features.rows import Status
from features.spec import Entity, KeyColumn, single_key
from features.store import FeatureError
from tests import generate, naive
from tests.features.feature_job import TileJob, send_all
from tests.features.test_loader import SOURCES, VIEW, write
from tests.features.test_source_loader import PAIRED

PROJECT = "feast_test"
PAIR = VIEW.replace("view: v", "view: p").replace("entity: driver", "entity: pair") + "  far: {expr: n_5m > limit}\n"
PAIR = PAIR.replace("features:", "request: {limit: int}\nfeatures:")
DRIVERS = ["d-0", "d-1", "d-4", "d-1", "d-never"]
ZONES = [0, 3, 99, 3, 1]


@pytest.fixture(scope="module")
def feast_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feast")


@pytest.fixture(scope="module")
def applied(redis_url: str, feast_dir: Path) -> ApplyReport:
    report = apply_catalogue(SHIPPED, redis_url, actor="test", reason="feast", feast_dir=feast_dir, project=PROJECT)
    registry = report.registry
    source = registry.catalogue.sources["trip_events"]
    events, _ = naive.used_once(
        generate.trip_events(7, 600), disorder_ms=source.disorder_ms, future_ms=source.future_ms
    )
    writer = TileWriter(redis_url, PROJECT)
    send_all(writer, registry, "trip_events", [TileJob(g) for g in registry.catalogue.tile_groups()], events)
    send_all(writer, registry, "driver_events", [], generate.driver_events(7, 100))
    writer.close()
    return report


@pytest.fixture(scope="module")
def store(applied: ApplyReport, feast_dir: Path) -> FeatureStore:
    return FeatureStore(repo_path=str(feast_dir))


@pytest.mark.parametrize(
    ("value", "proto", "type_name"),
    [
        ("d-0042é", Value(string_val="d-0042é"), "string"),
        (-5, Value(int64_val=-5), "int"),
        (2**40, Value(int64_val=2**40), "int"),
        (-(2**31), Value(int32_val=-(2**31)), "int32"),
    ],
)
def test_entity_keys_have_the_bytes_that_feast_writes(value: str | int, proto: Value, type_name: str) -> None:
    ours = KeyEncoder(single_key(name="e", join_key="some_key", type=type_name)).encode(value)
    assert ours == serialize_entity_key(EntityKey(join_keys=["some_key"], entity_values=[proto]), 3)


@pytest.mark.parametrize("order", list(itertools.permutations(("zone", "city", "Dormer"))))
def test_keys_of_several_columns_have_the_bytes_that_feast_writes(order: tuple[str, ...]) -> None:
    types = {"zone": "int32", "city": "string", "Dormer": "int"}
    values: dict[str, Any] = {"zone": -7, "city": "Ω", "Dormer": 2**40}
    fields = {"zone": "int32_val", "city": "string_val", "Dormer": "int64_val"}
    entity = Entity(name="e", keys=tuple(KeyColumn(name=name, type=types[name]) for name in order))
    protos = [Value(**{fields[name]: values[name]}) for name in order]
    theirs = serialize_entity_key(EntityKey(join_keys=list(order), entity_values=protos), 3)
    assert KeyEncoder(entity).encode(tuple(values[name] for name in order)) == theirs


@pytest.mark.parametrize("way", ["sync", "async"])
def test_feast_serves_the_numbers_that_the_engine_reads(
    way: str, store: FeatureStore, applied: ApplyReport, redis_url: str
) -> None:
    registry = applied.registry
    asked = {"driver_activity": DRIVERS, "driver_state": DRIVERS, "zone_demand": ZONES}
    reader = FeatureReader(redis_url, PROJECT)
    plan = compile_read_plan(registry, {view: view for view in asked})
    beats = [batch.applied_through_ms for batch in reader.read(plan, asked, 0).values()]
    ours = reader.read(plan, asked, max(beat for beat in beats if beat is not None))
    reader.close()
    refs = [f"{view}:{spec.name}" for view in asked for spec in registry.catalogue.views[view].features]
    rows = {"driver_id": DRIVERS, "zone": ZONES}
    if way == "sync":
        response = store.get_online_features(features=refs, entity_rows=rows, full_feature_names=True)  # type: ignore[arg-type]
    else:
        response = asyncio.run(
            store.get_online_features_async(features=refs, entity_rows=rows, full_feature_names=True)
        )  # type: ignore[arg-type]
    got, num_values = response.to_dict(), 0
    for view, batch in ours.items():
        for row in range(batch.num_rows):
            for name, value in batch.row(row).items():
                assert got[f"{view}__{name}"][row] == value, (view, name, row)
                num_values += value is not None
    assert num_values > 50


def test_statuses_survive_the_way_through_feast(store: FeatureStore, applied: ApplyReport) -> None:
    response = store.get_online_features(
        features=["driver_activity:avg_trip_m_24h", "driver_activity:accept_rate_24h", "driver_state:last_zone", "driver_activity:offers_24h"],
        entity_rows=[{"driver_id": "d-never"}],
    )  # fmt: skip
    names = list(response.proto.metadata.feature_names.val)
    got = {name: response.proto.results[i].statuses[0] for i, name in enumerate(names)}
    from feast.protos.feast.serving.ServingService_pb2 import FieldStatus

    assert got["avg_trip_m_24h"] == FieldStatus.NULL_VALUE
    assert got["last_zone"] == FieldStatus.NOT_FOUND
    assert got["accept_rate_24h"] == got["offers_24h"] == FieldStatus.PRESENT
    assert response.to_dict()["accept_rate_24h"] == [0.8] and Status.DEFAULT.name == "DEFAULT"


def test_a_feature_view_alone_reads_by_online_read(store: FeatureStore) -> None:
    view = store.get_feature_view("driver_state")
    protos = [EntityKey(join_keys=["driver_id"], entity_values=[Value(string_val=key)]) for key in ("d-1", "d-never")]
    rows = store._get_provider().online_read(store.config, view, protos, ["last_zone"])
    assert (
        rows[0][0] is not None and rows[0][1] is not None and rows[0][1]["last_zone"].WhichOneof("val") == "int64_val"
    )
    assert rows[1] == (None, None)


def test_writing_a_tile_view_through_feast_is_refused_with_the_reason(store: FeatureStore) -> None:
    frame = pd.DataFrame(
        {
            "driver_id": ["d-1"],
            "last_status": ["idle"],
            "last_zone": [1],
            "event_timestamp": [pd.Timestamp.now(tz="UTC")],
        }
    )
    with pytest.raises(FeatureError, match="computed by the feature job"):
        store.write_to_online_store("driver_state", frame)


def test_applying_again_writes_nothing_and_no_python_function_is_in_the_registry(
    applied: ApplyReport, redis_url: str, feast_dir: Path
) -> None:
    assert applied.changed and applied.feast_written
    before = (feast_dir / "registry.db").read_bytes()
    again = apply_catalogue(SHIPPED, redis_url, actor="test", reason="again", feast_dir=feast_dir, project=PROJECT)
    assert not again.changed and not again.feast_written
    assert (feast_dir / "registry.db").read_bytes() == before
    assert re.search(rb"dill|cloudpickle|user_defined_function", before) is None
    assert sorted(path.name for path in feast_dir.iterdir()) == [
        "feature_store.yaml",
        "hailstream.fingerprint",
        "registry.db",
    ]


def test_keys_of_several_columns_and_request_fields_reach_feast(
    redis_url: str, tmp_path: Path, project: str = "feast_pairs"
) -> None:
    folder = write(tmp_path / "c", entities=PAIRED, sources=SOURCES, p=PAIR)
    report = apply_catalogue(folder, redis_url, actor="test", reason="pairs", feast_dir=tmp_path / "f", project=project)
    (group,) = report.registry.catalogue.tile_groups()
    lives = report.registry.lives()
    with closing(TileWriter(redis_url, project, lives=lives)) as writer:
        keys, tiles = [(1, "d-1"), (1, "d-2")], np.array([100, 100])
        writer.write_tiles(group, 1, keys, tiles, np.array([2, 3]), [np.array([2, 3])], applied_through_ms=6_030_000)
    answer = FeatureStore(repo_path=str(tmp_path / "f")).get_online_features(
        features=["p:n_5m"], entity_rows=[{"driver_id": "d-2", "zone": 1}, {"driver_id": "d-1", "zone": 2}]
    )
    assert answer.to_dict()["n_5m"] == [3, 0]
    names = [
        field.name
        for view in FeatureStore(repo_path=str(tmp_path / "f")).list_feature_views()
        for field in view.features
    ]
    assert names == ["n_5m"], "what reads a request field is not served by Feast"

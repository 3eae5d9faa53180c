"""The verbs on a real Redis: what `get`, `list` and `freshness` answer."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from features import verbs
from features.loader import SHIPPED
from features.redis_store import TileWriter
from features.registry import Registry, apply_catalogue
from features.spec import Entity, KeyColumn, single_key
from features.store import FeatureError
from tests import generate
from tests.features.feature_job import TileJob, send_all


@pytest.fixture(scope="module")
def project() -> str:
    return f"verbs-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def registry(redis_url: str, project: str) -> Registry:
    return apply_catalogue(SHIPPED, redis_url, actor="test", reason="test", project=project).registry


@pytest.fixture(scope="module")
def written(redis_url: str, registry: Registry) -> Iterator[int]:
    """One completed trip of d-1 at minute 10. Returns its time."""
    event_ms = 600_000
    event = {
        **generate.trip_events(1, 1)[0], "driver_id": "d-1", "event_type": "completed", "fare_cents": 900, "pickup_zone": 3,
        "distance_m": 1_500, "event_time_ms": event_ms, "ingest_time_ms": event_ms,
    }  # fmt: skip
    writer = TileWriter(redis_url, registry.project)
    send_all(writer, registry, "trip_events", [TileJob(g) for g in registry.catalogue.tile_groups()], [event])
    yield event_ms
    writer.close()


def test_get_gives_value_status_and_age_of_each_feature(redis_url: str, project: str, written: int) -> None:
    one, other = verbs.get(redis_url, "driver_activity", ["d-1", "d-2"], as_of=written + 60_000, project=project)
    assert (one.view, one.key, one.as_of_ms, one.applied_through_ms, one.generation) == (
        "driver_activity",
        "d-1",
        660_000,
        600_000,
        1,
    )
    got = {value.name: value for value in one.values}
    assert (got["fare_24h"].value, got["fare_24h"].status, got["fare_24h"].age_ms, got["fare_24h"].unit) == (
        900,
        "present",
        60_000,
        "cents",
    )
    assert (got["avg_trip_m_24h"].value, got["accept_rate_24h"].value, got["accept_rate_24h"].status) == (
        1500.0,
        0.8,
        "default",
    )
    assert {v.name: v.status for v in other.values}["last_dropoff_zone"] == "missing"


def test_get_asks_for_the_applied_time_unless_told_otherwise(redis_url: str, project: str, written: int) -> None:
    (applied,) = verbs.get(redis_url, "zone", ["3"], project=project)
    assert applied.view == "zone_demand" and applied.as_of_ms == written
    (wall,) = verbs.get(redis_url, "zone_demand", ["3"], as_of="wall", project=project)
    assert {value.status for value in wall.values} <= {"stale", "default"}
    (text,) = verbs.get(redis_url, "zone_demand", ["3"], as_of=str(written + 1), project=project)
    assert text.as_of_ms == written + 1


def test_get_says_what_is_wrong_with_a_question(redis_url: str, project: str, written: int) -> None:
    with pytest.raises(KeyError, match=r"choose one of \['driver_activity', 'driver_state'\]"):
        verbs.get(redis_url, "driver", ["d-1"], project=project)
    with pytest.raises(KeyError, match="applied are"):
        verbs.get(redis_url, "rider", ["r-1"], project=project)
    with pytest.raises(ValueError, match="zone is an int, 'x' is not"):
        verbs.get(redis_url, "zone", ["x"], project=project)
    with pytest.raises(ValueError, match="'yesterday' is not 'wall', 'applied' or epoch"):
        verbs.get(redis_url, "zone", ["3"], as_of="yesterday", project=project)
    with pytest.raises(FeatureError, match="no features are applied"):
        verbs.get(redis_url, "zone", ["3"], project=project + "-other")


def test_list_tells_the_meaning_of_every_feature(redis_url: str, project: str, registry: Registry) -> None:
    applied = {(item.view, item.name): item for item in verbs.list_features(redis_url, project=project)}
    item = applied["driver_activity", "fare_24h"]
    assert (item.type, item.generation, item.unit) == ("int?", 1, "cents")
    assert item.meaning == "sum of fare_cents where event_type == 'completed' over 1d"
    assert applied["driver_activity", "accept_rate_24h"].type == "double"
    declared = {(item.view, item.name): item for item in verbs.list_features(folder=SHIPPED)}
    assert declared.keys() == applied.keys() and declared["driver_activity", "fare_24h"].generation is None


def test_freshness_is_held_against_the_strictest_objective(
    redis_url: str, project: str, registry: Registry, written: int
) -> None:
    group, one = registry.catalogue.tile_groups()[0], np.array([500], dtype=np.int64)
    writer = TileWriter(redis_url, project)
    writer.write_tiles(
        group, 1, ["d-9"], one, one, [one] * len(group.partials), applied_through_ms=1, appended_ms=np.array([0]), now_ms=5_000
    )  # fmt: skip
    writer.close()
    by_group = {item.group: item for item in verbs.freshness(redis_url, project)}
    slow, unmeasured = by_group[group.name], by_group[registry.catalogue.tile_groups()[2].name]
    assert (slow.slo_p99_ms, slow.met, slow.stats.num_fresh) == (1_000, False, 1)
    assert (unmeasured.met, unmeasured.stats.freshness_p99_ms) == (None, None)


def test_a_key_of_several_columns_is_typed_in_order_or_by_name() -> None:
    entity = Entity(name="lane", keys=(KeyColumn(name="zone", type="int32"), KeyColumn(name="product", type="string")))
    for text in ("7,express", "zone=7,product=express", "product=express, zone=7"):
        assert verbs.parse_key(entity, text) == (7, "express")
    assert verbs.parse_key(single_key("driver", "driver_id", "string"), "driver_id=d-1") == "d-1"
    assert verbs.parse_key(single_key("driver", "driver_id", "string"), "a=b,c") == "a=b,c"
    for text in ("7", "7,express,x", "zone=7", "zone=7,express", "zone=7,zone=8"):
        with pytest.raises(ValueError, match="no key of entity lane: write zone=…,product=…"):
            verbs.parse_key(entity, text)
    with pytest.raises(ValueError, match="zone is an int32, 3000000000 does not fit"):
        verbs.parse_key(entity, "3000000000,express")
    with pytest.raises(ValueError, match="zone is an int32, 'x' is not"):
        verbs.parse_key(entity, "x,express")


def test_request_fields_are_typed_and_told(redis_url: str, project: str, tmp_path: Path) -> None:
    folder, mine = tmp_path / "definitions", f"{project}-asked"
    shutil.copytree(SHIPPED, folder)
    text = "view: asked\nentity: driver\nrequest: {hour: int, where: 'string?'}\nfeatures:\n  night: {expr: \"hour < 6\"}\n"
    (folder / "views" / "asked.yaml").write_text(text)
    apply_catalogue(folder, redis_url, actor="test", reason="test", project=mine)
    for hour, night in (("3", True), ("7", False)):
        one, other = verbs.get(redis_url, "asked", ["d-1", "d-2"], request={"hour": hour}, project=mine)
        assert [value.value for answer in (one, other) for value in answer.values] == [night, night]
    for given, wrong in (
        ({}, "takes the request fields hour: int, where: string\\?; missing are hour"),
        ({"hour": "1", "our": "1"}, "unknown are our"),
        ({"hour": "early"}, "request field hour is int, 'early' is not"),
    ):
        with pytest.raises(ValueError, match=wrong):
            verbs.get(redis_url, "asked", ["d-1"], request=given, project=mine)

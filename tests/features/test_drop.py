"""Dropping a view deletes its keys and no other: other projects, other groups, other things that live in the same Redis."""

from __future__ import annotations

import shutil
import struct
import uuid
from pathlib import Path

import numpy as np
import pytest
import redis

from features.declared import single_key
from features.loader import SHIPPED
from features.packing import GroupKeys, KeyEncoder
from features.redis_keys import delete_groups, entity_key_length, group_of_key
from features.redis_store import FeatureReader, TileWriter, compile_read_plan
from features.registry import Registry, apply_catalogue, load_history, load_registry
from features.rollout import drop
from features.rows import Status
from features.spec import TileGroup
from features.store import FeatureError, GenerationLost
from tests.features.test_staging import beat

ODD = [
    "plain",
    "*",
    "?",
    "[a]",
    "\\",
    "a*b?c[d]\\",
    "\0",
    "hailstream",
    "bench",
    "x" * 42,
    "x" * 63,
    "x" * 91,
    "x" * 92,
]


def project_pair() -> tuple[str, str]:
    """Two projects of which one's name is the end of the other's."""
    tail = f"bench{uuid.uuid4().hex[:8]}"
    return tail, f"work{tail}"


def all_keys(redis_url: str) -> dict[bytes, bytes]:
    with redis.Redis.from_url(redis_url) as client:
        keys = list(client.scan_iter(count=10_000))
        return {key: client.dump(key) for key in keys}


def write(redis_url: str, registry: Registry, keys: list[str]) -> None:
    """Tiles of some drivers in every group of drivers, old enough and new enough to fill the counted memory as well."""
    beat(redis_url, registry, 0)
    writer = TileWriter(redis_url, registry.project, lives=registry.lives())
    for group, generation in registry.groups():
        if isinstance(group, TileGroup) and group.entity.name == "driver":
            for tile in (10_000, 1):
                number = np.full(len(keys), tile * group.rows_per_tile, dtype=np.int64)
                one = np.ones(len(keys), dtype=np.int64)
                writer.write_tiles(
                    group, generation, keys, number, one, [one] * len(group.partials), applied_through_ms=tile
                )
    writer.close()


def test_dropping_a_view_of_one_project_touches_nothing_else(redis_url: str) -> None:
    bench, workbench = project_pair()
    for project in (workbench, bench):
        registry = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project).registry
        write(redis_url, registry, ODD + [f"d\0{bench}", workbench, bench])
    with redis.Redis.from_url(redis_url) as client:
        client.set(f"strangers:{bench}\0driver.trip_events.60000\0001", "no entity key before it")
        client.set(b"\xff\xff\xff\xff" + GroupKeys(bench, "driver.trip_events.60000", 1).suffix, "not an entity key")
    before = all_keys(redis_url)
    steps: list[tuple[int, int]] = []
    done = drop(redis_url, "driver_activity", bench, actor="ann", reason="unused", progress=lambda *s: steps.append(s))
    after = all_keys(redis_url)

    gone = {"driver.trip_events.60000", "driver.trip_events.900000", "driver.trip_events.last"}
    assert set(done.groups) == gone and done.waiting == () and done.keys_deleted == len(before) - len(after)
    assert steps[-1][0] == done.keys_deleted
    deleted, changed = set(before) - set(after), {k for k in after if before.get(k) != after[k]}
    assert changed == {f"hailstream:registry:{bench}".encode(), f"hailstream:registry:{bench}:history".encode()}
    owners = {group_of_key(key, bench) for key in deleted}
    assert owners == {(name, 1) for name in gone} and len(deleted) > 4 * len(ODD)
    assert not [key for key in after if (found := group_of_key(key, bench)) and found[0] in gone]
    assert any(key.endswith(b"\0counted") for key in deleted)

    registry = load_registry(redis_url, bench)
    assert "driver_activity" not in registry.catalogue.views and registry.document.retired["driver_activity"] == 1
    assert (load_history(redis_url, bench)[-1].kind, load_history(redis_url, bench)[-1].actor) == ("drop", "ann")
    with pytest.raises(KeyError, match="view 'driver_activity' is not applied"):
        compile_read_plan(registry, {"d": "driver_activity"})
    again = drop(redis_url, "driver_activity", bench, actor="ann", reason="again")
    assert again.keys_deleted == 0 and again.changes == ()
    with pytest.raises(KeyError, match="no view 'driver_actvity' is, or was, applied"):
        drop(redis_url, "driver_actvity", bench, actor="ann", reason="typo")


def test_keys_that_a_job_still_feeds_are_left_until_it_has_ended(redis_url: str) -> None:
    project = f"drop-{uuid.uuid4().hex[:8]}"
    registry = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project).registry
    write(redis_url, registry, ["d"])
    first = drop(
        redis_url, "zone_demand", project, actor="a", reason="r", fed=["zone.trip_events.300000.pickup_zone@1"]
    )
    assert (
        first.waiting == ("zone.trip_events.300000.pickup_zone@1",)
        and "zone_demand" not in load_registry(redis_url, project).catalogue.views
    )
    beat(redis_url, registry, 5, names={"zone.trip_events.300000.pickup_zone"})  # the job goes on, undisturbed
    second = drop(redis_url, "zone_demand", project, actor="a", reason="r")
    assert second.keys_deleted > 0 and "zone.trip_events.300000.pickup_zone" in second.groups
    with pytest.raises(GenerationLost):
        beat(redis_url, registry, 6, names={"zone.trip_events.300000.pickup_zone"})


def test_a_view_that_shares_a_group_is_not_dropped_under_the_other(redis_url: str, tmp_path: Path) -> None:
    folder, project = tmp_path / "c", f"drop-{uuid.uuid4().hex[:8]}"
    shutil.copytree(SHIPPED, folder)
    (folder / "views" / "twin.yaml").write_text(
        "view: twin\nentity: driver\nsource: trip_events\nmax_age: 2d\nfeatures:\n"
        "  declined_1h: {aggregate: count, where: \"event_type == 'declined'\", window: 1h, hop: 1m}\n"
    )
    apply_catalogue(folder, redis_url, actor="a", reason="r", project=project)
    before = all_keys(redis_url)
    with pytest.raises(
        FeatureError, match=r"twin shares driver\.trip_events\.60000 with other views.*`hailstream features apply`"
    ):
        drop(redis_url, "twin", project, actor="a", reason="r")
    assert all_keys(redis_url) == before


def test_a_name_that_comes_back_with_another_type_never_reads_old_bytes(redis_url: str, tmp_path: Path) -> None:
    """f2 an int, dropped without its bytes being deleted, added again as a string: missing until it is written anew."""
    folder, project = tmp_path / "c", f"drop-{uuid.uuid4().hex[:8]}"
    shutil.copytree(SHIPPED, folder)
    view = folder / "views" / "f.yaml"
    text = "view: f\nentity: driver\nsource: driver_events\nkey: driver_id\nmax_age: 9999d\nfeatures:\n  f2: {aggregate: last, of: OF}\n"
    text = text.replace("key: driver_id\n", "")
    (folder / "views" / "driver_state.yaml").unlink()
    (folder / "tests" / "driver_state.yaml").unlink()
    view.write_text(text.replace("OF", "zone"))
    first = apply_catalogue(folder, redis_url, actor="a", reason="int", project=project).registry
    group = next(g for g in first.catalogue.last_groups() if g.source.name == "driver_events")
    writer = TileWriter(redis_url, project, lives=first.lives())
    writer.write_last(group, 1, ["a"], np.array([1_000]), ["e"], {group.fields[0].name: [42]}, applied_through_ms=1_000)
    reader = FeatureReader(redis_url, project)
    read = reader.read(compile_read_plan(first, {"f": "f"}), {"f": ["a"]}, 2_000)["f"]
    assert (read.columns["f2"][0], read.statuses[0, 0]) == (42, Status.PRESENT)

    drop(redis_url, "f", project, actor="a", reason="gone", fed=[f"{group.name}@1"])
    view.write_text(text.replace("OF", "status"))
    second = apply_catalogue(folder, redis_url, actor="a", reason="string", project=project, now=True).registry
    assert second.generation_of(group.name) == 2 and second.view_generation("f") == 2
    read = reader.read(compile_read_plan(second, {"f": "f"}), {"f": ["a"]}, 2_000)["f"]
    assert (read.types[0], read.statuses[0, 0], bool(read.valid["f2"][0])) == ("string", Status.MISSING, False)


def test_an_entity_key_says_its_own_length() -> None:
    for name in ("d", "x" * 42, "x" * 63, "x" * 91, "x" * 92, "*?[\\"):
        for kind, values in (("string", ODD), ("int", [0, -1, 42, 2**63 - 1, 2147483648, -(2**31) - 1])):
            encoder = KeyEncoder(single_key("e", name, kind))
            for value in values:
                key = encoder.encode(value)  # type: ignore[arg-type]
                assert entity_key_length(key + b"anything") == len(key)
    two = struct.pack("<I", 2) + b"".join(struct.pack("<II", 2, len(n)) + n for n in (b"a", b"bc"))
    two += struct.pack("<IIq", 4, 8, 5) + struct.pack("<II", 2, 3) + b"xyz"
    assert entity_key_length(two + b"tail") == len(two)
    for bad in (b"", b"\1\0\0", b"\0\0\0\0", b"\xff" * 20, two[:-1]):
        assert entity_key_length(bad) is None


def test_only_the_generations_that_are_named_are_deleted(redis_url: str) -> None:
    project = f"drop-{uuid.uuid4().hex[:8]}"
    with redis.Redis.from_url(redis_url) as client:
        for generation in (1, 2, 12, 21):
            client.set(GroupKeys(project, "g", generation).marker, "x")
            client.set(
                KeyEncoder(single_key("e", "k", "int")).encode(7) + GroupKeys(project, "g", generation).suffix,
                "x",
            )
        assert delete_groups(redis_url, project, {"g": frozenset({2})}) == 2
        assert delete_groups(redis_url, project, {"g2": None}) == 0
        left = {group_of_key(key, project) for key in client.scan_iter(f"*{project}*", count=10_000)}
        assert left == {("g", 1), ("g", 12), ("g", 21)}


@pytest.mark.parametrize("name", ["d", "*?[\\", "x" * 42, "x" * 63, "x" * 91, "x" * 92])
def test_a_pattern_in_the_name_or_value_of_a_key_deletes_nothing_else(name: str, redis_url: str) -> None:
    """Names of 42, 63, 91 and 92 bytes put `*`, `?`, `[` and a backslash into the key as their length."""
    bench, workbench = project_pair()
    encoder = KeyEncoder(single_key("e", name, "string"))
    mine = {encoder.encode(value) + GroupKeys(bench, "g", 1).suffix for value in ODD}
    others = {encoder.encode(value + bench) + GroupKeys(workbench, "g", 1).suffix for value in ODD}
    others |= {encoder.encode(value) + GroupKeys(bench, "gg", 1).suffix for value in ODD}
    others |= {
        encoder.encode(value + GroupKeys(bench, "g", 1).suffix.decode()) for value in ODD
    }  # a value that looks like it
    with redis.Redis.from_url(redis_url) as client:
        client.mset(dict.fromkeys(mine | others, b"x"))
        assert delete_groups(redis_url, bench, {"g": None}) == len(mine)
        assert client.exists(*others) == len(others) and client.exists(*mine) == 0

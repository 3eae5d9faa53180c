"""An edit of a view that is served: staged beside it with a seam, switched to when it is whole, or aborted; pure and on Redis."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis

from features.loader import SHIPPED, load_catalogue, load_texts
from features.packing import GroupKeys
from features.redis_store import FeatureReader, TileWriter, compile_read_plan
from features.registry import (
    Registry,
    apply_catalogue,
    decode_registry,
    history_key,
    load_history,
    load_registry,
    local_registry,
    registry_key,
)
from features.rollout import abort, readiness, rebuild, switch
from features.rows import Status
from features.spec import TileGroup
from features.staging import abort_next, moved_groups, new_groups, seam_of, stage_next, switch_next
from features.store import FeatureError, GenerationLost

FILES = load_catalogue(SHIPPED).files
DRIVER = "views/driver_activity.yaml"
MINUTE, QUARTER = "driver.trip_events.60000", "driver.trip_events.900000"
OLD, NEW = "event_type == 'accepted'", "event_type == 'offered' || event_type == 'accepted'"
HOUR_MS = 3_600_000


@pytest.fixture
def project() -> str:
    return f"stage-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    return folder_with(tmp_path / "edited", OLD, NEW)


def folder_with(folder: Path, old: str, new: str) -> Path:
    shutil.copytree(SHIPPED, folder)
    view = folder / DRIVER
    assert old in view.read_text()
    view.write_text(view.read_text().replace(old, new))
    return folder


def files_with(old: str, new: str) -> dict[str, str]:
    assert old in FILES[DRIVER]
    return {**FILES, DRIVER: FILES[DRIVER].replace(old, new)}


def beat(redis_url: str, registry: Registry, through_ms: int, *, names: set[str] | None = None) -> None:
    """An event of one key in every stream group, applied through a time."""
    writer = TileWriter(redis_url, registry.project, lives=registry.lives())
    for group, generation in registry.groups():
        if names is not None and group.name not in names:
            continue
        if isinstance(group, TileGroup):
            one = np.array([1], dtype=np.int64)
            key = "a" if group.entity.name == "driver" else 7
            tile = np.array([through_ms // group.hop_ms], dtype=np.int64)
            writer.write_tiles(
                group, generation, [key], tile, one, [one] * len(group.partials), applied_through_ms=through_ms
            )
        else:
            writer.write_last(
                group, generation, [], np.empty(0, dtype=np.int64), [], {f.name: [] for f in group.fields},  # type: ignore[union-attr]
                applied_through_ms=through_ms,
            )  # fmt: skip
    writer.close()


def test_staging_leaves_what_is_served_and_the_switch_moves_it_up_in_one_step() -> None:
    before = local_registry(load_texts(FILES))
    staged, changes = stage_next(
        before,
        load_texts(files_with(OLD, NEW)),
        before.project,
        900_000,
        started_ms=5,
        actor="ann",
        reason="why",
        life="x",
    )
    assert staged.fingerprint == before.fingerprint and staged.version == before.version
    assert staged.catalogue is before.catalogue and staged.generations() == before.generations()
    assert {c.name: (c.before, c.after) for c in changes} == {QUARTER: (1, 2), "driver_activity": (1, 2)}
    following = staged.staged
    assert following is not None and set(new_groups(staged, following)) == {QUARTER}
    assert (following.document.groups[QUARTER].seam_ms, following.life_of(QUARTER)) == (900_000, "x")
    assert following.document.groups[MINUTE] == before.document.groups[MINUTE]

    again = decode_registry(msgspec.json.encode(staged.document))
    switched, changed = switch_next(again)
    assert changed == changes and switched.document.next is None and switched.version == before.version + 1
    assert switched.document.groups == following.document.groups and switched.document.retired == {}
    assert switched.catalogue.files[DRIVER] == files_with(OLD, NEW)[DRIVER]
    with pytest.raises(FeatureError, match="nothing is staged"):
        switch_next(switched)


def test_an_aborted_generation_is_never_used_again() -> None:
    before = local_registry(load_texts(FILES))
    catalogue = load_texts(files_with(OLD, NEW))
    staged, _ = stage_next(before, catalogue, before.project, 0, started_ms=5, actor="a", reason="r")
    aborted, undone = abort_next(staged)
    assert aborted.document.groups == before.document.groups and aborted.document.next is None
    assert {c.name: (c.before, c.after) for c in undone} == {QUARTER: (2, 1), "driver_activity": (2, 1)}
    assert aborted.document.retired == {QUARTER: 2, "driver_activity": 2}
    again, changes = stage_next(aborted, catalogue, before.project, 0, started_ms=6, actor="a", reason="r")
    assert {c.name: c.after for c in changes} == {QUARTER: 3, "driver_activity": 3}
    switched, _ = switch_next(again)
    assert switched.generation_of(QUARTER) == 3 and switched.document.retired == {}


def test_only_one_version_is_staged_at_a_time() -> None:
    before = local_registry(load_texts(FILES))
    staged, _ = stage_next(
        before, load_texts(files_with(OLD, NEW)), before.project, 0, started_ms=77, actor="ann", reason="better"
    )
    with pytest.raises(FeatureError, match=r"since 77 by ann \(better\): finish it with `hailstream features rollout`"):
        stage_next(staged, load_texts(FILES), before.project, 0, started_ms=78, actor="bob", reason="")


@pytest.mark.parametrize(
    ("through", "seam"),
    [
        # hops 1m, 5m, 15m; disorder 10m; the source that lags behind decides
        ({QUARTER: 100 * HOUR_MS, "driver.driver_events.last": 100 * HOUR_MS + 7}, 100 * HOUR_MS - 15 * 60_000),
        ({QUARTER: 100 * HOUR_MS, "driver.driver_events.last": 99 * HOUR_MS}, 99 * HOUR_MS - 15 * 60_000),
        ({QUARTER: -1}, -15 * 60_000),  # before 1970 as well
        ({QUARTER: 25 * 60_000}, 15 * 60_000),
        ({MINUTE: 100 * HOUR_MS}, None),  # what moves was never fed
        ({}, None),
    ],
)
def test_the_seam_lies_where_no_tile_is_cut_and_all_before_it_is_applied(
    through: dict[str, int | None], seam: int | None
) -> None:
    before = local_registry(load_texts(FILES))
    staged, _ = stage_next(
        before, load_texts(files_with(OLD, NEW)), before.project, 0, started_ms=1, actor="a", reason="r"
    )
    assert staged.staged is not None and moved_groups(before, staged.staged) == [QUARTER]
    assert seam_of(before, staged.staged, through) == seam


def test_an_edit_of_a_view_that_is_fed_is_staged_and_one_that_is_not_is_applied_at_once(
    redis_url: str, project: str, edited: Path
) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project, now_ms=1)
    assert not first.staged and len({g.life for g in first.registry.document.groups.values()}) == 1
    beat(redis_url, first.registry, 100 * HOUR_MS)

    staged = apply_catalogue(edited, redis_url, actor="ann", reason="wider", project=project, now_ms=2)
    assert staged.changed and staged.staged and {c.name for c in staged.changes} == {QUARTER, "driver_activity"}
    loaded = load_registry(redis_url, project)
    assert loaded.fingerprint == first.registry.fingerprint and loaded.document == staged.registry.document
    assert loaded.document.next is not None and loaded.document.next.seam_ms == 100 * HOUR_MS - 15 * 60_000
    (_, entry) = load_history(redis_url, project)
    assert (entry.kind, entry.actor, entry.version) == ("stage", "ann", 1)

    again = apply_catalogue(edited, redis_url, actor="ann", reason="wider", project=project)
    assert not again.changed and again.staged
    with pytest.raises(FeatureError, match="a version is staged"):
        apply_catalogue(SHIPPED, redis_url, actor="bob", reason="", project=project)

    unfed = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project + "-unfed")
    assert not apply_catalogue(edited, redis_url, actor="a", reason="r", project=project + "-unfed").staged
    assert unfed.registry.generation_of(QUARTER) == 1


def test_with_now_it_is_applied_at_once_although_it_is_fed(redis_url: str, project: str, edited: Path) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project)
    beat(redis_url, first.registry, 100 * HOUR_MS)
    report = apply_catalogue(edited, redis_url, actor="a", reason="r", project=project, now=True)
    assert report.changed and not report.staged and report.registry.generation_of(QUARTER) == 2


def test_the_switch_waits_for_the_backfill_and_for_the_job(redis_url: str, project: str, edited: Path) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project)
    beat(redis_url, first.registry, 100 * HOUR_MS)
    registry = apply_catalogue(edited, redis_url, actor="a", reason="r", project=project).registry
    staged = registry.staged
    assert staged is not None and registry.document.next is not None
    seam_ms = registry.document.next.seam_ms
    with pytest.raises(FeatureError, match=rf"{QUARTER} \(generation 2\) is not backfilled up to its seam {seam_ms}"):
        switch(redis_url, project, actor="a", reason="r")
    with pytest.raises(FeatureError, match=r"applied through None, what is served through 360000000"):
        switch(redis_url, project, actor="a", reason="r", without_backfill=True)

    group = next(g for g in staged.catalogue.tile_groups() if g.name == QUARTER)
    with TileWriterOf(redis_url, staged) as writer:
        writer.mark_backfilled(group, 2, seam_ms - 1)
    beat(redis_url, staged, 100 * HOUR_MS - 1, names={QUARTER})
    (ready,) = readiness(redis_url, project)
    assert len(ready.problems) == 2 and ready.backfilled_through_ms == seam_ms - 1
    with TileWriterOf(redis_url, staged) as writer:
        writer.mark_backfilled(group, 2, seam_ms)
    beat(redis_url, staged, 100 * HOUR_MS, names={QUARTER})
    switched = switch(redis_url, project, actor="ann", reason="ready", now_ms=9)
    assert load_registry(redis_url, project).document == switched.document and switched.generation_of(QUARTER) == 2
    entry = load_history(redis_url, project)[-1]
    assert (entry.kind, entry.note, entry.version, entry.time_ms) == ("switch", "", 2, 9)
    with redis.Redis.from_url(redis_url) as client:  # the old generation goes, the new one stays
        assert client.pttl(GroupKeys(project, QUARTER, 1).marker) > 0
        assert (
            client.pttl(GroupKeys(project, QUARTER, 2).marker)
            == client.pttl(GroupKeys(project, MINUTE, 1).marker)
            == -1
        )


class TileWriterOf(TileWriter):
    """A writer with the lives of a registry."""

    def __init__(self, redis_url: str, registry: Registry) -> None:
        super().__init__(redis_url, registry.project, lives=registry.lives())

    def __enter__(self) -> TileWriterOf:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_a_backfill_stays_below_the_seam_and_moves_no_heartbeat(redis_url: str, project: str, edited: Path) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project)
    beat(redis_url, first.registry, 100 * HOUR_MS)
    registry = apply_catalogue(edited, redis_url, actor="a", reason="r", project=project).registry
    assert registry.staged is not None and registry.document.next is not None
    seam_ms = registry.document.next.seam_ms
    group = next(g for g in registry.staged.catalogue.tile_groups() if g.name == QUARTER)
    one, below = np.array([1], dtype=np.int64), np.array([seam_ms // group.hop_ms - 1], dtype=np.int64)
    with TileWriterOf(redis_url, registry.staged) as writer:
        partials = [one] * len(group.partials)
        assert writer.write_backfill(group, 2, ["a"], below, one, partials, seam_ms=seam_ms).tolist() == [1]
        with pytest.raises(ValueError, match="it is the stream's"):
            writer.write_backfill(group, 2, ["a"], below + 1, one, partials, seam_ms=seam_ms)
    (ready,) = readiness(redis_url, project)
    assert ready.applied_through_ms is None


def test_abort_deletes_what_the_staged_generation_held_and_nothing_else(
    redis_url: str, project: str, edited: Path
) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project)
    beat(redis_url, first.registry, 100 * HOUR_MS)
    registry = apply_catalogue(edited, redis_url, actor="a", reason="r", project=project).registry
    assert registry.staged is not None
    before = keys_of(redis_url, project)
    beat(redis_url, registry.staged, 100 * HOUR_MS, names={QUARTER})
    busy = abort(redis_url, project, actor="a", reason="r", fed=[f"{QUARTER}@2"])
    assert (busy.waiting, busy.keys_deleted) == ((f"{QUARTER}@2",), 0)
    staged_marker = {GroupKeys(project, QUARTER, 2).marker}
    apply_catalogue(edited, redis_url, actor="a", reason="r", project=project)
    beat(redis_url, load_registry(redis_url, project).staged, 100 * HOUR_MS, names={QUARTER})  # type: ignore[arg-type]
    done = abort(redis_url, project, actor="a", reason="r")
    assert done.keys_deleted > 0 and done.registry.document.retired[QUARTER] == 3
    left = {key for key in keys_of(redis_url, project) if b":3:" not in key and not key.endswith(b"\0003")}
    assert before - staged_marker <= left == keys_of(redis_url, project)
    with pytest.raises(GenerationLost, match="no longer holds generation 3"):
        beat(redis_url, registry_of_generation(registry.staged, 3), 1, names={QUARTER})


def registry_of_generation(registry: Registry, generation: int) -> Registry:
    group = msgspec.structs.replace(registry.document.groups[QUARTER], generation=generation, life="what it was")
    groups = {**registry.document.groups, QUARTER: group}
    return Registry(msgspec.structs.replace(registry.document, groups=groups), registry.catalogue)


def keys_of(redis_url: str, project: str) -> set[bytes]:
    with redis.Redis.from_url(redis_url) as client:
        return {key for key in client.scan_iter(f"*{project}*", count=5_000) if b"registry" not in key}


def test_a_lost_marker_stops_every_write_and_a_rebuild_makes_it_whole(redis_url: str, project: str) -> None:
    """What Redis lost is missing, never half there: readers, writers, the way out."""
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project).registry
    beat(redis_url, first, 100 * HOUR_MS)
    plan, reader = compile_read_plan(first, {"driver": "driver_activity"}), FeatureReader(redis_url, project)
    at = first.catalogue.views["driver_activity"].features.index(
        first.catalogue.views["driver_activity"].feature("completed_1h")
    )
    assert reader.read(plan, {"driver": ["a"]}, 100 * HOUR_MS)["driver"].statuses[0, at] == Status.PRESENT
    with redis.Redis.from_url(redis_url) as client:
        client.delete(*keys_of(redis_url, project))
    with pytest.raises(GenerationLost, match=r"no longer holds generation 1 .*`hailstream features rebuild --all`"):
        beat(redis_url, first, 101 * HOUR_MS)
    assert keys_of(redis_url, project) == set()
    assert reader.read(plan, {"driver": ["a"]}, 100 * HOUR_MS)["driver"].statuses[0, at] == Status.MISSING
    reader.close()

    apply_catalogue(SHIPPED, redis_url, actor="a", reason="nothing to apply, so nothing comes back", project=project)
    assert keys_of(redis_url, project) == set()
    rebuilt, staged = rebuild(redis_url, None, project, actor="ann", reason="lost", now_ms=3)
    assert not staged and {g.generation for g in rebuilt.document.groups.values()} == {2}
    assert load_history(redis_url, project)[-1].kind == "rebuild"
    beat(redis_url, rebuilt, 101 * HOUR_MS)


def test_an_apply_to_an_emptied_redis_does_not_let_the_old_job_go_on(redis_url: str, project: str) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project).registry
    beat(redis_url, first, 100 * HOUR_MS)
    with redis.Redis.from_url(redis_url) as client:
        client.delete(*keys_of(redis_url, project), registry_key(project), history_key(project))
    second = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project).registry
    assert second.generations() == first.generations()
    with pytest.raises(GenerationLost):
        beat(redis_url, first, 101 * HOUR_MS)
    beat(redis_url, second, 101 * HOUR_MS)


def test_rebuild_of_one_view_is_staged_with_a_seam_where_it_is_fed(redis_url: str, project: str) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project).registry
    beat(redis_url, first, 100 * HOUR_MS)
    with pytest.raises(KeyError, match="no view 'zone_demnd' is applied"):
        rebuild(redis_url, ["zone_demnd"], project, actor="a", reason="r")
    registry, staged = rebuild(redis_url, ["zone_demand"], project, actor="a", reason="r")
    assert staged and registry.staged is not None
    assert {n: g.generation for n, g in new_groups(registry, registry.staged).items()} == {
        "zone.trip_events.60000.pickup_zone": 2,
        "zone.trip_events.300000.pickup_zone": 2,
    }
    assert registry.staged.view_generation("zone_demand") == 2 and registry.view_generation("zone_demand") == 1


def test_format_1_is_read_and_its_generations_need_no_life(redis_url: str, project: str) -> None:
    document = msgspec.to_builtins(local_registry(load_texts(FILES), project).document)
    del document["next"]
    for group in document["groups"].values():
        del group["life"], group["seam_ms"]
    document["format"] = 1
    with redis.Redis.from_url(redis_url) as client:
        client.set(registry_key(project), msgspec.json.encode(document))
    loaded = load_registry(redis_url, project)
    assert loaded.life_of(MINUTE) is None and loaded.staged is None
    beat(redis_url, loaded, 5)
    report = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project)
    assert report.registry.document.format == 2 and report.registry.life_of(MINUTE) is None
    beat(redis_url, report.registry, 6)

"""What is applied: generations move only where they must, applies are one transaction, history and formats are kept."""

from __future__ import annotations

import shutil
import threading
import uuid
from pathlib import Path

import msgspec
import pytest
import redis

from features.expr import Mistakes
from features.loader import SHIPPED, load_catalogue, load_texts
from features.registry import (
    ApplyReport,
    Registry,
    RegistryDocument,
    apply_catalogue,
    load_history,
    load_registry,
    local_registry,
    next_registry,
    registry_key,
)
from features.store import FeatureError, StoreError

FILES = load_catalogue(SHIPPED).files
DRIVER = "views/driver_activity.yaml"
MINUTE, QUARTER = "driver.trip_events.60000", "driver.trip_events.900000"


@pytest.fixture
def project() -> str:
    return f"reg-{uuid.uuid4().hex[:8]}"


def edited(
    before: Registry, old: str, new: str, file: str = DRIVER
) -> tuple[Registry, dict[str, tuple[int | None, int | None]]]:
    assert old in before.document.files[file]
    files = {**before.document.files, file: before.document.files[file].replace(old, new)}
    after, changes = next_registry(before, load_texts(files), before.project)
    return after, {change.name: (change.before, change.after) for change in changes}


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("owner: supply", "owner: somebody", {}),
        ("unit: trips}", "unit: trips, description: new words}", {}),
        ("default: 0.8", "default: 0.7", {"driver_activity"}),
        ("max_age: 2d", "max_age: 1d", {"driver_activity"}),
        ("window: 15m, hop: 1m", "window: 30m, hop: 1m", {"driver_activity"}),  # an hour of minutes is kept anyway
        ("window: 1h, hop: 1m", "window: 30m, hop: 1m", {"driver_activity"}),  # shorter: what is kept serves it
        ("completed_1h:    {aggregate: count, where: \"event_type == 'completed'\", window: 1h",
         "completed_1h:    {aggregate: count, where: \"event_type == 'completed'\", window: 2h", {"driver_activity", MINUTE}),
        ("event_type == 'accepted'", "event_type == 'offered' || event_type == 'accepted'", {"driver_activity", QUARTER}),
        ("aggregate: last, of: dropoff_zone", "aggregate: last, of: pickup_zone", {"driver_activity", "driver.trip_events.last"}),
    ],
)  # fmt: skip
def test_a_generation_moves_only_where_old_and_new_must_not_mix(old: str, new: str, changed: set[str]) -> None:
    before = local_registry(load_texts(FILES))
    after, changes = edited(before, old, new)
    assert changes == dict.fromkeys(changed, (1, 2))
    assert (after.fingerprint == before.fingerprint) == (not changed)
    again, none = next_registry(after, after.catalogue, after.project)
    assert none == [] and again.document == after.document


def test_spaces_inside_a_text_are_part_of_what_is_counted() -> None:
    before = local_registry(load_texts(FILES))
    spaced, _ = edited(before, "where: \"event_type == 'accepted'\"", "where: \"event_type == 'accepted  x'\"")
    _, changes = edited(spaced, "'accepted  x'", "'accepted x'")
    assert set(changes) == {"driver_activity", QUARTER}
    _, changes = edited(spaced, "event_type == 'accepted  x'", "event_type  ==  'accepted  x'")
    assert changes == {}


def test_a_name_that_comes_back_never_restarts_its_generation() -> None:
    first = local_registry(load_texts(FILES))
    without, changes = next_registry(first, load_texts({k: v for k, v in FILES.items() if k != DRIVER}), first.project)
    assert changes and all(change.after is None for change in changes) and MINUTE in without.document.retired
    back, _ = next_registry(without, load_texts(FILES), first.project)
    assert back.generation_of(MINUTE) == 2 and back.view_generation("driver_activity") == 2
    assert back.view_generation("zone_demand") == 1 and back.document.retired == {}


def test_apply_is_idempotent_and_travels_whole(redis_url: str, project: str) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="ann", reason="start", project=project, now_ms=5)
    again = apply_catalogue(SHIPPED, redis_url, actor="bob", reason="again", project=project, now_ms=6)
    assert first.changed and not again.changed and again.changes == []
    loaded = load_registry(redis_url, project)
    assert loaded.document == first.registry.document and loaded.fingerprint == first.registry.fingerprint
    assert {name: len(view.features) for name, view in loaded.catalogue.views.items()} == {
        name: len(view.features) for name, view in load_catalogue(SHIPPED).views.items()
    }
    (entry,) = load_history(redis_url, project)
    assert (entry.time_ms, entry.actor, entry.reason, entry.version) == (5, "ann", "start", 1)
    assert entry.fingerprint == loaded.fingerprint and len(entry.changes) == 9


def test_a_mistake_leaves_what_is_applied_untouched(redis_url: str, project: str, tmp_path: Path) -> None:
    first = apply_catalogue(SHIPPED, redis_url, actor="a", reason="r", project=project)
    shutil.copytree(SHIPPED, tmp_path / "c")
    view = tmp_path / "c" / DRIVER
    view.write_text(view.read_text().replace("offers_24h > 0", "ofers_24h > 0"))
    with pytest.raises(Mistakes, match="ofers_24h"):
        apply_catalogue(tmp_path / "c", redis_url, actor="a", reason="r", project=project)
    assert load_registry(redis_url, project).document == first.registry.document
    assert len(load_history(redis_url, project)) == 1


def test_racing_applies_end_in_one_order_with_all_in_the_history(redis_url: str, project: str, tmp_path: Path) -> None:
    reports: list[ApplyReport] = []

    def run(i: int) -> None:
        folder = tmp_path / str(i)
        shutil.copytree(SHIPPED, folder)
        view = folder / DRIVER
        view.write_text(view.read_text().replace("default: 0.8", f"default: 0.{i + 1}"))
        reports.append(apply_catalogue(folder, redis_url, actor=str(i), reason="race", project=project))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = load_history(redis_url, project)
    assert [entry.version for entry in history] == [1, 2, 3]
    assert sorted(report.registry.version for report in reports) == [1, 2, 3]
    assert load_registry(redis_url, project).fingerprint == history[-1].fingerprint


def test_nothing_applied_a_newer_format_and_no_redis_are_told_apart(redis_url: str, project: str) -> None:
    with pytest.raises(FeatureError, match=r"no features are applied in project .*`hailstream features apply`"):
        load_registry(redis_url, project)
    newer = RegistryDocument(format=99, project=project, version=1, files={}, groups={}, views={})
    with redis.Redis.from_url(redis_url) as client:
        client.set(registry_key(project), msgspec.json.encode(newer))
    with pytest.raises(FeatureError, match="format 99"):
        load_registry(redis_url, project)
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1 cannot be reached"):
        load_registry("redis://127.0.0.1:1", project)


def test_unknown_names_say_what_is_known() -> None:
    registry = local_registry(load_texts(FILES))
    with pytest.raises(KeyError, match=r"driver\.trip_events\.60000"):
        registry.generation_of("driver.trip_events.1")
    with pytest.raises(KeyError, match="driver_activity"):
        registry.view_generation("driver")

"""`hailstream features switch | rebuild | drop | abort | rollout`: refusals and exit codes, on a Redis of its own, without a cluster."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner, Result

from features.loader import SHIPPED
from features.packing import GroupKeys
from features.redis_store import TileWriter
from features.registry import Registry, apply_catalogue, load_registry
from features.spec import PROJECT
from infra.cli import app
from infra.local.process import stop, wait_ready
from infra.local.redis import redis_ready, start_redis
from infra.local.stack import free_ports
from tests.features.test_staging import HOUR_MS, NEW, OLD, QUARTER, beat, folder_with


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The verbs work on the default project, so nobody else may be there."""
    (port,) = free_ports(1)
    running = start_redis(tmp_path / "redis", port, stack_id=f"test-rollout-{os.getpid()}", log=tmp_path / "redis.log")
    try:
        wait_ready(running, lambda: redis_ready(port), deadline_s=30)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        stop(running)


@pytest.fixture
def staged(url: str, tmp_path: Path) -> Registry:
    """An edit of a view that is fed, staged."""
    first = apply_catalogue(SHIPPED, url, actor="a", reason="r").registry
    beat(url, first, 100 * HOUR_MS)
    edited = folder_with(tmp_path / "edited", OLD, NEW)
    return apply_catalogue(edited, url, actor="ann", reason="wider").registry


def features(url: str, *words: str) -> Result:
    result = CliRunner().invoke(app, ["features", *words, "--redis", url], env={"COLUMNS": "500"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answer(result: Result, code: int = 0) -> Any:
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def plain(result: Result) -> str:
    return " ".join(result.output.split())


def test_a_switch_that_is_not_ready_is_refused_and_says_what_is_missing(url: str, staged: Registry) -> None:
    (group,) = answer(features(url, "switch", "--check", "--json"), code=1)
    assert (group["group"], group["generation"], len(group["problems"])) == (QUARTER, 2, 2)
    refused = features(url, "switch", "--no-feast")
    assert refused.exit_code == 1 and "run `hailstream features backfill" in plain(refused)
    assert "submit it with `hailstream jobs submit features --next`" in plain(refused)
    assert load_registry(url).version == 1


def test_a_ready_version_is_switched_to(url: str, staged: Registry) -> None:
    following = staged.staged
    assert following is not None and staged.document.next is not None
    beat(url, following, 100 * HOUR_MS, names={QUARTER})
    group = next(g for g in following.catalogue.tile_groups() if g.name == QUARTER)
    writer = TileWriter(url, lives=following.lives())
    writer.mark_backfilled(group, 2, staged.document.next.seam_ms)
    writer.close()
    assert answer(features(url, "switch", "--check", "--json"))[0]["problems"] == []
    done = answer(features(url, "switch", "--no-feast", "--json", "--actor", "bob"))
    assert done == {"version": 2} and load_registry(url).generation_of(QUARTER) == 2
    again = features(url, "switch", "--no-feast")
    assert again.exit_code == 1 and "nothing is staged" in plain(again)


def test_a_switch_without_backfill_is_written_down(url: str, staged: Registry) -> None:
    assert staged.staged is not None
    beat(url, staged.staged, 100 * HOUR_MS, names={QUARTER})
    assert answer(features(url, "switch", "--without-backfill", "--no-feast", "--json")) == {"version": 2}
    assert "without backfill" in features(url, "log", "--json").stdout


def test_an_abort_leaves_what_is_served(url: str, staged: Registry) -> None:
    asks = features(url, "abort", "--flink", "http://127.0.0.1:1")
    assert asks.exit_code == 1 and "no Flink cluster answers" in plain(asks)
    assert load_registry(url).staged is not None  # who cannot be asked is not assumed to be idle
    done = answer(features(url, "abort", "--no-jobs", "--json"))
    assert done == {"groups": [QUARTER], "keys_deleted": 1, "waiting": []}  # its marker
    assert load_registry(url).staged is None and load_registry(url).version == 1


def test_a_rebuild_says_how_to_go_on(url: str) -> None:
    registry = apply_catalogue(SHIPPED, url, actor="a", reason="r").registry
    neither = features(url, "rebuild")
    assert neither.exit_code == 1 and "name the views, or give --all" in plain(neither)
    unknown = features(url, "rebuild", "zone_demnd")
    assert unknown.exit_code == 1 and "no view 'zone_demnd' is applied" in plain(unknown)
    at_once = features(url, "rebuild", "--all")
    assert at_once.exit_code == 0 and "`hailstream jobs submit features --replace`" in plain(at_once)
    beat(url, load_registry(url), 100 * HOUR_MS)
    staged = answer(features(url, "rebuild", "zone_demand", "--json", "--reason", "lost"))
    assert staged == {"staged": True, "version": 2}
    assert registry.version == 1


def test_a_drop_deletes_what_only_that_view_had(url: str) -> None:
    registry = apply_catalogue(SHIPPED, url, actor="a", reason="r").registry
    beat(url, registry, 100 * HOUR_MS)
    done = answer(features(url, "drop", "zone_demand", "--no-jobs", "--no-feast", "--json"))
    assert done["waiting"] == [] and done["keys_deleted"] > 4
    assert {name.split(".")[0] for name in done["groups"]} == {"zone"}
    with redis.Redis.from_url(url) as client:
        assert client.exists(GroupKeys(PROJECT, QUARTER, 1).marker)
    unknown = features(url, "drop", "zone", "--no-jobs", "--no-feast")
    assert unknown.exit_code == 1 and "no view 'zone' is, or was, applied" in plain(unknown)


def test_a_rollout_without_a_cluster_changes_nothing_that_is_served(url: str, tmp_path: Path) -> None:
    first = apply_catalogue(SHIPPED, url, actor="a", reason="r").registry
    beat(url, first, 100 * HOUR_MS)
    edited = folder_with(tmp_path / "edited", OLD, NEW)
    refused = features(
        url,
        "rollout",
        str(edited),
        "--allow",
        "breaking",
        "--no-feast",
        "--flink",
        "http://127.0.0.1:1",
        "--kafka",
        "127.0.0.1:1",
    )
    assert refused.exit_code == 1 and "no Flink cluster answers" in plain(refused)
    assert load_registry(url).fingerprint == first.fingerprint
    shutil.rmtree(edited)

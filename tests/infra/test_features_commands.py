"""`hailstream features plan | apply | log | describe | list | validate | test`: exit codes, what is printed, JSON for programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner, Result

from features.loader import SHIPPED
from infra.cli import app

DRIVER = "views/driver_activity.yaml"
Features = Callable[..., Result]


@pytest.fixture
def url(redis_url: str) -> Iterator[str]:
    """A database of its own: the verbs work on the project `hailstream`."""
    mine = redis_url.rsplit("/", 1)[0] + "/9"
    with redis.Redis.from_url(mine) as client:
        client.flushdb()
        yield mine
        client.flushdb()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SHIPPED, tmp_path / "definitions")
    return tmp_path / "definitions"


@pytest.fixture
def features(url: str, tmp_path: Path) -> Features:
    env = {"COLUMNS": "400", "USER": "ann", "HAILSTREAM_REDIS": url, "HAILSTREAM_HOME": str(tmp_path / "home")}

    def run(*words: str | Path) -> Result:
        found = CliRunner().invoke(app, ["features", *map(str, words)], env=env)
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return found

    return run


def edit(folder: Path, old: str, new: str, file: str = DRIVER) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))


def of(result: Result) -> Any:
    return json.loads(result.stdout)


def test_plan_tells_by_its_exit_code_how_severe_the_edits_are(features: Features, folder: Path) -> None:
    first = features("plan", folder)
    assert first.exit_code == 2 and "apply makes it live at once" in first.output
    assert features("apply", folder, "--no-feast").exit_code == 0
    assert features("plan", folder).exit_code == 0
    edit(folder, "owner: supply", "owner: them")
    assert features("plan", folder).exit_code == 2
    edit(folder, "default: 0.8", "default: 0.7")
    breaking = features("plan", folder)
    assert breaking.exit_code == 3
    assert "accept_rate_24h" in breaking.output and "default 0.8 → 0.7" in breaking.output
    assert "touches strategy express_dispatch" in breaking.output
    edit(folder, "max_age: 2d", "max_age: 2 days")
    assert features("plan", folder).exit_code == 1


def test_plan_is_data_for_a_program(features: Features, folder: Path) -> None:
    features("apply", folder, "--no-feast")
    edit(folder, "window: 24h, hop: 15m, unit: offers}", "window: 48h, hop: 15m, unit: offers}")
    plan = of(features("plan", folder, "--keys", "1000", "--json"))
    assert (plan["risk"], plan["exit_code"], plan["version"]) == ("breaking", 3, 1)
    edits = {(e["feature"], e["kind"]): e for e in plan["edits"]}
    assert edits["offers_24h", "change"]["place"].endswith("driver_activity.yaml:13")
    assert edits["fare_24h", "generation"]["risk"] == "backfill"
    (group,) = [g for g in plan["groups"] if g["name"] == "driver.trip_events.900000"]
    assert (group["generation_before"], group["generation_after"], group["span_after_ms"]) == (1, 2, 194 * 900_000)
    assert group["size"]["keys"] == 1000 and group["size"]["redis_bytes"] > 1_000_000
    touched = {t["user"]: [tuple(f) for f in t["features"]] for t in plan["touched"]}
    assert touched["strategy express_dispatch"] == [("driver_activity", "accept_rate_24h", "breaking")]


def test_models_are_touched_by_what_their_columns_read(features: Features, folder: Path, tmp_path: Path) -> None:
    features("apply", folder, "--no-feast")
    version = tmp_path / "models" / "accept" / "versions" / "v7"
    version.mkdir(parents=True)
    columns = [{"name": "fare", "expr": "double(driver.fare_24h ?? 0)", "fill": 0.0}]
    (version / "program.json").write_text(json.dumps(columns))
    (tmp_path / "models" / "accept" / "champion").write_text("v7\n")
    edit(folder, "aggregate: sum, of: fare_cents", "aggregate: max, of: fare_cents")
    plan = of(features("plan", folder, "--models", tmp_path / "models", "--json"))
    touched = {t["user"]: [tuple(f) for f in t["features"]] for t in plan["touched"]}
    assert touched["model accept@v7"] == [("driver_activity", "fare_24h", "breaking")]
    edit(folder, "  fare_24h:", "  fares_24h:")
    shown = features("plan", folder, "--models", tmp_path / "models").output
    assert "driver_activity.fare_24h destructive" in shown and "renamed" not in shown


def test_a_strategy_that_would_not_load_any_more_is_named(features: Features, folder: Path) -> None:
    features("apply", folder, "--no-feast")
    edit(folder, "  accept_rate_24h:", "  acceptance_24h:")
    plan = of(features("plan", folder, "--json"))
    (error,) = [t["error"] for t in plan["touched"] if t["user"] == "strategy express_dispatch"]
    assert "accept_rate_24h" in error
    assert "would not load any more" in features("plan", folder).output


def test_apply_refuses_what_was_not_allowed_and_writes_nothing(features: Features, folder: Path) -> None:
    features("apply", folder, "--no-feast")
    edit(folder, "default: 0.8", "default: 0.7")
    refused = features("apply", folder, "--no-feast")
    assert refused.exit_code == 3 and "--allow breaking" in refused.output
    assert of(features("apply", folder, "--no-feast", "--json"))["refused"][0]["feature"] == "accept_rate_24h"
    assert len(of(features("log", "--json"))) == 1
    (folder / "views" / "driver_state.yaml").unlink()
    assert "--allow destructive" in features("apply", folder, "--no-feast", "--allow", "breaking").output
    done = features("apply", folder, "--no-feast", "--allow", "destructive", "--reason", "because", "--actor", "bob")
    assert done.exit_code == 0 and "applied" in done.output
    again = features("apply", folder, "--no-feast")
    assert again.exit_code == 0 and "nothing to do: all of it is applied" in again.output
    first, second = of(features("log", "--json"))
    assert (first["actor"], second["actor"], second["reason"], second["version"]) == ("ann", "bob", "because", 2)
    assert first["note"] == "" and second["note"].startswith("allowed destructive: ")
    assert (
        "accept_rate_24h: default 0.8 → 0.7" in second["note"] and "driver_state: view driver_state" in second["note"]
    )
    assert "bob" in features("log", "--limit", "1").output and "ann" not in features("log", "--limit", "1").output


def test_a_rollout_refuses_as_apply_does(features: Features, folder: Path) -> None:
    features("apply", folder, "--no-feast")
    edit(folder, "default: 0.8", "default: 0.7")
    nowhere = ("--kafka", "127.0.0.1:1", "--flink", "http://127.0.0.1:1")
    refused = features("rollout", folder, "--no-feast", *nowhere)
    assert refused.exit_code == 3 and "breaking: default 0.8 → 0.7" in refused.output
    assert "--allow breaking" in refused.output and len(of(features("log", "--json"))) == 1


def test_describe_tells_what_is_shared_kept_and_done(features: Features, folder: Path) -> None:
    features("apply", folder, "--no-feast", "--reason", "the start")
    edit(folder, "default: 0.8", "default: 0.7")
    features("apply", folder, "--no-feast", "--allow", "breaking", "--reason", "a better guess")
    view = of(features("describe", "driver_activity", "--json"))
    assert (view["entity"], view["source"], view["owner"], view["generation"]) == ("driver", "trip_events", "supply", 2)
    assert [happened["reason"] for happened in view["history"]] == ["the start", "a better guess"]
    (fare,) = of(features("describe", "driver_activity.fare_24h", "--json"))["features"]
    assert fare["meaning"] == "sum of fare_cents where event_type == 'completed' over 1d"
    assert (fare["group"], fare["group_generation"], fare["span_ms"]) == ("driver.trip_events.900000", 1, 98 * 900_000)
    (offers,) = of(features("describe", "offers_24h", "--json"))["features"]
    assert offers["read_by"] == ["accept_rate_24h"] and offers["shared_with"] == []
    (quarter,) = of(features("describe", "completed_15m", "--json"))["features"]
    assert quarter["shared_with"] == ["driver_activity.completed_1h"]
    text = features("describe", "zone_demand").output
    assert "by pickup_zone int" in text and "requested_15m" in text and "the start" in text
    wrong = features("describe", "driver_activty")
    assert wrong.exit_code == 1 and "did you mean 'driver_activity'?" in wrong.output


def test_describe_and_list_read_a_folder_without_any_service(tmp_path: Path) -> None:
    for words in (["describe", "zone_demand"], ["list"]):
        found = CliRunner().invoke(app, ["features", *words, "--folder", str(SHIPPED)], env={"COLUMNS": "300"})
        assert found.exit_code == 0 and "demand_trend" in found.output


def test_validate_shows_all_mistakes_of_all_files_at_once(features: Features, folder: Path) -> None:
    edit(folder, "offers_24h > 0", "ofers_24h > 0")
    edit(folder, "window: 5m", "window: 7 minutes", "views/zone_demand.yaml")
    edit(folder, "topic: driver_events", "topics: driver_events", "sources.yaml")
    edit(folder, "type: int", "type: integer", "entities.yaml")
    edit(folder, "completed_15m: 1", "completed_15min: 1", "tests/driver_activity.yaml")
    wrong = features("validate", folder)
    assert wrong.exit_code == 1
    found = of(features("validate", folder, "--json"))
    assert {Path(item["file"]).name for item in found} >= {
        "driver_activity.yaml",
        "zone_demand.yaml",
        "sources.yaml",
        "entities.yaml",
    }
    assert "did you mean 'offers_24h'" in wrong.output and "did you mean 'topic'" in wrong.output


def test_the_shipped_cases_run_within_a_tenth_of_a_second_each() -> None:
    from features.verbs import test as run_cases

    run_cases(SHIPPED)  # imports and first compiles
    seconds = sorted(result.seconds for result in run_cases(SHIPPED))
    assert seconds[len(seconds) // 2] < 0.1

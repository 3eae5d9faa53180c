"""`hailstream train` and `hailstream models`: which features type the names, and messages without tracebacks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from features.redis_store import connect
from features.registry import apply_catalogue, history_key, load_registry, registry_key
from features.spec import PROJECT
from infra.cli import app
from pipelines.training import TrainingError, promote
from pipelines.training.config import TrainConfig
from pipelines.training.model_dir import ModelFiles, StagedModel
from pipelines.training.names import DEFINITIONS_DIR, STRATEGIES_DIR

NOBODY = "redis://127.0.0.1:1/0"


def hailstream(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "500"})


def plain(result: Result) -> str:
    """What was printed, on one line."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return " ".join(result.output.split())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """The configs that the command asks training for; the run itself has its own tests."""
    configs: list[TrainConfig] = []

    def heard(config: TrainConfig, progress: Any) -> None:
        configs.append(config)
        raise TrainingError("stop here")

    monkeypatch.setattr("pipelines.training.train", heard)
    return configs


def publish(models: Path) -> None:
    files = ModelFiles(
        onnx=b"graph", program=[], golden_x=np.zeros((1, 1), dtype=np.float32), golden_p=np.array([0.5]),
        weights={"w": np.zeros(1, dtype=np.float32)}, report={},
    )  # fmt: skip
    with StagedModel(models, "accept", files, {"strategy": "s", "label": "accepted", "created_ms": 5}) as staged:
        staged.publish({"passed": True, "refused": [], "checks": []})


@pytest.fixture
def applied(redis_url: str) -> Iterator[str]:
    """A Redis where the shipped features are applied, and nothing after the test."""
    apply_catalogue(DEFINITIONS_DIR, redis_url, actor="test", reason="test")
    yield redis_url
    with connect(redis_url, 5.0) as client:
        client.delete(registry_key(PROJECT), history_key(PROJECT))


def test_what_is_applied_types_the_features(applied: str, asked: list[TrainConfig], tmp_path: Path) -> None:
    result = hailstream("train", "--samples", tmp_path, "--models", tmp_path, "--redis", applied)
    assert result.exit_code == 1 and plain(result) == "error: stop here"
    (config,) = asked
    assert config.registry == load_registry(applied) and config.definitions_dir is None


def test_without_redis_the_shipped_definitions_do_and_it_is_said(asked: list[TrainConfig], tmp_path: Path) -> None:
    text = plain(hailstream("train", "--samples", tmp_path, "--models", tmp_path, "--redis", NOBODY))
    assert "127.0.0.1:1" in text and "the shipped definitions type the features" in text
    (config,) = asked
    assert config.registry is None and config.definitions_dir is None


def test_given_files_are_used_and_redis_is_not_asked(asked: list[TrainConfig], tmp_path: Path) -> None:
    definitions = tmp_path / "definitions"
    shutil.copytree(DEFINITIONS_DIR, definitions)
    strategy, program = STRATEGIES_DIR / "express_dispatch.yaml", tmp_path / "program.json"
    result = hailstream(
        "train", "--samples", tmp_path, "--models", tmp_path, "--redis", NOBODY,
        "--definitions", definitions, "--strategy-file", strategy, "--program", program,
    )  # fmt: skip
    assert plain(result) == "error: stop here"
    (config,) = asked
    assert (config.definitions_dir, config.strategy_file, config.program) == (definitions, strategy, program)


def test_nothing_applied_is_an_error_that_names_both_ways_out(redis_url: str, tmp_path: Path) -> None:
    result = hailstream("train", "--samples", tmp_path, "--models", tmp_path, "--redis", redis_url)
    assert result.exit_code == 1
    assert "run `hailstream features apply`, or name the definitions with --definitions" in plain(result)


def test_rollback_from_the_first_champion_prints_the_way_out_and_no_traceback(tmp_path: Path) -> None:
    publish(tmp_path)
    publish(tmp_path)
    promote(tmp_path, "accept", "v0001", "ana", "first")
    result = hailstream("models", "rollback", "accept", "--reason", "worse", "--models", tmp_path)
    assert result.exit_code == 1
    text = plain(result)
    assert "accept: v0001 is the first champion; there is nothing to roll back to." in text
    assert "`hailstream models promote accept VERSION --reason …` with v0002" in text and "Traceback" not in text

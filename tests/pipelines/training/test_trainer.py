"""The whole run on a made-up city with known chances: samples in, a served model out, and every refusal said."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine.model import ModelError, champion_version, load_model
from pipelines import training
from pipelines.training import PublishError, TrainConfig, TrainingError, TrainReport, list_models
from pipelines.training.config import EXIT_REFUSED
from pipelines.training.dataset import build_dataset
from pipelines.training.evaluate import auc
from pipelines.training.gates import GateConfig
from pipelines.training.trainer import train_on
from tests.pipelines.training.worlds import (
    NAMES,
    PROGRAM,
    STRATEGY,
    World,
    make_decision,
    make_world,
    sample_row,
    to_table,
)

NUM = 3000
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(NUM, 77)


@pytest.fixture(scope="module")
def program_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program.json"
    path.write_text(json.dumps(PROGRAM))
    return path


def config(models: Path, program: Path, **changes: Any) -> TrainConfig:
    # A busy machine must not decide these tests; the latency check has its own in test_gates.py.
    options = {"gate": GateConfig(max_latency_ms=500.0), "now_ms": 1_000, "num_bootstrap": 200}
    return TrainConfig(samples_dir=models / "samples", models_dir=models, program=program, **(options | changes))


@pytest.fixture(scope="module")
def first(world: World, program_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainReport, Path]:
    """A first run on good samples with a few bad ones among them."""
    models = tmp_path_factory.mktemp("models")
    bad = [
        sample_row(make_decision(900_001), 1, decision=b'{"order_id": 5}'),
        sample_row(make_decision(900_002), None),
        sample_row(make_decision(900_003), 1, propensity_valid=False),
        sample_row(make_decision(900_004), 1, strategy="rider_coupon"),
    ]
    table = pa.concat_tables([world.table, to_table(bad)])
    return train_on(table, NAMES, config(models, program_file)), models


def test_first_model_passes_the_gate_and_becomes_champion(first: tuple[TrainReport, Path]) -> None:
    report, models = first
    assert report.gate["passed"], report.gate["refused"]
    assert report.promoted and report.exit_code == 0 and report.champion == report.version == "v0001"
    (entry,) = list_models(models)
    assert entry.champion and entry.gate_passed and entry.problem is None and entry.model_hash == report.model_hash
    json.dumps(report.to_dict(), allow_nan=False)


def test_rows_in_equal_rows_used_plus_rows_left_out(first: tuple[TrainReport, Path]) -> None:
    report, _ = first
    assert report.rows_in == NUM + 4
    assert report.rows_used + sum(report.left_out.values()) == report.rows_in
    assert report.rows_used == sum(part["rows"] for part in report.splits.values())
    spans = report.left_out.pop("order_spans_splits", 0)
    assert spans <= 2  # two decisions an order, two cuts
    assert report.left_out == {
        "decision_malformed": 1,
        "label_unknown": 1,
        "other_strategy": 1,
        "propensity_invalid": 1,
    }


def test_splits_follow_each_other_in_time(first: tuple[TrainReport, Path]) -> None:
    splits = first[0].splits
    assert splits["train"]["last_ms"] < splits["calibration"]["first_ms"]
    assert splits["calibration"]["last_ms"] < splits["test"]["first_ms"]


def test_served_model_is_near_the_oracle_and_calibrated(first: tuple[TrainReport, Path]) -> None:
    report, models = first
    served = load_model(models / "accept" / "versions" / report.version)
    fresh = make_world(4000, 78)
    data = build_dataset(fresh.table, NAMES, strategy=STRATEGY, needed=served.program.reads)
    p = served.score(data.columns, data.num_rows)
    best, ours = auc(fresh.p, fresh.y), auc(p, fresh.y)
    assert best is not None and ours is not None and ours > best - 0.03
    assert np.abs(p - fresh.p).mean() < 0.08
    test = report.metrics["test"]
    assert test["ece"] <= test["ece_band"]["p99"] + GateConfig().ece_slack
    assert test["log_loss"]["high"] < test["base_log_loss"]


def test_manifest_says_what_the_engine_needs(first: tuple[TrainReport, Path]) -> None:
    report, models = first
    manifest = json.loads((models / "accept" / "versions" / "v0001" / "manifest.json").read_text())
    assert manifest["version"] == "v0001" and manifest["strategy"] == STRATEGY and manifest["label"] == "accepted"
    assert manifest["created_ms"] == 1_000 and manifest["schema_fingerprint"] == "f1"
    assert manifest["names"]["driver.accept_rate_24h"] == "double?"
    assert set(manifest["names"]) == {name for name in NAMES if name not in ("order_id", "driver_id", "dropoff_zone")}
    assert manifest["trained_through_ms"] == report.splits["calibration"]["last_ms"]


def test_same_samples_and_seed_give_the_same_model_hash_and_pass_against_themselves(
    first: tuple[TrainReport, Path], world: World, program_file: Path, tmp_path: Path
) -> None:
    one = train_on(world.table, NAMES, config(tmp_path, program_file))
    two = train_on(world.table, NAMES, config(tmp_path, program_file, now_ms=99_000))
    assert one.model_hash == two.model_hash
    assert (one.version, two.version, two.champion) == ("v0001", "v0002", "v0002")
    assert "log-loss minus that of champion v0001: +0.0000" in json.dumps(two.gate)


def test_worse_model_is_kept_but_not_promoted_and_says_why(
    first: tuple[TrainReport, Path], world: World, tmp_path: Path
) -> None:
    _, models = first
    blind = tmp_path / "blind.json"  # sees nothing that matters much
    blind.write_text(json.dumps([{"name": "rush", "expr": "hour >= 7 && hour < 10", "fill": 0.0}]))
    before = champion_version(models, "accept")
    report = train_on(world.table, NAMES, config(models, blind))
    assert not report.promoted and report.exit_code == EXIT_REFUSED
    assert report.champion == before != report.version
    assert any(f"minus that of champion {before}: +" in text for text in report.gate["refused"])
    entry = next(entry for entry in list_models(models) if entry.version == report.version)
    assert entry.gate_passed is False and not entry.champion
    with pytest.raises(PublishError, match="the gate refused it"):
        training.promote(models, "accept", report.version, "ana", "looks fine")


def test_a_corrupted_version_is_refused_by_the_engine(
    first: tuple[TrainReport, Path], world: World, program_file: Path, tmp_path: Path
) -> None:
    report = train_on(world.table, NAMES, config(tmp_path, program_file, max_epochs=1, promote=False))
    assert champion_version(tmp_path, "accept") is None and not report.promoted
    path = Path(report.path) / "model.onnx"
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ModelError, match=r"model\.onnx"):
        load_model(Path(report.path))


def test_a_champion_that_cannot_be_loaded_is_named_in_the_verdict(
    world: World, program_file: Path, tmp_path: Path
) -> None:
    report = train_on(world.table, NAMES, config(tmp_path, program_file, max_epochs=3))
    assert report.promoted, report.gate["refused"]
    (Path(report.path) / "golden.json").write_text("{}")
    again = train_on(world.table, NAMES, config(tmp_path, program_file, max_epochs=3))
    text = next(check["text"] for check in again.gate["checks"] if check["name"] == "not_worse_than_champion")
    assert "v0001" in text and "golden.json" in text
    assert again.champion == again.version == "v0002"


def test_no_usable_sample_fails_loudly_and_writes_nothing(program_file: Path, tmp_path: Path) -> None:
    rows = [sample_row(make_decision(n), None) for n in range(40)]
    with pytest.raises(
        TrainingError, match=r"200 usable samples are needed; of 40 samples 0 are usable; left out: 40 label_unknown"
    ):
        train_on(to_table(rows), NAMES, config(tmp_path, program_file))
    with pytest.raises(TrainingError, match=r"the sample log .* is empty"):
        train_on(to_table([]), NAMES, config(tmp_path, program_file))
    assert not (tmp_path / "accept").exists()


def test_mistakes_in_the_column_program_are_shown_in_place(world: World, tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    with pytest.raises(TrainingError, match="no column program there"):
        train_on(world.table, NAMES, config(tmp_path, path))
    path.write_text("[\n {]")
    with pytest.raises(TrainingError, match=r"program\.json:2:3: not JSON"):
        train_on(world.table, NAMES, config(tmp_path, path))
    path.write_text(json.dumps([{"name": "eta", "expr": "eta_ss", "fill": 0.0}]))
    with pytest.raises(TrainingError, match=r"unknown .*'eta_ss'"):
        train_on(world.table, NAMES, config(tmp_path, path))


def test_progress_names_the_stages_in_order(world: World, program_file: Path, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    report = train_on(
        world.table.slice(0, 900), NAMES, config(tmp_path, program_file, max_epochs=4),
        lambda stage, done, total, text: heard.append((stage, done, total)),
    )  # fmt: skip
    assert list(dict.fromkeys(stage for stage, _, _ in heard)) == ["read", "fit", "evaluate", "publish"]
    assert ("read", 900, 900) in heard and all(done <= total for _, done, total in heard)
    assert set(report.seconds) == {"read", "fit", "evaluate", "publish"}


def test_importing_the_room_imports_no_torch_and_no_onnxruntime() -> None:
    code = "import sys, pipelines.training as t; t.TrainConfig; print([m for m in ('torch', 'onnx', 'onnxruntime', 'pandas') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_trainer_never_sees_the_simulated_truth() -> None:
    for path in (ROOT / "pipelines" / "training").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [f"{node.module}.{a.name}" for a in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not [m for m in modules if m.startswith("pipelines.sim")], path

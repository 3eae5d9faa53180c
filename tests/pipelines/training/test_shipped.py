"""The public entry on what is shipped: a sample log on disk, the shipped strategy, catalogue and column program."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.model import ColumnProgram, check_names, load_model
from features.loader import load_catalogue
from features.records import SAMPLES, Sample, encode
from features.registry import Registry, local_registry
from features.rows import DTYPES, FeatureBatch, to_served
from features.spec import Catalogue
from features.topics import Message
from pipelines.sample_log import SampleLogWriter
from pipelines.training import GateConfig, TrainConfig, TrainingError, train
from pipelines.training.names import DEFINITIONS_DIR, STRATEGIES_DIR, strategy_of
from pipelines.training.trainer import _program
from tests.pipelines.training.worlds import START_MS, STRATEGY, make_decision

NUM = 900
SEED = 5
ROLES = {"driver": "driver_activity", "driver_state": "driver_state", "pickup_zone": "zone_demand"}


class Topic:
    """A samples topic with one partition, at hand."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._messages = [
            Message(topic=SAMPLES, partition=0, offset=n, key=s.sample_id.encode(), value=encode(s), timestamp_ms=0)
            for n, s in enumerate(samples)
        ]

    def end_offsets(self) -> dict[int, int]:
        return {0: len(self._messages)}

    def read(self, start: Mapping[int, int]) -> Iterable[Message]:
        return self._messages[start.get(0, 0) :]


@cache
def catalogue() -> Catalogue:
    return load_catalogue(DEFINITIONS_DIR)


@cache
def shipped_registry() -> Registry:
    return local_registry(catalogue())


def served(view_name: str, rows: int, values: Mapping[str, np.ndarray], rng: np.random.Generator) -> Any:
    """Every feature of a shipped view: the given values, and noise of its type for the others."""
    view = catalogue().views[view_name]
    columns: dict[str, np.ndarray] = {}
    for spec in view.features:
        noise = rng.integers(0, 9, rows)
        column = values.get(spec.name, noise.astype(str).astype(object) if spec.type == "string" else noise)
        columns[spec.name] = np.asarray(column).astype(DTYPES[spec.type])
    num_features = len(view.features)
    return to_served(
        FeatureBatch(
            view=view_name,
            generation=1,
            applied_through_ms=START_MS,
            names=tuple(columns),
            types=tuple(spec.type for spec in view.features),
            columns=columns,
            valid={name: np.ones(rows, dtype=bool) for name in columns},
            statuses=np.zeros((rows, num_features), dtype=np.uint8),
            ages_ms=np.full((rows, num_features), -1, dtype=np.int64),
        )
    )


def shipped_samples() -> list[Sample]:
    """Two versions of each sample: open, then answered. Acceptance falls with eta and rises with the driver's rate."""
    rng = np.random.default_rng(SEED)
    samples = []
    for number in range(NUM):
        at_ms, chosen = START_MS + 1_000 * number, int(rng.integers(0, 3))
        eta, rate = rng.uniform(60, 900, 3), rng.beta(6, 2, 3)
        features = {
            "driver": served("driver_activity", 3, {"accept_rate_24h": rate}, rng),
            "driver_state": served("driver_state", 3, {}, rng),
            "pickup_zone": served("zone_demand", 1, {}, rng),
        }
        decision = make_decision(
            number, at_ms=at_ms, order=f"o-{number}", chosen=chosen, features=features,
            schema_fingerprint=shipped_registry().fingerprint, request={"order_id": f"o-{number}", "pickup_zone": 5, "fare_cents": 1500, "distance_m": 4000, "hour": number % 24},
            candidates={"eta_s": eta.tolist(), "pickup_distance_m": (eta * 8).tolist(), "state": ["idle"] * 3},
        )  # fmt: skip
        p = 1 / (1 + np.exp(-(2.5 - eta[chosen] / 150 + 6 * (rate[chosen] - 0.75))))
        accepted = int(rng.random() < p)
        common: dict[str, Any] = {
            "sample_id": decision.decision_id, "order_id": decision.order_id, "strategy": STRATEGY, "event_time_ms": at_ms,
        }  # fmt: skip
        samples.append(
            Sample(**common, version=1, kind="provisional", closed=False, ingest_time_ms=at_ms,
                   labels={"accepted": None, "completed": None}, label_times_ms={"accepted": None, "completed": None},
                   decision=msgspec.Raw(encode(decision)))
        )  # fmt: skip
        samples.append(
            Sample(**common, version=2, kind="positive" if accepted else "negative", closed=True, ingest_time_ms=at_ms + 9,
                   labels={"accepted": accepted, "completed": accepted or None},
                   label_times_ms={"accepted": at_ms + 9, "completed": at_ms + 9 if accepted else None}, propensity_valid=True)
        )  # fmt: skip
    return samples


@pytest.fixture(scope="module")
def samples_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    with SampleLogWriter(Topic(shipped_samples()), folder) as writer:
        writer.catch_up()
    return folder


def test_shipped_program_reads_only_names_that_the_shipped_strategy_has() -> None:
    config = TrainConfig(samples_dir=Path(), models_dir=Path())
    names = strategy_of(config).names
    _, program = _program(config, names)
    assert isinstance(program, ColumnProgram)
    roles = {name.partition(".")[0] for name in program.reads if "." in name}
    assert roles == set(ROLES)  # streaming features of every role are used


def test_sample_log_on_disk_becomes_a_model_that_the_strategy_can_use(samples_dir: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        samples_dir=samples_dir, models_dir=tmp_path, gate=GateConfig(max_latency_ms=500.0), num_bootstrap=200
    )
    report = train(config)
    assert report.rows_in == NUM and report.rows_used == NUM and report.left_out == {} and report.notes == []
    assert report.promoted, report.gate["refused"]
    assert report.metrics["test"]["auc"]["value"] > 0.75
    model = load_model(tmp_path / "accept" / "versions" / report.version)
    check_names(model, strategy_of(config).names)


def test_a_log_that_is_empty_absent_or_damaged_fails_with_what_to_do(samples_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="is empty: run the sample job"):
        train(TrainConfig(samples_dir=tmp_path, models_dir=tmp_path))
    with pytest.raises(TrainingError, match=r"no sample log at .*none"):
        train(TrainConfig(samples_dir=tmp_path / "none", models_dir=tmp_path))
    damaged = tmp_path / "damaged"
    shutil.copytree(samples_dir, damaged)
    (block,) = damaged.rglob("*.parquet")
    block.write_bytes(block.read_bytes()[:-1])
    with pytest.raises(TrainingError, match=r"\.parquet: .* bytes that are not the ones its manifest names"):
        train(TrainConfig(samples_dir=damaged, models_dir=tmp_path))


def test_an_unknown_strategy_lists_the_known_ones(samples_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no such strategy; .* has express_dispatch, rider_coupon"):
        train(TrainConfig(samples_dir=samples_dir, models_dir=tmp_path, strategy="expres"))


def edited_definitions(folder: Path) -> Path:
    """The shipped catalogue with one feature more, whose meaning is another feature's."""
    shutil.copytree(DEFINITIONS_DIR, folder)
    path = folder / "views" / "driver_activity.yaml"
    text = path.read_text()
    assert text.count("  completed_1h:") == 1
    line = text[text.index("  completed_1h:") :].split("\n", 1)[0]
    path.write_text(text.replace(line, line + "\n" + line.replace("completed_1h", "finished_1h")))
    return folder


def edited_strategy(path: Path, name: str = STRATEGY) -> Path:
    """The shipped strategy with one request field more."""
    text = (STRATEGIES_DIR / f"{STRATEGY}.yaml").read_text()
    assert text.count("  hour: int\n") == 1 and text.count(f"strategy: {STRATEGY}\n") == 1
    text = text.replace("  hour: int\n", "  hour: int\n  tip_cents: int\n")
    path.write_text(text.replace(f"strategy: {STRATEGY}\n", f"strategy: {name}\n"))
    return path


def test_names_come_from_the_registry_the_definitions_and_the_strategy_file_that_are_given(tmp_path: Path) -> None:
    definitions = edited_definitions(tmp_path / "definitions")
    file = edited_strategy(tmp_path / f"{STRATEGY}.yaml")
    common: dict[str, Any] = {"samples_dir": tmp_path, "models_dir": tmp_path}
    registry = local_registry(load_catalogue(definitions))
    shipped = strategy_of(TrainConfig(**common))
    assert shipped.schema_fingerprint == shipped_registry().fingerprint != registry.fingerprint
    assert not {"driver.finished_1h", "tip_cents"} & shipped.names.keys()
    for given in ({"definitions_dir": definitions}, {"registry": registry}):
        edited = strategy_of(TrainConfig(**common, strategy_file=file, **given))
        assert edited.names.keys() - shipped.names.keys() == {"driver.finished_1h", "tip_cents"}
        assert edited.schema_fingerprint == registry.fingerprint
    with pytest.raises(TrainingError, match="not both"):
        TrainConfig(**common, registry=registry, definitions_dir=definitions)


def test_a_strategy_file_of_another_strategy_is_refused(tmp_path: Path) -> None:
    file = edited_strategy(tmp_path / "night.yaml", "night_dispatch")
    with pytest.raises(
        TrainingError, match=r"night\.yaml declares strategy 'night_dispatch', .* --strategy night_disp"
    ):
        strategy_of(TrainConfig(samples_dir=tmp_path, models_dir=tmp_path, strategy_file=file))


def test_decisions_made_under_other_features_are_told_with_both_fingerprints(samples_dir: Path, tmp_path: Path) -> None:
    definitions = edited_definitions(tmp_path / "definitions")
    ours, theirs = local_registry(load_catalogue(definitions)).fingerprint, shipped_registry().fingerprint
    told = rf"{NUM} of {NUM} decisions .* other features .*{ours[:12]}; {theirs[:12]} in {NUM}\)"
    options: dict[str, Any] = {"samples_dir": samples_dir, "models_dir": tmp_path / "models", "num_bootstrap": 20}
    (note,) = train(TrainConfig(**options, definitions_dir=definitions, max_epochs=1, promote=False)).notes
    assert re.search(told, note), note
    # A program that reads the new feature finds no sample that carries it: the same words say why.
    program = tmp_path / "program.json"
    program.write_text('[{"name": "finished", "expr": "driver.finished_1h", "fill": 0.0}]')
    with pytest.raises(TrainingError, match=rf"{NUM} feature_not_served .*finished_1h.*{told}"):
        train(TrainConfig(**options, definitions_dir=definitions, program=program))
    with pytest.raises(TrainingError, match=r"unknown .*finished_1h"):
        train(TrainConfig(**options, program=program))

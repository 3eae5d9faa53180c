"""Model directories and the champion: whole or not at all, recorded, and never silently wrong."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.model import champion_version
from pipelines.training import history_of, list_models, promote, rollback
from pipelines.training import publish as publish_module
from pipelines.training.model_dir import ModelFiles, PublishError, StagedModel, read_manifest, read_weights

PASSED: dict[str, Any] = {"passed": True, "refused": [], "checks": []}
REFUSED: dict[str, Any] = {"passed": False, "refused": ["log-loss too high"], "checks": []}
NAME = "accept"


def files(weight: float = 1.0) -> ModelFiles:
    return ModelFiles(
        onnx=b"graph %f" % weight, program=[{"name": "eta", "expr": "eta_s", "fill": 0.0}],
        golden_x=np.zeros((1, 1), dtype=np.float32), golden_p=np.array([0.5]),
        weights={"w": np.array([weight], dtype=np.float32)}, report={"rows": 1},
    )  # fmt: skip


def publish(models: Path, weight: float = 1.0, gate: dict[str, Any] = PASSED) -> str:
    with StagedModel(models, NAME, files(weight), {"strategy": "s", "label": "accepted", "created_ms": 5}) as staged:
        return staged.publish(gate)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Three versions; nothing promoted."""
    for weight in (1.0, 2.0, 3.0):
        publish(tmp_path, weight)
    return tmp_path


def version_dir(models: Path, version: str) -> Path:
    return models / NAME / "versions" / version


def test_versions_count_up_and_the_hash_follows_the_content_only(models: Path) -> None:
    assert publish(models, 1.0) == "v0004"
    hashes = [read_manifest(version_dir(models, v))["model_hash"] for v in ("v0001", "v0002", "v0004")]
    assert hashes[0] == hashes[2] != hashes[1]
    assert read_weights(version_dir(models, "v0002"))["w"].tolist() == [2.0]


def test_a_run_that_fails_before_publishing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), StagedModel(tmp_path, NAME, files(), {}):
        raise RuntimeError("the graph differs")
    assert list((tmp_path / NAME / "versions").iterdir()) == []
    assert list_models(tmp_path) == []


def test_what_a_killed_run_left_is_removed_by_a_later_one(models: Path) -> None:
    versions = models / NAME / "versions"
    for name, age_s in (("old", 7200), ("fresh", 5)):
        left = versions / f".staged-{name}"
        left.mkdir()
        (left / "model.onnx").write_bytes(b"x")
        os.utime(left, (time.time() - age_s,) * 2)
    publish(models)
    assert [p.name for p in versions.glob(".staged-*")] == [".staged-fresh"]
    assert {entry.version for entry in list_models(models)} == {"v0001", "v0002", "v0003", "v0004"}


def test_no_pickle_is_written(models: Path) -> None:
    for path in version_dir(models, "v0001").iterdir():
        assert path.suffix in {".json", ".onnx", ".npz", ".safetensors"}
        assert not path.read_bytes().startswith(b"\x80")  # a pickle's first byte


@pytest.mark.parametrize("file", ["model.onnx", "program.json", "golden.json", "report.json"])
def test_one_changed_byte_is_found_and_named(models: Path, file: str) -> None:
    path = version_dir(models, "v0002") / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(PublishError, match=f"{file} was changed"):
        read_manifest(path.parent)
    with pytest.raises(PublishError, match=f"{file} was changed"):
        promote(models, NAME, "v0002", "ana", "try")
    assert champion_version(models, NAME) is None
    problems = {entry.version: entry.problem for entry in list_models(models)}
    assert problems["v0001"] is None and file in str(problems["v0002"])


def test_missing_added_and_relabelled_files_are_found(models: Path) -> None:
    (version_dir(models, "v0001") / "golden.json").unlink()
    with pytest.raises(PublishError, match=r"golden\.json is missing"):
        read_manifest(version_dir(models, "v0001"))
    (version_dir(models, "v0002") / "extra.bin").write_bytes(b"x")
    with pytest.raises(PublishError, match=r"extra\.bin is not in the manifest"):
        read_manifest(version_dir(models, "v0002"))
    manifest = json.loads((version_dir(models, "v0003") / "manifest.json").read_text())
    (version_dir(models, "v0003") / "manifest.json").write_text(json.dumps(manifest | {"model_hash": "0" * 64}))
    with pytest.raises(PublishError, match="model_hash is not the hash"):
        read_manifest(version_dir(models, "v0003"))
    (version_dir(models, "v0003") / "manifest.json").write_text("{")
    with pytest.raises(PublishError, match="cannot be read"):
        read_manifest(version_dir(models, "v0003"))


def test_promotion_is_recorded_once_and_repeating_it_changes_nothing(models: Path) -> None:
    first = promote(models, NAME, "v0001", "ana", "first model", now_ms=1000)
    assert first.changed and first.before is None and champion_version(models, NAME) == "v0001"
    assert (models / NAME / "champion").read_bytes() == b"v0001\n"
    assert not promote(models, NAME, "v0001", "ana", "first model", now_ms=2000).changed
    (line,) = (models / NAME / "history.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "time_ms": 1000, "move": "promote", "actor": "ana", "reason": "first model", "from": None, "to": "v0001", "forced": False,
    }  # fmt: skip


def test_rollback_walks_back_through_champions_and_never_forth(models: Path) -> None:
    for version in ("v0001", "v0002", "v0003"):
        promote(models, NAME, version, "ana", "better")
    assert rollback(models, NAME, "bo", "worse at night").champion == "v0002"
    assert not rollback(models, NAME, "bo", "retry of the same", leave="v0003").changed
    assert rollback(models, NAME, "bo", "still worse").champion == "v0001"
    with pytest.raises(PublishError, match="first champion") as caught:
        rollback(models, NAME, "bo", "even so")
    assert "`hailstream models promote accept VERSION --reason …` with v0002, v0003" in str(caught.value)
    promote(models, NAME, "v0003", "ana", "fixed")
    assert rollback(models, NAME, "bo", "no").champion == "v0001"
    assert [(m.move, m.from_version, m.to_version) for m in history_of(models, NAME)][-2:] == [
        ("promote", "v0001", "v0003"),
        ("rollback", "v0003", "v0001"),
    ]


def test_rollback_from_the_only_version_says_to_train_another(tmp_path: Path) -> None:
    publish(tmp_path)
    promote(tmp_path, NAME, "v0001", "ana", "first")
    with pytest.raises(PublishError, match=r"v0001 is the first champion.* the only version: train another"):
        rollback(tmp_path, NAME, "bo", "worse")
    assert champion_version(tmp_path, NAME) == "v0001" and len(history_of(tmp_path, NAME)) == 1


def test_rollback_to_a_broken_version_is_refused_and_the_champion_stays(models: Path) -> None:
    promote(models, NAME, "v0001", "ana", "x")
    promote(models, NAME, "v0002", "ana", "y")
    (version_dir(models, "v0001") / "model.onnx").write_bytes(b"other")
    with pytest.raises(PublishError, match=r"model\.onnx was changed"):
        rollback(models, NAME, "bo", "z")
    assert champion_version(models, NAME) == "v0002" and len(history_of(models, NAME)) == 2


def test_refused_model_is_promoted_only_by_force_and_history_says_so(models: Path) -> None:
    version = publish(models, 9.0, REFUSED)
    with pytest.raises(PublishError, match="the gate refused it: log-loss too high"):
        promote(models, NAME, version, "ana", "hope")
    assert promote(models, NAME, version, "ana", "known flaw in the test week", force=True).changed
    assert history_of(models, NAME)[-1].forced


def test_unknown_names_and_versions_list_the_known_ones(models: Path) -> None:
    with pytest.raises(PublishError, match="no model 'acept'; known: accept"):
        promote(models, "acept", "v0001", "ana", "typo")
    with pytest.raises(PublishError, match="no version 'v9'; known: v0001, v0002, v0003"):
        promote(models, NAME, "v9", "ana", "typo")
    with pytest.raises(PublishError, match="no champion to roll back from"):
        rollback(models, NAME, "ana", "early")
    with pytest.raises(PublishError, match="model name"):
        StagedModel(models, "../x", files(), {})


@pytest.mark.parametrize("move", ["promote", "rollback"])
def test_a_death_between_history_and_rename_is_completed_by_the_retry(
    models: Path, monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    promote(models, NAME, "v0001", "ana", "x")
    promote(models, NAME, "v0002", "ana", "y")
    lines = len(history_of(models, NAME))

    def dies(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    def again() -> str:
        if move == "promote":
            return promote(models, NAME, "v0003", "ana", "z").champion
        return rollback(models, NAME, "ana", "z", leave="v0002").champion

    with monkeypatch.context() as patch:
        patch.setattr(publish_module, "write_atomic", dies)
        with pytest.raises(KeyboardInterrupt):
            again()
    assert champion_version(models, NAME) == "v0002"  # readers still see the old champion, whole
    assert again() == ("v0003" if move == "promote" else "v0001")
    assert len(history_of(models, NAME)) == lines + 1


def test_a_half_written_history_line_is_dropped_and_later_lines_stay_readable(models: Path) -> None:
    promote(models, NAME, "v0001", "ana", "x")
    with (models / NAME / "history.jsonl").open("ab") as file:
        file.write(b'{"time_ms": 12, "move": "prom')
    promote(models, NAME, "v0002", "ana", "y")
    assert [m.to_version for m in history_of(models, NAME)] == ["v0001", "v0002"]
    (models / NAME / "history.jsonl").write_text("nonsense\n")
    with pytest.raises(PublishError, match=r"history\.jsonl:1: not a history line"):
        history_of(models, NAME)


def _promote_both(models: Path, barrier: Any) -> None:
    barrier.wait(timeout=60)
    for i in range(20):
        promote(models, NAME, f"v000{1 + (i + os.getpid()) % 2}", "p", "race")


def test_moves_of_two_processes_exclude_each_other_and_readers_see_whole_names(models: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    workers = [context.Process(target=_promote_both, args=(models, barrier)) for _ in range(2)]
    for worker in workers:
        worker.start()
    barrier.wait(timeout=60)
    seen = set()
    while any(worker.is_alive() for worker in workers):
        seen.add(champion_version(models, NAME))
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert seen <= {None, "v0001", "v0002"}
    history = history_of(models, NAME)
    for earlier, later in pairwise(history):
        assert later.from_version == earlier.to_version != later.to_version
    assert champion_version(models, NAME) == history[-1].to_version

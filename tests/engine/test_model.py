"""A model directory serves only when every file is what its manifest says and the golden rows come out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.model import ColumnProgram, ModelError, champion_version, check_names, load_model
from features.expr import Column, Mistakes, parse_type
from tests.engine.support import SINK_ENTRIES, SINK_NAMES, promote, write_model

WEIGHTS = [-1.0, 2.0, 0.01, 0.5, 0.001, 0.2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path, "accept", "v0001", SINK_ENTRIES, SINK_NAMES, weights=WEIGHTS, bias=-0.5)


def column(values: list[object], dtype: object) -> Column:
    valid = np.array([value is not None for value in values])
    filled = np.array([0 if value is None else value for value in values], dtype=dtype)  # type: ignore[call-overload]
    return Column(filled, valid)


def columns() -> dict[str, Column]:
    return {
        "eta_s": column([120.0, None, 600.0], np.float64),
        "driver.accept_rate": column([0.9, 0.5, 0.1], np.float64),
        "driver.offers": column([3, None, 0], np.int64),
        "vip": column([True, False, None], np.bool_),
        "zone.avg_fare": column([None], np.float64),
        "hour": column([19], np.int64),
    }


def test_scores_are_the_graph_over_the_column_program_with_fills(folder: Path) -> None:
    model = load_model(folder)
    x = np.array(
        [[0.2, 0.9, 3.0, 1.0, 2.0, 1.0], [0.5, 0.5, -1.0, 0.0, 2.0, 1.0], [1.0, 0.1, 0.0, 0.0, 2.0, 1.0]],
        dtype=np.float32,
    )
    assert model.program.evaluate(columns(), 3).tolist() == x.tolist()
    expected = 1.0 / (1.0 + np.exp(-(x.astype(np.float64) @ np.array(WEIGHTS) - 0.5)))
    found = model.score(columns(), 3)
    assert found.dtype == np.float64
    assert found == pytest.approx(expected, abs=1e-6)  # float32 inside the graph


def test_no_rows_are_no_probabilities(folder: Path) -> None:
    empty = {name: Column(col.values[:0], col.valid[:0]) for name, col in columns().items()}
    assert load_model(folder).score(empty, 0).shape == (0,)


@pytest.mark.parametrize("name", ["model.onnx", "program.json", "golden.json"])
def test_changed_file_is_refused(folder: Path, name: str) -> None:
    raw = (folder / name).read_bytes()
    (folder / name).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(ModelError, match=rf"{name}: sha256"):
        load_model(folder)


@pytest.mark.parametrize("name", ["model.onnx", "manifest.json"])
def test_missing_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"{name}: missing"):
        load_model(folder)


def test_hash_of_the_whole_is_checked(folder: Path) -> None:
    edit_manifest(folder, model_hash="0" * 64)
    with pytest.raises(ModelError, match="model_hash does not match"):
        load_model(folder)


def test_unhashed_file_and_unknown_format_are_refused(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["golden.json"]
    edit_manifest(folder, files=manifest["files"])
    with pytest.raises(ModelError, match=r"must hash golden\.json"):
        load_model(folder)
    edit_manifest(folder, format=2)
    with pytest.raises(ModelError, match="format 1"):
        load_model(folder)


def test_graph_that_differs_from_its_golden_rows_is_refused(tmp_path: Path) -> None:
    wrong = write_model(tmp_path, "a", "v1", SINK_ENTRIES[:1], SINK_NAMES, weights=[1.0], nan_bias=True)
    with pytest.raises(ModelError, match="golden rows by nan"):
        load_model(wrong)


def test_graph_of_another_width_is_refused(folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path, "b", "v1", SINK_ENTRIES[:2], SINK_NAMES, weights=[1.0, 1.0])
    shutil.copy(other / "model.onnx", folder / "model.onnx")
    rehash(folder)
    with pytest.raises(ModelError, match=r"x float32 \(N, 6\)"):
        load_model(folder)


def test_expression_over_unknown_names_is_refused_with_its_place(tmp_path: Path) -> None:
    entries = [{"name": "x", "expr": "eta_s + nowhere", "fill": 0.0}]
    with pytest.raises(ModelError, match="unknown name 'nowhere'"):
        load_model(write_model(tmp_path, "a", "v1", entries, SINK_NAMES, weights=[1.0]))
    with pytest.raises(ModelError, match="a model takes numbers"):
        ColumnProgram.load([{"name": "x", "expr": "'text'", "fill": 0.0}], {})
    with pytest.raises(ModelError, match="exactly name, expr and fill"):
        ColumnProgram.load([{"name": "x", "expr": "1"}], {})
    with pytest.raises(Mistakes):
        ColumnProgram.load([{"name": "x", "expr": "1 +", "fill": 0.0}], {})


def test_model_must_fit_the_names_of_the_strategy(folder: Path) -> None:
    model = load_model(folder)
    known = {name: parse_type(text) for name, text in SINK_NAMES.items()}
    check_names(model, known)
    check_names(model, known | {"eta_s": parse_type("double")})  # never null where null was expected: fine
    with pytest.raises(ModelError, match=r"reads 'vip', which"):
        check_names(model, {name: kind for name, kind in known.items() if name != "vip"})
    for text in ("double?", "int"):
        with pytest.raises(ModelError, match=r"'driver.accept_rate: double', the strategy has"):
            check_names(model, known | {"driver.accept_rate": parse_type(text)})


def test_champion_pointer_names_one_version(tmp_path: Path) -> None:
    assert champion_version(tmp_path, "accept") is None
    (tmp_path / "accept").mkdir()
    promote(tmp_path, "accept", "v0002")
    assert champion_version(tmp_path, "accept") == "v0002"
    for wrong in ("../../etc", "", ".hidden"):
        promote(tmp_path, "accept", wrong)
        with pytest.raises(ModelError, match="not the name of a version"):
            champion_version(tmp_path, "accept")


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rehash(folder: Path) -> None:
    """Make the manifest true again after a file was changed, so that only what is inside can be wrong."""
    import hashlib

    from engine.model import model_hash

    files = json.loads((folder / "manifest.json").read_text())["files"]
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    edit_manifest(folder, files=files, model_hash=model_hash(files))

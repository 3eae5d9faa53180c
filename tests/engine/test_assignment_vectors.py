"""The published vectors: the slow twin makes exactly this file, and the product gives exactly its values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from engine.experiment import lay_out, num_steps, window_of
from engine.experiment_log import assign_many
from engine.strategy import Layer
from features.expr.hashing import draw64, hash01, hash64, hash64_array, step_key, unit_key
from tests.engine.assignment_vectors import EXPERIMENTS, FILE, experiment, text
from tests.engine.assignments import arm_of

PUBLISHED: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))


def test_the_slow_twin_makes_the_published_file() -> None:
    # A contract: another value here moves every unit of every running experiment.
    assert FILE.read_text(encoding="utf-8") == text()


def test_hashes_are_as_published() -> None:
    for case in PUBLISHED["hashes"]:
        salt, unit = case["salt"], case["unit"]
        assert f"{unit_key(unit):016x}" == case["key"]
        assert f"{draw64(salt, unit_key(unit)):016x}" == f"{hash64(salt, unit):016x}" == case["draw"]
        assert hash01(salt, unit) == case["hash01"]
        assert hash64_array(salt, [unit]).tolist() == [int(case["draw"], 16)]
        assert hash64(salt, unit) >> 40 == case["bucket"]


def test_shares_and_layouts_are_as_published() -> None:
    assert [num_steps(case["share"]) for case in PUBLISHED["steps"]] == [case["steps"] for case in PUBLISHED["steps"]]
    for case in PUBLISHED["layouts"]:
        found = lay_out(case["shares"])
        assert (list(found.arms), list(found.starts)) == (case["arms"], case["starts"])


def test_windows_are_as_published() -> None:
    for case in PUBLISHED["windows"]:
        found = experiment(
            kind="switchback",
            region="zone",
            salt=case["salt"],
            window_ms=case["window_ms"],
            offset=case["offset"],
        )
        window = window_of(found, case["region"], case["as_of_ms"])
        assert (window.index, window.start_ms, window.end_ms) == (case["index"], case["start_ms"], case["end_ms"])
        assert window.start_ms <= case["as_of_ms"] < window.end_ms
        assert f"{step_key(unit_key(case['region']), window.index):016x}" == case["key"]


@pytest.mark.parametrize("at", range(len(EXPERIMENTS)))
def test_assignments_are_as_published_one_by_one_and_as_a_column(at: int) -> None:
    case, (found, _) = PUBLISHED["assignments"][at], EXPERIMENTS[at]
    layer = None if case["layer"] is None else Layer(name=found.layer, **case["layer"])
    for unit, as_of_ms, wanted in case["cases"]:
        assert arm_of(found, layer, unit, as_of_ms) == wanted, unit
    units = [unit for unit, _, _ in case["cases"]]
    times = np.array([as_of_ms for _, as_of_ms, _ in case["cases"]])
    names = {-1: "not_exposed", -2: "holdout", **{place: arm.name for place, arm in enumerate(found.arms)}}
    sides = assign_many(found, layer, units, times if found.kind == "switchback" else None)
    assert [names[side] for side in sides.tolist()] == [wanted for _, _, wanted in case["cases"]]
    assert len({wanted for _, _, wanted in case["cases"]}) > 1

"""`hailstream strategies test` and `coverage`: exit codes, what is printed, JSON for programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.server import SHIPPED_STRATEGIES
from engine.strategy_test import load_suite, run_case
from features.loader import SHIPPED, load_catalogue
from features.records import encode
from features.registry import local_registry
from infra.cli import app


def strategies(*words: str | Path) -> Result:
    found = CliRunner().invoke(app, ["strategies", *map(str, words)], env={"COLUMNS": "400"})
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def of(*words: str | Path, code: int = 0) -> Any:
    found = strategies(*words, "--json")
    assert found.exit_code == code, found.output
    return json.loads(found.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED_STRATEGIES, tmp_path / "strategies"))


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_shipped_strategies_pass_with_full_coverage() -> None:
    document = of("test", "--min-coverage", "1.0")
    assert {one["strategy"] for one in document["strategies"]} >= {"express_dispatch", "rider_coupon"}
    for one in document["strategies"]:
        assert one["coverage"] == 1.0
        assert all(case["passed"] and not case["failures"] for case in one["cases"])
        assert all(not item["missing"] for item in one["items"])
    assert strategies("test", "rider_coupon").exit_code == 0
    assert strategies("test", SHIPPED_STRATEGIES / "rider_coupon.yaml").exit_code == 0


def test_failure_is_shown_with_its_place_and_its_reasons(folder: Path) -> None:
    edit(folder / "tests" / "express_dispatch.yaml", "order: [d-2, d-1]\n      dropped: {}", "order: [d-1, d-2]")
    found = strategies("test", folder)
    assert found.exit_code == 1
    assert "express_dispatch.yaml:12:14: order is [d-2, d-1], expected [d-1, d-2]" in found.stdout
    assert "^^^^^^" in found.stdout
    assert "    d-1 in decision dec-" in found.stdout and "ranked 2 of 2 and not drawn" in found.stdout
    (failed,) = [
        case
        for one in of("test", folder, code=1)["strategies"]
        for case in one["cases"]
        if not case["passed"]
    ]  # fmt: skip
    assert failed["failures"][0]["mistake"]["message"] == "order is [d-2, d-1], expected [d-1, d-2]"


def test_coverage_says_what_no_case_reached_and_can_be_demanded(folder: Path) -> None:
    edit(folder / "tests" / "express_dispatch.yaml", "d-3: {eta_s: 900.5}", "d-3: {eta_s: 899.5}")
    edit(folder / "tests" / "express_dispatch.yaml", ", d-3: too_far", "")
    edit(folder / "tests" / "express_dispatch.yaml", "chosen: d-4\n", "order: [d-3, d-4]\n")
    edit(folder / "tests" / "express_dispatch.yaml", "propensities: {d-4: 1.0, d-1: 0.0}", "propensities: {d-1: 0.0}")
    edit(folder / "tests" / "express_dispatch.yaml", "d-1: {eta_s: 601}", "d-1: {eta_s: 600}")
    edit(folder / "tests" / "express_dispatch.yaml", "{dropped: {d-1: too_far}, params", "{dropped: {}, params")
    path = folder / "express_dispatch.yaml"
    found = strategies("test", path, "--coverage")
    assert found.exit_code == 0, found.stdout
    assert "rule too_far" in found.stdout and "eta_s > params.max_eta_s" in found.stdout and "fired" in found.stdout
    short = strategies("test", path, "--min-coverage", "1")
    assert short.exit_code == 1 and "is below 100.0%; --coverage shows what no case reached" in short.output
    assert strategies("test", path, "--min-coverage", "100").exit_code == 2
    assert strategies("test", path, "--min-coverage", "0.5").exit_code == 0


def test_mistakes_of_a_test_file_are_shown_with_their_places(folder: Path) -> None:
    edit(folder / "tests" / "rider_coupon.yaml", "switches: [late_evening]", "switches: [late_morning]")
    found = strategies("test", folder)
    assert found.exit_code == 1
    assert "rider_coupon.yaml:" in found.output and "no rule and no kill_switch 'late_morning'" in found.output
    assert of("test", folder, code=1)["mistakes"][0]["hint"] == "did you mean 'late_evening'?"


def test_strategy_without_tests_is_named_and_fails_a_demand(folder: Path) -> None:
    edit(folder / "rider_coupon.yaml", "tests: tests/rider_coupon.yaml\n", "")
    found = strategies("test", folder)
    assert found.exit_code == 0
    assert "no tests: " in found.stdout and "rider_coupon.yaml" in found.stdout
    assert strategies("test", folder, "--min-coverage", "0.1").exit_code == 1


def test_what_is_not_there_is_told(folder: Path) -> None:
    found = strategies("test", "no_such")
    assert found.exit_code == 1
    assert "no_such is no file, no folder and no shipped strategy; shipped are express_dispatch" in found.output
    (folder / "tests" / "rider_coupon.yaml").unlink()
    missing = strategies("test", folder)
    assert missing.exit_code == 1 and "rider_coupon.yaml" in missing.output and "Traceback" not in missing.output


def test_coverage_of_traffic_from_a_file_of_decisions(tmp_path: Path) -> None:
    suite = load_suite(SHIPPED_STRATEGIES / "express_dispatch.yaml", local_registry(load_catalogue(SHIPPED)))
    assert suite is not None
    decisions = [run_case(suite, case).decision for case in suite.cases]
    lines = [encode(decision) for decision in decisions if decision is not None and "too_far" not in decision.reasons]
    (tmp_path / "decisions.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    seen = of("coverage", "express_dispatch", "--file", tmp_path / "decisions.jsonl")
    assert seen["decisions"] == len(lines)
    rules = {rule["rule"]: rule for rule in seen["rules"]}
    assert rules["not_idle"]["fired"] == 1 and rules["too_far"]["fired"] == 0
    assert any(
        line.startswith("rule too_far never fires") and "though its tests do" in line for line in seen["findings"]
    )
    assert any(one["comparison"] == "eta_s > params.max_eta_s" and one["values"] for one in seen["thresholds"])
    last = of("coverage", "express_dispatch", "--file", tmp_path / "decisions.jsonl", "--decisions", "2")
    assert last["decisions"] == 2
    shown = strategies("coverage", "express_dispatch", "--file", tmp_path / "decisions.jsonl")
    assert shown.exit_code == 0 and "eta_s > params.max_eta_s" in shown.stdout

"""`hailstream strategies check --missing`: a table for people, JSON for programs, and findings of analysis with exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from features.loader import SHIPPED
from infra.cli import app

TEXT = """
strategy: one
version: 1
request: {hour: int}
candidates: {key: id, fields: {eta_s: 'double?'}}
rules:
  - {id: unknown_eta, drop_when: eta_s == null}
  - {id: far, drop_when: eta_s > 600.0}
score: 0.0 - eta_s
"""


def check(*words: str | Path) -> Result:
    given = ["strategies", "check", *map(str, words), "--definitions", str(SHIPPED)]
    found = CliRunner().invoke(app, given, env={"COLUMNS": "400"})
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def test_a_table_says_what_each_reader_makes_of_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(TEXT)
    found = check(tmp_path, "--missing")
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    first = next(line for line in lines if line.startswith("eta_s"))
    words = " ".join(first.split())
    assert words == "eta_s null null rule unknown_eta drops the candidate; eta_s == null is true null test"
    assert any("rule far" in line and "is not reached: rule unknown_eta drops the candidate" in line for line in lines)


def test_the_report_is_there_for_programs(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(TEXT)
    reports = json.loads(check(tmp_path, "--missing", "--json").output)["missing"]
    assert [one["strategy"] for one in reports] == ["one"]
    effects = {e["reader"]: (e["codes"], e["declared_by"]) for e in reports[0]["missing"][0]["effects"]}
    assert effects["rule unknown_eta"] == (["drops"], "null test")
    assert effects["score"] == (["not_reached"], "rule")
    assert "missing" not in json.loads(check(tmp_path, "--json").output)


def test_an_error_of_analysis_fails_the_check_and_a_warning_does_not(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(TEXT.replace("eta_s > 600.0", "eta_s > 600.0 && eta_s < 60.0"))
    found = check(path, "--json")
    assert found.exit_code == 1
    assert [m["code"] for m in json.loads(found.output)["mistakes"] if m["severity"] == "error"] == ["never-fires"]
    path.write_text(TEXT.replace("rules:", "let: {never_read: hour + 1}\nrules:"))
    assert check(path).exit_code == 0 and "let 'never_read' is never read" in check(path).output

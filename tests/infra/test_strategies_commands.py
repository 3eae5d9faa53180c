"""`hailstream strategies check | apply | retire | list | show | diff`: exit codes, what is printed, JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.files import read_notes
from features.loader import SHIPPED
from infra.cli import app

TEXT = """
strategy: one
version: 1
request: {hour: int}
candidates: {key: id, fields: {eta_s: double}}
params: {limit: {type: double, default: 600}}
rules:
  - {id: far, drop_when: eta_s > params.limit}
score: 0.0 - eta_s
"""


@pytest.fixture
def author(tmp_path: Path) -> Path:
    folder = tmp_path / "author"
    folder.mkdir()
    (folder / "one.yaml").write_text(TEXT)
    return folder


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "applied"


def edit(author: Path, before: str, after: str, *, version: int) -> Path:
    path = author / "one.yaml"
    path.write_text(TEXT.replace(before, after).replace("version: 1", f"version: {version}"))
    return path


def strategies(*words: str | Path) -> Result:
    env = {"COLUMNS": "400", "USER": "ann", "HAILSTREAM_STRATEGIES": ""}
    found = CliRunner().invoke(app, ["strategies", *map(str, words)], env=env)
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def put(what: str | Path, to: Path, *words: str) -> Result:
    return strategies("apply", what, "--to", to, "--reason", "because", "--definitions", SHIPPED, *words)


def of(*words: str | Path) -> Any:
    found = strategies(*words, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def test_apply_twice_then_a_new_version_then_back(author: Path, to: Path) -> None:
    first = put(author / "one.yaml", to)
    assert first.exit_code == 0 and f"one: version 1 is live in {to} (apply, " in first.output
    assert "version 1 is live already; nothing changed" in put(author, to).output
    edit(author, "600", "700", version=2)
    assert "before it 1" in put(author, to).output
    assert "version 1 is live" in put("one", to, "--version", "1", "--actor", "bob").output
    assert [(n["event"], n["to_version"], n["actor"], n["reason"]) for n in read_notes(to)] == [
        ("apply", 1, "ann", "because"), ("apply", 2, "ann", "because"), ("rollback", 1, "bob", "because"),
    ]  # fmt: skip
    listed = of("list", "--strategies", to)
    assert (listed["one"]["version"], listed["one"]["actor"]) == (1, "ann")
    assert "1, 2" in strategies("list", "--strategies", to).output
    assert "is retired" in strategies("retire", "one", "--reason", "old", "--strategies", to).output
    assert of("list", "--strategies", to) == {}


def test_apply_shows_all_mistakes_of_all_files_and_applies_nothing(author: Path, to: Path) -> None:
    edit(author, "eta_s > params.limit", "etas > params.limit", version=1)
    (author / "two.yaml").write_text(TEXT.replace("strategy: one", "strategy: two").replace("0.0 - eta_s", "0.0 - lat"))
    (author / "three.yaml").write_text(TEXT.replace("strategy: one", "strategy: three"))
    found = put(author, to)
    assert found.exit_code == 1
    assert "one.yaml:8:26: unknown name 'etas'" in found.output and "unknown name 'lat'" in found.output
    assert not to.exists()


def test_apply_refuses_other_content_under_one_version(author: Path, to: Path) -> None:
    put(author, to)
    edit(author, "600", "700", version=1)
    found = put(author, to)
    assert found.exit_code == 1 and "was applied with other content by ann" in found.output


def test_apply_of_nothing_is_an_error(tmp_path: Path, to: Path) -> None:
    assert "no strategy file" in put(tmp_path, to).output
    assert put(tmp_path / "none.yaml", to).exit_code == 1
    assert put("one", to, "--version", "1").exit_code == 1


def test_show_tells_who_and_why_and_the_text(author: Path, to: Path) -> None:
    put(author, to)
    edit(author, "600", "700", version=2)
    put(author, to)
    shown = strategies("show", "one", "--strategies", to).output
    assert "by ann: because" in shown and "kept versions: 1, 2" in shown and "default: 700" in shown
    found = of("show", "one", "--version", "1", "--strategies", to)
    assert (found["version"], found["content"]["params"]["limit"]["default"]) == (1, 600)
    assert (found["text"], [kept["version"] for kept in found["history"]]) == (TEXT, [1, 2])
    missing = strategies("show", "on", "--strategies", to)
    assert missing.exit_code == 1 and "did you mean 'one'?" in missing.output
    assert strategies("show", "one").exit_code == 2  # of which folder?


def test_diff_is_by_meaning_and_by_text(author: Path, to: Path) -> None:
    put(author, to)
    edit(author, "600", "700", version=2)
    put(author, to)
    expected = [("version", "", "changed"), ("params", "limit", "changed")]
    for words in ((), ("1",), ("1", "2")):
        found = of("diff", "one", *words, "--strategies", to)
        assert [(c["section"], c["name"], c["what"]) for c in found["changes"]] == expected
        assert "-params: {limit: {type: double, default: 600}}" in found["text"]
    draft = edit(author, "600", "800", version=3)
    found = of("diff", "one", "2", draft, "--strategies", to)
    assert found["changes"][1]["after"] == {"type": "double", "default": 800}
    plain = strategies("diff", "one", "--strategies", to).output
    assert "params" in plain and "changed" in plain and "+params" in plain
    assert "nothing differs" in strategies("diff", "one", "1", "1", "--strategies", to).output


def test_check_prints_json_with_codes_and_its_exit_code(author: Path) -> None:
    good = strategies("check", author, "--definitions", SHIPPED, "--json")
    assert good.exit_code == 0
    assert json.loads(good.output)["strategies"][0] | {"hash": "", "file": ""} == {
        "strategy": "one", "version": 1, "hash": "", "file": "",
    }  # fmt: skip
    edit(author, "eta_s > params.limit", "etas > params.limit", version=1)
    bad = strategies("check", author / "one.yaml", "--definitions", SHIPPED, "--json")
    assert bad.exit_code == 1
    mistakes = json.loads(bad.output)["mistakes"]
    place = next(m for m in mistakes if "etas" in m["message"])
    assert (place["line"], place["col"], place["severity"]) == (8, 26, "error") and place["code"] == "unknown-name"


def test_check_shows_warnings_and_they_do_not_fail(author: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from features.expr import Mistake

    warning = Mistake("unused", str(author / "one.yaml"), 3, 1, 8, "nothing reads it", severity="warning")
    monkeypatch.setattr("engine.check.ANALYSES", (lambda compiled: [warning],))
    plain = strategies("check", author, "--definitions", SHIPPED)
    assert plain.exit_code == 0 and "one.yaml:3:1: warning: nothing reads it" in plain.output
    found = json.loads(strategies("check", author, "--definitions", SHIPPED, "--json").output)
    assert "warning" in {m["severity"] for m in found["mistakes"]}


def test_two_files_with_one_strategy_are_a_mistake(author: Path) -> None:
    (author / "copy.yaml").write_text(TEXT)
    found = strategies("check", author, "--definitions", SHIPPED)
    assert found.exit_code == 1 and "strategy 'one' is already in" in found.output


def test_check_tells_a_broken_file_from_none(author: Path) -> None:
    broken = strategies("check", edit(author, "eta_s > ", "eta > ", version=1), "--definitions", SHIPPED)
    assert broken.exit_code == 1 and "unknown name 'eta'" in broken.output and "no strategy" not in broken.output
    (author / "one.yaml").unlink()
    nothing = strategies("check", author, "--definitions", SHIPPED)
    assert nothing.exit_code == 1 and "a strategy is a file NAME.yaml" in nothing.output
    gone = strategies("check", author / "one.yaml", "--definitions", SHIPPED)
    assert gone.exit_code == 1 and f"error: there is no {author / 'one.yaml'}" in gone.output

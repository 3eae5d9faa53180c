"""`hailstream strategies kill | revive | switches`: what is written, what is refused, what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.switches import SWITCHES, read_switches
from infra.cli import app

TEXT = """
strategy: one
version: 1
request: {hour: int}
candidates: {key: id, fields: {eta_s: double}}
rules:
  - {id: far, drop_when: eta_s > 600.0, kill_switch: ks.far}
score: 0.0 - eta_s
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.yaml").write_text(TEXT)
    return tmp_path


def hailstream(folder: Path, *words: str) -> Result:
    found = CliRunner().invoke(
        app, ["strategies", *words], env={"COLUMNS": "300", "HAILSTREAM_STRATEGIES": str(folder), "USER": "ann"}
    )
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def test_kill_list_and_revive(folder: Path) -> None:
    killed = hailstream(folder, "kill", "rule:one/far", "--reason", "drops [everybody]")
    assert killed.exit_code == 0
    assert "rule:one/far is off since" in killed.output and "by ann: drops [everybody]" in killed.output
    again = hailstream(folder, "kill", "rule:one/far", "--reason", "me too", "--actor", "bob")
    assert again.exit_code == 0 and "has been off since" in again.output and "by ann" in again.output
    listed = json.loads(hailstream(folder, "switches", "--json").output)
    assert [(s["target"], s["actor"], s["reason"], s["problem"]) for s in listed] == [
        ("rule:one/far", "ann", "drops [everybody]", None)
    ]
    revived = hailstream(folder, "revive", "rule:one/far", "--reason", "repaired")
    assert "is on again; ann had switched it off" in revived.output
    assert read_switches(folder).killed == {}
    assert "nothing is switched off" in hailstream(folder, "switches").output
    assert "is not off" in hailstream(folder, "revive", "rule:one/far", "--reason", "again").output


def test_a_target_that_reaches_nothing_is_refused_unless_forced(folder: Path) -> None:
    refused = hailstream(folder, "kill", "rule:one/fat", "--reason", "r")
    assert refused.exit_code == 1
    assert "did you mean 'far'?" in refused.output
    assert not (folder / SWITCHES).exists()
    assert hailstream(folder, "kill", "rule:one/fat", "--reason", "r", "--force").exit_code == 0
    assert "rule:one/fat switches nothing off: strategy 'one' has no rule" in hailstream(folder, "switches").output


def test_kill_needs_no_applied_features_and_no_file_that_compiles(folder: Path) -> None:
    (folder / "one.yaml").write_text(TEXT.replace("score: 0.0 - eta_s", "score: nonsense +"))
    assert hailstream(folder, "kill", "switch:ks.far", "--reason", "r").exit_code == 0
    (folder / "two.yaml").write_text("strategy: [")
    refused = hailstream(folder, "kill", "strategy:two", "--reason", "r")
    assert refused.exit_code == 1 and "not readable: two.yaml" in refused.output


@pytest.mark.parametrize("words", [("kill", "far", "--reason", "r"), ("revive", "strategi:one", "--reason", "r")])
def test_what_is_no_target_is_refused(folder: Path, words: tuple[str, ...]) -> None:
    found = hailstream(folder, *words)
    assert found.exit_code == 1 and "is no target of a switch" in found.output


def test_a_switches_file_that_cannot_be_read_is_said(folder: Path) -> None:
    (folder / SWITCHES).write_text("{")
    for words in (
        ("kill", "strategy:one", "--reason", "r"),
        ("revive", "strategy:one", "--reason", "r"),
        ("switches",),
    ):
        found = hailstream(folder, *words)
        assert found.exit_code == 1 and "repair it by hand" in found.output


def test_a_reason_is_asked_for(folder: Path) -> None:
    assert hailstream(folder, "kill", "strategy:one").exit_code == 2
    assert not (folder / SWITCHES).exists()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert hailstream(tmp_path / "none", "kill", "strategy:one", "--reason", "r").exit_code == 1


def test_text_in_brackets_is_shown_as_it_is(folder: Path) -> None:
    """The terminal library reads `[b]` and `[/b]` as its own markup."""
    hailstream(folder, "kill", "rule:one/far", "--reason", "see [bold] and [/x]")
    assert "see [bold] and [/x]" in hailstream(folder, "switches").output
    hailstream(folder, "revive", "rule:one/far", "--reason", "r")
    assert "rule:one/far is not off; nothing is" in hailstream(folder, "revive", "rule:one/far", "--reason", "r").output

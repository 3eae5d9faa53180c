"""`hailstream strategies replay`: exit codes, what is printed, JSON for programs, the page, the cache."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from features.records import Decision, encode
from infra.cli import app
from tests.engine.logged import sink_log
from tests.engine.support import HERE, KITCHEN_SINK

TOO_FAR = ("eta_s > params.max_eta_s ||", "eta_s > 0.6 * params.max_eta_s ||")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """old.yaml, what it decided (log.jsonl, log.jsonl.gz), and new.yaml, which differs in one rule."""
    folder = tmp_path_factory.mktemp("replay")
    decisions = sink_log(folder, 120, seed=11).decisions
    (folder / "log.jsonl").write_bytes(lines(decisions))
    with gzip.open(folder / "log.jsonl.gz", "wb") as file:
        file.write(lines(decisions))
    (folder / "old.yaml").write_text(KITCHEN_SINK)
    (folder / "new.yaml").write_text(KITCHEN_SINK.replace(*TOO_FAR))
    return folder


def lines(decisions: list[Decision]) -> bytes:
    return b"".join(encode(one) + b"\n" for one in decisions)


def replay(*words: str | Path) -> Result:
    env = {"COLUMNS": "300", "HAILSTREAM_STRATEGIES": ""}
    given = ["strategies", "replay", *map(str, words), "--definitions", str(HERE / "catalogue")]
    found = CliRunner().invoke(app, given, env=env)
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def document(*words: str | Path, code: int = 0) -> Any:
    found = replay(*words, "--json")
    assert found.exit_code == code, found.output
    return json.loads(found.stdout)


@pytest.mark.parametrize("log", ["log.jsonl", "log.jsonl.gz"])
def test_unchanged_strategy_is_equal(folder: Path, log: str) -> None:
    found = replay(folder / "old.yaml", "--decisions", folder / log)
    assert found.exit_code == 0, found.output
    assert "unchanged strategy: 120 decisions, equal to the bit" in found.output


def test_difference_of_an_unchanged_strategy_is_listed_and_is_exit_code_1(folder: Path, tmp_path: Path) -> None:
    decisions = [msgspec.json.decode(line, type=Decision) for line in (folder / "log.jsonl").read_bytes().splitlines()]
    at = next(at for at, one in enumerate(decisions) if one.chosen is not None)
    decisions[at] = msgspec.structs.replace(decisions[at], chosen=None)
    (tmp_path / "wrong.jsonl").write_bytes(lines(decisions))
    found = replay(folder / "old.yaml", "--decisions", tmp_path / "wrong.jsonl")
    assert found.exit_code == 1, found.output
    assert "1 differ" in found.output and decisions[at].decision_id in found.output


def test_changed_strategy_says_which_rule_did_it(folder: Path) -> None:
    words = (folder / "new.yaml", "--before", folder / "old.yaml", "--decisions", folder / "log.jsonl", "--by", "zone")
    found = document(*words)
    changed = found["changed"]
    assert found["outcome"] == "changed" and found["log"]["taken"] == 120
    assert [one["cause"] for one in changed["by_cause"]] == ["rule too_far"]
    assert changed["by_cause"][0]["changed"] == changed["first_choice"]["changed"] > 0
    assert list(changed["by"]) == ["zone"] and sum(one["decisions"] for one in changed["by"]["zone"]) == 120
    shown = replay(*words)
    assert shown.exit_code == 0 and "rule too_far" in shown.output and "by zone" in shown.output


def test_more_change_than_allowed_is_exit_code_3(folder: Path) -> None:
    words = (folder / "new.yaml", "--decisions", folder / "log.jsonl")
    assert replay(*words, "--max-changed", "0.001").exit_code == 3
    assert replay(*words, "--max-changed", "0.9").exit_code == 0


def test_old_version_is_found_in_the_folder_of_applied_strategies(folder: Path, tmp_path: Path) -> None:
    applied = tmp_path / "applied"
    given = ["--to", applied, "--reason", "first", "--actor", "ann", "--definitions", HERE / "catalogue"]
    done = CliRunner().invoke(app, ["strategies", "apply", str(folder / "old.yaml"), *map(str, given)])
    assert done.exit_code == 0, done.output
    found = document(folder / "new.yaml", "--decisions", folder / "log.jsonl", "--strategies", applied)
    assert [one["cause"] for one in found["changed"]["by_cause"]] == ["rule too_far"]


def test_times_and_limit_choose_the_decisions(folder: Path) -> None:
    words = (folder / "old.yaml", "--decisions", folder / "log.jsonl")
    assert document(*words, "--limit", "7")["decisions"] == 7
    some = document(*words, "--from", "2024-08-30T06:50", "--to", "2024-08-30T07:00")
    assert some["decisions"] == 10 and some["log"]["other_times"] == 110
    assert document(*words, "--from", "1725000600000")["decisions"] == 110


def test_cache_is_used_for_the_same_log_alone(folder: Path, tmp_path: Path) -> None:
    log, cache = tmp_path / "log.jsonl", tmp_path / "log.arrow"
    log.write_bytes((folder / "log.jsonl").read_bytes())
    words = (folder / "new.yaml", "--before", folder / "old.yaml", "--decisions", log, "--cache", cache)
    first = document(*words)
    again = document(*words)
    assert cache.is_file() and first["log"]["read"] == 120 and again["log"] is None
    assert again["changed"] == first["changed"]
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:50]))
    assert document(*words)["decisions"] == 50


def test_page_is_written(folder: Path, tmp_path: Path) -> None:
    html = tmp_path / "replay.html"
    found = replay(
        folder / "new.yaml", "--before", folder / "old.yaml", "--decisions", folder / "log.jsonl", "--html", html
    )
    assert found.exit_code == 0 and f"page: {html}" in found.output
    assert "Replay of kitchen_sink" in html.read_text()


def test_what_cannot_be_replayed_is_exit_code_2(folder: Path, tmp_path: Path) -> None:
    old, log = folder / "old.yaml", folder / "log.jsonl"
    (tmp_path / "empty.jsonl").write_bytes(b"\nnot json\n")
    (tmp_path / "broken.yaml").write_text(KITCHEN_SINK.replace("drop_when: eta_s == null", "drop_when: eta == null"))
    cases = [
        (
            (old, "--decisions", tmp_path / "empty.jsonl"),
            "no decision of kitchen_sink in the log (1 records, 1 unreadable)",
        ),
        ((old, "--decisions", tmp_path / "absent.jsonl"), "absent.jsonl"),
        ((tmp_path / "broken.yaml", "--decisions", log), "unknown name 'eta'"),
        (("nothing", "--decisions", log), "nothing is no file and no shipped strategy"),
        ((old, "--decisions", log, "--from", "soon"), "--from soon is no time"),
        ((old, "--decisions", log, "--from", "2", "--to", "1"), "no time between"),
        ((old, "--decisions", log, "--limit", "-1"), "Invalid value"),
    ]
    for words, text in cases:
        found = replay(*words)
        assert found.exit_code == 2, (words, found.output)
        assert text in found.output, (text, found.output)


def test_help_teaches() -> None:
    found = CliRunner().invoke(app, ["strategies", "replay", "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    assert "Exit codes" in found.output and "--before old.yaml --decisions log.jsonl.gz" in found.output

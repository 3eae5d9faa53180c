"""Diffs of strategies: what they say of each kind of change, and silence where only layout differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.strategy_diff import Change, Diff, diff, read_version

TEXT = """
strategy: one
version: 1
candidates: {key: id, fields: {eta_s: double, state: string}}
params: {limit: {type: double, default: 600}}
tables: {bonus: {hit: first, columns: [zone, out.x], rows: bonus.csv}}
rules:
  - {id: a, drop_when: eta_s > params.limit}
  - {id: b, drop_when: state != 'idle'}
  - {id: c, when: eta_s < 60.0, add: 1.0}
score: 0.0 - eta_s
"""
CSV = "zone,out.x\n1,10\n2,20\n*,0\n"


def changed(folder: Path, csv: str = CSV, **texts: str) -> Diff:
    """The diff between TEXT and what it becomes by the replacements, given as before_N and after_N."""
    text = TEXT
    for key, before in texts.items():
        if key.startswith("before"):
            assert before in text
            text = text.replace(before, texts[key.replace("before", "after")])
    sides = []
    for name, content, rows in (("old", TEXT, CSV), ("new", text, csv)):
        (folder / name).mkdir()
        (folder / name / "one.yaml").write_text(content)
        (folder / name / "bonus.csv").write_text(rows)
        sides.append(read_version(folder / name / "one.yaml", name))
    return diff(*sides)


def only(found: Diff) -> Change:
    (change,) = found.changes
    return change


def test_the_same_is_no_change(tmp_path: Path) -> None:
    assert changed(tmp_path) == Diff(changes=[], text="")


def test_layout_and_comments_are_text_only(tmp_path: Path) -> None:
    found = changed(tmp_path, before_1="score: 0.0 - eta_s", after_1="# nearest first\nscore:  0.0 - eta_s")
    assert found.changes == []
    assert "+# nearest first" in found.text and "--- old/one.yaml" in found.text


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (
            "  - {id: c, when: eta_s < 60.0, add: 1.0}\n",
            "",
            ("rules", "c", "removed", {"id": "c", "when": "eta_s < 60.0", "add": 1.0}, None),
        ),
        (
            "add: 1.0",
            "add: 2.0",
            ("rules", "c", "changed", {"id": "c", "when": "eta_s < 60.0", "add": 1.0},
             {"id": "c", "when": "eta_s < 60.0", "add": 2.0}),
        ),
        (
            "default: 600",
            "default: 700",
            ("params", "limit", "changed", {"type": "double", "default": 600}, {"type": "double", "default": 700}),
        ),
        ("state: string}", "state: string, km: double}", ("candidates", "fields.km", "added", None, "double")),
        ("score: 0.0 - eta_s", "score: 1.0 - eta_s", ("score", "", "changed", "0.0 - eta_s", "1.0 - eta_s")),
        ("version: 1", "version: 2", ("version", "", "changed", 1, 2)),
        ("score: 0.0", "let: {fast: eta_s < 9.0}\nscore: 0.0", ("let", "fast", "added", None, "eta_s < 9.0")),
    ],
)  # fmt: skip
def test_one_edit_is_one_change(tmp_path: Path, before: str, after: str, change: tuple[object, ...]) -> None:
    found = only(changed(tmp_path, before_1=before, after_1=after))
    assert (found.section, found.name, found.what, found.before, found.after) == change


def test_a_rule_that_stands_elsewhere_was_moved(tmp_path: Path) -> None:
    a = "  - {id: a, drop_when: eta_s > params.limit}\n"
    c = "  - {id: c, when: eta_s < 60.0, add: 1.0}\n"
    found = only(changed(tmp_path, before_1=a, after_1="", before_2=c, after_2=c + a))
    assert (found.section, found.name, found.what, found.before, found.after) == ("rules", "a", "moved", 1, 3)


def test_rows_of_a_table_are_named(tmp_path: Path) -> None:
    found = changed(tmp_path, csv="zone, out.x\n1,10\n2,21\n3,30\n*,0\n")
    assert [(c.section, c.name, c.what) for c in found.changes] == [
        ("tables.bonus.rows", "2, 20", "removed"),
        ("tables.bonus.rows", "2, 21", "added"),
        ("tables.bonus.rows", "3, 30", "added"),
    ]
    assert "--- old/bonus.csv" in found.text


def test_a_table_that_is_new_is_there_with_all_its_rows(tmp_path: Path) -> None:
    table = "tables: {bonus: {hit: first, columns: [zone, out.x], rows: bonus.csv}}\n"
    found = changed(tmp_path, before_1=table, after_1="")
    assert [(c.section, c.what) for c in found.changes] == [("tables", "removed")] + [
        ("tables.bonus.rows", "removed")
    ] * 4

"""Mistakes as text, as JSON and as an editor's diagnostics."""

from __future__ import annotations

import json

import pytest

from features.expr import Mistakes, SourceText, compile_expr, parse_type
from features.expr.diagnostics import diagnostics
from features.expr.errors import Mistake, mistake_at

TYPES = {"eta_s": parse_type("double?"), "city": parse_type("string")}


def mistakes_of(text: str) -> list[Mistake]:
    with pytest.raises(Mistakes) as raised:
        compile_expr(SourceText(text, "rules.yaml"), TYPES)
    return raised.value.items


def test_json_has_the_code_the_place_and_the_cause() -> None:
    (mistake,) = mistakes_of("eta_x > 3.0")
    given = json.loads(json.dumps(mistake.as_dict()))
    assert given == {
        "code": "unknown-name",
        "severity": "error",
        "file": "rules.yaml",
        "line": 1,
        "col": 1,
        "end_col": 6,
        "message": "unknown name 'eta_x'",
        "hint": "did you mean 'eta_s'?",
        "cause": "An expression reads a name that is not known there.",
        "source_line": "eta_x > 3.0",
    }


def test_a_warning_says_so_and_an_error_does_not() -> None:
    source = SourceText("eta_s > 3", "rules.yaml")
    error = mistake_at(source, 0, 5, "type", "wrong")
    warning = Mistake(**{**error.__dict__, "severity": "warning"})
    assert error.format().startswith("rules.yaml:1:1: wrong\n")
    assert warning.format().startswith("rules.yaml:1:1: warning: wrong\n")


def test_an_editor_gets_ranges_that_count_from_zero_in_code_units() -> None:
    (mistake,) = mistakes_of("city == '🐱' && eta_x > 3.0")
    assert diagnostics([mistake]) == {
        "rules.yaml": [
            {
                "range": {"start": {"line": 0, "character": 16}, "end": {"line": 0, "character": 21}},
                "severity": 1,
                "code": "unknown-name",
                "source": "hailstream",
                "message": "unknown name 'eta_x'\ndid you mean 'eta_s'?",
            }
        ]
    }


def test_an_editor_gets_the_mistakes_of_each_file() -> None:
    one = Mistake("type", "a.yaml", 2, 3, 5, "wrong", source_line="x: y z")
    two = Mistake("always-true", "b.yaml", 1, 1, 4, "odd", severity="warning")
    found = diagnostics([one, two, one])
    assert [len(found["a.yaml"]), len(found["b.yaml"])] == [2, 1]
    assert found["a.yaml"][0]["range"]["start"] == {"line": 1, "character": 2}
    assert found["b.yaml"][0]["severity"] == 2
    assert found["b.yaml"][0]["range"]["end"] == {"line": 0, "character": 3}  # of a line that was not kept

"""Mistakes as text and as JSON."""

from __future__ import annotations

import json

import pytest

from features.expr import Mistakes, SourceText, compile_expr, parse_type
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

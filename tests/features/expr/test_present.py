"""What a checked expression says of null: the names that are known wherever it did not yield true."""

from __future__ import annotations

import itertools

import pytest

from features.expr import SourceText, compile_expr, interpret_marked, parse_type

NAMES = {"a": parse_type("int?"), "b": parse_type("int?"), "p": parse_type("bool?"), "n": parse_type("int")}
VALUES = {"a": [None, 0, 5], "b": [None, 0, 5], "p": [None, True, False], "n": [0, 7]}


@pytest.mark.parametrize(
    ("text", "present"),
    [
        ("a == null", {"a"}),
        ("!has(a)", {"a"}),
        ("a != null", set()),
        ("!(a != null)", {"a"}),
        ("a == null || b == null", {"a", "b"}),
        ("n > 3 || a == null || div(n, n) > 3", {"a"}),
        ("a == null || a > 3 || b == null", {"a", "b"}),
        ("a == null && b == null", set()),
        ("(a == null || n > 3) && (a == null || n > 5)", {"a"}),
        ("!(a != null && p)", {"a"}),
        ("!(a != null && b != null && div(100, n) > 3)", {"a", "b"}),
        ("p || a == null", {"a"}),
        ("n > 3 ? a == null : a == null", set()),
        ("(a ?? 0) > 3", set()),
    ],
)
def test_names_are_known_wherever_the_condition_is_not_true(text: str, present: set[str]) -> None:
    program = compile_expr(SourceText(text), NAMES)
    assert program.present_if_not_true == present
    for row in itertools.product(*VALUES.values()):
        values = dict(zip(VALUES, row, strict=True))
        value, _ = interpret_marked(program, values)
        if value is not True:  # false, null or a row error: the candidate is still there
            assert all(values[name] is not None for name in present), (text, values)

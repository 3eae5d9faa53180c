"""The page of the language says what is so: its examples run, its functions are those of `types.py`, its limits too."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import features.expr
from features.expr import SourceText, compile_expr, interpret_marked, parse_type
from features.expr.cost import ASSUMED_LIST, MAX_COST
from features.expr.parser import MAX_DEPTH, MAX_NODES, MAX_TEXT
from features.expr.regex import MAX_PATTERN, MAX_PROGRAM
from features.expr.times import parse_timestamp
from features.expr.types import FUNCTIONS, KINDS, LISTS, MACROS, SCALARS
from tests.features.expr import typed_expressions as typed

PAGE = (Path(features.expr.__file__).parent / "LANGUAGE.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^(\S.*?) +=> (.+)$", PAGE, re.MULTILINE)
TYPES = {
    "eta_s": "double?",
    "hour": "int",
    "rate": "double",
    "zone": "string",
    "tags": "list(string)",
    "scores": "list(double)",
    "as_of": "timestamp",
    "last_trip": "timestamp?",
}
ROW: dict[str, Any] = {
    "eta_s": None,
    "hour": 7,
    "rate": 0.5,
    "zone": "jfk-2",
    "tags": ["vip", "new"],
    "scores": [1.0, 0.5],
    "as_of": parse_timestamp("2024-03-10T07:30:00Z"),
    "last_trip": parse_timestamp("2024-03-10T06:00:00Z"),
}


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def function_lines() -> list[str]:
    """One line a function: its forms, in the order of the table."""
    lines = []
    for name, overloads in FUNCTIONS.items():
        forms = [
            f"{name}({', '.join(o.params)}{', …' if o.variadic else ''}) -> {o.result}"
            for o in overloads
            if not set(o.params) & set(LISTS)
        ]
        if len(forms) < len(overloads):
            forms.append(f"{name}(list) -> {overloads[-1].result}")
        lines.append(f"{'*' if all(o.ours for o in overloads) else ' '} {', '.join(forms)}")
    return lines


def test_the_functions_are_those_of_the_table() -> None:
    block = section("Functions").partition("```\n")[2].partition("\n```")[0]
    assert block.split("\n") == function_lines()
    assert all(f".{name}(" in PAGE for name in MACROS)


def test_the_types_and_their_names_are_those_of_the_table() -> None:
    named = re.findall(r"^\| `([a-z(T)]+)` \|", section("Types"), re.MULTILINE)
    assert named == [*SCALARS, "list(T)"]
    assert set(KINDS) == {*SCALARS, *LISTS, "null"}


def test_the_limits_are_those_of_the_code() -> None:
    limits = section("Limits")
    for number in (MAX_TEXT, MAX_NODES, MAX_DEPTH, MAX_PATTERN, MAX_PROGRAM, MAX_COST, ASSUMED_LIST):
        assert re.search(rf"\b{number:,}\b", limits), number


def test_the_names_and_values_of_the_examples_are_those_that_run() -> None:
    given = section("Examples")
    for name, kind in TYPES.items():
        assert f"`{name}: {kind}`" in given
        assert f"{name} = " in given


@pytest.mark.parametrize(("text", "expected"), EXAMPLES)
def test_the_example_has_the_value_beside_it(text: str, expected: str) -> None:
    program = compile_expr(SourceText(text), {name: parse_type(kind) for name, kind in TYPES.items()})
    value, failed = interpret_marked(program, ROW)
    assert failed == (expected == "error")
    if not failed:
        wanted = {"true": True, "false": False}.get(expected)
        assert typed.same(value, ast.literal_eval(expected) if wanted is None else wanted)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 25

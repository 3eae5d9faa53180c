"""Cases of plain CEL with their values (`tests/golden/expr/cel_cases.txt`): Google's runtime, rows and columns agree."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from features.expr import SourceText, compile_expr, evaluate, interpret_marked
from tests.features.expr import typed_expressions as typed
from tests.features.expr.cel_oracle import ERROR, Oracle

FILE = Path(__file__).parents[2] / "golden" / "expr" / "cel_cases.txt"
LINES = [line for line in FILE.read_text(encoding="utf-8").split("\n") if line and not line.startswith("#")]
CASES = [(text, value) for text, _, value in (line.rpartition(" => ") for line in LINES)]
ORACLE = Oracle({})


def read(value: str) -> Any:
    if value == "error":
        return ERROR
    if value in ("inf", "-inf", "nan"):
        return float(value)
    return value == "true" if value in ("true", "false") else ast.literal_eval(value)


def test_there_are_hundreds_of_cases() -> None:
    assert len(CASES) >= 400
    assert sum(value == "error" for _, value in CASES) >= 40


@pytest.mark.parametrize(("text", "value"), CASES)
def test_the_case_has_its_value_here_and_in_google_cel(text: str, value: str) -> None:
    expected = read(value)
    (theirs,) = ORACLE.values(text, [{}])
    assert typed.same(theirs, expected), f"Google's CEL gives {theirs!r}"
    program = compile_expr(SourceText(text), {}, strict=True)
    result, failed = interpret_marked(program, {})
    assert typed.same(ERROR if failed else result, expected), f"rows give {result!r}"
    column = evaluate(program, {}, num_rows=3)
    assert column.error is not None and column.error.tolist() == [failed] * 3
    assert all(typed.same(got, result) for got in column.tolist()), column

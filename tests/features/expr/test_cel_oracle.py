"""The strict mode is plain CEL: random typed expressions give in Google's runtime what they give here, errors included.

`cel_expressions.py` says which operators and functions are drawn, and what is left out.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, reject, seed, settings
from hypothesis import strategies as st

from features.expr import Mistakes, Program, SourceText, compile_expr, evaluate, interpret_marked, parse_type
from features.expr.interpret import STRICT
from tests.features.expr import cel_expressions as plain
from tests.features.expr import typed_expressions as typed
from tests.features.expr.cel_oracle import ERROR, Oracle

ORACLE = Oracle(plain.NAMES)
EXPRESSION = plain.cel_expressions()
SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
NUM_ROWS = 6


def compiled(text: str) -> Program:
    try:
        return compile_expr(SourceText(text), plain.NAMES, strict=True)
    except Mistakes as error:
        if {mistake.kind for mistake in error.items} != {"limit"}:
            raise
        reject()  # loops three deep


def assert_agrees(text: str, row_seed: int) -> None:
    program = compiled(text)
    rows = plain.random_rows(row_seed, NUM_ROWS)
    column = evaluate(program, typed.to_columns(rows, plain.NAMES), num_rows=NUM_ROWS).tolist()
    for row, theirs, in_column in zip(rows, ORACLE.values(text, rows), column, strict=True):
        value, failed = interpret_marked(program, row)
        ours = ERROR if failed else value
        assert typed.same(ours, theirs), f"{text}\n{row}\nhere {ours!r}, in CEL {theirs!r}"
        assert typed.same(in_column, value), f"{text}\n{row}\ncolumns {in_column!r}, rows {value!r}"


@seed(20260811)
@settings(SETTINGS, max_examples=400)
@given(text=EXPRESSION, row_seed=st.integers(0, 2**32))
def test_random_expressions_agree_with_google_cel(text: str, row_seed: int) -> None:
    assert_agrees(text, row_seed)


@pytest.mark.slow
@seed(20260812)
@settings(SETTINGS, max_examples=30_000)
@given(text=EXPRESSION, row_seed=st.integers(0, 2**32))
def test_many_random_expressions_agree_with_google_cel(text: str, row_seed: int) -> None:
    assert_agrees(text, row_seed)


def test_the_expressions_drawn_use_every_step_that_cel_has() -> None:
    """Or the agreement would be about less than it says."""
    seen: set[str] = set()

    @seed(20260813)
    @settings(SETTINGS, max_examples=2500)
    @given(text=EXPRESSION)
    def draw(text: str) -> None:
        seen.update(step.step for step in compiled(text).root.walk())

    draw()
    ours = {"hash01", "exp", "log", "log1p", "pow"}
    never = {"same", "in_bool", "in_timestamp", "in_duration"}  # `int(1)`, and lists of literals of these kinds
    assert set(STRICT) - seen <= ours | never
    assert {"exists", "all", "item", "and", "or", "if", "div_int"} <= seen


@pytest.mark.parametrize(
    "text",
    [
        "x > 3",  # an int literal is no double
        "x in [1, 2]",
        "b ? 1 : 2.0",
        "n ?? 1",
        "n > 1",
        "div(i, j)",
        "min(i, j)",
        "if(b, 1, 2)",
        "has(i)",
        "i == null",
        "hash01('a', s) < 0.5",
        "math.exp(x)",
        "startsWith(s, 'a')",
        "getHours(as_of)",
        "i + x",
        "s == 1",
        "i / x",
        "-wait",
        "wait * 2",
        "i < x",
    ],
)
def test_what_is_not_cel_is_refused_by_both(text: str) -> None:
    with pytest.raises(Mistakes) as caught:
        compile_expr(SourceText(text), {**plain.NAMES, "n": parse_type("int?")}, strict=True)
    assert {mistake.kind for mistake in caught.value.items} <= {"strict", "type"}
    with pytest.raises(Exception, match=r"ERROR|no matching|undeclared"):
        ORACLE.compile(text)


def test_the_deviations_are_the_only_difference() -> None:
    """`/` of ints is the one operator that means nothing without `strict` and something with it."""
    assert str(compile_expr(SourceText("i / j"), plain.NAMES, strict=True)) == "div_int(i, j): int"
    with pytest.raises(Mistakes, match="between two ints"):
        compile_expr(SourceText("i / j"), plain.NAMES)
    assert str(compile_expr(SourceText("x > 3"), plain.NAMES)) == "gt_double(x, 3.0): bool"

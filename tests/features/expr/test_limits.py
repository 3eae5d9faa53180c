"""What an author can write is bounded when it is compiled: each limit with its place, its message and a time bound."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from features.expr import Column, Mistakes, SourceText, compile_expr, evaluate, interpret, parse_type
from features.expr.cost import ASSUMED_LIST, MAX_COST, cost_of
from features.expr.parser import MAX_DEPTH, MAX_NODES, MAX_TEXT
from features.expr.regex import MAX_PATTERN, MAX_PROGRAM

NAMES = {
    name: parse_type(kind)
    for name, kind in {"b": "bool", "i": "int", "s": "string", "nums": "list(int)", "tags": "list(string)"}.items()
}
SECONDS = 2.0  # a machine that is busy with other tests; each takes milliseconds


def refused(text: str) -> Mistakes:
    started = time.perf_counter()
    with pytest.raises(Mistakes) as caught:
        compile_expr(SourceText(text, "strategies/a.yaml", 3, 9), NAMES)
    assert time.perf_counter() - started < SECONDS
    return caught.value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" || ".join(["b"] * 100_000), f"characters; {MAX_TEXT} are allowed"),
        ("||".join(["b"] * (MAX_NODES + 1)), f"more than {MAX_NODES} parts"),
        (" + ".join(["i"] * 3_000) + " > 0", f"nested more than {MAX_DEPTH} deep"),
        ("(" * 10_000 + "b" + ")" * 10_000, f"nested more than {MAX_DEPTH} deep"),
        ("(" * 10_000, f"nested more than {MAX_DEPTH} deep"),
        ("!" * 10_000 + "b", f"nested more than {MAX_DEPTH} deep"),
        ("-" * 10_000 + "i", f"nested more than {MAX_DEPTH} deep"),
        ("size(" * 5_000 + "s" + ")" * 5_000, f"nested more than {MAX_DEPTH} deep"),
        ("b ? 1 : " * 4_000 + "1", f"nested more than {MAX_DEPTH} deep"),
        ("nums.exists(a, " * 2_000 + "true" + ")" * 2_000, f"nested more than {MAX_DEPTH} deep"),
        ("i in [" + "1, " * 5_000 + "1]", f"more than {MAX_NODES} parts"),
        ("i ?? " * 3_000 + "i", f"nested more than {MAX_DEPTH} deep"),
        ("i" * 40_000, f"characters; {MAX_TEXT} are allowed"),
        ("'" + "a" * 30_000, "this string is not closed"),
        ("nums.exists(x, nums.exists(y, nums.exists(z, x + y + z == 0)))", f"{MAX_COST} are allowed"),
        (f"s.matches('{'a' * (MAX_PATTERN + 1)}')", f"{MAX_PATTERN} are allowed"),
        (r"s.matches(r'\pL\pL\pL')", f"{MAX_PROGRAM} are allowed"),
        (r"s.matches(r'(a{1,100}){1,100}')", "invalid repetition size"),
        (r"s.matches(r'a(?=b)')", "invalid perl operator"),
        (r"s.matches(r'(a)\1')", "invalid escape"),
        (r"tags.all(t, nums.exists(n, t.matches(r'\pL') && n > 1))", f"{MAX_COST} are allowed"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_too_much_is_refused_with_its_place_in_time(text: str, message: str) -> None:
    mistakes = refused(text)
    assert message in str(mistakes)
    assert all(item.file == "strategies/a.yaml" and item.line == 3 and item.col >= 9 for item in mistakes.items)
    assert {item.kind for item in mistakes.items} <= {"limit", "literal", "syntax"}
    assert len(str(mistakes)) < 5_000


def test_the_place_of_a_costly_part_is_the_innermost_that_is_too_much() -> None:
    text = "i > 3 && nums.exists(x, nums.exists(y, nums.exists(z, x + y + z == 0)))"
    (mistake,) = refused(text).items
    assert mistake.col == 9 + text.index("nums")  # two loops deep would be within the limit


def test_cost_multiplies_in_loops_and_adds_elsewhere() -> None:
    def cost(text: str) -> int:
        return cost_of(compile_expr(SourceText(text), NAMES).root)

    assert cost("i + 1 > 2") == 5
    assert cost("nums.exists(n, n > i)") == 1 + ASSUMED_LIST * (1 + 3)
    assert cost("nums.exists(n, nums.all(m, n > m))") == 1 + ASSUMED_LIST * (1 + 1 + ASSUMED_LIST * 4)
    assert cost("i in nums") == 3 + ASSUMED_LIST
    assert cost("s.matches('^abc$')") > 5


def test_long_but_shallow_expressions_compile() -> None:
    chain = compile_expr(SourceText("||".join(["b"] * 2_000)), NAMES)
    assert interpret(chain, {"b": False}) is False
    wide = compile_expr(SourceText(f"i in [{', '.join(map(str, range(2_000)))}]"), NAMES)
    assert interpret(wide, {"i": 1_999}) is True
    deep = compile_expr(SourceText("(" * (MAX_DEPTH - 2) + "b" + ")" * (MAX_DEPTH - 2)), NAMES)
    assert interpret(deep, {"b": True}) is True


@pytest.mark.parametrize("pattern", ["((a+)+)+$", "(a|a)*b", "(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_explodes_elsewhere_takes_linear_time(pattern: str) -> None:
    """Over 100,000 characters and a hundred distinct texts; a backtracking engine would not end."""
    program = compile_expr(SourceText(f"s.matches(r'{pattern}')"), NAMES)
    texts = np.empty(100, dtype=object)
    texts[:] = ["a" * (100_000 if at == 0 else 1_000 + at) + "!" for at in range(100)]
    started = time.perf_counter()
    column = evaluate(program, {"s": Column(texts, np.ones(100, bool))})
    assert time.perf_counter() - started < SECONDS
    assert column.tolist() == [interpret(program, {"s": text}) for text in texts.tolist()]


def test_a_pattern_runs_once_for_each_distinct_text(monkeypatch: Any) -> None:
    from features.expr import column_steps

    searched: list[str] = []

    class Counting:
        def search(self, text: str) -> object | None:
            searched.append(text)
            return text if "a" in text else None

    monkeypatch.setattr(column_steps, "compile_pattern", lambda pattern: Counting())
    texts = np.empty(1_000, dtype=object)
    texts[:] = ["abc" if at % 3 else "xyz" for at in range(1_000)]
    program = compile_expr(SourceText("s.matches('a')"), NAMES)
    assert sum(evaluate(program, {"s": Column(texts, np.ones(1_000, bool))}).tolist()) == 666
    assert sorted(searched) == ["abc", "xyz"]

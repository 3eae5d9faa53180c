"""The grammar: precedence, literals, limits; text that is not an expression yields Mistakes and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest

from features.expr import Mistakes, SourceText, compile_expr, interpret, parse_type
from tests.features.expr.typed_expressions import NAMES, random_rows


def value(text: str, **names: Any) -> Any:
    kinds = {int: "int", float: "double", str: "string", bool: "bool"}
    types = {name: parse_type(kinds[type(given)]) for name, given in names.items()}
    return interpret(compile_expr(SourceText(text), types), names)


def mistakes_of(text: str, names: Any = None) -> Mistakes:
    with pytest.raises(Mistakes) as caught:
        compile_expr(SourceText(text), NAMES if names is None else names)
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true || false && false", True),
        ("1 - 2 - 3", -4),
        ("!true == false", True),
        ("true ? false : true ? true : false", False),
        ("2 + 3 * 4", 14),
        ("-2 * -3", 6),
        ("- - 2", 2),
        ("1 + 2 < 4 && 2 >= 2", True),
        ("null ?? 1 == 1", True),
        ("null ?? null ?? 3", 3),
        ("7 % 4 * 2", 6),
        ("!!true", True),
        ("if(1 < 2, 'a', 'b') + 'c'", "ac"),
        ("1 < 2 // the rest is a comment\n && true", True),
    ],
)
def test_precedence_is_that_of_cel(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", 42),
        ("0x1F", 31),
        ("-0x1F", -31),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775807", 2**63 - 1),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("2.5e-3", 0.0025),
        ("-0.0", -0.0),
        ("'it\\'s'", "it's"),
        ('"a\\tb\\n"', "a\tb\n"),
        (r"'\x41\u00e9\U0001F431\101'", "Aé🐱A"),
        (r"r'\d+'", r"\d+"),
        ("'''a'b\nc'''", "a'b\nc"),
        ('"""x"y"""', 'x"y'),
        ("''", ""),
        ("true", True),
        ("null", None),
    ],
)
def test_literals(text: str, expected: Any) -> None:
    got = value(text)
    assert got == expected and type(got) is type(expected)
    assert str(got) == str(expected)  # tells -0.0 from 0.0


def test_methods_and_functions_are_two_spellings_of_one_call() -> None:
    assert value("s.startsWith('ab')", s="abc") is value("startsWith(s, 'ab')", s="abc") is True
    assert value("'abc'.size() + (s + 'd').size()", s="abc") == 7
    assert value("order.city.contains('y')", **{"order.city": "nyc"}) is True


@pytest.mark.parametrize(
    "text",
    ["", "   ", "(", ")", "a +", "1 2", "'abc", "i > > 2", "i ? 1", "i in 3", "i in [", "i in [n]", "i in []", "f(", "x.", "x.1",
     "i.size", "'a'.size", "[1]", "{}", "1u", "3abc", "#", "a ? b", "'\\q'", "'\\ud800'", "99999999999999999999", "1e999", "for",
     "i ?? 1 + 2", "i..j", "has()", "has(1)", "has(i, n)", "size()", "if(b)", "b'x'", "'a\nb'", "’a’", "\0", "!", "-", "??", "i,n"],
)  # fmt: skip
def test_text_that_is_no_expression_is_refused(text: str) -> None:
    for item in mistakes_of(text).items:
        assert item.message and item.line >= 1 and item.col >= 1 and item.end_col > item.col


def test_size_depth_and_length_are_limited() -> None:
    for text in (
        " || ".join(["i > 1"] * 100_000),
        " || ".join(["b"] * 5_000),
        "+".join(["i"] * 3_000),
        "(" * 5_000 + "i" + ")" * 5_000,
        "!" * 5_000 + "b",
        "-" * 5_000 + "i",
        "b ? " * 2_000 + "i" + " : i" * 2_000,
        "math.abs(" * 3_000 + "i" + ")" * 3_000,
        "n ?? " * 3_000 + "1",
        "i" + ".size()" * 2_000,
        "9" * 20_000,
    ):
        kinds = {item.kind for item in mistakes_of(text).items}
        assert kinds <= {"limit", "literal"}, (text[:20], kinds)


def test_a_long_chain_of_logic_within_the_limits_compiles() -> None:
    text = " || ".join(f"i == {number}" for number in range(1000))
    program = compile_expr(SourceText(text), NAMES)
    assert interpret(program, {"i": 999}) is True
    assert interpret(program, {"i": 1000}) is False


WORDS = [*NAMES, "&&", "||", "!", "==", "!=", "<", ">=", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",", "?", ":", "??", ".", "in",
         "has(", "size(", "min(", "math.abs(", "double(", "if(", "1", "2.5", "0x", "1e", "'a'", '"', "'", "\\", "null", "true", "and", "=",
         "r'", "'''", "\n", " ", "é", "🐱", "\0", "//", "9223372036854775808", "_", "$", "nope", "ns.f("]  # fmt: skip


def test_random_text_yields_a_program_or_mistakes_and_nothing_else() -> None:
    seed = 20260805
    print(f"seed {seed}")
    rng = random.Random(seed)
    row = random_rows(seed, 1)[0]
    compiled = 0
    for number in range(2_000):
        if number % 4 == 0:
            text = "".join(
                chr(rng.choice([rng.randrange(32, 127), rng.randrange(1, 0x2FFF)])) for _ in range(rng.randrange(40))
            )
        else:
            text = rng.choice(["", " "]).join(rng.choice(WORDS) for _ in range(rng.randrange(1, 14)))
        try:
            program = compile_expr(SourceText(text), NAMES)
        except Mistakes as error:
            assert str(error)
        else:
            interpret(program, row)
            compiled += 1
    assert compiled > 20

"""Programs as one graph: what is shared, folded and hoisted, and what is left alone because its bits would change."""

from __future__ import annotations

import pytest

from features.expr import Program, SourceText, compile_expr, parse_type
from features.expr.ssa import Graph, Input

TYPES = {
    "x": "double", "y": "double", "i": "int", "j": "int", "n": "int?", "b": "bool", "f": "bool?",
    "s": "string", "t": "string?", "surge": "double", "hour": "int",
}  # fmt: skip
NAMES = {name: parse_type(kind) for name, kind in TYPES.items()}
INPUTS = {name: Input(name, kind.kind, kind.nullable, shared=name in ("surge", "hour")) for name, kind in NAMES.items()}


def program(text: str) -> Program:
    return compile_expr(SourceText(text), NAMES)


def graph_of(*texts: str) -> tuple[Graph, list[int]]:
    graph = Graph(INPUTS)
    return graph, [graph.add(program(text)) for text in texts]


def test_rules_share_their_common_parts_and_request_only_parts_are_marked() -> None:
    graph, _ = graph_of("x / 2.0 > surge && hour >= 17", "x / 2.0 > surge || n == null", "hour < 20 && hour >= 17 && b")
    assert (
        str(graph)
        == """\
%0 = input x : double
%1 = const 2.0 : double
%2 = div_double %0 %1 : double
%3 = input surge : double shared
%4 = lt_double %3 %2 : bool
%5 = input hour : int shared
%6 = const 17 : int
%7 = le_int %6 %5 : bool shared
%8 = and %4 %7 : bool
%9 = input n : int?
%10 = is_null %9 : bool
%11 = or %4 %10 : bool
%12 = const 20 : int
%13 = lt_int %5 %12 : bool shared
%14 = input b : bool
%15 = and %7 %13 : bool shared
%16 = and %14 %15 : bool"""
    )


def test_what_cannot_be_in_a_loop_is_outside_and_predicates_of_a_text_are_bits() -> None:
    graph, _ = graph_of("math.exp(x) + 1.0", "s == 'idle' && (t ?? '') != s", "t == null || size(s) > 3", "int(s) + i")
    assert (
        str(graph)
        == """\
%0 = outside exp(x) : double
%1 = const 1.0 : double
%2 = add_double %0 %1 : double
%3 = bits s : int
%4 = bit %3 0 : bool
%5 = outside ne_string(coalesce(t, ''), s) : bool
%6 = and %4 %5 : bool
%7 = bits t : int
%8 = bit %7 0 : bool
%9 = outside size(s) : int
%10 = const 3 : int
%11 = lt_int %10 %9 : bool
%12 = or %8 %11 : bool
%13 = outside int_of_string(s) : int!
%14 = input i : int
%15 = add_int %13 %14 : int!"""
    )


SAME = [
    ("i + 0", "i"), ("0 + i", "i"), ("i - 0", "i"), ("i * 1", "i"), ("div(i, 1)", "i"), ("x * 1.0", "x"),
    ("x / 1.0", "x"), ("x - 0.0", "x"), ("x + -0.0", "x"), ("!!b", "b"), ("b && true", "b"), ("b || false", "b"),
    ("b || true", "true"), ("f && false", "false"), ("b && b", "b"), ("b && (b && true)", "b"), ("i ?? 3", "i"),
    ("true ? x : y", "x"), ("b ? x : x", "x"), ("i == null", "false"), ("x + y", "y + x"), ("i * j", "j * i"),
    ("x < y", "y > x"), ("x >= y", "y <= x"), ("2.0 * 3.0", "6.0"), ("double(i)", "double(i + 0)"),
    ("'a' + 'b' == 'ab'", "true"), ("(1 > 2) ? i : j", "j"), ("null ?? n", "n"),
]  # fmt: skip
NOT_SAME = [
    ("x + 0.0", "x"), ("x * 0.0", "0.0"), ("x - x", "0.0"), ("x == x", "true"), ("i - i", "0"), ("i * 0", "0"),
    ("x - y", "y - x"), ("x + (y + 1.0)", "(x + y) + 1.0"), ("0.0 - x", "-x"), ("0.0", "-0.0"), ("f && f", "true"),
    ("x / 3.0", "x * (1.0 / 3.0)"), ("-(-x)", "x"), ("1 + 1", "2.0"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "simple"), SAME)
def test_an_identity_that_keeps_every_bit_is_used(text: str, simple: str) -> None:
    _, (one, other) = graph_of(text, simple)
    assert one == other


@pytest.mark.parametrize(("text", "other_text"), NOT_SAME)
def test_an_identity_that_may_change_a_bit_or_hide_an_error_is_not(text: str, other_text: str) -> None:
    _, (one, other) = graph_of(text, other_text)
    assert one != other


def test_a_constant_that_is_a_row_error_stays_a_step() -> None:
    graph, (number,) = graph_of("1 % 0 == 1")
    assert graph.values[number].fails and graph.values[number].step == "eq_int"
    graph, (number,) = graph_of("int('x') + i")
    assert graph.show(0) == "%0 = fail : int! shared"
    graph, (number,) = graph_of("1 % 0 == 1 && false")
    assert graph.values[number].const is False


def test_an_input_that_may_fail_keeps_its_null_test() -> None:
    graph = Graph({"i": Input("i", "int", fails=True)})
    number = graph.add(compile_expr(SourceText("i == null"), {"i": parse_type("int")}))
    assert graph.values[number].step == "is_null" and graph.values[number].fails


def test_a_named_program_is_inlined_with_its_errors() -> None:
    graph = Graph(INPUTS, {"share": program("div(i, j)")})
    names = {**NAMES, "share": parse_type("int")}
    number = graph.add(compile_expr(SourceText("share ?? 5"), names))
    assert graph.show(number) == "%2 = div_int %0 %1 : int!"
    outside = graph.add(compile_expr(SourceText("string(share) == s"), names))
    assert graph.show(outside).startswith("%4 = outside eq_string(string_of_int(share), s) : bool!")

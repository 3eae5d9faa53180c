"""Pieces of random one-name programs against the interpreter: the cuts are exact, what is called monotone is so."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.expr import Mistakes, SourceText, compile_expr, interpret_marked, parse_type
from features.expr.keys import NUMBERS, key_of, key_range, nice, spread, value_of
from features.expr.pieces import as_program, pieces
from features.expr.program import Step
from features.expr.runs import Piece
from features.expr.solver import with_constants
from tests.features.expr.typed_expressions import EDGES, WIDE, random_value, typed_expressions

FORMS = typed_expressions(wide=True)
KINDS = ("int", "double", "bool", "timestamp", "duration")


def cut(text: str, kind: str) -> list[tuple[Any, Any, str]]:
    """The pieces of an expression over x, by their first and last value."""
    root = compile_expr(SourceText(text), {"x": parse_type(kind)}).root
    found = pieces(root, "x", kind, *key_range(kind, None))
    return [(value_of(p.low, kind), value_of(p.high, kind), p.status + "- +"[p.way + 1].strip()) for p in found]


def test_the_cuts_are_exact_through_rounding() -> None:
    found = cut("x * 0.1 > 0.3", "double")
    below = max(high for _, high, _ in found if not high * 0.1 > 0.3)
    above = min(low for low, _, _ in found if low * 0.1 > 0.3)
    assert key_of(above) == key_of(below) + 1
    assert not below * 0.1 > 0.3 and above * 0.1 > 0.3


def test_overflow_nan_and_casts_are_pieces_of_their_own() -> None:
    top = 2**63 - 1
    assert cut("x + 1", "int") == [(-(2**63), top - 1, "value+"), (top, top, "error")]
    assert [(low, status) for low, _, status in cut("math.sqrt(x)", "double")][-1] == (-0.0, "value+")
    assert [status for _, _, status in cut("int(x)", "double")] == ["error", "value+", "error"]
    assert [status for _, _, status in cut("1.0 / x", "double")] == [
        "value",
        "value-",
        "value",
        "value",
        "value-",
        "value",
    ]
    assert [status for _, _, status in cut("x % 7", "int")] == ["unknown"]
    assert [(low, high) for low, high, _ in cut("x == 5 || x > 7", "int")][1:3] == [(5, 5), (6, 7)]


def one_name_step(text: str, rng: random.Random) -> tuple[Step, str, str] | None:
    """The expression with all names but one number as constants."""
    try:
        program = compile_expr(SourceText(text), WIDE)
    except Mistakes:
        return None
    names = sorted(name for name in program.names if WIDE[name].kind in NUMBERS)
    if not names:
        return None
    name = rng.choice(names)
    values = {other: random_value(rng, WIDE[other]) for other in sorted(program.names) if other != name}
    return with_constants(program.root, values), name, WIDE[name].kind


PROGRAMS = st.sampled_from(KINDS).flatmap(lambda kind: FORMS[kind])


@settings(max_examples=300)
@given(PROGRAMS, st.integers(0, 2**32))
def test_every_piece_is_what_it_says(text: str, seed: int) -> None:
    cut_right(text, seed)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(PROGRAMS, st.integers(0, 2**32))
def test_every_piece_of_many_programs_is_what_it_says(text: str, seed: int) -> None:
    cut_right(text, seed)


def cut_right(text: str, seed: int) -> None:
    rng = random.Random(seed)
    found = one_name_step(text, rng)
    if found is None:
        return
    step, name, kind = found
    low, high = key_range(kind, None)
    cuts = pieces(step, name, kind, low, high)
    assert (cuts[0].low, cuts[-1].high) == (low, high)
    assert all(a.high + 1 == b.low for a, b in pairwise(cuts))
    edges = [key_of(value) for value in EDGES[kind] if value == value]
    program = as_program(step)
    for piece in cuts:
        keys = [piece.low, piece.high, min(piece.low + 1, piece.high), max(piece.high - 1, piece.low)]
        keys += [rng.randint(piece.low, piece.high) for _ in range(3)]
        keys += [key for key in edges if piece.low <= key <= piece.high]
        results = [interpret_marked(program, {name: value_of(key, kind)}) for key in sorted(keys)]
        check(piece, results, (text, step, piece, sorted(keys), results))


def check(piece: Piece, results: list[tuple[Any, bool]], shown: object) -> None:
    statuses = {
        "error" if failed else "null" if value is None else "nan" if value != value else "value"
        for value, failed in results
    }
    if piece.status == "unknown":
        return
    assert statuses == {piece.status}, shown
    if piece.status == "value":
        for (a, _), (b, _) in pairwise(results):
            assert (a == b) if piece.way == 0 else (a <= b) if piece.way > 0 else (a >= b), shown


@pytest.mark.parametrize("kind", ["int", "double"])
def test_keys_keep_the_order_of_values(kind: str) -> None:
    values = sorted(value for value in EDGES[kind] if value == value)
    keys = [key_of(value) for value in values]
    assert keys == sorted(keys) or kind == "double"  # -0.0 and 0.0 sort as they come
    assert all(value_of(key_of(value), kind) == value for value in values)
    assert str(value_of(key_of(-0.0), "double")) == "-0.0" and key_of(-0.0) + 1 == key_of(0.0)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.integers(1, 4))
def test_a_nice_value_lies_between_and_spread_ones_differ(a: float, b: float, count: int) -> None:
    low, high = sorted((key_of(a), key_of(b)))
    assert low <= key_of(nice(low, high, "double")) <= high
    found = spread(low, high, "double", count)
    keys = [key_of(value) for value in found]
    assert keys == sorted(set(keys)) and all(low <= key <= high for key in keys)
    assert len(found) == min(count, high - low + 1)
    if high - low + 1 > count:
        assert len(set(found)) == count  # as numbers: -0.0 beside 0.0 would be one


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(1, 4))
def test_spread_whole_numbers_differ(a: int, b: int, count: int) -> None:
    low, high = sorted((a, b))
    found = spread(low, high, "int", count)
    assert len(set(found)) == len(found) == min(count, high - low + 1)
    assert all(low <= value <= high for value in found)


def test_nice_values_read_well() -> None:
    above = key_of(600.0) + 1
    assert nice(above, key_of(1e9), "double") == 601.0
    assert nice(key_of(0.3) + 1, key_of(1.0), "double") == 0.4
    assert nice(key_of(-1e9), key_of(-600.0) - 1, "double") == -601.0
    assert nice(501, 2**63 - 1, "int") == 501

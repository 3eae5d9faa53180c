"""Interval analysis: every value of the interpreter lies in the range, and what is said to an author is so."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.expr import Facts, Mistakes, Program, SourceText, compile_expr, interpret_marked, parse_type
from features.expr.keys import NUMBERS
from features.expr.range_checks import check_ranges
from features.expr.ranges import find_range
from tests.features.expr.typed_expressions import EDGES, NAMES, WIDE, random_value, typed_expressions

FACTS = {
    "eta_s": Facts(unit="s", low=0, high=7200),
    "fare": Facts(unit="cents", low=0),
    "hour": Facts(low=0, high=23),
    "share": Facts(low=0, high=1),
    "limit": Facts(unit="s", low=60, high=1800),
    "none": Facts(low=0, high=0),
}
TYPES = {
    **{name: parse_type("double") for name in ("eta_s", "share", "limit", "x", "y")},
    **{name: parse_type("int") for name in ("fare", "hour", "none", "count")},
    "late_s": parse_type("double?"),
    "city": parse_type("string"),
    "now": parse_type("timestamp"),
}


def program(text: str) -> Program:
    return compile_expr(SourceText(text, "rules.yaml"), TYPES)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("eta_s / 60.0", 0.0, 120.0),
        ("1.0 - eta_s / limit", -119.0, 1.0),
        ("fare + 1", 1, 2**63 - 1),
        ("hour % 6", 0, 5),
        ("div(hour, 5) - 3", -3, 1),
        ("min(double(fare), 100.0)", 0.0, 100.0),
        ("late_s ?? 60.0", -math.inf, math.inf),
        ("hour > 20 ? hour : 21", 21, 23),
        ("fare > 0 ? 1.0 / double(fare) : 0.0", 0.0, 1.0),
        ("hour in [3, 5] ? hour : 4", 3, 5),
        ("x > 2.0 && x <= 4.0 ? x : 3.0", 2.0000000000000004, 4.0),
        ("math.abs(share - 0.5)", 0.0, 0.5),
        ("math.sqrt(eta_s)", 0.0, math.sqrt(7200)),
        ("now.getHours()", 0, 23),
        ("x == 3.0 ? 3.0 : math.isNaN(x) ? 1.0 : 2.0", 1.0, 3.0),  # NaN is not 3.0, so it is in the second branch
        ("hash01('salt', city)", 0.0, 1.0),
    ],
)
def test_the_ends_are_the_least_and_the_largest_value(text: str, low: float, high: float) -> None:
    found = find_range(program(text), FACTS)
    assert (found.low, found.high) == (low, high)
    assert not found.may_be_null


def test_what_cannot_fail_and_is_never_zero_is_known() -> None:
    assert not find_range(program("hour * 60 + hour"), FACTS).may_error  # cannot overflow
    assert find_range(program("fare * 60"), FACTS).may_error
    assert not find_range(program("limit"), FACTS).may_be_zero
    assert find_range(program("eta_s"), FACTS).may_be_zero
    assert not find_range(program("fare > 0 ? div(100, fare) : 0"), FACTS).may_error
    assert find_range(program("div(100, fare)"), FACTS).may_error
    assert not find_range(program("eta_s / limit"), FACTS).may_be_nan
    assert find_range(program("x / y"), FACTS).may_be_nan
    assert find_range(program("x == 3.0 ? 1.0 : x"), FACTS).may_be_nan
    assert find_range(program("x != 3.0 ? x : 1.0"), FACTS).may_be_nan
    assert not find_range(program("x != 3.0 ? 1.0 : x"), FACTS).may_be_nan
    assert find_range(program("late_s"), FACTS).may_be_null
    assert not find_range(program("late_s == null ? 0.0 : late_s"), FACTS).may_be_null


@pytest.mark.parametrize(
    ("text", "kind", "severity", "at"),
    [
        ("hour >= 0", "always-true", "warning", "hour >= 0"),
        ("hour > 23 && x > 1.0", "always-false", "warning", "hour > 23"),
        ("eta_s > 600.0 && eta_s < 300.0", "always-false", "warning", "eta_s < 300.0"),
        ("hour in [24, 25]", "always-false", "warning", "hour in [24, 25]"),
        ("hour < 12 || hour >= 10", "always-true", "warning", "hour < 12 || hour >= 10"),
        ("(eta_s ?? 0.0) > 3.0", "never-null", "warning", "eta_s"),
        ("late_s != null && (late_s ?? 1.0) > 2.0", "never-null", "warning", "late_s"),
        ("has(eta_s) || x > 3.0", "never-null", "warning", "has(eta_s)"),
        ("hour == 3 ? hour > 2 && x > 0.0 : late_s != null", "", "", ""),
        ("x / double(none)", "zero-divisor", "error", "double(none)"),
        ("div(hour, none)", "zero-divisor", "error", "none"),
        ("9223372036854775807 + hour + 1", "always-fails", "error", "9223372036854775807 + hour + 1"),
        ("eta_s < 300.0 ? 3.0 : eta_s >= 300.0 && eta_s < 600.0 ? 2.0 : 1.0", "", "", ""),  # how people write
        ("1.0 - eta_s / limit", "", "", ""),
        ("double(fare) / double(count) > 0.3", "", "", ""),  # may be zero, which IEEE and `score_not_finite` handle
        ("late_s != null && late_s > 3.0", "", "", ""),
        ("true", "", "", ""),
    ],
)  # fmt: skip
def test_the_author_is_told_what_cannot_be_meant(text: str, kind: str, severity: str, at: str) -> None:
    notes = check_ranges(program(text), FACTS)
    assert [(note.kind, note.severity) for note in notes] == ([(kind, severity)] if kind else [])
    for note in notes:
        assert text[note.col - 1 : note.end_col - 1] == at


def test_a_warning_says_what_is_known() -> None:
    (note,) = check_ranges(program("x > 1.0 && eta_s > 9000.0"), FACTS)
    assert note.format() == "\n".join(
        [
            "rules.yaml:1:12: warning: 'eta_s > 9000.0' is always false here",
            " 1 | x > 1.0 && eta_s > 9000.0",
            "   |            ^^^^^^^^^^^^^^",
            " eta_s is from 0 to 7200",
        ]
    )


# soundness ------------------------------------------------------------------------------------------------------------


def bounded_value(rng: random.Random, name: str, facts: dict[str, Facts]) -> Any:
    """A value of the name within its bounds: an edge value if one fits, a bound, or something between."""
    value = random_value(rng, WIDE[name])
    known = facts.get(name)
    if value is None or known is None or WIDE[name].kind not in ("int", "double"):
        return value
    assert known.low is not None and known.high is not None
    if known.low <= value <= known.high and rng.random() < 0.5:
        return value
    between = rng.choice([known.low, known.high, rng.uniform(known.low, known.high)])
    return round(between) if WIDE[name].kind == "int" else between


def random_facts(rng: random.Random) -> dict[str, Facts]:
    out = {}
    for name, kind in NAMES.items():
        if kind.kind in ("int", "double") and rng.random() < 0.6:
            edges = [v for v in EDGES[kind.kind] if abs(v) < 2**53]
            low, high = sorted(rng.choice(edges) for _ in range(2))
            out[name] = Facts(low=low, high=high)
    return out


FORMS = typed_expressions(wide=True)


PROGRAMS = st.sampled_from(sorted(FORMS)).flatmap(lambda kind: FORMS[kind])


@settings(max_examples=400)
@given(PROGRAMS, st.integers(0, 2**32))
def test_every_value_lies_in_the_range(text: str, seed: int) -> None:
    lies_within(text, seed)


@pytest.mark.slow
@settings(max_examples=15_000)
@given(PROGRAMS, st.integers(0, 2**32))
def test_every_value_of_many_programs_lies_in_the_range(text: str, seed: int) -> None:
    lies_within(text, seed)


def lies_within(text: str, seed: int) -> None:
    try:
        compiled = compile_expr(SourceText(text), WIDE)
    except Mistakes:
        return  # too costly, or a literal that does not fit
    rng = random.Random(seed)
    facts = random_facts(rng)
    found = find_range(compiled, facts)
    for _ in range(12):
        row = {name: bounded_value(rng, name, facts) for name in compiled.names}
        value, failed = interpret_marked(compiled, row)
        shown = (text, row, value, found)
        if failed:
            assert found.may_error, shown
        elif value is None:
            assert found.may_be_null, shown
        elif compiled.type.kind == "bool":
            assert found.may_be_true if value else found.may_be_false, shown
        elif compiled.type.kind in NUMBERS:
            assert found.may_be_nan if value != value else found.low <= value <= found.high, shown


@settings(max_examples=200)
@given(FORMS["bool"], st.integers(0, 2**32))
def test_what_is_said_to_be_always_so_is_so(text: str, seed: int) -> None:
    try:
        compiled = compile_expr(SourceText(text), WIDE)
    except Mistakes:
        return
    rng = random.Random(seed)
    facts = random_facts(rng)
    notes = check_ranges(compiled, facts)
    for note in notes:
        at = text[note.col - 1 : note.end_col - 1]
        if note.kind != "always-true":
            continue
        try:
            part = compile_expr(SourceText(at), WIDE)
        except Mistakes:
            continue  # stands behind a guard, or in a loop
        for _ in range(8):
            row = {name: bounded_value(rng, name, facts) for name in part.names}
            assert interpret_marked(part, row)[0] in (True, None), (text, at, row)

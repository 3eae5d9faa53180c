"""Two experiments of one layer are let side by side only when it is proved that no request is in both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.experiment_check import find_conflicts
from engine.strategy import CompiledArms
from features.expr import Facts, SourceText, Type, compile_expr, interpret, parse_type
from tests.engine.assignment_vectors import experiment
from tests.engine.assignments import compiled_arms

TYPES: dict[str, Type] = {
    "city": parse_type("string"),
    "hour": parse_type("int"),
    "zone": parse_type("int"),
    "surge": parse_type("double?"),
    "tags": parse_type("list(string)"),
    "as_of": parse_type("timestamp"),
}
HOURS = {"hour": Facts(low=0, high=23)}


def split(name: str, where: str | None, layer: str = "ranking") -> CompiledArms:
    found = experiment(name=name, layer=layer, source=SourceText(name, "s.yaml"))
    program = None if where is None else compile_expr(SourceText(where, "s.yaml"), TYPES)
    return replace(compiled_arms(replace(found, where=program and program.source)), where=program)


def conflicts(*wheres: str | None) -> list[str]:
    splits = [split(f"e{at}", where) for at, where in enumerate(wheres)]
    return [found.message for found in find_conflicts(splits, TYPES, HOURS)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("city == 'nyc'", "city != 'nyc'"),
        ("city == 'nyc' && hour >= 17", "city != 'nyc' || hour < 17"),
        ("surge == null", "surge != null && surge > 2.0"),
        ("hour < 12", "hour - 12 >= 0"),
        ("hour > 23", "hour >= 0"),  # by its bounds the first is never true
        ("zone in [1, 2, 3]", "zone in [4, 5]"),
        ("as_of < timestamp('2024-01-01T00:00:00Z')", "as_of >= timestamp('2024-01-01T00:00:00Z')"),
        ("zone % 10 < 5", "zone % 10 >= 5"),
        ("hash01('x', string(zone)) < 0.5", "!(hash01('x', string(zone)) < 0.5)"),
        ("tags.exists(t, t == 'vip') && hour > 3", "!tags.exists(t, t == 'vip')"),
        ("city == 'nyc' && zone * zone % 7 == 3", "zone * zone % 7 > 3"),
    ],
)
def test_experiments_that_exclude_each_other_are_let_side_by_side(first: str, second: str) -> None:
    assert conflicts(first, second) == []


@pytest.mark.parametrize(
    ("first", "second", "example"),
    [
        ("city == 'nyc'", "hour > 20", "city: 'nyc', hour: 21"),
        ("surge == null || surge > 2.0", "surge == null", "surge: null"),
        ("hour <= 12", "hour >= 12", "hour: 12"),
        ("zone > 5", None, "zone: 6"),
    ],
)
def test_experiments_that_meet_are_refused_with_a_request_that_is_in_both(
    first: str, second: str | None, example: str
) -> None:
    assert conflicts(first, second) == [
        f"experiments 'e0' and 'e1' both split layer 'ranking' for a request with {example}"
    ]


def test_experiments_without_where_meet_in_every_request() -> None:
    assert conflicts(None, None) == ["experiments 'e0' and 'e1' both split layer 'ranking' for every request"]


def test_what_is_not_proved_is_refused_and_says_so() -> None:
    found = conflicts("zone * zone % 7 == 3", "zone > 100")  # no square leaves 3, which is number theory
    assert found == ["it is not proved that experiments 'e0' and 'e1' of layer 'ranking' exclude each other"]


def test_experiments_of_other_layers_may_meet() -> None:
    assert find_conflicts([split("a", None), split("b", None, layer="core")], TYPES, HOURS) == []


def test_every_two_of_three_are_looked_at() -> None:
    assert len(conflicts("hour < 8", "hour >= 8 && hour < 16", "hour >= 16")) == 0
    assert len(conflicts("hour < 8", "hour >= 7 && hour < 16", "hour >= 15")) == 2


ATOMS = [
    "zone % 3 == 1",
    "zone % 3 > 0",
    "zone > 4",
    "zone * 2 <= 6",
    "div(6, zone) > 2",
    "(surge ?? 1.0) > 1.0",
    "surge == null",
]
CONDITIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        inner.map(lambda text: f"!({text})"),
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        ),
    ),
    max_leaves=4,
)


@given(first=CONDITIONS, second=CONDITIONS)
def test_what_is_let_side_by_side_is_never_true_together(first: str, second: str) -> None:
    if conflicts(first, second):
        return
    one, two = (compile_expr(SourceText(text), TYPES) for text in (first, second))
    for zone in range(-7, 8):
        for surge in (None, 0.5, 1.0, 2.0):
            values = {"zone": zone, "surge": surge}
            assert not (interpret(one, values) is True and interpret(two, values) is True), values

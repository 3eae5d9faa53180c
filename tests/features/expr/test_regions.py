"""find_example against brute force on small domains: an example is right, and "there is none" is never wrong."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from features.expr import Facts, Mistakes, Program, SourceText, Type, compile_expr, interpret, parse_type
from features.expr.regions import critical_values, find_example

TYPES = {
    "a": parse_type("int"),
    "b": parse_type("int"),
    "n": parse_type("int?"),
    "x": parse_type("double"),
    "y": parse_type("double?"),
    "s": parse_type("string"),
    "t": parse_type("string?"),
    "u": parse_type("bool"),
    "w": parse_type("bool?"),
}
BOUNDED = {name: Facts(low=-2, high=2) for name in ("a", "b", "n")}
HALVES = [-math.inf, -2.0, -1.5, -1.0, -0.5, -0.0, 0.0, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, math.inf, math.nan]
SMALL: dict[str, list[Any]] = {
    "a": [-2, -1, 0, 1, 2],
    "b": [-2, -1, 0, 1, 2],
    "n": [-2, -1, 0, 1, 2, None],
    "x": HALVES,
    "y": [*HALVES, None],
    "s": ["", "a", "ab", "abc", "b", "ba", "zz"],
    "t": ["", "a", "ab", "b", "c", None],
    "u": [True, False],
    "w": [True, False, None],
}
INT_MIN, INT_MAX = -(2**63), 2**63 - 1


def program(text: str, types: dict[str, Type] = TYPES) -> Program:
    return compile_expr(SourceText(text), types)


def names(**types: str) -> dict[str, Type]:
    return {name: parse_type(text) for name, text in types.items()}


def search(wanted: dict[str, bool | None], types: dict[str, Type], facts: dict[str, Facts] | None = None) -> Any:
    return find_example([(program(text, types), want) for text, want in wanted.items()], types, facts or {})


@pytest.mark.parametrize(
    ("types", "wanted", "facts"),
    [
        (names(x="double"), {"x > 2.0": True, "x <= 2.0": True}, {}),
        (names(x="double"), {"x > 2.0": False, "x <= 2.0": False}, {"x": Facts(low=0)}),
        (names(x="double"), {"double(int(x)) * 2.0 > 5.0": True, "x <= 2.6": True}, {}),
        (names(x="double"), {"x * 0.1 > 0.3": True, "x < 3.0": True}, {}),
        (names(c="string"), {"c == 'nyc'": True, "c != 'nyc'": True}, {}),
        (names(c="string"), {"c in ['a', 'b']": True, "c == 'a'": False, "c == 'b'": False}, {}),
        (names(c="string"), {"c.startsWith('ny')": True, "c < 'n'": True}, {}),
        (names(c="string"), {"c == 'nyc'": True, "c.contains('z')": True}, {}),
        (names(c="string?"), {"(c ?? 'none') == 'none'": True, "c != null && c != 'none'": True}, {}),
        (names(x="double", y="double", z="double"), {"x < y": True, "y < z": True, "z <= x": True}, {}),
        (names(a="int", b="int"), {"a < b": True, "a > 3": True, "b < 5": True}, {}),
        (names(a="int"), {"a % 7 == 3": True, "a > 17": True}, {"a": Facts(low=0, high=23)}),
        (names(a="int"), {"a + 1 > a": False, "a < 100": True, "a > -100": True}, {}),
        (names(u="bool", v="bool", w="bool"), {"u != v": True, "v != w": True, "u != w": True}, {}),
        (names(v="bool"), {"v": None}, {}),
        (names(a="int"), {"a == 3": True, "a * a == 10": True}, {}),
        (
            names(now="timestamp", gap="duration"),
            {
                "now < timestamp('2024-01-01T00:00:00Z')": True,
                "now + duration('1h') > timestamp('2024-01-01T01:00:00Z')": True,
                "gap > duration('3s')": True,
            },
            {},
        ),
        (
            names(v="int", f="int", m="double"),
            {"double(v) > m * double(f)": True, "f > 500": True, "v < 100": True, "m >= 0.3": True},
            {"v": Facts(low=0), "f": Facts(low=0), "m": Facts(low=0, high=1)},
        ),
        (names(x="double"), {"math.exp(x) < 0.0": True}, {}),
        (names(a="int"), {"a % 10 < 5": True, "a % 10 >= 5": True}, {}),
        (names(s="string", n="int"), {"hash01(s, string(n)) < 0.3": True, "hash01(s, string(n)) >= 0.4": True}, {}),
        (names(s="string"), {"s.contains('a') && size(s) > 3": True, "s.contains('a')": False}, {}),
        (names(e="double", p="double", q="double"), {"e * p > q": True, "q > e * p": True}, {}),
        (names(s="string", t="string"), {"hash01(s, t) > 1.0": True}, {}),
        (
            names(x="double", y="double"),
            {"x / y > 30.0": True},
            {"x": Facts(low=0, high=900), "y": Facts(low=60, high=900)},
        ),
    ],
)
def test_what_cannot_be_is_proved(types: dict[str, Type], wanted: dict[str, Any], facts: dict[str, Facts]) -> None:
    found = search(wanted, types, facts)
    assert (found.example, found.exact) == (None, True)


@pytest.mark.parametrize(
    ("types", "wanted", "facts"),
    [
        (names(x="double"), {"double(int(x)) * 2.0 > 5.0": True, "x <= 3.1": True}, {}),
        (names(x="double"), {"x > 2.0": False, "x <= 2.0": False}, {}),  # NaN
        (names(a="int"), {"a + 1 > 0": None}, {}),  # overflow
        (names(a="int"), {"a * a > 50": True, "a < 0": True}, {}),
        (names(a="int"), {"a % 7 == 3": True, "a > 100": True}, {}),
        (names(c="string"), {"c.startsWith('ny')": True, "c in ['ny', 'nyc']": False}, {}),
        (names(x="double", y="double"), {"x + y == 7.25": True, "x > 3.0": True}, {}),
        (names(x="double", y="double"), {"x * y > 10.0": True, "x < 0.0": True}, {}),
        (
            names(a="double", b="double", c="double", d="double", e="double", f="double"),
            {"a * b + c * d - e * f > 1.0 && a * c < b * d && e / f > a && math.exp(a) + b < c": True},
            {},
        ),
        (names(a="int", b="int"), {"a < b": True, "a > 3": True, "b < 6": True}, {}),
        (names(y="double?", p="double"), {"y != null && y > p": True, "p > 900.0": True}, {"p": Facts(low=60, high=1800)}),
        (names(y="double?"), {"y != null && y > 1.0 || y == null": True, "y == null": True}, {}),
        (
            names(v="int", f="int", m="double"),
            {"double(v) > m * double(f)": True, "f > 500": True, "v < 200": True, "m >= 0.3": True},
            {"v": Facts(low=0), "f": Facts(low=0), "m": Facts(low=0, high=1)},
        ),
    ],
)  # fmt: skip
def test_what_can_be_is_found_and_holds(
    types: dict[str, Type], wanted: dict[str, Any], facts: dict[str, Facts]
) -> None:
    found = search(wanted, types, facts)
    assert found.exact and found.example is not None
    for text, want in wanted.items():
        assert interpret(program(text, types), found.example) is want
    for name, fact in facts.items():
        assert fact.low is None or found.example[name] >= fact.low
        assert fact.high is None or found.example[name] <= fact.high


def test_an_example_reads_well_when_it_can() -> None:
    found = search({"eta_s > 600.0": True, "city == 'nyc'": False}, names(eta_s="double", city="string"))
    assert found.example == {"eta_s": 601.0, "city": "other"}


def test_a_search_without_end_gives_up_and_says_so() -> None:
    types = names(a="int", b="int", c="int")
    facts = {name: Facts(low=1, high=1000) for name in types}
    found = find_example([(program("a * a * a + b * b * b == c * c * c", types), True)], types, facts, max_tries=500)
    assert (found.example, found.exact) == (None, False)


def test_conditions_that_share_no_name_do_not_multiply() -> None:
    types = names(**{f"x{i}": "double" for i in range(40)})
    wanted = [(program(f"x{i} > {i}.0 && x{i} < {i}.5 || x{i} == -1.0", types), True) for i in range(40)]
    found = find_example(wanted, types, {}, max_tries=500)
    assert found.example is not None
    assert found.example["x7"] == 7.1


def test_critical_values_are_both_sides_of_every_edge_and_null() -> None:
    types = names(x="double?", a="int", c="string?")
    texts = ["x == null || x > 5.0", "a >= 3 && a < 7", "(c ?? 'none') == 'nyc'"]
    values = critical_values([program(text, types) for text in texts], types, {"x": Facts(low=0, high=10)})
    assert values["a"] == [0, 2, 3, 6, 7]
    assert values["c"][-1] is None and "nyc" in values["c"] and len(values["c"]) >= 3
    assert values["x"][:2] == [-0.0, 5.0] and values["x"][-2:] == [10.0, None]
    assert any(5.0 < value < 10.0 for value in values["x"][:-1])


def test_critical_values_meet_those_of_the_other_name() -> None:
    types = names(eta="double", limit="double")
    values = critical_values([program("eta > limit", types)], types, {"limit": Facts(low=60, high=900)})
    assert {60.0, 900.0} <= set(values["eta"])
    (plain,) = critical_values([program("x == 0.5", names(x="double"))], names(x="double"), {}).values()
    assert plain[:-1] == sorted(plain[:-1]) and 0.5 in plain and len(plain) == 4 and math.isnan(plain[-1])
    assert any(value < 60.0 for value in values["eta"]) and any(value > 900.0 for value in values["eta"])


# against brute force --------------------------------------------------------------------------------------------------

INTS = st.sampled_from(
    ["a", "b", "(n ?? 1)", "(a + b)", "(a * 2 - 1)", "(b * b)", "div(a, b)", "(b % 2)", "(-a)", "math.abs(b)"]
)
DOUBLES = st.sampled_from(
    ["x", "(y ?? 0.5)", "(x * 2.0 - 1.0)", "(1.0 / x)", "(x * x)", "math.floor(x)", "(x + (y ?? 0.0))", "double(a)", "(x / 0.3)", "min(x, 1.5)", "double(int(x))", "(-x)", "math.sqrt(x)"]
)  # fmt: skip
TEXTS = st.sampled_from(["s", "(t ?? 'b')", "(s + 'b')"])
ORDER = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
ATOM = st.one_of(
    st.builds("{} {} {}".format, INTS, ORDER, st.sampled_from(["a", "b", "0", "1", "-2", "9223372036854775806"])),
    st.builds("{} {} {}".format, DOUBLES, ORDER, st.sampled_from(["x", "0.0", "0.5", "1.5", "-1.0", "(y ?? 2.0)"])),
    st.builds("{} {} {}".format, TEXTS, ORDER, st.sampled_from(["s", "'a'", "'ab'", "''", "(t ?? '')"])),
    st.sampled_from(
        ["u", "(w ?? u)", "w", "n == null", "(t == null)", "s in ['a', 'b', 'zz']", "a in [1, 2]", "x in [0.5, 2.5]", "startsWith(s, 'a')", "s.contains('b')", "size(s) > 1", "(u == (a > 0))", "startsWith(t ?? 'ab', 'a')"]
    ),
)  # fmt: skip


def conditions() -> st.SearchStrategy[str]:
    return st.recursive(
        ATOM.map("({})".format),
        lambda inner: st.one_of(
            st.builds("({} && {})".format, inner, inner),
            st.builds("({} || {})".format, inner, inner),
            st.builds("(!{})".format, inner),
            st.builds("({} ?? {})".format, inner, inner),
        ),
        max_leaves=4,
    )


def compiled(text: str) -> Program:
    try:
        return program(text)
    except Mistakes:
        assume(False)
        raise


WANTED = st.lists(st.tuples(conditions(), st.sampled_from([True, True, False, None])), min_size=1, max_size=3)


@given(WANTED)
@example([("(x < 0.0)", True), ("(1.0 / x > 0.0)", True)])
@example([("(x == 0.0)", True), ("((1.0 / x) < 0.0)", True)])
@example([("(a < b)", True), ("(b * b == 1)", True), ("(a == -1)", True)])
@settings(max_examples=150)
def test_the_answer_agrees_with_brute_force(wanted: list[tuple[str, bool | None]]) -> None:
    agree(wanted)


@pytest.mark.slow
@given(WANTED)
@settings(max_examples=8_000)
def test_the_answer_agrees_with_brute_force_many_times(wanted: list[tuple[str, bool | None]]) -> None:
    agree(wanted)


def agree(wanted: list[tuple[str, bool | None]]) -> None:
    programs = [(compiled(text), want) for text, want in wanted]
    read = sorted(frozenset().union(*(p.names for p, _ in programs)))
    assume(math.prod(len(SMALL[name]) for name in read) <= 4_000)
    found = find_example(programs, TYPES, BOUNDED)
    if found.example is not None:
        assert found.exact and set(found.example) == set(read)
        for item, want in programs:
            assert interpret(item, found.example) is want, (wanted, found)
        assert all(found.example[n] is None or -2 <= found.example[n] <= 2 for n in read if n in BOUNDED)
        return
    for values in itertools.product(*(SMALL[name] for name in read)):
        row = dict(zip(read, values, strict=True))
        if all(interpret(item, row) is want for item, want in programs):
            assert not found.exact, (wanted, row)

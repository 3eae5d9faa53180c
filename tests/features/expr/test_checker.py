"""Types, nullability and narrowing; messages are compared whole with tests/golden/expr/errors.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from features.expr import BOOL, DOUBLE, INT, STRING, Mistake, Mistakes, SourceText, Type, compile_expr, parse_type
from features.expr.errors import did_you_mean

GOLDEN = Path(__file__).parents[2] / "golden" / "expr"
NAMES = {
    "eta_s": parse_type("double?"),
    "surge": parse_type("double"),
    "hour": parse_type("int"),
    "fare_cents": parse_type("int"),
    "dropoff_zone": parse_type("int?"),
    "state": parse_type("string"),
    "tier": parse_type("string?"),
    "rush": parse_type("bool"),
    "vip": parse_type("bool?"),
    "driver.accept_rate_24h": parse_type("double?"),
    "driver.trip_count_5m": parse_type("int"),
}
MORE_NAMES = {
    **NAMES,
    "as_of": parse_type("timestamp"),
    "last_trip": parse_type("timestamp?"),
    "wait": parse_type("duration"),
    "tags": parse_type("list(string)"),
    "scores": parse_type("list(double)"),
    "past": parse_type("list(int)?"),
}


def type_of(text: str, expect: Type | None = None) -> str:
    return str(compile_expr(SourceText(text), MORE_NAMES, expect=expect).type)


def kinds_of(text: str, expect: Type | None = None) -> list[str]:
    with pytest.raises(Mistakes) as caught:
        compile_expr(SourceText(text), MORE_NAMES, expect=expect)
    return [item.kind for item in caught.value.items]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("surge > 2", "bool"),
        ("as_of - as_of", "duration"),
        ("as_of + wait", "timestamp"),
        ("wait + as_of - duration('1h')", "timestamp"),
        ("last_trip ?? as_of", "timestamp"),
        ("last_trip != null && as_of - last_trip > wait", "bool"),
        ("as_of.getHours('Europe/London')", "int"),
        ("'a' in tags", "bool"),
        ("1 in scores", "bool"),
        ("past != null && hour in past", "bool"),
        ("has(past) ? past.exists(p, p > hour) : false", "bool"),
        ("past", "list(int)?"),
        ("rush ? past : null", "list(int)?"),
        ("tags.exists(t, vip)", "bool?"),
        ("tags.all(t, scores.exists(s, s > 1 && t == state))", "bool"),
        ("tags.exists(t, tags.all(t, t == state))", "bool"),
        ("tags.exists(hour, hour == 'a') && hour > 3", "bool"),
        ("tags.exists(eta_s, eta_s == 'a')", "bool"),
        ("hash01('s', state) < 0.5", "bool"),
        ("hour * 2", "int"),
        ("surge * 2", "double"),
        ("state + '!'", "string"),
        ("eta_s", "double?"),
        ("eta_s ?? 1", "double"),
        ("eta_s ?? driver.accept_rate_24h", "double?"),
        ("eta_s ?? null", "double?"),
        ("surge ?? 1.0", "double"),
        ("eta_s == null", "bool"),
        ("2.1 == null", "bool"),
        ("null == null", "bool"),
        ("null", "null"),
        ("vip && rush", "bool?"),
        ("!vip", "bool?"),
        ("vip || null", "bool?"),
        ("rush ? 1 : 2.5", "double"),
        ("rush ? 1 : null", "int?"),
        ("rush ? null : state", "string?"),
        ("(rush ? 1 : 2) * surge", "double"),
        ("min(surge, 1)", "double"),
        ("hour in [1, 2]", "bool"),
        ("surge in [1, 2.5]", "bool"),
        ("div(hour, 2) % 3", "int"),
        ("double(fare_cents) / 100", "double"),
    ],
)
def test_types(text: str, expected: str) -> None:
    assert type_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "eta_s != null && eta_s > 3",
        "null != eta_s && eta_s > 3",
        "has(eta_s) && eta_s > 3",
        "eta_s == null || eta_s > 3",
        "!(eta_s == null) && eta_s > 3",
        "!(eta_s != null && eta_s > 3) || surge > 1",
        "eta_s != null ? eta_s > 3 : false",
        "eta_s == null ? false : eta_s > 3",
        "eta_s != null && tier != null ? eta_s > 3 && tier == 'gold' : false",
        "eta_s == null || tier == null ? false : eta_s > 3 && tier == 'gold'",
        "(eta_s == null && rush || eta_s == null) || eta_s > 3",
        "vip != null && vip ? 1 : 0",
        "rush && eta_s != null && (surge > 1 || eta_s > 2)",
        "tier ?? 'none' == 'gold'",
        "(eta_s != null) == rush",
    ],
)
def test_a_guard_discharges_null(text: str) -> None:
    type_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "eta_s > 3",
        "eta_s > 3 && eta_s != null",
        "eta_s != null || eta_s > 3",
        "eta_s == null && eta_s > 3",
        "(eta_s != null || rush) && eta_s > 3",
        "(eta_s != null && eta_s > 1) || eta_s > 3",
        "eta_s == null ? eta_s > 3 : false",
        "eta_s + 1.0",
        "-eta_s",
        "tier == 'gold'",
        "tier in ['gold']",
        "size(tier)",
        "min(eta_s, 1)",
        "vip ? 1 : 2",
        "vip == rush",
        "null + 1",
        "null > 1",
        "null in [1]",
        "double(dropoff_zone)",
    ],
)
def test_a_nullable_operand_that_is_not_discharged_does_not_compile(text: str) -> None:
    assert set(kinds_of(text)) == {"nullable"}


def test_growthbook_trap_absent_age_is_a_compile_error_not_zero() -> None:
    with pytest.raises(Mistakes, match="'age' may be null"):
        compile_expr(SourceText("age > -10 && age < 10"), {"age": parse_type("double?")})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("hour / 2", "int-division"),
        ("7 / 2", "int-division"),
        ("surge * hour", "type"),
        ("surge == hour", "type"),
        ("surge > 9007199254740993", "type"),
        ("surge % 2.0", "type"),
        ("state > 3", "type"),
        ("rush + 1", "type"),
        ("rush < rush", "type"),
        ("!hour", "type"),
        ("hour && rush", "type"),
        ("hour ? 1 : 2", "type"),
        ("rush ? 1 : 'a'", "type"),
        ("eta_s ?? 'a'", "type"),
        ("string(surge)", "type"),
        ("hour in ['a']", "type"),
        ("hour in [hour]", "type"),
        ("1 < hour < 3", "type"),
        ("size(state, 1)", "type"),
        ("div(hour)", "type"),
        ("nope(1)", "unknown-function"),
        ("state.lower()", "unknown-function"),
        ("nope", "unknown-name"),
    ],
)
def test_what_types_refuse(text: str, kind: str) -> None:
    assert kinds_of(text) == [kind]


def test_the_result_must_have_the_expected_type() -> None:
    assert type_of("1", DOUBLE) == "double"
    assert type_of("rush ? 1 : 0", DOUBLE) == "double"
    assert type_of("null", DOUBLE.optional()) == "double?"
    assert type_of("surge", DOUBLE.optional()) == "double"
    assert (
        kinds_of("hour", DOUBLE)
        == kinds_of("surge", INT)
        == kinds_of("hour", BOOL)
        == kinds_of("1", STRING)
        == ["type"]
    )
    assert kinds_of("vip", BOOL) == kinds_of("eta_s", DOUBLE) == kinds_of("null", INT) == ["nullable"]


def test_one_mistake_does_not_hide_or_multiply_others() -> None:
    text = "sruge > 2 && (eta_s != null && hour / 2 > 1) && state + 1 == 2 && eta_s > 3"
    with pytest.raises(Mistakes) as caught:
        compile_expr(SourceText(text), NAMES)
    assert [(item.kind, item.col) for item in caught.value.items] == [
        ("unknown-name", 1),
        ("int-division", 32),
        ("type", 49),
    ]


@pytest.mark.parametrize(("file", "names"), [("errors.txt", NAMES), ("time_and_list_errors.txt", MORE_NAMES)])
def test_error_displays_are_golden(file: str, names: dict[str, Type]) -> None:
    blocks = (GOLDEN / file).read_text(encoding="utf-8").rstrip("\n").split("\n----\n")
    assert len(blocks) > 25
    for block in blocks:
        source, _, expected = block.partition("\n")
        text, _, expect = source.partition("   => ")
        with pytest.raises(Mistakes) as caught:
            compile_expr(
                SourceText(text, "strategies/surge.yaml", 14, 11), names, expect=parse_type(expect) if expect else None
            )
        assert str(caught.value) == expected


def test_the_first_hundred_mistakes_are_shown_and_the_rest_counted() -> None:
    with pytest.raises(Mistakes) as caught:
        compile_expr(SourceText(" && ".join(f"nope{number:03} > 1" for number in range(130))), {"hour": INT})
    assert len(caught.value.items) == 130
    text = str(caught.value)
    assert "nope099" in text and "unknown name 'nope100'" not in text and text.endswith("\nand 30 more mistakes")


def test_mistakes_of_several_files_are_sorted_by_place() -> None:
    items: list[Any] = [Mistake("k", file, line, 1, 2, "m") for file, line in (("b", 1), ("a", 10), ("a", 2), ("a", 2))]
    assert [(item.file, item.line) for item in Mistakes(items).items] == [("a", 2), ("a", 10), ("b", 1)]


def test_carets_stand_under_wide_characters() -> None:
    shown = Mistake("k", "f", 1, 10, 13, "m", "", "a = '🐱', bad").format().splitlines()
    assert shown[2] == "   |           ^^^"  # the cat is two columns wide


def test_did_you_mean() -> None:
    known = ["driver.trip_count_5m", "surge", "hour"]
    assert did_you_mean("sruge", known) == "surge"
    assert did_you_mean("HOUR", known) == "hour"
    assert did_you_mean("trip_count_5m", known) == "driver.trip_count_5m"
    assert did_you_mean("zzz", known) is None


def test_types_print_as_they_parse() -> None:
    for text in ("bool", "int?", "double", "string?"):
        assert str(parse_type(text)) == text
    with pytest.raises(ValueError, match="unknown type 'float'"):
        parse_type("float")


def test_a_loop_variable_is_unique_in_its_program() -> None:
    """So that no back end has to know which loop hides which name."""
    text = "tags.exists(t, t == 'a' && tags.all(t, t != 'b')) || tags.exists(hour, hour == 'c')"
    program = compile_expr(SourceText(text), MORE_NAMES)
    loops = [step.value for step in program.root.walk() if step.step in ("exists", "all")]
    assert loops == ["t", "t#2", "hour#2"]
    assert program.names == {"tags"}

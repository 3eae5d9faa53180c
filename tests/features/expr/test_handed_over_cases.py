"""Cases that other engines get wrong, each as a row and as a column in which it stands among ordinary rows.

The identifiers are those of the collected cases; the value beside a row is the right one. No order of the rows, and no
bad row among them, changes the value of another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from features.expr import ROW_ERROR, Column, Mistakes, SourceText, compile_expr, evaluate, interpret_marked, parse_type
from features.expr.times import parse_timestamp

ERROR = "row error"
DTYPES = {"int": np.int64, "double": np.float64, "bool": np.bool_, "timestamp": np.int64, "duration": np.int64}
Rows = list[tuple[dict[str, Any], Any]]


class Case(NamedTuple):
    """A text over typed names, and rows with the value of each; the first row is the case, the others are ordinary."""

    id: str
    source: str
    types: dict[str, str]
    text: str
    rows: Rows
    strict: bool = False


DIVIDE = {"two": "int", "zero": "int"}
NEW_YORK = {"at": "timestamp"}
LOGIC = {"a": "bool", "b": "bool", "c": "bool"}


def at(text: str) -> dict[str, Any]:
    return {"at": parse_timestamp(text)}


def names(**values: Any) -> dict[str, Any]:
    return values


CASES = [
    Case(
        "T01",
        "cel-spec logic/AND short_circuit_error_right, as CEL writes it",
        DIVIDE,
        "(two / zero > 3 ? false : true) && false",
        [(names(two=2, zero=0), False), (names(two=2, zero=1), False), (names(two=8, zero=2), False)],
        strict=True,
    ),
    Case(
        "T01-ours",
        "the same with div, and with the error on the right",
        DIVIDE,
        "zero == 1 && (div(two, zero) > 3 ? false : true)",
        [(names(two=2, zero=0), False), (names(two=2, zero=1), True), (names(two=8, zero=1), False)],
    ),
    Case(
        "T03",
        "cel-spec logic/OR error_right: an error, not false",
        DIVIDE,
        "false || div(two, zero) != 0",
        [(names(two=1, zero=0), ERROR), (names(two=1, zero=1), True), (names(two=1, zero=2), False)],
    ),
    Case(
        "T03-absorbed",
        "true absorbs an error from either side",
        DIVIDE,
        "div(two, zero) != 0 || two == 1",
        [(names(two=1, zero=0), True), (names(two=3, zero=0), ERROR), (names(two=3, zero=4), False)],
    ),
    Case(
        "T05",
        "cel-spec comparisons not_eq_dyn_double_null",
        {"pref": "double?"},
        "pref == null",
        [(names(pref=2.1), False), (names(pref=None), True), (names(pref=0.0), False)],
    ),
    Case(
        "T05-default",
        "the default that breaks when a double cannot be compared with null",
        {"pref": "double?"},
        "pref != null ? pref : 0.0",
        [(names(pref=2.1), 2.1), (names(pref=None), 0.0), (names(pref=-1.0), -1.0)],
    ),
    Case(
        "T07",
        "cel-spec integer_math mod_negative_positive and mod_positive_negative: the sign of the dividend",
        {"i": "int", "j": "int"},
        "i % j",
        [
            (names(i=-3, j=5), -3),
            (names(i=43, j=-5), 3),
            (names(i=7, j=0), ERROR),
            (names(i=-(2**63), j=-1), ERROR),
            (names(i=7, j=3), 1),
        ],
    ),
    Case(
        "T09",
        "cel-spec comparisons not_lt_dyn_int_big_lossy_double, converted by hand: int and double never mix here",
        {"i": "int", "x": "double"},
        "double(i) < x",
        [(names(i=2**63 - 1, x=2.0**63), False), (names(i=1, x=2.0), True), (names(i=-(2**63), x=-(2.0**63)), False)],
    ),
    Case(
        "T11",
        "cel-spec string/size unicode, and a character outside the first plane: code points",
        {"s": "string"},
        "size(s)",
        [(names(s="πέντε"), 5), (names(s="🐱"), 1), (names(s=""), 0), (names(s="abc"), 3), (names(s="e\u0301"), 2)],
    ),
    Case(
        "T13",
        "hours on both sides of the clock changes of New York in 2024",
        NEW_YORK,
        "at.getHours('America/New_York')",
        [
            (at("2024-03-10T07:30:00Z"), 3),
            (at("2024-11-03T06:30:00Z"), 1),
            (at("2024-03-10T06:30:00Z"), 1),
            (at("2024-03-10T06:59:59.999999Z"), 1),
            (at("2024-03-10T07:00:00Z"), 3),
            (at("2024-11-03T05:30:00Z"), 1),
            (at("2024-11-03T07:00:00Z"), 2),
            (at("2024-07-01T00:00:00Z"), 20),
        ],
    ),
    Case(
        "T13-zone-by-row",
        "a zone may come with the row; one that is unknown is an error of its row",
        {**NEW_YORK, "zone": "string"},
        "at.getHours(zone)",
        [
            (at("2024-03-10T07:30:00Z") | names(zone="America/New_York"), 3),
            (at("2024-03-10T07:30:00Z") | names(zone="Atlantis/Harbour"), ERROR),
            (at("2024-11-03T06:30:00Z") | names(zone="America/New_York"), 1),
            (at("2024-11-03T06:30:00Z") | names(zone="Asia/Kolkata"), 12),
            (at("2024-11-03T06:30:00Z") | names(zone="-08:00"), 22),
        ],
    ),
    Case(
        "T15",
        "MonetDB/MonetDB#3546: the branch not taken raises nothing",
        {"r": "double", "a": "double?"},
        "a != null && a > 0 ? r / a : -1",
        [(names(r=1.0, a=2.0), 0.5), (names(r=2.0, a=0.0), -1.0), (names(r=3.0, a=None), -1.0)],
    ),
    Case(
        "T15-int",
        "the same where the untaken branch would fail",
        {"r": "int", "a": "int?"},
        "a != null && a > 0 ? div(r, a) : -1",
        [(names(r=2, a=0), -1), (names(r=3, a=None), -1), (names(r=9, a=2), 4)],
    ),
    Case(
        "T17",
        "growthbook evalCondition, missing attribute with comparison operators: never taken as 0",
        {"age": "int?"},
        "age != null && age > -10 && age < 10",
        [(names(age=None), False), (names(age=0), True), (names(age=10), False), (names(age=ROW_ERROR), ERROR)],
    ),
    Case(
        "T17-unknown",
        "or the author says that absent means unknown, and unknown it is",
        {"age": "int?"},
        "age == null ? null : age > -10 && age < 10",
        [(names(age=None), None), (names(age=0), True), (names(age=-10), False)],
    ),
    Case("T31-and-or", "precedence", LOGIC, "a || b && c", [
        (names(a=True, b=False, c=False), True), (names(a=False, b=True, c=False), False), (names(a=False, b=True, c=True), True),
    ]),
    Case("T31-minus", "precedence", {"i": "int", "j": "int"}, "i - j - 3", [
        (names(i=1, j=2), -4), (names(i=-(2**63), j=1), ERROR), (names(i=9, j=1), 5),
    ]),
    Case("T31-not", "precedence", LOGIC, "!a == b", [
        (names(a=True, b=False, c=True), True), (names(a=True, b=True, c=True), False), (names(a=False, b=True, c=True), True),
    ]),
    Case("T31-ternary", "precedence", LOGIC, "a ? false : b ? true : c", [
        (names(a=True, b=True, c=False), False), (names(a=False, b=True, c=False), True), (names(a=False, b=False, c=False), False),
    ]),
]  # fmt: skip


def compiled(case: Case) -> Any:
    return compile_expr(
        SourceText(case.text), {name: parse_type(kind) for name, kind in case.types.items()}, strict=case.strict
    )


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_as_a_row(case: Case) -> None:
    program = compiled(case)
    for row, expected in case.rows:
        value, failed = interpret_marked(program, row)
        assert repr(ERROR if failed else value) == repr(expected), (case.id, case.source, row)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_as_a_column_among_ordinary_rows(case: Case) -> None:
    """Every order that starts elsewhere, and forwards and back, so that each row has every neighbour."""
    program = compiled(case)
    for first in range(len(case.rows)):
        for step in (1, -1):
            rows = (case.rows[first:] + case.rows[:first])[::step]
            column = evaluate(program, columns_of(case, [row for row, _ in rows]), num_rows=len(rows))
            assert column.error is not None
            for at_row, (row, expected) in enumerate(rows):
                got = ERROR if column.error[at_row] else column.tolist()[at_row]
                assert repr(got) == repr(expected), (case.id, case.source, row, first, step)


def columns_of(case: Case, rows: list[dict[str, Any]]) -> dict[str, Column]:
    columns = {}
    for name, kind in case.types.items():
        values = np.zeros(len(rows), dtype=DTYPES.get(kind.rstrip("?"), object))
        valid = np.array([row[name] is not None and row[name] is not ROW_ERROR for row in rows])
        for at_row, row in enumerate(rows):
            if valid[at_row]:
                values[at_row] = row[name]
        columns[name] = Column(values, valid, np.array([row[name] is ROW_ERROR for row in rows]))
    return columns


@pytest.mark.parametrize(
    ("id_", "text", "message"),
    [
        ("T17", "age > -10 && age < 10", "'age' may be null"),  # GrowthBook takes null as 0 and says true
        ("T09", "i < x", "'<' does not take int and double"),
        ("T09", "9223372036854775807 < 9223372036854775808.0", "'<' does not take int and double"),
        ("T05", "x == null && pref > 1.0", "'pref' may be null"),
        ("T31", "a < i < 3", "cannot compare the result of a comparison"),
    ],
)
def test_what_must_not_compile_does_not(id_: str, text: str, message: str) -> None:
    types = {"age": "int?", "i": "int", "x": "double", "pref": "double?", "a": "int"}
    with pytest.raises(Mistakes) as caught:
        compile_expr(SourceText(text), {name: parse_type(kind) for name, kind in types.items()})
    assert message in str(caught.value), id_

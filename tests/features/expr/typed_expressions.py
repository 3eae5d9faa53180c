"""Random well-typed expressions and rows, for the tests that hold the back ends against the interpreter.

Expressions are text, in parentheses throughout; every nullable name is discharged in one of the ways the language knows.
Rows are drawn from edge values, with nulls only where a name is nullable.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from features.expr import ROW_ERROR, Column, parse_type

NAMES = {
    "i": parse_type("int"),
    "req.j": parse_type("int"),
    "n": parse_type("int?"),
    "x": parse_type("double"),
    "req.y": parse_type("double"),
    "driver.z": parse_type("double?"),
    "s": parse_type("string"),
    "t": parse_type("string?"),
    "b": parse_type("bool"),
    "f": parse_type("bool?"),
}

INTS = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    5,
    7,
    -7,
    43,
    2**31,
    -(2**31),
    2**53,
    2**53 + 1,
    2**62,
    -(2**62),
    2**63 - 1,
    -(2**63),
    3037000500,
]
DOUBLES = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, 3.7, 0.49999999999999994, 1e308, -1e308, 5e-324, 2.0**52 + 1,
    2.0**53, 9.223372036854775e18, 9223372036854775808.0, -9223372036854775808.0, math.inf, -math.inf, math.nan,
]  # fmt: skip
STRINGS = ["", "a", "b", "ab", "idle", "it's", "πέντε", "🐱", "12", "-7", "+3", "9223372036854775808", "1.5", "1e400", ".5e1", " 1", "1_0", "nan"]  # fmt: skip
EDGES: dict[str, list[Any]] = {"int": INTS, "double": DOUBLES, "string": STRINGS, "bool": [True, False]}
DTYPES: dict[str, Any] = {"int": np.int64, "double": np.float64, "string": object, "bool": np.bool_}
FILLERS: dict[str, Any] = {"int": 5, "double": 3.25, "string": None, "bool": True}


def random_rows(seed: int, num_rows: int) -> list[dict[str, Any]]:
    """Rows of edge values; a nullable name is null in a third of them."""
    rng = random.Random(seed)
    return [
        {
            name: None if kind.nullable and rng.random() < 0.33 else rng.choice(EDGES[kind.kind])
            for name, kind in NAMES.items()
        }
        for _ in range(num_rows)
    ]


def to_columns(rows: list[dict[str, Any]]) -> dict[str, Column]:
    """The rows as columns; an invalid cell holds something that would be wrong to read."""
    columns = {}
    for name, kind in NAMES.items():
        values = np.empty(len(rows), dtype=DTYPES[kind.kind])
        error = np.array([row[name] is ROW_ERROR for row in rows], dtype=np.bool_)
        valid = np.array([row[name] is not None for row in rows], dtype=np.bool_) & ~error
        for index, row in enumerate(rows):
            values[index] = row[name] if valid[index] else FILLERS[kind.kind]
        columns[name] = Column(values, valid, error)
    return columns


def same(a: Any, b: Any) -> bool:
    """Equal in kind and bits; any NaN equals any NaN."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b


def _pick(*options: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(*options)


def _form(template: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda **drawn: template.format(**drawn), **parts)


def _op(left: st.SearchStrategy[str], ops: list[str], right: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda a, o, b: f"({a} {o} {b})", left, st.sampled_from(ops), right)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def typed_expressions(*, sql: bool = False) -> dict[str, st.SearchStrategy[str]]:
    """A strategy of texts for each of int, double, string, bool and 'bool?'; `sql` leaves out what SQL refuses."""
    finite = [value for value in DOUBLES if math.isfinite(value) and value > -1e300]
    leaf_int = st.sampled_from(["i", "req.j", *map(repr, INTS)])
    leaf_double = st.sampled_from(["x", "req.y", *map(repr, finite)])
    leaf_string = st.sampled_from(["s", *map(_literal, STRINGS)])
    leaf_bool = st.sampled_from(["b", "true", "false"])

    def grow(depth: int) -> dict[str, st.SearchStrategy[str]]:
        if depth == 0:
            return {
                "int": leaf_int,
                "double": leaf_double,
                "string": leaf_string,
                "bool": leaf_bool,
                "bool?": st.just("f"),
            }
        below = grow(depth - 1)
        ints, doubles, strings, bools, unknowns = (below[k] for k in ("int", "double", "string", "bool", "bool?"))
        order = ["<", "<=", ">", ">=", "==", "!="]
        math_calls = ["math.floor", "math.ceil", "math.round", "math.abs"]
        if not sql:
            math_calls += ["math.sqrt", "math.exp", "math.log1p"]
        calls = st.builds(lambda f, a: f"{f}({a})", st.sampled_from(math_calls), doubles)
        tests = _pick(
            _op(ints, order, ints),
            _op(doubles, order, doubles),
            _op(strings, order, strings),
            _op(bools, ["==", "!="], bools),
            _form("({a} in [1, -7, 43])", a=ints),
            _form("({a} in [0, 1.5, 2.5])", a=doubles),
            _form("({a} in ['a', 'idle', 'it\\'s', 'b', 'c'])", a=strings),
            _form("{a}.contains({b})", a=st.just("s"), b=strings),
            _form("startsWith({a}, {b})", a=strings, b=strings),
            _form("endsWith({a}, {b})", a=strings, b=strings),
            st.sampled_from(["has(n)", "(t == null)", "(null != driver.z)", "!has(f)"]),
            _form("((n ?? ({a} / 1.0 > 0.0 ? {b} : null)) == null)", a=doubles, b=ints),
        )
        narrowed = _pick(
            _form("(n != null && (n < {a} || {b}))", a=ints, b=bools),
            _form("(driver.z == null || driver.z > {a})", a=doubles),
            _form("(has(t) ? t == {a} : {b})", a=strings, b=bools),
            _form("!(t == null || f == null || {a} && (t < 'b'))", a=bools),
        )
        logic = _pick(_op(bools, ["&&", "||"], bools), _form("({a} && {b} || {c})", a=bools, b=bools, c=bools))
        unknown = _pick(
            _op(unknowns, ["&&", "||"], bools),
            _op(bools, ["&&", "||"], unknowns),
            _form("!{a}", a=unknowns),
            _form("({a} ? {b} : {c})", a=bools, b=unknowns, c=bools),
            _form("({a} ?? f)", a=unknowns),
        )
        return {
            "int": _pick(
                leaf_int,
                _op(ints, ["+", "-", "*", "%"], ints),
                _form("div({a}, {b})", a=ints, b=ints),
                _form("-({a})", a=ints),
                _form("math.abs({a})", a=ints),
                _form("int({a})", a=_pick(doubles, strings)),
                _form("size({a})", a=strings),
                _form("min({a}, {b}, 3)", a=ints, b=ints),
                _form("(n ?? {a})", a=ints),
                _form("(({a} ? n : {b}) ?? {c})", a=bools, b=ints, c=ints),
                _form("if({a}, {b}, {c})", a=bools, b=ints, c=ints),
                _form("(n != null ? n : {a})", a=ints),
            ),
            "double": _pick(
                leaf_double,
                _op(doubles, ["+", "-", "*", "/"], doubles),
                _form("({a} * 2)", a=doubles),
                _form("-({a})", a=doubles),
                _form("double({a})", a=_pick(ints, strings)),
                calls,
                _form("math.greatest({a}, {b})", a=doubles, b=doubles),
                _form("max({a}, {b}, 0.5)", a=doubles, b=doubles),
                _form("min({a}, {b})", a=doubles, b=doubles),
                _form("(driver.z ?? {a})", a=doubles),
                _form("({a} ? {b} : 1)", a=bools, b=doubles),
            ),
            "string": _pick(
                leaf_string,
                _op(strings, ["+"], strings),
                _form("string({a})", a=_pick(ints, bools)),
                _form("(t ?? {a})", a=strings),
                _form("({a} ? {b} : {c})", a=bools, b=strings, c=strings),
            ),
            "bool": _pick(leaf_bool, tests, tests, narrowed, logic, _form("!{a}", a=bools), _form("({a} ?? {b})", a=unknowns, b=bools)),
            "bool?": _pick(st.just("f"), unknown),
        }  # fmt: skip

    return grow(3)

"""Random well-typed expressions and rows, for the tests that hold the back ends against the interpreter.

Expressions are text, in parentheses throughout; every nullable name is discharged in one of the ways the language knows.
Rows are drawn from edge values, with nulls only where a name is nullable. `NAMES` are scalars without times; `TIMES` and
`LISTS` are the names of the other kinds, and `WIDE` is all of them.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from features.expr import ROW_ERROR, Column, Type, parse_type
from features.expr.times import DURATION_MAX, TIMESTAMP_MAX, TIMESTAMP_MIN, format_timestamp

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

TIMES = {
    "as_of": parse_type("timestamp"),
    "req.now": parse_type("timestamp"),
    "last": parse_type("timestamp?"),
    "wait": parse_type("duration"),
    "req.gap": parse_type("duration?"),
}
LISTS = {
    "nums": parse_type("list(int)"),
    "req.xs": parse_type("list(double)"),
    "tags": parse_type("list(string)"),
    "moments": parse_type("list(timestamp)"),
    "opt": parse_type("list(int)?"),
}
WIDE = {**NAMES, **TIMES, **LISTS}
SQL_NAMES = {**NAMES, **TIMES}

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
# 2024-03-10T07:30:00Z and 2024-11-03T06:30:00Z are half an hour after New York's clocks change; then half an hour before.
TIMESTAMPS = [
    0, 1, -1, 999_999, 1710055800 * 10**6, 1730615400 * 10**6, 1710052200 * 10**6, 1730611800 * 10**6, 951782400 * 10**6,
    -2208988800 * 10**6, 253402300799 * 10**6, TIMESTAMP_MIN, TIMESTAMP_MIN + 1, TIMESTAMP_MAX, 1785542399_123_456,
]  # fmt: skip
DURATIONS = [0, 1, -1, 999, -1000, 1_000_000, -1_500_000, 5_400_000_000, -90_000_000, 86_400_000_000, 10**15, DURATION_MAX, -DURATION_MAX]  # fmt: skip
ZONES = ["America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "+05:30", "-00:30", "UTC", "Africa/Monrovia"]
EDGES: dict[str, list[Any]] = {
    "int": INTS, "double": DOUBLES, "string": STRINGS, "bool": [True, False], "timestamp": TIMESTAMPS, "duration": DURATIONS,
}  # fmt: skip
DTYPES: dict[str, Any] = {
    "int": np.int64, "double": np.float64, "string": object, "bool": np.bool_, "timestamp": np.int64, "duration": np.int64,
}  # fmt: skip
FILLERS: dict[str, Any] = {"int": 5, "double": 3.25, "string": None, "bool": True, "timestamp": 77, "duration": 77}


def random_value(rng: random.Random, kind: Type) -> Any:
    """An edge value of the kind; for a list up to four of them."""
    if kind.is_list:
        return [rng.choice(EDGES[kind.item.kind]) for _ in range(rng.choice([0, 1, 1, 2, 4]))]
    return rng.choice(EDGES[kind.kind])


def random_rows(seed: int, num_rows: int, names: dict[str, Type] = NAMES) -> list[dict[str, Any]]:
    """Rows of edge values; a nullable name is null in a third of them."""
    rng = random.Random(seed)
    return [
        {
            name: None if kind.nullable and rng.random() < 0.33 else random_value(rng, kind)
            for name, kind in names.items()
        }
        for _ in range(num_rows)
    ]


def to_columns(rows: list[dict[str, Any]], names: dict[str, Type] = NAMES) -> dict[str, Column]:
    """The rows as columns; an invalid cell holds something that would be wrong to read."""
    columns = {}
    for name, kind in names.items():
        values = np.empty(len(rows), dtype=object if kind.is_list else DTYPES[kind.kind])
        error = np.array([row[name] is ROW_ERROR for row in rows], dtype=np.bool_)
        valid = np.array([row[name] is not None for row in rows], dtype=np.bool_) & ~error
        for index, row in enumerate(rows):
            values[index] = row[name] if valid[index] else FILLERS.get(kind.kind)
        columns[name] = Column(values, valid, error)
    return columns


def same(a: Any, b: Any) -> bool:
    """Equal in kind and bits; any NaN equals any NaN."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b


def _unnamed(forms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """The same strategy with a short name: Hypothesis writes out names, and those of nested forms grow without end."""

    @st.composite
    def text(draw: st.DrawFn) -> str:
        return draw(forms)

    return text()


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


def _time_literal(value: int) -> str:
    return f"timestamp('{format_timestamp(value)}')"


def typed_expressions(*, sql: bool = False, wide: bool = False) -> dict[str, st.SearchStrategy[str]]:
    """A strategy of texts for each of int, double, string, bool and 'bool?'; `sql` leaves out what SQL refuses.

    `wide` reads the names of `WIDE` (of `SQL_NAMES` with `sql`) and has 'timestamp' and 'duration' too.
    """
    finite = [value for value in DOUBLES if math.isfinite(value) and value > -1e300]
    leaf_int = st.sampled_from(["i", "req.j", *map(repr, INTS)])
    leaf_double = st.sampled_from(["x", "req.y", *map(repr, finite)])
    leaf_string = st.sampled_from(["s", *map(_literal, STRINGS)])
    leaf_bool = st.sampled_from(["b", "true", "false"])
    leaf_timestamp = st.sampled_from(["as_of", "req.now", *map(_time_literal, TIMESTAMPS)])
    leaf_duration = st.sampled_from(
        ["wait", "duration('1h30m')", "duration('-1.5s')", "duration('1us')", "duration('2562047h')"]
    )

    def grow(depth: int) -> dict[str, st.SearchStrategy[str]]:
        if depth == 0:
            return {
                "int": leaf_int,
                "double": leaf_double,
                "string": leaf_string,
                "bool": leaf_bool,
                "bool?": st.just("f"),
                **({"timestamp": leaf_timestamp, "duration": leaf_duration} if wide else {}),
            }
        below = {kind: _unnamed(forms) for kind, forms in grow(depth - 1).items()}
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
        result = {
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
        if wide:
            more = _times(below, leaf_timestamp, leaf_duration, sql=sql)
            if not sql:
                for kind, forms in _lists(below).items():
                    more[kind] = _pick(more[kind], forms) if kind in more else forms
            result = {kind: _pick(result[kind], forms) if kind in result else forms for kind, forms in more.items()} | {
                kind: forms for kind, forms in result.items() if kind not in more
            }
        return result

    return grow(3)


_DATE_FIELDS = ["getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"]
_CLOCK_FIELDS = ["getHours", "getMinutes", "getSeconds", "getMilliseconds"]


def _times(
    below: dict[str, st.SearchStrategy[str]], moment: st.SearchStrategy[str], span: st.SearchStrategy[str], *, sql: bool
) -> dict[str, st.SearchStrategy[str]]:
    """Forms with timestamps and durations, by the kind they yield."""
    moments, spans, ints, strings, bools = (below[kind] for kind in ("timestamp", "duration", "int", "string", "bool"))
    order = ["<", "<=", ">", ">=", "==", "!="]
    fields = [
        st.builds(lambda a, f: f"({a}).{f}()", moments, st.sampled_from([*_DATE_FIELDS, *_CLOCK_FIELDS])),
        st.builds(lambda a, f: f"({a}).{f}()", spans, st.sampled_from(_CLOCK_FIELDS)),
        _form("int({a})", a=moments),
        _form("math.sign({a})", a=ints),
    ]
    texts = _form("({a} ?? '')", a=strings)
    if not sql:
        zones = st.sampled_from([repr(zone) for zone in ZONES] + ["s"])
        fields.append(
            st.builds(
                lambda a, f, z: f"({a}).{f}({z})", moments, st.sampled_from([*_DATE_FIELDS, *_CLOCK_FIELDS]), zones
            )
        )
        texts = _pick(_form("string({a})", a=moments), _form("string({a})", a=spans))
    parsed = [] if sql else [_form("timestamp(string({a}))", a=moments), _form("timestamp({a} + '')", a=strings)]
    parsed_spans = [] if sql else [_form("duration(string({a}))", a=spans), _form("duration({a} + '')", a=strings)]
    return {
        "timestamp": _pick(
            moment,
            moment,
            _op(moments, ["+", "-"], spans),
            _op(spans, ["+"], moments),
            _form("timestamp({a} + 0)", a=ints),
            _form("(last ?? {a})", a=moments),
            _form("({a} ? {b} : {c})", a=bools, b=moments, c=moments),
            *parsed,
        ),
        "duration": _pick(
            span,
            span,
            _op(spans, ["+", "-"], spans),
            _op(moments, ["-"], moments),
            _form("(req.gap ?? {a})", a=spans),
            *parsed_spans,
        ),
        "int": _pick(*fields),
        "string": texts,
        "bool": _pick(
            _op(moments, order, moments),
            _op(spans, order, spans),
            _form("({a} in [timestamp('2024-03-10T07:30:00Z'), timestamp(0)])", a=moments),
            _form("(last != null && last < {a})", a=moments),
            _form("(has(req.gap) ? req.gap > {a} : {b})", a=spans, b=bools),
            st.sampled_from(["math.isNaN(x / req.y)", "math.isInf(x * req.y)", "math.isFinite(req.y)"]),
        ),
    }


def _lists(below: dict[str, st.SearchStrategy[str]]) -> dict[str, st.SearchStrategy[str]]:
    """Forms with lists, loops, patterns and draws, by the kind they yield."""
    ints, doubles, strings, bools, unknowns, moments = (
        below[kind] for kind in ("int", "double", "string", "bool", "bool?", "timestamp")
    )
    loop = st.sampled_from(["exists", "all"])
    patterns = st.sampled_from([r"^[0-9]+$", "a|b", "(?i)IDLE", "ε", r"\\pL", ""])
    return {
        "int": _pick(st.sampled_from(["size(nums)", "tags.size()", "size(req.xs)"]), _form("math.sign({a})", a=ints)),
        "double": _pick(
            _form("hash01('salt', {a})", a=strings),
            _form("hash01({a}, s)", a=strings),
            _form("math.pow({a}, {b})", a=doubles, b=doubles),
            _form("math.log({a})", a=doubles),
            _form("math.sign({a})", a=doubles),
            _form("math.trunc({a})", a=doubles),
        ),
        "bool": _pick(
            _form("({a} in nums)", a=ints),
            _form("({a} in req.xs)", a=doubles),
            _form("({a} in tags)", a=strings),
            _form("({a} in moments)", a=moments),
            _form("(opt != null && {a} in opt)", a=ints),
            _form("nums.{loop}(v, v < {a} || {b})", loop=loop, a=ints, b=bools),
            _form("nums.{loop}(v, 43 % v == {a})", loop=loop, a=ints),
            _form("tags.{loop}(v, v.contains({a}) && {b})", loop=loop, a=strings, b=bools),
            _form("moments.{loop}(v, v - {a} < wait)", loop=loop, a=moments),
            _form("req.xs.{loop}(v, v > {a} || {b})", loop=loop, a=doubles, b=bools),
            _form("nums.{loop}(v, req.xs.exists(w, w > double(v)) == {a})", loop=loop, a=bools),
            _form("nums.{loop}(v, tags.all(v, v < s) || v == {a})", loop=loop, a=ints),
            _form("nums.{loop}(v, {a})", loop=loop, a=bools),
            _form("({a} ? nums : opt ?? nums).{loop}(v, v > 0)", a=bools, loop=loop),
            st.builds(lambda a, p: f"({a}).matches('{p}')", strings, patterns),
        ),
        "bool?": _pick(
            _form("nums.{loop}(v, v > {a} && {b})", loop=loop, a=ints, b=unknowns),
            _form("tags.{loop}(v, v == s || {a})", loop=loop, a=unknowns),
        ),
    }

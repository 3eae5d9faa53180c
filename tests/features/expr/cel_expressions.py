"""Random typed expressions of plain CEL, for the comparison with Google's runtime; rows for their names.

Covered: literals; names; `! - * / % + -` and all relations over int, double, string, timestamp and duration, equality over
bool; `&& || ?:`; `in` a list of literals and a list name; `size`; `startsWith endsWith contains matches`; `int double
string timestamp duration` as far as below; `math.least greatest abs sign isNaN isInf isFinite floor ceil round trunc
sqrt`; every calendar field in UTC and in zones, every field of a duration; `exists` and `all`, nested too.

Left out, because Google's runtime is more liberal than the language's definition or leaves it open: numbers in texts
that are not plain decimals (spaces, 'nan', hexadecimal), NaN in `math.least` and `math.greatest`, fractions of a
microsecond, the leap second, durations in the last second of 292 years (their C++ overflows there early) and beyond.
"""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import strategies as st

from features.expr import parse_type
from features.expr.times import format_timestamp
from tests.features.expr import typed_expressions as typed

NAMES = {
    name: parse_type(kind)
    for name, kind in {
        "i": "int", "j": "int", "x": "double", "y": "double", "s": "string", "t": "string", "b": "bool", "c": "bool",
        "as_of": "timestamp", "now": "timestamp", "wait": "duration", "gap": "duration",
        "nums": "list(int)", "xs": "list(double)", "tags": "list(string)", "flags": "list(bool)",
        "moments": "list(timestamp)", "spans": "list(duration)",
    }.items()
}  # fmt: skip
TIMESTAMPS = [
    *(value for value in typed.TIMESTAMPS if abs(value) < 10**16 * 3),
    *(253402300799 * 10**6, -62135596799 * 10**6, -62135596799 * 10**6 + 86400 * 10**6),
]
LONGEST = 9_223_371_976 * 10**6  # a minute short of the longest duration
DURATIONS = [*(value for value in typed.DURATIONS if abs(value) < LONGEST), LONGEST, -LONGEST]
DECIMALS = ["12", "-7", "+3", "0", "9223372036854775807", "9223372036854775808", "-9223372036854775808"]
REALS = ["1.5", "-0.25", "1e3", "2.5E-3", ".5", "5.", "+7"]
MOMENTS = ["2024-03-10T07:30:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2024-02-29T23:59:59+05:30", "2023-02-29T00:00:00Z", "2024-03-10 07:30:00Z", "noon"]  # fmt: skip
SPANS = ["1h30m", "-1.5s", "250ms", "1h1h", "0", "7us", "1d", "", "90", "2562047h"]


def random_rows(seed: int, num_rows: int) -> list[dict[str, Any]]:
    """Rows of edge values that the oracle's binding can carry."""
    rng = random.Random(seed)
    edges = {**typed.EDGES, "timestamp": TIMESTAMPS, "duration": DURATIONS}

    def value(kind: str) -> Any:
        if kind.startswith("list("):
            return [rng.choice(edges[kind[5:-1]]) for _ in range(rng.choice([0, 1, 2, 3]))]
        return rng.choice(edges[kind])

    return [{name: value(kind.kind) for name, kind in NAMES.items()} for _ in range(num_rows)]


def _moment(value: int) -> str:
    return f"timestamp('{format_timestamp(value)}')"


Forms = dict[str, st.SearchStrategy[str]]
_pick, _form, _op, _literal = typed._pick, typed._form, typed._op, typed._literal


def _leaves() -> Forms:
    finite = [value for value in typed.DOUBLES if math.isfinite(value)]
    return {
        "int": st.sampled_from(["i", "j", *map(repr, typed.INTS)]),
        "double": st.sampled_from(["x", "y", *map(repr, finite)]),
        "string": st.sampled_from(["s", "t", *map(_literal, typed.STRINGS)]),
        "bool": st.sampled_from(["b", "c", "true", "false"]),
        "timestamp": st.sampled_from(["as_of", "now", *map(_moment, typed.TIMESTAMPS)]),
        "duration": st.sampled_from(["wait", "gap", "duration('1h30m')", "duration('-1.5s')", "duration('2562047h')"]),
    }


_PAIRS = [("i", "j"), ("x", "y"), ("s", "t"), ("as_of", "now"), ("wait", "gap")]


def _tests(below: Forms) -> st.SearchStrategy[str]:
    """Forms that yield bool, without loops."""
    ints, doubles, strings, bools = (below[kind] for kind in ("int", "double", "string", "bool"))
    order = ["<", "<=", ">", ">=", "==", "!="]
    method = st.sampled_from(["startsWith", "endsWith", "contains"])
    pattern = st.sampled_from(["^[0-9]+$", "a|b", "(?i)IDLE", "ε", "^.$", ""])
    return _pick(
        *(_op(below[kind], order, below[kind]) for kind in below if kind != "bool"),
        st.sampled_from([f"({a} {op} {b})" for a, b in _PAIRS for op in order]),
        _op(bools, ["==", "!="], bools),
        _op(bools, ["&&", "||"], bools),
        _form("!({a})", a=bools),
        _form("({a} ? {b} : {c})", a=bools, b=bools, c=bools),
        _form("({a} in [1, -7, 43])", a=ints),
        _form("({a} in [0.0, 1.5, 2.5])", a=doubles),
        _form("({a} in ['a', 'idle', ''])", a=strings),
        _form("({a} in nums)", a=ints),
        _form("({a} in xs)", a=doubles),
        _form("({a} in tags)", a=strings),
        _form("({a} in moments)", a=below["timestamp"]),
        _form("({a} in spans)", a=below["duration"]),
        _form("({a} in flags)", a=bools),
        _form("({a}).{m}({b})", a=strings, m=method, b=strings),
        _form("({a}).matches('{p}')", a=strings, p=pattern),
        st.builds(lambda f, a: f"math.{f}({a})", st.sampled_from(["isNaN", "isInf", "isFinite"]), doubles),
    )


def _loops(below: Forms) -> st.SearchStrategy[str]:
    loop = st.sampled_from(["exists", "all"])
    ints, bools = below["int"], below["bool"]
    return _pick(
        _form("nums.{loop}(v, v < {a} || {b})", loop=loop, a=ints, b=bools),
        _form("nums.{loop}(v, 43 / v == {a})", loop=loop, a=ints),
        _form("nums.{loop}(v, v + {a} > 0 && {b})", loop=loop, a=ints, b=bools),
        _form("tags.{loop}(v, v.contains({a}) && {b})", loop=loop, a=below["string"], b=bools),
        _form("moments.{loop}(v, v - {a} < wait)", loop=loop, a=below["timestamp"]),
        _form("spans.{loop}(v, v + {a} != gap)", loop=loop, a=below["duration"]),
        _form("xs.{loop}(v, v > {a})", loop=loop, a=below["double"]),
        _form("nums.{loop}(v, xs.exists(w, w > double(v)) == {a})", loop=loop, a=bools),
        _form("nums.{loop}(v, tags.all(w, w < s) || v == {a})", loop=loop, a=ints),
        _form("nums.{loop}(v, nums.exists(v, v == {a}) && v > 0)", loop=loop, a=ints),
    )


def _grow(depth: int) -> Forms:
    leaves = _leaves()
    if depth == 0:
        return leaves
    below = {kind: typed._unnamed(forms) for kind, forms in _grow(depth - 1).items()}
    ints, doubles, bools, moments, spans = (below[k] for k in ("int", "double", "bool", "timestamp", "duration"))
    real = st.sampled_from(["abs", "sign", "floor", "ceil", "round", "trunc", "sqrt"])
    zones = st.sampled_from([repr(zone) for zone in typed.ZONES])
    date_or_clock = st.sampled_from([*typed._DATE_FIELDS, *typed._CLOCK_FIELDS])
    known = st.sampled_from(["1.5", "-2.5", "0.0", "double(i)", "double(size(s))"])  # never NaN
    forms = {
        "int": _pick(
            _op(ints, ["+", "-", "*", "/", "%"], ints),
            _form("-({a})", a=ints),
            _form("int({a})", a=doubles),
            _form("int({a})", a=moments),
            _form("int({a})", a=st.sampled_from([*map(_literal, DECIMALS), "string(i)"])),
            st.builds(lambda f, a: f"math.{f}({a})", st.sampled_from(["abs", "sign"]), ints),
            st.builds(lambda f, a, b: f"math.{f}({a}, {b}, 3)", st.sampled_from(["least", "greatest"]), ints, ints),
            _form("size({a})", a=below["string"]),
            st.sampled_from(["size(nums)", "tags.size()", "moments.size()"]),
            st.builds(lambda a, f: f"({a}).{f}()", moments, date_or_clock),
            st.builds(lambda a, f, z: f"({a}).{f}({z})", moments, date_or_clock, zones),
            st.builds(lambda f, z: f"as_of.{f}({z})", date_or_clock, st.sampled_from(["", "'America/New_York'"])),
            st.builds(lambda a, f: f"({a}).{f}()", spans, st.sampled_from(typed._CLOCK_FIELDS)),
        ),
        "double": _pick(
            _op(doubles, ["+", "-", "*", "/"], doubles),
            _form("-({a})", a=doubles),
            _form("double({a})", a=ints),
            _form("double({a})", a=st.sampled_from([*map(_literal, REALS)])),
            st.builds(lambda f, a: f"math.{f}({a})", real, doubles),
            st.builds(lambda f, a, b: f"math.{f}({a}, {b})", st.sampled_from(["least", "greatest"]), known, known),
        ),
        "string": _pick(
            _op(below["string"], ["+"], below["string"]),
            *(_form("string({a})", a=below[kind]) for kind in ("int", "bool", "timestamp", "duration")),
        ),
        "bool": _pick(_tests(below), _tests(below), _loops(below)),
        "timestamp": _pick(
            _op(moments, ["+", "-"], spans),
            _op(spans, ["+"], moments),
            _form("timestamp({a} + 0)", a=ints),
            _form("timestamp({a} + '')", a=st.sampled_from([*map(_literal, MOMENTS)])),
            _form("timestamp(string({a}))", a=moments),
        ),
        "duration": _pick(
            _op(spans, ["+", "-"], spans),
            _op(moments, ["-"], moments),
            _form("duration({a} + '')", a=st.sampled_from([*map(_literal, SPANS)])),
            _form("duration(string({a}))", a=spans),
        ),
    }
    choice = {kind: _form("({a} ? {b} : {c})", a=bools, b=below[kind], c=below[kind]) for kind in below}
    return {kind: _pick(leaves[kind], forms[kind], forms[kind], choice[kind]) for kind in below}


def cel_expressions() -> st.SearchStrategy[str]:
    """Texts of every kind, three operators deep."""
    return st.one_of(*_grow(3).values())

"""Row at a time: the meaning of the language, in its plainest form. The other back ends are tested against this one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from features.expr import hashing, regex
from features.expr.program import Program, Step
from features.expr.times import (
    FIELDS,
    RANGES,
    SECOND,
    civil,
    duration_field,
    format_duration,
    format_timestamp,
    parse_duration,
    parse_timestamp,
)
from features.expr.types import INT_MAX, INT_MIN, SCALARS, Type
from features.expr.zones import UnknownZone, local_time

INT_TEXT: Final = r"[-+]?[0-9]+"
DOUBLE_TEXT: Final = r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"
TWO_63: Final = 9223372036854775808.0


class RowError(ArithmeticError):
    """What a type cannot exclude: int overflow, division by zero, a bad cast. It concerns one row only."""


class _Error:
    """The value of a step that failed."""


ROW_ERROR: Final = _Error()  # may be given for a name, too: what another expression yielded


def interpret(program: Program, values: Mapping[str, Any]) -> Any | None:
    """The value of the expression for one row; None is null, and also the value of a row error.

    `values` has every name of `program.names`; ROW_ERROR for one that is itself a row error. Times are microseconds.
    Raises: KeyError for a name that is not there.
    """
    return interpret_marked(program, values)[0]


def interpret_marked(program: Program, values: Mapping[str, Any]) -> tuple[Any | None, bool]:
    """(value, whether a row error made it null)."""
    result = _value(program.root, values)
    return (None, True) if result is ROW_ERROR else (result, False)


def _value(step: Step, values: Mapping[str, Any]) -> Any:
    """A value, None for null, or ROW_ERROR."""
    if step.step == "const":
        return step.value
    if step.step == "name":
        return _given(values[str(step.value)], step.type)
    if step.step == "item":
        return values[_item_key(step)]
    if step.step in ("exists", "all"):
        return _loop(step, values)
    args = [_value(arg, values) for arg in step.args]
    if step.step in ("and", "or"):
        return _kleene(args, absorbing=step.step == "or")
    if step.step == "if":
        condition, then, otherwise = args
        return condition if condition is None or condition is ROW_ERROR else then if condition else otherwise
    if step.step == "coalesce":
        return args[1] if args[0] is None else args[0]
    if step.step == "is_null":
        return ROW_ERROR if args[0] is ROW_ERROR else args[0] is None
    if any(arg is ROW_ERROR for arg in args):
        return ROW_ERROR
    if any(arg is None for arg in args):
        return None
    try:
        return STRICT[step.step](*args)
    except RowError:
        return ROW_ERROR


def _kleene(args: list[Any], *, absorbing: bool) -> Any:
    """`&&` (absorbing false) and `||` (absorbing true): absorbing > error > null > the other value, in any order."""
    if any(arg is absorbing for arg in args):
        return absorbing
    if any(arg is ROW_ERROR for arg in args):
        return ROW_ERROR
    return None if any(arg is None for arg in args) else not absorbing


def _loop(step: Step, values: Mapping[str, Any]) -> Any:
    """`exists` is the `||`, and `all` the `&&`, of the condition for every element."""
    given = _value(step.args[0], values)
    if given is None or given is ROW_ERROR:
        return given
    inside = dict(values)
    found = []
    for item in given:
        inside[_item_key(step)] = item
        found.append(_value(step.args[1], inside))
    return _kleene(found, absorbing=step.step == "exists")


def _item_key(step: Step) -> str:
    return f"loop variable {step.value}"  # no name has a space


def _given(value: Any, type_: Type) -> Any:
    """An input as the plain Python value of its declared type."""
    if value is None or value is ROW_ERROR:
        return value
    if type_.is_list:
        return [_given(item, type_.item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return float(value) if type_.kind == "double" else bool(value) if type_.kind == "bool" else value


def _checked(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise RowError("int overflow")
    return value


def _div_int(a: int, b: int) -> int:
    if b == 0:
        raise RowError("division by zero")
    return _checked(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))


def _within(kind: str) -> Callable[[int], int]:
    """The value, when it is a timestamp or a duration at all."""
    low, high = RANGES[kind]

    def apply(value: int) -> int:
        if not low <= value <= high:
            raise RowError(f"{kind} out of range")
        return value

    return apply


_timestamp, _duration = _within("timestamp"), _within("duration")


def _mod_int(a: int, b: int) -> int:
    """The remainder of `div`: it has the sign of the dividend."""
    return a - _div_int(a, b) * b


def _div_double(a: float, b: float) -> float:
    """IEEE 754: x/0 is infinite, 0/0 is NaN."""
    if b != 0.0:
        return a / b
    if a == 0.0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _int_of_double(value: float) -> int:
    """Towards zero. The ends are excluded, as in CEL: 2^63 is what larger values round to."""
    if not -TWO_63 < value < TWO_63:
        raise RowError("bad cast")
    return int(value)


def _int_of_string(text: str) -> int:
    if len(text) > 40 or not re.fullmatch(INT_TEXT, text):
        raise RowError("bad cast")
    return _checked(int(text))


def _double_of_string(text: str) -> float:
    if not re.fullmatch(DOUBLE_TEXT, text):
        raise RowError("bad cast")
    return float(text)


def _parsed(parse: Callable[[str], int]) -> Callable[[str], int]:
    def apply(text: str) -> int:
        try:
            return parse(text)
        except ValueError:
            raise RowError("bad cast") from None

    return apply


def _zoned(field: str) -> Callable[[int, str], int]:
    def apply(value: int, zone: str) -> int:
        try:
            return int(civil(field, local_time(value, zone)))
        except UnknownZone:
            raise RowError("unknown time zone") from None

    return apply


def _matches(text: str, pattern: str) -> bool:
    return regex.compile_pattern(pattern).search(_whole_characters(text)) is not None


def _hash01(salt: str, unit: str) -> float:
    return hashing.hash01(_whole_characters(salt), _whole_characters(unit))


def _whole_characters(text: str) -> str:
    """Half a character, which a JSON text can carry ('\\ud800') and UTF-8 cannot, as '?'."""
    return text.encode("utf-8", "replace").decode()


def _sign(value: Any) -> Any:
    """-1, 0 or 1 of the kind of the value; NaN stays."""
    kind = type(value)
    return kind(1) if value > 0 else kind(-1) if value < 0 else kind(0) if value == 0 else value


def _least(*args: Any) -> Any:
    """The first smallest; NaN when any is NaN."""
    least = args[0]
    for arg in args[1:]:
        if arg < least or arg != arg:
            least = arg
    return least


def _greatest(*args: Any) -> Any:
    greatest = args[0]
    for arg in args[1:]:
        if arg > greatest or arg != arg:
            greatest = arg
    return greatest


def _whole(rule: Callable[[float], int]) -> Callable[[float], float]:
    """floor or ceil of a double as a double, with infinities, NaN and -0.0 kept."""

    def apply(value: float) -> float:
        if not abs(value) < 2.0**52:
            return value
        return math.copysign(float(rule(value)), value)

    return apply


def _round(value: float) -> float:
    """Half away from zero, as CEL's math.round."""
    if not abs(value) < 2.0**52:
        return value
    cut = float(math.trunc(value))
    if abs(value - cut) >= 0.5:
        cut += math.copysign(1.0, value)
    return math.copysign(cut, value)


def _numpy(function: Callable[..., Any]) -> Callable[..., float]:
    """The routine that the columns use too, so that both give the same bits."""

    def apply(*values: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(*(np.array([value]) for value in values))[0])

    return apply


STRICT: Final[dict[str, Callable[..., Any]]] = {
    "not": lambda a: not a,
    "same": lambda a: a,
    "add_int": lambda a, b: _checked(a + b),
    "sub_int": lambda a, b: _checked(a - b),
    "mul_int": lambda a, b: _checked(a * b),
    "neg_int": lambda a: _checked(-a),
    "abs_int": lambda a: _checked(abs(a)),
    "div_int": _div_int,
    "mod_int": _mod_int,
    "add_double": lambda a, b: a + b,
    "sub_double": lambda a, b: a - b,
    "mul_double": lambda a, b: a * b,
    "div_double": _div_double,
    "neg_double": lambda a: -a,
    "abs_double": lambda a: abs(a),
    "add_string": lambda a, b: a + b,
    "add_timestamp_duration": lambda a, b: _timestamp(a + b),
    "add_duration_timestamp": lambda a, b: _timestamp(a + b),
    "add_duration": lambda a, b: _duration(a + b),
    "sub_timestamp_duration": lambda a, b: _timestamp(a - b),
    "sub_timestamp_timestamp": lambda a, b: _duration(a - b),
    "sub_duration": lambda a, b: _duration(a - b),
    **{f"eq_{kind}": lambda a, b: a == b for kind in SCALARS},
    **{f"ne_{kind}": lambda a, b: a != b for kind in SCALARS},
    **{f"lt_{kind}": lambda a, b: a < b for kind in SCALARS[1:]},
    **{f"le_{kind}": lambda a, b: a <= b for kind in SCALARS[1:]},
    **{f"gt_{kind}": lambda a, b: a > b for kind in SCALARS[1:]},
    **{f"ge_{kind}": lambda a, b: a >= b for kind in SCALARS[1:]},
    **{f"in_{kind}": lambda a, *options: any(a == o for o in options) for kind in SCALARS},
    **{f"in_list_{kind}": lambda a, items: any(a == item for item in items) for kind in SCALARS},
    **{f"least_{kind}": _least for kind in ("int", "double")},
    **{f"greatest_{kind}": _greatest for kind in ("int", "double")},
    "double_of_int": float,
    "double_of_string": _double_of_string,
    "int_of_double": _int_of_double,
    "int_of_string": _int_of_string,
    "int_of_timestamp": lambda a: a // SECOND,
    "timestamp_of_int": lambda a: _timestamp(a * SECOND),
    "timestamp_of_string": _parsed(parse_timestamp),
    "duration_of_string": _parsed(parse_duration),
    "string_of_timestamp": format_timestamp,
    "string_of_duration": format_duration,
    **{f"{field}_timestamp": partial(civil, field) for field in FIELDS},
    **{f"{field}_timestamp_string": _zoned(field) for field in FIELDS},
    **{f"{field}_duration": partial(duration_field, field) for field in FIELDS[-4:]},
    "string_of_int": str,
    "string_of_bool": lambda a: "true" if a else "false",
    "size": len,
    "size_list": len,
    "matches": _matches,
    "hash01": _hash01,
    "starts_with": lambda a, b: a.startswith(b),
    "ends_with": lambda a, b: a.endswith(b),
    "contains": lambda a, b: b in a,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _round,
    "trunc": _whole(math.trunc),
    "sign_int": _sign,
    "sign_double": _sign,
    "is_nan": math.isnan,
    "is_inf": math.isinf,
    "is_finite": math.isfinite,
    "sqrt": _numpy(np.sqrt),
    "exp": _numpy(np.exp),
    "log": _numpy(np.log),
    "log1p": _numpy(np.log1p),
    "pow": _numpy(np.power),
}

"""Row at a time: the meaning of the language, in its plainest form. The other back ends are tested against this one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from features.expr.program import Program, Step
from features.expr.types import INT_MAX, INT_MIN

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

    `values` has every name of `program.names`; ROW_ERROR for one that is itself a row error.
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
        return _given(values[str(step.value)], step.type.kind)
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


def _given(value: Any, kind: str) -> Any:
    """An input as the plain Python value of its declared kind."""
    if value is None or value is ROW_ERROR:
        return value
    if isinstance(value, np.generic):
        value = value.item()
    return float(value) if kind == "double" else bool(value) if kind == "bool" else value


def _checked(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise RowError("int overflow")
    return value


def _div_int(a: int, b: int) -> int:
    if b == 0:
        raise RowError("division by zero")
    return _checked(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))


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


def _numpy(function: Callable[[Any], Any]) -> Callable[[float], float]:
    """The routine that `columns.py` uses too, so that both give the same bits."""

    def apply(value: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(np.array([value]))[0])

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
    **{f"eq_{kind}": lambda a, b: a == b for kind in ("bool", "int", "double", "string")},
    **{f"ne_{kind}": lambda a, b: a != b for kind in ("bool", "int", "double", "string")},
    **{f"lt_{kind}": lambda a, b: a < b for kind in ("int", "double", "string")},
    **{f"le_{kind}": lambda a, b: a <= b for kind in ("int", "double", "string")},
    **{f"gt_{kind}": lambda a, b: a > b for kind in ("int", "double", "string")},
    **{f"ge_{kind}": lambda a, b: a >= b for kind in ("int", "double", "string")},
    **{f"in_{kind}": lambda a, *options: any(a == o for o in options) for kind in ("bool", "int", "double", "string")},
    **{f"least_{kind}": _least for kind in ("int", "double")},
    **{f"greatest_{kind}": _greatest for kind in ("int", "double")},
    "double_of_int": float,
    "double_of_string": _double_of_string,
    "int_of_double": _int_of_double,
    "int_of_string": _int_of_string,
    "string_of_int": str,
    "string_of_bool": lambda a: "true" if a else "false",
    "size": len,
    "starts_with": lambda a, b: a.startswith(b),
    "ends_with": lambda a, b: a.endswith(b),
    "contains": lambda a, b: b in a,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _round,
    "sqrt": _numpy(np.sqrt),
    "exp": _numpy(np.exp),
    "log1p": _numpy(np.log1p),
}

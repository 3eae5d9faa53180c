"""Range, and what each operator and function makes of the ranges of its arguments. `ranges.py` walks an expression with them.

The ends of a result are computed with the interpreter's own arithmetic on the ends of the arguments; rounding keeps order, so
they are right to the last bit.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from features.expr.interpret import STRICT
from features.expr.outcomes import ERROR, FALSE, NULL, TRUE
from features.expr.times import RANGES, SECOND
from features.expr.types import INT_MAX, INT_MIN

ENDS: Final[dict[str, tuple[float | int, float | int]]] = {
    "int": (INT_MIN, INT_MAX),
    "double": (-math.inf, math.inf),
    **RANGES,
}
_TWO_63: Final = 9223372036854775808.0
_ULPS: Final = 4  # exp and log1p are NumPy's, right within one unit in the last place but not known to be monotone


@dataclass(frozen=True)
class Range:
    """What a value can be. Numbers that are not NaN lie in `low` … `high`, both included; low > high: there are none.

    Of texts and lists only null and error are known. `may_be_true` and `may_be_false` are for bools. Timestamps and
    durations count in microseconds.
    """

    low: float | int = -math.inf
    high: float | int = math.inf
    may_be_nan: bool = False
    may_be_null: bool = False
    may_error: bool = False
    may_be_true: bool = False
    may_be_false: bool = False

    @property
    def empty(self) -> bool:
        """Whether it has no number, NaN included."""
        return self.low > self.high and not self.may_be_nan

    @property
    def may_be_zero(self) -> bool:
        return self.low <= 0 <= self.high

    @property
    def may_be_infinite(self) -> bool:
        return self.low == -math.inf or self.high == math.inf

    @property
    def outcomes(self) -> int:
        """As a set of outcomes of a condition (`outcomes.py`)."""
        bits = (self.may_be_true, TRUE), (self.may_be_false, FALSE), (self.may_be_null, NULL), (self.may_error, ERROR)
        return sum(bit for holds, bit in bits if holds)


NOTHING: Final = Range(math.inf, -math.inf)


def of_value(value: object) -> Range:
    """The range of one value."""
    if value is None:
        return replace(NOTHING, may_be_null=True)
    if isinstance(value, bool):
        return replace(NOTHING, may_be_true=value, may_be_false=not value)
    if isinstance(value, int | float):
        return replace(NOTHING, may_be_nan=True) if value != value else Range(value, value)
    return Range()


def of_outcomes(bits: int) -> Range:
    return replace(
        NOTHING,
        may_be_true=bool(bits & TRUE),
        may_be_false=bool(bits & FALSE),
        may_be_null=bool(bits & NULL),
        may_error=bool(bits & ERROR),
    )


def either(a: Range, b: Range) -> Range:
    return Range(
        min(a.low, b.low),
        max(a.high, b.high),
        a.may_be_nan or b.may_be_nan,
        a.may_be_null or b.may_be_null,
        a.may_error or b.may_error,
        a.may_be_true or b.may_be_true,
        a.may_be_false or b.may_be_false,
    )


def either_way(true: bool, false: bool) -> Range:
    return replace(NOTHING, may_be_true=true, may_be_false=false)


def compared(operation: str, a: Range, b: Range) -> Range:
    nan = a.may_be_nan or b.may_be_nan
    numbers = a.low <= a.high and b.low <= b.high
    overlap = numbers and a.low <= b.high and b.low <= a.high
    one = numbers and a.low == a.high == b.low == b.high
    true, false = {
        "lt": (numbers and a.low < b.high, numbers and a.high >= b.low),
        "le": (numbers and a.low <= b.high, numbers and a.high > b.low),
        "gt": (numbers and a.high > b.low, numbers and a.low <= b.high),
        "ge": (numbers and a.high >= b.low, numbers and a.low < b.high),
        "eq": (overlap, numbers and not one),
        "ne": (numbers and not one, overlap),
    }[operation]
    return replace(
        NOTHING, may_be_true=true or (nan and operation == "ne"), may_be_false=false or (nan and operation != "ne")
    )


def among(args: list[Range]) -> Range:
    each = [compared("eq", args[0], option) for option in args[1:]]
    surely = any(found.may_be_true and not found.may_be_false for found in each)
    return replace(NOTHING, may_be_true=any(found.may_be_true for found in each), may_be_false=not surely)


def _hull(values: list[float], *, nan: bool) -> Range:
    """The range of the products or quotients at the corners; 0 * inf and inf / inf count as 0, which lies between."""
    clean = [0.0 if value != value else value for value in values]
    return Range(min(clean), max(clean), may_be_nan=nan)


def _corners(operation: Callable[..., float], a: Range, b: Range) -> list[float]:
    return [operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]


def _numbers(rule: Callable[..., Range]) -> Callable[..., Range]:
    """A rule for doubles where NaN in gives NaN out, and no number in gives no number out."""

    def apply(*args: Range) -> Range:
        nan = any(arg.may_be_nan for arg in args)
        if any(arg.low > arg.high for arg in args):
            return replace(NOTHING, may_be_nan=nan)
        out = rule(*args)
        return replace(out, may_be_nan=out.may_be_nan or nan)

    return apply


def _add(a: Range, b: Range) -> Range:
    low, high = a.low + b.low, a.high + b.high
    nan = (a.high == math.inf and b.low == -math.inf) or (a.low == -math.inf and b.high == math.inf)
    return Range(-math.inf if low != low else low, math.inf if high != high else high, may_be_nan=nan)


def _mul(a: Range, b: Range) -> Range:
    nan = (a.may_be_zero and b.may_be_infinite) or (b.may_be_zero and a.may_be_infinite)
    return _hull(_corners(lambda x, y: x * y, a, b), nan=nan)


def _div(a: Range, b: Range) -> Range:
    if b.may_be_zero:
        return Range(may_be_nan=a.may_be_zero or (a.may_be_infinite and b.may_be_infinite))
    return _hull(_corners(STRICT["div_double"], a, b), nan=a.may_be_infinite and b.may_be_infinite)


def _neg(a: Range) -> Range:
    return replace(a, low=-a.high, high=-a.low)


def _abs(a: Range) -> Range:
    ends = (abs(a.low), abs(a.high))
    zero = type(a.low)(0)
    return replace(a, low=zero if a.may_be_zero else min(ends), high=max(ends))


def _ends(step: str, *, ulps: int = 0) -> Callable[[Range], Range]:
    """A function that keeps order, at the ends; `ulps` wider where it only nearly does."""

    def apply(a: Range) -> Range:
        low, high = STRICT[step](a.low), STRICT[step](a.high)
        for _ in range(ulps):
            low, high = np.nextafter(low, -math.inf), np.nextafter(high, math.inf)
        return Range(float(low), float(high))

    return apply


def _root(a: Range) -> Range:
    if a.high < 0:
        return replace(NOTHING, may_be_nan=True)
    return replace(_ends("sqrt")(replace(a, low=max(a.low, -0.0))), may_be_nan=a.low < 0)


def _log1p(a: Range) -> Range:
    if a.high < -1:
        return replace(NOTHING, may_be_nan=True)
    return replace(_ends("log1p", ulps=_ULPS)(replace(a, low=max(a.low, -1.0))), may_be_nan=a.low < -1)


def _exp(a: Range) -> Range:
    found = _ends("exp", ulps=_ULPS)(a)
    return replace(found, low=max(found.low, 0.0))


def _log(a: Range) -> Range:
    if a.high < 0:
        return replace(NOTHING, may_be_nan=True)
    return replace(_ends("log", ulps=_ULPS)(replace(a, low=max(a.low, 0.0))), may_be_nan=a.low < 0)


def _least(*args: Range) -> Range:
    return Range(min(arg.low for arg in args), min(arg.high for arg in args))


def _greatest(*args: Range) -> Range:
    return Range(max(arg.low for arg in args), max(arg.high for arg in args))


def _whole(low: int | float, high: int | float, *, fails: bool = False, kind: str = "int") -> Range:
    """Checked whole numbers from their unchecked ends."""
    least, most = ENDS[kind]
    return Range(max(low, least), min(high, most), may_error=fails or low < least or high > most)


def _whole_corners(operation: Callable[..., int], kind: str = "int") -> Callable[..., Range]:
    def apply(*args: Range) -> Range:
        corners = [operation(*ends) for ends in itertools.product(*((arg.low, arg.high) for arg in args))]
        return _whole(min(corners), max(corners), kind=kind)

    return apply


def _div_int(a: Range, b: Range) -> Range:
    parts = [(max(b.low, 1), b.high), (b.low, min(b.high, -1))]
    corners = [
        abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        for low, high in parts
        if low <= high
        for x in (a.low, a.high)
        for y in (low, high)
    ]
    return _whole(min(corners), max(corners), fails=b.may_be_zero) if corners else replace(NOTHING, may_error=True)


def _mod_int(a: Range, b: Range) -> Range:
    largest = max(abs(b.low), abs(b.high)) - 1
    if largest < 0:
        return replace(NOTHING, may_error=True)
    low, high = (0 if a.low >= 0 else max(a.low, -largest)), (0 if a.high <= 0 else min(a.high, largest))
    return Range(low, high, may_error=b.may_be_zero or (a.low == INT_MIN and b.low <= -1 <= b.high))


def _int_of_double(a: Range) -> Range:
    inside = max(a.low, -_TWO_63), min(a.high, _TWO_63)
    fails = a.may_be_nan or a.low <= -_TWO_63 or a.high >= _TWO_63
    if a.low > a.high or inside[0] > inside[1]:
        return replace(NOTHING, may_error=True)
    return Range(max(int(inside[0]), INT_MIN), min(int(inside[1]), INT_MAX), may_error=fails)


def _abs_int(a: Range) -> Range:
    found = _abs(a)
    return _whole(found.low, found.high)


def _ends_whole(step: str) -> Callable[[Range], Range]:
    return lambda a: Range(STRICT[step](a.low), STRICT[step](a.high))


def _between(low: int, high: int, *, fails: bool) -> Callable[..., Range]:
    return lambda *args: Range(low, high, may_error=fails)


_CLOCK: Final = (  # as CEL counts them (times.py)
    ("FullYear", 0, 10_000), ("Month", 0, 11), ("Date", 1, 31), ("DayOfMonth", 0, 30), ("DayOfWeek", 0, 6),
    ("DayOfYear", 0, 365), ("Hours", 0, 23), ("Minutes", 0, 59), ("Seconds", 0, 59), ("Milliseconds", 0, 999),
)  # fmt: skip
RULES: Final[dict[str, Callable[..., Range]]] = {
    "same": lambda a: replace(a, may_be_null=False, may_error=False),
    "add_double": _numbers(_add),
    "sub_double": _numbers(lambda a, b: _add(a, _neg(b))),
    "mul_double": _numbers(_mul),
    "div_double": _numbers(_div),
    "neg_double": _numbers(_neg),
    "abs_double": _numbers(_abs),
    "floor": _numbers(_ends("floor")),
    "ceil": _numbers(_ends("ceil")),
    "round": _numbers(_ends("round")),
    "sqrt": _numbers(_root),
    "exp": _numbers(_exp),
    "log1p": _numbers(_log1p),
    "least_double": _numbers(_least),
    "greatest_double": _numbers(_greatest),
    "least_int": _least,
    "greatest_int": _greatest,
    "add_int": _whole_corners(operator.add),
    "sub_int": _whole_corners(operator.sub),
    "mul_int": _whole_corners(operator.mul),
    "neg_int": _whole_corners(operator.neg),
    "abs_int": _abs_int,
    "div_int": _div_int,
    "mod_int": _mod_int,
    "double_of_int": lambda a: Range(float(a.low), float(a.high)),
    "int_of_double": _int_of_double,
    "double_of_string": lambda a: Range(may_error=True),
    "int_of_string": lambda a: Range(INT_MIN, INT_MAX, may_error=True),
    "string_of_int": lambda a: Range(),
    "string_of_bool": lambda a: Range(),
    "add_string": lambda a, b: Range(),
    "size": lambda a: Range(0, INT_MAX),
    "size_list": lambda a: Range(0, INT_MAX),
    "hash01": lambda salt, unit: Range(0.0, 1.0, may_error=True),
    "matches": lambda text, pattern: replace(NOTHING, may_be_true=True, may_be_false=True, may_error=True),
    "trunc": _numbers(_ends("trunc")),
    "sign_double": _numbers(_ends("sign_double")),
    "sign_int": lambda a: Range(STRICT["sign_int"](a.low), STRICT["sign_int"](a.high)),
    "is_nan": lambda a: either_way(a.may_be_nan, a.low <= a.high),
    "is_inf": lambda a: either_way(a.may_be_infinite, a.may_be_nan or (a.low < math.inf and a.high > -math.inf)),
    "is_finite": lambda a: either_way(a.low < math.inf and a.high > -math.inf, a.may_be_nan or a.may_be_infinite),
    "log": _numbers(_log),
    "add_timestamp_duration": _whole_corners(operator.add, "timestamp"),
    "add_duration_timestamp": _whole_corners(operator.add, "timestamp"),
    "add_duration": _whole_corners(operator.add, "duration"),
    "sub_timestamp_duration": _whole_corners(operator.sub, "timestamp"),
    "sub_timestamp_timestamp": _whole_corners(operator.sub, "duration"),
    "sub_duration": _whole_corners(operator.sub, "duration"),
    "timestamp_of_int": _whole_corners(lambda x: x * SECOND, "timestamp"),
    "int_of_timestamp": lambda a: Range(a.low // SECOND, a.high // SECOND),
    **{f"get{unit}_duration": _ends_whole(f"get{unit}_duration") for unit in ("Hours", "Minutes", "Seconds")},
    **{
        f"get{field}_timestamp{zone}": _between(low, high, fails=bool(zone))
        for field, low, high in _CLOCK
        for zone in ("", "_string")
    },
}

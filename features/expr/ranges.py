"""Interval analysis: between which ends the value of an expression lies, and whether it may be null, NaN or a row error.

    find_range(program, {"eta_s": Facts(low=0, high=7200)})     # of eta_s / 60.0: Range(0.0, 120.0, …)

The ends are computed with the interpreter's own arithmetic on the ends of the parts; rounding keeps order, so they are right
to the last bit. Where one name stands twice (`x - x`), each counts by itself: the range is then wider than the values.
A branch is looked at under its condition: behind `fare > 0 ?` the fare is above zero. `check_ranges` says what follows for
the author: a test that is always true or always false, a null that cannot be, a divisor that is always zero.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from features.expr.errors import Mistake, mistake_at
from features.expr.facts import Facts
from features.expr.interpret import STRICT
from features.expr.keys import NUMBERS, key_of, value_of
from features.expr.outcomes import ERROR, FALSE, NULL, TRUE, chained
from features.expr.pieces import COMPARE, OPAQUE
from features.expr.program import Program, Step
from features.expr.times import RANGES, SECOND
from features.expr.types import INT_MAX, INT_MIN

_ENDS: Final[dict[str, tuple[float | int, float | int]]] = {
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


Box = Mapping[str, Range]
NOTHING: Final = Range(math.inf, -math.inf)


def find_range(program: Program, facts: Mapping[str, Facts]) -> Range:
    """The range of a program's value over all values that its names can have. Names are never row errors themselves.

    A double with a bound is not NaN: what is outside of declared bounds is refused or made null before it gets here.
    """
    return range_within(program.root, name_ranges(program, facts))


def range_within(step: Step, box: Box) -> Range:
    """The range of a step where each name lies in its range; a name that `box` lacks may be anything of its type."""
    return _Ranger().of(step, box)


def name_ranges(program: Program, facts: Mapping[str, Facts]) -> dict[str, Range]:
    """The ranges of the names a program reads, by type and facts. A name that is nullable somewhere is so everywhere."""
    out: dict[str, Range] = {}
    for step in program.root.walk():
        if step.step == "name" and (str(step.value) not in out or step.type.nullable):
            out[str(step.value)] = _of_name(step, facts.get(str(step.value)))
    return out


def check_ranges(program: Program, facts: Mapping[str, Facts]) -> list[Mistake]:
    """Errors: a divisor that is always zero, arithmetic that always fails. Warnings: a test that is always true by what is
    known of its names, or always false where it stands; a null that cannot be.

    That a test is true because of a test before it is not said: `x < 300 ? … : x >= 300 && …` is how people write.
    """
    ranger = _Ranger(program, name_ranges(program, facts))
    root = ranger.of(program.root, ranger.base)
    is_test = program.type.kind == "bool" and program.root.step not in ("const", "name")
    if is_test and not ranger.notes and root.outcomes in (TRUE, FALSE):
        true = root.outcomes == TRUE
        message = f"as a whole this is always {'true' if true else 'false'}"
        ranger.note(program.root, "always-true" if true else "always-false", message, _NO_EFFECT)
    return ranger.notes


_NO_EFFECT: Final = "remove it, or check the bounds that are declared for its names"


class _Ranger:
    """The walk. With a program it notes what the author should know."""

    def __init__(self, program: Program | None = None, base: Box | None = None) -> None:
        self.program, self.base = program, base or {}
        self.notes: list[Mistake] = []
        self.quiet = program is None

    def of(self, step: Step, box: Box) -> Range:
        if step.step == "const":
            return of_value(step.value)
        if step.step == "name":
            return box.get(str(step.value)) or _of_name(step, None)
        if step.step in ("and", "or"):
            return self.logic(step, box)
        if step.step == "if":
            return self.branches(step, box)
        if step.step in OPAQUE:
            return _anything(step)
        args = [self.of(arg, box) for arg in step.args]
        if step.step == "coalesce":
            if not args[0].may_be_null and not args[0].may_error:
                text = self.text(step.args[0])
                self.note(
                    step.args[0], "never-null", f"'{text}' can never be null here", "remove '??' and what follows"
                )
            return _either(replace(args[0], may_be_null=False), args[1]) if args[0].may_be_null else args[0]
        if step.step == "is_null":
            if not args[0].may_be_null and not args[0].may_error:
                self.note(step, "never-null", f"'{self.text(step.args[0])}' can never be null here", "remove the test")
            present = not _absent(step.args[0], args[0])
            return _truth(step, args, args[0].may_be_null, present, null=False)
        if step.step == "not":
            return replace(args[0], may_be_true=args[0].may_be_false, may_be_false=args[0].may_be_true)
        return self.strict(step, box, args)

    def strict(self, step: Step, box: Box, args: list[Range]) -> Range:
        """All other steps: null and errors of the arguments come through."""
        operation, _, kind = step.step.partition("_")
        numbers = [arg for part, arg in zip(step.args, args, strict=True) if part.type.kind in NUMBERS]
        if any(number.empty for number in numbers):
            out = replace(NOTHING)
        elif operation in COMPARE and kind in NUMBERS:
            out = _compared(operation, args[0], args[1])
        elif operation == "in" and kind in NUMBERS:
            out = _among(args)
        elif step.step in _RULES:
            out = _RULES[step.step](*args)
        elif operation in COMPARE or operation == "in" or step.step in _TEXT_TESTS:
            out = _either_way(True, True)
        else:
            out = _anything(step)
        whole = replace(
            out,
            may_be_null=any(arg.may_be_null for arg in args),
            may_error=out.may_error or any(arg.may_error for arg in args),
        )
        if not self.quiet:
            self.judge(step, box, args, out, whole)
        return whole

    def logic(self, step: Step, box: Box) -> Range:
        """A chain: each item counts where the ones before it have let it through."""
        is_and = step.step == "and"
        masks: list[int] = []
        for item in step.args:
            found = self.of(item, box)
            masks.append(found.outcomes)
            if not found.may_be_null and not found.may_error:
                narrowed = self.assume(item, box, is_and)
                if narrowed is None:  # no row gets further, so what follows is never what decides
                    break
                box = narrowed
        return _of_outcomes(chained(step.step, masks))

    def branches(self, step: Step, box: Box) -> Range:
        test = self.of(step.args[0], box)
        out = replace(NOTHING, may_be_null=test.may_be_null, may_error=test.may_error)
        for holds, branch, truth in ((test.may_be_true, step.args[1], True), (test.may_be_false, step.args[2], False)):
            narrowed = self.assume(step.args[0], box, truth) if holds else None
            if narrowed is not None:
                out = _either(out, self.of(branch, narrowed))
        return out

    # what a condition says of the names in it -----------------------------------------------------------------------

    def assume(self, condition: Step, box: Box, truth: bool) -> Box | None:
        """The ranges of the names where the condition has that truth; None where it never has."""
        if condition.step == "not":
            return self.assume(condition.args[0], box, not truth)
        if condition.step == ("and" if truth else "or"):
            for item in condition.args:
                narrowed = self.assume(item, box, truth)
                if narrowed is None:
                    return None
                box = narrowed
            return box
        quiet, self.quiet = self.quiet, True
        try:
            found = self.of(condition, box)
            if not (found.may_be_true if truth else found.may_be_false):
                return None
            return self.narrowed(condition, box, truth)
        finally:
            self.quiet = quiet

    def narrowed(self, condition: Step, box: Box, truth: bool) -> Box:
        if condition.step == "name":
            name = str(condition.value)
            return {**box, name: _of_outcomes(TRUE if truth else FALSE)}
        if condition.step == "is_null" and condition.args[0].step == "name":
            name = str(condition.args[0].value)
            old = self.of(condition.args[0], box)
            empty = replace(NOTHING, may_be_null=True) if condition.args[0].type.kind != "null" else old
            return {**box, name: empty if truth else replace(old, may_be_null=False)}
        operation, _, kind = condition.step.partition("_")
        if operation in COMPARE and kind in NUMBERS:
            a, b = condition.args
            if not truth:
                operation = _OPPOSITE[operation]
            box = self.bounded(a, operation, self.of(b, box), box, truth)
            return self.bounded(b, _SWAPPED[operation], self.of(a, box), box, truth)
        if operation == "in" and kind in NUMBERS and truth:
            options = [self.of(option, box) for option in condition.args[1:]]
            hull = Range(min(o.low for o in options), max(o.high for o in options))
            return self.bounded(condition.args[0], "eq", hull, box, truth)
        return box

    def bounded(self, step: Step, operation: str, other: Range, box: Box, truth: bool) -> Box:
        """The box where `step operation other` holds. `truth` False: or where one of the two is NaN."""
        through_double = step.step == "double_of_int"
        step = step.args[0] if through_double else step
        if step.step != "name":
            return box
        old = self.of(step, box)
        kept_nan = old.may_be_nan and ((not truth) if operation != "ne" else truth)
        low, high = old.low, old.high
        large = through_double and max(abs(low), abs(high)) > 2**53  # there several ints are one double
        if (truth or not other.may_be_nan) and not large:
            if operation in ("gt", "ge", "eq"):
                low = max(
                    low,
                    _beyond(other.low, step.type.kind, +1)
                    if operation == "gt"
                    else _at_least(other.low, step.type.kind),
                )
            if operation in ("lt", "le", "eq"):
                high = min(
                    high,
                    _beyond(other.high, step.type.kind, -1)
                    if operation == "lt"
                    else _at_most(other.high, step.type.kind),
                )
        return {**box, str(step.value): replace(old, low=low, high=high, may_be_null=False, may_be_nan=kept_nan)}

    # what the author should know ------------------------------------------------------------------------------------

    def judge(self, step: Step, box: Box, args: list[Range], out: Range, whole: Range) -> None:
        if step.step in ("div_double", "div_int", "mod_int"):
            divisor = args[1]
            if divisor.low == divisor.high == 0 and not divisor.may_be_nan:
                self.note(
                    step.args[1],
                    "zero-divisor",
                    f"the divisor '{self.text(step.args[1])}' is always zero",
                    severity="error",
                )
                return
        fails = out.may_error and out.empty and not (out.may_be_true or out.may_be_false)
        if (
            fails
            and step.type.kind in NUMBERS
            and not any(arg.empty and part.type.kind in NUMBERS for part, arg in zip(step.args, args, strict=True))
        ):
            self.note(
                step,
                "always-fails",
                f"'{self.text(step)}' has no value for any row: it is out of range",
                severity="error",
            )
        if step.type.kind == "bool" and not whole.may_be_null:
            if whole.may_be_false and not whole.may_be_true:
                self.note(step, "always-false", f"'{self.text(step)}' is always false here", self.known(step, box))
            elif whole.may_be_true and not whole.may_be_false:
                self.quiet = True
                by_itself = self.of(step, self.base)
                self.quiet = False
                if not by_itself.may_be_false:
                    self.note(step, "always-true", f"'{self.text(step)}' is always true", self.known(step, self.base))

    def known(self, step: Step, box: Box) -> str:
        """What is known of the names in a test: 'eta_s is from 0 to 7200'."""
        said = []
        for part in step.walk():
            found = box.get(str(part.value)) if part.step == "name" and part.type.kind in NUMBERS else None
            if found is None or found.empty:
                continue
            low, high = _shown(found.low), _shown(found.high)
            if low and high:
                said.append(f"{part.value} is {low}" if low == high else f"{part.value} is from {low} to {high}")
            elif low or high:
                said.append(f"{part.value} is {f'{low} or more' if low else f'{high} or less'}")
        return "; ".join(dict.fromkeys(said))

    def text(self, step: Step) -> str:
        if self.program is None:
            return ""
        text = " ".join(self.program.source.text[step.start : step.end].split())
        return text if len(text) <= 60 else text[:59] + "…"

    def note(self, step: Step, kind: str, message: str, hint: str = "", *, severity: str = "warning") -> None:
        if self.quiet or self.program is None:
            return
        found = mistake_at(self.program.source, step.start, step.end, kind, message, hint)
        self.notes.append(replace(found, severity=severity))


# ranges of single things ----------------------------------------------------------------------------------------------


def of_value(value: object) -> Range:
    """The range of one value."""
    if value is None:
        return replace(NOTHING, may_be_null=True)
    if isinstance(value, bool):
        return replace(NOTHING, may_be_true=value, may_be_false=not value)
    if isinstance(value, int | float):
        return replace(NOTHING, may_be_nan=True) if value != value else Range(value, value)
    return Range()


def _of_name(step: Step, facts: Facts | None) -> Range:
    kind, nullable = step.type.kind, step.type.nullable
    if kind == "bool":
        return replace(NOTHING, may_be_true=True, may_be_false=True, may_be_null=nullable)
    if kind not in NUMBERS:
        return Range(may_be_null=nullable)
    low, high = _ENDS[kind]
    bounded = facts is not None and kind in ("int", "double") and (facts.low is not None or facts.high is not None)
    if facts is not None and bounded:
        low = low if facts.low is None else max(low, _at_least(facts.low, kind))
        high = high if facts.high is None else min(high, _at_most(facts.high, kind))
    return Range(low, high, may_be_nan=kind == "double" and not bounded, may_be_null=nullable)


def _anything(step: Step) -> Range:
    """What nothing is known of, besides its type."""
    kind = step.type.kind
    if kind == "bool":
        return replace(NOTHING, may_be_true=True, may_be_false=True, may_be_null=step.type.nullable, may_error=True)
    low, high = _ENDS.get(kind, (-math.inf, math.inf))
    return Range(low, high, may_be_nan=kind == "double", may_be_null=step.type.nullable, may_error=True)


def _of_outcomes(bits: int) -> Range:
    return replace(
        NOTHING,
        may_be_true=bool(bits & TRUE),
        may_be_false=bool(bits & FALSE),
        may_be_null=bool(bits & NULL),
        may_error=bool(bits & ERROR),
    )


def _absent(step: Step, found: Range) -> bool:
    """Whether it is null wherever it is not an error."""
    if step.type.kind == "bool":
        return not found.may_be_true and not found.may_be_false
    return step.type.kind == "null" or (step.type.kind in NUMBERS and found.empty)


def _either(a: Range, b: Range) -> Range:
    return Range(
        min(a.low, b.low),
        max(a.high, b.high),
        a.may_be_nan or b.may_be_nan,
        a.may_be_null or b.may_be_null,
        a.may_error or b.may_error,
        a.may_be_true or b.may_be_true,
        a.may_be_false or b.may_be_false,
    )


def _at_least(bound: float | int, kind: str) -> float | int:
    if kind == "double":
        return float(bound)
    return INT_MIN if bound == -math.inf else INT_MAX + 1 if bound == math.inf else math.ceil(bound)


def _at_most(bound: float | int, kind: str) -> float | int:
    if kind == "double":
        return float(bound)
    return INT_MAX if bound == math.inf else INT_MIN - 1 if bound == -math.inf else math.floor(bound)


def _beyond(bound: float | int, kind: str, step: int) -> float | int:
    """The first value above (step 1) or below (step -1) a bound."""
    if kind == "double":
        if math.isinf(bound) and bound * step > 0:
            return bound * step * math.inf if step > 0 else -math.inf
        return value_of(key_of(float(bound) or math.copysign(0.0, step)) + step, kind)
    if math.isinf(bound):
        return _at_least(bound, kind) if step > 0 else _at_most(bound, kind)
    return math.floor(bound) + 1 if step > 0 else math.ceil(bound) - 1


def _shown(value: float | int) -> str:
    return "" if abs(value) >= 2**62 else f"{value:.15g}"


# rules of operators ---------------------------------------------------------------------------------------------------


def _truth(step: Step, args: list[Range], true: bool, false: bool, *, null: bool) -> Range:
    error = any(arg.may_error for arg in args)
    return replace(NOTHING, may_be_true=true, may_be_false=false, may_be_null=null, may_error=error)


def _compared(operation: str, a: Range, b: Range) -> Range:
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


def _among(args: list[Range]) -> Range:
    each = [_compared("eq", args[0], option) for option in args[1:]]
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
    least, most = _ENDS[kind]
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


def _either_way(true: bool, false: bool) -> Range:
    return replace(NOTHING, may_be_true=true, may_be_false=false)


_CLOCK: Final = (  # as CEL counts them (times.py)
    ("FullYear", 0, 10_000), ("Month", 0, 11), ("Date", 1, 31), ("DayOfMonth", 0, 30), ("DayOfWeek", 0, 6),
    ("DayOfYear", 0, 365), ("Hours", 0, 23), ("Minutes", 0, 59), ("Seconds", 0, 59), ("Milliseconds", 0, 999),
)  # fmt: skip
_TEXT_TESTS: Final = frozenset({"starts_with", "ends_with", "contains"})
_OPPOSITE: Final = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_SWAPPED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_RULES: Final[dict[str, Callable[..., Range]]] = {
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
    "is_nan": lambda a: _either_way(a.may_be_nan, a.low <= a.high),
    "is_inf": lambda a: _either_way(a.may_be_infinite, a.may_be_nan or (a.low < math.inf and a.high > -math.inf)),
    "is_finite": lambda a: _either_way(a.low < math.inf and a.high > -math.inf, a.may_be_nan or a.may_be_infinite),
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

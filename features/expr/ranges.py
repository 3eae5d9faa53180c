"""Interval analysis: between which ends the value of an expression lies, and whether it may be null, NaN or a row error.

    find_range(program, {"eta_s": Facts(low=0, high=7200)})     # of eta_s / 60.0: Range(0.0, 120.0, …)

The ends are computed with the interpreter's own arithmetic on the ends of the parts; rounding keeps order, so they are right
to the last bit. Where one name stands twice (`x - x`), each counts by itself: the range is then wider than the values.
A branch is looked at under its condition: behind `fare > 0 ?` the fare is above zero. `range_rules.py` has the operators,
`range_checks.py` what follows for an author.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from features.expr.facts import Facts
from features.expr.keys import NUMBERS, key_of, value_of
from features.expr.outcomes import FALSE, TRUE, chained
from features.expr.pieces import COMPARE, OPAQUE
from features.expr.program import Program, Step
from features.expr.range_rules import (
    ENDS,
    NOTHING,
    RULES,
    Range,
    among,
    compared,
    either,
    either_way,
    of_outcomes,
    of_value,
)
from features.expr.types import INT_MAX, INT_MIN

__all__ = ["Box", "Range", "Ranger", "find_range", "name_ranges", "of_value", "range_within"]

Box = Mapping[str, Range]
_TEXT_TESTS: Final = frozenset({"starts_with", "ends_with", "contains"})
_OPPOSITE: Final = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_SWAPPED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def find_range(program: Program, facts: Mapping[str, Facts]) -> Range:
    """The range of a program's value over all values that its names can have. Names are never row errors themselves.

    A double with a bound is not NaN: what is outside of declared bounds is refused or made null before it gets here.
    """
    return range_within(program.root, name_ranges(program, facts))


def range_within(step: Step, box: Box) -> Range:
    """The range of a step where each name lies in its range; a name that `box` lacks may be anything of its type."""
    return Ranger().of(step, box)


def name_ranges(program: Program, facts: Mapping[str, Facts]) -> dict[str, Range]:
    """The ranges of the names a program reads, by type and facts. A name that is nullable somewhere is so everywhere."""
    out: dict[str, Range] = {}
    for step in program.root.walk():
        if step.step == "name" and (str(step.value) not in out or step.type.nullable):
            out[str(step.value)] = _of_name(step, facts.get(str(step.value)))
    return out


class Ranger:
    """The walk. `seen` and `never_null` are for who wants to know what was found on the way."""

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
                self.never_null(step)
            return either(replace(args[0], may_be_null=False), args[1]) if args[0].may_be_null else args[0]
        if step.step == "is_null":
            if not args[0].may_be_null and not args[0].may_error:
                self.never_null(step)
            present = not _absent(step.args[0], args[0])
            return replace(either_way(args[0].may_be_null, present), may_error=args[0].may_error)
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
            out = compared(operation, args[0], args[1])
        elif operation == "in" and kind in NUMBERS:
            out = among(args)
        elif step.step in RULES:
            out = RULES[step.step](*args)
        elif operation in COMPARE or operation == "in" or step.step in _TEXT_TESTS:
            out = either_way(True, True)
        else:
            out = _anything(step)
        whole = replace(
            out,
            may_be_null=any(arg.may_be_null for arg in args),
            may_error=out.may_error or any(arg.may_error for arg in args),
        )
        self.seen(step, box, args, whole)
        return whole

    def seen(self, step: Step, box: Box, args: list[Range], found: Range) -> None:
        """A strict step, the ranges of its arguments and its own."""

    def never_null(self, step: Step) -> None:
        """A step `coalesce` or `is_null` whose first argument is never null."""

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
        return of_outcomes(chained(step.step, masks))

    def branches(self, step: Step, box: Box) -> Range:
        test = self.of(step.args[0], box)
        out = replace(NOTHING, may_be_null=test.may_be_null, may_error=test.may_error)
        for holds, branch, truth in ((test.may_be_true, step.args[1], True), (test.may_be_false, step.args[2], False)):
            narrowed = self.assume(step.args[0], box, truth) if holds else None
            if narrowed is not None:
                out = either(out, self.of(branch, narrowed))
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
        found = range_within(condition, box)
        if not (found.may_be_true if truth else found.may_be_false):
            return None
        return _narrowed(condition, box, truth)


def _narrowed(condition: Step, box: Box, truth: bool) -> Box:
    """The box of an atom that has that truth, which is a value: so no operand is null or an error."""
    if condition.step == "name":
        return {**box, str(condition.value): of_outcomes(TRUE if truth else FALSE)}
    if condition.step == "is_null" and condition.args[0].step == "name":
        old = range_within(condition.args[0], box)
        null = replace(NOTHING, may_be_null=True)
        return {**box, str(condition.args[0].value): null if truth else replace(old, may_be_null=False)}
    operation, _, kind = condition.step.partition("_")
    if operation in COMPARE and kind in NUMBERS:
        a, b = condition.args
        nan = truth == (operation == "ne")  # with NaN, `!=` alone is true
        if not truth:
            operation = _OPPOSITE[operation]
        box = _bounded(a, operation, range_within(b, box), box, nan=nan)
        return _bounded(b, _SWAPPED[operation], range_within(a, box), box, nan=nan)
    if operation == "in" and kind in NUMBERS and truth:
        options = [range_within(option, box) for option in condition.args[1:]]
        hull = Range(min(option.low for option in options), max(option.high for option in options))
        return _bounded(condition.args[0], "eq", hull, box, nan=False)
    return box


def _bounded(step: Step, operation: str, other: Range, box: Box, *, nan: bool) -> Box:
    """The box where `step operation other` holds; `nan`: or where one of the two is NaN."""
    through_double = step.step == "double_of_int"
    step = step.args[0] if through_double else step
    if step.step != "name":
        return box
    old = range_within(step, box)
    low, high, kind = old.low, old.high, step.type.kind
    many_in_one = through_double and max(abs(low), abs(high)) > 2**53  # there several ints are one double
    if not (nan and other.may_be_nan) and not many_in_one:
        if operation in ("gt", "ge", "eq"):
            low = max(low, _beyond(other.low, kind, +1) if operation == "gt" else _at_least(other.low, kind))
        if operation in ("lt", "le", "eq"):
            high = min(high, _beyond(other.high, kind, -1) if operation == "lt" else _at_most(other.high, kind))
    known = replace(old, low=low, high=high, may_be_null=False, may_be_nan=old.may_be_nan and nan)
    return {**box, str(step.value): known}


def _of_name(step: Step, facts: Facts | None) -> Range:
    kind, nullable = step.type.kind, step.type.nullable
    if kind == "bool":
        return replace(NOTHING, may_be_true=True, may_be_false=True, may_be_null=nullable)
    if kind not in NUMBERS:
        return Range(may_be_null=nullable)
    low, high = ENDS[kind]
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
    low, high = ENDS.get(kind, (-math.inf, math.inf))
    return Range(low, high, may_be_nan=kind == "double", may_be_null=step.type.nullable, may_error=True)


def _absent(step: Step, found: Range) -> bool:
    """Whether it is null wherever it is not an error."""
    if step.type.kind == "bool":
        return not found.may_be_true and not found.may_be_false
    return step.type.kind == "null" or (step.type.kind in NUMBERS and found.empty)


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

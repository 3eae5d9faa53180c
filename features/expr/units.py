"""Units: seconds are not added to metres, nor to milliseconds.

    unit, mistakes = check_units(program, {"eta_s": Facts(unit="s"), "wait_ms": Facts(unit="ms")})

The rule, chosen so that an honest strategy is never nagged:

- What is added, subtracted, compared, looked up with `in`, picked by min, max, `? :` or `??`, must have one unit. Seconds
  beside metres, and seconds beside milliseconds, are errors; the hint has the conversion. So is a quotient of seconds and
  milliseconds, which looks like a share and is 1000 times one.
- A product or a quotient of two units is a unit: m / s is m/s, cents / km * km is cents, s / s is a ratio.
- Literals, and names whose unit is not known, go with everything. Times or divided by one of them, a value has no known unit
  any more: the factor may be a weight (`0.01 * eta_s`) or a conversion (`double(wait_ms) / 1000.0`).
- Counted things (trips, drivers, …), `ratio` and `1` are all plain numbers: requests may be compared with drivers, and cents
  per trip are cents. Beside seconds, metres or cents they are errors.
- Labels (`zone`, `status`, `id`) agree with themselves only. Timestamps and durations need no unit: they have a type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from features.expr.errors import Mistake, mistake_at
from features.expr.facts import Facts
from features.expr.pieces import COMPARE
from features.expr.program import Program, Step

MEASURED: Final[dict[str, tuple[str, Fraction]]] = {  # unit: (what it measures, how many of the base unit it is)
    "s": ("time", Fraction(1)),
    "ms": ("time", Fraction(1, 1000)),
    "min": ("time", Fraction(60)),
    "h": ("time", Fraction(3600)),
    "m": ("distance", Fraction(1)),
    "km": ("distance", Fraction(1000)),
    "cents": ("money", Fraction(1)),
}
NUMBERS: Final = frozenset({"1", "ratio", "trips", "offers", "events", "drivers", "riders", "requests"})
LABELS: Final = frozenset({"zone", "status", "id"})
_FACTOR: Final = re.compile(r"([A-Za-z1]+)(?:\^(-?\d))?")


@dataclass(frozen=True)
class Unit:
    """`powers` of what is measured, sorted, none of them 0; `scale` says how many base units one of it is."""

    powers: tuple[tuple[str, int], ...] = ()
    scale: Fraction = Fraction(1)
    text: str = "1"

    def agrees(self, other: Unit) -> bool:
        return (self.powers, self.scale) == (other.powers, other.scale)

    def times(self, other: Unit, power: int) -> Unit:
        """The unit of a product (power 1) or a quotient (power -1)."""
        powers = dict(self.powers)
        for what, count in other.powers:
            powers[what] = powers.get(what, 0) + power * count
        kept = tuple(sorted((what, count) for what, count in powers.items() if count))
        scale = self.scale * other.scale**power
        return Unit(kept, scale, _spell(kept, scale) or f"{self.text}{'*' if power > 0 else '/'}{_grouped(other.text)}")


def parse_unit(text: str) -> Unit | None:
    """'m/s', 'cents/km', 's^2' -> Unit; None for '' and for a unit that is not listed here."""
    if text in LABELS:
        return Unit(((text, 1),), Fraction(1), text)
    out = Unit()
    for index, part in enumerate(re.split(r"([*/])", text.replace(" ", ""))):
        if index % 2:
            sign = 1 if part == "*" else -1
            continue
        match = _FACTOR.fullmatch(part)
        if match is None or (match[1] not in MEASURED and match[1] not in NUMBERS):
            return None
        what = MEASURED.get(match[1])
        single = Unit(((what[0], 1),), what[1], match[1]) if what else Unit((), Fraction(1), match[1])
        for _ in range(abs(int(match[2] or 1))):
            out = out.times(single, (sign if index else 1) * (1 if int(match[2] or 1) > 0 else -1))
    return Unit(out.powers, out.scale, text)


def check_units(program: Program, facts: Mapping[str, Facts]) -> tuple[str, list[Mistake]]:
    """The unit of the result ('' when it is not known), and the places where units do not go together."""
    checker = _Checker(program, facts)
    unit = checker.of(program.root)
    return (unit.text if unit is not None else ""), checker.mistakes


class _Checker:
    """The walk: the unit of each step, None where it is not known."""

    def __init__(self, program: Program, facts: Mapping[str, Facts]) -> None:
        self.program, self.facts = program, facts
        self.mistakes: list[Mistake] = []
        self.items: dict[str, Unit | None] = {}  # by loop variable, which is unique in its program

    def of(self, step: Step) -> Unit | None:
        if step.step == "name":
            return parse_unit(self.facts.get(str(step.value), Facts()).unit)
        if step.step == "item":
            return self.items.get(str(step.value))
        if step.step in ("exists", "all"):
            self.items[str(step.value)] = self.of(step.args[0])
            self.of(step.args[1])
            return None
        units = [self.of(arg) for arg in step.args]
        operation = step.step.partition("_")[0]
        if step.step == "if":
            return self.one(step, step.args[1:], units[1:], "one of them is picked")
        if step.step == "coalesce":
            return self.one(step, step.args, units, "one of them is picked")
        if operation in COMPARE or operation == "in":
            self.one(step, step.args, units, "they cannot be compared")
            return None
        if step.type.kind not in ("int", "double"):
            return None  # texts are joined; times have a type
        if operation in _SAME:
            return self.one(step, step.args, units, _SAME[operation])
        if operation in ("mul", "div"):
            return self.product(step, units, 1 if operation == "mul" else -1)
        if step.step in _KEEPS:
            return units[0]
        return _OWN[step.step](units) if step.step in _OWN else None

    def one(self, step: Step, parts: tuple[Step, ...], units: list[Unit | None], why: str) -> Unit | None:
        """The unit that all parts have; unknown ones take that of the others."""
        known = [(part, unit) for part, unit in zip(parts, units, strict=True) if unit is not None]
        if not known:
            return None
        first, unit = known[0]
        for part, other in known[1:]:
            if not unit.agrees(other):
                message = f"{self.text(first)} is in {unit.text} and {self.text(part)} in {other.text}: {why}"
                self.note(step, message, self.conversion(first, unit, part, other))
                return None
        return next((unit for _, unit in known if unit.text != "1"), unit)

    def product(self, step: Step, units: list[Unit | None], power: int) -> Unit | None:
        a, b = units
        if a is None or b is None or _is_label(a) or _is_label(b):
            return None
        if power < 0 and a.powers == b.powers and a.scale != b.scale:
            left, right = step.args
            message = f"{self.text(left)} is in {a.text} and {self.text(right)} in {b.text}: the quotient is no ratio"
            self.note(step, message, self.conversion(left, a, right, b))
            return None
        return a.times(b, power)

    def conversion(self, left: Step, a: Unit, right: Step, b: Unit) -> str:
        """How to bring both to one unit: the larger unit into the smaller, which is exact."""
        if a.powers != b.powers or _is_label(a):
            return "one of the two is not what you mean"
        step, large, small = (left, a, b) if a.scale > b.scale else (right, b, a)
        factor = large.scale / small.scale
        whole = step.type.kind == "int" and factor.denominator == 1
        number = str(factor.numerator) if whole else repr(float(factor))
        text = self.program.source.text[step.start : step.end]
        shown = text if step.step in ("name", "item") or text.endswith(")") else f"({text})"
        return f"convert one of them: {shown} * {number} is in {small.text}"

    def text(self, step: Step) -> str:
        text = " ".join(self.program.source.text[step.start : step.end].split())
        return f"'{text if len(text) <= 60 else text[:59] + '…'}'"

    def note(self, step: Step, message: str, hint: str) -> None:
        self.mistakes.append(mistake_at(self.program.source, step.start, step.end, "unit-mismatch", message, hint))


def _is_label(unit: Unit) -> bool:
    return unit.text in LABELS


def _spell(powers: tuple[tuple[str, int], ...], scale: Fraction) -> str:
    """The short name of a unit, if it has one."""
    if not powers:
        return "ratio" if scale == 1 else ""
    for name, (what, size) in MEASURED.items():
        if powers == ((what, 1),) and scale == size:
            return name
    speeds = {Fraction(1): "m/s", Fraction(1000, 3600): "km/h"}
    return speeds.get(scale, "") if powers == (("distance", 1), ("time", -1)) else ""


def _grouped(text: str) -> str:
    return f"({text})" if "/" in text or "*" in text else text


def _root(units: list[Unit | None]) -> Unit | None:
    """The unit whose square it is; of plain numbers a plain number."""
    unit = units[0]
    return unit if unit is not None and not unit.powers else None


def _fixed(text: str) -> Callable[[list[Unit | None]], Unit | None]:
    return lambda units: parse_unit(text)


_SAME: Final = {
    "add": "they cannot be added",
    "sub": "one cannot be taken from the other",
    "mod": "a remainder needs one unit",
    "least": "they cannot be compared",
    "greatest": "they cannot be compared",
}
_KEEPS: Final = frozenset(
    {"same", "double_of_int", "int_of_double", "neg_int", "neg_double", "abs_int", "abs_double", "floor", "ceil"}
    | {"round", "trunc"}
)
_OWN: Final[dict[str, Callable[[list[Unit | None]], Unit | None]]] = {
    "sqrt": _root,
    "getHours_duration": _fixed("h"),
    "getMinutes_duration": _fixed("min"),
    "getSeconds_duration": _fixed("s"),
}

"""Times in SQL: BIGINT microseconds, compared and added as they are; calendar fields in UTC by integer arithmetic.

The databases' own calendars differ (before 1582, in what a BIGINT of microseconds becomes, in session zones), so none is
used: `times.civil` itself is run over texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from features.expr.program import Step
from features.expr.times import DAY, DURATION_UNITS, RANGES, SECOND, civil

# 2,000 years, five rounds of the calendar: what civil computes is never negative then, and cutting is flooring.
_SHIFT: Final = 5 * 146_097 * DAY
_SHIFT_YEARS: Final = 2_000
_ARITHMETIC: Final = {
    "add_timestamp_duration": ("+", "timestamp"),
    "add_duration_timestamp": ("+", "timestamp"),
    "add_duration": ("+", "duration"),
    "sub_timestamp_duration": ("-", "timestamp"),
    "sub_timestamp_timestamp": ("-", "duration"),
    "sub_duration": ("-", "duration"),
}
CAN_FAIL: Final = frozenset({*_ARITHMETIC, "timestamp_of_int"})


@dataclass(frozen=True)
class _Text:
    """SQL text of a BIGINT that Python's operators extend."""

    text: str
    flink: bool

    def __add__(self, other: _Text | int) -> _Text:
        return self._join("+", other)

    def __sub__(self, other: _Text | int) -> _Text:
        return self._join("-", other)

    def __mul__(self, other: _Text | int) -> _Text:
        return self._join("*", other)

    def __floordiv__(self, other: _Text | int) -> _Text:
        return self._join("/" if self.flink else "//", other)

    def __mod__(self, other: _Text | int) -> _Text:
        if self.flink:
            return _Text(f"MOD({self.text}, {self._operand(other)})", True)
        return self._join("%", other)

    def _join(self, operator: str, other: _Text | int) -> _Text:
        return _Text(f"({self.text} {operator} {self._operand(other)})", self.flink)

    def _operand(self, other: _Text | int) -> str:
        # Flink's MOD has the type of its second operand, and a short literal is an INT.
        return f"CAST({other} AS BIGINT)" if isinstance(other, int) else other.text


def time_sql(step: Step, a: str, b: str, *, flink: bool) -> str | None:
    """The step over its operands' texts; None when it is no step of times that SQL can carry."""
    name = step.step
    if name in _ARITHMETIC:
        operator, kind = _ARITHMETIC[name]
        wide = f"({a} {operator} {b})" if flink else f"(CAST({a} AS HUGEINT) {operator} {b})"
        low, high = RANGES[kind]
        return f"(CASE WHEN {wide} BETWEEN {low} AND {high} THEN {wide if flink else f'CAST({wide} AS BIGINT)'} END)"
    low, high = RANGES["timestamp"]
    if name == "timestamp_of_int":
        in_seconds = f"{low // SECOND} AND {high // SECOND}"
        return f"(CASE WHEN {a} BETWEEN {in_seconds} THEN {a} * CAST({SECOND} AS BIGINT) END)"
    if name == "int_of_timestamp":
        seconds = (_Text(a, flink) + _SHIFT) // SECOND - _SHIFT // SECOND
        return f"(CASE WHEN {a} BETWEEN {low} AND {high} THEN {seconds.text} END)"
    field, _, kind = name.partition("_")
    if not field.startswith("get"):
        return None
    if kind == "duration":
        value = _Text(a, flink)
        part = value % SECOND // 1000 if field == "getMilliseconds" else value // DURATION_UNITS[field]
        return part.text
    if kind != "timestamp":
        return None
    found = civil(field, _Text(a, flink) + _SHIFT)
    if field == "getFullYear":
        found = found - _SHIFT_YEARS
    return f"(CASE WHEN {a} BETWEEN {low} AND {high} THEN {found.text} END)"

"""Literals with a meaning of their own, read when the expression is checked: times, zones, patterns.

`timestamp('…')`, `timestamp(0)` and `duration('…')` of a literal become a constant; a zone that is a literal must be
known, and a pattern must be a literal that compiles. What is wrong is a mistake at the literal, not an error of each row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from features.expr import regex
from features.expr.errors import did_you_mean
from features.expr.program import Step
from features.expr.times import SECOND, TIMESTAMP_MAX, TIMESTAMP_MIN, parse_duration, parse_timestamp
from features.expr.types import DURATION, TIMESTAMP
from features.expr.zones import UnknownZone, find_zone, zone_names

ZONED: Final = "_timestamp_string"  # how the steps of calendar fields in a zone end


class LiteralMistake(NamedTuple):
    """What is wrong with the argument `at`."""

    at: Step
    kind: str
    message: str
    hint: str


def read_literal(step: Step) -> Step | LiteralMistake:
    """The step, or the constant it is, or what is wrong with its literal."""
    if step.step in ("timestamp_of_string", "duration_of_string", "timestamp_of_int"):
        return _read_time(step) if step.args[0].step == "const" else step
    if step.step.endswith(ZONED):
        return _read_zone(step) if step.args[1].step == "const" else step
    if step.step == "matches":
        return _read_pattern(step)
    return step


def _read_time(step: Step) -> Step | LiteralMistake:
    given = step.args[0]
    is_duration = step.step == "duration_of_string"
    try:
        if step.step == "timestamp_of_int":
            value = int(given.value or 0) * SECOND
            if not TIMESTAMP_MIN <= value <= TIMESTAMP_MAX:
                raise ValueError("seconds since 1970, and the year is not 1 to 9999")
        else:
            value = (parse_duration if is_duration else parse_timestamp)(str(given.value))
    except ValueError as error:
        example = "duration('1h30m')" if is_duration else "timestamp('2024-03-10T07:30:00Z')"
        name = "duration" if is_duration else "timestamp"
        return LiteralMistake(given, "literal", f"this is no {name}: {error}", f"for example {example}")
    return Step("const", DURATION if is_duration else TIMESTAMP, (), step.start, step.end, value)


def _read_zone(step: Step) -> Step | LiteralMistake:
    name = str(step.args[1].value)
    try:
        find_zone(name)
    except UnknownZone:
        near = did_you_mean(name, zone_names())
        hint = f"did you mean '{near}'?" if near else "for example 'America/New_York', 'UTC' or '+05:30'"
        return LiteralMistake(step.args[1], "literal", f"unknown time zone '{name[:64]}'", hint)
    return step


def _read_pattern(step: Step) -> Step | LiteralMistake:
    pattern = step.args[1]
    if pattern.step != "const":
        hint = "write the pattern out, r'^A[0-9]+$'; for a text that is computed use contains, startsWith or endsWith"
        return LiteralMistake(pattern, "type", "the pattern of matches must be a literal", hint)
    try:
        regex.compile_pattern(str(pattern.value))
    except regex.BadPattern as error:
        hint = "patterns are those of RE2: no look-around, no back-references; r'…' keeps backslashes"
        return LiteralMistake(pattern, "literal", str(error), hint)
    return step

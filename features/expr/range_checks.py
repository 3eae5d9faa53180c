"""What ranges say to an author: a test that is always true or always false, a null that cannot be, a divisor of zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from features.expr.errors import Mistake, mistake_at
from features.expr.facts import Facts
from features.expr.keys import NUMBERS
from features.expr.outcomes import FALSE, TRUE
from features.expr.program import Program, Step
from features.expr.ranges import Box, Range, Ranger, name_ranges, range_within


def check_ranges(program: Program, facts: Mapping[str, Facts]) -> list[Mistake]:
    """Errors: a divisor that is always zero, arithmetic that always fails. Warnings: a test that is always true by what is
    known of its names, or always false where it stands; a null that cannot be.

    That a test is true because of a test before it is not said: `x < 300 ? … : x >= 300 && …` is how people write.
    """
    ranger = _Judge(program, name_ranges(program, facts))
    root = ranger.of(program.root, ranger.base)
    is_test = program.type.kind == "bool" and program.root.step not in ("const", "name")
    if is_test and not ranger.notes and root.outcomes in (TRUE, FALSE):
        true = root.outcomes == TRUE
        message = f"as a whole this is always {'true' if true else 'false'}"
        ranger.note(program.root, "always-true" if true else "always-false", message, _NO_EFFECT)
    return ranger.notes


_NO_EFFECT: Final = "remove it, or check the bounds that are declared for its names"


class _Judge(Ranger):
    """The walk that notes what the author should know."""

    def __init__(self, program: Program, base: Box) -> None:
        self.program, self.base = program, base
        self.notes: list[Mistake] = []

    def never_null(self, step: Step) -> None:
        text = self.text(step.args[0])
        at, hint = (
            (step.args[0], "remove '??' and what follows") if step.step == "coalesce" else (step, "remove the test")
        )
        self.note(at, "never-null", f"'{text}' can never be null here", hint)

    def seen(self, step: Step, box: Box, args: list[Range], found: Range) -> None:
        if step.step in ("div_double", "div_int", "mod_int") and args[1].low == args[1].high == 0:
            if not args[1].may_be_nan:
                text = self.text(step.args[1])
                self.note(step.args[1], "zero-divisor", f"the divisor '{text}' is always zero", severity="error")
        elif step.type.kind in NUMBERS and found.empty and found.may_error:
            given = [arg for part, arg in zip(step.args, args, strict=True) if part.type.kind in NUMBERS]
            if given and not any(arg.empty for arg in given):
                message = f"'{self.text(step)}' has no value for any row: it is out of range"
                self.note(step, "always-fails", message, severity="error")
        elif step.type.kind == "bool" and not found.may_be_null:
            if found.may_be_false and not found.may_be_true:
                self.note(step, "always-false", f"'{self.text(step)}' is always false here", _known(step, box))
            elif found.may_be_true and not found.may_be_false and not range_within(step, self.base).may_be_false:
                self.note(step, "always-true", f"'{self.text(step)}' is always true", _known(step, self.base))

    def text(self, step: Step) -> str:
        text = " ".join(self.program.source.text[step.start : step.end].split())
        return text if len(text) <= 60 else text[:59] + "…"

    def note(self, step: Step, kind: str, message: str, hint: str = "", *, severity: str = "warning") -> None:
        found = mistake_at(self.program.source, step.start, step.end, kind, message, hint)
        self.notes.append(replace(found, severity=severity))


def _known(step: Step, box: Box) -> str:
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


def _shown(value: float | int) -> str:
    return "" if abs(value) >= 2**62 else f"{value:.15g}"

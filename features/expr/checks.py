"""What units and bounds prove of an expression: the one call for whoever compiles expressions over names with facts."""

from __future__ import annotations

from collections.abc import Mapping

from features.expr.errors import Mistake
from features.expr.facts import Facts
from features.expr.program import Program
from features.expr.range_checks import check_ranges
from features.expr.units import check_units


def check_facts(program: Program, facts: Mapping[str, Facts]) -> list[Mistake]:
    """Errors and warnings by place: units that do not go together, divisors that are always zero, arithmetic that always
    fails (errors); tests that are always true or false, nulls that cannot be (warnings)."""
    found = [*check_units(program, facts)[1], *check_ranges(program, facts)]
    return sorted(found, key=lambda item: (item.line, item.col, item.end_col))

"""Conditions in which every computed term is a name of its own: what excludes each other whatever the terms are.

`zone % 10 < 5` and `zone % 10 >= 5` cannot both be true, whatever `%` does: with `(zone % 10)` as one number they are two
conditions on one name, which `regions.py` decides exactly. Such a term keeps the range that `ranges.py` knows of it, and
may always be null, which stands for the row errors that it may have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from features.expr.facts import Facts
from features.expr.keys import NUMBERS
from features.expr.outcomes import is_structure
from features.expr.pieces import COMPARE, as_program
from features.expr.program import Program, Step
from features.expr.ranges import find_range
from features.expr.types import Type

Wanted = Sequence[tuple[Program, "bool | None"]]


def with_terms(
    wanted: Wanted, types: Mapping[str, Type], facts: Mapping[str, Facts]
) -> tuple[Wanted, dict[str, Type], dict[str, Facts]]:
    """The conditions over terms, and the types and bounds of the terms beside those of the names.

    What these cannot be, the conditions cannot be, if each is wanted True or False: a row error that matters makes a
    condition neither, and one that does not matter (`&&`, `||` and the branch not taken absorb it) is as good as a null.
    """
    all_types, all_facts = dict(types), dict(facts)

    def opaque(step: Step) -> Step:
        if is_structure(step):
            return replace(step, args=tuple(opaque(arg) for arg in step.args))
        operation, _, kind = step.step.partition("_")
        compares = operation in COMPARE or (operation == "in" and not kind.startswith("list_"))
        if compares or step.step == "is_null":
            return replace(step, args=tuple(term(arg) for arg in step.args))
        return term(step)

    def term(step: Step) -> Step:
        if step.step in ("name", "const"):
            return step
        name = f"({step})"  # no name is written in parentheses
        all_types[name] = Type(step.type.kind, True)
        if step.type.kind in NUMBERS:
            found = find_range(as_program(step), facts)
            if not found.may_be_nan and found.low <= found.high:
                ends = [float(end) if abs(end) <= 2**53 else None for end in (found.low, found.high)]
                all_facts[name] = Facts(low=ends[0], high=ends[1])
        return replace(step, step="name", type=all_types[name], args=(), value=name)

    over_terms = []
    for program, want in wanted:
        root = opaque(program.root)
        names = frozenset(str(step.value) for step in root.walk() if step.step == "name")
        over_terms.append((replace(program, root=root, names=names), want))
    return over_terms, all_types, all_facts

"""Conditions over sets of outcomes: what may come out when only some of a condition's parts are known.

A set of outcomes is four bits: true, false, null, error. `&&`, `||`, `!`, `? :`, `??` and `== null` are followed exactly
as `interpret.py` does; everything below them is an atom, about which the caller knows a set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from features.expr.program import Step

TRUE: Final = 1
FALSE: Final = 2
NULL: Final = 4
ERROR: Final = 8
ANY: Final = 15
_STRUCTURE: Final = frozenset({"and", "or", "not", "if", "coalesce"})


def outcome_of(value: Any, failed: bool) -> int:
    """The one outcome of a value; a value that is neither null nor a bool counts as true."""
    return ERROR if failed else NULL if value is None else FALSE if value is False else TRUE


def wanted_set(wanted: bool | None) -> int:
    """The outcomes that read as True, False, or None (null or a row error)."""
    return NULL | ERROR if wanted is None else TRUE if wanted else FALSE


def is_structure(step: Step) -> bool:
    """Whether `possible` looks into the step instead of asking about it as one atom."""
    return step.type.kind == "bool" and step.step in _STRUCTURE


def atoms_of(step: Step) -> list[Step]:
    """The parts of a condition that `possible` asks about."""
    return [atom for arg in step.args for atom in atoms_of(arg)] if is_structure(step) else [step]


def possible(step: Step, known: Callable[[Step], int]) -> int:
    """The outcomes that a condition may have, from those of its atoms."""
    if not is_structure(step):
        return known(step)
    args = [possible(arg, known) for arg in step.args]
    if step.step == "not":
        return _NOT[args[0]]
    if step.step in ("and", "or"):
        return chained(step.step, args)
    if step.step == "coalesce":
        return args[0] & ~NULL | (args[1] if args[0] & NULL else 0)
    test, then, otherwise = args
    return test & (NULL | ERROR) | (then if test & TRUE else 0) | (otherwise if test & FALSE else 0)


def chained(operator: str, sets: list[int]) -> int:
    """The outcomes of a chain of `and` or of `or`."""
    table = _AND if operator == "and" else _OR
    return functools.reduce(lambda out, item: table[out][item], sets)


def split(step: Step, wanted: bool | None) -> list[tuple[Step, bool | None]]:
    """What must hold one by one for a condition to come out as wanted: `a && b` is a, and b."""
    if step.step == "not" and wanted is not None:
        return split(step.args[0], not wanted)
    if (step.step, wanted) in (("and", True), ("or", False)):
        return [part for arg in step.args for part in split(arg, wanted)]
    return [(step, wanted)]


def _pairs(first_of: tuple[int, ...]) -> list[list[int]]:
    """For two sets, the outcomes of all pairs; of a pair, the one that stands first in `first_of` comes out."""
    bits = (TRUE, FALSE, NULL, ERROR)

    def both(a: int, b: int) -> int:
        return next(bit for bit in first_of if bit in (a, b))

    table = [[0] * 16 for _ in range(16)]
    for x in range(16):
        for y in range(16):
            for a in bits:
                for b in bits:
                    if x & a and y & b:
                        table[x][y] |= both(a, b)
    return table


_AND: Final = _pairs((FALSE, ERROR, NULL, TRUE))
_OR: Final = _pairs((TRUE, ERROR, NULL, FALSE))
_NOT: Final = [(x & (NULL | ERROR)) | (FALSE if x & TRUE else 0) | (TRUE if x & FALSE else 0) for x in range(16)]

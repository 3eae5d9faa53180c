"""What an expression may cost at most for one row, estimated when it is compiled.

The parser already limits length, number of nodes and depth; what is left to bound are loops over lists, whose cost
multiplies, and regular expressions. A loop is counted as if its list had 64 elements; a longer list costs in proportion.
"""

from __future__ import annotations

from typing import Final

from features.expr import regex
from features.expr.program import Step

ASSUMED_LIST: Final = 64  # elements
MAX_COST: Final = 100_000  # steps a row: with loops two deep and 20 steps inside it is just reached


def cost_of(step: Step) -> int:
    """Steps a row: one for each step, more for those whose work grows with what they are given."""
    if step.step in ("exists", "all"):
        target, body = step.args
        return cost_of(target) + ASSUMED_LIST * (1 + cost_of(body))
    own = 1 + sum(cost_of(arg) for arg in step.args)
    if step.step.startswith("in_list_"):
        return own + ASSUMED_LIST
    if step.step == "matches":
        return own + regex.size(str(step.args[1].value))
    return own


def too_costly(root: Step) -> Step | None:
    """The innermost step that alone is beyond the limit; None when the whole is within it."""
    if cost_of(root) <= MAX_COST:
        return None
    for arg in root.args:
        found = too_costly(arg)
        if found is not None:
            return found
    return root

"""The smallest change of one numeric input that would have given a candidate another fate: survived, first, not first.

An input is a field of the request or of the candidate, a feature, or a parameter; keys and units of experiments name
things and are no quantities. All else is held as it was recorded: other inputs, arms, and what models said. So a flip is
a statement about the rules and the score, not about what a model would have said. `engine/flip_search.py` finds values;
each one that is reported has been decided again, candidate by candidate, by the row interpreter (`engine/row.py`).

How far a change is: its share of the declared range (`min` and `max` of a field or parameter) where there is one, else its
share of the value itself. Nearest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.flip_case import FIRST, NOT_FIRST, SURVIVES, Flip, FlipCase
from engine.strategy import CompiledStrategy
from features.records import Decision


@dataclass(frozen=True, kw_only=True)
class Flips:
    """All flips of one candidate, by goal, the nearest first: at most one in each direction for every input."""

    candidate: str
    flips: Mapping[str, tuple[Flip, ...]]
    notes: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """As text. A goal without a flip says so."""
        out: list[str] = []
        for goal, flips in self.flips.items():
            if flips:
                out.append(f"{self.candidate} {goal} with one change, the smallest first:")
                out += [f"  {flip.line}" for flip in flips]
            else:
                out.append(f"no change of one number was found with which {self.candidate} {goal}")
        return [*out, *(f"note: {note}" for note in self.notes)]


def find_flips(decision: Decision, candidate: str, compiled: CompiledStrategy, *, per_goal: int = 5) -> Flips:
    """The flips of one candidate: a dropped one that survives, any but the best that is first, the best that is not.

    Raises: KeyError for a candidate that is not there; ValueError for a strategy that did not make this decision.
    """
    if candidate not in decision.candidate_ids:
        raise KeyError(f"decision {decision.decision_id} had no candidate '{candidate}'")
    if compiled.strategy.hash != decision.strategy_hash:
        raise ValueError(f"decision {decision.decision_id} was made by another version of {decision.strategy}")
    case = FlipCase(decision, compiled, decision.candidate_ids.index(candidate))
    if (told := case.differs) is not None:
        return Flips(candidate=candidate, flips={}, notes=(f"no flip is claimed: {told}",))
    if not decision.survivors[case.row]:
        goals = [SURVIVES, FIRST]
    else:
        goals = [NOT_FIRST if case.is_first(case.here, {case.row: case.here}) else FIRST]
    found = {goal: tuple(case.flips(goal))[:per_goal] for goal in goals}
    return Flips(candidate=candidate, flips=found, notes=tuple(case.notes()))

"""The search for an example among conditions that hang together by their names: cell by cell, depth first.

`regions.py` splits what is wanted and hands each part here.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from features.expr.cells import Atom, Cell, build_domains, find_atoms
from features.expr.facts import Facts
from features.expr.interpret import interpret_marked
from features.expr.keys import key_of, nice, spread, value_of
from features.expr.outcomes import ANY, atoms_of, outcome_of, possible, wanted_set
from features.expr.pieces import as_program, pieces
from features.expr.program import Step
from features.expr.types import Type

SOLVE_COST: Final = 50  # tries that one exact solution for a name counts as
MAX_GUESSES: Final = 2_000  # random combinations that are tried in the end
MAX_CORNERS: Final = 9  # of the other names' cells, for which one name is solved
MAX_NEAR: Final = 12  # whole steps around a value that are tried where a condition is not understood
Condition = tuple[Step, "bool | None"]


@dataclass(frozen=True)
class Search:
    """Values for all names that were read, or None. `exact`: the answer is proved (an example is its own proof)."""

    example: dict[str, Any] | None
    exact: bool


class Budget:
    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> bool:
        self.left -= count
        return self.left >= 0


class Solver:
    """The search over conditions that hang together by their names."""

    def __init__(
        self, conditions: list[Condition], types: Mapping[str, Type], facts: Mapping[str, Facts], budget: Budget
    ) -> None:
        self.conditions, self.facts, self.budget = conditions, facts, budget
        self.wanted = [wanted_set(want) for _, want in conditions]
        self.programs = [as_program(step) for step, _ in conditions]
        steps = [atom for step, _ in conditions for atom in atoms_of(step)]
        by_text = find_atoms(steps)
        self.atoms: dict[int, Atom] = {id(step): by_text[str(step)] for step in steps}
        self.texts = {id(step): str(step) for step in steps}
        self.domains = build_domains([atom for atom in by_text.values() if atom.names], types, facts)
        self.at: dict[str, int] = {}  # the cell of each name that is placed
        self.memo: dict[tuple[str, tuple[int, ...]], int] = {}
        self.exact = True

    def solve(self) -> Search:
        if not all(self.allowed(index) for index in range(len(self.conditions))):
            return Search(None, True)
        example = self.place(self.order(), 0)
        if example is None and not self.exact:
            example = self.guess()
        return Search(example, example is not None or self.exact)

    def guess(self) -> dict[str, Any] | None:
        """A few values out of each cell that is possible by itself, combined at random: cheap, and often enough where
        several names are computed with. The same every time."""
        rng = random.Random(0)
        pools: dict[str, list[Any]] = {}
        for name, domain in self.domains.items():
            self.at = {}
            touched = [index for index, program in enumerate(self.programs) if name in program.names]
            pool: list[Any] = []
            for index, cell in enumerate(domain.cells):
                self.at[name] = index
                if all(self.allowed(condition) for condition in touched):
                    pool += _samples(cell)
            pools[name] = pool
        self.at = {}
        if not all(pools.values()):
            return None
        for _ in range(MAX_GUESSES):
            values = {name: rng.choice(pool) for name, pool in pools.items()}
            if self.holds(values, range(len(self.conditions))):
                return values
        return None

    def order(self) -> list[str]:
        """Names in the order in which they are placed: few cells first, and those that complete a condition."""
        left = sorted(self.domains)
        out: list[str] = []
        while left:
            missing = {
                name: min(len(program.names - {*out}) for program in self.programs if name in program.names)
                for name in left
            }
            out.append(min(left, key=lambda name: (missing[name], len(self.domains[name].cells))))
            left.remove(out[-1])
        return out

    def place(self, order: list[str], depth: int) -> dict[str, Any] | None:
        """Try the cells of the next name; the example below, or None."""
        if depth == len(order):
            return self.leaf()
        name = order[depth]
        touched = [index for index, program in enumerate(self.programs) if name in program.names]
        for index in range(len(self.domains[name].cells)):
            if not self.budget.take(1):
                self.exact = False
                break
            self.at[name] = index
            if all(self.allowed(condition) for condition in touched):
                found = self.place(order, depth + 1)
                if found is not None:
                    return found
        self.at.pop(name, None)
        return None

    # what is known at a place in the search -------------------------------------------------------------------------

    def allowed(self, index: int) -> bool:
        return bool(self.outcomes(index) & self.wanted[index])

    def outcomes(self, index: int) -> int:
        return possible(self.conditions[index][0], self.known)

    def known(self, step: Step) -> int:
        """The outcomes that an atom may have in the cells placed so far."""
        atom, text = self.atoms[id(step)], self.texts[id(step)]
        places = tuple(self.at.get(name, -1) for name in atom.names)
        if (text, places) not in self.memo:
            self.memo[text, places] = self.judge(atom, text, places)
        return self.memo[text, places]

    def judge(self, atom: Atom, text: str, places: tuple[int, ...]) -> int:
        if len(atom.names) == 1:
            masks = self.domains[atom.names[0]].masks[text]
            return masks[places[0]] if places[0] >= 0 else functools.reduce(operator.or_, masks, 0)
        if min(places, default=0) < 0:
            return ANY
        cells = [self.domains[name].cells[place] for name, place in zip(atom.names, places, strict=True)]
        if atom.ordered or all(cell.single for cell in cells):
            return atom.outcome({name: cell.value for name, cell in zip(atom.names, cells, strict=True)})
        return atom.outcomes(dict(zip(atom.names, cells, strict=True)))

    # where all names are placed -------------------------------------------------------------------------------------

    def leaf(self) -> dict[str, Any] | None:
        """The example in the cells placed; without one, the search stays exact only if they are refuted as a whole."""
        cells = {name: self.domains[name].cells[index] for name, index in self.at.items()}
        values = {name: cell.value for name, cell in cells.items()}
        if self.holds(values, range(len(self.conditions))):
            return values
        open_ones = [index for index, wanted in enumerate(self.wanted) if self.outcomes(index) & ~wanted]
        wide = sorted({n for index in open_ones for n in self.programs[index].names if not cells[n].single})
        refuted = False
        for name in wide:
            if not isinstance(cells[name].low, int | float) or isinstance(cells[name].low, bool):
                continue
            others = [other for other in wide if other != name]
            ends = [_different(cells[o].value, cells[o].low, cells[o].high) for o in others]
            for chosen in itertools.islice(itertools.product(*ends), MAX_CORNERS):
                if not self.budget.take(SOLVE_COST):
                    break
                found, complete = self.solve_for(
                    name, cells[name], values | dict(zip(others, chosen, strict=True)), open_ones
                )
                if found is not None:
                    return found
                refuted |= complete and not others
        self.exact &= refuted
        return None

    def solve_for(
        self, name: str, cell: Cell, values: dict[str, Any], open_ones: list[int]
    ) -> tuple[dict[str, Any] | None, bool]:
        """The example that differs in one name only, within its cell; and whether without one there is none."""
        kind = "double" if isinstance(cell.low, float) else "int"
        low, high = key_of(cell.low), key_of(cell.high)
        cuts: set[int] = set()
        unknown: list[tuple[int, int]] = []
        for index in open_ones:
            step = with_constants(self.conditions[index][0], {n: v for n, v in values.items() if n != name})
            for piece in pieces(step, name, kind, low, high):
                cuts.add(piece.low)
                if piece.status == "unknown":
                    unknown.append((piece.low, piece.high))
        complete = not unknown
        starts = sorted(cuts)
        for start, end in zip(starts, [*(cut - 1 for cut in starts[1:]), high], strict=True):
            middle = nice(start, end, kind)
            tries = [middle]
            if any(a <= end and start <= b for a, b in unknown):
                tries += [value_of(key, kind) for key in (start, end, (start + end) // 2)]
                tries += [middle + step for step in range(-MAX_NEAR, MAX_NEAR + 1)]
            for value in tries:
                if start <= key_of(value) <= end and self.holds(values | {name: value}, open_ones):
                    if self.holds(values | {name: value}, range(len(self.conditions))):
                        return values | {name: value}, True
                    complete = False
        return None, complete

    def holds(self, values: Mapping[str, Any], indexes: Iterable[int]) -> bool:
        return all(outcome_of(*interpret_marked(self.programs[i], values)) & self.wanted[i] for i in indexes)


def _samples(cell: Cell) -> list[Any]:
    """The value of a cell, and of a wide one a few more."""
    if cell.single or not isinstance(cell.low, int | float) or isinstance(cell.value, bool):
        return [cell.value]
    kind = "double" if isinstance(cell.low, float) else "int"
    low, high = key_of(cell.low), key_of(cell.high)
    tens = (sign * 10**power for power in range(1, 5) for sign in (1, -1))
    wide = [float(value) if kind == "double" else value for value in tens]
    return [*spread(low, high, kind, 3), *(value for value in wide if low <= key_of(value) <= high)]


def with_constants(step: Step, values: Mapping[str, Any]) -> Step:
    """The step with the names in `values` replaced by their values."""
    if step.step == "name":
        return replace(step, step="const", value=values[str(step.value)]) if step.value in values else step
    return replace(step, args=tuple(with_constants(arg, values) for arg in step.args)) if step.args else step


def _different(*values: Any) -> list[Any]:
    """The values without repetition; lists are among them."""
    return [value for at, value in enumerate(values) if value not in values[:at]]

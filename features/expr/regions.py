"""An example that makes conditions come out as wanted, or the proof that there is none.

    search = find_example([(a, True), (b, True)], types, facts)
    search.example      # {"city": "nyc", "surge": 2.5}: both hold
    search.exact        # no example and exact: they exclude each other

The values of each name are cut into cells that no condition tells apart (`cells.py`); the product of the cells is searched
depth first, conditions that share no name apart from each other, and a branch is left when what is known already
excludes what is wanted. The interpreter judges every example, so an example is always right. "There is none" is a proof
only where cells were refuted as a whole: conditions on one name, comparisons of two names, what interval arithmetic
(`ranges.py`) excludes, and what is excluded whatever a computed term is (`terms.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from features.expr.cells import Cell, build_domains, find_atoms
from features.expr.facts import Facts
from features.expr.keys import key_of
from features.expr.outcomes import atoms_of, split
from features.expr.pieces import as_program
from features.expr.program import Program
from features.expr.solver import Budget, Condition, Search, Solver
from features.expr.terms import with_terms
from features.expr.types import Type

MAX_TRIES: Final = 20_000  # cells tried in one search, about a second; beyond, the search is not exact


def find_example(
    wanted: Sequence[tuple[Program, bool | None]],
    types: Mapping[str, Type],
    facts: Mapping[str, Facts],
    *,
    max_tries: int = MAX_TRIES,
) -> Search:
    """Values for the names that the programs read, such that every program yields what is wanted.

    Wanted is True, False, or None (null or a row error). `types` says which names may be null, `facts` their bounds. A name
    without bounds may be infinite and, a double, NaN; such values are tried last. Names are never row errors themselves.
    """
    found = _search(wanted, types, facts, max_tries)
    if not found.exact and all(want is not None for _, want in wanted):
        over_terms = _search(*with_terms(wanted, types, facts), max_tries)
        return Search(None, over_terms.exact and over_terms.example is None)
    return found


def _search(
    wanted: Sequence[tuple[Program, bool | None]], types: Mapping[str, Type], facts: Mapping[str, Facts], max_tries: int
) -> Search:
    conditions = [part for program, want in wanted for part in split(program.root, want)]
    budget = Budget(max_tries)
    example: dict[str, Any] = {}
    exact = True
    for group in _independent(conditions):
        found = Solver(group, types, facts, budget).solve()
        if found.example is None and found.exact:
            return found
        if found.example is None:
            exact = False
        else:
            example |= found.example
    if not exact:
        return Search(None, False)
    return Search({name: example[name] for program, _ in wanted for name in sorted(program.names)}, True)


def critical_values(
    programs: Sequence[Program], types: Mapping[str, Type], facts: Mapping[str, Facts]
) -> dict[str, list[Any]]:
    """Per name the values at which a program can change: both sides of every edge, and one between edges and beyond.

    Numbers and texts ascending, then NaN where the name may be NaN, then None where it may be null.
    """
    atoms = find_atoms(atom for program in programs for atom in atoms_of(program.root))
    domains = build_domains([atom for atom in atoms.values() if atom.names], types, facts, merge=False)
    return {name: _critical(domain.cells) for name, domain in domains.items()}


def _critical(cells: Sequence[Cell]) -> list[Any]:
    """The values of cells and both ends of wide ones. Beside a double that is a cell of its own the next double is left
    out: it says nothing that the value of its cell does not."""
    alone = {key_of(c.value) for c in cells if c.single and isinstance(c.value, float) and c.value == c.value}
    plain: list[Any] = []
    odd: list[Any] = []
    for cell in cells:
        values = [cell.value]
        if isinstance(cell.low, int | float) and not cell.single:
            for end, step in ((cell.low, -1), (cell.high, 1)):
                endless = abs(end) >= 2**63 - 1
                if not endless and (isinstance(end, int) or key_of(end) + step not in alone):
                    values.append(end)
        for value in values:
            (odd if value is None or value != value else plain).append(value)
    unique = [value for index, value in enumerate(plain) if value not in plain[:index]]
    return [*(unique if any(isinstance(value, list) for value in unique) else sorted(unique)), *odd]


def _independent(conditions: list[Condition]) -> list[list[Condition]]:
    """The conditions in groups that share no name."""
    groups: list[tuple[set[str], list[Condition]]] = []
    for condition in conditions:
        names = set(as_program(condition[0]).names)
        meeting = [group for group in groups if group[0] & names]
        apart = [group for group in groups if not group[0] & names]
        merged = (
            names.union(*(group[0] for group in meeting)),
            [c for group in meeting for c in group[1]] + [condition],
        )
        groups = [*apart, merged]
    return [group[1] for group in groups]

"""What a strategy can be given, as analysis needs it: types, bounds, sample rows, and searches for more of them.

Samples (`samples.py`) are rows of values at the edges of what expressions compare; what shows itself there needs no search. A
claim that something never happens is never made of them: it is a proof of `features/expr/regions.py`, in which every name
is free within its type and bounds, parameters too. Rules that are killed at run time are out of the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from engine.analysis.inline import Inliner, known_false, with_values
from engine.analysis.samples import Samples
from engine.row import RowResult, run_row
from engine.strategy import CompiledRule, CompiledStrategy
from features.expr import Program, Type, interpret_marked
from features.expr.pieces import as_program
from features.expr.ranges import find_range
from features.expr.regions import Search, find_example

MAX_TRIES: Final = 2_000  # cells of one search, about a tenth of a second
MAX_OPEN: Final = 25  # searches that may end without an answer; each costs all of its tries
MAX_FILLED: Final = 24  # sample rows into which an example is put
_OPEN: Final = Search(None, False)
Wanted = Sequence[tuple[Program, "bool | None"]]


class World:
    """The view that all analyses of one strategy share."""

    def __init__(self, compiled: CompiledStrategy) -> None:
        self.compiled = compiled
        strategy = compiled.strategy
        self.inliner = Inliner(compiled)
        self.given: dict[str, Type] = dict(compiled.names)
        self.given |= {f"params.{param.name}": Type(param.type, False) for param in strategy.params.values()}
        known = set(self.given) | set(self.inliner.opaque) | set(strategy.models)
        self.facts = {name: facts for name, facts in strategy.facts.items() if name in known}
        self.unsure_models: set[str] = set()  # typed as never null, and null where on_late is a row error
        for name in strategy.models:
            stand_in = compiled.on_late.get(name)
            program = self.inliner.program(stand_in) if stand_in is not None else None
            failing = program is None or self.may_fail(program)
            if failing:
                self.unsure_models.add(name)
            self.given[name] = Type("double", failing or (stand_in is not None and stand_in.type.nullable))
        # A NaN that arrives as a feature is null, also where a default is declared for what is missing.
        self.unsure = set(self.unsure_models)
        for role in strategy.roles:
            self.unsure |= {f"{role.name}.{spec.name}" for spec in role.view.features if spec.type == "double"}
        self.fixed = {name: value for name, value in strategy.scope.items() if value != "*"}
        self.open_left = MAX_OPEN
        self.conditions = {rule.id: self.inline(rule.condition) for rule in (*compiled.drops, *compiled.adjusts)}

    @cached_property
    def types(self) -> Mapping[str, Type]:
        """Of all names in inlined programs, as what may come at worst."""
        return {name: kind.optional() if name in self.unsure else kind for name, kind in self.given.items()} | (
            self.inliner.opaque
        )

    @cached_property
    def samples(self) -> Samples:
        return Samples(self)

    # expressions ----------------------------------------------------------------------------------------------------

    def inline(self, program: Program) -> Program:
        """Over given names and outputs of tables; what the scope fixes is a constant."""
        inlined = self.inliner.program(program)
        if not inlined.names & set(self.fixed):
            return inlined
        root = with_values(inlined.root, self.fixed, {})
        return Program(program.type, as_program(root).names, program.source, root)

    def may_fail(self, program: Program) -> bool:
        """Whether an inlined program may be a row error, for all that is known."""
        return bool(program.names & set(self.inliner.opaque)) or find_range(program, self.facts).may_error

    def may_be_unknown(self, program: Program) -> bool:
        """Whether it may be null or a row error where the drop rules before it have narrowed its names."""
        found = find_range(program, self.facts)
        return self.may_fail(program) or found.may_be_null or bool(program.names & self.unsure)

    # proofs ---------------------------------------------------------------------------------------------------------

    def search(self, wanted: Wanted) -> Search:
        """Values for inlined programs, or the proof that there are none; after many open searches, no answer."""
        if self.open_left <= 0:
            return _OPEN
        found = find_example(wanted, self.types, self.facts, max_tries=MAX_TRIES)
        self.open_left -= not found.exact
        return found

    def never(self, wanted: Wanted) -> bool:
        """Whether it is proved that no row is as wanted (True or False each)."""
        found = self.search(wanted)
        return found.exact and found.example is None

    def survived(self, rules: Iterable[CompiledRule], near: Program | None = None) -> list[tuple[Program, bool | None]]:
        """What holds where none of these drop rules dropped. `near`: only of rules that share names with it, directly or
        through others; a part of what holds is enough for a proof."""
        out: list[tuple[Program, bool | None]] = []
        for rule in rules:
            condition = self.conditions[rule.id]
            if rule.on_unknown in ("fire", "fail_row"):
                out.append((condition, False))
            elif not self.may_fail(condition):
                out.append((known_false(condition), False))
        return out if near is None else _meeting(out, near)

    # examples -------------------------------------------------------------------------------------------------------

    def fill(self, part: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Whole rows that have these values, and others for which candidates survive."""
        out = []
        for row in self.samples.alive_rows[:MAX_FILLED] or range(min(MAX_FILLED, self.samples.num_rows)):
            out.append(self.samples.row(row) | dict(part))
        return out

    def run(self, row: Mapping[str, Any]) -> RowResult:
        return run_row(self.compiled, row)

    def base_names(self, programs: Iterable[Program | None]) -> list[str]:
        """The given names that programs read, also through lets and tables, in a steady order."""
        names = self.compiled.reached(name for program in programs if program is not None for name in program.names)
        return sorted(names & set(self.given), key=list(self.given).index)


def holds(program: Program, values: Mapping[str, Any]) -> bool | None:
    """What a condition is for a row; None for null and for a row error."""
    value, failed = interpret_marked(program, values)
    return None if failed or value is None else bool(value)


def _meeting(wanted: list[tuple[Program, bool | None]], near: Program) -> list[tuple[Program, bool | None]]:
    names = set(near.names)
    while True:
        grown = names.union(*(program.names for program, _ in wanted if program.names & names))
        if grown == names:
            return [(program, want) for program, want in wanted if program.names & names]
        names = grown

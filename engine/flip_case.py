"""One candidate of one Decision, and what it takes to decide it again with one number changed (see engine/flip.py).

`FlipCase.flips` searches by columns, many values at once, and keeps what the row interpreter confirms.
Legend: P values tried of the input, R rows (candidates) looked at for each, K candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from engine.flip_search import (
    NUMERIC,
    Input,
    moved_column,
    moving_with,
    nearest,
    signals_of,
    spread_column,
    thresholds_of,
)
from engine.inputs import names_read
from engine.redecide import killed_bits
from engine.row import Recorded, RowResult, recorded, recorded_rows, run_row
from engine.rules import ColumnRules
from engine.strategy import CompiledLet, CompiledStrategy
from engine.wire_values import from_wire, to_column
from features.expr import Column, Program, Type, evaluate, interpret
from features.records import Decision

SURVIVES: Final = "survives"
FIRST: Final = "is first"
NOT_FIRST: Final = "is no longer first"


@dataclass(frozen=True, kw_only=True)
class Flip:
    """With `name` at `after` instead of `before`, and all else as recorded, the candidate `goal`s ("survives", …).

    `distance` is the change as a share of `of`: "its range" or "itself".
    """

    goal: str
    name: str
    status: str
    before: int | float
    after: int | float
    distance: float
    of: str

    @property
    def line(self) -> str:
        return f"{self.name} {self.before:.6g} → {_shown(self.after)} ({self.distance:.1%} of {self.of})"


class FlipCase:
    """One candidate of one decision, with what it takes to decide it again."""

    def __init__(self, decision: Decision, compiled: CompiledStrategy, row: int) -> None:
        self.decision, self.compiled, self.row = decision, compiled, row
        self.killed = killed_bits(compiled, decision.killed)
        self.rows = recorded_rows(decision, compiled)
        self.names = _all_types(compiled)
        self.shared = _shared_names(compiled)
        for at, values in enumerate(self.rows):
            if not decision.survivors[at]:
                self._stand_in(values)
        self.here = run_row(compiled, self.rows[row], killed=self.killed)
        self.rules = ColumnRules(compiled)

    @property
    def differs(self) -> str | None:
        """Why the record does not follow from the strategy; None when it does."""
        recorded_as = (
            self.decision.reasons[self.row],
            self.decision.scores[self.row],
            self.decision.fired[self.row],
            self.decision.unknown[self.row],
        )
        found = (self.here.reason, self.here.score, self.here.fired, self.here.unknown)
        return (
            None if found == recorded_as else f"decided again, the candidate has {found}, its record says {recorded_as}"
        )

    def notes(self) -> Iterator[str]:
        if self.compiled.strategy.models:
            yield "what models said is held as recorded, also where a change would have reached them"
            if not self.decision.survivors[self.row]:
                yield "no model was asked about a candidate that a rule dropped: it counts as one without an answer"
        if nulls := [one.name for one in self._read(FIRST) if one.value is None and self._is_number(one.name)]:
            yield f"null is no number and does not move: {', '.join(nulls)}"

    def flips(self, goal: str) -> list[Flip]:
        found = [flip for moved in self.inputs(goal) for flip in self.flips_of(goal, moved)]
        return sorted(found, key=lambda flip: (flip.distance, flip.name))

    def flips_of(self, goal: str, moved: Input) -> Iterator[Flip]:
        """The nearest values of one input with which the goal holds, each proved."""

        def holds(points: Sequence[Any]) -> np.ndarray:
            return self.holds(goal, moved, points)

        def columns_at(points: Sequence[Any]) -> dict[str, Column]:
            return self.columns(moved, points, [self.row])

        programs = self.programs(goal)
        moving = moving_with(self.compiled, moved.name)
        thresholds = [*thresholds_of(moved, programs, self.here.values, moving), *self.cells(moved)]
        for value in nearest(moved, holds, signals_of(moved, programs, moving, columns_at), thresholds):
            if self.proved(goal, moved, value):
                yield Flip(
                    goal=goal,
                    name=moved.name,
                    status=moved.status,
                    before=moved.value,
                    after=value,
                    distance=moved.distance(value),
                    of="its range" if moved.has_range else "itself",
                )

    # what can move, and what it can touch ---------------------------------------------------------------------------

    def programs(self, goal: str) -> list[Program]:
        compiled = self.compiled
        steps = (*compiled.steps_before, *(() if goal == SURVIVES else compiled.steps_after))
        programs = [rule.condition for rule in compiled.drops]
        if goal != SURVIVES:
            programs.append(compiled.score)
            for rule in compiled.adjusts:
                programs += [p for p in (rule.condition, rule.set, rule.add, rule.multiply) if p is not None]
        return [*programs, *(step.program for step in steps if isinstance(step, CompiledLet))]

    def inputs(self, goal: str) -> list[Input]:
        """The numbers that the programs read, with the values they had; null is no number and cannot move."""
        out = []
        for one in self._read(goal):
            if one.value is None or not self._is_number(one.name) or not np.isfinite(one.value):
                continue
            low, high = self.bounds(one.name)
            out.append(
                Input(
                    name=one.name,
                    kind=self.names[one.name].kind,
                    value=one.value,
                    shared=one.name in self.shared,
                    status=one.status,
                    low=low,
                    high=high,
                )
            )
        return out

    def _read(self, goal: str) -> list[Recorded]:
        """What the programs read of the record, without what only names something: keys, units of experiments."""
        strategy = self.compiled.strategy
        read = set().union(*(program.names for program in self.programs(goal)))
        read |= {name for table in strategy.tables.values() for name in table.inputs}
        if goal != SURVIVES:
            read.add(strategy.rank.ties)
        read -= {name for role in strategy.roles for name in role.keys} | set(strategy.models)
        read -= {name for experiment in strategy.experiments for name in (experiment.unit, experiment.region)}
        return [one for one in recorded(self.decision, self.row) if one.name in read]

    def _is_number(self, name: str) -> bool:
        return name in self.names and self.names[name].kind in NUMERIC

    def bounds(self, name: str) -> tuple[float | None, float | None]:
        strategy = self.compiled.strategy
        param = strategy.params.get(name.removeprefix("params.")) if name.startswith("params.") else None
        if param is not None:
            return param.min, param.max
        facts = strategy.facts.get(name)
        return (None, None) if facts is None else (facts.low, facts.high)

    def cells(self, moved: Input) -> Iterator[float]:
        """The numbers in a table's column for the input itself."""
        for table in self.compiled.strategy.tables.values():
            for at, name in enumerate(table.inputs):
                for cell in (row.cells[at] for row in table.rows if name == moved.name):
                    numbers = [*cell.values, cell.low, cell.high]
                    yield from (float(n) for n in numbers if isinstance(n, int | float) and not isinstance(n, bool))

    # the goal, for many values by columns and for one value by rows -------------------------------------------------

    def holds(self, goal: str, moved: Input, points: Sequence[Any]) -> np.ndarray:
        """Whether the goal holds at each of P values. Shapes: returns (P,) bool."""
        rows = list(range(len(self.rows))) if moved.shared and goal != SURVIVES else [self.row]
        columns = self.columns(moved, points, rows, whole=True)
        num = len(points) * len(rows)
        before = self.rules.before(columns, num, self.killed)
        after = self.rules.after(columns, before.alive_K, self.killed)
        known_PR = (before.alive_K & after.known_K).reshape(len(points), len(rows))
        mine = rows.index(self.row)
        if goal == SURVIVES:
            return known_PR[:, mine]
        score_PR = np.where(known_PR, after.score_K.reshape(known_PR.shape), -np.inf)
        out = np.zeros(len(points), dtype=bool)
        ties = self.compiled.strategy.rank.ties
        for at, point in enumerate(points):
            tie = point if moved.name == ties else self.rows[self.row][ties]
            own = (-score_PR[at, mine], tie, self.decision.candidate_ids[self.row])
            out[at] = known_PR[at, mine] and own <= self.best_other(rows, known_PR[at], score_PR[at])
        return out if goal == FIRST else ~out

    def best_other(self, rows: list[int], known_R: np.ndarray, score_R: np.ndarray) -> tuple[Any, ...]:
        """The place of the best of the other candidates, as a key to sort by; as recorded where they do not move."""
        if len(rows) == 1 < len(self.rows):
            return self._best_recorded
        others = [row for row in rows if row != self.row and known_R[row]]
        return min((self.place(row, float(score_R[row])) for row in others), default=_LAST)

    @cached_property
    def _best_recorded(self) -> tuple[Any, ...]:
        scores = self.decision.scores
        places = [self.place(row, score) for row, score in enumerate(scores) if score is not None and row != self.row]
        return min(places, default=_LAST)

    def place(self, row: int, score: float) -> tuple[Any, ...]:
        return (-score, self.rows[row][self.compiled.strategy.rank.ties], self.decision.candidate_ids[row])

    def proved(self, goal: str, moved: Input, value: int | float) -> bool:
        """Whether the goal holds by the row interpreter, every candidate that sees the change decided again."""
        seen = range(len(self.rows)) if moved.shared and goal != SURVIVES else [self.row]
        kind = self.names[moved.name]
        changed = {
            row: run_row(self.compiled, self.rows[row] | {moved.name: from_wire(value, kind)}, killed=self.killed)
            for row in seen
        }
        mine = changed[self.row]
        if goal == SURVIVES:
            return mine.reason is None
        return self.is_first(mine, changed) == (goal == FIRST)

    def is_first(self, mine: RowResult, changed: Mapping[int, RowResult]) -> bool:
        """Whether the candidate is the best; rows that are not in `changed` are as recorded."""
        if mine.score is None:
            return False
        ties = self.compiled.strategy.rank.ties
        own = (-mine.score, mine.values[ties], self.decision.candidate_ids[self.row])
        for row, score in enumerate(self.decision.scores):
            score = changed[row].score if row in changed else score
            if row != self.row and score is not None and self.place(row, score) < own:
                return False
        return True

    def columns(
        self, moved: Input, points: Sequence[Any], rows: list[int], *, whole: bool = False
    ) -> dict[str, Column]:
        """All columns for P values and R rows, P * R long, or 1 for what is shared; with the named values unless `whole`
        leaves them to the rules."""
        out: dict[str, Column] = {}
        for name, kind in self.names.items():
            if name == moved.name:
                out[name] = moved_column(points, kind, len(rows))
            elif name in self.shared:
                out[name] = self.given[name]
            elif name in self.used:
                out[name] = spread_column(self.given[name], rows, len(points))
        if not whole:
            for step in (*self.compiled.steps_before, *self.compiled.steps_after):
                if isinstance(step, CompiledLet):
                    out[step.name] = evaluate(step.program, out)
                else:
                    out.update(step.lookup(out))
        return out

    @cached_property
    def used(self) -> frozenset[str]:
        """The names that anything reads: the others, most features among them, need no column."""
        return names_read(self.compiled)

    @cached_property
    def given(self) -> dict[str, Column]:
        """Every name as it is recorded. Shapes: (1,) for what is shared, (K,) for what candidates have."""
        return {
            name: to_column(
                [values.get(name) for values in (self.rows[:1] if name in self.shared else self.rows)], kind
            )
            for name, kind in self.names.items()
        }

    def _stand_in(self, values: dict[str, Any]) -> None:
        """What a dropped candidate has for models that were not asked about it: what stands in for a late one."""
        for name, program in self.compiled.on_late.items():
            if values.get(name) is None:
                found = interpret(program, _completed(self.compiled, values))
                values[name] = None if found is None else float(found)


_LAST: Final = (np.inf,)


def _completed(compiled: CompiledStrategy, values: Mapping[str, Any]) -> Mapping[str, Any]:
    return run_row(compiled, values).values


def _all_types(compiled: CompiledStrategy) -> dict[str, Type]:
    """Every name that is given, parameters and models among them."""
    strategy = compiled.strategy
    names = dict(compiled.names)
    names |= {f"params.{param.name}": Type(param.type, False) for param in strategy.params.values()}
    return names | {name: Type("double", True) for name in strategy.models}


def _shared_names(compiled: CompiledStrategy) -> frozenset[str]:
    """The names with one value for the whole request."""
    strategy = compiled.strategy
    own = {f"{role.name}.{spec.name}" for role in strategy.roles if role.per_candidate for spec in role.view.features}
    return frozenset(set(_all_types(compiled)) - own - set(strategy.candidate_fields) - set(strategy.models))


def _shown(value: int | float) -> str:
    """Short where that is the same number, else every digit: what is shown is what was proved."""
    text = f"{value:.6g}"
    return text if float(text) == value else repr(value)

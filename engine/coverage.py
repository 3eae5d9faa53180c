"""What of a strategy its decisions reached: rules, branches, rows of tables. `engine/traffic.py` is the cheap form for logs.

Each candidate of a Decision is decided once more by the row interpreter, and every part of every expression looked at on
the way (`Coverage.add`), so the same works for the decisions of tests and for logged ones.

Both operands of `&&` and `||` count wherever the expression is evaluated: the language has no order, a false on one side does
not keep the other from being looked at. A branch of `? :` counts only where it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.redecide import killed_bits
from engine.row import part_of, recorded_rows, run_row, table_row
from engine.strategy import CompiledLet, CompiledStrategy, Rule, Table
from features.expr import Program, interpret_marked
from features.expr.program import Step
from features.records import Decision

TRUE: Final = "true"
FALSE: Final = "false"
UNKNOWN: Final = "unknown"
HIT: Final = "hit"
FIRED: Final = "fired"
NOT_FIRED: Final = "not fired"
_LOOPS: Final = ("exists", "all")
_MAX_TEXT: Final = 60


@dataclass(kw_only=True)
class Item:
    """One thing that can be reached. `kind` is rule, branch or table; `counts` how often each of its outcomes came, those
    in `wanted` make the coverage. `file` and `line` say where it stands."""

    kind: str
    owner: str
    text: str
    file: str
    line: int
    col: int
    wanted: tuple[str, ...]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(outcome for outcome in self.wanted if not self.counts.get(outcome))

    def note(self, outcome: str) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + 1


@dataclass(frozen=True, eq=False)
class _Watched:
    """A part of an expression: its item where it is a condition or an operand, and the parts inside."""

    step: str
    part: Program
    item: Item | None
    inner: tuple[_Watched, ...]


class Coverage:
    """Counts by item, in the order of the file: for each rule its own outcomes, then the branches of its expressions."""

    def __init__(self, compiled: CompiledStrategy) -> None:
        self.compiled = compiled
        self.items: list[Item] = []
        self.rules: dict[str, Item] = {}
        self.expressions: dict[str, list[_Watched]] = {}
        self.tables: dict[str, tuple[list[Item], Item | None]] = {}
        for rule in compiled.strategy.rules:
            made = next(one for one in (*compiled.drops, *compiled.adjusts) if one.id == rule.id)
            self.rules[rule.id] = self._rule_item(rule)
            programs = [p for p in (made.condition, made.set, made.add, made.multiply) if p is not None]
            self.expressions[rule.id] = [self._watch(f"rule {rule.id}", p, p.root, None) for p in programs]
        self.always = [self._named(step) for step in compiled.steps_before if isinstance(step, CompiledLet)]
        self.scored = [self._named(step) for step in compiled.steps_after if isinstance(step, CompiledLet)]
        self.expressions["score"] = [self._watch("score", compiled.score, compiled.score.root, None)]
        self.scored += ["score", *(self._named(output, "output") for output in compiled.outputs)]
        for table in compiled.strategy.tables.values():
            self.tables[table.name] = self._table_items(table)

    def add(self, decision: Decision) -> None:
        """Count one Decision of this strategy. Raises: ValueError for one of another version."""
        compiled = self.compiled
        if decision.strategy_hash != compiled.strategy.hash:
            raise ValueError(f"decision {decision.decision_id} was made by another version of {decision.strategy}")
        killed = killed_bits(compiled, decision.killed)
        for values in recorded_rows(decision, compiled):
            self._row(values, killed)

    def _row(self, given: Mapping[str, Any], killed: int) -> None:
        compiled = self.compiled
        result = run_row(compiled, given, killed=killed)
        for rule in (*compiled.drops, *compiled.adjusts):
            if not result.reached >> rule.bit & 1:
                continue
            fired, unknown = result.fired >> rule.bit & 1, result.unknown >> rule.bit & 1
            for outcome, came in ((FIRED, fired), (UNKNOWN, unknown), (NOT_FIRED, not fired and not unknown)):
                if came:
                    self.rules[rule.id].note(outcome)
            condition, *amounts = self.expressions[rule.id]
            self._visit(condition, result.values)
            for amount in amounts if fired else ():
                self._visit(amount, result.values)
        for owner in self.always if not result.alive else (*self.always, *self.scored):
            for watched in self.expressions[owner]:
                self._visit(watched, result.values)
        after = {step.name for step in compiled.steps_after}
        for table in compiled.strategy.tables.values():
            if result.alive or table.name not in after:
                self._table(table, result.values)

    def _visit(self, watched: _Watched, values: Mapping[str, Any]) -> Any:
        """Notes what a part and the parts inside came to; the value of the part where it has an item, else nothing."""
        found: Any = None
        if watched.item is not None:
            value, failed = interpret_marked(watched.part, values)
            found = None if failed else value
            watched.item.note(UNKNOWN if found is None else TRUE if found else FALSE)
        if watched.step == "if":
            condition, then, otherwise = watched.inner
            test = self._visit(condition, values)
            if test is not None:
                self._visit(then if test else otherwise, values)
        else:
            for part in watched.inner:
                self._visit(part, values)
        return found

    def _table(self, table: Table, values: Mapping[str, Any]) -> None:
        rows, gap = self.tables[table.name]
        found = table_row(table, values)
        for at in found or ():
            rows[at].note(HIT)
        if found == () and gap is not None:
            gap.note(HIT)

    # items -----------------------------------------------------------------------------------------------------------

    def _rule_item(self, rule: Rule) -> Item:
        line, col = rule.condition.place(0)
        item = Item(
            kind="rule",
            owner=f"rule {rule.id}",
            text=_short(rule.condition.text),
            file=rule.condition.file,
            line=line,
            col=col,
            wanted=(FIRED, NOT_FIRED, UNKNOWN) if rule.on_unknown else (FIRED, NOT_FIRED),
        )
        self.items.append(item)
        return item

    def _named(self, step: CompiledLet, what: str = "let") -> str:
        owner = f"{what} {step.name}"
        self.expressions[owner] = [self._watch(owner, step.program, step.program.root, None)]
        return owner

    def _watch(self, owner: str, program: Program, step: Step, role: str | None) -> _Watched:
        """`role` says what a part is to the step around it: a condition or an operand has an item of its own."""
        item = None
        if role is not None and step.step != "const":
            line, col = program.source.place(step.start)
            text = _short(program.source.text[step.start : step.end])
            item = Item(
                kind="branch",
                owner=owner,
                text=text,
                file=program.source.file,
                line=line,
                col=col,
                wanted=(TRUE, FALSE),
            )
            self.items.append(item)
        inner: list[_Watched] = []
        if step.step not in _LOOPS:  # inside, a part has a value for every element, and none for the row
            roles = _roles(step)
            inner = [self._watch(owner, program, arg, part) for arg, part in zip(step.args, roles, strict=True)]
        return _Watched(step.step, part_of(program, step), item, tuple(inner))

    def _table_items(self, table: Table) -> tuple[list[Item], Item | None]:
        rows = [
            Item(
                kind="table",
                owner=table.name,
                text=_short(" | ".join(cell.text or "*" for cell in row.cells)),
                file=table.file,
                line=row.line,
                col=1,
                wanted=(HIT,),
            )
            for row in table.rows
        ]
        self.items += rows
        if any(all(cell.kind == "any" for cell in row.cells) for row in table.rows):
            return rows, None  # something always fits
        text = f"no row fits (on_gap: {table.on_gap})"
        gap = Item(kind="table", owner=table.name, text=text, file=table.file, line=1, col=1, wanted=(HIT,))
        self.items.append(gap)
        return rows, gap

    # what came of it --------------------------------------------------------------------------------------------------

    def share(self, kind: str | None = None) -> float:
        """Reached outcomes of all; 1 where there is nothing to reach."""
        items = [item for item in self.items if kind is None or item.kind == kind]
        total = sum(len(item.wanted) for item in items)
        return 1.0 if not total else sum(len(item.wanted) - len(item.missing) for item in items) / total

    @property
    def missing(self) -> list[Item]:
        return [item for item in self.items if item.missing]

    @property
    def fired_rules(self) -> frozenset[str]:
        """The rules that fired in some case."""
        return frozenset(name for name, item in self.rules.items() if item.counts.get(FIRED))


def _roles(step: Step) -> tuple[str | None, ...]:
    """What each argument is to a step: only conditions and operands have outcomes of their own."""
    if step.step in ("and", "or"):
        return ("operand",) * len(step.args)
    if step.step == "if":
        return ("condition", None, None)
    return (None,) * len(step.args)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 1]}…"

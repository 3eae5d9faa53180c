"""The missing-data report: for every feature, nullable field and model, what each rule and the score make of its absence.

```
driver.accept_rate_24h   missing, stale, store away   default 0.5   score   goes on with 0.5
eta_s                    null, or out of bounds       null          rule unknown_eta   drops the candidate
                                                                    rule too_far       is not reached
```

What is absent is replaced by what stands in for it (a default, null, `on_late`), everything is folded, and intervals say what can still
come out. So each line is what may happen, never less; `tests/engine/analysis` takes every feature away in turn and holds
decisions against it. Rules that are killed are out of the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.analysis.absences import absences
from engine.analysis.inline import with_values
from engine.analysis.usage import names_in_use
from engine.analysis.world import World
from engine.strategy import CompiledLet, CompiledRule, CompiledStrategy, Table
from engine.table import CompiledTable, accepts, gap_of
from features.expr import ROW_ERROR, Program, Type
from features.expr.keys import NUMBERS
from features.expr.outcomes import ERROR, FALSE, NULL, TRUE
from features.expr.pieces import as_program
from features.expr.program import Step
from features.expr.range_rules import NOTHING, either
from features.expr.ranges import Range, name_ranges, of_value, range_within
from features.expr.shown import shown

# What may happen, as codes for programs.
DROPS: Final = "drops"  # the rule fires and drops
FIRES: Final = "fires"  # the rule fires and changes the score
PASSES: Final = "passes"  # the rule does not fire
UNKNOWN: Final = "unknown"  # the rule cannot tell; `on_unknown` says what that means
NOT_REACHED: Final = "not_reached"  # a drop rule before it always drops
VALUE: Final = "value"  # a finite number, or an output that is a value
LOST: Final = "lost"  # a score that drops the candidate; an output that is null


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one reader makes of it. `reader` is `rule ID`, `score` or `output NAME`; `codes` all that may happen."""

    reader: str
    codes: frozenset[str]
    text: str
    declared_by: str  # default, on_late, ??, null test, on_unknown, table, or "" where nobody said


@dataclass(frozen=True, kw_only=True)
class Missing:
    """One value that can be absent. `kind`: feature, role, field or model; `becomes` is what stands in for it."""

    name: str
    kind: str
    when: str
    becomes: str
    effects: tuple[Effect, ...]


def missing_report(compiled: CompiledStrategy) -> list[Missing]:
    """Every feature and model, and every field that may be null; those that no expression reads have no effects."""
    return list(report_of(World(compiled)))


def report_of(world: World) -> Iterator[Missing]:
    used = names_in_use(world)
    for gone in absences(world):
        effects = _Reader(world, gone.values, gone.stand_ins).effects() if set(gone.values) & used else ()
        yield Missing(name=gone.name, kind=gone.kind, when=gone.when, becomes=gone.becomes, effects=tuple(effects))


class _Reader:
    """What every reader makes of one absence."""

    def __init__(self, world: World, values: Mapping[str, Any], stand_ins: Mapping[str, Program | None]) -> None:
        self.world, self.values, self.stand_ins = world, dict(values), stand_ins
        self.box: dict[str, Range] = {}
        self.changed = set(values)  # names, computed ones too, that are other than they would be
        for name, program in stand_ins.items():
            if program is not None:
                del self.values[name]
                found = self.range(self.world.inline(program))
                # The record of a Decision cannot say that an answer failed, so a row error there is null.
                self.box[name] = replace(found, may_error=False, may_be_null=found.may_be_null or found.may_error)
        for step in world.compiled.steps_before:
            self.step(step)
        # What a late model falls back on may read what is absent; its name can then be anything that its type allows.
        self.changed |= {name for name, late in world.compiled.on_late.items() if late.names & self.changed}
        for step in world.compiled.steps_after:
            self.step(step)

    def step(self, step: CompiledLet | CompiledTable) -> None:
        """Note what a let or a table can be now, and whether it is other than before."""
        if isinstance(step, CompiledLet):
            if step.program.names & self.changed:
                self.changed.add(step.name)
            if step.name in self.world.inliner.opaque:
                self.box[step.name] = self.range(step.program)
            return
        self.box |= {f"{step.name}.{out}": found for out, found in self.table(step.table).items()}
        if set(step.table.inputs) & self.changed:
            self.changed |= {f"{step.name}.{out}" for out in step.table.outputs}

    def effects(self) -> Iterator[Effect]:
        """In the order in which readers run."""
        compiled = self.world.compiled
        stopped = ""
        for rule in (*compiled.drops, *compiled.adjusts):
            if self.reads(rule.condition, rule.set, rule.add, rule.multiply):
                yield self.rule(rule) if not stopped else self.not_reached(f"rule {rule.id}", stopped)
            if rule.drop and not stopped and self.always_drops(rule):
                stopped = rule.id
        others = [("score", compiled.score), *((f"output {out.name}", out.program) for out in compiled.outputs)]
        for reader, program in others:
            if self.reads(program):
                yield self.number(reader, program) if not stopped else self.not_reached(reader, stopped)

    def reads(self, *programs: Program | None) -> bool:
        return any(program.names & self.changed for program in programs if program is not None)

    def not_reached(self, reader: str, by: str) -> Effect:
        text = f"is not reached: rule {by} drops the candidate"
        return Effect(reader=reader, codes=frozenset({NOT_REACHED}), text=text, declared_by="rule")

    # readers --------------------------------------------------------------------------------------------------------

    def rule(self, rule: CompiledRule) -> Effect:
        outcomes = self.outcomes(rule)
        codes = set()
        if outcomes & TRUE:
            codes.add(DROPS if rule.drop else FIRES)
        if outcomes & FALSE:
            codes.add(PASSES)
        if outcomes & (NULL | ERROR):
            codes.add(UNKNOWN)
        declared = self.world.compiled.strategy.rules[rule.bit].on_unknown
        hows = self.hows(rule.condition, rule.set, rule.add, rule.multiply)
        said = "on_unknown" if UNKNOWN in codes and declared else ""
        text = _said(codes, rule.drop, rule.on_unknown)
        return Effect(
            reader=f"rule {rule.id}",
            codes=frozenset(codes),
            text="; ".join([text, *hows]),
            declared_by=said or self.declared_by(hows, UNKNOWN in codes),
        )

    def outcomes(self, rule: CompiledRule) -> int:
        """Of the whole rule: TRUE it fires, FALSE it does not, NULL or ERROR it cannot tell."""
        found = self.range(self.world.inline(rule.condition)).outcomes
        if found & (NULL | ERROR) and rule.on_unknown == "fire":
            found |= TRUE
        if found & TRUE and not rule.drop:
            for program in (rule.set, rule.add, rule.multiply):
                if program is not None:
                    amount = self.range(self.world.inline(program))
                    if amount.may_be_null or amount.may_error:
                        found |= NULL
                    if amount.empty:
                        found &= ~TRUE
        return found

    def always_drops(self, rule: CompiledRule) -> bool:
        found = self.range(self.world.inline(rule.condition)).outcomes
        dropping = TRUE | (NULL | ERROR if rule.on_unknown in ("fire", "fail_row") else 0)
        return found != 0 and not found & ~dropping

    def number(self, reader: str, program: Program) -> Effect:
        found = self.range(self.world.inline(program))
        null = found.may_be_null or found.may_error
        lost = null or (program.type.kind in ("int", "double") and (found.may_be_nan or found.may_be_infinite))
        if program.type.kind == "bool":
            there = found.may_be_true or found.may_be_false
        else:
            there = program.type.kind not in NUMBERS or not found.empty
        codes = ({LOST} if lost else set()) | ({VALUE} if there else set())
        hows = self.hows(program)
        if not there:
            text = "is null"
        elif null:
            text = "may be null" if reader != "score" else "may have no value, which drops the candidate"
        else:
            text = "goes on"
        declared = self.declared_by(hows, null and reader == "score")
        return Effect(reader=reader, codes=frozenset(codes), text="; ".join([text, *hows]), declared_by=declared)

    # values ---------------------------------------------------------------------------------------------------------

    def range(self, program: Program) -> Range:
        """What an inlined program can be."""
        return range_within(with_values(program.root, self.values, self.full_box(program)), self.full_box(program))

    def full_box(self, program: Program) -> dict[str, Range]:
        world = self.world
        box = name_ranges(program, world.facts)
        for name in program.names & world.unsure_models:
            box[name] = replace(box[name], may_be_null=True)
        for name in program.names & set(world.inliner.opaque):
            box[name] = replace(box[name], may_error=True)
        return box | {name: found for name, found in self.box.items() if name in program.names}

    def table(self, table: Table) -> dict[str, Range]:
        """What the outputs of a table can be, from the rows that may fit."""
        known: dict[int, Any] = {}
        failing = False
        for at, name in enumerate(table.inputs):
            step = self.input_step(name)
            found = range_within(step, self.full_box_of(step))
            failing |= found.may_error
            if step.step == "const":
                known[at] = step.value
        rows = [row for row in table.rows if all(accepts(row.cells[at], value) for at, value in known.items())]
        sure = any(all(cell.kind == "any" for at, cell in enumerate(row.cells) if at not in known) for row in rows)
        may_gap = not sure
        out = {}
        for at, (name, kind) in enumerate(table.outputs.items()):
            if table.hit == "collect":
                found = self.anything(kind)
            else:
                answers = [row.outputs[at] for row in rows] + ([gap_of(table)[at]] if may_gap else [])
                found = self.hull(answers)
            fails = failing or (table.hit == "unique" and len(rows) > 1)
            out[name] = replace(found, may_error=found.may_error or fails)
        return out

    def input_step(self, name: str) -> Step:
        kind = self.world.types.get(name) or Type("double", True)
        lets = self.world.inliner.lets
        step = lets.get(name) or Step("name", kind, (), 0, 0, name)
        return with_values(step, self.values | self.world.fixed, self.full_box_of(step))

    def full_box_of(self, step: Step) -> dict[str, Range]:
        return self.full_box(as_program(step))

    def anything(self, kind: Type) -> Range:
        step = Step("name", kind.optional(), (), 0, 0, "anything")
        return replace(range_within(step, {}), may_error=True)

    def hull(self, answers: Sequence[Any]) -> Range:
        out = NOTHING
        for answer in answers:
            if answer is ROW_ERROR:
                out = replace(out, may_error=True)
            elif isinstance(answer, str):
                out = replace(out, low=Range().low, high=Range().high)
            else:
                out = either(out, of_value(answer))
        return out

    # how it is declared ---------------------------------------------------------------------------------------------

    def hows(self, *programs: Program | None) -> list[str]:
        """What the text of the programs does about it: `??` and tests for null, in their order."""
        out: list[str] = []
        for program in programs:
            if program is not None:
                self._hows(self.world.inline(program).root, out)
        return list(dict.fromkeys(out))

    def _hows(self, step: Step, out: list[str]) -> None:
        for arg in step.args:
            self._hows(arg, out)
        if step.step not in ("coalesce", "is_null"):
            return
        names = {str(part.value) for part in step.args[0].walk() if part.step == "name"}
        if not names & (set(self.values) | set(self.box)):
            return
        box = self.full_box_of(step)
        first = with_values(step.args[0], self.values, box)
        if first.step != "const" or first.value is not None:
            return
        if step.step == "is_null":
            out.append(f"{_text(step.args[0])} == null is true")
        else:
            instead = with_values(step.args[1], self.values, box)
            value = shown(instead.value, instead.type) if instead.step == "const" else _text(instead)
            out.append(f"{_text(step.args[0])} ?? {_text(step.args[1])} is {value}")

    def declared_by(self, hows: Sequence[str], open_end: bool) -> str:
        """Who said what happens; "" where a row error or null goes on to where nobody expects it."""
        if open_end:
            return ""
        if hows:
            return "??" if any(" ?? " in how for how in hows) else "null test"
        if any(program is not None for program in self.stand_ins.values()):
            return "on_late"
        return "default" if any(value is not None for value in self.values.values()) else "table"


def _said(codes: set[str], drops: bool, on_unknown: str) -> str:
    """One sentence for what may happen."""
    fires = "drops the candidate" if drops else "fires"
    passes = "does not drop" if drops else "does not fire"
    meaning = {"skip": passes, "fire": fires, "fail_row": "drops the candidate"}[on_unknown]
    parts = []
    if codes & {DROPS, FIRES} and not (UNKNOWN in codes and on_unknown == "fire" and PASSES not in codes):
        parts.append(fires)
    if PASSES in codes:
        parts.append(passes)
    if UNKNOWN in codes:
        parts.append(f"cannot tell, on_unknown: {on_unknown}, so it {meaning}")
    return " or ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def _text(step: Step) -> str:
    """A part of an expression, short."""
    text = shown(step.value, step.type) if step.step == "const" else str(step)
    return text if len(text) <= 50 else text[:49] + "…"

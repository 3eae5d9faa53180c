"""Strategy to CompiledStrategy: every expression checked, and placed where it runs.

The order of a decision (`engine/decide.py`) is the order of what an expression may read: drop rules run before any
model, so they cannot read one. What a drop rule leaves is narrowed by it: behind `drop_when: eta_s == null` everything
sees eta_s without `?`. Lets and tables run in the order of `engine/naming.py`: what needs no model before the drop rules,
the others behind the models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from engine.experiment import lay_out
from engine.experiment_check import find_conflicts
from engine.naming import Item, Order, names_in, order_items, owner_of
from engine.request import body_decoder
from engine.strategy import (
    AS_OF,
    ENVELOPE,
    CompiledArms,
    CompiledLet,
    CompiledRule,
    CompiledStrategy,
    Param,
    Rule,
    Strategy,
    Table,
)
from engine.table import CompiledTable, compile_table
from engine.table_csv import CELL_KINDS
from engine.table_loader import TableDraft
from features.expr import Column, Facts, Mistake, Mistakes, Program, SourceText, Type, compile_expr
from features.expr.checks import check_facts
from features.expr.errors import mistake_at
from features.expr.ranges import find_range
from features.expr.types import TIMESTAMP
from features.expr.units import check_units

DTYPES: Final[dict[str, Any]] = {"int": np.int64, "double": np.float64, "bool": np.bool_, "string": np.object_}


def compile_strategy(
    strategy: Strategy, *, tables: Mapping[str, TableDraft], broken: Collection[str], schema_fingerprint: str
) -> tuple[CompiledStrategy | None, list[Mistake]]:
    """Compile everything; the mistakes of all expressions and of all tables' cells together.

    `broken` are names whose declaration was a mistake already: that they are unknown is not said again.
    """
    return _Compiler(strategy, tables, broken).compile(schema_fingerprint)


def names_of(strategy: Strategy) -> dict[str, Type]:
    """What a model's column program may read: the request, the candidate, and the features of every role.

    A feature without a default can be missing or stale at any time, so it is nullable whatever it aggregates.
    """
    names = {name: Type("string", False) for name in ENVELOPE} | {AS_OF: TIMESTAMP}
    names |= strategy.request
    names |= strategy.candidate_fields
    for role in strategy.roles:
        for spec in role.view.features:
            names[f"{role.name}.{spec.name}"] = Type(spec.type, spec.default is None)
    return names


def constant(value: Any, kind: str) -> Column:
    """A value of the whole request. Shapes: values (1,), valid (1,)."""
    values = np.empty(1, dtype=DTYPES[kind])
    values[0] = value
    return Column(values, np.ones(1, dtype=bool))


class _Compiler:
    def __init__(self, strategy: Strategy, drafts: Mapping[str, TableDraft], broken: Collection[str]) -> None:
        self.strategy = strategy
        self.drafts = drafts
        self.broken = set(broken)
        self.mistakes: list[Mistake] = []
        self.used: set[str] = set()
        self.late: set[str] = set()  # names that are known only once models have answered
        self.tables: dict[str, Table] = {}
        self.warnings: list[Mistake] = []
        self.facts = dict(strategy.facts)  # and what is found of lets and tables

    def compile(self, schema_fingerprint: str) -> tuple[CompiledStrategy | None, list[Mistake]]:
        names = names_of(self.strategy)
        env = names | {f"params.{p.name}": Type(p.type, False) for p in self.strategy.params.values()}
        order = self.order()
        before, _ = self.steps([item for item in order.items if item.name not in order.late], env)
        drops, narrowed = self.drops(env, order)
        after, on_late = self.steps([item for item in order.items if item.name in order.late], narrowed)
        adjusts = self.adjusts(narrowed)
        score = self.program(self.strategy.score, narrowed, "score", _expect_number)
        outputs = self.outputs(narrowed)
        arms = self.arms(env)
        if self.mistakes or score is None:
            return None, self.mistakes
        strategy = replace(self.strategy, tables=self.tables, facts=self.facts)
        later = [score, *on_late.values(), *(output.program for output in outputs)]
        later += [p for rule in adjusts for p in (rule.condition, rule.set, rule.add, rule.multiply) if p is not None]
        read_later = frozenset().union(*(program.names for program in later), *(step.reads for step in after))
        layers = {p.layer for p in strategy.params.values() if p.layer and f"params.{p.name}" in self.used}
        params = strategy.params.values()
        compiled = CompiledStrategy(
            strategy=strategy,
            names=names,
            decoder=body_decoder(strategy),
            arms=arms,
            param_columns={f"params.{p.name}": constant(p.default, p.type) for p in params},
            param_values={p.name: p.default for p in params},
            steps_before=tuple(before),
            steps_after=tuple(after),
            drops=drops,
            adjusts=adjusts,
            on_late=on_late,
            score=score,
            read_after=read_later - self.late,
            layers_read=tuple(sorted(layers)),
            schema_fingerprint=schema_fingerprint,
            outputs=outputs,
            warnings=tuple(self.warnings),
        )
        return compiled, []

    def order(self) -> Order:
        """Models, lets and tables, each behind what it reads."""
        items = [
            Item(name=use.name, kind="model", reads=names_in(use.on_late), place=use.on_late)
            if use.on_late is not None
            else Item(name=use.name, kind="model", reads=frozenset(), place=self.strategy.score)
            for use in self.strategy.models.values()
        ]
        items += [Item(name=name, kind="let", reads=names_in(text), place=text) for name, text in self.strategy.lets]
        items += [
            Item(name=name, kind="table", reads=frozenset(draft.inputs), place=draft.key.source())
            for name, draft in self.drafts.items()
        ]
        order, mistakes = order_items(items)
        self.mistakes += mistakes
        self.broken |= order.cyclic
        return order

    def steps(
        self, items: Iterable[Item], env: dict[str, Type]
    ) -> tuple[list[CompiledLet | CompiledTable], dict[str, Program]]:
        """Compile lets, tables and what stands in for late models, in order; their names are known to what follows."""
        steps: list[CompiledLet | CompiledTable] = []
        on_late: dict[str, Program] = {}
        lets = dict(self.strategy.lets)
        for item in items:
            if item.kind == "model":
                self.model(item, env, on_late)
            elif item.kind == "let":
                program = self.program(lets[item.name], env, f"let {item.name}", _expect_anything)
                if program is None:
                    self.broken.add(item.name)  # the mistake is noted; what uses the name is not one more
                    continue
                env[item.name] = program.type
                self.know(item.name, program)
                steps.append(CompiledLet(name=item.name, program=program))
                if program.names & self.late:
                    self.late.add(item.name)
            else:
                table = self.table(self.drafts[item.name], env)
                if table is None:
                    self.broken.add(item.name)
                    continue
                produced = {f"{item.name}.{name}": kind for name, kind in table.table.outputs.items()}
                env.update(produced)
                self.facts.update(_facts_of(table.table))
                steps.append(table)
                if table.reads & self.late:
                    self.late.update(produced)
        return steps, on_late

    def model(self, item: Item, env: dict[str, Type], on_late: dict[str, Program]) -> None:
        """Compile what stands in for a late model, and make its name known. It may not read a model itself."""
        use = self.strategy.models[item.name]
        nullable = True
        if use.on_late is not None:
            program = self.program(use.on_late, env, f"models.{use.name}.on_late", _expect_number_or_null)
            if program is not None:
                if late := sorted(program.names & self.late):
                    self.note(
                        use.on_late,
                        "model",
                        f"on_late stands in for a model, so it cannot read '{late[0]}', which needs one",
                        "use request fields, features and what is made of them",
                    )
                on_late[use.name] = program
                nullable = program.type.nullable
        env[use.name] = Type("double", nullable)
        self.late.add(use.name)

    def table(self, draft: TableDraft, env: Mapping[str, Type]) -> CompiledTable | None:
        inputs: dict[str, Type] = {}
        for name, place in draft.inputs.items():
            program = self.program(place, env, f"tables.{draft.name}: column {name}", _expect_cell)
            if program is not None and program.names == {name}:
                inputs[name] = env[name]
            elif program is not None:
                self.note(place, "table", f"'{name}' is not a name", "give the expression a name with let")
        if len(inputs) < len(draft.inputs):
            return None
        table, mistakes = draft.finish(inputs)
        self.mistakes += mistakes
        if table is None:
            return None
        self.tables[table.name] = table
        return compile_table(table, [kind.kind for kind in inputs.values()])

    def drops(self, env: Mapping[str, Type], order: Order) -> tuple[tuple[CompiledRule, ...], dict[str, Type]]:
        """The drop rules in order, and the names as what runs after them sees them."""
        out, narrowed = [], dict(env)
        for bit, rule in enumerate(self.strategy.rules):
            if not rule.drop:
                continue
            late = sorted(name for name in names_in(rule.condition) if owner_of(name, dict.fromkeys(order.late)))
            if late:
                self.note(
                    rule.condition,
                    "model",
                    f"rule {rule.id} drops before models are asked, so it cannot read '{late[0]}'",
                    "use when with multiply: 0, or put it into score",
                )
                continue
            compiled = self.rule(bit, rule, narrowed)
            if compiled is None:
                continue
            for name in compiled.condition.present_if_not_true:
                narrowed[name] = narrowed[name].required()
            out.append(compiled)
        return tuple(out), narrowed

    def adjusts(self, env: Mapping[str, Type]) -> tuple[CompiledRule, ...]:
        rules = [(bit, rule) for bit, rule in enumerate(self.strategy.rules) if not rule.drop]
        found = [self.rule(bit, rule, env) for bit, rule in rules]
        return tuple(rule for rule in found if rule is not None)

    def rule(self, bit: int, rule: Rule, env: Mapping[str, Type]) -> CompiledRule | None:
        """One rule. Null in its condition or amounts compiles where `on_unknown` says what it means."""
        declared = rule.on_unknown is not None
        condition = self.program(
            rule.condition, env, f"rule {rule.id}", _expect_maybe_bool if declared else _expect_bool
        )
        amounts = {
            name: self.program(
                source, env, f"rule {rule.id}.{name}", _expect_number_or_null if declared else _expect_amount
            )
            for name, source in (("set", rule.set), ("add", rule.add), ("multiply", rule.multiply))
            if source is not None
        }
        if condition is None:
            return None
        return CompiledRule(
            id=rule.id,
            bit=bit,
            condition=condition,
            drop=rule.drop,
            set=amounts.get("set"),
            add=amounts.get("add"),
            multiply=amounts.get("multiply"),
            why=rule.why,
            on_unknown=rule.on_unknown or "skip",
            kill_switch=rule.kill_switch,
        )

    def outputs(self, env: Mapping[str, Type]) -> tuple[CompiledLet, ...]:
        out = []
        for name, source in self.strategy.outputs:
            program = self.program(source, env, f"outputs.{name}", _expect_anything)
            if program is not None:
                out.append(CompiledLet(name=name, program=program))
        return tuple(out)

    def arms(self, env: Mapping[str, Type]) -> tuple[CompiledArms, ...]:
        """The experiments laid out. `where` reads what is known of a request alone."""
        of_request = {name: env[name] for name in (*ENVELOPE, AS_OF, *self.strategy.request) if name in env}
        out = []
        for experiment in self.strategy.experiments:
            try:
                bucketing = lay_out([arm.share for arm in experiment.arms])
            except ValueError:
                continue  # the loader has said so
            values = tuple(dict(arm.set) for arm in experiment.arms)
            columns = tuple(
                {f"params.{name}": constant(value, self.param(name).type) for name, value in arm.items()}
                for arm in values
            )
            where = None
            if experiment.where is not None:
                where = self.program(experiment.where, of_request, f"experiments.{experiment.name}.where", _expect_bool)
            out.append(
                CompiledArms(experiment=experiment, bucketing=bucketing, columns=columns, values=values, where=where)
            )
        self.mistakes += find_conflicts(out, of_request, self.strategy.facts)
        return tuple(out)

    def param(self, name: str) -> Param:
        return self.strategy.params[name]

    def program(
        self, source: SourceText, env: Mapping[str, Type], what: str, expect: Callable[[Type], str | None]
    ) -> Program | None:
        """Compile one expression; None after a mistake."""
        try:
            program = compile_expr(source, env)
        except Mistakes as error:
            self.mistakes.extend(item for item in error.items if not self.said(item))
            return None
        self.used |= program.names
        problem = expect(program.type)
        if problem is not None:
            hint = "say what null means with ??" if program.type.nullable and "null" in problem else ""
            if hint and expect in (_expect_bool, _expect_amount) and what.startswith("rule "):
                hint += ", or with on_unknown: skip, fire or fail_row"
            self.note(source, "type", f"{what} has type {program.type}; {problem}", hint)
            return None
        for item in check_facts(program, self.facts):
            (self.warnings if item.severity == "warning" else self.mistakes).append(item)
        return program

    def know(self, name: str, program: Program) -> None:
        """Keep the unit of a let and between which bounds it lies, for what reads it."""
        if program.type.kind in ("int", "double"):
            found = find_range(program, self.facts)
            bounded = not found.may_be_nan and found.low <= found.high
            facts = _bounds(found.low, found.high) if bounded else Facts()
            self.facts[name] = replace(facts, unit=check_units(program, self.facts)[0])

    def said(self, item: Mistake) -> bool:
        """Whether the mistake is only that a broken name is unknown."""
        name = item.source_line[item.col - 1 : item.end_col - 1]
        return "unknown" in item.kind and any(name == b or name.startswith(f"{b}.") for b in self.broken)

    def note(self, source: SourceText, kind: str, message: str, hint: str = "") -> None:
        self.mistakes.append(mistake_at(source, 0, len(source.text.rstrip()), kind, message, hint))


def _facts_of(table: Table) -> dict[str, Facts]:
    """Between which bounds the outputs of a table lie."""
    out: dict[str, Facts] = {}
    for at, (name, kind) in enumerate(table.outputs.items()):
        if kind.kind not in ("int", "double") or table.hit == "collect":
            continue
        values = [row.outputs[at] for row in table.rows] + [table.gap_values.get(name)]
        known = [value for value in values if value is not None]
        if known:
            out[f"{table.name}.{name}"] = _bounds(min(known), max(known))
    return out


def _bounds(low: float, high: float, unit: str = "") -> Facts:
    """Bounds as facts, where a double holds them exactly; infinity is none."""
    kept = [float(end) if abs(end) <= 2**53 else None for end in (low, high)]
    return Facts(unit=unit, low=kept[0], high=kept[1])


def _expect_bool(found: Type) -> str | None:
    return None if found.kind == "bool" and not found.nullable else "a condition must be a bool, never null"


def _expect_maybe_bool(found: Type) -> str | None:
    return None if found.kind == "bool" else "a condition must be a bool"


def _expect_amount(found: Type) -> str | None:
    return _expect_number(found)


def _expect_number(found: Type) -> str | None:
    return None if found.kind in ("int", "double") and not found.nullable else "it must be a number, never null"


def _expect_number_or_null(found: Type) -> str | None:
    return None if found.kind in ("int", "double") else "it must be a number"


def _expect_anything(found: Type) -> str | None:
    return None if found.kind != "null" else "a name needs a value of a known type"


def _expect_cell(found: Type) -> str | None:
    return None if found.kind in CELL_KINDS else "a table cannot look it up"

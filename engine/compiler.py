"""Strategy to CompiledStrategy: every expression checked, and placed where it runs.

The order of a decision (`engine/decide.py`) is the order of what an expression may read: drop rules run before any
model, so they cannot read one. A drop rule `x == null` leaves only candidates whose x is known, so what runs after it
sees x without `?`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import numpy as np

from engine.experiment import lay_out
from engine.request import body_decoder
from engine.strategy import ENVELOPE, CompiledArms, CompiledLet, CompiledRule, CompiledStrategy, Param, Strategy
from features.expr import Column, Mistake, Mistakes, Program, SourceText, Type, compile_expr
from features.expr.errors import mistake_at

DTYPES: Final[dict[str, Any]] = {"int": np.int64, "double": np.float64, "bool": np.bool_, "string": np.object_}
_IS_NULL: Final = re.compile(r"\s*([A-Za-z_][\w.]*)\s*==\s*null\s*")


def compile_strategy(
    strategy: Strategy, *, broken: Collection[str], schema_fingerprint: str
) -> tuple[CompiledStrategy | None, list[Mistake]]:
    """Compile everything; the mistakes of all expressions together.

    `broken` are names whose declaration was a mistake already: that they are unknown is not said again.
    """
    return _Compiler(strategy, broken).compile(schema_fingerprint)


def names_of(strategy: Strategy) -> dict[str, Type]:
    """What a model's column program may read: the request, the candidate, and the features of every role.

    A feature without a default can be missing or stale at any time, so it is nullable whatever it aggregates.
    """
    names = {name: Type("string", False) for name in ENVELOPE}
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
    def __init__(self, strategy: Strategy, broken: Collection[str]) -> None:
        self.strategy = strategy
        self.broken = broken
        self.mistakes: list[Mistake] = []
        self.after_models: set[str] = set()  # names that are known only once models have answered
        self.used: set[str] = set()

    def compile(self, schema_fingerprint: str) -> tuple[CompiledStrategy | None, list[Mistake]]:
        strategy = self.strategy
        names = names_of(strategy)
        env = names | {f"params.{p.name}": Type(p.type, False) for p in strategy.params.values()}
        on_late = self.models(env)
        before, after = self.lets(env)
        drops, narrowed = self.drops(env)
        adjusts = self.adjusts(narrowed)
        score = self.program(strategy.score, narrowed, "score", _expect_number)
        arms = self.arms()
        if self.mistakes or score is None:
            return None, self.mistakes
        later = [score, *on_late.values(), *(program for _, program in after)]
        later += [p for rule in adjusts for p in (rule.condition, rule.add, rule.multiply) if p is not None]
        layers = {p.layer for p in strategy.params.values() if p.layer and f"params.{p.name}" in self.used}
        params = strategy.params.values()
        compiled = CompiledStrategy(
            strategy=strategy,
            names=names,
            decoder=body_decoder(strategy),
            arms=arms,
            param_columns={f"params.{p.name}": constant(p.default, p.type) for p in params},
            param_values={p.name: p.default for p in params},
            steps_before=tuple(CompiledLet(name=name, program=program) for name, program in before),
            steps_after=tuple(CompiledLet(name=name, program=program) for name, program in after),
            drops=drops,
            adjusts=adjusts,
            on_late=on_late,
            score=score,
            read_after=frozenset().union(*(program.names for program in later)) - self.after_models,
            layers_read=tuple(sorted(layers)),
            schema_fingerprint=schema_fingerprint,
        )
        return compiled, []

    def models(self, env: dict[str, Type]) -> dict[str, Program]:
        """Compile what stands in for late models, then make the models' names known."""
        on_late: dict[str, Program] = {}
        base = dict(env)
        for use in self.strategy.models.values():
            nullable = True
            if use.on_late is not None:
                program = self.program(use.on_late, base, f"models.{use.name}.on_late", _expect_number_or_null)
                if program is not None:
                    on_late[use.name] = program
                    nullable = program.type.nullable
            env[use.name] = Type("double", nullable)
            self.after_models.add(use.name)
        return on_late

    def lets(self, env: dict[str, Type]) -> tuple[tuple[tuple[str, Program], ...], tuple[tuple[str, Program], ...]]:
        before, after = [], []
        for name, source in self.strategy.lets:
            program = self.program(source, env, f"let {name}", _expect_anything)
            if program is None:
                env[name] = Type("double", False)  # the mistake is noted; what uses the name is not one more
                continue
            env[name] = program.type
            if program.names & self.after_models:
                self.after_models.add(name)
                after.append((name, program))
            else:
                before.append((name, program))
        return tuple(before), tuple(after)

    def drops(self, env: Mapping[str, Type]) -> tuple[tuple[CompiledRule, ...], dict[str, Type]]:
        """The drop rules in order, and the names as what runs after them sees them."""
        out, narrowed = [], dict(env)
        for bit, rule in enumerate(self.strategy.rules):
            if not rule.drop:
                continue
            program = self.program(rule.condition, narrowed, f"rule {rule.id}", _expect_bool)
            if program is None:
                continue
            if late := sorted(program.names & self.after_models):
                self.note(
                    rule.condition,
                    "model",
                    f"rule {rule.id} drops before models are asked, so it cannot read '{late[0]}'",
                    "use when with multiply: 0, or put it into score",
                )
            for name in _known_after(rule.condition.text):
                if name in narrowed:
                    narrowed[name] = Type(narrowed[name].kind, False)
            out.append(
                CompiledRule(id=rule.id, bit=bit, condition=program, drop=True, add=None, multiply=None, why=rule.why)
            )
        return tuple(out), narrowed

    def adjusts(self, env: Mapping[str, Type]) -> tuple[CompiledRule, ...]:
        out = []
        for bit, rule in enumerate(self.strategy.rules):
            if rule.drop:
                continue
            condition = self.program(rule.condition, env, f"rule {rule.id}", _expect_bool)
            add, multiply = (
                self.program(amount, env, f"rule {rule.id}.{name}", _expect_number) if amount is not None else None
                for name, amount in (("add", rule.add), ("multiply", rule.multiply))
            )
            if condition is not None:
                out.append(
                    CompiledRule(
                        id=rule.id, bit=bit, condition=condition, drop=False, add=add, multiply=multiply, why=rule.why
                    )
                )
        return tuple(out)

    def arms(self) -> tuple[CompiledArms, ...]:
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
            out.append(CompiledArms(experiment=experiment, bucketing=bucketing, columns=columns, values=values))
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
            self.note(source, "type", f"{what} has type {program.type}; {problem}", hint)
            return None
        return program

    def said(self, item: Mistake) -> bool:
        """Whether the mistake is only that a broken name is unknown."""
        name = item.source_line[item.col - 1 : item.end_col - 1]
        return "unknown" in item.kind and any(name == b or name.startswith(f"{b}.") for b in self.broken)

    def note(self, source: SourceText, kind: str, message: str, hint: str = "") -> None:
        self.mistakes.append(mistake_at(source, 0, len(source.text.rstrip()), kind, message, hint))


def _known_after(condition: str) -> list[str]:
    """The names that are not null where a drop condition was not true: `x == null` as a whole or one side of `||`.

    Text with quotes or parentheses is left alone: there `||` need not be the outermost operator.
    """
    if re.search(r"[\"'()?]", condition):
        return []
    return [match[1] for part in condition.split("||") if (match := _IS_NULL.fullmatch(part))]


def _expect_bool(found: Type) -> str | None:
    return None if found.kind == "bool" and not found.nullable else "a condition must be a bool, never null"


def _expect_number(found: Type) -> str | None:
    return None if found.kind in ("int", "double") and not found.nullable else "it must be a number, never null"


def _expect_number_or_null(found: Type) -> str | None:
    return None if found.kind in ("int", "double") else "it must be a number"


def _expect_anything(found: Type) -> str | None:
    return None if found.kind in DTYPES else "a name needs a value of a known type"

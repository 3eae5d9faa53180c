"""What a strategy can be without: features one by one and role by role, nullable fields, models; and what stands in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.analysis.world import World
from engine.strategy import Role
from features.expr import Program, Type
from features.expr.shown import shown


@dataclass(frozen=True, kw_only=True)
class Absence:
    """What is gone together, and what is there instead: values by name, or expressions (`stand_ins`) in their place."""

    name: str
    kind: str
    when: str
    becomes: str
    values: Mapping[str, Any]
    stand_ins: Mapping[str, Program | None]


def absences(world: World) -> Iterator[Absence]:
    """Features one by one and role by role, nullable fields, models."""
    compiled, strategy = world.compiled, world.compiled.strategy
    by_role = {role.name: _without_role(world, role) for role in strategy.roles}
    for role in strategy.roles:
        for name, value in by_role[role.name].items():
            becomes = "null" if value is None else f"default {shown(value)}"
            when = "missing, stale, or the store is away"
            yield Absence(name=name, kind="feature", when=when, becomes=becomes, values={name: value}, stand_ins={})
        when = f"all of '{role.view.name}' at once: no key, a late view, or the store is away"
        becomes, gone = "defaults and nulls", by_role[role.name]
        yield Absence(name=f"{role.name}.*", kind="role", when=when, becomes=becomes, values=gone, stand_ins={})
    for name, kind in (*strategy.request.items(), *strategy.candidate_fields.items()):
        if kind.nullable:
            facts = strategy.facts.get(name)
            outside = (
                name in strategy.candidate_fields and facts is not None and (facts.low, facts.high) != (None, None)
            )
            when, becomes = "null, or outside of its bounds" if outside else "null", "null"
            values: dict[str, Any] = {name: None}
            for role in strategy.roles:
                if name in role.keys:  # without a key there is nothing to read
                    values |= by_role[role.name]
                    becomes += f", and {role.name}.* is missing"
            yield Absence(name=name, kind="field", when=when, becomes=becomes, values=values, stand_ins={})
    for name in strategy.models:
        program = compiled.on_late.get(name)
        becomes = f"on_late: {' '.join(program.source.text.split())}" if program is not None else "null"
        when = "no champion, late, or failed"
        yield Absence(
            name=name, kind="model", when=when, becomes=becomes, values={name: None}, stand_ins={name: program}
        )


def _without_role(world: World, role: Role) -> dict[str, Any]:
    """What stands in for every feature of a role."""
    names = {f"{role.name}.{spec.name}": spec.default for spec in role.view.features}
    return {name: _typed(default, world.given[name]) for name, default in names.items()}


def _typed(value: Any, kind: Type) -> Any:
    return float(value) if kind.kind == "double" and value is not None else value

"""What a strategy declares and nothing reads: parameters, lets, tables, models, roles of features.

What a model reads is known only with the model, so a strategy with models may use roles that none of its expressions reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.analysis.places import Places
from engine.analysis.show import found
from engine.analysis.world import World
from features.expr import Mistake, SourceText


def check_usage(world: World) -> Iterator[Mistake]:
    compiled, strategy = world.compiled, world.compiled.strategy
    read, places = names_in_use(world), Places(strategy)
    for name, source in strategy.lets:
        if name not in read:
            yield _unused(source, f"let '{name}' is never read")
    for table in strategy.tables.values():
        if table.source is not None and not any(f"{table.name}.{out}" in read for out in table.outputs):
            yield _unused(table.source, f"table '{table.name}' is never read")
        elif table.source is not None:
            for out in table.outputs:
                if f"{table.name}.{out}" not in read:
                    yield _unused(table.source, f"output '{out}' of table '{table.name}' is never read")
    for name in strategy.models:
        if name not in read:
            yield _unused(places.of("models", name), f"model '{name}' is asked and never read")
    for param in strategy.params.values():
        if f"params.{param.name}" not in read:
            sets = [arms.experiment.name for arms in compiled.arms if any(param.name in arm for arm in arms.values)]
            more = f", though experiment '{sets[0]}' sets it" if sets else ""
            yield _unused(places.of("params", param.name), f"parameter '{param.name}' is never read{more}")
    if not strategy.models:
        for role in strategy.roles:
            if not any(f"{role.name}.{spec.name}" in read for spec in role.view.features):
                yield _unused(
                    places.of("features", role.name), f"role '{role.name}' is served and none of its features is read"
                )


def names_in_use(world: World) -> set[str]:
    """The names that reach a rule, the score, an output or an experiment's target, lets and tables between included."""
    compiled = world.compiled
    programs = [compiled.score, *(output.program for output in compiled.outputs)]
    for rule in (*compiled.drops, *compiled.adjusts):
        programs += [p for p in (rule.condition, rule.set, rule.add, rule.multiply) if p is not None]
    programs += [split.where for split in compiled.arms if split.where is not None]
    read = compiled.reached(name for program in programs for name in program.names)
    late = [program for model, program in compiled.on_late.items() if model in read]
    return read | compiled.reached(name for program in late for name in program.names)


def _unused(source: SourceText, message: str) -> Mistake:
    return found(source, "unused", message, "remove it, or read it", severity="warning")

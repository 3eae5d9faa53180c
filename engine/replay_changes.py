"""What differs between two versions of a strategy in what they compute, and versions in between, to tell which change did it.

Which change made the first choice of a decision another one is defined by reverting: `hybrid` is the new strategy with some of its changes taken back.
A change did it when taking back it alone brings the old first choice back. When no single change does, or more than one does, it
was `several`: changes that had to come together (each brings it back), or of which any would have done (none does).
Legend: elements are what can change by itself: a rule, a let, a table, a parameter, …
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.strategy import CompiledArms, CompiledLet, CompiledRule, CompiledStrategy, Rule, Strategy
from engine.table import CompiledTable
from features.expr import Facts, Program

Step = CompiledLet | CompiledTable
ORDER: Final = "order of rules"


@dataclass(frozen=True, order=True)
class Element:
    """One thing that differs. `label` is how reports call it: `rule too_far`, `score`, `table zone_bonus`."""

    kind: str
    name: str = ""

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}".strip()


def changed_elements(old: CompiledStrategy, new: CompiledStrategy) -> list[Element]:
    """What differs and can move a first choice. Names, reasons and owners do not count, nor how the draw is made.

    A let, table or parameter that only one side has is no element: it matters only through what reads it.
    """
    out: list[Element] = []
    pairs: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "rule": (_rule_texts(old), _rule_texts(new)),
        "experiment": (_experiments(old), _experiments(new)),
    }
    for kind, (was, now) in pairs.items():
        out += [Element(kind, name) for name in dict.fromkeys([*was, *now]) if was.get(name) != now.get(name)]
    if _order(old, new) != _order(new, old):
        out.append(Element(ORDER))
    common: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "let": (_lets(old), _lets(new)),
        "table": (_tables(old), _tables(new)),
        "param": (old.param_values, new.param_values),
        "layer": (_layers(old), _layers(new)),
        "model": (_models(old), _models(new)),
        "bounds of": (_bounds(old.strategy), _bounds(new.strategy)),
    }
    for kind, (was, now) in common.items():
        out += [Element(kind, name) for name in was if name in now and _differ(was[name], now[name])]
    if str(old.score) != str(new.score):
        out.append(Element("score"))
    if old.strategy.rank.ties != new.strategy.rank.ties:
        out.append(Element("rank"))
    return out


def hybrid(old: CompiledStrategy, new: CompiledStrategy, reverted: Collection[Element]) -> CompiledStrategy | None:
    """The new strategy with some changes taken back. None where they cannot be taken back alone: a type would not fit, two
    lets would read each other, a drop rule would read a model.

    What only the old one has (lets, tables, parameters, fields) is there too, for the rules that come back; nothing else reads it. Only
    scores and who is dropped mean something in the result, not the bits of its rules.
    """
    back = {kind: {e.name for e in reverted if e.kind == kind} for kind in {e.kind for e in reverted}}
    rules = _merged_rules(old, new, back.get("rule", set()), ordered=Element(ORDER) in reverted)
    steps = _merged_steps(old, new, back)
    strategy = _merged_strategy(old, new, back, [written for written, _ in rules])
    score = old.score if Element("score") in reverted else new.score
    on_late = _merged_on_late(old, new, back.get("model", set()))
    sorted_steps = _sorted(steps, strategy.models)
    if sorted_steps is None:
        return None
    before, after = sorted_steps
    compiled_rules = [replace(rule, bit=bit) for bit, (_, rule) in enumerate(rules)]
    made = replace(
        new,
        strategy=strategy,
        names={**old.names, **new.names},
        arms=_merged_arms(old, new, back.get("experiment", set())),
        param_columns=_merged(old.param_columns, new.param_columns, {f"params.{n}" for n in back.get("param", set())}),
        param_values=_merged(old.param_values, new.param_values, back.get("param", set())),
        steps_before=before,
        steps_after=after,
        drops=tuple(rule for rule in compiled_rules if rule.drop),
        adjusts=tuple(rule for rule in compiled_rules if not rule.drop),
        on_late=on_late,
        score=score,
        outputs=(),
    )
    return made if _fits(made) and _tables_fit(made, old, new) else None


# What is compared ---------------------------------------------------------------------------------------------------


def _rule_texts(compiled: CompiledStrategy) -> dict[str, Any]:
    return {
        rule.id: (rule.drop, rule.on_unknown, *(_text(p) for p in (rule.condition, rule.set, rule.add, rule.multiply)))
        for rule in (*compiled.drops, *compiled.adjusts)
    }


def _order(one: CompiledStrategy, other: CompiledStrategy) -> list[list[str]]:
    """The rules that both have, in the order of the first: those that drop, those that adjust."""
    known = {rule.id for rule in (*other.drops, *other.adjusts)}
    drops = {rule.id for rule in one.drops} & {rule.id for rule in other.drops}
    ids = [rule.id for rule in one.strategy.rules if rule.id in known]
    return [[name for name in ids if name in drops], [name for name in ids if name not in drops]]


def _experiments(compiled: CompiledStrategy) -> dict[str, Any]:
    out = {}
    for split in compiled.arms:
        one = split.experiment
        arms = tuple((arm.name, arm.share, tuple(sorted(arm.set.items()))) for arm in one.arms)
        out[one.name] = (
            one.layer, one.unit, one.salt, arms, one.kind, one.exposure, _text(split.where), one.region, one.window_ms, one.offset,
        )  # fmt: skip
    return out


def _lets(compiled: CompiledStrategy) -> dict[str, Any]:
    steps = (*compiled.steps_before, *compiled.steps_after)
    return {step.name: _text(step.program) for step in steps if isinstance(step, CompiledLet)}


def _tables(compiled: CompiledStrategy) -> dict[str, Any]:
    out = {}
    for name, table in compiled.strategy.tables.items():
        rows = tuple(
            (tuple((c.kind, c.values, c.low, c.high, c.low_open, c.high_open) for c in row.cells), row.outputs)
            for row in table.rows
        )
        gap = tuple(sorted(table.gap_values.items()))
        out[name] = (
            table.hit,
            table.on_gap,
            gap,
            table.inputs,
            tuple(map(str, table.outputs.items())),
            table.collect,
            rows,
        )
    return out


def _layers(compiled: CompiledStrategy) -> dict[str, Any]:
    return {name: (layer.holdout, layer.salt) for name, layer in compiled.strategy.layers.items()}


def _models(compiled: CompiledStrategy) -> dict[str, Any]:
    return {
        name: (use.model, use.version, _text(compiled.on_late.get(name)))
        for name, use in compiled.strategy.models.items()
    }


def _bounds(strategy: Strategy) -> dict[str, Any]:
    none = Facts()
    fields = (*strategy.request, *strategy.candidate_fields)
    found = {name: strategy.facts.get(name, none) for name in fields}
    return {name: (facts.low, facts.high) for name, facts in found.items()}


def _text(program: Program | None) -> str | None:
    return None if program is None else str(program)


def _differ(was: Any, now: Any) -> bool:
    return type(was) is not type(now) or was != now


# What is put together -----------------------------------------------------------------------------------------------


def _merged(old: Mapping[str, Any], new: Mapping[str, Any], back: Collection[str]) -> dict[str, Any]:
    """The newer of what both have, besides what is taken back; what only one has, too."""
    return {**old, **{name: old[name] if name in back and name in old else value for name, value in new.items()}}


def _merged_rules(
    old: CompiledStrategy, new: CompiledStrategy, back: set[str], *, ordered: bool
) -> list[tuple[Rule, CompiledRule]]:
    """As the new strategy has them; one that comes back stands behind the rule it stood behind, as far as that is there."""
    was, now = _rules(old), _rules(new)
    ids = [name for name in now if name in was or name not in back]
    if ordered:
        common = iter([name for name in was if name in now])
        ids = [next(common) if name in was else name for name in ids]
    before = list(was)
    for name in before:
        if name in back and name not in now:
            ahead = next((one for one in reversed(before[: before.index(name)]) if one in ids), None)
            ids.insert(0 if ahead is None else ids.index(ahead) + 1, name)
    return [was[name] if name in back else now[name] for name in ids]


def _rules(compiled: CompiledStrategy) -> dict[str, tuple[Rule, CompiledRule]]:
    by_id = {rule.id: rule for rule in (*compiled.drops, *compiled.adjusts)}
    return {rule.id: (rule, by_id[rule.id]) for rule in compiled.strategy.rules}


def _merged_steps(old: CompiledStrategy, new: CompiledStrategy, back: Mapping[str, set[str]]) -> dict[str, Step]:
    was, now = ({step.name: step for step in (*one.steps_before, *one.steps_after)} for one in (old, new))
    names = back.get("let", set()) | back.get("table", set())
    return _merged(was, now, names)


def _merged_strategy(
    old: CompiledStrategy, new: CompiledStrategy, back: Mapping[str, set[str]], rules: list[Rule]
) -> Strategy:
    was, now = old.strategy, new.strategy
    roles = {role.name: role for role in (*was.roles, *now.roles)}
    facts = dict(now.facts)
    for name in back.get("bounds of", set()):
        facts[name] = was.facts.get(name, Facts())
    return replace(
        now,
        request={**was.request, **now.request},
        candidate_fields={**was.candidate_fields, **now.candidate_fields},
        roles=tuple(roles.values()),
        params=_merged(was.params, now.params, back.get("param", set())),
        models=_merged(was.models, now.models, back.get("model", set())),
        layers=_merged(was.layers, now.layers, back.get("layer", set())),
        tables=_merged(was.tables, now.tables, back.get("table", set())),
        facts=facts,
        rules=tuple(rules),
        rank=replace(now.rank, ties=was.rank.ties) if "rank" in back else now.rank,
    )


def _merged_on_late(old: CompiledStrategy, new: CompiledStrategy, back: set[str]) -> dict[str, Program]:
    """Of each model from the side whose use of it counts: having none is a choice, too."""
    out = {}
    for name in {**old.strategy.models, **new.strategy.models}:
        side = old if name in back or name not in new.strategy.models else new
        if name in side.on_late:
            out[name] = side.on_late[name]
    return out


def _merged_arms(old: CompiledStrategy, new: CompiledStrategy, back: set[str]) -> tuple[CompiledArms, ...]:
    was, now = ({split.experiment.name: split for split in one.arms} for one in (old, new))
    kept = [was[name] if name in back else split for name, split in now.items() if name not in back or name in was]
    return (*kept, *(split for name, split in was.items() if name in back and name not in now))


def _sorted(steps: Mapping[str, Step], models: Collection[str]) -> tuple[tuple[Step, ...], tuple[Step, ...]] | None:
    """(those that need no model, those that do), each after what it reads; None for a circle."""
    owner = {name: step.name for step in steps.values() for name in step.makes}
    done: dict[str, Step] = {}
    after: set[str] = set()
    open_names: set[str] = set()

    def visit(name: str) -> bool:
        if name in done:
            return True
        if name in open_names:
            return False
        open_names.add(name)
        reads = steps[name].reads
        needed = [owner[read] for read in reads if read in owner]
        if not all(visit(one) for one in needed):
            return False
        if any(read in models for read in reads) or any(one in after for one in needed):
            after.add(name)
        done[name] = steps[name]
        return True

    if not all(visit(name) for name in steps):
        return None
    early = tuple(step for name, step in done.items() if name not in after)
    return early, tuple(step for name, step in done.items() if name in after)


# What does not fit --------------------------------------------------------------------------------------------------


def _fits(made: CompiledStrategy) -> bool:
    """Whether every expression finds what it was checked against: names of the kinds that it knew them by."""
    kinds = _kinds(made)
    late = {*made.strategy.models, *(name for step in made.steps_after for name in step.makes)}
    if any(rule.condition.names & late for rule in made.drops):
        return False
    if any(program.names & late for program in made.on_late.values()):
        return False
    return all(kinds.get(name) == kind for program in _programs(made) for name, kind in _names(program)) and all(
        name in kinds for step in (*made.steps_before, *made.steps_after) for name in step.reads
    )


def _tables_fit(made: CompiledStrategy, old: CompiledStrategy, new: CompiledStrategy) -> bool:
    """A table is laid out for the kinds of its inputs: they must be the same wherever it comes from."""
    was, now = _kinds(old), _kinds(new)
    inputs = {name for table in made.strategy.tables.values() for name in table.inputs}
    return all(was[name] == now[name] for name in inputs if name in was and name in now)


def _kinds(compiled: CompiledStrategy) -> dict[str, str]:
    strategy = compiled.strategy
    out = {name: kind.kind for name, kind in compiled.names.items()}
    out |= {name: kind.kind for name, kind in (*strategy.request.items(), *strategy.candidate_fields.items())}
    out |= {f"params.{param.name}": param.type for param in strategy.params.values()}
    out |= dict.fromkeys(strategy.models, "double")
    for step in (*compiled.steps_before, *compiled.steps_after):
        if isinstance(step, CompiledLet):
            out[step.name] = step.program.type.kind
        else:
            out |= {f"{step.name}.{name}": kind.kind for name, kind in step.table.outputs.items()}
    return out


def _programs(compiled: CompiledStrategy) -> Iterator[Program]:
    yield compiled.score
    yield from compiled.on_late.values()
    for rule in (*compiled.drops, *compiled.adjusts):
        yield from (p for p in (rule.condition, rule.set, rule.add, rule.multiply) if p is not None)
    for step in (*compiled.steps_before, *compiled.steps_after):
        if isinstance(step, CompiledLet):
            yield step.program
    for split in compiled.arms:
        if split.where is not None:
            yield split.where


def _names(program: Program) -> Iterator[tuple[str, str]]:
    """(name, kind) of everything that a program reads."""
    return ((str(step.value), step.type.kind) for step in program.root.walk() if step.step == "name")

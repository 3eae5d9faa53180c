"""Rules that never fire, always fire, or come behind rules that have dropped all they could drop.

Each claim is a proof over all values that the types and bounds allow; rules that samples show to do both are not asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.analysis.show import found
from engine.analysis.world import World
from engine.strategy import CompiledRule
from features.expr import Mistake


def check_rules(world: World) -> Iterator[Mistake]:
    """In the order in which rules run. Behind a rule that drops everybody nothing more is said."""
    compiled, outcome = world.compiled, world.samples.outcome
    before: list[CompiledRule] = []
    for rule in (*compiled.drops, *compiled.adjusts):
        fired = outcome.fired(rule.bit)
        reached = outcome.alive_K | (outcome.before.dropped_by_K >= rule.bit) if rule.drop else outcome.alive_K
        mistake = None
        if not fired.any():
            mistake = _never(world, rule, before)
        elif not (reached & ~fired).any():
            mistake = _always(world, rule, before)
        if mistake is not None:
            yield mistake
            if mistake.kind == "always-fires" and rule.drop:
                return
        if rule.drop and (mistake is None or mistake.kind == "always-fires"):
            before.append(rule)


def _never(world: World, rule: CompiledRule, before: Sequence[CompiledRule]) -> Mistake | None:
    """Proof that a condition is never true where the rule is reached. Where the rule acts on what it cannot tell, there is
    nothing to say unless it always can."""
    condition = world.conditions[rule.id]
    if rule.on_unknown != "skip" and world.may_be_unknown(condition):
        return None
    source = rule.condition.source
    if world.never([(condition, True)]):
        text = f"rule {rule.id} never fires: its condition is never true"
        return found(source, "never-fires", text, "correct the condition, or remove the rule")
    earlier = _dropping(world, rule, before)
    if earlier is None:
        return None
    names = ", ".join(one.id for one in earlier)
    word = "rules" if len(earlier) > 1 else "rule"
    if rule.drop:
        text = f"rule {rule.id} has nobody left to drop: {word} {names} dropped whoever it would"
        return found(source, "shadowed", text, "remove it, or put it first", severity="warning")
    text = f"rule {rule.id} never fires: {word} {names} dropped every candidate that it is for"
    return found(source, "shadowed", text, "correct the condition, or remove the rule")


def _dropping(world: World, rule: CompiledRule, before: Sequence[CompiledRule]) -> list[CompiledRule] | None:
    """The drop rules that leave nobody for whom the condition is true: one of them alone if that is enough."""
    condition = world.conditions[rule.id]
    near = [one for one in before if world.conditions[one.id].names & condition.names]
    for one in near:
        survived = world.survived([one])
        if survived and world.never([(condition, True), *survived]):
            return [one]
    survived = world.survived(before, condition)
    if len(survived) < 2 or not world.never([(condition, True), *survived]):
        return None
    kept = [one for one in before if world.survived([one], condition)]
    for one in list(kept):  # those without which it is not proved
        rest = [other for other in kept if other is not one]
        if rest and world.never([(condition, True), *world.survived(rest)]):
            kept = rest
    return kept


def _always(world: World, rule: CompiledRule, before: Sequence[CompiledRule]) -> Mistake | None:
    condition = world.conditions[rule.id]
    if condition.root.step == "const" and not rule.drop:
        return None  # `when: true` is how a rule for everybody is written
    if world.may_be_unknown(condition) and rule.on_unknown != "fire":
        return None
    amounts = [world.inline(p) for p in (rule.set, rule.add, rule.multiply) if p is not None]
    if any(world.may_be_unknown(amount) for amount in amounts):
        return None
    if not world.never([(condition, False), *world.survived(before, condition)]):
        return None
    source = rule.condition.source
    if rule.drop:
        text = f"rule {rule.id} drops every candidate that reaches it: its condition is always true there"
        return found(source, "always-fires", text, "correct the condition")
    text = f"rule {rule.id} always fires: its condition is always true for who is scored"
    return found(source, "always-fires", text, "put what it does into the score", severity="warning")

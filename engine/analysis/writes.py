"""Rules of which one undoes what another did: a `set` over a `set`, an `add` or a `multiply` of an earlier rule.

Examples are rows that `run_row` has run: both rules fire for one candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.analysis.show import example, found
from engine.analysis.world import World
from engine.strategy import CompiledRule
from features.expr import Mistake


def check_writes(world: World) -> Iterator[Mistake]:
    adjusts = world.compiled.adjusts
    lost: set[str] = set()
    for at, rule in enumerate(adjusts):
        if rule.set is None:
            continue
        undone = []
        for earlier in adjusts[:at]:
            if world.conditions[earlier.id].root.step == "const":
                continue  # a value for everybody, with exceptions behind it
            row = _both(world, earlier, rule)
            if row is not None:
                undone.append((earlier, row))
        for earlier, _ in undone:
            if earlier.id not in lost and _whenever(world, earlier, rule):
                lost.add(earlier.id)
                text = f"rule {earlier.id} has no effect: wherever it fires, rule {rule.id} sets the score after it"
                hint = f"put {rule.id} before it, or remove one of them"
                yield found(earlier.condition.source, "overwritten", text, hint)
        undone = [(earlier, row) for earlier, row in undone if earlier.id not in lost]
        if undone:
            yield _conflict(world, rule, undone)


def _conflict(world: World, rule: CompiledRule, undone: list[tuple[CompiledRule, dict[str, Any]]]) -> Mistake:
    assert rule.set is not None
    earlier, row = undone[0]
    did = "sets" if earlier.set is not None else "changes"
    more = len(undone) - 1
    others = f" (and {more} more {'rules' if more > 1 else 'rule'})" if more else ""
    names = world.base_names([earlier.condition, rule.condition])
    text = f"rule {rule.id} sets the score that rule {earlier.id}{others} {did} for the same candidate"
    shown = example(row, names, world.types)
    hint = "let the conditions exclude each other, or put the set first"
    return found(rule.set.source, "write-conflict", f"{text}; {shown}", hint, severity="warning")


def _both(world: World, one: CompiledRule, other: CompiledRule) -> dict[str, Any] | None:
    """A row for which both fire."""
    samples = world.samples
    rows = (samples.outcome.alive_K & samples.outcome.fired(one.bit) & samples.outcome.fired(other.bit)).nonzero()[0]
    names = world.base_names([one.condition, other.condition])
    tries = [samples.row(at) for at in samples.nicest(rows.tolist(), names)]
    if not tries:
        wanted = [(world.conditions[rule.id], True) for rule in (one, other)]
        part = world.search([*wanted, *world.survived(world.compiled.drops, wanted[0][0])]).example
        tries = world.fill(part) if part is not None else []
    for row in tries:
        fired = world.run(row).fired
        if fired >> one.bit & 1 and fired >> other.bit & 1:
            return row
    return None


def _whenever(world: World, one: CompiledRule, other: CompiledRule) -> bool:
    """Whether it is proved that the other fires wherever the one does."""
    assert other.set is not None
    samples = world.samples.outcome
    if (samples.alive_K & samples.fired(one.bit) & ~samples.fired(other.bit)).any():
        return False
    amounts = [p for p in (other.set, other.add, other.multiply) if p is not None]
    if one.on_unknown != "skip" and world.may_be_unknown(world.conditions[one.id]):
        return False
    if any(world.may_be_unknown(world.inline(p)) for p in amounts):
        return False
    second = world.conditions[other.id]
    if world.may_be_unknown(second) and other.on_unknown != "fire":
        return False
    return world.never([(world.conditions[one.id], True), (second, False)])

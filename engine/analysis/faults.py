"""Undeclared absence: a feature, a nullable field or a model whose being away breaks a rule or the score, and nobody said so.

An error here is a row: with a value it decides as written; without it a rule without `on_unknown` cannot tell, or the score is
no number, which drops the candidate in silence. The types exclude most of this (null needs `??`, a test or `on_unknown`); what is
left are row errors and infinities that a default, a `??` or an `on_late` leads to: a division by a 0 that stands in, a table
that has no row for null.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from engine.analysis.absences import Absence, absences
from engine.analysis.samples import NUM_ROWS, Outcome, column_of
from engine.analysis.show import example, found
from engine.analysis.usage import names_in_use
from engine.analysis.world import World
from engine.inputs import SCORE_NOT_FINITE
from engine.row import RowResult
from engine.strategy import CompiledRule
from features.expr import Column, Mistake, evaluate


def check_faults(world: World) -> Iterator[Mistake]:
    """One error for every rule and score that something absent breaks; the first absence that does is named."""
    used = names_in_use(world)
    silent = _silent(world)
    told: set[str] = set()
    for gone in absences(world):
        if not set(gone.values) & used:
            continue
        for mistake, reader in _broken(world, gone, silent):
            if reader not in told:
                told.add(reader)
                yield mistake


def _silent(world: World) -> list[CompiledRule]:
    """The rules that do not say what it means when they cannot tell."""
    rules = (*world.compiled.drops, *world.compiled.adjusts)
    return [rule for rule in rules if world.compiled.strategy.rules[rule.bit].on_unknown is None]


def _broken(world: World, gone: Absence, silent: list[CompiledRule]) -> Iterator[tuple[Mistake, str]]:
    samples = world.samples
    present = _present(world, gone)
    without = _absent(world, gone)
    with_it, without_it = samples.run(present), samples.run(without)
    for rule in silent:
        reached = _reached(with_it, rule) & _reached(without_it, rule)
        rows = (reached & without_it.unknown(rule.bit) & ~with_it.unknown(rule.bit)).nonzero()[0]
        names = world.base_names([rule.condition, rule.set, rule.add, rule.multiply])
        for at in samples.nicest(rows.tolist(), names, without):
            given, there = samples.row(at, without), samples.row(at, present)
            if world.run(given).unknown >> rule.bit & 1 and not world.run(there).unknown >> rule.bit & 1:
                yield _rule_mistake(world, gone, rule, given), rule.id
                break
    both = with_it.alive_K & without_it.alive_K
    lost = (both & ~without_it.after.known_K & with_it.after.known_K).nonzero()[0]
    for at in samples.nicest(lost.tolist(), world.base_names([world.compiled.score]), without):
        given, there = samples.row(at, without), samples.row(at, present)
        if _breaks(world.run(given), world.run(there)):
            yield _score_mistake(world, gone, given), "score"
            break


def _breaks(given: RowResult, there: RowResult) -> bool:
    """Whether a score is no number for want of a value. That a rule which would have set another one did not fire is not it."""
    if given.reason != SCORE_NOT_FINITE or there.score is None:
        return False
    base_breaks = given.base is None or not math.isfinite(given.base)
    return (base_breaks and there.base is not None and math.isfinite(there.base)) or given.fired == there.fired


def _present(world: World, gone: Absence) -> dict[str, Column]:
    """Columns in which nothing of it is absent."""
    out = {}
    for name in gone.values:
        kind, values = world.given[name], world.samples.values[name]
        some = [value for value in values if value is not None]
        filled = (
            [some[at % len(some)] if value is None else value for at, value in enumerate(values)] if some else values
        )
        out[name] = column_of(filled, kind)
    return out


def _absent(world: World, gone: Absence) -> dict[str, Column]:
    """Columns in which all of it is, with what stands in."""
    out = {name: column_of([value] * NUM_ROWS, world.given[name]) for name, value in gone.values.items()}
    for name, program in gone.stand_ins.items():
        if program is not None:
            columns = world.samples.outcome.columns
            found = evaluate(program, columns, num_rows=NUM_ROWS)
            out[name] = Column(found.values.astype(np.float64), found.valid)
    return out


def _reached(outcome: Outcome, rule: CompiledRule) -> np.ndarray:
    dropped = outcome.before.dropped_by_K
    return outcome.alive_K | (dropped >= rule.bit) if rule.drop else outcome.alive_K


def _rule_mistake(world: World, gone: Absence, rule: CompiledRule, row: Mapping[str, Any]) -> Mistake:
    text = f"without {_what(gone)} rule {rule.id} cannot tell, and no on_unknown says what that means"
    programs = [rule.condition, rule.set, rule.add, rule.multiply]
    shown = example(row, world.base_names([*programs, *gone.stand_ins.values()]), world.types)
    hint = "declare on_unknown: skip, fire or fail_row; or test for it first"
    return found(rule.condition.source, "undeclared-missing", f"{text}; {shown}", hint)


def _score_mistake(world: World, gone: Absence, row: Mapping[str, Any]) -> Mistake:
    text = f"without {_what(gone)} the score has no finite value, which drops the candidate"
    shown = example(row, world.base_names([world.compiled.score, *gone.stand_ins.values()]), world.types)
    hint = "let another value stand in with ??, test for it first, or drop by a rule that says so"
    return found(world.compiled.score.source, "undeclared-missing", f"{text}; {shown}", hint)


def _what(gone: Absence) -> str:
    names = gone.name if gone.kind != "role" else f"all features of role '{gone.name.removesuffix('.*')}'"
    return f"{names} ({gone.becomes})"

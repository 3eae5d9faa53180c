"""The rules of a strategy as two loops: what they read, what has to be computed beforehand, and their text.

`before` runs the drop rules, `after` score and adjustments; the meaning is that of `engine.rules.ColumnRules`. Lets and small
tables are inside the loops, once, whoever reads them; what no loop can compute is a column made beforehand.
Text in, machine code out: `engine/fused_cache.py`. `engine/fused.py` runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.fused_tables import table_in_loop
from engine.rules import KEPT
from engine.strategy import ENVELOPE, CompiledLet, CompiledRule, CompiledStrategy
from engine.table import CompiledTable
from features.expr import Program, Type
from features.expr.fused import DTYPES, Loop, Read, TextRead
from features.expr.fused_steps import FALSE, TRUE, Parts, both, either, flip
from features.expr.ssa import LOOP_KINDS, Graph, Input

BEFORE, AFTER = "before", "after"
_MOST_BITS = 63  # of `fired`: an int64 without its sign
_MOST_IN_LOOP = 15  # named outputs; more are rare and go through NumPy
_PUTS = {"bool": "put_bool", "int64": "put_int", "float64": "put_double"}


class NotFusableError(ValueError):
    """A strategy that only ColumnRules can run; the message says why."""


Source = str | Program  # a column by name, or what is evaluated beforehand


@dataclass(frozen=True, kw_only=True)
class Half:
    """One loop: the columns it reads with where each comes from, and the steps whose columns those need."""

    reads: tuple[Read, ...]
    sources: tuple[Source, ...]
    texts: tuple[TextRead, ...]
    steps: tuple[CompiledLet | CompiledTable, ...]


@dataclass(frozen=True, kw_only=True)
class RulePlan:
    """`in_loop` are the named outputs that `after` puts, with their dtypes; the other ones are programs of columns."""

    text: str
    before: Half
    after: Half
    in_loop: Mapping[str, str]
    by_columns: tuple[CompiledLet, ...]
    listing: str  # the graph, for people and tests


def plan_rules(compiled: CompiledStrategy, *, bits: bool = True, stacked: bool = False) -> RulePlan:
    """Lay the rules out. The same strategy gives the same text in every process.

    bits: without it nothing says which rule fired or was unknown: what the bits cost is measured against that.
    stacked: for candidates of many requests in one batch, so that no column is of length 1.
    Raises: NotFusableError.
    """
    if any(rule.bit >= _MOST_BITS for rule in (*compiled.drops, *compiled.adjusts)):
        raise NotFusableError(f"more than {_MOST_BITS} rules")
    graph = make_graph(compiled, stacked=stacked)
    before, after = Loop(graph), Loop(graph)
    num_before = _write_drops(before, compiled.drops, bits)
    fused = [named for named in compiled.outputs if named.program.type.kind in LOOP_KINDS][:_MOST_IN_LOOP]
    num_after = _write_score(after, compiled, bits, fused)
    by_columns = tuple(named for named in compiled.outputs if named not in fused)
    early = {name for program in compiled.on_late.values() for name in program.names}
    late = {name for named in by_columns for name in named.program.names}
    half_after = _half(graph, after, compiled, late)
    early |= {name for step in half_after.steps for name in step.reads} | late | _columns_of(half_after)
    half_before = _half(graph, before, compiled, early)
    return RulePlan(
        text=before.text(BEFORE, num_before) + "\n\n" + after.text(AFTER, num_after),
        before=_only(half_before, compiled.steps_before),
        after=_only(half_after, compiled.steps_after),
        in_loop={named.name: DTYPES[named.program.type.kind] for named in fused},
        by_columns=by_columns,
        listing=str(graph),
    )


def make_graph(compiled: CompiledStrategy, *, stacked: bool = False) -> Graph:
    """An empty graph that knows every name of the strategy. `stacked`: nothing is shared by all candidates."""
    strategy = compiled.strategy
    shared = not stacked
    inputs = {name: Input(name, kind.kind, kind.nullable, False, shared) for name, kind in compiled.names.items()}
    for name in strategy.candidate_fields:
        if name not in (*ENVELOPE, *strategy.request):
            inputs[name] = replace(inputs[name], shared=False)
    for role in strategy.roles:
        for spec in role.view.features:
            name = f"{role.name}.{spec.name}"
            # Null whatever its default: a NaN that arrives is one.
            inputs[name] = replace(inputs[name], nullable=True, shared=shared and not role.per_candidate)
    for param in strategy.params.values():
        inputs[f"params.{param.name}"] = Input(f"params.{param.name}", param.type, False, False, shared)
    for use in strategy.models:
        inputs[use] = Input(use, "double", True)
    named, made = {}, {}
    for step in (*compiled.steps_before, *compiled.steps_after):
        if isinstance(step, CompiledLet):
            named[step.name] = step.program
            inputs[step.name] = _facts_of_let(step, inputs)
        else:
            read = [inputs[name] for name in step.table.inputs]
            for name, kind in step.table.outputs.items():
                inputs[f"{step.name}.{name}"] = Input(
                    f"{step.name}.{name}", kind.kind, True, True, all(one.shared for one in read)
                )
            made.update(table_in_loop(step.table, inputs) or {})
    return Graph(inputs, named, made)


def _facts_of_let(step: CompiledLet, inputs: Mapping[str, Input]) -> Input:
    kind: Type = step.program.type
    return Input(step.name, kind.kind, True, True, all(inputs[name].shared for name in step.program.names))


def _write_drops(loop: Loop, drops: Sequence[CompiledRule], bits: bool) -> int:
    """The drop rules in order: later ones do not look at what is dropped. Returns the number of outputs."""
    alive, dropped_by, fired, unknown = TRUE, str(KEPT), "0", "0"
    one_fires = all(rule.on_unknown != "fail_row" for rule in drops)  # the one that drops
    for rule in drops:
        holds, unsure = _condition(loop, rule)
        holds, unsure = loop.let(both(holds, alive)), loop.let(both(unsure, alive))
        fired = fired if one_fires else _mark(loop, fired, holds, rule.bit)
        unknown = _mark(loop, unknown, unsure, rule.bit)
        dropped = either(holds, unsure) if rule.on_unknown == "fail_row" else holds
        dropped_by = _select(loop, dropped, str(rule.bit), dropped_by)
        alive = loop.let(both(alive, flip(dropped)))
    loop.body += [f"put_bool(out0, i, {alive}, 0)", f"put_short(out1, i, {dropped_by}, 1)"]
    if bits:
        fired = f"select({alive}, 0, raised(1, {dropped_by}))" if one_fires and drops else fired
        loop.body += [f"put_int(out2, i, {fired}, 2)", f"put_int(out3, i, {unknown}, 3)"]
    return 4 if bits else 2


def _write_score(loop: Loop, compiled: CompiledStrategy, bits: bool, outputs: Sequence[CompiledLet]) -> int:
    """Score, the rules that change it in order, the named outputs. Returns the number of outputs."""
    score, known = _number(loop, compiled.score)
    left, failed_by, fired, unknown = TRUE, str(KEPT), "0", "0"
    for rule in compiled.adjusts:
        holds, unsure = _condition(loop, rule)
        amounts = [
            (op, *_number(loop, program))
            for op, program in (("set", rule.set), ("+", rule.add), ("*", rule.multiply))
            if program is not None
        ]
        for _, _, ok in amounts:  # an amount that is not known: the rule cannot tell, and nothing is changed
            holds, unsure = loop.let(both(holds, ok)), loop.let(either(unsure, both(holds, flip(ok))))
        holds, unsure = loop.let(both(holds, left)), loop.let(both(unsure, left))
        changed = score
        for op, amount, _ in amounts:
            changed = amount if op == "set" else loop.let(f"{changed} {op} {amount}")
            known = loop.let(either(known, holds)) if op == "set" else known
        score = _select(loop, holds, changed, score)
        fired, unknown = _mark(loop, fired, holds, rule.bit), _mark(loop, unknown, unsure, rule.bit)
        if rule.on_unknown == "fail_row":
            failed_by = _select(loop, unsure, str(rule.bit), failed_by)
            left = loop.let(both(left, flip(unsure)))
    known = both(both(known, f"(fabs({score}) < INF)"), left)
    loop.body += [f"put_double(out0, i, {score}, 0)", f"put_bool(out1, i, {known}, 1)"]
    loop.body += [f"put_short(out2, i, {failed_by}, 2)"]
    if bits:
        loop.body += [f"put_int(out3, i, {fired}, 3)", f"put_int(out4, i, {unknown}, 4)"]
    at = 5 if bits else 3
    for named in outputs:
        parts = _value(loop, named.program)
        puts = ((_PUTS[DTYPES[named.program.type.kind]], parts.value), ("put_bool", parts.ok), ("put_bool", parts.bad))
        for put, value in puts:
            loop.body.append(f"{put}(out{at}, i, {value}, {at})")
            at += 1
    return at


def _value(loop: Loop, program: Program) -> Parts:
    return loop.need(loop.graph.add(program))[0]


def _number(loop: Loop, program: Program) -> tuple[str, str]:
    """A double and whether it is known."""
    parts = _value(loop, program)
    return (loop.let(f"to_double({parts.value})") if program.type.kind == "int" else parts.value), parts.ok


def _condition(loop: Loop, rule: CompiledRule) -> tuple[str, str]:
    """Where a rule holds and where it is unknown; nowhere when it is killed."""
    parts = _value(loop, rule.condition)
    lives = loop.let(f"(killed & {1 << rule.bit}) == 0", prefix="lives", shared=True)
    unsure = loop.let(flip(parts.ok))
    holds = both(parts.value, parts.ok)
    holds = either(holds, unsure) if rule.on_unknown == "fire" else holds
    return loop.let(both(holds, lives)), loop.let(both(unsure, lives))


def _mark(loop: Loop, bits: str, rows: str, bit: int) -> str:
    """`bits` with one more, which was not set: added, because that is one masked instruction and `|` of a pick is two."""
    if rows == FALSE:
        return bits
    one = 1 << bit
    return loop.let(f"select({rows}, {one}, 0)" if bits == "0" else f"select({rows}, {bits} + {one}, {bits})")


def _select(loop: Loop, test: str, then: str, otherwise: str) -> str:
    return otherwise if test == FALSE else loop.let(f"select({test}, {then}, {otherwise})")


# What has to be there before a loop runs ----------------------------------------------------------------------------


def _half(graph: Graph, loop: Loop, compiled: CompiledStrategy, also: Iterable[str]) -> Half:
    """`also` are names that something else reads as columns."""
    sources: list[Source] = []
    for read in loop.reads:
        value = graph.values[read.number]
        sources.append(value.const.name if isinstance(value.const, Input) else value.const)
    half = Half(reads=tuple(loop.reads), sources=tuple(sources), texts=tuple(loop.texts), steps=())
    needed = {*also, *_columns_of(half)}
    steps = []
    for step in reversed((*compiled.steps_before, *compiled.steps_after)):
        if needed & set(step.makes):
            steps.append(step)
            needed |= step.reads
    return replace(half, steps=tuple(reversed(steps)))


def _only(half: Half, steps: Sequence[CompiledLet | CompiledTable]) -> Half:
    return replace(half, steps=tuple(step for step in half.steps if step in steps))


def _columns_of(half: Half) -> set[str]:
    names = {read.name for read in half.texts}
    for source in half.sources:
        names |= {source} if isinstance(source, str) else source.names
    return names

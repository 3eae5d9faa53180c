"""Why a candidate was chosen, ranked or dropped: "why not driver X", from a Decision's record.

Everything that is said of the candidate stands in the record. The strategy that decided adds what a record leaves out:
the names of rules that fired or were unknown, their conditions, which values they read, which row of a table fitted, and
how the score came about. Without it, or with another version of it, the explanation says so, gives rules by their place
in the file, and shows all values. `engine/flip.py` says what would have had to be different.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.decide import SCORE_NOT_FINITE, UNKNOWN
from engine.redecide import killed_bits
from engine.row import Adjustment, Recorded, RowResult, recorded, recorded_row, run_row, table_row
from engine.strategy import CompiledStrategy, Rule
from features.expr import ROW_ERROR, Program
from features.records import Decision


@dataclass(frozen=True, kw_only=True)
class TableHit:
    """What a table answered: the lines of its CSV that fitted (none: a gap, or an input that failed), and its outputs.
    `failed`: the outputs are row errors, and null here."""

    table: str
    file: str
    rows: tuple[int, ...]
    outputs: Mapping[str, Any]
    failed: bool

    @property
    def line(self) -> str:
        answers = ", ".join(f"{name} = {_text(value)}" for name, value in self.outputs.items())
        answers = "failed" if self.failed else answers
        place = f"line{'s' * (len(self.rows) > 1)} {', '.join(map(str, self.rows))} of {self.file}"
        return f"{place if self.rows else f'no line of {self.file} fits'}: {answers}"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What became of one candidate. `rank` counts from 1, among survivors; None for a dropped one.

    `fired` and `unknown` are rule ids, or `rule 3` (its place in the file, from 1) where the strategy is not at hand.
    `reads` is what the dropping rule read, for a survivor what its score and the rules that changed it read; all
    values where that is not known. `tables` are the tables among that, `steps` how rules changed the score from `base` on,
    `outputs` the named outputs. `killed` are rules that were switched off, `shadow_of` the strategy that answered instead
    of this one. `arms` are the order's, `experiment = arm`. `notes` say what was missing, when the decision was made or now.
    """

    decision_id: str
    candidate: str
    outcome: str
    rank: int | None
    score: float | None
    propensity: float
    fired: tuple[str, ...]
    unknown: tuple[str, ...]
    reads: tuple[Recorded, ...]
    arms: tuple[str, ...]
    notes: tuple[str, ...]
    base: float | None = None
    steps: tuple[Adjustment, ...] = ()
    tables: tuple[TableHit, ...] = ()
    outputs: Mapping[str, Any]
    killed: tuple[str, ...] = ()
    shadow_of: str | None = None

    @property
    def lines(self) -> list[str]:
        """The whole of it as text, for people."""
        score = "none" if self.score is None else f"{self.score:.6g}"
        out = [
            f"{self.candidate} in decision {self.decision_id}: {self.outcome}",
            f"score {score}, chance of being chosen {self.propensity:.3g}",
        ]
        if self.steps:
            out.append(f"score {self.base:.6g} before rules" if self.base is not None else "no score before rules")
            out += [
                f"  {step.rule}: {_CHANGE[step.operation]}{step.amount:.6g} → {step.score:.6g}" for step in self.steps
            ]
        if self.fired:
            out.append(f"rules that held: {', '.join(self.fired)}")
        if self.unknown:
            out.append(f"rules that could not be told (null or a failed computation): {', '.join(self.unknown)}")
        if self.arms:
            out.append(f"arms: {', '.join(self.arms)}")
        if self.outputs:
            out.append(f"outputs: {', '.join(f'{name} = {_text(value)}' for name, value in self.outputs.items())}")
        out += [f"table {hit.table}: {hit.line}" for hit in self.tables]
        if self.reads:
            width = max(len(read.name) for read in self.reads)
            out.append("read:")
            out += [f"  {read.name:<{width}}  {_text(read.value)}  ({read.status})" for read in self.reads]
        return [*out, *(f"note: {note}" for note in self.notes)]


_CHANGE: Mapping[str, str] = {"set": "set to ", "add": "add ", "multiply": "multiply by "}


def explain(decision: Decision, candidate: str, compiled: CompiledStrategy | None = None) -> Explanation:
    """Explain one candidate of a Decision. `compiled` is the strategy, if it is at hand; any other version is not used.

    Raises: KeyError when there was no such candidate.
    """
    if candidate not in decision.candidate_ids:
        known = ", ".join(decision.candidate_ids[:10]) + (", …" if len(decision.candidate_ids) > 10 else "")
        raise KeyError(f"decision {decision.decision_id} had no candidate '{candidate}'; it had {known or 'none'}")
    row = decision.candidate_ids.index(candidate)
    notes = []
    if compiled is None or compiled.strategy.hash != decision.strategy_hash:
        made_by = f"{decision.strategy} version {decision.strategy_version} ({decision.strategy_hash[:12]}…)"
        given = "not at hand" if compiled is None else f"not the one given ({compiled.strategy.hash[:12]}…)"
        notes.append(f"the strategy that decided, {made_by}, is {given}: all values are shown, rules by their place")
        compiled = None
    order, tied = _ranking(decision, compiled)
    rank = order.index(row) + 1 if row in order else None
    if compiled is None and rank is not None and row in tied:
        notes.append("its score is shared: the places among equals may differ from the strategy's own order")
    notes += _circumstances(decision)
    values = {one.name: one for one in recorded(decision, row)}
    again = None
    programs: list[Program] = []
    if compiled is not None:
        again = run_row(compiled, recorded_row(decision, compiled, row), killed=killed_bits(compiled, decision.killed))
        programs = _programs(decision, compiled, row)
    return Explanation(
        decision_id=decision.decision_id,
        candidate=candidate,
        outcome=_outcome(decision, compiled, order, row),
        rank=rank,
        score=decision.scores[row],
        propensity=decision.propensities[row],
        fired=_rules(compiled, decision.fired[row]),
        unknown=_rules(compiled, decision.unknown[row]),
        reads=tuple(values[name] for name in _names_read(decision, compiled, values, programs) if name in values),
        arms=tuple(f"{experiment} = {arm}" for experiment, arm in decision.arms.items()),
        notes=tuple(notes),
        base=again.base if again else None,
        steps=again.adjustments if again else (),
        tables=tuple(_hits(compiled, programs, again)) if compiled and again else (),
        outputs={name: column[row] for name, column in decision.outputs.items()} if rank is not None else {},
        killed=tuple(decision.killed),
        shadow_of=decision.shadow_of,
    )


def _circumstances(decision: Decision) -> Iterator[str]:
    """What holds for the whole decision and a reader of one candidate should know."""
    if decision.quality == "degraded":
        away = " because features could not be read" if decision.decided_by == "fallback" else ""
        yield f"the decision was degraded{away}"
    if decision.killed:
        yield f"switched off when this was decided, so without effect: {', '.join(decision.killed)}"
    if decision.shadow_of is not None:
        yield f"a shadow of {decision.shadow_of}: computed beside it, nobody was offered anything by this decision"


def _ranking(decision: Decision, compiled: CompiledStrategy | None) -> tuple[list[int], set[int]]:
    """The rows of the survivors, best first, and which of them share their score with another."""
    ids = decision.candidate_ids
    ties = decision.candidates.get(compiled.strategy.rank.ties, ids) if compiled else ids
    scored = [(-score, ties[row], ids[row], row) for row, score in enumerate(decision.scores) if score is not None]
    scores = [entry[0] for entry in scored]
    return [row for *_, row in sorted(scored)], {row for score, *_, row in scored if scores.count(score) > 1}


def _outcome(decision: Decision, compiled: CompiledStrategy | None, order: list[int], row: int) -> str:
    """One sentence."""
    reason = decision.reasons[row]
    if reason is not None:
        return _dropped(reason, compiled)
    rank = order.index(row) + 1
    place = f"ranked {rank} of {len(order)}"
    if decision.chosen == row:
        return f"{place} and chosen {'as the best' if rank == 1 else 'by the draw, ahead of better ones'}"
    chosen = ""
    if decision.chosen is not None:
        winner = decision.candidate_ids[decision.chosen]
        score = decision.scores[decision.chosen]
        chosen = f": {winner}, ranked {order.index(decision.chosen) + 1} with score {score:.6g}, was"
    if decision.propensities[row] == 0.0:
        return f"{place} and could not be chosen{chosen}"
    return f"{place} and not drawn{chosen}"


def _dropped(reason: str, compiled: CompiledStrategy | None) -> str:
    if reason == SCORE_NOT_FINITE:
        return "dropped: its score is not a finite number"
    identifier = reason.removeprefix(UNKNOWN)
    rule = next((rule for rule in compiled.strategy.rules if rule.id == identifier), None) if compiled else None
    if reason == identifier:
        because = f" because {_one_line(rule)}" if rule else ""
        return f"dropped by rule {reason}{because}" + (f" ({rule.why})" if rule and rule.why else "")
    condition = f", {_one_line(rule)}," if rule else ""
    return f"dropped because rule {identifier}{condition} could not be told (null or a failed computation): on_unknown is fail_row"


def _one_line(rule: Rule) -> str:
    return " ".join(rule.condition.text.split())


def _rules(compiled: CompiledStrategy | None, mask: int) -> tuple[str, ...]:
    bits = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    return tuple(compiled.strategy.rules[bit].id if compiled else f"rule {bit + 1}" for bit in bits)


def _names_read(
    decision: Decision, compiled: CompiledStrategy | None, values: Mapping[str, Recorded], programs: list[Program]
) -> list[str]:
    """The names to show, in the order of the record."""
    if compiled is None:
        features = [f"{role}.{name}" for role, served in decision.features.items() for name in served.names]
        params = [f"params.{name}" for name in decision.params]
        return [*decision.candidates, *params, *features, *decision.model_outputs]
    wanted = _reached(compiled, programs)
    return [name for name in values if name in wanted]


def _programs(decision: Decision, compiled: CompiledStrategy, row: int) -> list[Program]:
    """What decided about this candidate: the rule that dropped it, else its score and the rules that touched it."""
    reason = (decision.reasons[row] or "").removeprefix(UNKNOWN)
    for rule in compiled.drops:
        if rule.id == reason:
            return [rule.condition]
    touched = decision.fired[row] | decision.unknown[row]
    programs = [compiled.score]
    for rule in (*compiled.drops, *compiled.adjusts):
        if touched >> rule.bit & 1:
            programs += [p for p in (rule.condition, rule.set, rule.add, rule.multiply) if p is not None]
    return programs


def _hits(compiled: CompiledStrategy, programs: list[Program], again: RowResult) -> Iterator[TableHit]:
    """What the tables among the reads answered for this candidate."""
    wanted = _reached(compiled, programs)
    for name, table in compiled.strategy.tables.items():
        if any(f"{name}.{output}" in wanted for output in table.outputs):
            found = table_row(table, again.values) or ()
            outputs = {output: again.values.get(f"{name}.{output}") for output in table.outputs}
            failed = any(value is ROW_ERROR for value in outputs.values())
            yield TableHit(
                table=name,
                file=table.file,
                rows=tuple(table.rows[at].line for at in found),
                outputs=dict.fromkeys(outputs) if failed else outputs,
                failed=failed,
            )


def _reached(compiled: CompiledStrategy, programs: Iterable[Program]) -> set[str]:
    return compiled.reached(name for program in programs for name in program.names)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)

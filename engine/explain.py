"""Why a candidate was chosen, ranked or dropped: "why not driver X", from a Decision's record.

Everything that is said of the candidate stands in the record. The strategy that decided adds what a record leaves out:
the names of rules that fired or were unknown, their conditions, and which values they read. Without it, or with another
version of it, the explanation says so, gives rules by their place in the file, and shows all values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.decide import SCORE_NOT_FINITE
from engine.strategy import CompiledLet, CompiledStrategy
from features.expr import Program
from features.records import Decision
from features.rows import Status, from_served


@dataclass(frozen=True, kw_only=True)
class Read:
    """One value that was read. `status` is a feature's status, else where the value is from: `request`, `candidate`,
    `parameter`, or a model's source."""

    name: str
    value: Any
    status: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What became of one candidate. `rank` counts from 1, among survivors; None for a dropped one.

    `fired` and `unknown` are rule ids, or `rule 3` (its place in the file, from 1) where the strategy is not at hand.
    `reads` is what the dropping rule read, for a survivor what its score and the rules that changed it read; all
    values where that is not known. `arms` are the order's, `experiment = arm`. `notes` say what was missing, when the
    decision was made or now.
    """

    decision_id: str
    candidate: str
    outcome: str
    rank: int | None
    score: float | None
    propensity: float
    fired: tuple[str, ...]
    unknown: tuple[str, ...]
    reads: tuple[Read, ...]
    arms: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """The whole of it as text, for people."""
        score = "none" if self.score is None else f"{self.score:.6g}"
        out = [
            f"{self.candidate} in decision {self.decision_id}: {self.outcome}",
            f"score {score}, chance of being chosen {self.propensity:.3g}",
        ]
        if self.fired:
            out.append(f"rules that held: {', '.join(self.fired)}")
        if self.unknown:
            out.append(f"rules that could not be told (null or a failed computation): {', '.join(self.unknown)}")
        if self.arms:
            out.append(f"arms: {', '.join(self.arms)}")
        if self.reads:
            width = max(len(read.name) for read in self.reads)
            out.append("read:")
            out += [f"  {read.name:<{width}}  {_text(read.value)}  ({read.status})" for read in self.reads]
        return [*out, *(f"note: {note}" for note in self.notes)]


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
    if decision.quality == "degraded":
        away = " because features could not be read" if decision.decided_by == "fallback" else ""
        notes.append(f"the decision was degraded{away}")
    values = {read.name: read for read in _values(decision, row)}
    return Explanation(
        decision_id=decision.decision_id,
        candidate=candidate,
        outcome=_outcome(decision, compiled, order, row),
        rank=rank,
        score=decision.scores[row],
        propensity=decision.propensities[row],
        fired=_rules(compiled, decision.fired[row]),
        unknown=_rules(compiled, decision.unknown[row]),
        reads=tuple(values[name] for name in _names_read(decision, compiled, values, row) if name in values),
        arms=tuple(f"{experiment} = {arm}" for experiment, arm in decision.arms.items()),
        notes=tuple(notes),
    )


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
    if reason == SCORE_NOT_FINITE:
        return "dropped: its score is not a finite number"
    if reason is not None:
        rule = next((rule for rule in compiled.strategy.rules if rule.id == reason), None) if compiled else None
        because = f" because {' '.join(rule.condition.text.split())}" if rule else ""
        return f"dropped by rule {reason}{because}" + (f" ({rule.why})" if rule and rule.why else "")
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


def _rules(compiled: CompiledStrategy | None, mask: int) -> tuple[str, ...]:
    bits = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    return tuple(compiled.strategy.rules[bit].id if compiled else f"rule {bit + 1}" for bit in bits)


def _values(decision: Decision, row: int) -> Iterator[Read]:
    """All that the record knows of one candidate, under the names of the strategy."""
    for name in ("order_id", "city", "product"):
        yield Read(name=name, value=getattr(decision, name), status="request")
    for name, value in decision.request.items():
        yield Read(name=name, value=value, status="request")
    yield Read(name=decision.candidate_key, value=decision.candidate_ids[row], status="candidate")
    for name, column in decision.candidates.items():
        yield Read(name=name, value=column[row], status="candidate")
    for name, value in decision.params.items():
        yield Read(name=f"params.{name}", value=value, status="parameter")
    for role, served in decision.features.items():
        batch = from_served(served)
        at = row if batch.num_rows == len(decision.candidate_ids) else 0  # a role of the request has one row
        values = batch.row(at)
        for column_at, name in enumerate(batch.names):
            status = Status(batch.statuses[at, column_at]).name.lower()
            yield Read(name=f"{role}.{name}", value=values[name], status=status)
    for name, output in decision.model_outputs.items():
        yield Read(name=name, value=output.values[row], status=f"{output.model}, {output.source}")


def _names_read(
    decision: Decision, compiled: CompiledStrategy | None, values: Mapping[str, Read], row: int
) -> list[str]:
    """The names to show, in the order of the record."""
    if compiled is None:
        features = [f"{role}.{name}" for role, served in decision.features.items() for name in served.names]
        params = [f"params.{name}" for name in decision.params]
        return [*decision.candidates, *params, *features, *decision.model_outputs]
    wanted = _expanded(compiled, _programs(decision, compiled, row))
    return [name for name in values if name in wanted]


def _programs(decision: Decision, compiled: CompiledStrategy, row: int) -> list[Program]:
    """What decided about this candidate: the rule that dropped it, else its score and the rules that touched it."""
    for rule in compiled.drops:
        if rule.id == decision.reasons[row]:
            return [rule.condition]
    touched = decision.fired[row] | decision.unknown[row]
    programs = [compiled.score]
    for rule in (*compiled.drops, *compiled.adjusts):
        if touched >> rule.bit & 1:
            programs += [program for program in (rule.condition, rule.add, rule.multiply) if program is not None]
    return programs


def _expanded(compiled: CompiledStrategy, programs: Iterable[Program]) -> set[str]:
    """The names that programs read, a `let` replaced by what it reads itself."""
    steps = (*compiled.steps_before, *compiled.steps_after)
    lets = {step.name: step.program for step in steps if isinstance(step, CompiledLet)}
    found: set[str] = set()
    left = [name for program in programs for name in program.names]
    while left:
        name = left.pop()
        if name in lets:
            left += lets[name].names
        else:
            found.add(name)
    return found


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)

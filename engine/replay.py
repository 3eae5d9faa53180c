"""Logged Decisions through a strategy: equal to the bit where it is the one that made them, a diff where it is another.

    replay = Replay(compiled, before={old.strategy.hash: old})
    for block in blocks_of(decisions):
        replay.add(block)
    replay.report

Everything but the strategy is as it was: request, candidates, features as served, what the models said, the rules that were
switched off. Arms and parameters are the strategy's own, from the request and its event time. `engine/replay_run.py` decides,
`engine/replay_compare.py` holds an unchanged strategy against the record, `engine/replay_diff.py` counts what another one changes,
`engine/replay_changes.py` says what "the change that did it" means. `engine/replay_log.py` reads logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.replay_block import Block
from engine.replay_compare import Difference, compare
from engine.replay_diff import Diff
from engine.replay_fit import fit
from engine.replay_run import lacking_models, replay_block
from engine.rules import ColumnRules, RuleRunner
from engine.strategy import CompiledStrategy

DEFAULT_BY = ("pickup_zone", "city")
MOST_DIFFERENCES = 1000  # that are kept with their place; all are counted


@dataclass(kw_only=True)
class Same:
    """Decisions of the very strategy that is replayed. `differing` of `decisions` differ; `parts` counts places."""

    decisions: int = 0
    candidates: int = 0
    differing: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)


@dataclass(kw_only=True)
class Report:
    """What a replay found. `versions` are the strategies of the log, {(version, hash): decisions}.

    `lacking` counts decisions that were left out because something they hang on is not in the log, by what is not there;
    `refused` those whose request the strategy would not take, by why. `unresolved` are all decisions of the first kind.
    """

    strategy: str
    version: int
    hash: str
    decisions: int = 0
    candidates: int = 0
    versions: Counter[tuple[int, str]] = field(default_factory=Counter)
    same: Same = field(default_factory=Same)
    diff: Diff
    unresolved: int = 0
    lacking: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def outcome(self) -> str:
        """`broken` (an unchanged strategy came to something else), `changed`, or `equal`."""
        if self.same.differing:
            return "broken"
        return "changed" if self.diff.first_changed or self.diff.moved else "equal"


class Replay:
    """Replays blocks through one strategy and counts. `rules` is the form of its rules; `before` are the strategies that made the
    Decisions, by hash, as far as their files are at hand: without one, nothing can be said of which change did it. `of` is whose decisions are replayed,
    where the strategy has another name."""

    def __init__(
        self,
        compiled: CompiledStrategy,
        *,
        rules: RuleRunner | None = None,
        before: Mapping[str, CompiledStrategy] | None = None,
        by: Sequence[str] = DEFAULT_BY,
        of: str | None = None,
    ) -> None:
        self.compiled = compiled
        self.of = of or compiled.name
        self.rules = rules or ColumnRules(compiled)
        self.before = dict(before or {})
        strategy = compiled.strategy
        self.report = Report(
            strategy=strategy.name, version=strategy.version, hash=strategy.hash, diff=Diff(compiled, self.before, by)
        )

    def add(self, block: Block) -> None:
        """Raises: ValueError for a block of another strategy."""
        report, strategy = self.report, self.compiled.strategy
        if block.strategy != self.of:
            raise ValueError(f"these are decisions of {block.strategy}, not of {self.of}")
        report.decisions += block.num_decisions
        report.candidates += block.num_rows
        report.versions[block.version, block.hash] += block.num_decisions
        old = self.before.get(block.hash)
        fitted = fit(self.compiled, block, old.strategy if old is not None else None)
        usable_D = np.ones(block.num_decisions, dtype=np.bool_)
        for at, why in fitted.refused.items():
            report.refused[why] += 1
            usable_D[at] = False
        if fitted.blocked:
            self._leave_out(list(fitted.blocked.values()), usable_D)
            return
        replayed = replay_block(self.compiled, self.rules, fitted)
        if (lost_D := replayed.unresolved_D & usable_D).any():
            # Only what is lacking for all of a block has a name of its own; else a model was not asked about a candidate.
            reasons = [*fitted.lacking.values(), *lacking_models(self.compiled, block).values()]
            self._leave_out(reasons or ["a model was not asked about a candidate that is kept now"], lost_D)
            usable_D &= ~lost_D
        if block.hash == strategy.hash:
            self._compare(block, compare(self.compiled, block, replayed))
        else:
            report.diff.add(block, replayed, usable_D)

    def _leave_out(self, reasons: Sequence[str], lost_D: np.ndarray) -> None:
        num_lost = int(lost_D.sum())
        self.report.unresolved += num_lost
        for why in reasons:
            self.report.lacking[why] += num_lost

    def _compare(self, block: Block, differences: Sequence[Difference]) -> None:
        """A decision that would be refused or hangs on what is lacking is one that differs, too: it was made, after all."""
        same = self.report.same
        same.decisions += block.num_decisions
        same.candidates += block.num_rows
        same.differing += len({one.decision_id for one in differences})
        for one in differences:
            same.parts[one.part] += 1
        same.differences += differences[: MOST_DIFFERENCES - len(same.differences)]

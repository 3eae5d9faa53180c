"""The classes of `plan` against what edits really do: no breaking or destructive edit may be called milder.

Edits are made by tests/features/mutators.py and judged by tests/features/edit_truth.py, on the same events before and
after. `make test` takes a sample of them, `make test-long` all of them and thousands of several at once.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import pytest

from features.edits import BREAKING, RISKS
from features.expr import Mistakes
from features.loader import SHIPPED, load_catalogue, load_texts
from features.plan import plan_changes
from features.spec import Catalogue
from tests.features.edit_truth import Applied, differs, truth_of
from tests.features.mutators import (
    MUTATORS,
    Files,
    Mutant,
    features_added,
    features_described_otherwise,
    features_in_another_order,
    mutants,
    random_mutant,
    texts_edited,
)
from tests.features.rich_catalogue import RICH

CATALOGUES: dict[str, Files] = {"shipped": dict(load_catalogue(SHIPPED).files), "rich": RICH}
NUM_EVENTS = 200
MORE_SEEDS, MORE_EVENTS = range(2, 12), 900  # asked where the first events show no difference

# Called breaking or worse although the same events give the same values, and why that is right.
CAUTIOUS = {
    r"(where|expr) (the other way round|turned round|and always|with a second word)": "that two texts mean the same is not proved",
    r"from another topic": "nobody can see whether another topic has the same records",
    r"with another join key": "who asks through Feast names the key",
    r"with a smaller int": "a key that does not fit into it belongs to nobody from then on",
    r":(max|min)_\w+ (hop|window) ": "an extreme is seldom at the edge of a window: other events would show it",
    r"event_id ": "it decides among events of one time only",
    r"future (0s|1m)": "a bound that shortens what is kept loses tiles that this data does not have",
}  # fmt: skip


def order(risk: str | None) -> int:
    return 0 if risk is None else RISKS.index(risk)


@dataclass
class Verdict:
    """`given` counts the classes; `too_mild` and `too_severe` are edits whose class is not the truth, in words. Of the
    latter, those are left out that CAUTIOUS explains or, where asked for, other events."""

    given: Counter[str] = field(default_factory=Counter)
    too_mild: list[str] = field(default_factory=list)
    too_severe: list[str] = field(default_factory=list)


class Judge:
    """One applied catalogue, and as many streams of events as it takes to show a difference."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.before = Applied(files, [1], NUM_EVENTS)

    @cached_property
    def more(self) -> list[Applied]:
        return [Applied(self.files, [seed], MORE_EVENTS) for seed in MORE_SEEDS]

    def verdict(self, edits: Iterable[Mutant], *, thorough: bool = False) -> Verdict:
        out = Verdict()
        for mutant in edits:
            try:
                after = load_texts(mutant.files)
            except Mistakes:
                continue
            self._judge(mutant, after, out, thorough)
        return out

    def _judge(self, mutant: Mutant, after: Catalogue, out: Verdict, thorough: bool) -> None:
        plan = plan_changes(self.before.registry, after)
        truth = truth_of(self.before, after, feed_on=thorough)
        out.given[str(plan.risk)] += 1
        if order(plan.risk) < order(truth.risk):
            out.too_mild.append(f"{mutant.name}: {plan.risk}, in truth {truth.risk} {truth.names}")
        if (plan.risk is None) != (dict(mutant.files) == self.files):
            out.too_mild.append(f"{mutant.name}: {plan.risk} for another text")
        for (view, feature), risk in truth.features.items():
            said = plan.risk_of(view, feature)
            if order(said) < order(risk):
                out.too_mild.append(f"{mutant.name}: {view}.{feature} {said}, in truth {risk}")
            if (view, feature) in truth.mixed and order(said) < order(BREAKING):
                out.too_mild.append(f"{mutant.name}: {view}.{feature} {said}, old and new tiles are mixed")
        out.too_mild += [
            f"{mutant.name}: {view}.{name} is lost, its group has not moved" for view, name in truth.unmoved
        ]
        if order(plan.risk) < order(BREAKING) or order(truth.risk) >= order(BREAKING):
            return
        explained = any(re.search(pattern, mutant.name) for pattern in CAUTIOUS)
        if not explained and not (thorough and any(differs(other, after) for other in self.more)):
            out.too_severe.append(f"{mutant.name}: {plan.risk}, in truth {truth.risk}")


def sampled(files: Files, seed: int, of_each: int) -> list[Mutant]:
    """Some edits of every kind."""
    rng, out = random.Random(seed), []
    for mutator in MUTATORS:
        every = list(mutator(files))
        out += rng.sample(every, min(of_each, len(every)))
    return out


@pytest.mark.parametrize("which", CATALOGUES)
def test_no_edit_is_called_milder_than_it_is(which: str) -> None:
    verdict = Judge(CATALOGUES[which]).verdict(sampled(CATALOGUES[which], seed=3, of_each=12))
    assert verdict.too_mild == []
    assert set(verdict.given) >= set(RISKS) and verdict.given.total() > 100, verdict.given


@pytest.mark.parametrize("which", CATALOGUES)
def test_words_order_and_additions_are_never_called_breaking(which: str) -> None:
    harmless = (features_described_otherwise, features_in_another_order, features_added, texts_edited)
    rng, files = random.Random(5), CATALOGUES[which]
    verdict = Judge(files).verdict(m for mutator in harmless for m in rng.sample(list(mutator(files)), 8))
    assert verdict.too_severe == [] and verdict.too_mild == []
    assert set(verdict.given) <= {"None", "safe", "backfill"}, verdict.given


@pytest.mark.slow
@pytest.mark.parametrize("which", CATALOGUES)
def test_every_edit_at_every_place_has_its_class(which: str) -> None:
    verdict = Judge(CATALOGUES[which]).verdict(mutants(CATALOGUES[which]), thorough=True)
    assert verdict.too_mild == []
    # An edge that no event stands at is no difference: what is left over is printed, and must be next to nothing.
    print(f"called more severe than these events show: {verdict.too_severe}")
    assert len(verdict.too_severe) <= verdict.given.total() // 100, verdict.too_severe
    assert verdict.given.total() > 800, verdict.given


@pytest.mark.slow
@pytest.mark.parametrize("which", CATALOGUES)
def test_several_edits_at_once_are_not_called_milder_than_they_are(which: str) -> None:
    rng = random.Random(7)
    edits = [random_mutant(CATALOGUES[which], rng, rng.choice([2, 2, 3, 4])) for _ in range(4_000)]
    verdict = Judge(CATALOGUES[which]).verdict(edits)
    assert verdict.too_mild == []
    assert verdict.given.total() > 1_000, verdict.given

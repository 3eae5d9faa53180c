"""Which change did it: what differs, versions in between, and the definition held by brute force on the text of the file."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from engine.replay_block import blocks_of
from engine.replay_changes import Element, changed_elements, hybrid
from engine.replay_diff import OTHER, SEVERAL, Diff
from engine.replay_fit import fit
from engine.replay_run import replay_block, replay_one
from engine.rules import ColumnRules
from engine.strategy import CompiledStrategy
from features.records import Decision
from tests.engine.logged import Logged, changed_sink, sink_log
from tests.engine.support import KITCHEN_SINK, catalogue_registry, compile_text, make_live

# Edits of the kitchen sink's text, and what they are called. Each is one element.
EDITS = {
    "rule too_far": ("eta_s > params.max_eta_s ||", "eta_s > 0.6 * params.max_eta_s ||"),
    "rule vip_bonus": ("add: 0.25", "add: 0.9"),
    "rule rush_hour": ("  - {id: rush_hour,   when: rush && distance_m < 3000.0, multiply: 1.0 + pressure}\n", ""),
    "rule brand_new": ("score: |", "  - {id: brand_new, when: rank_no < 8, add: 0.4}\nscore: |"),
    "let pressure": ("demand / 100.0", "demand / 4.0"),
    "param w_rate": ("default: 0.5, layer: core", "default: 2.5, layer: core"),
    "experiment odd": ("share: 0.6, set: {params.divisor: 5}", "share: 0.6, set: {params.divisor: 2}"),
    "model p_cancel": ("on_late: driver.accept_rate / 2.0", "on_late: driver.accept_rate / 9.0"),
    "score": ("(1.0 - eta_s / params.max_eta_s)\n", "(2.0 - 3.0 * eta_s / params.max_eta_s)\n"),
    "rank": ("ties: rank_no", "ties: driver_id"),
}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    return sink_log(tmp_path_factory.mktemp("log"), 120, seed=7)


@pytest.mark.parametrize("label", EDITS)
def test_every_kind_of_change_is_one_element(label: str, logged: Logged, tmp_path: Path) -> None:
    new = changed_sink(tmp_path, EDITS[label])
    assert [one.label for one in changed_elements(logged.compiled, new)] == [label]
    assert [one.label for one in changed_elements(new, logged.compiled)] == [label]


def test_reasons_owners_outputs_and_the_draw_are_no_elements(logged: Logged, tmp_path: Path) -> None:
    new = changed_sink(
        tmp_path,
        ("why: no routing answer", "why: another text, owner: ann, kill_switch: ks.eta"),
        ("temperature: 0.3", "temperature: 0.9"),
        ("score: |", "outputs: {eta: eta_s}\nscore: |"),
        ("  rush: hour", "  unread: hour + 1\n  rush: hour"),
    )
    assert changed_elements(logged.compiled, new) == []


def test_rules_in_another_order_are_an_element(logged: Logged, tmp_path: Path) -> None:
    first = "  - {id: vip_bonus,   when: 'vip ?? false', add: 0.25}\n"
    second = "  - {id: rush_hour,   when: rush && distance_m < 3000.0, multiply: 1.0 + pressure}\n"
    new = changed_sink(tmp_path, (first + second, second + first))
    (order,) = changed_elements(logged.compiled, new)
    assert order.label == "order of rules"
    made = hybrid(logged.compiled, new, [order])
    assert made is not None
    assert [rule.id for rule in made.strategy.rules] == [rule.id for rule in logged.compiled.strategy.rules]


@pytest.mark.parametrize("seed", range(8))
def test_all_changes_taken_back_are_the_old_strategy(seed: int, logged: Logged, tmp_path: Path) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    labels = rng.sample(sorted(EDITS), rng.randrange(1, 7))
    new = changed_sink(tmp_path, *(EDITS[label] for label in labels))
    elements = changed_elements(logged.compiled, new)
    assert {one.label for one in elements} == set(labels)
    made = hybrid(logged.compiled, new, elements)
    assert made is not None
    for block in blocks_of(logged.decisions):
        found = replay_block(made, ColumnRules(made), fit(made, block))
        assert found.survives_R.tolist() == block.survives_R.tolist()
        assert found.after.score_K[found.survives_R].tolist() == block.score_R[block.survives_R].tolist()


@pytest.mark.parametrize("seed", range(8))
def test_hybrid_is_the_file_without_the_edit(seed: int, logged: Logged, tmp_path: Path) -> None:
    """Taking changes back in what was compiled equals taking them back in the text."""
    print("seed", seed)
    rng = random.Random(seed)
    labels = rng.sample(sorted(EDITS), rng.randrange(2, 6))
    new = changed_sink(tmp_path, *(EDITS[label] for label in labels))
    elements = {one.label: one for one in changed_elements(logged.compiled, new)}
    for label in labels:
        made = hybrid(logged.compiled, new, [elements[label]])
        written = changed_sink(tmp_path, *(EDITS[other] for other in labels if other != label))
        assert made is not None
        for block in blocks_of(logged.decisions):
            one, other = (replay_block(each, ColumnRules(each), fit(each, block)) for each in (made, written))
            assert one.survives_R.tolist() == other.survives_R.tolist()
            rows = one.survives_R & ~one.unresolved_D[block.decision_of_R]
            assert one.after.score_K[rows].tolist() == other.after.score_K[rows].tolist()
            assert one.ranked.first_D().tolist() == other.ranked.first_D().tolist()


def first_of(compiled: CompiledStrategy, decision: Decision) -> str | None:
    """The best-ranked candidate, by one decision at a time."""
    again = replay_one(make_live(compiled, catalogue_registry()), decision)
    by = again.candidates.get(compiled.strategy.rank.ties, again.candidate_ids)
    ids = again.candidate_ids
    scored = [(-score, by[row], ids[row]) for row, score in enumerate(again.scores) if score is not None]
    return min(scored)[2] if scored else None


@pytest.mark.parametrize("seed", range(5))
def test_change_that_did_it_is_the_one_without_which_the_old_choice_is_back(
    seed: int, logged: Logged, tmp_path: Path
) -> None:
    """The definition, by brute force: one decision at a time, files written without one edit."""
    print("seed", seed)
    labels = random.Random(seed).sample(sorted(EDITS), 4)
    new = changed_sink(tmp_path, *(EDITS[label] for label in labels))
    without = {label: changed_sink(tmp_path, *(EDITS[other] for other in labels if other != label)) for label in labels}
    diff = Diff(new, {logged.compiled.strategy.hash: logged.compiled}, ())
    wanted: dict[str, int] = {}
    for block in blocks_of(logged.decisions):
        replayed = replay_block(new, ColumnRules(new), fit(new, block))
        usable_D = ~replayed.unresolved_D
        diff.add(block, replayed, usable_D)
        for at in usable_D.nonzero()[0].tolist():
            decision = block.decision(at)
            then = first_of(logged.compiled, decision)
            if first_of(new, decision) == then:
                continue
            back = [label for label in labels if first_of(without[label], decision) == then]
            cause = back[0] if len(back) == 1 else SEVERAL
            wanted[cause] = wanted.get(cause, 0) + 1
    assert wanted and dict(diff.causes) == wanted
    assert diff.first_changed == sum(wanted.values())
    assert OTHER not in diff.causes


def test_changes_that_only_together_move_the_choice_are_several(tmp_path: Path) -> None:
    """Both add enough alone: neither taken back brings the old first choice back."""
    text = """
strategy: one
version: 1
request: {hour: int}
candidates: {key: id, fields: {x: double, a: bool}}
rules:
  - {id: first, when: a, add: 0}
  - {id: second, when: a, add: 0}
score: x
"""
    from engine.decide import decide
    from engine.request import parse
    from tests.engine.support import RandomFeatures

    registry = catalogue_registry()
    old = compile_text(text, tmp_path, registry)
    new = compile_text(text.replace("add: 0", "add: 5"), tmp_path, registry, "new.yaml")
    body = b'{"order_id":"o","as_of_ms":0,"city":"c","product":"p","request":{"hour":1},"candidates":{"id":["l","r"],"x":[1.0,0.0],"a":[false,true]}}'
    decision = decide(make_live(old, registry), parse(old, body), RandomFeatures(old, 1))
    for extra, wanted in (("add: 5", ()), ("add: 0.6", ("rule first", "rule second"))):
        new = compile_text(text.replace("add: 0", extra), tmp_path, registry, "new.yaml")
        diff = Diff(new, {old.strategy.hash: old}, ())
        (block,) = blocks_of([decision])
        diff.add(
            block,
            replay_block(new, ColumnRules(new), fit(new, block)),
            ~replay_block(new, ColumnRules(new), fit(new, block)).unresolved_D,
        )
        assert dict(diff.causes) == {SEVERAL: 1}
        assert dict(diff.combinations) == {wanted: 1}


def test_rule_comes_back_with_the_let_it_reads_and_behind_the_rule_it_stood_behind(
    logged: Logged, tmp_path: Path
) -> None:
    new = changed_sink(
        tmp_path,
        ('  - {id: near_five,   when: "(steps ?? 1000) > 20", add: 0.01}\n', ""),
        ("  steps: div(60, rank_no - 5)\n", ""),
    )
    (element,) = changed_elements(logged.compiled, new)
    assert element == Element("rule", "near_five")
    made = hybrid(logged.compiled, new, [element])
    assert made is not None
    assert [rule.id for rule in made.strategy.rules][-2:] == ["named", "near_five"]
    assert "steps" in {step.name for step in made.steps_before}


def test_change_that_cannot_be_taken_back_alone_makes_no_hybrid(logged: Logged, tmp_path: Path) -> None:
    """A let of another type, and the rule that goes with it: one without the other would not compile."""
    new = changed_sink(
        tmp_path, ("rush: hour >= 17 && hour < 20", "rush: hour - 17"), ("when: rush &&", "when: rush > 0 &&")
    )
    elements = changed_elements(logged.compiled, new)
    assert {one.label for one in elements} == {"let rush", "rule rush_hour"}
    assert all(hybrid(logged.compiled, new, [one]) is None for one in elements)
    assert hybrid(logged.compiled, new, elements) is not None


def test_table_and_bounds_are_elements(tmp_path: Path) -> None:
    registry = catalogue_registry()
    head, tail = KITCHEN_SINK.split("rules:\n")
    text = f"{head}tables: {{bonus: {{hit: first, on_gap: {{b: 0.0}}, columns: [hour, out.b], rows: bonus.csv}}}}\nrules:\n{tail}"
    text = text.replace("score: |\n  (", "score: |\n  bonus.b + (").replace(
        "'double?', distance_m", "{type: 'double?', min: 0, max: 5000}, distance_m"
    )
    (tmp_path / "bonus.csv").write_text("hour,out.b\n[0..12),1.0\n")
    old = compile_text(text, tmp_path, registry)
    (tmp_path / "bonus.csv").write_text("hour,out.b\n[0..14),1.0\n")
    new = compile_text(text.replace("max: 5000", "max: 4000"), tmp_path, registry, "new.yaml")
    assert [one.label for one in changed_elements(old, new)] == ["table bonus", "bounds of eta_s"]
    assert all(hybrid(old, new, back) is not None for back in itertools.combinations(changed_elements(old, new), 1))

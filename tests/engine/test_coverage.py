"""Coverage counts what decisions reached, on tests and on traffic, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.coverage import FALSE, FIRED, HIT, NOT_FIRED, TRUE, UNKNOWN, Coverage
from engine.decide import LiveStrategy, decide
from engine.request import parse
from engine.row import recorded_rows, run_row
from engine.traffic import Threshold, Traffic, count_traffic
from features.records import Decision, decode, encode
from tests.engine.support import AS_OF_MS, RandomFeatures, catalogue_registry, compile_text, make_live
from tests.engine.test_row import everything, record

BRANCHES = """
strategy: branches
version: 1
request: {hour: int}
candidates:
  key: id
  fields: {eta_s: double, state: string, vip: 'bool?'}
params:
  far: {type: double, default: 600}
tables:
  bonus: {hit: first, on_gap: "null", columns: [hour, state, out.plus], rows: bonus.csv}
let:
  slow: eta_s > 300.0
rules:
  - {id: too_far,  drop_when: eta_s > params.far && state != 'vip'}
  - {id: sure_vip, drop_when: '!vip', on_unknown: skip}
  - {id: rush,     when: hour >= 17 || hour < 2, add: 'slow ? -1.0 : 1.0'}
  - {id: never,    when: eta_s < -1.0, add: 1}
score: "state == 'a' ? (slow ? 1.0 : 2.0) : 3.0 + (bonus.plus ?? 0.0)"
"""
BONUS = "hour,state,out.plus\n[0..12),a,0.5\n[0..12),b,0.25\n[12..17),*,0.1\n"


def branches(tmp_path: Path) -> LiveStrategy:
    (tmp_path / "bonus.csv").write_text(BONUS)
    registry = catalogue_registry()
    return make_live(compile_text(BRANCHES, tmp_path, registry), registry)


def decision_of(live: LiveStrategy, hour: int, rows: list[tuple[float, str, Any]], killed: int = 0) -> Decision:
    eta_s, states, vips = zip(*rows, strict=True)
    body = {
        "order_id": "o-1",
        "as_of_ms": AS_OF_MS,
        "city": "nyc",
        "product": "express",
        "request": {"hour": hour},
        "candidates": {
            "id": [f"c-{at}" for at in range(len(rows))],
            "eta_s": list(eta_s),
            "state": list(states),
            "vip": list(vips),
        },
    }
    request = parse(live.compiled, msgspec.json.encode(body))
    return decode(encode(decide(live, request, RandomFeatures(live.compiled, 1), killed=killed)), Decision)


def counts(coverage: Coverage, owner: str) -> dict[str, dict[str, int]]:
    return {item.text: item.counts for item in coverage.items if item.owner == owner and item.counts}


def test_rules_operands_and_branches_are_counted_where_they_are_looked_at(tmp_path: Path) -> None:
    live = branches(tmp_path)
    coverage = Coverage(live.compiled)
    coverage.add(
        decision_of(live, 18, [(700.0, "a", True), (400.0, "a", True), (100.0, "b", None), (100.0, "b", False)])
    )
    assert counts(coverage, "rule too_far") == {
        "eta_s > params.far && state != 'vip'": {FIRED: 1, NOT_FIRED: 3},
        "eta_s > params.far": {TRUE: 1, FALSE: 3},
        "state != 'vip'": {TRUE: 4},  # an operand counts though the other one decides: the language has no order
    }
    assert counts(coverage, "rule sure_vip") == {"!vip": {NOT_FIRED: 1, UNKNOWN: 1, FIRED: 1}}
    assert counts(coverage, "rule rush") == {
        "hour >= 17 || hour < 2": {FIRED: 2},  # two are left when it is their turn
        "hour >= 17": {TRUE: 2},
        "hour < 2": {FALSE: 2},
        "slow": {TRUE: 1, FALSE: 1},
    }
    assert counts(coverage, "score") == {"state == 'a'": {TRUE: 1, FALSE: 1}, "slow": {TRUE: 1}}
    assert coverage.fired_rules == {"too_far", "sure_vip", "rush"}


def test_amounts_count_only_where_the_rule_fired(tmp_path: Path) -> None:
    live = branches(tmp_path)
    coverage = Coverage(live.compiled)
    coverage.add(decision_of(live, 9, [(100.0, "b", True)]))
    assert counts(coverage, "rule rush") == {
        "hour >= 17 || hour < 2": {NOT_FIRED: 1},
        "hour >= 17": {FALSE: 1},
        "hour < 2": {FALSE: 1},
    }


def test_rows_of_tables_and_the_gap_are_counted(tmp_path: Path) -> None:
    live = branches(tmp_path)
    coverage = Coverage(live.compiled)
    coverage.add(decision_of(live, 9, [(100.0, "a", True), (100.0, "b", True), (100.0, "c", True)]))
    found = [(item.text, item.line, item.counts) for item in coverage.items if item.kind == "table"]
    assert found == [
        ("[0..12) | a", 2, {HIT: 1}),
        ("[0..12) | b", 3, {HIT: 1}),
        ("[12..17) | *", 4, {}),
        ("no row fits (on_gap: null)", 1, {HIT: 1}),
    ]
    assert coverage.share("table") == 0.75


def test_share_is_of_all_outcomes_and_missing_says_which(tmp_path: Path) -> None:
    live = branches(tmp_path)
    coverage = Coverage(live.compiled)
    assert coverage.share() == 0.0
    for hour in (1, 9, 13, 18, 23):
        rows = [(eta, state, vip) for eta in (100.0, 400.0, 700.0) for state in "abc" for vip in (True, False, None)]
        coverage.add(decision_of(live, hour, [*rows, (700.0, "vip", True)]))
    assert [(item.owner, item.missing) for item in coverage.missing] == [("rule never", (FIRED,))]
    total = sum(len(item.wanted) for item in coverage.items)
    assert coverage.share() == (total - 1) / total


def test_switched_off_rule_is_not_looked_at(tmp_path: Path) -> None:
    live = branches(tmp_path)
    coverage = Coverage(live.compiled)
    coverage.add(decision_of(live, 18, [(700.0, "a", True)], killed=0b101))
    assert counts(coverage, "rule too_far") == {} == counts(coverage, "rule rush")


def test_other_version_is_refused(tmp_path: Path) -> None:
    live = branches(tmp_path)
    other = msgspec.structs.replace(decision_of(live, 9, [(1.0, "a", True)]), strategy_hash="0" * 64)
    with pytest.raises(ValueError, match="another version"):
        Coverage(live.compiled).add(other)


@pytest.mark.parametrize("seed", range(3))
def test_rule_counts_are_the_bits_of_the_decisions(tmp_path: Path, seed: int) -> None:
    """Over random decisions with tables, kills and failed rows: row by row, and from the bits alone."""
    live = everything(tmp_path)
    decisions = [record(live, 10 * seed + at) for at in range(4)]
    coverage, traffic = Coverage(live.compiled), count_traffic(live.compiled, decisions)
    for decision in decisions:
        coverage.add(decision)
    for bit, rule in enumerate(live.compiled.strategy.rules):
        fired = sum(bits >> bit & 1 for decision in decisions for bits in decision.fired)
        unknown = sum(bits >> bit & 1 for decision in decisions for bits in decision.unknown)
        item = coverage.rules[rule.id]
        assert (item.counts.get(FIRED, 0), item.counts.get(UNKNOWN, 0)) == (fired, unknown)
        seen = traffic.rules[rule.id]
        assert (seen.fired, seen.unknown) == (fired, unknown)
        rows = (run_row(live.compiled, v) for d in decisions if not d.killed for v in recorded_rows(d, live.compiled))
        reached = sum(result.reached >> bit & 1 for result in rows)
        unkilled = count_traffic(live.compiled, [d for d in decisions if not d.killed])
        assert unkilled.rules[rule.id].reached == reached
        assert seen.killed == sum(rule.id in decision.killed for decision in decisions)


def found(live: LiveStrategy, decisions: Iterable[Decision], tested: set[str] | None = None) -> list[str]:
    return count_traffic(live.compiled, decisions).findings(tested)


def test_traffic_tells_what_never_fires_what_is_untested_and_what_nothing_comes_near(tmp_path: Path) -> None:
    live = branches(tmp_path)
    decisions = [decision_of(live, hour, [(100.0, "a", True), (650.0, "b", None)]) for hour in (9, 18, 20)]
    told = found(live, decisions, {"never"})
    assert told == [
        "rule too_far fires (3 of 6) and no test has it fire",
        "rule sure_vip never fires of 3 candidates that came to it, in tests neither",
        "rule rush fires (2 of 3) and no test has it fire",
        "rule never never fires of 3 candidates that came to it, though its tests do",
        "rule rush: no value comes near 'hour < 2': all 6 are above, the nearest by 7",
        "rule never: no value comes near 'eta_s < -1.0': all 6 are above, the nearest by 101",
    ]
    assert not any("no test has it fire" in line or "in tests" in line for line in found(live, decisions))


def test_decisions_of_other_versions_and_strategies_are_left_out(tmp_path: Path) -> None:
    live = branches(tmp_path)
    mine = decision_of(live, 9, [(100.0, "a", True)])
    old = msgspec.structs.replace(mine, strategy_hash="0" * 64)
    foreign = msgspec.structs.replace(mine, strategy="another")
    traffic = count_traffic(live.compiled, [mine, old, foreign])
    assert (traffic.decisions, traffic.candidates, traffic.others) == (1, 1, 1)


def test_batches_of_any_size_count_the_same(tmp_path: Path) -> None:
    live = everything(tmp_path)
    decisions = [record(live, seed, 5 + seed) for seed in range(6)]
    at_once, one_by_one = Traffic(live.compiled), Traffic(live.compiled)
    at_once.add(decisions)
    for decision in decisions:
        one_by_one.add([decision])
    assert at_once.rules == one_by_one.rules
    assert at_once.thresholds == one_by_one.thresholds
    assert any(threshold.above for threshold in at_once.thresholds)


def test_threshold_is_far_only_when_all_stand_clear_of_it_on_one_side() -> None:
    import numpy as np

    def far(gaps: list[float]) -> bool:
        threshold = Threshold(owner="score", text="x > 1", line=1)
        threshold.add(np.array(gaps))
        return threshold.is_far

    assert far([100.0, 200.0])
    assert far([-5.0, -5.0])
    assert not far([-5.0, 5.0])
    assert not far([1.0, 200.0])  # within 5 % of the spread
    assert not far([0.0, 200.0])
    assert not far([])
    assert not far([float("nan"), float("inf")])

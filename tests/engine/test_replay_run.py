"""Thousands of logged candidates decided again as one batch equal one decision at a time, and the log, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.fused_cache import FusedCache
from engine.propensity import propensities
from engine.replay_block import blocks_of
from engine.replay_compare import compare
from engine.replay_fit import fit
from engine.replay_rank import chances_of
from engine.replay_rules import fused_for_replay
from engine.replay_run import decision_again, replay_block, replay_one
from engine.rules import ColumnRules, RuleRunner
from engine.strategy import CompiledStrategy, Explore
from features.records import Decision, encode
from tests.engine.logged import Logged, changed_sink, random_log, sink_log
from tests.engine.support import catalogue_registry, make_live


def differences(compiled: CompiledStrategy, rules: RuleRunner, decisions: list[Decision]) -> list[str]:
    out = []
    for block in blocks_of(decisions, num_rows=200):
        fitted = fit(compiled, block)
        assert (fitted.lacking, fitted.blocked, fitted.refused) == ({}, {}, {})
        replayed = replay_block(compiled, rules, fitted)
        assert not replayed.unresolved_D.any()
        out += [str(one) for one in compare(compiled, block, replayed)]
    return out


@pytest.mark.parametrize("seed", range(25))
def test_unchanged_strategy_comes_to_the_same(seed: int, tmp_path: Path) -> None:
    print("seed", seed)
    logged = random_log(seed, tmp_path)
    assert differences(logged.compiled, ColumnRules(logged.compiled), logged.decisions) == []
    assert [encode(replay_one(logged.live, one)) for one in logged.decisions] == [encode(d) for d in logged.decisions]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25, 525))
def test_unchanged_strategy_comes_to_the_same_always(seed: int, tmp_path: Path) -> None:
    print("seed", seed)
    logged = random_log(seed, tmp_path, 60)
    assert differences(logged.compiled, ColumnRules(logged.compiled), logged.decisions) == []


@pytest.mark.parametrize("seed", [2, 5])
def test_fused_form_over_many_requests_comes_to_the_same(
    seed: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    print("seed", seed)
    logged = random_log(seed, tmp_path)
    rules, problem = fused_for_replay(logged.compiled, FusedCache(tmp_path / "fused"))
    assert problem is None and not isinstance(rules, ColumnRules)
    assert differences(logged.compiled, rules, logged.decisions) == []
    assert rules.misfits == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "part", ["survivors", "reasons", "fired", "unknown", "scores", "propensities", "chosen", "arms"]
)
def test_record_that_is_not_what_the_strategy_says_is_found(part: str, tmp_path: Path) -> None:
    logged = sink_log(tmp_path, 30)
    at = next(at for at, one in enumerate(logged.decisions) if sum(one.survivors) > 2)
    decision = logged.decisions[at]
    row = decision.survivors.index(True)
    changed = {
        "survivors": False,
        "reasons": "too_far",
        "fired": decision.fired[row] ^ 1,
        "unknown": 1 << 8,
        "scores": float(np.nextafter(decision.scores[row], np.inf)),  # type: ignore[arg-type]
        "propensities": float(np.nextafter(decision.propensities[row], 1.0)),
    }
    if part == "chosen":
        wrong = msgspec.structs.replace(decision, chosen=None)
    elif part == "arms":
        wrong = msgspec.structs.replace(decision, arms=decision.arms | {"learned": "nobody"})
    else:
        values = list(getattr(decision, part))
        values[row] = changed[part]
        wrong = msgspec.structs.replace(decision, **{part: values})
    decisions = [*logged.decisions[:at], wrong, *logged.decisions[at + 1 :]]
    (found,) = differences(logged.compiled, ColumnRules(logged.compiled), decisions)
    place = "" if part in ("chosen", "arms") else f", candidate {decision.candidate_ids[row]}"
    assert found.startswith(f"decision {decision.decision_id}{place}: {part} was ")


@pytest.mark.parametrize("seed", range(10))
def test_batch_of_a_changed_strategy_equals_one_decision_at_a_time(seed: int, tmp_path: Path) -> None:
    """Rules, parameters, models and experiments of another version on the same facts."""
    print("seed", seed)
    logged = sink_log(tmp_path, 40, seed)
    rng = random.Random(seed)
    edits = [
        ("eta_s > params.max_eta_s ||", "eta_s > 0.7 * params.max_eta_s ||"),
        ("default: 0.5, layer: core", "default: 1.5, layer: core"),
        ("on_late: driver.accept_rate / 2.0", "on_late: driver.accept_rate / 3.0"),
        ("share: 0.4, set: {params.divisor: 0}", "share: 0.4, set: {params.divisor: 2}"),
        ("add: 0.25", "set: 1.0"),
        ("kind: softmax, temperature: 0.3", "kind: top_k_softmax, temperature: 0.2, top_k: 3"),
    ]
    new = changed_sink(tmp_path, *rng.sample(edits, rng.randrange(1, len(edits) + 1)))
    live = make_live(new, catalogue_registry())
    for block in blocks_of(logged.decisions, num_rows=300):
        replayed = replay_block(new, ColumnRules(new), fit(new, block))
        for at in np.flatnonzero(~replayed.unresolved_D).tolist():
            wanted = replay_one(live, block.decision(at))
            found = decision_again(new, block, replayed, at)
            same = {"decided_by": wanted.decided_by, "model_outputs": wanted.model_outputs}
            assert encode(msgspec.structs.replace(found, **same)) == encode(wanted)


def test_candidate_that_no_model_was_asked_about_is_counted_apart_where_it_matters(tmp_path: Path) -> None:
    """One that is kept now needs p_accept in the arm that uses the model, and in the other arm it does not."""
    logged = sink_log(tmp_path, 80)
    new = changed_sink(tmp_path, ("drop_when: \"state != 'idle'\"", "drop_when: \"state == 'skip'\""))
    for block in blocks_of(logged.decisions):
        replayed = replay_block(new, ColumnRules(new), fit(new, block))
        params = [params["use_model"] for _, params in replayed.assigned.distinct]
        uses_D = np.array(params)[replayed.assigned.place_D]
        reasons = np.array([*block.reasons, ""])[block.reason_R]
        missing_R = replayed.before.alive_K & (reasons != "") & (reasons != "score_not_finite")
        missing_R &= (block.models["p_accept"].source_D == 0)[block.decision_of_R]
        failed_R = replayed.before.alive_K & ~replayed.after.known_K
        missing_D, failed_D = (
            np.bincount(block.decision_of_R, rows, minlength=block.num_decisions) > 0 for rows in (missing_R, failed_R)
        )
        assert not replayed.unresolved_D[~missing_D].any()
        assert replayed.unresolved_D[missing_D & uses_D].all()
        assert not replayed.unresolved_D[missing_D & ~uses_D & ~failed_D].any()
        assert (missing_D & uses_D).any() and (missing_D & ~uses_D & ~failed_D).any()


def test_nothing_is_said_where_the_log_lacks_a_model(tmp_path: Path) -> None:
    logged = sink_log(tmp_path, 30)
    use = "  p_cancel: {uses: cancel@champion"
    new = changed_sink(
        tmp_path,
        (use, f"  p_other: {{uses: other@champion, deadline: 5s}}\n{use}"),
        ("score: |\n  (", "score: |\n  (p_other ?? 0.0) + ("),
    )
    for block in blocks_of(logged.decisions):
        replayed = replay_block(new, ColumnRules(new), fit(new, block))
        alive_D = np.bincount(block.decision_of_R, replayed.before.alive_K, minlength=block.num_decisions) > 0
        assert replayed.unresolved_D.tolist() == alive_D.tolist() and alive_D.any()


def lacking_of(logged: Logged, new: CompiledStrategy) -> dict[str, str]:
    (block,) = blocks_of(logged.decisions)
    return fit(new, block, logged.compiled.strategy).lacking


def test_what_the_log_lacks_is_named(tmp_path: Path) -> None:
    logged = sink_log(tmp_path, 10)
    field = ("note: 'string?'}", "note: 'string?', surge: 'double?'}")
    assert lacking_of(logged, changed_sink(tmp_path, field)) == {}  # nobody reads it
    read = ("rush: hour >= 17", "rush: (surge ?? 1.0) > 2.0 && hour >= 17")
    assert lacking_of(logged, changed_sink(tmp_path, field, read)) == {"surge": "request field surge: the log has none"}
    kind = ("distance_m: double, state", "distance_m: int, state")
    as_int = [
        kind,
        ("distance_m < 3000.0", "distance_m < 3000"),
        ("distance_m > 20000.0", "distance_m > 20000"),
        ("distance_m < 10.0 ? 1e308 * distance_m", "distance_m < 10 ? 1e308 * double(distance_m)"),
    ]
    assert lacking_of(logged, changed_sink(tmp_path, *as_int)) == {
        "distance_m": "candidate field distance_m is double in the log, int now"
    }
    key = ("to: {view: zone_stats, key: drop_zone}", "to: {view: zone_stats, key: zone}")
    assert lacking_of(logged, changed_sink(tmp_path, key)) == {
        "to.requests": "feature to.requests was read by the key drop_zone, not zone"
    }
    role = ("  zone: zone_stats\n", "  zone: zone_stats\n  near: {view: zone_stats, key: zone}\n")
    reads = ("demand / 100.0", "demand / 100.0 + double(near.requests ?? 0)")
    assert lacking_of(logged, changed_sink(tmp_path, role, reads)) == {
        "near.requests": "feature near.requests: the log has no features under near"
    }


def test_requests_that_would_be_refused_are_said(tmp_path: Path) -> None:
    logged = sink_log(tmp_path, 40)
    new = changed_sink(
        tmp_path,
        ("fare_cents: int", "fare_cents: {type: int, min: 0, max: 1500}"),
        ("note: 'string?'", "note: string"),
        ("(note ?? 'x')", "note"),
    )
    (block,) = blocks_of(logged.decisions)
    refused = fit(new, block).refused
    for at, decision in enumerate(logged.decisions):
        high, null = decision.request["fare_cents"] > 1500, decision.request["note"] is None
        wanted = (
            "request field fare_cents is out of its bounds" if high else "request field note is null and must not be"
        )
        assert refused.get(at) == (wanted if high or null else None)
    assert len(set(refused.values())) == 2


def test_chances_of_groups_are_those_of_each_group() -> None:
    rng = random.Random(3)
    kinds = [
        Explore(),
        Explore(kind="epsilon", epsilon=0.2),
        Explore(kind="softmax", temperature=0.3),
        Explore(kind="top_k_softmax", temperature=0.3, top_k=3),
    ]
    groups = [
        sorted((rng.choice([rng.gauss(0, 1), 1e308, -1e308]) for _ in range(size)), reverse=True)
        for size in (0, 1, 3, 0, 7, 50)
    ]
    sizes = np.array([len(group) for group in groups])
    starts = np.concatenate(([0], np.cumsum(sizes)))
    scores = np.array([score for group in groups for score in group])
    places = np.concatenate([np.arange(size) for size in sizes])
    for explore in kinds:
        found = chances_of(explore, scores, places, sizes, starts)
        assert found.tolist() == [chance for group in groups for chance in propensities(explore, group)]

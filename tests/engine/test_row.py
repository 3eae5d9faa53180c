"""A candidate decided alone by the row interpreter is the candidate that decide decided among all, to the bit."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from engine.decide import LiveStrategy, decide
from engine.explain import explain
from engine.flip import FIRST, NOT_FIRST, SURVIVES, find_flips
from engine.redecide import killed_bits, redecide
from engine.request import parse
from engine.row import recorded_rows, run_row
from engine.wire_values import to_wire
from features.records import Decision, decode, encode
from tests.engine.support import (
    AS_OF_MS,
    KITCHEN_SINK,
    RandomFeatures,
    catalogue_registry,
    compile_text,
    make_live,
    random_body,
    sink_models,
)

EVERYTHING = """
strategy: everything
version: 1
request: {order_id: string, zone: int, hour: int, wait: duration, placed: 'timestamp?', tags: list(string)}
candidates:
  key: driver_id
  fields: {eta_s: 'double?', distance_m: double, state: string, rank_no: int, vip: 'bool?', seen: 'timestamp?'}
features:
  driver: driver_stats
  zone: zone_stats
params:
  max_eta_s: {type: double, default: 900, min: 60, max: 3600}
tables:
  bonus: {hit: first, on_gap: "null", columns: [rank_no, state, out.plus], rows: bonus.csv}
  level: {hit: collect, collect: sum, on_gap: {points: 1}, columns: [hour, busy, out.points], rows: level.csv}
  strict: {hit: unique, on_gap: error, columns: [rank_no, out.factor], rows: strict.csv}
let:
  busy: (zone.requests ?? 0) > 20
  rate: driver.accept_rate * 2.0
  stale_for: if(seen != null, as_of - seen, duration('0s'))
rules:
  - {id: sure_eta,  drop_when: 'if(eta_s == null, null, eta_s > params.max_eta_s)', on_unknown: fail_row}
  - {id: odd_rank,  drop_when: 'div(60, rank_no - 5) > 50', on_unknown: fire}
  - {id: vips_only, drop_when: '!vip', on_unknown: skip}
  - {id: floor,     when: distance_m < 100.0, set: 0.5}
  - {id: plus,      when: 'if(bonus.plus == null, null, bonus.plus > 0.0)', add: 'bonus.plus ?? 0.0', on_unknown: skip}
  - {id: points,    when: level.points > 1, multiply: level.points}
  - {id: broken,    when: 'div(100, rank_no - 7) > 20', add: 1, on_unknown: fail_row}
  - {id: late,      when: wait > duration('2m') && stale_for < duration('1h'), add: strict.factor}
  - {id: tagged,    when: "tags.exists(t, t == 'pool')", set: 2, add: 1, multiply: 0.5}
score: "rate + (1.0 - (eta_s ?? 1000.0) / params.max_eta_s) + (rank_no == 11 ? 1e308 * distance_m : 0.0)"
outputs:
  minutes: (eta_s ?? 0.0) / 60.0
  since: stale_for
rank: {by: score, ties: rank_no, keep: 5}
"""
TABLES = {
    "bonus.csv": "rank_no,state,out.plus\n< 3,idle,0.5\n[3..9),idle | on_trip,0.25\n12,*,\n",
    "level.csv": "hour,busy,out.points\n>= 17,true,2\n*,true,1\n>= 20,*,3\n",
    "strict.csv": "rank_no,out.factor\n[0..10],0.1\n[10..20],0.2\n",
}


def everything(tmp_path: Path) -> LiveStrategy:
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)
    registry = catalogue_registry()
    return make_live(compile_text(EVERYTHING, tmp_path, registry), registry)


def record(live: LiveStrategy, seed: int, num_candidates: int = 25) -> Decision:
    rng = random.Random(seed)
    body = random_body(rng, live.compiled, num_candidates)
    if live.compiled.name == "everything":
        times = {"wait": rng.randrange(300_000), "placed": rng.choice([None, AS_OF_MS - 5000])}
        body["request"] |= times | {"tags": rng.choice([[], ["pool"], ["airport", "pool"], ["vip"]])}
        body["candidates"]["seen"] = [
            rng.choice([None, AS_OF_MS - rng.randrange(7_200_000)]) for _ in range(num_candidates)
        ]
    killed = rng.getrandbits(9) & rng.getrandbits(9) if seed % 3 == 0 else 0
    request = parse(live.compiled, msgspec.json.encode(body))
    return decode(encode(decide(live, request, RandomFeatures(live.compiled, seed), killed=killed)), Decision)


@pytest.mark.parametrize("which", ["sink", "everything"])
@pytest.mark.parametrize("seed", range(12))
def test_row_equals_decide(tmp_path: Path, seed: int, which: str) -> None:
    print("seed", seed)
    if which == "everything":
        live = everything(tmp_path)
    else:
        registry = catalogue_registry()
        live = make_live(compile_text(KITCHEN_SINK, tmp_path, registry), registry, sink_models(tmp_path / "models"))
    decision = record(live, seed)
    killed = killed_bits(live.compiled, decision.killed)
    for row, values in enumerate(recorded_rows(decision, live.compiled)):
        found = run_row(live.compiled, values, killed=killed)
        assert found.reason == decision.reasons[row]
        assert found.score == decision.scores[row]
        assert (found.fired, found.unknown) == (decision.fired[row], decision.unknown[row])
        assert found.reached & killed == 0
        assert (found.fired | found.unknown) & ~found.reached == 0
        for output in live.compiled.outputs if found.reason is None else ():
            assert to_wire(found.outputs[output.name], output.program.type) == decision.outputs[output.name][row]


def test_all_that_can_happen_to_a_candidate_happens_here(tmp_path: Path) -> None:
    """Guards the test above: every rule fires and does not, is unknown where it can be, and all reasons come up."""
    live = everything(tmp_path)
    reasons: set[str | None] = set()
    fired = unknown = 0
    for seed in range(12):
        decision = record(live, seed)
        reasons |= set(decision.reasons)
        for bits in decision.fired:
            fired |= bits
        for bits in decision.unknown:
            unknown |= bits
    assert reasons >= {None, "sure_eta", "unknown:sure_eta", "odd_rank", "vips_only", "unknown:broken"}
    assert fired == (1 << 9) - 1
    assert unknown >> 1 & 1 and unknown >> 2 & 1 and unknown >> 4 & 1 and unknown >> 7 & 1


def test_every_candidate_is_explained_with_tables_steps_and_switches(tmp_path: Path) -> None:
    live = everything(tmp_path)
    tables: set[str] = set()
    texts = ""
    for seed in range(12):
        decision = record(live, seed)
        for row, candidate in enumerate(decision.candidate_ids):
            told = explain(decision, candidate, live.compiled)
            texts += "\n".join(told.lines) + "\n"
            msgspec.json.encode({"tables": [hit.outputs for hit in told.tables]})
            tables |= {hit.table for hit in told.tables}
            if decision.survivors[row] and told.steps:
                assert told.steps[-1].score == told.score
                assert told.base is not None
            for hit in told.tables:
                lines = TABLES[Path(hit.file).name].splitlines()
                assert all(1 < line <= len(lines) for line in hit.rows)
            if decision.killed:
                assert f"switched off when this was decided, so without effect: {', '.join(decision.killed)}" in texts
            if told.rank is None:
                reason = (
                    str(decision.reasons[row]).removeprefix("unknown:").replace("score_not_finite", "its score is not")
                )
                assert reason in explain(decision, candidate).outcome
                assert reason in told.outcome
    assert tables == {"bonus", "level", "strict"}
    assert "could not be told (null or a failed computation): on_unknown is fail_row" in texts
    assert "floor: set to 0.5 → 0.5" in texts
    assert "no line of " in texts
    assert "outputs: minutes = " in texts


def test_shadow_says_that_it_had_no_effect(tmp_path: Path) -> None:
    live = everything(tmp_path)
    decision = msgspec.structs.replace(record(live, 1), shadow_of="express")
    told = explain(decision, decision.candidate_ids[0], live.compiled)
    assert told.shadow_of == "express"
    assert told.lines[-1].startswith("note: a shadow of express: computed beside it, nobody was offered anything")


def changed(decision: Decision, row: int, name: str, value: int | float) -> Decision | None:
    """The record with another value of one input of a candidate or of the request; None for a feature."""
    if name in decision.request:
        return msgspec.structs.replace(decision, request=decision.request | {name: value})
    if name.startswith("params."):
        return msgspec.structs.replace(decision, params=decision.params | {name.removeprefix("params."): value})
    if name not in decision.candidates:
        return None
    column = list(decision.candidates[name])
    column[row] = value
    return msgspec.structs.replace(decision, candidates=decision.candidates | {name: column})


@pytest.mark.parametrize("seed", range(3))
def test_flips_through_tables_times_and_failed_rows_are_true(tmp_path: Path, seed: int) -> None:
    """The changed record, decided again whole and by columns, gives the candidate the promised fate."""
    print("seed", seed)
    live = everything(tmp_path)
    decision = record(live, seed, 12)
    told: set[str] = set()
    for row, candidate in enumerate(decision.candidate_ids):
        for goal, flips in find_flips(decision, candidate, live.compiled, per_goal=20).flips.items():
            for flip in flips:
                again = changed(decision, row, flip.name, flip.after)
                if again is None:
                    continue
                told.add(flip.name)
                found = redecide(live, again)
                first = explain(found, candidate, live.compiled).rank == 1
                assert {SURVIVES: found.survivors[row], FIRST: first, NOT_FIRST: not first}[goal], flip
    assert {"eta_s", "rank_no"} <= told


def test_only_candidate_flips_too(tmp_path: Path) -> None:
    """With one candidate a column of candidates is as long as one of the request."""
    live = everything(tmp_path)
    told = set()
    for seed in range(8):
        decision = record(live, seed, 1)
        found = find_flips(decision, decision.candidate_ids[0], live.compiled, per_goal=20)
        told |= {flip.name for flips in found.flips.values() for flip in flips}
        for goal, flips in found.flips.items():
            for flip in flips:
                again = changed(decision, 0, flip.name, flip.after)
                if again is not None:
                    assert redecide(live, again).survivors[0] == (goal != NOT_FIRST), flip
    assert told

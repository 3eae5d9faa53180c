"""The fused rules equal ColumnRules and the row-by-row twin, bit for bit, on strategies of every shape."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.decide import LiveStrategy
from engine.fused import FusedRules, fused_rules
from engine.fused_plan import AFTER, BEFORE, NotFusableError, plan_rules
from engine.fused_tables import MOST_CELLS
from engine.loader import load_strategy
from engine.made_columns import made_columns
from engine.request import parse
from engine.rules import ColumnRules
from engine.server import SHIPPED_STRATEGIES
from engine.strategy import CompiledStrategy
from features.expr import ROW_ERROR, CodedTexts, Column
from features.expr.fused_ops import compile_text as to_code
from features.registry import Registry
from tests.engine.random_strategies import NanFeatures, random_request, random_strategy
from tests.engine.rule_columns import assert_same_after, assert_same_before, random_columns
from tests.engine.support import (
    KITCHEN_SINK,
    RandomFeatures,
    catalogue_registry,
    compile_text,
    make_live,
    random_body,
    shipped_registry,
    sink_models,
)
from tests.engine.test_decide import check_against_twin
from tests.engine.test_rules import check as check_decision
from tests.features.expr.coded_texts import code


def fuse(compiled: CompiledStrategy) -> FusedRules:
    plan = plan_rules(compiled)
    return fused_rules(compiled, plan, to_code(plan.text, (BEFORE, AFTER)))


def check_forms(fused: FusedRules, columns: dict[str, Column], num_rows: int, killed: int, about: object) -> None:
    """Both forms from the same columns, each with its own copy of the names; and with texts as a dictionary and codes."""
    slow = ColumnRules(fused.compiled)
    rng = random.Random(num_rows)
    texts = {name for name, kind in fused.compiled.names.items() if kind.kind == "string" and not kind.is_list}
    coded = {name: code(column, rng) if name in texts else column for name, column in columns.items()}
    for form in (columns, coded):
        check_same(fused, slow, form, num_rows, killed, about)


def check_same(
    fused: FusedRules, slow: ColumnRules, columns: dict[str, Column], num_rows: int, killed: int, about: object
) -> None:
    own, other = dict(columns), dict(columns)
    wanted, found = slow.before(own, num_rows, killed), fused.before(other, num_rows, killed)
    assert_same_before(found, wanted, about)
    own, other = {**columns, **own}, {**columns, **other}
    assert_same_after(
        fused.after(other, wanted.alive_K, killed), slow.after(own, wanted.alive_K, killed), wanted.alive_K, about
    )


@pytest.fixture(scope="module")
def registry() -> Registry:
    return catalogue_registry()


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> FusedRules:
    return fuse(compile_text(KITCHEN_SINK, tmp_path_factory.mktemp("sink"), registry))


@pytest.fixture(scope="module")
def live_sink(tmp_path_factory: pytest.TempPathFactory, registry: Registry, sink: FusedRules) -> LiveStrategy:
    models = sink_models(tmp_path_factory.mktemp("models"))
    return dataclasses.replace(make_live(sink.compiled, registry, models), rules=sink)


@pytest.mark.parametrize("seed", range(30))
def test_both_forms_agree_on_columns_that_no_request_would_bring(sink: FusedRules, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    num_rows = rng.choice([0, 1, 2, 3, 8, 50, 123, 1025])
    killed = rng.choice([0, rng.getrandbits(9)])
    columns = random_columns(sink.compiled, rng, num_rows, edges=rng.choice([0.0, 0.3, 0.9]))
    check_forms(sink, columns, num_rows, killed, seed)
    made, rows = made_columns(sink.compiled, num_rows)
    check_forms(sink, made, rows, killed, seed)
    assert sink.misfits == {}


@pytest.mark.parametrize("seed", range(15))
def test_decide_with_the_fused_rules_equals_the_row_by_row_twin(live_sink: LiveStrategy, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    live = live_sink
    if seed % 3 == 1:
        live = dataclasses.replace(live_sink, models={**live_sink.models, "p_accept": None})
    body = random_body(rng, live.compiled, rng.choice([1, 2, 20, 123]))
    request = parse(live.compiled, msgspec.json.encode(body))
    killed = rng.choice([0, rng.getrandbits(9)])
    check_against_twin(live, request, RandomFeatures(live.compiled, seed, down=seed % 7 == 0), killed)
    assert isinstance(live.rules, FusedRules) and live.rules.misfits == {}


@pytest.mark.parametrize("name", [pytest.param("express_dispatch", marks=pytest.mark.slow), "rider_coupon"])
def test_shipped_strategies_agree(name: str) -> None:
    shipped = shipped_registry()
    path = SHIPPED_STRATEGIES / f"{name}.yaml"
    fused = fuse(load_strategy(path, shipped.catalogue, schema_fingerprint=shipped.fingerprint))
    for seed in range(10):
        columns = random_columns(fused.compiled, random.Random(seed), 77)
        check_forms(fused, columns, 77, 0, seed)


def check_random_strategy(seed: int, folder: Path, registry: Registry) -> FusedRules:
    print("seed", seed)
    compiled = random_strategy(seed, folder, registry)
    fused = fuse(compiled)
    rng = random.Random(seed)
    for num_rows in (0, 1, 2, 40, 200):
        killed = rng.choice([0, rng.getrandbits(len(compiled.strategy.rules))])
        check_forms(fused, random_columns(compiled, rng, num_rows), num_rows, killed, seed)
        columns, _ = made_columns(compiled, num_rows)
        check_forms(fused, columns, num_rows, killed, seed)
    live = dataclasses.replace(make_live(compiled, registry), rules=fused)
    for at in range(2):
        request = parse(compiled, msgspec.json.encode(random_request(rng, compiled, 20)))
        check_decision(live, request, NanFeatures(compiled, seed + at), rng.getrandbits(3))
    assert fused.misfits == {}
    return fused


def test_random_strategies_agree_with_numpy_and_with_the_twin(tmp_path: Path, registry: Registry) -> None:
    fused = [check_random_strategy(seed, tmp_path, registry) for seed in (0, 1)]
    plans = [one.plan for one in fused]
    assert any(plan.before.texts for plan in plans) and any(plan.by_columns for plan in plans)
    assert any(plan.in_loop for plan in plans) and any(plan.before.steps or plan.after.steps for plan in plans)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_random_strategies_agree(block: int, tmp_path: Path, registry: Registry) -> None:
    for seed in range(100 + 20 * block, 120 + 20 * block):
        check_random_strategy(seed, tmp_path, registry)


def test_a_bad_row_never_changes_its_neighbours(sink: FusedRules) -> None:
    rng = random.Random(5)
    columns = random_columns(sink.compiled, rng, 64, edges=0.0)
    whole = sink.before(dict(columns), 64, 0)
    for row in (0, 31, 63):
        spoiled = dict(columns)
        for name in ("rank_no", "distance_m", "eta_s"):
            values = columns[name].values.copy()
            values[row] = {"rank_no": -(2**63), "distance_m": np.nan, "eta_s": np.inf}[name]
            spoiled[name] = Column(values, columns[name].valid)
        found = sink.before(dict(spoiled), 64, 0)
        others = np.arange(64) != row
        for part in ("alive_K", "dropped_by_K", "fired_K", "unknown_K"):
            assert np.array_equal(getattr(found, part)[others], getattr(whole, part)[others])
        check_forms(sink, spoiled, 64, 0, row)


# Columns that are not as declared ------------------------------------------------------------------------------------


def test_columns_of_another_shape_or_width_are_fitted(sink: FusedRules) -> None:
    columns = random_columns(sink.compiled, random.Random(1), 9, edges=0.0)
    one = columns["distance_m"]
    columns["distance_m"] = Column(one.values[:1], one.valid[:1])
    columns["rank_no"] = Column(columns["rank_no"].values.astype(np.int16), columns["rank_no"].valid)
    columns["eta_s"] = Column(np.repeat(columns["eta_s"].values, 2)[::2], np.repeat(columns["eta_s"].valid, 2)[::2])
    check_forms(sink, columns, 9, 0, "fitted")
    assert sink.misfits == {}


def test_what_cannot_be_fitted_goes_through_numpy_and_is_counted(sink: FusedRules) -> None:
    columns = random_columns(sink.compiled, random.Random(2), 9, edges=0.0)
    columns["rank_no"] = Column(columns["rank_no"].values, np.arange(9) % 2 == 0)  # null, where it cannot be
    error = np.arange(9) == 4
    columns["distance_m"] = Column(columns["distance_m"].values, ~error, error)
    columns["state"] = Column(columns["state"].values, ~error, error)
    check_forms(sink, columns, 9, 0, "misfits")
    assert set(sink.misfits) == {"rank_no", "distance_m"}  # the first of each half
    sink.misfits.clear()


def test_a_code_without_a_text_is_a_misfit(sink: FusedRules) -> None:
    columns = random_columns(sink.compiled, random.Random(2), 9, edges=0.0)
    columns["state"] = CodedTexts(np.full(9, 1), np.array(["idle"], np.object_), np.ones(9, dtype=np.bool_))
    with pytest.raises(IndexError):  # of NumPy's form, which is asked next
        sink.before(columns, 9, 0)
    assert sink.misfits == {"state": 1}
    sink.misfits.clear()


def test_coded_texts_of_one_row_and_of_other_whole_numbers_are_fitted(sink: FusedRules) -> None:
    columns = random_columns(sink.compiled, random.Random(4), 9, edges=0.0)
    texts = np.array(["idle", "πέντε"], np.object_)
    for codes in (np.array([1]), np.arange(9, dtype=np.int8) % 2, np.arange(18)[::2] % 2):
        columns["state"] = CodedTexts(codes, texts, np.ones(len(codes), dtype=np.bool_))
        check_same(sink, ColumnRules(sink.compiled), columns, 9, 0, codes)
    assert sink.misfits == {}


def test_more_than_63_rules_are_left_to_numpy(registry: Registry, tmp_path: Path) -> None:
    compiled = compile_text(KITCHEN_SINK, tmp_path, registry)
    rule = dataclasses.replace(compiled.drops[0], bit=63)
    with pytest.raises(NotFusableError, match="63 rules"):
        plan_rules(dataclasses.replace(compiled, drops=(*compiled.drops, rule)))


# Tables --------------------------------------------------------------------------------------------------------------

TABLES = """
strategy: tables
version: 1
request: {zone: int, tier: 'string?', hour: 'int?'}
candidates: {key: driver_id, fields: {rank_no: int, state: 'string?', score_in: 'double?', vip: 'bool?'}}
let:
  step: div(12, rank_no - 5)
  label: "string(div(rank_no, rank_no - 5)) + 'x'"
tables:
  first:   {hit: first, on_gap: error, columns: [zone, state, {out.a: 'double?'}, {out.b: 'int?'}], rows: first.csv}
  single:  {hit: unique, on_gap: {a: 1.5}, columns: [score_in, {out.a: double}], rows: single.csv}
  failing: {hit: first, on_gap: 'null', columns: [step, vip, {out.a: 'bool?'}], rows: failing.csv}
  summed:  {hit: collect, collect: sum, on_gap: {a: 0.25}, columns: [hour, tier, {out.a: double}], rows: summed.csv}
  named:   {hit: first, on_gap: {t: none}, columns: [state, {out.t: string}], rows: named.csv}
rules:
  - {id: labelled, drop_when: "label in ['1x', '3x']"}
  - {id: on_first, drop_when: '(first.a ?? 1.0) > 2.0'}
  - {id: on_step,  drop_when: 'failing.a', on_unknown: fire}
  - {id: by_name,  drop_when: "named.t == 'bad'"}
  - {id: add_b,    when: rank_no > 3, add: first.b, on_unknown: fail_row}
score: single.a + summed.a
rank: {by: score, ties: driver_id, keep: 5}
explore: {kind: none}
"""
ROWS = {
    "first": "zone,state,out.a,out.b\n[1..5),idle,1.0,2\n7 | 9,*,3.5,null\n*,null,null,4\n3,on_trip | skip,0.5,-1\n> 20,idle,2.5,6\n",
    "single": "score_in,out.a\n(..0.5],0.125\n(0.5..10),2\n>= 900,4.5\n",
    "failing": "step,vip,out.a\n[2..6],*,true\n< 0,true,false\n*,null,true\n-12,false,null\n",
    "summed": "hour,tier,out.a\n*,gold,1.0\n[0..12),*,0.1\n*,null,0.2\n",
    "named": "state,out.t\nidle,good\non_trip | '',bad\n",
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> FusedRules:
    folder = tmp_path_factory.mktemp("tables")
    for name, rows in ROWS.items():
        (folder / f"{name}.csv").write_text(rows)
    return fuse(compile_text(TABLES, folder, registry))


def test_texts_that_failed_are_row_errors(tables: FusedRules) -> None:
    assert "label" in {step.name for step in tables.plan.before.steps}
    columns = random_columns(tables.compiled, random.Random(3), 200, edges=0.0)
    check_forms(tables, columns, 200, 0, "label")
    before = tables.before(dict(columns), 200, 0)
    assert (before.unknown_K & 1).any() and (before.fired_K & 1).any()


def test_tables_in_the_loop_and_beside_it_agree(tables: FusedRules) -> None:
    fused = tables
    beside = {step.name for half in (fused.plan.before, fused.plan.after) for step in half.steps}
    assert {"summed", "named"} <= beside and not beside & {"first", "single", "failing"}, beside
    for seed in range(20):
        for num_rows in (1, 57):
            columns = random_columns(fused.compiled, random.Random(seed), num_rows, edges=seed % 2 * 0.4)
            check_forms(fused, columns, num_rows, 0, seed)
    assert fused.misfits == {}


def test_a_long_table_stays_a_lookup(registry: Registry, tmp_path: Path) -> None:
    for name, rows in ROWS.items():
        (tmp_path / f"{name}.csv").write_text(rows)
    lines = "".join(f"{at},idle,{at}.0,1\n" for at in range(30, 30 + MOST_CELLS))
    (tmp_path / "first.csv").write_text(ROWS["first"] + lines)
    plan = plan_rules(compile_text(TABLES, tmp_path, registry))
    assert "first" in {step.name for step in plan.before.steps}


def test_the_same_strategy_has_the_same_text_in_every_process(registry: Registry, tmp_path: Path) -> None:
    texts = {plan_rules(compile_text(KITCHEN_SINK, tmp_path, registry)).text for _ in range(3)}
    assert len(texts) == 1
    (text,) = texts
    assert "object at" not in text and ROW_ERROR is not None
    without = plan_rules(compile_text(KITCHEN_SINK, tmp_path, registry), bits=False).text
    assert len(without) < len(text)

"""The swap: NumPy serves at once, the fused form after it agreed on real rows; a disagreement is loud and changes nothing."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.fused import FusedRules, fused_rules
from engine.fused_cache import CompileFailedError, FusedCache
from engine.fused_plan import plan_rules
from engine.rule_forms import RuleForms, RuleFormsConfig, Seen, disagreement
from engine.rules import ColumnRules
from engine.strategy import CompiledStrategy
from features.expr import Column
from tests.engine.rule_columns import assert_same_after, assert_same_before, random_columns
from tests.engine.support import catalogue_registry, compile_text

TEXT = """
strategy: small
version: 1
request: {zone: int, hour: int}
candidates: {key: driver_id, fields: {eta_s: 'double?', rank_no: int, state: string}}
models: {p_accept: {uses: accept@champion, deadline: 5s}}
let: {rush: hour >= 17 && hour < 20, steps: 'div(60, rank_no - 5)'}
rules:
  - {id: not_idle, drop_when: "state != 'idle'"}
  - {id: unknown_eta, drop_when: eta_s == null}
  - {id: steep, drop_when: steps > 20, on_unknown: fail_row}
  - {id: rush_hour, when: rush, multiply: 1.5}
score: (p_accept ?? 0.5) - eta_s / 1000.0
outputs: {pressed: rush && rank_no > 3}
rank: {by: score, ties: rank_no, keep: 7}
explore: {kind: none}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledStrategy:
    return compile_text(TEXT, tmp_path_factory.mktemp("small"), catalogue_registry())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> FusedCache:
    return FusedCache(tmp_path_factory.mktemp("forms") / "cache")


@pytest.fixture(scope="module")
def objects(compiled: CompiledStrategy, cache: FusedCache) -> dict[str, bytes]:
    return cache.get(plan_rules(compiled).text)


@pytest.fixture(scope="module")
def wrong_objects(compiled: CompiledStrategy, cache: FusedCache) -> dict[str, bytes]:
    """Code in which the bound of `steep` is 30."""
    text = plan_rules(compiled).text
    assert text.count("20 < v") == 1
    return cache.get(text.replace("20 < v", "30 < v"))


class Ready(FusedCache):
    """A cache whose answer is there, or comes when `wait` returns."""

    def __init__(
        self, folder: Path, objects: dict[str, bytes], wait: Callable[[Callable[[], bool]], None] = lambda stop: None
    ) -> None:
        super().__init__(folder / "cache")
        self.objects, self.wait = objects, wait

    def get(self, text: str, *, timeout_s: float = 1.0, stop: Callable[[], bool] = lambda: False) -> dict[str, bytes]:
        self.wait(stop)
        return self.objects


QUICK = RuleFormsConfig(wait_for_rows_s=0.0)


def ask(forms: RuleForms, seed: int, num_rows: int = 40, killed: int = 0) -> None:
    """One request, as decide asks it; what it says is what NumPy says, whichever form runs."""
    columns = random_columns(forms.compiled, random.Random(seed), num_rows)
    answers = {use: columns.pop(use) for use in forms.compiled.strategy.models}
    own = dict(columns)
    slow = ColumnRules(forms.compiled)
    before = forms.before(columns, num_rows, killed)
    wanted = slow.before(own, num_rows, killed)
    assert_same_before(before, wanted, seed)
    columns |= answers
    own |= answers
    after = forms.after(columns, before.alive_K, killed)
    assert_same_after(after, slow.after(own, wanted.alive_K, killed), wanted.alive_K, seed)


def test_without_a_cache_numpy_runs_for_good(compiled: CompiledStrategy) -> None:
    forms = RuleForms(compiled, None)
    ask(forms, 1)
    assert forms.state == "columns" and forms.join(0) and not forms._seen


def test_requests_are_served_before_during_and_after_the_swap(
    compiled: CompiledStrategy, objects: dict[str, bytes], tmp_path: Path
) -> None:
    go = threading.Event()
    forms = RuleForms(compiled, Ready(tmp_path, objects, lambda stop: go.wait(10)), config=QUICK)
    for seed in range(5):
        ask(forms, seed)
    assert forms.state == "compiling"
    go.set()
    seed = 5
    while not forms.join(0.001):
        ask(forms, seed := seed + 1)
    assert forms.state == "fused" and isinstance(forms._current, FusedRules)
    assert forms.proved_on >= 200
    for seed in range(20):
        ask(forms, seed, killed=seed % 16)
    assert not forms._seen  # nothing more is remembered


def test_a_request_that_began_with_numpy_may_end_fused(
    compiled: CompiledStrategy, objects: dict[str, bytes], tmp_path: Path
) -> None:
    forms = RuleForms(compiled, Ready(tmp_path, objects), config=QUICK)
    assert forms.join(10)
    columns = random_columns(compiled, random.Random(3), 30)
    slow = ColumnRules(compiled)
    before = slow.before(columns, 30, 0)
    wanted = slow.after(dict(columns), before.alive_K, 0)
    assert_same_after(forms.after(columns, before.alive_K, 0), wanted, before.alive_K, "mixed")


def test_a_disagreement_keeps_numpy_and_names_the_row(
    compiled: CompiledStrategy, wrong_objects: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    said: list[str] = []
    cache = Ready(tmp_path, wrong_objects, lambda stop: go.wait(10))
    forms = RuleForms(compiled, cache, config=QUICK, on_disagreement=said.append)
    columns = random_columns(compiled, random.Random(1), 8, edges=0.0)
    ranks = np.array([0, 1, 2, 9, 6, 7, 9, 9])  # 60 / (7 - 5) is 30: steep
    columns |= {
        "rank_no": Column(ranks, np.ones(8, dtype=np.bool_)),
        "state": Column(np.array(["idle"] * 8, dtype=np.object_), np.ones(8, dtype=np.bool_)),
        "eta_s": Column(np.ones(8), np.ones(8, dtype=np.bool_)),
    }
    forms.before(columns, 8, 0)
    go.set()
    with caplog.at_level(logging.ERROR):
        assert forms.join(10)
    assert forms.state.startswith("refused: the fused form disagrees: ")
    assert isinstance(forms._current, ColumnRules)
    assert "alive_K of row 5 of batch 0 (killed 0): NumPy False, fused True" in said[0]
    assert "'rank_no': 7" in said[0]
    assert "disagrees with NumPy" in caplog.text
    ask(forms, 4)


def test_a_difference_is_found_by_part_row_and_batch(compiled: CompiledStrategy, objects: dict[str, bytes]) -> None:
    slow, fused = ColumnRules(compiled), fused_rules(compiled, plan_rules(compiled), objects)
    batches = [Seen(random_columns(compiled, random.Random(seed), 20), 20, 0) for seed in range(5)]
    assert disagreement(slow, fused, batches, compiled.strategy.models) is None

    class Spoiled(FusedRules):
        def after(self, columns, alive_K, killed):  # type: ignore[no-untyped-def]
            found = super().after(columns, alive_K, killed)
            found.score_K[np.flatnonzero(alive_K & found.known_K)[-1:]] += 1e-9
            return found

    spoiled = Spoiled(compiled, plan_rules(compiled), fused._before.kernel._machine)
    problem = disagreement(slow, spoiled, batches, compiled.strategy.models)
    assert problem is not None and problem.startswith("score_K of row ")
    without_models = [Seen({n: c for n, c in b.columns.items() if n != "p_accept"}, 20, 0) for b in batches]
    assert disagreement(slow, spoiled, without_models, compiled.strategy.models) is None


def test_only_the_last_rows_are_remembered(
    compiled: CompiledStrategy, objects: dict[str, bytes], tmp_path: Path
) -> None:
    go = threading.Event()
    config = RuleFormsConfig(remember_rows=100, wait_for_rows_s=0.0)
    forms = RuleForms(compiled, Ready(tmp_path, objects, lambda stop: go.wait(10)), config=config)
    for seed in range(30):
        ask(forms, seed, num_rows=30)
    assert [seen.num_rows for seen in forms._remembered()] == [30, 30, 30]
    assert all(seen.later is not None for seen in forms._remembered())
    go.set()
    assert forms.join(10) and forms.proved_on == 90


def test_a_text_that_cannot_be_compiled_leaves_numpy_and_says_why(compiled: CompiledStrategy, tmp_path: Path) -> None:
    def fail(stop: Callable[[], bool]) -> None:
        raise CompileFailedError("the compiler died 3 times over it")

    forms = RuleForms(compiled, Ready(tmp_path, {}, fail), config=QUICK)
    assert forms.join(10)
    assert forms.state == "refused: the compiler died 3 times over it"
    ask(forms, 1)


def test_code_that_does_not_load_leaves_numpy(compiled: CompiledStrategy, tmp_path: Path) -> None:
    forms = RuleForms(compiled, Ready(tmp_path, {"before": b"no object code", "after": b""}), config=QUICK)
    assert forms.join(10)
    assert forms.state.startswith("refused: ")
    ask(forms, 1)


def test_a_strategy_that_is_no_longer_live_stops_asking(compiled: CompiledStrategy, tmp_path: Path) -> None:
    def wait(stop: Callable[[], bool]) -> None:
        while not stop():
            time.sleep(0.001)
        raise TimeoutError("stopped")

    forms = RuleForms(compiled, Ready(tmp_path, {}, wait), config=QUICK)
    forms.close()
    assert forms.join(10)


def test_from_a_real_cache_a_strategy_is_fused_at_once_the_second_time(
    compiled: CompiledStrategy, cache: FusedCache
) -> None:
    forms = RuleForms(compiled, cache)
    ask(forms, 1)
    assert forms.join(120) and forms.state == "fused", forms.state
    again = RuleForms(compiled, FusedCache(cache.folder, start_worker=lambda folder: None), config=QUICK)
    assert again.join(10) and again.state == "fused"


@pytest.mark.parametrize("bad", [{"remember_rows": 0}, {"wait_for_rows_s": -1.0}, {"compile_timeout_s": 0.0}])
def test_a_config_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="remember_rows"):
        RuleFormsConfig(**bad)  # type: ignore[arg-type]

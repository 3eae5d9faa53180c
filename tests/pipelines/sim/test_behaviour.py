"""The truth: which way each effect goes, and that nobody who trains can read it."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

import pipelines
from pipelines.sim.behaviour import DAY_MS, HOUR_MS, Behaviour, BehaviourConfig, Earnings, Offer

NOW_MS = 10 * DAY_MS


def _behaviour(**trips: list[tuple[int, int]]) -> Behaviour:
    earnings = Earnings()
    for driver_id, ended in trips.items():
        for at_ms, fare_cents in ended:
            earnings.add(driver_id, at_ms, fare_cents)
    return Behaviour(BehaviourConfig(seed=7), earnings)


def _p(behaviour: Behaviour, *, driver_id: str = "d", eta_s: float = 240, fare_cents: int = 1500) -> float:
    offer = Offer("o", fare_cents, 4_000, 1_000.0, eta_s)
    return behaviour.p_accept(driver_id, offer, NOW_MS)


def test_a_longer_way_is_worse_and_a_higher_fare_is_better() -> None:
    behaviour = _behaviour()
    assert _p(behaviour, eta_s=120) > _p(behaviour, eta_s=300) > _p(behaviour, eta_s=600)
    assert _p(behaviour, fare_cents=2_500) > _p(behaviour, fare_cents=1_500) > _p(behaviour, fare_cents=800)


def test_a_long_way_is_tolerated_when_the_fare_is_high() -> None:
    """The interaction: what five more minutes cost, in log-odds, is less on a good fare."""
    behaviour = _behaviour()

    def log_odds_lost(fare_cents: int) -> float:
        near, far = (_p(behaviour, eta_s=eta_s, fare_cents=fare_cents) for eta_s in (180, 480))
        return math.log(near / (1 - near)) - math.log(far / (1 - far))

    assert log_odds_lost(2_500) < 0.7 * log_odds_lost(800)


def test_a_driver_who_earned_enough_in_the_last_day_gets_choosy() -> None:
    earned = [(NOW_MS - 5 * HOUR_MS, 15_000), (NOW_MS - 3 * HOUR_MS, 15_000)]
    assert _p(_behaviour(d=earned)) < _p(_behaviour()) - 0.2


def test_earnings_count_the_last_day_half_open_and_in_any_order() -> None:
    #  | 24 h ago ............ 1 h ago ............ now |
    #  in                                            out
    earnings = Earnings()
    for at_ms, fare in ((NOW_MS, 1), (NOW_MS - DAY_MS, 10), (NOW_MS - DAY_MS - 1, 100), (NOW_MS - HOUR_MS, 1_000)):
        earnings.add("d", at_ms, fare)
    assert earnings.of("d", NOW_MS) == (1_010, 1)
    assert earnings.of("d", NOW_MS + 1) == (1_001, 1)
    assert earnings.of("nobody", NOW_MS) == (0, 0)


def test_chances_stay_inside_zero_and_one_and_are_the_same_every_time() -> None:
    behaviour = _behaviour()
    for eta_s, fare_cents in ((0.0, 0), (1e9, 0), (0.0, 10**9), (1e9, 10**9)):
        assert 0 < _p(behaviour, eta_s=eta_s, fare_cents=fare_cents) < 1
    assert _p(behaviour) == _p(_behaviour())
    assert _p(behaviour, driver_id="d") != _p(behaviour, driver_id="e")


def test_answers_are_drawn_with_the_true_chance() -> None:
    behaviour = _behaviour()
    drawn = [behaviour.accepts("d", Offer(f"o{n}", 1, 1, 1.0, 1.0), 1, 0.3) for n in range(20_000)]
    assert sum(drawn) / 20_000 == pytest.approx(0.3, abs=0.012)


def test_training_does_not_import_the_simulation() -> None:
    """The trainer has to learn the truth from offers and answers; so do the features and the samples."""
    root = Path(next(iter(pipelines.__path__)))
    read = [path for path in root.rglob("*.py") if "sim" not in path.relative_to(root).parts]
    assert len(read) >= 10
    for path in read:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name for name in names if name.startswith("pipelines.sim")]
            assert not found, f"{path.name} imports {found[0]}: the truth is the report's alone"

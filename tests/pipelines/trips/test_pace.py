"""The pacer, with a clock that is moved by hand."""

from __future__ import annotations

import pytest

from pipelines.trips.pace import Pacer


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def _pacer(speed: float | None) -> tuple[Pacer, Clock]:
    clock = Clock()
    return Pacer(speed, clock=clock, sleep=clock.sleep), clock


def test_simulated_time_never_runs_faster_than_the_speed() -> None:
    pacer, clock = _pacer(30)
    for at_ms in range(0, 600_001, 3_000):
        pacer.wait_for(at_ms)
        assert clock.now_s - 100 >= at_ms / 1000 / 30 - 1e-9
    assert clock.now_s - 100 == pytest.approx(20)


def test_work_between_events_is_not_waited_for_twice() -> None:
    pacer, clock = _pacer(10)
    pacer.wait_for(0)
    clock.now_s += 0.3  # the engine took its time
    pacer.wait_for(5_000)
    assert clock.slept == [pytest.approx(0.2)]


def test_an_idle_stretch_is_cut_to_one_second_and_counted() -> None:
    pacer, clock = _pacer(10)
    pacer.wait_for(0)
    pacer.wait_for(100_000)  # 10 s of wall time
    assert clock.slept == [pytest.approx(1.0)]
    assert pacer.skipped_ms == 90_000


def test_after_a_pause_at_most_two_seconds_are_caught_up() -> None:
    pacer, clock = _pacer(10)
    pacer.wait_for(0)
    clock.now_s += 60  # training
    for step in range(1, 100):
        pacer.wait_for(step * 1_000)
    # 99 steps of 0.1 s are 9.9 s; 2 s of them were owed.
    assert sum(clock.slept) == pytest.approx(9.9 - 2, abs=0.11)


def test_without_a_speed_nothing_waits_and_a_speed_of_zero_is_refused() -> None:
    pacer, clock = _pacer(None)
    pacer.wait_for(0)
    pacer.wait_for(10**9)
    assert clock.slept == []
    with pytest.raises(ValueError, match="speed is 0"):
        Pacer(0)

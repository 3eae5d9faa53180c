"""Assignment is a pure function: shares are met, raising one moves nobody out, salts are independent, windows half-open."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.experiment import HELD_OUT, STEPS, UNEXPOSED, assign, lay_out, num_steps, window_of
from engine.experiment_log import assign_many
from engine.strategy import Arm, Experiment, Layer
from features.expr.hashing import draw64_array, unit_keys
from tests.chance import independence_p
from tests.engine.assignment_vectors import HALF_HOUR, experiment
from tests.engine.assignments import arm_of, strategy_of
from tests.engine.growthbook import choose_variation, growthbook_hash
from tests.engine.naive_assignment import arm_or_why

UNITS = [f"o-{number}" for number in range(40_000)]
KEYS = unit_keys(UNITS)
CITY_ZONES = [str(zone) for zone in range(1, 264)]
HOUR = 3_600_000


def arms(*shares: float) -> tuple[Arm, ...]:
    return tuple(Arm(name=f"arm{at}", share=share, set={"p": at}) for at, share in enumerate(shares))


def owners(shares: list[float]) -> np.ndarray:
    """The arm of every 64th bucket. Shapes: returns (STEPS / 64,) int64."""
    found = lay_out(shares)
    buckets = np.arange(0, STEPS, 64)
    return np.asarray(found.arms)[np.searchsorted(np.asarray(found.starts), buckets, side="right") - 1]


# ---------- shares and exposure ----------


def test_shares_are_met_within_binomial_bounds() -> None:
    shares = [0.5, 0.3, 0.2]
    sides = assign_many(
        experiment(arms=arms(*shares), exposure=0.6), Layer(name="ranking", holdout=0.1, salt="h"), UNITS
    )
    wanted = {HELD_OUT: 0.1, UNEXPOSED: 0.9 * 0.4, **{at: 0.9 * 0.6 * share for at, share in enumerate(shares)}}
    for side, share in wanted.items():
        seen = int((sides == side).sum())
        assert abs(seen - len(UNITS) * share) < 5 * (len(UNITS) * share * (1 - share)) ** 0.5, (side, seen)


@given(
    shares=st.lists(st.integers(0, 100), min_size=2, max_size=6).filter(any),
    raised=st.integers(0, 5),
    losses=st.lists(st.integers(0, 100), min_size=6, max_size=6),
)
def test_raising_one_share_keeps_everybody_in_that_arm(shares: list[int], raised: int, losses: list[int]) -> None:
    # Before and after, in parts of a whole: one arm gains what the others lose, each as much as it likes.
    raised %= len(shares)
    total = sum(shares)
    lost = [
        0 if at == raised else min(share, loss) for at, (share, loss) in enumerate(zip(shares, losses, strict=False))
    ]
    changed = [share - loss for share, loss in zip(shares, lost, strict=True)]
    changed[raised] += sum(lost)
    before, after = owners([share / total for share in shares]), owners([share / total for share in changed])
    assert ((after == raised) | (before != raised)).all()


@given(low=st.floats(0, 1), high=st.floats(0, 1), num_arms=st.integers(1, 6), holdout=st.floats(0, 0.5))
def test_raising_exposure_moves_nobody_who_is_in(low: float, high: float, num_arms: int, holdout: float) -> None:
    low, high = min(low, high), max(low, high)
    layer = Layer(name="ranking", holdout=holdout, salt="h")
    split = arms(*[1 / num_arms] * num_arms)
    before = assign_many(experiment(arms=split, exposure=low), layer, UNITS[:1000])
    after = assign_many(experiment(arms=split, exposure=high), layer, UNITS[:1000])
    assert (after[before != UNEXPOSED] == before[before != UNEXPOSED]).all()


def test_ten_percent_to_twenty_moves_nobody_and_doubles_who_is_in() -> None:  # T27
    before, after = (assign_many(experiment(exposure=exposure), None, UNITS) for exposure in (0.1, 0.2))
    inside = before >= 0
    assert (after[inside] == before[inside]).all()
    assert 0.19 < float((after >= 0).mean()) < 0.21 and 0.09 < float(inside.mean()) < 0.11


def test_raising_the_holdout_only_takes_units_out() -> None:
    before, after = (
        assign_many(experiment(), Layer(name="ranking", holdout=share, salt="h"), UNITS) for share in (0.05, 0.1)
    )
    assert set(np.flatnonzero(before == HELD_OUT)) < set(np.flatnonzero(after == HELD_OUT))
    stay = after != HELD_OUT
    assert (after[stay] == before[stay]).all()


def test_ramp_at_the_expense_of_the_other_arm_only_adds_units() -> None:
    previous: set[int] = set()
    for share in (0.01, 0.05, 0.1, 0.5, 0.8, 1.0):
        current = set(np.flatnonzero(assign_many(experiment(arms=arms(1 - share, share)), None, UNITS) == 1).tolist())
        assert previous <= current
        previous = current
    assert len(previous) == len(UNITS)


def test_arm_holdout_and_exposure_say_nothing_about_each_other() -> None:
    # Inside a 10 % exposure, and outside a 20 % holdout, the arms are as even as outside: the salts differ.
    free = assign_many(experiment(), None, UNITS)
    cut = assign_many(experiment(exposure=0.1), Layer(name="ranking", holdout=0.2, salt="h"), UNITS)
    for inside in (cut >= 0, cut == UNEXPOSED, cut == HELD_OUT):
        share = float(free[inside].mean())
        assert abs(share - 0.5) < 5 * 0.5 / int(inside.sum()) ** 0.5, share


def test_buckets_tile_the_draw_exactly() -> None:
    for shares in ([1.0], [0.5, 0.5], [0.9, 0.1], [1 / 3] * 3, [0.0, 0.5, 0.0, 0.5, 0.0], [0.333333] * 3):
        found = lay_out(shares)
        edges = [*found.starts, STEPS]
        assert edges[0] == 0 and edges == sorted(set(edges))
        owned = {arm: (high - low) / STEPS for arm, low, high in zip(found.arms, edges, edges[1:], strict=False)}
        assert [owned.get(arm, 0.0) for arm in range(len(shares))] == pytest.approx(shares, abs=3e-6)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([], "no arm"),
        ([0.7, 0.4], "add up to 1.1, not to 1"),
        ([0.1, 0.1], "add up to 0.2, not to 1"),
        ([-0.1, 1.1], r"\[0, 1\]"),
        ([float("nan"), 1.0], r"\[0, 1\]"),
    ],
)
def test_wrong_shares_are_refused(shares: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lay_out(shares)


def test_an_arm_starts_at_its_edge_and_ends_before_the_next() -> None:  # T23, in our buckets
    found = lay_out([0.25, 0.25, 0.5])
    assert found.starts == (0, num_steps(0.25), num_steps(0.5))
    keys = unit_keys([str(number) for number in range(200_000)])
    buckets = (draw64_array("s", keys) >> np.uint64(40)).astype(np.int64)
    sides = assign_many(experiment(salt="s", arms=arms(0.25, 0.25, 0.5)), None, np.arange(200_000))
    for at, edge in ((1, num_steps(0.25)), (2, num_steps(0.5))):
        nearest_below, nearest_above = buckets[buckets < edge].max(), buckets[buckets >= edge].min()
        assert sides[buckets == nearest_below].tolist() == [at - 1] and sides[buckets == nearest_above].tolist() == [at]


# ---------- handed-over cases in GrowthBook's terms ----------


@pytest.mark.parametrize(
    ("seed", "value", "version", "wanted"),
    [
        ("", "a", 1, 0.22),
        ("", "b", 1, 0.077),
        ("b", "a", 1, 0.946),
        ("", "def", 1, 0.652),
        ("asdf", "8952klfjas09ujk", 1, 0.549),
        ("", "123", 1, 0.011),
        ("", '___)((*":&', 1, 0.563),
        ("feature", "123", 1, 0.863),
        ("feature", "456", 1, 0.178),
        ("feature", "fds", 1, 0.514),
        ("seed", "a", 2, 0.0505),
        ("foo", "def", 2, 0.2019),
        ("feature", "123", 2, 0.5231),
        ("abc", "def", 99, None),
    ],
)
def test_growthbook_hashes_are_known(seed: str, value: str, version: int, wanted: float | None) -> None:  # T21
    assert growthbook_hash(seed, value, version) == wanted


def test_growthbook_ranges_are_open_at_their_end() -> None:  # T23
    assert choose_variation(0.5, [(0, 0.5), (0.5, 0.5), (0.5, 1)]) == 2
    assert choose_variation(0.25, [(0, 0.25), (0.5, 0.75)]) is None
    assert [choose_variation(found, [(0, 0.5), (0.5, 1)]) for found in (0.0, 0.2, 0.5, 0.8)] == [0, 0, 1, 1]


def test_two_experiments_are_independent_where_growthbook_v1_is_not() -> None:  # T25
    numbers = np.arange(200_000)
    sides = [assign_many(experiment(salt=salt), None, numbers) for salt in ("exp-1", "exp-2")]
    assert independence(sides[0], sides[1]) > 0.001
    draws = [draw64_array(salt, unit_keys(numbers)).astype(np.float64) for salt in ("exp-1", "exp-2")]
    assert abs(float(np.corrcoef(draws[0], draws[1])[0, 1])) < 0.01
    old = [
        np.array([(growthbook_hash(seed, str(number), 1) or 0.0) >= 0.5 for number in range(50_000)]).astype(np.int16)
        for seed in ("exp-1", "exp-2")
    ]
    assert independence(old[0], old[1]) < 1e-6  # so the bound above can fail


def independence(first: np.ndarray, second: np.ndarray) -> float:
    return independence_p(np.bincount(first * 2 + second, minlength=4).reshape(2, 2))


# ---------- switchback ----------


def switchback(**changes: object) -> Experiment:
    return experiment(**{"kind": "switchback", "unit": "", "region": "zone", "window_ms": HALF_HOUR, **changes})


@pytest.mark.parametrize("offset", ["none", "hashed"])
def test_a_region_has_one_arm_through_a_window_whenever_it_is_asked(offset: str) -> None:  # T29
    #        first ms            last ms │ first ms of the next
    #  ──────[·······················────·)[·──────
    found = switchback(offset=offset, exposure=0.9)
    layer = Layer(name="ranking", holdout=0.05, salt="h")
    rng = random.Random(29)
    asked: list[tuple[str, int, str]] = []
    for zone in ("1", "132", "zone-π"):
        for near in (-HALF_HOUR, -1, 0, 1_725_000_000_000, 4_102_444_800_000):
            window = window_of(found, zone, near)
            assert window.end_ms - window.start_ms == HALF_HOUR and window.start_ms <= near < window.end_ms
            assert window_of(found, zone, window.end_ms).index == window.index + 1
            assert window_of(found, zone, window.start_ms - 1).index == window.index - 1
            inside = [
                window.start_ms,
                window.end_ms - 1,
                *(rng.randrange(window.start_ms, window.end_ms) for _ in range(5)),
            ]
            wanted = arm_or_why(found, layer, zone, near)
            asked += [(zone, as_of_ms, wanted) for as_of_ms in inside]
    for _ in range(3):  # later, and out of order
        rng.shuffle(asked)
        assert [arm_of(found, layer, zone, as_of_ms) for zone, as_of_ms, _ in asked] == [arm for _, _, arm in asked]


def test_regions_switch_each_on_their_own_and_windows_are_drawn_not_alternated() -> None:
    found = switchback(window_ms=HOUR)
    times = np.arange(0, 2000) * HOUR
    one, two = (assign_many(found, None, [zone] * len(times), times) for zone in ("1", "2"))
    assert abs(float((one == two).mean()) - 0.5) < 5 * 0.5 / len(times) ** 0.5
    for sides in (one, two):
        assert abs(float((sides[1:] == sides[:-1]).mean()) - 0.5) < 5 * 0.5 / len(times) ** 0.5  # alternation: never
        assert abs(float(sides.mean()) - 0.5) < 5 * 0.5 / len(times) ** 0.5


def test_switchback_shares_are_respected() -> None:
    found = switchback(arms=arms(0.7, 0.2, 0.1))
    zones = np.repeat(np.arange(1, 264), 200)
    times = np.tile(np.arange(200) * HALF_HOUR, 263)
    sides = assign_many(found, None, zones, times)
    for side, share in enumerate((0.7, 0.2, 0.1)):
        assert abs(float((sides == side).mean()) - share) < 5 * (share * (1 - share) / len(sides)) ** 0.5


def test_hashed_offsets_spread_the_switches_of_regions_over_the_window() -> None:
    together = {window_of(switchback(), zone, 10 * HALF_HOUR).start_ms % HALF_HOUR for zone in CITY_ZONES}
    spread = [window_of(switchback(offset="hashed"), zone, 10 * HALF_HOUR).start_ms % HALF_HOUR for zone in CITY_ZONES]
    assert together == {0}
    assert np.histogram(spread, bins=4, range=(0, HALF_HOUR))[0].min() > len(CITY_ZONES) / 4 * 0.6


# ---------- what a Decision says ----------


def test_arms_say_who_was_held_out_or_not_exposed_and_set_nothing_for_them() -> None:
    layer = Layer(name="ranking", holdout=0.3, salt="h")
    compiled = strategy_of(experiment(arms=arms(0.5, 0.5), exposure=0.5), layers={"ranking": layer})
    seen = {}
    for unit in UNITS[:200]:
        found = assign(compiled, {"order_id": unit}, 0)
        seen[found.arms["learned"]] = found.params
    assert seen == {"holdout": {}, "not_exposed": {}, "arm0": {"p": 0}, "arm1": {"p": 1}}


def test_a_whole_number_and_its_text_are_one_unit() -> None:
    for number in (0, 7, -7, 2**63 - 1):
        assert arm_of(experiment(unit="zone"), None, number) == arm_of(experiment(unit="zone"), None, str(number))


def test_experiments_of_other_layers_do_not_share_a_holdout() -> None:
    layers = {name: Layer(name=name, holdout=0.5, salt=f"s:{name}:holdout") for name in ("ranking", "core")}
    compiled = strategy_of(experiment(), experiment(name="other", layer="core", salt="s:other"), layers=layers)
    pairs = [tuple(assign(compiled, {"order_id": unit}, 0).arms.values()) for unit in UNITS[:4000]]
    both = sum(pair == ("holdout", "holdout") for pair in pairs) / len(pairs)
    assert abs(both - 0.25) < 5 * (0.25 * 0.75 / len(pairs)) ** 0.5

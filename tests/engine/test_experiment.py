"""Assignment is a pure hash: stable, even, independent between salts, and a raised share only adds units."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.experiment import STEPS, UNASSIGNED, hash01, hash64, hash64_array, lay_out

UNITS = [f"o-{number}" for number in range(40_000)]


PUBLISHED = {
    ("salt", "o-1"): 0x6210AEDF83353B61,
    ("", ""): 0x092C2DDB6077FD68,
    ("express_dispatch:learned_ranking", "o-πέντε"): 0xE31DEA68C9F5DD5E,
}


def test_hash_has_published_values() -> None:
    # These values are a contract: a changed hash would move every unit of every running experiment.
    assert {key: hash64(*key) for key in PUBLISHED} == PUBLISHED


def test_array_hash_equals_the_single_one() -> None:
    units = ["", "a", "o-1", "o-10", "driver-πέντε", "x" * 200]
    assert hash64_array("salt", units).tolist() == [hash64("salt", unit) for unit in units]
    assert hash64_array("salt", []).tolist() == []


def test_array_assignment_equals_the_single_one() -> None:
    bucketing = lay_out([0.3, 0.2, 0.1])
    arms = bucketing.arms_of("s", UNITS[:2000])
    assert arms.tolist() == [bucketing.arm_of("s", unit) for unit in UNITS[:2000]]
    assert set(arms.tolist()) == {UNASSIGNED, 0, 1, 2}


def test_shares_are_met_within_binomial_bounds() -> None:
    shares = [0.5, 0.3, 0.2]
    arms = lay_out(shares).arms_of("shares", UNITS)
    for arm, share in enumerate(shares):
        seen = int((arms == arm).sum())
        bound = 5 * (len(UNITS) * share * (1 - share)) ** 0.5
        assert abs(seen - len(UNITS) * share) < bound, (arm, seen)


def test_two_salts_are_independent() -> None:
    halves = lay_out([0.5, 0.5])
    one, two = halves.arms_of("layer-a", UNITS), halves.arms_of("layer-b", UNITS)
    agree = float((one == two).mean())
    assert abs(agree - 0.5) < 5 * 0.5 / len(UNITS) ** 0.5, agree
    fine_one = hash64_array("layer-a", UNITS).astype(np.float64)
    fine_two = hash64_array("layer-b", UNITS).astype(np.float64)
    assert abs(float(np.corrcoef(fine_one, fine_two)[0, 1])) < 5 / len(UNITS) ** 0.5


@pytest.mark.parametrize("seed", range(20))
def test_raising_one_share_only_adds_units_to_that_arm(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    num_arms = rng.randint(1, 3)
    cuts = sorted(rng.random() for _ in range(num_arms + 1))
    before = [high - low for low, high in zip([0.0, *cuts], cuts, strict=False)][:num_arms]
    arm = rng.randrange(num_arms)
    after = list(before)
    after[arm] = before[arm] + rng.random() * (1 - sum(before))
    old, new = lay_out(before).arms_of("s", UNITS[:5000]), lay_out(after).arms_of("s", UNITS[:5000])
    assert set(np.flatnonzero(old == arm)) <= set(np.flatnonzero(new == arm))


def test_ramp_at_the_expense_of_the_other_arm_only_adds_units() -> None:
    previous: set[int] = set()
    for share in (0.01, 0.05, 0.1, 0.5, 0.8, 1.0):
        arms = lay_out([1 - share, share]).arms_of("ramp", UNITS)
        current = set(np.flatnonzero(arms == 1).tolist())
        assert previous <= current
        previous = current
    assert len(previous) == len(UNITS)


def test_buckets_tile_the_layer_exactly() -> None:
    for shares in ([1.0], [0.5, 0.5], [0.9, 0.1], [1 / 3, 1 / 3, 1 / 3], [0.45, 0.45, 0.1], [0.0, 0.2]):
        bucketing = lay_out(shares)
        edges = [*bucketing.starts, STEPS]
        assert edges[0] == 0 and edges == sorted(set(edges))
        owned = [0.0] * len(shares)
        for low, high, arm in zip(edges, edges[1:], bucketing.arms, strict=False):
            if arm != UNASSIGNED:
                owned[arm] += (high - low) / STEPS
        assert owned == pytest.approx(shares, abs=2 / STEPS)


def test_wrong_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1"):
        lay_out([0.7, 0.4])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        lay_out([-0.1, 0.4])


def test_draw_is_even_and_below_one() -> None:
    draws = np.array([hash01("explore", unit) for unit in UNITS[:10_000]])
    assert draws.min() >= 0.0 and draws.max() < 1.0
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    chi_square = float(((counts - 500) ** 2 / 500).sum())
    assert chi_square < 50, chi_square  # 19 degrees of freedom: 50 has probability 1e-4, and the hash is fixed

"""Chances are a distribution over what is kept, exactly 0 elsewhere, and the draw keeps to them."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.experiment import hash01
from engine.propensity import draw, propensities
from engine.strategy import Explore

SCORES = st.lists(st.floats(-50, 50), min_size=1, max_size=60).map(lambda values: sorted(values, reverse=True))
WIDE_SCORES = st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=60).map(
    lambda values: sorted(values, reverse=True)
)
EXPLORES = st.one_of(
    st.just(Explore(kind="none")),
    st.floats(0, 1).map(lambda value: Explore(kind="epsilon", epsilon=value)),
    st.floats(1e-6, 1e6).map(lambda value: Explore(kind="softmax", temperature=value)),
    st.builds(
        lambda temperature, top_k: Explore(kind="top_k_softmax", temperature=temperature, top_k=top_k),
        st.floats(1e-6, 1e6),
        st.integers(1, 80),
    ),
)


@settings(max_examples=500, deadline=None)
@given(scores=SCORES | WIDE_SCORES, explore=EXPLORES)
def test_chances_are_a_distribution_in_ranking_order(scores: list[float], explore: Explore) -> None:
    chances = propensities(explore, scores)
    assert len(chances) == len(scores)
    assert abs(math.fsum(chances) - 1.0) <= 1e-12
    assert all(0.0 <= chance <= 1.0 + 1e-12 for chance in chances)
    assert all(first >= second - 1e-15 for first, second in pairwise(chances))


@settings(max_examples=300, deadline=None)
@given(scores=SCORES, explore=EXPLORES, u=st.floats(0, 1, exclude_max=True))
def test_draw_never_takes_what_has_no_chance(scores: list[float], explore: Explore, u: float) -> None:
    chances = propensities(explore, scores)
    place = draw(chances, u)
    assert place is not None and chances[place] > 0.0


@settings(max_examples=300, deadline=None)
@given(chances=st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.25, 1e-17]), max_size=8), u=st.floats(0, 1, exclude_max=True))
def test_draw_is_the_first_place_whose_sum_exceeds_u(chances: list[float], u: float) -> None:
    total, expected = 0.0, None
    for place, chance in enumerate(chances):
        total += chance
        if chance > 0.0:
            expected = place
            if u < total:
                break
    assert draw(chances, u) == expected


@settings(max_examples=300, deadline=None)
@given(scores=SCORES, temperature=st.floats(1e-3, 100), top_k=st.integers(1, 80))
def test_softmax_over_the_best_few_is_softmax_of_them_and_exactly_0_beyond(
    scores: list[float], temperature: float, top_k: int
) -> None:
    chances = propensities(Explore(kind="top_k_softmax", temperature=temperature, top_k=top_k), scores)
    assert chances[:top_k] == propensities(Explore(kind="softmax", temperature=temperature), scores[:top_k])
    assert chances[top_k:] == [0.0] * (len(scores) - top_k)


@settings(max_examples=200, deadline=None)
@given(scores=SCORES, temperature=st.floats(1e-2, 100))
def test_softmax_is_the_exact_share_to_a_few_ulps(scores: list[float], temperature: float) -> None:
    chances = propensities(Explore(kind="softmax", temperature=temperature), scores)
    weights = [Fraction(math.exp((score - scores[0]) / temperature)) for score in scores]
    for chance, weight in zip(chances, weights, strict=True):
        exact = weight / sum(weights)
        assert abs(Fraction(chance) - exact) <= Fraction(2.0**-52) * exact + Fraction(5e-324)


def test_kinds_by_example() -> None:
    scores = [3.0, 2.0, 1.0, 0.0]
    assert propensities(Explore(kind="none"), scores) == [1.0, 0.0, 0.0, 0.0]
    assert propensities(Explore(kind="epsilon", epsilon=0.5), scores) == [0.625, 0.125, 0.125, 0.125]
    assert propensities(Explore(kind="epsilon", epsilon=1.0), scores) == [0.25] * 4
    assert propensities(Explore(kind="softmax", temperature=1e-6), scores) == [1.0, 0.0, 0.0, 0.0]
    assert propensities(Explore(kind="top_k_softmax", temperature=1.0, top_k=1), scores) == [1.0, 0.0, 0.0, 0.0]
    assert propensities(Explore(kind="softmax", temperature=2.0), [1.0, 1.0]) == [0.5, 0.5]
    for kind in ("none", "epsilon", "softmax", "top_k_softmax"):
        assert propensities(Explore(kind=kind, temperature=1.0, top_k=3), []) == []


def test_draw_of_nothing_is_nothing() -> None:
    assert draw([], 0.5) is None


@pytest.mark.parametrize("kind", ["softmax", "epsilon", "top_k_softmax"])
def test_draws_match_the_logged_chances(kind: str) -> None:
    seed, num_draws = 20_260_101, 60_000
    print("seed", seed)
    explore = Explore(kind=kind, epsilon=0.3, temperature=0.5, top_k=3, salt="frequency")
    chances = propensities(explore, [1.0, 0.8, 0.5, 0.0, -3.0])
    counts = [0] * len(chances)
    for number in range(num_draws):
        place = draw(chances, hash01(explore.salt, f"decision-{seed}-{number}"))
        assert place is not None
        counts[place] += 1
    for count, chance in zip(counts, chances, strict=True):
        bound = 5 * math.sqrt(num_draws * chance * (1 - chance))
        assert abs(count - num_draws * chance) <= bound, (counts, chances)

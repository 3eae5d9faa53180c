"""A percentile read from the histogram is never too low and at most one bucket too high."""

from __future__ import annotations

import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.freshness import BUCKETS_PER_DOUBLING, bucket_of, pack_histogram, percentile_ms


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_percentiles_are_within_one_bucket(ages: list[int], share: float) -> None:
    buckets = Counter(bucket_of(np.array(ages)).tolist())
    exact = sorted(ages)[max(int(np.ceil(share * len(ages))) - 1, 0)]
    got = percentile_ms(buckets, share)
    assert got is not None
    assert exact - 1e-6 * (exact + 1) <= got <= (exact + 1) * 2 ** (1 / BUCKETS_PER_DOUBLING) * (1 + 1e-9)


def test_an_empty_histogram_has_no_percentile_and_negative_ages_count_as_none() -> None:
    assert percentile_ms({}, 0.5) is None
    assert bucket_of(np.array([-5, 0])).tolist() == [0, 0]


def test_the_packed_form_counts_every_age_once() -> None:
    packed = pack_histogram(np.array([0, 0, 100, 5000]))
    pairs = [struct.unpack_from("<II", packed, at) for at in range(0, len(packed), 8)]
    assert sum(count for _, count in pairs) == 4 and pairs == sorted(pairs)
    assert pairs[0] == (0, 2)


@pytest.mark.parametrize("age_ms", [1, 10, 999, 10**9])
def test_bucket_edges_enclose_their_ages(age_ms: int) -> None:
    bucket = int(bucket_of(np.array([age_ms]))[0])
    assert 2 ** (bucket / BUCKETS_PER_DOUBLING) - 1 <= age_ms < 2 ** ((bucket + 1) / BUCKETS_PER_DOUBLING)

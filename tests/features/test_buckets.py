"""The bucket rule: Python, NumPy and DuckDB agree on every edge and on a million integers; Flink is asked by
tests/pipelines/test_feature_job.py."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import numpy as np
import pytest

from features.buckets import (
    LIMIT,
    MIDPOINTS,
    NO_VALUE,
    NUM_BUCKETS,
    bounds_of,
    bucket_of,
    buckets_of,
    midpoint_of,
    quantized,
    rank_of,
    sql_bucket,
    sql_quantized,
)

EDGES = sorted(
    {
        sign * value
        for power in range(43)
        for part in range(16, 33)
        for near in (-1, 0, 1)
        for sign in (1, -1)
        if abs(value := (part << power >> 4) + near) < LIMIT
    }
    | {0, 1, -1, LIMIT - 1, 1 - LIMIT}
)


def random_values(seed: int, num: int) -> np.ndarray:
    """Every size from nothing to the limit is as likely as any other, on both sides."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 43, num)
    values = rng.integers(0, LIMIT, num) >> (42 - sizes)
    return np.where(rng.random(num) < 0.5, -values, values)


def test_buckets_follow_each_other_without_gap_or_overlap() -> None:
    after = -LIMIT
    for bucket in range(1, NUM_BUCKETS):
        low, high = bounds_of(bucket)
        assert low == after + 1 and low <= high
        assert bucket_of(low) == bucket_of(high) == bucket
        after = high
    assert after == LIMIT - 1


def test_middle_of_a_bucket_is_within_a_32nd_of_its_values() -> None:
    for bucket in range(1, NUM_BUCKETS):
        for value in bounds_of(bucket):
            assert abs(Fraction(midpoint_of(bucket)) - value) * 32 <= abs(value)
    assert MIDPOINTS[1:].tolist() == [midpoint_of(b) for b in range(1, NUM_BUCKETS)] and math.isnan(MIDPOINTS[NO_VALUE])
    assert [midpoint_of(bucket_of(value)) for value in range(-31, 32)] == list(range(-31, 32))


@pytest.mark.parametrize("seed", [1])
def test_python_numpy_and_duckdb_agree_on_edges_and_a_million_values(seed: int) -> None:
    print(f"seed {seed}")
    values = np.concatenate([np.array(EDGES), random_values(seed, 1_000_000)])
    want = np.fromiter(map(bucket_of, values.tolist()), dtype=np.int64, count=len(values))
    assert np.array_equal(buckets_of(values), want)
    assert len(np.unique(want)) == NUM_BUCKETS - 1
    with duckdb.connect() as db:
        db.register("input", {"v": values})
        got = db.sql(f"SELECT {sql_bucket('v', dialect='duckdb')} AS bucket FROM input").fetchnumpy()["bucket"]
        nothing = db.sql(f"SELECT {sql_bucket('CAST(NULL AS BIGINT)', dialect='duckdb')}").fetchall()
    assert np.array_equal(got, want)
    assert nothing == [(NO_VALUE,)]


def test_value_beyond_the_limit_has_no_bucket() -> None:
    for value in (LIMIT, -LIMIT, 2**63 - 1, -(2**63)):
        assert buckets_of(np.array([value]))[0] == NO_VALUE
        assert quantized(value, 1) is None
        with pytest.raises(ValueError, match=r"not within ±2\^42"):
            bucket_of(value)
    for bucket in (NO_VALUE, NUM_BUCKETS, -1):
        with pytest.raises(ValueError, match="not a bucket of values"):
            bounds_of(bucket)


INTS = [*EDGES, LIMIT, -LIMIT, 2**53 + 1, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, -0.0, 0.0005, 0.0015, -0.0005, -0.0015, 0.1, 1e-300, 5e-324, 0.49999999999999994, 1e9, 1e308, -1e308]
DOUBLES += [math.inf, -math.inf, math.nan, *(sign * (LIMIT + by) * 0.001 for by in (-2, -1, -0.5, 0, 1) for sign in (1, -1))]  # fmt: skip


@pytest.mark.parametrize("resolution", [1.0, 0.001, 10.0, 0.3, 1e-6])
@pytest.mark.parametrize("kind", ["int", "double"])
def test_steps_of_a_resolution_are_the_same_in_duckdb(kind: str, resolution: float) -> None:
    rng = np.random.default_rng(7)
    if kind == "int":
        values = np.array([*INTS, *random_values(7, 2_000).tolist()], dtype=np.int64)
    else:
        values = np.array([*DOUBLES, *(rng.normal(size=2_000) * 10.0 ** rng.integers(-6, 12, 2_000))])
    with duckdb.connect() as db:
        db.register("input", {"v": values})
        sql = sql_quantized("v", kind, resolution, dialect="duckdb")
        got = [row[0] for row in db.sql(f"SELECT {sql} FROM input").fetchall()]
    want = [quantized(value, resolution) for value in values.tolist()]
    assert got == want and None in want
    exact = [(w, v) for w, v in zip(want, values.tolist(), strict=True) if w is not None]
    assert all(abs(w * Fraction(resolution) - Fraction(v)) <= Fraction(resolution) * 51 / 100 for w, v in exact)


def test_rank_is_the_ceiling_of_the_exact_product() -> None:
    assert rank_of(0.07, 100) == 7  # 0.07 * 100 is 7.000000000000001
    assert [rank_of(q, 20) for q in (0.0, 0.05, 0.5, 0.95, 0.951, 1.0)] == [1, 1, 10, 19, 20, 20]
    assert [rank_of(0.5, n) for n in (1, 2, 3)] == [1, 1, 2]
    with pytest.raises(ValueError, match="not within 0 and 1"):
        rank_of(1.5, 10)

"""Log-linear buckets of integers: the one rule behind `quantile`, in Python, NumPy and SQL, equal bit for bit.

Below 16 each integer is a bucket of its own. Above, every octave [2^e, 2^(e+1)) is cut into 16 equal parts, so a bucket's
middle is within 1/32 of each value in it. Negative values mirror positive ones. Only comparisons and whole division, no
logarithm: no two systems round one alike.

    value      … -17 -16 … -1   0   1 … 15  16 17 … 31  32,33  34,35 …
    bucket     … 607 608 … 623 624 625 … 639 640 641 … 655  656    657 …      0: no value at all

A row of a bucketed tile group has the number tile * NUM_BUCKETS + bucket. `quantized` makes the integers: a value in
steps of the feature's resolution; so do the exact moments behind `stddev`. Read `aggregate.py` next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

SUB_BITS: Final = 4
LIMIT_BITS: Final = 42
LIMIT: Final = 1 << LIMIT_BITS  # a value is a bucket's, and a moment's, where |value| < LIMIT
NO_VALUE: Final = 0  # the bucket of events that `where` leaves out or that have no value within the limit
_SIDE: Final = (LIMIT_BITS - SUB_BITS + 1) << SUB_BITS  # buckets of 0 and above
_ZERO: Final = _SIDE
NUM_BUCKETS: Final = 2 * _SIDE
MILLIONTHS: Final = 1_000_000  # a quantile is taken in these, so that its rank is whole numbers only


@overload
def quantized(value: float, resolution: float) -> int | None: ...
@overload
def quantized(value: None, resolution: float) -> None: ...
def quantized(value: float | None, resolution: float) -> int | None:
    """The nearest whole number of steps, halves upwards; None for null, for what is not finite and from LIMIT steps on.

    An int in steps of 1 is itself; anything else is divided as doubles.
    """
    if value is None:
        return None
    if isinstance(value, int) and resolution == 1:
        return value if -LIMIT < value < LIMIT else None
    steps = float(value) / resolution + 0.5
    if not -LIMIT <= steps <= LIMIT:  # also NaN; keeps floor from what it cannot do
        return None
    whole = math.floor(steps)
    return whole if -LIMIT < whole < LIMIT else None


def bucket_of(value: int) -> int:
    """1 … NUM_BUCKETS - 1. Raises: ValueError where |value| >= LIMIT."""
    size = abs(value)
    if size >= LIMIT:
        raise ValueError(f"{value} is not within ±2^{LIMIT_BITS}")
    shift = max(size.bit_length() - SUB_BITS - 1, 0)
    place = (shift << SUB_BITS) + (size >> shift)
    return _ZERO - place if value < 0 else _ZERO + place


def buckets_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """`bucket_of` of (N,) int64, NO_VALUE where |value| >= LIMIT."""
    inside = (values > -LIMIT) & (values < LIMIT)
    size = np.where(inside, np.abs(values), 0)
    length = np.frexp(size.astype(np.float64))[1]  # exact below 2^53: the number of bits
    shift = np.maximum(length - SUB_BITS - 1, 0).astype(np.int64)
    place = (shift << SUB_BITS) + (size >> shift)
    return np.where(inside, np.where(values < 0, _ZERO - place, _ZERO + place), NO_VALUE)


def bounds_of(bucket: int) -> tuple[int, int]:
    """Least and greatest value of a bucket. Raises: ValueError for NO_VALUE and for what is no bucket."""
    if not 0 < bucket < NUM_BUCKETS:
        raise ValueError(f"{bucket} is not a bucket of values: those are 1 to {NUM_BUCKETS - 1}")
    place = abs(bucket - _ZERO)
    shift = max((place >> SUB_BITS) - 1, 0)
    low = (place - (shift << SUB_BITS)) << shift
    high = low + (1 << shift) - 1
    return (-high, -low) if bucket < _ZERO else (low, high)


def midpoint_of(bucket: int) -> float:
    """Halfway between the bounds: within 1/32 of every value of the bucket."""
    low, high = bounds_of(bucket)
    return (low + high) / 2


MIDPOINTS: Final = np.array([math.nan, *(midpoint_of(bucket) for bucket in range(1, NUM_BUCKETS))])


def rank_of(q: float, count: int) -> int:
    """Which value, counted from 1, is the q-th quantile of `count` values: ceil(q * count), at least the first.

    `q` counts in whole millionths: as doubles, 0.07 * 100 is above 7.
    """
    return max(1, -(-millionths(q) * count // MILLIONTHS))


def millionths(q: float) -> int:
    """A quantile in whole millionths. Raises: ValueError outside 0 to 1."""
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile {q} is not within 0 and 1")
    return round(q * MILLIONTHS)


def sql_quantized(value: str, kind: str, resolution: float, *, dialect: str = "flink") -> str:
    """`quantized` of an SQL value, NULL where it is None. `kind`: "int" (BIGINT) or "double" (DOUBLE)."""
    if dialect not in ("flink", "duckdb"):
        raise ValueError(f"unknown dialect {dialect!r}; known: flink, duckdb")
    if kind == "int" and resolution == 1:
        return f"CASE WHEN {value} > {-LIMIT} AND {value} < {LIMIT} THEN {value} END"
    steps = f"FLOOR(CAST({value} AS DOUBLE) / {sql_double(resolution)} + 0.5E0)"
    # NaN is inside for neither: both comparisons say false in Flink, the second in DuckDB, where it is above all.
    return (
        f"CASE WHEN {steps} > {sql_double(-LIMIT)} AND {steps} < {sql_double(LIMIT)} THEN CAST({steps} AS BIGINT) END"
    )


def sql_bucket(column: str, *, dialect: str = "flink") -> str:
    """`bucket_of` of a BIGINT column, NO_VALUE where it is NULL; the column's values are within the limit."""
    divide: Callable[[int], str] = {
        "flink": lambda by: f"ABS({column}) / {by}",
        "duckdb": lambda by: f"ABS({column}) // {by}",
    }[dialect]
    places = [f"WHEN ABS({column}) < {1 << (SUB_BITS + 1)} THEN ABS({column})"]
    for shift in range(1, LIMIT_BITS - SUB_BITS):
        place = f"{shift << SUB_BITS} + {divide(1 << shift)}"
        last = shift == LIMIT_BITS - SUB_BITS - 1
        places.append(f"ELSE {place}" if last else f"WHEN ABS({column}) < {1 << (shift + SUB_BITS + 1)} THEN {place}")
    sign = f"(CASE WHEN {column} < 0 THEN -1 ELSE 1 END)"
    return f"CASE WHEN {column} IS NULL THEN {NO_VALUE} ELSE {_ZERO} + {sign} * (CASE {' '.join(places)} END) END"


def sql_double(value: float) -> str:
    """A literal that both dialects read as a DOUBLE: with an exponent."""
    text = repr(float(value))
    text = text.replace("e", "E") if "e" in text else f"{text}E0"
    return text.replace("E+", "E")

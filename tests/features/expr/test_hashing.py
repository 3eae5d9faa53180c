"""The mixer behind `hash01`, arms and draws: published, even, avalanching, independent between salts; arrays equal singles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from features.expr import hashing
from features.expr.hashing import draw64_array, hash01, hash64, hash64_array, step_key, step_keys, unit_key, unit_keys
from tests.chance import chi_square_p, independence_p

NUM_UNITS = 200_000
NUMBERS = np.arange(NUM_UNITS)
FAMILIES = {
    "ascending": NUMBERS,
    "multiples of 10": NUMBERS * 10,
    "multiples of 4096": NUMBERS * 4096,
    "shifted by 40 bits": NUMBERS << 40,
    "prefixed": pa.array([f"o-{number}" for number in range(NUM_UNITS)]),
}
TEXTS = [
    "",
    "a",
    "o-1",
    "o-10",
    "12345678",
    "123456789",
    "x" * 15,
    "x" * 16,
    "x" * 200,
    "driver-πέντε",
    "🐱",
    "a\0b",
    "\0",
]


def test_the_key_is_murmurhash64a_with_its_known_values() -> None:
    # Values of the reference implementation for seed 0, which other languages ship as a library.
    assert unit_key("") == 0
    assert unit_key("a") == 0x071717D2D36B6B11
    assert unit_key("hello") == 0x1E68D17C457BF117


@pytest.mark.parametrize("order", ["mixed", "short", "equal"])
def test_array_hash_equals_the_single_one(order: str) -> None:
    texts = {"mixed": TEXTS * 3, "short": [t for t in TEXTS if len(t) < 8], "equal": ["12345678", "abcdefgh"]}[order]
    wanted = [hash64("salt", text) for text in texts]
    objects = np.empty(len(texts), dtype=object)
    objects[:] = texts
    arrow = pa.array(["cut off", *texts, "cut off"])
    for units in (texts, tuple(texts), objects, arrow.slice(1, len(texts)), arrow.cast(pa.large_string())[1:-1]):
        assert hash64_array("salt", units).tolist() == wanted
    chunked = pa.chunked_array([pa.array(texts), pa.array(texts)])
    assert hash64_array("salt", chunked).tolist() == wanted * 2
    assert hash64_array("salt", pa.array(texts).dictionary_encode()).tolist() == wanted


def test_more_units_than_a_chunk_are_all_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{number}" * (number % 4) for number in range(100)]
    whole = unit_keys(texts)
    monkeypatch.setattr(hashing, "_CHUNK", 7)
    assert unit_keys(texts).tolist() == whole.tolist() == [unit_key(text) for text in texts]
    assert unit_keys(pa.array(texts)).tolist() == whole.tolist()
    assert draw64_array("s", whole).tolist() == [hash64("s", text) for text in texts]


def test_an_int_is_its_decimal_text() -> None:
    numbers = np.array([0, -1, 7, 10**9, 2**63 - 1, -(2**63)])
    wanted = [unit_key(str(number)) for number in numbers.tolist()]
    assert unit_keys(numbers).tolist() == unit_keys(pa.array(numbers)).tolist() == wanted
    assert unit_keys(np.array([2**64 - 1], dtype=np.uint64)).tolist() == [unit_key(str(2**64 - 1))]


def test_no_units_are_no_keys() -> None:
    nothing: tuple[Any, ...] = ([], np.empty(0, dtype=object), np.empty(0, dtype=np.int64), pa.array([], pa.string()))
    for units in nothing:
        assert unit_keys(units).tolist() == []
    assert unit_keys(pa.array(["", ""])).tolist() == unit_keys(["", ""]).tolist() == [0, 0]


def test_a_null_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 2 units are null"):
        unit_keys(pa.array(["a", None]))


def test_a_unit_that_is_no_text_and_no_whole_number_is_refused() -> None:
    # 1.0 and 1 would be one unit or two, depending on who writes the log.
    with pytest.raises(ValueError, match="not double"):
        unit_keys(pa.array([1.0]))


def test_step_arrays_equal_the_single_one() -> None:
    steps = np.array([0, 1, -1, 2**62, -(2**62)])
    keys = np.array([unit_key("zone")] * 4 + [2**64 - 1], dtype=np.uint64)
    wanted = [step_key(key, step) for key, step in zip(keys.tolist(), steps.tolist(), strict=True)]
    assert step_keys(keys, steps).tolist() == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_buckets_are_even_and_two_salts_independent(family: str) -> None:
    keys = unit_keys(FAMILIES[family])
    one, two = draw64_array("ranking:a", keys), draw64_array("ranking:b", keys)
    for drawn in (one, two):
        high = (drawn >> np.uint64(40)).astype(np.int64) * 10_000 >> 24
        low = (drawn & np.uint64(1023)).astype(np.int64)
        assert chi_square_p(np.bincount(high, minlength=10_000)) > 0.001
        assert chi_square_p(np.bincount(low, minlength=1024)) > 0.001
    halves = (one >> np.uint64(63)).astype(np.int64) * 2 + (two >> np.uint64(63)).astype(np.int64)
    assert independence_p(np.bincount(halves, minlength=4).reshape(2, 2)) > 0.001
    assert abs(np.corrcoef(one.astype(np.float64), two.astype(np.float64))[0, 1]) < 0.01


def test_every_bit_of_a_unit_flips_half_of_the_bits() -> None:
    rng = np.random.default_rng(7)
    for length in (3, 8, 13):
        rows = rng.integers(0, 128, (4000, length), dtype=np.uint8)
        plain = hash64_array("s", [bytes(row).decode() for row in rows])
        for bit in range(0, 7 * length, 5):
            flipped = rows.copy()
            flipped[:, bit // 7] ^= np.uint8(1 << bit % 7)
            changed = plain ^ hash64_array("s", [bytes(row).decode() for row in flipped])
            shares = [float(((changed >> np.uint64(out)) & np.uint64(1)).mean()) for out in range(64)]
            assert max(abs(share - 0.5) for share in shares) < 5 * 0.5 / math.sqrt(len(rows)), (length, bit)


def test_neighbouring_windows_and_regions_are_independent() -> None:
    windows = np.arange(-10_000, 10_000)
    first, second = (
        draw64_array("s", step_keys(np.full(len(windows), unit_key(zone), dtype=np.uint64), windows))
        for zone in ("zone-1", "zone-2")
    )
    signs = [np.where(drawn >> np.uint64(63), 1.0, -1.0) for drawn in (first, second)]
    bound = 4 / math.sqrt(len(windows))
    assert abs(float((signs[0] * signs[1]).mean())) < bound
    for lag in (1, 2, 24, 48, 336):
        assert abs(float((signs[0][:-lag] * signs[0][lag:]).mean())) < bound, lag


def test_draw_is_even_and_below_one() -> None:
    draws = np.array([hash01("explore", f"d-{number}") for number in range(10_000)])
    assert draws.min() >= 0.0 and draws.max() < 1.0
    assert chi_square_p(np.histogram(draws, bins=20, range=(0, 1))[0]) > 0.001

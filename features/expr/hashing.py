"""64 well-mixed bits of (salt, unit): one function behind `hash01` of the language, experiment arms and exploration.

Nothing is stored and no clock is read, so whatever was drawn can be recomputed from a logged record.

The mix: FNV-1a over the UTF-8 bytes of the text, then the finaliser of MurmurHash3 (`fmix64`). Salt and unit are
mixed apart and joined by one more `fmix64`: FNV alone leaves two salts a near-constant distance apart for units of one
length, which is how hash schemes of other products came to have dependent experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

_MASK: Final = (1 << 64) - 1
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_GOLDEN: Final = 0x9E3779B97F4A7C15  # keeps hash(a, b) apart from hash(b, a)


def hash64(salt: str, unit: str) -> int:
    """64 well-mixed bits of (salt, unit). The vectorised form is `hash64_array`; both are one function."""
    return _fmix64(_fmix64(_fnv1a(unit)) ^ _salt_mix(salt))


def hash64_array(salt: str, units: Sequence[str]) -> np.ndarray:
    """`hash64` of many units at once.

    Shapes: units N texts; returns (N,) uint64.
    """
    encoded = [unit.encode() for unit in units]
    longest = max(map(len, encoded), default=0)
    text = np.frombuffer(b"".join(row.ljust(longest, b"\0") for row in encoded), dtype=np.uint8)
    bytes_NL = text.reshape(len(encoded), longest)
    lengths_N = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    state_N = np.full(len(encoded), _FNV_OFFSET, dtype=np.uint64)
    for at in range(longest):
        step_N = (state_N ^ bytes_NL[:, at].astype(np.uint64)) * np.uint64(_FNV_PRIME)
        state_N = np.where(lengths_N > at, step_N, state_N)
    joined_N = _fmix64_array(state_N) ^ np.uint64(_salt_mix(salt))
    return _fmix64_array(joined_N)


def hash01(salt: str, unit: str) -> float:
    """A number in [0, 1): the top 53 bits of `hash64`, so every value is exact in float64."""
    return (hash64(salt, unit) >> 11) * 2.0**-53


@lru_cache(maxsize=1024)  # there are a handful of salts, and one is mixed for every request
def _salt_mix(salt: str) -> int:
    return (_fmix64(_fnv1a(salt)) + _GOLDEN) & _MASK


def _fnv1a(text: str) -> int:
    state = _FNV_OFFSET
    for byte in text.encode():
        state = ((state ^ byte) * _FNV_PRIME) & _MASK
    return state


def _fmix64(value: int) -> int:
    value ^= value >> 33
    value = (value * 0xFF51AFD7ED558CCD) & _MASK
    value ^= value >> 33
    value = (value * 0xC4CEB9FE1A85EC53) & _MASK
    return value ^ (value >> 33)


def _fmix64_array(values: np.ndarray) -> np.ndarray:
    values = values ^ (values >> np.uint64(33))
    values = values * np.uint64(0xFF51AFD7ED558CCD)
    values = values ^ (values >> np.uint64(33))
    values = values * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))

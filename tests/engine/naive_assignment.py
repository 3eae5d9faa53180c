"""Assignment as `engine/vectors/README.md` tells it, a byte and a request at a time: the twin of `engine/experiment.py`.

Nothing here is imported from the product but the record types: it is what someone in another language would write.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from engine.strategy import Experiment, Layer

TWO_64 = 2**64
BUCKETS = 2**24


def murmur64a(text: bytes, seed: int) -> int:
    m, shift = 0xC6A4A7935BD1E995, 47
    h = (seed ^ (len(text) * m)) % TWO_64
    rest = bytes(text)
    while len(rest) >= 8:
        k = sum(byte << (8 * place) for place, byte in enumerate(rest[:8]))
        k = k * m % TWO_64
        k ^= k >> shift
        k = k * m % TWO_64
        h = (h ^ k) * m % TWO_64
        rest = rest[8:]
    if rest:
        for place in reversed(range(len(rest))):
            h ^= rest[place] << (8 * place)
        h = h * m % TWO_64
    h ^= h >> shift
    h = h * m % TWO_64
    return h ^ (h >> shift)


def fmix64(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD % TWO_64
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 % TWO_64
    return h ^ (h >> 33)


GOLDEN = 0x9E3779B97F4A7C15


def key_of(unit: str) -> int:
    return murmur64a(unit.encode("utf-8"), 0)


def draw(salt: str, key: int) -> int:
    return fmix64(key ^ murmur64a(salt.encode("utf-8"), GOLDEN))


def bucket(salt: str, key: int) -> int:
    return draw(salt, key) // 2**40


def steps(share: float) -> int:
    return int(Fraction(share) * BUCKETS + Fraction(1, 2))


def window_index(experiment: Experiment, region: str, as_of_ms: int) -> int:
    offset = 0
    if experiment.offset == "hashed":
        offset = draw(experiment.salt + ":offset", key_of(region)) % experiment.window_ms
    index = 0
    time = as_of_ms - offset
    while time < 0:
        skip = max(1, -time // experiment.window_ms)  # far below 1970 one window at a time would take for ever
        time, index = time + skip * experiment.window_ms, index - skip
    return index + time // experiment.window_ms


def arm_or_why(experiment: Experiment, layer: Layer | None, unit: str, as_of_ms: int) -> str:
    """The name of the arm, `holdout`, or `not_exposed`; `where` was true. For a switchback `unit` is the region."""
    key = key_of(unit)
    if experiment.kind == "switchback":
        key = fmix64((key + window_index(experiment, unit, as_of_ms) * GOLDEN) % TWO_64)
    if layer is not None and bucket(layer.salt, key) < steps(layer.holdout):
        return "holdout"
    if bucket(experiment.salt + ":exposure", key) >= steps(experiment.exposure):
        return "not_exposed"
    return arm_of_bucket([(arm.name, arm.share) for arm in experiment.arms], bucket(experiment.salt, key))


def arm_of_bucket(arms: Sequence[tuple[str, float]], found: int) -> str:
    """The first arm whose summed-up share is above the bucket; what rounding left belongs to the last arm with a share."""
    total = Fraction(0)
    for name, share in arms:
        total += Fraction(share)
        if found < min(steps(float(total)), BUCKETS):
            return name
    return [name for name, share in arms if share > 0][-1]

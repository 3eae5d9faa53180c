"""GrowthBook's two hashes and its rule of ranges, by its published description: what the handed-over cases are stated in."""

from __future__ import annotations

from collections.abc import Sequence


def fnv32a(text: str) -> int:
    state = 0x811C9DC5
    for byte in text.encode():
        state = (state ^ byte) * 0x01000193 % 2**32
    return state


def growthbook_hash(seed: str, value: str, version: int) -> float | None:
    """In [0, 1), in steps of 1/1,000 (version 1) or 1/10,000 (version 2); None for a version that is not known."""
    if version == 1:
        return fnv32a(value + seed) % 1000 / 1000
    if version == 2:
        return fnv32a(str(fnv32a(seed + value))) % 10_000 / 10_000
    return None


def choose_variation(found: float, ranges: Sequence[tuple[float, float]]) -> int | None:
    """The first range that has the number; a range is open at its upper end."""
    return next((at for at, (low, high) in enumerate(ranges) if low <= found < high), None)

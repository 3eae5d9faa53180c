"""Numbers on one line of whole numbers: the key of a value keeps order, and neighbours have neighbouring keys.

`pieces.py` finds the exact value at which a condition changes by halving between two keys. An int is its own key. A
double's key comes from its bits: -inf < … < -0.0 < 0.0 < … < inf; NaN has none.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from features.expr.facts import Facts
from features.expr.times import RANGES
from features.expr.types import INT_MAX, INT_MIN

NUMBERS: Final = frozenset({"int", "double", "timestamp", "duration"})
_SIGN: Final = 1 << 63


def key_of(value: int | float) -> int:
    """The key of an int (timestamps and durations are ints of microseconds) or of a double that is not NaN."""
    if isinstance(value, int):
        return value
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits if bits < _SIGN else _SIGN - 1 - bits


def value_of(key: int, kind: str) -> int | float:
    """The value with that key."""
    if kind != "double":
        return key
    bits = key if key >= 0 else _SIGN - 1 - key
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def key_range(kind: str, facts: Facts | None) -> tuple[int, int]:
    """The keys of all values (besides NaN) that a name of that kind can have; the first is above the second for none.

    Bounds of timestamps and durations are not used: what is declared for a field counts in the field's own unit.
    """
    ends = (key_of(-math.inf), key_of(math.inf)) if kind == "double" else RANGES.get(kind, (INT_MIN, INT_MAX))
    low, high = ends
    if facts is None or kind not in ("int", "double"):
        return low, high
    if facts.low is not None and not math.isnan(facts.low):
        # -0.0 equals a bound of 0, so it is inside.
        low = max(low, key_of(float(facts.low) or -0.0) if kind == "double" else _whole(facts.low, up=True))
    if facts.high is not None and not math.isnan(facts.high):
        high = min(high, key_of(float(facts.high) or 0.0) if kind == "double" else _whole(facts.high, up=False))
    return low, high


def nice(low: int, high: int, kind: str) -> int | float:
    """A value with a key from `low` to `high` that reads well: 0 if possible, else near the end next to 0, with few digits."""
    if kind != "double":
        return 0 if low <= 0 <= high else low if low > 0 else high
    if low <= 0 <= high:
        return 0.0
    if high < 0:
        if high == -1:
            return -0.0
        return -_short(value_of(-1 - high, kind), value_of(-1 - low, kind))
    return _short(value_of(low, kind), value_of(high, kind))


def spread(low: int, high: int, kind: str, count: int) -> list[int | float]:
    """`count` different values with keys from `low` to `high`, ascending; all of them when there are fewer."""
    if high - low + 1 <= count:
        return [value_of(key, kind) for key in range(low, high + 1)]
    first = nice(low, high, kind)
    a, b = value_of(low, kind), value_of(high, kind)
    tries: list[int | float] = [first, *(first + step * sign for step in range(1, 2 * count) for sign in (1, -1))]
    if kind == "double" and not math.isinf(b - a):
        tries += [a + (b - a) * index / (count + 1) for index in range(1, count + 1)]
    keys = [key_of(value) for value in tries]
    keys += [low + (high - low) * index // count for index in range(count + 1)]
    zeros = kind == "double" and low < 0 <= high  # -0.0 is not another number than 0.0
    found = [key for key in dict.fromkeys(keys) if low <= key <= high and not (zeros and key == -1)][:count]
    for key in range(low, low + 2 * count + 1):
        if len(found) < count and key not in found and not (zeros and key == -1):
            found.append(key)
    return [value_of(key, kind) for key in sorted(found)]


def _short(low: float, high: float) -> float:
    """The double with the fewest decimal digits in [low, high], both above zero; near `low`."""
    if low == high or math.isinf(low):
        return low
    if low < 0.001:
        for value in (1.0, 0.5, 0.1, 0.01, 0.001):
            if low < value <= high:
                return value
    for digits in range(-math.floor(math.log10(low)) if low < 1.0 else 0, 330):
        for value in (float(math.ceil(low)) if digits == 0 else _round_up(low, digits), low):
            if value != low and low <= value <= high and not math.isinf(value):
                return value
        if digits > 17 - math.floor(math.log10(low)):
            break
    return low


def _round_up(value: float, digits: int) -> float:
    near = round(value, digits)
    return near if near >= value else round(near + 10.0**-digits, digits)


def _whole(bound: float, *, up: bool) -> int:
    if math.isinf(bound):
        return INT_MIN if bound < 0 else INT_MAX
    return math.ceil(bound) if up else math.floor(bound)

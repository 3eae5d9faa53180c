"""Ranges of keys: pieces, the runs of a label found by halving, and the labels of numbers. `pieces.py` cuts steps with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

_TWO_63: Final = 9223372036854775808.0


class Piece(NamedTuple):
    """Keys `low` to `high`, both included. status: value, nan, null, error, or unknown (any of them, differing by key).

    `way`: with status value, +1 never falls, -1 never rises, 0 is one constant.
    """

    low: int
    high: int
    status: str
    way: int = 0


def runs(low: int, high: int, label: Callable[[int], Hashable]) -> list[tuple[int, int, Any]]:
    """The runs of equal labels; each label must be one run, so that halving finds its end."""
    out = []
    last = label(high)
    while (here := label(low)) != last:
        inside, outside = low, high
        while outside - inside > 1:
            middle = (inside + outside) // 2
            if label(middle) == here:
                inside = middle
            else:
                outside = middle
        out.append((low, inside, here))
        low = outside
    out.append((low, high, last))
    return out


def together(args: list[list[Piece]], low: int, high: int) -> list[tuple[int, int, list[Piece]]]:
    """The pieces of all arguments cut at each other's ends."""
    starts = sorted({piece.low for arg in args for piece in arg} | {low})
    ends = [start - 1 for start in starts[1:]] + [high]
    places = [0] * len(args)
    out = []
    for start, end in zip(starts, ends, strict=True):
        parts = []
        for index, arg in enumerate(args):
            while arg[places[index]].high < start:
                places[index] += 1
            parts.append(arg[places[index]]._replace(low=start, high=end))
        out.append((start, end, parts))
    return out


def joined(found: list[Piece]) -> list[Piece]:
    """Neighbours that are unknown, null, NaN or an error as one piece."""
    out: list[Piece] = []
    for piece in found:
        if out and piece.status != "value" and out[-1].status == piece.status:
            out[-1] = out[-1]._replace(high=piece.high)
        else:
            out.append(piece)
    return out


def sign(a: Any, b: Any) -> int:
    return -1 if a < b else 1 if a > b else 0


def outside(value: float) -> int:
    """Which side of what int() takes."""
    return -1 if value <= -_TWO_63 else 1 if value >= _TWO_63 else 0


def infinity_of(value: float) -> int:
    return int(math.copysign(1.0, value)) if math.isinf(value) else 0


def direction(value: int | float) -> int:
    """-1 below zero (-0.0 too), else 1."""
    return -1 if value < 0 or (isinstance(value, float) and math.copysign(1.0, value) < 0) else 1


def zero_of(value: float) -> int:
    """-1 below zero, 0 at -0.0, 1 at 0.0, 2 above: x/0 takes the sign of the zero."""
    if value:
        return -1 if value < 0 else 2
    return 0 if math.copysign(1.0, value) < 0 else 1


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

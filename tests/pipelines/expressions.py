"""A fixed few expressions and the edge values that they are asked of, for the test that asks Flink itself."""

from __future__ import annotations

import math
from typing import Any

from features.expr import Type, parse_type

# One query a type, so each is compiled once: integer overflow and division, nulls, -0.0 and infinity, text beyond ASCII.
EXPRESSIONS: dict[str, list[str]] = {
    "int": ["i + j", "i - j", "i * j", "i % j", "div(i, j)", "-i", "math.abs(i)", "max(i, j, 3)", "i < j", "i in [0, -7]", "(i % j == 1 ? 1 : null) ?? 5"],
    "double": ["i + j", "i * j", "i / j", "-i", "i <= j", "i == j", "int(i)", "min(i, j)", "math.round(i)", "i in [0, 0.5]", "double(int(i)) < j"],
    "string": ["i + j", "i < j", "i == j", "size(i)", "i.startsWith(j)", "i.contains(j)", "int(i)", "double(i)", "i in ['a', 'it\\'s']"],
    "bool": ["i && j", "i || j", "!i", "i != j", "i ? j : !j"],
}  # fmt: skip
EDGES: dict[str, list[Any]] = {
    "int": [0, 1, -1, 3, -7, 2**53 + 1, 2**63 - 1, -(2**63)],
    "double": [0.0, -0.0, 0.5, -2.5, 0.49999999999999994, 2.0**53, 9223372036854775808.0, 1e308, math.inf, -math.inf],
    "string": ["", "a", "ab", "it's", "πέντε", "🐱", "-7", "9223372036854775808", ".5e1", " 1"],
    "bool": [True, False],
}


def names_of(kind: str) -> dict[str, Type]:
    """Two names of the type."""
    return {"i": parse_type(kind), "j": parse_type(kind)}


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Every pair of edge values."""
    return [{"i": a, "j": b} for a in EDGES[kind] for b in EDGES[kind]]

"""Rewrites of a graph (`ssa.py`): the number of a simpler value that is the same in every row, to the bit, or None.

Left alone is what only looks the same: `x + 0.0` (it turns -0.0), `i * 0` (i may be a row error), another order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from features.expr.ssa import Graph


def as_it_is(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
    return None


def _logic(step: str) -> Callable[[Graph, str, tuple[int, ...]], int | None]:
    """Kleene's `and` and `or` do not care for order or repetition; their neutral constant goes, the absorbing one wins."""
    absorbing = step == "or"

    def simplify(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
        flat: set[int] = set()
        for arg in args:
            flat.update(graph.values[arg].args if graph.values[arg].step == step else (arg,))
        kept = []
        for arg in sorted(flat):
            value = graph.values[arg]
            if value.step == "const" and value.const is absorbing:
                return arg
            if not (value.step == "const" and value.const is (not absorbing)):
                kept.append(arg)
        if not kept:
            return graph.constant("bool", not absorbing)
        if len(kept) == 1:
            return kept[0]
        shared = [arg for arg in kept if graph.values[arg].shared]
        if 1 < len(shared) < len(kept):  # once for all rows
            kept = sorted({graph.make(step, kind, *shared), *kept} - set(shared))
        return None if tuple(kept) == args else graph.make(step, kind, *kept)

    return simplify


def _not(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
    inner = graph.values[args[0]]
    return inner.args[0] if inner.step == "not" else None


def _if(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
    condition = graph.values[args[0]]
    if condition.step == "const":
        return graph.constant(kind, None) if condition.const is None else args[1] if condition.const else args[2]
    return args[1] if args[1] == args[2] and not condition.nullable and not condition.fails else None


def _coalesce(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
    left = graph.values[args[0]]
    if not left.nullable:
        return args[0]
    return args[1] if left.step == "const" else None


def _is_null(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
    value = graph.values[args[0]]
    if value.nullable or value.fails:
        return None
    return graph.constant("bool", False)


def _same(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
    return args[0]


def _neutral(const: Any) -> Callable[[Graph, str, tuple[int, ...]], int | None]:
    """x with a constant on either side that changes nothing, not even the sign of a zero."""

    def simplify(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
        left, right = (graph.values[arg] for arg in args)
        if right.step == "const" and repr(right.const) == repr(const):
            return args[0]
        return args[1] if left.step == "const" and repr(left.const) == repr(const) else None

    return simplify


def _neutral_right(const: Any) -> Callable[[Graph, str, tuple[int, ...]], int | None]:
    def simplify(graph: Graph, kind: str, args: tuple[int, ...]) -> int | None:
        right = graph.values[args[1]]
        return args[0] if right.step == "const" and repr(right.const) == repr(const) else None

    return simplify


SIMPLIFY: Final[dict[str, Callable[[Graph, str, tuple[int, ...]], int | None]]] = {
    "and": _logic("and"),
    "or": _logic("or"),
    "not": _not,
    "if": _if,
    "coalesce": _coalesce,
    "is_null": _is_null,
    "same": _same,
    "add_int": _neutral(0),
    "mul_int": _neutral(1),
    "sub_int": _neutral_right(0),
    "div_int": _neutral_right(1),
    "add_double": _neutral(-0.0),
    "mul_double": _neutral(1.0),
    "sub_double": _neutral_right(0.0),
    "div_double": _neutral_right(1.0),
}

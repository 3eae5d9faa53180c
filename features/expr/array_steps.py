"""What one prepared step does: it reads arrays from slots and puts one array into its own.

`columns.py` defines all of this, step by step as it goes through an expression; here the steps of a whole strategy are laid
out once (`array_plan.py`), and what is not there costs nothing: no mask is touched where every row counts.

Slots: `V[at]` the values, `M[at]` None where every row counts, else (valid, error): masks, error None for none. A failed
row is never valid. Arrays in slots never change. Shapes: (N,) or (1,) each, (N rows); constants of arithmetic are ().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from features.expr.column_steps import CHECKED, DTYPES, FILLERS, TOTAL, Array, Mask
from features.expr.columns import Column, evaluate
from features.expr.program import Program
from features.expr.text_bits import TextBits

Masks = tuple[Mask, Mask | None] | None
Run = Callable[[list[Any], list[Any], dict[str, Column]], None]

_WIDTHS: Final = ("bool", "int", "double", "timestamp", "duration")
UFUNCS: Final[dict[str, Any]] = {
    **{name: TOTAL[name] for name in ("not", "is_nan", "is_inf", "is_finite", "floor", "ceil", "trunc")},
    **{f"{op}_double": TOTAL[f"{op}_double"] for op in ("add", "sub", "mul", "div", "neg", "abs")},
    **{
        f"{op}_{kind}": ufunc
        for op, ufunc in (
            *(("eq", np.equal), ("ne", np.not_equal), ("lt", np.less)),
            *(("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal)),
        )
        for kind in _WIDTHS
        if f"{op}_{kind}" in TOTAL
    },
}  # steps that are one ufunc over numbers, which takes a constant of shape ()


def load(at: int, name: str, kind: str) -> Run:
    """A column that is there under its name."""
    dtype, filler, is_object = np.dtype(DTYPES[kind]), FILLERS[kind], DTYPES[kind] is np.object_
    count = np.count_nonzero

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        column = columns[name]
        values, valid, error = column.values, column.valid, column.error
        if count(valid) != len(valid):
            M[at] = (valid, error if error is not None and count(error) else None)
            if is_object:
                values = np.where(valid, values, filler)  # None would break comparisons and casts
        V[at] = values if values.dtype is dtype else values.astype(dtype, copy=False)

    return run


def total(at: int, step: str, args: Sequence[int]) -> Run:
    """A strict step that cannot fail: null in, null out."""
    function = UFUNCS.get(step) or TOTAL[step]
    if len(args) == 1:
        (i,) = args

        def run_one(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
            V[at] = function(V[i])
            M[at] = M[i]

        return run_one
    if len(args) == 2:
        i, j = args

        def run_two(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
            V[at] = function(V[i], V[j])
            a, b = M[i], M[j]
            M[at] = a if b is None or a is b else b if a is None else _strict(a, b)

        return run_two

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        V[at] = function(*[V[arg] for arg in args])
        M[at] = _all_strict([M[arg] for arg in args])

    return run


def checked(at: int, step: str, args: Sequence[int]) -> Run:
    """A strict step that may fail."""
    function = CHECKED[step]

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        V[at], bad = function(*[V[arg] for arg in args])
        masks = _all_strict([M[arg] for arg in args])
        if np.count_nonzero(bad):
            masks = (~bad, bad) if masks is None else _strict(masks, (~bad, bad & masks[0]))
        M[at] = masks

    return run


def logic(at: int, args: Sequence[int], *, absorbing: bool) -> Run:
    """`or` (absorbing: true) and `and` (false): absorbing > error > null > the other value; see interpret._kleene."""
    combine = np.logical_or if absorbing else np.logical_and
    first, rest = args[0], args[1:]

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        masks = [M[arg] for arg in args]
        if not any(masks):
            values = V[first]
            for arg in rest:
                values = combine(values, V[arg])
            V[at] = values
        else:
            V[at], M[at] = _kleene([V[arg] for arg in args], masks, absorbing)

    return run


def _kleene(values: list[Array], masks: list[Masks], absorbing: bool) -> tuple[Array, Masks]:
    absorbed: Any = None
    known: Any = None
    failed: Any = None
    for value, mask in zip(values, masks, strict=True):
        absorbs = value if absorbing else ~value
        if mask is not None:
            absorbs = absorbs & mask[0]
            known = mask[0] if known is None else known & mask[0]
            failed = _either(failed, mask[1])
        absorbed = absorbs if absorbed is None else absorbed | absorbs
    result = absorbed if absorbing else ~absorbed
    return result, (absorbed | known, None if failed is None else failed & ~absorbed)


def choose(at: int, args: Sequence[int]) -> Run:
    """`if`: the branch not taken does not count."""
    test, then, otherwise = args

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        condition = V[test]
        V[at] = np.where(condition, V[then], V[otherwise])
        masks, a, b = M[test], M[then], M[otherwise]
        if a is None and b is None:
            M[at] = masks
            return
        a, b = a or _KNOWN, b or _KNOWN
        valid = np.where(condition, a[0], b[0])
        error = None
        if a[1] is not None or b[1] is not None:
            error = np.where(condition, _NONE if a[1] is None else a[1], _NONE if b[1] is None else b[1])
        if masks is not None:
            valid = valid & masks[0]
            error = _either(masks[1], None if error is None else error & masks[0])
        M[at] = (valid, error)

    return run


def coalesce(at: int, args: Sequence[int]) -> Run:
    """The right one where the left one is null; an error is not replaced."""
    left, right = args

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        masks, other = M[left], M[right]
        if masks is None:
            V[at] = V[left]
            return
        valid, error = masks
        V[at] = np.where(valid, V[left], V[right])
        if other is None and error is None:
            return
        keep = valid if error is None else valid | error
        other = other or _KNOWN
        M[at] = (valid | (~keep & other[0]), _either(error, None if other[1] is None else ~keep & other[1]))

    return run


def is_null(at: int, args: Sequence[int]) -> Run:
    (i,) = args

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        masks = M[i]
        if masks is None:
            V[at] = np.zeros(len(V[i]), np.bool_)
        elif masks[1] is None:
            V[at] = ~masks[0]
        else:
            valid, error = masks
            V[at], M[at] = ~valid & ~error, (~error, error)

    return run


def alone(at: int, program: Program) -> Run:
    """An expression that `columns.py` evaluates by itself, from columns: loops over lists."""

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        V[at], M[at] = parts_of(evaluate(program, columns))

    return run


def bits(at: int, texts: TextBits) -> Run:
    """What all predicates of one name say of a column of texts; in the place of masks, the bits that every row has."""

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        V[at] = texts.column(columns[texts.name]).values
        M[at] = int(np.bitwise_and.reduce(V[at]))  # of no rows: all bits

    return run


def answer(at: int, source: int, place: int) -> Run:
    """A predicate of one text: its bit in `source`, and its flags where a row is not known."""
    value, known, failed = (np.int64(1 << place + flag) for flag in range(3))

    def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
        bits_N = V[source]
        V[at] = (bits_N & value) != 0
        if not M[source] & known:
            error = (bits_N & failed) != 0
            M[at] = ((bits_N & known) != 0, error if np.count_nonzero(error) else None)

    return run


def parts_of(column: Column) -> tuple[Array, Masks]:
    valid, error = column.valid, column.error
    if np.count_nonzero(valid) == len(valid):
        return column.values, None
    return column.values, (valid, error if error is not None and np.count_nonzero(error) else None)


_NONE: Final = np.zeros(1, np.bool_)
_KNOWN: Final[tuple[Mask, Mask | None]] = (np.ones(1, np.bool_), None)


def _strict(a: tuple[Mask, Mask | None], b: tuple[Mask, Mask | None]) -> Masks:
    return a[0] & b[0], _either(a[1], b[1])


def _all_strict(masks: Sequence[Masks]) -> Masks:
    found: Masks = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else _strict(found, mask)
    return found


def _either(a: Mask | None, b: Mask | None) -> Mask | None:
    return b if a is None else a if b is None else a | b

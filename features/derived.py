"""Derived features: an expression over a view's other columns and its request fields, with a status for every row.

The one meaning of what the online read (features/read_plan.py) and the history (features/role_history.py) serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from features.expr import Column, evaluate
from features.rows import DTYPES, UNKNOWN_AGE_MS, Status
from features.spec import FeatureSpec, FeatureView


class Filled(Protocol):
    """Columns of a view of R rows and F features, those that the expression reads filled. Shapes as FeatureBatch has them."""

    num_rows: int
    columns: dict[str, NDArray[Any]]
    valid: dict[str, NDArray[np.bool_]]
    statuses: NDArray[np.uint8]
    ages_ms: NDArray[np.int64]


@dataclass(frozen=True)
class Derived:
    """Shapes: (R,) each. `statuses` are PRESENT exactly where `known`, and never DEFAULT."""

    values: NDArray[Any]
    known: NDArray[np.bool_]
    statuses: NDArray[np.uint8]
    ages_ms: NDArray[np.int64]


def derive(
    spec: FeatureSpec,
    specs: Sequence[FeatureSpec],
    places: Mapping[str, int],
    filled: Filled,
    request: Mapping[str, Column],
) -> Derived:
    """The values of one expression. `specs`: all features of the view, `places` theirs by name.

    Where an input that is never null in a live view is not there, the result is not there for the same reason; else the
    expression decides what null means. NaN is null. The age is that of the oldest input.
    """
    assert spec.expr is not None
    num_rows, names = filled.num_rows, spec.expr.names
    inputs = sorted(places[name] for name in names if name in places)
    given = {name: request[name] for name in names if name not in places}
    given |= {specs[i].name: Column(filled.columns[specs[i].name], filled.valid[specs[i].name]) for i in inputs}
    result = evaluate(spec.expr, given, num_rows=num_rows)
    values = np.broadcast_to(result.values, (num_rows,)).astype(DTYPES[spec.type])
    known = np.broadcast_to(result.valid, (num_rows,)).copy()
    if spec.type == "double":
        known &= values == values  # 0.0 / 0.0: NaN is no value, so a default stands in for it
    for i in inputs:
        if not specs[i].nullable:
            known &= filled.valid[specs[i].name]
    statuses = np.full(num_rows, Status.NULL, dtype=np.uint8)
    if not known.all():
        for status in (Status.STALE, Status.MISSING):
            for i in inputs:
                statuses[filled.statuses[:, i] == status] = status
    statuses[known] = Status.PRESENT
    ages_ms = filled.ages_ms[:, inputs].max(axis=1) if inputs else np.full(num_rows, UNKNOWN_AGE_MS, dtype=np.int64)
    return Derived(values, known, statuses, ages_ms)


def evaluation_order(view: FeatureView) -> tuple[int, ...]:
    """Places of the view's expressions, each behind the expressions that it reads. The loader refuses cycles."""
    places = {spec.name: place for place, spec in enumerate(view.features)}
    order: list[int] = []

    def visit(place: int) -> None:
        program = view.features[place].expr
        if program is None or place in order:
            return
        for name in sorted(program.names & places.keys()):  # others are request fields
            visit(places[name])
        order.append(place)

    for place in range(len(view.features)):
        visit(place)
    return tuple(order)

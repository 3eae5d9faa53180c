"""One call of one model for one request: under a deadline, with a fallback, never an exception.

The session runs in the caller's thread, so a late answer is known only when it is there: it is then thrown away, which
keeps a Decision's meaning ("p was at hand in time") the same as with a scorer in another process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.model import Model
from features.expr import Column
from features.records import ModelSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """What a model said. `problem` is "late" or "failed" where it did not answer though it should have.

    Shapes: probability.values and .valid (N,).
    """

    probability: Column
    source: ModelSource
    problem: str | None


def score(
    model: Model | None,
    columns: Mapping[str, Column],
    num_rows: int,
    *,
    budget_ms: float,
    clock: Callable[[], float],
) -> Scored:
    """Ask the model; all null when there is none, when it fails, or when it takes longer than its budget."""
    if model is None:
        return Scored(probability=nothing(num_rows), source="absent", problem=None)
    if budget_ms <= 0:
        return Scored(probability=nothing(num_rows), source="absent", problem="late")
    started = clock()
    try:
        values = model.score(columns, num_rows)
    except Exception:  # whatever a model's graph does, the order still gets its answer
        logger.exception("model %s failed", model.ref)
        return Scored(probability=nothing(num_rows), source="absent", problem="failed")
    if (clock() - started) * 1000.0 > budget_ms:
        return Scored(probability=nothing(num_rows), source="absent", problem="late")
    return Scored(probability=Column(values, np.isfinite(values)), source="model", problem=None)


def nothing(num_rows: int) -> Column:
    """An all-null column. Shapes: (num_rows,) float64."""
    return Column(np.zeros(num_rows), np.zeros(num_rows, dtype=bool))

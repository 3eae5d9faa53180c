"""Decisions of random strategies as rows, for holding what analysis claims against what happens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from engine.analysis.absences import Absence
from engine.decide import Features, LiveStrategy, decide
from engine.request import parse
from engine.row import RowResult, recorded_rows, run_row
from features.read_plan import ReadPlan
from features.records import Decision
from features.rows import FeatureBatch, Status, empty_column
from features.spec import Key
from tests.engine.random_strategies import NanFeatures, random_request
from tests.engine.support import RandomFeatures, random_body


class Without:
    """Features of which some are gone: null, or the declared default, as a store would serve them."""

    def __init__(self, inner: Features, gone: Mapping[str, Any]) -> None:
        self.inner, self.gone = inner, gone

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        batches = self.inner.read(plan, keys, as_of_ms) or {}
        for role, batch in batches.items():
            for at, name in enumerate(batch.names):
                if f"{role}.{name}" in self.gone:
                    default = self.gone[f"{role}.{name}"]
                    column = empty_column(batch.types[at], batch.num_rows)
                    if default is not None:
                        column[:] = default
                    batch.columns[name] = column  # type: ignore[index]
                    batch.valid[name] = np.full(batch.num_rows, default is not None)  # type: ignore[index]
                    batch.statuses[:, at] = Status.MISSING if default is None else Status.DEFAULT
        return batches


def decided(
    live: LiveStrategy, seed: int, num_candidates: int = 20, gone: Absence | None = None, *, nans: bool = True
) -> Decision:
    """A decision of a random request, something of it gone; with nothing gone, there may be NaNs among the features."""
    rng = random.Random(seed)
    tame = not live.compiled.name.startswith("random_")
    body = (random_body if tame else random_request)(rng, live.compiled, num_candidates)
    values = dict(gone.values) if gone is not None and gone.kind in ("feature", "role") else {}
    if gone is not None and gone.kind == "field":
        if gone.name in body["request"]:
            body["request"][gone.name] = None
        else:
            body["candidates"][gone.name] = [None] * num_candidates
    served = NanFeatures(live.compiled, seed) if gone is None and nans else RandomFeatures(live.compiled, seed)
    features = Without(served, values)
    return decide(live, parse(live.compiled, msgspec.json.encode(body)), features)


def rows_of(
    live: LiveStrategy, seed: int, gone: Absence | None = None, *, nans: bool = True
) -> Iterator[tuple[dict[str, Any], RowResult]]:
    """The candidates of such a decision as the row interpreter has them, checked against the decision's bits."""
    decision = decided(live, seed, gone=gone, nans=nans)
    for row, values in enumerate(recorded_rows(decision, live.compiled)):
        result = run_row(live.compiled, values)
        assert (result.fired, result.unknown) == (decision.fired[row], decision.unknown[row]), f"seed {seed}, row {row}"
        assert result.reason == decision.reasons[row], f"seed {seed}, row {row}"
        yield values, result

"""Features for decisions: the store when it answers, declared defaults and nulls when it does not.

A store that is down must cost a decision microseconds, not its timeout: after a StoreError the store is left alone for
a while and every decision of that while is made on what needs no remote call, marked degraded. Anything else that a read
raises (a corrupt value of one driver) degrades the one decision that met it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.strategy import Role
from features.read_plan import ReadPlan
from features.rows import UNKNOWN_AGE_MS, FeatureBatch, Status, empty_column
from features.spec import Key
from features.store import StoreError

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 0.5


class Reader(Protocol):
    """What is needed of `features.redis_store.FeatureReader` and of the in-memory store."""

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch]: ...


@dataclass
class FeatureSource:
    """A reader with a memory of its last failure. `observe` gets the seconds of every read that answered.

    `failures` counts reads for which the store was away, `broken_reads` those whose answer could not be understood.
    """

    reader: Reader
    clock: Callable[[], float] = time.monotonic
    observe: Callable[[float], None] = lambda seconds: None
    failures: int = 0
    broken_reads: int = 0
    problem: str = ""
    _last_broken: str = ""
    _closed_until: float = float("-inf")

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        """Features by role in one round trip, or None when they cannot be had for this decision."""
        started = self.clock()
        if started < self._closed_until:
            return None
        try:
            batches = self.reader.read(plan, keys, as_of_ms)
        except StoreError as error:
            self.failures += 1
            self._closed_until = self.clock() + RETRY_AFTER_S
            if str(error) != self.problem:
                logger.warning("features cannot be read, decisions are degraded: %s", error)
            self.problem = str(error)
            return None
        except Exception as error:  # a wrong key is refused before this; whatever else, the order gets its answer
            self.broken_reads += 1
            if str(error) != self._last_broken:
                logger.exception("the features of one decision cannot be understood, it is degraded")
            self._last_broken = str(error)
            return None
        if self.problem:
            logger.warning("features can be read again")
            self.problem = ""
        self.observe(self.clock() - started)
        return batches


def missing_batch(role: Role, generation: int, num_rows: int) -> FeatureBatch:
    """What a role is when nothing is known of it: every feature MISSING, or its DEFAULT."""
    specs = role.view.features
    statuses = np.empty((num_rows, len(specs)), dtype=np.uint8)
    columns, valid = {}, {}
    for at, spec in enumerate(specs):
        column = empty_column(spec.type, num_rows)
        if spec.default is not None:
            column[:] = spec.default
        columns[spec.name] = column
        valid[spec.name] = np.full(num_rows, spec.default is not None)
        statuses[:, at] = Status.MISSING if spec.default is None else Status.DEFAULT
    return FeatureBatch(
        view=role.view.name,
        generation=generation,
        applied_through_ms=None,
        names=tuple(spec.name for spec in specs),
        types=tuple(spec.type for spec in specs),
        columns=columns,
        valid=valid,
        statuses=statuses,
        ages_ms=np.full((num_rows, len(specs)), UNKNOWN_AGE_MS, dtype=np.int64),
    )

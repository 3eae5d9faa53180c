"""A store that is away is left alone for a while; an answer that makes no sense costs the one decision that met it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.feature_source import RETRY_AFTER_S, FeatureSource
from features.read_plan import ReadPlan, compile_read_plan
from features.rows import FeatureBatch
from features.spec import Key
from features.store import StoreError
from tests.engine.support import catalogue_registry


class Reader:
    """Raises what it is told to, else answers with nothing; counts how often it was asked."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.asked = 0

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return {}


PLAN = compile_read_plan(catalogue_registry(), {})


def test_store_that_is_away_is_asked_again_only_after_a_while() -> None:
    now = [100.0]
    reader = Reader()
    source = FeatureSource(reader, clock=lambda: now[0])
    reader.problem = StoreError("Redis at 127.0.0.1:1 cannot be reached")
    assert source.read(PLAN, {}, 0) is None
    reader.problem = None
    now[0] += RETRY_AFTER_S * 0.9
    assert source.read(PLAN, {}, 0) is None
    assert (reader.asked, source.failures) == (1, 1)
    now[0] += RETRY_AFTER_S * 0.2
    assert source.read(PLAN, {}, 0) == {}
    assert source.problem == ""


def test_answer_that_makes_no_sense_degrades_one_decision_and_not_the_next() -> None:
    """One corrupt value in the store must not take the features from every order."""
    reader = Reader()
    source = FeatureSource(reader, clock=lambda: 100.0)
    for number in range(3):
        reader.problem = ValueError("unpack requires a buffer of 16 bytes")
        assert source.read(PLAN, {}, 0) is None
        reader.problem = None
        assert source.read(PLAN, {}, 0) == {}
        assert (source.broken_reads, source.failures) == (number + 1, 0)

"""Columns of logged Decisions lose nothing: every Decision comes back as it was logged, from memory and from the cache."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.replay_block import Block, blocks_of, misfit, raw_of
from engine.replay_cache import Cache
from engine.replay_fit import to_typed
from features.expr.column_steps import DTYPES
from features.expr.types import parse_type
from features.records import Decision, encode
from tests.engine.logged import random_log, sink_log


def everything_of(blocks: list[Block]) -> dict[str, bytes]:
    return {one.decision_ids[at]: encode(one.decision(at)) for one in blocks for at in range(one.num_decisions)}


@pytest.mark.parametrize("seed", range(6))
def test_decisions_come_back_as_they_were_logged(seed: int, tmp_path: Path) -> None:
    print("seed", seed)
    decisions = random_log(seed, tmp_path).decisions
    blocks = list(blocks_of(decisions, num_rows=100))
    assert len(blocks) > 1
    assert everything_of(blocks) == {one.decision_id: encode(one) for one in decisions}


@pytest.mark.parametrize("seed", range(6))
def test_cache_gives_the_same_blocks(seed: int, tmp_path: Path) -> None:
    print("seed", seed)
    decisions = random_log(seed, tmp_path).decisions
    cache = Cache(tmp_path / "log.arrow", {"log": seed})
    assert cache.load() is None
    passed = list(cache.keep(blocks_of(decisions, num_rows=100)))
    again = cache.load()
    assert again is not None
    assert everything_of(list(again)) == everything_of(passed) == {one.decision_id: encode(one) for one in decisions}


def test_cache_of_another_log_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "log.arrow"
    list(Cache(path, {"size": 1}).keep(blocks_of(sink_log(tmp_path, 3).decisions)))
    assert Cache(path, {"size": 2}).load() is None
    path.write_bytes(b"something else")
    assert Cache(path, {"size": 1}).load() is None


def test_cache_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "log.arrow", {})
    blocks = cache.keep(blocks_of(sink_log(tmp_path, 40).decisions, num_rows=50))
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert cache.load() is None and list(tmp_path.glob(".log.arrow-*")) == []


def test_versions_and_killed_rules_are_blocks_of_their_own(tmp_path: Path) -> None:
    first, second, third = sink_log(tmp_path, 3).decisions
    second = msgspec.structs.replace(second, killed=["too_far"])
    third = msgspec.structs.replace(third, strategy_hash="another")
    found = list(blocks_of([first, second, third]))
    assert [(one.killed, one.hash == first.strategy_hash) for one in found] == [
        ((), True),
        (("too_far",), True),
        ((), False),
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scores": []}, "scores has 0 entries for 5 candidates"),
        ({"candidate_ids": []}, "it has no candidates"),
        ({"chosen": 5}, "candidate 5 of 5 is chosen"),
        ({"candidates": {"eta_s": [1.0]}}, "candidates.eta_s has 1 entries for 5 candidates"),
    ],
)
def test_record_whose_parts_do_not_fit_is_named(change: dict[str, object], why: str, tmp_path: Path) -> None:
    decision = next(one for one in sink_log(tmp_path, 20).decisions if len(one.candidate_ids) == 5)
    broken: Decision = msgspec.structs.replace(decision, **change)
    assert misfit(broken) == why
    assert misfit(decision) is None


def test_kinds_are_those_of_the_json() -> None:
    values = {"bool": [True, None], "int": [1, None], "double": [1.5, None], "string": ["a", None], "list": [[1], None]}
    for kind, column in values.items():
        raw = raw_of(column)
        assert (raw.kind, raw.tolist()) == (kind, column)
    assert raw_of([None, None]).kind == "null"
    assert [raw_of(column).kind for column in ([1, 1.5], [2**63, 1], [True, 1])] == ["mixed"] * 3


@pytest.mark.parametrize("kind", ["bool", "int", "double", "string", "timestamp", "duration", "list(string)"])
def test_a_field_that_was_always_null_is_a_column_of_its_type(kind: str) -> None:
    wanted = parse_type(f"{kind}?")
    column = to_typed(raw_of([None, None, None]), wanted)
    assert column.values.dtype == DTYPES[wanted.kind] and column.values.shape == (3,)
    assert not column.valid.any()

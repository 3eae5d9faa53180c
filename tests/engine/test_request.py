"""A body is decided only when it fits its strategy; what is wrong is named by its place."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.decide import decide
from engine.request import RequestError, default_decision_id, parse
from engine.strategy import CompiledStrategy
from engine.wire_values import to_column
from features.expr import parse_type
from tests.engine.support import KITCHEN_SINK, RandomFeatures, catalogue_registry, compile_text, make_live, random_body


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledStrategy:
    return compile_text(KITCHEN_SINK, tmp_path_factory.mktemp("request"), catalogue_registry())


def body(compiled: CompiledStrategy, **changes: Any) -> dict[str, Any]:
    return random_body(random.Random(1), compiled, 3) | changes


def refused(compiled: CompiledStrategy, raw: bytes | dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(compiled, raw if isinstance(raw, bytes) else msgspec.json.encode(raw))
    return caught.value


def test_whole_body_becomes_a_request(compiled: CompiledStrategy) -> None:
    sent = body(compiled, round_id=2, decision_id="d-9")
    request = parse(compiled, msgspec.json.encode(sent))
    assert (request.order_id, request.round_id, request.decision_id) == (sent["order_id"], 2, "d-9")
    assert request.values["order_id"] == sent["order_id"]
    assert request.values["hour"] == sent["request"]["hour"]
    assert request.candidates["eta_s"] == sent["candidates"]["eta_s"]


def test_default_decision_id_is_a_function_of_order_round_and_strategy(compiled: CompiledStrategy) -> None:
    request = parse(compiled, msgspec.json.encode(body(compiled, order_id="o-1", round_id=1)))
    assert request.decision_id == default_decision_id("o-1", 1, "kitchen_sink") == "dec-d02059cffb43bf19549e70c0"
    ids = {default_decision_id(o, r, s) for o in ("o-1", "o-11") for r in (None, 1, 11) for s in ("a", "b")}
    assert len(ids) == 12


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        (b"", "$", "not JSON"),
        (b"{", "$", "not JSON"),
        (b"\xff\xfe", "$", "not JSON"),
        (b"[1]", "$", "Expected `object`, got `array`"),
        (b"{}", "$.order_id", "missing required field"),
        (b"[" * 100_000, "$", ""),
    ],
)
def test_malformed_bytes_are_refused(compiled: CompiledStrategy, raw: bytes, path: str, message: str) -> None:
    error = refused(compiled, raw)
    assert (error.status, error.code, error.path) == (400, "malformed", path)
    assert message in error.message


def test_wrong_type_is_named_by_its_place(compiled: CompiledStrategy) -> None:
    sent = body(compiled)
    sent["candidates"]["distance_m"] = [1.0, "far", 2.0]
    assert refused(compiled, sent).path == "$.candidates.distance_m[1]"
    sent = body(compiled)
    sent["request"]["hour"] = 3.5
    assert refused(compiled, sent).path == "$.request.hour"
    sent["request"]["hour"] = None
    assert refused(compiled, sent).path == "$.request.hour"
    sent["request"]["hour"] = 2**63
    assert refused(compiled, sent).path == "$.request.hour"


def test_unknown_and_missing_fields_are_named_with_a_hint(compiled: CompiledStrategy) -> None:
    sent = body(compiled)
    sent["candidates"]["distance"] = [1.0, 1.0, 1.0]
    error = refused(compiled, sent)
    assert (error.path, error.hint) == ("$.candidates.distance", "did you mean 'distance_m'?")
    sent = body(compiled)
    del sent["candidates"]["state"]
    assert refused(compiled, sent).path == "$.candidates.state"
    assert refused(compiled, body(compiled, asof_ms=1)).hint == "did you mean 'as_of_ms'?"


def test_lengths_duplicates_and_numbers_of_candidates(compiled: CompiledStrategy) -> None:
    sent = body(compiled)
    sent["candidates"]["state"].append("idle")
    error = refused(compiled, sent)
    assert (error.code, error.path, error.message) == ("length", "$.candidates.state", "4 values for 3 candidates")
    sent = body(compiled)
    sent["candidates"]["driver_id"] = ["a", "b", "a"]
    assert refused(compiled, sent).path == "$.candidates.driver_id[2]"
    sent["candidates"]["driver_id"] = ["a", "", "b"]
    assert refused(compiled, sent).path == "$.candidates.driver_id[1]"
    assert parse(compiled, msgspec.json.encode(random_body(random.Random(1), compiled, 500))).num_candidates == 500
    assert refused(compiled, random_body(random.Random(1), compiled, 0)).code == "no_candidates"
    error = refused(compiled, random_body(random.Random(1), compiled, 501))
    assert (error.status, error.code) == (413, "too_many_candidates")


def test_scope_and_contradicting_order_are_refused(compiled: CompiledStrategy) -> None:
    assert refused(compiled, body(compiled, product="pool")).code == "out_of_scope"
    sent = body(compiled)
    sent["request"]["order_id"] = "another"
    assert refused(compiled, sent).code == "conflict"
    sent["request"]["order_id"] = sent["order_id"]
    parse(compiled, msgspec.json.encode(sent))


def test_absent_nullable_column_is_all_null(compiled: CompiledStrategy) -> None:
    sent = body(compiled)
    del sent["candidates"]["vip"]
    del sent["request"]["note"]
    request = parse(compiled, msgspec.json.encode(sent))
    assert request.columns["vip"].valid.tolist() == [False] * 3
    assert request.columns["note"].valid.tolist() == [False]
    assert request.candidates["vip"] == [None] * 3 and request.fields["note"] is None


def test_columns_have_the_type_of_their_field() -> None:
    assert to_column([1, None], parse_type("int?")).values.dtype == np.int64
    assert to_column([1, None], parse_type("int?")).valid.tolist() == [True, False]
    assert to_column([True], parse_type("bool")).values.dtype == np.bool_
    assert to_column(["a", "bb"], parse_type("string")).values.tolist() == ["a", "bb"]
    assert to_column([2**63 - 1], parse_type("int")).values.tolist() == [2**63 - 1]


def test_field_may_have_a_python_keyword_as_its_name(tmp_path: Path) -> None:
    text = "strategy: s\nversion: 1\nrequest: {class: int}\ncandidates: {key: from, fields: {def: double}}\nscore: def + double(class)\n"
    compiled = compile_text(text, tmp_path, catalogue_registry())
    sent = {"order_id": "o", "as_of_ms": 1, "city": "c", "product": "p", "request": {"class": 1}}
    request = parse(compiled, msgspec.json.encode(sent | {"candidates": {"from": ["a"], "def": [2.0]}}))
    assert request.values["class"] == 1 and request.candidates == {"def": [2.0], "from": ["a"]}


TYPED = """
strategy: typed
version: 1
request: {hour: {type: int, min: 0, max: 23}, opened: timestamp, waited: 'duration?', tags: list(string)}
candidates:
  key: id
  fields: {eta_s: {type: 'double?', unit: s, min: 0, max: 7200}, seats: {type: int, min: 1}, seen: 'timestamp?', kinds: list(int)}
score: 1.0
outputs: {age: as_of - opened, seen: seen, kinds: kinds}
"""


def typed_body(**candidates: Any) -> dict[str, Any]:
    return {
        "order_id": "o", "as_of_ms": 1_725_000_000_123, "city": "c", "product": "p",
        "request": {"hour": 3, "opened": 1_724_999_990_000, "waited": None, "tags": ["a", "b"]},
        "candidates": {
            "id": ["x", "y"], "eta_s": [10.0, None], "seats": [1, 4], "seen": [5, None], "kinds": [[1, 2], [3, 4]], **candidates,
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> CompiledStrategy:
    return compile_text(TYPED, tmp_path_factory.mktemp("typed"), catalogue_registry())


def test_times_are_sent_in_milliseconds_and_seen_in_microseconds(typed: CompiledStrategy) -> None:
    request = parse(typed, msgspec.json.encode(typed_body()))
    assert request.columns["as_of"].tolist() == [1_725_000_000_123_000]
    assert request.columns["opened"].tolist() == [1_724_999_990_000_000]
    assert request.columns["waited"].tolist() == [None]
    assert request.columns["seen"].tolist() == [5_000, None]
    assert request.values["opened"] == 1_724_999_990_000_000
    assert request.fields["opened"] == 1_724_999_990_000 and request.candidates["seen"] == [5, None]
    assert request.columns["kinds"].values.shape == (2,) and request.columns["tags"].values.tolist() == [["a", "b"]]


def test_outputs_are_recorded_as_values_are_sent(typed: CompiledStrategy) -> None:
    live = make_live(typed, catalogue_registry())
    decision = decide(live, parse(typed, msgspec.json.encode(typed_body())), RandomFeatures(typed, 0))
    assert decision.outputs == {"age": [10_123, 10_123], "seen": [5, None], "kinds": [[1, 2], [3, 4]]}


def test_value_of_a_candidate_outside_its_bounds_is_null_where_it_may_be(typed: CompiledStrategy) -> None:
    request = parse(typed, msgspec.json.encode(typed_body(eta_s=[7200.5, 7200.0])))
    assert request.candidates["eta_s"] == request.others["eta_s"] == [None, 7200.0]
    assert request.columns["eta_s"].tolist() == [None, 7200.0]


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"candidates": typed_body(seats=[3, 0])["candidates"]}, "$.candidates.seats[1]", "0 is outside"),
        (
            {"candidates": typed_body(kinds=[[1], [None]])["candidates"]},
            "$.candidates.kinds[1][0]",
            "Expected `int`",
        ),
        ({"request": {"hour": 24, "opened": 0, "tags": []}}, "$.request.hour", "24 is outside"),
        ({"request": {"hour": 1, "opened": 2**60, "tags": []}}, "$.request.opened", "Expected `int` <="),
        ({"request": {"hour": 1, "opened": 1.5, "tags": []}}, "$.request.opened", "Expected `int`"),
    ],
)
def test_value_outside_its_bounds_or_type_is_refused_by_its_place(
    typed: CompiledStrategy, changes: dict[str, Any], path: str, message: str
) -> None:
    error = refused(typed, typed_body() | changes)
    assert (error.status, error.path) == (400, path)
    assert message in error.message


@pytest.mark.parametrize("as_of_ms", [-62_135_596_800_001, 253_402_300_800_000, 2**53])
def test_a_time_beyond_the_years_of_the_language_is_refused(compiled: CompiledStrategy, as_of_ms: int) -> None:
    caught = refused(compiled, body(compiled, as_of_ms=as_of_ms))
    assert caught.path == "$.as_of_ms" and caught.status == 400

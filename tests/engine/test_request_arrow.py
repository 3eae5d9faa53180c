"""Candidates in Arrow make the same Request as the same values in JSON, column for column and refusal for refusal."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from engine.decide import decide
from engine.request import Request, RequestError, parse
from engine.request_arrow import request_from_arrow
from engine.strategy import CompiledStrategy
from features.expr import CodedTexts, Column, Type
from features.records import encode
from tests.engine.random_strategies import random_request, random_strategy
from tests.engine.support import RandomFeatures, catalogue_registry, make_live

ARROW = {
    "int": pa.int64(), "double": pa.float64(), "bool": pa.bool_(), "string": pa.string(), "timestamp": pa.int64(),
    "duration": pa.int64(),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledStrategy:
    return random_strategy(3, tmp_path_factory.mktemp("arrow"), catalogue_registry())


def arrow_type(kind: Type) -> pa.DataType:
    return pa.list_(ARROW[kind.item.kind]) if kind.is_list else ARROW[kind.kind]


def split(
    compiled: CompiledStrategy, body: Mapping[str, Any], types: Mapping[str, pa.DataType] | None = None
) -> tuple[bytes, pa.RecordBatch]:
    """The envelope and the record batch of a body."""
    arrays = {
        name: pa.array(values, (types or {}).get(name) or arrow_type(compiled.strategy.candidate_fields[name]))
        for name, values in body["candidates"].items()
    }
    envelope = msgspec.json.encode({name: value for name, value in body.items() if name != "candidates"})
    return envelope, pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def assert_same(found: Request, expected: Request) -> None:
    for name in (
        "order_id",
        "decision_id",
        "city",
        "as_of_ms",
        "fields",
        "values",
        "candidate_ids",
        "candidates",
        "others",
    ):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.columns.keys() == expected.columns.keys()
    for name, column in found.columns.items():
        assert column.values.dtype == expected.columns[name].values.dtype, name
        assert column.tolist() == expected.columns[name].tolist(), name


@pytest.mark.parametrize("seed", range(20))
def test_arrow_and_json_make_the_same_request(compiled: CompiledStrategy, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    body = random_request(rng, compiled, rng.choice([1, 2, 9, 77]))
    expected = parse(compiled, msgspec.json.encode(body))
    assert_same(request_from_arrow(compiled, *split(compiled, body)), expected)
    envelope, batch = split(compiled, body)
    shifted = pa.concat_tables([pa.Table.from_batches([batch])] * 2).combine_chunks().to_batches()[0]
    assert_same(request_from_arrow(compiled, envelope, shifted.slice(batch.num_rows)), expected)


@pytest.mark.parametrize("values", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("index", [pa.int8(), pa.int32()])
def test_dictionary_coded_texts_are_texts(compiled: CompiledStrategy, values: pa.DataType, index: pa.DataType) -> None:
    body = random_request(random.Random(1), compiled, 30)
    envelope, batch = split(compiled, body)
    for name in ("state", "driver_id"):
        at = batch.schema.names.index(name)
        plain = batch.column(at).dictionary_encode()
        coded = pa.DictionaryArray.from_arrays(plain.indices.cast(index), plain.dictionary.cast(values))
        arrays = [*batch.columns[:at], coded, *batch.columns[at + 1 :]]
        batch = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
    assert_same(request_from_arrow(compiled, envelope, batch), parse(compiled, msgspec.json.encode(body)))


def test_texts_of_a_dictionary_are_made_when_somebody_asks(compiled: CompiledStrategy) -> None:
    body = random_request(random.Random(12), compiled, 30)
    body["candidates"]["state"] = [random.Random(at).choice(["idle", "", "πέντε", "on_trip"]) for at in range(30)]
    types = {"state": pa.dictionary(pa.int8(), pa.string())}
    column = request_from_arrow(compiled, *split(compiled, body, types)).columns["state"]
    assert isinstance(column, CodedTexts) and len(column) == 30
    slot: Any = vars(Column)["values"]
    with pytest.raises(AttributeError):
        slot.__get__(column)
    assert column.values.tolist() == column.tolist() == body["candidates"]["state"]
    assert slot.__get__(column) is column.values


def test_smaller_numbers_and_arrow_times_are_taken(compiled: CompiledStrategy) -> None:
    body = random_request(random.Random(2), compiled, 10)
    body["candidates"]["distance_m"] = [float(np.float32(value)) for value in range(10)]
    types = {"rank_no": pa.int8(), "distance_m": pa.float32(), "seen": pa.timestamp("ms")}
    assert_same(request_from_arrow(compiled, *split(compiled, body, types)), parse(compiled, msgspec.json.encode(body)))


def test_numbers_are_not_copied(compiled: CompiledStrategy) -> None:
    envelope, batch = split(compiled, random_request(random.Random(4), compiled, 40))
    request = request_from_arrow(compiled, envelope, batch)
    for name in ("distance_m", "rank_no"):
        address = batch.column(batch.schema.names.index(name)).buffers()[1].address
        assert request.columns[name].values.__array_interface__["data"][0] == address


def test_nan_is_null_where_it_may_be_and_refused_where_not(compiled: CompiledStrategy) -> None:
    body = random_request(random.Random(5), compiled, 3)
    body["candidates"]["eta_s"] = [1.0, float("nan"), float("inf")]
    request = request_from_arrow(compiled, *split(compiled, body))
    assert request.candidates["eta_s"] == request.columns["eta_s"].tolist() == [1.0, None, None]
    body["candidates"]["distance_m"] = [1.0, 2.0, float("nan")]
    with pytest.raises(RequestError) as caught:
        request_from_arrow(compiled, *split(compiled, body))
    assert (caught.value.status, caught.value.path) == (400, "$.candidates.distance_m[2]")


REFUSED: dict[str, tuple[dict[str, Any], dict[str, pa.DataType], str]] = {
    "null in a field that may not be": ({"distance_m": [1.0, None, 2.0]}, {}, "$.candidates.distance_m[1]"),
    "a float for a whole number": ({"rank_no": [1.5, 2.5, 3.5]}, {"rank_no": pa.float64()}, "$.candidates.rank_no"),
    "a unit that milliseconds cannot say": ({}, {"seen": pa.timestamp("us")}, "$.candidates.seen"),
    "outside declared bounds": ({"rank_no": [1, 2, 99]}, {}, "$.candidates.rank_no[2]"),
    "null among a list's elements": ({"skills": [["a"], [None], []]}, {}, "$.candidates.skills[1]"),
    "a time after year 9999": ({"seen": [1, 2**60, 1]}, {}, "$.candidates.seen[1]"),
    "a key twice": ({"driver_id": ["a", "b", "a"]}, {}, "$.candidates.driver_id[2]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_its_place(compiled: CompiledStrategy, case: str) -> None:
    changes, types, path = REFUSED[case]
    body = random_request(random.Random(6), compiled, 3)
    body["candidates"] |= changes
    if "seen" in types:
        body["candidates"]["seen"] = [1, 2, 3]
    with pytest.raises(RequestError) as caught:
        request_from_arrow(compiled, *split(compiled, body, types))
    assert (caught.value.status, caught.value.path) == (400, path)


def test_missing_and_unknown_columns_are_named(compiled: CompiledStrategy) -> None:
    body = random_request(random.Random(7), compiled, 3)
    envelope, batch = split(compiled, body)
    at = batch.schema.names.index("state")
    names = [name for name in batch.schema.names if name != "state"]
    with pytest.raises(RequestError, match="missing required field `state`"):
        request_from_arrow(compiled, envelope, batch.select(names))
    renamed = batch.rename_columns([*batch.schema.names[:at], "stat", *batch.schema.names[at + 1 :]])
    with pytest.raises(RequestError, match="unknown field `stat`") as caught:
        request_from_arrow(compiled, envelope, renamed)
    assert caught.value.hint == "did you mean 'state'?"
    without = batch.select([name for name in batch.schema.names if name != "seats"])
    assert request_from_arrow(compiled, envelope, without).candidates["seats"] == [None] * 3


def test_both_ways_decide_alike(compiled: CompiledStrategy) -> None:
    live = make_live(compiled, catalogue_registry())
    body = random_request(random.Random(8), compiled, 50)
    by_arrow = decide(live, request_from_arrow(compiled, *split(compiled, body)), RandomFeatures(compiled, 8))
    by_json = decide(live, parse(compiled, msgspec.json.encode(body)), RandomFeatures(compiled, 8))
    assert encode(by_arrow) == encode(by_json)


def test_damaged_data_is_refused_and_read_no_further(compiled: CompiledStrategy) -> None:
    envelope, batch = split(compiled, random_request(random.Random(9), compiled, 3))
    at = batch.schema.names.index("state")
    offsets = pa.array([0, 4, 1 << 20, 12], pa.int32()).buffers()[1]
    beyond = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"idleidleidle")])
    no_text = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xff\xff")]
    )
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 7, -1], pa.int8()), pa.array(["idle"]), safe=False)
    for broken in (beyond, no_text, codes):
        arrays = [*batch.columns[:at], broken, *batch.columns[at + 1 :]]
        with pytest.raises(RequestError, match="damaged Arrow data") as caught:
            request_from_arrow(compiled, envelope, pa.RecordBatch.from_arrays(arrays, names=batch.schema.names))
        assert (caught.value.status, caught.value.path) == (400, "$.candidates")


def test_texts_of_any_script_nulls_and_lengths(compiled: CompiledStrategy) -> None:
    """Where every character is a byte and where not, dictionary-coded or plain, with nulls in codes and dictionary."""
    for texts in (["ab", "", "c"], ["ä", "日本", "\U0001f600x"], ["x" * 1000, "ä" * 1000, ""]):
        body = random_request(random.Random(10), compiled, 3)
        body["candidates"]["state"] = texts
        for types in ({}, {"state": pa.dictionary(pa.int8(), pa.string())}):
            expected = parse(compiled, msgspec.json.encode(body))
            assert_same(request_from_arrow(compiled, *split(compiled, body, types)), expected)
    body["candidates"]["state"] = ["x", "y" * 1001, "z"]
    for types in ({}, {"state": pa.dictionary(pa.int8(), pa.string())}):
        with pytest.raises(RequestError, match="length <= 1000"):
            request_from_arrow(compiled, *split(compiled, body, types))


def test_another_schema_is_read_anew(compiled: CompiledStrategy) -> None:
    body = random_request(random.Random(11), compiled, 5)
    expected = parse(compiled, msgspec.json.encode(body))
    envelope, batch = split(compiled, body)
    for order in (range(batch.num_columns), reversed(range(batch.num_columns)), range(batch.num_columns)):
        assert_same(request_from_arrow(compiled, envelope, batch.select(list(order))), expected)

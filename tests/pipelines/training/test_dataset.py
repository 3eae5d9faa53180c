"""Every sample is a row or counted under one reason; a row is the offered candidate as it was served."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from engine.model import ColumnProgram
from features.records import Decision, encode
from features.rows import to_served
from pipelines.training.config import TrainingError
from pipelines.training.dataset import REASONS, Dataset, build_dataset, why_empty
from tests.pipelines.training.worlds import (
    NAMES,
    PROGRAM,
    START_MS,
    STRATEGY,
    driver_batch,
    make_decision,
    make_world,
    sample_row,
    to_table,
    zone_batch,
)

ORDER = [entry["name"] for entry in PROGRAM]


def program() -> ColumnProgram:
    return ColumnProgram.load(PROGRAM, NAMES)


def build(rows: list[dict[str, Any]], **options: Any) -> Dataset:
    return build_dataset(to_table(rows), NAMES, strategy=STRATEGY, **({"needed": program().reads} | options))


def reason_of(row: dict[str, Any], **options: Any) -> str:
    data = build([row], **options)
    assert data.rows_in == 1 == data.num_rows + data.left_out.total()
    return next(iter(data.left_out), "used")


def as_bytes(decision: Decision, **changes: Any) -> bytes:
    """The decision's JSON with fields replaced that the record's own constructor would accept or refuse alike."""
    return msgspec.json.encode(msgspec.json.decode(encode(decision)) | changes)


def test_row_is_the_offered_candidate_as_it_was_served() -> None:
    decision = make_decision(
        1,
        chosen=2,
        hour=8,
        fare=1234,
        eta=[10.0, None, 30.0],
        rate=[0.1, 0.2, 0.3],
        rate_known=[True, True, False],
        requested=7,
    )
    data = build([sample_row(decision, 1)])
    x = dict(zip(ORDER, data.inputs(program())[0].tolist(), strict=True))
    assert x == {
        "eta_s": 30.0, "fare_cents": 1234.0, "accept_rate": 0.75, "accept_rate_missing": 1.0, "completed_1h": 2.0, "rush": 1.0,
        "requested_15m": 7.0,
    }  # fmt: skip
    assert data.label.tolist() == [1] and data.sample_id == ["d-000001"] and data.newest_fingerprint == "f1"


def test_null_field_is_filled_and_its_indicator_set() -> None:
    data = build([sample_row(make_decision(1, chosen=1, eta=[10.0, None, 30.0]), 0)])
    assert data.inputs(program())[0, ORDER.index("eta_s")] == 300.0


def test_rows_come_in_order_of_decision_time_whatever_the_order_of_the_log() -> None:
    decisions = [make_decision(n, at_ms=START_MS + at) for n, at in ((1, 30), (2, 10), (3, 20), (0, 20))]
    data = build([sample_row(d, n % 2) for n, d in enumerate(decisions)])
    assert data.sample_id == ["d-000002", "d-000000", "d-000003", "d-000001"]
    assert data.label.tolist() == [1, 1, 0, 0]


def test_a_batch_equals_one_row_at_a_time() -> None:
    world = make_world(60, 3)
    data = build_dataset(world.table, NAMES, strategy=STRATEGY, needed=program().reads)
    whole = data.inputs(program())
    assert whole.dtype == np.float32 and whole.shape == (60, len(PROGRAM))
    for row in range(60):
        alone = build(world.table.slice(row, 1).to_pylist())
        assert np.array_equal(alone.inputs(program())[0], whole[row])
    some = np.array([5, 2, 40])
    assert np.array_equal(data.inputs(program(), some), whole[some])


D = make_decision(1)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (sample_row(D, 1), "used"),
        (sample_row(D, 1, closed=False, kind="provisional"), "used"),  # accepted is known, completed not yet
        (sample_row(D, 1, strategy="rider_coupon"), "other_strategy"),
        (sample_row(D, None), "label_unknown"),
        (sample_row(D, 1, propensity_valid=None), "propensity_unknown"),
        (sample_row(D, 1, propensity_valid=False), "propensity_invalid"),
        (sample_row(D, 1, decision=b""), "decision_malformed"),
        (sample_row(D, 1, decision=b"{"), "decision_malformed"),
        (sample_row(D, 1, decision=b"\xff\xfe"), "decision_malformed"),
        (sample_row(D, 1, decision=as_bytes(D, chosen="first")), "decision_malformed"),
        (sample_row(D, 1, decision=as_bytes(D, chosen=3)), "decision_malformed"),
        (sample_row(D, 1, decision=as_bytes(D, chosen=-1)), "decision_malformed"),
        (sample_row(D, 1, decision=as_bytes(D, candidates={"eta_s": [1.0]})), "decision_malformed"),
        (sample_row(D, 1, decision=as_bytes(D, propensities=[1.0])), "decision_malformed"),
        (sample_row(D, 1, decision=as_bytes(D, schema_version=7)), "decision_malformed"),
        (sample_row(make_decision(1, chosen=None), 1), "nobody_chosen"),
        (sample_row(make_decision(1, propensities=[0.0, 0.5, 0.5]), 1), "zero_propensity"),
        (sample_row(make_decision(1, request={"fare_cents": 5}), 1), "field_missing"),
        (sample_row(make_decision(1, request={"hour": None, "fare_cents": 5}), 1), "field_missing"),
        (sample_row(make_decision(1, request={"hour": 8.5, "fare_cents": 5}), 1), "wrong_type"),
        (sample_row(make_decision(1, request={"hour": True, "fare_cents": 5}), 1), "wrong_type"),
        (sample_row(make_decision(1, eta=["10", "20", "30"]), 1), "wrong_type"),
        (sample_row(make_decision(1, eta=[10, 20, 30]), 1), "used"),  # JSON writes 10.0 as 10 in some languages
        (sample_row(make_decision(1, features={"pickup_zone": to_served(zone_batch(1))}), 1), "feature_not_served"),
    ],
)
def test_each_sample_has_one_fate(row: dict[str, Any], reason: str) -> None:
    assert reason in (*REASONS, "used")
    assert reason_of(row) == reason


def test_features_that_do_not_fit_their_rows_are_malformed() -> None:
    served = to_served(driver_batch(np.array([0.1, 0.2, 0.3]), np.ones(3, dtype=bool)))
    zone = to_served(zone_batch(1))
    short = msgspec.structs.replace(served, values=served.values[:-8])
    wrong_rows = to_served(driver_batch(np.array([0.1, 0.2]), np.ones(2, dtype=bool)))
    for driver in (short, wrong_rows):
        row = sample_row(make_decision(1, features={"driver": driver, "pickup_zone": zone}), 1)
        assert reason_of(row) == "decision_malformed"


def test_a_feature_of_another_type_than_now_is_left_out_not_cast() -> None:
    served = to_served(driver_batch(np.array([0.1, 0.2, 0.3]), np.ones(3, dtype=bool)))
    renamed = msgspec.structs.replace(served, types=["int", "int"])
    row = sample_row(make_decision(1, features={"driver": renamed, "pickup_zone": to_served(zone_batch(1))}), 1)
    assert reason_of(row) == "wrong_type"


def test_time_range_is_half_open() -> None:
    rows = [sample_row(make_decision(n, at_ms=START_MS + n), 1) for n in range(4)]
    data = build(rows, since_ms=START_MS + 1, until_ms=START_MS + 3)
    assert data.sample_id == ["d-000001", "d-000002"]
    assert data.left_out == {"outside_time_range": 2}


def test_a_sample_read_twice_counts_once() -> None:
    data = build([sample_row(D, 1), sample_row(D, 0)])
    assert data.label.tolist() == [1] and data.left_out == {"duplicate_sample": 1}


def test_what_another_model_wants_is_null_where_it_was_not_served() -> None:
    row = sample_row(make_decision(1, features={"driver": D.features["driver"]}), 1)
    data = build([row], needed={"eta_s"}, wanted={"pickup_zone.requested_15m", "eta_s"})
    assert data.num_rows == 1
    assert data.columns["pickup_zone.requested_15m"].valid.tolist() == [False]


def test_all_left_out_says_why_with_counts_and_an_example() -> None:
    rows = [sample_row(make_decision(n), None) for n in range(3)] + [sample_row(make_decision(9), 1, decision=b"{")]
    text = why_empty(build(rows))
    assert "of 4 samples 0 are usable" in text
    assert "3 label_unknown (as d-000000: accepted is not known)" in text
    assert "1 decision_malformed (as d-000009: $: not JSON" in text


def test_unknown_names_and_missing_columns_are_errors_that_list_the_known_ones() -> None:
    with pytest.raises(TrainingError, match=r"has no eta_x; it has driver\.accept_rate_24h"):
        build([sample_row(D, 1)], needed={"eta_x"})
    with pytest.raises(TrainingError, match="lack column decision"):
        build_dataset(to_table([]).drop(["decision"]), NAMES, strategy=STRATEGY, needed=set())

"""The records of features/records.py: golden bytes, exact places of mistakes, and round trips."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.records import (
    RECORD_OF_TOPIC,
    DeadLetter,
    Decision,
    DriverEvent,
    LedgerEntry,
    ModelOutput,
    RecordError,
    Sample,
    ServedFeatures,
    TripEvent,
    decode,
    encode,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "records"

TRIP = TripEvent(
    event_id="e-1",
    event_type="accepted",
    order_id="o-1",
    rider_id="r-1",
    city="nyc",
    product="express",
    pickup_zone=263,
    event_time_ms=1725163242000,
    ingest_time_ms=1725163242480,
    offer_id="o-1/1",
    decision_id="d-1",
    driver_id="d-0042",
    dropoff_zone=236,
    fare_cents=1275,
    derived=["driver_id", "offer_id"],
)
DRIVER = DriverEvent(
    event_id="e-2", driver_id="d-0042", city="nyc", status="idle", zone=263, event_time_ms=-1, ingest_time_ms=0
)
SERVED = ServedFeatures(
    view="driver_activity",
    generation=1,
    applied_through_ms=1725163242480,
    rows=1,
    names=["completed_1h"],
    types=["int"],
    values=(3).to_bytes(8, "little"),
    statuses=b"\0",
)
DECISION = Decision(
    decision_id="d-1",
    order_id="o-1",
    city="nyc",
    product="express",
    strategy="express_dispatch",
    strategy_version=1,
    strategy_hash="abc",
    as_of_ms=1725163242480,
    event_time_ms=1725163242480,
    request={"fare_cents": 1275, "dropoff_zone": None},
    candidate_key="driver_id",
    candidate_ids=["d-0042"],
    candidates={"eta_s": [120.5]},
    features={"driver": SERVED},
    model_outputs={"p_accept": ModelOutput(model="accept", model_hash=None, source="absent", values=[None])},
    scores=[0.5],
    propensities=[1.0],
    survivors=[True],
    reasons=[None],
    fired=[0],
    unknown=[0],
    chosen=0,
    decided_by="rank",
    quality="full",
    salt="s",
    schema_fingerprint="f",
    arms={"learned_ranking": "rules"},
    layers_read=["ranking"],
    params={"use_model": False},
    round_id=1,
)
SAMPLE = Sample(
    sample_id="d-1",
    version=1,
    kind="provisional",
    closed=False,
    order_id="o-1",
    strategy="express_dispatch",
    event_time_ms=1725163242480,
    ingest_time_ms=1725163242480,
    labels={"accepted": None},
    label_times_ms={"accepted": None},
    decision=msgspec.Raw(encode(DECISION)),
)
LETTER = DeadLetter(topic="trip_events", partition=0, offset=7, reason="not JSON", path="$", raw=b"\xff{")
ENTRY = LedgerEntry(
    topic="trip_events",
    partition=0,
    offset=8,
    reason="late",
    key="o-1",
    event_id="e-9",
    lateness_ms=700000,
    effect="tile",
)
RECORDS = {
    "trip_event": TRIP,
    "driver_event": DRIVER,
    "decision": DECISION,
    "sample": SAMPLE,
    "dead_letter": LETTER,
    "ledger_entry": ENTRY,
}


@pytest.mark.parametrize("name", RECORDS)
def test_bytes_of_version_1_stay_as_they_are(name: str) -> None:
    golden = (GOLDEN / f"{name}.v1.json").read_bytes().rstrip(b"\n")
    assert encode(RECORDS[name]) == golden
    again = decode(golden, type(RECORDS[name]))
    assert encode(again) == golden


def test_every_topic_has_a_golden_record() -> None:
    assert {type(record) for record in RECORDS.values()} == set(RECORD_OF_TOPIC.values())


@pytest.mark.parametrize(
    ("change", "path", "reason"),
    [
        ({"pickup_zone": "263"}, "$.pickup_zone", "Expected `int`, got `str`"),
        ({"pickup_zone": 1.5}, "$.pickup_zone", "Expected `int`, got `float`"),
        ({"pickup_zone": None}, "$.pickup_zone", "Expected `int`, got `null`"),
        ({"fare_cents": -1}, "$.fare_cents", "Expected `int` >= 0"),
        ({"event_time_ms": 2**60}, "$.event_time_ms", "Expected `int` <= 9007199254740991"),
        ({"order_id": ""}, "$.order_id", "Expected `str` of length >= 1"),
        ({"order_id": ...}, "$.order_id", "missing required field"),
        ({"event_type": "acepted"}, "$.event_type", "Invalid enum value 'acepted'"),
        ({"driver_id": ...}, "$.driver_id", "`driver_id` is required on an event of type `accepted`"),
        ({"schema_version": ...}, "$.schema_version", "missing required field"),
        ({"schema_version": 2}, "$.schema_version", "schema_version 2 is not readable here"),
        ({"schema_version": 0}, "$.schema_version", "schema_version 0 is not readable here"),
        ({"derived": "driver_id"}, "$.derived", "Expected `array`, got `str`"),
        ({"schema_version": ..., "derived": ["schema_version"]}, "$.schema_version", "missing required field"),
    ],
)
def test_a_bad_field_is_named_with_its_path(change: dict[str, object], path: str, reason: str) -> None:
    fields = {k: v for k, v in {**json.loads(encode(TRIP)), **change}.items() if v is not ...}
    with pytest.raises(RecordError) as caught:
        decode(json.dumps(fields).encode(), TripEvent)
    assert (caught.value.path, reason in caught.value.reason) == (path, True), caught.value


@pytest.mark.parametrize("name", ["event_time_ms", "as_of_ms", "strategy_version", "round_id"])
@pytest.mark.parametrize("value", [2**53, 2**63 - 1, 2**64])
def test_a_decision_with_a_number_that_no_clock_or_counter_shows_is_malformed(name: str, value: int) -> None:
    with pytest.raises(RecordError) as caught:
        decode(json.dumps({**json.loads(encode(DECISION)), name: value}).encode(), Decision)
    assert caught.value.path == f"$.{name}"


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b'{"event_id":"\xff"}', b"[" * 100_000])
def test_bytes_that_are_no_record_are_refused(raw: bytes) -> None:
    with pytest.raises(RecordError):
        decode(raw, TripEvent)


def test_unknown_fields_are_left_for_a_later_reader() -> None:
    fields = {**json.loads(encode(TRIP)), "surge": 1.5}
    assert decode(json.dumps(fields).encode(), TripEvent) == TRIP


@given(raw=st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_record_or_a_record_error(raw: bytes) -> None:
    for record in RECORD_OF_TOPIC.values():
        try:
            decode(raw, record)
        except RecordError as error:
            assert error.path.startswith("$")

"""What a canary is; its flight through a real job is in tests/pipelines/test_parallel.py."""

from __future__ import annotations

import pytest

from features.canary import CANARY, CANARY_ZONE, Flight, canary_of, is_canary
from features.loader import SHIPPED, load_catalogue
from features.records import DRIVER_EVENTS, RECORD_OF_TOPIC, TRIP_EVENTS, decode, encode
from features.store import FeatureError
from infra.commands.features_canary import summary
from tests import generate


@pytest.mark.parametrize("topic", [TRIP_EVENTS, DRIVER_EVENTS])
def test_a_canary_is_a_good_record_of_keys_that_belong_to_nobody(topic: str) -> None:
    record = decode(encode(canary_of(topic, 1_700_000_000_000)), RECORD_OF_TOPIC[topic])
    assert is_canary(record.event_id) and record.event_time_ms == record.ingest_time_ms == 1_700_000_000_000
    catalogue = load_catalogue(SHIPPED)
    groups = [group for group in catalogue.groups() if group.source.topic == topic]
    assert groups
    fields = {name: getattr(record, name) for name in RECORD_OF_TOPIC[topic].__struct_fields__}
    for group in groups:  # every group gets one, so every heartbeat moves
        assert group.key_of(fields) in (CANARY, CANARY_ZONE)


def test_two_canaries_are_never_duplicates_and_no_event_is_one() -> None:
    ids = {canary_of(TRIP_EVENTS, 5).event_id for _ in range(100)}
    assert len(ids) == 100
    assert not any(is_canary(event["event_id"]) for event in generate.trip_events(1, 50))


def test_a_topic_without_a_canary_is_named() -> None:
    with pytest.raises(FeatureError, match="no canary is known for topic 'weather'"):
        canary_of("weather", 5)


def test_summary_counts_the_lost_and_takes_percentiles_of_the_seen() -> None:
    def flight(seconds: float | None) -> Flight:
        return Flight(source="trip_events", group="g", sent_ms=0, seconds=seconds)

    rows = summary([flight(i / 1000) for i in range(1, 101)] + [flight(None)])
    assert rows == [{"source": "trip_events", "group": "g", "seen": 100, "lost": 1, "p50_ms": 51.0, "p99_ms": 100.0}]
    assert summary([flight(None)])[0] | {"p50_ms": None} == {
        "source": "trip_events", "group": "g", "seen": 0, "lost": 1, "p50_ms": None, "p99_ms": None,
    }  # fmt: skip

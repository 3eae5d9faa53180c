"""What is kept of records that were not used: never more than its topic takes."""

from __future__ import annotations

import pytest

from features.records import DeadLetter, LedgerEntry, RecordError, TripEvent, decode
from features.topics import LARGE_MESSAGES
from pipelines.dead_letter import MAX_MESSAGE_BYTES, MAX_RAW_BYTES, MAX_TEXT, dead_letter_bytes, ledger_bytes

ENVELOPE = 1_000  # Kafka's own bytes around a message


def test_the_limit_is_the_topics() -> None:
    assert str(MAX_MESSAGE_BYTES) == LARGE_MESSAGES["max.message.bytes"]


@pytest.mark.parametrize("num_bytes", [0, 1, MAX_RAW_BYTES - 1, MAX_RAW_BYTES])
def test_a_record_that_fits_is_kept_whole(num_bytes: int) -> None:
    letter = decode(dead_letter_bytes("trip_events", 0, 1, "not JSON", "$", b"a" * num_bytes), DeadLetter)
    assert (letter.raw, letter.reason) == (b"a" * num_bytes, "not JSON")


@pytest.mark.parametrize("num_bytes", [MAX_RAW_BYTES + 1, 3 << 20, 40 << 20])
@pytest.mark.parametrize("filler", [b"a", b"\xff", b"\x00"])
def test_a_record_beyond_the_limit_is_cut_and_its_size_said(num_bytes: int, filler: bytes) -> None:
    """It was compressed on its way in: 3 MiB of one letter are 12 kB on the topic."""
    message = dead_letter_bytes("trip_events", 0, 1, "not JSON", "$", filler * num_bytes)
    letter = decode(message, DeadLetter)
    assert letter.raw == filler * MAX_RAW_BYTES
    assert letter.reason == f"not JSON (the first {MAX_RAW_BYTES:,} of {num_bytes:,} bytes are kept)"
    assert len(message) + ENVELOPE < MAX_MESSAGE_BYTES


@pytest.mark.parametrize("quoted", ["é", "\x01", "🐱", '"'])
def test_a_reason_that_quotes_the_record_stays_short(quoted: str) -> None:
    raw = b'{"event_type": "%s", "schema_version": 1}' % (quoted * 600_000).encode().replace(b'"', b"\\u0022").replace(
        b"\x01", b"\\u0001"
    )
    with pytest.raises(RecordError) as caught:
        decode(raw, TripEvent)
    for path in (caught.value.path, quoted * 2_000_000):
        message = dead_letter_bytes("trip_events", 0, 1, caught.value.reason + quoted * 2_000_000, path, raw)
        assert len(message) + ENVELOPE < MAX_MESSAGE_BYTES
        letter = decode(message, DeadLetter)
        assert len(letter.path) <= MAX_TEXT and len(letter.reason) < MAX_TEXT + 100


@pytest.mark.parametrize("key", [b"k" * 900_000, b"\xff" * 900_000, "🐱".encode() * 225_000])
def test_a_ledger_entry_of_a_huge_key_stays_far_below_the_limit(key: bytes) -> None:
    message = ledger_bytes("trip_events", 0, 1, "late", key, "e-1", 700_000, "driver.trip_events.60000[d-1]@5")
    assert len(message) < 20_000
    assert len(decode(message, LedgerEntry).key) == MAX_TEXT

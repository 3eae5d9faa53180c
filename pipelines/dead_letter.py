"""Records that were not used: what is kept of them, and the fold that readers need.

A record that failed to decode is a `DeadLetter` (bytes, reason, field path, place); a good one that was a duplicate, late
or from the future is a `LedgerEntry` (reason, lateness, would-be effect). A record's place, (topic, partition, offset), is
its identity: a reader that sees a place twice has seen one record. Framework-free; pipelines/sink.py calls it in Flink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeVar

from features.records import DeadLetter, LedgerEntry, LedgerReason, RecordError, decode, encode

MAX_MESSAGE_BYTES: Final = 2 << 20  # as the dead letters' topic takes (features/topics.py), before compression
# A message that compresses well may be far larger than the broker's limit. Its dead letter must not be: a message that
# the topic refuses would stop the job for ever. Base64 makes 4 bytes of 3; the rest of the 2 MiB is for the other fields.
MAX_RAW_BYTES: Final = 1_400 << 10
MAX_TEXT: Final = 1_000  # characters of a reason, a path or a key: all of them may quote the record

Place = tuple[str, int, int]  # topic, partition, offset
Unused = TypeVar("Unused", DeadLetter, LedgerEntry)


def dead_letter(topic: str, partition: int, offset: int, error: RecordError, raw: bytes) -> DeadLetter:
    """A record that could not be read, kept whole up to MAX_RAW_BYTES; `reason` says how many bytes there were beyond."""
    reason = short(error.reason)
    if len(raw) > MAX_RAW_BYTES:
        reason += f" (the first {MAX_RAW_BYTES:,} of {len(raw):,} bytes are kept)"
    return DeadLetter(
        topic=topic,
        partition=partition,
        offset=offset,
        reason=reason,
        path=short(error.path),
        raw=raw[:MAX_RAW_BYTES],
    )


def dead_letter_bytes(topic: str, partition: int, offset: int, reason: str, path: str, raw: bytes | None) -> bytes:
    """The message of one malformed record on the `dead_letters` topic. A message without a value (null) has no bytes."""
    return encode(dead_letter(topic, partition, offset, RecordError(reason, path), raw or b""))


def ledger_bytes(
    topic: str,
    partition: int,
    offset: int,
    reason: LedgerReason,
    key: bytes | None,
    event_id: str,
    lateness_ms: int,
    effect: str,
) -> bytes:
    """The message of one good but unused record on the `ledger` topic.

    `key` is the message's own key, "" if it had none. `lateness_ms` is ingest − event: negative for the future.
    `effect` lists what the record would have changed: `group[key]@tile`, `group[key]` for last values.
    """
    entry = LedgerEntry(
        topic=topic,
        partition=partition,
        offset=offset,
        reason=reason,
        key="" if key is None else short(key[: 4 * MAX_TEXT].decode(errors="replace")),
        event_id=event_id,
        lateness_ms=lateness_ms,
        effect=effect,
    )
    return encode(entry)


def short(text: str) -> str:
    """At most MAX_TEXT characters, the end said to be missing."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def fold(values: Iterable[bytes], record: type[Unused]) -> dict[Place, Unused]:
    """The messages of `dead_letters` or `ledger` by place; of a place that was written twice the first one counts.

    `unmatched` entries are left out: that is the sample job's word on a record which the feature job may have used.
    Raises: RecordError for a message that is not of that kind.
    """
    folded: dict[Place, Unused] = {}
    for value in values:
        entry = decode(value, record)
        if isinstance(entry, LedgerEntry) and entry.reason == "unmatched":
            continue
        folded.setdefault((entry.topic, entry.partition, entry.offset), entry)
    return folded


def count_reasons(dead: Iterable[DeadLetter], ledger: Iterable[LedgerEntry]) -> Counter[str]:
    """How many records met each fate but `used`: malformed, duplicate, future, late, …"""
    return Counter(["malformed" for _ in dead]) + Counter(entry.reason for entry in ledger)

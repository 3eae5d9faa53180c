"""Records that cross a topic, and the one decoder and encoder that the whole product uses.

Flink steps, the engine, command-line tools and tests all call `decode` and `encode` here; nothing else parses
these bytes. Every record is one JSON object per message. Times are epoch milliseconds, UTC; money is cents, length
metres, duration seconds, all integers. A reader accepts the current `schema_version` and the one before it.

Two times (infra/DESIGN.md §2): `event_time_ms` is when it happened, `ingest_time_ms` when the system could first
know it. Read `features/window.py` next for what they mean to a window.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

SCHEMA_VERSION: Final = 1

# Topic names, in the order in which data flows through them (DESIGN §2).
TRIP_EVENTS: Final = "trip_events"
DRIVER_EVENTS: Final = "driver_events"
DECISIONS: Final = "decisions"
SAMPLES: Final = "samples"
DEAD_LETTERS: Final = "dead_letters"
LEDGER: Final = "ledger"
TOPICS: Final = (TRIP_EVENTS, DRIVER_EVENTS, DECISIONS, SAMPLES, DEAD_LETTERS, LEDGER)

TripEventType = Literal[
    "requested", "offered", "accepted", "declined", "timed_out", "cancelled", "arrived", "picked_up", "completed"
]
OFFER_EVENT_TYPES: Final = frozenset({"offered", "accepted", "declined", "timed_out"})
DriverStatus = Literal["idle", "en_route", "on_trip", "offline"]
DecidedBy = Literal["rank", "explore", "assign", "fallback"]
Quality = Literal["full", "degraded"]
ModelSource = Literal["model", "fallback", "absent"]
SampleKind = Literal["provisional", "positive", "negative", "late_positive", "corrected"]
LedgerReason = Literal["duplicate", "late", "future", "before_seam", "unmatched"]

MAX_SAFE_INT: Final = 2**53 - 1  # Redis scripts hold numbers as doubles, and so do most JSON readers
Id = Annotated[str, Meta(min_length=1, max_length=200)]
TimeMs = Annotated[int, Meta(ge=-MAX_SAFE_INT, le=MAX_SAFE_INT)]
Amount = Annotated[int, Meta(ge=0, le=MAX_SAFE_INT)]  # cents, metres, seconds: never negative
Zone = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # versions, rounds, places in a list
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Bits = Annotated[int, Meta(ge=0, le=MAX_SAFE_INT)]


def _version() -> int:
    """A factory, because `omit_defaults` would leave a plain default out of the bytes."""
    return SCHEMA_VERSION


class TripEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to one order. Keyed by `order_id` on its topic."""

    event_id: Id
    event_type: TripEventType
    order_id: Id
    rider_id: Id
    city: Id
    product: Id
    pickup_zone: Zone
    event_time_ms: TimeMs
    ingest_time_ms: TimeMs
    schema_version: int = msgspec.field(default_factory=_version)
    offer_id: Id | None = None  # on offered, accepted, declined, timed_out
    decision_id: Id | None = None  # on offered, accepted, declined, timed_out
    driver_id: Id | None = None
    dropoff_zone: Zone | None = None
    fare_cents: Amount | None = None
    distance_m: Amount | None = None
    duration_s: Amount | None = None
    derived: list[str] = []  # names of fields that were made up for replayed public data

    def __post_init__(self) -> None:
        if self.event_type in OFFER_EVENT_TYPES:
            for name in ("offer_id", "decision_id", "driver_id"):
                if getattr(self, name) is None:
                    raise ValueError(f"`{name}` is required on an event of type `{self.event_type}`")


class DriverEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A driver's status changed. Keyed by `driver_id` on its topic."""

    event_id: Id
    driver_id: Id
    city: Id
    status: DriverStatus
    zone: Zone
    event_time_ms: TimeMs
    ingest_time_ms: TimeMs
    schema_version: int = msgspec.field(default_factory=_version)
    derived: list[str] = []


class ServedFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """The features of one role exactly as they were served.

    Shapes: rows R is 1 for a request's role and K (the candidates, in order) for the candidates' role; F = len(names).
    `values` is F columns after each other, each R little-endian 8-byte cells: int64 for `int` and `bool`, float64 for
    `double`; a `string` column holds int64 indices into `strings`. A cell that is not present or default is 0.
    `statuses` is F columns of R bytes (features/rows.py::Status).
    """

    view: str
    generation: Number
    applied_through_ms: TimeMs | None
    rows: Number
    names: list[str]
    types: list[str]
    values: bytes
    statuses: bytes
    strings: list[str] = []


class ModelOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one model said of each candidate. `values` is (K,), null where nothing was said."""

    model: str
    model_hash: str | None
    source: ModelSource
    values: list[float | None]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision group: a request, its K candidates, what was known of them, and what was chosen, with what chance.

    Lists named after candidates are (K,) in the order of `candidate_ids`. `chosen` is an index or null.
    """

    decision_id: Id
    order_id: Id
    city: Id
    product: Id
    strategy: str
    strategy_version: Number
    strategy_hash: str
    as_of_ms: TimeMs
    event_time_ms: TimeMs
    request: dict[str, Any]
    candidate_key: str
    candidate_ids: list[str]
    candidates: dict[str, list[Any]]
    features: dict[str, ServedFeatures]
    model_outputs: dict[str, ModelOutput]
    scores: list[float | None]
    propensities: list[float]
    survivors: list[bool]
    reasons: list[str | None]
    fired: list[Bits]
    unknown: list[Bits]
    chosen: Number | None
    decided_by: DecidedBy
    quality: Quality
    salt: str
    schema_fingerprint: str
    arms: dict[str, str]
    layers_read: list[str]
    params: dict[str, Any]
    outputs: dict[str, list[Any]] = {}  # by name, (K,): null for a candidate that was dropped
    killed: list[str] = []  # ids of rules that were switched off when this was decided
    shadow_of: str | None = None  # the strategy that answered; this one was only computed beside it
    round_id: Number | None = None
    schema_version: int = SCHEMA_VERSION


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the sample of one Decision. Version 1 carries the Decision's bytes; later ones only labels."""

    sample_id: Id  # = decision_id
    version: Number
    kind: SampleKind
    closed: bool
    order_id: str
    strategy: str
    event_time_ms: TimeMs  # of the decision
    ingest_time_ms: TimeMs  # when what caused this version was known
    labels: dict[str, Number | None]
    label_times_ms: dict[str, TimeMs | None]
    propensity_valid: bool | None = None  # null until an offer was seen
    schema_version: int = SCHEMA_VERSION
    decision: msgspec.Raw | UnsetType = UNSET


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record that could not be used at all, kept whole up to 1,400 KiB.

    For a file's row, `topic` is `file:NAME` and `offset` the row.
    """

    topic: str
    partition: Number
    offset: Offset
    reason: str
    path: str
    raw: bytes
    schema_version: int = SCHEMA_VERSION


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed record that was not used, why, and what it would have done."""

    topic: str
    partition: Number
    offset: Offset
    reason: LedgerReason
    key: str
    event_id: str
    lateness_ms: int
    effect: str
    schema_version: int = SCHEMA_VERSION


Record = TripEvent | DriverEvent | Decision | Sample | DeadLetter | LedgerEntry
R = TypeVar("R", TripEvent, DriverEvent, Decision, Sample, DeadLetter, LedgerEntry)

RECORD_OF_TOPIC: Final[dict[str, type]] = {
    TRIP_EVENTS: TripEvent,
    DRIVER_EVENTS: DriverEvent,
    DECISIONS: Decision,
    SAMPLES: Sample,
    DEAD_LETTERS: DeadLetter,
    LEDGER: LedgerEntry,
}


class RecordError(ValueError):
    """A record that could not be read. `path` is the field (`$.fare_cents`), or `$` for the whole record."""

    def __init__(self, reason: str, path: str = "$") -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason
        self.path = path


_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    record: msgspec.json.Decoder(record) for record in RECORD_OF_TOPIC.values()
}
_ENCODER: Final = msgspec.json.Encoder()
_AT = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`|^`(?P<named>[^`]+)` is required")


def encode(record: Record) -> bytes:
    """One record to the bytes of one message. Golden bytes: tests/golden/records/."""
    return _ENCODER.encode(record)


def decode(raw: bytes, record: type[R]) -> R:
    """The bytes of one message to a checked record.

    Raises: RecordError with the reason and the field path, for bytes that are not JSON, fields that are missing,
    of a wrong type or out of range, and schema versions that are neither current nor previous.
    """
    try:
        out = _DECODERS[record].decode(raw)
    except msgspec.ValidationError as error:
        raise _located(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from None
    if b'"schema_version":' not in raw and _has_no_version(
        raw
    ):  # the factory filled it in: absent would pass as current
        raise RecordError("missing required field `schema_version`", "$.schema_version")
    if not SCHEMA_VERSION - 1 <= out.schema_version <= SCHEMA_VERSION or out.schema_version < 1:
        raise RecordError(
            f"schema_version {out.schema_version} is not readable here (this reader knows {SCHEMA_VERSION} and the one before)",
            "$.schema_version",
        )
    return out


def _has_no_version(raw: bytes) -> bool:
    """The exact look, for records whose text does not show the key at once (white space before the colon, or none)."""
    return "schema_version" not in msgspec.json.decode(raw, type=dict[str, msgspec.Raw])


def _located(message: str) -> RecordError:
    """msgspec's message to reason and path. It names a missing field in the text, not in the path: put it there."""
    match = _AT.match(message)
    assert match is not None
    reason, path = match["reason"], match["path"] or "$"
    missing = _MISSING.search(reason)
    if missing is not None:
        path = f"{path}.{missing['name'] or missing['named']}"
    return RecordError(reason, path)

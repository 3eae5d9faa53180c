"""What a feature author declares: entities, sources, views and features. What follows from it is in features/spec.py.

Made from YAML by features/loader.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from features.expr import Program

Key = str | int | tuple[str | int, ...]
"""One entity: a scalar where its entity has one key column, else a tuple in the declared order."""

UNITS: Final = (
    ("trips", "offers", "events", "drivers", "riders", "requests")  # counted things
    + ("cents", "m", "km", "s", "ms", "min", "h", "m/s", "km/h")  # measured things
    + ("ratio", "zone", "status", "id", "1")  # shares, labels, pure numbers
)

INT32: Final = (-(2**31), 2**31 - 1)


@dataclass(frozen=True, kw_only=True)
class KeyColumn:
    """A column of an entity's key. `type`: "string", "int" (64 bits) or "int32"."""

    name: str
    type: str

    @property
    def source_type(self) -> str:
        """The type of a source's column that can hold it."""
        return "int" if self.type == "int32" else self.type

    def holds(self, value: Any) -> bool:
        """Whether a record's value can be part of a key: a null, or an int beyond 32 bits in an int32, cannot."""
        return value is not None and (self.type != "int32" or INT32[0] <= value <= INT32[1])


@dataclass(frozen=True, kw_only=True)
class Entity:
    """What features describe, and the columns of its key in their order."""

    name: str
    keys: tuple[KeyColumn, ...]
    description: str = ""

    @property
    def join_keys(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.keys)

    def key_of(self, record: Mapping[str, Any], key_fields: Sequence[str]) -> Key | None:
        """The key of a record whose columns `key_fields` hold it; None where it has none and so belongs to no key."""
        values = tuple(record[field] for field in key_fields)
        if not all(column.holds(value) for column, value in zip(self.keys, values, strict=True)):
            return None
        return values[0] if len(values) == 1 else values

    @property
    def signature(self) -> list[list[str]]:
        """What the bytes of stored keys depend on: names and types, in the order in which a key is told."""
        return [[column.name, column.type] for column in self.keys]


def single_key(name: str, join_key: str, type: str, description: str = "") -> Entity:
    """An entity whose key is one column."""
    return Entity(name=name, keys=(KeyColumn(name=join_key, type=type),), description=description)


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """Copies of a record are recognised by this column for this long after the first arrival."""

    by: str
    horizon_ms: int


@dataclass(frozen=True, kw_only=True)
class ColumnFacts:
    """What the values of a source's column are declared to be; bounds are included. Expressions are checked with it."""

    unit: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A topic and its records. `schema` maps each column to its type, "int" or "int?" and so on.

    `history`: a glob of Parquet files with the same records, absolute or from the definitions' folder.
    """

    name: str
    topic: str
    schema: Mapping[str, str]
    event_time: str
    ingest_time: str
    event_id: str
    disorder_ms: int  # ingest - event above this is late
    future_ms: int  # event - ingest above this is from the future
    dedup: Dedup | None = None
    description: str = ""
    history: str | None = None
    facts: Mapping[str, ColumnFacts] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    """Parquet files of rows, each with the values of one key from its event time on.

    `path` is a glob, absolute or from the definitions' folder. `ingest_time`: when a row was made, which tells a
    correction from what it corrects, and what was known when. `valid_to`: when a row ends (left out) by itself.
    """

    name: str
    path: str
    schema: Mapping[str, str]
    event_time: str
    ingest_time: str | None = None
    valid_to: str | None = None
    description: str = ""
    facts: Mapping[str, ColumnFacts] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """One column of a view: an aggregate over a stream, a `column` of a batch source, or an `expr` over the view's other
    features and request fields.

    `type` is the type of a value ("int", "double", "bool", "string"); `nullable` says whether an expression in the
    same view has to expect null while the view is live. A served value can always be missing or stale as well, unless
    a default is declared: that is `served_type`.
    """

    name: str
    type: str
    nullable: bool
    aggregate: str | None = None
    column: str | None = None
    of: Program | None = None
    where: Program | None = None
    window_ms: int | None = None
    hop_ms: int | None = None
    half_life_ms: int | None = None  # of decayed_sum
    q: float | None = None  # of quantile: 0 to 1, in whole millionths
    resolution: float | None = None  # of stddev and quantile: the steps in which `of` is counted
    expr: Program | None = None
    default: Any | None = None
    unit: str = ""
    description: str = ""
    file: str = ""
    line: int = 0

    @property
    def served_type(self) -> str:
        return self.type if self.default is not None else f"{self.type}?"

    @property
    def local_type(self) -> str:
        """The type under which the view's own expressions see this feature."""
        return f"{self.type}?" if self.nullable and self.default is None else self.type


@dataclass(frozen=True, kw_only=True)
class FeatureView:
    """Ordered features of one entity. `key_fields` are the source's columns that hold the key, in the entity's order.

    `request` maps fields that come with the question to their types. A view without a source has only those and
    expressions; its `key_fields` are empty, and nothing of it is stored.
    """

    name: str
    entity: Entity
    source: Source | BatchSource | None
    key_fields: tuple[str, ...]
    max_age_ms: int
    features: tuple[FeatureSpec, ...]
    owner: str = ""
    freshness_slo_p99_ms: int | None = None
    description: str = ""
    file: str = ""
    line: int = 0
    tests: str | None = None
    request: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Where its values come from: "stream", "batch" or "request"."""
        return "request" if self.source is None else "batch" if isinstance(self.source, BatchSource) else "stream"

    @property
    def stream(self) -> Source:
        """The source of a stream view. Raises: TypeError for another kind of view."""
        if not isinstance(self.source, Source):
            raise TypeError(f"view {self.name} is a {self.kind} view and has no stream")
        return self.source

    def feature(self, name: str) -> FeatureSpec:
        return next(f for f in self.features if f.name == name)

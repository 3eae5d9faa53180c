"""The entities and sources of a catalogue: what features describe, and where their values come from.

    entities.yaml   zone: {join_key: zone, type: int}
                    zone_product: {keys: {zone: int32, product: string}}
    sources.yaml    trip_events: {topic: …, event_time: …, ingest_time: …, event_id: …, disorder: 10m, future: 1m, schema: {…}}
                    ratings: {parquet: ratings/*.parquet, event_time: rated_at, schema: {…}}

A column of a schema is its type, or `{type: int?, unit: cents, min: 0, max: 100000}`: what expressions are checked with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from features.declared import UNITS
from features.spec import BatchSource, ColumnFacts, Dedup, Entity, KeyColumn, Source
from features.yaml_fields import Fields, Problems
from features.yaml_source import MapNode, Node, ScalarNode

KEY_TYPES: Final = ("string", "int", "int32")
_STREAM: Final = ("topic", "event_time", "ingest_time", "event_id", "disorder", "future", "dedup", "history")
_BATCH: Final = ("parquet", "event_time", "ingest_time", "valid_to")
_BOTH: Final = ("schema", "description")


def load_entities(node: Node | None, problems: Problems) -> dict[str, Entity]:
    """The entities that are right, by name. Mistakes join `problems`."""
    out: dict[str, Entity] = {}
    owners: dict[frozenset[str], str] = {}
    for key, value in problems.entries(node, "entities"):
        fields = Fields(value, problems, ("join_key", "type", "keys", "description"), f"entity '{key.text}'")
        keys = _keys(fields)
        names = frozenset(column.name for column in keys)
        if keys and names in owners:
            what = f"join key '{keys[0].name}'" if len(keys) == 1 else f"keys {', '.join(c.name for c in keys)}"
            at = fields.node_of("keys" if fields.has("keys") else "join_key")
            message = f"{what} already belong{'s' if len(keys) == 1 else ''} to entity '{owners[names]}'"
            problems.add(at, "duplicate", message, "give each entity a join key of its own")
        elif keys and all(column.type for column in keys):
            owners[names] = key.text
            description = fields.text("description", required=False) or ""
            out[key.text] = Entity(name=key.text, keys=keys, description=description)
    return out


def load_sources(node: Node | None, problems: Problems) -> dict[str, Source | BatchSource]:
    """The sources that are right, by name: of a topic, or of Parquet files. Mistakes join `problems`."""
    out: dict[str, Source | BatchSource] = {}
    for key, value in problems.entries(node, "sources"):
        is_batch = isinstance(value, MapNode) and value.get("parquet") is not None
        known = (*(_BATCH if is_batch else (*_STREAM, "parquet")), *_BOTH)
        fields = Fields(value, problems, known, f"source '{key.text}'")
        schema, facts = load_columns(fields, "schema")
        source = (_batch if is_batch else _stream)(key.text, fields, schema, facts)
        if source is not None:
            out[key.text] = source
    return out


def load_columns(fields: Fields, name: str) -> tuple[dict[str, str], dict[str, ColumnFacts]]:
    """Types of columns by name, and what else is said of some. A column with a mistake is left out."""
    schema: dict[str, str] = {}
    facts: dict[str, ColumnFacts] = {}
    for key, value in fields.entries(name):
        inner: Fields | None = None
        type_node: Node | None = value
        if isinstance(value, MapNode):
            inner = Fields(value, fields.problems, ("type", "unit", "min", "max"), f"column '{key.text}'")
            type_node = inner.scalar("type")
        kind = None if type_node is None else fields.problems.type_name(type_node)
        if kind is None or type_node is None:
            continue
        if kind.startswith("list("):
            hint = "a record has one value a column"
            fields.problems.add(type_node, "type", f"column '{key.text}' cannot be a {kind}", hint)
            continue
        schema[key.text] = kind
        if inner is not None:
            facts[key.text] = _facts(inner, key.text, kind)
    return schema, facts


def _keys(fields: Fields) -> tuple[KeyColumn, ...]:
    """`join_key` and `type`, or `keys: {column: type}` in the order in which they are written; "" for a wrong type."""
    if not fields.has("keys"):
        name, kind = fields.identifier("join_key"), fields.choice("type", KEY_TYPES)
        return () if name is None else (KeyColumn(name=name, type=kind or ""),)
    for name in ("join_key", "type"):
        if fields.has(name):
            hint = "name every column of the key under keys"
            fields.problems.add(fields.node_of(name), "key", f"'{name}' does not go with 'keys'", hint)
    node, entries = fields.node_of("keys"), fields.entries("keys")
    if isinstance(node, MapNode) and not len(node):
        fields.problems.add(node, "key", f"{fields.what} has no key", "write keys: {zone: int}")
    inner = Fields(node, fields.problems, [key.text for key, _ in entries], "keys") if entries else fields
    columns = (
        KeyColumn(name=key.text, type=inner.choice(key.text, KEY_TYPES, what="type") or "") for key, _ in entries
    )
    return tuple(columns)


def _facts(fields: Fields, column: str, kind: str) -> ColumnFacts:
    unit = fields.choice("unit", UNITS, required=False)
    low, high = (_bound(fields, name, kind) for name in ("min", "max"))
    if low is not None and high is not None and low > high:
        message = f"no value of '{column}' is {low:g} at least and {high:g} at most"
        fields.problems.add(fields.node_of("max"), "bound", message)
    return ColumnFacts(unit=unit or "", low=low, high=high)


def _bound(fields: Fields, name: str, kind: str) -> float | None:
    node = fields.scalar(name, required=False)
    if node is None:
        return None
    if kind.removesuffix("?") not in ("int", "double"):
        fields.problems.add(node, "type", f"'{name}' does not go with {kind}: it is for numbers")
    elif isinstance(node.value, bool) or not isinstance(node.value, int | float) or not math.isfinite(node.value):
        fields.problems.add(node, "type", f"{name} {node.text} is not a number")
    else:
        return float(node.value)
    return None


def _stream(name: str, fields: Fields, schema: dict[str, str], facts: dict[str, ColumnFacts]) -> Source | None:
    columns = [fields.choice(role, tuple(schema)) for role in ("event_time", "ingest_time", "event_id")]
    if isinstance(fields.node, MapNode) and not fields.has("topic"):
        hint = "a stream has a topic, a batch source parquet: a glob of files"
        fields.problems.add(fields.node, "missing", f"{fields.what} needs 'topic' or 'parquet'", hint)
    topic = fields.text("topic", required=False)
    disorder_ms, future_ms = fields.duration("disorder"), fields.duration("future")
    dedup = _dedup(fields, tuple(schema))
    _check_types(fields, schema, {"event_time": "int", "ingest_time": "int", "event_id": "string"})
    if None in columns or topic is None or disorder_ms is None or future_ms is None:
        return None
    event_time, ingest_time, event_id = (str(column) for column in columns)
    return Source(
        name=name,
        topic=topic,
        schema=schema,
        event_time=event_time,
        ingest_time=ingest_time,
        event_id=event_id,
        disorder_ms=disorder_ms,
        future_ms=future_ms,
        dedup=dedup,
        description=fields.text("description", required=False) or "",
        history=_glob(fields, "history"),
        facts=facts,
    )


def _batch(name: str, fields: Fields, schema: dict[str, str], facts: dict[str, ColumnFacts]) -> BatchSource | None:
    """Its times are timestamps of the files or epoch milliseconds, and need not stand in the schema."""
    path, event_time = _glob(fields, "parquet"), fields.identifier("event_time")
    ingest_time = fields.identifier("ingest_time") if fields.has("ingest_time") else None
    valid_to = fields.identifier("valid_to") if fields.has("valid_to") else None
    _check_types(fields, schema, {"event_time": "int", "ingest_time": "int", "valid_to": "int?"})
    if path is None or event_time is None:
        return None
    return BatchSource(
        name=name,
        path=path,
        schema=schema,
        event_time=event_time,
        ingest_time=ingest_time,
        valid_to=valid_to,
        description=fields.text("description", required=False) or "",
        facts=facts,
    )


def _check_types(fields: Fields, schema: dict[str, str], wanted: dict[str, str]) -> None:
    for role, kind in wanted.items():
        column = fields.text(role, required=False)
        if column in schema and schema[column] not in (kind, kind.removesuffix("?")):
            message = f"column '{column}' is {schema[column]}; {role} must be {kind}"
            fields.problems.add(fields.node_of(role), "type", message)


def _glob(fields: Fields, name: str) -> str | None:
    node = fields.scalar(name, required=False)
    if node is None:
        return None
    if not node.text.strip() or node.text.endswith("/"):
        hint = f"for example {name}: archive/trips/**/*.parquet"
        fields.problems.add(node, "path", f"'{name}' is a glob of Parquet files, not '{node.text}'", hint)
        return None
    return node.text


def _dedup(fields: Fields, columns: Sequence[str]) -> Dedup | None:
    node = fields.optional("dedup")
    if node is None or (isinstance(node, ScalarNode) and node.text == "none"):
        return None
    if not isinstance(node, MapNode):
        fields.problems.add(node, "type", "dedup is {by: column, horizon: duration} or none")
        return None
    inner = Fields(node, fields.problems, ("by", "horizon"), "dedup")
    by, horizon_ms = inner.choice("by", columns), inner.duration("horizon")
    return Dedup(by=by, horizon_ms=horizon_ms) if by is not None and horizon_ms is not None else None

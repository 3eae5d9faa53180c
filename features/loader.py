"""YAML to a checked Catalogue, with all mistakes of all files at once.

    entities.yaml     name: {join_key, type} or {keys: {column: type, …}}
    sources.yaml      name: {topic, times, schema, disorder, future, dedup}
    views/*.yaml      one view a file: entity, source, key, max_age, features
    tests/*.yaml      cases of a view, read by features/view_tests.py

`load_texts` does the same for texts that travelled inside the registry. Single fields are read by
features/yaml_fields.py, features by features/feature_loader.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files as package_files
from pathlib import Path

from features.expr import Mistakes
from features.feature_loader import load_features
from features.spec import Catalogue, Dedup, Entity, FeatureView, KeyColumn, Source
from features.window import DAY_MS, HOUR_MS
from features.yaml_fields import Fields, Problems
from features.yaml_source import MapNode, Node, ScalarNode, load_yaml, name_hint, parse_yaml

ENTITIES, SOURCES, VIEWS, TESTS = "entities.yaml", "sources.yaml", "views", "tests"
SHIPPED = Path(str(package_files("features"))) / "definitions"

KEY_TYPES = ("string", "int", "int32")
_VIEW_KEYS = (
    "view",
    "entity",
    "source",
    "key",
    "owner",
    "max_age",
    "freshness_slo",
    "description",
    "features",
    "tests",
)
_SOURCE_KEYS = (
    "topic",
    "event_time",
    "ingest_time",
    "event_id",
    "disorder",
    "future",
    "dedup",
    "schema",
    "description",
)


def load_catalogue(folder: Path | str) -> Catalogue:
    """Read a folder of definitions.

    Raises: Mistakes with every mistake of every file; FileNotFoundError naming what is missing.
    """
    catalogue, problems = read_catalogue(folder)
    problems.raise_if_any()
    return catalogue


def read_catalogue(folder: Path | str) -> tuple[Catalogue, Problems]:
    """What of a folder can be understood, and all mistakes. Raises: FileNotFoundError naming what is missing."""
    folder = Path(folder)
    for name in (ENTITIES, SOURCES, VIEWS):
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing: a catalogue has {ENTITIES}, {SOURCES} and {VIEWS}/")
    problems = Problems()
    nodes: dict[str, Node] = {}
    texts: dict[str, str] = {}
    for path in [folder / ENTITIES, folder / SOURCES, *sorted((folder / VIEWS).glob("*.yaml"))]:
        rel = path.relative_to(folder).as_posix()
        try:
            nodes[rel] = load_yaml(path, name=str(path))
            texts[rel] = path.read_text(encoding="utf-8-sig")
        except Mistakes as error:
            problems.extend(error.items)
    catalogue = _build(nodes, texts, problems)
    for view in catalogue.views.values():
        if view.tests is not None and not (folder / view.tests).is_file():
            node = _tests_node(nodes, view)
            problems.add(node, "tests", f"no such file: {folder / view.tests}", "tests stand under tests/")
    return catalogue, problems


def load_texts(texts: Mapping[str, str]) -> Catalogue:
    """The same from texts by relative path, as `Catalogue.files` holds them. Raises: Mistakes."""
    problems = Problems()
    nodes: dict[str, Node] = {}
    for rel, text in texts.items():
        try:
            nodes[rel] = parse_yaml(text, rel)
        except Mistakes as error:
            problems.extend(error.items)
    catalogue = _build(nodes, dict(texts), problems)
    problems.raise_if_any()
    return catalogue


def _build(nodes: Mapping[str, Node], texts: dict[str, str], problems: Problems) -> Catalogue:
    entities = _entities(nodes.get(ENTITIES), problems)
    sources = _sources(nodes.get(SOURCES), problems)
    views: dict[str, FeatureView] = {}
    for rel, node in nodes.items():
        if rel in (ENTITIES, SOURCES):
            continue
        fields = Fields(node, problems, _VIEW_KEYS, "a view")
        view = _view(fields, entities, sources, ENTITIES in nodes, SOURCES in nodes)
        if view is None:
            continue
        if view.name in views:
            other = views[view.name]
            hint = f"it is already declared in {other.file}:{other.line}; rename one of them"
            problems.add(fields.node_of("view"), "duplicate", f"duplicate view '{view.name}'", hint)
            continue
        views[view.name] = view
    return Catalogue(entities=entities, sources=sources, views=views, files=texts)


def _entities(node: Node | None, problems: Problems) -> dict[str, Entity]:
    out: dict[str, Entity] = {}
    owners: dict[frozenset[str], str] = {}
    for key, value in problems.entries(node, "entities"):
        fields = Fields(value, problems, ("join_key", "type", "keys", "description"), f"entity '{key.text}'")
        keys = _keys(fields)
        names = frozenset(column.name for column in keys or ())
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


def _keys(fields: Fields) -> tuple[KeyColumn, ...] | None:
    """`join_key` and `type`, or `keys: {column: type}` in the order in which they are written; "" for a wrong type."""
    if not fields.has("keys"):
        name, kind = fields.identifier("join_key"), fields.choice("type", KEY_TYPES)
        return None if name is None else (KeyColumn(name=name, type=kind or ""),)
    for name in ("join_key", "type"):
        if fields.has(name):
            hint = "name every column of the key under keys"
            fields.problems.add(fields.node_of(name), "key", f"'{name}' does not go with 'keys'", hint)
    entries = fields.entries("keys")
    inner = Fields(fields.node_of("keys"), fields.problems, [key.text for key, _ in entries], f"keys of {fields.what}")
    columns = [KeyColumn(name=key.text, type=inner.choice(key.text, KEY_TYPES) or "") for key, _ in entries]
    if not entries:
        fields.problems.add(fields.node_of("keys"), "key", f"{fields.what} has no key", "write keys: {zone: int}")
    return tuple(columns) or None


def _sources(node: Node | None, problems: Problems) -> dict[str, Source]:
    out: dict[str, Source] = {}
    for key, value in problems.entries(node, "sources"):
        fields = Fields(value, problems, _SOURCE_KEYS, f"source '{key.text}'")
        schema = _schema(fields)
        columns = [fields.choice(name, tuple(schema)) for name in ("event_time", "ingest_time", "event_id")]
        topic = fields.text("topic")
        disorder_ms, future_ms = fields.duration("disorder"), fields.duration("future")
        dedup = _dedup(fields, tuple(schema), problems)
        for name, wanted in (("event_time", "int"), ("ingest_time", "int"), ("event_id", "string")):
            column = fields.text(name, required=False)
            if column in schema and schema[column] != wanted:
                message = f"column '{column}' is {schema[column]}; {name} must be {wanted}"
                problems.add(fields.node_of(name), "type", message)
        if None in columns or topic is None or disorder_ms is None or future_ms is None:
            continue
        event_time, ingest_time, event_id = (str(column) for column in columns)
        out[key.text] = Source(
            name=key.text,
            topic=topic,
            schema=schema,
            event_time=event_time,
            ingest_time=ingest_time,
            event_id=event_id,
            disorder_ms=disorder_ms,
            future_ms=future_ms,
            dedup=dedup,
            description=fields.text("description", required=False) or "",
        )
    return out


def _schema(fields: Fields) -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in fields.entries("schema"):
        type_name = fields.problems.type_name(value)
        if type_name is not None:
            out[key.text] = type_name
    return out


def _dedup(fields: Fields, columns: tuple[str, ...], problems: Problems) -> Dedup | None:
    node = fields.optional("dedup")
    if node is None or (isinstance(node, ScalarNode) and node.text == "none"):
        return None
    if not isinstance(node, MapNode):
        problems.add(node, "type", "dedup is {by: column, horizon: duration} or none")
        return None
    inner = Fields(node, problems, ("by", "horizon"), "dedup")
    by, horizon_ms = inner.choice("by", columns), inner.duration("horizon")
    return Dedup(by=by, horizon_ms=horizon_ms) if by is not None and horizon_ms is not None else None


def _view(
    fields: Fields,
    entities: Mapping[str, Entity],
    sources: Mapping[str, Source],
    entities_known: bool,
    sources_known: bool,
) -> FeatureView | None:
    """One view. Entities and sources are only looked up where their file could be read at all."""
    name = fields.identifier("view")
    entity_name = fields.choice("entity", tuple(entities)) if entities_known else None
    source_name = fields.choice("source", tuple(sources)) if sources_known else None
    max_age_ms = fields.duration("max_age")
    slo_ms = _freshness_slo(fields)
    entity, source = entities.get(entity_name or ""), sources.get(source_name or "")
    key_fields = _key_fields(fields, entity, source)
    features = load_features(fields, source, max_window_ms=28 * DAY_MS, min_hop_ms=1000, max_hop_ms=24 * HOUR_MS)
    if name is None or entity is None or source is None or key_fields is None or max_age_ms is None:
        return None
    at = fields.node_of("view")
    return FeatureView(
        name=name,
        entity=entity,
        source=source,
        key_fields=key_fields,
        max_age_ms=max_age_ms,
        features=features,
        owner=fields.text("owner", required=False) or "",
        freshness_slo_p99_ms=slo_ms,
        description=fields.text("description", required=False) or "",
        file=at.file,
        line=at.line,
        tests=fields.text("tests", required=False),
    )


def _key_fields(fields: Fields, entity: Entity | None, source: Source | None) -> tuple[str, ...] | None:
    """The source's columns that hold the key: the join keys themselves, or `key: {zone: pickup_zone}`."""
    if entity is None or source is None:
        return None
    node, problems = fields.optional("key"), fields.problems
    message = f"the key of entity '{entity.name}' is '{', '.join(entity.join_keys)}' alone"
    given: dict[str, ScalarNode] = {}
    before = len(problems.items)
    if node is not None and not isinstance(node, MapNode):
        hint = f"write key: {{{', '.join(f'{name}: column' for name in entity.join_keys)}}}"
        problems.add(node, "key", message, hint)
    for key, value in node.items() if isinstance(node, MapNode) else ():
        if key.text not in entity.join_keys:
            problems.add(key, "key", message, name_hint(key.text, entity.join_keys))
        elif not isinstance(value, ScalarNode):
            problems.add(value, "key", f"'{key.text}' is one column of the source")
        else:
            given[key.text] = value
    if len(problems.items) > before:
        return None
    for column in entity.keys:
        _check_key_field(problems, given.get(column.name), fields.node_of("source"), column, entity, source)
    if len(problems.items) > before:
        return None
    return tuple(given[name].text if name in given else name for name in entity.join_keys)


def _check_key_field(
    problems: Problems, given: ScalarNode | None, at: Node, column: KeyColumn, entity: Entity, source: Source
) -> None:
    field = column.name if given is None else given.text
    if field not in source.schema:
        hint = f"add key: {{{column.name}: column}}" if given is None else name_hint(field, source.schema)
        message = f"source '{source.name}' has no column '{field}' to take the key from"
        problems.add(given or at, "key", message, hint)
    elif source.schema[field].removesuffix("?") != column.source_type:
        message = f"column '{field}' is {source.schema[field]}, the key of entity '{entity.name}' is {column.type}"
        problems.add(given or at, "type", message)


def _freshness_slo(fields: Fields) -> int | None:
    node = fields.optional("freshness_slo")
    if node is None:
        return None
    return Fields(node, fields.problems, ("p99",), "freshness_slo").duration("p99")


def _tests_node(nodes: Mapping[str, Node], view: FeatureView) -> Node:
    for node in nodes.values():
        if isinstance(node, MapNode) and node.file == view.file:
            return node.get("tests") or node
    raise AssertionError(f"view {view.name} came from no file")

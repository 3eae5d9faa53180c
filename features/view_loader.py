"""One view: which entity it describes, where its values come from, and its features (features/feature_loader.py).

    view, entity, source, key: {zone: pickup_zone}, max_age, features, request: {distance_m: int}, …

A view of a stream has aggregates, one of a batch source has columns; both, and a view with no source at all, may have
expressions over their features and over `request`: fields that come with the question.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from features.feature_loader import load_features
from features.source_loader import load_columns
from features.spec import BatchSource, Entity, FeatureView, KeyColumn, Source
from features.yaml_fields import Fields, Problems
from features.yaml_source import MapNode, Node, ScalarNode, name_hint

VIEW_KEYS: Final = (
    *("view", "entity", "source", "key", "owner", "max_age", "freshness_slo"),
    *("description", "request", "features", "tests"),
)


def load_view(
    fields: Fields,
    entities: Mapping[str, Entity] | None,
    sources: Mapping[str, Source | BatchSource] | None,
) -> FeatureView | None:
    """A view, None where it cannot be understood; mistakes are noted. None for a file that could not be read at all."""
    name = fields.identifier("view")
    request, facts = load_columns(fields, "request") if fields.has("request") else ({}, {})
    _refuse_twice(fields, request)
    asked = not fields.has("source") and bool(request)
    entity_name = fields.choice("entity", tuple(entities)) if entities is not None else None
    source_name = fields.choice("source", tuple(sources)) if sources is not None and not asked else None
    entity, source = (entities or {}).get(entity_name or ""), (sources or {}).get(source_name or "")
    max_age_ms = _ages(fields, source, asked)
    key_fields = () if asked else _key_fields(fields, entity, source)
    slo_ms = _freshness_slo(fields)
    features = load_features(fields, source, request, facts, known_source=asked or source is not None)
    if name is None or entity is None or (source is None and not asked) or key_fields is None or max_age_ms is None:
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
        request=request,
    )


def _refuse_twice(fields: Fields, request: Mapping[str, str]) -> None:
    """An expression could not say which of the two it means."""
    node = fields.optional("features")
    for key, _ in node.items() if isinstance(node, MapNode) else ():
        if key.text in request:
            message = f"'{key.text}' is a feature and a request field of the same view"
            fields.problems.add(key, "duplicate", message, "rename one of them")


def _ages(fields: Fields, source: Source | BatchSource | None, asked: bool) -> int | None:
    """`max_age`; of a view without a source nothing is kept, so nothing ages, and nothing is kept up to date."""
    unfit = ("key", "max_age", "freshness_slo") if asked else ("freshness_slo",) if _is_batch(source) else ()
    for name in unfit:
        if fields.has(name):
            what = "a view without a source" if asked else "a view of a batch source"
            fields.problems.add(fields.node_of(name), "view", f"'{name}' does not go with {what}")
    return 0 if asked else fields.duration("max_age")


def _is_batch(source: Source | BatchSource | None) -> bool:
    return isinstance(source, BatchSource)


def _key_fields(fields: Fields, entity: Entity | None, source: Source | BatchSource | None) -> tuple[str, ...] | None:
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
    problems: Problems,
    given: ScalarNode | None,
    at: Node,
    column: KeyColumn,
    entity: Entity,
    source: Source | BatchSource,
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

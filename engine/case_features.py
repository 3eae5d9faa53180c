"""What a case says of features: the section `features` of a case in a file of tests (engine/case_file.py)."""

from __future__ import annotations

from collections.abc import Sequence

from engine.case_parts import Parts
from engine.case_values import Feature
from engine.strategy import Role
from features.rows import Status
from features.yaml_source import MapNode, Node, ScalarNode


def read_features(parts: Parts) -> tuple[dict[str, list[dict[str, Feature]]] | None, frozenset[str]]:
    """(rows by role: one per candidate, or one in all; None when the store is away, roles whose view is not kept up)."""
    own = parts.own.optional("features")
    if isinstance(own, ScalarNode) and own.text == "away":
        return None, frozenset()
    for layer in parts.layers:
        if isinstance(single := layer.optional("features"), ScalarNode):
            parts.problems.add(single, "type", "'features' must be a mapping of roles, or 'away'")
    roles = {role.name: role for role in parts.strategy.roles}
    given: dict[str, list[Node]] = {name: [] for name in roles}
    for layer in parts.layers:
        for key, value in parts.entries(layer.optional("features"), "features"):
            if key.text in roles:
                given[key.text].append(value)
            else:
                parts.unknown(key, f"features: no role '{key.text}'", roles)
    words = {name: nodes[0].text for name, nodes in given.items() if nodes and isinstance(nodes[0], ScalarNode)}
    for name, word in words.items():
        if word not in ("missing", "stale"):
            parts.problems.add(given[name][0], "value", f"features.{name} must be a mapping, 'missing' or 'stale'")
    stale = frozenset(name for name, word in words.items() if word == "stale")
    return {
        name: [{}] * (len(parts.ids) if role.per_candidate else 1) if words.get(name) == "missing"
        else _all_stale(parts, role) if name in stale
        else _role_rows(parts, role, [node for node in given[name] if not isinstance(node, ScalarNode)])
        for name, role in roles.items()
    }, stale  # fmt: skip


def _all_stale(parts: Parts, role: Role) -> list[dict[str, Feature]]:
    row = {spec.name: Feature(None, Status.STALE) for spec in role.view.features}
    return [row] * (len(parts.ids) if role.per_candidate else 1)


def _role_rows(parts: Parts, role: Role, nodes: Sequence[Node]) -> list[dict[str, Feature]]:
    """The case's own first, then the file's defaults. A candidate's role is given by candidate; in defaults, for all."""
    if not role.per_candidate:
        return [_feature_row(parts, role, nodes)]
    own = [node for node in nodes if node is not _default_of(parts, role.name)]
    by_id: dict[str, list[Node]] = {identifier: [] for identifier in parts.ids}
    for node in own:
        for key, value in parts.entries(node, f"features.{role.name}"):
            if key.text not in by_id:
                parts.unknown(key, f"features.{role.name}: no candidate '{key.text}'", parts.ids)
            elif not isinstance(value, MapNode):
                what = f"features.{role.name}.{key.text}"
                parts.problems.add(value, "type", f"{what} must be a mapping of features", "leave out what is missing")
            else:
                by_id[key.text].append(value)
    default = _default_of(parts, role.name)
    shared = [default] if isinstance(default, MapNode) else []
    return [_feature_row(parts, role, [*by_id[identifier], *shared]) for identifier in parts.ids]


def _default_of(parts: Parts, role: str) -> Node | None:
    node = parts.layers[1].optional("features") if len(parts.layers) > 1 else None
    return node.get(role) if isinstance(node, MapNode) else None


def _feature_row(parts: Parts, role: Role, nodes: Sequence[Node]) -> dict[str, Feature]:
    known = {spec.name: spec for spec in role.view.features}
    out: dict[str, Feature] = {}
    for node in nodes:
        for key, value in parts.entries(node, f"features.{role.name}"):
            if key.text not in known:
                parts.unknown(key, f"view '{role.view.name}' has no feature '{key.text}'", known)
            elif key.text not in out:
                what = f"features.{role.name}.{key.text}"
                out[key.text] = Feature.read(value, known[key.text], what, parts.problems)
    return out

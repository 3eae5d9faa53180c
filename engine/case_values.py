"""Values in the tests of a strategy: a YAML scalar as a value of a type, as a request would send it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from engine.wire_values import US_PER_MS
from features.expr import Type
from features.expr.times import parse_duration, parse_timestamp
from features.rows import Status
from features.spec import FeatureSpec
from features.yaml_fields import Problems
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode

_WORDS: Final = {"missing": Status.MISSING, "stale": Status.STALE}


def typed(node: Node, kind: Type, what: str, problems: Problems) -> Any:
    """The value; None for null, and after a mistake, which is noted. Times are milliseconds, or as text
    ('2024-03-10T07:30:00Z', '90s')."""
    if isinstance(node, ScalarNode) and node.value is None:
        if not kind.nullable:
            problems.add(node, "nullable", f"{what} is a {kind}; it cannot be null")
        return None
    if kind.is_list:
        if isinstance(node, SeqNode):
            return [typed(item, kind.item, f"{what}[{at}]", problems) for at, item in enumerate(node)]
        problems.add(node, "type", f"{what} is a {kind}", "write it as [a, b]")
        return None
    if not isinstance(node, ScalarNode):
        problems.add(node, "type", f"{what} is a {kind}, a single value")
        return None
    value = _plain(node, kind.kind)
    if value is None:
        problems.add(node, "type", f"{what} is a {kind}, not {node.text}")
    return value


def _plain(node: ScalarNode, kind: str) -> Any:
    """The value of that kind, None where the scalar is none."""
    value = node.value
    if kind == "string":
        return node.text
    if isinstance(value, bool) or kind == "bool":
        return value if isinstance(value, bool) and kind == "bool" else None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    if kind == "double":
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    if isinstance(value, int):
        return value
    if kind in ("timestamp", "duration") and isinstance(value, str):
        try:
            micros = parse_timestamp(value) if kind == "timestamp" else parse_duration(value)
        except ValueError:
            return None
        return micros // US_PER_MS
    return None


@dataclass(frozen=True)
class Feature:
    """A feature as it is served: a value that is present, or why there is none."""

    value: Any
    status: Status

    @classmethod
    def read(cls, node: Node, spec: FeatureSpec, what: str, problems: Problems) -> Feature:
        """A value, `null`, `missing` or `stale`; `{value: missing}` is the text."""
        if isinstance(node, MapNode):
            inner = node.get("value")
            if inner is None or len(node) != 1:
                problems.add(node, "type", f"{what} must be a value, null, missing, stale, or {{value: …}}")
                return cls(None, Status.MISSING)
            node = inner
        elif isinstance(node, ScalarNode) and node.text in _WORDS:
            return cls(None, _WORDS[node.text])
        value = typed(node, Type(spec.type, True), what, problems)
        return cls(value, Status.NULL if value is None else Status.PRESENT)

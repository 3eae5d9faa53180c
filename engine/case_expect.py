"""What must follow from a case: the section `expect` of a case in a file of tests (engine/case_file.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from engine.case_parts import Parts
from engine.case_values import typed
from features.expr import Type
from features.yaml_fields import Fields
from features.yaml_source import MapNode, Node

_PER_CANDIDATE: Final = ("dropped", "scores", "fired", "unknown", "outputs", "propensities")
_EXPECT: Final = ("chosen", "order", *_PER_CANDIDATE, "quality", "decided_by", "arms", "params", "tolerance")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One thing that must hold: `what` is a key of `expect`, `candidate` and `name` say of whom and of which output."""

    what: str
    value: Any
    node: Node
    candidate: str | None = None
    name: str | None = None


def read_expect(parts: Parts) -> tuple[tuple[Expected, ...], float]:
    """Everything that must follow, and the tolerance of its numbers."""
    node = parts.own.optional("expect")
    if not isinstance(node, MapNode) or not len(node):
        parts.problems.add(node or parts.own.node, "missing", "a case needs 'expect': one without could never fail")
        return (), 0.0
    fields = Fields(node, parts.problems, _EXPECT, "expect")
    found: list[Expected] = []
    for key, value in node.items():
        if key.text in _PER_CANDIDATE:
            found += _per_candidate(parts, key.text, value)
        elif key.text in ("quality", "decided_by", "chosen") and (one := parts.single(value, key.text)) is not None:
            found.append(
                Expected(what=key.text, value=parts.identifier(one) if key.text == "chosen" else one.text, node=one)
            )
        elif key.text == "order":
            order = [parts.identifier(item) for item in parts.items(value, "order")]
            found.append(Expected(what="order", value=order, node=value))
        elif key.text in ("arms", "params"):
            for name, inner in parts.entries(value, key.text):
                if (one := parts.single(inner, f"{key.text}.{name.text}")) is not None:
                    wanted = one.value if key.text == "params" else one.text
                    found.append(Expected(what=key.text, name=name.text, value=wanted, node=one))
    if not found:
        parts.problems.add(node, "missing", "'expect' names nothing that must hold: the case could never fail")
    tolerance = fields.scalar("tolerance", required=False)
    allowed = typed(tolerance, Type("double", False), "tolerance", parts.problems) if tolerance else 1e-9
    return tuple(found), float(allowed or 0.0)


def _per_candidate(parts: Parts, what: str, node: Node) -> Iterator[Expected]:
    """`what: {candidate: value}`; `dropped` is one expectation as a whole, so that nobody is dropped unsaid."""
    rules = [rule.id for rule in parts.strategy.rules]
    dropped: dict[str, str] = {}
    for key, value in parts.entries(node, what):
        candidate = parts.identifier(key)
        if candidate is None:
            continue
        if what in ("scores", "propensities"):
            number = typed(value, Type("double", True), f"{what}.{key.text}", parts.problems)
            yield Expected(what=what, candidate=candidate, value=number, node=value)
        elif what in ("fired", "unknown"):
            named = parts.items(value, what)
            for item in named:
                if item.text not in rules:
                    parts.unknown(item, f"no rule '{item.text}'", rules)
            yield Expected(what=what, candidate=candidate, value=[item.text for item in named], node=value)
        elif what == "outputs":
            yield from _outputs(parts, candidate, value)
        elif (one := parts.single(value, f"{what}.{key.text}")) is not None:
            reasons = [*rules, *(f"unknown:{rule}" for rule in rules), "score_not_finite"]
            if one.text not in reasons:
                parts.unknown(one, f"no reason '{one.text}' to drop anything", reasons)
            dropped[candidate] = one.text
    if what == "dropped":
        yield Expected(what=what, value=dropped, node=node)


def _outputs(parts: Parts, candidate: str, node: Node) -> Iterator[Expected]:
    kinds = {output.name: output.program.type for output in parts.compiled.outputs}
    for key, value in parts.entries(node, f"outputs.{candidate}"):
        if key.text not in kinds:
            parts.unknown(key, f"no output '{key.text}'", kinds)
            continue
        wanted = typed(value, kinds[key.text].optional(), f"outputs.{candidate}.{key.text}", parts.problems)
        yield Expected(what="outputs", candidate=candidate, name=key.text, value=wanted, node=value)

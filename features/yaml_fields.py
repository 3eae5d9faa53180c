"""Reading the fields of a YAML mapping: each getter returns a checked value, or None and notes a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from features.expr import Mistake, Mistakes, parse_type
from features.window import parse_duration_ms
from features.yaml_source import MapNode, Node, ScalarNode, mistake, name_hint

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")


class Problems:
    """The mistakes found so far."""

    def __init__(self) -> None:
        self.items: list[Mistake] = []

    def add(self, node: Node, kind: str, message: str, hint: str = "") -> None:
        self.items.append(mistake(node, kind, message, hint))

    def extend(self, items: Iterable[Mistake]) -> None:
        self.items.extend(items)

    def raise_if_any(self) -> None:
        if self.items:
            raise Mistakes(self.items)

    def entries(self, node: Node | None, what: str) -> list[tuple[ScalarNode, Node]]:
        """The entries of a mapping; anything else is a mistake and has none. A file that was not read has none."""
        if node is None:
            return []
        if not isinstance(node, MapNode):
            self.add(node, "type", f"{what} must be a mapping of names")
            return []
        for key, _ in node.items():
            if not _IDENTIFIER.fullmatch(key.text):
                self.add(key, "name", f"'{key.text}' is not a name", "use lower-case letters, digits and _")
        return [(key, value) for key, value in node.items() if _IDENTIFIER.fullmatch(key.text)]

    def type_name(self, node: Node) -> str | None:
        if isinstance(node, ScalarNode):
            try:
                return str(parse_type(node.text))
            except ValueError as error:
                self.add(node, "type", str(error))
                return None
        self.add(node, "type", "a type is one word, such as int or double?")
        return None


class Fields:
    """The fields of one mapping. Unknown keys are noted at once."""

    def __init__(self, node: Node, problems: Problems, known: Sequence[str], what: str) -> None:
        self.node, self.problems, self.what = node, problems, what
        if not isinstance(node, MapNode):
            problems.add(node, "type", f"{what} must be a mapping with {', '.join(known)}")
            return
        for key, _ in node.items():
            if key.text not in known:
                problems.add(key, "unknown-key", f"{what} has no field '{key.text}'", name_hint(key.text, known))

    def optional(self, name: str) -> Node | None:
        """The value's node; None where it is absent or null."""
        node = self.node.get(name) if isinstance(self.node, MapNode) else None
        return None if isinstance(node, ScalarNode) and node.value is None else node

    def node_of(self, name: str) -> Node:
        """The place to complain about a field: its value, or the whole mapping."""
        node = self.optional(name)
        return self.node if node is None else node

    def has(self, name: str) -> bool:
        return self.optional(name) is not None

    def scalar(self, name: str, *, required: bool = True) -> ScalarNode | None:
        node = self.optional(name)
        if node is None:
            if required and isinstance(self.node, MapNode):
                self.problems.add(self.node, "missing", f"{self.what} needs '{name}'")
            return None
        if isinstance(node, ScalarNode):
            return node
        self.problems.add(node, "type", f"'{name}' must be a single value")
        return None

    def text(self, name: str, *, required: bool = True) -> str | None:
        node = self.scalar(name, required=required)
        return None if node is None else node.text

    def identifier(self, name: str) -> str | None:
        node = self.scalar(name)
        if node is not None and not _IDENTIFIER.fullmatch(node.text):
            self.problems.add(node, "name", f"'{node.text}' is not a name", "use lower-case letters, digits and _")
            return None
        return None if node is None else node.text

    def choice(self, name: str, known: Sequence[str], *, required: bool = True, what: str = "") -> str | None:
        """One of the known words; a mistake calls it by `what`, else by the field's name."""
        node = self.scalar(name, required=required)
        if node is None:
            return None
        if node.text not in known:
            self.problems.add(node, "unknown", f"unknown {what or name} '{node.text}'", name_hint(node.text, known))
            return None
        return node.text

    def duration(self, name: str, *, required: bool = True) -> int | None:
        node = self.scalar(name, required=required)
        if node is None:
            return None
        try:
            return parse_duration_ms(node.text)
        except ValueError as error:
            self.problems.add(node, "duration", f"{name}: {error}", "for example 90s, 15m, 24h or 2d")
            return None

    def entries(self, name: str) -> list[tuple[ScalarNode, Node]]:
        node = self.optional(name)
        if node is None:
            if isinstance(self.node, MapNode):
                self.problems.add(self.node, "missing", f"{self.what} needs '{name}'")
            return []
        return self.problems.entries(node, name)

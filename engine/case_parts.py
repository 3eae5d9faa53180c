"""The parts of one case in a file of tests: what the case itself says, then what the file's defaults say.

`engine/case_file.py` says what a case is and reads most of it; `engine/case_features.py` and `engine/case_expect.py` the rest.
"""

from __future__ import annotations

from typing import Any, Final

from engine.case_values import typed
from engine.strategy import CompiledStrategy
from features.expr import Type
from features.yaml_fields import Fields, Problems
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, name_hint

CASE_KEYS: Final = (
    "name", "as_of", "order_id", "decision_id", "city", "product", "request", "candidates", "features", "models", "params",
    "arms", "assign", "switches", "expect",
)  # fmt: skip


class Parts:
    """Sections by name. `ids` are the candidates of the case, in its order; mistakes go to `problems`."""

    def __init__(self, node: Node, compiled: CompiledStrategy, shared: Fields | None, problems: Problems) -> None:
        self.compiled, self.strategy, self.problems = compiled, compiled.strategy, problems
        self.own = Fields(node, problems, CASE_KEYS, "a case")
        self.layers = [self.own, *([shared] if shared is not None else [])]
        self.ids = [key.text for key, _ in self.entries(self.own.optional("candidates"), "candidates")]

    def identifier(self, node: ScalarNode) -> str | None:
        """The id of a candidate of this case, or null."""
        if node.value is None:
            return None
        if node.text not in self.ids:
            self.unknown(node, f"no candidate '{node.text}' in this case", self.ids)
        return node.text

    def first(self, section: str) -> Node | None:
        return next((node for layer in self.layers if (node := layer.optional(section)) is not None), None)

    def pick(self, section: str, name: str) -> Node | None:
        """The entry of a section, from the case or else from the defaults."""
        for layer in self.layers:
            node = layer.optional(section)
            if isinstance(node, MapNode) and (found := node.get(name)) is not None:
                return found
        return None

    def word(self, section: str, default: str) -> str:
        node = self.first(section)
        if node is None:
            return default
        if not isinstance(node, ScalarNode) or not node.text:
            self.problems.add(node, "type", f"'{section}' must be a text")
            return default
        return node.text

    def flag(self, section: str) -> bool:
        node = self.first(section)
        return bool(node is not None and typed(node, Type("bool", False), section, self.problems))

    def items(self, node: Node | None, what: str) -> list[ScalarNode]:
        if node is None:
            return []
        if not isinstance(node, SeqNode):
            self.problems.add(node, "type", f"'{what}' must be a list: [a, b]")
            return []
        return [one for item in node if (one := self.single(item, f"an item of '{what}'")) is not None]

    def single(self, node: Node, what: str) -> ScalarNode | None:
        if isinstance(node, ScalarNode):
            return node
        self.problems.add(node, "type", f"{what} must be a single value")
        return None

    def entries(self, node: Node | None, what: str) -> list[tuple[ScalarNode, Node]]:
        """The entries of a mapping; a word in place of features is left to who reads it."""
        if isinstance(node, MapNode):
            return node.items()
        is_word = isinstance(node, ScalarNode) and what.startswith("features")
        if node is not None and not is_word and not (isinstance(node, ScalarNode) and node.value is None):
            self.problems.add(node, "type", f"'{what}' must be a mapping of names")
        return []

    def unknown(self, node: Node, message: str, known: Any) -> None:
        text = node.text if isinstance(node, ScalarNode) else ""
        self.problems.add(node, "unknown", message, name_hint(text, known))

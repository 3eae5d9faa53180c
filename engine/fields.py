"""Reading the parts of a strategy file: its structure is checked first, so that getters only have to hand out values.

`check` walks the file along its description (`engine/sections.py`) and notes what does not fit. A getter treats what was
noted as if it were not there, so that nothing is said twice. `engine/loader.py` is a `Fields` that knows the sections.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.sections import RESERVED
from engine.shapes import IDENTIFIER, NAME_HINT, Shape, number_of
from features.expr import Facts, Mistake, SourceText, Type, parse_type
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, mistake

NUMBERS: Final = ("int", "double")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_AROUND: Final = ("missing", "rule", "unknown-key")  # said of a mapping that can be read otherwise


class Fields:
    """The mistakes and the names of one file. `broken` are names that were declared but could not be understood.

    `facts` are units and bounds by name, `files` the bytes of the other files that the file names, by relative path.
    """

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self.broken: set[str] = set()
        self.names: dict[str, Node] = {}
        self.facts: dict[str, Facts] = {}
        self.files: dict[str, bytes] = {}
        self._unfit: dict[int, Node] = {}  # by id; kept alive, so that an id stays one node's

    def check(self, root: Node, shape: Shape, what: str) -> None:
        """Note everything whose structure is wrong."""

        def note(node: Node, kind: str, message: str, hint: str) -> None:
            self.note(node, kind, message, hint)
            if kind not in _AROUND:
                self._unfit[id(node)] = node

        shape.check(root, what, note)

    def note(self, node: Node | None, kind: str, message: str, hint: str = "") -> None:
        assert node is not None
        self.mistakes.append(mistake(node, kind, message, hint))

    def fits(self, node: Node | None) -> bool:
        """Whether a node is there and nothing is wrong with its structure."""
        return node is not None and id(node) not in self._unfit

    def declare(self, key: ScalarNode, what: str) -> bool:
        """Take a name; a clash is a mistake."""
        name = key.text
        if not self.fits(key):
            return False
        if not re.fullmatch(IDENTIFIER, name) or name in RESERVED:
            self.note(key, "name", f"{what}: '{name}' is not a name", NAME_HINT)
            return False
        if name in self.names:
            self.note(
                key, "duplicate", f"'{name}' is already declared on line {self.names[name].line}", "choose another name"
            )
            return False
        self.names[name] = key
        return True

    def map_of(self, node: Node | None) -> dict[str, Node]:
        """The entries of a mapping whose values fit."""
        return {key.text: value for key, value in self.entries(node) if self.fits(value)}

    def entries(self, node: Node | None) -> list[tuple[ScalarNode, Node]]:
        """The entries of a mapping whose keys fit; their values may not."""
        if not self.fits(node) or not isinstance(node, MapNode):
            return []
        return [(key, value) for key, value in node.items() if self.fits(key)]

    def items(self, node: Node | None) -> list[Node]:
        """The items of a list that fit."""
        return [item for item in node if self.fits(item)] if self.fits(node) and isinstance(node, SeqNode) else []

    def named(
        self, node: Node | None, what: str, read: Callable[[ScalarNode, Node], Any], *, declares: bool = False
    ) -> dict[str, Any]:
        """`{name: read(key, value)}`; a value that could not be read leaves its name broken."""
        out: dict[str, Any] = {}
        for key, value in self.entries(node):
            if declares and not self.declare(key, what):
                continue
            made = read(key, value) if self.fits(value) else None
            if made is None:
                self.broken.add(key.text if declares else f"{what}.{key.text}")
            else:
                out[key.text] = made
        return out

    def text(self, node: Node | None, default: str = "") -> str:
        return (
            node.value if isinstance(node, ScalarNode) and self.fits(node) and isinstance(node.value, str) else default
        )

    def number(self, node: Node | None, default: Any, *, kind: type = float) -> Any:
        value = number_of(node) if node is not None and self.fits(node) else None
        return default if value is None else kind(value)

    def expression(self, node: Node | None) -> SourceText | None:
        return node.source() if isinstance(node, ScalarNode) and self.fits(node) else None

    def type_of(self, node: Node | None) -> Type | None:
        """A type as written: `double?`, `list(string)`."""
        return parse_type(node.text) if isinstance(node, ScalarNode) and self.fits(node) else None

    def typed(self, name: str, node: Node) -> Type | None:
        """`double?`, or `{type: double?, unit: s, min: 0, max: 7200}`: the type; unit and bounds go to `facts`."""
        if not self.fits(node):
            return None
        if isinstance(node, ScalarNode):
            return self.type_of(node)
        parts = self.map_of(node)
        kind = self.type_of(parts.get("type"))
        if kind is None:
            return None
        for bound in ("min", "max"):
            if bound in parts and kind.kind not in NUMBERS:
                self.note(parts.pop(bound), "bound", f"a {kind.kind} has no {bound}", "remove it")
        low, high = self.bounds(parts)
        self.know(name, self.text(parts.get("unit")), low, high)
        return kind

    def bounds(self, parts: Mapping[str, Node]) -> tuple[float | None, float | None]:
        """`min` and `max` of a number, None where there is none."""
        low, high = (self.number(parts.get(bound), None) for bound in ("min", "max"))
        if low is not None and high is not None and low > high:
            self.note(parts["min"], "bound", f"min {low:g} is above max {high:g}")
        return low, high

    def know(self, name: str, unit: str, low: float | None, high: float | None) -> None:
        if unit or low is not None or high is not None:
            self.facts[name] = Facts(unit=unit, low=low, high=high)

    def duration_ms(self, node: Node | None) -> float | None:
        """`8ms`, `0.5s`."""
        match = _DURATION.fullmatch(self.text(node))
        if match is None or not math.isfinite(float(match[1])):
            return None
        return float(match[1]) * (1000.0 if match[2] == "s" else 1.0)

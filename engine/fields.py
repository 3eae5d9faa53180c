"""Reading the parts of a strategy file: each getter returns a checked value, or a stand-in and notes a mistake.

`engine/loader.py` is a `Fields` that knows the sections of a strategy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from features.expr import Facts, Mistake, SourceText, Type, parse_type
from features.yaml_source import MapNode, Node, ScalarNode, mistake, name_hint

KINDS: Final = ("int", "double", "bool", "string")  # what a parameter can be
NUMBERS: Final = ("int", "double")
RESERVED: Final = frozenset({"params", "out", "score", "true", "false", "null", "has", "in"})
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


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

    def note(self, node: Node | None, kind: str, message: str, hint: str = "") -> None:
        assert node is not None
        self.mistakes.append(mistake(node, kind, message, hint))

    def declare(self, key: ScalarNode, what: str) -> bool:
        """Take a name; a clash or a word that cannot be a name is a mistake."""
        name = key.text
        if not _IDENTIFIER.fullmatch(name) or name in RESERVED:
            why = "is reserved" if name in RESERVED else "is not a name"
            self.note(key, "name", f"{what}: '{name}' {why}", "use letters, digits and _, not starting with a digit")
            return False
        if name in self.names:
            self.note(
                key, "duplicate", f"'{name}' is already declared on line {self.names[name].line}", "choose another name"
            )
            return False
        self.names[name] = key
        return True

    def map_of(
        self, node: Node | None, known: Collection[str], *, required: Collection[str] = (), what: str
    ) -> dict[str, Node]:
        """The entries of a mapping, unknown keys and missing ones noted."""
        if node is None:
            return {}
        if not isinstance(node, MapNode):
            self.note(node, "shape", f"{what} must be a mapping", f"its keys are {', '.join(known)}")
            return {}
        out: dict[str, Node] = {}
        for key, value in node.items():
            if key.text not in known:
                self.note(key, "unknown-key", f"{what}: unknown key '{key.text}'", name_hint(key.text, known))
            else:
                out[key.text] = value
        for name in required:
            if name not in out:
                self.note(node, "missing", f"{what}: '{name}' is missing")
        return out

    def entries(self, node: Node | None, what: str) -> list[tuple[ScalarNode, Node]]:
        """The entries of a mapping whose keys are the author's names."""
        if node is None:
            return []
        if not isinstance(node, MapNode):
            self.note(node, "shape", f"{what} must be a mapping of names")
            return []
        return node.items()

    def named(
        self, node: Node | None, what: str, read: Callable[[ScalarNode, Node], Any], *, declares: bool = False
    ) -> dict[str, Any]:
        """`{name: read(key, value)}`; a value that could not be read leaves its name broken."""
        out: dict[str, Any] = {}
        for key, value in self.entries(node, what):
            if declares and not self.declare(key, what):
                continue
            if not declares and not _IDENTIFIER.fullmatch(key.text):
                self.note(key, "name", f"{what}: '{key.text}' is not a name", "use letters, digits and _")
                continue
            made = read(key, value)
            if made is None:
                self.broken.add(key.text if declares else f"{what}.{key.text}")
            else:
                out[key.text] = made
        return out

    def text(self, node: Node | None, what: str, *, default: str) -> str:
        if node is None:
            return default
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str) or not node.value:
            self.note(node, "type", f"{what} must be a text")
            return default
        return node.value

    def choice(self, node: Node | None, what: str, known: Collection[str]) -> str | None:
        if node is None:
            return None
        text = node.text if isinstance(node, ScalarNode) else ""
        if text not in known:
            self.note(node, "value", f"{what} must be one of {', '.join(known)}, not '{text}'")
            return None
        return text

    def number(
        self,
        node: Node | None,
        what: str,
        *,
        kind: type,
        default: Any,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> Any:
        if node is None:
            return default
        value: Any = node.value if isinstance(node, ScalarNode) else None
        if kind is float and type(value) is int:
            value = float(value)
        is_kind: bool = type(value) is kind
        if not is_kind or not math.isfinite(value):
            self.note(node, "type", f"{what} must be a {'whole ' if kind is int else ''}number")
            return default
        if not low <= value <= high:
            wanted = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            self.note(node, "bound", f"{what} is {value:g}; it must be {wanted}")
            return default
        return value

    def type_of(self, node: Node | None) -> Type | None:
        """A type as written: `double?`, `list(string)`."""
        if node is None:
            return None
        try:
            return parse_type(node.text if isinstance(node, ScalarNode) else "")
        except ValueError as error:
            known = str(error).partition("; known: ")[2]
            text = node.text if isinstance(node, ScalarNode) else "this"
            self.note(node, "type", f"'{text}' is not a type", f"use {known}")
            return None

    def typed(self, name: str, node: Node, what: str) -> Type | None:
        """`double?`, or `{type: double?, unit: s, min: 0, max: 7200}`: the type; unit and bounds go to `facts`."""
        if isinstance(node, ScalarNode):
            return self.type_of(node)
        parts = self.map_of(node, ("type", "unit", "min", "max"), required=("type",), what=what)
        kind = self.type_of(parts.get("type"))
        if kind is None:
            return None
        low, high = self.bounds(parts, what, kind.kind)
        unit = self.text(parts["unit"], f"{what}.unit", default="") if "unit" in parts else ""
        self.know(name, unit, low, high)
        return kind

    def bounds(self, parts: Mapping[str, Node], what: str, kind: str) -> tuple[float | None, float | None]:
        """`min` and `max` of a number, None where there is none."""
        out: dict[str, float] = {}
        for bound in ("min", "max"):
            if bound in parts and kind not in NUMBERS:
                self.note(parts[bound], "bound", f"a {kind} has no {bound}", "remove it")
            elif bound in parts:
                value = self.number(parts[bound], f"{what}.{bound}", kind=float, default=None)
                if value is not None:
                    out[bound] = value
        if out.get("min", -math.inf) > out.get("max", math.inf):
            self.note(parts["min"], "bound", f"min {out['min']:g} is above max {out['max']:g}")
        return out.get("min"), out.get("max")

    def know(self, name: str, unit: str, low: float | None, high: float | None) -> None:
        if unit or low is not None or high is not None:
            self.facts[name] = Facts(unit=unit, low=low, high=high)

    def duration_ms(self, node: Node | None, what: str) -> float | None:
        if node is None:
            return None
        match = _DURATION.fullmatch(node.text) if isinstance(node, ScalarNode) else None
        if match is None or float(match[1]) <= 0:
            self.note(node, "type", f"{what} must be a duration above zero", "write 8ms or 0.5s")
            return None
        return float(match[1]) * (1000.0 if match[2] == "s" else 1.0)

    def expression(self, node: Node | None, what: str) -> SourceText | None:
        if node is None:
            return None
        if not isinstance(node, ScalarNode) or not node.text.strip():
            self.note(node, "shape", f"{what} must be an expression")
            return None
        return node.source()
